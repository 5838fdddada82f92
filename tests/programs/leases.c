/* Leases (fcntl F_SETLEASE), and other processes that open the file. */
#include "step.h"

static volatile sig_atomic_t told;
static int leased = -1;

/* The holder does some work before it gives the lease back; the others must not keep that from being done. */
static void give_back(int signal)
{
	struct stat st;

	for (int i = 0; i < 50; i++)
		stat("other", &st);
	unlink("work");
	told++;
	fcntl(leased, F_SETLEASE, F_UNLCK);
}

static volatile sig_atomic_t kept;

static void keep_for_reading(int signal)
{
	kept = fcntl(leased, F_SETLEASE, F_RDLCK) ? errno : 0;
	fcntl(leased, F_SETLEASE, F_UNLCK);
}

static void take(int kind)
{
	told = 0;
	leased = MUST(open("file", O_RDONLY | O_CLOEXEC));
	T("lease", fcntl(leased, F_SETLEASE, kind));
	T("kind", fcntl(leased, F_GETLEASE));
}

static void release(void)
{
	T("release", fcntl(leased, F_SETLEASE, F_UNLCK));
	close(leased);
}

/* COUNT children open the file all at once, and wait for the lease. */
static void crowd(int kind, int count)
{
	time_t start = time(NULL);
	int ok = 0;

	make("work", "x");
	take(kind);
	for (int i = 0; i < count; i++) {
		pid_t child = MUST(fork());
		if (!child) {
			int fd = open("file", O_RDWR);
			_exit(fd < 0);
		}
	}
	for (int i = 0; i < count; i++) {
		int status;
		while (wait(&status) < 0 && errno == EINTR)
			;
		ok += status == 0;
	}
	note("%d of %d opened the file, told %d", ok, count, told > 0);
	IS("work done", access("work", F_OK) == -1);
	IS("before the kernel broke the lease", time(NULL) - start < 40);
	close(leased);
}

static void steps(void)
{
	make("file", "hello");
	make("other", "hello");
	struct sigaction action = {.sa_handler = give_back, .sa_flags = SA_RESTART};
	MUST(sigaction(SIGIO, &action, NULL));

	take(F_RDLCK);
	CHILD("reading breaks none", O("read", open("file", O_RDONLY)));
	release();

	/* The signal comes with the attempt. */
	take(F_RDLCK);
	CHILD("not waiting", {
		T("flags", fcntl(leased, F_GETFD));
		O("write", open("file", O_WRONLY | O_NONBLOCK));
	});
	IS("told", told > 0);
	close(leased);

	crowd(F_RDLCK, 30);
	crowd(F_WRLCK, 30);

	take(F_RDLCK);
	CHILD("truncate waits", T("truncate", truncate("file", 3)));
	IS("told", told > 0);
	close(leased);
	SHOW("file");

	int fd = MUST(open("file", O_RDWR));
	T("of a file open for writing", fcntl(fd, F_SETLEASE, F_RDLCK));
	T("no kind", fcntl(fd, F_SETLEASE, 17));
	T("no lease", fcntl(fd, F_SETLEASE, F_UNLCK));
	int flags = fcntl(MUST(open("file", O_RDONLY)), F_GETFL);
	IS("non-blocking", flags & O_NONBLOCK);
	T("of no descriptor", fcntl(-1, F_SETLEASE, F_RDLCK));
	MUST(chmod("file", 0666));
	CHILD("of another user's", drop(); fd = open("file", O_RDONLY); T("lease", fcntl(fd, F_SETLEASE, F_RDLCK)));

	/* A writer that waits leaves the holder no lease for reading. */
	action.sa_handler = keep_for_reading;
	MUST(sigaction(SIGIO, &action, NULL));
	unlink("file");
	make("file", "hello");
	take(F_WRLCK);
	CHILD("truncate", T("truncate", truncate("file", 2)));
	note("kept for reading: %s", strerrorname_np(kept));
	close(leased);
}
