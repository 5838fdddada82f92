/* The CPUs that threads and children may run on, while a thread opens files one after the other. */
#include "step.h"
#include <pthread.h>
#include <stdatomic.h>

static cpu_set_t all, one;
static atomic_int over;
static int narrowed;

static bool may_run_on(const cpu_set_t *cpus)
{
	cpu_set_t now;

	return sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, cpus);
}

/* Opens and closes in turn, and looks after each. */
static int narrowed_by_opens(const cpu_set_t *cpus)
{
	int times = 0, fd;

	for (int i = 0; i < 500; i++) {
		fd = open("file", O_RDONLY);
		times += !may_run_on(cpus);
		times += close(fd) != 0;
	}
	return times;
}

static void *sibling(void *unused)
{
	int fd;

	(void)unused;
	while (!over) {
		fd = open("file", O_RDONLY);
		narrowed += !may_run_on(&all);
		close(fd);
	}
	return NULL;
}

static void steps(void)
{
	pthread_t thread;
	int status, others = 0;

	make("file", "text");
	MUST(sched_getaffinity(0, sizeof all, &all));
	note("one thread: %d", narrowed_by_opens(&all));
	for (int i = 0; i < 20; i++) {
		int fd = open("file", O_RDONLY);
		pid_t child = fork();

		if (child == 0)
			_exit(narrowed_by_opens(&all) != 0);
		close(fd);
		MUST(waitpid(child, &status, 0));
		others += status != 0;
	}
	note("children: %d", others);
	pthread_create(&thread, NULL, sibling, NULL);
	note("beside another thread: %d", narrowed_by_opens(&all));
	over = 1;
	pthread_join(thread, NULL);
	note("the other thread: %d", narrowed);
	CPU_ZERO(&one);
	for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++)
		if (CPU_ISSET(cpu, &all))
			CPU_SET(cpu, &one);
	MUST(sched_setaffinity(0, sizeof one, &one));
	note("on one CPU: %d", narrowed_by_opens(&one));
	MUST(sched_setaffinity(0, sizeof all, &all));
	note("on all again: %d", narrowed_by_opens(&all));
}
