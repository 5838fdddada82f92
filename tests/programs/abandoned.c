/* A process is killed while its call waits: afterwards the pipe that it read has no reader any more. */
#include "step.h"

static void steps(void)
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
