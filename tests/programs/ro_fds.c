/* Every call on a descriptor of a file, a directory, a fifo and a device of a read-only file system. */
#include "ro.h"

#include <linux/falloc.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>

static const struct {
	const char *path;
	int flags;
} kinds[] = { { "a", O_RDONLY }, { "nothing", O_RDONLY }, { "large", O_RDONLY }, { "a", O_RDONLY | O_APPEND }, { "d", O_RDONLY }, { "empty", O_RDONLY }, { "fifo", O_RDONLY | O_NONBLOCK } };

static const char *kind;
static int fd;

#define F(name, expression) \
	do { \
		errno = 0; \
		long long result_ = (long long)(expression); \
		tell((name), "", kind, result_); \
	} while (0)

static char bytes[1 << 20];
static struct iovec parts[2] = { { bytes, 3 }, { bytes + 10, 4000 } };

static void changes(void)
{
	struct timespec times[2] = { { 1, 0 }, { 1, 0 } };
	int number = 0;

	F("write", write(fd, "x", 1));
	F("write nothing", write(fd, "x", 0));
	F("write bad", write(fd, (void *)1, 1));
	F("pwrite64", pwrite(fd, "x", 1, 0));
	F("pwrite64 negative", pwrite(fd, "x", 1, -1));
	F("writev", writev(fd, parts, 2));
	F("writev too many", writev(fd, parts, 2000));
	F("pwritev", pwritev(fd, parts, 2, 0));
	F("pwritev2", pwritev2(fd, parts, 2, 0, RWF_APPEND));
	F("pwritev2 flags", pwritev2(fd, parts, 2, 0, 1 << 20));
	F("ftruncate", ftruncate(fd, 0));
	F("ftruncate negative", ftruncate(fd, -1));
	F("fallocate", fallocate(fd, 0, 0, 10));
	F("fallocate nothing", fallocate(fd, 0, 0, 0));
	F("fallocate punch", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 10));
	F("fallocate mode", fallocate(fd, 1 << 20, 0, 10));
	F("fsync", fsync(fd));
	F("fdatasync", fdatasync(fd));
	F("syncfs", syncfs(fd));
	F("sync_file_range", sync_file_range(fd, 0, 1, SYNC_FILE_RANGE_WRITE));
	F("sync_file_range flags", sync_file_range(fd, 0, 1, 1 << 10));
	F("fchmod", fchmod(fd, 0600));
	F("fchown", fchown(fd, getuid(), getgid()));
	F("futimens", futimens(fd, times));
	F("futimens now", futimens(fd, NULL));
	F("futimesat", syscall(SYS_futimesat, fd, NULL, NULL));
	F("fsetxattr", fsetxattr(fd, "user.x", "v", 1, 0));
	F("fsetxattr flags", fsetxattr(fd, "user.x", "v", 1, 4));
	F("fsetxattr other", fsetxattr(fd, "other.x", "v", 1, 0));
	F("fremovexattr", fremovexattr(fd, "user.x"));
	F("fgetxattr", fgetxattr(fd, "user.x", bytes, 10) < 0 && errno != ENODATA && errno != EOPNOTSUPP ? -1 : 0);
	F("fgetxattr trusted", fgetxattr(fd, "trusted.x", bytes, 10) < 0 && errno != ENODATA && errno != EOPNOTSUPP ? -1 : 0);
	F("flistxattr", flistxattr(fd, bytes, 100));
	F("FS_IOC_SETFLAGS", ioctl(fd, FS_IOC_SETFLAGS, &number));
	F("FICLONE", ioctl(fd, FICLONE, fd));
}

/* Changes by the descriptor as an empty path, and by its link in /proc. */
static void changes_by_links(void)
{
	struct timespec times[2] = { { 1, 0 }, { 1, 0 } };
	struct fsxattr attributes = { 0 };
	struct { unsigned long value; unsigned size, flags; } xattr = { (unsigned long)"v", 1, 0 };
	char link[64];
	int number = 0, opened;

	F("fchownat empty", fchownat(fd, "", getuid(), getgid(), AT_EMPTY_PATH));
	F("fchmodat2 empty", syscall(452, fd, "", 0600, AT_EMPTY_PATH));
	F("utimensat empty", utimensat(fd, "", times, AT_EMPTY_PATH));
	F("faccessat empty", syscall(SYS_faccessat2, fd, "", W_OK, AT_EMPTY_PATH));
	F("setxattrat empty", syscall(463, fd, "", AT_EMPTY_PATH, "user.x", &xattr, sizeof xattr));
	F("FS_IOC_FSSETXATTR", ioctl(fd, FS_IOC_FSSETXATTR, &attributes));
	F("FS_IOC_SETVERSION", ioctl(fd, FS_IOC_SETVERSION, &number));
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	F("chmod link", chmod(link, 0600));
	F("chown link", chown(link, getuid(), getgid()));
	F("utimensat link", utimensat(AT_FDCWD, link, times, 0));
	F("truncate link", truncate(link, 0));
	F("access link", access(link, W_OK));
	F("setxattr link", setxattr(link, "user.x", "v", 1, 0));
	F("removexattr link", removexattr(link, "user.x"));
	F("linkat link", linkat(AT_FDCWD, link, AT_FDCWD, outside, AT_SYMLINK_FOLLOW));
	for (int mode = O_RDONLY; mode <= O_RDWR; mode++) {
		F(mode == O_RDONLY ? "open link to read" : mode == O_WRONLY ? "open link to write" : "open link for both",
		  (opened = open(link, mode | O_NONBLOCK)) < 0 ? -1 : 0);
		close(opened);
	}
	F("O_TRUNC link", (opened = open(link, O_RDONLY | O_TRUNC | O_NONBLOCK)) < 0 ? -1 : 0);
	close(opened);
}

static unsigned sum(size_t length)
{
	unsigned total = 0;
	for (size_t i = 0; i < length; i++)
		total = total * 31 + (unsigned char)bytes[i];
	return total;
}

/* What came, and its bytes. */
#define READ(name, expression) \
	do { \
		errno = 0; \
		memset(bytes, 0, sizeof bytes); \
		long long got_ = (long long)(expression); \
		int error_ = errno; \
		note("%s bytes %x", name, got_ > 0 ? sum(sizeof bytes) : 0); \
		errno = error_; \
		tell((name), "", kind, got_); \
	} while (0)

static void reads(void)
{
	int number = 0;

	READ("read", read(fd, bytes, 4));
	READ("read all", read(fd, bytes, sizeof bytes));
	READ("read at end", read(fd, bytes, 10));
	READ("read nothing", read(fd, bytes, 0));
	READ("read bad", read(fd, (void *)1, 10));
	READ("pread64", pread(fd, bytes, 3, 1));
	READ("pread64 bad", pread(fd, (void *)1, 3, 1));
	READ("pread64 beyond", pread(fd, bytes, 3, 1 << 30));
	READ("pread64 negative", pread(fd, bytes, 3, -1));
	READ("lseek", lseek(fd, 1, SEEK_SET));
	READ("readv", readv(fd, parts, 2));
	READ("readv too many", readv(fd, parts, 2000));
	READ("preadv", preadv(fd, parts, 2, 2));
	READ("preadv2", preadv2(fd, parts, 2, 2, 0));
	READ("preadv2 here", preadv2(fd, parts, 2, -1, 0));
	READ("preadv2 high", preadv2(fd, parts, 2, 2, RWF_HIPRI));
	READ("preadv2 sync", preadv2(fd, parts, 2, 2, RWF_DSYNC));
	READ("preadv2 flags", preadv2(fd, parts, 2, 2, 1 << 20));
	for (int whence = 0; whence < 6; whence++) {
		char call[100];
		static const long long offsets[] = { 0, 1, 5, 4096, 588894, 588895, -1, 1ll << 40, INT64_MAX };
		for (size_t n = 0; n < LENGTH(offsets); n++) {
			/* What a directory's offset means, and where it ends, is the file system's own affair. */
			if (!strcmp(kind, "d") || !strcmp(kind, "empty")) {
				if (whence != SEEK_SET || offsets[n] != 0)
					continue;
			}
			snprintf(call, sizeof call, "lseek %lld %d", offsets[n], whence);
			lseek(fd, 2, SEEK_SET);
			F(call, lseek(fd, offsets[n], whence));
		}
	}
	lseek(fd, 0, SEEK_SET);
	F("FIONREAD", ioctl(fd, FIONREAD, &number) ?: number);
	F("FIGETBSZ", ioctl(fd, FIGETBSZ, &number) ?: number > 0);
	F("TCGETS", ioctl(fd, 0x5401, bytes));
	F("BLKGETSIZE", ioctl(fd, BLKGETSIZE, bytes));
	F("FIOCLEX", ioctl(fd, FIOCLEX));
	F("FIONBIO", ioctl(fd, FIONBIO, &number));
	F("FIOASYNC", ioctl(fd, FIOASYNC, &number));
	F("FIBMAP", ioctl(fd, FIBMAP, &number) < 0 ? -1 : 0);
	F("FS_IOC_GETFLAGS", ioctl(fd, FS_IOC_GETFLAGS, &number));
	F("FS_IOC_FSGETXATTR", ioctl(fd, FS_IOC_FSGETXATTR, bytes));
	F("FS_IOC_GETVERSION", ioctl(fd, FS_IOC_GETVERSION, &number) < 0 ? -1 : 0);
	F("FS_IOC_FIEMAP", (memset(bytes, 0, 64), *(uint64_t *)(bytes + 8) = -1, ioctl(fd, FS_IOC_FIEMAP, bytes)));
	F("unknown ioctl", ioctl(fd, 0xdead, bytes));
	for (int advice = 0; advice < 8; advice++)
		F("fadvise64", posix_fadvise(fd, 0, 10, advice));
	F("fadvise64 negative", posix_fadvise(fd, 0, -1, 0));
	F("readahead", readahead(fd, 0, 10));
	struct { uint64_t start, length; } range = { 0, 4096 };
	F("cachestat", syscall(451, fd, &range, bytes, 0));
	F("cachestat flags", syscall(451, fd, &range, bytes, 1));
}

static void locks(void)
{
	static const int kinds[] = { LOCK_SH, LOCK_EX, LOCK_UN, LOCK_SH | LOCK_EX };
	static const int calls[] = { F_SETLK, F_OFD_SETLK, F_GETLK, F_OFD_GETLK };
	static const int types[] = { F_RDLCK, F_WRLCK, F_UNLCK, 9 };
	static const int more[] = { F_GETFD, F_GETFL, F_GETOWN, F_GETSIG, F_GETLEASE, F_GETPIPE_SZ, F_GET_SEALS, 9999 };
	char call[100];
	uint64_t hint = 0;

	for (size_t n = 0; n < LENGTH(kinds); n++) {
		snprintf(call, sizeof call, "flock %d", kinds[n]);
		F(call, flock(fd, kinds[n] | LOCK_NB));
	}
	for (size_t n = 0; n < LENGTH(calls); n++) {
		for (size_t m = 0; m < LENGTH(types); m++) {
			struct flock lock = { .l_type = types[m], .l_whence = SEEK_SET, .l_len = 1 };
			snprintf(call, sizeof call, "lock %d %d", calls[n], types[m]);
			F(call, fcntl(fd, calls[n], &lock) ?: lock.l_type);
		}
	}
	for (size_t n = 0; n < LENGTH(more); n++) {
		snprintf(call, sizeof call, "fcntl %d", more[n]);
		F(call, fcntl(fd, more[n], 0));
	}
	F("F_SETFL append", fcntl(fd, F_SETFL, O_APPEND));
	F("flags", fcntl(fd, F_GETFL));
	F("F_SETFL noatime", fcntl(fd, F_SETFL, O_NOATIME));
	F("F_SETFL nothing", fcntl(fd, F_SETFL, O_NONBLOCK));
	F("F_ADD_SEALS", fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL));
	F("F_SETLEASE read", fcntl(fd, F_SETLEASE, F_RDLCK));
	F("F_SETLEASE none", fcntl(fd, F_SETLEASE, F_UNLCK));
	F("F_SETLEASE write", fcntl(fd, F_SETLEASE, F_WRLCK));
	fcntl(fd, F_SETLEASE, F_UNLCK);
	F("F_NOTIFY", fcntl(fd, F_NOTIFY, 0));
	F("F_GET_RW_HINT", fcntl(fd, F_GET_RW_HINT, &hint));
	F("F_DUPFD", fcntl(fd, F_DUPFD, 900));
	close(900);
}

static void maps(void)
{
	static const int protections[] = { PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_WRITE, PROT_READ | PROT_EXEC };
	static const int sharings[] = { MAP_SHARED, MAP_PRIVATE, MAP_SHARED_VALIDATE, MAP_SHARED_VALIDATE | MAP_SYNC, 0 };
	char call[100];

	for (size_t n = 0; n < LENGTH(protections); n++) {
		for (size_t m = 0; m < LENGTH(sharings); m++) {
			snprintf(call, sizeof call, "mmap %d %x", protections[n], sharings[m]);
			errno = 0;
			unsigned char *at = mmap(NULL, 8192, protections[n], sharings[m], fd, 0);
			if (at == MAP_FAILED) {
				F(call, (errno = errno, -1));
				continue;
			}
			struct stat st;
			MUST(fstat(fd, &st));
			bool readable = protections[n] & PROT_READ && st.st_size > 0;
			F(call, readable ? at[0] + at[st.st_size > 4095 ? 4095 : 2000] : 0);
			if (protections[n] & PROT_WRITE && st.st_size > 0) {
				at[0] = 'X';
				F("private write", pread(fd, bytes, 1, 0) + bytes[0]);
			}
			F("msync", msync(at, 4096, MS_SYNC));
			F("mprotect", mprotect(at, 4096, PROT_READ | PROT_WRITE));
			F("madvise", madvise(at, 4096, MADV_WILLNEED));
			F("madvise remove", madvise(at, 4096, MADV_REMOVE));
			F("mremap", mremap(at, 8192, 4096, 0) == at);
			munmap(at, 4096);
		}
	}
	errno = 0;
	F("mmap odd", mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 1) == MAP_FAILED ? -1 : 0);
}

static void transfers(void)
{
	int ends[2], out;
	off_t offset = 1;
	loff_t to = 0, from = 0;

	MUST(pipe2(ends, O_NONBLOCK));
	out = MUST(open(outside, O_RDWR | O_CREAT | O_TRUNC, 0644));
	MUST(write(out, "host", 4));
	F("sendfile to pipe", sendfile(ends[1], fd, NULL, 5));
	READ("its bytes", read(ends[0], bytes, 100));
	F("sendfile at", sendfile(ends[1], fd, &offset, 5) + 100 * offset);
	READ("its bytes", read(ends[0], bytes, 100));
	F("sendfile to file", sendfile(out, fd, NULL, 100));
	F("sendfile in", (offset = 0, sendfile(fd, out, &offset, 4)));
	lseek(fd, 0, SEEK_SET);
	F("splice to pipe", splice(fd, NULL, ends[1], NULL, 5, SPLICE_F_NONBLOCK));
	READ("its bytes", read(ends[0], bytes, 100));
	F("splice at", (from = 2, splice(fd, &from, ends[1], NULL, 5, SPLICE_F_NONBLOCK)));
	MUST(write(ends[1], "x", 1));
	F("splice in", splice(ends[0], NULL, fd, NULL, 1, SPLICE_F_NONBLOCK));
	F("splice no pipe", splice(fd, NULL, out, NULL, 1, 0));
	F("tee", tee(fd, ends[1], 1, SPLICE_F_NONBLOCK));
	F("vmsplice", vmsplice(fd, parts, 1, SPLICE_F_NONBLOCK));
	F("copy_file_range out", (from = 1, to = 0, copy_file_range(fd, &from, out, &to, 5, 0)) + 100 * from);
	F("copy_file_range in", (from = 0, to = 0, copy_file_range(out, &from, fd, &to, 4, 0)));
	F("copy_file_range itself", (from = 0, to = 10, copy_file_range(fd, &from, fd, &to, 1, 0)));
	F("copy_file_range flags", (from = 0, to = 0, copy_file_range(fd, &from, out, &to, 5, 1)));
	READ("what came", pread(out, bytes, 1000, 0));
	close(out);
	close(ends[0]);
	close(ends[1]);
}

static void directories(void)
{
	struct stat st;
	struct statfs fs;
	char text[PATH_MAX];
	int entries = 0;
	long got;

	lseek(fd, 0, SEEK_SET);
	F("getdents64 short", syscall(SYS_getdents64, fd, bytes, 10));
	F("getdents64 bad", syscall(SYS_getdents64, fd, (void *)1, 1000));
	F("getdents short", syscall(SYS_getdents, fd, bytes, 10));
	while ((got = syscall(SYS_getdents64, fd, bytes, 100)) > 0) {
		for (long at = 0; at < got; entries++)
			at += ((struct dirent64 *)(bytes + at))->d_reclen;
	}
	F("getdents64", got < 0 ? got : entries);
	lseek(fd, 0, SEEK_SET);
	entries = 0;
	while ((got = syscall(SYS_getdents, fd, bytes, 100)) > 0) {
		/* The length follows two longs. */
		for (long at = 0; at < got; entries++)
			at += *(unsigned short *)(bytes + at + 16);
	}
	F("getdents", got < 0 ? got : entries);
	F("fstat", fstat(fd, &st) ?: st.st_mode);
	F("fstat bad", syscall(SYS_fstat, fd, (void *)1));
	F("fstatfs", fstatfs(fd, &fs) ?: fs.f_namelen);
	F("fstatfs bad", syscall(SYS_fstatfs, fd, (void *)1));
	F("fchdir", fchdir(fd));
	note("cwd %s", shown(getcwd(text, sizeof text) ?: "none"));
	MUST(fchdir(dirs[1].fd));
	snprintf(text, sizeof text, "/proc/self/fd/%d", fd);
	char leads[PATH_MAX];
	got = readlink(text, leads, sizeof leads - 1);
	leads[got < 0 ? 0 : got] = 0;
	note("descriptor of %s: %s", kind, shown(leads));
	int again = open(text, O_RDONLY | O_NONBLOCK);
	F("opened again", again < 0 ? again : 0);
	close(again);
	again = open(text, O_RDWR | O_NONBLOCK);
	F("opened again to write", again < 0 ? again : 0);
	close(again);
	F("chmod again", chmod(text, 0600));
	F("truncate again", truncate(text, 0));
}

/* What has several names is one file, and a map of it is the file. */
static void relations(void)
{
	struct stat a, b, c;

	MUST(stat("a", &a));
	MUST(stat("d/hard", &b));
	MUST(stat("d/f", &c));
	IS("two names, one file", a.st_ino == b.st_ino && a.st_dev == b.st_dev && a.st_nlink == 2);
	IS("another file", a.st_ino != c.st_ino && a.st_dev == c.st_dev);
	MUST(stat("d", &b));
	MUST(stat("d/..", &c));
	MUST(stat(".", &a));
	IS("the top above a directory", a.st_ino == c.st_ino && a.st_ino != b.st_ino);
	MUST(stat("..", &b));
	IS("another file system above", a.st_dev != b.st_dev);
	F("fd of nowhere", syscall(SYS_fstat, 777, &a));
}

static void steps(void)
{
	prepare();
	for (size_t n = 0; n < LENGTH(kinds); n++) {
		char label[100];

		snprintf(label, sizeof label, "%s", kinds[n].path);
		kind = label;
		fd = MUST(open(kinds[n].path, kinds[n].flags));
		changes();
		changes_by_links();
		reads();
		locks();
		maps();
		transfers();
		directories();
		close(fd);
	}
	kind = "relations";
	relations();
}
