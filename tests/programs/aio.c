/* Linux AIO: contexts, requests of each kind and their errors, events by calls and from the ring, waits, eventfds, threads. */
#include "step.h"

#include <linux/aio_abi.h>
#include <pthread.h>
#include <sys/eventfd.h>

/* The header of the kernel's ring, which programs read. */
struct ring {
	unsigned id, nr, head, tail, magic, compat, incompat, header_length;
};

enum { WRITERS = 4, WRITES = 100 };

static aio_context_t ctx;
static char block[4096];

static long submit(aio_context_t in, long count, struct iocb **requests)
{
	return syscall(SYS_io_submit, in, count, requests);
}

static long events_of(aio_context_t in, long least, long most, struct io_event *events, long milliseconds)
{
	struct timespec limit = {milliseconds / 1000, milliseconds % 1000 * 1000000};

	return syscall(SYS_io_getevents, in, least, most, events, milliseconds < 0 ? NULL : &limit);
}

static struct iocb request(int opcode, int fd, const void *buffer, size_t len, long offset)
{
	return (struct iocb){.aio_lio_opcode = opcode, .aio_fildes = fd, .aio_buf = (uintptr_t)buffer,
			     .aio_nbytes = len, .aio_offset = offset, .aio_data = 77};
}

/* Submits a request, and says what its event shows. */
static void perform(int line, const char *name, struct iocb *one)
{
	struct io_event event = {0};
	long submitted = submit(ctx, 1, &one);

	if (submitted != 1) {
		say(line, name, submitted, errno);
		return;
	}
	MUST(events_of(ctx, 1, 1, &event, -1));
	bool is_its = event.data == one->aio_data && event.obj == (uintptr_t)one && event.res2 == 0;
	if (event.res < 0 && event.res >= -4095)
		note("%d %s: event %s, %s", line, name, strerrorname_np(-event.res), is_its ? "its own" : "another");
	else
		note("%d %s: event %lld, %s", line, name, (long long)event.res, is_its ? "its own" : "another");
}

#define PERFORM(name, ...) \
	do { \
		struct iocb one_ = __VA_ARGS__; \
		perform(__LINE__, (name), &one_); \
	} while (0)

static void contexts(void)
{
	aio_context_t other = 0;
	struct io_event event;
	struct iocb one = request(IOCB_CMD_FSYNC, 0, NULL, 0, 0), *list[1] = {&one};

	T("no places", syscall(SYS_io_setup, 0, &other));
	T("nowhere", syscall(SYS_io_setup, 8, NULL));
	other = 5;
	T("not zero", syscall(SYS_io_setup, 8, &other));
	other = 0;
	T("another one", syscall(SYS_io_setup, 8, &other));
	IS("it is a ring", ((struct ring *)other)->magic == 0xa10a10a1 && ((struct ring *)other)->nr > 8);
	T("no requests", submit(other, 0, NULL));
	T("a negative number", submit(other, -1, NULL));
	T("no context", submit(0, 1, list));
	T("something else as context", submit((aio_context_t)block, 1, list));
	T("no list", submit(other, 1, NULL));
	list[0] = (struct iocb *)8;
	T("no request", submit(other, 1, list));
	T("no events", events_of(other, 0, 1, &event, 0));
	T("none within 30 ms", events_of(other, 1, 1, &event, 30));
	T("more than fit in the array", events_of(other, 2, 1, &event, 0));
	T("less than none", events_of(other, -1, 1, &event, 0));
	T("events of no context", events_of(0, 0, 1, &event, 0));
	T("a limit nowhere", syscall(SYS_io_getevents, other, 0, 1, &event, (void *)8));
	T("cancel nothing", syscall(SYS_io_cancel, other, &one, &event));
	T("destroy it", syscall(SYS_io_destroy, other));
	T("destroy it again", syscall(SYS_io_destroy, other));
	T("submit to it", submit(other, 0, NULL));
	T("its events", events_of(other, 0, 1, &event, 0));
}

static void transfers(void)
{
	char read_back[64] = {0};
	struct iovec two[2] = {{"ab", 2}, {"cdef", 4}}, into[2] = {{read_back, 3}, {read_back + 10, 20}};
	int fd = MUST(open("f", O_RDWR | O_CREAT | O_TRUNC, 0644));
	int appends = MUST(open("f", O_WRONLY | O_APPEND));
	char *unmapped = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	PERFORM("write", request(IOCB_CMD_PWRITE, fd, "hello", 5, 3));
	PERFORM("write nothing", request(IOCB_CMD_PWRITE, fd, "hello", 0, 3));
	PERFORM("write a vector", request(IOCB_CMD_PWRITEV, fd, two, 2, 20));
	PERFORM("append", request(IOCB_CMD_PWRITE, appends, "end", 3, 0));
	CONTENT("f");
	PERFORM("read", request(IOCB_CMD_PREAD, fd, read_back, 4, 4));
	note("read: %s", read_back);
	PERFORM("read to the end", request(IOCB_CMD_PREAD, fd, read_back, 64, 20));
	note("read: %s", read_back);
	PERFORM("read behind the end", request(IOCB_CMD_PREAD, fd, read_back, 64, 200));
	memset(read_back, 0, sizeof read_back);
	PERFORM("read a vector", request(IOCB_CMD_PREADV, fd, into, 2, 20));
	note("read: %s and %s", read_back, read_back + 10);
	IS("the offset is as it was", lseek(fd, 0, SEEK_CUR) == 0);
	PERFORM("fsync", request(IOCB_CMD_FSYNC, fd, NULL, 0, 0));
	PERFORM("fdatasync", request(IOCB_CMD_FDSYNC, fd, NULL, 0, 0));
	PERFORM("fsync with a length", request(IOCB_CMD_FSYNC, fd, NULL, 1, 0));
	PERFORM("read into what cannot be written", request(IOCB_CMD_PREAD, fd, unmapped, 4, 0));
	PERFORM("write what cannot be read", request(IOCB_CMD_PWRITE, fd, unmapped, 4, 0));
	PERFORM("a vector nowhere", request(IOCB_CMD_PWRITEV, fd, (void *)8, 2, 0));
	PERFORM("a vector that is too long", request(IOCB_CMD_PWRITEV, fd, two, 1025, 0));
	PERFORM("before the start", request(IOCB_CMD_PWRITE, fd, "hello", 5, -5));
	PERFORM("no descriptor", request(IOCB_CMD_PWRITE, -1, "hello", 5, 0));
	PERFORM("read what is open for writing", request(IOCB_CMD_PREAD, appends, read_back, 4, 0));
	int readable = MUST(open("f", O_RDONLY)), path = MUST(open("f", O_PATH)), dir = MUST(open(".", O_RDONLY));
	PERFORM("write what is open for reading", request(IOCB_CMD_PWRITE, readable, "hello", 5, 0));
	PERFORM("fsync what is open for reading", request(IOCB_CMD_FSYNC, readable, NULL, 0, 0));
	PERFORM("a path", request(IOCB_CMD_PREAD, path, read_back, 4, 0));
	PERFORM("a directory", request(IOCB_CMD_PREAD, dir, read_back, 4, 0));
	PERFORM("fsync a directory", request(IOCB_CMD_FSYNC, dir, NULL, 0, 0));
	PERFORM("an unknown operation", request(99, fd, read_back, 4, 0));
	struct iocb odd = request(IOCB_CMD_PWRITE, fd, "synced", 6, 40);
	odd.aio_rw_flags = RWF_DSYNC;
	perform(__LINE__, "write and sync", &odd);
	odd.aio_rw_flags = 1 << 20;
	perform(__LINE__, "an unknown flag", &odd);
	odd.aio_rw_flags = 0;
	odd.aio_reserved2 = 1;
	perform(__LINE__, "a reserved field", &odd);
	odd = request(IOCB_CMD_PWRITE, fd, block, (size_t)-1, 0);
	perform(__LINE__, "a negative length", &odd);

	struct rlimit old, limit;
	struct io_event limited[2];
	struct iocb within = request(IOCB_CMD_PWRITE, fd, "0123456789", 10, 45), *both[] = {&within, &odd};
	odd = request(IOCB_CMD_PWRITE, fd, "0123456789", 10, 50);
	signal(SIGXFSZ, SIG_IGN);
	MUST(getrlimit(RLIMIT_FSIZE, &old));
	limit = old;
	limit.rlim_cur = 50;
	setrlimit(RLIMIT_FSIZE, &limit);
	long submitted = submit(ctx, 2, both);
	setrlimit(RLIMIT_FSIZE, &old);
	T("up to the limit of sizes, and beyond", submitted);
	T("their events", events_of(ctx, 2, 2, limited, -1));
	note("%lld and %lld", (long long)limited[0].res, (long long)limited[1].res);
	SHOW("f");
	CONTENT("f");

	char other_path[PATH_MAX];
	snprintf(other_path, sizeof other_path, "%s/aio-file", host_path);
	int other = MUST(open(other_path, O_RDWR | O_CREAT | O_TRUNC, 0644));
	PERFORM("write a file of the host", request(IOCB_CMD_PWRITE, other, "hello", 5, 3));
	PERFORM("write a vector there", request(IOCB_CMD_PWRITEV, other, two, 2, 20));
	memset(read_back, 0, sizeof read_back);
	PERFORM("read it", request(IOCB_CMD_PREAD, other, read_back, 64, 20));
	note("read: %s", read_back);
	PERFORM("fsync it", request(IOCB_CMD_FSYNC, other, NULL, 0, 0));
	char *large = malloc(5 << 20);
	for (int i = 0; i < 5 << 20; i++)
		large[i] = i / 1000;
	PERFORM("write 5 MiB there", request(IOCB_CMD_PWRITE, other, large, 5 << 20, 1));
	PERFORM("copy them", request(IOCB_CMD_PWRITE, fd, large, 5 << 20, 1));
	char *again = calloc(5 << 20, 1);
	PERFORM("read them there", request(IOCB_CMD_PREAD, other, again, 5 << 20, 1));
	IS("they are as they were", memcmp(large, again, 5 << 20) == 0);
	memset(again, 0, 5 << 20);
	PERFORM("read the copy", request(IOCB_CMD_PREAD, fd, again, 5 << 20, 1));
	IS("they are as they were", memcmp(large, again, 5 << 20) == 0);
	free(large);
	free(again);
	close(other);
	for (int each = fd; each <= dir; each++)
		close(each);
	munmap(unmapped, 4096);
}

static void several(void)
{
	struct io_event events[4];
	int fd = MUST(open("g", O_RDWR | O_CREAT | O_TRUNC, 0644)), notified = MUST(eventfd(0, EFD_NONBLOCK));
	struct iocb a = request(IOCB_CMD_PWRITE, fd, "aa", 2, 0), b = request(IOCB_CMD_PWRITE, fd, "bb", 2, 2);
	struct iocb bad = request(IOCB_CMD_PWRITE, -1, "cc", 2, 2), *list[] = {&a, &b, &bad, &a};
	uint64_t count = 0;

	a.aio_data = 1;
	b.aio_data = 2;
	T("three, the last one is bad", submit(ctx, 4, list));
	T("at most one", events_of(ctx, 1, 1, events, -1));
	T("at least none", events_of(ctx, 0, 4, events + 1, -1));
	IS("in order", events[0].data == 1 && events[1].data == 2);
	T("two into an array nowhere", (submit(ctx, 2, list), events_of(ctx, 1, 4, (void *)8, -1)));
	T("they are still there", events_of(ctx, 2, 4, events, -1));
	CONTENT("g");

	a.aio_flags = b.aio_flags = IOCB_FLAG_RESFD;
	a.aio_resfd = b.aio_resfd = notified;
	T("two with an eventfd", submit(ctx, 2, list));
	T("it counts", read(notified, &count, sizeof count));
	note("%d events", (int)count);
	T("two", events_of(ctx, 2, 4, events, -1));
	a.aio_resfd = -1;
	T("no descriptor to notify", submit(ctx, 1, list));
	a.aio_resfd = fd;
	T("no eventfd", submit(ctx, 1, list));
	a.aio_flags = 0;

	volatile struct ring *ring = (struct ring *)ctx;
	T("one more", submit(ctx, 1, list));
	IS("the ring has one event", (ring->tail + ring->nr - ring->head) % ring->nr == 1);
	struct io_event *in_ring = (struct io_event *)((char *)ring + ring->header_length) + ring->head;
	note("its result is %lld", (long long)in_ring->res);
	ring->head = (ring->head + 1) % ring->nr;
	T("it was taken from there", events_of(ctx, 0, 4, events, 0));
	T("io_pgetevents", (submit(ctx, 1, list), syscall(333, ctx, 1, 4, events, NULL, NULL)));

	int accepted = 0;
	while (accepted < 100000 && submit(ctx, 1, list) == 1)
		accepted++;
	T("one too many", submit(ctx, 1, list));
	int taken = 0;
	for (long got; (got = events_of(ctx, 0, 4, events, 0)) > 0;)
		taken += got;
	IS("as many events", accepted >= 64 && accepted == taken);

	/* Each request once, also where the call has to stop at one that it cannot perform yet. */
	int appended = MUST(open("twice", O_WRONLY | O_CREAT | O_APPEND, 0644)), last = MUST(dup(appended));
	struct iocb one = request(IOCB_CMD_PWRITE, appended, "once ", 5, 0);
	struct iocb two = request(IOCB_CMD_PWRITE, last, "last", 4, 0), *both[] = {&one, &two};
	for (int submitted = 0; submitted < 2;)
		submitted += MUST(submit(ctx, 2 - submitted, both + submitted));
	T("two by two descriptors", events_of(ctx, 2, 4, events, -1));
	CONTENT("twice");
	close(appended);
	close(last);

	static struct iocb many[300];
	static struct io_event all[400];
	struct iocb *all_requests[300];
	aio_context_t large = 0;
	MUST(syscall(SYS_io_setup, 400, &large));
	for (int i = 0; i < 300; i++) {
		many[i] = request(IOCB_CMD_PWRITE, fd, &many[i].aio_data, 8, 8 * i);
		many[i].aio_data = i;
		all_requests[i] = &many[i];
	}
	all_requests[290] = (struct iocb *)8;
	T("many, one of them nowhere", submit(large, 300, all_requests));
	all_requests[290] = &bad;
	T("many, one of them bad", submit(large, 20, all_requests + 280));
	T("their events", events_of(large, 300, 400, all, -1));
	int in_order = 0;
	for (uint64_t i = 0, found; i < 290; i++)
		in_order += all[i].data == i && all[i].res == 8 && pread(fd, &found, 8, 8 * i) == 8 && found == i;
	note("%d are right", in_order);
	MUST(syscall(SYS_io_destroy, large));
	close(fd);
	close(notified);
}

static void handle(int signal)
{
	(void)signal;
}

static void *write_later(void *fd)
{
	for (int i = 0; i < 2; i++) {
		struct iocb one = request(IOCB_CMD_PWRITE, (intptr_t)fd, "late", 4, 4 * i), *list[] = {&one};

		usleep(60000);
		submit(ctx, 1, list);
	}
	return NULL;
}

static void *write_many(void *number)
{
	int fd = open("shared", O_WRONLY);

	for (long i = 0; i < WRITES; i++) {
		long at = (long)number * WRITES + i;
		struct iocb one = request(IOCB_CMD_PWRITE, fd, &at, sizeof at, at * sizeof at), *list[] = {&one};

		while (submit(ctx, 1, list) != 1)
			usleep(1000);
	}
	close(fd);
	return NULL;
}

static void waits(void)
{
	struct io_event events[8];
	int fd = MUST(open("h", O_RDWR | O_CREAT | O_TRUNC, 0644));
	pthread_t thread, writers[WRITERS];

	MUST(pthread_create(&thread, NULL, write_later, (void *)(intptr_t)fd));
	T("two that come later", events_of(ctx, 2, 8, events, -1));
	pthread_join(thread, NULL);
	MUST(pthread_create(&thread, NULL, write_later, (void *)(intptr_t)fd));
	T("at least one within 5 s", events_of(ctx, 1, 1, events, 5000));
	pthread_join(thread, NULL);
	T("the other one", events_of(ctx, 1, 1, events, -1));
	CONTENT("h");

	for (int kind = 0; kind < 4; kind++) {
		struct sigaction action = {.sa_handler = handle, .sa_flags = kind & 1 ? SA_RESTART : 0};
		struct timeval soon = {.tv_usec = kind & 2 ? 2000 : 60000};
		struct itimerval repeated = {soon, soon}, none = {0};

		MUST(sigaction(SIGALRM, &action, NULL));
		MUST(setitimer(ITIMER_REAL, &repeated, NULL));
		long got = events_of(ctx, 1, 1, events, -1);
		int error = errno;
		MUST(setitimer(ITIMER_REAL, &none, NULL));
		say(__LINE__, "a wait that a signal ends", got, error);
	}
	T("nothing is left", events_of(ctx, 0, 8, events, 0));

	close(MUST(open("shared", O_WRONLY | O_CREAT | O_TRUNC, 0644)));
	for (long i = 0; i < WRITERS; i++)
		MUST(pthread_create(&writers[i], NULL, write_many, (void *)i));
	int good = 0;
	for (int taken = 0; taken < WRITERS * WRITES;) {
		long got = events_of(ctx, 1, 8, events, 5000);
		if (got <= 0)
			break;
		for (long i = 0; i < got; i++)
			good += events[i].res == sizeof(long);
		taken += got;
	}
	note("%d of %d writes of several threads", good, WRITERS * WRITES);
	for (long i = 0; i < WRITERS; i++)
		pthread_join(writers[i], NULL);
	int shared = MUST(open("shared", O_RDONLY)), right = 0;
	for (long i = 0, found; i < WRITERS * WRITES && read(shared, &found, sizeof found) == sizeof found; i++)
		right += found == i;
	note("%d are right", right);
	close(shared);
	close(fd);
}

static volatile sig_atomic_t broken_pipes;

static void count_broken_pipe(int signal)
{
	(void)signal;
	broken_pipes++;
}

static void *send_later(void *fd)
{
	usleep(60000);
	MUST(write((intptr_t)fd, "later", 5));
	return NULL;
}

static void *receive_later(void *fd)
{
	static char all[1 << 20];

	usleep(60000);
	for (size_t taken = 0; taken < sizeof all;) {
		ssize_t got = read((intptr_t)fd, all, sizeof all);
		if (got <= 0)
			break;
		taken += got;
	}
	return NULL;
}

static struct iocb without_waiting(struct iocb one)
{
	one.aio_rw_flags = RWF_NOWAIT;
	return one;
}

/* What has no offsets. */
static void streams(void)
{
	char got[16] = {0};
	struct iovec two[2] = {{"ab", 2}, {"cdef", 4}}, into[2] = {{got, 3}, {got + 8, 3}};
	int ends[2], pair[2];
	pthread_t thread;

	MUST(pipe2(ends, O_CLOEXEC));
	PERFORM("an empty pipe", without_waiting(request(IOCB_CMD_PREAD, ends[0], got, 5, 0)));
	PERFORM("write to it", request(IOCB_CMD_PWRITE, ends[1], "hello", 5, 0));
	PERFORM("write at an offset", request(IOCB_CMD_PWRITE, ends[1], "world", 5, 100));
	PERFORM("before the start", request(IOCB_CMD_PWRITE, ends[1], "world", 5, -1));
	PERFORM("read some of it", request(IOCB_CMD_PREAD, ends[0], got, 7, 3));
	note("read: %s", got);
	PERFORM("read the rest", request(IOCB_CMD_PREAD, ends[0], got, sizeof got, 0));
	PERFORM("write a vector", request(IOCB_CMD_PWRITEV, ends[1], two, 2, 0));
	memset(got, 0, sizeof got);
	PERFORM("read a vector", request(IOCB_CMD_PREADV, ends[0], into, 2, 0));
	note("read: %s and %s", got, got + 8);
	PERFORM("read the end for writing", request(IOCB_CMD_PREAD, ends[1], got, 5, 0));
	PERFORM("write the end for reading", request(IOCB_CMD_PWRITE, ends[0], got, 5, 0));
	PERFORM("fsync", request(IOCB_CMD_FSYNC, ends[1], NULL, 0, 0));
	PERFORM("write what cannot be read", request(IOCB_CMD_PWRITE, ends[1], (void *)8, 5, 0));
	memset(got, 0, sizeof got);
	MUST(pthread_create(&thread, NULL, send_later, (void *)(intptr_t)ends[1]));
	PERFORM("wait for what is written later", request(IOCB_CMD_PREAD, ends[0], got, sizeof got, 0));
	pthread_join(thread, NULL);
	note("read: %s", got);
	MUST(fcntl(ends[0], F_SETFL, O_NONBLOCK));
	PERFORM("a pipe that does not block", request(IOCB_CMD_PREAD, ends[0], got, 5, 0));
	MUST(fcntl(ends[0], F_SETFL, 0));

	MUST(fcntl(ends[1], F_SETFL, O_NONBLOCK));
	while (write(ends[1], block, sizeof block) > 0)
		;
	PERFORM("a full one that does not block", request(IOCB_CMD_PWRITE, ends[1], "x", 1, 0));
	MUST(fcntl(ends[1], F_SETFL, 0));
	PERFORM("a full one", without_waiting(request(IOCB_CMD_PWRITE, ends[1], "x", 1, 0)));
	MUST(pthread_create(&thread, NULL, receive_later, (void *)(intptr_t)ends[0]));
	PERFORM("wait for room", request(IOCB_CMD_PWRITE, ends[1], block, sizeof block, 0));
	close(ends[1]);
	pthread_join(thread, NULL);
	PERFORM("nobody writes", request(IOCB_CMD_PREAD, ends[0], got, 5, 0));
	close(ends[0]);

	MUST(pipe2(ends, O_CLOEXEC));
	close(ends[0]);
	signal(SIGPIPE, count_broken_pipe);
	PERFORM("nobody reads", request(IOCB_CMD_PWRITE, ends[1], "hello", 5, 0));
	note("%d signals", broken_pipes);
	close(ends[1]);

	MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
	PERFORM("write to a socket", request(IOCB_CMD_PWRITE, pair[0], "hello", 5, 0));
	memset(got, 0, sizeof got);
	PERFORM("read the other one", request(IOCB_CMD_PREAD, pair[1], got, sizeof got, 0));
	note("read: %s", got);
	PERFORM("an empty socket", without_waiting(request(IOCB_CMD_PREAD, pair[1], got, 5, 0)));
	MUST(pthread_create(&thread, NULL, send_later, (void *)(intptr_t)pair[0]));
	PERFORM("wait for what is sent later", request(IOCB_CMD_PREAD, pair[1], got, sizeof got, 0));
	pthread_join(thread, NULL);
	note("read: %s", got);
	close(pair[1]);
	PERFORM("the other one is closed", request(IOCB_CMD_PWRITE, pair[0], "hello", 5, 0));
	note("%d signals", broken_pipes);
	close(pair[0]);

	int zero = MUST(open("/dev/zero", O_RDWR));
	memset(got, 'x', sizeof got);
	PERFORM("read a device", request(IOCB_CMD_PREAD, zero, got, 8, 5));
	IS("zeroes", memcmp(got, (char[9]){[8] = 'x'}, 9) == 0);
	PERFORM("write to it", request(IOCB_CMD_PWRITE, zero, "hello", 5, 0));
	close(zero);

	MUST(mkfifo("fifo", 0600));
	int fifo = MUST(open("fifo", O_RDWR));
	PERFORM("write to a fifo", request(IOCB_CMD_PWRITE, fifo, "hello", 5, 0));
	memset(got, 0, sizeof got);
	PERFORM("read it", request(IOCB_CMD_PREAD, fifo, got, sizeof got, 0));
	note("read: %s", got);
	PERFORM("an empty fifo", without_waiting(request(IOCB_CMD_PREAD, fifo, got, 5, 0)));
	memset(got, 0, sizeof got);
	MUST(pthread_create(&thread, NULL, send_later, (void *)(intptr_t)fifo));
	PERFORM("wait for what is written later", request(IOCB_CMD_PREAD, fifo, got, sizeof got, 0));
	pthread_join(thread, NULL);
	note("read: %s", got);
	int writes = MUST(open("fifo", O_WRONLY));
	close(fifo);
	PERFORM("nobody reads it", request(IOCB_CMD_PWRITE, writes, "hello", 5, 0));
	note("%d signals", broken_pipes);
	close(writes);
}

static void steps(void)
{
	contexts();
	T("a context", syscall(SYS_io_setup, 64, &ctx));
	transfers();
	several();
	waits();
	streams();
	T("destroy it", syscall(SYS_io_destroy, ctx));
}
