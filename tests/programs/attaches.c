/* open_tree, move_mount and mount_setattr in a mount namespace of the program's own, as mount(8) uses them from util-linux 2.39 on. */
#include "binds.h"

static void by_descriptors(void)
{
	if (!separate())
		return;
	int tree = open_tree_at(AT_FDCWD, "from", CLONE_TREE | O_CLOEXEC);
	IS("a copy", tree >= 0);
	O("a file in it", openat(tree, "sub/deep/file", O_RDONLY));
	O("a missing one", openat(tree, "missing", O_RDONLY));
	O("above it", openat(tree, "../to", O_RDONLY));
	T("read-only", set_attributes(tree, "", AT_EMPTY_PATH, RDONLY_ATTR, 0));
	T("on a file", attach(tree, FILE_));
	T("attached", attach(tree, DIR_));
	O("a file in it", openat(tree, "sub/deep/file", O_RDONLY));
	close(tree);
	CONTENT(DIR_ "/file");
	O("for writing", open(DIR_ "/file", O_WRONLY));
	T("writable", set_attributes(AT_FDCWD, DIR_, 0, 0, RDONLY_ATTR));
	O("for writing", open(DIR_ "/file", O_WRONLY));
	T("no mount point", set_attributes(AT_FDCWD, DIR_ "/sub", 0, RDONLY_ATTR, 0));
	T("no mount point", set_attributes(AT_FDCWD, "from/sub", 0, RDONLY_ATTR, 0));
	T("missing", set_attributes(AT_FDCWD, "missing", 0, RDONLY_ATTR, 0));
	T("nothing changes", set_attributes(AT_FDCWD, "missing", 0, 0, 0));
	T("a directory", move_to("from/sub", NEW "/other"));
	T("moved", move_to(DIR_, NEW "/other"));
	CONTENT(NEW "/other/file");
	T("not there", access(DIR_ "/file", F_OK));
	T("into what is under test", move_to(NEW "/other", "to"));
	CONTENT("to/file");
	CONTENT("to/../from/file");
	MUST(chdir("to/sub"));
	CWD();
	tree = MUST(open_tree_at(AT_FDCWD, "..", CLONE_TREE | O_CLOEXEC));
	T("attached", attach(tree, DIR_));
	close(tree);
	CONTENT(DIR_ "/file");
	MUST(chdir("../.."));
	T("umount", umount(DIR_));
	int dir = MUST(open("to", O_DIRECTORY | O_CLOEXEC));
	tree = MUST(open_tree_at(dir, "", CLONE_TREE | AT_EMPTY_PATH | O_CLOEXEC));
	close(dir);
	dir = MUST(open("from/empty", O_PATH | O_CLOEXEC));
	T("onto a descriptor", syscall(SYS_move_mount, tree, "", dir, "", FROM_EMPTY_PATH | TO_EMPTY_PATH));
	CONTENT("from/empty/file");
	CONTENT("from/empty/../file");
	T("umount", umount("from/empty"));
	close(tree);
	close(dir);
	T("umount", umount("to"));
	dir = MUST(open("from", O_DIRECTORY | O_CLOEXEC));
	tree = MUST(open_tree_at(dir, "file", CLONE_TREE | O_CLOEXEC));
	T("on a directory", attach(tree, DIR_));
	T("a file", attach(tree, FILE_));
	close(tree);
	close(dir);
	CONTENT(FILE_);
	T("umount", umount(FILE_));
	tree = new_file_system();
	T("a new file system", attach(tree, "from/sub"));
	close(tree);
	make("from/sub/new", "new");
	CONTENT("from/sub/new");
	CONTENT("from/sub/../file");
	T("moved", move_to("from/sub", "from/empty"));
	CONTENT("from/empty/new");
	CONTENT("from/sub/file");
	T("umount", umount("from/empty"));
	drop();
	O("without the right", open_tree_at(AT_FDCWD, "from", CLONE_TREE));
	T("without the right", move_to("from", "to"));
	T("without the right", set_attributes(AT_FDCWD, "from", 0, RDONLY_ATTR, 0));
}

static void steps(void)
{
	MUST(mkdir("from", 0777));
	MUST(mkdir("from/sub", 0777));
	MUST(mkdir("from/sub/deep", 0777));
	make("from/file", "in the mount");
	make("from/sub/file", "above");
	make("from/sub/deep/file", "deep");
	MUST(mkdir("to", 0777));
	MUST(mkdir("from/empty", 0777));
	CHILD("by descriptors", by_descriptors());
	CONTENT("from/file");
}
