/* Transactions replace the content of a file in several ways, while processes outside of them read it: by a descriptor and a
 * mapping that they hold, and by opening it each time. They must see what some commit left: never a mixture, another size, or what a
 * transaction wrote in between.
 *
 *     txn_readers DIR COMMITS */
#include "txn.h"
#include <sys/epoll.h>

#define LONGEST 200000

static char buffer[LONGEST + 1], own[LONGEST];

/* Version 0 to 25 of the content is one letter, as often as only this version has it. */
static size_t length_of(int version)
{
	return version % 2 ? 3 + version : 7000 * version + 5;
}

static void fill(int fd, int version)
{
	size_t length = length_of(version);

	memset(own, 'a' + version, length);
	IS(pwrite(fd, own, length, 0) == (ssize_t)length);
}

/* What was read must be one version, whole. */
static bool is_version(ssize_t got)
{
	int version = buffer[0] - 'a';

	if (got <= 0 || version < 0 || version > 25 || got != (ssize_t)length_of(version))
		return false;
	for (ssize_t i = 1; i < got; i++)
		if (buffer[i] != buffer[0])
			return false;
	return true;
}

static void look(int fd, const char *how, unsigned long *seen)
{
	ssize_t got = pread(fd, buffer, sizeof buffer, 0);

	++*seen;
	if (!is_version(got))
		wrong(__FILE__, __LINE__, "%s: %zd bytes, first %d, last %d", how, got, buffer[0], got > 0 ? buffer[got - 1] : 0);
}

static volatile int *over;

static void hold(bool maps)
{
	int fd = MUST(open("file", O_RDONLY));
	const volatile char *map = maps ? mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) : "aaa";
	unsigned long seen = 0;

	IS(map != MAP_FAILED);
	while (!*over) {
		look(fd, "held", &seen);
		if (map[0] == 0 || map[2] == 0)
			wrong(__FILE__, __LINE__, "mapped: %d %d", map[0], map[2]);
	}
	fprintf(stderr, "%lu reads by a held descriptor\n", seen);
}

static void *in_own_table(void *unused)
{
	IS(unshare(CLONE_FILES) == 0);
	hold(false);
	return unused;
}

/* The process has the file open in a thread only, which has a descriptor table of its own. */
static void hold_apart(void)
{
	pthread_t thread;

	IS(pthread_create(&thread, NULL, in_own_table, NULL) == 0);
	IS(pthread_join(thread, NULL) == 0);
}

static void reopen(void)
{
	unsigned long seen = 0;

	while (!*over) {
		int fd = MUST(open("file", O_RDONLY));

		look(fd, "opened", &seen);
		close(fd);
	}
	fprintf(stderr, "%lu reads after an open\n", seen);
}

/* Has the file open and sleeps: in a call that the kernel does not restart, with a time that must pass all the same. */
static void doze(void)
{
	int fd = MUST(open("file", O_RDONLY)), poll = MUST(epoll_create1(0)), naps = 0;
	struct epoll_event event;

	while (!*over) {
		int got = epoll_wait(poll, &event, 1, 100);

		if (got != 0)
			wrong(__FILE__, __LINE__, "epoll_wait: %d, %s", got, strerrorname_np(errno));
		naps++;
	}
	close(fd);
	fprintf(stderr, "%d naps\n", naps);
	IS(naps > 1);
}

static void commit(int version, int how)
{
	int fd;

	IS(txn(BEGIN) == 1);
	/* Never committed: of a length that no version has. */
	fd = MUST(open("file", O_WRONLY | (how & 1 ? O_TRUNC : 0)));
	IS(pwrite(fd, "never committed", 15, 0) == 15);
	close(fd);
	switch (how / 2) {
	case 0:
		fd = MUST(open("file", O_WRONLY | O_TRUNC));
		fill(fd, version);
		close(fd);
		break;
	case 1:
		fd = MUST(open("file", O_WRONLY));
		fill(fd, version);
		IS(ftruncate(fd, length_of(version)) == 0);
		close(fd);
		break;
	default:
		fd = MUST(open("new", O_WRONLY | O_CREAT | O_TRUNC, 0644));
		fill(fd, version);
		close(fd);
		IS(rename("new", "file") == 0);
	}
	IS(txn(COMMIT) == 0);
}

static void test(int argc, char **argv)
{
	int commits = atoi(argv[0]);
	long start = now_ms();

	over = mmap(NULL, sizeof *over, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int fd = MUST(open("file", O_RDWR | O_CREAT | O_TRUNC, 0644));
	fill(fd, 0);
	close(fd);
	pid_t holder = CHILD(hold(true)), apart = CHILD(hold_apart()), opener = CHILD(reopen()), dozer = CHILD(doze());
	/* First the file that all of them hold, for longer than some naps; then others that take its name. */
	for (int i = 1; i <= commits || now_ms() - start < 1000; i++)
		commit(i % 26, i % 4);
	for (int i = 1; i <= commits; i++)
		commit(i % 26, i % 6);
	*over = 1;
	ENDS(holder);
	ENDS(apart);
	ENDS(opener);
	ENDS(dozer);
}
