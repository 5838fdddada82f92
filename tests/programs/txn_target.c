/* A process that is brought into a transaction by another one, whatever it is doing: the call that it is in goes on. */
#include "txn.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>

static struct flag go, ready;

static void in_read(void)
{
	char byte;

	IS(read(go.fd[0], &byte, 1) == 1);
}

static void in_poll(void)
{
	struct pollfd poll_fd = {go.fd[0], POLLIN};

	IS(poll(&poll_fd, 1, 5000) == 1);
	in_read();
}

static void in_epoll(void)
{
	struct epoll_event event = {.events = EPOLLIN};
	int epoll = MUST(epoll_create1(EPOLL_CLOEXEC));

	MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, go.fd[0], &event));
	IS(epoll_wait(epoll, &event, 1, 5000) == 1);
	close(epoll);
	in_read();
}

static void in_sleep(void)
{
	long begun = now_ms();
	struct timespec left, time = {0, 400000000};

	IS(nanosleep(&time, &left) == 0);
	IS(now_ms() - begun >= 395 && now_ms() - begun < 10000);
	in_read();
}

static void in_wait(void)
{
	pid_t child = CHILD(usleep(300000));

	ENDS(child);
	in_read();
}

static void on_signal(int number)
{
	(void)number;
}

static void in_pause(void)
{
	struct itimerval once = {{0, 0}, {0, 400000}};
	long begun = now_ms();

	signal(SIGALRM, on_signal);
	setitimer(ITIMER_REAL, &once, NULL);
	FAILS(EINTR, pause());
	IS(now_ms() - begun >= 395);
	in_read();
}

static void in_lock(void)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	int fd = MUST(open("lock", O_RDWR | O_CREAT, 0600));
	struct flag held = new_flag();
	pid_t child = CHILD(fcntl(fd, F_SETLKW, &lock); set(held); usleep(300000));

	wait_for(held);
	IS(fcntl(fd, F_SETLKW, &lock) == 0);
	ENDS(child);
	close(fd);
	in_read();
}

static void computing(void)
{
	volatile unsigned long sum = 0;
	int waiting = 0;
	double real = 1;

	/* Registers of all kinds are in use. */
	for (unsigned long i = 1; !waiting; i++) {
		sum += i * i;
		real = real * 1.0000001 + 1e-9;
		if (i % 100000 == 0)
			ioctl(go.fd[0], FIONREAD, &waiting);
	}
	IS(sum != 0 && real > 1);
	in_read();
}

static void in_store(void)
{
	char name[32];
	int waiting = 0;

	/* Calls that the monitor answers. */
	for (int i = 0; !waiting; i++) {
		snprintf(name, sizeof name, "s%d", i % 7);
		put(name, "x");
		IS(!strcmp(get(name), "x"));
		ioctl(go.fd[0], FIONREAD, &waiting);
	}
	in_read();
}

static void *thread_reads(void *unused)
{
	in_read();
	IS(!strcmp(get("made"), "inside"));
	set(ready);
	return unused;
}

static void in_threads(void)
{
	pthread_t threads[3];

	for (int i = 0; i < 3; i++)
		MUST(pthread_create(&threads[i], NULL, thread_reads, NULL) ? -1 : 0);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	in_read();
}

static void (*const ways[])(void) = {
	in_read, in_poll, in_epoll, in_sleep, in_wait, in_pause, in_lock, computing, in_store, in_threads,
};

static void test(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	go = new_flag(), ready = new_flag();
	for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
		char id[ID_LEN];
		int wrongs = *wrong_count;
		pid_t target = CHILD({
			set(ready);
			ways[i]();
			IS(!strcmp(get("made"), "inside"));
			put("more", "from the target");
			set(ready);
			in_read();
			IS(!strcmp(get("made"), "-"));
		});

		wait_for(ready);
		usleep(50000);
		IS(txn_of(BEGIN, target, id) == 1);
		/* We are not inside. */
		IS(!strcmp(get("more"), "-"));
		IS(txn_of(ATTACH, 0, id) == 0);
		put("made", "inside");
		if (ways[i] == in_threads) {
			for (int n = 0; n < 3; n++)
				set(go);
			for (int n = 0; n < 3; n++)
				wait_for(ready);
		}
		set(go);
		wait_for(ready);
		IS(!strcmp(get("more"), "from the target"));
		IS(txn(DETACH) == 0);
		IS(txn_of(BEGIN, target, id) == 2);
		IS(txn_of(COMMIT, target, NULL) == 0);
		IS(txn_of(SUSPEND, target, id) == 0);
		IS(txn_of(RESUME, target, id) == 0);
		IS(txn_of(ABORT, target, NULL) == 0);
		FAILS(ENODATA, txn_of(COMMIT, target, NULL));
		IS(!strcmp(get("more"), "-"));
		set(go);
		ENDS(target);
		if (*wrong_count != wrongs)
			wrong(__FILE__, __LINE__, "that was way %u", i);
	}
}
