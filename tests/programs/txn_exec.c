/* Processes that are brought into a transaction when their first thread has ended, and while they execute a program. */
#include "txn.h"

static struct flag go, ready;

static void *goes_on(void *unused)
{
	char byte;

	/* The first thread ends meanwhile. */
	usleep(100000);
	set(ready);
	IS(read(go.fd[0], &byte, 1) == 1);
	IS(!strcmp(get("made"), "inside"));
	set(ready);
	IS(read(go.fd[0], &byte, 1) == 1);
	_exit(0);
	return unused;
}

static void without_leader(void)
{
	char id[ID_LEN];
	pthread_t thread;
	pid_t target = CHILD({
		pthread_create(&thread, NULL, goes_on, NULL);
		pthread_exit(NULL);
	});

	wait_for(ready);
	IS(txn_of(BEGIN, target, id) == 1);
	IS(txn_of(ATTACH, 0, id) == 0);
	put("made", "inside");
	IS(txn(DETACH) == 0);
	set(go);
	wait_for(ready);
	IS(txn_of(ABORT, target, NULL) == 0);
	IS(!strcmp(get("made"), "-"));
	set(go);
	ENDS(target);
}

static void *executes(void *unused)
{
	set(ready);
	execl("/bin/true", "true", NULL);
	_exit(99);
	return unused;
}

static void while_executing(bool by_thread)
{
	char id[ID_LEN];
	pthread_t thread;
	pid_t target = CHILD({
		if (by_thread) {
			pthread_create(&thread, NULL, executes, NULL);
			for (;;)
				pause();
		}
		executes(NULL);
	});

	wait_for(ready);
	/* The program may have ended by then. */
	if (txn_of(BEGIN, target, id) < 0 && errno != ESRCH)
		wrong(__FILE__, __LINE__, "%s", strerrorname_np(errno));
	ENDS(target);
}

static void test(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	go = new_flag(), ready = new_flag();
	without_leader();
	for (int round = 0; round < 60; round++)
		while_executing(round % 2);
}
