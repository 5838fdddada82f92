/* Copying inside the kernel, preallocation, and waiting for the disk. */
#include "step.h"
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

static void fill(const char *name, size_t length)
{
	int fd = MUST(open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644));
	char *bytes = malloc(length);

	for (size_t i = 0; i < length; i++)
		bytes[i] = 'a' + i % 26;
	if (write(fd, bytes, length) != (ssize_t)length)
		_exit(99);
	free(bytes);
	close(fd);
}

static unsigned long hash(const char *name)
{
	unsigned char block[4096];
	unsigned long sum = 5381;
	int fd = open(name, O_RDONLY);

	for (ssize_t got; fd >= 0 && (got = read(fd, block, sizeof block)) > 0;)
		for (ssize_t i = 0; i < got; i++)
			sum = sum * 33 + block[i];
	close(fd);
	return sum;
}

static void ranges(void)
{
	int in, out, pipe_[2], host;
	off_t from = 10, to = 5;
	char path[PATH_MAX];

	fill("in", 100000);
	make("out", "");
	in = MUST(open("in", O_RDONLY));
	out = MUST(open("out", O_RDWR));
	T("copy", copy_file_range(in, NULL, out, NULL, 1000, 0));
	T("offset in", lseek(in, 0, SEEK_CUR));
	T("offset out", lseek(out, 0, SEEK_CUR));
	T("copy at offsets", copy_file_range(in, &from, out, &to, 100, 0));
	note("%lld %lld", (long long)from, (long long)to);
	T("offset in", lseek(in, 0, SEEK_CUR));
	T("offset out", lseek(out, 0, SEEK_CUR));
	SHOW("out");
	note("%lx", hash("out"));
	T("rest", ({ long all = 0, got; while ((got = copy_file_range(in, NULL, out, NULL, 1 << 20, 0)) > 0) all += got; all; }));
	SHOW("out");
	note("%lx", hash("out"));
	T("at the end", copy_file_range(in, NULL, out, NULL, 10, 0));
	T("nothing", copy_file_range(in, NULL, out, NULL, 0, 0));
	T("bad flag", copy_file_range(in, NULL, out, NULL, 10, 1));
	T("into read-only", copy_file_range(in, NULL, in, NULL, 10, 0));
	T("from write-only", ({ int w = MUST(open("out", O_WRONLY)); long r = copy_file_range(w, NULL, out, NULL, 10, 0); int e = errno; close(w); errno = e; r; }));
	T("same file", ({ off_t a = 0, b = 50000; copy_file_range(out, &a, out, &b, 1000, 0); }));
	T("overlapping", ({ off_t a = 0, b = 500; copy_file_range(out, &a, out, &b, 1000, 0); }));
	T("bad fd", copy_file_range(777, NULL, out, NULL, 10, 0));
	T("directory", ({ int d = MUST(open(".", O_RDONLY)); long r = copy_file_range(d, NULL, out, NULL, 10, 0); int e = errno; close(d); errno = e; r; }));
	MUST(pipe(pipe_));
	T("pipe", copy_file_range(pipe_[0], NULL, out, NULL, 10, 0));
	T("append", ({ int a = MUST(open("out", O_WRONLY | O_APPEND)); off_t z = 0; long r = copy_file_range(in, &z, a, NULL, 10, 0); int e = errno; close(a); errno = e; r; }));
	note("%lx", hash("out"));
	/* To and from the host; the kernel may refuse to cross file systems, then programs copy themselves. */
	snprintf(path, sizeof path, "%s/copied", host_path);
	host = MUST(open(path, O_RDWR | O_CREAT, 0644));
	from = 0;
	long got = copy_file_range(in, &from, host, NULL, 5000, 0);
	note("to the host %d", got == 5000 || (got == -1 && errno == EXDEV));
	from = 0;
	MUST(pwrite(host, "from the host", 13, 0));
	MUST(lseek(host, 0, SEEK_SET));
	got = copy_file_range(host, NULL, out, &from, 13, 0);
	note("from the host %d", got == 13 || (got == -1 && errno == EXDEV));

	/* sendfile. */
	make("sent", "");
	int sent = MUST(open("sent", O_RDWR));
	MUST(lseek(in, 0, SEEK_SET));
	T("sendfile", sendfile(sent, in, NULL, 5000));
	T("offset in", lseek(in, 0, SEEK_CUR));
	T("offset out", lseek(sent, 0, SEEK_CUR));
	from = 50;
	T("sendfile at offset", sendfile(sent, in, &from, 100));
	note("%lld", (long long)from);
	T("offset in", lseek(in, 0, SEEK_CUR));
	T("sendfile to the host", sendfile(host, in, NULL, 1000));
	MUST(lseek(host, 0, SEEK_SET));
	T("sendfile from the host", sendfile(sent, host, NULL, 13));
	T("sendfile to pipe", sendfile(pipe_[1], in, NULL, 1000));
	T("sendfile at end", ({ from = 100000; sendfile(sent, in, &from, 10); }));
	T("sendfile read-only", sendfile(in, sent, NULL, 10));
	T("sendfile negative", ({ from = -1; sendfile(sent, in, &from, 10); }));
	SHOW("sent");
	note("%lx", hash("sent"));

	/* splice. */
	T("splice out of a pipe", splice(pipe_[0], NULL, sent, NULL, 1000, 0));
	SHOW("sent");
	from = 200;
	T("splice into a pipe", splice(in, &from, pipe_[1], NULL, 500, 0));
	to = 10;
	T("splice at offset", splice(pipe_[0], NULL, sent, &to, 500, 0));
	note("%lld %lld", (long long)from, (long long)to);
	note("%lx", hash("sent"));
	T("splice without pipe", splice(in, NULL, sent, NULL, 10, 0));
	T("vmsplice", vmsplice(pipe_[1], &(struct iovec){"spliced", 7}, 1, 0));
	T("splice", splice(pipe_[0], NULL, sent, NULL, 7, 0));
	SHOW("sent");
	close(pipe_[0]);
	close(pipe_[1]);
	int pair[2];
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	from = 0;
	T("sendfile to socket", sendfile(pair[0], in, &from, 300));
	T("received", recv(pair[1], path, sizeof path, 0));
	close(pair[0]);
	close(pair[1]);
	close(in);
	close(out);
	close(sent);
	close(host);
}

static void preallocation(void)
{
	int fd, reader, dir;

	make("a", "0123456789");
	fd = MUST(open("a", O_RDWR));
	reader = MUST(open("a", O_RDONLY));
	dir = MUST(open(".", O_RDONLY));
	T("extend", fallocate(fd, 0, 0, 8192));
	SHOW("a");
	T("keep size", fallocate(fd, FALLOC_FL_KEEP_SIZE, 8192, 8192));
	SHOW("a");
	T("smaller", fallocate(fd, 0, 0, 10));
	SHOW("a");
	T("posix_fallocate", posix_fallocate(fd, 0, 20000));
	SHOW("a");
	T("length 0", fallocate(fd, 0, 0, 0));
	T("negative", fallocate(fd, 0, -1, 10));
	T("negative length", fallocate(fd, 0, 0, -1));
	T("too large", fallocate(fd, 0, LLONG_MAX - 5, 10));
	T("read-only", fallocate(reader, 0, 0, 10));
	T("bad fd", fallocate(777, 0, 0, 10));
	T("directory", fallocate(dir, 0, 0, 10));
	T("bad mode", fallocate(fd, 0x4000, 0, 10));
	T("punch without keep", fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, 10));
	T("pipe", ({ int p[2]; MUST(pipe(p)); long r = fallocate(p[1], 0, 0, 10); int e = errno; close(p[0]); close(p[1]); errno = e; r; }));
	T("punch", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2, 5));
	CONTENT("a");
	SHOW("a");
	MUST(pwrite(fd, "tail", 4, 16384));
	T("punch pages", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 8192));
	T("punch beyond", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 << 20, 8192));
	SHOW("a");
	note("%lx", hash("a"));
	close(fd);
	close(reader);
	close(dir);
}

static void syncing(void)
{
	int fd, reader, dir, path, pair[2];

	make("s", "x");
	fd = MUST(open("s", O_RDWR));
	reader = MUST(open("s", O_RDONLY));
	dir = MUST(open(".", O_RDONLY));
	path = MUST(open("s", O_PATH));
	MUST(pipe(pair));
	T("fsync", fsync(fd));
	T("fdatasync", fdatasync(fd));
	T("fsync reader", fsync(reader));
	T("fsync directory", fsync(dir));
	T("fdatasync directory", fdatasync(dir));
	T("fsync O_PATH", fsync(path));
	T("fsync pipe", fsync(pair[0]));
	T("fsync bad", fsync(777));
	T("fsync -1", fsync(-1));
	T("sync_file_range", sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE));
	T("sync_file_range and wait", sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER));
	T("sync_file_range bad", sync_file_range(fd, 0, 0, 64));
	T("syncfs", syncfs(fd));
	T("syncfs bad", syncfs(777));
	sync();
	T("fadvise", posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	T("fadvise bad", posix_fadvise(fd, 0, 0, 77));
	T("fadvise pipe", posix_fadvise(pair[0], 0, 0, POSIX_FADV_NORMAL));
	T("readahead", readahead(fd, 0, 10));
	T("readahead bad", readahead(777, 0, 10));
	T("O_SYNC", ({ int s = open("os", O_WRONLY | O_CREAT | O_SYNC, 0644); long r = write(s, "sync", 4); close(s); r; }));
	T("O_DSYNC", ({ int s = open("os", O_WRONLY | O_APPEND | O_DSYNC, 0644); long r = write(s, "dsync", 5); T("flags", fcntl(s, F_GETFL) & (O_SYNC | O_DSYNC)); close(s); r; }));
	CONTENT("os");
	close(fd);
	close(reader);
	close(dir);
	close(path);
	close(pair[0]);
	close(pair[1]);
}

static void systems(void)
{
	struct statfs fs;
	struct statvfs vfs;
	int fd = MUST(open("s", O_RDONLY));

	T("statfs", statfs("s", &fs));
	IS("name length", fs.f_namelen == 255);
	IS("blocks", fs.f_bsize > 0 && fs.f_blocks >= fs.f_bfree);
	T("fstatfs", fstatfs(fd, &fs));
	T("statvfs", statvfs(".", &vfs));
	IS("writable", !(vfs.f_flag & ST_RDONLY));
	T("statfs missing", statfs("none", &fs));
	T("statfs below file", statfs("s/x", &fs));
	T("statfs null", statfs(NULL, &fs));
	T("statfs bad buffer", syscall(SYS_statfs, "s", 16));
	T("fstatfs bad", fstatfs(777, &fs));
	T("pathconf", pathconf(".", _PC_NAME_MAX));
	int flags;
	T("ioctl FIONREAD", ({ int n = -1; long r = ioctl(fd, 0x541b, &n); r ? r : n; }));
	T("ioctl TCGETS", ioctl(fd, 0x5401, &flags));
	close(fd);
}

static void steps(void)
{
	ranges();
	preallocation();
	syncing();
	systems();
}
