/* Files and directories with the flags of chattr: immutable, append-only, no dump, no access times. */
#include "step.h"
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>

#define SHOWN (FS_IMMUTABLE_FL | FS_APPEND_FL | FS_NODUMP_FL | FS_NOATIME_FL)

static int get(const char *path)
{
	int flags = 0, fd = open(path, O_RDONLY);
	int result = ioctl(fd, FS_IOC_GETFLAGS, &flags);

	close(fd);
	return result < 0 ? -1 : flags & SHOWN;
}

/* Leaves flags that are not of interest as they are. */
static int set(const char *path, int wanted)
{
	int flags = 0, fd = open(path, O_RDONLY), error;
	int result = ioctl(fd, FS_IOC_GETFLAGS, &flags);

	if (result == 0) {
		flags = (flags & ~SHOWN) | wanted;
		result = ioctl(fd, FS_IOC_SETFLAGS, &flags);
	}
	error = errno;
	close(fd);
	errno = error;
	return result;
}

static void show_flags(int line, const char *path)
{
	struct statx stx = {};

	T("statx", statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &stx));
	note("%d %s: flags %#x, attributes %#llx", line, path, get(path),
	     (unsigned long long)(stx.stx_attributes & (STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND | STATX_ATTR_NODUMP)));
}
#define ATTRIBUTES(path) show_flags(__LINE__, path)

static const struct timespec long_ago[2] = {{1000, 0}, {1000, 0}};

/* What can be done with a file of this name that is open for reading and writing as FD, and for appending as APPENDING. */
static void tried(const char *name, int fd, int appending)
{
	char other[100];
	struct stat st;
	int source = MUST(open("source", O_RDONLY));

	note("-- %s", name);
	O("open to read", open(name, O_RDONLY));
	O("open to write", open(name, O_WRONLY));
	O("open to append", open(name, O_WRONLY | O_APPEND));
	O("open to append and truncate", open(name, O_WRONLY | O_APPEND | O_TRUNC));
	O("open to read and truncate", open(name, O_RDONLY | O_TRUNC));
	O("open with O_CREAT", open(name, O_RDWR | O_CREAT, 0644));
	T("access", access(name, W_OK));
	T("write", write(fd, "w", 1));
	T("append", write(appending, "a", 1));
	T("pwrite", pwrite(fd, "p", 1, 0));
	T("copy_file_range", syscall(SYS_copy_file_range, source, NULL, fd, NULL, 3L, 0));
	T("sendfile", sendfile(fd, source, &(off_t){0}, 3));
	T("ftruncate", ftruncate(fd, 1));
	T("truncate", truncate(name, 1));
	T("fallocate", fallocate(fd, 0, 0, 100));
	T("fallocate, same size", fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 100));
	T("punch a hole", fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, 1));
	T("chmod", chmod(name, 0600));
	T("fchmod", fchmod(fd, 0600));
	T("chown", chown(name, -1, getgid()));
	T("touch", utimensat(AT_FDCWD, name, NULL, 0));
	T("times", utimensat(AT_FDCWD, name, long_ago, 0));
	T("setxattr", setxattr(name, "user.a", "1", 1, 0));
	T("removexattr", removexattr(name, "user.none"));
	snprintf(other, sizeof other, "%s-other", name);
	T("link", link(name, other));
	T("rename", rename(name, other));
	T("rename over", rename("source", name));
	T("exchange", syscall(SYS_renameat2, AT_FDCWD, "source", AT_FDCWD, name, RENAME_EXCHANGE));
	T("rename to itself", rename(name, name));
	T("unlink", unlink(name));
	T("rmdir", rmdir(name));
	void *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	say(__LINE__, "map shared", map == MAP_FAILED ? -1 : 0, errno);
	MUST(fstat(fd, &st));
	note("size %ld, mode %o", (long)st.st_size, st.st_mode & 07777);
	CONTENT(name);
	close(source);
}

static void file(const char *name, int flags)
{
	make(name, "content");
	make("source", "source");
	int fd = MUST(open(name, O_RDWR)), appending = MUST(open(name, O_WRONLY | O_APPEND));

	T("set", set(name, flags));
	ATTRIBUTES(name);
	if (get(name) == flags)
		tried(name, fd, appending);
	T("clear", set(name, 0));
	ATTRIBUTES(name);
	close(fd);
	close(appending);
	T("unlink", unlink(name));
}

static void directory(const char *name, int flags)
{
	char entry[100], new[100], child[100], another[100], within[110];

	note("-- %s", name);
	MUST(mkdir(name, 0755));
	snprintf(entry, sizeof entry, "%s/entry", name);
	snprintf(new, sizeof new, "%s/new", name);
	snprintf(child, sizeof child, "%s/child", name);
	make(entry, "entry");
	MUST(mkdir(child, 0755));
	make("source", "source");
	T("set", set(name, flags));
	ATTRIBUTES(name);
	if (get(name) == flags) {
		T("access", access(name, W_OK));
		O("create", open(new, O_RDWR | O_CREAT | O_EXCL, 0644));
		O("unnamed", open(name, O_RDWR | O_TMPFILE, 0644));
		T("symlink", symlink("x", new));
		T("link", link("source", new));
		T("mkdir", mkdir(new, 0755));
		snprintf(another, sizeof another, "%s/another", name);
		snprintf(within, sizeof within, "%s/within", another);
		T("mkdir of another name", mkdir(another, 0755));
		O("create in that", open(within, O_RDWR | O_CREAT | O_EXCL, 0644));
		T("mkfifo", mkfifo(new, 0644));
		T("rename into", rename("source", new));
		T("rename out of", rename(entry, "out"));
		T("rename over", rename("source", entry));
		T("rename within", rename(entry, child));
		T("unlink", unlink(entry));
		T("unlink nothing", unlink("none"));
		T("rmdir", rmdir(child));
		T("rmdir itself", rmdir(name));
		T("rename itself", rename(name, "moved"));
		T("chmod", chmod(name, 0700));
		T("touch", utimensat(AT_FDCWD, name, NULL, 0));
		T("times", utimensat(AT_FDCWD, name, long_ago, 0));
		T("setxattr", setxattr(name, "user.a", "1", 1, 0));
		int fd = open(entry, O_WRONLY | O_TRUNC);
		T("write to an entry", write(fd, "yy", 2));
		close(fd);
		CONTENT(entry);
	}
	T("clear", set(name, 0));
}

static void inherited(void)
{
	MUST(mkdir("parent", 0755));
	T("set", set("parent", FS_NODUMP_FL | FS_NOATIME_FL));
	make("parent/f", "x");
	MUST(mkdir("parent/d", 0755));
	ATTRIBUTES("parent");
	ATTRIBUTES("parent/f");
	ATTRIBUTES("parent/d");
}

/* The other requests for the same flags. */
static void extended(void)
{
	struct fsxattr attributes;
	int fd;

	make("extended", "x");
	fd = MUST(open("extended", O_RDONLY));
	T("set", set("extended", FS_NODUMP_FL | FS_NOATIME_FL));
	T("get", ioctl(fd, FS_IOC_FSGETXATTR, &attributes));
	note("%#x %u", attributes.fsx_xflags, attributes.fsx_extsize);
	attributes.fsx_xflags = FS_XFLAG_NODUMP;
	T("set", ioctl(fd, FS_IOC_FSSETXATTR, &attributes));
	ATTRIBUTES("extended");
	attributes.fsx_xflags = FS_XFLAG_IMMUTABLE;
	T("immutable", ioctl(fd, FS_IOC_FSSETXATTR, &attributes));
	ATTRIBUTES("extended");
	attributes.fsx_xflags = 0;
	T("set", ioctl(fd, FS_IOC_FSSETXATTR, &attributes));
	ATTRIBUTES("extended");
	close(fd);
}

/* The owner may change what does not protect, and clear nothing that does. */
static void owner(void)
{
	make("owned", "x");
	if (geteuid() == 0) {
		MUST(chown("owned", NOBODY, NOBODY));
		MUST(chmod(".", 0777));
	}
	CHILD("the owner", {
		drop();
		T("no dump", set("owned", FS_NODUMP_FL));
		T("immutable", set("owned", FS_IMMUTABLE_FL));
		T("append-only", set("owned", FS_APPEND_FL | FS_NODUMP_FL));
		ATTRIBUTES("owned");
	});
	T("immutable", set("owned", FS_IMMUTABLE_FL));
	CHILD("the owner", {
		drop();
		T("as it is", set("owned", FS_IMMUTABLE_FL));
		T("with no dump", set("owned", FS_IMMUTABLE_FL | FS_NODUMP_FL));
		T("cleared", set("owned", 0));
		T("unlink", unlink("owned"));
		ATTRIBUTES("owned");
	});
	make("other", "x");
	CHILD("others", {
		drop();
		T("no dump", set("other", FS_NODUMP_FL));
	});
	T("clear", set("owned", 0));
}

static void steps(void)
{
	file("immutable", FS_IMMUTABLE_FL);
	file("append-only", FS_APPEND_FL);
	file("both", FS_IMMUTABLE_FL | FS_APPEND_FL);
	directory("immutable-dir", FS_IMMUTABLE_FL);
	directory("append-only-dir", FS_APPEND_FL);
	inherited();
	extended();
	owner();
}
