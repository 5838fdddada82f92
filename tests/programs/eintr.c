/* Calls on files are never interrupted, however many signals come, though the handler does not ask for restarts. */
#include "step.h"

static volatile int signals;

static void on_signal(int number)
{
	(void)number;
	signals++;
}

static void steps(void)
{
	struct sigaction action = {.sa_handler = on_signal};
	struct itimerval often = {{0, 150}, {0, 150}};
	struct stat status;
	int interrupted = 0, failed = 0;

	make("f", "x");
	MUST(sigaction(SIGALRM, &action, NULL));
	setitimer(ITIMER_REAL, &often, NULL);
	for (int i = 0; i < 2000 || signals < 400; i++) {
		if (stat("f", &status) < 0)
			*(errno == EINTR ? &interrupted : &failed) += 1;
		int fd = open("f", O_RDWR | O_CREAT, 0644);
		if (fd < 0 || pwrite(fd, "y", 1, 0) != 1)
			*(errno == EINTR ? &interrupted : &failed) += 1;
		if (fd >= 0)
			close(fd);
	}
	setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
	IS("no call was interrupted", interrupted == 0);
	IS("no call failed", failed == 0);
	CONTENT("f");
}
