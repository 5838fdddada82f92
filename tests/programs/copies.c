/* Copies inside the kernel that are larger than what a monitor would hold at once, and their arguments at the edge. */
#include "step.h"
#include <sys/sendfile.h>

/* More than two pieces of the monitor's. */
#define SIZE ((9 << 20) + 77)
/* What cp asks for. */
#define HUGE 9223372035781033984ul

static unsigned long hash(int fd)
{
	static unsigned char block[1 << 16];
	unsigned long sum = 5381;
	off_t at = 0;

	for (ssize_t got; (got = pread(fd, block, sizeof block, at)) > 0; at += got)
		for (ssize_t i = 0; i < got; i++)
			sum = sum * 33 + block[i];
	return sum;
}

static int filled(int fd)
{
	char *bytes = malloc(SIZE);

	for (size_t i = 0; i < SIZE; i++)
		bytes[i] = (char)(i * 2654435761u >> 13);
	if (write(fd, bytes, SIZE) != SIZE)
		_exit(99);
	free(bytes);
	MUST(lseek(fd, 0, SEEK_SET));
	return fd;
}

static int fresh(const char *name)
{
	return MUST(open(name, O_RDWR | O_CREAT | O_TRUNC, 0644));
}

static void whole(const char *from, int in)
{
	int out = fresh("out");
	off_t at = 0, to = 0;

	note("from %s", from);
	T("sendfile", sendfile(out, in, NULL, SIZE));
	T("offset in", lseek(in, 0, SEEK_CUR));
	T("offset out", lseek(out, 0, SEEK_CUR));
	note("%lx", hash(out));
	T("sendfile at the end", sendfile(out, in, NULL, SIZE));
	close(out);
	out = fresh("out");
	T("sendfile at an offset, more than there is", ({ at = 5; sendfile(out, in, &at, SIZE); }));
	note("%lld %lx", (long long)at, hash(out));
	close(out);
	out = fresh("out");
	T("copy", ({ at = 0; copy_file_range(in, &at, out, &to, SIZE, 0); }));
	note("%lld %lld %lx", (long long)at, (long long)to, hash(out));
	close(out);
	out = fresh("out");
	MUST(lseek(in, 0, SEEK_SET));
	T("copy as cp", copy_file_range(in, NULL, out, NULL, HUGE, 0));
	T("copy as cp, at the end", copy_file_range(in, NULL, out, NULL, HUGE, 0));
	T("offset in", lseek(in, 0, SEEK_CUR));
	T("offset out", lseek(out, 0, SEEK_CUR));
	note("%lx", hash(out));
	close(out);
	MUST(lseek(in, 0, SEEK_SET));
}

static void edges(int in)
{
	int out = fresh("edges");
	off_t at, to;
	char path[PATH_MAX];

	T("sendfile, count -1", syscall(SYS_sendfile, out, in, NULL, -1L));
	T("sendfile, lowest count", syscall(SYS_sendfile, out, in, NULL, 1UL << 63));
	/* Here a count is unsigned. */
	T("copy, count -1", syscall(SYS_copy_file_range, in, NULL, out, NULL, -1L, 0));
	T("copy, lowest count", syscall(SYS_copy_file_range, in, NULL, out, NULL, 1UL << 63, 0));
	T("copy beyond all offsets", ({ at = 1; syscall(SYS_copy_file_range, in, &at, out, NULL, -1L, 0); }));
	T("splice, unknown flag", splice(in, NULL, out, NULL, 1, 0x100));
	T("splice of nothing", splice(in, NULL, out, NULL, 0, 0));
	T("copied", lseek(out, 0, SEEK_END));
	MUST(ftruncate(out, 0));
	MUST(lseek(out, 0, SEEK_SET));
	MUST(lseek(in, 0, SEEK_SET));
	/* What a copy within a file can take is up to its end: it does not reach the rest. */
	T("a copy behind itself", ({ at = 0, to = SIZE; copy_file_range(in, &at, in, &to, HUGE, 0); }));
	T("a copy into itself", ({ at = 0, to = 5; copy_file_range(in, &at, in, &to, HUGE, 0); }));
	T("size", lseek(in, 0, SEEK_END));
	MUST(ftruncate(in, SIZE));
	MUST(lseek(in, 0, SEEK_SET));
	T("into a directory", ({ int dir = MUST(open(".", O_RDONLY)); long r = sendfile(dir, in, NULL, 1); int e = errno; close(dir); errno = e; r; }));
	T("from a directory", ({ int dir = MUST(open(".", O_RDONLY)); long r = sendfile(out, dir, NULL, 1); int e = errno; close(dir); errno = e; r; }));
	T("from write-only", ({ int w = MUST(open("edges", O_WRONLY)); long r = sendfile(out, w, NULL, 1); int e = errno; close(w); errno = e; r; }));
	/* What the kernel makes up has no size. */
	int made_up = MUST(open("/proc/version", O_RDONLY));
	T("sendfile of what has no size", sendfile(out, made_up, NULL, 5));
	T("copy of what has no size", copy_file_range(made_up, NULL, out, NULL, 5, 0));
	CONTENT("edges");
	close(made_up);
	int zero = MUST(open("/dev/zero", O_RDONLY));
	T("sendfile of zeros", sendfile(out, zero, NULL, 70000));
	T("copy of zeros", copy_file_range(zero, NULL, out, NULL, 5, 0));
	SHOW("edges");
	close(zero);
	snprintf(path, sizeof path, "%s/empty", host_path);
	int empty = MUST(open(path, O_RDWR | O_CREAT, 0600));
	T("sendfile of nothing", sendfile(out, empty, NULL, 5));
	T("copy of nothing", copy_file_range(empty, NULL, out, NULL, HUGE, 0));
	close(empty);
	close(out);
}

static volatile sig_atomic_t signals;
static void on_signal(int number)
{
	(void)number;
	signals++;
}

/* The limit on file sizes ends a copy where it is reached. */
static void limited(int in)
{
	int out = fresh("limited");
	struct rlimit old, limit = {5000, RLIM_INFINITY};

	MUST(getrlimit(RLIMIT_FSIZE, &old));
	limit.rlim_max = old.rlim_max;
	signal(SIGXFSZ, on_signal);
	MUST(setrlimit(RLIMIT_FSIZE, &limit));
	long sent = sendfile(out, in, NULL, 9000), sent_signals = signals;
	long more = sendfile(out, in, NULL, 9000), more_errno = errno, more_signals = signals;
	MUST(ftruncate(out, 0));
	MUST(lseek(out, 0, SEEK_SET));
	MUST(lseek(in, 0, SEEK_SET));
	signals = 0;
	long copied = copy_file_range(in, NULL, out, NULL, 9000, 0), copied_signals = signals;
	long rest = copy_file_range(in, NULL, out, NULL, 9000, 0), rest_errno = errno, rest_signals = signals;
	MUST(setrlimit(RLIMIT_FSIZE, &old));
	note("sendfile %ld, %ld; then %ld %s, %ld", sent, sent_signals, more, strerrorname_np(more_errno), more_signals);
	note("copy %ld, %ld; then %ld %s, %ld", copied, copied_signals, rest, strerrorname_np(rest_errno), rest_signals);
	close(out);
}

static void steps(void)
{
	char path[PATH_MAX];

	int in = filled(fresh("in"));
	whole("within", in);
	snprintf(path, sizeof path, "%s/in", host_path);
	int outside = filled(MUST(open(path, O_RDWR | O_CREAT | O_TRUNC, 0644)));
	whole("outside", outside);
	edges(in);
	limited(in);
	close(in);
	close(outside);
}
