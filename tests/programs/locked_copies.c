/* Copies 7 bytes into FILE in each of three ways, while a transaction holds the file. What cannot be written must stay where it
 * is: in the pipe, and behind the source's offset. Usage: locked_copies FILE SOURCE */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <unistd.h>

static void show(const char *name, long result)
{
	printf("%s %ld %s\n", name, result, result < 0 ? strerror(errno) : "");
}

int main(int argc, char **argv)
{
	int ends[2];
	off_t to = 0;

	if (argc < 3 || pipe(ends) || write(ends[1], "spliced", 7) != 7)
		return 1;
	int file = open(argv[1], O_WRONLY), source = open(argv[2], O_RDONLY);
	show("splice", splice(ends[0], NULL, file, &to, 100, 0));
	lseek(file, 7, SEEK_SET);
	show("sendfile", sendfile(file, source, NULL, 7));
	show("copy", copy_file_range(source, NULL, file, NULL, 7, 0));
	return 0;
}
