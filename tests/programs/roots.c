/* chroot(2): to the root itself, and the errors of its path. */
#include "step.h"

static void to_the_root(void)
{
	struct stat before, after;

	MUST(stat("/", &before));
	T("the root", chroot("/"));
	T("above the root", chroot("/../.."));
	T("the root by a link", chroot("to-root"));
	T("stat", stat("/", &after));
	IS("the same", before.st_dev == after.st_dev && before.st_ino == after.st_ino);
	CWD();
	SHOW("file");
}

static void errors(void)
{
	char long_name[300] = {0};

	memset(long_name, 'x', sizeof long_name - 1);
	T("missing", chroot("gone"));
	T("a file", chroot("file"));
	T("a file's link", chroot("to-file"));
	T("a host's file", chroot("/etc/passwd"));
	T("a loop", chroot("loop"));
	T("a name too long", chroot(long_name));
	T("an empty path", chroot(""));
	T("no address", chroot((char *)-1L));
}

/* As a user without any right. */
static void as_user(void)
{
	drop();
	T("closed", chroot("closed"));
	T("below closed", chroot("closed/below"));
	T("open", chroot("open"));
	T("the root", chroot("/"));
	errors();
}

static void steps(void)
{
	make("file", "text");
	MUST(symlink("file", "to-file"));
	MUST(symlink("loop", "loop"));
	MUST(symlink("/", "to-root"));
	MUST(mkdir("open", 0755));
	MUST(mkdir("closed", 0755));
	MUST(mkdir("closed/below", 0755));
	MUST(chmod("closed", 0));
	errors();
	to_the_root();
	CHILD("user", as_user());
	MUST(chmod("closed", 0700));
}
