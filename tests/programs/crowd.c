/* Many processes at once, on files of their own and on shared ones. */
#include "step.h"
#include <sys/file.h>

static int member(int number, int go)
{
	char name[64], text[64], back[64];
	char byte;
	int fd, shared, wrong = 0;

	/* All begin together. */
	if (read(go, &byte, 1) != 0)
		return 1;
	sprintf(name, "own%d", number);
	if (mkdir(name, 0755))
		return 2;
	if (chdir(name))
		return 3;
	for (int i = 0; i < 5; i++) {
		sprintf(name, "f%d", i);
		sprintf(text, "process %d file %d\n", number, i);
		fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0644);
		wrong += write(fd, text, strlen(text)) != (ssize_t)strlen(text);
		memset(back, 0, sizeof back);
		wrong += pread(fd, back, sizeof back, 0) != (ssize_t)strlen(text) || strcmp(text, back);
		close(fd);
	}
	wrong += rename("f1", "renamed") != 0;
	wrong += unlink("f2") != 0;
	wrong += link("f3", "../links/l" ) == -1 && errno != EEXIST;
	/* Shared: a slot of one file, and lines of another. */
	shared = open("../shared", O_RDWR);
	memset(text, 'A' + number % 26, 16);
	wrong += pwrite(shared, text, 16, number * 16) != 16;
	close(shared);
	shared = open("../log", O_WRONLY | O_APPEND);
	for (int i = 0; i < 3; i++) {
		sprintf(text, "%04d-%d\n", number, i);
		wrong += write(shared, text, 7) != 7;
	}
	close(shared);
	/* A counter under a lock. */
	shared = open("../counter", O_RDWR);
	if (flock(shared, LOCK_EX))
		return 4;
	memset(text, 0, sizeof text);
	wrong += pread(shared, text, 15, 0) <= 0;
	sprintf(text, "%010d", atoi(text) + 1);
	wrong += pwrite(shared, text, 10, 0) != 10;
	flock(shared, LOCK_UN);
	close(shared);
	return wrong ? 5 : 0;
}

static void steps(void)
{
	int count = atoi(arguments[0]), go[2], status, failed = 0;

	make("shared", "");
	make("log", "");
	make("counter", "0000000000");
	MUST(mkdir("links", 0755));
	MUST(pipe(go));
	for (int i = 0; i < count; i++) {
		if (MUST(fork()) == 0) {
			close(go[1]);
			_exit(member(i, go[0]));
		}
	}
	close(go[1]);
	while (wait(&status) > 0)
		failed += status != 0;
	note("failed %d", failed);
	CONTENT("counter");
	SHOW("log");
	SHOW("shared");
	SHOW(".");
	int lines = 0, wrong = 0, number, part;
	char line[64];
	int *next = calloc(count, sizeof *next);
	FILE *log = fopen("log", "r");
	while (fgets(line, sizeof line, log)) {
		lines++;
		if (sscanf(line, "%d-%d", &number, &part) != 2 || number < 0 || number >= count || next[number]++ != part)
			wrong++;
	}
	fclose(log);
	note("lines %d wrong %d", lines, wrong);
	int fd = MUST(open("shared", O_RDONLY));
	for (int i = 0; i < count; i++) {
		char slot[16];
		if (read(fd, slot, 16) != 16 || slot[0] != 'A' + i % 26 || slot[15] != slot[0])
			note("slot %d", i);
	}
	close(fd);
	for (int i = 0; i < count; i += 37) {
		char name[64];
		sprintf(name, "own%d/renamed", i);
		CONTENT(name);
		sprintf(name, "own%d", i);
		int entries = 0;
		DIR *dir = opendir(name);
		while (readdir(dir))
			entries++;
		closedir(dir);
		note("%s %d", name, entries);
	}
}
