/* The flags of chattr: a user that may change a file can set the flags that it already has, on every file system. */
#include "step.h"
#include <linux/fs.h>
#include <sys/ioctl.h>

static void set_again(const char *name, int fd)
{
	int flags = 0;

	T(name, ioctl(fd, FS_IOC_GETFLAGS, &flags) < 0 ? -1 : ioctl(fd, FS_IOC_SETFLAGS, &flags));
}

static void others(int fd)
{
	drop();
	set_again("of another's", fd);
}

static void steps(void)
{
	int fd;

	make("f", "x");
	MUST(mkdir("d", 0755));
	fd = MUST(open("f", O_RDONLY));
	set_again("of a file", fd);
	T("null", ioctl(fd, FS_IOC_SETFLAGS, NULL));
	CHILD("others", others(fd));
	close(fd);
	fd = MUST(open("d", O_RDONLY));
	set_again("of a directory", fd);
	close(fd);
	fd = MUST(open("f", O_PATH));
	T("of O_PATH", ioctl(fd, FS_IOC_SETFLAGS, NULL));
	close(fd);
	T("bad", ioctl(777, FS_IOC_SETFLAGS, NULL));
}
