/* Makes one call again and again: `repeated access|readlink|open|list|stat|statx|missing|fstat|fstatx|write|pwrite|rewrite COUNT PATH [thread]`. With
 * `thread` a second thread makes it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* As the standard library of Rust asks. */
#define MASK (STATX_BASIC_STATS | STATX_BTIME)

/* Writes once to the file, which is empty then. */
static int rewrite(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	return write(fd, text, 50) == 50 ? close(fd) : -1;
}

/* Opens the directory and reads all entries. */
static long list(const char *path)
{
	char entries[4096];
	int fd = open(path, O_RDONLY | O_DIRECTORY);
	long got;

	while ((got = getdents64(fd, entries, sizeof entries)) > 0)
		;
	return close(fd) < 0 ? -1 : got;
}

static void *repeat(void *arguments)
{
	char **argv = arguments;
	struct statx more;
	struct stat meta;
	char text[100] = "";
	int fd = open(argv[3], strstr(argv[1], "write") ? O_WRONLY : O_RDONLY);

	for (int i = 0; i < atoi(argv[2]); i++) {
		long result = !strcmp(argv[1], "access") ? access(argv[3], R_OK)
			: !strcmp(argv[1], "readlink") ? readlink(argv[3], text, sizeof text)
			: !strcmp(argv[1], "open") ? close(open(argv[3], O_RDONLY))
			: !strcmp(argv[1], "list") ? list(argv[3])
			: !strcmp(argv[1], "stat") ? stat(argv[3], &meta)
			: !strcmp(argv[1], "missing") ? -(stat(argv[3], &meta) == 0)
			: !strcmp(argv[1], "fstat") ? fstat(fd, &meta)
			: !strcmp(argv[1], "write") ? write(fd, text, 50)
			: !strcmp(argv[1], "rewrite") ? rewrite(argv[3], text)
			: !strcmp(argv[1], "pwrite") ? pwrite(fd, text, 50, i % 1000)
			: !strcmp(argv[1], "fstatx") ? statx(fd, "", AT_EMPTY_PATH, MASK, &more)
			: statx(AT_FDCWD, argv[3], 0, MASK, &more);

		if (result < 0)
			return arguments;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	void *failed;

	if (argc == 4)
		return repeat(argv) != NULL;
	if (argc != 5 || pthread_create(&thread, NULL, repeat, argv) || pthread_join(thread, &failed))
		return 2;
	return failed != NULL;
}
