/* pivot_root(2), chroot(2) and setns(2) in a mount namespace of the program's own, to directories of the host: what absolute and relative paths lead to then. */
#include "namespace.h"

#include <linux/openat2.h>
#include <pthread.h>
#include <sys/inotify.h>

/* A mount point outside of the tests' directories: nothing else sees what is mounted there. */
#define NEW "/mnt"

static void bind_mount(const char *from, const char *to)
{
	MUST(mkdir(to, 0755));
	MUST(mount(from, to, NULL, MS_BIND | MS_REC, NULL));
}

/* A root directory with the programs of the host. */
static void fill(void)
{
	struct stat st;

	MUST(mount("new", NEW, "tmpfs", 0, NULL));
	MUST(mkdir(NEW "/etc", 0755));
	MUST(mkdir(NEW "/old", 0755));
	MUST(mkdir(NEW "/dir", 0755));
	make(NEW "/etc/name", "inside");
	MUST(symlink("/etc/name", NEW "/absolute"));
	MUST(symlink("../../etc/name", NEW "/dir/relative"));
	make(NEW "/script", "#!/bin/sh\necho script: $0 $1; pwd; cat /absolute; echo\n");
	MUST(chmod(NEW "/script", 0755));
	bind_mount("/usr", NEW "/usr");
	const char *links[] = {"bin", "lib", "lib64"};
	for (int i = 0; i < 3; i++) {
		char name[64], target[64];
		snprintf(name, sizeof name, "/%s", links[i]);
		if (lstat(name, &st) || !S_ISLNK(st.st_mode))
			continue;
		snprintf(name, sizeof name, NEW "/%s", links[i]);
		snprintf(target, sizeof target, "usr/%s", links[i]);
		MUST(symlink(target, name));
	}
}

/* False where a program may not. */
static bool separate(void)
{
	int result;

	T("unshare", result = own_namespace());
	if (result)
		return false;
	fill();
	return true;
}

static int pivot(const char *new, const char *old)
{
	return syscall(SYS_pivot_root, new, old);
}

/* In the new root directory, with `dir` open there. */
static void inside(int dir)
{
	struct open_how beneath = {.flags = O_RDONLY, .resolve = RESOLVE_BENEATH};
	struct stat root, above;

	CONTENT("/etc/name");
	CONTENT("/absolute");
	CONTENT("/dir/relative");
	CONTENT("/dir/../etc/../../absolute");
	LINK("/absolute");
	MUST(stat("/", &root));
	MUST(stat("/..", &above));
	IS("nothing above", root.st_ino == above.st_ino && root.st_dev == above.st_dev);
	T("outside", access(host_path, F_OK));
	T("in the mount", access(top_path, F_OK));
	T("chdir", chdir("/dir"));
	CWD();
	CONTENT("relative");
	CONTENT("../absolute");
	O("from a descriptor", openat(dir, "../absolute", O_RDONLY));
	O("beneath", syscall(SYS_openat2, dir, "relative", &beneath, sizeof beneath));
	T("fchdir", fchdir(dir));
	CWD();
	make("/made", "made");
	T("rename", rename("/made", "moved"));
	CONTENT("/dir/moved");
	T("unlink", unlink("/dir/moved"));
	int watch = MUST(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
	T("inotify", inotify_add_watch(watch, "/etc", IN_CREATE) < 0);
	make("/etc/watched", "");
	IS("an event", read(watch, &(char[256]){0}, 256) > 0);
	MUST(unlink("/etc/watched"));
	RUN("a program", "/usr/bin/env", "env", "-i", "cat", "/etc/name");
	RUN("a script", "/script", "script", "argument");
	RUN("by a relative path", "../script", "script", "argument");
}

static void chroots(void)
{
	if (!separate())
		return;
	int dir = MUST(open(NEW "/dir", O_DIRECTORY | O_CLOEXEC));
	T("of nothing", chroot(NEW "/missing"));
	T("of a file", chroot(NEW "/absolute"));
	T("chroot", chroot(NEW));
	inside(dir);
	T("deeper", chroot("/etc"));
	CONTENT("/name");
	T("not there", access("/etc/name", F_OK));
}

static void pivots(void)
{
	if (!separate())
		return;
	int dir = MUST(open(NEW "/dir", O_DIRECTORY | O_CLOEXEC));
	T("no mount point", pivot(NEW "/dir", NEW "/dir"));
	T("not below", pivot(NEW, "/usr"));
	T("nothing", pivot(NEW, NEW "/missing"));
	T("no directory", pivot(NEW "/script", NEW "/old"));
	MUST(chdir("/"));
	T("pivot_root", pivot(NEW, NEW "/old"));
	CWD();
	inside(dir);
	T("old", access("/old/usr", F_OK));
	T("umount", umount2("/old", MNT_DETACH));
	T("old any more", access("/old/usr", F_OK));
	CONTENT("/etc/name");
}

/* As programs that start containers do. */
static void stacked(void)
{
	if (!separate())
		return;
	int old = MUST(open("/", O_DIRECTORY | O_CLOEXEC)), new = MUST(open(NEW, O_DIRECTORY | O_CLOEXEC));
	MUST(fchdir(new));
	T("pivot_root", pivot(".", "."));
	MUST(fchdir(old));
	T("old", access("usr", F_OK));
	T("umount", umount2(".", MNT_DETACH));
	MUST(chdir("/"));
	CWD();
	CONTENT("etc/name");
	CONTENT("/absolute");
	RUN("a script", "script", "script", "argument");
}

/* The same directory as before by a bind mount: whatever is mounted below comes with it. */
static void bound(void)
{
	if (!separate())
		return;
	MUST(mkdir(NEW "/root", 0755));
	MUST(mount("/", NEW "/root", NULL, MS_BIND | MS_REC, NULL));
	MUST(chdir(NEW "/root"));
	T("pivot_root", pivot(".", "." NEW));
	T("umount", umount2("." NEW, MNT_DETACH));
	MUST(chdir("/"));
	char name[PATH_MAX];
	snprintf(name, sizeof name, "%s/outside", host_path);
	O("of the host", open(name, O_RDONLY));
	snprintf(name, sizeof name, "%s/w/file", top_path);
	T("in the mount", access(name, F_OK));
	snprintf(name, sizeof name, "%s/w/made", top_path);
	make(name, "made");
	T("unlink", unlink(name));
}

static void *look(void *barrier)
{
	CONTENT("../absolute");
	pthread_barrier_wait(barrier);
	pthread_barrier_wait(barrier);
	CONTENT("/absolute");
	return NULL;
}

/* pivot_root(2) changes what other threads and processes have as their root directory. */
static void others(void)
{
	pthread_barrier_t barrier;
	pthread_t thread;
	int ends[2];

	if (!separate())
		return;
	MUST(chdir(NEW "/dir"));
	MUST(pipe(ends));
	pthread_barrier_init(&barrier, NULL, 2);
	MUST(pthread_create(&thread, NULL, look, &barrier) ? -1 : 0);
	pid_t child = MUST(fork());
	if (!child) {
		close(ends[1]);
		IS("told", read(ends[0], &(char){0}, 1) == 0);
		CONTENT("/absolute");
		_exit(0);
	}
	pthread_barrier_wait(&barrier);
	T("pivot_root", pivot(NEW, NEW "/old"));
	close(ends[0]);
	close(ends[1]);
	int status;
	MUST(waitpid(child, &status, 0));
	ended(__LINE__, "a child", status);
	pthread_barrier_wait(&barrier);
	MUST(pthread_join(thread, NULL) ? -1 : 0);
	CHILD("a new child", CONTENT("/absolute"));
}

/* Descriptors that come along lead to the same files as before. */
static void brought_along(void)
{
	int file = MUST(open("file", O_RDWR | O_CLOEXEC)), dir = MUST(open(".", O_DIRECTORY | O_CLOEXEC));

	if (!separate())
		return;
	T("pivot_root", pivot(NEW, NEW "/old"));
	T("umount", umount2("/old", MNT_DETACH));
	T("write", pwrite(file, "F", 1, 0));
	O("from the directory", openat(dir, "file", O_RDWR));
	T("mkdirat", mkdirat(dir, "dir", 0755));
	O("a new file", openat(dir, "dir/new", O_CREAT | O_WRONLY, 0600));
	T("from the mount", renameat(dir, "dir/new", AT_FDCWD, "/new"));
	T("into the mount", renameat(AT_FDCWD, "/etc/name", dir, "name"));
	T("unlinkat", unlinkat(dir, "dir/new", 0));
	T("rmdir", unlinkat(dir, "dir", AT_REMOVEDIR));
	T("chroot", fchdir(dir) || chroot("."));
	CONTENT("/file");
	CONTENT("/etc/name");
}

/* Without the directories in memory that other programs use. */
static void covered(void)
{
	char name[PATH_MAX];

	MUST(mkdir("dir", 0777));
	MUST(chmod("dir", 0777));
	make("dir/name", "in the mount");
	make("dir/script", "#!/bin/sh\necho script: ${0##*/} $1; test -e name && cat name; echo\n");
	MUST(chmod("dir/script", 0755));
	copy_self("program", 0755);
	snprintf(name, sizeof name, "%s/w/dir", top_path);
	if (!separate())
		return;
	MUST(mount("covers", "/dev/shm", "tmpfs", 0, NULL));
	MUST(chdir("/"));
	T("chdir", chdir(name));
	CONTENT("name");
	LINK("/proc/self/cwd");
	CWD();
	RUN("a script", "./script", "script", "argument");
	RUN("a program", "../program", "program");
	T("up", chdir(".."));
	CONTENT("dir/name");
	RUN("a program here", "program", "program");
	T("of a file", chdir("program"));
	int lowest = MUST(dup(0));
	T("the lowest free number", lowest);
	close(lowest);
	T("down", chdir("dir"));
	CHILD("a child", {
		CONTENT("name");
		T("chdir", chdir(".."));
		CONTENT("dir/name");
	});
	MUST(chdir("/usr"));
	strcat(name, "/script");
	RUN("from elsewhere", name, "script", "argument");
}

static void of_the_run(void)
{
	drop();
	T("without the right", pivot("/", "/"));
}

/* The way back. */
static void enters_again(void)
{
	int namespace = MUST(open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC)), result;
	char name[PATH_MAX];

	if (!separate())
		return;
	T("chroot", chroot(NEW));
	CONTENT("/etc/name");
	T("setns", result = setns(namespace, CLONE_NEWNS));
	if (result)
		return;
	CONTENT(NEW "/etc/name");
	snprintf(name, sizeof name, "%s/outside", host_path);
	O("of the host", open(name, O_RDONLY));
	snprintf(name, sizeof name, "%s/w/file", top_path);
	O("in the mount", open(name, O_RDONLY));
}

static void steps(void)
{
	char name[PATH_MAX];

	snprintf(name, sizeof name, "%s/outside", host_path);
	make(name, "outside");
	make("file", "file");
	MUST(chmod("file", 0666));
	CHILD("chroot", chroots());
	CHILD("pivot_root", pivots());
	CHILD("stacked", stacked());
	CHILD("bound", bound());
	CHILD("others", others());
	CHILD("brought along", brought_along());
	CHILD("covered", covered());
	CHILD("without the right", of_the_run());
	CHILD("back", enters_again());
	CONTENT("file");
}
