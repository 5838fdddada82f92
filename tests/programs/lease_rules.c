/* Which leases (fcntl F_SETLEASE) a file may have, what becomes of them, and how their holders are told. */
#include "step.h"

static volatile sig_atomic_t signalled, about;

static void told(int signal, siginfo_t *info, void *context)
{
	(void)context;
	signalled = signal;
	about = info->si_fd;
}

static int lease(int fd, int kind)
{
	return fcntl(fd, F_SETLEASE, kind);
}

static int held(int fd)
{
	return fcntl(fd, F_GETLEASE);
}

/* What a holder is told within a second. */
static void is_told(int fd, int signal)
{
	for (int i = 0; i < 100 && !signalled; i++)
		usleep(10000);
	IS("told", signalled == signal && about == fd);
	signalled = 0;
}

/* Another process opens the file; only this one has LEASED. */
static pid_t opens(int leased, int flags)
{
	pid_t child = MUST(fork());

	if (!child) {
		close(leased);
		struct timespec begin, end;
		MUST(clock_gettime(CLOCK_MONOTONIC, &begin));
		O("open", open("file", flags));
		MUST(clock_gettime(CLOCK_MONOTONIC, &end));
		IS("at once", end.tv_sec - begin.tv_sec < 10);
		_exit(0);
	}
	return child;
}

static void ends(pid_t child)
{
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
}

/* The holder changes its lease, and the other process opens the file. */
static void becomes(int fd, int kind, pid_t child)
{
	int result = lease(fd, kind), error = errno;

	ends(child);
	errno = error;
	T("becomes", result);
}

static void granted(void)
{
	int reader = MUST(open("file", O_RDONLY)), writer, other;

	T("nothing to give back", lease(reader, F_UNLCK));
	T("none", held(reader));
	T("read", lease(reader, F_RDLCK));
	T("read again", lease(reader, F_RDLCK));
	T("from read to write", lease(reader, F_WRLCK));
	T("held", held(reader));
	T("write again", lease(reader, F_WRLCK));
	T("from write to read", lease(reader, F_RDLCK));
	T("held", held(reader));

	other = MUST(open("file", O_RDONLY));
	T("write, with another reader", lease(reader, F_WRLCK));
	T("held", held(reader));
	T("read, with another holder", lease(other, F_RDLCK));
	T("given back", lease(reader, F_UNLCK));
	T("held by the other one", held(other));
	T("write, with another holder", lease(reader, F_WRLCK));
	close(other);
	T("write, after its close", lease(reader, F_WRLCK));
	T("given back", lease(reader, F_UNLCK));
	T("again", lease(reader, F_UNLCK));

	writer = MUST(open("file", O_RDWR));
	T("read, with a writer", lease(reader, F_RDLCK));
	T("read, by the writer", lease(writer, F_RDLCK));
	T("write, by the writer, with a reader", lease(writer, F_WRLCK));
	close(reader);
	T("write, by the only writer", lease(writer, F_WRLCK));
	T("read, by the only writer", lease(writer, F_RDLCK));
	T("held", held(writer));
	other = MUST(dup(writer));
	T("by a copy", held(other));
	close(writer);
	T("held by the copy", held(other));
	T("given back by the copy", lease(other, F_UNLCK));
	close(other);

	writer = MUST(open("file", O_WRONLY | O_APPEND));
	T("write, by a writer that reads nothing", lease(writer, F_WRLCK));
	close(writer);
	reader = MUST(open("file", O_RDONLY));
	T("after a close", held(reader));
	T("write", lease(reader, F_WRLCK));
	T("data", write(MUST(open("other", O_WRONLY | O_CREAT, 0600)), "x", 1));
	T("still", held(reader));
	close(reader);
}

static void refused(void)
{
	int fd = MUST(open("file", O_PATH));

	T("O_PATH", lease(fd, F_RDLCK));
	T("O_PATH, held", held(fd));
	close(fd);
	fd = MUST(open(".", O_RDONLY | O_DIRECTORY));
	T("directory", lease(fd, F_WRLCK));
	close(fd);
	T("closed", held(fd));
	MUST(chmod("file", 0666));
	CHILD("another user", drop(); fd = open("file", O_RDWR); T("write", lease(fd, F_WRLCK)); T("held", held(fd)));
	CHILD("own file of another user", drop(); int dir = open("theirs", O_RDONLY);
	      fd = openat(dir, "own", O_CREAT | O_RDWR, 0600); T("write", lease(fd, F_WRLCK)); close(fd);
	      fd = openat(dir, "own", O_RDONLY); T("read", lease(fd, F_RDLCK)); T("held", held(fd)););
}

static void broken(void)
{
	int fd = MUST(open("file", O_RDONLY | O_CLOEXEC));
	pid_t child;

	T("write", lease(fd, F_WRLCK));
	child = opens(fd, O_RDONLY);
	is_told(fd, SIGIO);
	T("to be for reading", held(fd));
	T("not to be kept", lease(fd, F_WRLCK));
	becomes(fd, F_RDLCK, child);
	T("held", held(fd));
	child = opens(fd, O_WRONLY);
	is_told(fd, SIGIO);
	T("to be given back", held(fd));
	T("not to be kept", lease(fd, F_RDLCK));
	becomes(fd, F_UNLCK, child);

	T("signal", fcntl(fd, F_SETSIG, SIGUSR1));
	T("write", lease(fd, F_WRLCK));
	T("owner", fcntl(fd, F_GETOWN) == getpid());
	child = opens(fd, O_RDWR | O_TRUNC);
	is_told(fd, SIGUSR1);
	T("size", lseek(fd, 0, SEEK_END));
	close(fd);
	ends(child);

	fd = MUST(open("file", O_RDWR | O_CLOEXEC));
	T("write", lease(fd, F_WRLCK));
	child = opens(fd, O_RDONLY | O_NONBLOCK);
	ends(child);
	is_told(fd, SIGIO);
	child = opens(fd, O_RDONLY);
	T("not for reading", lease(fd, F_RDLCK));
	becomes(fd, F_UNLCK, child);
	T("signal after that", fcntl(fd, F_GETSIG));
	T("owner after that", fcntl(fd, F_GETOWN));

	T("write", lease(fd, F_WRLCK));
	CHILD("no open", {
		struct stat st;
		T("stat", stat("file", &st));
		O("O_PATH", open("file", O_PATH));
		T("chmod", chmod("file", 0600));
		T("link", link("file", "name"));
		T("unlink", unlink("name"));
		T("data", write(fd, "text", 4));
	});
	T("held", held(fd));
	CHILD("of the parent", T("held", held(fd)); T("given back", lease(fd, F_UNLCK)));
	T("held", held(fd));
	close(fd);
}

static void steps(void)
{
	struct sigaction action = { .sa_sigaction = told, .sa_flags = SA_SIGINFO | SA_RESTART };

	MUST(sigaction(SIGIO, &action, NULL));
	MUST(sigaction(SIGUSR1, &action, NULL));
	make("file", "content");
	MUST(mkdir("theirs", 0777));
	MUST(chmod("theirs", 0777));
	granted();
	refused();
	broken();
}
