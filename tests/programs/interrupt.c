/* A signal interrupts an open that waits for the other end of a fifo. */
#include "step.h"

static void on_signal(int number)
{
	(void)number;
}

static void steps(void)
{
	struct sigaction action = {.sa_handler = on_signal};
	struct itimerval soon = {.it_value = {0, 100000}};

	MUST(sigaction(SIGALRM, &action, NULL));
	MUST(mkfifo("p", 0644));
	setitimer(ITIMER_REAL, &soon, NULL);
	O("reader", open("p", O_RDONLY));
	setitimer(ITIMER_REAL, &soon, NULL);
	O("writer", open("p", O_WRONLY));
	CHILD("killed while it waits", ({
		      pid_t child = getpid();
		      if (MUST(fork()) == 0) {
			      usleep(100000);
			      kill(child, SIGKILL);
			      _exit(0);
		      }
		      open("p", O_RDONLY);
	      }));
	/* Other calls are answered while one waits. */
	pid_t child = MUST(fork());
	if (child == 0) {
		open("p", O_RDONLY);
		_exit(0);
	}
	for (int i = 0; i < 20; i++)
		make("while-waiting", "x");
	CONTENT("while-waiting");
	kill(child, SIGTERM);
	int status;
	waitpid(child, &status, 0);
	ended(__LINE__, "terminated while it waits", status);
}
