// What makes a tracer lose calls. The first argument says what to do; each makes marker calls (mkdir of /nowhere/NAME) that must all be recorded.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char *self;

static void mark(const char *name)
{
	char path[64];
	snprintf(path, sizeof path, "/nowhere/%s", name);
	if (mkdir(path, 0700) != -1)
		_exit(99);
}

static void *executes(void *name)
{
	mark(name);
	execl(self, self, "mark", "executed", NULL);
	_exit(98);
}

static void *sleeps(void *unused)
{
	char byte;
	int pipes[2];
	if (pipe(pipes) == 0)
		read(pipes[0], &byte, 1);
	return unused;
}

static void exec_in_thread(void)
{
	pthread_t thread;
	pthread_create(&thread, NULL, sleeps, NULL);
	pthread_create(&thread, NULL, executes, "thread");
	sleeps(NULL);
}

static void *marks(void *number)
{
	char name[32];
	for (int i = 0; i < 50; i++) {
		snprintf(name, sizeof name, "t%ld-%d", (long)number, i);
		mark(name);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t all[8];
	for (long i = 0; i < 8; i++)
		pthread_create(&all[i], NULL, marks, (void *)i);
	for (int i = 0; i < 8; i++)
		pthread_join(all[i], NULL);
}

// Each level forks twice; each process marks itself.
static void storm(int levels, const char *name)
{
	char next[32];
	mark(name);
	for (int i = 0; levels > 0 && i < 3; i++) {
		snprintf(next, sizeof next, "%s%d", name, i);
		pid_t child = i == 1 ? vfork() : fork();
		if (child == 0) {
			if (i == 1)
				execl(self, self, "mark", next, NULL);
			storm(levels - 1, next);
			_exit(0);
		}
	}
	while (wait(NULL) > 0)
		;
}

static volatile int handled;

static void handler(int signal)
{
	(void)signal;
	handled++;
	mark("handler");
}

static void signals(void)
{
	struct sigaction action = { .sa_handler = handler };
	sigaction(SIGALRM, &action, NULL);
	int pipes[2];
	char byte;
	pipe(pipes);
	alarm(1);
	if (read(pipes[0], &byte, 1) != -1 || errno != EINTR)
		_exit(97);
	action.sa_flags = SA_RESTART;
	sigaction(SIGUSR1, &action, NULL);
	pid_t child = fork();
	if (child == 0) {
		usleep(100000);
		kill(getppid(), SIGUSR1);
		usleep(100000);
		write(pipes[1], "x", 1);
		_exit(0);
	}
	if (read(pipes[0], &byte, 1) != 1 || handled != 2)
		_exit(96);
	waitpid(child, NULL, 0);
	mark("after");
}

static void stops(void)
{
	pid_t child = fork();
	if (child == 0) {
		mark("before");
		raise(SIGSTOP);
		mark("continued");
		_exit(0);
	}
	int status;
	waitpid(child, &status, WUNTRACED);
	if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP)
		_exit(95);
	mark("stopped");
	kill(child, SIGCONT);
	waitpid(child, &status, WCONTINUED);
	if (!WIFCONTINUED(status) && !WIFEXITED(status))
		_exit(94);
	waitpid(child, &status, 0);
	int ends[2];
	char byte;
	if (pipe(ends))
		_exit(92);
	child = fork();
	if (child == 0) {
		mark("victim");
		write(ends[1], "x", 1);
		for (;;)
			pause();
	}
	read(ends[0], &byte, 1);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		_exit(93);
	mark("killed");
}

// A filter that fails mkdir with ENOTTY, before our tracer's filter is asked.
static void install(unsigned flags)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mkdir, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOTTY),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { 4, code };
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) != 0)
		_exit(92);
}

static pthread_barrier_t installed;

static void *waits_and_marks(void *name)
{
	pthread_barrier_wait(&installed);
	mark(name);
	return NULL;
}

static void filters(void)
{
	pthread_t thread;
	pthread_barrier_init(&installed, NULL, 2);
	pthread_create(&thread, NULL, waits_and_marks, "other");
	mark("unfiltered");
	install(SECCOMP_FILTER_FLAG_TSYNC);
	mark("filtered");
	if (errno != ENOTTY)
		_exit(91);
	pthread_barrier_wait(&installed);
	pthread_join(thread, NULL);
	pid_t child = fork();
	if (child == 0) {
		mark("child");
		_exit(0);
	}
	waitpid(child, NULL, 0);
}

// Waits in epoll_wait, which returns EINTR after a stop, and answers each byte with a mark; ends at "q".
static void serve(void)
{
	int queue = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	epoll_ctl(queue, EPOLL_CTL_ADD, 0, &event);
	pthread_t thread;
	pthread_create(&thread, NULL, sleeps, NULL);
	char name[8] = "a";
	for (;;) {
		if (epoll_wait(queue, &event, 1, -1) != 1)
			_exit(90);
		if (read(0, name, 1) != 1 || name[0] == 'q')
			_exit(0);
		mark(name);
		write(1, name, 1);
	}
}

// Opens a file and fails to open another one, before and after a change of the root directory to `directory`, in which both names exist or not.
static void root(const char *directory)
{
	open("/proc/version", O_RDONLY);
	open("/nowhere", O_RDONLY);
	if (chroot(directory) != 0 || chdir("/") != 0)
		_exit(89);
	open("/file", O_RDONLY);
	open("file", O_RDONLY);
	open("/nowhere", O_RDONLY);
	open("/new", O_WRONLY | O_CREAT, 0600);
}

int main(int argc, char **argv)
{
	self = argv[0];
	const char *what = argc > 1 ? argv[1] : "";
	if (!strcmp(what, "mark"))
		mark(argv[2]);
	else if (!strcmp(what, "exec"))
		exec_in_thread();
	else if (!strcmp(what, "threads"))
		threads();
	else if (!strcmp(what, "storm"))
		storm(atoi(argv[2]), "s");
	else if (!strcmp(what, "signals"))
		signals();
	else if (!strcmp(what, "stops"))
		stops();
	else if (!strcmp(what, "filters"))
		filters();
	else if (!strcmp(what, "root"))
		root(argv[2]);
	else if (!strcmp(what, "serve"))
		serve();
	else
		return 1;
	return 0;
}
