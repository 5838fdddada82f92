/* file_getattr and file_setattr: the flags of chattr by path, in the form that ioctl has for descriptors. */
#include "step.h"
#include <linux/fs.h>
#include <sys/ioctl.h>

struct attributes {
	uint64_t flags;
	uint32_t extent_size, extents, project, copied_extent_size;
	uint64_t later[2];
};
#define SIZE 24

static long get(int dir, const char *path, void *out, size_t size, int flags)
{
	return syscall(468, dir, path, out, size, flags);
}

static long set(int dir, const char *path, void *in, size_t size, int flags)
{
	return syscall(469, dir, path, in, size, flags);
}

#define SHOWN (FS_XFLAG_IMMUTABLE | FS_XFLAG_APPEND | FS_XFLAG_NODUMP | FS_XFLAG_NOATIME)

static void show(int line, const char *path)
{
	struct attributes got = {.flags = -1};
	int flags = 0, fd = open(path, O_RDONLY);

	ioctl(fd, FS_IOC_GETFLAGS, &flags);
	close(fd);
	if (get(AT_FDCWD, path, &got, SIZE, 0))
		note("%d %s: %s", line, path, strerrorname_np(errno));
	else
		note("%d %s: flags %#llx, by ioctl %#x, project %u", line, path, (unsigned long long)got.flags & SHOWN,
		     flags & (FS_IMMUTABLE_FL | FS_APPEND_FL | FS_NODUMP_FL | FS_NOATIME_FL), got.project);
}
#define FLAGS(path) show(__LINE__, path)

static void arguments_that_are_wrong(const char *path)
{
	static char page[8192];
	struct attributes in = {}, later = {.later = {0, 1}};

	T("get: no descriptor", get(777, "f", page, SIZE, 0));
	T("get: missing", get(AT_FDCWD, "missing", page, SIZE, 0));
	T("get: no path", get(AT_FDCWD, NULL, page, SIZE, 0));
	T("get: nowhere", get(AT_FDCWD, path, NULL, SIZE, 0));
	T("get: size 0", get(AT_FDCWD, path, page, 0, 0));
	T("get: too small", get(AT_FDCWD, path, page, SIZE - 1, 0));
	T("get: too large", get(AT_FDCWD, path, page, 4097, 0));
	T("get: flags", get(AT_FDCWD, path, page, SIZE, AT_SYMLINK_FOLLOW));
	T("get: empty path", get(AT_FDCWD, "", page, SIZE, 0));
	memset(page, 1, sizeof page);
	T("get: larger", get(AT_FDCWD, path, page, 100, 0));
	IS("zero after what the kernel knows", !page[SIZE] && !page[99] && page[100]);
	T("set: no descriptor", set(777, "f", &in, SIZE, 0));
	T("set: missing", set(AT_FDCWD, "missing", &in, SIZE, 0));
	T("set: no path", set(AT_FDCWD, NULL, &in, SIZE, 0));
	T("set: from nowhere", set(AT_FDCWD, path, NULL, SIZE, 0));
	T("set: size 0", set(AT_FDCWD, path, &in, 0, 0));
	T("set: too small", set(AT_FDCWD, path, &in, SIZE - 1, 0));
	T("set: too large", set(AT_FDCWD, path, page, 4097, 0));
	T("set: flags", set(AT_FDCWD, path, &in, SIZE, -1));
	T("set: larger", set(AT_FDCWD, path, &in, sizeof in, 0));
	T("set: what is not known", set(AT_FDCWD, path, &later, sizeof later, 0));
	in.flags = 1 << 2;
	T("set: a flag that is none", set(AT_FDCWD, path, &in, SIZE, 0));
	in.flags = 1ull << 40;
	T("set: a high flag", set(AT_FDCWD, path, &in, SIZE, 0));
	in.flags = 1 << 2;
	T("set: a flag that is none, missing", set(AT_FDCWD, "missing", &in, SIZE, 0));
	in.flags = FS_XFLAG_PREALLOC | FS_XFLAG_HASATTR;
	T("set: flags that are only read", set(AT_FDCWD, path, &in, SIZE, 0));
	in = (struct attributes){.extents = 3};
	T("set: extents", set(AT_FDCWD, path, &in, SIZE, 0));
	in = (struct attributes){.project = 3};
	T("set: project", set(AT_FDCWD, path, &in, SIZE, 0));
	FLAGS(path);
}

static void by_descriptor(void)
{
	struct attributes in = {.flags = FS_XFLAG_NODUMP}, out;
	int fd = MUST(open("f", O_RDONLY)), reference = MUST(open("f", O_PATH)), dir = MUST(open("d", O_RDONLY));

	T("set", set(fd, "", &in, SIZE, AT_EMPTY_PATH));
	FLAGS("f");
	T("get", get(fd, "", &out, SIZE, AT_EMPTY_PATH));
	T("get with NULL", get(fd, NULL, &out, SIZE, AT_EMPTY_PATH));
	T("get without the flag", get(fd, "", &out, SIZE, 0));
	T("of an O_PATH descriptor", get(reference, "", &out, SIZE, AT_EMPTY_PATH));
	T("set by an O_PATH descriptor", set(reference, "", &in, SIZE, AT_EMPTY_PATH));
	T("of a directory's descriptor", get(dir, "", &out, SIZE, AT_EMPTY_PATH));
	T("from a directory's descriptor", get(dir, "in", &out, SIZE, 0));
	T("from a file's descriptor", get(fd, "in", &out, SIZE, 0));
	T("the working directory", get(AT_FDCWD, "", &out, SIZE, AT_EMPTY_PATH));
	T("no descriptor", get(777, "", &out, SIZE, AT_EMPTY_PATH));
	in.flags = 0;
	T("set", set(fd, "", &in, SIZE, AT_EMPTY_PATH));
	close(dir);
	close(reference);
	close(fd);
	FLAGS("f");
}

static void kinds(void)
{
	static const char *const others[] = {"link", "fifo"};
	struct attributes in = {}, out;

	for (int i = 0; i < 2; i++) {
		note("-- %s", others[i]);
		T("get", get(AT_FDCWD, others[i], &out, SIZE, AT_SYMLINK_NOFOLLOW));
		T("set", set(AT_FDCWD, others[i], &in, SIZE, AT_SYMLINK_NOFOLLOW));
	}
	T("through a link", get(AT_FDCWD, "link", &out, SIZE, 0));
	in.flags = FS_XFLAG_NOATIME;
	T("set through a link", set(AT_FDCWD, "link", &in, SIZE, 0));
	FLAGS("f");
	T("set of a directory", set(AT_FDCWD, "d", &in, SIZE, 0));
	FLAGS("d");
}

/* Flags that need a capability, and a file that one may not read. */
static void rights(void)
{
	struct attributes in = {.flags = FS_XFLAG_IMMUTABLE}, none = {}, out;

	make("mine", "x");
	MUST(chmod("mine", 0));
	if (geteuid() == 0)
		MUST(chown("mine", NOBODY, NOBODY));
	T("immutable", set(AT_FDCWD, "mine", &in, SIZE, 0));
	T("back", set(AT_FDCWD, "mine", &none, SIZE, 0));
	CHILD("the owner", {
		drop();
		T("get", get(AT_FDCWD, "mine", &out, SIZE, 0));
		in.flags = FS_XFLAG_APPEND;
		T("append only", set(AT_FDCWD, "mine", &in, SIZE, 0));
		in.flags = FS_XFLAG_NODUMP;
		T("no dump", set(AT_FDCWD, "mine", &in, SIZE, 0));
	});
	MUST(chmod("mine", 0644));
	FLAGS("mine");
	CHILD("of root's file", {
		drop();
		T("get", get(AT_FDCWD, "f", &out, SIZE, 0));
		T("set", set(AT_FDCWD, "f", &none, SIZE, 0));
	});
}

static void steps(void)
{
	static char on_host[PATH_MAX];

	make("f", "hello");
	MUST(mkdir("d", 0755));
	make("d/in", "hello");
	MUST(symlink("f", "link"));
	MUST(mkfifo("fifo", 0644));
	snprintf(on_host, sizeof on_host, "%s/plain", host_path);
	make(on_host, "hello");
	arguments_that_are_wrong("f");
	note("-- on the host");
	arguments_that_are_wrong(on_host);
	by_descriptor();
	kinds();
	rights();
}
