/*
 * Mail delivery without transactions, as careful as files allow: the message on standard input is appended to SPOOL/USER
 * and its size added to SPOOL/USER.quota. Compare with deliver_txn.c.
 *
 *     ./deliver_classic /var/tmp/mail alice <message
 *
 * What it takes: a dot-lock against other deliverers and mail readers, fcntl locks for programs that know only these, a
 * truncation when the append fails, a temporary file and a rename for the quota, and a sync of each file and of the
 * directory. What remains: when the machine stops between the append and the rename the quota is wrong; when it stops
 * within the append, or the truncation fails, the mailbox ends in half a message; a dot-lock outlives its owner.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#define LOCK_TRIES 60
#define LOCK_STALE_S 300

static char spool[PATH_MAX / 2], mbox[PATH_MAX], lock[PATH_MAX], quota[PATH_MAX], fresh[PATH_MAX];

/* A file that only one process can have made. On some network file systems O_EXCL is not atomic, but link is. */
static int take_dot_lock(void)
{
    char own[PATH_MAX];
    snprintf(own, sizeof own, "%s/.lock.%d.%ld", spool, (int)getpid(), (long)time(NULL));
    int fd = open(own, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    dprintf(fd, "%d\n", (int)getpid());
    close(fd);
    for (int try = 0; try < LOCK_TRIES; try++) {
        struct stat stat_own, stat_lock;
        /* Its result may get lost on the network; the count of links does not. */
        (void)!link(own, lock);
        if (stat(own, &stat_own) == 0 && stat_own.st_nlink == 2)
            return unlink(own);
        if (stat(lock, &stat_lock) == 0 && time(NULL) - stat_lock.st_mtime > LOCK_STALE_S)
            unlink(lock); /* May take the lock of a process that is only slow. */
        else
            sleep(1);
    }
    unlink(own);
    return errno = EAGAIN, -1;
}

static int take_fcntl_lock(int fd)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    while (fcntl(fd, F_SETLKW, &whole))
        if (errno != EINTR)
            return -1;
    return 0;
}

static int write_all(int fd, const char *text, size_t size)
{
    while (size) {
        ssize_t written = write(fd, text, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return -1;
        text += written;
        size -= (size_t)written;
    }
    return 0;
}

static int sync_directory(void)
{
    int fd = open(spool, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int result = fsync(fd), error = errno;
    close(fd);
    errno = error;
    return result;
}

/* Writes the new quota beside the old one; it is not in force yet. */
static int prepare_quota(size_t size)
{
    unsigned long long used = 0, limit = 50ULL << 20;
    FILE *file = fopen(quota, "r");
    if (file) {
        int fields = fscanf(file, "%llu %llu", &used, &limit);
        fclose(file);
        if (fields != 2)
            return errno = EBADMSG, -1;
    } else if (errno != ENOENT)
        return -1;
    used += size;
    if (used > limit)
        return errno = EDQUOT, -1;
    if (!(file = fopen(fresh, "w")))
        return -1;
    fprintf(file, "%llu %llu\n", used, limit);
    int failed = fflush(file) || fsync(fileno(file));
    int error = errno;
    if (fclose(file) && !failed) {
        failed = 1;
        error = errno;
    }
    if (failed)
        unlink(fresh);
    errno = error;
    return failed ? -1 : 0;
}

static int append(int fd, const char *message, size_t size)
{
    char from[256];
    time_t now = time(NULL);
    const char *sender = getenv("SENDER");
    int length = snprintf(from, sizeof from, "From %.200s %s", sender ? sender : "MAILER-DAEMON", asctime(gmtime(&now)));
    off_t before = lseek(fd, 0, SEEK_END);
    if (before < 0)
        return -1;
    if (write_all(fd, from, (size_t)length) || write_all(fd, message, size) || fsync(fd)) {
        int error = errno;
        if (ftruncate(fd, before) || fsync(fd))
            fprintf(stderr, "%s: DAMAGED: half a message could not be removed\n", mbox);
        errno = error;
        return -1;
    }
    return 0;
}

static int deliver_locked(int fd, const char *message, size_t size)
{
    if (take_fcntl_lock(fd) || prepare_quota(size))
        return -1;
    if (append(fd, message, size)) {
        int error = errno;
        unlink(fresh);
        errno = error;
        return -1;
    }
    /* From here on the message is there, and an error would deliver it twice. */
    if (rename(fresh, quota) || sync_directory())
        fprintf(stderr, "%s: delivered, but the quota was not updated: %s\n", quota, strerror(errno));
    return 0;
}

static int deliver(const char *message, size_t size)
{
    if (take_dot_lock())
        return -1;
    int result = -1, fd = open(mbox, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0)
        result = deliver_locked(fd, message, size);
    int error = errno;
    if (fd >= 0)
        close(fd);
    unlink(lock);
    errno = error;
    return result;
}

int main(int argc, char **argv)
{
    static char message[25 << 20];
    size_t size = fread(message, 1, sizeof message, stdin);
    if (argc != 3 || ferror(stdin) || size == sizeof message)
        return fprintf(stderr, "usage: %s SPOOL USER <MESSAGE (below 25 MiB)\n", argv[0]), EX_USAGE;
    message[size++] = '\n'; /* An empty line ends a message. */
    snprintf(spool, sizeof spool, "%s", argv[1]);
    snprintf(mbox, sizeof mbox, "%s/%.255s", spool, argv[2]);
    snprintf(lock, sizeof lock, "%s/%.255s.lock", spool, argv[2]);
    snprintf(quota, sizeof quota, "%s/%.255s.quota", spool, argv[2]);
    snprintf(fresh, sizeof fresh, "%s/.%.255s.quota.%d", spool, argv[2], (int)getpid());
    if (deliver(message, size)) {
        fprintf(stderr, "%s: not delivered: %s\n", mbox, strerror(errno));
        return EX_TEMPFAIL;
    }
    return EX_OK;
}
