/* Directories: making, removing, reading; what changes while one is read. */
#include "step.h"
#include <ctype.h>

struct entry {
	uint64_t ino;
	int64_t off;
	uint16_t reclen;
	uint8_t type;
	char name[];
} __attribute__((packed));

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* All names with their types, sorted; counts how many calls were needed only as one or more. */
static void list(int line, const char *path, size_t room)
{
	static char buffer[65536];
	char *names[4096];
	int count = 0, fd = open(path, O_RDONLY | O_DIRECTORY);
	long got;

	if (fd < 0) {
		note("%d list %s: %s", line, path, strerrorname_np(errno));
		return;
	}
	while ((got = syscall(SYS_getdents64, fd, buffer, room)) > 0) {
		for (long at = 0; at < got;) {
			struct entry *entry = (void *)(buffer + at);
			char text[300];
			if (!entry->ino)
				note("inode 0");
			snprintf(text, sizeof text, "%s %d", entry->name, entry->type);
			if (count < 4096)
				names[count++] = strdup(text);
			at += entry->reclen;
		}
	}
	if (got < 0)
		note("%d getdents %s: %s", line, path, strerrorname_np(errno));
	qsort(names, count, sizeof *names, by_name);
	note("%d %s: %d entries", line, path, count);
	for (int i = 0; i < count; i++) {
		if (count < 30)
			note("  %s", names[i]);
		else if (i > 0 && !strcmp(names[i], names[i - 1]))
			note("  twice: %s", names[i]);
		free(names[i]);
	}
	close(fd);
}
#define LIST(path, room) list(__LINE__, path, room)

static void making(void)
{
	char name[300];

	T("mkdir", mkdir("d", 0777));
	SHOW("d");
	T("mkdir mode", mkdir("d1", 0700));
	SHOW("d1");
	T("mkdir all bits", mkdir("d2", 07777));
	SHOW("d2");
	umask(0);
	T("mkdir umask 0", mkdir("d3", 01777));
	SHOW("d3");
	umask(022);
	T("exists", mkdir("d", 0777));
	T("exists slash", mkdir("d/", 0777));
	make("file", "");
	T("exists file", mkdir("file", 0777));
	T("in file", mkdir("file/d", 0777));
	T("missing parent", mkdir("none/d", 0777));
	T("slash", mkdir("sl/", 0777));
	T("slashes", mkdir("d//sl///", 0777));
	T("dot", mkdir(".", 0777));
	T("dots", mkdir("..", 0777));
	T("d/.", mkdir("d/.", 0777));
	T("new/.", mkdir("new/.", 0777));
	T("d/..", mkdir("d/..", 0777));
	T("empty", mkdir("", 0777));
	T("null", mkdir(NULL, 0777));
	T("bad pointer", mkdir((char *)16, 0777));
	T("root", mkdir("/", 0777));
	MUST(symlink("nowhere", "dang"));
	T("dangling", mkdir("dang", 0777));
	T("dangling/", mkdir("dang/", 0777));
	MUST(symlink("d", "dl"));
	T("link", mkdir("dl", 0777));
	T("through link", mkdir("dl/in", 0777));
	memset(name, 'd', 255);
	name[255] = 0;
	T("name of 255", mkdir(name, 0777));
	T("rmdir it", rmdir(name));
	name[255] = 'd';
	name[256] = 0;
	T("name of 256", mkdir(name, 0777));
	T("mkdirat bad fd", mkdirat(777, "x", 0777));
	SHOW("d");
	SHOW(".");
}

static void removing(void)
{
	MUST(mkdir("r", 0755));
	MUST(mkdir("r/sub", 0755));
	make("r/f", "");
	MUST(symlink("r", "rl"));
	T("not empty", rmdir("r"));
	T("file", rmdir("r/f"));
	T("missing", rmdir("none"));
	T("in file", rmdir("r/f/x"));
	T("link", rmdir("rl"));
	T("link/", rmdir("rl/"));
	T("dot", rmdir("r/sub/."));
	T("just dot", rmdir("."));
	T("dots", rmdir("r/sub/.."));
	T("just dots", rmdir(".."));
	T("root", rmdir("/"));
	T("empty path", rmdir(""));
	T("null", rmdir(NULL));
	T("unlink directory", unlink("r/sub"));
	T("unlink directory/", unlink("r/sub/"));
	T("unlink file/", unlink("r/f/"));
	T("unlink missing", unlink("r/none"));
	T("unlink dot", unlink("."));
	T("unlink root", unlink("/"));
	T("unlink empty", unlink(""));
	T("unlinkat bad flag", unlinkat(AT_FDCWD, "r/f", 0x4000));
	T("unlinkat removedir file", unlinkat(AT_FDCWD, "r/f", AT_REMOVEDIR));
	T("unlinkat removedir", unlinkat(AT_FDCWD, "r/sub", AT_REMOVEDIR));
	SHOW("r");
	T("unlink", unlink("r/f"));
	T("rmdir slash", rmdir("r/"));
	T("gone", access("r", F_OK));
	T("unlink link", unlink("rl"));
	T("twice", unlink("rl"));
	MUST(mkdir("open", 0755));
	int fd = MUST(open("open", O_RDONLY));
	T("rmdir open", rmdir("open"));
	SHOW_FD("open", fd);
	char buffer[512];
	T("getdents of removed", syscall(SYS_getdents64, fd, buffer, sizeof buffer));
	T("mkdir again", mkdir("open", 0700));
	SHOW_FD("open", fd);
	SHOW("open");
	close(fd);
}

static void reading(void)
{
	static char buffer[65536];
	int fd;
	long got;

	MUST(mkdir("l", 0755));
	LIST("l", 1024);
	make("l/f", "");
	MUST(mkdir("l/d", 0755));
	MUST(symlink("x", "l/s"));
	MUST(mkfifo("l/p", 0644));
	MUST(mknod("l/k", S_IFSOCK | 0644, 0));
	make("l/\xff\xfe", "");
	make("l/.hidden", "");
	LIST("l", 1024);
	LIST("l", 32);
	LIST("l", sizeof buffer);
	LIST("l/f", 1024);
	LIST("l/none", 1024);
	fd = MUST(open("l", O_RDONLY));
	T("room for none", syscall(SYS_getdents64, fd, buffer, 10));
	T("room 0", syscall(SYS_getdents64, fd, buffer, 0));
	T("bad buffer", syscall(SYS_getdents64, fd, 16, 1024));
	T("bad fd", syscall(SYS_getdents64, 777, buffer, 1024));
	T("first", (got = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0);
	T("at the end", syscall(SYS_getdents64, fd, buffer, sizeof buffer));
	make("l/late", "");
	T("rewind", lseek(fd, 0, SEEK_SET));
	T("again", syscall(SYS_getdents64, fd, buffer, sizeof buffer) >= got);
	T("lseek negative", lseek(fd, -1, SEEK_SET));
	close(fd);
	fd = MUST(open("l/f", O_RDONLY));
	T("getdents of file", syscall(SYS_getdents64, fd, buffer, 1024));
	close(fd);
	fd = MUST(open("/dev/null", O_RDONLY));
	T("getdents of device", syscall(SYS_getdents64, fd, buffer, 1024));
	close(fd);
	/* The old call, too. */
	fd = MUST(open("l", O_RDONLY));
	T("getdents", syscall(SYS_getdents, fd, buffer, 1024) > 0);
	close(fd);
}

static void positions(void)
{
	long at[64];
	char *names[64];
	char name[32];
	int count = 0, wrong = 0;
	struct dirent *entry;

	MUST(mkdir("pos", 0755));
	for (int i = 0; i < 40; i++) {
		sprintf(name, "pos/n%d", i);
		make(name, "");
	}
	DIR *dir = opendir("pos");
	for (;;) {
		long here = telldir(dir);
		if (!(entry = readdir(dir)) || count == 64)
			break;
		at[count] = here;
		names[count++] = strdup(entry->d_name);
	}
	note("%d names", count);
	for (int i = count - 1; i >= 0; i--) {
		seekdir(dir, at[i]);
		entry = readdir(dir);
		wrong += !entry || strcmp(entry->d_name, names[i]);
	}
	note("seekdir wrong: %d", wrong);
	seekdir(dir, at[10]);
	for (int i = 10; i < count; i++) {
		entry = readdir(dir);
		wrong += !entry || strcmp(entry->d_name, names[i]);
	}
	note("from the tenth wrong: %d", wrong);
	rewinddir(dir);
	entry = readdir(dir);
	note("rewound: %d", entry && !strcmp(entry->d_name, names[0]));
	/* dup shares the position, a second open does not. */
	int copy = dup(dirfd(dir));
	T("dup position", lseek(copy, 0, SEEK_CUR) == lseek(dirfd(dir), 0, SEEK_CUR));
	close(copy);
	closedir(dir);
}

static void changing(void)
{
	char name[64];
	struct dirent *entry;
	int seen = 0;
	DIR *dir;

	MUST(mkdir("many", 0755));
	for (int i = 0; i < 2000; i++) {
		sprintf(name, "many/entry-number-%04d", i);
		make(name, "");
	}
	LIST("many", 65536);
	LIST("many", 300);
	SHOW("many");
	/* Removing what was just read must neither skip nor repeat. */
	dir = opendir("many");
	while ((entry = readdir(dir))) {
		if (entry->d_name[0] == '.')
			continue;
		seen++;
		if (unlinkat(dirfd(dir), entry->d_name, 0))
			note("unlink %s: %s", entry->d_name, strerrorname_np(errno));
	}
	closedir(dir);
	note("seen while removing: %d", seen);
	T("empty now", rmdir("many"));
	/* Names that stay are seen exactly once while others come and go. */
	MUST(mkdir("busy", 0755));
	for (int i = 0; i < 300; i++) {
		sprintf(name, "busy/stay%d", i);
		make(name, "");
		sprintf(name, "busy/go%d", i);
		make(name, "");
	}
	int fd = MUST(open("busy", O_RDONLY)), stay = 0, step = 0;
	char buffer[512];
	long got;
	while ((got = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0) {
		for (long at = 0; at < got; at += ((struct entry *)(buffer + at))->reclen)
			stay += !strncmp(((struct entry *)(buffer + at))->name, "stay", 4);
		if (step < 300) {
			sprintf(name, "busy/go%d", step);
			unlink(name);
			sprintf(name, "busy/new%d", step);
			make(name, "");
			step++;
		}
	}
	note("stayed: %d", stay);
	close(fd);
}

static void permissions(void)
{
	MUST(mkdir("pd", 0755));
	MUST(mkdir("pd/ro", 0755));
	MUST(mkdir("pd/ro/sub", 0755));
	make("pd/ro/f", "");
	MUST(chmod("pd/ro", 0555));
	MUST(mkdir("pd/nox", 0755));
	make("pd/nox/f", "");
	MUST(chmod("pd/nox", 0666));
	MUST(mkdir("pd/nor", 0755));
	make("pd/nor/f", "");
	MUST(chmod("pd/nor", 0333));
	MUST(mkdir("pd/own", 0777));
	MUST(chmod("pd/own", 0777));
	drop();
	T("mkdir in ro", mkdir("pd/ro/new", 0755));
	T("mkdir existing in ro", mkdir("pd/ro/sub", 0755));
	T("rmdir in ro", rmdir("pd/ro/sub"));
	T("unlink in ro", unlink("pd/ro/f"));
	T("unlink missing in ro", unlink("pd/ro/none"));
	T("mkdir in nox", mkdir("pd/nox/new", 0755));
	T("unlink in nox", unlink("pd/nox/f"));
	LIST("pd/nor", 1024);
	T("mkdir in nor", mkdir("pd/nor/new", 0755));
	T("rmdir in nor", rmdir("pd/nor/new"));
	T("mkdir in own", mkdir("pd/own/d", 0755));
	SHOW("pd/own/d");
	T("mknod char", mknod("pd/own/c", S_IFCHR | 0644, makedev(1, 3)));
	T("mknod fifo", mknod("pd/own/p", S_IFIFO | 0644, 0));
}

static void steps(void)
{
	making();
	removing();
	reading();
	positions();
	changing();
	CHILD("permissions", permissions());
}
