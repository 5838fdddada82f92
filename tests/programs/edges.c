/* Arguments at the edge, a full descriptor table, and limits of a process that has another effective user. */
#include "step.h"
#include <pthread.h>
#include <sys/sendfile.h>

static void counts(void)
{
	char name[90];
	char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
	int file = MUST(open("counts", O_RDWR | O_CREAT, 0644));

	MUST(munmap(page + 4096, 4096));
	T("write, count -1", syscall(SYS_write, file, page, -1L));
	T("write, lowest count", syscall(SYS_write, file, page, 1UL << 63));
	T("pwrite, count -1", syscall(SYS_pwrite64, file, page, -1L, 0L));
	T("write, half of it mapped", syscall(SYS_write, file, page, 8192L));
	T("read, count -1", syscall(SYS_read, file, page, -1L));
	SHOW("counts");
	MUST(mkdir("dir", 0755));
	for (int i = 0; i < 100; i++) {
		sprintf(name, "dir/averyveryverylongname_averyveryverylongname%02d", i);
		make(name, "");
	}
	int dir = MUST(open("dir", O_RDONLY));
	T("getdents64, count -1", syscall(SYS_getdents64, dir, page, -1));
	T("getdents64, lowest count", syscall(SYS_getdents64, dir, page, 1L << 31));
	T("getdents64, 10 bytes", syscall(SYS_getdents64, dir, page, 10));
	T("getdents64, 10 of 4096 bytes mapped", syscall(SYS_getdents64, dir, page + 4096 - 10, 4096));
	T("getdents64, 200 of 4096 bytes mapped", syscall(SYS_getdents64, dir, page + 4096 - 200, 4096));
	/* The rest is still there, once. */
	int entries = 0;
	for (long got; (got = syscall(SYS_getdents64, dir, page, 4096)) > 0;)
		for (long at = 0; at < got; at += ((struct dirent64 *)(page + at))->d_reclen)
			entries++;
	T("further entries", entries);
	T("getdents64 at the end, count -1", syscall(SYS_getdents64, dir, page, -1));
	close(dir);
	close(file);
	munmap(page, 4096);
}

/* The kernel looks at the largest file that the file system can have. */
static void offsets(void)
{
	int file = MUST(open("counts", O_RDWR)), reader = MUST(open("counts", O_RDONLY));

	T("lseek to 1<<62", lseek(file, 1L << 62, SEEK_SET));
	T("lseek to the last offset", lseek(file, INT64_MAX, SEEK_SET));
	T("lseek to 16 TiB", lseek(reader, 1L << 44, SEEK_SET));
	T("lseek to 8 TiB", lseek(reader, 1L << 43, SEEK_SET));
	T("lseek to 1<<62 for data", lseek(file, 1L << 62, SEEK_DATA));
	T("lseek of whence 9", lseek(file, 1L << 62, 9));
	T("lseek back", lseek(reader, -(1L << 42), SEEK_CUR));
	T("lseek before the start", lseek(reader, -(1L << 43), SEEK_CUR));
	T("lseek of no descriptor", lseek(77, 1L << 62, SEEK_SET));
	T("where it is", lseek(reader, 0, SEEK_CUR));
	T("where the other is", lseek(file, 0, SEEK_CUR));
	close(file);
	close(reader);
}

/* Ranges that end behind the last offset. */
static void ranges(void)
{
	char byte[4] = "xyz";
	struct iovec parts[] = { { byte, 1 }, { byte + 1, 2 } };

	for (int flags = 0; flags <= O_APPEND; flags += O_APPEND) {
		int file = MUST(open("ranges", O_RDWR | O_CREAT | O_TRUNC | flags, 0644));

		T("pwrite at the last offset", pwrite(file, byte, 1, INT64_MAX));
		T("pwrite across it", pwrite(file, byte, 3, INT64_MAX - 2));
		T("pwrite of nothing there", pwrite(file, byte, 0, INT64_MAX));
		T("pwritev across it", pwritev(file, parts, 2, INT64_MAX - 2));
		T("pwritev2 across it", pwritev2(file, parts, 2, INT64_MAX - 2, RWF_APPEND));
		T("pwritev2, offset -2", pwritev2(file, parts, 2, -2, RWF_APPEND));
		T("pread at the last offset", pread(file, byte, 1, INT64_MAX));
		T("preadv across it", preadv(file, parts, 2, INT64_MAX - 2));
		T("sync_file_range across it", sync_file_range(file, 4096, INT64_MAX - 4095, 0));
		T("sync_file_range up to it", sync_file_range(file, 4096, INT64_MAX - 4096, 0));
		SHOW("ranges");
		close(file);
	}
	int path = MUST(open("ranges", O_PATH));
	T("syncfs of an O_PATH descriptor", syncfs(path));
	T("getdents64 of an O_PATH descriptor", syscall(SYS_getdents64, path, byte, 4));
	close(path);
}

static void places(void)
{
	make("file", "x");
	T("link into /proc", link("file", "/proc/x"));
	T("link over /proc/version", link("file", "/proc/version"));
	O("directory, O_DIRECT", open("dir", O_RDONLY | O_DIRECT));
	O("directory, O_DIRECT to write", open("dir", O_WRONLY | O_DIRECT));
	O("directory, O_DIRECT and O_PATH", open("dir", O_PATH | O_DIRECT));
}

/* A call that finds no descriptor number has no effect. */
static void no_descriptors(void)
{
	struct rlimit old, limit;
	struct stat status;
	int last = -1, fd;

	make("old", "12345678");
	MUST(mkfifo("fifo", 0644));
	MUST(getrlimit(RLIMIT_NOFILE, &old));
	limit = (struct rlimit){32, old.rlim_max};
	/* One above the limit, which is lowered afterwards. */
	MUST(dup2(2, 40));
	MUST(setrlimit(RLIMIT_NOFILE, &limit));
	while ((fd = dup(2)) >= 0)
		last = fd;
	T("O_CREAT", open("new", O_RDWR | O_CREAT, 0644));
	T("creat", creat("new", 0644));
	T("openat2", ({
		  unsigned long long how[3] = {O_RDWR | O_CREAT | O_EXCL, 0644, 0};
		  syscall(SYS_openat2, AT_FDCWD, "new", how, sizeof how);
	  }));
	T("created", lstat("new", &status));
	T("O_TRUNC", open("old", O_RDWR | O_TRUNC));
	T("creat of an old one", creat("old", 0644));
	CHILD("O_TMPFILE", { T("", open(".", O_RDWR | O_TMPFILE, 0600)); });
	MUST(lstat("old", &status));
	T("size", status.st_size);
	T("fifo", open("fifo", O_RDWR));
	close(last);
	T("with one number free", open("new", O_RDWR | O_CREAT, 0644) == last);
	T("with none again", open("newer", O_RDWR | O_CREAT, 0644));
	for (int i = 3; i < 41; i++)
		close(i);
	MUST(setrlimit(RLIMIT_NOFILE, &old));
	SHOW("new");
	SHOW("newer");
}

static volatile sig_atomic_t signals;
static void on_signal(int number)
{
	(void)number;
	signals++;
}

/* RLIMIT_FSIZE is that of the process, whoever it acts as. */
static void limited(void)
{
	struct rlimit old, limit;
	long results[3];
	int errors[3];

	int file = MUST(open("limited", O_RDWR | O_CREAT, 0666));
	MUST(fchmod(file, 0666));
	MUST(getrlimit(RLIMIT_FSIZE, &old));
	limit = (struct rlimit){5000, old.rlim_max};
	signal(SIGXFSZ, on_signal);
	if (geteuid() == 0)
		MUST(seteuid(NOBODY));
	MUST(setrlimit(RLIMIT_FSIZE, &limit));
	results[0] = truncate("limited", 6000), errors[0] = errno;
	results[1] = ftruncate(file, 6000), errors[1] = errno;
	results[2] = pwrite(file, "x", 1, 7000), errors[2] = errno;
	MUST(setrlimit(RLIMIT_FSIZE, &old));
	for (int i = 0; i < 3; i++)
		note("%d: %ld %s", i, results[i], results[i] < 0 ? strerrorname_np(errors[i]) : "");
	T("signals", signals);
	close(file);
}

static volatile sig_atomic_t of_thread;
static siginfo_t last;
static void on_call(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	of_thread = gettid();
	last = *info;
}

static void *call_of_thread(void *arg)
{
	struct rlimit old, limit;
	int ends[2], file = *(int *)arg;
	struct { long result; int error; siginfo_t signal; } calls[2];

	MUST(getrlimit(RLIMIT_FSIZE, &old));
	limit = (struct rlimit){5000, old.rlim_max};
	MUST(setrlimit(RLIMIT_FSIZE, &limit));
	calls[0].result = pwrite(file, "x", 1, 7000), calls[0].error = errno, calls[0].signal = last;
	MUST(setrlimit(RLIMIT_FSIZE, &old));
	note("in the thread: %d", of_thread == gettid());
	MUST(pipe(ends));
	close(ends[0]);
	MUST(pwrite(file, "data", 4, 0));
	calls[1].result = sendfile(ends[1], file, &(off_t){0}, 4), calls[1].error = errno, calls[1].signal = last;
	note("in the thread: %d", of_thread == gettid());
	close(ends[1]);
	for (int i = 0; i < 2; i++)
		note("%d: %ld %s, signal %d, code %d, of this process %d, of this user %d", i, calls[i].result, strerrorname_np(calls[i].error),
		     calls[i].signal.si_signo, calls[i].signal.si_code, calls[i].signal.si_pid == getpid(), calls[i].signal.si_uid == getuid());
	return NULL;
}

/* A signal because of a call is sent to the thread that makes the call, and its own process is the sender. */
static void senders(void)
{
	struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO}, old;
	pthread_t thread;

	int file = MUST(open("senders", O_RDWR | O_CREAT, 0666));
	MUST(sigaction(SIGXFSZ, &action, NULL));
	MUST(sigaction(SIGPIPE, &action, &old));
	pthread_create(&thread, NULL, call_of_thread, &file);
	pthread_join(thread, NULL);
	MUST(sigaction(SIGPIPE, &old, NULL));
	close(file);
}

static void steps(void)
{
	counts();
	offsets();
	ranges();
	places();
	no_descriptors();
	senders();
	limited();
}
