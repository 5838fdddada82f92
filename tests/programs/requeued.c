/* Signals for a thread that opens and creates files: each arrives once, in order, in this thread, with its code, its value and its sender. */
#include "step.h"
#include <pthread.h>

#define COUNT 400

static pid_t sender;
static __thread int is_target;
static int arrived, out_of_order, other_thread, other_code, other_sender;

static void on_signal(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	other_thread += !is_target;
	other_code += info->si_code != SI_QUEUE;
	other_sender += info->si_pid != sender;
	out_of_order += info->si_value.sival_int != arrived;
	arrived++;
}

static void on_alarm(int number)
{
	(void)number;
}

/* A thread without the signals blocked, which must not get those of the other. */
static void *sleeps(void *unused)
{
	(void)unused;
	for (;;)
		pause();
	return NULL;
}

static int queue(pid_t tgid, pid_t tid, int value)
{
	siginfo_t info = {.si_signo = SIGRTMIN, .si_code = SI_QUEUE};

	info.si_pid = getpid();
	info.si_uid = getuid();
	info.si_value.sival_int = value;
	return syscall(SYS_rt_tgsigqueueinfo, tgid, tid, SIGRTMIN, &info);
}

static void steps(void)
{
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
	struct sigaction alarms = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
	struct itimerval often = {.it_interval.tv_usec = 700, .it_value.tv_usec = 700}, never = {0};
	pid_t tgid = getpid(), tid = gettid();
	pthread_t thread;
	int status, failed = 0, ready[2];

	is_target = 1;
	MUST(sigaction(SIGRTMIN, &action, NULL));
	MUST(sigaction(SIGALRM, &alarms, NULL));
	pthread_create(&thread, NULL, sleeps, NULL);
	MUST(setitimer(ITIMER_REAL, &often, NULL));
	MUST(pipe(ready));
	sender = MUST(fork());
	if (sender == 0) {
		MUST(read(ready[0], &status, 1));
		for (int i = 0; i < COUNT; i++) {
			while (queue(tgid, tid, i) != 0)
				usleep(100);
			usleep(200);
		}
		_exit(0);
	}
	MUST(write(ready[1], "", 1));
	while (waitpid(sender, &status, WNOHANG) == 0) {
		int fd = open("f", O_RDWR | O_CREAT, 0644);

		failed += fd < 0;
		close(fd);
		failed += unlink("f") != 0;
	}
	MUST(setitimer(ITIMER_REAL, &never, NULL));
	IS("the sender has ended", WIFEXITED(status) && WEXITSTATUS(status) == 0);
	IS("no call fails", failed == 0);
	IS("all signals arrive", arrived == COUNT);
	IS("in order", out_of_order == 0);
	IS("in the thread", other_thread == 0);
	IS("with their code", other_code == 0);
	IS("from their sender", other_sender == 0);
}
