// What disturbs a program while its calls are recorded inside it. The first argument says what to do. Each counts the calls that it makes (access of
// /nowhere/NAME) and says the number at the end (mkdir of /nowhere/NAME-NUMBER). A call that answers wrongly ends it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) ((condition) ? (void)0 : fail(__LINE__))

static volatile int handled;
static char *self;

static void fail(int line)
{
	fprintf(stderr, "line %d: %s\n", line, strerror(errno));
	_exit(99);
}

static void call(const char *path)
{
	CHECK(access(path, F_OK) == -1 && errno == ENOENT);
}

static void say(const char *name, int number)
{
	char path[64];
	snprintf(path, sizeof path, "/nowhere/%s-%d", name, number);
	CHECK(mkdir(path, 0700) == -1 && errno == ENOENT);
}

static void calls(const char *path, int number)
{
	for (int i = 0; i < number; i++)
		call(path);
}

// Calls of several kinds, whose answers are known.
static void mixed(void)
{
	struct stat one, other;
	char link[64];
	int fd = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	CHECK(fstat(fd, &one) == 0 && stat("/etc/../etc/passwd", &other) == 0);
	CHECK(one.st_ino == other.st_ino && one.st_size == other.st_size);
	CHECK(lseek(fd, 3, SEEK_SET) == 3 && read(fd, link, 4) == 4);
	CHECK(readlink("/proc/self", link, sizeof link) == snprintf(NULL, 0, "%d", getpid()));
	CHECK(readlink("/etc/passwd", link, sizeof link) == -1 && errno == EINVAL);
	CHECK(close(fd) == 0 && close(fd) == -1 && errno == EBADF);
}

static void count(int signal)
{
	int saved = errno;
	(void)signal;
	call("/nowhere/handler");
	handled++;
	errno = saved;
}

static void handle(int signal, void (*handler)(int), int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
	CHECK(sigaction(signal, &action, NULL) == 0);
}

// Of CPU time: on a busy machine, a timer of the clock would leave no time between two handlers.
static void tick(int microseconds)
{
	struct itimerval timer = { { 0, microseconds }, { 0, microseconds } };
	CHECK(setitimer(ITIMER_PROF, &timer, NULL) == 0);
}

// A handler that makes calls, at any moment.
static void timer(void)
{
	int made = 0;
	handle(SIGPROF, count, 0);
	tick(200);
	for (; made < 1000 || handled < 20; made++) {
		mixed();
		call("/nowhere/timer");
	}
	tick(0);
	say("timer", made);
	say("handler", handled);
}

static sigjmp_buf back;

static void jump(int signal)
{
	(void)signal;
	handled++;
	siglongjmp(back, 1);
}

// A handler that does not return. A call that it has interrupted may be recorded, or be made again.
static void jumps(void)
{
	handle(SIGPROF, jump, 0);
	tick(200);
	while (handled < 20) {
		if (sigsetjmp(back, 1) == 0)
			for (;;)
				call("/nowhere/jump");
	}
	tick(0);
	mixed();
	say("jumped", handled);
}

static void full_pipe(int pipes[2])
{
	char page[4096] = "";
	CHECK(pipe2(pipes, O_NONBLOCK) == 0);
	while (write(pipes[1], page, sizeof page) > 0)
		;
	CHECK(errno == EAGAIN);
	CHECK(fcntl(pipes[1], F_SETFL, 0) == 0);
}

static int drained;

static void drain(int signal)
{
	char page[4096];
	(void)signal;
	handled++;
	CHECK(read(drained, page, sizeof page) == sizeof page);
}

// A write that waits, is interrupted, and fails or is made again.
static void interrupted(void)
{
	int pipes[2];
	calls("/nowhere/write", 200);
	full_pipe(pipes);
	drained = pipes[0];
	handle(SIGALRM, drain, 0);
	alarm(2);
	CHECK(write(pipes[1], "x", 1) == -1 && errno == EINTR && handled == 1);
	CHECK(write(pipes[1], "x", 1) == 1);
	close(pipes[0]);
	close(pipes[1]);
	full_pipe(pipes);
	drained = pipes[0];
	handle(SIGALRM, drain, SA_RESTART);
	alarm(2);
	CHECK(write(pipes[1], "y", 1) == 1 && handled == 2);
	say("write", 200);
}

static void *calls_in_thread(void *path)
{
	calls(path, 300);
	return NULL;
}

// Children of all kinds, while both make calls.
static void children(void)
{
	char *const args[] = { self, "calls", "spawned", NULL };
	pthread_t threads[3];
	int status;
	pid_t child;
	calls("/nowhere/parent", 200);
	for (int i = 0; i < 5; i++) {
		child = fork();
		CHECK(child >= 0);
		calls(child ? "/nowhere/parent" : "/nowhere/forked", 200);
		mixed();
		if (child == 0)
			_exit(0);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		CHECK(posix_spawn(&child, self, NULL, NULL, args, environ) == 0);
		calls("/nowhere/parent", 200);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		child = vfork();
		if (child == 0) {
			access("/nowhere/vforked", F_OK);
			execv(self, args);
			_exit(98);
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&threads[i], NULL, calls_in_thread, "/nowhere/thread") == 0);
	calls("/nowhere/parent", 200);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	say("parent", 200 * 12);
	say("forked", 200 * 5);
	say("spawned", 300 * 10);
	say("vforked", 5);
	say("thread", 900);
}

// Addresses that cannot be read or written, and no free descriptor.
static void limits(void)
{
	struct rlimit limit;
	char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char long_path[5000], *volatile bad = (char *)8;
	int open_fds = 0;
	CHECK(page != MAP_FAILED && munmap(page + 4096, 4096) == 0);
	memcpy(page + 4096 - 5, "/etc", 5);
	memset(long_path, 'a', sizeof long_path - 1);
	long_path[sizeof long_path - 1] = 0;
	for (int i = 0; i < 100; i++) {
		CHECK(access(page + 4096 - 5, F_OK) == 0);
		CHECK(access(page + 4096, F_OK) == -1 && errno == EFAULT);
		CHECK(stat("/etc", (void *)(page + 4096)) == -1 && errno == EFAULT);
		CHECK(stat("/etc", (void *)bad) == -1 && errno == EFAULT);
		CHECK(open(bad, O_RDONLY) == -1 && errno == EFAULT);
		CHECK(readlink("/proc/self", bad, 10) == -1 && errno == EFAULT);
		CHECK(access("", F_OK) == -1 && errno == ENOENT);
		CHECK(access(long_path, F_OK) == -1 && errno == ENAMETOOLONG);
		CHECK(faccessat(77, "a", F_OK, 0) == -1 && errno == EBADF);
		call("/nowhere/limits");
	}
	memset(page + 4096 - 3, 'a', 3);
	CHECK(access(page + 4096 - 3, F_OK) == -1 && errno == EFAULT);
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = 64;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	while (open("/dev/null", O_RDONLY) >= 0)
		open_fds++;
	CHECK(errno == EMFILE && open_fds > 50);
	calls("/nowhere/limits", 100);
	CHECK(close(10) == 0 && open("/etc/passwd", O_RDONLY) == 10);
	say("limits", 200);
}

// A call on an alternate stack that has no space for anything else, and one of a nearly full stack.
static void on_alternate(int signal)
{
	(void)signal;
	calls("/nowhere/stack", 100);
}

static void stacks(void)
{
	stack_t stack = { .ss_sp = malloc(SIGSTKSZ), .ss_size = SIGSTKSZ };
	CHECK(sigaltstack(&stack, NULL) == 0);
	calls("/nowhere/stack", 100);
	handle(SIGUSR1, on_alternate, SA_ONSTACK);
	raise(SIGUSR1);
	say("stack", 200);
}

// A filter of the program's own. From then on all calls stop.
static void filters(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_readlink, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EXDEV),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof *code, code };
	char link[8];
	calls("/nowhere/filter", 100);
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	for (int i = 0; i < 100; i++) {
		CHECK(readlink("/nowhere", link, sizeof link) == -1 && errno == EXDEV);
		call("/nowhere/filter");
	}
	say("filter", 200);
}

// A child that asks not to be traced, as those of LeakSanitizer do. Without a tracer its calls would fail with ENOSYS.
static void untraced(void)
{
	int status;
	pid_t child = syscall(SYS_clone, CLONE_UNTRACED | SIGCHLD, NULL, NULL, NULL, NULL);
	CHECK(child >= 0);
	calls("/nowhere/untraced", 50);
	if (child == 0)
		_exit(0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	say("untraced", 100);
}

// The action and the mask of SIGTRAP, which the tracer uses itself, stay as they are.
static void traps(void)
{
	struct sigaction action;
	sigset_t set, now;
	handle(SIGTRAP, SIG_IGN, 0);
	sigemptyset(&set);
	sigaddset(&set, SIGTRAP);
	for (int i = 0; i < 2; i++) {
		calls("/nowhere/trap", 200);
		CHECK(sigaction(SIGTRAP, NULL, &action) == 0 && action.sa_handler == (i ? count : SIG_IGN));
		CHECK(sigprocmask(SIG_BLOCK, NULL, &now) == 0 && sigismember(&now, SIGTRAP) == i);
		handle(SIGTRAP, count, 0);
		CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	}
	CHECK(raise(SIGTRAP) == 0 && handled == 0);
	CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0 && handled == 1);
	calls("/nowhere/trap", 200);
	CHECK(raise(SIGTRAP) == 0 && handled == 2);
	say("trap", 600);
	say("handler", 2);
}

// Files by names of all kinds, several times: the first call of a kind stops, the others are recorded. The working directory has what it names.
static void names(void)
{
	static const char *const paths[] = {
		"file", "./file", "/etc/passwd", "/etc//../etc/./passwd", "/proc/self/status", "/dev/fd", "directory/", "directory/../file",
		"link", "dangling", "to_directory/inner", "to_directory/none", "none", "none/none", "file/none", "/usr", "..", ".",
		"directory/inner", "loop", "none/", "/proc/self/cwd/file", "/usr/../none/x", "/none", "//etc///passwd",
	};
	struct stat stat_of;
	struct statx statx_of;
	char link[256], entries[1024];
	for (int round = 0; round < 3; round++) {
		int directory = open("directory", O_RDONLY | O_DIRECTORY);
		int removed, fd = open("file", O_RDWR);
		CHECK(directory >= 0 && fd >= 0);
		for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
			const char *path = paths[i];
			int opened = open(path, O_RDONLY);
			if (opened >= 0)
				CHECK(close(opened) == 0);
			opened = open(path, O_RDONLY | O_NOFOLLOW);
			if (opened >= 0)
				CHECK(close(opened) == 0);
			opened = openat(directory, path, O_RDONLY);
			if (opened >= 0)
				CHECK(close(opened) == 0);
			opened = path[0] == '/' ? -1 : open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
			if (opened >= 0)
				CHECK(unlink(path) == 0 && close(opened) == 0);
			stat(path, &stat_of);
			lstat(path, &stat_of);
			fstatat(directory, path, &stat_of, 0);
			fstatat(directory, path, &stat_of, AT_SYMLINK_NOFOLLOW);
			fstatat(directory, "", &stat_of, AT_EMPTY_PATH);
			statx(directory, path, 0, STATX_BASIC_STATS, &statx_of);
			statx(directory, path, AT_SYMLINK_NOFOLLOW, STATX_SIZE, &statx_of);
			statx(directory, "", AT_EMPTY_PATH, STATX_ALL, &statx_of);
			statx(directory, "", 0, STATX_ALL, &statx_of);
			statx(AT_FDCWD, path, 0, STATX_ALL, NULL);
			access(path, R_OK);
			faccessat(directory, path, R_OK, 0);
			readlink(path, link, sizeof link);
			readlinkat(directory, path, link, sizeof link);
			if (path[0] != '/' && path[0] != '.')
				chmod(path, 0755);
			unlink("none");
			rmdir("none");
			unlinkat(directory, "none", 0);
		}
		CHECK(fstat(fd, &stat_of) == 0 && fchmod(fd, 0600) == 0 && lseek(fd, 1, SEEK_SET) == 1);
		CHECK(write(fd, "a", 1) == 1 && pwrite(fd, "b", 1, 0) == 1 && pread(fd, link, 1, 0) == 1 && fsync(fd) == 0);
		CHECK(read(fd, link, 1) >= 0 && ftruncate(fd, 5) == 0);
		CHECK(syscall(SYS_getdents64, directory, entries, sizeof entries) > 0);
		CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED);
		removed = open("removed", O_RDWR | O_CREAT, 0600);
		CHECK(removed >= 0 && unlink("removed") == 0);
		CHECK(fstat(removed, &stat_of) == 0 && write(removed, "x", 1) == 1 && close(removed) == 0);
		CHECK(close(-1) == -1 && close(77) == -1 && fstat(77, &stat_of) == -1);
		CHECK(close(directory) == 0 && close(fd) == 0);
	}
	say("names", 0);
}

// A thread that is stopped by a tracer is not asleep.
static int is_asleep(pid_t pid)
{
	char path[32], state = 0;
	FILE *file;
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	file = fopen(path, "r");
	CHECK(file != NULL && fscanf(file, "%*d (%*[^)]) %c", &state) == 1);
	fclose(file);
	return state == 'S';
}

// A process that is killed while a call that is recorded waits.
static void killed(void)
{
	int pipes[2], status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		full_pipe(pipes);
		calls("/nowhere/killed", 100);
		write(pipes[1], "killed here", 11);
		_exit(1);
	}
	for (int asleep = 0; asleep < 10; usleep(50000))
		asleep = is_asleep(child) ? asleep + 1 : 0;
	CHECK(kill(child, SIGKILL) == 0);
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
	say("killed", 100);
}

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		void (*run)(void);
	} all[] = {
		{ "timer", timer }, { "jumps", jumps }, { "interrupted", interrupted }, { "children", children },
		{ "limits", limits }, { "stacks", stacks }, { "filters", filters }, { "killed", killed },
		{ "names", names }, { "untraced", untraced }, { "traps", traps },
	};
	char path[64];
	self = argv[0];
	CHECK(argc > 1);
	if (argc > 2) {
		snprintf(path, sizeof path, "/nowhere/%s", argv[2]);
		calls(path, 300);
		mixed();
		return 0;
	}
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		if (strcmp(all[i].name, argv[1]) == 0) {
			all[i].run();
			return 0;
		}
	}
	return 2;
}
