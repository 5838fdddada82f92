/* What every tracee program shares: one line of output a step, so that two runs can be compared line by line.
 *
 * A program gets two directories: the first is where the file system under test is, and it works in a new `w` there
 * (in the directory itself with STEP_IN_PLACE); the second is on the host in every run. It prints
 * `LINE NAME: RESULT`, with the errno's name instead of the result when a call failed. Whatever may differ between
 * two file systems that are both right (inode numbers, sizes of directories, block counts, absolute times) is
 * printed only as a relation.
 */
#ifndef STEP_H
#define STEP_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define NOBODY 65534

/* The program as it was started, for those that start themselves again. */
static char *self_path;
/* Further arguments. */
static char **arguments;
/* The directory under test, and one on the host. */
static char *top_path, *host_path;

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...)
{
	char line[8192];
	va_list args;
	int saved = errno;

	va_start(args, format);
	int length = vsnprintf(line, sizeof line - 1, format, args);
	va_end(args);
	if (length < 0)
		abort();
	if (length > (int)sizeof line - 2)
		length = sizeof line - 2;
	line[length++] = '\n';
	/* One call a line: lines of several processes never mix. */
	if (write(1, line, length) != length)
		abort();
	errno = saved;
}

static void say(int line, const char *name, long long result, int error)
{
	if (result == -1 && error) {
		const char *text = strerrorname_np(error);
		note("%d %s: %s", line, name, text ? text : "unknown errno");
	} else {
		note("%d %s: %lld", line, name, result);
	}
}

/* One step: the result of a call, or its errno. */
#define T(name, expression) \
	do { \
		errno = 0; \
		long long result_ = (long long)(expression); \
		say(__LINE__, (name), result_, errno); \
	} while (0)

/* One step that opens something and closes it again: nothing is left over when it works where it should not. */
#define O(name, expression) \
	do { \
		errno = 0; \
		int fd_ = (int)(expression); \
		if (fd_ >= 0) \
			note("%d %s: opened", __LINE__, (name)); \
		else \
			say(__LINE__, (name), fd_, errno); \
		if (fd_ >= 0) \
			close(fd_); \
	} while (0)

/* Whether something holds. */
#define IS(name, condition) note("%d %s: %s", __LINE__, (name), (condition) ? "yes" : "no")

/* The result of a call that changes nothing, made again after ELOOP. A path walk that the kernel begins anew, as it does when it meets a change on
 * its way, goes on counting links, so 40 of them are then too many. */
#define AGAIN_AFTER_ELOOP(expression) \
	({ \
		long long again_; \
		int attempts_ = 3; \
		do { \
			errno = 0; \
			again_ = (long long)(expression); \
		} while (again_ == -1 && errno == ELOOP && --attempts_ > 0); \
		again_; \
	})

/* Must work for the program to make sense at all. */
#define MUST(expression) \
	({ \
		long long must_ = (long long)(expression); \
		if (must_ == -1) { \
			note("%d %s: %s", __LINE__, #expression, strerrorname_np(errno)); \
			_exit(99); \
		} \
		must_; \
	})

static char type_letter(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFREG: return '-';
	case S_IFDIR: return 'd';
	case S_IFLNK: return 'l';
	case S_IFIFO: return 'p';
	case S_IFSOCK: return 's';
	case S_IFCHR: return 'c';
	case S_IFBLK: return 'b';
	default: return '?';
	}
}

__attribute__((unused)) static void show_stat(int line, const char *name, const struct stat *st)
{
	/* The size of a directory is the file system's own affair. */
	long long size = S_ISDIR(st->st_mode) ? -1 : (long long)st->st_size;

	note("%d %s: %c%04o nlink=%lu uid=%u gid=%u size=%lld rdev=%u:%u", line, name, type_letter(st->st_mode),
	     st->st_mode & 07777, (unsigned long)st->st_nlink, st->st_uid, st->st_gid, size, major(st->st_rdev),
	     minor(st->st_rdev));
}

/* The metadata of PATH itself. */
#define SHOW(path) \
	do { \
		struct stat st_; \
		if (lstat((path), &st_) == 0) \
			show_stat(__LINE__, (path), &st_); \
		else \
			note("%d lstat %s: %s", __LINE__, (path), strerrorname_np(errno)); \
	} while (0)

#define SHOW_FD(name, fd) \
	do { \
		struct stat st_; \
		if (fstat((fd), &st_) == 0) \
			show_stat(__LINE__, (name), &st_); \
		else \
			note("%d fstat %s: %s", __LINE__, (name), strerrorname_np(errno)); \
	} while (0)

__attribute__((unused)) static void escape(char *out, size_t room, const char *bytes, ssize_t length)
{
	size_t used = 0;

	for (ssize_t i = 0; i < length && used + 5 < room; i++) {
		unsigned char c = bytes[i];
		if (c >= ' ' && c < 127 && c != '\\')
			out[used++] = c;
		else
			used += sprintf(out + used, "\\%03o", c);
	}
	out[used] = 0;
}

__attribute__((unused)) static void content(int line, const char *path)
{
	char bytes[512], text[2100];
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0) {
		note("%d content of %s: %s", line, path, strerrorname_np(errno));
		return;
	}
	ssize_t got = read(fd, bytes, sizeof bytes);
	if (got < 0) {
		note("%d reading %s: %s", line, path, strerrorname_np(errno));
	} else {
		escape(text, sizeof text, bytes, got);
		note("%d %s holds %zd: %s", line, path, got, text);
	}
	close(fd);
}

/* What a file holds (its first 512 bytes). */
#define CONTENT(path) content(__LINE__, (path))

/* Makes a file with a text in it. */
__attribute__((unused)) static void make(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (fd < 0 || (*text && write(fd, text, strlen(text)) != (ssize_t)strlen(text)))
		note("make %s: %s", path, strerrorname_np(errno));
	close(fd);
}

__attribute__((unused)) static void ended(int line, const char *name, int status)
{
	if (WIFEXITED(status))
		note("%d %s: exit %d", line, name, WEXITSTATUS(status));
	else if (WIFSIGNALED(status))
		note("%d %s: signal %d", line, name, WTERMSIG(status));
	else
		note("%d %s: status %x", line, name, status);
}

/* Runs BODY in a child and says how it ended. */
#define CHILD(name, body) \
	do { \
		pid_t child_ = MUST(fork()); \
		if (child_ == 0) { \
			body; \
			_exit(0); \
		} \
		int status_; \
		MUST(waitpid(child_, &status_, 0)); \
		ended(__LINE__, (name), status_); \
	} while (0)

/* Becomes an ordinary user for good; an ordinary user stays the same. */
__attribute__((unused)) static void drop(void)
{
	if (geteuid() == 0) {
		MUST(setgroups(0, NULL));
		MUST(setresgid(NOBODY, NOBODY, NOBODY));
		MUST(setresuid(NOBODY, NOBODY, NOBODY));
	}
}

/* PATH with the directory under test as TOP and the one on the host as HOST. */
__attribute__((unused)) static const char *shown(const char *path)
{
	static char text[2][PATH_MAX + 16];
	static int turn;
	char *out = text[turn = !turn];
	size_t top = strlen(top_path), host = strlen(host_path);

	if (!strncmp(path, host_path, host) && (path[host] == '/' || !path[host]))
		snprintf(out, sizeof text[0], "HOST%s", path + host);
	else if (!strncmp(path, top_path, top) && (path[top] == '/' || !path[top]))
		snprintf(out, sizeof text[0], "TOP%s", path + top);
	else
		snprintf(out, sizeof text[0], "%s", path);
	return out;
}

/* Where a link leads, as text. */
__attribute__((unused)) static void show_link(int line, const char *path)
{
	char text[PATH_MAX + 1];
	ssize_t length = readlink(path, text, PATH_MAX);

	if (length < 0) {
		note("%d readlink %s: %s", line, path, strerrorname_np(errno));
		return;
	}
	text[length] = 0;
	note("%d %s -> %s", line, path, shown(text));
}
#define LINK(path) show_link(__LINE__, path)

__attribute__((unused)) static void show_cwd(int line)
{
	char text[PATH_MAX + 1];
	long length = syscall(SYS_getcwd, text, sizeof text);

	if (length < 0)
		note("%d cwd: %s", line, strerrorname_np(errno));
	else
		note("%d cwd: %s %s", line, shown(text), length == (long)strlen(text) + 1 ? "" : "length wrong");
}
#define CWD() show_cwd(__LINE__)

/* The running program as a file. */
__attribute__((unused)) static void copy_self(const char *to, mode_t mode)
{
	int from = MUST(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
	int fd = MUST(open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700));
	static char block[65536];
	ssize_t got;

	while ((got = read(from, block, sizeof block)) > 0) {
		if (write(fd, block, got) != got)
			_exit(96);
	}
	MUST(fchmod(fd, mode));
	close(from);
	close(fd);
}

/* Forks, executes, and says what came of it. */
__attribute__((unused)) static void run(int line, const char *name, const char *path, char *const argv[])
{
	int status;
	pid_t child = MUST(fork());

	if (child == 0) {
		execve(path, argv, environ);
		note("%d %s: execve %s", line, name, strerrorname_np(errno));
		_exit(127);
	}
	MUST(waitpid(child, &status, 0));
	ended(line, name, status);
}
#define RUN(name, path, ...) run(__LINE__, name, path, (char *[]){__VA_ARGS__, NULL})

static void steps(void);

#ifdef STEP_HELPER
static int helper(int argc, char **argv);
#endif

int main(int argc, char **argv)
{
#ifdef STEP_HELPER
	if (argc > 1 && argv[1][0] == '-')
		return helper(argc, argv);
#endif
	if (argc < 3)
		return 98;
	self_path = argv[0];
	top_path = argv[1];
	host_path = argv[2];
	arguments = argv + 3;
	umask(022);
	MUST(chdir(top_path));
#ifndef STEP_IN_PLACE
	MUST(mkdir("w", 0755));
	MUST(chdir("w"));
#endif
	steps();
	note("end");
	return 0;
}

#endif
