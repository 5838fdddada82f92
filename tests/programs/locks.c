/* Locks: flock, record locks of processes, and record locks of open file descriptions. */
#include "step.h"
#include <sys/file.h>

static long record(int fd, int command, int type, off_t start, off_t length)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};

	return fcntl(fd, command, &lock);
}

/* The process that holds a conflicting lock. */
static void query(int line, const char *name, int fd, int command, int type, off_t start, off_t length, pid_t expected)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};

	if (fcntl(fd, command, &lock)) {
		note("%d %s: %s", line, name, strerrorname_np(errno));
		return;
	}
	if (lock.l_type == F_UNLCK)
		note("%d %s: free", line, name);
	else
		note("%d %s: %s %lld+%lld by %s", line, name, lock.l_type == F_WRLCK ? "write" : "read",
		     (long long)lock.l_start, (long long)lock.l_len,
		     lock.l_pid == expected ? "the expected process" : lock.l_pid == -1 ? "a description" : "another process");
}
#define QUERY(...) query(__LINE__, __VA_ARGS__)

static void whole_files(void)
{
	int a, b, status;

	make("f", "x");
	a = MUST(open("f", O_RDWR));
	b = MUST(open("f", O_RDONLY));
	T("shared", flock(a, LOCK_SH));
	T("shared too", flock(b, LOCK_SH | LOCK_NB));
	T("upgrade", flock(a, LOCK_EX | LOCK_NB));
	T("unlock", flock(b, LOCK_UN));
	T("upgrade", flock(a, LOCK_EX | LOCK_NB));
	T("refused", flock(b, LOCK_SH | LOCK_NB));
	T("bad operation", flock(a, 77));
	T("bad fd", flock(777, LOCK_SH));
	int copy = dup(a);
	T("dup is the same", flock(copy, LOCK_EX | LOCK_NB));
	close(copy);
	T("still locked", flock(b, LOCK_EX | LOCK_NB));
	CHILD("inherited", T("child relocks", flock(a, LOCK_EX | LOCK_NB)));
	T("still locked", flock(b, LOCK_EX | LOCK_NB));
	CHILD("own open", ({ int c = MUST(open("f", O_RDONLY)); T("child refused", flock(c, LOCK_SH | LOCK_NB)); }));
	CHILD("child unlocks", T("unlock", flock(a, LOCK_UN)));
	T("free", flock(b, LOCK_EX | LOCK_NB));
	close(b);
	T("freed by close", flock(a, LOCK_EX | LOCK_NB));
	/* One waits until the other ends. */
	pid_t child = MUST(fork());
	if (child == 0) {
		close(a);
		int c = MUST(open("f", O_RDONLY));
		T("child waits", flock(c, LOCK_EX));
		CONTENT("f");
		_exit(0);
	}
	usleep(50000);
	T("write before release", pwrite(a, "released", 8, 0));
	close(a);
	waitpid(child, &status, 0);
	ended(__LINE__, "child", status);
	a = MUST(open(".", O_RDONLY));
	b = MUST(open(".", O_RDONLY));
	T("directory", flock(a, LOCK_EX | LOCK_NB));
	T("directory again", flock(b, LOCK_EX | LOCK_NB));
	close(a);
	close(b);
	a = MUST(open("f", O_PATH));
	T("O_PATH", flock(a, LOCK_SH | LOCK_NB));
	close(a);
}

static void on_alarm(int number)
{
	(void)number;
}

static void records(void)
{
	int fd, other, ready[2], go[2];
	char byte;

	make("r", "0123456789");
	fd = MUST(open("r", O_RDWR));
	T("lock", record(fd, F_SETLK, F_WRLCK, 2, 4));
	T("again", record(fd, F_SETLK, F_WRLCK, 2, 4));
	QUERY("own lock", fd, F_GETLK, F_WRLCK, 0, 0, 0);
	pid_t me = getpid();
	CHILD("child", ({
		      QUERY("whole", fd, F_GETLK, F_WRLCK, 0, 0, me);
		      QUERY("before", fd, F_GETLK, F_WRLCK, 0, 2, me);
		      QUERY("behind", fd, F_GETLK, F_RDLCK, 6, 0, me);
		      T("refused", record(fd, F_SETLK, F_WRLCK, 3, 1) == -1 && (errno == EAGAIN || errno == EACCES) ? 0 : 1);
		      T("beside", record(fd, F_SETLK, F_WRLCK, 6, 2));
		      T("read refused", record(fd, F_SETLK, F_RDLCK, 0, 0));
		      T("own open", ({ int c = MUST(open("r", O_RDWR)); record(c, F_SETLK, F_WRLCK, 2, 1); }));
	      }));
	T("child's are gone", record(fd, F_SETLK, F_WRLCK, 6, 2));
	T("downgrade", record(fd, F_SETLK, F_RDLCK, 0, 0));
	CHILD("child", ({ T("read", record(fd, F_SETLK, F_RDLCK, 0, 0)); T("write", record(fd, F_SETLK, F_WRLCK, 0, 0)); }));
	T("split", record(fd, F_SETLK, F_UNLCK, 4, 2));
	CHILD("child", ({ QUERY("first part", fd, F_GETLK, F_WRLCK, 0, 0, me); QUERY("hole", fd, F_GETLK, F_WRLCK, 4, 2, me); QUERY("rest", fd, F_GETLK, F_WRLCK, 4, 0, me); }));
	/* Closing any descriptor of the file gives all of them up. */
	other = MUST(open("r", O_RDONLY));
	close(other);
	CHILD("child", QUERY("after close of another", fd, F_GETLK, F_WRLCK, 0, 0, me));
	T("negative", record(fd, F_SETLK, F_WRLCK, 5, -3));
	CHILD("child", QUERY("negative length", fd, F_GETLK, F_WRLCK, 0, 0, me));
	T("before the start", record(fd, F_SETLK, F_WRLCK, 1, -3));
	T("bad type", record(fd, F_SETLK, 77, 0, 0));
	T("bad pointer", fcntl(fd, F_SETLK, (void *)16));
	T("bad fd", record(777, F_SETLK, F_RDLCK, 0, 0));
	other = MUST(open("r", O_RDONLY));
	T("write lock, read-only", record(other, F_SETLK, F_WRLCK, 0, 0));
	T("read lock, read-only", record(other, F_SETLK, F_RDLCK, 0, 0));
	close(other);
	other = MUST(open("r", O_WRONLY));
	T("read lock, write-only", record(other, F_SETLK, F_RDLCK, 0, 0));
	close(other);
	T("seek end", ({ struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_END, .l_start = -2}; fcntl(fd, F_SETLK, &l); }));
	CHILD("child", QUERY("from the end", fd, F_GETLK, F_WRLCK, 0, 0, me));
	T("unlock all", record(fd, F_SETLK, F_UNLCK, 0, 0));
	/* Waiting, interrupted, and a deadlock. */
	MUST(pipe(ready));
	MUST(pipe(go));
	T("first", record(fd, F_SETLK, F_WRLCK, 0, 1));
	pid_t child = MUST(fork());
	if (child == 0) {
		struct sigaction action = {.sa_handler = on_alarm};
		int c = MUST(open("r", O_RDWR));
		MUST(sigaction(SIGALRM, &action, NULL));
		setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, 50000}}, NULL);
		T("interrupted", record(c, F_SETLKW, F_WRLCK, 0, 1));
		T("second", record(c, F_SETLK, F_WRLCK, 1, 1));
		MUST(write(ready[1], "x", 1));
		T("waits", record(c, F_SETLKW, F_WRLCK, 0, 1));
		_exit(0);
	}
	MUST(read(ready[0], &byte, 1));
	usleep(100000);
	T("deadlock", record(fd, F_SETLKW, F_WRLCK, 1, 1));
	T("give up", record(fd, F_SETLK, F_UNLCK, 0, 0));
	int status;
	waitpid(child, &status, 0);
	ended(__LINE__, "child", status);
	/* A killed process holds nothing. */
	child = MUST(fork());
	if (child == 0) {
		MUST(record(fd, F_SETLK, F_WRLCK, 0, 0));
		MUST(write(ready[1], "x", 1));
		pause();
	}
	MUST(read(ready[0], &byte, 1));
	QUERY("held by the child", fd, F_GETLK, F_WRLCK, 0, 0, child);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	T("free", record(fd, F_SETLK, F_WRLCK, 0, 0));
	T("lockf", lockf(fd, F_TEST, 10));
	CHILD("child", T("lockf", lockf(fd, F_TLOCK, 10)));
	/* Across rename and hard link it is the file that is locked. */
	MUST(rename("r", "r2"));
	MUST(link("r2", "r3"));
	CHILD("child", ({ int c = MUST(open("r3", O_RDWR)); QUERY("by another name", c, F_GETLK, F_WRLCK, 0, 0, me); }));
	close(fd);
}

static void descriptions(void)
{
	int a, b, copy;

	make("o", "0123456789");
	a = MUST(open("o", O_RDWR));
	b = MUST(open("o", O_RDWR));
	T("lock", record(a, F_OFD_SETLK, F_WRLCK, 0, 4));
	T("refused", record(b, F_OFD_SETLK, F_RDLCK, 0, 1));
	T("beside", record(b, F_OFD_SETLK, F_WRLCK, 4, 0));
	QUERY("by", a, F_OFD_GETLK, F_WRLCK, 4, 0, 0);
	T("process lock refused", record(a, F_SETLK, F_WRLCK, 5, 1));
	copy = dup(a);
	T("dup is the same", record(copy, F_OFD_SETLK, F_RDLCK, 0, 2));
	close(copy);
	T("close of a copy keeps", record(b, F_OFD_SETLK, F_WRLCK, 3, 1));
	int third = MUST(open("o", O_RDONLY));
	close(third);
	T("close of another keeps", record(b, F_OFD_SETLK, F_WRLCK, 3, 1));
	CHILD("child shares", T("relock", record(a, F_OFD_SETLK, F_WRLCK, 0, 4)));
	T("still", record(b, F_OFD_SETLK, F_WRLCK, 0, 1));
	T("pid must be 0", ({ struct flock l = {.l_type = F_WRLCK, .l_pid = 5}; fcntl(a, F_OFD_SETLK, &l); }));
	close(a);
	T("freed", record(b, F_OFD_SETLK, F_WRLCK, 0, 0));
	close(b);
}

static const char *held(int fd)
{
	struct flock asked = {.l_type = F_RDLCK};

	MUST(fcntl(fd, F_OFD_GETLK, &asked));
	return asked.l_type == F_WRLCK ? "held" : "released";
}

/* Only a close releases a process's locks on a file, not an open. */
static void held_while_opened(const char *name)
{
	int a = MUST(open(name, O_RDWR | O_CREAT, 0600));

	MUST(record(a, F_SETLK, F_WRLCK, 0, 4));
	int b = MUST(open(name, O_RDWR | O_CLOEXEC)), c = MUST(open(name, O_RDONLY));
	note("%s: %d %d, close-on-exec %d %d", name, b - a, c - a, fcntl(b, F_GETFD), fcntl(c, F_GETFD));
	note("%s: %s", name, held(b));
	close(c);
	note("%s: %s after a close", name, held(b));
	close(b);
	close(a);
}

static void steps(void)
{
	whole_files();
	records();
	descriptions();
	held_while_opened("opened");
	MUST(chmod(".", 0777));
	if (geteuid() == 0)
		CHILD("another user", MUST(setgid(NOBODY)); MUST(setuid(NOBODY)); held_while_opened("opened by another"));
}
