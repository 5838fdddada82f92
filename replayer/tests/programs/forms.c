// Makes each operation by each of the system calls that perform it.
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

#define CALL(name, ...)                                                        \
	({                                                                     \
		long done = syscall(SYS_##name, __VA_ARGS__);                  \
		if (done < 0)                                                  \
			err(1, "line %d, " #name, __LINE__);                   \
		done;                                                          \
	})

static char big[70000], more[40000], in[200000];

static void contents(void)
{
	struct iovec out[] = {{big, sizeof big}, {more, sizeof more}, {"end", 3}};
	struct iovec small[] = {{"one", 3}, {"", 0}, {"three", 5}};
	struct iovec back[] = {{in, 70001}, {in + 80000, 100}, {in + 90000, 90000}};
	memset(big, 'b', sizeof big);
	memset(more, 'm', sizeof more);
	int f = CALL(open, "vectors", O_RDWR | O_CREAT, 0640);
	CALL(writev, f, out, 3);
	CALL(writev, f, small, 3);
	CALL(pwritev, f, out, 3, 5000L, 0L);
	CALL(pwritev2, f, small, 3, 77L, 0L, 0);
	CALL(pwritev2, f, small, 3, -1L, 0L, 0);
	CALL(pwrite64, f, "word", 4, 3000L);
	CALL(write, f, more, 1234);
	CALL(lseek, f, 0, SEEK_SET);
	CALL(readv, f, back, 3);
	CALL(preadv, f, back, 3, 60000L, 0L);
	CALL(preadv2, f, back, 3, 4096L, 0L, 0);
	CALL(preadv2, f, back, 2, -1L, 0L, 0);
	CALL(pread64, f, in, 1000, 2990L);
	CALL(lseek, f, 100, SEEK_SET);
	CALL(read, f, in, sizeof in);

	int copy = CALL(creat, "copies", 0600);
	off_t from = 10, to = 20;
	CALL(sendfile, copy, f, &from, 500);
	CALL(lseek, f, 64, SEEK_SET);
	CALL(sendfile, copy, f, NULL, 300);
	CALL(copy_file_range, f, &from, copy, &to, 700, 0);
	CALL(copy_file_range, f, NULL, copy, NULL, 900, 0);
	CALL(fsync, copy);
	CALL(fdatasync, copy);
	CALL(sync_file_range, copy, 0L, 4096L, SYNC_FILE_RANGE_WRITE);
	CALL(syncfs, copy);
	CALL(fadvise64, f, 0L, 4096L, POSIX_FADV_WILLNEED);
	CALL(readahead, f, 0L, 8192);
	CALL(ftruncate, f, 100000L);
	CALL(truncate, "copies", 600L);
	CALL(fallocate, copy, FALLOC_FL_KEEP_SIZE, 0L, 65536L);
	CALL(flock, f, LOCK_EX);
	CALL(flock, f, LOCK_UN);

	char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, f, 4096);
	if (map == MAP_FAILED)
		err(1, "mmap");
	CALL(msync, map, 8192, MS_SYNC);
	CALL(munmap, map, 8192);
	CALL(close, copy);
	CALL(close, f);
}

static void descriptors(void)
{
	struct open_how how = {.flags = O_RDONLY | O_DIRECTORY};
	char entries[4096];
	int d = CALL(openat2, AT_FDCWD, ".", &how, sizeof how);
	CALL(getdents64, d, entries, sizeof entries);
	CALL(lseek, d, 0, SEEK_SET);
	CALL(getdents, d, entries, sizeof entries);
	int f = CALL(openat, d, "vectors", O_RDONLY);
	int g = CALL(dup, f);
	CALL(dup2, f, 50);
	CALL(dup3, f, 51, O_CLOEXEC);
	int h = CALL(fcntl, f, F_DUPFD, 60);
	CALL(fcntl, f, F_DUPFD_CLOEXEC, 60);
	CALL(lseek, g, 5, SEEK_SET);
	CALL(read, 50, in, 20);
	CALL(read, h, in, 20);
	CALL(close_range, 50, 70, 0);
	CALL(umask, 077);
	CALL(mkdirat, d, "sub", 0777);
	CALL(chdir, "sub");
	CALL(close, CALL(creat, "inner", 0666));
	CALL(fchdir, d);
	CALL(umask, 027);
	CALL(close, g);
	CALL(close, f);
	CALL(close, d);
}

static void attributes(void)
{
	struct stat st;
	struct statfs sf;
	char text[100];
	unsigned char extended[256];
	int f = CALL(open, "copies", O_RDWR);
	int p = CALL(open, ".", O_PATH);
	CALL(stat, "copies", &st);
	CALL(lstat, "copies", &st);
	CALL(fstat, f, &st);
	CALL(newfstatat, p, "sub/inner", &st, AT_SYMLINK_NOFOLLOW);
	CALL(statx, AT_FDCWD, "sub", 0, 0x7ff, extended);
	CALL(access, "copies", R_OK);
	CALL(faccessat, p, "copies", W_OK);
	CALL(faccessat2, p, "sub", X_OK, AT_EACCESS);
	CALL(statfs, ".", &sf);
	CALL(fstatfs, f, &sf);
	CALL(chmod, "copies", 0604);
	CALL(fchmod, f, 0614);
	CALL(fchmodat, p, "copies", 0624);
	CALL(fchmodat2, p, "copies", 0634, 0);
	CALL(chown, "copies", -1, -1);
	CALL(lchown, "copies", -1, -1);
	CALL(fchown, f, -1, -1);
	CALL(fchownat, p, "copies", -1, -1, 0);
	struct timespec times[2] = {{1000000, 5}, {2000000, 7}};
	CALL(utimensat, p, "copies", times, 0);
	struct utimbuf seconds = {3000000, 4000000};
	CALL(utime, "sub/inner", &seconds);
	struct timeval micros[2] = {{5000000, 6}, {7000000, 8}};
	CALL(utimes, "vectors", micros);
	CALL(futimesat, p, "copies", micros);
	CALL(setxattr, "copies", "user.one", "1", 1, 0);
	CALL(lsetxattr, "copies", "user.two", "22", 2, XATTR_CREATE);
	CALL(fsetxattr, f, "user.three", "333", 3, 0);
	CALL(getxattr, "copies", "user.one", text, sizeof text);
	CALL(lgetxattr, "copies", "user.two", text, sizeof text);
	CALL(fgetxattr, f, "user.three", text, sizeof text);
	CALL(listxattr, "copies", text, sizeof text);
	CALL(llistxattr, "copies", text, sizeof text);
	CALL(flistxattr, f, text, sizeof text);
	CALL(removexattr, "copies", "user.one");
	CALL(setxattr, "vectors", "user.gone", "x", 1, 0);
	CALL(lremovexattr, "vectors", "user.gone");
	CALL(fsetxattr, f, "user.gone", "x", 1, 0);
	CALL(fremovexattr, f, "user.gone");
	CALL(close, p);
	CALL(close, f);
}

static void names(void)
{
	char text[100];
	int d = CALL(open, ".", O_RDONLY | O_DIRECTORY);
	CALL(mkdir, "old", 0755);
	CALL(mknod, "old/node", S_IFREG | 0600, 0);
	CALL(mknodat, d, "old/other", S_IFREG | 0644, 0);
	CALL(link, "old/node", "linked");
	CALL(linkat, d, "old/other", d, "linked too", 0);
	CALL(symlink, "linked", "soft");
	CALL(symlinkat, "sub/inner", d, "soft too");
	CALL(readlink, "soft", text, sizeof text);
	CALL(readlinkat, d, "soft too", text, sizeof text);
	CALL(rename, "linked", "renamed");
	CALL(renameat, d, "linked too", d, "old/renamed");
	CALL(renameat2, d, "renamed", d, "old/other", RENAME_EXCHANGE);
	CALL(unlink, "old/node");
	CALL(unlinkat, d, "soft too", 0);
	CALL(mkdir, "empty", 0700);
	CALL(rmdir, "empty");
	CALL(mkdir, "empty", 0700);
	CALL(unlinkat, d, "empty", AT_REMOVEDIR);
	CALL(close, d);
}

int main(void)
{
	contents();
	descriptors();
	attributes();
	names();
	return 0;
}
