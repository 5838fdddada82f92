/* A program that waits with a time limit, and holds a file that transactions of another process change all the time, sees the limit
 * pass: the stops for the commits do not restart its wait. */
#include "txn.h"
#include <sys/epoll.h>

#define LIMIT_MS 200

static void commit_for_ever(void)
{
	for (;;) {
		MUST(txn(BEGIN));
		put("file", "changed");
		MUST(txn(COMMIT));
	}
}

static void test(int argc, char **argv)
{
	struct epoll_event event;

	put("file", "first");
	int held = MUST(open("file", O_RDONLY | O_CLOEXEC));
	int poll = MUST(epoll_create1(EPOLL_CLOEXEC));
	pid_t child = CHILD(close(held), commit_for_ever());

	for (int i = 0; i < 5; i++) {
		long begun = now_ms();

		IS(epoll_wait(poll, &event, 1, LIMIT_MS) == 0);
		IS(now_ms() - begun >= LIMIT_MS);
	}
	MUST(kill(child, SIGKILL));
	MUST(waitpid(child, NULL, 0));
	close(poll);
	close(held);
}
