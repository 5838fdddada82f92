/* Attributes: modes, owners, times, and what writing does to them. */
#include "step.h"
#include <utime.h>

static void modes(void)
{
	int fd;

	make("f", "x");
	MUST(mkdir("d", 0755));
	MUST(symlink("f", "l"));
	MUST(symlink("none", "dangling"));
	MUST(mkfifo("p", 0644));
	for (int mode = 0; mode <= 07777; mode = mode * 2 + 1) {
		T("chmod", chmod("f", mode));
		SHOW("f");
	}
	T("chmod high bits", chmod("f", 0177644));
	SHOW("f");
	T("chmod dir", chmod("d", 01777));
	SHOW("d");
	T("chmod dir setgid", chmod("d", 02755));
	SHOW("d");
	T("chmod dir", chmod("d/", 0755));
	T("chmod link", chmod("l", 0640));
	SHOW("f");
	SHOW("l");
	T("chmod fifo", chmod("p", 0600));
	SHOW("p");
	T("dangling", chmod("dangling", 0600));
	T("missing", chmod("none", 0600));
	T("below file", chmod("f/x", 0600));
	T("file/", chmod("f/", 0600));
	T("empty", chmod("", 0600));
	T("null", chmod(NULL, 0600));
	fd = MUST(open("f", O_RDONLY));
	T("fchmod", fchmod(fd, 0604));
	SHOW_FD("f", fd);
	T("fchmodat", fchmodat(fd, "f", 0604, 0));
	T("fchmod bad", fchmod(777, 0600));
	T("fchmodat2 nofollow file", syscall(452, AT_FDCWD, "f", 0611, AT_SYMLINK_NOFOLLOW));
	SHOW("f");
	T("fchmodat2 nofollow link", syscall(452, AT_FDCWD, "l", 0611, AT_SYMLINK_NOFOLLOW));
	T("fchmodat2 empty", syscall(452, fd, "", 0622, AT_EMPTY_PATH));
	SHOW("f");
	T("fchmodat2 bad flag", syscall(452, AT_FDCWD, "f", 0611, 1));
	close(fd);
	/* A descriptor keeps what it was opened for. */
	fd = MUST(open("f", O_RDWR));
	T("chmod 0", chmod("f", 0));
	T("write", write(fd, "still", 5));
	T("pread", pread(fd, &(char){0}, 1, 0));
	close(fd);
	MUST(chmod("f", 0644));
}

static void owners(void)
{
	int fd;
	uid_t me = geteuid();
	gid_t group = getegid();

	make("o", "x");
	MUST(symlink("o", "ol"));
	T("chown self", chown("o", me, group));
	T("chown nothing", chown("o", -1, -1));
	SHOW("o");
	T("chown missing", chown("none", me, group));
	T("chown null", chown(NULL, me, group));
	T("chown other", chown("o", 1234, 5678));
	SHOW("o");
	T("chown group only", chown("o", -1, 4321));
	SHOW("o");
	T("chown user only", chown("o", 999, -1));
	SHOW("o");
	T("large ids", chown("o", 4000000000u, 4000000001u));
	SHOW("o");
	T("chown through link", chown("ol", 11, 12));
	SHOW("o");
	SHOW("ol");
	T("lchown link", lchown("ol", 13, 14));
	SHOW("o");
	SHOW("ol");
	fd = MUST(open("ol", O_PATH | O_NOFOLLOW));
	T("fchownat empty", fchownat(fd, "", 15, 16, AT_EMPTY_PATH));
	SHOW("ol");
	close(fd);
	T("fchownat nofollow", fchownat(AT_FDCWD, "ol", 17, -1, AT_SYMLINK_NOFOLLOW));
	SHOW("ol");
	T("fchownat bad flag", fchownat(AT_FDCWD, "ol", 17, -1, 1));
	fd = open("o", O_RDONLY);
	if (fd >= 0) {
		T("fchown", fchown(fd, 21, 22));
		SHOW_FD("o", fd);
		close(fd);
	}
	T("fchown bad", fchown(777, 1, 1));
	/* Set-id bits go when the owner changes, also by root; not those of directories. */
	make("sid", "x");
	MUST(chmod("sid", 06755));
	T("chown set-id", chown("sid", me, group));
	SHOW("sid");
	MUST(chmod("sid", 06755));
	T("chown set-id nothing", chown("sid", -1, -1));
	SHOW("sid");
	MUST(chmod("sid", 02644));
	T("chown setgid without x", chown("sid", me, group));
	SHOW("sid");
	MUST(mkdir("sidd", 0755));
	MUST(chmod("sidd", 06755));
	T("chown set-id dir", chown("sidd", me, group));
	SHOW("sidd");
}

static void clear_on_write(void)
{
	int fd;

	drop();
	if (chdir("free"))
		note("chdir %s", strerrorname_np(errno));
	make("w", "0123456789");
	MUST(chmod("w", 06777));
	SHOW("w");
	fd = MUST(open("w", O_RDWR));
	T("write", write(fd, "x", 1));
	SHOW("w");
	MUST(chmod("w", 06777));
	T("pwrite", pwrite(fd, "x", 1, 3));
	SHOW("w");
	MUST(chmod("w", 02767));
	T("write setgid without group x", write(fd, "x", 1));
	SHOW("w");
	MUST(chmod("w", 06777));
	T("write nothing", write(fd, "x", 0));
	SHOW("w");
	T("read", pread(fd, &(char){0}, 1, 0));
	SHOW("w");
	T("ftruncate", ftruncate(fd, 5));
	SHOW("w");
	MUST(chmod("w", 06777));
	T("truncate", truncate("w", 4));
	SHOW("w");
	MUST(chmod("w", 06777));
	T("fallocate", fallocate(fd, 0, 0, 100));
	SHOW("w");
	MUST(chmod("w", 06777));
	close(fd);
	T("open trunc", fd = open("w", O_WRONLY | O_TRUNC));
	SHOW("w");
	close(fd);
	MUST(chmod("w", 04755));
	T("rename keeps", rename("w", "w2"));
	SHOW("w2");
}

static void inherited_groups(void)
{
	int fd;

	if (geteuid() == 0) {
		MUST(mkdir("sg", 0777));
		MUST(chown("sg", 0, 4321));
		MUST(chmod("sg", 02777));
	} else {
		MUST(mkdir("sg", 0777));
		MUST(chmod("sg", 02777));
	}
	drop();
	SHOW("sg");
	T("mkdir", mkdir("sg/d", 0755));
	SHOW("sg/d");
	T("mkdir below", mkdir("sg/d/e", 0700));
	SHOW("sg/d/e");
	O("file", open("sg/f", O_RDWR | O_CREAT, 0644));
	SHOW("sg/f");
	O("setgid file by non-member", open("sg/s", O_RDWR | O_CREAT, 02775));
	SHOW("sg/s");
	T("symlink", symlink("x", "sg/l"));
	SHOW("sg/l");
	T("fifo", mkfifo("sg/p", 0644));
	SHOW("sg/p");
	T("chmod setgid by non-member", chmod("sg/f", 02755));
	SHOW("sg/f");
	T("rename keeps group", rename("sg/f", "sg/d/f"));
	SHOW("sg/d/f");
}

static void others(void)
{
	/* What is the child's and what is not: as root everything was made by root. */
	drop();
	T("chmod other's", chmod("notmine", 0600));
	T("chown other's", chown("notmine", geteuid(), -1));
	T("chown other's nothing", chown("notmine", -1, -1));
	T("utimes other's now", utimensat(AT_FDCWD, "notmine", NULL, 0));
	T("utimes other's set", utimensat(AT_FDCWD, "notmine", (struct timespec[]){{5, 0}, {6, 0}}, 0));
	T("utimes writable now", utimensat(AT_FDCWD, "writable", NULL, 0));
	T("utimes writable set", utimensat(AT_FDCWD, "writable", (struct timespec[]){{5, 0}, {6, 0}}, 0));
	T("utimes writable omit", utimensat(AT_FDCWD, "writable", (struct timespec[]){{0, UTIME_OMIT}, {6, 0}}, 0));
	T("utimes both omit", utimensat(AT_FDCWD, "notmine", (struct timespec[]){{0, UTIME_OMIT}, {0, UTIME_OMIT}}, 0));
	make("free/own", "x");
	T("chown own to root", chown("free/own", 0, -1));
	T("chown own to strange group", chown("free/own", -1, 4321));
	T("chown own same", chown("free/own", geteuid(), getegid()));
	T("chmod sticky file", chmod("free/own", 01644));
	SHOW("free/own");
	T("truncate other's", truncate("notmine", 0));
	T("truncate writable", truncate("writable", 0));
	if (getuid() != geteuid())
		note("ids");
}

static void show_times(int line, const char *path)
{
	struct stat st;

	if (lstat(path, &st)) {
		note("%d %s: %s", line, path, strerrorname_np(errno));
		return;
	}
	/* Times of today cannot be compared: shown as `now`. */
	char a[64], m[64];
	if (st.st_atim.tv_sec > 1600000000 && st.st_atim.tv_sec < 1900000000LL + 100000000)
		strcpy(a, "now");
	else
		sprintf(a, "%lld.%09ld", (long long)st.st_atim.tv_sec, st.st_atim.tv_nsec);
	if (st.st_mtim.tv_sec > 1600000000 && st.st_mtim.tv_sec < 1900000000LL + 100000000)
		strcpy(m, "now");
	else
		sprintf(m, "%lld.%09ld", (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
	note("%d %s: atime %s mtime %s", line, path, a, m);
}
#define TIMES(path) show_times(__LINE__, path)

static void times(void)
{
	struct timespec both[2] = {{1000000000, 123456789}, {1100000000, 987654321}};
	int fd;

	make("t", "x");
	MUST(symlink("t", "tl"));
	MUST(mkdir("td", 0755));
	T("set", utimensat(AT_FDCWD, "t", both, 0));
	TIMES("t");
	T("atime omitted", utimensat(AT_FDCWD, "t", (struct timespec[]){{0, UTIME_OMIT}, {5, 6}}, 0));
	TIMES("t");
	T("mtime omitted", utimensat(AT_FDCWD, "t", (struct timespec[]){{7, 8}, {0, UTIME_OMIT}}, 0));
	TIMES("t");
	T("atime now", utimensat(AT_FDCWD, "t", (struct timespec[]){{0, UTIME_NOW}, {5, 6}}, 0));
	TIMES("t");
	T("before 1970", utimensat(AT_FDCWD, "t", (struct timespec[]){{-5, 7}, {-1, 999999999}}, 0));
	TIMES("t");
	T("after 2038", utimensat(AT_FDCWD, "t", (struct timespec[]){{5000000000, 7}, {8000000000, 9}}, 0));
	TIMES("t");
	T("bad ns", utimensat(AT_FDCWD, "t", (struct timespec[]){{1, 1000000000}, {1, 1}}, 0));
	T("negative ns", utimensat(AT_FDCWD, "t", (struct timespec[]){{1, -1}, {1, 1}}, 0));
	T("bad pointer", syscall(SYS_utimensat, AT_FDCWD, "t", 16, 0));
	T("bad flag", utimensat(AT_FDCWD, "t", both, 0x4000));
	T("missing", utimensat(AT_FDCWD, "none", both, 0));
	T("missing both omitted", utimensat(AT_FDCWD, "none", (struct timespec[]){{0, UTIME_OMIT}, {0, UTIME_OMIT}}, 0));
	T("link", utimensat(AT_FDCWD, "tl", both, AT_SYMLINK_NOFOLLOW));
	TIMES("tl");
	T("through link", utimensat(AT_FDCWD, "tl", (struct timespec[]){{11, 12}, {13, 14}}, 0));
	TIMES("t");
	T("directory", utimensat(AT_FDCWD, "td", both, 0));
	TIMES("td");
	fd = MUST(open("t", O_RDONLY));
	T("futimens", futimens(fd, (struct timespec[]){{21, 22}, {23, 24}}));
	TIMES("t");
	T("empty path", utimensat(fd, "", (struct timespec[]){{31, 32}, {33, 34}}, AT_EMPTY_PATH));
	TIMES("t");
	T("utimensat bad fd", utimensat(777, "t", both, 0));
	T("futimens bad", futimens(777, both));
	close(fd);
	T("utime", utime("t", &(struct utimbuf){41, 42}));
	TIMES("t");
	T("utimes", utimes("t", (struct timeval[]){{51, 52}, {53, 54}}));
	TIMES("t");
	T("utimes bad us", utimes("t", (struct timeval[]){{51, 1000000}, {53, 54}}));
	T("futimesat", futimesat(AT_FDCWD, "t", (struct timeval[]){{61, 62}, {63, 64}}));
	TIMES("t");
	T("utime null", utime("t", NULL));
	TIMES("t");

	/* Which calls change which times. */
	struct { const char *name; int kind; } cases[] = {{"read", 0}, {"write", 1}, {"chmod", 2}, {"ftruncate same", 3}, {"truncate same", 4}, {"write nothing", 5}, {"link", 6}, {"rename", 7}, {"chown nothing", 8}, {"ftruncate", 9}, {"open trunc empty", 10}, {"fallocate", 11}, {"setxattr", 12}};
	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct stat before, after;
		make("tc", "0123456789");
		MUST(utimensat(AT_FDCWD, "tc", both, 0));
		MUST(stat("tc", &before));
		nanosleep(&(struct timespec){0, 12000000}, NULL);
		fd = MUST(open("tc", O_RDWR));
		switch (cases[i].kind) {
		case 0: read(fd, &(char){0}, 1); break;
		case 1: write(fd, "x", 1); break;
		case 2: fchmod(fd, 0640); break;
		case 3: ftruncate(fd, 10); break;
		case 4: truncate("tc", 10); break;
		case 5: write(fd, "", 0); break;
		case 6: link("tc", "tc2"); break;
		case 7: rename("tc", "tcx"); rename("tcx", "tc"); break;
		case 8: fchown(fd, -1, -1); break;
		case 9: ftruncate(fd, 3); break;
		case 10: ftruncate(fd, 0); MUST(utimensat(AT_FDCWD, "tc", both, 0)); close(open("tc", O_WRONLY | O_TRUNC)); break;
		case 11: fallocate(fd, 0, 0, 50); break;
		case 12: fsetxattr(fd, "user.t", "x", 1, 0); break;
		}
		close(fd);
		MUST(stat("tc", &after));
		note("%s: mtime %s ctime %s", cases[i].name,
		     before.st_mtim.tv_sec == after.st_mtim.tv_sec && before.st_mtim.tv_nsec == after.st_mtim.tv_nsec ? "kept" : "changed",
		     before.st_ctim.tv_sec == after.st_ctim.tv_sec && before.st_ctim.tv_nsec == after.st_ctim.tv_nsec ? "kept" : "changed");
		unlink("tc2");
		unlink("tc");
	}
	/* Directories. */
	const char *changes[] = {"create", "mkdir", "unlink", "rmdir", "symlink", "write inside", "chmod inside", "open existing"};
	for (unsigned i = 0; i < sizeof changes / sizeof *changes; i++) {
		struct stat before, after;
		mkdir("dt", 0755);
		make("dt/f", "x");
		mkdir("dt/sub", 0755);
		MUST(utimensat(AT_FDCWD, "dt", both, 0));
		MUST(stat("dt", &before));
		nanosleep(&(struct timespec){0, 12000000}, NULL);
		switch (i) {
		case 0: make("dt/new", ""); break;
		case 1: mkdir("dt/newd", 0755); break;
		case 2: unlink("dt/f"); break;
		case 3: rmdir("dt/sub"); break;
		case 4: symlink("x", "dt/s"); break;
		case 5: make("dt/f", "changed"); break;
		case 6: chmod("dt/f", 0600); break;
		case 7: close(open("dt/f", O_RDWR | O_CREAT, 0644)); break;
		}
		MUST(stat("dt", &after));
		note("%s: mtime %s ctime %s", changes[i], before.st_mtim.tv_sec == after.st_mtim.tv_sec ? "kept" : "changed",
		     before.st_ctim.tv_sec == after.st_ctim.tv_sec && before.st_ctim.tv_nsec == after.st_ctim.tv_nsec ? "kept" : "changed");
	}
}

static void truncation(void)
{
	int fd;

	make("tr", "0123456789");
	T("truncate", truncate("tr", 5));
	CONTENT("tr");
	T("extend", truncate("tr", 8));
	CONTENT("tr");
	T("negative", truncate("tr", -1));
	T("directory", truncate("d", 0));
	T("missing", truncate("none", 0));
	T("empty", truncate("", 0));
	T("null", truncate(NULL, 0));
	T("link", truncate("dangling", 0));
	T("fifo", truncate("p", 0));
	fd = MUST(open("tr", O_RDWR));
	T("ftruncate", ftruncate(fd, 3));
	SHOW_FD("tr", fd);
	T("ftruncate negative", ftruncate(fd, -1));
	close(fd);
	fd = MUST(open("tr", O_RDONLY));
	T("ftruncate read-only", ftruncate(fd, 3));
	close(fd);
	T("ftruncate bad", ftruncate(777, 3));
	T("ftruncate stdin", ftruncate(0, 3));
}

static void steps(void)
{
	modes();
	owners();
	MUST(mkdir("free", 0777));
	MUST(chmod("free", 0777));
	CHILD("clear", clear_on_write());
	CHILD("groups", inherited_groups());
	make("notmine", "x");
	make("writable", "x");
	MUST(chmod("writable", 0666));
	CHILD("others", others());
	times();
	truncation();
}
