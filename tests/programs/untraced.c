/* Tries to start a process that has no tracer: another thread changes the flags of clone3(2) during the call. Ends by a signal. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile uint64_t *flags;

static void *change(void *argument)
{
	for (;;) {
		*flags = CLONE_UNTRACED;
		*flags = 0;
	}
	return argument;
}

static int is_traced(void)
{
	char line[256];
	int tracer = 0;
	FILE *status = fopen("/proc/self/status", "r");

	while (status && fgets(line, sizeof line, status))
		if (sscanf(line, "TracerPid: %d", &tracer) == 1)
			return tracer != 0;
	return 1;
}

int main(void)
{
	struct clone_args args = { .exit_signal = SIGCHLD };
	pthread_t thread;

	flags = (volatile uint64_t *)&args.flags;
	args.flags = CLONE_UNTRACED;
	if (syscall(SYS_clone3, &args, sizeof args) != -1 || errno != EPERM)
		return 1;
	if (pthread_create(&thread, NULL, change, NULL))
		return 2;
	for (;;) {
		long child = syscall(SYS_clone3, &args, sizeof args);

		if (child == 0 && is_traced())
			_exit(0);
		/* Where the monitor does not see it, it stays. */
		for (; child == 0;)
			pause();
		if (child > 0)
			waitpid(child, NULL, __WALL);
	}
}
