/* Directories that are opened and read again and again, as a process does itself from the second time on, while names, permissions and entries change: by the
 * process, by a child, and below signal handlers. */
#include "step.h"
#include <pthread.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/time.h>

enum { AGAIN = 5, OPENS = 1000 };

/* The names in the directory of a descriptor from where it is, in any order, as one number; -1 for an error. */
static long names_of(int fd)
{
	char bytes[4096] __attribute__((aligned(8)));
	long got, sum = 0;

	while ((got = getdents64(fd, bytes, sizeof bytes)) > 0)
		for (long at = 0; at < got; at += ((struct dirent64 *)(bytes + at))->d_reclen) {
			long hash = 0;

			for (const char *name = ((struct dirent64 *)(bytes + at))->d_name; *name; name++)
				hash = hash * 31 + *name;
			sum += hash;
		}
	return got < 0 ? -1 : sum;
}

static long of_name(const char *name)
{
	long hash = 0;

	for (; *name; name++)
		hash = hash * 31 + *name;
	return hash;
}

/* What a directory with NAME alone holds. */
static long only(const char *name)
{
	return of_name(".") + of_name("..") + of_name(name);
}

/* The inode number of `..`, which the first read of a directory shows. */
static ino_t parent_of(int fd)
{
	char bytes[4096] __attribute__((aligned(8)));
	long got = getdents64(fd, bytes, sizeof bytes);

	for (long at = 0; at < got; at += ((struct dirent64 *)(bytes + at))->d_reclen)
		if (!strcmp(((struct dirent64 *)(bytes + at))->d_name, ".."))
			return ((struct dirent64 *)(bytes + at))->d_ino;
	return 0;
}

/* Each open of `path` finds a directory with this name alone, or has this error. */
static int other_than(int dirfd, const char *path, const char *name, int error)
{
	int wrong = 0;

	for (int i = 0; i < AGAIN; i++) {
		struct stat by_path, by_descriptor;
		int fd = openat(dirfd, path, O_RDONLY | O_DIRECTORY | (i % 2 ? O_CLOEXEC : O_NOFOLLOW | O_NONBLOCK));

		if (fd < 0) {
			wrong += name != NULL || errno != error;
			continue;
		}
		wrong += !name || names_of(fd) != only(name) || names_of(fd) != 0 || names_of(fd) != 0;
		wrong += fstat(fd, &by_descriptor) != 0 || fstatat(dirfd, path, &by_path, 0) != 0;
		wrong += by_path.st_ino != by_descriptor.st_ino || by_path.st_nlink != by_descriptor.st_nlink;
		wrong += lseek(fd, 0, SEEK_SET) != 0 || !name || names_of(fd) != only(name);
		wrong += fstatat(fd, "..", &by_path, 0) != 0 || lseek(fd, 0, SEEK_SET) != 0 || parent_of(fd) != by_path.st_ino;
		close(fd);
	}
	return wrong;
}
#define FINDS(path, name) note("%d %s: %d wrong", __LINE__, path, other_than(AT_FDCWD, path, name, 0))
#define MISSES(path, error) note("%d %s: %d wrong", __LINE__, path, other_than(AT_FDCWD, path, NULL, error))

static void changed(void)
{
	char link[PATH_MAX];
	int home = MUST(open(".", O_RDONLY | O_DIRECTORY));

	MUST(mkdir("d", 0755));
	make("d/one", "");
	FINDS("d", "one");
	FINDS("d/.", "one");
	MUST(rename("d/one", "d/two"));
	FINDS("d", "two");
	MUST(unlink("d/two"));
	MUST(mkdir("d/three", 0755));
	FINDS("d", "three");
	MUST(mkdir("e", 0755));
	make("e/four", "");
	FINDS("e", "four");
	MUST(renameat2(AT_FDCWD, "d", AT_FDCWD, "e", RENAME_EXCHANGE));
	FINDS("d", "four");
	FINDS("e", "three");
	MUST(rename("d", "e/three"));
	MISSES("d", ENOENT);
	FINDS("e/three", "four");
	make("d", "");
	MISSES("d", ENOTDIR);
	MUST(unlink("d"));
	MUST(symlink("e/three", "d"));
	T("through a link", names_of(open("d", O_RDONLY | O_DIRECTORY)) == only("four"));
	T("the link", open("d", O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
	T("the link", open("d", O_RDONLY | O_NOFOLLOW));
	int fd = MUST(open("e/three", O_RDONLY | O_DIRECTORY));
	T("entered", fchdir(fd));
	T("from inside", other_than(AT_FDCWD, "../three", "four", 0));
	T("path", readlinkat(AT_FDCWD, "/proc/self/cwd", link, sizeof link) > 0 && strstr(link, "e/three"));
	MUST(fchdir(home));
	T("relative", other_than(fd, ".", "four", 0));
	int by_name = MUST(open("e/three", O_PATH | O_DIRECTORY));
	T("by a path alone", getdents64(by_name, link, sizeof link));
	T("by a path alone", getdents64(by_name, link, sizeof link));
	close(by_name);
	T("flags", fcntl(open("e/three", O_RDONLY | O_DIRECTORY | O_NONBLOCK), F_GETFL) & (O_DIRECTORY | O_NONBLOCK | O_ACCMODE));
}

/* Buffers that end within the entries, in another page, and before memory that cannot be written. */
static void buffers(void)
{
	long page = sysconf(_SC_PAGESIZE);
	char *memory = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	MUST(mkdir("b", 0755));
	for (int i = 0; i < 20; i++) {
		char name[20];

		snprintf(name, sizeof name, "b/entry%d", i);
		make(name, "");
	}
	MUST(mprotect(memory + 2 * page, page, PROT_NONE));
	for (int i = 0; i < AGAIN; i++) {
		int fd = MUST(open("b", O_RDONLY | O_DIRECTORY));
		long all = names_of(fd);

		MUST(lseek(fd, 0, SEEK_SET));
		long got = getdents64(fd, memory + page - 100, page);
		T("in two pages", got == 22 * 32 - 2 * 8);
		T("then", getdents64(fd, memory, page));
		MUST(lseek(fd, 0, SEEK_SET));
		T("up to the end", getdents64(fd, memory + 2 * page - got, got) == got);
		MUST(lseek(fd, 0, SEEK_SET));
		T("in parts", getdents64(fd, memory, got - 1) < got);
		MUST(lseek(fd, 0, SEEK_SET));
		T("nowhere", getdents64(fd, memory + 2 * page, got));
		IS("all", names_of(fd) == all);
		MUST(lseek(fd, 0, SEEK_SET));
		IS("no more than fits", getdents64(fd, memory + 2 * page - 64, 64) <= 64);
		close(fd);
	}
	munmap(memory, 3 * page);
}

/* What is added and removed behind the end that was read, and a directory that goes away. */
static void ends(void)
{
	char bytes[4096];

	MUST(mkdir("end", 0755));
	make("end/one", "");
	for (int i = 0; i < AGAIN; i++) {
		int fd = MUST(open("end", O_RDONLY | O_DIRECTORY)), copy = MUST(dup(fd));

		IS("all", names_of(fd) == only("one"));
		T("the end", getdents64(copy, bytes, sizeof bytes));
		T("the end into nothing", getdents64(fd, (void *)16, sizeof bytes));
		T("the end by the old call", syscall(SYS_getdents, fd, bytes, sizeof bytes));
		T("start", lseek(copy, 0, SEEK_SET));
		T("into nothing", getdents64(fd, (void *)16, sizeof bytes));
		T("into too little", getdents64(fd, bytes, 3));
		IS("again", names_of(fd) == only("one"));
		make("end/two", "");
		MUST(lseek(fd, 0, SEEK_SET));
		IS("with another one", names_of(copy) == only("one") + of_name("two"));
		MUST(unlink("end/two"));
		MUST(lseek(fd, 0, SEEK_SET));
		IS("without it", names_of(copy) == only("one"));
		close(fd);
		close(copy);
	}
	int fd = MUST(open("end", O_RDONLY | O_DIRECTORY));
	IS("before the removal", names_of(fd) == only("one"));
	MUST(unlink("end/one"));
	MUST(rmdir("end"));
	T("removed", getdents64(fd, bytes, sizeof bytes));
	T("by its name", open("end", O_RDONLY | O_DIRECTORY));
	close(fd);
}

static void permitted(void)
{
	MUST(mkdir("p", 0755));
	make("p/inside", "");
	FINDS("p", "inside");
	MUST(chmod("p", 0300));
	T("not readable", close(open("p", O_RDONLY)));
	T("not readable", close(open("p", O_RDONLY)));
	MUST(chmod("p", 0755));
	FINDS("p", "inside");
	MUST(mkdir("way", 0755));
	MUST(rename("p", "way/p"));
	FINDS("way/p", "inside");
	MUST(chmod("way", 0600));
	T("not searchable", close(open("way/p", O_RDONLY)));
	T("not searchable", close(open("way/p", O_RDONLY)));
	MUST(chmod("way", 0755));
	FINDS("way/p", "inside");
	MUST(chmod("way/p", 0755));
}

/* After the changes of a child, its exit is all that the parent waits for. */
static void changed_by_a_child(void)
{
	int wrong = 0;

	MUST(mkdir("here", 0755));
	MUST(mkdir("there", 0755));
	make("here/left", "");
	make("there/right", "");
	for (int i = 0; i < 50; i++) {
		wrong += other_than(AT_FDCWD, "here", i % 2 ? "right" : "left", 0);
		pid_t child = MUST(fork());
		if (child == 0)
			_exit(renameat2(AT_FDCWD, "here", AT_FDCWD, "there", RENAME_EXCHANGE) != 0);
		int status;
		MUST(waitpid(child, &status, 0));
		wrong += status;
	}
	T("of a child", wrong);
}

/* A position far behind all entries, where one description is, is not where the others end. */
static void behind_the_end(void)
{
	const off_t behind = INT64_MAX - 0xff;
	int wrong = 0;

	MUST(mkdir("behind", 0755));
	make("behind/one", "");
	int first = MUST(open("behind", O_RDONLY | O_DIRECTORY));
	MUST(names_of(first));
	off_t end = lseek(first, 0, SEEK_CUR);
	for (int i = 0; i < AGAIN; i++) {
		int fd = MUST(open("behind", O_RDONLY | O_DIRECTORY));

		wrong += lseek(first, behind, SEEK_SET) != behind || names_of(first) != 0;
		wrong += names_of(fd) != only("one") || lseek(fd, 0, SEEK_CUR) != end || names_of(fd) != 0 || lseek(fd, 0, SEEK_CUR) != end;
		close(fd);
	}
	T("behind the end", wrong);
	close(first);
}

enum { ROUNDS = 500 };

static void does_nothing(int signal)
{
	(void)signal;
}

static int shared;
static _Atomic long read_by_all;
static pthread_barrier_t round;

static void *reads(void *unused)
{
	for (int i = 0; i < ROUNDS; i++) {
		pthread_barrier_wait(&round);
		read_by_all += names_of(shared);
		pthread_barrier_wait(&round);
	}
	return unused;
}

/* Two threads that read through one description, while signals interrupt them, get each entry once, and leave the position at the end. */
static void read_by_threads(void)
{
	pthread_t thread;
	int wrong = 0;

	signal(SIGALRM, does_nothing);
	pthread_barrier_init(&round, NULL, 2);
	MUST(-pthread_create(&thread, NULL, reads, NULL));
	for (int i = 0; i < ROUNDS; i++) {
		struct itimerval once = {{0, 0}, {0, 1 + i % 60}};

		shared = MUST(open("here", O_RDONLY | O_DIRECTORY));
		MUST(names_of(shared));
		off_t end = lseek(shared, 0, SEEK_CUR);
		MUST(lseek(shared, 0, SEEK_SET));
		read_by_all = 0;
		setitimer(ITIMER_REAL, &once, NULL);
		pthread_barrier_wait(&round);
		read_by_all += names_of(shared);
		pthread_barrier_wait(&round);
		wrong += read_by_all != only("left") && read_by_all != only("right");
		wrong += lseek(shared, 0, SEEK_CUR) != end;
		close(shared);
	}
	signal(SIGALRM, SIG_IGN);
	pthread_join(thread, NULL);
	T("read by two threads", wrong);
}

static _Atomic int stopped, failed;

static void *exchanges(void *unused)
{
	while (!stopped)
		failed += renameat2(AT_FDCWD, "here", AT_FDCWD, "there", RENAME_EXCHANGE) != 0;
	return unused;
}

/* While a thread exchanges two directories, each open finds one of them as a whole. */
static void exchanged(void)
{
	pthread_t thread;
	int wrong = 0;

	MUST(-pthread_create(&thread, NULL, exchanges, NULL));
	for (int i = 0; i < OPENS; i++) {
		int fd = open("here", O_RDONLY | O_DIRECTORY);
		long names = names_of(fd);

		wrong += fd < 0 || (names != only("left") && names != only("right"));
		close(fd);
	}
	stopped = 1;
	pthread_join(thread, NULL);
	T("exchanged", wrong + failed);
}

/* What a handler has found. */
static _Atomic long in_handler;

/* The names in `here`, and nothing behind them; a negative number for anything else. */
static long names_here(void)
{
	int fd = open("here", O_RDONLY | O_DIRECTORY);
	long names, more;

	if (fd < 0)
		return -errno;
	names = names_of(fd);
	more = names_of(fd);
	close(fd);
	if (names < 0 || more < 0)
		return -1000 - errno;
	return more ? -2000 : names;
}

static void opens_too(int signal)
{
	int saved = errno;

	(void)signal;
	in_handler = names_here();
	errno = saved;
}

/* Whether these are the names of one of the two directories; notes what they are otherwise. */
static int is_one(const char *where, long names)
{
	if (names == only("left") || names == only("right"))
		return 1;
	note("%s: %ld", where, names);
	return 0;
}

/* Handlers run between all instructions of an open and a read. The timer runs once for each of them: where handlers take longer than its interval, nothing else would run. */
static void below_handlers(void)
{
	int wrong = 0, lowest = MUST(dup(0));

	close(lowest);
	signal(SIGALRM, opens_too);
	in_handler = only("left");
	for (int i = 0; i < OPENS; i++) {
		struct itimerval once = {{0, 0}, {0, 1 + i % 40}};

		setitimer(ITIMER_REAL, &once, NULL);
		wrong += !is_one("in the program", names_here()) || !is_one("in a handler", in_handler);
	}
	signal(SIGALRM, SIG_IGN);
	T("below handlers", wrong);
	T("nothing stays open", dup(0) - lowest);
}

/* A watch hears of opens and reads that were silent before. */
static void watched(void)
{
	char events[4096] __attribute__((aligned(8)));
	long got;

	MUST(mkdir("seen", 0755));
	make("seen/name", "");
	FINDS("seen", "name");
	int watch = MUST(inotify_init1(IN_NONBLOCK));
	MUST(inotify_add_watch(watch, "seen", IN_OPEN | IN_ACCESS | IN_CLOSE_NOWRITE));
	int fd = MUST(open("seen", O_RDONLY | O_DIRECTORY));
	IS("read", names_of(fd) == only("name"));
	close(fd);
	usleep(100000);
	int opens = 0, reads = 0, closes = 0;
	while ((got = read(watch, events, sizeof events)) > 0)
		for (long at = 0; at < got;) {
			struct inotify_event *event = (void *)(events + at);

			opens += !!(event->mask & IN_OPEN);
			reads += !!(event->mask & IN_ACCESS);
			closes += !!(event->mask & IN_CLOSE_NOWRITE);
			at += sizeof *event + event->len;
		}
	IS("told of the open", opens);
	IS("told of reads", reads);
	IS("told of the close", closes);
	close(watch);
}

static void steps(void)
{
	MUST(mkdir("warm", 0755));
	make("warm/up", "");
	int wrong = 0;
	for (int i = 0; i < OPENS / 10; i++)
		wrong += other_than(AT_FDCWD, "warm", "up", 0);
	T("again and again", wrong);
	changed();
	buffers();
	ends();
	permitted();
	changed_by_a_child();
	behind_the_end();
	read_by_threads();
	exchanged();
	below_handlers();
	watched();
}
