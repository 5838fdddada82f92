/* The working directory of a process that has it in common with another one (CLONE_FS) and executes a program. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char stack[1 << 16] __attribute__((aligned(16)));
static const char *program, *top, *host;

static int execute(void *unused)
{
	(void)unused;
	execl(program, program, top, host, "child", (char *)NULL);
	_exit(9);
}

static const char *look(const char *name)
{
	struct stat st;
	int fd = open(name, O_RDONLY);
	int was_opened = fd >= 0;
	if (was_opened)
		close(fd);
	int is_there = stat(name, &st) == 0;
	return is_there && was_opened ? "there" : is_there || was_opened ? "in doubt" : strerror(errno);
}

/* Looks at relative paths, then lets the parent change the directory, and looks again. */
static int child(void)
{
	const char *before[2], *after[2];
	sigset_t set;
	int signal;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	for (int i = 0; i < 100; i++) {
		before[0] = look("here");
		before[1] = look("over");
	}
	kill(getppid(), SIGUSR1);
	sigwait(&set, &signal);
	for (int i = 0; i < 100; i++) {
		after[0] = look("here");
		after[1] = look("over");
	}
	printf("before: here %s, over %s\nafter: here %s, over %s\n", before[0], before[1], after[0], after[1]);
	return 0;
}

static void make(const char *dir, const char *name)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	close(open(path, O_WRONLY | O_CREAT, 0644));
}

static void change_from(const char *first, const char *second)
{
	sigset_t set;
	int signal, status;
	make(first, "here");
	make(second, "over");
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	if (chdir(first) != 0)
		exit(2);
	fflush(stdout);
	int pid = clone(execute, stack + sizeof stack, CLONE_FS | SIGCHLD, NULL);
	sigwait(&set, &signal);
	printf("chdir %d\n", chdir(second));
	fflush(stdout);
	kill(pid, SIGUSR1);
	waitpid(pid, &status, 0);
	printf("status %d\n", status);
	char path[4096];
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%s/%s", i ? second : first, i ? "over" : "here");
		unlink(path);
	}
}

int main(int argc, char **argv)
{
	char self[4096] = {0};
	if (argc == 4)
		return child();
	if (argc != 3 || readlink("/proc/self/exe", self, sizeof self - 1) < 0)
		return 1;
	program = self;
	top = argv[1];
	host = argv[2];
	change_from(host, top);
	change_from(top, host);
	puts("end");
	return 0;
}
