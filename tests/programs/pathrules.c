/* Rules of path walks and of descriptors that only name a file. */
#include "step.h"
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <linux/capability.h>
#include <linux/fs.h>

#ifndef STATX_DIOALIGN
#define STATX_DIOALIGN 0x2000
#endif

static const char *join(const char *format, ...)
{
	static char paths[4][2 * PATH_MAX];
	static int turn;
	char *out = paths[turn = (turn + 1) % 4];
	va_list args;

	va_start(args, format);
	vsnprintf(out, sizeof paths[0], format, args);
	va_end(args);
	return out;
}

/* A component that is missing, no directory, or above the root. */
static void ways_back(void)
{
	struct stat st;
	int fd;

	make("file", "text");
	MUST(mkdir("dir", 0755));
	T("missing on the host", stat(join("/does_not_exist/..%s/w/file", top_path), &st));
	T("missing below the host", stat(join("%s/gone/../..%s/w/file", host_path, top_path), &st));
	T("a host file", stat(join("/etc/passwd/..%s/w/file", top_path), &st));
	T("missing here", stat(join("%s/w/gone/../file", top_path), &st));
	T("a file here", stat(join("%s/w/file/../file", top_path), &st));
	T("the file itself", stat("file/.", &st));
	T("out and back", stat(join("%s/w/dir/../../../../../../../..%s/w/file", top_path, top_path), &st));
	T("out, missing, and back", stat(join("%s/../../../../../../gone/..%s/w/file", top_path, top_path), &st));
	O("open over a missing one", open(join("/does_not_exist/..%s/w/file", top_path), O_RDONLY));
	O("create over a missing one", open(join("/does_not_exist/..%s/w/new", top_path), O_RDWR | O_CREAT, 0600));
	T("mkdir over a missing one", mkdir(join("/does_not_exist/..%s/w/new", top_path), 0700));
	T("unlink over a missing one", unlink(join("/does_not_exist/..%s/w/file", top_path)));
	T("rename over a missing one", rename("file", join("/does_not_exist/..%s/w/other", top_path)));
	T("chdir over a missing one", chdir(join("/does_not_exist/..%s/w", top_path)));
	MUST(symlink(join("/does_not_exist/..%s/w/file", top_path), "over"));
	T("a link over a missing one", stat("over", &st));
	RUN("exec over a missing one", join("/does_not_exist/..%s/w/file", top_path), "file");
	fd = MUST(open(host_path, O_RDONLY | O_DIRECTORY));
	T("from the host's directory", fstatat(fd, join("gone/../..%s/w/file", top_path), &st, 0));
	close(fd);
}

static void direct(void)
{
	O("directory O_DIRECT", open("dir", O_RDONLY | O_DIRECT));
	O("directory O_DIRECTORY O_DIRECT", open("dir", O_RDONLY | O_DIRECTORY | O_DIRECT));
	O("file O_DIRECTORY O_DIRECT", open("file", O_RDONLY | O_DIRECTORY | O_DIRECT));
	O("missing O_DIRECTORY O_DIRECT", open("gone", O_RDONLY | O_DIRECTORY | O_DIRECT));
	O("directory O_PATH O_DIRECT", open("dir", O_PATH | O_DIRECT));
}

static void links(void)
{
	int fd = MUST(open("file", O_RDONLY)), dir = MUST(open("dir", O_RDONLY)), path = MUST(open("file", O_PATH));

	T("link to /proc", link("file", "/proc/new"));
	T("link to /proc/self", link("file", "/proc/self/new"));
	T("link to an entry of /proc", link("file", "/proc/self/stat"));
	T("link of /proc", link("/proc/self/stat", "new"));
	T("symlink in /proc", symlink("file", "/proc/new"));
	T("rename to /proc", rename("file", "/proc/new"));
	T("mkdir in /proc", mkdir("/proc/new", 0700));
	T("create in /proc", open("/proc/new", O_RDWR | O_CREAT, 0600));
	T("link of a directory", link("dir", "new"));
	T("linkat of a directory", linkat(dir, "", AT_FDCWD, "new", AT_EMPTY_PATH));
	T("linkat", linkat(fd, "", AT_FDCWD, "linked", AT_EMPTY_PATH));
	T("linkat O_PATH", linkat(path, "", AT_FDCWD, "linked-path", AT_EMPTY_PATH));
	T("linkat without the flag", linkat(fd, "", AT_FDCWD, "more", 0));
	T("linkat of no descriptor", linkat(999, "", AT_FDCWD, "more", AT_EMPTY_PATH));
	T("linkat to what exists", linkat(fd, "", AT_FDCWD, "dir", AT_EMPTY_PATH));
	T("linkat of the working directory", linkat(AT_FDCWD, "", AT_FDCWD, "more", AT_EMPTY_PATH));
	T("linkat, wrong flags", linkat(fd, "", AT_FDCWD, "more", 0x4000));
	close(fd);
	close(dir);
	close(path);
}

static void set_fowner(int on)
{
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2] = {0};

	data[0].effective = data[0].permitted = on ? 1 << CAP_FOWNER : 0;
	MUST(syscall(SYS_capset, &head, data));
}

/* As a user who owns neither the directory nor the files. */
static void sticky_as(int fowner)
{
	MUST(prctl(PR_SET_KEEPCAPS, 1));
	drop();
	set_fowner(fowner);
	T("unlink", unlink("sticky/theirs"));
	T("rename", rename("sticky/move", "sticky/moved"));
	T("rename over", rename("sticky/mine", "sticky/over"));
	T("rmdir", rmdir("sticky/dir"));
	T("rename out", rename("sticky/out", "out-of-it"));
}

static void sticky(void)
{
	if (geteuid() != 0)
		return;
	for (int fowner = 0; fowner < 2; fowner++) {
		MUST(mkdir("sticky", 0777));
		MUST(chmod("sticky", 01777));
		MUST(chown("sticky", 1234, 1234));
		MUST(chmod(".", 0777));
		make("sticky/theirs", "");
		make("sticky/move", "");
		make("sticky/over", "");
		make("sticky/out", "");
		make("sticky/mine", "");
		MUST(chown("sticky/mine", NOBODY, NOBODY));
		MUST(mkdir("sticky/dir", 0755));
		CHILD(fowner ? "with CAP_FOWNER" : "without", sticky_as(fowner));
		int status = system("rm -rf sticky out-of-it");
		IS("removed", status == 0);
	}
}

/* Descriptors that only name a file. */
static void paths_only(void)
{
	int file = MUST(open("file", O_PATH)), dir = MUST(open("dir", O_PATH | O_DIRECTORY)), out[2];
	struct epoll_event event = {EPOLLIN};
	struct sockaddr_un address;
	socklen_t length = sizeof address;
	char buffer[16];
	int fd, polling = MUST(epoll_create1(0)), other = MUST(open("other", O_RDWR | O_CREAT, 0600));

	MUST(pipe(out));
	for (int i = 0; i < 2; i++) {
		fd = i ? dir : file;
		note(i ? "directory" : "file");
		T("write", write(fd, "x", 1));
		T("pwrite", pwrite(fd, "x", 1, 0));
		T("fsync", fsync(fd));
		T("fchmod", fchmod(fd, 0600));
		T("fchown", fchown(fd, -1, -1));
		T("futimens", futimens(fd, NULL));
		T("fsetxattr", fsetxattr(fd, "user.a", "", 0, 0));
		T("fgetxattr", fgetxattr(fd, "user.a", buffer, 10));
		T("flistxattr", flistxattr(fd, buffer, 10));
		T("ioctl", ioctl(fd, FS_IOC_GETFLAGS, buffer));
		T("fallocate", fallocate(fd, 0, 0, 10));
		T("sendfile from", sendfile(out[1], fd, NULL, 10));
		T("splice from", splice(fd, NULL, out[1], NULL, 10, 0));
		T("splice to", splice(out[0], NULL, fd, NULL, 10, SPLICE_F_NONBLOCK));
		T("splice of a file", splice(other, NULL, fd, NULL, 10, 0));
		T("splice to a file", splice(fd, NULL, other, NULL, 10, 0));
		T("copy_file_range", copy_file_range(fd, NULL, fd, NULL, 10, 0));
		T("readahead", readahead(fd, 0, 10));
		T("fadvise", syscall(SYS_fadvise64, fd, 0, 10, POSIX_FADV_NORMAL));
		T("accept", accept(fd, (struct sockaddr *)&address, &length));
		T("epoll_ctl", epoll_ctl(polling, EPOLL_CTL_ADD, fd, &event));
		T("F_SETFL", fcntl(fd, F_SETFL, O_APPEND));
		T("F_SETLEASE", fcntl(fd, F_SETLEASE, F_RDLCK));
		T("mmap", mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
		T("read", read(fd, buffer, 4));
		T("pread", pread(fd, buffer, 4, 0));
		T("poll", poll(&(struct pollfd){fd, POLLIN}, 1, 0));
	}
	T("splice between files", splice(other, NULL, other, NULL, 10, 0));
	fd = MUST(open("dir", O_RDONLY));
	T("splice to a directory", splice(other, NULL, fd, NULL, 10, 0));
	close(fd);
	close(other);
	close(file);
	close(dir);
	close(polling);
}

static void alignment(void)
{
	struct statx stx;

	memset(&stx, 0, sizeof stx);
	T("statx", statx(AT_FDCWD, "file", 0, STATX_DIOALIGN, &stx));
	bool known = stx.stx_mask & STATX_DIOALIGN;
	uint32_t *fields = (uint32_t *)((char *)&stx + 152);
	IS("consistent", known == (fields[0] != 0) && known == (fields[1] != 0));
	T("statx of a directory", statx(AT_FDCWD, "dir", 0, STATX_DIOALIGN, &stx));
	IS("none", !(stx.stx_mask & STATX_DIOALIGN));
	T("not asked", statx(AT_FDCWD, "file", 0, STATX_BASIC_STATS, &stx));
	IS("none", !(stx.stx_mask & STATX_DIOALIGN));
}

static void steps(void)
{
	ways_back();
	direct();
	alignment();
	links();
	sticky();
	paths_only();
}
