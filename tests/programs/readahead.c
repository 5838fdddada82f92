/* Opens the files of a directory one after the other, while files that come next change: their contents, permissions and names. */
#include "step.h"

enum { FILES = 130, PASSES = 6, KINDS = 8 };

static char expected[FILES][32];   /* empty: there is no such file */
static bool changed[FILES];
static int dir;

static int number_of(const char *name)
{
	return atoi(name + 1);
}

static void put(const char *name, int flags, const char *content)
{
	int fd = openat(dir, name, O_WRONLY | O_CREAT | flags, 0644);

	if (fd < 0 || write(fd, content, strlen(content)) != (ssize_t)strlen(content))
		abort();
	close(fd);
}

/* What the file is after a change of this kind. */
static void expect(int file, int kind, int pass)
{
	char *text = expected[file];

	changed[file] = true;
	switch (kind) {
	case 0: case 1: case 2: case 5:
		sprintf(text, "%d %d of %d", kind, pass, file);
		break;
	case 3:
		text[0] = 0;
		break;
	case 4:
		strcat(text, "+");
		break;
	}
}

static void change(const char *name, int file, int kind)
{
	switch (kind) {
	case 0:
		MUST(fchmodat(dir, name, 0644, 0));
		put(name, O_TRUNC, expected[file]);
		break;
	case 1:
		put("new", 0, expected[file]);
		MUST(renameat(dir, "new", dir, name));
		break;
	case 2:
		unlinkat(dir, name, 0);
		put(name, O_EXCL, expected[file]);
		break;
	case 3:
		MUST(unlinkat(dir, name, 0));
		break;
	case 4:
		put(name, O_APPEND, "+");
		break;
	case 5:
		put("target", O_TRUNC, expected[file]);
		unlinkat(dir, name, 0);
		MUST(linkat(dir, "target", dir, name, 0));
		MUST(unlinkat(dir, "target", 0));
		break;
	case 6:
		MUST(fchmodat(dir, name, 0, 0));
		break;
	case 7:
		MUST(fchmodat(dir, name, 0444, 0));
		break;
	}
}

static void make_change(const char *name, int kind, int pass, bool by_child)
{
	int file = number_of(name);
	int status;

	if (changed[file])
		return;
	expect(file, kind, pass);
	if (!by_child) {
		change(name, file, kind);
		return;
	}
	pid_t child = fork();

	if (child == 0) {
		change(name, file, kind);
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || status != 0)
		abort();
}

static void make_all(void)
{
	char name[16];

	for (int file = 0; file < FILES; file++) {
		if (expected[file][0] && !changed[file])
			continue;
		sprintf(name, "f%03d", file);
		sprintf(expected[file], "content of %d", file);
		unlinkat(dir, name, 0);
		put(name, O_EXCL, expected[file]);
		changed[file] = false;
	}
}

static void pass_over(int pass, int flags)
{
	char names[FILES][16], text[64];
	int files = 0, right = 0, wrong = 0, missing = 0, refused = 0;
	DIR *list = opendir("d");
	struct dirent *entry;

	while ((entry = readdir(list)))
		if (entry->d_name[0] == 'f' && files < FILES)
			strcpy(names[files++], entry->d_name);
	closedir(list);
	for (int i = 0; i < files; i++) {
		int file = number_of(names[i]);
		int fd = openat(dir, names[i], flags);

		if (fd >= 0) {
			ssize_t length = read(fd, text, sizeof text);
			struct stat st;

			if (length == (ssize_t)strlen(expected[file]) && !memcmp(text, expected[file], length) && fstat(fd, &st) == 0 && st.st_size == length)
				right++;
			else
				wrong++;
			close(fd);
		} else if (errno == ENOENT) {
			missing++;
			wrong += expected[file][0] != 0;
		} else if (errno == EACCES) {
			refused++;
		} else {
			wrong++;
		}
		int next = i + 1 + i % 11;

		if (i % 3 == 2 && next < files)
			make_change(names[next], (i / 3 + pass) % KINDS, pass, i % 2);
	}
	note("%d pass %d of %d: %d right, %d wrong, %d missing, %d refused", __LINE__, pass, files, right, wrong, missing, refused);
	make_all();
}

static void steps(void)
{
	umask(022);
	MUST(mkdir("d", 0755));
	dir = open("d", O_RDONLY | O_DIRECTORY);
	make_all();
	for (int pass = 0; pass < PASSES; pass++)
		pass_over(pass, pass % 2 ? O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY : O_RDONLY | O_CLOEXEC);
}
