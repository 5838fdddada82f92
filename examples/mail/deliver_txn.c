/*
 * Mail delivery in one transaction: appends the message on standard input to SPOOL/USER and adds its size to
 * SPOOL/USER.quota. Exit status 0: both are on the disk. Any other: neither was changed. 75 means "try again later".
 *
 *     amino run -- ./deliver_txn /amino/mail alice <message
 */
#include <amino.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#define TRIES 5

static int put(const char *path, const char *mode, const char *head, const char *body, size_t size)
{
    FILE *file = fopen(path, mode);
    if (!file)
        return -1;
    int failed = fputs(head, file) < 0 || fwrite(body, 1, size, file) != size || fflush(file), error = errno;
    fclose(file);
    errno = error;
    return failed ? -1 : 0;
}

/* 0, or -1 with errno. No error needs cleaning up: the abort does. */
static int deliver(const char *mbox, const char *quota, const char *message, size_t size)
{
    char head[256], sums[64];
    unsigned long long used = 0, limit = 50ULL << 20;
    errno = 0;
    FILE *file = fopen(quota, "r");
    int fields = file ? fscanf(file, "%llu %llu", &used, &limit) : 2, error = errno;
    if (file)
        fclose(file);
    if (file ? fields == EOF && error : error != ENOENT)
        return errno = error, -1;
    if (fields != 2 || (used += size) > limit)
        return errno = fields != 2 ? EBADMSG : EDQUOT, -1;

    const char *sender = getenv("SENDER");
    time_t now = time(NULL);
    snprintf(head, sizeof head, "From %.200s %s", sender ? sender : "MAILER-DAEMON", asctime(gmtime(&now)));
    snprintf(sums, sizeof sums, "%llu %llu\n", used, limit);
    return put(mbox, "a", head, message, size) || put(quota, "w", sums, "", 0) ? -1 : 0;
}

int main(int argc, char **argv)
{
    static char message[25 << 20], mbox[PATH_MAX], quota[PATH_MAX];
    size_t size = fread(message, 1, sizeof message, stdin);
    if (argc != 3 || ferror(stdin) || size == sizeof message)
        return fprintf(stderr, "usage: %s SPOOL USER <MESSAGE (below 25 MiB)\n", argv[0]), EX_USAGE;
    message[size++] = '\n'; /* An empty line ends a message. */
    snprintf(mbox, sizeof mbox, "%s/%s", argv[1], argv[2]);
    snprintf(quota, sizeof quota, "%s/%s.quota", argv[1], argv[2]);

    for (int try = 1;; try++) {
        int error = amino_begin(NULL);
        if (error == 0) {
            error = deliver(mbox, quota, message, size) ? -errno : 0;
            if (error)
                amino_abort();
            else if (!(error = amino_commit()))
                return EX_OK; /* A commit that fails has aborted. */
        }
        if ((error != -EDEADLK && error != -ETIMEDOUT) || try == TRIES) {
            fprintf(stderr, "%s: not delivered: %s\n", mbox, error == -ENOSYS ? amino_strerror(error) : strerror(-error));
            return EX_TEMPFAIL;
        }
        usleep((useconds_t)(getpid() * try % 64) * 1000); /* Others hold locks: they are through soon. */
    }
}
