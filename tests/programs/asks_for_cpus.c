// Asks again and again on how many CPUs it may run, after many short calls and signals. Arguments: the file that gets the answers.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int out;
static char **words;

static void asks(const char *who)
{
	cpu_set_t cpus;
	CPU_ZERO(&cpus);
	sched_getaffinity(0, sizeof cpus, &cpus);
	dprintf(out, "%s %d\n", who, CPU_COUNT(&cpus));
}

static void caught(int number)
{
	(void)number;
}

static void calls(void)
{
	for (int i = 0; i < 150; i++) {
		access("/nowhere", F_OK);
		raise(SIGUSR1);
	}
}

static void *thread(void *executes)
{
	asks("new thread");
	calls();
	asks("thread");
	calls();
	if (executes) {
		execl(words[0], words[0], words[1], "again", NULL);
		_exit(90);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t other;
	words = argv;
	signal(SIGUSR1, caught);
	out = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
	asks("program");
	for (int i = 0; i < 5; i++) {
		calls();
		pid_t child = fork();
		if (child == 0) {
			asks("new child");
			calls();
			asks("child");
			_exit(0);
		}
		waitpid(child, NULL, 0);
		calls();
		asks("parent");
		calls();
		pthread_create(&other, NULL, thread, NULL);
		pthread_join(other, NULL);
	}
	// On the first CPU only, and on all again.
	cpu_set_t all, one;
	sched_getaffinity(0, sizeof all, &all);
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	calls();
	sched_setaffinity(0, sizeof one, &one);
	calls();
	asks("on one");
	sched_setaffinity(0, sizeof all, &all);
	calls();
	asks("on all");
	if (argc == 2) {
		calls();
		pthread_create(&other, NULL, thread, argv);
		pthread_join(other, NULL);
	}
	return 0;
}
