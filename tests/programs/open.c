/* Opening: flags, creation modes, symbolic links, errnos, descriptors and RESOLVE_*. */
#include "step.h"
#include <linux/openat2.h>

static void creation(void)
{
	int fd;

	O("missing", open("none", O_RDONLY));
	T("create", fd = open("a", O_RDWR | O_CREAT, 0666));
	SHOW_FD("a", fd);
	T("close", close(fd));
	T("create again", fd = open("a", O_RDWR | O_CREAT, 0600));
	SHOW_FD("a", fd);
	T("write", write(fd, "hello", 5));
	close(fd);
	O("exclusive on existing", open("a", O_RDWR | O_CREAT | O_EXCL, 0666));
	T("exclusive on new", fd = open("b", O_RDWR | O_CREAT | O_EXCL, 04751));
	SHOW_FD("b", fd);
	close(fd);
	T("create read-only mode, write", fd = open("ro", O_WRONLY | O_CREAT | O_EXCL, 0400));
	T("write to it", write(fd, "x", 1));
	T("read from it", read(fd, &(char){0}, 1));
	close(fd);
	SHOW("ro");
	umask(077);
	O("umask 077", open("c", O_RDWR | O_CREAT, 0666));
	SHOW("c");
	umask(0);
	O("umask 0", open("d", O_RDWR | O_CREAT, 07777));
	SHOW("d");
	T("creat", fd = creat("e", 0640));
	T("read from creat", read(fd, &(char){0}, 1));
	close(fd);
	SHOW("e");
	umask(022);
	O("truncate", open("a", O_WRONLY | O_TRUNC));
	SHOW("a");
	make("a", "again");
	O("truncate by creat", creat("a", 0600));
	SHOW("a");
	make("a", "third");
	O("truncate read-only", open("a", O_RDONLY | O_TRUNC));
	SHOW("a");
	O("mode without create", open("a", O_RDONLY, 07777));
	T("access mode 3", fd = open("a", O_ACCMODE));
	if (fd >= 0) {
		T("read by mode 3", read(fd, &(char){0}, 1));
		close(fd);
	}
}

static void directories(void)
{
	int fd;

	MUST(mkdir("dir", 0755));
	make("file", "f");
	T("directory read", fd = open("dir", O_RDONLY));
	T("read from directory", read(fd, &(char){0}, 1));
	T("pread from directory", pread(fd, &(char){0}, 1, 0));
	T("write to directory", write(fd, "x", 1));
	T("ftruncate directory", ftruncate(fd, 0));
	T("fsync directory", fsync(fd));
	SHOW_FD("dir", fd);
	close(fd);
	O("directory write", open("dir", O_WRONLY));
	O("directory rdwr", open("dir", O_RDWR));
	O("directory create", open("dir", O_RDONLY | O_CREAT, 0666));
	O("directory truncate", open("dir", O_RDONLY | O_TRUNC));
	O("directory create exclusive", open("dir", O_RDONLY | O_CREAT | O_EXCL, 0666));
	O("directory creat", creat("dir", 0666));
	O("O_DIRECTORY on directory", open("dir", O_RDONLY | O_DIRECTORY));
	O("O_DIRECTORY on file", open("file", O_RDONLY | O_DIRECTORY));
	O("O_DIRECTORY on nothing", open("nothing", O_RDONLY | O_DIRECTORY));
	O("O_DIRECTORY|O_CREAT", open("nothing", O_RDONLY | O_DIRECTORY | O_CREAT, 0666));
	unlink("nothing");
	rmdir("nothing");
	O("slash after directory", open("dir/", O_RDONLY));
	O("slashes and dots", open(".//dir/./..//dir///", O_RDONLY));
	O("slash after file", open("file/", O_RDONLY));
	O("slash after missing", open("nothing/", O_RDONLY));
	O("create with slash", open("nothing/", O_RDWR | O_CREAT, 0666));
	O("create file/", open("file/", O_RDWR | O_CREAT, 0666));
	O("file as directory", open("file/x", O_RDONLY));
	O("file as directory, dot", open("file/.", O_RDONLY));
	O("file as directory, dots", open("file/..", O_RDONLY));
	O("missing as directory", open("nothing/x", O_RDONLY));
	O("create in missing", open("nothing/x", O_RDWR | O_CREAT, 0666));
	O("create dot", open("dir/.", O_RDWR | O_CREAT, 0666));
	O("create dots", open("dir/..", O_RDWR | O_CREAT, 0666));
	O("empty path", open("", O_RDONLY));
	O("empty path create", open("", O_RDWR | O_CREAT, 0666));
	O("null path", open((char *)NULL, O_RDONLY));
	O("bad pointer", open((char *)8, O_RDONLY));
}

static void lengths(void)
{
	static char name[PATH_MAX + 64];
	int fd;

	memset(name, 'n', 255);
	O("name of 255", open(name, O_RDWR | O_CREAT, 0644));
	T("unlink name of 255", unlink(name));
	memset(name, 'n', 256);
	O("name of 256", open(name, O_RDWR | O_CREAT, 0644));
	O("name of 256 read", open(name, O_RDONLY));
	T("name of 256 in missing", open(strcat(strcpy(name + 300, "nothing/"), name), O_RDONLY));
	memset(name, 0, sizeof name);
	for (int i = 0; i + 2 <= 4094; i += 2)
		memcpy(name + i, "./", 2);
	name[4094] = '.';
	O("path of 4095", open(name, O_RDONLY));
	name[4094] = '/';
	name[4095] = '.';
	O("path of 4096", open(name, O_RDONLY));
	memset(name, 0, sizeof name);
	memset(name, '/', 4095);
	O("4095 slashes", open(name, O_RDONLY));
	memset(name, '/', 4096);
	O("4096 slashes", open(name, O_RDONLY));
	strcpy(name, "\xff\xfe \n\t\\name");
	O("odd name", open(name, O_RDWR | O_CREAT, 0644));
	O("odd name again", open(name, O_RDWR | O_CREAT | O_EXCL, 0644));
	T("odd name unlink", unlink(name));
}

static void links(void)
{
	int fd;
	char name[16];

	MUST(mkdir("ldir", 0755));
	make("target", "target");
	MUST(symlink("target", "good"));
	MUST(symlink("absent", "dangling"));
	MUST(symlink("loop2", "loop1"));
	MUST(symlink("loop1", "loop2"));
	MUST(symlink("ldir", "dirlink"));
	MUST(symlink("ldir/", "dirlinkslash"));
	MUST(symlink("self", "self"));
	MUST(symlink("target/", "fileslash"));
	MUST(symlink("../target", "ldir/up"));
	T("through link", fd = open("good", O_RDONLY));
	SHOW_FD("good", fd);
	close(fd);
	CONTENT("ldir/up");
	CONTENT("dirlink/up");
	O("link with slash to a file", open("fileslash", O_RDONLY));
	O("O_NOFOLLOW on link", open("good", O_RDONLY | O_NOFOLLOW));
	O("O_NOFOLLOW on directory link", open("dirlink", O_RDONLY | O_NOFOLLOW));
	O("O_NOFOLLOW|O_DIRECTORY", open("dirlink", O_RDONLY | O_NOFOLLOW | O_DIRECTORY));
	O("O_NOFOLLOW with slash", open("dirlink/", O_RDONLY | O_NOFOLLOW));
	T("O_NOFOLLOW in the middle", fd = open("dirlink/up", O_RDONLY | O_NOFOLLOW));
	O("O_NOFOLLOW in the middle only", open("dirlink/../target", O_RDONLY | O_NOFOLLOW));
	O("O_NOFOLLOW on file", open("target", O_RDONLY | O_NOFOLLOW));
	O("dangling", open("dangling", O_RDONLY));
	O("dangling exclusive", open("dangling", O_RDWR | O_CREAT | O_EXCL, 0644));
	O("dangling nofollow create", open("dangling", O_RDWR | O_CREAT | O_NOFOLLOW, 0644));
	O("create through dangling", open("dangling", O_RDWR | O_CREAT, 0644));
	SHOW("absent");
	SHOW("dangling");
	O("loop", open("loop1", O_RDONLY));
	O("loop create", open("loop1", O_RDWR | O_CREAT, 0644));
	O("loop nofollow", open("loop1", O_RDONLY | O_NOFOLLOW));
	O("self", open("self/x", O_RDONLY));
	O("exclusive through link", open("good", O_RDWR | O_CREAT | O_EXCL, 0644));
	MUST(symlink("missing/deep", "deep"));
	O("create through link into nothing", open("deep", O_RDWR | O_CREAT, 0644));
	/* A chain of 40 links is the most that Linux follows. */
	MUST(symlink("target", "c0"));
	for (int i = 1; i <= 40; i++) {
		char to[16];
		sprintf(to, "c%d", i - 1);
		sprintf(name, "c%d", i);
		MUST(symlink(to, name));
	}
	O("chain of 40", AGAIN_AFTER_ELOOP(open("c39", O_RDONLY)));
	O("chain of 41", open("c40", O_RDONLY));
	MUST(symlink("noslash", "toslash"));
	O("create link/", open("toslash/", O_RDWR | O_CREAT, 0644));
	MUST(symlink(".", "dot"));
	O("create through dot", open("dot/dot/dot/viadot", O_RDWR | O_CREAT, 0644));
	SHOW("viadot");
}

static void appending(void)
{
	int fd, other;

	make("log", "12345");
	T("append", fd = open("log", O_WRONLY | O_APPEND));
	T("offset", lseek(fd, 0, SEEK_CUR));
	T("write", write(fd, "ab", 2));
	T("offset", lseek(fd, 0, SEEK_CUR));
	T("rewind", lseek(fd, 0, SEEK_SET));
	T("write", write(fd, "cd", 2));
	T("offset", lseek(fd, 0, SEEK_CUR));
	T("another", other = open("log", O_WRONLY | O_APPEND));
	T("write", write(other, "ef", 2));
	T("write", write(fd, "gh", 2));
	T("flags", fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK));
	T("off", fcntl(fd, F_SETFL, 0));
	T("rewind", lseek(fd, 1, SEEK_SET));
	T("write", write(fd, "XY", 2));
	T("on", fcntl(fd, F_SETFL, O_APPEND));
	T("write", write(fd, "Z", 1));
	close(fd);
	close(other);
	CONTENT("log");
}

static void descriptors(void)
{
	int dir, fd, file;
	struct rlimit limit, old;
	char text[32];

	MUST(mkdir("at", 0755));
	make("at/x", "at-x");
	T("dir", dir = open("at", O_RDONLY | O_DIRECTORY));
	T("file", file = open("at/x", O_RDONLY));
	T("openat", fd = openat(dir, "x", O_RDONLY));
	T("read", read(fd, text, sizeof text));
	close(fd);
	O("openat dots", openat(dir, "../at/x", O_RDONLY));
	O("openat file fd", openat(file, "x", O_RDONLY));
	O("openat file fd, empty", openat(file, "", O_RDONLY));
	O("openat bad fd", openat(999, "x", O_RDONLY));
	O("openat -1", openat(-1, "x", O_RDONLY));
	O("openat bad fd, empty", openat(999, "", O_RDONLY));
	sprintf(text, "/proc/self/fd/%d", dir);
	O("absolute ignores fd", openat(999, "/", O_RDONLY));
	T("pipe fd", ({ int p[2]; MUST(pipe(p)); long r = openat(p[0], "x", O_RDONLY); int e = errno; close(p[0]); close(p[1]); errno = e; r; }));
	T("rename dir", rename("at", "moved"));
	O("openat after rename", openat(dir, "x", O_RDONLY));
	O("create after rename", openat(dir, "y", O_RDWR | O_CREAT, 0644));
	SHOW("moved/y");
	close(file);
	MUST(unlink("moved/x"));
	MUST(unlink("moved/y"));
	T("rmdir under fd", rmdir("moved"));
	O("openat in removed", openat(dir, "x", O_RDONLY));
	O("create in removed", openat(dir, "x", O_RDWR | O_CREAT, 0644));
	T("mkdirat in removed", mkdirat(dir, "x", 0755));
	O("dot in removed", openat(dir, ".", O_RDONLY));
	SHOW_FD("removed", dir);
	close(dir);

	MUST(getrlimit(RLIMIT_NOFILE, &old));
	limit = old;
	limit.rlim_cur = 6;
	make("lim", "x");
	MUST(setrlimit(RLIMIT_NOFILE, &limit));
	T("first", open("lim", O_RDONLY));
	T("second", open("lim", O_RDONLY));
	T("third", open("lim", O_RDONLY));
	T("fourth", open("lim", O_RDONLY));
	T("fourth, new", open("limnew", O_RDWR | O_CREAT, 0644));
	T("close middle", close(4));
	T("lowest", open("lim", O_RDONLY));
	T("dup", dup(3));
	MUST(setrlimit(RLIMIT_NOFILE, &old));
	T("close range", close_range(3, 5, 0));
	T("closed", fcntl(3, F_GETFD));
	T("close twice", close(3));
	T("lowest again", fd = open("lim", O_RDONLY | O_CLOEXEC));
	T("FD_CLOEXEC", fcntl(fd, F_GETFD));
	T("dup2", dup2(fd, 77));
	T("FD_CLOEXEC of dup2", fcntl(77, F_GETFD));
	T("dup3", dup3(fd, 78, O_CLOEXEC));
	T("F_DUPFD", fcntl(fd, F_DUPFD, 50));
	T("F_DUPFD_CLOEXEC", fcntl(fd, F_DUPFD_CLOEXEC, 50));
	T("close_range cloexec", close_range(50, 77, CLOSE_RANGE_CLOEXEC));
	T("FD_CLOEXEC of 77", fcntl(77, F_GETFD));
	T("close_range", close_range(3, ~0U, 0));
	T("all closed", fcntl(77, F_GETFD));
}

/* The path of a file without a name, with N for its inode number. */
static void show_unnamed(int fd)
{
	char link[64], path[PATH_MAX], cwd[PATH_MAX];

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t len = MUST(readlink(link, path, sizeof path - 1));
	path[len] = 0;
	MUST(getcwd(cwd, sizeof cwd) != NULL);
	char *below = strncmp(path, cwd, strlen(cwd)) ? path : path + strlen(cwd), *number = strrchr(below, '#');
	if (number)
		note("its path: %.*s#N%s", (int)(number - below), below, number + 1 + strspn(number + 1, "0123456789"));
	else
		note("its path: %s", below);
}

static void temporary_files(void)
{
	int fd;
	char link[64];

	MUST(mkdir("tmp", 0755));
	T("O_TMPFILE", fd = open("tmp", O_TMPFILE | O_RDWR, 0640));
	SHOW_FD("tmpfile", fd);
	show_unnamed(fd);
	T("write", write(fd, "temporary", 9));
	SHOW_FD("tmpfile", fd);
	sprintf(link, "/proc/self/fd/%d", fd);
	T("linkat", linkat(AT_FDCWD, link, AT_FDCWD, "tmp/linked", AT_SYMLINK_FOLLOW));
	SHOW_FD("tmpfile", fd);
	close(fd);
	CONTENT("tmp/linked");
	SHOW("tmp/linked");
	T("O_TMPFILE|O_EXCL", fd = open("tmp", O_TMPFILE | O_RDWR | O_EXCL, 0640));
	sprintf(link, "/proc/self/fd/%d", fd);
	T("linkat", linkat(AT_FDCWD, link, AT_FDCWD, "tmp/linked2", AT_SYMLINK_FOLLOW));
	close(fd);
	O("O_TMPFILE read-only", open("tmp", O_TMPFILE | O_RDONLY, 0640));
	O("O_TMPFILE on file", open("target", O_TMPFILE | O_RDWR, 0640));
	O("O_TMPFILE on missing", open("nothing", O_TMPFILE | O_RDWR, 0640));
}

static long how(int dirfd, const char *path, uint64_t flags, uint64_t mode, uint64_t resolve)
{
	struct open_how how = {.flags = flags, .mode = mode, .resolve = resolve};
	return syscall(SYS_openat2, dirfd, path, &how, sizeof how);
}

/* openat2, closed again at once. */
#define HOW(name, ...) \
	do { \
		long fd_; \
		T(name, fd_ = how(__VA_ARGS__)); \
		if (fd_ >= 0) \
			close(fd_); \
	} while (0)

/* All status flags of what is opened: none stays that the program has not given. */
static void status_flags(void)
{
	int fd;

	MUST(mkdir("status", 0755));
	MUST(chdir("status"));
#define FLAGS(name, expression) \
	do { \
		fd = MUST(expression); \
		T(name, fcntl(fd, F_GETFL)); \
		close(fd); \
	} while (0)
	FLAGS("created", open("a", O_RDWR | O_CREAT, 0644));
	FLAGS("created alone", open("b", O_WRONLY | O_CREAT | O_EXCL | O_APPEND, 0644));
	FLAGS("created by creat", creat("c", 0644));
	FLAGS("created without links", how(AT_FDCWD, "d", O_RDWR | O_CREAT, 0644, RESOLVE_NO_SYMLINKS));
	FLAGS("opened with O_CREAT", open("a", O_RDWR | O_CREAT, 0644));
	FLAGS("opened without links", how(AT_FDCWD, "a", O_RDWR, 0, RESOLVE_NO_SYMLINKS));
	FLAGS("truncated", open("a", O_WRONLY | O_TRUNC | O_NONBLOCK));
	FLAGS("read", open("a", O_RDONLY | O_CLOEXEC | O_NOCTTY));
	MUST(symlink("a", "link"));
	FLAGS("by a link", open("link", O_RDWR | O_CREAT, 0644));
	MUST(chdir(".."));
}

static void resolve(void)
{
	int dir;
	char link[64];
	struct { struct open_how how; uint64_t more; } large = {{.flags = O_RDONLY}, 0};

	MUST(mkdir("r", 0755));
	MUST(mkdir("r/sub", 0755));
	make("r/f", "rf");
	make("outside", "o");
	MUST(symlink("f", "r/l"));
	MUST(symlink("../outside", "r/escape"));
	MUST(symlink("/f", "r/abs"));
	MUST(symlink("sub", "r/dl"));
	make("r/sub/g", "g");
	dir = MUST(open("r", O_PATH));
	HOW("plain", dir, "f", O_RDONLY, 0, 0);
	HOW("beneath", dir, "f", O_RDONLY, 0, RESOLVE_BENEATH);
	HOW("beneath up", dir, "../outside", O_RDONLY, 0, RESOLVE_BENEATH);
	HOW("beneath up and down", dir, "sub/../f", O_RDONLY, 0, RESOLVE_BENEATH);
	HOW("beneath link", dir, "escape", O_RDONLY, 0, RESOLVE_BENEATH);
	HOW("beneath absolute", dir, "/", O_RDONLY, 0, RESOLVE_BENEATH);
	HOW("beneath absolute link", dir, "abs", O_RDONLY, 0, RESOLVE_BENEATH);
	HOW("in root", dir, "abs", O_RDONLY, 0, RESOLVE_IN_ROOT);
	HOW("in root, up", dir, "../../f", O_RDONLY, 0, RESOLVE_IN_ROOT);
	HOW("in root, escape", dir, "escape", O_RDONLY, 0, RESOLVE_IN_ROOT);
	HOW("in root, absolute", dir, "/sub/g", O_RDONLY, 0, RESOLVE_IN_ROOT);
	HOW("no symlinks", dir, "l", O_RDONLY, 0, RESOLVE_NO_SYMLINKS);
	HOW("no symlinks in the middle", dir, "dl/g", O_RDONLY, 0, RESOLVE_NO_SYMLINKS);
	HOW("no symlinks, none there", dir, "sub/g", O_RDONLY, 0, RESOLVE_NO_SYMLINKS);
	HOW("no symlinks, O_PATH|O_NOFOLLOW", dir, "l", O_PATH | O_NOFOLLOW, 0, RESOLVE_NO_SYMLINKS);
	HOW("no magic links", dir, "l", O_RDONLY, 0, RESOLVE_NO_MAGICLINKS);
	sprintf(link, "/proc/self/fd/%d", dir);
	HOW("no magic links", AT_FDCWD, link, O_RDONLY, 0, RESOLVE_NO_MAGICLINKS);
	HOW("no crossing", dir, "sub/g", O_RDONLY, 0, RESOLVE_NO_XDEV);
	HOW("no crossing up", AT_FDCWD, "/", O_RDONLY, 0, RESOLVE_NO_XDEV | RESOLVE_BENEATH);
	HOW("create", dir, "new", O_RDWR | O_CREAT | O_EXCL, 0640, RESOLVE_BENEATH);
	SHOW("r/new");
	HOW("mode without create", dir, "f", O_RDONLY, 0644, 0);
	HOW("bad mode", dir, "new2", O_RDWR | O_CREAT, 0200000, 0);
	HOW("unknown flag", dir, "f", 1ULL << 40, 0, 0);
	HOW("unknown resolve", dir, "f", O_RDONLY, 0, 1 << 20);
	HOW("beneath and in root", dir, "f", O_RDONLY, 0, RESOLVE_BENEATH | RESOLVE_IN_ROOT);
	HOW("O_PATH with O_RDWR", dir, "f", O_PATH | O_RDWR, 0, 0);
	T("small size", syscall(SYS_openat2, dir, "f", &large, 8));
	T("zero size", syscall(SYS_openat2, dir, "f", &large, 0));
	T("larger, zero", ({ long fd = syscall(SYS_openat2, dir, "f", &large, sizeof large); if (fd >= 0) close(fd); fd; }));
	large.more = 1;
	T("larger, not zero", syscall(SYS_openat2, dir, "f", &large, sizeof large));
	T("bad pointer", syscall(SYS_openat2, dir, "f", (void *)8, sizeof(struct open_how)));
	close(dir);
}

static void permissions(void)
{
	int fd;

	MUST(mkdir("perm", 0755));
	MUST(chdir("perm"));
	umask(0);
	make("none", "x");
	MUST(chmod("none", 0));
	make("ro", "x");
	MUST(chmod("ro", 0444));
	make("wo", "x");
	MUST(chmod("wo", 0222));
	MUST(mkdir("closed", 0700));
	make("closed/f", "x");
	MUST(chmod("closed", 0));
	MUST(mkdir("nox", 0700));
	make("nox/f", "x");
	MUST(chmod("nox", 0666));
	MUST(mkdir("nor", 0700));
	make("nor/f", "x");
	MUST(chmod("nor", 0311));
	MUST(mkdir("now", 0555));
	drop();
	O("none read", open("none", O_RDONLY));
	O("none write", open("none", O_WRONLY));
	O("none path", open("none", O_PATH));
	O("ro read", open("ro", O_RDONLY));
	O("ro write", open("ro", O_WRONLY));
	O("ro rdwr", open("ro", O_RDWR));
	O("ro trunc", open("ro", O_RDONLY | O_TRUNC));
	O("wo read", open("wo", O_RDONLY));
	O("wo write", open("wo", O_WRONLY));
	O("closed dir", open("closed", O_RDONLY));
	O("in closed dir", open("closed/f", O_RDONLY));
	O("missing in closed dir", open("closed/g", O_RDONLY));
	T("nox dir", fd = open("nox", O_RDONLY));
	O("in nox dir", open("nox/f", O_RDONLY));
	O("missing in nox dir", open("nox/g", O_RDONLY));
	O("in nox dir by fd", openat(fd, "f", O_RDONLY));
	close(fd);
	O("nor dir", open("nor", O_RDONLY));
	O("in nor dir", open("nor/f", O_RDONLY));
	O("create in now", open("now/f", O_RDWR | O_CREAT, 0644));
	O("tmpfile in now", open("now", O_RDWR | O_TMPFILE, 0644));
	O("O_NOATIME", open("ro", O_RDONLY | O_NOATIME));
}

/* Names for what is open. */
static void publishing(void)
{
	int fd, dir, other;
	char link[64];

	MUST(mkdir("pub", 0755));
	make("pub/taken", "x");
	dir = MUST(open("pub", O_RDONLY | O_DIRECTORY));
	fd = MUST(open("pub", O_TMPFILE | O_WRONLY, 0604));
	MUST(write(fd, "published", 9));
	T("taken", linkat(fd, "", dir, "taken", AT_EMPTY_PATH));
	T("linkat empty", linkat(fd, "", dir, "first", AT_EMPTY_PATH));
	SHOW_FD("first", fd);
	sprintf(link, "/dev/fd/%d", fd);
	T("by /dev/fd", linkat(AT_FDCWD, link, dir, "second", AT_SYMLINK_FOLLOW));
	sprintf(link, "/proc/%d/fd/%d", getpid(), fd);
	T("by pid, taken", linkat(AT_FDCWD, link, AT_FDCWD, "pub/taken", AT_SYMLINK_FOLLOW));
	T("by pid", linkat(AT_FDCWD, link, AT_FDCWD, "pub/third", AT_SYMLINK_FOLLOW));
	sprintf(link, "/proc/thread-self/fd/%d", fd);
	T("by thread", linkat(AT_FDCWD, link, dir, "fourth", AT_SYMLINK_FOLLOW));
	T("the link itself", linkat(AT_FDCWD, link, dir, "fifth", 0));
	T("with a slash", linkat(AT_FDCWD, link, dir, "fifth/", AT_SYMLINK_FOLLOW));
	T("in missing", linkat(AT_FDCWD, link, dir, "none/fifth", AT_SYMLINK_FOLLOW));
	T("in file", linkat(AT_FDCWD, link, dir, "taken/fifth", AT_SYMLINK_FOLLOW));
	write(fd, " twice", 6);
	close(fd);
	SHOW("pub/fourth");
	T("chmod", chmod("pub/fourth", 0644));
	CONTENT("pub/first");
	CONTENT("pub/second");
	T("closed", linkat(AT_FDCWD, link, dir, "fifth", AT_SYMLINK_FOLLOW));
	T("closed, empty", linkat(fd, "", dir, "fifth", AT_EMPTY_PATH));
	other = MUST(open("/proc/version", O_RDONLY));
	sprintf(link, "/proc/self/fd/%d", other);
	T("another file system's", linkat(AT_FDCWD, link, dir, "fifth", AT_SYMLINK_FOLLOW));
	T("another's, taken", linkat(AT_FDCWD, link, dir, "taken", AT_SYMLINK_FOLLOW));
	close(other);
	sprintf(link, "/proc/self/fd/%d", dir);
	T("directory", linkat(AT_FDCWD, link, dir, "fifth", AT_SYMLINK_FOLLOW));
	T("directory, empty", linkat(dir, "", dir, "fifth", AT_EMPTY_PATH));
	close(dir);
}

/* Paths through what is no directory and back. */
static void comebacks(void)
{
	static const char *const ways[] = { "/does_not_exist/..", "/does_not_exist/x/../..", "/proc/version/..", "/usr/lib/../.." };
	char path[PATH_MAX];

	MUST(mkdir("back", 0755));
	make("back/f", "f");
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		snprintf(path, sizeof path, "%s%s/w/back/f", ways[i], top_path);
		O(ways[i], open(path, O_RDONLY));
		/* Out of the directory, into what is not there, and back to the host. */
		snprintf(path, sizeof path, "%s%s/%s", top_path, "/../../../../../../../..", ways[i]);
		O("and to the host", open(path, O_RDONLY | O_DIRECTORY));
	}
	O("missing inside", open("back/nope/../f", O_RDONLY));
}

static void steps(void)
{
	creation();
	directories();
	lengths();
	links();
	appending();
	descriptors();
	temporary_files();
	status_flags();
	resolve();
	publishing();
	comebacks();
	CHILD("permissions", permissions());
	if (geteuid() != 0)
		MUST(chmod("perm/closed", 0700));
}
