/* Extended attributes of users; namespaces one may not write; sizes and errnos. */
#include "step.h"

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void list(int line, const char *path)
{
	char names[4096], *each[64];
	int count = 0;
	ssize_t size = llistxattr(path, names, sizeof names);

	if (size < 0) {
		note("%d list %s: %s", line, path, strerrorname_np(errno));
		return;
	}
	for (char *name = names; name < names + size; name += strlen(name) + 1) {
		/* What a security module adds is not ours. */
		if (!strncmp(name, "user.", 5) || !strncmp(name, "trusted.", 8))
			each[count++] = name;
	}
	qsort(each, count, sizeof *each, by_text);
	note("%d %s: %d attributes", line, path, count);
	for (int i = 0; i < count; i++)
		note("  %s", each[i]);
}
#define LIST(path) list(__LINE__, path)

static void users(void)
{
	char value[64], name[300], big[2000];
	int fd;

	make("f", "x");
	MUST(mkdir("d", 0755));
	MUST(symlink("f", "l"));
	MUST(symlink("none", "dangling"));
	MUST(mkfifo("p", 0644));
	T("get none", getxattr("f", "user.a", value, sizeof value));
	T("list none", listxattr("f", NULL, 0));
	T("set", setxattr("f", "user.a", "value", 5, 0));
	T("get", getxattr("f", "user.a", value, sizeof value));
	note("%.5s", value);
	T("size", getxattr("f", "user.a", NULL, 0));
	T("size with pointer", getxattr("f", "user.a", value, 0));
	T("too small", getxattr("f", "user.a", value, 4));
	T("exact", getxattr("f", "user.a", value, 5));
	T("create existing", setxattr("f", "user.a", "x", 1, XATTR_CREATE));
	T("replace", setxattr("f", "user.a", "other", 5, XATTR_REPLACE));
	T("replace missing", setxattr("f", "user.b", "x", 1, XATTR_REPLACE));
	T("create", setxattr("f", "user.b", "x", 1, XATTR_CREATE));
	T("both flags", setxattr("f", "user.c", "x", 1, XATTR_CREATE | XATTR_REPLACE));
	T("bad flag", setxattr("f", "user.c", "x", 1, 4));
	T("empty value", setxattr("f", "user.empty", "", 0, 0));
	T("get empty", getxattr("f", "user.empty", value, sizeof value));
	T("zeros", setxattr("f", "user.zeros", "a\0b\0", 4, 0));
	T("get zeros", getxattr("f", "user.zeros", value, sizeof value));
	IS("zeros kept", !memcmp(value, "a\0b\0", 4));
	LIST("f");
	T("list size", listxattr("f", NULL, 0));
	T("list too small", listxattr("f", value, 3));
	T("list", listxattr("f", name, sizeof name));
	T("remove", removexattr("f", "user.b"));
	T("remove again", removexattr("f", "user.b"));
	LIST("f");
	T("through link", setxattr("l", "user.vialink", "v", 1, 0));
	T("get from file", getxattr("f", "user.vialink", value, sizeof value));
	T("link itself", lsetxattr("l", "user.x", "v", 1, 0));
	T("link itself get", lgetxattr("l", "user.vialink", value, sizeof value));
	T("link itself list", llistxattr("l", value, sizeof value) >= 0 ? 0 : -1);
	T("link itself remove", lremovexattr("l", "user.x"));
	T("fifo", setxattr("p", "user.x", "v", 1, 0));
	T("fifo get", getxattr("p", "user.x", value, sizeof value));
	T("directory", setxattr("d", "user.dir", "dirvalue", 8, 0));
	T("directory get", getxattr("d/", "user.dir", value, sizeof value));
	T("dangling", getxattr("dangling", "user.x", value, sizeof value));
	T("missing", setxattr("none", "user.x", "v", 1, 0));
	T("below file", getxattr("f/x", "user.x", value, sizeof value));
	fd = MUST(open("f", O_RDONLY));
	T("fset", fsetxattr(fd, "user.fd", "fdvalue", 7, 0));
	T("fget", fgetxattr(fd, "user.fd", value, sizeof value));
	T("flist", flistxattr(fd, NULL, 0));
	T("fremove", fremovexattr(fd, "user.fd"));
	T("fremove again", fremovexattr(fd, "user.fd"));
	close(fd);
	T("fget bad", fgetxattr(777, "user.x", value, 4));
	T("fset bad", fsetxattr(777, "user.x", value, 4, 0));
	T("no namespace", setxattr("f", "plain", "v", 1, 0));
	T("no namespace get", getxattr("f", "plain", value, sizeof value));
	T("unknown namespace", setxattr("f", "strange.x", "v", 1, 0));
	T("only namespace", setxattr("f", "user.", "v", 1, 0));
	T("empty name", setxattr("f", "", "v", 1, 0));
	T("empty name get", getxattr("f", "", value, sizeof value));
	T("null name", setxattr("f", NULL, "v", 1, 0));
	T("bad value", setxattr("f", "user.bad", (void *)16, 4, 0));
	T("bad buffer", getxattr("f", "user.a", (void *)16, 64));
	memset(name, 'n', sizeof name);
	memcpy(name, "user.", 5);
	name[255] = 0;
	T("name of 255", setxattr("f", name, "v", 1, 0));
	T("get it", getxattr("f", name, value, sizeof value));
	T("remove it", removexattr("f", name));
	name[255] = 'n';
	name[256] = 0;
	T("name of 256", setxattr("f", name, "v", 1, 0));
	T("name of 256 get", getxattr("f", name, value, sizeof value));
	memset(big, 'b', sizeof big);
	T("value of 2000", setxattr("f", "user.big", big, sizeof big, 0));
	T("get it", getxattr("f", "user.big", big, sizeof big));
	T("too large", setxattr("f", "user.huge", big, 65537, 0));
	T("not UTF-8", setxattr("f", "user.\xff\xfe", "v", 1, 0));
	T("get it", getxattr("f", "user.\xff\xfe", value, sizeof value));
	T("trusted", setxattr("f", "trusted.x", "v", 1, 0));
	T("trusted get", getxattr("f", "trusted.x", value, sizeof value));
	/* What follows the file. */
	T("rename", rename("f", "g"));
	T("get", getxattr("g", "user.a", value, sizeof value));
	T("hard link", link("g", "h"));
	T("get", getxattr("h", "user.a", value, sizeof value));
	T("unlink", unlink("g"));
	T("get", getxattr("h", "user.a", value, sizeof value));
	make("h", "new content");
	T("kept over O_TRUNC", getxattr("h", "user.a", value, sizeof value));
	unlink("h");
	make("h", "new file");
	LIST("h");
}

/* An access control list that says no more than a mode is one. */
static void modes(void)
{
	struct { unsigned version; struct { unsigned short tag, bits; unsigned id; } entries[3]; } list =
		{ 2, { { 1, 7, -1 }, { 4, 5, -1 }, { 32, 1, -1 } } };
	static const char access_list[] = "system.posix_acl_access";
	char value[100];
	struct stat meta;
	int fd;

	make("modes", "x");
	MUST(chmod("modes", 04600));
	T("set a list", setxattr("modes", access_list, &list, sizeof list, 0));
	MUST(stat("modes", &meta));
	note("mode %o", meta.st_mode);
	T("get it", getxattr("modes", access_list, value, sizeof value));
	fd = MUST(open("modes", O_RDONLY));
	list.entries[2].bits = 0;
	T("by descriptor", fsetxattr(fd, access_list, &list, sizeof list, XATTR_CREATE));
	T("again", fsetxattr(fd, access_list, &list, sizeof list, XATTR_REPLACE));
	MUST(fstat(fd, &meta));
	note("mode %o", meta.st_mode);
	close(fd);
	list.entries[2].bits = 8;
	T("no bits", setxattr("modes", access_list, &list, sizeof list, 0));
	T("no list", setxattr("modes", access_list, &list, sizeof list - 1, 0));
	list.entries[2].bits = 0;
	drop();
	T("somebody else", setxattr("modes", access_list, &list, sizeof list, 0));
}

static void permissions(void)
{
	char value[16];

	make("ro", "x");
	MUST(setxattr("ro", "user.x", "v", 1, 0));
	MUST(chmod("ro", 0444));
	make("wo", "x");
	MUST(setxattr("wo", "user.x", "v", 1, 0));
	MUST(chmod("wo", 0222));
	MUST(mkdir("sticky", 0777));
	MUST(chmod("sticky", 01777));
	drop();
	T("get readable", getxattr("ro", "user.x", value, sizeof value));
	T("set readable", setxattr("ro", "user.y", "v", 1, 0));
	T("remove readable", removexattr("ro", "user.x"));
	T("get writable", getxattr("wo", "user.x", value, sizeof value));
	T("set writable", setxattr("wo", "user.y", "v", 1, 0));
	T("list writable", listxattr("wo", NULL, 0) >= 0 ? 0 : -1);
	T("sticky directory", setxattr("sticky", "user.x", "v", 1, 0));
	T("trusted", setxattr("wo", "trusted.y", "v", 1, 0));
	T("trusted get", getxattr("wo", "trusted.y", value, sizeof value));
}

static void steps(void)
{
	users();
	CHILD("permissions", permissions());
	CHILD("modes", modes());
}
