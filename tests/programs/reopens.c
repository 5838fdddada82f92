/* Opens of the same files again and again, as a process makes them itself from the second one on, while names, permissions and contents change: by
 * the process, and by a child. */
#include "step.h"

enum { AGAIN = 5 };

static int lowest;

/* Each open of `path` finds this text, or has this error. */
static int other_than(int dirfd, const char *path, const char *text, int error)
{
	int wrong = 0;

	for (int i = 0; i < AGAIN; i++) {
		char found[64] = "";
		struct stat by_path, by_descriptor;
		int fd = openat(dirfd, path, O_RDONLY | (i % 2 ? O_CLOEXEC : 0));

		if (fd < 0) {
			wrong += text != NULL || errno != error;
			continue;
		}
		wrong += fd != lowest || !text || read(fd, found, sizeof found - 1) < 0 || strcmp(found, text) != 0;
		wrong += fstat(fd, &by_descriptor) != 0 || fstatat(dirfd, path, &by_path, 0) != 0;
		wrong += by_path.st_ino != by_descriptor.st_ino || by_path.st_size != by_descriptor.st_size;
		close(fd);
	}
	return wrong;
}
#define FINDS(path, text) note("%d %s: %d wrong", __LINE__, path, other_than(AT_FDCWD, path, text, 0))
#define MISSES(path, error) note("%d %s: %d wrong", __LINE__, path, other_than(AT_FDCWD, path, NULL, error))

static void changed(void)
{
	make("f", "first");
	FINDS("f", "first");
	MUST(rename("f", "g"));
	MISSES("f", ENOENT);
	FINDS("g", "first");
	make("f", "second");
	FINDS("f", "second");
	int fd = MUST(open("f", O_RDWR));
	lowest++;
	MUST(pwrite(fd, "SEC", 3, 0));
	FINDS("f", "SECond");
	MUST(ftruncate(fd, 3));
	FINDS("f", "SEC");
	close(fd);
	lowest--;
	make("f", "third");
	FINDS("f", "third");
	MUST(rename("g", "f"));
	FINDS("f", "first");
	MISSES("g", ENOENT);
	MUST(link("f", "g"));
	FINDS("g", "first");
	MUST(unlink("f"));
	MISSES("f", ENOENT);
	FINDS("g", "first");
	MUST(symlink("g", "f"));
	FINDS("f", "first");
	MUST(unlink("f"));
	MUST(mkdir("f", 0755));
	T("of a directory", other_than(AT_FDCWD, "f/none", NULL, ENOENT));
	MISSES("g/none", ENOTDIR);
}

static void permitted(void)
{
	make("p", "text");
	FINDS("p", "text");
	MUST(chmod("p", 0200));
	O("not readable", open("p", O_RDONLY));
	O("not readable", open("p", O_RDONLY));
	MUST(chmod("p", 0444));
	FINDS("p", "text");
	MUST(mkdir("way", 0755));
	MUST(rename("p", "way/p"));
	FINDS("way/p", "text");
	MUST(chmod("way", 0600));
	O("not searchable", open("way/p", O_RDONLY));
	O("not searchable", open("way/p", O_RDONLY));
	MUST(chmod("way", 0755));
	FINDS("way/p", "text");
}

static void directories(void)
{
	MUST(mkdir("d", 0755));
	make("d/x", "x");
	int dir = MUST(open("d", O_RDONLY | O_DIRECTORY)), wrong;
	lowest++;
	FINDS("d/x", "x");
	note("%d from a descriptor: %d wrong", __LINE__, other_than(dir, "x", "x", 0));
	MUST(rename("d", "e"));
	note("%d from a descriptor: %d wrong", __LINE__, other_than(dir, "x", "x", 0));
	MISSES("d/x", ENOENT);
	FINDS("e/x", "x");
	MUST(chdir("e"));
	FINDS("x", "x");
	FINDS("../e/x", "x");
	MUST(unlink("x"));
	MISSES("x", ENOENT);
	wrong = other_than(dir, "x", NULL, ENOENT);
	note("%d from a descriptor: %d wrong", __LINE__, wrong);
	MUST(chdir(".."));
	close(dir);
	MISSES("e/x", ENOENT);
	lowest--;
}

/* What another process does is seen at once. */
static void by_others(void)
{
	static const char *const texts[] = { "one", "two", "three" };
	int wrong = 0;

	for (int i = 0; i < 30; i++) {
		const char *text = texts[i % 3];
		pid_t child = MUST(fork());
		if (child == 0) {
			make("new", text);
			if (i % 2)
				unlink("o");
			rename("new", "o");
			_exit(0);
		}
		MUST(waitpid(child, NULL, 0));
		wrong += other_than(AT_FDCWD, "o", text, 0);
		child = MUST(fork());
		if (child == 0)
			_exit(other_than(AT_FDCWD, "o", text, 0));
		int status;
		MUST(waitpid(child, &status, 0));
		wrong += status != 0;
	}
	note("%d by others: %d wrong", __LINE__, wrong);
}

/* Each description has an offset of its own, and a removed file lives as long as it is open. */
static void descriptions(void)
{
	char text[8] = "", path[64], link[200] = "";
	int one, two, wrong = 0;

	make("f2", "content");
	FINDS("f2", "content");
	one = MUST(open("f2", O_RDONLY));
	two = MUST(open("f2", O_RDONLY));
	MUST(lseek(one, 3, SEEK_SET));
	T("offset", read(two, text, 7));
	T("offset", read(one, text, 7));
	T("flags", fcntl(one, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK));
	T("not for writing", write(one, "x", 1));
	snprintf(path, sizeof path, "/proc/self/fd/%d", one);
	T("link", readlink(path, link, sizeof link - 1) > 3 && !strcmp(strrchr(link, '/'), "/f2"));
	MUST(unlink("f2"));
	T("links", ({ struct stat st; fstat(one, &st) ? -1 : (int)st.st_nlink; }));
	T("still there", pread(one, text, 7, 0));
	void *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, two, 0);
	T("mapped", map != MAP_FAILED && !memcmp(map, "content", 7));
	close(one);
	close(two);
	T("mapped", !memcmp(map, "content", 7));
	MUST(munmap(map, 4096));
	for (int i = 0; i < 50; i++) {
		make("short", "lived");
		wrong += other_than(AT_FDCWD, "short", "lived", 0);
		MUST(unlink("short"));
		wrong += other_than(AT_FDCWD, "short", NULL, ENOENT);
	}
	note("%d short-lived: %d wrong", __LINE__, wrong);
}

static int is_lost(int held)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	pid_t child = MUST(fork());
	int status;

	if (child == 0)
		_exit(fcntl(held, F_GETLK, &lock) || lock.l_type != F_WRLCK || lock.l_pid != getppid());
	MUST(waitpid(child, &status, 0));
	return status != 0;
}

/* An open loses no record lock of the process, even if the file changes meanwhile. */
static void locked(void)
{
	enum { ROUNDS = 20, OPENS = 200 };
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int wrong = 0;

	make("locked", "text");
	pid_t child = MUST(fork());
	if (child == 0)
		for (int i = 0;; i++) {
			chmod("locked", i % 2 ? 0644 : 0755);
			usleep(i % 37);
		}
	for (int round = 0; round < ROUNDS; round++) {
		int fds[OPENS], held = MUST(open("locked", O_RDWR));

		MUST(fcntl(held, F_SETLK, &lock));
		for (int i = 0; i < OPENS; i++)
			fds[i] = open("locked", O_RDONLY);
		wrong += is_lost(held);
		for (int i = 0; i < OPENS; i++)
			wrong += fds[i] < 0 || close(fds[i]) != 0;
		close(held);
	}
	MUST(kill(child, SIGKILL));
	MUST(waitpid(child, NULL, 0));
	note("%d locked: %d wrong", __LINE__, wrong);
}

static void limits(void)
{
	struct rlimit limit, low;

	make("f3", "x");
	FINDS("f3", "x");
	MISSES("none", ENOENT);
	MUST(getrlimit(RLIMIT_NOFILE, &limit));
	low = limit;
	low.rlim_cur = lowest;
	MUST(setrlimit(RLIMIT_NOFILE, &low));
	T("too many", open("f3", O_RDONLY));
	T("too many for a missing one", open("none", O_RDONLY));
	T("too many for one that exists", open("f3", O_RDWR | O_CREAT | O_EXCL, 0600));
	T("too many for a directory", open(".", O_RDWR));
	T("too many for bad flags", open("f3", O_CREAT | O_DIRECTORY, 0600));
	T("too many for a bad path", open((char *)16, O_RDONLY));
	T("too many for no path", open("", O_RDONLY));
	MUST(setrlimit(RLIMIT_NOFILE, &limit));
	FINDS("f3", "x");
}

static volatile sig_atomic_t ticks;

static void on_tick(int signal)
{
	struct itimerval once = { { 0, 0 }, { 0, 60 + ticks % 97 } };
	int saved = errno;

	(void)signal;
	close(open("ticked", O_RDONLY));
	if (++ticks < 400)
		setitimer(ITIMER_REAL, &once, NULL);
	errno = saved;
}

/* A signal loses no descriptor, while another process replaces the file. */
static void with_ticks(void)
{
	struct itimerval once = { { 0, 0 }, { 0, 100 } };
	struct sigaction action = { .sa_handler = on_tick };
	int wrong = 0;

	make("ticked", "text");
	pid_t child = MUST(fork());
	if (child == 0)
		for (;;) {
			make("other", "text");
			rename("other", "ticked");
			usleep(200);
		}
	MUST(sigaction(SIGALRM, &action, NULL));
	MUST(setitimer(ITIMER_REAL, &once, NULL));
	while (ticks < 400) {
		char text[8] = "";
		int fd = open("ticked", O_RDONLY);

		wrong += fd != lowest || read(fd, text, 8) != 4;
		close(fd);
	}
	MUST(kill(child, SIGKILL));
	MUST(waitpid(child, NULL, 0));
	note("%d with ticks: %d wrong", __LINE__, wrong);
}

static void steps(void)
{
	lowest = MUST(open("/", O_RDONLY));
	close(lowest);
	changed();
	permitted();
	directories();
	by_others();
	descriptions();
	locked();
	limits();
	with_ticks();
}
