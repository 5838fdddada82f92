/* A process is killed while its call waits, or is about to: afterwards its call does nothing more. */
#include "step.h"

/* Killed at any moment of its call, it takes nothing that comes into the pipe after its end. */
static void takes_nothing(void)
{
	enum { ROUNDS = 50 };
	int file = MUST(open("g", O_WRONLY | O_CREAT, 0644));
	int ends[2], whole = 0;

	MUST(pipe2(ends, O_NONBLOCK));
	for (int round = 0; round < ROUNDS; round++) {
		pid_t child = MUST(fork());
		if (child == 0) {
			fcntl(ends[0], F_SETFL, 0);
			splice(ends[0], NULL, file, NULL, 4, 0);
			_exit(1);
		}
		usleep(round * 200);
		kill(child, SIGKILL);
		MUST(waitpid(child, NULL, 0));
		fcntl(ends[0], F_SETFL, O_NONBLOCK);
		MUST(write(ends[1], "rest", 4));
		whole += splice(ends[0], NULL, file, NULL, 4, 0) == 4;
	}
	T("rounds in which nothing was missing", whole);
	T("size", lseek(file, 0, SEEK_END));
}

static void reads_no_more(void)
{
	signal(SIGPIPE, SIG_IGN);
	for (int round = 0; round < 3; round++) {
		int ends[2], status;

		MUST(pipe(ends));
		pid_t child = MUST(fork());
		if (child == 0) {
			int file = MUST(open("f", O_WRONLY | O_CREAT, 0644));
			close(ends[1]);
			splice(ends[0], NULL, file, NULL, 100, 0);
			_exit(1);
		}
		close(ends[0]);
		usleep(100000);
		kill(child, SIGKILL);
		MUST(waitpid(child, &status, 0));
		IS("killed", WIFSIGNALED(status));
		/* What let it wait needs a moment to notice. */
		struct pollfd pipe_end = {ends[1], 0};
		T("nobody reads the pipe", poll(&pipe_end, 1, 5000));
		IS("that is", pipe_end.revents & POLLERR);
		close(ends[1]);
	}
}

static void steps(void)
{
	reads_no_more();
	takes_nothing();
}
