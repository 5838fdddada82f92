/* What programs that use transactions share. They make the reserved call themselves (crates/sys/src/tracees/txncall.rs): what a
 * library adds is tested with the library. A program prints one line for each thing that is not as it should be. */
#ifndef TXN_H
#define TXN_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { VERSION, BEGIN, COMMIT, ABORT, STATUS, SUSPEND, RESUME, ATTACH, DETACH, BEGIN_NAMED, ATTACH_NAMED, COMMIT_NAMED,
       ABORT_NAMED, LIST };
#define ID_LEN 32

__attribute__((unused)) static long txn_of(int op, pid_t target, char *id)
{
	static __thread char unused[ID_LEN];

	return syscall(0x616d6e, op, target, id ? id : unused, ID_LEN, 0);
}

#define txn(op) txn_of((op), 0, NULL)

static int *wrong_count;

static void wrong(const char *file, int line, const char *format, ...)
{
	char text[4096];
	va_list args;
	int length = snprintf(text, sizeof text, "%s:%d: ", file, line);

	va_start(args, format);
	length += vsnprintf(text + length, sizeof text - length - 1, format, args);
	va_end(args);
	text[length++] = '\n';
	if (write(1, text, length) != length)
		abort();
	/* Shared by all processes. */
	__atomic_add_fetch(wrong_count, 1, __ATOMIC_SEQ_CST);
}

/* Says so when something does not hold. */
#define IS(condition) \
	do { \
		errno = 0; \
		if (!(condition)) \
			wrong(__FILE__, __LINE__, "not so (%s): %s", strerrorname_np(errno), #condition); \
	} while (0)

/* A call that must fail with an errno. */
#define FAILS(error, call) \
	do { \
		errno = 0; \
		long long result_ = (long long)(call); \
		if (result_ != -1 || errno != (error)) \
			wrong(__FILE__, __LINE__, "%lld (%s) instead of %s: %s", result_, strerrorname_np(errno), #error, #call); \
	} while (0)

/* A call without which the rest makes no sense. */
#define MUST(call) \
	({ \
		long long must_ = (long long)(call); \
		if (must_ == -1) { \
			wrong(__FILE__, __LINE__, "%s: %s", #call, strerrorname_np(errno)); \
			_exit(99); \
		} \
		must_; \
	})

__attribute__((unused)) static void put(const char *path, const char *text)
{
	int fd = MUST(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));

	IS(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

/* The first bytes of a file; "-" for none of that name. The caller has to use it before the next call. */
__attribute__((unused)) static const char *get(const char *path)
{
	static __thread char text[4096];
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return errno == ENOENT ? "-" : strerrorname_np(errno);
	ssize_t got = read(fd, text, sizeof text - 1);
	text[got < 0 ? 0 : got] = 0;
	close(fd);
	return text;
}

__attribute__((unused)) static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Runs BODY in a child. */
#define CHILD(...) \
	({ \
		pid_t child_ = MUST(fork()); \
		if (child_ == 0) { \
			__VA_ARGS__; \
			_exit(0); \
		} \
		child_; \
	})

/* Waits for a child that must exit with 0. */
#define ENDS(child) \
	do { \
		int status_ = -1; \
		MUST(waitpid((child), &status_, 0)); \
		if (status_ != 0) \
			wrong(__FILE__, __LINE__, "status %x: %s", status_, #child); \
	} while (0)

/* A flag that one process sets and another waits for. */
struct flag {
	int fd[2];
};

__attribute__((unused)) static struct flag new_flag(void)
{
	struct flag flag;

	MUST(pipe2(flag.fd, O_CLOEXEC));
	return flag;
}

__attribute__((unused)) static void set(struct flag flag)
{
	IS(write(flag.fd[1], "", 1) == 1);
}

__attribute__((unused)) static void wait_for(struct flag flag)
{
	char byte;

	IS(read(flag.fd[0], &byte, 1) == 1);
}

static void test(int argc, char **argv);

/* The first argument is the directory under test. */
int main(int argc, char **argv)
{
	wrong_count = mmap(NULL, sizeof *wrong_count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (argc < 2 || wrong_count == MAP_FAILED || chdir(argv[1]))
		return 98;
	test(argc - 2, argv + 2);
	return *wrong_count ? 1 : 0;
}

#endif
