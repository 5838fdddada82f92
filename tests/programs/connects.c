/* connect(2) to a Unix socket whose queue is full: what signals do to it. */
#include "step.h"
#include <poll.h>
#include <sys/un.h>

static struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "s"};

static void on_signal(int number)
{
	(void)number;
}

/* What handles the signal, and the limit of the connect in seconds. */
static const struct kind {
	const char *what;
	int signal;
	void (*handler)(int);
	int flags;
	int limit;
} kinds[] = {
	{"SIGWINCH by default", SIGWINCH, SIG_DFL, 0, 0},
	{"SIGCHLD by default", SIGCHLD, SIG_DFL, 0, 0},
	{"SIGUSR1 ignored", SIGUSR1, SIG_IGN, 0, 0},
	{"a handler with SA_RESTART", SIGUSR1, on_signal, SA_RESTART, 0},
	{"a handler", SIGUSR1, on_signal, 0, 0},
	{"SIGWINCH by default, with a limit", SIGWINCH, SIG_DFL, 0, 30},
	{"SIGUSR1 ignored, with a limit", SIGUSR1, SIG_IGN, 0, 30},
	{"a handler with SA_RESTART, with a limit", SIGUSR1, on_signal, SA_RESTART, 30},
	{"a handler, with a limit", SIGUSR1, on_signal, 0, 30},
	{"SIGUSR1 ignored, and the limit passes", SIGUSR1, SIG_IGN, 0, 1},
};

enum { COUNT = sizeof kinds / sizeof *kinds };

static int stream(void)
{
	return MUST(socket(AF_UNIX, SOCK_STREAM, 0));
}

/* Returns when the process sleeps in connect(2). */
static void wait_for_sleep(pid_t pid)
{
	char path[64], text[64];

	snprintf(path, sizeof path, "/proc/%d/syscall", pid);
	for (int i = 0; i < 1000; i++) {
		usleep(10000);
		int fd = open(path, O_RDONLY);
		ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
		if (fd >= 0)
			close(fd);
		if (length > 0 && atoi(text) == SYS_connect && strncmp(text, "running", 7) != 0)
			break;
	}
	usleep(100000);
}

static void steps(void)
{
	struct { long result; int error; } *outcome;

	outcome = mmap(NULL, sizeof *outcome, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < COUNT; i++) {
		const struct kind *kind = &kinds[i];
		struct sigaction action = {.sa_handler = kind->handler, .sa_flags = kind->flags};
		struct timeval limit = {kind->limit, 0};
		int listening = stream(), first = stream();

		MUST(bind(listening, (struct sockaddr *)&name, sizeof name));
		MUST(listen(listening, 0));
		MUST(connect(first, (struct sockaddr *)&name, sizeof name));
		pid_t child = MUST(fork());
		if (child == 0) {
			int fd = stream();

			sigaction(kind->signal, &action, NULL);
			setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
			errno = 0;
			outcome->result = connect(fd, (struct sockaddr *)&name, sizeof name);
			outcome->error = errno;
			_exit(0);
		}
		wait_for_sleep(child);
		for (int n = 0; n < 3; n++) {
			kill(child, kind->signal);
			usleep(50000);
		}
		if (kind->limit != 1) {
			MUST(accept(listening, NULL, NULL));
		}
		waitpid(child, NULL, 0);
		say(__LINE__, kind->what, outcome->result, outcome->error);
		close(first);
		close(listening);
		MUST(unlink(name.sun_path));
	}
}
