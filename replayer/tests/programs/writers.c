// Threads that depend on each other: each appends to a file of its own, to one that all share, and to one that goes round among them. Argument: rounds.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { THREADS = 4 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int rounds, shared;

static void check(int failed, const char *what)
{
	if (failed) {
		perror(what);
		exit(2);
	}
}

static void *work(void *argument)
{
	long number = (long)argument;
	char name[32], text[256];
	snprintf(name, sizeof name, "own%ld", number);
	int own = open(name, O_WRONLY | O_CREAT | O_EXCL, 0644);
	check(own < 0, name);
	for (int round = 0; round < rounds; round++) {
		int length = snprintf(text, sizeof text, "thread %ld round %d\n", number, round);
		check(write(own, text, length) != length, "own");
		// Disjoint bytes of one file.
		check(pwrite(shared, text, 16, (round * THREADS + number) * 16) != 16, "shared");
		pthread_mutex_lock(&lock);
		// The order of these lines is in the trace.
		int log = open("log", O_WRONLY | O_CREAT | O_APPEND, 0644);
		check(write(log, text, length) != length, "log");
		close(log);
		// One thread makes what the next one removes.
		snprintf(text, sizeof text, "baton%d", round);
		if (mkdir(text, 0755) != 0)
			rmdir(text);
		pthread_mutex_unlock(&lock);
	}
	close(own);
	return NULL;
}

int main(int argc, char **argv)
{
	rounds = argc > 1 ? atoi(argv[1]) : 20;
	shared = open("shared", O_RDWR | O_CREAT | O_EXCL, 0600);
	check(shared < 0, "shared");
	pthread_t threads[THREADS];
	for (long number = 0; number < THREADS; number++)
		check(pthread_create(&threads[number], NULL, work, (void *)number), "pthread_create");
	for (int number = 0; number < THREADS; number++)
		pthread_join(threads[number], NULL);
	char text[16];
	check(pread(shared, text, sizeof text, 0) != sizeof text, "pread");
	close(shared);
	return 0;
}
