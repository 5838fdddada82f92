// What Postmark does: makes files, then reads, appends to, makes and removes some at random, then removes all. Arguments: files, transactions.
// With a third argument the program only computes and asks for its id: calls that no trace of files selects.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static unsigned long state = 42;
static char data[10240];

static unsigned below(unsigned limit)
{
	state = state * 6364136223846793005UL + 1442695040888963407UL;
	return (state >> 33) % limit;
}

static void put(int number, int flags)
{
	char name[32];
	snprintf(name, sizeof name, "f%d", number);
	int file = open(name, O_WRONLY | flags, 0600);
	if (file < 0)
		return;
	for (int left = 512 + below(9728); left > 0; left -= 4096)
		if (write(file, data, left < 4096 ? left : 4096) < 0)
			exit(2);
	close(file);
}

static void get(int number)
{
	char name[32];
	snprintf(name, sizeof name, "f%d", number);
	int file = open(name, O_RDONLY);
	if (file < 0)
		return;
	while (read(file, data, 4096) > 0)
		;
	close(file);
}

static void removed(int number)
{
	char name[32];
	snprintf(name, sizeof name, "f%d", number);
	unlink(name);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 1;
	int files = atoi(argv[1]), transactions = atoi(argv[2]);
	if (argc > 3) {
		for (int i = 0; i < transactions * 100; i++)
			syscall(SYS_getppid);
		return 0;
	}
	for (int i = 0; i < files; i++)
		put(i, O_CREAT | O_EXCL);
	for (int i = 0; i < transactions; i++) {
		int number = below(files);
		if (below(2))
			get(number);
		else
			put(number, O_APPEND);
		if (below(2))
			put(below(files), O_CREAT);
		else
			removed(below(files));
	}
	for (int i = 0; i < files; i++)
		removed(i);
	return 0;
}
