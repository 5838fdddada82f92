/* A directory of very many entries. */
#include "step.h"

static void steps(void)
{
	long count = atol(arguments[0]), seen = 0, sum = 0, twice = 0;
	char name[64];
	struct dirent *entry;

	MUST(mkdir("many", 0755));
	MUST(chdir("many"));
	unsigned char *found = calloc(count, 1);
	for (long i = 0; i < count; i++) {
		sprintf(name, "entry-%06ld", i);
		int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0644);
		if (fd < 0)
			note("create %s: %s", name, strerrorname_np(errno));
		close(fd);
	}
	DIR *dir = opendir(".");
	while ((entry = readdir(dir))) {
		if (entry->d_name[0] == '.')
			continue;
		long number = atol(entry->d_name + 6);
		twice += found[number]++;
		sum += number;
		seen++;
	}
	closedir(dir);
	note("seen %ld twice %ld sum %ld", seen, twice, sum);
	SHOW(".");
	struct stat st;
	long wrong = 0;
	for (long i = 0; i < count; i += 7) {
		sprintf(name, "entry-%06ld", i);
		wrong += stat(name, &st) || st.st_size;
	}
	note("stat wrong %ld", wrong);
	T("missing", stat("entry-", &st));
	for (long i = 0; i < count; i += 2) {
		sprintf(name, "entry-%06ld", i);
		wrong += unlink(name) != 0;
	}
	note("unlink wrong %ld", wrong);
	dir = opendir(".");
	for (seen = 0; (entry = readdir(dir));)
		seen += entry->d_name[0] != '.';
	closedir(dir);
	note("left %ld", seen);
	T("not empty", rmdir("../many"));
	dir = opendir(".");
	while ((entry = readdir(dir))) {
		if (entry->d_name[0] != '.')
			wrong += unlink(entry->d_name) != 0;
	}
	closedir(dir);
	note("wrong %ld", wrong);
	MUST(chdir(".."));
	T("empty", rmdir("many"));
}
