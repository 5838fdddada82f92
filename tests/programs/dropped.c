/* Opening by a process that has become another user: what comes back is as for anybody, also when signals come and other threads
 * do the same. Started by an ordinary user, the process keeps that user.
 */
#include "step.h"
#include <pthread.h>
#include <stdatomic.h>

enum { ROUNDS = 400, THREADS = 4 };

static atomic_int ticks;

static void tick(int signal)
{
	(void)signal;
	ticks++;
}

static int count_open(void)
{
	int count = 0;

	for (int fd = 0; fd < 200; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static void *opener(void *failed)
{
	for (int round = 0; round < ROUNDS; round++) {
		char byte = 0;
		int fd = open("f", O_RDONLY | O_CLOEXEC);

		if (fd < 0 || read(fd, &byte, 1) != 1 || byte != 'x' || close(fd) < 0)
			++*(atomic_int *)failed;
	}
	return NULL;
}

static void dropped(void)
{
	struct itimerval often = { { 0, 300 }, { 0, 300 } }, never = { { 0, 0 }, { 0, 0 } };
	struct sigaction action = { .sa_handler = tick, .sa_flags = SA_RESTART };
	pthread_t threads[THREADS];
	struct rlimit limit;
	atomic_int failed = 0;
	int before, lowest, fd;

	drop();
	before = count_open();
	lowest = MUST(dup(0));
	close(lowest);
	fd = MUST(open("f", O_RDWR));
	T("the lowest", fd - lowest);
	T("not close-on-exec", fcntl(fd, F_GETFD));
	T("status", fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
	T("write", write(fd, "x", 1));
	close(fd);
	fd = MUST(open("f", O_WRONLY | O_APPEND | O_CLOEXEC));
	T("close-on-exec", fcntl(fd, F_GETFD));
	T("status", fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
	T("append", write(fd, "y", 1));
	close(fd);
	T("create", fd = openat(AT_FDCWD, "free/new", O_WRONLY | O_CREAT | O_EXCL, 0400));
	T("write", write(fd, "new", 3));
	close(fd);
	SHOW("free/new");
	T("not allowed", open("private", O_RDONLY));
	MUST(getrlimit(RLIMIT_NOFILE, &limit));
	MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ lowest, limit.rlim_max }));
	T("no descriptor left", open("f", O_RDONLY));
	MUST(setrlimit(RLIMIT_NOFILE, &limit));
	MUST(sigaction(SIGALRM, &action, NULL));
	MUST(setitimer(ITIMER_REAL, &often, NULL));
	for (int number = 0; number < THREADS; number++)
		pthread_create(&threads[number], NULL, opener, &failed);
	for (int number = 0; number < THREADS; number++)
		pthread_join(threads[number], NULL);
	MUST(setitimer(ITIMER_REAL, &never, NULL));
	T("signals came", ticks > 0);
	T("opens that failed", failed);
	T("descriptors left", count_open() - before);
}

static void steps(void)
{
	make("f", "x");
	MUST(chmod("f", 0666));
	make("private", "x");
	MUST(chmod("private", 0));
	MUST(mkdir("free", 0777));
	MUST(chmod("free", 0777));
	CHILD("dropped", dropped());
	SHOW("f");
}
