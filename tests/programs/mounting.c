/* mount and umount2 with directories of the file system under test. */
#include "mounts.h"

#ifndef MS_NOSYMFOLLOW
#define MS_NOSYMFOLLOW 256
#endif

static void refused(void)
{
	T("onto a missing directory", mount("none", "missing", "tmpfs", 0, NULL));
	T("onto nothing", mount("none", NULL, "tmpfs", 0, NULL));
	T("of a missing directory", umount2("missing", 0));
	T("flags of umount", umount2("missing", 64));
	T("of nothing", umount2(NULL, 0));
}

static void of_a_user(void)
{
	T("onto a directory", mount("none", "d", "tmpfs", 0, NULL));
	T("onto the working directory", mount("none", ".", "tmpfs", 0, NULL));
	T("from a directory", mount("d", host_path, NULL, MS_BIND, NULL));
	T("of a directory", umount2("d", 0));
	T("move", syscall(SYS_move_mount, AT_FDCWD, "d", AT_FDCWD, "d", 0));
}

static void attributes_of(const char *path)
{
	struct statx by_path = {}, by_descriptor = {};
	int fd = MUST(open(path, O_PATH | O_CLOEXEC));

	MUST(statx(AT_FDCWD, path, 0, 0, &by_path) | statx(fd, "", AT_EMPTY_PATH, 0, &by_descriptor));
	note("attributes %#llx of %#llx", by_path.stx_attributes, by_path.stx_attributes_mask);
	note("by a descriptor %#llx of %#llx", by_descriptor.stx_attributes, by_descriptor.stx_attributes_mask);
	close(fd);
}

static struct stat root_of(const char *path)
{
	struct stat st = {0};

	stat(path, &st);
	return st;
}

/* How often PATH is a mount point in mountinfo, and whether each has a parent there. */
static void listed(int line, const char *path)
{
	char entry[PATH_MAX * 2], wanted[PATH_MAX], target[PATH_MAX];
	int ids[4096], parents[4096], count = 0, found = 0, orphans = 0, of[16];
	FILE *list = fopen("/proc/self/mountinfo", "re");

	MUST(realpath(path, wanted) ? 0 : -1);
	while (list && fgets(entry, sizeof entry, list) && count < 4096) {
		if (sscanf(entry, "%d %d %*s %*s %s", &ids[count], &parents[count], target) != 3)
			continue;
		if (!strcmp(target, wanted) && found < 16)
			of[found++] = parents[count];
		count++;
	}
	fclose(list);
	for (int i = 0; i < found; i++) {
		int known = 0;
		for (int j = 0; j < count; j++)
			known |= ids[j] == of[i];
		orphans += !known;
	}
	note("%d %s is listed %d times, %d without parent", line, path, found, orphans);
}
#define LISTED(path) listed(__LINE__, path)

static void of_root(void)
{
	struct stat before = root_of("d"), above = root_of("."), st;
	char text[PATH_MAX];

	make("d/under", "covered");
	MUST(mkdir("d/sub", 0755));
	snprintf(text, sizeof text, "%s/w/d/under", top_path);
	/* Often enough that the answers need not come from the monitor any more. */
	for (int i = 0; i < 200; i++)
		MUST(stat("d/under", &st) | stat(text, &st) | stat("d", &st) | access("d/sub", F_OK));
	T("mount with options", mount("none", "d", "tmpfs", MS_NOSUID, "size=1m,mode=750"));
	SHOW("d");
	T("covered", access("d/under", F_OK));
	T("covered, by its path", stat(text, &st));
	T("a covered directory", access("d/sub", F_OK));
	st = root_of("d");
	IS("another device", st.st_dev != before.st_dev && st.st_dev != above.st_dev);
	attributes_of("d");
	LISTED("d");
	make("d/file", "in the mount");
	CONTENT("d/file");
	T("link out of it", link("d/file", "file"));
	T("rename out of it", rename("d/file", "file"));
	T("rename into it", rename("d/../d/file", "d/other"));
	T("remove", rmdir("d"));
	T("rename", rename("d", "e"));
	T("unlink", unlink("d"));
	T("make", mkdir("d", 0755));
	T("into", chdir("d"));
	CWD();
	T("above", access("../d/other", F_OK));
	T("busy with a working directory", umount2("../d", 0));
	T("out", chdir(".."));
	CWD();
	int fd = MUST(open("d/other", O_RDWR | O_CLOEXEC));
	T("busy with a file", umount2("d", 0));
	T("not expired", umount2("d", MNT_EXPIRE));
	close(fd);
	fd = MUST(open("d", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	T("busy with a directory", umount2("d", 0));
	O("from a directory", openat(fd, "other", O_RDONLY | O_CLOEXEC));
	O("above a directory", openat(fd, "../d/other", O_RDONLY | O_CLOEXEC));
	close(fd);
	T("read-only", mount(NULL, "d", NULL, MS_REMOUNT | MS_RDONLY, NULL));
	O("write", open("d/other", O_RDWR | O_CLOEXEC));
	T("may be written", access("d/other", W_OK));
	T("may be read", access("d/other", R_OK));
	T("names may be made", access("d", W_OK));
	T("write again", mount(NULL, "d", NULL, MS_REMOUNT, NULL));
	O("written again", open("d/other", O_RDWR | O_CLOEXEC));
	T("inside", mkdir("d/inside", 0755));
	CHILD("works inside", T("into", chdir("d/inside")));
	T("mount inside", mount("none", "d/inside", "tmpfs", 0, NULL));
	LISTED("d/inside");
	make("d/inside/file", "deeper");
	T("busy with a mount", umount2("d", 0));
	T("umount inside", umount2("d/inside", 0));
	T("over it", mount("none", "d", "tmpfs", 0, NULL));
	LISTED("d");
	T("is over it", access("d/other", F_OK));
	T("off it", umount2("d", 0));
	T("below it", access("d/other", F_OK));
	copy_self("d/program", 0755);
	MUST(chmod("d", 0755));
	CHILD("a program", execl("d/program", "d/program", NULL); _exit(1));
	CHILD("a program as user", drop(); execl("d/program", "d/program", NULL); _exit(1));
	T("no programs", mount(NULL, "d", NULL, MS_REMOUNT | MS_BIND | MS_NOEXEC, NULL));
	T("may be executed", access("d/program", X_OK));
	T("may be searched", access("d", X_OK));
	T("may be written", access("d", W_OK));
	CHILD("no program", execl("d/program", "d/program", NULL); _exit(errno == EACCES ? 2 : 1));
	CHILD("user", drop(); T("umount", umount2("d", 0)));
	symlink("file", "d/link");
	T("links", mount(NULL, "d", NULL, MS_REMOUNT | MS_BIND, NULL));
	O("link", open("d/link", O_RDONLY | O_CLOEXEC));
	T("no links", mount(NULL, "d", NULL, MS_REMOUNT | MS_BIND | MS_NOSYMFOLLOW, NULL));
	O("no link", open("d/link", O_RDONLY | O_CLOEXEC));
	LINK("d/link");
	symlink("d", "s");
	T("a link is not followed", umount2("s", UMOUNT_NOFOLLOW));
	T("expired", umount2("d", MNT_EXPIRE));
	T("expired twice", umount2("s", MNT_EXPIRE));
	T("uncovered", access("d/under", F_OK));
	T("of nothing", umount2("d", MNT_EXPIRE | MNT_DETACH));
	T("bind", mount(host_path, "d", NULL, MS_BIND, NULL));
	snprintf(text, sizeof text, "%s/bound", host_path);
	make("d/bound", "on the host");
	CONTENT(text);
	fd = MUST(open("d/bound", O_RDONLY | O_CLOEXEC));
	T("detach", umount2("d", MNT_DETACH));
	T("uncovered again", access("d/under", F_OK));
	T("still open", read(fd, text, sizeof text));
	close(fd);
	LISTED("d");
}

static void not_mounted(void)
{
	static char long_name[300];

	memset(long_name, 'x', sizeof long_name - 1);
	make("plain", "");
	T("onto a file", mount("none", "plain", "tmpfs", 0, NULL));
	T("of an unknown type", mount("none", "d", "nosuch", 0, NULL));
	T("without a type", mount("none", "d", NULL, 0, NULL));
	T("type that is not readable", mount("none", "d", (char *)1, 0, NULL));
	T("source that is not readable", mount((char *)1, "d", "tmpfs", 0, NULL));
	T("options that are not readable", mount("none", "d", "tmpfs", 0, (char *)1));
	T("unknown options", mount("none", "d", "tmpfs", 0, "nosuch=1"));
	T("no device", mount("missing", "d", "ext4", 0, NULL));
	T("a file is no device", mount("plain", "d", "ext4", 0, NULL));
	T("a directory is no device", mount("d", "d", "ext4", 0, NULL));
	T("a long name", mount("none", long_name, "tmpfs", 0, NULL));
	T("remount of no mount", mount(NULL, "d", NULL, MS_REMOUNT, NULL));
	T("bind of nothing", mount("missing", "d", NULL, MS_BIND, NULL));
	T("bind without a source", mount(NULL, "d", NULL, MS_BIND, NULL));
	T("private, no mount", mount(NULL, "d", NULL, MS_PRIVATE, NULL));
	int removed = MUST(mkdir("removed", 0755)) || chdir("removed") || rmdir("../removed");
	T("removed", removed);
	T("onto a removed directory", mount("none", ".", "tmpfs", 0, NULL));
	MUST(chdir(top_path));
	MUST(chdir("w"));
}

static void by_descriptors(void)
{
	int fs = MUST(syscall(SYS_fsopen, "tmpfs", 1));
	T("option", syscall(SYS_fsconfig, fs, 1, "size", "1m", 0));
	T("created", syscall(SYS_fsconfig, fs, 6, NULL, NULL, 0));
	int mounted = MUST(syscall(SYS_fsmount, fs, 1, 0));
	T("nothing attached onto a file", syscall(SYS_move_mount, mounted, "", AT_FDCWD, "plain", 4));
	T("attached", syscall(SYS_move_mount, mounted, "", AT_FDCWD, "d", 4));
	T("unknown flags", syscall(SYS_move_mount, mounted, "", AT_FDCWD, "d", 0x1004));
	T("from a missing name", syscall(SYS_move_mount, mounted, "missing", AT_FDCWD, "d", 0));
	T("attached twice", syscall(SYS_move_mount, mounted, "", AT_FDCWD, "missing", 4));
	close(mounted);
	close(fs);
	make("d/file", "attached");
	CONTENT("d/file");
	int picked = syscall(SYS_fspick, AT_FDCWD, "d", 1);
	IS("picked", picked >= 0);
	T("read-only flag", syscall(SYS_fsconfig, picked, 0, "ro", NULL, 0));
	T("reconfigured", syscall(SYS_fsconfig, picked, 7, NULL, NULL, 0));
	close(picked);
	O("read-only", open("d/file", O_RDWR | O_CLOEXEC));
	O("picked, no mount", syscall(SYS_fspick, AT_FDCWD, "d/file", 1));
	T("umount", umount2("d", 0));
}

/* Run in a new program: open_tree is its first call on a mount. */
__attribute__((constructor)) static void first_call(void)
{
	const char *path = getenv("FIRST_OPEN_TREE");

	if (path)
		_exit(open_tree_at(AT_FDCWD, path, CLONE_TREE) < 0 ? errno : 0);
}

/* Copies of trees that only a descriptor refers to, and attributes of mounts. */
static void trees(void)
{
	struct attributes large[2] = {0};

	MUST(mount("none", "d", "tmpfs", 0, NULL));
	MUST(mkdir("d/dir", 0755));
	make("d/dir/file", "in a tree");
	MUST(symlink("dir", "d/link"));
	T("unknown flags", open_tree_at(AT_FDCWD, "d", 2));
	T("recursive", open_tree_at(AT_FDCWD, "d", RECURSIVE));
	T("missing", open_tree_at(AT_FDCWD, "d/missing", CLONE_TREE));
	large[0].set = RDONLY_ATTR;
	int changed = syscall(SYS_OPEN_TREE_ATTR, AT_FDCWD, "d", CLONE_TREE, large, sizeof large[0]);
	T("read-only copy", changed < 0);
	O("read-only", openat(changed, "dir/file", O_RDWR));
	close(changed);
	T("bad attributes", syscall(SYS_OPEN_TREE_ATTR, AT_FDCWD, "d", CLONE_TREE, large, 8));
	T("attributes at no address", syscall(SYS_OPEN_TREE_ATTR, AT_FDCWD, "d", CLONE_TREE, NULL, 8));
	changed = MUST(syscall(SYS_OPEN_TREE_ATTR, AT_FDCWD, "d", CLONE_TREE, NULL, 0));
	O("copy", openat(changed, "dir/file", O_RDWR));
	close(changed);
	large[0].set = 0;
	T("no path", open_tree_at(AT_FDCWD, "", CLONE_TREE));
	int tree = MUST(open_tree_at(AT_FDCWD, "d", CLONE_TREE | O_CLOEXEC));
	T("close on exec", fcntl(tree, F_GETFD));
	O("a file in it", openat(tree, "dir/file", O_RDONLY));
	CHILD("another program", {
		setenv("FIRST_OPEN_TREE", "d", 1);
		execl("/proc/self/exe", "mounting", NULL);
	});
	T("attributes of it", set_attributes(tree, "", AT_EMPTY_PATH, RDONLY_ATTR, 0));
	O("read-only", openat(tree, "dir/file", O_RDWR));
	MUST(mkdir("copy", 0755));
	T("attached", syscall(SYS_move_mount, tree, "", AT_FDCWD, "copy", 4));
	close(tree);
	CONTENT("copy/dir/file");
	O("read-only copy", open("copy/dir/file", O_RDWR));
	O("the original", open("d/dir/file", O_RDWR));
	T("may be written", access("copy/dir/file", W_OK));
	T("changed", set_attributes(AT_FDCWD, "copy", 0, NOEXEC_ATTR, RDONLY_ATTR));
	O("written again", open("copy/dir/file", O_RDWR));
	T("no mount point", set_attributes(AT_FDCWD, "copy/dir", 0, RDONLY_ATTR, 0));
	T("a file", set_attributes(AT_FDCWD, "copy/dir/file", 0, RDONLY_ATTR, 0));
	T("missing", set_attributes(AT_FDCWD, "missing", 0, RDONLY_ATTR, 0));
	T("unknown flags", set_attributes(AT_FDCWD, "copy", 1, RDONLY_ATTR, 0));
	T("unknown attributes", set_attributes(AT_FDCWD, "copy", 0, 1ULL << 40, 0));
	T("too small", syscall(SYS_mount_setattr, AT_FDCWD, "copy", 0, large, 16));
	T("larger", syscall(SYS_mount_setattr, AT_FDCWD, "copy", 0, large, sizeof large));
	large[0].set = RDONLY_ATTR;
	large[1].set = 1;
	T("larger with a value", syscall(SYS_mount_setattr, AT_FDCWD, "copy", 0, large, sizeof large));
	T("bad memory", syscall(SYS_mount_setattr, AT_FDCWD, "copy", 0, 8, sizeof large[0]));
	T("umount copy", umount2("copy", 0));
	int dir = MUST(open("d", O_DIRECTORY | O_CLOEXEC));
	tree = MUST(open_tree_at(dir, "dir", CLONE_TREE));
	T("not close on exec", fcntl(tree, F_GETFD));
	T("attached", syscall(SYS_move_mount, tree, "", AT_FDCWD, "copy", 4));
	CONTENT("copy/file");
	close(tree);
	close(dir);
	T("umount copy", umount2("copy", 0));
	/* Without a copy it is an open with O_PATH. */
	int path = MUST(open_tree_at(AT_FDCWD, "d/link", AT_SYMLINK_NOFOLLOW));
	IS("O_PATH", fcntl(path, F_GETFL) & O_PATH);
	SHOW_FD("a link", path);
	close(path);
	path = MUST(open_tree_at(AT_FDCWD, "d/link", 0));
	SHOW_FD("a directory", path);
	O("from there", openat(path, "file", O_RDONLY));
	close(path);
	CHILD("user", {
		drop();
		T("copy", open_tree_at(AT_FDCWD, "d", CLONE_TREE));
		O("no copy", open_tree_at(AT_FDCWD, "d/dir/file", 0));
		T("attributes", set_attributes(AT_FDCWD, "d", 0, RDONLY_ATTR, 0));
	});
	path = MUST(open_tree_at(AT_FDCWD, "e/f", 0));
	IS("O_PATH", fcntl(path, F_GETFL) & O_PATH);
	O("the same", open_tree_at(path, "", AT_EMPTY_PATH));
	T("reading", read(path, &(char){0}, 1));
	close(path);
	T("umount", umount2("d", 0));
}

/* Directories and files under test, at other places under test. */
static void bound(void)
{
	struct stat meta, other;
	char text[PATH_MAX];

	MUST(mkdir("b", 0755) | mkdir("b/from", 0755) | mkdir("b/from/sub", 0755) | mkdir("b/to", 0755));
	make("b/from/file", "bound");
	make("b/from/sub/deep", "deep");
	make("b/to/covered", "covered");
	make("b/plain", "plain");
	MUST(chdir("b"));
	for (int i = 0; i < 200; i++)
		MUST(stat("to/covered", &meta) | stat("from/file", &meta) | stat("to", &meta) | stat("plain", &meta));
	T("of nothing", bind_to("missing", "to"));
	T("on nothing", bind_to("from", "missing"));
	T("on a file", bind_to("from", "plain"));
	T("a file on a directory", bind_to("plain", "to"));
	T("bind", bind_to("from", "to"));
	T("covered", access("to/covered", F_OK));
	T("covered", stat("to/covered", &meta));
	LISTED("to");
	CONTENT("to/file");
	CONTENT("to/sub/../file");
	CONTENT("to/../plain");
	MUST(stat("to/file", &meta) | stat("from/file", &other));
	IS("the same file", meta.st_ino == other.st_ino && meta.st_dev == other.st_dev);
	MUST(stat("to", &meta) | stat("from", &other));
	IS("the same directory", meta.st_ino == other.st_ino && meta.st_dev == other.st_dev);
	make("to/made", "made there");
	CONTENT("from/made");
	T("link", link("to/made", "from/linked"));
	T("rename", rename("to/made", "from/moved"));
	T("rename inside", rename("to/made", "to/sub/moved"));
	T("unlink", unlink("from/sub/moved"));
	T("and there", access("to/sub/moved", F_OK));
	T("remove", rmdir("to"));
	T("rename the mount point", rename("to", "renamed"));
	T("into", chdir("to/sub"));
	CWD();
	CONTENT("deep");
	CONTENT("../file");
	CONTENT("../../plain");
	T("busy with a working directory", umount2("..", 0));
	T("busy with a working directory", umount2("../../to", 0));
	T("up", chdir("../.."));
	CWD();
	int dir = MUST(open("to/sub", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	T("busy with a directory", umount2("to", 0));
	O("from a directory", openat(dir, "deep", O_RDONLY));
	O("above it", openat(dir, "../../plain", O_RDONLY));
	T("read-only", mount(NULL, "to", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
	O("write", open("to/file", O_WRONLY));
	O("write from a directory", openat(dir, "deep", O_WRONLY));
	close(dir);
	O("make", open("to/new", O_WRONLY | O_CREAT, 0600));
	T("make", mkdir("to/new", 0755));
	T("may be written", access("to/file", W_OK));
	O("and there", open("from/file", O_WRONLY));
	copy_self("from/program", 0755);
	CHILD("a program", execl("to/program", "to/program", NULL); _exit(1));
	T("no programs", mount(NULL, "to", NULL, MS_REMOUNT | MS_BIND | MS_NOEXEC, NULL));
	CHILD("no program", execl("to/program", "to/program", NULL); _exit(errno == EACCES ? 2 : 1));
	O("written again", open("to/file", O_WRONLY));
	T("shared with none", mount(NULL, "to", NULL, MS_PRIVATE, NULL));
	T("private, no mount", mount(NULL, "to/sub", NULL, MS_PRIVATE, NULL));
	T("remount, no mount", mount(NULL, "to/sub", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
	T("inside", mount("none", "to/sub", "tmpfs", 0, NULL));
	make("to/sub/new", "new");
	CONTENT("to/sub/new");
	CONTENT("from/sub/deep");
	T("busy with a mount", umount2("to", 0));
	T("umount inside", umount2("to/sub", 0));
	T("over it", bind_to("from/sub", "to"));
	CONTENT("to/deep");
	LISTED("to");
	T("off it", umount2("to", 0));
	CONTENT("to/file");
	CHILD("user", drop(); T("umount", umount2("to", 0)); T("bind", bind_to("from", "to")));
	T("umount", umount2("to", 0));
	T("no mount any more", umount2("to", 0));
	CONTENT("to/covered");
	LISTED("to");
	T("a file", bind_to("plain", "from/file"));
	CONTENT("from/file");
	T("unlink", unlink("from/file"));
	T("over it", rename("plain", "from/file"));
	O("create", open("from/file", O_WRONLY | O_CREAT | O_APPEND, 0600));
	T("below", access("from/file/..", F_OK));
	T("umount", umount2("from/file", 0));
	CONTENT("from/file");
	int fd = MUST(bind_to("from", "to") ? -1 : open("to/file", O_RDONLY | O_CLOEXEC));
	T("inside", mount("none", "to/sub", "tmpfs", 0, NULL));
	T("detach", umount2("to", MNT_DETACH));
	CONTENT("to/covered");
	T("gone", access("to/sub/deep", F_OK));
	T("still open", read(fd, text, sizeof text));
	close(fd);
	LISTED("to");
	char place[PATH_MAX - 16];
	snprintf(place, sizeof place, "%s/place", host_path);
	snprintf(text, sizeof text, "%s/file", place);
	MUST(mkdir(place, 0755));
	/* Often enough that the answers need not come from the monitor any more. */
	int found = 0;
	for (int i = 0; i < 200; i++)
		found += !stat(text, &meta) + !access(text, F_OK);
	T("on the host", bind_to("from", place));
	note("found %d", found);
	LISTED(place);
	CONTENT(text);
	for (int i = 0; i < 200; i++)
		found += !stat(text, &meta) + !access(text, F_OK);
	note("found %d", found);
	CHILD("a child", CONTENT(text); T("into", chdir(place)); CONTENT("sub/deep"); T("busy", umount2(place, 0)));
	T("and once more", bind_to(place, "to"));
	CONTENT("to/sub/deep");
	T("not expired", umount2("to", MNT_EXPIRE));
	T("expired", umount2("to", MNT_EXPIRE));
	T("umount", umount2(place, 0));
	T("gone", stat(text, &meta));
	T("a directory again", rmdir(place));
	T("into what is mounted", mount("none", "to", "tmpfs", 0, NULL));
	MUST(mkdir("to/inner", 0755));
	T("bind", bind_to("from", "to/inner"));
	CONTENT("to/inner/file");
	CONTENT("to/inner/../inner/file");
	T("busy with a mount", umount2("to", 0));
	T("umount", umount2("to/inner", 0));
	T("umount", umount2("to", 0));
	MUST(chdir(".."));
}

/* The same by descriptors. */
static void bound_by_descriptors(void)
{
	MUST(chdir("b"));
	int tree = MUST(open_tree_at(AT_FDCWD, "from", CLONE_TREE | O_CLOEXEC));
	O("a file in it", openat(tree, "sub/deep", O_RDONLY));
	O("a missing one", openat(tree, "missing", O_RDONLY));
	O("for writing", openat(tree, "file", O_WRONLY));
	T("read-only", set_attributes(tree, "", AT_EMPTY_PATH, RDONLY_ATTR, 0));
	O("for writing", openat(tree, "file", O_WRONLY));
	T("on a file", attach(tree, "plain"));
	T("attached", attach(tree, "to"));
	O("for writing", openat(tree, "file", O_WRONLY));
	O("above it", openat(tree, "../plain", O_RDONLY));
	close(tree);
	CONTENT("to/file");
	T("writable", set_attributes(AT_FDCWD, "to", 0, 0, RDONLY_ATTR));
	O("for writing", open("to/file", O_WRONLY));
	T("no mount point", set_attributes(AT_FDCWD, "to/sub", 0, RDONLY_ATTR, 0));
	T("umount", umount2("to", 0));
	struct attributes read_only = {.set = RDONLY_ATTR};
	tree = MUST(syscall(SYS_OPEN_TREE_ATTR, AT_FDCWD, "plain", CLONE_TREE, &read_only, sizeof read_only));
	T("a file on a directory", attach(tree, "to"));
	T("a file on a directory of the host", attach(tree, host_path));
	T("a file", attach(tree, "from/file"));
	close(tree);
	CONTENT("from/file");
	O("for writing", open("from/file", O_WRONLY));
	T("umount", umount2("from/file", 0));
	int dir = MUST(open("from", O_PATH | O_DIRECTORY | O_CLOEXEC));
	tree = MUST(open_tree_at(dir, "", CLONE_TREE | AT_EMPTY_PATH | O_CLOEXEC));
	int to = MUST(open("to", O_PATH | O_DIRECTORY | O_CLOEXEC));
	T("onto a descriptor", syscall(SYS_move_mount, tree, "", to, "", FROM_EMPTY_PATH | TO_EMPTY_PATH));
	CONTENT("to/file");
	close(dir);
	close(tree);
	close(to);
	T("umount", umount2("to", 0));
	/* Never attached. */
	for (int i = 0; i < 200; i++)
		close(MUST(open_tree_at(AT_FDCWD, "from", CLONE_TREE)));
	CHILD("user", drop(); T("copy", open_tree_at(AT_FDCWD, "from", CLONE_TREE)));
	MUST(chdir(".."));
}

/* In a mount that is not shared, as only what is mounted in such a one can be moved. */
static void moved(void)
{
	struct stat meta;

	T("a mount", bind_to("b", "b"));
	T("not shared", mount(NULL, "b", NULL, MS_PRIVATE, NULL));
	MUST(chdir("b"));
	MUST(mkdir("place", 0755));
	make("place/under", "under");
	make("from/moved", "");
	MUST(bind_to("from", "to"));
	MUST(mount("none", "to/sub", "tmpfs", 0, NULL));
	make("to/sub/inner", "inner");
	MUST(bind_to("from/program", "to/moved"));
	MUST(chdir("to/sub"));
	T("no mount", mount("../../from", "../../place", NULL, MS_MOVE, NULL));
	T("into itself", mount("../../to", "../../to/sub", NULL, MS_MOVE, NULL));
	T("on a file", mount("../../to", "../../plain", NULL, MS_MOVE, NULL));
	T("move", mount("../../to", "../../place", NULL, MS_MOVE, NULL));
	CWD();
	CONTENT("inner");
	CONTENT("../file");
	CONTENT("../../plain");
	MUST(chdir("../.."));
	CWD();
	CONTENT("place/file");
	CONTENT("place/sub/inner");
	IS("a file", !stat("place/moved", &meta) && meta.st_size > 100);
	T("covered", access("place/under", F_OK));
	T("not there", access("to/file", F_OK));
	CONTENT("to/covered");
	LISTED("to");
	LISTED("place");
	LISTED("place/sub");
	T("by move_mount", move_to("place", "to"));
	CONTENT("to/sub/inner");
	CONTENT("place/under");
	T("no mount", move_to("to/file", "plain"));
	T("inside", move_to("to/sub", "place"));
	CONTENT("place/inner");
	CONTENT("to/sub/deep");
	T("back", move_to("place", "to/sub"));
	CONTENT("to/sub/inner");
	T("busy", umount2("to", 0));
	T("detach", umount2("to", MNT_DETACH));
	CONTENT("to/covered");
	MUST(chdir(".."));
	T("umount", umount2("b", 0));
}

/* A process that often looks at a file is answered without the monitor, but not while the file is hidden. */
static void hidden(void)
{
	struct stat meta;
	int fd = MUST(open("e", O_RDONLY | O_DIRECTORY));

	for (int round = 0; round < 3; round++) {
		int found = 0;

		for (int i = 0; i < 300; i++)
			found += !stat("e/f", &meta) + !fstatat(fd, "f", &meta, 0) + !access("e/f", F_OK);
		note("found %d", found);
		T("hide", mount("none", "e", "tmpfs", 0, NULL));
		T("hidden", stat("e/f", &meta));
		T("hidden from access", access("e/f", F_OK));
		T("not hidden from a descriptor", fstatat(fd, "f", &meta, 0));
		T("uncover", umount2("e", 0));
		T("there again", stat("e/f", &meta));
	}
	close(fd);
}

/* Over the working directory, which stays covered. */
static void by_a_dot(void)
{
	MUST(mkdir("dot", 0755) | chdir("dot"));
	make("below", "");
	T("tmpfs on the working directory", mount("none", ".", "tmpfs", MS_MGC_VAL, NULL));
	T("another on that", mount("none", ".", "tmpfs", MS_MGC_VAL | MS_NOEXEC, NULL));
	T("covered", access("below", F_OK));
	T("not by its path", access("../dot/below", F_OK));
	LISTED("../dot");
	T("the upper one", umount2(".", MNT_DETACH));
	LISTED("../dot");
	T("the lower one", umount2(".", 0));
	T("none", umount2(".", MNT_DETACH));
	T("uncovered", access("../dot/below", F_OK));
	MUST(chdir(".."));
}

/* Files of the host over files under test. */
static void files_of_the_host(void)
{
	char path[PATH_MAX], device[PATH_MAX], socket_path[PATH_MAX], program[PATH_MAX];
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct stat host, here;
	char byte = 0;

	snprintf(path, sizeof path, "%s/file", host_path);
	snprintf(device, sizeof device, "%s/device", host_path);
	snprintf(socket_path, sizeof socket_path, "%s/socket", host_path);
	snprintf(program, sizeof program, "%s/program", host_path);
	make(path, "on the host");
	make(program, "#!/bin/sh\necho a program: $1\n");
	MUST(chmod(program, 0755) | mknod(device, S_IFCHR | 0666, makedev(1, 5)));
	int listener = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	strcpy(address.sun_path, socket_path);
	MUST(bind(listener, (struct sockaddr *)&address, sizeof address) | listen(listener, 1));
	make("file", "below"), make("device", ""), make("socket", ""), make("program", "");

	T("a directory over a file", mount(host_path, "file", NULL, MS_BIND, NULL));
	T("nothing", mount("missing", "file", NULL, MS_BIND, NULL));
	T("a file over a directory", mount(path, "d", NULL, MS_BIND, NULL));
	T("bind", mount(path, "file", NULL, MS_BIND, NULL));
	CONTENT("file");
	MUST(stat(path, &host) | stat("file", &here));
	IS("the same file", host.st_dev == here.st_dev && host.st_ino == here.st_ino);
	int fd = MUST(open("file", O_WRONLY | O_APPEND));
	T("append", write(fd, " and more", 9));
	close(fd);
	CONTENT("file");
	T("truncate", truncate("file", 4));
	CONTENT("file");
	T("unlink", unlink("file"));
	T("rename", rename("file", "other"));
	T("rename over", rename("e/f", "file"));
	T("not below it", open("file/name", O_RDONLY));
	LISTED("file");
	T("read-only", mount(NULL, "file", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
	T("for writing", open("file", O_WRONLY));
	T("chmod", chmod("file", 0600));
	T("again", mount(path, "file", NULL, MS_BIND, NULL));
	T("the upper one", umount2("file", 0));
	T("umount", umount2("file", 0));
	T("no mount", umount2("file", 0));
	CONTENT("file");

	T("bind of a device", mount(device, "device", NULL, MS_BIND, NULL));
	fd = MUST(open("device", O_RDWR));
	T("read", read(fd, &byte, 1));
	close(fd);
	T("umount", umount2("device", 0));

	T("bind of a socket", mount(socket_path, "socket", NULL, MS_BIND, NULL));
	int client = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	strcpy(address.sun_path, "socket");
	T("connect", connect(client, (struct sockaddr *)&address, sizeof address));
	close(client);
	close(listener);
	T("umount", umount2("socket", 0));

	T("bind of a program", mount(program, "program", NULL, MS_BIND, NULL));
	RUN("its output", "./program", "program", "argument");
	T("umount", umount2("program", 0));
	MUST(unlink(path) | unlink(device) | unlink(socket_path) | unlink(program));
	MUST(unlink("file") | unlink("device") | unlink("socket") | unlink("program"));
}

static void steps(void)
{
	MUST(mkdir("d", 0755));
	refused();
	CHILD("user", drop(); refused(); of_a_user());
	if (geteuid())
		return;
	T("no mount", umount2("d", 0));
	T("mount", mount("none", "d", "tmpfs", 0, NULL));
	T("umount", umount2("d", 0));
	T("no mount any more", umount2("d", 0));
	MUST(mkdir("e", 0755));
	make("e/f", "below");
	hidden();
	not_mounted();
	of_root();
	by_descriptors();
	trees();
	bound();
	bound_by_descriptors();
	moved();
	by_a_dot();
	files_of_the_host();
}
