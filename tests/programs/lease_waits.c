/* An open that waits for another process's lease (fcntl F_SETLEASE) gets a signal. Opens have come before, so the thread may open the file itself. */
#include "step.h"

static void nothing(int signal)
{
	(void)signal;
}

/* With FLAGS for the signal's handler: the wait ends with EINTR, or goes on until the lease is given back. MODE is that of the open. */
static void interrupted(int flags, int mode)
{
	struct sigaction alarms = { .sa_handler = nothing, .sa_flags = flags };
	struct itimerval once = { { 0, 0 }, { 0, 200000 } };
	struct timespec rest = { 0, 800000000 };

	for (int i = 0; i < 60; i++)
		close(open("file", O_RDONLY));
	int leased = MUST(open("file", O_RDONLY | O_CLOEXEC));

	fcntl(leased, F_SETLEASE, F_WRLCK);
	pid_t child = MUST(fork());
	if (!child) {
		for (int i = 0; i < 60; i++)
			close(open("other", O_WRONLY));
		MUST(sigaction(SIGALRM, &alarms, NULL));
		MUST(setitimer(ITIMER_REAL, &once, NULL));
		O("waits", open("file", mode));
		_exit(0);
	}
	while (nanosleep(&rest, &rest) < 0)
		;
	fcntl(leased, F_SETLEASE, F_UNLCK);
	while (wait(NULL) < 0 && errno == EINTR)
		;
	close(leased);
}

static int size(void)
{
	struct stat st;

	MUST(stat("file", &st));
	return st.st_size;
}

static void steps(void)
{
	MUST(sigaction(SIGIO, &(struct sigaction){ .sa_handler = nothing }, NULL));
	make("other", "x");
	make("file", "content");
	interrupted(0, O_WRONLY | O_TRUNC);
	T("size", size());
	make("file", "content");
	interrupted(SA_RESTART, O_WRONLY | O_TRUNC);
	T("size", size());
	interrupted(0, O_RDONLY);
	interrupted(SA_RESTART, O_RDONLY);
}
