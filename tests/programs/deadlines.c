/* Waits with a timeout end at their deadline, though a child ends meanwhile, or sends a signal, and the kernel would drop the signal. */
#include "step.h"
#include <sys/epoll.h>
#include <sys/sem.h>
#include <sys/un.h>

static double now(void)
{
	struct timespec t;

	MUST(clock_gettime(CLOCK_MONOTONIC, &t));
	return t.tv_sec + t.tv_nsec / 1e9;
}

static struct timespec wait_time = {4, 0};
static struct timeval limit = {4, 0};
static int pair[2], queue, sem, listening, full[2];

static long epolls(void)
{
	struct epoll_event event;

	return epoll_wait(queue, &event, 1, 4000);
}

static long signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	return sigtimedwait(&set, NULL, &wait_time);
}

static long semaphores(void)
{
	struct sembuf down = {0, -1, 0};

	return semtimedop(sem, &down, 1, &wait_time);
}

static long receives(void)
{
	char byte;

	return recv(pair[0], &byte, 1, 0);
}

static long reads(void)
{
	char byte;

	return read(pair[0], &byte, 1);
}

static long writes(void)
{
	return write(full[0], "", 1);
}

static long accepts(void)
{
	return accept(listening, NULL, NULL);
}

static long polls(void)
{
	return poll(NULL, 0, 4000);
}

static const struct {
	const char *name;
	long (*wait)(void);
} waits[] = {
	{"epoll_wait", epolls}, {"sigtimedwait", signals}, {"semtimedop", semaphores}, {"recv", receives},
	{"read", reads}, {"write", writes}, {"accept", accepts}, {"poll", polls},
};

/* The end of a child sends the first one. SIGCONT stops a traced thread once more. */
static const int sent[] = {SIGCHLD, SIGWINCH, SIGCONT};

enum { COUNT = sizeof waits / sizeof *waits, SENT = sizeof sent / sizeof *sent };

static void steps(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct { long result; int error; double took; } (*outcomes)[SENT];
	char block[4096] = "";

	outcomes = mmap(NULL, COUNT * sizeof *outcomes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	signal(SIGCHLD, SIG_DFL);
	queue = MUST(epoll_create1(0));
	sem = MUST(semget(IPC_PRIVATE, 1, 0600));
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	MUST(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, full));
	while (send(full[0], block, sizeof block, MSG_DONTWAIT) > 0)
		;
	MUST(setsockopt(full[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
	listening = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	MUST(bind(listening, (struct sockaddr *)&address, sizeof address.sun_family));
	MUST(listen(listening, 1));
	MUST(setsockopt(listening, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	for (int i = 0; i < SENT * COUNT; i++) {
		int wait = i / SENT, by = i % SENT;
		pid_t waiting;

		if (MUST(fork()))
			continue;
		waiting = getpid();
		if (MUST(fork()) == 0) {
			usleep(3000000);
			if (sent[by] != SIGCHLD) {
				MUST(kill(waiting, sent[by]));
				usleep(4000000);
			}
			_exit(0);
		}
		double begun = now();
		errno = 0;
		outcomes[wait][by].result = waits[wait].wait();
		outcomes[wait][by].error = errno;
		outcomes[wait][by].took = now() - begun;
		_exit(0);
	}
	while (wait(NULL) > 0)
		;
	/* Seven seconds with a whole timeout again. */
	for (int i = 0; i < SENT * COUNT; i++) {
		int wait = i / SENT, by = i % SENT;

		say(__LINE__, waits[wait].name, outcomes[wait][by].result, outcomes[wait][by].error);
		if (outcomes[wait][by].took < 3.9 || outcomes[wait][by].took > 6)
			note("%s took %.1f s after %s", waits[wait].name, outcomes[wait][by].took, strsignal(sent[by]));
	}
	semctl(sem, 0, IPC_RMID);
}
