/* Copies between files and pipes wait as others do: a signal ends the wait, other calls go on, and nothing is lost. */
#include "step.h"
#include <sys/sendfile.h>

static int restart;

static void on_signal(int number)
{
	(void)number;
}

static void on_signal_write(int number)
{
	(void)number;
	if (write(restart, "late", 4) != 4)
		_exit(98);
}

/* Signals until they are stopped: the first one may come before the call. */
static void alarms(bool on)
{
	struct itimerval often = {{0, 30000}, {0, 30000}}, none = {{0, 0}, {0, 0}};

	MUST(setitimer(ITIMER_REAL, on ? &often : &none, NULL));
}

/* One step that waits until a signal ends it. */
#define INTERRUPTED(name, expression) \
	do { \
		alarms(true); \
		errno = 0; \
		long long result_ = (expression); \
		int errno_ = errno; \
		alarms(false); \
		say(__LINE__, (name), result_, errno_); \
	} while (0)

/* What no copy can come from does not wait either. */
static void no_sources(int file)
{
	int pipe_[2], pair[2];

	MUST(pipe(pipe_));
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	T("sendfile from a pipe", sendfile(file, pipe_[0], NULL, 10));
	T("sendfile from a socket", sendfile(file, pair[0], NULL, 10));
	int terminal = open("/dev/ptmx", O_RDWR | O_NOCTTY);
	if (terminal >= 0) {
		T("sendfile from a terminal", sendfile(file, terminal, NULL, 10));
		close(terminal);
	}
	T("splice from a write end", splice(pipe_[1], NULL, file, NULL, 10, 0));
	T("splice without waiting", splice(pipe_[0], NULL, file, NULL, 10, SPLICE_F_NONBLOCK));
	fcntl(pipe_[0], F_SETFL, O_NONBLOCK);
	T("splice from what does not wait", splice(pipe_[0], NULL, file, NULL, 10, 0));
	close(pipe_[1]);
	T("splice without a writer", splice(pipe_[0], NULL, file, NULL, 10, 0));
	close(pipe_[0]);
	close(pair[0]);
	close(pair[1]);
}

static void full(int file)
{
	static char block[4096];
	int pipe_[2], pair[2];

	MUST(ftruncate(file, 8192));
	MUST(pipe(pipe_));
	MUST(fcntl(pipe_[1], F_SETPIPE_SZ, 4096));
	MUST(write(pipe_[1], block, 4096));
	INTERRUPTED("splice to a full pipe", splice(file, &(off_t){0}, pipe_[1], NULL, 4096, 0));
	INTERRUPTED("sendfile to a full pipe", sendfile(pipe_[1], file, &(off_t){0}, 8000));
	close(pipe_[0]);
	close(pipe_[1]);
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	while (send(pair[0], block, sizeof block, MSG_DONTWAIT) > 0)
		;
	INTERRUPTED("sendfile to a full socket", sendfile(pair[0], file, &(off_t){0}, 8000));
	close(pair[0]);
	close(pair[1]);
}

static void empty(int file)
{
	struct sigaction action = {.sa_handler = on_signal_write, .sa_flags = SA_RESTART};
	struct itimerval once = {.it_value = {0, 100000}};
	int pipe_[2];

	MUST(ftruncate(file, 0));
	MUST(lseek(file, 0, SEEK_SET));
	MUST(pipe(pipe_));
	INTERRUPTED("splice from an empty pipe", splice(pipe_[0], NULL, file, NULL, 4096, 0));
	MUST(sigaction(SIGALRM, &action, NULL));
	restart = pipe_[1];
	MUST(setitimer(ITIMER_REAL, &once, NULL));
	T("splice that is restarted", splice(pipe_[0], NULL, file, NULL, 4096, 0));
	action.sa_handler = on_signal;
	action.sa_flags = 0;
	MUST(sigaction(SIGALRM, &action, NULL));
	CHILD("killed while it waits", ({
		      pid_t child = getpid();
		      if (MUST(fork()) == 0) {
			      usleep(100000);
			      kill(child, SIGKILL);
			      _exit(0);
		      }
		      splice(pipe_[0], NULL, file, NULL, 4096, 0);
	      }));
	MUST(write(pipe_[1], "rest", 4));
	T("splice", splice(pipe_[0], NULL, file, NULL, 4096, 0));
	CONTENT("file");
	close(pipe_[0]);
	close(pipe_[1]);
}

/* The pipe keeps what the file cannot take. */
static void refused(int file)
{
	struct rlimit old, limit;
	char block[100];
	int pipe_[2];

	MUST(pipe(pipe_));
	MUST(write(pipe_[1], "0123456789", 10));
	MUST(ftruncate(file, 5000));
	signal(SIGXFSZ, SIG_IGN);
	MUST(getrlimit(RLIMIT_FSIZE, &old));
	limit = (struct rlimit){5000, old.rlim_max};
	MUST(setrlimit(RLIMIT_FSIZE, &limit));
	off_t at = 5000;
	long none = splice(pipe_[0], NULL, file, &at, 10, 0), none_errno = errno;
	at = 4997;
	long some = splice(pipe_[0], NULL, file, &at, 10, 0);
	MUST(setrlimit(RLIMIT_FSIZE, &old));
	note("at the limit: %ld %s; before it: %ld to %lld", none, strerrorname_np(none_errno), some, (long long)at);
	fcntl(pipe_[0], F_SETFL, O_NONBLOCK);
	long left = read(pipe_[0], block, sizeof block);
	note("left in the pipe: %.*s", (int)left, block);
	T("to what only reads", ({
		  MUST(write(pipe_[1], "0123456789", 10));
		  int reader = MUST(open("file", O_RDONLY));
		  long r = splice(pipe_[0], NULL, reader, NULL, 10, 0);
		  int e = errno;
		  close(reader);
		  errno = e;
		  r;
	  }));
	T("left in the pipe", read(pipe_[0], block, sizeof block));
	close(pipe_[0]);
	close(pipe_[1]);
}

static int by_value(const void *a, const void *b)
{
	return *(const char *)a - *(const char *)b;
}

/* More waiting calls than a monitor would have threads for: others are answered meanwhile, and each waiter gets a byte of its own. */
static void crowd(int file)
{
	enum { WAITERS = 20 };
	pid_t waiters[WAITERS];
	int pipe_[2], begun[2], nothing[2];
	char byte;

	MUST(ftruncate(file, 0));
	MUST(pipe(begun));
	MUST(pipe(nothing));
	MUST(pipe(pipe_));
	for (int i = 0; i < WAITERS; i++) {
		waiters[i] = MUST(fork());
		if (waiters[i] == 0) {
			MUST(write(begun[1], "", 1));
			if (sendfile(file, nothing[0], NULL, 1) != -1 || errno != EINVAL)
				_exit(255);
			ssize_t moved = splice(pipe_[0], NULL, file, &(off_t){i}, 1, 0);
			/* Otherwise the status is the errno, or 254 for another count. */
			_exit(moved == 1 ? 0 : moved == -1 ? errno : 254);
		}
	}
	for (int i = 0; i < WAITERS; i++)
		MUST(read(begun[0], &byte, 1));
	for (int i = 0; i < 100; i++)
		make("while-waiting", "x");
	CONTENT("while-waiting");
	static const char bytes[WAITERS] = "abcdefghijklmnopqrst";
	char got[WAITERS];
	int good = 0;
	MUST(write(pipe_[1], bytes, WAITERS));
	for (int i = 0; i < WAITERS; i++) {
		int status;
		MUST(waitpid(waiters[i], &status, 0));
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
			good++;
		else
			note("waiter %d ended with status %#x", i, status);
	}
	T("waiters that got a byte", good);
	SHOW("file");
	T("bytes of the waiters", pread(file, got, WAITERS, 0));
	qsort(got, WAITERS, 1, by_value);
	note("%.*s", WAITERS, got);
	close(pipe_[0]);
	close(pipe_[1]);
}

static void steps(void)
{
	struct sigaction action = {.sa_handler = on_signal};
	int file = MUST(open("file", O_RDWR | O_CREAT, 0644));

	MUST(sigaction(SIGALRM, &action, NULL));
	no_sources(file);
	full(file);
	empty(file);
	refused(file);
	crowd(file);
}
