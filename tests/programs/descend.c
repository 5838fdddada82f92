/* Every way to make a process: the child is served as its parent is, or is not made. */
#include "step.h"
#include <linux/sched.h>

static char stack[1 << 16];

/* In the mount: a file, a directory, and a program that reads there. */
static int child(void *what)
{
	int fd;

	if (chdir("sub") || (fd = open((char *)what, O_WRONLY | O_CREAT, 0644)) < 0)
		_exit(81);
	if (write(fd, what, strlen(what)) < 0)
		_exit(82);
	close(fd);
	execl("/bin/grep", "grep", "-q", what, what, NULL);
	_exit(83);
}

static pid_t three(uint64_t flags, int signal, char *what)
{
	struct clone_args args = {.flags = flags, .exit_signal = signal};
	pid_t pid = syscall(SYS_clone3, &args, sizeof args);

	if (pid == 0)
		child(what);
	return pid;
}

static pid_t two(int flags, char *what)
{
	return clone(child, stack + sizeof stack, flags, what);
}

/* As libraries do where a way is closed. */
static void served(int line, char *name, pid_t pid)
{
	int status;

	if (pid < 0 && (pid = MUST(fork())) == 0)
		child(name);
	MUST(waitpid(pid, &status, __WALL));
	ended(line, name, status);
	char path[64];
	snprintf(path, sizeof path, "sub/%s", name);
	CONTENT(path);
}
#define SERVED(name, pid) served(__LINE__, name, pid)

static void steps(void)
{
	MUST(mkdir("sub", 0755));
	SERVED("clone3", three(0, SIGCHLD, "clone3"));
	SERVED("clone3-vfork", three(CLONE_VFORK, SIGCHLD, "clone3-vfork"));
	SERVED("clone3-untraced", three(CLONE_UNTRACED, SIGCHLD, "clone3-untraced"));
	SERVED("clone3-untraced-silent", three(CLONE_UNTRACED, 0, "clone3-untraced-silent"));
	SERVED("clone", two(SIGCHLD, "clone"));
	SERVED("clone-untraced", two(CLONE_UNTRACED | SIGCHLD, "clone-untraced"));
	SERVED("clone-vfork", two(CLONE_VFORK | CLONE_VM | SIGCHLD, "clone-vfork"));
	SERVED("clone-silent", two(0, "clone-silent"));
	/* A working directory in common: the child's chdir is the parent's, too. */
	CWD();
	pid_t pid = MUST(two(CLONE_FS | SIGCHLD, "common"));
	int status;
	MUST(waitpid(pid, &status, 0));
	ended(__LINE__, "common", status);
	CWD();
	CONTENT("common");
	IS("found where it is now", access("common", F_OK) == 0);
	MUST(chdir(".."));
	CONTENT("sub/common");
}
