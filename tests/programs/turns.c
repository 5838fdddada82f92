/* A process gets its turn beside younger ones that make calls without a pause. */
#include "step.h"

#define CHILDREN 3
#define CALLS 2000
/* The most calls of a child while its parent makes one. The kernel's scheduler is not fair for a short time, either: so this is looked at for at least so many milliseconds, in which a
 * virtual machine may stand still for a while. */
#define RATIO 20
#define DURATION 1000

static void call(void)
{
	close(open("file", O_CREAT | O_RDWR, 0644));
}

static void steps(void)
{
	volatile long *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t child[CHILDREN];
	long more = 0, calls = 0;
	struct timespec start, now;

	for (int i = 0; i < CHILDREN; i++) {
		child[i] = MUST(fork());
		if (child[i] == 0)
			for (;; made[i]++)
				call();
	}
	for (int i = 0; i < CHILDREN; i++)
		while (made[i] == 0)
			usleep(100);
	long before[CHILDREN];
	for (int i = 0; i < CHILDREN; i++)
		before[i] = made[i];
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		call();
		calls++;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (calls < CALLS || (now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < DURATION);
	for (int i = 0; i < CHILDREN; i++)
		if (made[i] - before[i] > more)
			more = made[i] - before[i];
	IS("the parent has its turn", more < RATIO * calls);
	if (more >= RATIO * calls)
		note("a child made %ld calls while its parent made %ld", more, calls);
	for (int i = 0; i < CHILDREN; i++) {
		kill(child[i], SIGKILL);
		waitpid(child[i], NULL, 0);
	}
}
