/*
 * A stand-in for the monitor, preloaded into programs under test: it answers the reserved call in the place of the kernel.
 *
 * Its state is the file $FAKE_STATE, shared by all processes; a process without a stack of its own has its parent's. Every call is
 * appended to $FAKE_LOG as "OPERATION WHO [IDENTIFIER]", where WHO is self, parent or other. $FAKE_CONFLICTS is how many
 * transactions, from the first on, meet a conflict. $FAKE_FAIL is OPERATION:ERRNO, to fail each time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define NUMBER 0x616d6e
#define ID 32
#define DEPTH 64
enum { VERSION, BEGIN, COMMIT, ABORT, STATUS, SUSPEND, RESUME, ATTACH, DETACH };
static const char *const names[] = {"version", "begin", "commit", "abort", "status", "suspend", "resume", "attach", "detach"};

struct stack {
    int pid, depth;
    char id[DEPTH][ID];
};
struct state {
    int begun, stacks, conflicts[1000];
    struct stack stack[100], suspended;
};

/* Identifiers are the numbers of transactions, from 1 on. */
static int number_of(const char *id)
{
    char digits[ID + 1] = "";
    memcpy(digits, id, ID);
    return atoi(digits);
}

static int parent_of(int pid)
{
    char path[64];
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    if (fscanf(file, "%*d (%*[^)]) %*c %d", &parent) != 1)
        parent = 0;
    fclose(file);
    return parent;
}

/* The stack of `pid`, which is its parent's at first. */
static struct stack *stack_of(struct state *state, int pid)
{
    struct stack *inherited = NULL;
    for (int at = pid; at > 0 && !inherited; at = parent_of(at))
        for (int i = 0; i < state->stacks && !inherited; i++)
            if (state->stack[i].pid == at)
                inherited = &state->stack[i];
    if (inherited && inherited->pid == pid)
        return inherited;
    struct stack *own = &state->stack[state->stacks++];
    if (inherited)
        *own = *inherited;
    own->pid = pid;
    return own;
}

static struct stack *stack_with(struct state *state, const char *id)
{
    for (int i = 0; i < state->stacks; i++)
        for (int at = 0; at < state->stack[i].depth; at++)
            if (memcmp(state->stack[i].id[at], id, ID) == 0)
                return &state->stack[i];
    return NULL;
}

/* The transaction has ended in every process. */
static void end(struct state *state, const char *ended)
{
    char id[ID];
    memcpy(id, ended, ID);
    for (int i = 0; i < state->stacks; i++)
        for (int at = 0; at < state->stack[i].depth; at++)
            if (memcmp(state->stack[i].id[at], id, ID) == 0)
                state->stack[i].depth = at;
}

static long describe(struct state *state, struct stack *stack, char *buf, size_t len)
{
    static char text[100 * 300];
    int at = sprintf(text, "{\"current\":[");
    for (int i = 0; i < stack->depth; i++)
        at += sprintf(text + at,
                      "%s{\"id\":\"%.32s\",\"depth\":%d,\"names\":1,\"inodes\":2,\"bytes\":4096,\"shared_locks\":3,"
                      "\"exclusive_locks\":4,\"conflicts\":%d,\"processes\":[%d]}",
                      i ? "," : "", stack->id[i], i + 1, state->conflicts[number_of(stack->id[i])], stack->pid);
    at += sprintf(text + at, "],\"suspended\":[");
    if (state->suspended.depth)
        at += sprintf(text + at, "\"%.32s\"", state->suspended.id[state->suspended.depth - 1]);
    at += sprintf(text + at, "]}");
    memcpy(buf, text, (size_t)at < len ? (size_t)at : len);
    return at;
}

static long answer(struct state *state, int op, int pid, char *buf, size_t len)
{
    struct stack *stack = stack_of(state, pid), *other;
    char digits[ID + 1];
    switch (op) {
    case VERSION:
        return 1;
    case BEGIN:
        if (stack->depth == DEPTH)
            return -EMLINK;
        sprintf(digits, "%032d", ++state->begun);
        state->conflicts[state->begun] = getenv("FAKE_CONFLICTS") && state->begun <= atoi(getenv("FAKE_CONFLICTS"));
        memcpy(buf, digits, ID);
        memcpy(stack->id[stack->depth], digits, ID);
        return ++stack->depth;
    case STATUS:
        return describe(state, stack, buf, len);
    case RESUME:
        if (stack->depth)
            return -EBUSY;
        if (!state->suspended.depth || memcmp(state->suspended.id[state->suspended.depth - 1], buf, ID) != 0)
            return -ENOENT;
        state->suspended.pid = pid;
        *stack = state->suspended;
        state->suspended.depth = 0;
        return 0;
    case ATTACH:
        if (stack->depth)
            return -EBUSY;
        if (!(other = stack_with(state, buf)))
            return -ENOENT;
        *stack = *other;
        stack->pid = pid;
        return 0;
    }
    if (!stack->depth)
        return -ENODATA;
    switch (op) {
    case COMMIT:
    case ABORT:
        end(state, stack->id[stack->depth - 1]);
        return 0;
    case SUSPEND:
        memcpy(buf, stack->id[stack->depth - 1], ID);
        state->suspended = *stack;
    }
    stack->depth = 0;
    return 0;
}

static long fake(int op, int target, char *buf, size_t len)
{
    FILE *log = fopen(getenv("FAKE_LOG"), "a");
    const char *who = target == 0 ? "self" : target == getppid() ? "parent" : "other";
    int identified = op == RESUME || op == ATTACH;
    fprintf(log, "%s %s%s%.*s\n", names[op], who, identified ? " " : "", identified ? (int)len : 0, identified ? buf : "");
    fclose(log);
    const char *failure = getenv("FAKE_FAIL"), *number = failure ? strchr(failure, ':') : NULL;
    if (number && strlen(names[op]) == (size_t)(number - failure) && strncmp(failure, names[op], number - failure) == 0)
        return -atoi(number + 1);

    int fd = open(getenv("FAKE_STATE"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_EX) || ftruncate(fd, sizeof(struct state)))
        abort();
    struct state *state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (state == MAP_FAILED)
        abort();
    long result = answer(state, op, target ? target : getpid(), buf, len);
    munmap(state, sizeof *state);
    close(fd);
    return result;
}

long syscall(long number, ...)
{
    static long (*real)(long, ...);
    long argument[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        argument[i] = va_arg(list, long);
    va_end(list);
    if (number == NUMBER) {
        long result = fake((int)argument[0], (int)argument[1], (char *)argument[2], (size_t)argument[3]);
        if (result >= 0)
            return result;
        errno = (int)-result;
        return -1;
    }
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, argument[0], argument[1], argument[2], argument[3], argument[4], argument[5]);
}
