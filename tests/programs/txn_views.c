/* Visibility of a transaction's changes, by all calls: participants see all of them, other processes none before the commit. */
#include "txn.h"

#include <linux/aio_abi.h>
#include <stdint.h>

#define OLD "what was committed before\n"
#define NEW "WHAT was committed before\nand more\n"

/* Fails with what a file system without that call says, or shows TEXT. */
static void copied(const char *how, ssize_t got, const char *into, const char *text)
{
	if (got < 0 && (errno == EINVAL || errno == EXDEV))
		return;
	if (got != (ssize_t)strlen(text) || strcmp(get(into), text))
		wrong(__FILE__, __LINE__, "%s: %zd (%s): %s", how, got, strerrorname_np(errno), get(into));
}

/* What the event of a request of Linux AIO shows. */
static long long requested(int opcode, int fd, const void *buffer, size_t len, long offset)
{
	struct iocb one = {.aio_lio_opcode = opcode, .aio_fildes = fd, .aio_buf = (uintptr_t)buffer, .aio_nbytes = len,
			   .aio_offset = offset};
	struct iocb *list[] = {&one};
	struct io_event event = {.res = -1};
	aio_context_t context = 0;

	IS(syscall(SYS_io_setup, 1, &context) == 0);
	IS(syscall(SYS_io_submit, context, 1, list) == 1);
	IS(syscall(SYS_io_getevents, context, 1, 1, &event, NULL) == 1);
	IS(syscall(SYS_io_destroy, context) == 0);
	return event.res;
}

/* All ways to read file `f`, of which FD is a descriptor, show TEXT. WHO may make files. */
static void sees(int fd, const char *text, const char *who)
{
	size_t size = strlen(text);
	char a[256] = "", b[256] = "", name[64];
	struct stat st;
	int before = *wrong_count;

	IS(!strcmp(get("f"), text));
	IS(stat("f", &st) == 0 && st.st_size == (off_t)size);
	IS(fstat(fd, &st) == 0 && st.st_size == (off_t)size);
	IS(lseek(fd, 0, SEEK_END) == (off_t)size);
	IS(lseek(fd, -5, SEEK_END) == (off_t)size - 5 && read(fd, a, sizeof a) == 5 && !memcmp(a, text + size - 5, 5));
	IS(read(fd, a, sizeof a) == 0);
	IS(lseek(fd, 0, SEEK_DATA) == 0 && lseek(fd, 0, SEEK_HOLE) == (off_t)size);
	IS(lseek(fd, 2, SEEK_SET) == 2 && read(fd, a, 3) == 3 && !memcmp(a, text + 2, 3) && lseek(fd, 0, SEEK_CUR) == 5);
	IS(pread(fd, a, sizeof a, 1) == (ssize_t)size - 1 && !memcmp(a, text + 1, size - 1));
	IS(lseek(fd, 0, SEEK_CUR) == 5);
	struct iovec two[2] = {{a, 4}, {b, sizeof b}};
	IS(lseek(fd, 0, SEEK_SET) == 0 && readv(fd, two, 2) == (ssize_t)size && !memcmp(a, text, 4) && !memcmp(b, text + 4, size - 4));
	IS(preadv(fd, two, 2, 3) == (ssize_t)size - 3 && !memcmp(a, text + 3, 4) && !memcmp(b, text + 7, size - 7));
	IS(preadv2(fd, two, 2, 3, RWF_HIPRI) == (ssize_t)size - 3 && !memcmp(a, text + 3, 4));
	IS(lseek(fd, 1, SEEK_SET) == 1 && preadv2(fd, two, 2, -1, 0) == (ssize_t)size - 1 && !memcmp(a, text + 1, 4));
	memset(a, 0, sizeof a);
	IS(requested(IOCB_CMD_PREAD, fd, a, sizeof a, 1) == (long long)size - 1 && !memcmp(a, text + 1, size - 1));
	IS(lseek(fd, 0, SEEK_CUR) == (off_t)size);
	FAILS(EINVAL, pread(fd, a, 1, -1));
	FAILS(EFAULT, pread(fd, (void *)8, 10, 0));
	IS(pread(fd, a, 10, 1 << 20) == 0);

	char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	IS(map != MAP_FAILED && !memcmp(map, text, size) && map[size] == 0 && map[4095] == 0);
	IS((map[0] = 'x') && pread(fd, a, 1, 0) == 1 && a[0] == text[0]);
	munmap(map, 8192);

	/* Within the store, and out of it. */
	snprintf(name, sizeof name, "copy.%s", who);
	off_t zero = 0;
	int out = MUST(open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
	copied("sendfile", sendfile(out, fd, &zero, 4096), name, text);
	IS(ftruncate(out, 0) == 0 && lseek(out, 0, SEEK_SET) == 0 && lseek(fd, 0, SEEK_SET) == 0);
	copied("copy_file_range", copy_file_range(fd, NULL, out, NULL, 4096, 0), name, text);
	close(out);
	IS(unlink(name) == 0);
	out = MUST(memfd_create("host", MFD_CLOEXEC));
	snprintf(name, sizeof name, "/proc/self/fd/%d", out);
	zero = 0;
	copied("sendfile out", sendfile(out, fd, &zero, 4096), name, text);
	IS(ftruncate(out, 0) == 0 && lseek(out, 0, SEEK_SET) == 0 && lseek(fd, 0, SEEK_SET) == 0);
	copied("copy_file_range out", copy_file_range(fd, NULL, out, NULL, 4096, 0), name, text);
	close(out);
	int pipes[2];
	loff_t start = 0;
	MUST(pipe2(pipes, O_CLOEXEC | O_NONBLOCK));
	ssize_t got = splice(fd, &start, pipes[1], NULL, 4096, 0);
	int error = errno;
	IS(got < 0 ? error == EINVAL : got == (ssize_t)size && read(pipes[0], a, sizeof a) == got && !memcmp(a, text, size));
	close(pipes[0]);
	close(pipes[1]);
	if (*wrong_count != before)
		wrong(__FILE__, __LINE__, "that was %s, who should see %s", who, text);
}

static int kept;

static void *thread_sees(void *text)
{
	sees(kept, text, "thread");
	return NULL;
}

/* A thread that was there before the transaction. */
static struct flag ask, told;

static void *other_thread(void *unused)
{
	wait_for(ask);
	sees(kept, OLD, "other thread");
	set(told);
	wait_for(ask);
	sees(kept, NEW, "other thread");
	set(told);
	return unused;
}

/* A process that was there before, with descriptors of its own. */
static void outsider(struct flag ask, struct flag told)
{
	int fd = MUST(open("f", O_RDONLY | O_CLOEXEC));

	set(told);
	for (const char *text = OLD;; text = NEW) {
		wait_for(ask);
		sees(fd, text, "outsider");
		sees(kept, text, "outsider's inherited");
		set(told);
		if (text[0] == 'W' && text[1] == 'H')
			break;
	}
}

static void members_see(const char *text, char *self)
{
	pthread_t thread;
	char number[16];

	sees(kept, text, "member");
	ENDS(CHILD(sees(kept, text, "child")));
	MUST(pthread_create(&thread, NULL, thread_sees, (void *)text) ? -1 : 0);
	pthread_join(thread, NULL);
	snprintf(number, sizeof number, "%d", kept);
	ENDS(CHILD(execl(self, self, ".", "-sees", number, text, NULL)));
}

static void change(void)
{
	int append = MUST(open("f", O_WRONLY | O_APPEND | O_CLOEXEC));

	IS(pwrite(kept, "WH", 2, 0) == 2);
	IS(requested(IOCB_CMD_PWRITE, kept, "AT", 2, 2) == 2);
	IS(write(append, "and more\n", 9) == 9);
	close(append);
}

static void pass_on(int over)
{
	char byte = 0, room[CMSG_SPACE(sizeof(int))] = "";
	struct iovec one = {&byte, 1};
	struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	*header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
	memcpy(CMSG_DATA(header), &kept, sizeof kept);
	IS(sendmsg(over, &message, 0) == 1);
}

static void take_over(int from)
{
	char byte, room[CMSG_SPACE(sizeof(int))];
	struct iovec one = {&byte, 1};
	struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	int fd;

	IS(recvmsg(from, &message, 0) == 1 && message.msg_controllen);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	sees(fd, OLD, "receiver");
}

static void test(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[0], "-sees")) {
		sees(atoi(argv[1]), argv[2], "program");
		return;
	}
	int sockets[2];
	struct flag ask_out = new_flag(), told_out = new_flag();
	pthread_t thread;

	ask = new_flag(), told = new_flag();
	put("f", OLD);
	kept = MUST(open("f", O_RDWR));
	pid_t out = CHILD(outsider(ask_out, told_out));
	wait_for(told_out);
	MUST(pthread_create(&thread, NULL, other_thread, NULL) ? -1 : 0);
	MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets));
	pid_t receiver = CHILD(take_over(sockets[1]));

	/* Aborted: everything as before, the offset of the descriptor, too. */
	IS(lseek(kept, 7, SEEK_SET) == 7);
	IS(txn(BEGIN) == 1);
	sees(kept, OLD, "member that changed nothing");
	change();
	members_see(NEW, argv[-2]);
	IS(txn(BEGIN) == 2);
	IS(ftruncate(kept, 0) == 0);
	put("f", "inner transaction\n");
	members_see("inner transaction\n", argv[-2]);
	IS(txn(ABORT) == 0);
	members_see(NEW, argv[-2]);
	IS(txn(ABORT) == 0);
	IS(lseek(kept, 0, SEEK_CUR) == 7);
	members_see(OLD, argv[-2]);

	IS(txn(BEGIN) == 1);
	change();
	set(ask_out);
	wait_for(told_out);
	set(ask);
	wait_for(told);
	pass_on(sockets[0]);
	ENDS(receiver);
	IS(txn(BEGIN) == 2);
	members_see(NEW, argv[-2]);
	IS(txn(COMMIT) == 0);
	members_see(NEW, argv[-2]);
	FAILS(ENODEV, mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, kept, 0));
	IS(txn(COMMIT) == 0);
	members_see(NEW, argv[-2]);
	set(ask_out);
	wait_for(told_out);
	set(ask);
	wait_for(told);
	ENDS(out);
	pthread_join(thread, NULL);

	/* A file that never came into being. */
	IS(txn(BEGIN) == 1);
	int fresh = MUST(open("fresh", O_RDWR | O_CREAT | O_EXCL, 0644));
	IS(write(fresh, "fresh", 5) == 5 && !strcmp(get("fresh"), "fresh"));
	IS(txn(ABORT) == 0);
	FAILS(ENOENT, access("fresh", F_OK));
	FAILS(ESTALE, write(fresh, "x", 1));
	FAILS(ESTALE, ftruncate(fresh, 0));
	FAILS(ESTALE, fchmod(fresh, 0600));
	FAILS(ESTALE, fsync(fresh));
	close(fresh);
	/* fsync does not wait for what cannot be durable yet. */
	IS(txn(BEGIN) == 1);
	put("fresh", "fresh");
	fresh = MUST(open("fresh", O_RDWR));
	IS(fsync(fresh) == 0 && fdatasync(fresh) == 0 && syncfs(fresh) == 0);
	IS(txn(COMMIT) == 0);
	IS(write(fresh, "F", 1) == 1 && !strcmp(get("fresh"), "Fresh"));
}
