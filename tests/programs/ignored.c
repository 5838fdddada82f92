/* Signals that the kernel would drop interrupt no wait, however often they come, and those with a handler do. */
#include "step.h"
#include <sys/epoll.h>
#include <sys/sem.h>

static void on_signal(int number)
{
	(void)number;
}

static timer_t sender(int number)
{
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = number};
	struct itimerspec often = {{0, 30000000}, {0, 30000000}};
	timer_t timer;

	MUST(timer_create(CLOCK_MONOTONIC, &event, &timer));
	MUST(timer_settime(timer, 0, &often, NULL));
	return timer;
}

static void waits(const char *name)
{
	struct timespec wait = {0, 200000000};
	struct timeval limit = {0, 200000};
	struct sembuf down = {0, -1, 0};
	struct epoll_event event;
	sigset_t set;
	char byte;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char block[4096] = "";
	int pair[2], full[2], listening, queue = MUST(epoll_create1(0)), sem = MUST(semget(IPC_PRIVATE, 1, 0600));

	note("%s", name);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
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
	T("epoll_wait", epoll_wait(queue, &event, 1, 200));
	T("epoll_pwait", epoll_pwait(queue, &event, 1, 200, &set));
	T("sigtimedwait", sigtimedwait(&set, NULL, &wait));
	T("semtimedop", semtimedop(sem, &down, 1, &wait));
	T("recv", recv(pair[0], &byte, 1, 0));
	T("recvmsg", recvmsg(pair[0], &(struct msghdr){.msg_iov = &(struct iovec){&byte, 1}, .msg_iovlen = 1}, 0));
	T("read", read(pair[0], &byte, 1));
	T("readv", readv(pair[0], &(struct iovec){&byte, 1}, 1));
	T("write", write(full[0], "", 1));
	T("send", send(full[0], "", 1, 0));
	T("accept", accept(listening, NULL, NULL));
	T("poll", poll(NULL, 0, 200));
	T("nanosleep", nanosleep(&wait, NULL));
	/* Without an end: until another process ends it. */
	MUST(epoll_ctl(queue, EPOLL_CTL_ADD, pair[0], &(struct epoll_event){.events = EPOLLIN}));
	pid_t child = MUST(fork());
	if (child == 0) {
		usleep(300000);
		_exit(write(pair[1], "x", 1) != 1);
	}
	T("epoll_wait without an end", epoll_wait(queue, &event, 1, -1));
	T("recv", recv(pair[0], &byte, 1, 0));
	MUST(waitpid(child, NULL, 0));
	semctl(sem, 0, IPC_RMID);
	close(queue);
	close(pair[0]);
	close(pair[1]);
	close(full[0]);
	close(full[1]);
	close(listening);
}

static void steps(void)
{
	struct sigaction action = {.sa_handler = on_signal};
	struct epoll_event event;
	timer_t timer, other;
	int queue;

	signal(SIGPIPE, SIG_IGN);
	signal(SIGCHLD, SIG_DFL);
	timer = sender(SIGWINCH);
	waits("by default");
	timer_delete(timer);
	timer = sender(SIGPIPE);
	waits("ignored");
	timer_delete(timer);
	timer = sender(SIGCHLD);
	other = sender(SIGCONT);
	waits("of children, and to go on");
	/* A handler's signal among them. */
	queue = MUST(epoll_create1(0));
	MUST(sigaction(SIGUSR1, &action, NULL));
	timer_t handled = sender(SIGUSR1);
	T("with a handler", epoll_wait(queue, &event, 1, -1));
	T("again", epoll_wait(queue, &event, 1, 20000));
	timer_delete(handled);
	timer_delete(timer);
	timer_delete(other);
	T("that is installed meanwhile", ({ MUST(sigaction(SIGWINCH, &action, NULL)); timer = sender(SIGWINCH); epoll_wait(queue, &event, 1, -1); }));
	timer_delete(timer);
}
