/* Names: rename of everything over everything, hard and symbolic links, files without a name. */
#include "step.h"

/* Makes one of each kind under a prefix. */
static void make_kind(const char *name, int kind)
{
	char inside[64];

	switch (kind) {
	case 0: break;
	case 1: make(name, "file"); break;
	case 2: MUST(mkdir(name, 0755)); break;
	case 3:
		MUST(mkdir(name, 0755));
		snprintf(inside, sizeof inside, "%s/in", name);
		make(inside, "in");
		break;
	case 4: MUST(symlink("target-of-link", name)); break;
	case 5: MUST(mkfifo(name, 0644)); break;
	}
}

static void clean(const char *name)
{
	char inside[64];

	snprintf(inside, sizeof inside, "%s/in", name);
	unlink(inside);
	if (unlink(name))
		rmdir(name);
}

static const char *kinds[] = {"nothing", "file", "empty", "full", "link", "fifo"};

static void matrix(void)
{
	char text[96];
	unsigned flags[] = {0, RENAME_NOREPLACE, RENAME_EXCHANGE};
	const char *how[] = {"rename", "noreplace", "exchange"};

	MUST(mkdir("m", 0755));
	MUST(mkdir("m/d", 0755));
	for (int flag = 0; flag < 3; flag++) {
		for (int from = 0; from < 6; from++) {
			for (int to = 0; to < 6; to++) {
				const char *old = "m/old", *new = flag == 1 ? "m/new" : "m/d/new";
				make_kind(old, from);
				make_kind(new, to);
				snprintf(text, sizeof text, "%s %s to %s", how[flag], kinds[from], kinds[to]);
				T(text, flag == 0 ? rename(old, new) : renameat2(AT_FDCWD, old, AT_FDCWD, new, flags[flag]));
				SHOW(old);
				SHOW(new);
				SHOW("m");
				SHOW("m/d");
				clean(old);
				clean(new);
			}
		}
	}
	T("noreplace|exchange", renameat2(AT_FDCWD, "m", AT_FDCWD, "n", RENAME_NOREPLACE | RENAME_EXCHANGE));
	T("unknown flag", renameat2(AT_FDCWD, "m", AT_FDCWD, "n", 64));
}

static void corners(void)
{
	char name[300];
	struct stat before, after;
	int fd;

	MUST(mkdir("c", 0755));
	MUST(mkdir("c/a", 0755));
	MUST(mkdir("c/a/b", 0755));
	make("c/f", "f");
	T("into itself", rename("c/a", "c/a/x"));
	T("into a child", rename("c/a", "c/a/b/x"));
	T("onto a child", rename("c/a", "c/a/b"));
	T("child onto parent", rename("c/a/b", "c/a"));
	T("exchange with child", renameat2(AT_FDCWD, "c/a", AT_FDCWD, "c/a/b", RENAME_EXCHANGE));
	T("exchange with parent", renameat2(AT_FDCWD, "c/a/b", AT_FDCWD, "c/a", RENAME_EXCHANGE));
	T("onto itself", rename("c/f", "c/f"));
	T("directory onto itself", rename("c/a", "c/a"));
	T("itself noreplace", renameat2(AT_FDCWD, "c/f", AT_FDCWD, "c/f", RENAME_NOREPLACE));
	T("missing", rename("c/none", "c/x"));
	T("missing parent", rename("c/f", "none/x"));
	T("from below a file", rename("c/f/x", "c/y"));
	T("to below a file", rename("c/a", "c/f/x"));
	T("dot", rename("c/a/.", "c/x"));
	T("dots", rename("c/a/..", "c/x"));
	T("to dot", rename("c/a", "c/."));
	T("to dots", rename("c/a", "c/.."));
	T("empty", rename("", "c/x"));
	T("to empty", rename("c/f", ""));
	T("null", rename(NULL, "c/x"));
	T("to null", rename("c/f", NULL));
	T("file with slash", rename("c/f/", "c/x"));
	T("file to slash", rename("c/f", "c/x/"));
	T("directory with slashes", rename("c/a/", "c/moved/"));
	SHOW("c/moved/b");
	T("from bad fd", renameat(777, "x", AT_FDCWD, "y"));
	T("to bad fd", renameat(AT_FDCWD, "c/f", 777, "y"));
	T("across", rename("c/f", "/proc/x"));
	memset(name, 'z', 256);
	name[256] = 0;
	T("long", rename("c/f", name));
	name[255] = 0;
	T("longest", rename("c/f", name));
	T("and back", rename(name, "c/f"));
	/* Two names of one file: nothing happens. */
	MUST(link("c/f", "c/g"));
	T("onto its other name", rename("c/f", "c/g"));
	SHOW("c/f");
	SHOW("c/g");
	/* A descriptor keeps its file, a name may get another. */
	make("c/old", "old");
	make("c/new", "newer");
	fd = MUST(open("c/new", O_RDWR));
	T("replace open", rename("c/old", "c/new"));
	SHOW_FD("replaced", fd);
	CONTENT("c/new");
	T("read replaced", read(fd, name, 16));
	T("write replaced", write(fd, "!", 1));
	SHOW_FD("replaced", fd);
	close(fd);
	fd = MUST(open("c/new", O_RDWR));
	fstat(fd, &before);
	T("rename open", rename("c/new", "c/renamed"));
	T("write", write(fd, "through", 7));
	CONTENT("c/renamed");
	stat("c/renamed", &after);
	IS("same inode", before.st_ino == after.st_ino);
	close(fd);
	/* `..` of a moved directory is the new parent. */
	MUST(mkdir("c/p1", 0755));
	MUST(mkdir("c/p2", 0755));
	MUST(mkdir("c/p1/kid", 0755));
	SHOW("c/p1");
	SHOW("c/p2");
	T("move", rename("c/p1/kid", "c/p2/kid"));
	SHOW("c/p1");
	SHOW("c/p2");
	stat("c/p2", &before);
	stat("c/p2/kid/..", &after);
	IS("dots moved", before.st_ino == after.st_ino);
	/* A symbolic link is renamed, not what it names. */
	MUST(symlink("p2", "c/sl"));
	T("link with slash", rename("c/sl/", "c/x"));
	T("link", rename("c/sl", "c/sl2"));
	SHOW("c/sl2");
	MUST(symlink("p1", "c/tol"));
	T("directory onto link to directory", rename("c/p2", "c/tol"));
	T("file onto link", rename("c/renamed", "c/tol"));
	SHOW("c/tol");
	/* ctime of the moved file and mtime of both directories change. */
	MUST(mkdir("c/t1", 0755));
	MUST(mkdir("c/t2", 0755));
	make("c/t1/f", "");
	struct timespec old[2] = {{1000, 1}, {1000, 2}};
	MUST(utimensat(AT_FDCWD, "c/t1", old, 0));
	MUST(utimensat(AT_FDCWD, "c/t2", old, 0));
	MUST(utimensat(AT_FDCWD, "c/t1/f", old, 0));
	MUST(rename("c/t1/f", "c/t2/f"));
	stat("c/t1", &after);
	IS("from mtime changed", after.st_mtim.tv_sec != 1000);
	stat("c/t2", &after);
	IS("to mtime changed", after.st_mtim.tv_sec != 1000);
	stat("c/t2/f", &after);
	IS("file mtime kept", after.st_mtim.tv_sec == 1000 && after.st_mtim.tv_nsec == 2);
}

static void hard_links(void)
{
	int fd;
	struct stat a, b;
	char name[32];

	make("h", "data");
	MUST(mkdir("hd", 0755));
	MUST(symlink("h", "hs"));
	MUST(mkfifo("hp", 0644));
	T("link", link("h", "h2"));
	SHOW("h");
	T("exists", link("h", "h2"));
	T("exists directory", link("h", "hd"));
	T("directory", link("hd", "hd2"));
	T("missing", link("none", "h3"));
	T("missing parent", link("h", "none/h3"));
	T("below file", link("h", "h/x"));
	T("to slash", link("h", "h3/"));
	T("from slash", link("h/", "h3"));
	T("empty", link("", "h3"));
	T("null", link(NULL, "h3"));
	T("across", link("h", "/dev/shm/goanna-test-link"));
	T("fifo", link("hp", "hp2"));
	T("symlink", link("hs", "hs2"));
	SHOW("hs2");
	T("symlink followed", linkat(AT_FDCWD, "hs", AT_FDCWD, "h4", AT_SYMLINK_FOLLOW));
	SHOW("h4");
	T("bad flag", linkat(AT_FDCWD, "h", AT_FDCWD, "h5", 1));
	T("bad fd", linkat(777, "h", AT_FDCWD, "h5", 0));
	T("in directory", link("h", "hd/h"));
	SHOW("h");
	T("write through one", ({ fd = MUST(open("hd/h", O_WRONLY | O_APPEND)); write(fd, "+", 1); }));
	close(fd);
	CONTENT("h2");
	stat("h", &a);
	stat("h4", &b);
	IS("one inode", a.st_ino == b.st_ino);
	T("unlink first", unlink("h"));
	SHOW("h2");
	T("chmod one", chmod("h2", 0600));
	SHOW("h4");
	T("rename one", rename("h4", "hd/h4"));
	SHOW("hd/h4");
	unlink("hd/h");
	unlink("hd/h4");
	SHOW("h2");
	for (int i = 0; i < 100; i++) {
		sprintf(name, "hd/l%d", i);
		MUST(link("h2", name));
	}
	SHOW("h2");
	for (int i = 0; i < 100; i++) {
		sprintf(name, "hd/l%d", i);
		MUST(unlink(name));
	}
	SHOW("h2");
	CONTENT("h2");
	fd = MUST(open("h2", O_RDONLY));
	char path[64];
	sprintf(path, "/proc/self/fd/%d", fd);
	T("linkat by /proc", linkat(AT_FDCWD, path, AT_FDCWD, "h6", AT_SYMLINK_FOLLOW));
	SHOW("h6");
	T("linkat empty", linkat(fd, "", AT_FDCWD, "h7", AT_EMPTY_PATH) == 0 || errno == ENOENT ? 0 : -1);
	close(fd);
}

static void nameless(void)
{
	char text[64] = "";
	int fd, again;
	char path[64];

	make("u", "unlinked");
	fd = MUST(open("u", O_RDWR));
	T("unlink", unlink("u"));
	SHOW_FD("u", fd);
	T("read", read(fd, text, sizeof text));
	T("write", write(fd, "+more", 5));
	SHOW_FD("u", fd);
	T("pread", pread(fd, text, sizeof text, 0));
	note("%s", text);
	T("ftruncate", ftruncate(fd, 3));
	T("fchmod", fchmod(fd, 0600));
	T("futimens", futimens(fd, NULL));
	T("fsync", fsync(fd));
	SHOW_FD("u", fd);
	T("new file, same name", ({ make("u", "second"); 0; }));
	CONTENT("u");
	T("pread old", pread(fd, text, sizeof text, 0));
	sprintf(path, "/proc/self/fd/%d", fd);
	T("reopen", again = open(path, O_RDONLY));
	T("read reopened", read(again, text, sizeof text));
	close(again);
	T("link back", linkat(AT_FDCWD, path, AT_FDCWD, "back", AT_SYMLINK_FOLLOW));
	CHILD("child", ({ T("child reads", pread(fd, text, 64, 0)); T("child writes", pwrite(fd, "C", 1, 0)); }));
	T("pread", pread(fd, text, 1, 0));
	note("%c", text[0]);
	close(fd);
	/* The last of two names. */
	make("w1", "w");
	MUST(link("w1", "w2"));
	fd = MUST(open("w2", O_RDONLY));
	MUST(unlink("w1"));
	SHOW_FD("one left", fd);
	MUST(unlink("w2"));
	SHOW_FD("none left", fd);
	close(fd);
}

static void symbolic(void)
{
	static char target[5000], back[5000];

	T("symlink", symlink("some/where", "s"));
	SHOW("s");
	T("exists", symlink("x", "s"));
	T("empty target", symlink("", "s2"));
	T("empty name", symlink("x", ""));
	T("null target", symlink(NULL, "s2"));
	T("null name", symlink("x", NULL));
	T("slash", symlink("x", "s2/"));
	T("missing parent", symlink("x", "none/s"));
	T("below file", symlink("x", "u/s"));
	T("bad fd", symlinkat("x", 777, "s2"));
	memset(target, 't', 4095);
	T("target of 4095", symlink(target, "long"));
	T("its size", ({ struct stat st; lstat("long", &st) < 0 ? -1 : st.st_size; }));
	T("readlink", readlink("long", back, sizeof back));
	IS("same", !memcmp(target, back, 4095));
	target[4095] = 't';
	T("target of 4096", symlink(target, "long2"));
	for (int length = 1; length < 4096; length = length * 2 + 1) {
		char name[32];
		sprintf(name, "len%d", length);
		memset(target, 'a' + length % 26, length);
		target[length] = 0;
		if (symlink(target, name) < 0)
			note("length %d: %s", length, strerrorname_np(errno));
		memset(back, 0, sizeof back);
		ssize_t got = readlink(name, back, sizeof back);
		if (got != length || strcmp(target, back))
			note("length %d: %zd", length, got);
	}
	T("not UTF-8", symlink("\xff\x01", "odd\xfe"));
	T("readlink", readlink("odd\xfe", back, sizeof back));
	T("chmod through dangling", chmod("s", 0600));
	T("unlink", unlink("s"));
	MUST(mkdir("sd", 0755));
	MUST(symlink("sd", "tosd"));
	T("rename into link", rename("u", "tosd/u"));
	SHOW("sd/u");
	T("unlink link", unlink("tosd"));
	SHOW("sd");
}

/* Restricted deletion, and which users may rename which files. */
static void permissions(void)
{
	if (geteuid() == 0) {
		MUST(mkdir("sticky", 0755));
		MUST(chmod("sticky", 01777));
		make("sticky/root", "r");
		MUST(mkdir("sticky/rootdir", 0777));
		MUST(chmod("sticky/rootdir", 0777));
		make("sticky/mine", "m");
		MUST(chown("sticky/mine", NOBODY, NOBODY));
	} else {
		MUST(mkdir("sticky", 01777));
		MUST(chmod("sticky", 01777));
		make("sticky/mine", "m");
	}
	MUST(mkdir("closed", 0755));
	make("closed/f", "");
	MUST(mkdir("closed/d", 0777));
	MUST(chmod("closed", 0555));
	MUST(mkdir("free", 0777));
	MUST(chmod("free", 0777));
	drop();
	make("free/f", "");
	T("unlink root's in sticky", unlink("sticky/root"));
	T("rename root's in sticky", rename("sticky/root", "sticky/x"));
	T("rename over root's", rename("sticky/mine", "sticky/root"));
	T("rmdir root's", rmdir("sticky/rootdir"));
	T("rename own", rename("sticky/mine", "sticky/mine2"));
	T("unlink own", unlink("sticky/mine2"));
	T("from closed", rename("closed/f", "free/g"));
	T("to closed", rename("free/f", "closed/g"));
	T("link in closed", link("free/f", "closed/g"));
	T("symlink in closed", symlink("x", "closed/g"));
	T("link of root's", link("closed/f", "free/linked") == 0 || errno == EPERM ? 0 : -1);
	T("move directory one cannot write", ({ MUST(mkdir("free/d1", 0755)); MUST(mkdir("free/d2", 0755)); MUST(chmod("free/d1", 0555)); rename("free/d1", "free/d2/d1"); }));
	T("rename directory one cannot write", ({ MUST(mkdir("free/d3", 0755)); MUST(chmod("free/d3", 0555)); rename("free/d3", "free/d4"); }));
}

static void steps(void)
{
	matrix();
	corners();
	hard_links();
	nameless();
	symbolic();
	CHILD("permissions", permissions());
}
