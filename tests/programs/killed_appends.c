/* Children append records of many pages until they are killed, most of them in the middle of a write. Of each record there is all or nothing: prints the
 * number of files that end in a part of a record, and of those that are not what was written. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RECORD = 60000, FILES = 40 };

static char record[RECORD], found[RECORD];

int main(int argc, char **argv)
{
	int parts = 0, wrong = 0;
	long records = 0;
	int ready[2];

	if (pipe(ready) != 0 || argc != 2 || chdir(argv[1]) != 0)
		return 2;
	for (int i = 0; i < FILES; i++) {
		char name[20];
		struct stat st;
		pid_t child;
		int fd;

		snprintf(name, sizeof name, "file%d", i);
		child = fork();
		if (child == 0) {
			/* Enough writes for the area, then those that count. */
			fd = open("first", O_WRONLY | O_CREAT | O_TRUNC, 0644);
			for (int j = 0; j < 100; j++)
				if (write(fd, "x", 1) != 1)
					_exit(1);
			close(fd);
			if (write(ready[1], "r", 1) != 1)
				_exit(1);
			fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
			for (int j = 0;; j++) {
				memset(record, 'a' + j % 26, RECORD);
				if (write(fd, record, RECORD) != RECORD)
					_exit(1);
			}
		}
		if (read(ready[0], found, 1) != 1)
			return 5;
		usleep(2000 + 1100 * i);
		kill(child, SIGKILL);
		if (waitpid(child, NULL, 0) != child)
			return 3;
		fd = open(name, O_RDONLY);
		if (fd < 0)
			continue;
		fstat(fd, &st);
		parts += st.st_size % RECORD != 0;
		records += st.st_size / RECORD;
		for (long j = 0; j < st.st_size / RECORD; j++) {
			memset(record, 'a' + j % 26, RECORD);
			if (read(fd, found, RECORD) != RECORD || memcmp(found, record, RECORD) != 0) {
				wrong++;
				break;
			}
		}
		close(fd);
	}
	if (records < 10)
		return 4;
	printf("%d %d\n", parts, wrong);
	return 0;
}
