/* Mounts in a mount namespace of the program's own: of what is in the directory under test, and on directories and files there. */
#include "binds.h"

#include <mntent.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

/* PATH in the working directory, as an absolute path. */
static const char *inside(const char *path)
{
	static char name[2][PATH_MAX];
	static int turn;

	turn = !turn;
	snprintf(name[turn], sizeof name[turn], "%s/w/%s", top_path, path);
	return name[turn];
}

static void same(int line, const char *one, const char *other)
{
	struct stat first, second;

	MUST(stat(one, &first));
	MUST(stat(other, &second));
	note("%d %s: %s", line, "the same file", first.st_ino == second.st_ino && first.st_dev == second.st_dev ? "yes" : "no");
}

/* How often the list of mounts has PATH as a mount point. */
static int listed(const char *list, const char *path)
{
	FILE *file = setmntent(list, "r");
	struct mntent *entry;
	int count = 0;

	while (file && (entry = getmntent(file)))
		count += !strcmp(entry->mnt_dir, path);
	if (file)
		endmntent(file);
	return count;
}

static void names(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	int count = 0;
	bool has_file = false;

	while (dir && (entry = readdir(dir))) {
		count++;
		has_file |= !strcmp(entry->d_name, "file");
	}
	if (dir)
		closedir(dir);
	note("%d names in %s: %d, %s file", __LINE__, path, count, has_file ? "with" : "without");
}

static void directories(void)
{
	struct statfs fs;
	struct stat above, new;

	if (!separate())
		return;
	T("of nothing", bind_to("missing", DIR_));
	T("on nothing", bind_to("from", NEW "/missing"));
	T("on a file", bind_to("from", FILE_));
	T("a file on a directory", bind_to("from/file", DIR_));
	T("bind", bind_to("from", DIR_));
	names(DIR_);
	CONTENT(DIR_ "/file");
	SHOW(DIR_ "/file");
	CONTENT(DIR_ "/link");
	CONTENT(DIR_ "/sub/deep/../../file");
	same(__LINE__, DIR_ "/file", "from/file");
	same(__LINE__, DIR_, "from");
	IS("listed", listed("/proc/self/mounts", DIR_) == 1 && listed("/proc/self/mounts", NEW) == 1);
	MUST(statfs(DIR_, &fs));
	MUST(stat(DIR_ "/..", &above));
	MUST(stat(NEW, &new));
	IS("above", above.st_ino == new.st_ino && above.st_dev == new.st_dev);
	make(DIR_ "/made", "made there");
	CONTENT("from/made");
	make("from/made", "made here");
	CONTENT(DIR_ "/made");
	T("link", link(DIR_ "/made", "from/linked"));
	T("rename", rename(DIR_ "/made", "from/moved"));
	T("rename inside", rename(DIR_ "/made", DIR_ "/sub/moved"));
	CONTENT("from/sub/moved");
	T("link inside", link(DIR_ "/sub/moved", DIR_ "/sub/linked"));
	T("unlink", unlink("from/sub/linked"));
	T("and there", access(DIR_ "/sub/linked", F_OK));
	T("unlink", unlink(DIR_ "/sub/moved"));
	T("mkdir", mkdir(DIR_, 0755));
	T("rmdir", rmdir(DIR_));
	T("rename the mount point", rename(DIR_, NEW "/renamed"));
	T("umount", umount(DIR_));
	T("any more", access(DIR_ "/file", F_OK));
	IS("listed", listed("/proc/self/mounts", DIR_) == 0);
	T("umount again", umount(DIR_));
	CONTENT("from/file");
	T("rmdir", rmdir(DIR_));
}

static void working_directories(void)
{
	char name[PATH_MAX];

	if (!separate())
		return;
	MUST(bind_to("from/sub", DIR_));
	MUST(chdir(DIR_ "/deep"));
	CWD();
	LINK("/proc/self/cwd");
	CONTENT("file");
	CONTENT("../../file");
	T("up", chdir(".."));
	CWD();
	T("further up", chdir(".."));
	CWD();
	CONTENT("file");
	T("down", chdir("dir"));
	int dir = MUST(open(".", O_DIRECTORY | O_CLOEXEC));
	T("chdir", chdir("/"));
	O("from a descriptor", openat(dir, "deep/file", O_RDONLY));
	O("above it", openat(dir, "../file", O_RDONLY));
	O("far above it", openat(dir, "../../../../usr", O_RDONLY));
	snprintf(name, sizeof name, "/proc/self/fd/%d", dir);
	LINK(name);
	int file = MUST(openat(dir, "deep/file", O_PATH | O_CLOEXEC));
	snprintf(name, sizeof name, "/proc/self/fd/%d", file);
	LINK(name);
	T("fchdir", fchdir(dir));
	CWD();
	CHILD("a child", {
		CWD();
		CONTENT("deep/file");
	});
}

static void files(void)
{
	if (!separate())
		return;
	T("bind", bind_to("from/file", FILE_));
	CONTENT(FILE_);
	same(__LINE__, FILE_, "from/file");
	int file = open(FILE_, O_WRONLY | O_APPEND | O_CREAT, 0600);
	T("write", write(file, "+", 1));
	close(file);
	CONTENT("from/file");
	O("exclusive", open(FILE_, O_WRONLY | O_CREAT | O_EXCL, 0600));
	O("as a directory", open(FILE_, O_DIRECTORY | O_RDONLY));
	T("below", access(FILE_ "/..", F_OK));
	T("chmod", chmod(FILE_, 0640));
	SHOW("from/file");
	T("unlink", unlink(FILE_));
	T("rename", rename(FILE_, NEW "/renamed"));
	T("over it", rename(NEW "/other", FILE_));
	T("truncate", truncate(FILE_, 4));
	CONTENT("from/file");
	IS("listed", listed("/proc/self/mounts", FILE_) == 1);
	T("on a directory", bind_to("from/file", NEW "/other"));
	T("umount", umount(FILE_));
	CONTENT(FILE_);
	MUST(bind_to("from", DIR_));
	int unnamed = MUST(open(DIR_, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
	char name[64];
	snprintf(name, sizeof name, "/proc/self/fd/%d", unnamed);
	T("a name", linkat(AT_FDCWD, name, AT_FDCWD, DIR_ "/named", AT_SYMLINK_FOLLOW));
	SHOW("from/named");
	T("unlink", unlink("from/named"));
}

static void read_only(void)
{
	struct statvfs fs;

	if (!separate())
		return;
	MUST(bind_to("from", DIR_));
	T("remount", mount(NULL, DIR_, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL));
	CONTENT(DIR_ "/file");
	O("for writing", open(DIR_ "/file", O_WRONLY));
	O("a new file", open(DIR_ "/new", O_WRONLY | O_CREAT, 0600));
	T("mkdir", mkdir(DIR_ "/new", 0700));
	T("unlink", unlink(DIR_ "/file"));
	T("rename", rename(DIR_ "/file", DIR_ "/moved"));
	T("chmod", chmod(DIR_ "/file", 0600));
	T("access", access(DIR_ "/file", W_OK));
	T("setxattr", setxattr(DIR_ "/file", "user.name", "v", 1, 0));
	MUST(statvfs(DIR_, &fs));
	IS("statvfs", fs.f_flag & ST_RDONLY);
	MUST(statvfs("from", &fs));
	IS("and here", !(fs.f_flag & ST_RDONLY));
	make("from/new", "made here");
	CONTENT(DIR_ "/new");
	T("again", bind_to(DIR_ "/sub", NEW "/other"));
	O("there", open(NEW "/other/new", O_WRONLY | O_CREAT, 0600));
	T("writable", mount(NULL, DIR_, NULL, MS_BIND | MS_REMOUNT, NULL));
	T("unlink", unlink(DIR_ "/new"));
}

/* The kernel's mount table says where they are. */
static void moved(void)
{
	if (!separate())
		return;
	MUST(bind_to("from", DIR_));
	MUST(chdir(DIR_ "/sub"));
	MUST(mkdir(NEW "/place", 0755));
	T("move", mount(DIR_, NEW "/place", NULL, MS_MOVE, NULL));
	CWD();
	CONTENT(NEW "/place/file");
	T("not there", access(DIR_ "/file", F_OK));
	CONTENT("../file");
	T("up", chdir("../.."));
	CWD();
	T("all of it", mount(NEW, "/media", NULL, MS_BIND | MS_REC, NULL));
	CONTENT("/media/place/file");
	T("one alone", bind_to(NEW, NEW "/other"));
	T("is not copied", access(NEW "/other/place/file", F_OK));
	T("umount", umount("/media/place"));
	T("the copy", access("/media/place/file", F_OK));
	CONTENT(NEW "/place/file");
	T("covered", mount("covers", NEW "/place", "tmpfs", 0, NULL));
	T("hidden", access(NEW "/place/file", F_OK));
	T("umount", umount(NEW "/place"));
	CONTENT(NEW "/place/file");
	MUST(chdir("/"));
	T("with what is above", umount2(NEW, MNT_DETACH));
	T("gone", access(NEW "/place/file", F_OK));
	MUST(chdir(inside("from")));
	CONTENT("file");
}

/* As programs that start containers do. */
static void pivoted(void)
{
	if (!separate())
		return;
	MUST(mkdir(NEW "/old", 0755));
	MUST(chdir("/"));
	MUST(syscall(SYS_pivot_root, NEW, NEW "/old") == 0 ? 0 : -1);
	char name[PATH_MAX];
	snprintf(name, sizeof name, "/old%s", inside("from"));
	T("below the old root", access(name, F_OK));
	T("bind", bind_to(name, "/dir"));
	strcat(name, "/file");
	O("below it", open(name, O_RDONLY));
	T("a file", bind_to(name, "/file"));
	T("umount", umount2("/old", MNT_DETACH));
	T("the old root", access(name, F_OK));
	CONTENT("/dir/file");
	CONTENT("/file");
	MUST(chdir("/dir/sub"));
	CWD();
	CONTENT("../../dir/../../../dir/file");
	T("again", bind_to("/dir/sub", "/other"));
	CONTENT("/other/deep/file");
	T("up", chdir("/other/.."));
	CWD();
	T("chroot", chroot("/dir"));
	MUST(chdir("/"));
	CONTENT("/file");
	CONTENT("../../file");
}

/* Where nothing else of it is seen. */
static void alone(void)
{
	if (!separate())
		return;
	MUST(mkdir(NEW "/old", 0755));
	MUST(bind_to("from", DIR_));
	MUST(mount(NULL, DIR_, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL));
	MUST(chdir("/"));
	MUST(syscall(SYS_pivot_root, NEW, NEW "/old") == 0 ? 0 : -1);
	MUST(umount2("/old", MNT_DETACH));
	int file = MUST(open("/dir/file", O_RDONLY | O_CLOEXEC));
	T("by a descriptor", fchmod(file, 0600));
	T("times by a descriptor", futimens(file, NULL));
	T("by a path", chmod("/dir/file", 0600));
}

/* No path leads out of a directory that is bound, not even if it is moved. */
static void out(void)
{
	if (!separate())
		return;
	MUST(bind_to("from/sub", DIR_));
	MUST(chdir(DIR_ "/deep/deeper"));
	MUST(rename(inside("from/sub/deep/deeper"), inside("away")));
	T("up", chdir(".."));
	O("above", open("../file", O_RDONLY));
	CONTENT("name");
	T("getcwd", syscall(SYS_getcwd, (char[PATH_MAX]){0}, PATH_MAX) > 0);
	MUST(rename(inside("away"), inside("from/sub/deep/deeper")));
	T("up", chdir(".."));
	CWD();
}

static void programs(void)
{
	copy_self("from/program", 0755);
	make("from/script", "#!/bin/sh\necho script: $0 $1; pwd; cat file; echo\n");
	MUST(chmod("from/script", 0755));
	if (!separate())
		return;
	MUST(bind_to("from", DIR_));
	RUN("a program", DIR_ "/program", "program");
	MUST(chdir(DIR_));
	RUN("a script", DIR_ "/script", "script", "argument");
	RUN("by a relative path", "./script", "script", "argument");
	MUST(mount(NULL, DIR_, NULL, MS_BIND | MS_REMOUNT | MS_NOEXEC, NULL));
	RUN("that may not", DIR_ "/program", "program");
}

/* Others see the files, and not the mounts. */
static void others(void)
{
	int to[2], from[2];

	MUST(pipe(to));
	MUST(pipe(from));
	pid_t child = MUST(fork());
	if (!child) {
		if (!separate())
			_exit(1);
		MUST(bind_to("from", DIR_));
		int watch = MUST(inotify_init1(IN_CLOEXEC));
		MUST(inotify_add_watch(watch, DIR_, IN_CREATE));
		MUST(write(from[1], "r", 1));
		MUST(read(to[0], &(char){0}, 1));
		CONTENT(DIR_ "/of another");
		char event[256];
		IS("an event", read(watch, event, sizeof event) > 0);
		int file = MUST(open(DIR_ "/file", O_RDWR | O_CLOEXEC));
		char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		MUST(map == MAP_FAILED ? -1 : 0);
		map[0] = 'M';
		MUST(msync(map, 4096, MS_SYNC));
		T("lock", flock(file, LOCK_EX | LOCK_NB));
		MUST(write(from[1], "r", 1));
		MUST(read(to[0], &(char){0}, 1));
		_exit(0);
	}
	char end;
	close(from[1]);
	if (read(from[0], &end, 1) == 1) {
		T("not here", access(DIR_, F_OK));
		make("from/of another", "of another process");
		MUST(write(to[1], "r", 1));
		MUST(read(from[0], &end, 1));
		CONTENT("from/file");
		int file = MUST(open("from/file", O_RDWR | O_CLOEXEC));
		T("lock", flock(file, LOCK_EX | LOCK_NB));
		MUST(write(to[1], "r", 1));
	}
	int status;
	MUST(waitpid(child, &status, 0));
	ended(__LINE__, "a child", status);
}

static void without_the_right(void)
{
	drop();
	T("bind", bind_to("from", NEW));
	T("on it", mount("new", "from", "tmpfs", 0, NULL));
	T("umount", umount("from"));
}

/* On directories under test. */
static void covered(void)
{
	struct statfs fs;
	struct stat above, from;

	if (!separate())
		return;
	make(NEW "/dir/host", "on the host");
	T("nothing", umount("from/sub"));
	T("no directory", mount("new", "from/file", "tmpfs", 0, NULL));
	T("missing", mount("new", "from/missing", "tmpfs", 0, NULL));
	T("unknown", mount("new", "from/sub", "no such type", 0, NULL));
	T("mount", mount("new", "from/sub", "tmpfs", 0, NULL));
	T("covered", access("from/sub/file", F_OK));
	MUST(statfs("from/sub", &fs));
	IS("its type", fs.f_type == 0x01021994);
	IS("listed", listed("/proc/self/mounts", inside("from/sub")) == 1);
	make("from/sub/new", "new");
	CONTENT("from/link");
	CONTENT("from/sub/new");
	CONTENT("from/sub/../file");
	CONTENT("from/sub/../sub/new");
	MUST(stat("from", &from));
	MUST(stat("from/sub/..", &above));
	IS("above", above.st_ino == from.st_ino && above.st_dev == from.st_dev);
	T("link", link("from/file", "from/sub/linked"));
	T("rename", rename("from/file", "from/sub/moved"));
	T("rename inside", rename("from/sub/new", "from/sub/moved"));
	T("rmdir", rmdir("from/sub"));
	T("rename the mount point", rename("from/sub", "from/other"));
	T("unlink", unlink("from/sub"));
	T("mkdir", mkdir("from/sub/deep", 0755));
	make("from/sub/deep/name", "deep");
	MUST(chdir("from/sub/deep"));
	CWD();
	LINK("/proc/self/cwd");
	CONTENT("name");
	CONTENT("../moved");
	CONTENT("../../file");
	T("busy", umount(inside("from/sub")));
	T("up", chdir(".."));
	CWD();
	int dir = MUST(open(".", O_DIRECTORY | O_CLOEXEC));
	T("up", chdir(".."));
	CWD();
	CONTENT("file");
	char name[64];
	snprintf(name, sizeof name, "/proc/self/fd/%d", dir);
	LINK(name);
	O("from a descriptor", openat(dir, "deep/name", O_RDONLY));
	O("above it", openat(dir, "../file", O_RDONLY));
	close(dir);
	T("umount", umount("sub"));
	CONTENT("sub/file");
	T("bind", bind_to(DIR_, "sub"));
	CONTENT("sub/host");
	T("another on it", mount("new", "sub", "tmpfs", 0, NULL));
	T("hidden", access("sub/host", F_OK));
	T("umount", umount("sub"));
	CONTENT("sub/host");
	T("read-only", mount(NULL, "sub", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL));
	O("for writing", open("sub/host", O_WRONLY));
	T("umount", umount("sub"));
	CONTENT("sub/file");
	T("a file", bind_to(FILE_, "file"));
	CONTENT("file");
	T("unlink", unlink("file"));
	O("for writing", open("file", O_WRONLY | O_CREAT, 0600));
	T("umount", umount("file"));
	CONTENT("file");
	T("a file on a directory", bind_to(FILE_, "sub"));
	T("a directory on a file", bind_to(DIR_, "file"));
}

/* Of what is under test, on what is under test; and inside of what is bound. */
static void inside_of_each_other(void)
{
	if (!separate())
		return;
	make(NEW "/dir/host", "on the host");
	T("bind", bind_to("from/sub/deep", "to"));
	CONTENT("to/file");
	CONTENT("to/../from/file");
	MUST(chdir("to/deeper"));
	CWD();
	T("up", chdir("../.."));
	CWD();
	IS("listed", listed("/proc/self/mounts", inside("to")) == 1);
	T("inside", mount("new", "to/deeper", "tmpfs", 0, NULL));
	T("covered", access("to/deeper/name", F_OK));
	CONTENT("from/sub/deep/deeper/name");
	T("umount", umount("to/deeper"));
	CONTENT("to/deeper/name");
	T("umount", umount("to"));
	T("gone", access("to/file", F_OK));
	T("elsewhere", bind_to("from", NEW "/other"));
	T("a directory in it", bind_to(DIR_, NEW "/other/sub"));
	CONTENT(NEW "/other/sub/host");
	CONTENT(NEW "/other/sub/../file");
	CONTENT("from/sub/file");
	T("a file in it", bind_to(FILE_, NEW "/other/file"));
	CONTENT(NEW "/other/file");
	CONTENT("from/file");
	MUST(chdir(NEW "/other/sub"));
	CWD();
	T("busy", umount(NEW "/other"));
	T("up", chdir(".."));
	CWD();
	T("read-only", mount(NULL, NEW "/other", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL));
	O("for writing", open("name", O_WRONLY | O_CREAT, 0600));
	O("for writing there", open("sub/made", O_WRONLY | O_CREAT, 0600));
	T("and one more", mount("new", NEW "/other/empty", "tmpfs", 0, NULL));
	make(NEW "/other/empty/new", "new");
	CONTENT(NEW "/other/empty/new");
	T("umount", umount(NEW "/other/empty"));
	T("umount", umount(NEW "/other/sub"));
	CONTENT("sub/file");
	MUST(chdir("/"));
	T("umount", umount2(NEW "/other", MNT_DETACH));
}

/* A root directory under test, with mounts in it. */
static void rooted(void)
{
	if (!separate())
		return;
	MUST(chdir("root"));
	MUST(mount("proc", "proc", "tmpfs", 0, NULL));
	MUST(mount("/usr", "usr", NULL, MS_BIND | MS_REC, NULL));
	MUST(mount("/dev", "dev", NULL, MS_BIND | MS_REC, NULL));
	make("proc/name", "new");
	T("chroot", chroot("."));
	MUST(chdir("/"));
	CWD();
	CONTENT("/name");
	CONTENT("/proc/name");
	CONTENT("/proc/../../name");
	MUST(chdir("/usr/bin"));
	CWD();
	T("up", chdir("../.."));
	CWD();
	O("a device", open("/dev/null", O_RDWR));
	RUN("a program", "/bin/sh", "sh", "-c", "echo here; cat name; pwd; cd /usr/bin; cd ..; pwd; echo > /dev/null");
	CHILD("a child", {
		CONTENT("/proc/name");
		CONTENT("/name");
	});
	T("umount", umount("/proc"));
	T("gone", access("/proc/name", F_OK));
}

/* Once more, where the root directory is under test. */
static void deeper(void)
{
	T("unshare", own_namespace());
	T("mount", mount("new", "/dir", "tmpfs", 0, NULL));
	MUST(mkdir("/dir/w", 0755));
	MUST(mkdir("/dir/old", 0755));
	T("bind", bind_to("/deep", "/dir/w"));
	CONTENT("/dir/w/name");
	make("/dir/w/new", "new");
	CONTENT("/deep/new");
	MUST(chdir("/dir"));
	T("pivot_root", syscall(SYS_pivot_root, ".", "old"));
	MUST(chdir("/"));
	CONTENT("/w/name");
	CONTENT("/old/name");
	CONTENT("/old/usr/../deep/name");
	T("umount", umount2("/old", MNT_DETACH));
	T("gone", access("/old/name", F_OK));
	CONTENT("/w/../w/new");
	MUST(chdir("/w"));
	CWD();
	T("unlink", unlink("new"));
}

/* A root directory under test for the kernel, too. */
static void sandboxed(void)
{
	if (!separate())
		return;
	MUST(bind_to("root", DIR_));
	MUST(mount("/usr", DIR_ "/usr", NULL, MS_BIND | MS_REC, NULL));
	MUST(mount("/dev", DIR_ "/dev", NULL, MS_BIND | MS_REC, NULL));
	MUST(chdir(DIR_));
	T("pivot_root", syscall(SYS_pivot_root, ".", "old"));
	MUST(chdir("/"));
	CWD();
	CONTENT("/name");
	T("the old root", access("/old/usr", F_OK));
	T("umount", umount2("/old", MNT_DETACH));
	T("gone", access("/old/usr", F_OK));
	CONTENT("/../old/../name");
	CONTENT("/usr/../name");
	T("up", chdir("/usr/.."));
	CWD();
	make("/made", "made");
	T("mkdir", mkdir("/dir", 0755));
	T("rename", rename("/made", "/dir/made"));
	CONTENT("dir/made");
	MUST(chdir("/usr/bin"));
	CWD();
	RUN("a program", "/bin/sh", "sh", "-c", "cat /name; pwd; cd /dir; pwd; cat made; echo > /dev/null");
	MUST(chdir("/dir"));
	CWD();
	LINK("/proc/self/cwd");
	make("/dir/script", "#!/bin/sh\necho script: $0 $1; pwd; cat made\n");
	MUST(chmod("/dir/script", 0755));
	RUN("a script", "/dir/script", "script", "argument");
	MUST(chdir("/usr"));
	RUN("from elsewhere", "/dir/script", "script", "argument");
	T("a mount", mount("new", "/dir", "tmpfs", 0, NULL));
	T("covered", access("/dir/made", F_OK));
	T("umount", umount("/dir"));
	MUST(unlink("/dir/script"));
	MUST(unlink("/dir/made"));
	MUST(mkdir("/deep", 0755));
	make("/deep/name", "deep");
	CHILD("deeper", deeper());
	MUST(unlink("/deep/name"));
	T("rmdir", rmdir("/deep"));
	T("rmdir", rmdir("/dir"));
}

/* The directories of the host, and with them those under test, are at two places. What is open is seen at the first one. */
static void seen_twice(void)
{
	char name[64];

	if (!separate())
		return;
	MUST(mkdir(NEW "/again", 0755));
	T("the root directory again", mount("/", NEW "/again", NULL, MS_BIND | MS_REC, NULL));
	MUST(chdir("from/sub"));
	CWD();
	LINK("/proc/self/cwd");
	int dir = MUST(open("deep", O_DIRECTORY | O_CLOEXEC));
	snprintf(name, sizeof name, "/proc/self/fd/%d", dir);
	LINK(name);
	close(dir);
	MUST(chdir("../.."));
	T("mount", mount("new", "from/sub", "tmpfs", 0, NULL));
	IS("listed", listed("/proc/self/mounts", inside("from/sub")) == 1);
	T("umount", umount("from/sub"));
	T("bind", mount("from/sub", "to", NULL, MS_BIND, NULL));
	IS("listed", listed("/proc/self/mounts", inside("to")) == 1);
	MUST(chdir("to"));
	CWD();
	MUST(chdir(".."));
	T("umount", umount("to"));
}

static void steps(void)
{
	MUST(mkdir("from", 0777));
	MUST(mkdir("from/sub", 0777));
	MUST(mkdir("from/sub/deep", 0777));
	MUST(mkdir("from/sub/deep/deeper", 0777));
	make("from/file", "in the mount");
	MUST(symlink("sub/../file", "from/link"));
	make("from/sub/file", "above");
	make("from/sub/deep/file", "deep");
	make("from/sub/deep/deeper/name", "deeper");
	CHILD("directories", directories());
	CHILD("working directories", working_directories());
	CHILD("files", files());
	CHILD("read-only", read_only());
	CHILD("moved", moved());
	CHILD("pivoted", pivoted());
	CHILD("alone", alone());
	CHILD("out", out());
	CHILD("programs", programs());
	CHILD("others", others());
	MUST(mkdir("to", 0777));
	MUST(mkdir("from/empty", 0777));
	CHILD("covered", covered());
	CHILD("inside of each other", inside_of_each_other());
	MUST(mkdir("root", 0777));
	MUST(mkdir("root/proc", 0777));
	MUST(mkdir("root/usr", 0777));
	MUST(mkdir("root/dev", 0777));
	make("root/name", "in the root directory");
	MUST(symlink("usr/bin", "root/bin"));
	MUST(symlink("usr/lib", "root/lib"));
	MUST(symlink("usr/lib64", "root/lib64"));
	CHILD("rooted", rooted());
	MUST(mkdir("root/old", 0777));
	CHILD("sandboxed", sandboxed());
	CHILD("seen twice", seen_twice());
	CHILD("without the right", without_the_right());
	CONTENT("from/file");
}
