/* Performs one file operation for each line of its standard input, and answers each with one line: the result of the call, or the
 * name of its errno. The first argument is the directory that names are relative to.
 *
 *   create NAME | write NAME OFFSET LENGTH BYTE | truncate NAME LENGTH | rename NAME NAME | unlink NAME
 *   mkdir NAME | rmdir NAME | fsync NAME | begin | commit | abort
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The reserved call of crates/sys/src/tracees/txncall.rs. */
static long txn(int operation)
{
	static char id[32];

	return syscall(0x616d6e, operation, 0, id, sizeof id, 0);
}

static long with_file(const char *name, int flags, long (*call)(int, const long *), const long *arguments)
{
	int fd = open(name, flags | O_CLOEXEC, 0644);

	if (fd < 0)
		return -1;
	long result = call ? call(fd, arguments) : 0;
	int error = errno;

	close(fd);
	errno = error;
	return result;
}

static long call_write(int fd, const long *arguments)
{
	char *data = malloc(arguments[1]);

	memset(data, arguments[2], arguments[1]);
	long result = pwrite(fd, data, arguments[1], arguments[0]);
	int error = errno;

	free(data);
	errno = error;
	return result;
}

static long call_truncate(int fd, const long *arguments)
{
	return ftruncate(fd, arguments[0]);
}

static long call_fsync(int fd, const long *arguments)
{
	return fsync(fd);
}

static long perform(const char *what, const char *name, const char *rest)
{
	long numbers[3] = { 0 };

	sscanf(rest, "%ld %ld %ld", &numbers[0], &numbers[1], &numbers[2]);
	if (!strcmp(what, "create"))
		return with_file(name, O_CREAT | O_EXCL | O_WRONLY, NULL, NULL);
	if (!strcmp(what, "write"))
		return with_file(name, O_WRONLY, call_write, numbers);
	if (!strcmp(what, "truncate"))
		return with_file(name, O_WRONLY, call_truncate, numbers);
	if (!strcmp(what, "fsync"))
		return with_file(name, O_RDONLY, call_fsync, NULL);
	if (!strcmp(what, "rename"))
		return rename(name, rest);
	if (!strcmp(what, "unlink"))
		return unlink(name);
	if (!strcmp(what, "mkdir"))
		return mkdir(name, 0755);
	if (!strcmp(what, "rmdir"))
		return rmdir(name);
	if (!strcmp(what, "begin"))
		return txn(1);
	if (!strcmp(what, "commit"))
		return txn(2);
	if (!strcmp(what, "abort"))
		return txn(3);
	exit(97);
}

int main(int argc, char **argv)
{
	static char line[4096];

	if (argc < 2 || chdir(argv[1]))
		return 98;
	while (fgets(line, sizeof line, stdin)) {
		char *rest = line;

		line[strcspn(line, "\n")] = 0;
		char *what = strsep(&rest, " ");
		char *name = rest ? strsep(&rest, " ") : "";
		long result = perform(what, name, rest ? rest : "");

		if (result < 0)
			printf("%s\n", strerrorname_np(errno));
		else
			printf("%ld\n", result);
		fflush(stdout);
	}
	return 0;
}
