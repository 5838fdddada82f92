/* Writes a file of MIB MiB by O_APPEND, prints its process id and the number of the descriptor, and appends "end" to the file when
   standard input has a line. Usage: outgrows FILE MIB.

   outgrows FILE MIB PROCESSES TRIALS: while that many other processes sleep, one process writes such a file, and this one opens it for
   writing at the moment when the file outgrows memory (64 MiB), and writes to it when it is full. What both have written must be in
   the file. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char piece[1 << 20];

static int fill(const char *file, int mib)
{
	int fd = open(file, O_WRONLY | O_CREAT | O_APPEND, 0644);
	if (fd < 0)
		exit(2);
	memset(piece, 'A', sizeof piece);
	for (int i = 0; i < mib; i++)
		if (write(fd, piece, sizeof piece) != sizeof piece)
			exit(3);
	return fd;
}

/* The number of the first check that fails, or 0. */
static int trial(const char *file, int mib, int number)
{
	char seen[4] = {0};
	struct stat st = {0};
	int filled[2], checked[2];
	unlink(file);
	if (pipe(filled) != 0 || pipe(checked) != 0)
		return 8;
	pid_t writer = fork();
	if (writer == 0) {
		close(filled[0]);
		close(checked[1]);
		fill(file, mib);
		_exit(write(filled[1], "", 1) != 1 || read(checked[0], seen, 1) != 0);
	}
	close(filled[1]);
	close(checked[0]);
	while (stat(file, &st) != 0 || st.st_size <= 64 << 20)
		;
	usleep(number % 8 * 1000);
	int fd = open(file, O_RDWR);
	if (read(filled[0], seen, 1) != 1)
		return 9;
	if (fd < 0 || pwrite(fd, "BBBB", 4, 1000) != 4) {
		perror(fd < 0 ? "open" : "pwrite");
		return 4;
	}
	int again = open(file, O_RDONLY);
	if (pread(again, seen, 4, 1000) != 4 || memcmp(seen, "BBBB", 4) != 0)
		return 5;
	if (pread(fd, seen, 4, (off_t)(mib - 1) << 20) != 4 || memcmp(seen, "AAAA", 4) != 0)
		return 6;
	close(again);
	close(fd);
	close(filled[0]);
	close(checked[1]);
	waitpid(writer, NULL, 0);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 5) {
		int count = atoi(argv[3]);
		pid_t sleeping[1000];
		for (int i = 0; i < count; i++)
			if ((sleeping[i] = fork()) == 0) {
				pause();
				_exit(0);
			}
		int failed = 0;
		for (int i = 0; i < atoi(argv[4]) && failed == 0; i++)
			failed = trial(argv[1], atoi(argv[2]), i);
		for (int i = 0; i < count; i++)
			kill(sleeping[i], SIGKILL);
		return failed;
	}
	if (argc != 3)
		return 1;
	int fd = fill(argv[1], atoi(argv[2]));
	printf("%d %d\n", getpid(), fd);
	fflush(stdout);
	if (getchar() == EOF || lseek(fd, 0, SEEK_SET) != 0 || write(fd, "end", 3) != 3)
		return 7;
	return lseek(fd, 0, SEEK_CUR) != ((off_t)atoi(argv[2]) << 20) + 3;
}
