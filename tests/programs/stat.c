/* stat and its variants, access, readlink; what the kernel answers to wrong arguments. */
#include "step.h"

static void show_statx(int line, const char *name, int dirfd, const char *path, int flags, unsigned mask)
{
	struct statx stx;

	memset(&stx, 0xee, sizeof stx);
	if (statx(dirfd, path, flags, mask, &stx) != 0) {
		note("%d %s: %s", line, name, strerrorname_np(errno));
		return;
	}
	note("%d %s: basic=%d %c%04o nlink=%u uid=%u gid=%u size=%lld rdev=%u:%u", line, name,
	     (stx.stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS, type_letter(stx.stx_mode), stx.stx_mode & 07777,
	     stx.stx_nlink, stx.stx_uid, stx.stx_gid, S_ISDIR(stx.stx_mode) ? -1 : (long long)stx.stx_size,
	     stx.stx_rdev_major, stx.stx_rdev_minor);
}
#define SHOWX(name, ...) show_statx(__LINE__, name, __VA_ARGS__)

static bool same(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_mode == b->st_mode &&
	       a->st_size == b->st_size && a->st_nlink == b->st_nlink && a->st_uid == b->st_uid &&
	       a->st_gid == b->st_gid && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
	       a->st_mtim.tv_nsec == b->st_mtim.tv_nsec && a->st_ctim.tv_sec == b->st_ctim.tv_sec &&
	       a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static void variants(void)
{
	struct stat a, b;
	struct statx stx;
	int fd, dir;

	make("file", "0123456789");
	MUST(symlink("file", "link"));
	MUST(symlink("gone", "dangling"));
	MUST(symlink("loop", "loop"));
	MUST(mkdir("dir", 0751));
	MUST(mkfifo("fifo", 0644));
	MUST(link("file", "hard"));
	SHOW("file");
	SHOW("link");
	SHOW("dangling");
	SHOW("dir");
	SHOW("fifo");
	SHOW(".");
	fd = MUST(open("file", O_RDONLY));
	dir = MUST(open(".", O_RDONLY));
	T("stat", stat("file", &a));
	T("fstat", fstat(fd, &b));
	IS("stat is fstat", same(&a, &b));
	T("lstat", lstat("file", &b));
	IS("stat is lstat", same(&a, &b));
	T("stat hard", stat("hard", &b));
	IS("hard is file", same(&a, &b));
	T("stat link", stat("link", &b));
	IS("link is file", same(&a, &b));
	T("lstat link", lstat("link", &b));
	IS("link itself is not", !same(&a, &b));
	T("fstatat", fstatat(dir, "file", &b, 0));
	IS("same", same(&a, &b));
	T("fstatat nofollow", fstatat(dir, "link", &b, AT_SYMLINK_NOFOLLOW));
	IS("a link", S_ISLNK(b.st_mode));
	T("fstatat empty", fstatat(fd, "", &b, AT_EMPTY_PATH));
	IS("same", same(&a, &b));
	T("fstatat empty without flag", fstatat(fd, "", &b, 0));
	T("fstatat empty cwd", fstatat(AT_FDCWD, "", &b, AT_EMPTY_PATH));
	T("stat dot", stat(".", &a));
	IS("same", same(&a, &b));
	T("fstatat bad flag", fstatat(dir, "file", &b, 0x40000000));
	T("fstatat bad fd", fstatat(777, "file", &b, 0));
	T("fstatat file fd", fstatat(fd, "file", &b, 0));
	T("fstat bad fd", fstat(777, &b));
	T("fstat -1", fstat(-1, &b));
	SHOWX("statx", AT_FDCWD, "file", 0, STATX_BASIC_STATS);
	SHOWX("statx all", AT_FDCWD, "file", 0, STATX_ALL);
	SHOWX("statx link", AT_FDCWD, "link", AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS);
	SHOWX("statx link followed", AT_FDCWD, "link", 0, STATX_BASIC_STATS);
	SHOWX("statx empty", fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS);
	SHOWX("statx fd", dir, "dir", 0, STATX_BASIC_STATS);
	SHOWX("statx missing", dir, "none", 0, STATX_BASIC_STATS);
	SHOWX("statx bad mask", dir, "file", 0, 0x80000000);
	SHOWX("statx bad sync", dir, "file", AT_STATX_FORCE_SYNC | AT_STATX_DONT_SYNC, STATX_BASIC_STATS);
	SHOWX("statx bad flag", dir, "file", 0x40000000, STATX_BASIC_STATS);
	SHOWX("statx no mask", dir, "file", 0, 0);
	T("statx", statx(AT_FDCWD, "file", 0, STATX_BASIC_STATS | STATX_BTIME, &stx));
	T("stat", stat("file", &a));
	IS("ino", stx.stx_ino == a.st_ino);
	IS("dev", makedev(stx.stx_dev_major, stx.stx_dev_minor) == a.st_dev);
	IS("mtime", stx.stx_mtime.tv_sec == a.st_mtim.tv_sec && stx.stx_mtime.tv_nsec == (unsigned)a.st_mtim.tv_nsec);
	IS("born", (stx.stx_mask & STATX_BTIME) && stx.stx_btime.tv_sec > 1000000000);
	T("statx null path", syscall(SYS_statx, fd, NULL, AT_EMPTY_PATH, STATX_BASIC_STATS, &stx));
	T("fstatat null path", syscall(SYS_newfstatat, fd, NULL, &b, AT_EMPTY_PATH));
	close(fd);
	close(dir);
	T("stdin stat", fstat(0, &a));
	IS("device", S_ISCHR(a.st_mode));
	T("stat /dev/null", stat("/dev/null", &a));
	note("%c %u:%u", type_letter(a.st_mode), major(a.st_rdev), minor(a.st_rdev));
}

static void errnos(void)
{
	struct stat st;
	char *hole = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char name[300];

	munmap(hole + 4096, 4096);
	T("missing", stat("none", &st));
	T("missing deep", stat("none/none", &st));
	T("below file", stat("file/x", &st));
	T("file/", stat("file/", &st));
	T("link/", stat("link/", &st));
	T("lstat link/", lstat("link/", &st));
	T("file/.", stat("file/.", &st));
	T("file/..", stat("file/..", &st));
	T("dir/", stat("dir/", &st));
	T("dir/.", stat("dir/.", &st));
	T("dir/none/..", stat("dir/none/..", &st));
	T("dangling", stat("dangling", &st));
	T("lstat dangling", lstat("dangling", &st));
	T("loop", stat("loop", &st));
	T("lstat loop", lstat("loop", &st));
	T("empty", stat("", &st));
	T("null", stat(NULL, &st));
	T("bad pointer", stat((char *)16, &st));
	T("bad buffer", syscall(SYS_stat, "file", 16));
	T("null buffer", syscall(SYS_stat, "file", NULL));
	T("bad buffer, missing", syscall(SYS_stat, "none", 16));
	T("bad buffer fstat", syscall(SYS_fstat, 1, 16));
	T("buffer across", syscall(SYS_stat, "file", hole + 4096 - 8));
	T("statx buffer", syscall(SYS_statx, AT_FDCWD, "file", 0, STATX_BASIC_STATS, 16));
	strcpy(hole + 4096 - 5, "file");
	T("path at the end of a page", stat(hole + 4096 - 5, &st));
	memcpy(hole + 4096 - 4, "file", 4);
	T("path into nothing", stat(hole + 4096 - 4, &st));
	memset(name, 'x', 256);
	name[256] = 0;
	T("long name", stat(name, &st));
	T("readlink", readlink("link", name, sizeof name));
	T("readlink short", readlink("link", name, 2));
	T("readlink none", readlink("link", name, 0));
	T("readlink negative", syscall(SYS_readlink, "link", name, -1));
	T("readlink file", readlink("file", name, sizeof name));
	T("readlink dir", readlink("dir", name, sizeof name));
	T("readlink missing", readlink("none", name, sizeof name));
	T("readlink loop", readlink("loop", name, sizeof name));
	T("readlink link/", readlink("link/", name, sizeof name));
	T("readlink bad buffer", syscall(SYS_readlink, "link", 16, 10));
	T("readlinkat bad fd", readlinkat(777, "link", name, sizeof name));
	T("readlinkat empty", readlinkat(AT_FDCWD, "", name, sizeof name));
}

static void accesses(void)
{
	make("rw", "x");
	MUST(chmod("rw", 0600));
	make("ro", "x");
	MUST(chmod("ro", 0444));
	make("x", "x");
	MUST(chmod("x", 0711));
	make("zero", "x");
	MUST(chmod("zero", 0));
	const char *names[] = {"rw", "ro", "x", "zero", "dir", "none", "link", "dangling", "file/x", "", "rw/"};
	int modes[] = {F_OK, R_OK, W_OK, X_OK, R_OK | W_OK, R_OK | W_OK | X_OK};
	char text[64];

	for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
		for (unsigned j = 0; j < sizeof modes / sizeof *modes; j++) {
			snprintf(text, sizeof text, "access %s %d", names[i], modes[j]);
			T(text, access(names[i], modes[j]));
			snprintf(text, sizeof text, "eaccess %s %d", names[i], modes[j]);
			T(text, faccessat(AT_FDCWD, names[i], modes[j], AT_EACCESS));
		}
	}
	T("access bad mode", access("rw", 8));
	T("access null", access(NULL, F_OK));
	T("faccessat2 nofollow", syscall(SYS_faccessat2, AT_FDCWD, "dangling", F_OK, AT_SYMLINK_NOFOLLOW));
	T("faccessat2 bad flag", syscall(SYS_faccessat2, AT_FDCWD, "rw", F_OK, 0x10));
	T("faccessat2 bad fd", syscall(SYS_faccessat2, 777, "rw", F_OK, 0));
	int fd = MUST(open("ro", O_PATH));
	T("faccessat2 empty", syscall(SYS_faccessat2, fd, "", R_OK, AT_EMPTY_PATH));
	T("faccessat2 empty w", syscall(SYS_faccessat2, fd, "", W_OK, AT_EMPTY_PATH));
	close(fd);
}

/* access(2) asks for the real user, open(2) for the effective one. */
static void ids(void)
{
	if (geteuid() != 0) {
		note("ids: not root");
		return;
	}
	MUST(setgroups(0, NULL));
	MUST(setresgid(-1, NOBODY, -1));
	MUST(setresuid(-1, NOBODY, 0));
	T("real root, access", access("rw", R_OK | W_OK));
	T("real root, eaccess", faccessat(AT_FDCWD, "rw", R_OK, AT_EACCESS));
	O("real root, open", open("rw", O_RDONLY));
	MUST(setresuid(NOBODY, 0, 0));
	T("real nobody, access", access("rw", R_OK));
	T("real nobody, eaccess", faccessat(AT_FDCWD, "rw", R_OK | W_OK, AT_EACCESS));
	O("real nobody, open", open("rw", O_RDWR));
	MUST(setresuid(0, 0, 0));
	T("setfsuid", syscall(SYS_setfsuid, NOBODY));
	O("fsuid nobody, open", open("rw", O_RDONLY));
	O("fsuid nobody, create", open("fsnew", O_RDWR | O_CREAT, 0644));
	T("setfsuid back", syscall(SYS_setfsuid, 0));
	O("fsuid root, open", open("rw", O_RDWR));
	drop();
	T("nobody, access", access("rw", R_OK));
	O("nobody, open", open("rw", O_RDONLY));
	T("nobody, access x", access("x", X_OK));
	T("nobody, stat", access("ro", R_OK));
	O("nobody, create", open("new", O_RDWR | O_CREAT, 0644));
}

/* Supplementary groups, group permissions, and the rule that the first class that matches decides. */
static void groups(void)
{
	gid_t list[] = {4321};

	if (geteuid() != 0) {
		note("groups: not root");
		return;
	}
	make("grouped", "x");
	MUST(chmod("grouped", 0640));
	MUST(chown("grouped", 0, 4321));
	make("owner-less", "x");
	MUST(chmod("owner-less", 0077));
	MUST(chown("owner-less", NOBODY, 4321));
	make("group-less", "x");
	MUST(chmod("group-less", 0707));
	MUST(chown("group-less", 0, 4321));
	MUST(setgroups(1, list));
	MUST(setresgid(NOBODY, NOBODY, NOBODY));
	MUST(setresuid(NOBODY, NOBODY, NOBODY));
	T("member reads", access("grouped", R_OK));
	T("member writes", access("grouped", W_OK));
	O("owner-less", open("owner-less", O_RDONLY));
	O("group-less", open("group-less", O_RDONLY));
}

static void device_numbers(void)
{
	struct stat st;

	T("mknod fifo", mknod("nfifo", S_IFIFO | 0640, 0));
	T("mknod file", mknod("nfile", S_IFREG | 0640, 0));
	T("mknod zero type", mknod("nzero", 0640, 0));
	T("mknod socket", mknod("nsock", S_IFSOCK | 0640, 0));
	T("mknod dir", mknod("ndir", S_IFDIR | 0755, 0));
	T("mknod exists", mknod("nfile", S_IFREG | 0640, 0));
	T("mknod char", mknod("nchar", S_IFCHR | 0640, makedev(1, 3)));
	T("mknod block", mknod("nblock", S_IFBLK | 0640, makedev(240, 70000)));
	T("mknod slash", mknod("nslash/", S_IFREG | 0640, 0));
	SHOW("nfifo");
	SHOW("nfile");
	SHOW("nzero");
	SHOW("nsock");
	SHOW("nchar");
	SHOW("nblock");
	O("open socket", open("nsock", O_RDONLY));
	O("open path socket", open("nsock", O_PATH));
	if (stat("nchar", &st) == 0) {
		int fd;
		T("open null device", fd = open("nchar", O_RDWR));
		if (fd >= 0) {
			T("write to it", write(fd, "abc", 3));
			T("read from it", read(fd, &(char){0}, 1));
			close(fd);
		}
	}
}

static void steps(void)
{
	variants();
	errnos();
	accesses();
	CHILD("ids", ids());
	CHILD("groups", groups());
	device_numbers();
}
