/* Writes in rows, as a process makes them that may write to files of a store itself, and between them what must see all of them: calls of
 * the same process, of its children, and of others that share the description; signals, ends of processes, limits. The file is compared with a
 * model of it, so that a write which went elsewhere or got lost shows. */
#include "step.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>

enum { SIZE = 400000, ROW = 300 };

static char model[SIZE], found[SIZE];
static long model_size;
static unsigned seed = 1;

static unsigned any(unsigned below)
{
	seed = seed * 1103515245 + 12345;
	return (seed >> 8) % below;
}

static void put(long at, const char *data, long length)
{
	memcpy(model + at, data, length);
	if (at + length > model_size)
		model_size = at + length;
}

/* Whether the file is as the model says, by a fresh descriptor, fstat(2) and stat(2). */
static bool is_as_model(const char *path, int fd)
{
	struct stat by_fd, by_path;
	int other = open(path, O_RDONLY);
	ssize_t got = pread(other, found, SIZE, 0);

	close(other);
	return fstat(fd, &by_fd) == 0 && stat(path, &by_path) == 0 && by_fd.st_size == model_size &&
	       by_path.st_size == model_size && got == model_size && memcmp(found, model, got) == 0;
}

/* Writes of many lengths, at the description's offset and elsewhere, and something else after each row. */
static int rows(int fd)
{
	char data[6000];
	int wrong = 0;

	for (int row = 0; row < 40; row++) {
		lseek(fd, any(SIZE / 4), SEEK_SET);
		for (int i = 0; i < ROW; i++) {
			long length = any(10) ? any(600) + 1 : any(sizeof data) + 1;
			long at = any(3) ? lseek(fd, 0, SEEK_CUR) : any(SIZE - sizeof data);

			memset(data, 'a' + any(26), length);
			if (at + length > SIZE)
				at = lseek(fd, 0, SEEK_SET);
			if (lseek(fd, 0, SEEK_CUR) == at)
				wrong += write(fd, data, length) != length;
			else
				wrong += pwrite(fd, data, length, at) != length;
			put(at, data, length);
		}
		switch (row % 5) {
		case 0: {
			long size = any(SIZE);

			wrong += ftruncate(fd, size) != 0;
			if (size < model_size)
				memset(model + size, 0, model_size - size);
			model_size = size;
			break;
		}
		case 1:
			wrong += fsync(fd) != 0;
			break;
		case 2:
			wrong += rename("file", "other") != 0 || rename("other", "file") != 0;
			break;
		case 3: {
			char *map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);

			wrong += map == MAP_FAILED || memcmp(map, model, model_size) != 0;
			munmap(map, SIZE);
			break;
		}
		default:
			break;
		}
		wrong += !is_as_model("file", fd);
	}
	return wrong;
}

/* Files that are written at once after they were made or truncated, by appends of many lengths, some of more than a page. */
static int made_anew(void)
{
	static char data[100000];
	int wrong = 0;

	for (int i = 0; i < 200; i++) {
		int how = any(2) ? O_TRUNC : O_EXCL;
		char name[16];

		snprintf(name, sizeof name, "new%d", how == O_EXCL ? i : any(i + 1));
		memset(model, 0, SIZE);
		model_size = 0;
		int fd = open(name, O_RDWR | O_CREAT | how | (any(3) ? 0 : O_APPEND), 0644);
		for (int j = any(5); j > 0; j--) {
			long length = any(3) ? any(5000) + 1 : any(sizeof data) + 1;

			if (model_size + length > SIZE)
				break;
			memset(data, 'a' + any(26), length);
			wrong += write(fd, data, length) != length;
			put(model_size, data, length);
		}
		wrong += !is_as_model(name, fd);
		close(fd);
		if (any(3) == 0)
			wrong += unlink(name) != 0;
	}
	return wrong;
}

/* What fstat(2) tells of a file that was just opened for writing, as stdio asks before its first write: like stat(2) afterwards, also when this process has
 * written meanwhile, or another has changed the file. */
static int looked_at(void)
{
	int wrong = 0;

	for (int i = 0; i < 400; i++) {
		struct stat by_fd, by_path;
		int how = any(3) ? O_TRUNC : O_APPEND, fd = open("looked", O_RDWR | O_CREAT | how, 0644);
		long size = lseek(fd, 0, SEEK_END);
		mode_t mode = 0600 + any(0100);
		int status;
		pid_t child;

		wrong += fstat(fd, &by_fd) != 0 || by_fd.st_size != size;
		switch (any(6)) {
		case 0:
			wrong += write(fd, "written", 7) != 7;
			size += 7;
			break;
		case 1:
		case 2:
			child = any(2) ? fork() : vfork();
			if (child == 0)
				_exit(fstat(fd, &by_fd) != 0 || by_fd.st_size != size ||
				      write(fd, "by a child", 10) != 10 || chmod("looked", mode) != 0);
			wrong += waitpid(child, &status, 0) != child || status != 0 || fstat(fd, &by_fd) != 0 ||
				 (by_fd.st_mode & 0777) != mode;
			size += 10;
			break;
		case 3:
			wrong += ftruncate(fd, 5000) != 0 || fstat(fd, NULL) == 0;
			size = 5000;
			break;
		default:
			break;
		}
		wrong += fstat(fd, &by_fd) != 0 || by_fd.st_size != size;
		wrong += stat("looked", &by_path) != 0 || memcmp(&by_fd, &by_path, sizeof by_fd) != 0;
		close(fd);
	}
	return wrong;
}

/* Both processes write records of one byte's repetition through one description: each record must be there once, whole. */
static int by_two(void)
{
	enum { RECORD = 64, EACH = 3000 };
	char record[RECORD];
	long count[2] = { 0, 0 };
	int fd = open("shared", O_RDWR | O_CREAT | O_TRUNC, 0644), status;
	pid_t child = fork();

	memset(record, child ? 'p' : 'c', RECORD);
	for (int i = 0; i < EACH; i++)
		if (write(fd, record, RECORD) != RECORD)
			_exit(1);
	if (child == 0)
		_exit(0);
	MUST(waitpid(child, &status, 0));
	MUST(lseek(fd, 0, SEEK_SET));
	for (long i = 0; read(fd, record, RECORD) == RECORD; i++) {
		for (int j = 1; j < RECORD; j++)
			if (record[j] != record[0])
				return -1;
		count[record[0] == 'p']++;
	}
	close(fd);
	return status == 0 && count[0] == EACH && count[1] == EACH;
}

static volatile sig_atomic_t alarms;

static void on_alarm(int signal)
{
	struct stat st;

	(void)signal;
	alarms++;
	stat("file", &st);
}

/* With a timer whose handler makes calls. */
static int with_alarms(void)
{
	struct itimerval often = { { 0, 1000 }, { 0, 1000 } }, never = { { 0, 0 }, { 0, 0 } };
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	int fd = open("alarms", O_RDWR | O_CREAT | O_TRUNC, 0644), wrong = 0;
	long size = 0;
	char number[8], text[9];

	MUST(sigaction(SIGALRM, &action, NULL));
	MUST(setitimer(ITIMER_REAL, &often, NULL));
	for (int i = 0; i < 20000; i++) {
		snprintf(text, sizeof text, "%08d", i);
		wrong += write(fd, text, 8) != 8;
		size += 8;
	}
	MUST(setitimer(ITIMER_REAL, &never, NULL));
	wrong += lseek(fd, 0, SEEK_END) != size;
	for (int i = 0; i < 20000; i++) {
		snprintf(text, sizeof text, "%08d", i);
		wrong += pread(fd, number, 8, i * 8L) != 8 || memcmp(number, text, 8) != 0;
	}
	close(fd);
	return wrong == 0 && alarms > 0;
}

/* A child writes until it is killed. Its file must have the size that it has content, in whole records. */
static int of_the_killed(void)
{
	int wrong = 0;

	for (int i = 0; i < 20; i++) {
		int fd = open("killed", O_RDWR | O_CREAT | O_TRUNC, 0644);
		char record[512];
		struct stat st;
		pid_t child = fork();

		if (child == 0)
			for (;;) {
				memset(record, 'k', sizeof record);
				if (write(fd, record, sizeof record) < 0)
					_exit(1);
			}
		usleep(2000 + 700 * i);
		kill(child, SIGKILL);
		MUST(waitpid(child, NULL, 0));
		MUST(stat("killed", &st));
		wrong += st.st_size % 512 != 0 || lseek(fd, 0, SEEK_END) != st.st_size;
		for (long at = 0; at < st.st_size; at += 512)
			wrong += pread(fd, record, 512, at) != 512 || record[0] != 'k' || record[511] != 'k';
		close(fd);
	}
	return wrong;
}

/* The times follow the writes, and their order is that of the writes. */
static int times_in_order(void)
{
	int one = open("one", O_RDWR | O_CREAT | O_TRUNC, 0644), two, wrong = 0;
	struct stat first, second;

	for (int i = 0; i < 100; i++)
		wrong += write(one, "x", 1) != 1;
	two = open("two", O_RDWR | O_CREAT | O_TRUNC, 0644);
	for (int i = 0; i < 100; i++)
		wrong += write(two, "x", 1) != 1;
	MUST(fstat(one, &first));
	MUST(fstat(two, &second));
	wrong += second.st_mtim.tv_sec < first.st_mtim.tv_sec ||
		 (second.st_mtim.tv_sec == first.st_mtim.tv_sec &&
		  second.st_mtim.tv_nsec < first.st_mtim.tv_nsec);
	usleep(20000);
	wrong += write(one, "x", 1) != 1;
	MUST(fstat(one, &first));
	wrong += first.st_mtim.tv_sec < second.st_mtim.tv_sec ||
		 (first.st_mtim.tv_sec == second.st_mtim.tv_sec &&
		  first.st_mtim.tv_nsec <= second.st_mtim.tv_nsec);
	close(one);
	close(two);
	return wrong;
}

/* What a write answers that does not do what it was asked for. */
static void refused(void)
{
	int fd = open("refused", O_RDWR | O_CREAT | O_TRUNC, 0644), reader = open("refused", O_RDONLY);
	int end = open("refused", O_WRONLY | O_APPEND), sync = open("refused", O_WRONLY | O_SYNC);
	struct rlimit limit = { 8192, RLIM_INFINITY };
	char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int i;

	munmap(page + 4096, 4096);
	memset(page, 'y', 4096);
	for (i = 0; i < 100; i++)
		MUST(write(fd, "0123456789", 10));
	T("reader", write(reader, "x", 1));
	T("bad buffer", write(fd, page + 4096, 100));
	T("end of memory", write(fd, page + 4086, 100));
	T("offset", lseek(fd, 0, SEEK_CUR));
	T("negative", pwrite(fd, "x", 1, -1));
	T("nothing", write(fd, page, 0));
	for (i = 0; i < 100; i++)
		MUST(write(end, "append", 6));
	for (i = 0; i < 100; i++)
		MUST(pwrite(end, "append", 6, 0));
	for (i = 0; i < 100; i++)
		MUST(write(sync, "s", 1));
	SHOW("refused");
	MUST(fcntl(fd, F_SETFL, O_APPEND));
	MUST(lseek(fd, 0, SEEK_SET));
	for (i = 0; i < 100; i++)
		MUST(write(fd, "z", 1));
	T("offset", lseek(fd, 0, SEEK_CUR));
	MUST(fcntl(fd, F_SETFL, 0));
	signal(SIGXFSZ, SIG_IGN);
	MUST(setrlimit(RLIMIT_FSIZE, &limit));
	MUST(lseek(fd, 8000, SEEK_SET));
	for (i = 0; i < 10; i++)
		T("limited", write(fd, page, 100));
	limit.rlim_cur = RLIM_INFINITY;
	MUST(setrlimit(RLIMIT_FSIZE, &limit));
	SHOW("refused");
	CONTENT("refused");
	close(fd);
	close(reader);
	close(end);
	close(sync);
}

static void steps(void)
{
	int fd = open("file", O_RDWR | O_CREAT, 0644), copy;

	note("rows: %d", rows(fd));
	copy = dup(fd);
	note("rows by a copy: %d", rows(copy));
	CHILD("rows of a child", note("%d", rows(fd)));
	MUST(ftruncate(fd, 0));
	memset(model, 0, SIZE);
	model_size = 0;
	MUST(unlink("file"));
	for (int i = 0; i < 1000; i++)
		MUST(write(fd, "unlinked", 8));
	close(copy);
	SHOW_FD("without a name", fd);
	close(fd);
	fd = open("file", O_RDWR | O_CREAT, 0644);
	for (int i = 0; i < 1000; i++)
		MUST(write(fd, "x", 1));
	MUST(chmod("file", 04755));
	for (int i = 0; i < 1000; i++)
		MUST(write(fd, "y", 1));
	SHOW("file");
	close(fd);
	note("made anew: %d", made_anew());
	note("looked at: %d", looked_at());
	note("by two: %d", by_two());
	note("with alarms: %d", with_alarms());
	note("of the killed: %d", of_the_killed());
	note("times: %d", times_in_order());
	refused();
}
