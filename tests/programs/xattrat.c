/* Extended attributes by a directory's descriptor and a path: setxattrat, getxattrat, listxattrat, removexattrat. */
#include "step.h"

struct arguments {
	uint64_t value;
	uint32_t size, flags;
	uint64_t later;
};
#define SIZE 16

static char value[100];

static long set(int dir, const char *path, int at, const char *name, const char *text, int flags)
{
	struct arguments given = {(uintptr_t)text, text ? strlen(text) : 0, flags};

	return syscall(463, dir, path, at, name, &given, SIZE);
}

static long get(int dir, const char *path, int at, const char *name, size_t size)
{
	struct arguments given = {(uintptr_t)value, size};

	memset(value, '-', sizeof value);
	return syscall(464, dir, path, at, name, &given, SIZE);
}

static long list(int dir, const char *path, int at, size_t size)
{
	memset(value, '-', sizeof value);
	return syscall(465, dir, path, at, value, size);
}

static long take(int dir, const char *path, int at, const char *name)
{
	return syscall(466, dir, path, at, name);
}

static void structures(void)
{
	struct arguments given = {(uintptr_t)value, 3}, later = {.later = 1};
	static char page[8192];

	T("set: too small", syscall(463, AT_FDCWD, "f", 0, "user.s", &given, SIZE - 1));
	T("set: too large", syscall(463, AT_FDCWD, "f", 0, "user.s", page, 4097));
	T("set: nowhere", syscall(463, AT_FDCWD, "f", 0, "user.s", NULL, SIZE));
	T("set: larger", syscall(463, AT_FDCWD, "f", 0, "user.s", &given, sizeof given));
	T("set: what is not known", syscall(463, AT_FDCWD, "f", 0, "user.s", &later, sizeof later));
	given.flags = 8;
	T("set: flags", syscall(463, AT_FDCWD, "f", 0, "user.s", &given, SIZE));
	T("get: flags", syscall(464, AT_FDCWD, "f", 0, "user.s", &given, SIZE));
	given = (struct arguments){0x10, 4};
	T("set: value nowhere", syscall(463, AT_FDCWD, "f", 0, "user.s", &given, SIZE));
	given = (struct arguments){(uintptr_t)value, 70000};
	T("set: value too long", syscall(463, AT_FDCWD, "f", 0, "user.s", &given, SIZE));
	T("get: too small a structure", syscall(464, AT_FDCWD, "f", 0, "user.s", &given, 0));
	T("set: flags of the path", set(AT_FDCWD, "f", AT_SYMLINK_FOLLOW, "user.s", "x", 0));
	T("get: flags of the path", get(AT_FDCWD, "f", AT_SYMLINK_FOLLOW, "user.s", 10));
	T("list: flags of the path", list(AT_FDCWD, "f", AT_SYMLINK_FOLLOW, 10));
	T("remove: flags of the path", take(AT_FDCWD, "f", AT_SYMLINK_FOLLOW, "user.s"));
	T("remove", take(AT_FDCWD, "f", 0, "user.s"));
}

static void values(int dir, const char *path, int at)
{
	T("get what is not there", get(dir, path, at, "user.a", 50));
	T("replace", set(dir, path, at, "user.a", "x", XATTR_REPLACE));
	T("set", set(dir, path, at, "user.a", "hello", 0));
	T("create", set(dir, path, at, "user.a", "x", XATTR_CREATE));
	T("get", get(dir, path, at, "user.a", 50));
	note("  %.*s", 6, value);
	T("get its length", get(dir, path, at, "user.a", 0));
	T("get into less", get(dir, path, at, "user.a", 2));
	T("list", list(dir, path, at, 50));
	note("  %.*s", 6, value);
	T("list into less", list(dir, path, at, 2));
	T("list its length", list(dir, path, at, 0));
	T("remove", take(dir, path, at, "user.a"));
	T("remove again", take(dir, path, at, "user.a"));
	T("no name", get(dir, path, at, "", 50));
	T("a name nowhere", get(dir, path, at, NULL, 50));
	T("list", list(dir, path, at, 50));
}

static void steps(void)
{
	static char on_host[PATH_MAX];
	int fd, dir, reference;

	make("f", "hello");
	MUST(mkdir("d", 0755));
	make("d/in", "hello");
	MUST(symlink("f", "link"));
	snprintf(on_host, sizeof on_host, "%s/plain", host_path);
	make(on_host, "hello");
	fd = MUST(open("f", O_RDONLY));
	dir = MUST(open("d", O_RDONLY));
	reference = MUST(open("f", O_PATH));
	structures();
	note("-- path");
	values(AT_FDCWD, "f", 0);
	note("-- host");
	values(AT_FDCWD, on_host, 0);
	note("-- directory");
	values(dir, "in", 0);
	note("-- descriptor");
	values(fd, "", AT_EMPTY_PATH);
	note("-- descriptor and NULL");
	values(fd, NULL, AT_EMPTY_PATH);
	note("-- directory's descriptor");
	values(dir, "", AT_EMPTY_PATH);
	note("-- through a link");
	values(AT_FDCWD, "link", 0);
	note("-- link");
	values(AT_FDCWD, "link", AT_SYMLINK_NOFOLLOW);
	note("-- O_PATH");
	values(reference, "", AT_EMPTY_PATH);
	note("-- missing");
	values(AT_FDCWD, "missing", 0);
	note("-- empty");
	values(AT_FDCWD, "", 0);
	note("-- working directory");
	values(AT_FDCWD, "", AT_EMPTY_PATH);
	note("-- no descriptor");
	values(777, "", AT_EMPTY_PATH);
}
