/* Requests of ioctl that change a file: those that every file system answers, and what others say to wrong ones. */
#include "step.h"
#include <linux/fs.h>
#include <sys/ioctl.h>

struct space {
	int16_t type, whence;
	int64_t start, length;
	int32_t system;
	uint32_t pid;
	int32_t pad[4];
};
#define RESERVE _IOW('X', 42, struct space)
#define UNRESERVE _IOW('X', 43, struct space)
#define ZERO _IOW('X', 57, struct space)

static int space(int fd, unsigned long request, int whence, long start, long length)
{
	struct space space = {.whence = whence, .start = start, .length = length};

	return ioctl(fd, request, &space);
}

/* How many of the file's bytes are x. */
static void count(int line, const char *path)
{
	static char bytes[300000];
	int fd = MUST(open(path, O_RDONLY)), letters = 0;
	ssize_t got = MUST(read(fd, bytes, sizeof bytes));

	for (ssize_t i = 0; i < got; i++)
		letters += bytes[i] == 'x';
	note("%d %s: %d of %zd", line, path, letters, got);
	close(fd);
}
#define COUNT(path) count(__LINE__, path)

static void make_large(const char *path)
{
	static char bytes[200000];
	int fd = MUST(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644));

	memset(bytes, 'x', sizeof bytes);
	MUST(write(fd, bytes, sizeof bytes));
	close(fd);
}

static void reserve(void)
{
	int fd = MUST(open("f", O_RDWR));

	T("reserve", space(fd, RESERVE, SEEK_SET, 0, 400000));
	COUNT("f");
	T("unreserve", space(fd, UNRESERVE, SEEK_SET, 1000, 50000));
	COUNT("f");
	MUST(lseek(fd, 100000, SEEK_SET));
	T("zero behind the offset", space(fd, ZERO, SEEK_CUR, 10, 20));
	COUNT("f");
	T("unreserve before the end", space(fd, UNRESERVE, SEEK_END, -7, 100));
	COUNT("f");
	T("whence", space(fd, ZERO, 3, 0, 10));
	T("before the start", space(fd, ZERO, SEEK_SET, -1, 10));
	T("no length", space(fd, ZERO, SEEK_SET, 0, 0));
	T("null", ioctl(fd, ZERO, NULL));
	close(fd);
	fd = MUST(open("f", O_RDONLY));
	T("of a reader", space(fd, ZERO, SEEK_SET, 0, 10));
	close(fd);
	COUNT("f");
	fd = MUST(open("d", O_RDONLY));
	T("of a directory", space(fd, ZERO, SEEK_SET, 0, 10));
	close(fd);
}

static void clones(void)
{
	int to = MUST(open("g", O_RDWR | O_CREAT, 0644)), from = MUST(open("f", O_RDONLY)), fd;
	struct file_clone_range range = {.src_fd = 777};

	T("clone of no descriptor", ioctl(to, FICLONE, 777));
	T("clone range of no descriptor", ioctl(to, FICLONERANGE, &range));
	T("clone range null", ioctl(to, FICLONERANGE, NULL));
	fd = MUST(open("d", O_RDONLY));
	T("clone of a directory", ioctl(to, FICLONE, fd));
	T("clone to a directory", ioctl(fd, FICLONE, from));
	T("clone of a directory to itself", ioctl(fd, FICLONE, fd));
	close(fd);
	fd = MUST(open("/proc/self/status", O_RDONLY));
	T("clone of another file system's", ioctl(to, FICLONE, fd));
	close(fd);
	fd = MUST(open("f", O_WRONLY));
	T("clone of what cannot be read", ioctl(to, FICLONE, fd));
	close(fd);
	fd = MUST(open("g", O_WRONLY | O_APPEND));
	T("clone to the end", ioctl(fd, FICLONE, from));
	close(fd);
	fd = MUST(open("g", O_RDONLY));
	T("clone to a reader", ioctl(fd, FICLONE, from));
	close(fd);
	close(from);
	close(to);
	CONTENT("g");
}

static void freeze(int fd)
{
	drop();
	T("freeze", ioctl(fd, FIFREEZE, 0));
	T("thaw", ioctl(fd, FITHAW, 0));
}

/* The other form of the flags that chattr sets. */
static void flags(void)
{
	struct fsxattr attributes;
	int before, flags, fd;

	make("mine", "x");
	if (geteuid() == 0)
		MUST(chown("mine", NOBODY, NOBODY));
	fd = MUST(open("mine", O_RDWR));
	MUST(ioctl(fd, FS_IOC_GETFLAGS, &before));
	T("get", ioctl(fd, FS_IOC_FSGETXATTR, &attributes));
	T("set again", ioctl(fd, FS_IOC_FSSETXATTR, &attributes));
	MUST(ioctl(fd, FS_IOC_GETFLAGS, &flags));
	/* For one, that the file is stored in extents. */
	IS("the flags that this form does not have are as before", flags == before);
	T("set null", ioctl(fd, FS_IOC_FSSETXATTR, NULL));
	CHILD("the owner", {
		drop();
		T("set again", ioctl(fd, FS_IOC_FSSETXATTR, &attributes));
		attributes.fsx_xflags |= FS_XFLAG_IMMUTABLE;
		T("immutable", ioctl(fd, FS_IOC_FSSETXATTR, &attributes));
		attributes.fsx_xflags ^= FS_XFLAG_IMMUTABLE | FS_XFLAG_APPEND;
		T("append only", ioctl(fd, FS_IOC_FSSETXATTR, &attributes));
		T("get", ioctl(fd, FS_IOC_GETFLAGS, &flags));
		flags |= FS_IMMUTABLE_FL;
		T("chattr +i", ioctl(fd, FS_IOC_SETFLAGS, &flags));
	});
	T("still written", write(fd, "yy", 2));
	close(fd);
	CONTENT("mine");
}

/* A process with the capability reaches a mapped file through /proc. */
static void map_files(void)
{
	char path[100], *text;
	int fd = MUST(open("f", O_RDONLY)), again;

	text = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", (unsigned long)text, (unsigned long)text + 4096);
	errno = 0;
	again = open(path, O_WRONLY);
	say(__LINE__, "open a mapped file", again < 0 ? -1 : 0, errno);
	if (again >= 0) {
		T("write", pwrite(again, "through proc", 12, 0));
		close(again);
		IS("mapped", !memcmp(text, "through proc", 12));
	}
	munmap(text, 4096);
	COUNT("f");
}

static void steps(void)
{
	int fd;

	MUST(mkdir("d", 0755));
	make_large("f");
	reserve();
	clones();
	fd = MUST(open("f", O_RDONLY));
	CHILD("freeze", freeze(fd));
	close(fd);
	flags();
	map_files();
	SHOW("f");
}
