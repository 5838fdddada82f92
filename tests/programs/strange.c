/* Paths as long as can be, and names of any bytes. */
#include "step.h"

static void long_paths(void)
{
	static char path[PATH_MAX + 300], name[256];
	int length = 0, levels = 0;

	/* Relative, level by level, beyond what one path can say. */
	memset(name, 'd', 200);
	name[200] = 0;
	for (levels = 0; levels < 30; levels++) {
		MUST(mkdir(name, 0755));
		MUST(chdir(name));
	}
	make("bottom", "at the bottom");
	T("getcwd", syscall(SYS_getcwd, path, PATH_MAX));
	CONTENT("bottom");
	T("stat dots", access("../../../.", F_OK));
	for (levels = 0; levels < 30; levels++)
		MUST(chdir(".."));
	CWD();
	/* A path of exactly 4095 bytes that exists. */
	char part[56];
	memset(part, 'p', 49);
	part[49] = 0;
	while (length + 50 < 4095 - 50) {
		length += sprintf(path + length, "%s%s", length ? "/" : "", part);
		MUST(mkdir(path, 0755));
	}
	int rest = 4095 - length - 1;
	path[length++] = '/';
	memset(path + length, 'f', rest);
	path[length + rest] = 0;
	note("length %zu", strlen(path));
	int fd;
	T("create", fd = open(path, O_RDWR | O_CREAT, 0644));
	T("write", write(fd, "deep", 4));
	close(fd);
	T("stat", access(path, F_OK));
	struct stat st;
	T("lstat", lstat(path, &st));
	note("size %lld", (long long)st.st_size);
	T("rename", rename(path, "deep"));
	CONTENT("deep");
	T("back", rename("deep", path));
	T("unlink", unlink(path));
	path[length + rest] = 'f';
	path[length + rest + 1] = 0;
	T("one more byte", open(path, O_RDWR | O_CREAT, 0644));
}

static void bytes(void)
{
	char name[8], text[64];
	int count = 0, seen = 0, wrong = 0, fd;
	struct dirent *entry;

	MUST(mkdir("bytes", 0755));
	MUST(chdir("bytes"));
	for (int byte = 1; byte < 256; byte++) {
		if (byte == '/' || byte == '.')
			continue;
		sprintf(name, "%c", byte);
		fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0644);
		wrong += fd < 0 || write(fd, name, 1) != 1;
		close(fd);
		sprintf(name, "%c%c", byte, byte ^ 0x80 ? byte ^ 0x80 : 1);
		if (!strchr(name, '/')) {
			wrong += mkdir(name, 0755) != 0;
			count++;
		}
		count++;
	}
	DIR *dir = opendir(".");
	while ((entry = readdir(dir))) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		seen++;
		if (entry->d_name[1])
			continue;
		fd = open(entry->d_name, O_RDONLY);
		wrong += read(fd, text, 8) != 1 || text[0] != entry->d_name[0];
		close(fd);
	}
	closedir(dir);
	note("made %d seen %d wrong %d", count, seen, wrong);
	/* Names that differ in case or composition are different names. */
	make("Name", "upper");
	make("name", "lower");
	make("\xc3\xa9", "composed");
	make("e\xcc\x81", "decomposed");
	CONTENT("Name");
	CONTENT("name");
	CONTENT("\xc3\xa9");
	CONTENT("e\xcc\x81");
	make("...", "three dots");
	make(" ", "a blank");
	make("-rf", "an option");
	make("a\nb", "a line end");
	CONTENT("...");
	CONTENT(" ");
	CONTENT("-rf");
	CONTENT("a\nb");
	T("rename odd", rename("a\nb", "\x80\x81"));
	T("symlink odd", symlink("\x80\x81", "\xfe"));
	CONTENT("\xfe");
	T("chdir odd", ({ mkdir("\x01\x7f\xff", 0755); chdir("\x01\x7f\xff"); }));
	T("getcwd", syscall(SYS_getcwd, text, sizeof text) > 0 && strstr(text, "\x01\x7f\xff") ? 0 : 1);
	MUST(chdir("../.."));
}

static void deep_tree(void)
{
	char name[16];

	for (int i = 0; i < 500; i++) {
		sprintf(name, "l%d", i % 10);
		MUST(mkdir(name, 0755));
		MUST(chdir(name));
	}
	make("leaf", "leaf");
	CONTENT("leaf");
	int up = 0;
	struct stat st, top;
	char link[64];
	sprintf(link, "%s/w", top_path);
	MUST(stat(link, &top));
	for (;;) {
		MUST(stat(".", &st));
		if (st.st_ino == top.st_ino && st.st_dev == top.st_dev)
			break;
		MUST(chdir(".."));
		up++;
	}
	note("up %d", up);
	fflush(stdout);
	T("find", system("find l0 -name leaf | wc -c"));
	T("rm", system("rm -rf l0"));
	T("gone", access("l0", F_OK));
}

static void steps(void)
{
	long_paths();
	bytes();
	deep_tree();
}
