/* Calls answered in the process, by programs that make that hard: each call is repeated, because a site is patched when it is used
 * for the second time. */
#define STEP_HELPER
#include "step.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stddef.h>
#include <sys/prctl.h>

static char in_top[PATH_MAX], in_host[PATH_MAX];

/* Sizes of directories differ from file system to file system. */
static long size(const struct stat *meta)
{
	return S_ISREG(meta->st_mode) ? meta->st_size : 0;
}

static long size_of(const char *path)
{
	struct stat meta;

	return stat(path, &meta) < 0 ? -errno : size(&meta);
}

/* All calls that read what a path names, once each; the results as one number. */
static long look(const char *path)
{
	struct stat meta;
	struct statx more;
	char text[64];
	long sum = 0;
	int fd;

	sum = sum * 31 + (stat(path, &meta) < 0 ? errno : size(&meta));
	sum = sum * 31 + (lstat(path, &meta) < 0 ? errno : meta.st_mode & S_IFMT);
	sum = sum * 31 + (access(path, R_OK) < 0 ? errno : 0);
	sum = sum * 31 + (readlink(path, text, sizeof text) < 0 ? errno : 1);
	sum = sum * 31 + (statx(AT_FDCWD, path, 0, STATX_SIZE | STATX_TYPE, &more) < 0 ? errno : S_ISREG(more.stx_mode) ? more.stx_size : 0);
	fd = open(path, O_RDONLY | O_NONBLOCK);
	sum = sum * 31 + (fd < 0 ? errno : fstat(fd, &meta) < 0 ? errno : size(&meta));
	if (fd >= 0)
		close(fd);
	return sum;
}

#define LOOK(name, path) do { \
		long first_ = look(path), same_ = 1; \
		for (int i_ = 0; i_ < 6; i_++) \
			same_ &= look(path) == first_; \
		note("%d %s: %ld%s", __LINE__, name, first_, same_ ? "" : " and then something else"); \
	} while (0)

/* A path that ends, with or without its NUL, where memory ends. */
static void pointers(const char *when)
{
	char *pages = (char *)MUST(mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	const char *paths[] = { in_top, in_host, "/etc/none", "f" };

	MUST(mprotect(pages + 4096, 4096, PROT_NONE));
	note("%s", when);
	for (int i = 0; i < 4; i++) {
		size_t length = strlen(paths[i]);
		char *with = pages + 4096 - length - 1, *without = pages + 4096 - length;

		strcpy(with, paths[i]);
		LOOK("ends with the page", with);
		memcpy(without, paths[i], length);
		LOOK("does not end", without);
	}
	LOOK("null", NULL);
	LOOK("low", (char *)16);
	LOOK("kernel", (char *)-4096);
	LOOK("not canonical", (char *)0x8000000000000000);
	LOOK("no access", pages + 4096);
	munmap(pages, 8192);
}

/* The answer where the path is. */
static void in_place(void)
{
	union { char path[PATH_MAX]; struct stat meta; struct statx more; } place;
	char link[PATH_MAX];

	snprintf(link, sizeof link, "%s/in_place", host_path);
	unlink(link);
	MUST(symlink("nine", link));
	for (int i = 0; i < 4; i++) {
		strcpy(place.path, link);
		T("readlink", readlink(place.path, place.path, sizeof place));
		IS("the link", !memcmp(place.path, "nine", 4));
		strcpy(place.path, in_host);
		T("stat", stat(place.path, &place.meta));
		IS("its size", place.meta.st_size == 9);
		strcpy(place.path, in_top);
		T("stat", stat(place.path, &place.meta));
		IS("its size", place.meta.st_size == 5);
		strcpy(place.path, "/etc/none");
		T("stat", stat(place.path, &place.meta));
		IS("as it was", !strcmp(place.path, "/etc/none"));
		strcpy(place.path, in_host);
		T("statx", statx(AT_FDCWD, place.path, 0, STATX_SIZE, &place.more));
		IS("its size", place.more.stx_size == 9);
	}
	unlink(link);
}

static volatile sig_atomic_t faults, ticks;

static void fault(int signal)
{
	faults++;
}

static void bad_pointers(void)
{
	struct sigaction action = { .sa_handler = fault };
	sigset_t set, old;

	pointers("as usual");
	MUST(sigaction(SIGSEGV, &action, NULL));
	pointers("with a handler");
	sigemptyset(&set);
	sigaddset(&set, SIGSEGV);
	MUST(sigprocmask(SIG_BLOCK, &set, &old));
	pointers("blocked");
	MUST(sigprocmask(SIG_SETMASK, NULL, &set));
	MUST(sigaction(SIGSEGV, NULL, &action));
	note("%d handler %s, %s, %d faults", __LINE__, action.sa_handler == fault ? "there" : "gone",
	     sigismember(&set, SIGSEGV) ? "blocked" : "not blocked", (int)faults);
	MUST(sigprocmask(SIG_SETMASK, &old, NULL));
	signal(SIGSEGV, SIG_DFL);
}

static int swapped, to_top, to_host, period;
static sigjmp_buf back;
static volatile sig_atomic_t jumps, wrong;

enum { TICKS = 300 };

/* One signal, after `period` microseconds. */
static void arm(void)
{
	struct itimerval timer = { { 0, 0 }, { 0, period } };

	MUST(setitimer(ITIMER_REAL, &timer, NULL));
}

/*
 * Makes path calls, and lets the main program's descriptor be another file's. The timer is armed again only here, and for TICKS
 * signals: one with an interval that is shorter than the handler would let the main program make no call, natively too.
 */
static void tick(int signal)
{
	int saved = errno;

	ticks++;
	if (size_of(in_top) != 5 || size_of(in_host) != 9 || size_of("/etc/none") != -ENOENT)
		wrong++;
	if (swapped)
		dup2(ticks % 2 ? to_top : to_host, swapped);
	if (ticks < TICKS)
		arm();
	errno = saved;
	if (jumps)
		siglongjmp(back, 1);
}

static void start(int microseconds)
{
	ticks = 0;
	period = microseconds;
	arm();
}

static void timers(void)
{
	struct sigaction action = { .sa_handler = tick, .sa_flags = SA_RESTART };
	volatile long rounds = 0, other = 0;
	char top[PATH_MAX], host[PATH_MAX];
	int fd;

	MUST(sigaction(SIGALRM, &action, NULL));
	start(100);
	while (ticks < TICKS) {
		rounds++;
		other += size_of(in_host) != 9;
		other += size_of(in_top) != 5;
		other += size_of("f") != 1;
		fd = open(in_host, O_RDONLY);
		other += fd < 0;
		close(fd);
	}
	note("%d timer: %ld and %d wrong", __LINE__, other, wrong);

	/* The descriptor changes between calls, never within one. */
	snprintf(top, sizeof top, "%s/w/swapped", top_path);
	snprintf(host, sizeof host, "%s/swapped", host_path);
	unlink(host);
	to_top = MUST(open(top, O_CREAT | O_WRONLY | O_APPEND, 0600));
	to_host = MUST(open(host, O_CREAT | O_WRONLY | O_APPEND, 0600));
	swapped = MUST(dup(to_host));
	rounds = other = 0;
	start(100);
	while (ticks < TICKS) {
		rounds++;
		other += write(swapped, "x", 1) != 1;
	}
	swapped = 0;
	note("%d swapped: %s, %ld wrong", __LINE__, size_of(top) + size_of(host) == rounds ? "all written" : "lost", other);

	other = 0;
	ticks = 0;
	jumps = 1;
	sigsetjmp(back, 1);
	if (ticks == 0)
		start(150);
	while (ticks < TICKS) {
		other += size_of(in_host) != 9;
		other += size_of("f") != 1;
		other += access("/etc/none", F_OK) == 0;
	}
	jumps = 0;
	note("%d jumped: %ld and %d wrong", __LINE__, other, wrong);
	signal(SIGALRM, SIG_DFL);
}

static void alarmed(int signal)
{
	ticks++;
}

/* A write that waits natively is interrupted as natively. */
static void interrupted(void)
{
	struct sigaction action = { .sa_handler = alarmed };
	static char block[4096];
	struct itimerval once = { { 0, 0 }, { 0, 30000 } };
	int ends[2], null = MUST(open("/dev/null", O_WRONLY));

	MUST(pipe(ends));
	MUST(fcntl(ends[1], F_SETPIPE_SZ, 4096));
	for (int i = 0; i < 5; i++)
		MUST(write(null, block, 10));
	MUST(sigaction(SIGALRM, &action, NULL));
	MUST(write(ends[1], block, 4096));
	MUST(setitimer(ITIMER_REAL, &once, NULL));
	T("interrupted", write(ends[1], block, 100));
	action.sa_flags = SA_RESTART;
	MUST(sigaction(SIGALRM, &action, NULL));
	if (MUST(fork()) == 0) {
		usleep(100000);
		MUST(read(ends[0], block, 4096));
		_exit(0);
	}
	MUST(setitimer(ITIMER_REAL, &once, NULL));
	T("restarted", write(ends[1], block, 100));
	wait(NULL);
	signal(SIGALRM, SIG_DFL);
	close(ends[0]);
	signal(SIGPIPE, SIG_IGN);
	T("broken", write(ends[1], block, 100));
	T("bad descriptor", write(777, block, 1));
	T("bad buffer", write(null = MUST(open(in_host, O_WRONLY)), (void *)16, 1));
	T("read-only", write(MUST(open(in_host, O_RDONLY)), block, 1));
}

static void show(int line, const char *name)
{
	char text[PATH_MAX];

	note("%d %s: %ld %ld in %s", line, name, size_of("f"), size_of("only"), getcwd(text, sizeof text) ? shown(text) : "?");
}
#define SHOW(name) show(__LINE__, name)

/* Relative paths, in directories of the host and of the file system under test. */
static void directories(void)
{
	int top = MUST(open(".", O_RDONLY | O_DIRECTORY)), host = MUST(open(host_path, O_RDONLY | O_DIRECTORY));
	int status, moving;
	struct stat meta;
	pid_t child;

	for (int i = 0; i < 4; i++) {
		SHOW("top");
		MUST(chdir(host_path));
		SHOW("host");
		MUST(fchdir(top));
		SHOW("top by descriptor");
		MUST(fchdir(host));
		SHOW("host by descriptor");
		MUST(chdir("/"));
		T("f in the root", size_of("f"));
		MUST(chdir("/proc/self"));
		T("link of /proc", readlink("cwd", (char[100]){}, 100) > 1);
		MUST(fchdir(host));
		moving = MUST(dup(top));
		T("from top", fstatat(moving, "f", &meta, 0) < 0 ? -errno : meta.st_size);
		MUST(dup2(host, moving));
		T("from host", fstatat(moving, "f", &meta, 0) < 0 ? -errno : meta.st_size);
		MUST(fstatat(moving, "", &meta, AT_EMPTY_PATH));
		close(moving);
		child = MUST(vfork());
		if (child == 0) {
			chdir(top_path);
			execl(self_path, self_path, "-child", NULL);
			_exit(99);
		}
		MUST(waitpid(child, &status, 0));
		SHOW("after vfork");
		child = MUST(fork());
		if (child == 0) {
			MUST(fchdir(top));
			SHOW("child");
			MUST(fchdir(host));
			SHOW("child");
			_exit(0);
		}
		MUST(waitpid(child, &status, 0));
		SHOW("after fork");
		MUST(fchdir(top));
	}
	close(top);
	close(host);
}

static int helper(int argc, char **argv)
{
	for (int i = 0; i < 4; i++) {
		if (access("/etc/none", F_OK) == 0 || access("/etc", F_OK))
			return 1;
	}
	return 0;
}

/* Links of the host that lead into the file system under test, and back. */
static void links(void)
{
	char to_top[PATH_MAX], from_top[PATH_MAX], path[PATH_MAX + 40];

	snprintf(to_top, sizeof to_top, "%s/to_top", host_path);
	snprintf(from_top, sizeof from_top, "%s/w/from_top", top_path);
	unlink(to_top);
	snprintf(path, sizeof path, "%s/w", top_path);
	MUST(symlink(path, to_top));
	MUST(symlink(host_path, from_top));
	for (int i = 0; i < 3; i++) {
		static const char *const names[] = { "f", "none", "only", ".", "from_top/f", "from_top/to_top/f", "from_top/none",
			"../w/f", "f/x", "" };

		for (size_t j = 0; j < sizeof names / sizeof *names; j++) {
			snprintf(path, sizeof path, "%s/%s", to_top, names[j]);
			LOOK(names[j], path);
		}
		LOOK("the link", to_top);
		LOOK("the link back", from_top);
	}
	unlink(to_top);
	/* Now a directory is there, and then a link again. */
	MUST(mkdir(to_top, 0700));
	snprintf(path, sizeof path, "%s/f", to_top);
	LOOK("a directory", path);
	MUST(rmdir(to_top));
	snprintf(path, sizeof path, "%s/w", top_path);
	MUST(symlink(path, to_top));
	snprintf(path, sizeof path, "%s/f", to_top);
	LOOK("a link", path);
	unlink(to_top);
}

/* readlink(2) changes no more of its buffer than it returns. */
static void link_alone(int line, const char *path)
{
	char text[PATH_MAX];
	long length, changed = 0;

	memset(text, '+', sizeof text);
	length = readlink(path, text, sizeof text);
	for (size_t i = length < 0 ? 0 : length; i < sizeof text; i++)
		changed += text[i] != '+';
	note("%d %s, %ld changed behind it", line, length < 0 ? strerrorname_np(errno) : "a link", changed);
}
#define LINK_ALONE(path) link_alone(__LINE__, path)

/* access(2) looks with the real user's rights, faccessat2(2) if asked with the effective user's. */
static void by_others(const char *path)
{
	int status;
	pid_t child = MUST(fork());

	if (child == 0) {
		if (geteuid() == 0)
			MUST(setresuid(65534, 0, 0));
		for (int i = 0; i < 5; i++) {
			T("exists", access(path, F_OK));
			T("for the user", access(path, R_OK));
			T("for the effective user", faccessat(AT_FDCWD, path, R_OK, AT_EACCESS));
		}
		_exit(0);
	}
	MUST(waitpid(child, &status, 0));
	ended(__LINE__, "by others", status);
}

/* The kind of what an open leads to, and the size of a file; or the error. opendir(3) opens by another call of libc. */
static void opens(const char *path)
{
	struct stat found = { 0 };
	int fd = open(path, O_RDONLY | O_NONBLOCK), error = fd < 0 ? errno : 0;
	DIR *dir = opendir(path);
	int dir_error = dir ? 0 : errno;

	if (fd >= 0)
		MUST(fstat(fd, &found));
	note("open %s: %d %o %d, as a directory %d", strrchr(path, '/'), error, found.st_mode & S_IFMT,
		S_ISREG(found.st_mode) ? (int)found.st_size : 0, dir_error);
	if (fd >= 0)
		close(fd);
	if (dir)
		closedir(dir);
	fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
	note("without links: %d", fd < 0 ? errno : close(fd));
}

/* Links of the host that lead to the host. */
static void links_of_the_host(void)
{
	char dir[PATH_MAX], path[PATH_MAX + 40], text[PATH_MAX];
	struct statx more;

	snprintf(dir, sizeof dir, "%s/linked", host_path);
	MUST(mkdir(dir, 0755));
	snprintf(path, sizeof path, "%s/private", dir);
	MUST(mkdir(path, 0700));
	snprintf(path, sizeof path, "%s/private/f", dir);
	make(path, "1234567");
	MUST(chmod(path, 0640));
	static const char *const links[][2] = { { "private", "way" }, { "way", "again" }, { "f", "private/l" }, { "none", "gone" },
		{ "/etc", "absolute" }, { "a:b", "colon" }, { "pipe:[1]", "looks like a pipe" }, { "/proc/self/cwd", "cwd" }, { "(x", "bracket" } };
	for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, links[i][1]);
		MUST(symlink(links[i][0], path));
	}
	static const char *const names[] = { "way", "again", "way/f", "again/l", "again/l/", "gone", "absolute", "absolute/passwd/x", "colon",
		"looks like a pipe", "bracket", "way/none", "way/f/none", "again/../gone", "cwd", "cwd/f", "cwd/none" };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, names[i]);
		/* The size of a file of /etc is not the test's. */
		LOOK(names[i], path);
		for (int j = 0; j < 4; j++) {
			LINK_ALONE(path);
			opens(path);
			T("no room", readlink(path, text, 0));
			T("negative room", readlink(path, text, -1));
			T("a byte", readlink(path, text, 1));
			T("nowhere", readlink(path, (char *)16, 100));
			T("executable", access(path, X_OK));
			T("any mode", access(path, 8));
			T("the link", faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW));
			T("the link's kind", statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &more));
			T("any flag", statx(AT_FDCWD, path, 0x80000, STATX_TYPE, &more));
			T("statx nowhere", statx(AT_FDCWD, path, 0, STATX_TYPE, (void *)16));
		}
	}
	snprintf(path, sizeof path, "%s/way/f", dir);
	by_others(path);
	by_others(in_top);
	snprintf(path, sizeof path, "rm -r %s", dir);
	MUST(system(path));
}

static void of_proc(void)
{
	int fd = MUST(open(in_top, O_RDONLY)), self = MUST(open("/proc/self", O_RDONLY | O_DIRECTORY));
	char path[PATH_MAX], link[PATH_MAX], text[PATH_MAX + 1];

	for (int i = 0; i < 4; i++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		T("stat", size_of(path));
		LINK(path);
		snprintf(path, sizeof path, "/dev/fd/%d", fd);
		T("stat", size_of(path));
		LINK(path);
		LINK_ALONE(path);
		snprintf(path, sizeof path, "fd/%d", fd);
		T("readlinkat", readlinkat(self, path, text, PATH_MAX) == (long)strlen(in_top));
		LINK("/proc/self/cwd");
		T("cwd", size_of("/proc/self/cwd/f"));
		snprintf(link, sizeof link, "%s/to_proc", host_path);
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		unlink(link);
		MUST(symlink(path, link));
		T("through a link", size_of(link));
		opens(link);
		T("access through a link", access(link, W_OK));
		T("for execution", access(link, X_OK));
		LINK_ALONE(link);
		unlink(link);
	}
	close(fd);
	close(self);
}

static volatile int stop;

static void *mover(void *unused)
{
	while (!stop) {
		chdir(host_path);
		chdir(top_path);
		chdir("w");
	}
	return NULL;
}

static volatile int cleaned, begun;

static void clean(void *unused)
{
	cleaned++;
}

static void *cancelled(void *unused)
{
	int null = open("/dev/null", O_WRONLY);

	pthread_cleanup_push(clean, NULL);
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	for (begun = 1;;) {
		access(in_host, F_OK);
		size_of(in_host);
		write(null, "x", 1);
	}
	pthread_cleanup_pop(0);
	return NULL;
}

/* Threads that change what other threads' calls depend on. */
static void threads(void)
{
	int in_w = 0, above = 0, other = 0;
	time_t limit = time(NULL) + 15;
	pthread_t thread;

	for (int i = 0; i < 5; i++) {
		size_of("f");
		size_of(in_host);
	}
	MUST(pthread_create(&thread, NULL, mover, NULL));
	/* How often the process is in which directory is the scheduler's affair; that it is in each is not. */
	while ((in_w < 50 || above < 50) && time(NULL) < limit) {
		long here = size_of("f"), below = size_of("w/f");

		in_w += here == 1;
		above += below == 1;
		other += (here != 1 && here != 3 && here != -ENOENT) || (below != 1 && below != -ENOENT);
	}
	stop = 1;
	pthread_join(thread, NULL);
	MUST(chdir(top_path));
	note("%d moved: %s in w, %s above, %d other", __LINE__, in_w < 50 ? "not" : "seen", above < 50 ? "not" : "seen", other);
	for (int i = 0; i < 40; i++) {
		begun = 0;
		MUST(pthread_create(&thread, NULL, cancelled, NULL));
		while (!begun)
			usleep(100);
		usleep(50 * i);
		pthread_cancel(thread);
		pthread_join(thread, NULL);
	}
	note("%d cancelled: %d", __LINE__, cleaned);
	MUST(chdir("w"));
}

/* A seccomp filter that does not know openat2(2). */
static void own_filter(void)
{
	static struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { 4, code };
	int status;
	pid_t child = MUST(fork());

	if (child == 0) {
		for (int i = 0; i < 5; i++)
			look(in_host);
		MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
		MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
		LOOK("under a filter", in_host);
		LOOK("missing", "/etc/none");
		execl(self_path, self_path, "-child", NULL);
		_exit(99);
	}
	MUST(waitpid(child, &status, 0));
	ended(__LINE__, "filtered", status);
}

static void storm(void)
{
	int status, failed = 0;

	for (int i = 0; i < 60; i++) {
		pid_t child = i % 2 ? MUST(fork()) : MUST(vfork());

		if (child == 0) {
			execl(self_path, self_path, "-child", NULL);
			_exit(99);
		}
		MUST(waitpid(child, &status, 0));
		failed += status != 0;
	}
	note("%d storm: %d failed", __LINE__, failed);
}

static void steps(void)
{
	snprintf(in_top, sizeof in_top, "%s/w/five", top_path);
	snprintf(in_host, sizeof in_host, "%s/nine", host_path);
	make("f", "1");
	make("five", "12345");
	make("only", "12");
	make(in_host, "123456789");
	MUST(chdir(host_path));
	make("f", "123");
	unlink("only");
	MUST(chdir(top_path));
	MUST(chdir("w"));
	bad_pointers();
	in_place();
	timers();
	interrupted();
	directories();
	links();
	links_of_the_host();
	of_proc();
	own_filter();
	storm();
	threads();
}
