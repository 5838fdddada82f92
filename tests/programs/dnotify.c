/* Directory notifications: fcntl with F_NOTIFY. */
#include "step.h"

static volatile sig_atomic_t signals[64];

static void count(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	if (info->si_fd >= 0 && info->si_fd < 64)
		signals[info->si_fd]++;
}

/* How often each descriptor was told since the last time. It is COUNT times in all, soon. */
static void told(int line, const char *name, int one, int two, int count)
{
	for (int i = 0; i < 5000 && signals[one] + signals[two] < count; i++)
		usleep(1000);
	for (int i = 0; i < 10; i++)
		usleep(1000);
	note("%d %s: %d and %d", line, name, signals[one], signals[two]);
	memset((void *)signals, 0, sizeof signals);
}

#define TOLD(name, count) told(__LINE__, name, fd, other, count)

static int watch(int fd, long events)
{
	return fcntl(fd, F_NOTIFY, events);
}

static void steps(void)
{
	struct sigaction action = { .sa_sigaction = count, .sa_flags = SA_SIGINFO | SA_RESTART };
	struct timespec times[2] = { { .tv_sec = 1 }, { .tv_sec = 2 } };
	int signal = SIGRTMIN + 1, fd, other, file;

	MUST(sigaction(signal, &action, NULL));
	MUST(mkdir("d", 0755));
	MUST(mkdir("d/sub", 0755));
	MUST(mkdir("e", 0755));
	make("d/file", "content");
	fd = MUST(open("d", O_RDONLY | O_DIRECTORY));
	other = MUST(open("d/sub", O_RDONLY));
	MUST(fcntl(fd, F_SETSIG, signal));
	MUST(fcntl(other, F_SETSIG, signal));

	T("none to end", watch(fd, 0));
	T("create", watch(fd, DN_CREATE));
	IS("owner", fcntl(fd, F_GETOWN) == getpid());
	make("d/a", "x");
	TOLD("once", 1);
	make("d/b", "x");
	TOLD("not again", 0);

	T("create, always", watch(fd, DN_CREATE | DN_MULTISHOT));
	T("sub", watch(other, DN_CREATE | DN_MULTISHOT));
	make("d/c", "x");
	TOLD("file", 1);
	T("mkdir", mkdir("d/new", 0755));
	TOLD("directory", 1);
	T("link", link("d/c", "d/cc"));
	TOLD("link", 1);
	T("rename into", rename("d/c", "d/sub/c"));
	TOLD("moved", 1);
	T("unlink", unlink("d/cc"));
	TOLD("not deletions", 0);
	T("and delete", watch(fd, DN_DELETE | DN_MULTISHOT));
	T("rmdir", rmdir("d/new"));
	TOLD("deleted", 1);
	T("rename out", rename("d/a", "e/a"));
	TOLD("moved out", 1);
	T("rename over", rename("e/a", "d/b"));
	TOLD("moved in", 1);

	T("rename", watch(fd, DN_RENAME | DN_MULTISHOT));
	T("within", rename("d/b", "d/a"));
	TOLD("three events", 3);
	T("end", watch(fd, 0));
	T("within", rename("d/a", "d/b"));
	TOLD("ended", 0);
	T("rename alone", watch(fd, DN_RENAME | DN_MULTISHOT));
	T("within", rename("d/b", "d/a"));
	TOLD("renamed", 1);
	T("out", rename("d/a", "e/a"));
	TOLD("not renamed", 0);
	T("multishot alone ends", watch(fd, DN_MULTISHOT));
	T("sub ends", watch(other, 0));

	T("attributes", watch(fd, DN_ATTRIB | DN_MULTISHOT));
	T("of sub", watch(other, DN_ATTRIB | DN_MULTISHOT));
	T("chmod", chmod("d/file", 0600));
	TOLD("of a file", 1);
	T("chmod", chmod("d/sub", 0700));
	TOLD("of both", 2);
	T("chmod", chmod("d", 0700));
	TOLD("of itself", 1);
	T("utimensat", utimensat(AT_FDCWD, "d/file", times, 0));
	TOLD("times", 1);
	T("sub ends", watch(other, 0));
	T("ends", watch(fd, 0));

	file = MUST(open("d/file", O_RDWR));
	T("modifications", watch(fd, DN_MODIFY | DN_MULTISHOT));
	T("write", write(file, "new", 3));
	TOLD("written", 1);
	T("truncate", ftruncate(file, 1));
	TOLD("truncated", 1);
	int copy = MUST(dup(fd));
	close(fd);
	T("write", write(file, "new", 3));
	usleep(10000);
	note("closed: %d", signals[fd] + signals[copy]);
	close(copy);
	close(file);

	T("of a file", watch(MUST(open("d/file", O_RDONLY)), DN_CREATE));
	T("of O_PATH", watch(MUST(open("d", O_PATH)), DN_CREATE));
	T("of nothing", watch(-1, DN_CREATE));
}
