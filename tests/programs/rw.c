/* Reading and writing: offsets, vectors, appending, short counts, limits, sparse files, sharing of descriptions. */
#include "step.h"

static char *hole; /* one page, and nothing behind it */

static void offsets(void)
{
	int fd, second, copy;
	char text[64] = "";

	T("open", fd = open("a", O_RDWR | O_CREAT | O_TRUNC, 0644));
	T("write", write(fd, "0123456789", 10));
	T("read at end", read(fd, text, 4));
	T("lseek set", lseek(fd, 2, SEEK_SET));
	T("read", read(fd, text, 4));
	note("%.4s", text);
	T("lseek cur", lseek(fd, -1, SEEK_CUR));
	T("lseek end", lseek(fd, -3, SEEK_END));
	T("read", read(fd, text, 40));
	T("lseek beyond", lseek(fd, 100, SEEK_SET));
	T("read beyond", read(fd, text, 4));
	T("lseek negative", lseek(fd, -1, SEEK_SET));
	T("lseek before start", lseek(fd, -200, SEEK_CUR));
	T("lseek bad whence", lseek(fd, 0, 99));
	/* How large a file may be is the file system's own affair; that a sum overflows is not. */
	T("lseek overflow", lseek(fd, LLONG_MAX, SEEK_END) == -1 && (errno == EOVERFLOW || errno == EINVAL) ? 0 : 1);
	T("lseek cur", lseek(fd, 0, SEEK_CUR) == 100 ? 0 : 1);
	MUST(lseek(fd, 0, SEEK_SET));
	T("pread", pread(fd, text, 3, 5));
	T("offset", lseek(fd, 0, SEEK_CUR));
	T("pwrite", pwrite(fd, "XYZ", 3, 5));
	T("offset", lseek(fd, 0, SEEK_CUR));
	T("pread negative", pread(fd, text, 3, -1));
	T("pwrite negative", pwrite(fd, text, 3, -1));
	T("pwrite beyond", pwrite(fd, "!", 1, 20));
	CONTENT("a");
	T("write nothing", write(fd, "", 0));
	T("read nothing", read(fd, text, 0));
	T("offset", lseek(fd, 0, SEEK_CUR));
	T("dup", copy = dup(fd));
	T("second", second = open("a", O_RDONLY));
	T("read by dup", read(copy, text, 4));
	T("offset of original", lseek(fd, 0, SEEK_CUR));
	T("offset of second", lseek(second, 0, SEEK_CUR));
	T("write to read-only", write(second, "x", 1));
	T("pwrite to read-only", pwrite(second, "x", 1, 0));
	T("ftruncate read-only", ftruncate(second, 0));
	CHILD("reads", ({ T("child reads", read(fd, text, 3)); T("child seeks", lseek(copy, 7, SEEK_SET)); }));
	T("offset after child", lseek(fd, 0, SEEK_CUR));
	T("read sees", read(second, text, 5));
	T("write", pwrite(fd, "new", 3, 0));
	T("pread second", pread(second, text, 5, 0));
	note("%.5s", text);
	T("F_GETFL rdwr", fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
	T("F_GETFL read", fcntl(second, F_GETFL) & (O_ACCMODE | O_APPEND));
	close(fd);
	close(copy);
	close(second);
	T("write only", fd = open("a", O_WRONLY));
	T("read", read(fd, text, 1));
	T("pread", pread(fd, text, 1, 0));
	T("readv", readv(fd, &(struct iovec){text, 1}, 1));
	close(fd);
	T("read closed", read(fd, text, 1));
	T("write closed", write(fd, text, 1));
	T("write closed nothing", write(fd, text, 0));
	T("lseek closed", lseek(fd, 0, SEEK_SET));
}

static void vectors(void)
{
	char a[8] = "", b[8] = "", c[8] = "";
	struct iovec out[3] = {{"one", 3}, {"", 0}, {"three", 5}};
	struct iovec in[3] = {{a, 4}, {b, 2}, {c, 8}};
	struct iovec bad[3] = {{"good", 4}, {(void *)16, 4}, {"more", 4}};
	struct iovec huge[2] = {{"x", SSIZE_MAX}, {"y", SSIZE_MAX}};
	struct iovec *many = calloc(1025, sizeof *many);
	int fd;

	T("open", fd = open("v", O_RDWR | O_CREAT | O_TRUNC, 0644));
	T("writev", writev(fd, out, 3));
	T("offset", lseek(fd, 0, SEEK_CUR));
	MUST(lseek(fd, 0, SEEK_SET));
	T("readv", readv(fd, in, 3));
	note("%.4s|%.2s|%.2s", a, b, c);
	T("pwritev", pwritev(fd, out, 3, 4));
	T("preadv", preadv(fd, in, 3, 1));
	T("offset", lseek(fd, 0, SEEK_CUR));
	CONTENT("v");
	T("pwritev2 at offset", pwritev2(fd, out, 1, -1, 0));
	T("pwritev2 append", pwritev2(fd, out, 1, 0, RWF_APPEND));
	T("pwritev2 dsync", pwritev2(fd, out, 1, 0, RWF_DSYNC));
	T("pwritev2 sync", pwritev2(fd, out, 1, 3, RWF_SYNC));
	T("pwritev2 bad flag", pwritev2(fd, out, 1, 0, 1 << 30));
	T("pwritev2 bad offset", pwritev2(fd, out, 1, -2, 0));
	T("preadv2", preadv2(fd, in, 3, 0, 0));
	T("preadv2 at offset", preadv2(fd, in, 1, -1, 0));
	T("preadv2 bad flag", preadv2(fd, in, 3, 0, 1 << 30));
	CONTENT("v");
	T("writev none", writev(fd, out, 0));
	T("writev negative", writev(fd, out, -1));
	T("writev too many", writev(fd, many, 1025));
	T("writev most", writev(fd, many, 1024));
	T("writev bad vector", writev(fd, (void *)16, 1));
	T("writev huge", writev(fd, huge, 2));
	T("readv bad vector", readv(fd, (void *)16, 1));
	MUST(ftruncate(fd, 0));
	MUST(lseek(fd, 0, SEEK_SET));
	T("writev partly bad", writev(fd, bad, 3));
	SHOW("v");
	T("writev first bad", writev(fd, bad + 1, 2));
	T("pwritev partly bad", pwritev(fd, bad, 3, 0));
	for (int i = 0; i < 1024; i++)
		many[i] = (struct iovec){"ab", 2};
	T("writev 1024", pwritev(fd, many, 1024, 0));
	SHOW("v");
	T("append", fcntl(fd, F_SETFL, O_APPEND));
	T("pwrite appends", pwrite(fd, "end", 3, 0));
	T("pwritev appends", pwritev(fd, out, 3, 1));
	T("pwritev2 appends", pwritev2(fd, out, 3, 1, 0));
	T("offset", lseek(fd, 0, SEEK_CUR));
	T("pwrite appends negative", pwrite(fd, "end", 3, -1));
	SHOW("v");
	close(fd);
	free(many);
}

static void faults(void)
{
	int fd;

	T("open", fd = open("f", O_RDWR | O_CREAT | O_TRUNC, 0644));
	T("write bad", write(fd, (void *)16, 5));
	T("write null", write(fd, NULL, 5));
	T("pwrite bad", pwrite(fd, (void *)16, 5, 0));
	SHOW("f");
	memset(hole, 'h', 4096);
	T("write across a page's end", write(fd, hole + 4090, 12));
	SHOW("f");
	T("offset", lseek(fd, 0, SEEK_CUR));
	T("pwrite across a page's end", pwrite(fd, hole + 4000, 200, 100));
	SHOW("f");
	T("write whole", write(fd, hole, 4096));
	MUST(lseek(fd, 0, SEEK_SET));
	T("read bad", read(fd, (void *)16, 5));
	T("read across", read(fd, hole + 4090, 12));
	T("offset", lseek(fd, 0, SEEK_CUR));
	T("pread across", pread(fd, hole + 4000, 4096, 0));
	T("count beyond", read(fd, hole, SIZE_MAX));
	close(fd);
	T("read-only buffer", fd = open("f", O_RDONLY));
	T("pread into text", pread(fd, (void *)(uintptr_t)faults, 16, 0));
	close(fd);
}

static void on_xfsz(int number)
{
	note("signal %d", number);
}

static void limits(void)
{
	struct rlimit limit = {1000, RLIM_INFINITY};
	struct sigaction action = {.sa_handler = on_xfsz};
	char data[600];
	int fd;

	memset(data, 'd', sizeof data);
	MUST(sigaction(SIGXFSZ, &action, NULL));
	MUST(setrlimit(RLIMIT_FSIZE, &limit));
	T("open", fd = open("limited", O_RDWR | O_CREAT | O_TRUNC, 0644));
	T("below", write(fd, data, 600));
	T("across", write(fd, data, 600));
	T("at", write(fd, data, 600));
	T("offset", lseek(fd, 0, SEEK_CUR));
	T("pwrite beyond", pwrite(fd, data, 1, 5000));
	T("pwrite below", pwrite(fd, data, 1, 5));
	T("pwritev", pwritev(fd, &(struct iovec){data, 10}, 1, 995));
	T("ftruncate", ftruncate(fd, 2000));
	T("ftruncate at", ftruncate(fd, 1000));
	T("truncate", truncate("limited", 1001));
	T("fallocate", fallocate(fd, 0, 0, 2000));
	T("append", fcntl(fd, F_SETFL, O_APPEND));
	T("append", write(fd, data, 1));
	SHOW("limited");
	close(fd);
	CHILD("default action", ({ signal(SIGXFSZ, SIG_DFL); fd = open("limited", O_WRONLY); MUST(lseek(fd, 1000, SEEK_SET)); T("write", write(fd, data, 1)); }));
}

static void sparse(void)
{
	int fd;
	char byte = 'q';
	struct stat st;

	T("open", fd = open("sparse", O_RDWR | O_CREAT | O_TRUNC, 0644));
	T("far", pwrite(fd, "x", 1, 1 << 20));
	SHOW("sparse");
	T("hole", pread(fd, &byte, 1, 12345));
	note("%d", byte);
	T("data from 0", lseek(fd, 0, SEEK_DATA));
	T("hole from 0", lseek(fd, 0, SEEK_HOLE));
	T("hole from data", lseek(fd, 1 << 20, SEEK_HOLE));
	T("data at data", lseek(fd, 1 << 20, SEEK_DATA));
	T("data at end", lseek(fd, (1 << 20) + 1, SEEK_DATA));
	T("hole at end", lseek(fd, (1 << 20) + 1, SEEK_HOLE));
	T("data negative", lseek(fd, -1, SEEK_DATA));
	fstat(fd, &st);
	IS("takes less", st.st_blocks * 512 < st.st_size);
	T("very far", pwrite(fd, "y", 1, 1LL << 40));
	SHOW("sparse");
	T("read far", pread(fd, &byte, 1, 1LL << 40));
	note("%c", byte);
	T("shrink", ftruncate(fd, 10));
	T("grow", ftruncate(fd, 1 << 21));
	T("old byte", pread(fd, &byte, 1, 1 << 20));
	note("%d", byte);
	T("shrink in page", ftruncate(fd, 5));
	T("write", pwrite(fd, "abcdefgh", 8, 0));
	T("shrink in page", ftruncate(fd, 3));
	T("grow in page", ftruncate(fd, 8));
	CONTENT("sparse");
	T("too large", ftruncate(fd, LLONG_MAX) == -1 && (errno == EFBIG || errno == EINVAL) ? 0 : 1);
	T("pwrite too far", pwrite(fd, "x", 1, LLONG_MAX) == -1 && (errno == EFBIG || errno == EINVAL) ? 0 : 1);
	T("negative", ftruncate(fd, -1));
	close(fd);
}

/* Many writes of odd sizes; the sum of every byte read back by other means. */
static void volume(void)
{
	static unsigned char data[70000], back[70000];
	unsigned long sum = 0, other = 0;
	off_t size = 0;
	int fd, reader;
	unsigned seed = 7;

	T("open", fd = open("big", O_RDWR | O_CREAT | O_TRUNC, 0644));
	reader = MUST(open("big", O_RDONLY));
	for (int round = 0; round < 60; round++) {
		seed = seed * 1103515245 + 12345;
		size_t length = seed % sizeof data;
		memset(data, round + 1, length);
		if (write(fd, data, length) != (ssize_t)length)
			note("short write in round %d", round);
		for (size_t i = 0; i < length; i++)
			sum += data[i];
		size += length;
	}
	note("size %lld sum %lu", (long long)size, sum);
	for (;;) {
		ssize_t got = read(reader, back, 4097);
		if (got <= 0)
			break;
		for (ssize_t i = 0; i < got; i++)
			other += back[i];
	}
	note("sum read %lu", other);
	SHOW("big");
	for (int round = 0; round < 200; round++) {
		seed = seed * 1103515245 + 12345;
		off_t at = seed % size;
		seed = seed * 1103515245 + 12345;
		size_t length = seed % 9000;
		memset(data, round, length);
		if (pwrite(fd, data, length, at) != (ssize_t)length)
			note("short pwrite");
		if (pread(reader, back, length, at) != (ssize_t)length || memcmp(data, back, length))
			note("round %d differs", round);
	}
	SHOW("big");
	for (other = 0;;) {
		ssize_t got = read(fd, back, sizeof back);
		if (got <= 0)
			break;
	}
	MUST(lseek(reader, 0, SEEK_SET));
	for (;;) {
		ssize_t got = read(reader, back, sizeof back);
		if (got <= 0)
			break;
		for (ssize_t i = 0; i < got; i++)
			other = other * 31 + back[i];
	}
	note("hash %lu", other);
	close(fd);
	close(reader);
}

static void appenders(void)
{
	char line[32];

	make("shared", "");
	for (int child = 0; child < 4; child++) {
		if (MUST(fork()) == 0) {
			int fd = MUST(open("shared", O_WRONLY | O_APPEND));
			for (int i = 0; i < 50; i++) {
				int length = sprintf(line, "%d-%03d\n", child, i);
				if (write(fd, line, length) != length)
					_exit(1);
			}
			_exit(0);
		}
	}
	int bad = 0, status;
	while (wait(&status) > 0)
		bad += status != 0;
	note("failed %d", bad);
	SHOW("shared");
	/* Every line is there, whole, and each child's in order. */
	FILE *file = fopen("shared", "r");
	int next[4] = {0}, child, number, wrong = 0;
	while (fgets(line, sizeof line, file)) {
		if (sscanf(line, "%d-%d", &child, &number) != 2 || child > 3 || next[child]++ != number)
			wrong++;
	}
	fclose(file);
	note("lines %d %d %d %d wrong %d", next[0], next[1], next[2], next[3], wrong);

	/* One description for all: no line is lost either. */
	int fd = MUST(open("inherited", O_WRONLY | O_CREAT | O_TRUNC, 0644));
	for (int c = 0; c < 4; c++) {
		if (MUST(fork()) == 0) {
			for (int i = 0; i < 50; i++) {
				if (write(fd, "12345678", 8) != 8)
					_exit(1);
			}
			_exit(0);
		}
	}
	for (bad = 0; wait(&status) > 0;)
		bad += status != 0;
	note("failed %d", bad);
	T("offset", lseek(fd, 0, SEEK_CUR));
	SHOW("inherited");
	close(fd);
}

static void send_descriptor(int socket, int fd)
{
	char byte = 'd';
	struct iovec vector = {&byte, 1};
	union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control = {0};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	MUST(sendmsg(socket, &message, 0));
}

static int receive_descriptor(int socket)
{
	char byte;
	struct iovec vector = {&byte, 1};
	union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control = {0};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
	int fd = -1;

	MUST(recvmsg(socket, &message, 0));
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	if (header && header->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(header), sizeof fd);
	return fd;
}

static void passing(void)
{
	int pair[2], fd, dir;
	char text[32] = "";

	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	make("passed", "0123456789");
	MUST(mkdir("passdir", 0755));
	if (MUST(fork()) == 0) {
		close(pair[0]);
		fd = MUST(open("passed", O_RDWR));
		MUST(lseek(fd, 3, SEEK_SET));
		send_descriptor(pair[1], fd);
		MUST(read(pair[1], text, 1));
		T("sender's offset", lseek(fd, 0, SEEK_CUR));
		MUST(unlink("passed"));
		close(fd);
		send_descriptor(pair[1], MUST(open("passdir", O_RDONLY)));
		_exit(0);
	}
	close(pair[1]);
	T("received", fd = receive_descriptor(pair[0]));
	T("offset", lseek(fd, 0, SEEK_CUR));
	T("read", read(fd, text, 4));
	note("%.4s", text);
	T("write", write(fd, "W", 1));
	MUST(write(pair[0], "x", 1));
	T("received", dir = receive_descriptor(pair[0]));
	wait(NULL);
	T("sender gone", pread(fd, text, 20, 0));
	note("%.10s", text);
	SHOW_FD("unlinked", fd);
	T("openat", close(openat(dir, "made", O_RDWR | O_CREAT, 0644)));
	SHOW("passdir/made");
	close(fd);
	close(dir);
	close(pair[0]);
}

static void closing_on_exec(void)
{
	int fd, other;

	make("ce", "exec-data");
	fd = MUST(open("ce", O_RDONLY));
	other = MUST(open("ce", O_RDONLY | O_CLOEXEC));
	MUST(lseek(fd, 5, SEEK_SET));
	if (MUST(fork()) == 0) {
		char program[64];
		snprintf(program, sizeof program, "read -r x <&%d; echo \"got $x\"", fd);
		execl("/bin/sh", "sh", "-c", program, NULL);
		_exit(99);
	}
	wait(NULL);
	T("offset after the child read on", lseek(fd, 0, SEEK_CUR));
	if (MUST(fork()) == 0) {
		char program[200];
		snprintf(program, sizeof program, "if (: <&%d) 2>/dev/null; then echo open; else echo closed; fi; if (: <&%d) 2>/dev/null; then echo open; else echo closed; fi", fd, other);
		execl("/bin/sh", "sh", "-c", program, NULL);
		_exit(99);
	}
	wait(NULL);
	close(fd);
	close(other);
}

static void steps(void)
{
	hole = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(hole + 4096, 4096);
	offsets();
	vectors();
	faults();
	CHILD("limits", limits());
	sparse();
	volume();
	appenders();
	passing();
	closing_on_exec();
}
