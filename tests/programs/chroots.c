/* chroot(2) to a directory: absolute paths, links and `..` from then on; which threads and processes share the root; the way out. */
#include "step.h"

#include <linux/openat2.h>
#include <pthread.h>
#include <sched.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/un.h>
#include <sys/xattr.h>

/* False where the caller may not. */
static int enters(const char *dir)
{
	int result = chroot(dir);

	T("chroot", result);
	return result == 0;
}

static void paths(void)
{
	struct stat root, above;

	if (!enters("new"))
		return;
	MUST(chdir("/"));
	CWD();
	SHOW("/etc/name");
	CONTENT("/etc/name");
	SHOW("etc/../../../etc/name");
	MUST(stat("/", &root));
	MUST(stat("/..", &above));
	IS("nothing above", root.st_ino == above.st_ino && root.st_dev == above.st_dev);
	T("outside", access("/outside", F_OK));
	T("of the host", access("/usr/bin/env", F_OK));
	CONTENT("/absolute");
	CONTENT("/relative");
	LINK("/absolute");
	T("chdir", chdir("/etc"));
	CWD();
	CONTENT("../absolute");
	O("O_PATH", open("/etc/name", O_PATH));
	O("a directory", open("/", O_DIRECTORY));
	int dir = MUST(open("/etc", O_DIRECTORY));
	O("from a descriptor", openat(dir, "../../../etc/name", O_RDONLY));
	O("absolute with a descriptor", openat(dir, "/etc/name", O_RDONLY));
	T("fchdir", fchdir(dir));
	CWD();
}

static void changes(void)
{
	if (!enters("new"))
		return;
	MUST(chdir("/etc"));
	make("/made", "made");
	CONTENT("../made");
	T("mkdir", mkdir("/dir", 0755));
	T("rename", rename("/made", "/dir/moved"));
	T("link", link("/dir/moved", "/linked"));
	T("symlink", symlink("/dir/moved", "/dir/symbolic"));
	CONTENT("/dir/symbolic");
	T("unlink", unlink("/dir/symbolic"));
	T("truncate", truncate("/linked", 2));
	CONTENT("/dir/moved");
	T("rmdir of the root", rmdir("/"));
	T("into itself", rename("/dir", "/dir/moved/x"));
	int pipe_ends[2];
	MUST(pipe(pipe_ends));
	T("mkfifo", mkfifo("/fifo", 0600));
	O("a fifo", open("/fifo", O_RDWR));
	T("chmod", chmod("/linked", 0640));
	SHOW("/linked");
}

/* Calls that take a path each in their own way. */
static void other_calls(void)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "/socket"};
	struct statfs file_system;
	struct timespec times[2] = {{1000, 0}, {2000, 0}};
	struct open_how in_root = {.flags = O_RDONLY, .resolve = RESOLVE_IN_ROOT};
	struct open_how beneath = {.flags = O_RDONLY, .resolve = RESOLVE_BENEATH};
	char text[16];

	if (!enters("new"))
		return;
	MUST(chdir("/etc"));
	int bound = MUST(socket(AF_UNIX, SOCK_STREAM, 0)), client = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	T("bind", bind(bound, (struct sockaddr *)&name, sizeof name));
	MUST(listen(bound, 1));
	SHOW("/socket");
	T("connect", connect(client, (struct sockaddr *)&name, sizeof name));
	strcpy(name.sun_path, "/outside");
	T("connect outside", connect(client, (struct sockaddr *)&name, sizeof name));
	T("statfs", statfs("/etc/name", &file_system));
	T("utimensat", utimensat(AT_FDCWD, "/etc/name", times, 0));
	SHOW("/etc/name");
	T("setxattr", setxattr("/etc/name", "user.a", "1234", 4, 0));
	T("getxattr", getxattr("/relative", "user.a", text, sizeof text));
	T("lgetxattr", lgetxattr("/relative", "user.a", text, sizeof text));
	T("faccessat", faccessat(AT_FDCWD, "/absolute", R_OK, AT_SYMLINK_NOFOLLOW));
	int watch = MUST(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
	T("inotify", inotify_add_watch(watch, "/etc", IN_CREATE) < 0);
	T("inotify outside", inotify_add_watch(watch, "/outside", IN_CREATE));
	make("/etc/watched", "");
	IS("an event", read(watch, &(char[256]){0}, 256) > 0);
	int dir = MUST(open("/", O_DIRECTORY));
	O("in root", syscall(SYS_openat2, dir, "../../absolute", &in_root, sizeof in_root));
	O("beneath", syscall(SYS_openat2, dir, "absolute", &beneath, sizeof beneath));
	O("beneath, relative", syscall(SYS_openat2, dir, "relative", &beneath, sizeof beneath));
	O("a new file without a name", open("/etc", O_TMPFILE | O_RDWR, 0600));
	make("/script", "#!/interpreter\n");
	MUST(chmod("/script", 0755));
	char *argv[] = {"script", NULL};
	T("a script", execv("/script", argv));
	MUST(unlink("/socket"));
}

static void runs_itself(void)
{
	if (!enters("new"))
		return;
	/* The loader is missing there. */
	char *argv[] = {"program", "child", NULL};
	T("execve", execv("/program", argv));
}

static void *enter_alone(void *unused)
{
	T("unshare", unshare(CLONE_FS));
	T("in a separate thread", chroot("new"));
	T("seen there", access("/etc/name", F_OK));
	return unused;
}

static void separate_threads(void)
{
	pthread_t thread;

	MUST(pthread_create(&thread, NULL, enter_alone, NULL) ? -1 : 0);
	MUST(pthread_join(thread, NULL) ? -1 : 0);
	T("not by the other one", access("/etc/name", F_OK));
}

static void *enter_in_thread(void *unused)
{
	T("in a thread", chroot("new"));
	return unused;
}

static void threads(void)
{
	pthread_t thread;

	MUST(pthread_create(&thread, NULL, enter_in_thread, NULL) ? -1 : 0);
	MUST(pthread_join(thread, NULL) ? -1 : 0);
	T("seen by the other one", access("/etc/name", F_OK));
}

static int child_enters(void *unused)
{
	return chroot(unused ? "new" : "new") == 0 ? 0 : errno;
}

static void shared(int flags, const char *name)
{
	static char stack[65536] __attribute__((aligned(16)));
	int status;
	pid_t child = MUST(clone(child_enters, stack + sizeof stack, flags | SIGCHLD, NULL));

	MUST(waitpid(child, &status, 0));
	ended(__LINE__, name, status);
	T(name, access("/etc/name", F_OK));
}

static void children(void)
{
	CHILD("of a child only", shared(0, "a child's root"));
	CHILD("of both", shared(CLONE_FS, "a shared root"));
	if (!enters("new"))
		return;
	CHILD("inherited", {
		CONTENT("/etc/name");
		T("deeper", chroot("/etc"));
		CONTENT("/name");
		T("not there", access("/etc/name", F_OK));
	});
	CONTENT("/etc/name");
}

/* As chroot(2) says: the superuser can leave. */
static void way_out(void)
{
	int outside = MUST(open(".", O_DIRECTORY));

	if (!enters("new"))
		return;
	T("outside", faccessat(outside, "outside", F_OK, 0));
	CONTENT("outside");
	T("fchdir", fchdir(outside));
	CONTENT("new/etc/name");
	for (int above = 0; above < 64; above++)
		MUST(chdir(".."));
	T("chroot", chroot("."));
	T("of the host again", access("/usr/bin/env", F_OK));
}

static void as_user(void)
{
	drop();
	T("as a user", chroot("new"));
}

/* The right to call it in a user namespace of one's own suffices. */
static void in_own_namespace(void)
{
	drop();
	T("unshare", unshare(CLONE_NEWUSER));
	if (!enters("new"))
		return;
	CONTENT("/etc/name");
	CONTENT("/absolute");
	CHILD("a child", CONTENT("/relative"));
	T("outside", access("/outside", F_OK));
}

static void removed(void)
{
	MUST(mkdir("gone", 0755));
	if (!enters("gone"))
		return;
	T("rmdir", rmdir("gone"));
	T("stat", access("/", F_OK));
	T("a name in it", access("/x", F_OK));
	O("make", open("/x", O_CREAT | O_WRONLY, 0600));
}

/* Paths in /proc of what is not below the root directory. */
static void seen_in_proc(void)
{
	char path[PATH_MAX], name[64], text[PATH_MAX] = "";
	int proc = MUST(open("/proc", O_PATH | O_DIRECTORY)), fd = MUST(open("outside", O_RDONLY));

	MUST(realpath("outside", path) ? 0 : -1);
	if (!enters("new"))
		return;
	for (int i = 0; i < 3; i++) {
		static const char *const lists[] = { "self/mountinfo", "self/mounts", "self/mountstats" };
		int list = openat(proc, lists[i], O_RDONLY);

		T(lists[i], read(list, text, sizeof text));
		close(list);
	}
	sprintf(name, "self/fd/%d", fd);
	T("link", readlinkat(proc, name, text, sizeof text - 1) == (ssize_t)strlen(path));
	IS("the whole path", !strncmp(text, path, strlen(path)));
}

static void steps(void)
{
	MUST(mkdir("new", 0755));
	MUST(mkdir("new/etc", 0755));
	make("outside", "outside");
	make("new/etc/name", "inside");
	MUST(symlink("/etc/name", "new/absolute"));
	MUST(symlink("etc/name", "new/relative"));
	copy_self("new/program", 0755);
	CHILD("paths", paths());
	CHILD("changes", changes());
	CHILD("runs_itself", runs_itself());
	CHILD("threads", threads());
	CHILD("separate threads", separate_threads());
	CHILD("other calls", other_calls());
	CHILD("children", children());
	CHILD("way out", way_out());
	CHILD("user", as_user());
	CHILD("own namespace", in_own_namespace());
	CHILD("removed", removed());
	CHILD("in /proc", seen_in_proc());
	CONTENT("outside");
}
