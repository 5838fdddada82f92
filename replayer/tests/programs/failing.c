// Calls that fail, in many ways, among some that do not.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static void wants(int line, long result, int error)
{
	if (result >= 0 ? error != 0 : errno != error) {
		fprintf(stderr, "line %d: %ld, %s\n", line, result, strerror(errno));
		exit(2);
	}
}

#define WANT(call, error) wants(__LINE__, call, error)

int main(void)
{
	char buffer[64];
	WANT(open("missing", O_RDONLY), ENOENT);
	WANT(open("no/such/directory", O_WRONLY | O_CREAT, 0644), ENOENT);
	WANT(mkdir("d", 0750), 0);
	WANT(mkdir("d", 0750), EEXIST);
	WANT(open("d", O_WRONLY), EISDIR);
	int file = open("d/f", O_RDWR | O_CREAT | O_EXCL, 0640);
	WANT(file, 0);
	WANT(open("d/f", O_RDWR | O_CREAT | O_EXCL, 0640), EEXIST);
	WANT(open("d/f/g", O_RDONLY), ENOTDIR);
	WANT(open("d/f", O_RDONLY | O_DIRECTORY), ENOTDIR);
	WANT(write(file, "content", 7), 0);
	WANT(lseek(file, -1, SEEK_SET), EINVAL);
	WANT(lseek(file, 3, SEEK_SET), 0);
	WANT(read(file, buffer, sizeof buffer), 0);
	WANT(pread(file, buffer, sizeof buffer, -1), EINVAL);
	WANT(ftruncate(file, -1), EINVAL);
	WANT(rmdir("d"), ENOTEMPTY);
	WANT(rmdir("d/f"), ENOTDIR);
	WANT(unlink("d"), EISDIR);
	WANT(unlink("missing"), ENOENT);
	WANT(rename("missing", "other"), ENOENT);
	WANT(rename("d", "d/below"), EINVAL);
	WANT(link("d", "other"), EPERM);
	WANT(link("d/f", "d/f"), EEXIST);
	WANT(link("d/f", "second"), 0);
	WANT(symlink("loop", "loop"), 0);
	WANT(symlink("loop", "loop"), EEXIST);
	WANT(open("loop", O_RDONLY), ELOOP);
	WANT(open("loop", O_RDONLY | O_NOFOLLOW), ELOOP);
	WANT(symlink("d/f", "link"), 0);
	WANT(readlink("link", buffer, sizeof buffer), 0);
	WANT(readlink("d/f", buffer, sizeof buffer), EINVAL);
	WANT(symlink("/etc/passwd", "absolute"), 0);
	WANT(chmod("missing", 0600), ENOENT);
	WANT(chmod("link", 0600), 0);
	WANT(access("d/f", X_OK), EACCES);
	WANT(access("missing", F_OK), ENOENT);
	WANT(truncate("missing", 3), ENOENT);
	WANT(truncate("d", 3), EISDIR);
	WANT(truncate("second", 4), 0);
	WANT(getxattr("d/f", "user.none", buffer, sizeof buffer), ENODATA);
	WANT(setxattr("d/f", "user.one", "value", 5, 0), 0);
	WANT(setxattr("d/f", "user.one", "other", 5, XATTR_CREATE), EEXIST);
	WANT(getxattr("d/f", "user.one", buffer, 2), ERANGE);
	WANT(removexattr("d/f", "user.none"), ENODATA);
	int other = open("d/f", O_RDONLY);
	WANT(other, 0);
	WANT(write(other, "x", 1), EBADF);
	WANT(close(other), 0);
	WANT(close(other), EBADF);
	WANT(mkfifo("fifo", 0600), 0);
	WANT(mkfifo("fifo", 0600), EEXIST);
	WANT(rename("link", "d/link"), 0);
	WANT(close(file), 0);
	return 0;
}
