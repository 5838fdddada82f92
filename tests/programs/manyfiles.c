/* Processes that keep many files open at the same time: COUNT of them, FILES each. */
#define STEP_IN_PLACE
#include "step.h"

static void steps(void)
{
	int count = atoi(arguments[0]), files = atoi(arguments[1]), hold[2], ready[2];
	char name[40], byte;

	MUST(pipe(hold));
	MUST(pipe(ready));
	struct rlimit limit;
	MUST(getrlimit(RLIMIT_NOFILE, &limit));
	note("limits %ld %ld", (long)limit.rlim_cur, (long)limit.rlim_max);
	for (int child = 0; child < count; child++) {
		if (MUST(fork()))
			continue;
		int opened;
		for (opened = 0; opened < files; opened++) {
			sprintf(name, "p%d.%d", child, opened);
			if (open(name, O_RDWR | O_CREAT, 0666) < 0)
				break;
		}
		note("%s", opened == files ? "all" : strerrorname_np(errno));
		close(hold[1]);
		close(ready[1]);
		_exit(read(hold[0], &byte, 1) != 0);
	}
	close(hold[0]);
	close(ready[1]);
	/* Until every one has opened what it could. */
	read(ready[0], &byte, 1);
	close(hold[1]);
	for (int child = 0; child < count; child++)
		wait(NULL);
}
