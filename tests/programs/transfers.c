/* Processes that move money between a few accounts in transactions, all at the same time:
 *
 *     transfers PROCESSES TRANSFERS
 *
 * bN holds a balance, one byte; logN a letter for each transfer from there, which names the process; done/P-N exists when
 * process P has made its transfer N. Some transfers are aborted at the end, and some processes die in the midst of one. At the end the
 * parent checks that the files show each committed transfer once, and nothing else.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ACCOUNTS = 4, SHARE = 60, MOST = 64, TXN = 0x616d6e, BEGIN = 1, COMMIT = 2, ABORT = 3 };

struct tally {
    int committed, conflicts;
};

static struct tally *tallies; /* of each process, shared by all */
static unsigned seed;

static void fail(const char *what)
{
    fprintf(stderr, "%d: %s: %s\n", getpid(), what, strerror(errno));
    _exit(1);
}

static void txn(int op)
{
    char id[32];
    if (syscall(TXN, op, 0, op == BEGIN ? id : NULL, op == BEGIN ? sizeof id : 0, 0) < 0)
        fail("transaction");
}

/* Whether a call succeeded. False: the transaction must be restarted. */
static bool did(long result, const char *what)
{
    if (result >= 0)
        return true;
    if (errno != EDEADLK)
        fail(what);
    return false;
}

static bool with_file(const char *path, int flags, unsigned char *byte)
{
    int fd = open(path, flags, 0644);
    if (!did(fd, path))
        return false;
    ssize_t done = flags == O_RDONLY ? read(fd, byte, 1) : write(fd, byte, 1);
    int saved = errno;
    close(fd);
    errno = saved;
    if (!did(done, path))
        return false;
    if (done != 1) {
        errno = EIO;
        fail("short");
    }
    return true;
}

static char *name(const char *format, ...)
{
    static char text[4][64];
    static int next;
    char *out = text[next++ % 4];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out, sizeof text[0], format, arguments);
    va_end(arguments);
    return out;
}

/* In a transaction inside the current one, which is aborted now and then and done again. */
static bool add(int account, int amount)
{
    bool in_vain = rand_r(&seed) % 4 == 0;
    for (;;) {
        unsigned char balance;
        txn(BEGIN);
        bool ok = with_file(name("b%d", account), O_RDONLY, &balance);
        balance += amount;
        ok = ok && with_file(name("b%d", account), O_WRONLY, &balance);
        if (ok && !in_vain) {
            txn(COMMIT);
            return true;
        }
        txn(ABORT);
        if (!ok)
            return false;
        in_vain = false;
    }
}

static bool transfer(int who, int number, bool dies)
{
    int from = rand_r(&seed) % ACCOUNTS;
    int to = (from + 1 + rand_r(&seed) % (ACCOUNTS - 1)) % ACCOUNTS;
    unsigned char have, letter = 'A' + who, dot = '.';
    if (!with_file(name("b%d", from), O_RDONLY, &have))
        return false;
    int amount = rand_r(&seed) % (have + 1);
    if (!add(from, -amount))
        return false;
    if (dies)
        kill(getpid(), SIGKILL);
    return add(to, amount) && with_file(name("log%d", from), O_WRONLY | O_APPEND, &letter)
        && with_file(name("done/%d-%d", who, number), O_WRONLY | O_CREAT | O_EXCL, &dot);
}

static void work(int who, int transfers)
{
    seed = who + 1;
    for (int number = 0; number < transfers; number++) {
        if (rand_r(&seed) % 20 == 0) {
            pid_t child = fork();
            if (child == 0) {
                do {
                    txn(BEGIN);
                    transfer(who, number, true);
                    txn(ABORT);
                } while (true);
            }
            waitpid(child, NULL, 0);
        }
        bool on_purpose = rand_r(&seed) % 10 == 0;
        for (int pause_us = 1000;; pause_us = pause_us < 64000 ? pause_us * 2 : pause_us) {
            txn(BEGIN);
            bool ok = transfer(who, number, false);
            if (ok && !on_purpose) {
                txn(COMMIT);
                tallies[who].committed++;
                break;
            }
            txn(ABORT);
            if (ok)
                break;
            tallies[who].conflicts++;
            usleep(rand_r(&seed) % pause_us);
        }
    }
    _exit(0);
}

static void expect(const char *what, int is, int expected)
{
    if (is != expected) {
        printf("%s: %d, not %d\n", what, is, expected);
        exit(1);
    }
}

static void check(int processes)
{
    int sum = 0, logged[MOST] = {0}, noted[MOST] = {0}, who;
    for (int account = 0; account < ACCOUNTS; account++) {
        unsigned char balance;
        with_file(name("b%d", account), O_RDONLY, &balance);
        sum += balance;
        FILE *log = fopen(name("log%d", account), "r");
        for (int letter; (letter = getc(log)) != EOF;)
            logged[(letter - 'A') % MOST]++;
        fclose(log);
    }
    expect("sum", sum, ACCOUNTS * SHARE);
    DIR *dir = opendir("done");
    for (struct dirent *entry; (entry = readdir(dir));)
        if (sscanf(entry->d_name, "%d-", &who) == 1)
            noted[who % MOST]++;
    closedir(dir);
    for (who = 0; who < processes; who++) {
        expect(name("log of process %d", who), logged[who], tallies[who].committed);
        expect(name("notes of process %d", who), noted[who], tallies[who].committed);
    }
}

int main(int argc, char **argv)
{
    int processes = atoi(argv[1]), transfers = atoi(argv[2]), committed = 0, conflicts = 0;
    unsigned char share = SHARE;
    tallies = mmap(NULL, MOST * sizeof *tallies, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    mkdir("done", 0755);
    for (int account = 0; account < ACCOUNTS; account++) {
        with_file(name("b%d", account), O_WRONLY | O_CREAT, &share);
        close(open(name("log%d", account), O_WRONLY | O_CREAT, 0644));
    }
    for (int who = 0; who < processes; who++)
        if (fork() == 0)
            work(who, transfers);
    for (int status; wait(&status) > 0;)
        expect("status", status, 0);
    check(processes);
    for (int who = 0; who < processes; who++) {
        committed += tallies[who].committed;
        conflicts += tallies[who].conflicts;
    }
    printf("%d committed, %d begun anew\n", committed, conflicts);
    return committed * 5 < processes * transfers * 4 || conflicts == 0;
}
