/* The directory above the one under test: in a run it is the host's, and the host has no such name in it. */
#define STEP_IN_PLACE
#include "step.h"

static char above[PATH_MAX];
static const char *name;

struct head {
	uint64_t ino, position;
	uint16_t length;
};

/* One list by getdents or getdents64 with a buffer of SIZE bytes: how often it shows the name and the dots. */
static void raw(int fd, long number, size_t size)
{
	char buffer[32768];
	int found = 0, dots = 0, wrong = 0;
	long got;

	MUST(lseek(fd, 0, SEEK_SET));
	while ((got = syscall(number, fd, buffer, size)) > 0) {
		for (long at = 0; at < got;) {
			struct head *head = (struct head *)(buffer + at);
			int is_new = number == SYS_getdents64;
			char *entry = buffer + at + (is_new ? 19 : 18);
			char type = is_new ? buffer[at + 18] : buffer[at + head->length - 1];

			if (!strcmp(entry, name)) {
				struct stat st;
				found++;
				wrong += type != DT_DIR || fstatat(fd, entry, &st, 0) || !S_ISDIR(st.st_mode);
			}
			dots += !strcmp(entry, ".") || !strcmp(entry, "..");
			at += head->length;
		}
	}
	note("call %ld, buffer of %zu: %d, dots %d, wrong %d, %s", number, size, found, dots, wrong,
	     got < 0 ? strerrorname_np(errno) : "end");
}

static int left(DIR *dir)
{
	int count = 0;

	while (readdir(dir))
		count++;
	return count;
}

/* Positions between entries lead on from there, and no list goes on forever. */
static void positions(void)
{
	DIR *dir = opendir(above);
	int count = left(dir), found = 0, longer = 0;
	struct dirent *entry;

	rewinddir(dir);
	for (int i = 0; i < count && (entry = readdir(dir)); i++) {
		long after = telldir(dir);
		found += !strcmp(entry->d_name, name);
		seekdir(dir, after);
		longer += left(dir) > count - i - 1;
		rewinddir(dir);
		for (int j = 0; j <= i; j++)
			readdir(dir);
	}
	note("%d found after a rewind, %d longer lists", found, longer);
	closedir(dir);
}

/* The C library asks the parents' lists where getcwd(2) says ENAMETOOLONG. */
static void deep(void)
{
	char part[201];
	int levels = 25;

	memset(part, 'p', 200);
	part[200] = 0;
	for (int i = 0; i < levels; i++) {
		MUST(mkdir(part, 0755));
		MUST(chdir(part));
	}
	CWD();
	char *whole = getcwd(NULL, 0);
	if (whole)
		note("getcwd: %zu below, %s", strlen(whole) - strlen(top_path),
		     strncmp(whole, top_path, strlen(top_path)) ? "elsewhere" : "here");
	else
		note("getcwd: %s", strerrorname_np(errno));
	free(whole);
	for (int i = 0; i < levels; i++) {
		MUST(chdir(".."));
		MUST(rmdir(part));
	}
}

static void steps(void)
{
	const long calls[] = {SYS_getdents, SYS_getdents64};
	const size_t sizes[] = {320, 1000, 4096, 32768};
	char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
	char *slash;
	int fd;

	snprintf(above, sizeof above, "%s", top_path);
	slash = strrchr(above, '/');
	name = top_path + (slash - above) + 1;
	slash[slash == above] = 0;
	fd = MUST(open(above, O_RDONLY | O_DIRECTORY));
	for (int call = 0; call < 2; call++)
		for (int size = 0; size < 4; size++)
			raw(fd, calls[call], sizes[size]);
	T("10 bytes", syscall(SYS_getdents64, fd, page, 10));
	MUST(lseek(fd, 0, SEEK_SET));
	T("10 bytes at the start", syscall(SYS_getdents64, fd, page, 10));
	T("nowhere", syscall(SYS_getdents64, fd, NULL, 4096));
	MUST(munmap(page + 4096, 4096));
	IS("all mapped", syscall(SYS_getdents64, fd, page, 4096) > 0);
	MUST(lseek(fd, 0, SEEK_SET));
	IS("half mapped", syscall(SYS_getdents64, fd, page + 4096 - 320, 4096) > 0);
	close(fd);
	fd = MUST(open(above, O_PATH | O_DIRECTORY));
	T("O_PATH", syscall(SYS_getdents64, fd, page, 4096));
	close(fd);
	positions();
	deep();
}
