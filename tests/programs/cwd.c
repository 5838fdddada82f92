/* The working directory, paths between mount and host, and what /proc says. */
#include "step.h"
#include <pthread.h>

/* Enough `../` to reach the root from anywhere the tests work, then REST. */
static const char *from_root(const char *rest)
{
	static char path[512];

	path[0] = 0;
	for (int i = 0; i < 30; i++)
		strcat(path, "../");
	strcat(path, rest);
	return path;
}

static void moving(void)
{
	char small[4], long_name[300];
	int fd, file;

	MUST(mkdir("a", 0755));
	MUST(mkdir("a/b", 0755));
	MUST(mkdir("a/b/c", 0755));
	make("a/f", "af");
	MUST(symlink("a/b", "l"));
	MUST(symlink("loop", "loop"));
	MUST(symlink("gone", "dangling"));
	CWD();
	T("chdir", chdir("a"));
	CWD();
	T("relative", access("f", R_OK));
	T("chdir deeper", chdir("./b//c/"));
	CWD();
	T("dots", chdir(".."));
	CWD();
	T("two dots", chdir("../.."));
	CWD();
	T("link", chdir("l"));
	CWD();
	T("dots of a link", chdir(".."));
	CWD();
	T("dot", chdir("."));
	T("back", chdir(".."));
	CWD();
	T("missing", chdir("none"));
	T("file", chdir("a/f"));
	T("file/", chdir("a/f/"));
	T("below file", chdir("a/f/x"));
	T("loop", chdir("loop"));
	T("dangling", chdir("dangling"));
	T("empty", chdir(""));
	T("null", chdir(NULL));
	T("bad pointer", chdir((char *)16));
	memset(long_name, 'x', 256);
	long_name[256] = 0;
	T("long", chdir(long_name));
	CWD();
	T("getcwd small", syscall(SYS_getcwd, small, sizeof small));
	T("getcwd bad", syscall(SYS_getcwd, 16, 4096));
	T("getcwd zero", syscall(SYS_getcwd, small, 0));
	fd = MUST(open("a/b", O_RDONLY));
	T("fchdir", fchdir(fd));
	CWD();
	close(fd);
	file = MUST(open("../f", O_RDONLY));
	T("fchdir file", fchdir(file));
	close(file);
	T("fchdir bad", fchdir(777));
	fd = MUST(open("../..", O_PATH));
	T("fchdir O_PATH", fchdir(fd));
	CWD();
	close(fd);
}

static void in_and_out(void)
{
	char path[600];
	int back = MUST(open(".", O_RDONLY | O_DIRECTORY)), fd;
	struct stat a, b;

	T("host file by dots", access(from_root("etc/passwd"), R_OK));
	T("stat host by dots", stat(from_root("etc/passwd"), &a));
	T("stat host", stat("/etc/passwd", &b));
	IS("same", a.st_ino == b.st_ino && a.st_dev == b.st_dev);
	T("open host by dots", fd = open(from_root("etc/passwd"), O_RDONLY));
	T("read", read(fd, path, 4));
	close(fd);
	T("stat root by dots", stat(from_root("."), &a));
	T("stat root", stat("/", &b));
	IS("same", a.st_ino == b.st_ino && a.st_dev == b.st_dev);
	T("openat host by dots", fd = openat(back, from_root("etc"), O_RDONLY | O_DIRECTORY));
	T("from there", faccessat(fd, "passwd", R_OK, 0));
	snprintf(path, sizeof path, "..%s/w/a/f", top_path);
	T("and into the mount again", faccessat(fd, path, R_OK, 0));
	close(fd);
	snprintf(path, sizeof path, "/usr/..%s/w/a/f", top_path);
	T("absolute with dots", access(path, R_OK));
	snprintf(path, sizeof path, "/proc/self/root%s/w/a/f", top_path);
	T("by /proc/self/root", access(path, R_OK));
	snprintf(path, sizeof path, "//.//%s//w/./a/../a/f", top_path);
	T("absolute with more", access(path, R_OK));
	T("chdir out", chdir("/usr"));
	CWD();
	snprintf(path, sizeof path, "..%s/w/a", top_path);
	T("chdir in by dots", chdir(path));
	CWD();
	T("chdir out by dots", chdir(from_root("usr")));
	CWD();
	T("chdir to root", chdir("/"));
	T("relative into the mount", access(top_path + 1, R_OK));
	snprintf(path, sizeof path, "%s/w/a", top_path + 1);
	T("chdir relative from the host", chdir(path));
	CWD();
	T("fchdir back", fchdir(back));
	CWD();
	snprintf(path, sizeof path, "%s/w", top_path);
	T("chdir absolute", chdir(path));
	CWD();
	for (int i = 0; i < 30; i++)
		MUST(chdir(".."));
	CWD();
	T("fchdir back", fchdir(back));
	/* What was made by a path between the two is where it belongs. */
	snprintf(path, sizeof path, "%s/made", from_root(host_path + 1));
	T("create on the host by dots", fd = open(path, O_RDWR | O_CREAT, 0644));
	T("write", write(fd, "host", 4));
	close(fd);
	snprintf(path, sizeof path, "%s/made", host_path);
	MUST(access(path, R_OK));
	T("mkdir on the host by dots", ({ snprintf(path, sizeof path, "%s/hd", from_root(host_path + 1)); mkdir(path, 0755); }));
	snprintf(path, sizeof path, "%s/hd", host_path);
	T("there", access(path, F_OK));
	T("chdir to host", chdir(host_path));
	snprintf(path, sizeof path, "%s/w/fromhost", top_path);
	make(path, "made from the host's side");
	T("rename within the host", rename("made", "hd/made"));
	T("fchdir back", fchdir(back));
	CONTENT("fromhost");
	/* Symbolic links from one to the other. */
	snprintf(path, sizeof path, "%s/link", host_path);
	T("link on the host", symlink(top_path, path));
	strcat(path, "/w/a/f");
	T("through it", access(path, R_OK));
	T("create through it", ({ snprintf(path, sizeof path, "%s/link/w/vialink", host_path); fd = open(path, O_RDWR | O_CREAT, 0644); }));
	close(fd);
	SHOW("vialink");
	snprintf(path, sizeof path, "%s/link/w/a", host_path);
	T("chdir through it", chdir(path));
	CWD();
	T("fchdir back", fchdir(back));
	T("link in the mount", symlink(host_path, "tohost"));
	CONTENT("tohost/hd/made");
	T("chdir through it", chdir("tohost/hd"));
	CWD();
	T("dots of it", chdir(".."));
	CWD();
	T("fchdir back", fchdir(back));
	snprintf(path, sizeof path, "%s/w/a", top_path);
	MUST(symlink(path, "absolute"));
	CONTENT("absolute/f");
	MUST(symlink(from_root("etc"), "updots"));
	T("link of dots", access("updots/passwd", R_OK));
	/* The top itself. */
	T("top listed in the host's root", access(top_path, F_OK));
	T("rmdir top", rmdir(top_path) == -1 && (errno == EBUSY || errno == ENOTEMPTY) ? 0 : 1);
	CHILD("inherits", ({ CWD(); T("relative", access("a/f", R_OK)); }));
	CHILD("own", ({ chdir("a"); CWD(); }));
	CWD();
	close(back);
}

static void vanishing(void)
{
	int fd;
	char text[64];

	MUST(mkdir("v", 0755));
	MUST(mkdir("v/w", 0755));
	MUST(mkdir("v/w/x", 0755));
	T("chdir", chdir("v/w/x"));
	T("rename above", rename("../../../v", "../../../moved"));
	CWD();
	LINK("/proc/self/cwd");
	T("rename cwd", rename("../x", "../y"));
	CWD();
	make("here", "still here");
	CONTENT("here");
	T("unlink", unlink("here"));
	T("rmdir cwd", rmdir("../y"));
	CWD();
	O("create in removed", open("f", O_RDWR | O_CREAT, 0644));
	T("mkdir in removed", mkdir("d", 0755));
	T("stat in removed", access("f", F_OK));
	T("dot", access(".", F_OK));
	T("open dot", fd = open(".", O_RDONLY));
	T("empty", syscall(SYS_getdents64, fd, text, sizeof text));
	if (fd >= 0)
		close(fd);
	SHOW(".");
	T("fork in removed", ({ pid_t p = fork(); if (!p) { char t[64]; _exit(syscall(SYS_getcwd, t, 64) == -1 && errno == ENOENT ? 7 : 8); } int s; waitpid(p, &s, 0); WEXITSTATUS(s); }));
	T("dots of removed", chdir(".."));
	CWD();
	T("rest", chdir("../.."));
	CWD();
}

static void proc_links(void)
{
	int fd, dir, copy;
	char path[128];
	struct stat a, b;

	LINK("/proc/self/cwd");
	LINK("/proc/thread-self/cwd");
	sprintf(path, "/proc/%d/cwd", getpid());
	T("by pid", readlink(path, path, sizeof path) > 0 ? 0 : -1);
	T("through cwd", access("/proc/self/cwd/a/f", R_OK));
	T("through cwd dots", access("/proc/self/cwd/../w/a/f", R_OK));
	make("pf", "proc");
	fd = MUST(open("pf", O_RDWR));
	dir = MUST(open("a", O_RDONLY));
	note("fds %d %d", fd, dir);
	sprintf(path, "/proc/self/fd/%d", fd);
	LINK(path);
	T("stat", stat(path, &a));
	fstat(fd, &b);
	IS("same", a.st_ino == b.st_ino && a.st_dev == b.st_dev && a.st_mode == b.st_mode);
	T("lstat", lstat(path, &a));
	IS("a link", S_ISLNK(a.st_mode));
	T("read-only again", copy = open(path, O_RDONLY));
	T("read", read(copy, path, 4));
	close(copy);
	sprintf(path, "/proc/self/fd/%d", fd);
	T("truncating", copy = open(path, O_WRONLY | O_TRUNC));
	T("write", write(copy, "by proc", 7));
	close(copy);
	CONTENT("pf");
	T("append", copy = open(path, O_WRONLY | O_APPEND));
	T("write", write(copy, "+", 1));
	close(copy);
	CONTENT("pf");
	O("exclusive", open(path, O_RDWR | O_CREAT | O_EXCL, 0644));
	O("nofollow", open(path, O_RDONLY | O_NOFOLLOW));
	T("chmod by proc", chmod(path, 0600));
	SHOW("pf");
	T("truncate by proc", truncate(path, 2));
	CONTENT("pf");
	T("access by proc", access(path, R_OK | W_OK));
	T("utimensat by proc", utimensat(AT_FDCWD, path, NULL, 0));
	sprintf(path, "/dev/fd/%d", fd);
	T("/dev/fd", copy = open(path, O_RDONLY));
	close(copy);
	MUST(rename("pf", "pf2"));
	sprintf(path, "/proc/self/fd/%d", fd);
	LINK(path);
	MUST(unlink("pf2"));
	LINK(path);
	T("open deleted", copy = open(path, O_RDONLY));
	close(copy);
	sprintf(path, "/proc/self/fd/%d", dir);
	LINK(path);
	strcat(path, "/f");
	CONTENT(path);
	sprintf(path, "/proc/self/fd/%d/..", dir);
	T("dots by proc", stat(path, &a));
	stat(".", &b);
	IS("same", a.st_ino == b.st_ino);
	sprintf(path, "/proc/self/fd/%d", dir);
	T("chdir by proc", chdir(path));
	CWD();
	MUST(chdir(".."));
	sprintf(path, "/proc/self/fd/%d/new", dir);
	T("create by proc", copy = open(path, O_RDWR | O_CREAT, 0644));
	close(copy);
	SHOW("a/new");
	sprintf(path, "/proc/self/fdinfo/%d", fd);
	T("fdinfo", access(path, R_OK));
	T("bad fd", readlink("/proc/self/fd/777", path, sizeof path));
	int pair[2];
	MUST(pipe(pair));
	sprintf(path, "/proc/self/fd/%d", pair[0]);
	T("pipe", readlink(path, path, sizeof path) > 0 ? 0 : -1);
	IS("is a pipe", !strncmp(path, "pipe:[", 6));
	close(pair[0]);
	close(pair[1]);
	close(fd);
	close(dir);
	/* A child's. */
	int ready[2];
	MUST(pipe(ready));
	pid_t child = MUST(fork());
	if (child == 0) {
		MUST(chdir("a"));
		MUST(open("f", O_RDONLY));
		MUST(write(ready[1], "x", 1));
		pause();
	}
	MUST(read(ready[0], path, 1));
	char link[PATH_MAX];
	ssize_t length;
	sprintf(path, "/proc/%d/cwd", child);
	length = readlink(path, link, sizeof link - 1);
	link[length < 0 ? 0 : length] = 0;
	note("child's cwd %s", shown(link));
	sprintf(path, "/proc/%d/cwd/f", child);
	T("through child's cwd", access(path, R_OK));
	sprintf(path, "/proc/%d/fd/%d", child, 5);
	length = readlink(path, link, sizeof link - 1);
	link[length < 0 ? 0 : length] = 0;
	note("child's file %s", shown(link));
	O("open child's file", open(path, O_RDONLY));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	close(ready[0]);
	close(ready[1]);
	int count = 0;
	DIR *list = opendir("/proc/self/fd");
	while (readdir(list))
		count++;
	closedir(list);
	note("open descriptors %d", count - 2);
}

static void *thread_moves(void *argument)
{
	(void)argument;
	if (chdir("a"))
		note("thread chdir %s", strerrorname_np(errno));
	return NULL;
}

static void *thread_moves_alone(void *argument)
{
	(void)argument;
	MUST(unshare(CLONE_FS));
	if (chdir("b"))
		note("thread chdir %s", strerrorname_np(errno));
	CWD();
	umask(0);
	return NULL;
}

static void threads(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, thread_moves, NULL);
	pthread_join(thread, NULL);
	CWD();
	pthread_create(&thread, NULL, thread_moves_alone, NULL);
	pthread_join(thread, NULL);
	CWD();
	note("umask %o", umask(022));
	MUST(chdir(".."));
	CWD();
}

static void permissions(void)
{
	MUST(mkdir("p", 0755));
	MUST(mkdir("p/nox", 0755));
	MUST(mkdir("p/nox/in", 0755));
	MUST(chmod("p/nox", 0644));
	MUST(mkdir("p/nor", 0755));
	MUST(mkdir("p/nor/in", 0755));
	MUST(chmod("p/nor", 0311));
	int nox = MUST(open("p/nox", O_RDONLY));
	drop();
	T("chdir nox", chdir("p/nox"));
	T("chdir in nox", chdir("p/nox/in"));
	T("fchdir nox", fchdir(nox));
	T("chdir nor", chdir("p/nor"));
	CWD();
	O("list nor", open(".", O_RDONLY));
	T("chdir in nor", chdir("in"));
	CWD();
	T("dots", chdir("../.."));
	CWD();
}

static void steps(void)
{
	moving();
	in_and_out();
	vanishing();
	proc_links();
	threads();
	CHILD("permissions", permissions());
}
