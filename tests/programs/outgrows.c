/* Writes a file of MIB MiB by O_APPEND, prints its process id and the number of the descriptor, and appends "end" to the file when
   standard input has a line. Usage: outgrows FILE MIB.

   outgrows FILE MIB PROCESSES TRIALS: while that many other processes sleep, one process writes such a file, and this one opens it for
   writing at the moment when the file outgrows memory (64 MiB), and writes to it after that. What it has written must be in the
   file. */
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

static void trial(const char *file, int mib, int number)
{
	char seen[4] = {0};
	struct stat st = {0};
	unlink(file);
	pid_t writer = fork();
	if (writer == 0) {
		fill(file, mib);
		usleep(200000);
		_exit(0);
	}
	while (stat(file, &st) != 0 || st.st_size <= 64 << 20)
		;
	usleep(number % 8 * 1000);
	int fd = open(file, O_RDWR);
	usleep(400000);
	if (fd < 0 || pwrite(fd, "BBBB", 4, 1000) != 4)
		exit(4);
	int again = open(file, O_RDONLY);
	if (pread(again, seen, 4, 1000) != 4 || memcmp(seen, "BBBB", 4) != 0)
		exit(5);
	if (pread(fd, seen, 4, (off_t)(mib - 1) << 20) != 4 || memcmp(seen, "AAAA", 4) != 0)
		exit(6);
	close(again);
	close(fd);
	waitpid(writer, NULL, 0);
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
		for (int i = 0; i < atoi(argv[4]); i++)
			trial(argv[1], atoi(argv[2]), i);
		for (int i = 0; i < count; i++)
			kill(sleeping[i], SIGKILL);
		return 0;
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
