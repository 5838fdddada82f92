/* ptrace(2) of a process to its children: stops for signals, single steps, calls and events, and the waits for them. */
#include "step.h"
#include <pthread.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/user.h>

#define EVENT(status) ((status) >> 16)

static volatile uint64_t word = 1;
static volatile int handled, code, child_of_signal, status_of_signal;

static long trace(long request, pid_t pid, void *address, long data)
{
	return syscall(SYS_ptrace, request, pid, address, data);
}

static const char *state(int status)
{
	static char text[80];

	if (WIFEXITED(status))
		snprintf(text, sizeof text, "exited with %d", WEXITSTATUS(status));
	else if (WIFSIGNALED(status))
		snprintf(text, sizeof text, "killed by %d", WTERMSIG(status));
	else
		snprintf(text, sizeof text, "stopped by %d, event %d", WSTOPSIG(status) & ~0x80, EVENT(status));
	return text;
}

/* The next state of the child. */
static int next(const char *what, pid_t child)
{
	int status = 0;
	pid_t got = waitpid(child, &status, 0);

	note("%s: %s", what, got == child ? state(status) : strerrorname_np(errno));
	return status;
}

/* The child of `child` that it stops for, at its first stop. */
static pid_t grandchild_of(pid_t child)
{
	long message = 0;

	T("its number", trace(PTRACE_GETEVENTMSG, child, NULL, (long)&message));
	next("that begins", message);
	return message;
}

/* A child that is traced, and stopped before it runs `body`. */
static pid_t start(int (*body)(void))
{
	pid_t child = MUST(fork());

	if (child == 0) {
		T("trace me", trace(PTRACE_TRACEME, 0, NULL, 0));
		MUST(raise(SIGSTOP));
		_exit(body());
	}
	next("begins", child);
	return child;
}

static void on_signal(int number)
{
	handled = number;
}

static int gets_signals(void)
{
	signal(SIGUSR1, on_signal);
	signal(SIGUSR2, on_signal);
	raise(SIGUSR1);
	int first = handled;
	handled = 0;
	raise(SIGUSR1);
	int second = handled;
	handled = 0;
	raise(SIGUSR1);
	return (first == SIGUSR1) + 2 * (second == 0) + 4 * (handled == SIGUSR2);
}

static void signals(void)
{
	pid_t child = start(gets_signals);
	siginfo_t info;

	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("first signal", child);
	T("signal", trace(PTRACE_GETSIGINFO, child, NULL, (long)&info));
	IS("of itself", info.si_signo == SIGUSR1 && info.si_pid == child);
	T("deliver", trace(PTRACE_CONT, child, NULL, SIGUSR1));
	next("second signal", child);
	T("withdraw", trace(PTRACE_CONT, child, NULL, 0));
	next("third signal", child);
	T("no signal", trace(PTRACE_CONT, child, NULL, 65));
	T("replace", trace(PTRACE_CONT, child, NULL, SIGUSR2));
	T("of a running child", trace(PTRACE_CONT, child, NULL, 0));
	next("end", child);
}

static int stops(void)
{
	raise(SIGTSTP);
	raise(SIGSTOP);
	return 3;
}

/* Job control. */
static void group_stops(void)
{
	pid_t child = start(stops);
	siginfo_t info;

	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("signal", child);
	T("deliver", trace(PTRACE_CONT, child, NULL, SIGSTOP));
	next("group stop", child);
	T("has no signal", trace(PTRACE_GETSIGINFO, child, NULL, (long)&info));
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("next signal", child);
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("end", child);
}

static int traps(void)
{
	__asm__ volatile("int3");
	word++;
	return (int)word;
}

/* A break point, registers and memory, and single steps. */
static void steps_of_program(void)
{
	pid_t child = start(traps);
	struct user_regs_struct regs, after;

	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("int3", child);
	T("registers", trace(PTRACE_GETREGS, child, NULL, (long)&regs));
	T("change memory", trace(PTRACE_POKEDATA, child, (void *)&word, 41));
	int same = 0;
	for (int i = 0; i < 3; i++) {
		T("step", trace(PTRACE_SINGLESTEP, child, NULL, 0));
		next("stepped", child);
		T("registers", trace(PTRACE_GETREGS, child, NULL, (long)&after));
		same += after.rip == regs.rip;
		regs = after;
	}
	IS("it moves", same == 0);
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("end", child);
}

static int makes_calls(void)
{
	struct stat st;
	int fd = open("new", O_RDWR | O_CREAT, 0644);
	int length = write(fd, "abc", 3);
	int size = stat("new", &st) == 0 ? st.st_size : -1;

	close(fd);
	int missing = open("missing", O_RDONLY) < 0 ? errno : 0;
	mkdir("newdir", 0755);
	chdir("newdir");
	chdir("..");
	rmdir("newdir");
	unlink("new");
	return length == 3 && size == 3 && missing == ENOENT ? 9 : 1;
}

/* The entry and the exit of each call. */
static void calls(void)
{
	pid_t child = start(makes_calls);
	struct __ptrace_syscall_info info;
	int status = 0, inside = 0;

	T("options", trace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACESYSGOOD));
	for (;;) {
		MUST(trace(PTRACE_SYSCALL, child, NULL, 0));
		if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
			break;
		if (WSTOPSIG(status) != (SIGTRAP | 0x80)) {
			note("%s", state(status));
			continue;
		}
		memset(&info, 0, sizeof info);
		MUST(trace(PTRACE_GET_SYSCALL_INFO, child, (void *)sizeof info, (long)&info));
		inside = !inside;
		if (info.op == PTRACE_SYSCALL_INFO_ENTRY && inside)
			note("call %lld", (long long)info.entry.nr);
		else if (info.op == PTRACE_SYSCALL_INFO_EXIT && !inside)
			note("result %lld", (long long)info.exit.rval);
		else
			note("out of step: %d", info.op);
	}
	note("end: %s", state(status));
}

/* A tracer that changes calls: their number, their arguments and their results. */
static int asks_for_parent(void)
{
	char text[8] = "";
	int fd = open("wrong", O_RDONLY);

	if (fd >= 0 && read(fd, text, 5) == 5 && !strcmp(text, "right"))
		return syscall(SYS_getppid) == 77 && syscall(SYS_mkdir, "never", 0755) == -1 && errno == ENOSYS;
	return 2;
}

static void changes(void)
{
	int fd = MUST(open("right", O_RDWR | O_CREAT, 0644));
	MUST(write(fd, "right", 5));
	close(fd);
	char *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	strcpy(shared, "right");
	pid_t child = start(asks_for_parent);
	struct user_regs_struct regs;
	int status = 0;

	for (int stop = 1;; stop++) {
		MUST(trace(PTRACE_SYSCALL, child, NULL, 0));
		if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
			break;
		MUST(trace(PTRACE_GETREGS, child, NULL, (long)&regs));
		if (stop % 2 && regs.orig_rax == SYS_openat)
			regs.rsi = (unsigned long)shared;
		if (stop % 2 == 0 && regs.orig_rax == SYS_getppid)
			regs.rax = 77;
		if (stop % 2 && regs.orig_rax == SYS_mkdir)
			regs.orig_rax = -1;
		MUST(trace(PTRACE_SETREGS, child, NULL, (long)&regs));
	}
	note("end: %s", state(status));
	IS("no directory", access("never", F_OK) < 0);
	unlink("right");
}

static int has_children(void)
{
	int status;
	pid_t child = fork();

	if (child == 0)
		_exit(5);
	waitpid(child, &status, 0);
	child = vfork();
	if (child == 0)
		_exit(6);
	waitpid(child, &status, 0);
	return WEXITSTATUS(status);
}

/* The children of a child are traced, too. */
static void events(void)
{
	long options = PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEVFORKDONE | PTRACE_O_TRACEEXIT;
	pid_t child = start(has_children);
	long message = 0;

	T("options", trace(PTRACE_SETOPTIONS, child, NULL, options));
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("has a child", child);
	pid_t grandchild = grandchild_of(child);
	T("continue that", trace(PTRACE_CONT, grandchild, NULL, 0));
	next("that exits", grandchild);
	T("its status", trace(PTRACE_GETEVENTMSG, grandchild, NULL, (long)&message));
	note("status %lx", message);
	T("continue that", trace(PTRACE_CONT, grandchild, NULL, 0));
	next("that has ended", grandchild);
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("learns of that", child);
	T("deliver", trace(PTRACE_CONT, child, NULL, SIGCHLD));
	next("has another child", child);
	grandchild = grandchild_of(child);
	T("detach from that", trace(PTRACE_DETACH, grandchild, NULL, 0));
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	/* The end of vfork(2) and SIGCHLD may come in any order. */
	for (;;) {
		int status = 0;

		if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) {
			note("end: %s", state(status));
			break;
		}
		if (EVENT(status) != PTRACE_EVENT_VFORK_DONE)
			note("%s", state(status));
		MUST(trace(PTRACE_CONT, child, NULL, EVENT(status) ? 0 : WSTOPSIG(status)));
	}
}

static int executes(void)
{
	execl("/bin/sh", "sh", "-c", "exit 4", NULL);
	return 1;
}

static void execs(void)
{
	pid_t child = start(executes);
	long message = 0;

	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("has executed", child);
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("end", child);

	child = start(executes);
	T("options", trace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACEEXEC));
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("has executed", child);
	T("its number", trace(PTRACE_GETEVENTMSG, child, NULL, (long)&message));
	IS("the same", message == child);
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("end", child);
}

static void *ends(void *unused)
{
	return unused;
}

static int has_thread(void)
{
	pthread_t thread;

	signal(SIGSEGV, SIG_DFL);
	pthread_create(&thread, NULL, ends, NULL);
	pthread_join(thread, NULL);
	return 8;
}

static void threads(void)
{
	pid_t child = start(has_thread);
	long message = 0;
	int status;

	T("options", trace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACECLONE));
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("has a thread", child);
	T("its number", trace(PTRACE_GETEVENTMSG, child, NULL, (long)&message));
	IS("it begins", waitpid(message, &status, __WALL) == message && WSTOPSIG(status) == SIGSTOP);
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	T("nothing yet", waitpid(message, &status, __WALL | WNOHANG));
	T("continue the thread", trace(PTRACE_CONT, message, NULL, 0));
	IS("its end", waitpid(message, &status, __WALL) == message && WIFEXITED(status));
	next("end", child);
}

static void on_child(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	code = info->si_code;
	child_of_signal = info->si_pid;
	status_of_signal = info->si_status;
}

/* SIGCHLD, and the ways to wait. */
static void waits(void)
{
	struct sigaction action = {.sa_sigaction = on_child, .sa_flags = SA_SIGINFO | SA_RESTART}, old;
	pid_t child = MUST(fork());
	siginfo_t info = {0};
	int status;

	if (child == 0) {
		trace(PTRACE_TRACEME, 0, NULL, 0);
		usleep(50000);
		raise(SIGUSR1);
		usleep(50000);
		raise(SIGUSR2);
		_exit(2);
	}
	MUST(sigaction(SIGCHLD, &action, &old));
	IS("wait for any, which blocks", wait(&status) == child && WSTOPSIG(status) == SIGUSR1);
	IS("a signal", code == CLD_TRAPPED && child_of_signal == child && status_of_signal == SIGUSR1);
	T("nothing more", waitpid(-1, &status, WNOHANG));
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	T("wait, and leave it", waitid(P_PID, child, &info, WSTOPPED | WNOWAIT));
	IS("trapped", info.si_code == CLD_TRAPPED && info.si_pid == child && info.si_status == SIGUSR2 && info.si_signo == SIGCHLD);
	T("wait for a group", waitid(P_PGID, getpgrp(), &info, WSTOPPED | WEXITED));
	IS("trapped", info.si_code == CLD_TRAPPED && info.si_pid == child);
	T("to nowhere", waitpid(child, (int *)8, WNOHANG));
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("end", child);
	T("no child", waitpid(-1, &status, 0));
	MUST(sigaction(SIGCHLD, &old, NULL));
}

static int sleeps(void)
{
	pause();
	return 0;
}

/* Whether the process has not ended. */
static int lives(pid_t pid)
{
	char path[64], line[256] = "";

	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	int fd = open(path, O_RDONLY);
	if (fd < 0)
		return 0;
	MUST(read(fd, line, sizeof line - 1));
	close(fd);
	return !strstr(line, ") Z");
}

/* The tracer ends. */
static void deaths(void)
{
	int pipe_ends[2], status;
	pid_t sleeper;

	for (int kills = 0; kills < 2; kills++) {
		MUST(pipe(pipe_ends));
		pid_t tracer = MUST(fork());
		if (tracer == 0) {
			pid_t child = start(sleeps);
			trace(PTRACE_SETOPTIONS, child, NULL, kills ? PTRACE_O_EXITKILL : 0);
			trace(PTRACE_CONT, child, NULL, 0);
			MUST(write(pipe_ends[1], &child, sizeof child));
			_exit(0);
		}
		MUST(read(pipe_ends[0], &sleeper, sizeof sleeper));
		MUST(waitpid(tracer, &status, 0));
		usleep(100000);
		IS("lives", lives(sleeper));
		kill(sleeper, SIGKILL);
		close(pipe_ends[0]);
		close(pipe_ends[1]);
	}
	pid_t child = start(sleeps);
	T("kill", trace(PTRACE_KILL, child, NULL, 0));
	next("end", child);
	child = start(sleeps);
	T("detach", trace(PTRACE_DETACH, child, NULL, SIGTERM));
	next("end", child);
	T("of no tracee", trace(PTRACE_CONT, getppid(), NULL, 0));
}

/* A child that another one traces already, and attaching to a child. */
static void attaching(void)
{
	pid_t child = MUST(fork());

	if (child == 0)
		_exit(sleeps());
	usleep(20000);
	T("attach", trace(PTRACE_ATTACH, child, NULL, 0));
	next("attached", child);
	T("again", trace(PTRACE_ATTACH, child, NULL, 0));
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	MUST(kill(child, SIGUSR1));
	next("signal", child);
	T("deliver", trace(PTRACE_CONT, child, NULL, SIGUSR1));
	next("end", child);
}

static int forks(void)
{
	pid_t child = fork();

	if (child == 0)
		_exit(4);
	waitpid(child, NULL, 0);
	execl("/bin/true", "true", NULL);
	return 1;
}

/* PTRACE_SEIZE does not stop the thread. */
static void seizes(void)
{
	pid_t child = MUST(fork());
	siginfo_t info;
	int status;

	if (child == 0)
		for (;;)
			pause();
	usleep(20000);
	T("options that do not exist", trace(PTRACE_SEIZE, child, NULL, 1L << 30));
	T("an address", trace(PTRACE_SEIZE, child, (void *)8, 0));
	T("seize", trace(PTRACE_SEIZE, child, NULL, 0));
	T("again", trace(PTRACE_SEIZE, child, NULL, 0));
	usleep(20000);
	T("it runs", waitpid(child, &status, WNOHANG));
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	T("interrupt", trace(PTRACE_INTERRUPT, child, NULL, 0));
	next("interrupted", child);
	T("signal", trace(PTRACE_GETSIGINFO, child, NULL, (long)&info));
	note("number %d, code %x", info.si_signo, info.si_code);
	T("interrupt while it is stopped", trace(PTRACE_INTERRUPT, child, NULL, 0));
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("interrupted", child);
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	MUST(kill(child, SIGSTOP));
	next("signal", child);
	T("listen", trace(PTRACE_LISTEN, child, NULL, 0));
	T("deliver", trace(PTRACE_CONT, child, NULL, SIGSTOP));
	next("group stop", child);
	T("signal", trace(PTRACE_GETSIGINFO, child, NULL, (long)&info));
	note("number %d, code %x", info.si_signo, info.si_code);
	T("listen", trace(PTRACE_LISTEN, child, NULL, 0));
	T("stays so", waitpid(child, &status, WNOHANG));
	MUST(kill(child, SIGCONT));
	next("goes on", child);
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("signal", child);
	T("deliver", trace(PTRACE_CONT, child, NULL, SIGCONT));
	MUST(kill(child, SIGTERM));
	next("signal", child);
	T("deliver", trace(PTRACE_CONT, child, NULL, SIGTERM));
	next("end", child);

	child = MUST(fork());
	if (child == 0) {
		raise(SIGSTOP);
		_exit(forks());
	}
	IS("stopped", waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
	T("seize", trace(PTRACE_SEIZE, child, NULL, PTRACE_O_TRACEFORK | PTRACE_O_TRACEEXIT));
	next("group stop", child);
	T("listen", trace(PTRACE_LISTEN, child, NULL, 0));
	MUST(kill(child, SIGCONT));
	next("goes on", child);
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("signal", child);
	T("deliver", trace(PTRACE_CONT, child, NULL, SIGCONT));
	next("has a child", child);
	pid_t grandchild = grandchild_of(child);
	T("detach from that", trace(PTRACE_DETACH, grandchild, NULL, 0));
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("learns of its end", child);
	T("deliver", trace(PTRACE_CONT, child, NULL, SIGCHLD));
	next("executes, and exits", child);
	T("continue", trace(PTRACE_CONT, child, NULL, 0));
	next("end", child);

	child = start(sleeps);
	T("interrupt a thread that was not seized", trace(PTRACE_INTERRUPT, child, NULL, 0));
	T("listen to that", trace(PTRACE_LISTEN, child, NULL, 0));
	T("kill", trace(PTRACE_KILL, child, NULL, 0));
	next("end", child);
}

static void steps(void)
{
	signals();
	group_stops();
	steps_of_program();
	calls();
	changes();
	events();
	execs();
	threads();
	waits();
	deaths();
	attaching();
	seizes();
}
