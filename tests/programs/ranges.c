/* Ranges that fallocate(2) allocates, zeroes, cuts out and inserts; what fcntl(2) says of files and directories. */
#include "step.h"
#include <linux/falloc.h>

#define K 1024

static int file(const char *name, size_t size)
{
	int fd = MUST(open(name, O_RDWR | O_CREAT | O_TRUNC, 0644));
	char *data = malloc(size);
	for (size_t i = 0; i < size; i++)
		data[i] = 'a' + i / 4096 % 26;
	MUST(size ? write(fd, data, size) : 0);
	MUST(fsync(fd));
	free(data);
	return fd;
}

static void sum(int line, int fd)
{
	static char data[1 << 20];
	unsigned sum = 1;
	ssize_t got = pread(fd, data, sizeof data, 0);
	for (ssize_t i = 0; i < got; i++)
		sum = sum * 31 + data[i];
	note("%d   %zd bytes, %08x", line, got, sum);
}
#define SUM(fd) sum(__LINE__, fd)

static void ranges(void)
{
	static const struct { const char *name; int mode; } modes[] = {
		{ "allocate", 0 }, { "keep", FALLOC_FL_KEEP_SIZE }, { "punch", FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE },
		{ "zero", FALLOC_FL_ZERO_RANGE }, { "zero keep", FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE },
		{ "collapse", FALLOC_FL_COLLAPSE_RANGE }, { "insert", FALLOC_FL_INSERT_RANGE },
		{ "punch without keep", FALLOC_FL_PUNCH_HOLE }, { "collapse keep", FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_KEEP_SIZE },
		{ "insert keep", FALLOC_FL_INSERT_RANGE | FALLOC_FL_KEEP_SIZE }, 
		{ "punch and zero", FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE }, { "unknown", 0x100 },
	};
	static const struct { off_t offset, length; } ranges[] = {
		{ 8 * K, 8 * K }, { 0, 4 * K }, { 5000, 3000 }, { 60 * K, 8 * K }, { 60 * K, 100 * K }, { 64 * K, 4 * K }, { 128 * K, 4 * K },
		{ 0, 64 * K }, { 0, 0 }, { -4096, 4096 }, { 4096, -1 }, { 0x7fffffffffffe000, 4096 }, { 0x7fffffffffffffff, 4096 },
	};
	for (size_t m = 0; m < sizeof modes / sizeof *modes; m++)
		for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) {
			char name[100];
			int fd = file("r", 64 * K);
			snprintf(name, sizeof name, "%s %lx+%lx", modes[m].name, (long)ranges[r].offset, (long)ranges[r].length);
			T(name, fallocate(fd, modes[m].mode, ranges[r].offset, ranges[r].length));
			note("  size %ld", (long)lseek(fd, 0, SEEK_END));
			SUM(fd);
			close(fd);
		}
	int fd = MUST(open("r", O_RDONLY));
	T("read only", fallocate(fd, 0, 0, 10));
	close(fd);
	fd = MUST(open("r", O_RDWR | O_APPEND));
	T("append", fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4 * K));
	T("append insert", fallocate(fd, FALLOC_FL_INSERT_RANGE, 0, 4 * K));
	close(fd);
}

static void controls(void)
{
	static const int flags[] = { O_NOATIME, O_NOFOLLOW, O_LARGEFILE, O_NONBLOCK, O_APPEND, O_CLOEXEC, O_DIRECTORY, O_NOCTTY,
				     O_DIRECTORY | O_NONBLOCK };
	int fd = file("m", 20000);

	T("seals", fcntl(fd, F_GET_SEALS));
	T("seal", fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
	T("seal nothing", fcntl(fd, F_ADD_SEALS, 0));
	T("pipe size", fcntl(fd, F_GETPIPE_SZ));
	T("lease", fcntl(fd, F_GETLEASE));
	T("write", write(fd, "x", 1));
	close(fd);
	fd = MUST(open("m", O_RDONLY));
	T("seals of a reader", fcntl(fd, F_GET_SEALS));
	T("seal as a reader", fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
	close(fd);
	fd = MUST(memfd_create("memory", MFD_ALLOW_SEALING));
	T("seal of memory", fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	T("seals of memory", fcntl(fd, F_GET_SEALS));
	close(fd);
	for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
		fd = MUST(open(".", O_RDONLY | flags[i]));
		note("opened with %o", flags[i]);
		T("F_GETFL", fcntl(fd, F_GETFL));
		T("F_GETFD", fcntl(fd, F_GETFD));
		T("F_SETFL", fcntl(fd, F_SETFL, O_NONBLOCK));
		T("F_GETFL", fcntl(fd, F_GETFL));
		O("below", openat(fd, "m", O_RDONLY));
		close(fd);
	}
}

static void writes(void)
{
	int fd = file("v", 100);
	struct iovec vec = { (char[16]){ 0 }, 16 };

	/* RWF_SYNC, RWF_APPEND, RWF_DONTCACHE, RWF_NOSIGNAL, and one that no kernel knows. */
	static const unsigned flags[] = { 4, 0x10, 0x80, 0x100, 0x40000000 };
	for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
		char name[50];
		snprintf(name, sizeof name, "pwritev2 %x", flags[i]);
		T(name, syscall(SYS_pwritev2, fd, &vec, 1, 0, 0, flags[i]));
	}
	SHOW("v");
	close(fd);
	fd = MUST(open("v", O_RDWR | O_APPEND));
	T("not at the end", syscall(SYS_pwritev2, fd, &vec, 1, 3, 0, 0x20));
	T("at the end and not", syscall(SYS_pwritev2, fd, &vec, 1, 3, 0, 0x30));
	T("without waiting", syscall(SYS_pwritev2, fd, &vec, 1, 3, 0, 8));
	SHOW("v");
	SUM(fd);
	close(fd);
}

/* RWF_HIPRI, RWF_NOWAIT, RWF_APPEND, RWF_ATOMIC, RWF_DONTCACHE, and one that no kernel knows. */
static void reads(void)
{
	static const unsigned flags[] = { 1, 8, 0x10, 0x40, 0x80, 0x88, 0x40000000 };
	char text[64] = "", name[50];
	struct iovec vec[2] = { { text, 3 }, { text + 3, 20 } };
	int fd = MUST(open("v", O_RDONLY)), writer = MUST(open("v", O_WRONLY));

	for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
		memset(text, '-', sizeof text);
		snprintf(name, sizeof name, "preadv2 %x", flags[i]);
		T(name, syscall(SYS_preadv2, fd, vec, 2, 90, 0, flags[i]));
		T("at its own offset", syscall(SYS_preadv2, fd, vec, 2, -1L, -1L, flags[i]));
		T("offset", lseek(fd, 0, SEEK_CUR));
		T("beyond the end", syscall(SYS_preadv2, fd, vec, 2, 9000, 0, flags[i]));
		T("of a writer", syscall(SYS_preadv2, writer, vec, 2, 0, 0, flags[i]));
	}
	close(writer);
	close(fd);
}

static void steps(void)
{
	ranges();
	controls();
	writes();
	reads();
}
