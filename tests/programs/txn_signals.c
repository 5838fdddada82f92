/* Signals while a call waits for a lock: after a handler the call continues, and a fatal signal ends it at once. */
#include "txn.h"
#include <limits.h>

/* Much less than the time limit of a wait for a lock. */
#define SOON_MS 10000

/* In memory that the processes share: the signals that this process got, and how many of them let the holder end. */
static struct { volatile int alarms, until; } *shared;

static void on_alarm(int number)
{
	(void)number;
	shared->alarms++;
}

/* Holds `locked` and the name `name` until there were as many signals as `until` says; they are taken when it returns. */
static pid_t holder(void)
{
	struct flag held = new_flag();

	shared->until = INT_MAX;
	pid_t child = CHILD({
		IS(txn(BEGIN) == 1);
		put("locked", "holder");
		put("name", "holder");
		set(held);
		while (shared->alarms < shared->until)
			usleep(5000);
		IS(txn(unlink("name") ? ABORT : COMMIT) == 0);
	});

	wait_for(held);
	return child;
}

/* Lets the holder end after eight more signals, so a call that begins now must wait through most of them. */
static int last_signal(void)
{
	return shared->until = shared->alarms + 8;
}

static void write_waits(const char *how)
{
	int last = last_signal(), fd = open("locked", O_WRONLY);

	if (fd < 0 || write(fd, how, strlen(how)) != (ssize_t)strlen(how))
		wrong(__FILE__, __LINE__, "%s: %s", how, strerrorname_np(errno));
	close(fd);
	if (shared->alarms < last)
		wrong(__FILE__, __LINE__, "%s: did not wait", how);
}

static void interrupted(int flags)
{
	struct sigaction action = {.sa_handler = on_alarm, .sa_flags = flags};
	struct itimerval often = {{0, 15000}, {0, 15000}}, never = {{0, 0}, {0, 0}};

	MUST(sigaction(SIGALRM, &action, NULL));
	pid_t child = holder();
	setitimer(ITIMER_REAL, &often, NULL);
	write_waits("outside");
	setitimer(ITIMER_REAL, &never, NULL);
	ENDS(child);

	child = holder();
	setitimer(ITIMER_REAL, &often, NULL);
	IS(txn(BEGIN) == 1);
	write_waits("inside");
	IS(txn(COMMIT) == 0);
	setitimer(ITIMER_REAL, &never, NULL);
	ENDS(child);

	/* A read waits, too, in a transaction. */
	child = holder();
	setitimer(ITIMER_REAL, &often, NULL);
	IS(txn(BEGIN) == 1);
	int last = last_signal();
	IS(!strcmp(get("locked"), "holder"));
	IS(shared->alarms >= last);
	FAILS(ENOENT, access("name", F_OK));
	IS(txn(COMMIT) == 0);
	setitimer(ITIMER_REAL, &never, NULL);
	ENDS(child);
}

/* A process that waits, inside or outside of a transaction, by names or by a descriptor. */
static pid_t waiter(bool inside, int fd)
{
	struct flag ready = new_flag();
	pid_t child = CHILD({
		signal(SIGALRM, SIG_DFL);
		if (inside)
			IS(txn(BEGIN) == 1);
		set(ready);
		if (fd >= 0)
			pwrite(fd, "w", 1, 0);
		else
			put("name", "waiter");
		_exit(77);
	});

	wait_for(ready);
	usleep(60000);
	return child;
}

static void killed(int signal)
{
	int fd = MUST(open("locked", O_RDWR));

	for (int i = 0; i < 4; i++) {
		pid_t child = holder(), waits = waiter(i & 1, i & 2 ? fd : -1);
		int status;
		IS(waitpid(waits, &status, WNOHANG) == 0);
		long begun = now_ms();
		kill(waits, signal);
		MUST(waitpid(waits, &status, 0));
		if (!WIFSIGNALED(status) || WTERMSIG(status) != signal || now_ms() - begun > SOON_MS)
			wrong(__FILE__, __LINE__, "signal %d, %d: status %x after %ld ms", signal, i, status, now_ms() - begun);
		kill(child, SIGKILL);
		MUST(waitpid(child, &status, 0));
		/* Nothing is left of either. */
		begun = now_ms();
		put("name", "free");
		IS(unlink("name") == 0 && now_ms() - begun < SOON_MS);
	}
	close(fd);
}

/* Stopped and continued while it waits. */
static void stopped(void)
{
	int status, fd = MUST(open("locked", O_RDWR));
	pid_t child = holder(), waits = waiter(false, fd);

	kill(waits, SIGSTOP);
	IS(waitpid(waits, &status, WUNTRACED) == waits && WIFSTOPPED(status));
	shared->until = 0;
	ENDS(child);
	usleep(50000);
	kill(waits, SIGCONT);
	MUST(waitpid(waits, &status, 0));
	IS(WIFEXITED(status) && WEXITSTATUS(status) == 77);
	IS(!strcmp(get("locked"), "wolder"));
}

static void test(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	IS(shared != MAP_FAILED);
	put("locked", "first");
	interrupted(0);
	interrupted(SA_RESTART);
	killed(SIGKILL);
	killed(SIGINT);
	stopped();
}
