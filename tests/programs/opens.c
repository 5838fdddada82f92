/* Opens in rows, as a process makes them that opens descriptors of the monitor itself: of every kind, interrupted by signals whose handlers open files,
 * too, by processes that are killed, and by a process that may not. A descriptor that is left over shows in the number of the next one. */
#include "step.h"

enum { ROW = 60, TICKS = 400 };

static int lowest;

/* Flags that a program sees; some file systems show how a path was looked up. */
static int status(int fd)
{
	return fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK | O_SYNC | O_DIRECT | O_ASYNC | O_NOATIME);
}

static void in_a_row(int line, const char *name, const char *path, int flags, mode_t mode)
{
	int wrong = 0, first = 0, fd = -1;

	for (int i = 0; i < ROW; i++) {
		fd = open(path, flags, mode);
		wrong += fd != lowest;
		if (i == 0)
			first = status(fd);
		wrong += status(fd) != first || fcntl(fd, F_GETFD) != !!(flags & O_CLOEXEC);
		close(fd);
	}
	note("%d %s: %d wrong, %o", line, name, wrong, first);
}
#define ROWS(path, flags) in_a_row(__LINE__, #flags, path, flags, 0644)

static void kinds(void)
{
	char text[8];
	int wrong = 0;

	make("f", "content");
	ROWS("f", O_RDONLY);
	ROWS("f", O_RDONLY | O_CLOEXEC | O_NOCTTY);
	ROWS("f", O_RDONLY | O_NONBLOCK);
	ROWS("f", O_RDONLY | O_NOFOLLOW | O_NOATIME);
	ROWS("f", O_RDONLY | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
	ROWS("f", O_RDWR | O_APPEND | O_CLOEXEC);
	ROWS("f", O_WRONLY | O_CREAT);
	ROWS("f", O_RDWR | O_SYNC);
	ROWS("f", O_RDONLY | O_DIRECT);
	ROWS("f", O_RDWR | O_CREAT | O_DIRECT);
	ROWS("f", O_RDWR | O_ASYNC);
	ROWS(".", O_RDONLY);
	ROWS("..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ROWS(".", O_RDWR | O_TMPFILE);
	ROWS("t", O_WRONLY | O_CREAT | O_TRUNC);
	for (int i = 0; i < ROW; i++) {
		int fd = open("f", O_RDONLY);

		wrong += read(fd, text, 7) != 7 || memcmp(text, "content", 7);
		close(fd);
		fd = open("t", O_RDWR | O_TRUNC);
		wrong += lseek(fd, 0, SEEK_END) != 0 || write(fd, text, 7) != 7;
		close(fd);
	}
	note("%d contents: %d wrong", __LINE__, wrong);
	T("missing", open("none", O_RDONLY));
	T("a file as directory", open("f", O_RDONLY | O_DIRECTORY));
	T("a directory for writing", open(".", O_RDWR));
	T("bad path", open((char *)16, O_RDONLY));
	T("both", open("f", O_CREAT | O_DIRECTORY, 0600));
}

/* A name that is a file and a link to it in turn. */
static void not_followed(void)
{
	int wrong = 0, fd;

	make("target", "content");
	for (int i = 0; i < ROW; i++) {
		MUST(symlink("target", "turns"));
		for (int j = 0; j < 3; j++) {
			errno = 0;
			wrong += open("turns", O_RDONLY | O_NOFOLLOW | O_NONBLOCK) != -1 || errno != ELOOP;
			fd = open("turns", O_RDONLY);
			wrong += fd != lowest;
			close(fd);
		}
		MUST(unlink("turns"));
		MUST(link("target", "turns"));
		for (int j = 0; j < 3; j++) {
			fd = open("turns", O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
			wrong += fd != lowest || !(fcntl(fd, F_GETFL) & O_NONBLOCK);
			close(fd);
		}
		MUST(unlink("turns"));
	}
	note("%d not followed: %d wrong", __LINE__, wrong);
}

/* The permissions are those of a new file for the opens behind the first one only. */
static void creations(void)
{
	int wrong = 0;
	char name[16], byte;

	for (int i = 0; i < ROW; i++) {
		snprintf(name, sizeof name, "made%d", i);
		int fd = open(name, O_RDWR | O_CREAT | O_EXCL, i % 2 ? 0400 : 0);

		wrong += fd != lowest || write(fd, "x", 1) != 1 || pread(fd, &byte, 1, 0) != 1;
		close(fd);
		errno = 0;
		wrong += open(name, O_RDWR | O_CREAT | O_EXCL, 0600) != -1 || errno != EEXIST;
		if (i % 3)
			wrong += unlink(name) != 0;
	}
	note("%d creations: %d wrong", __LINE__, wrong);
	SHOW("made0");
	SHOW("made3");
}

/* New files by names of every length, from links to names that are missing, with other masks, and where the program may not make them. */
static void new_names(void)
{
	int wrong = 0, fd;
	char name[300], path[310];
	mode_t mask = umask(0);

	MUST(mkdir("n", 0755));
	for (int length = 1; length <= 255; length++) {
		memset(name, 'n', length);
		name[length] = 0;
		snprintf(path, sizeof path, "%s%s", length % 2 ? "n/" : "", name);
		umask(length % 8 * 9);
		fd = open(path, O_RDWR | O_CREAT | (length % 3 ? 0 : O_EXCL), 0666);
		wrong += fd != lowest || fchmod(fd, 0600) != 0;
		close(fd);
		wrong += open(path, O_RDONLY | O_CREAT | O_EXCL, 0666) != -1 || errno != EEXIST || unlink(path) != 0;
	}
	umask(027);
	memset(name, 'n', 256);
	name[256] = 0;
	T("too long", open(name, O_WRONLY | O_CREAT, 0666));
	for (int i = 0; i < 3; i++) {
		MUST(symlink("../there", "n/link"));
		O("by a link", open("n/link", O_WRONLY | O_CREAT, 0666));
		SHOW("there");
		T("link", open("n/link", O_WRONLY | O_CREAT | O_EXCL, 0666));
		T("removed", unlink("there"));
		T("not followed", open("n/link", O_WRONLY | O_CREAT | O_NOFOLLOW, 0666));
		T("removed", unlink("n/link"));
		O("with bits", open("n/bits", O_RDONLY | O_CREAT, 07777));
		SHOW("n/bits");
		T("removed", unlink("n/bits"));
	}
	MUST(chmod("n", 0555));
	O("in a directory without permission", open("n/new", O_WRONLY | O_CREAT, 0666));
	T("in no directory", open("f/new", O_WRONLY | O_CREAT, 0666));
	T("in a missing one", open("none/new", O_WRONLY | O_CREAT, 0666));
	umask(mask);
	note("%d new names: %d wrong", __LINE__, wrong);
}

static void directories(void)
{
	int dir, fd, wrong = 0;
	struct dirent *entry;

	MUST(mkdir("d", 0755));
	for (int i = 0; i < ROW; i++) {
		DIR *list = opendir("d");
		int entries = 0;

		wrong += dirfd(list) != lowest;
		while ((entry = readdir(list)))
			entries++;
		closedir(list);
		dir = open("d", O_RDONLY | O_DIRECTORY);
		fd = openat(dir, i % 2 ? "odd" : "even", O_WRONLY | O_CREAT, 0600);
		wrong += fd != lowest + 1 || entries != 2 + (i > 1 ? 2 : i);
		close(fd);
		wrong += fchdir(dir) != 0 || (fd = open("even", O_RDONLY)) < 0 || chdir("..") != 0;
		close(fd);
		close(dir);
	}
	note("%d directories: %d wrong", __LINE__, wrong);
}

static volatile sig_atomic_t ticks, ticks_wrong;

static void arm(int microseconds)
{
	struct itimerval once = { { 0, 0 }, { 0, microseconds } };

	MUST(setitimer(ITIMER_REAL, &once, NULL));
}

static void on_tick(int signal)
{
	char name[24];
	int saved = errno, fd, other;

	(void)signal;
	ticks++;
	snprintf(name, sizeof name, "tick%d", ticks);
	fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0600);
	other = open("f", O_RDONLY);
	ticks_wrong += fd < 0 || other < 0 || write(fd, name, 4) != 4;
	close(fd);
	close(other);
	ticks_wrong += unlink(name) != 0;
	if (ticks < TICKS)
		arm(60 + ticks % 97);
	errno = saved;
}

/* The first step that went wrong, and why. */
static void check_step(const char *name, bool is_right, int *wrong)
{
	if (!is_right && (*wrong)++ == 0)
		note("%s: %s", name, strerrorname_np(errno));
	errno = 0;
}

/* No open is made twice, and none is lost, wherever the signal comes. */
static void with_ticks(void)
{
	struct sigaction action = { .sa_handler = on_tick };
	int wrong = 0, fd;
	char name[24], text[8];

	MUST(sigaction(SIGALRM, &action, NULL));
	arm(100);
	for (int i = 0; ticks < TICKS; i++) {
		errno = 0;
		snprintf(name, sizeof name, "new%d", i);
		fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0400);
		check_step("creation", fd == lowest, &wrong);
		check_step("write", write(fd, "1234567", 7) == 7, &wrong);
		close(fd);
		fd = open(name, O_RDONLY | O_CLOEXEC);
		check_step("for reading", fd == lowest, &wrong);
		check_step("read", read(fd, text, 8) == 7, &wrong);
		close(fd);
		check_step("removal", unlink(name) == 0, &wrong);
		fd = open("t", O_WRONLY | O_CREAT | O_TRUNC, 0600);
		check_step("truncation", fd == lowest, &wrong);
		check_step("empty", lseek(fd, 0, SEEK_END) == 0, &wrong);
		check_step("second write", write(fd, "t", 1) == 1, &wrong);
		close(fd);
		fd = open("d", O_RDONLY | O_DIRECTORY);
		check_step("directory", fd == lowest, &wrong);
		close(fd);
	}
	note("%d with ticks: %d and %d wrong", __LINE__, wrong, (int)ticks_wrong);
	signal(SIGALRM, SIG_DFL);
}

static void limits(void)
{
	struct rlimit limit, low;

	MUST(getrlimit(RLIMIT_NOFILE, &limit));
	low = limit;
	low.rlim_cur = lowest;
	MUST(setrlimit(RLIMIT_NOFILE, &low));
	for (int i = 0; i < 3; i++) {
		T("too many", open("f", O_RDONLY));
		T("too many for a new one", open("never", O_WRONLY | O_CREAT, 0600));
	}
	T("too many to truncate", open("f", O_WRONLY | O_TRUNC));
	MUST(setrlimit(RLIMIT_NOFILE, &limit));
	T("not made", access("never", F_OK));
	SHOW("f");
	ROWS("f", O_RDONLY);
}

/* A file that a program may not open does not keep it from opening others. */
static void refused(void)
{
	int wrong = 0;

	make("secret", "x");
	MUST(chmod("secret", 0));
	for (int i = 0; i < ROW; i++) {
		int fd = open("secret", O_RDONLY), other = open("f", O_RDWR);

		wrong += fd >= 0 ? fd != lowest || other != lowest + 1 : errno != EACCES || other != lowest;
		close(other);
		close(fd);
	}
	note("%d refused: %d wrong", __LINE__, wrong);
	O("refused", open("secret", O_RDONLY));
	T("removed", unlink("secret"));
}

static void nothing(int signal)
{
	(void)signal;
}

/* An open that waits is interrupted, or restarted, and completed. */
static void waiting(void)
{
	struct sigaction action = { .sa_handler = nothing };

	MUST(mkfifo("fifo", 0600));
	for (int restarts = 0; restarts < 2; restarts++) {
		action.sa_flags = restarts ? SA_RESTART : 0;
		MUST(sigaction(SIGALRM, &action, NULL));
		pid_t child = MUST(fork());
		if (child == 0) {
			usleep(600000);
			open("fifo", O_WRONLY | (restarts ? 0 : O_NONBLOCK));
			_exit(0);
		}
		arm(200000);
		O("fifo", open("fifo", O_RDONLY));
		MUST(waitpid(child, NULL, 0));
	}
	signal(SIGALRM, SIG_DFL);
}

/* The file is executed as soon as its writer says that it has closed it. */
static void executions(void)
{
	int wrong = 0, status;

	for (int i = 0; i < 20; i++) {
		int ends[2];
		char byte;

		MUST(pipe2(ends, O_CLOEXEC));
		pid_t child = MUST(fork());
		if (child == 0) {
			MUST(read(ends[0], &byte, 1));
			execl("script", "script", NULL);
			_exit(errno);
		}
		int fd = MUST(open("script", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700));
		MUST(write(fd, "#!/bin/true\n", 12));
		close(fd);
		MUST(write(ends[1], "", 1));
		MUST(waitpid(child, &status, 0));
		wrong += status != 0;
		close(ends[0]);
		close(ends[1]);
	}
	note("%d executions: %d wrong", __LINE__, wrong);
}

static void killed(void)
{
	int wrong = 0;

	for (int i = 0; i < 20; i++) {
		pid_t child = MUST(fork());

		if (child == 0)
			for (;;) {
				int fd = open("victim", O_RDWR | O_CREAT | O_TRUNC, 0600);

				if (write(fd, "victim", 6) != 6)
					_exit(1);
				close(fd);
			}
		usleep(1000 + 500 * i);
		kill(child, SIGKILL);
		MUST(waitpid(child, NULL, 0));
		int fd = open("victim", O_RDWR | O_CREAT, 0600);
		off_t size = lseek(fd, 0, SEEK_END);

		wrong += fd != lowest || (size != 0 && size != 6);
		close(fd);
		wrong += unlink("victim") != 0;
	}
	note("%d killed: %d wrong", __LINE__, wrong);
}

static void steps(void)
{
	lowest = MUST(open("/", O_RDONLY));
	close(lowest);
	kinds();
	not_followed();
	creations();
	new_names();
	directories();
	with_ticks();
	refused();
	limits();
	waiting();
	executions();
	killed();
	CHILD("by fork", ROWS("f", O_RDONLY));
	CHILD("another user", drop(); ROWS("f", O_RDONLY); ROWS("d", O_RDONLY);
	      O("a new file", open("x", O_WRONLY | O_CREAT, 0600)));
	pid_t child = vfork();
	if (child == 0) {
		int fd = open("f", O_RDONLY);

		_exit(fd == lowest ? 0 : 1);
	}
	int ended_as;
	MUST(waitpid(child, &ended_as, 0));
	ended(__LINE__, "by vfork", ended_as);
	ROWS("f", O_RDONLY);
}
