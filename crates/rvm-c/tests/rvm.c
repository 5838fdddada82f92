/* The C interface, used as a program uses it: a list in recoverable memory. Exits with the line of the first failure. */
#define _GNU_SOURCE
#include <amino_rvm.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                      \
    do {                                                                      \
        if (!(condition)) {                                                   \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);           \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

struct node {
    struct node *next;
    int value;
};

static void push(struct node **head, int value)
{
    void *block;
    CHECK(rvm_alloc(sizeof(struct node), _Alignof(struct node), &block) == 0);
    struct node *node = block;
    node->next = *head;
    node->value = value;
    *head = node;
}

static int sum(const struct node *node)
{
    int total = 0;
    for (; node; node = node->next)
        total += node->value;
    return total;
}

static void lists_roll_back(void)
{
    void *block;
    CHECK(rvm_alloc(sizeof(struct node *), 16, &block) == 0);
    struct node **head = block;
    *head = NULL;
    push(head, 1);
    CHECK(rvm_begin() == 1);
    push(head, 2);
    CHECK(rvm_begin() == 2);
    struct node *first = *head;
    *head = first->next;
    CHECK(rvm_free(first) == 0);
    push(head, 40);
    CHECK(sum(*head) == 41);
    CHECK(rvm_depth() == 2);
    CHECK(rvm_abort() == 0);
    CHECK(sum(*head) == 3 && *head == first);
    CHECK(rvm_commit() == 0);
    CHECK(sum(*head) == 3);
    CHECK(rvm_begin() == 1);
    push(head, 100);
    struct node *lost = *head;
    CHECK(rvm_abort() == 0);
    CHECK(sum(*head) == 3);
    CHECK(rvm_free(lost) == -EINVAL);
    CHECK(rvm_free(*head) == 0 && rvm_free(*head) == -EINVAL);
    CHECK(rvm_free(NULL) == 0);
}

static void regions_roll_back(void)
{
    void *region, *other;
    CHECK(rvm_map(10000, &region) == 0);
    strcpy(region, "before");
    CHECK(rvm_begin() == 1);
    int pipes[2];
    CHECK(pipe(pipes) == 0 && write(pipes[1], "after!", 6) == 6);
    CHECK(read(pipes[0], region, 6) == 6);
    CHECK(strcmp(region, "after!") == 0);
    CHECK(rvm_map(1, &other) == 0);
    CHECK(rvm_unmap(region) == 0);
    CHECK(rvm_unmap(region) == -EINVAL);
    CHECK(rvm_abort() == 0);
    CHECK(strcmp(region, "before") == 0);
    CHECK(rvm_unmap(other) == -EINVAL);
    CHECK(rvm_unmap(region) == 0);
    CHECK(rvm_map(0, &region) == -EINVAL);
}

/* Linux refuses to drop the pages of locked memory in the usual way. */
static void locked_memory_rolls_back(void)
{
    void *region;
    CHECK(rvm_map(8192, &region) == 0);
    CHECK(mlock(region, 8192) == 0);
    volatile char *byte = region;
    *byte = 1;
    CHECK(rvm_begin() == 1);
    *byte = 2;
    CHECK(rvm_abort() == 0);
    CHECK(*byte == 1);
    CHECK(rvm_unmap(region) == 0);
}

/* Without a check, SIGXFSZ would end the process. */
static void the_limit_on_files_holds(void)
{
    void *region;
    struct rlimit limit = { 8192, RLIM_INFINITY };
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(rvm_map(8193, &region) == -EFBIG);
    CHECK(rvm_map(8192, &region) == 0);
    CHECK(rvm_unmap(region) == 0);
}

/* A child has no recoverable memory, and does not disturb its parent's. */
static void fork_does_not_inherit(void)
{
    void *region;
    CHECK(rvm_map(1, &region) == 0);
    volatile char *byte = region;
    *byte = 1;
    CHECK(rvm_begin() == 1);
    *byte = 2;
    int status;
    pid_t child = fork();
    if (child == 0) {
        void *other;
        int all = rvm_begin() == -EPERM && rvm_abort() == -EPERM && rvm_map(1, &other) == -EPERM;
        exit(all ? 7 : 8);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    child = fork();
    if (child == 0)
        _exit(*byte);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(*byte == 2 && rvm_depth() == 1);
    CHECK(rvm_abort() == 0);
    CHECK(*byte == 1);
    CHECK(rvm_unmap(region) == 0);
}

int main(void)
{
    void *block;
    CHECK(rvm_begin() == -ENXIO);
    CHECK(rvm_init(2, 0) == -EINVAL);
    CHECK(rvm_init(0, 0) == -ENOSYS);
    CHECK(rvm_init(RVM_MEMORY_ONLY, 1 << 20) == 0);
    CHECK(rvm_init(RVM_MEMORY_ONLY, 0) == -EALREADY);
    CHECK(rvm_commit() == -ENODATA);
    CHECK(rvm_abort() == -ENODATA);
    CHECK(rvm_alloc(2 << 20, 16, &block) == -ENOMEM);
    CHECK(rvm_alloc(1, 3, &block) == -EINVAL);
    CHECK(rvm_alloc(1, 1, NULL) == -EFAULT && rvm_map(1, NULL) == -EFAULT);
    lists_roll_back();
    regions_roll_back();
    locked_memory_rolls_back();
    fork_does_not_inherit();
    the_limit_on_files_holds();
    for (int depth = 1; depth <= RVM_DEPTH_MAX; depth++)
        CHECK(rvm_begin() == depth);
    CHECK(rvm_begin() == -EMLINK);
    puts("all well");
    return 0;
}
