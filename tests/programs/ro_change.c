/* Every call that changes something by a path: on a read-only file system none does, but each says why in its own order. */
#include "ro.h"

#include <stddef.h>
#include <utime.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

static const struct timespec times[2] = { { 1000000000, 0 }, { 1000000000, 0 } };
static const struct timespec wrong_times[2] = { { 1, 2000000000 }, { 1, 0 } };
static const struct timespec now_times[2] = { { 0, UTIME_NOW }, { 0, UTIME_NOW } };
static const struct timespec no_times[2] = { { 0, UTIME_OMIT }, { 0, UTIME_OMIT } };
static const struct timeval micro_times[2] = { { 1000000000, 0 }, { 1000000000, 0 } };
static const struct utimbuf second_times = { 1000000000, 1000000000 };

static void attributes(void)
{
	uid_t uid = getuid();

	EACH("chmod", syscall(SYS_chmod, p, 0600));
	EACH_AT("fchmodat", syscall(SYS_fchmodat, fd, p, 0600));
	EACH_AT("fchmodat2 nofollow", syscall(SYS_fchmodat2, fd, p, 0600, AT_SYMLINK_NOFOLLOW));
	EACH("fchmodat2 empty", syscall(SYS_fchmodat2, dirs[3].fd, p, 0600, AT_EMPTY_PATH));
	EACH("fchmodat2 flags", syscall(SYS_fchmodat2, AT_FDCWD, p, 0600, AT_REMOVEDIR));
	EACH("chown", syscall(SYS_chown, p, uid, uid));
	EACH("chown nothing", syscall(SYS_chown, p, -1, -1));
	EACH("lchown", syscall(SYS_lchown, p, 0, 0));
	EACH_AT("fchownat", syscall(SYS_fchownat, fd, p, uid, uid, 0));
	EACH_AT("fchownat empty", syscall(SYS_fchownat, fd, p, uid, uid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW));
	EACH("fchownat flags", syscall(SYS_fchownat, AT_FDCWD, p, uid, uid, AT_REMOVEDIR));
	EACH("utime", syscall(SYS_utime, p, &second_times));
	EACH("utime now", syscall(SYS_utime, p, NULL));
	EACH("utime bad", syscall(SYS_utime, p, (void *)1));
	EACH("utimes", syscall(SYS_utimes, p, micro_times));
	EACH("utimes now", syscall(SYS_utimes, p, NULL));
	EACH_AT("futimesat", syscall(SYS_futimesat, fd, p, micro_times));
	EACH_AT("utimensat", syscall(SYS_utimensat, fd, p, times, 0));
	EACH_AT("utimensat nofollow", syscall(SYS_utimensat, fd, p, times, AT_SYMLINK_NOFOLLOW));
	EACH_AT("utimensat now", syscall(SYS_utimensat, fd, p, now_times, 0));
	EACH_AT("utimensat empty", syscall(SYS_utimensat, fd, p, times, AT_EMPTY_PATH));
	EACH("utimensat omit", syscall(SYS_utimensat, AT_FDCWD, p, no_times, 0));
	EACH("utimensat wrong", syscall(SYS_utimensat, AT_FDCWD, p, wrong_times, 0));
	EACH("utimensat null", syscall(SYS_utimensat, AT_FDCWD, p, NULL, 0));
	EACH("utimensat flags", syscall(SYS_utimensat, AT_FDCWD, p, times, AT_REMOVEDIR));
	EACH("truncate", syscall(SYS_truncate, p, 0));
	EACH("truncate longer", syscall(SYS_truncate, p, 1000000));
	EACH("truncate negative", syscall(SYS_truncate, p, -1l));
}

/* A file system without attributes answers EOPNOTSUPP, one with them that this file has none of the name. */
static long long value_of(long long result)
{
	if (result == -1 && errno == EOPNOTSUPP)
		errno = ENODATA;
	return result;
}

static void extended(void)
{
	static const char *const names[] = { "user.x", "trusted.x", "security.x", "system.posix_acl_access", "other.x", "user.", "" };

	for (size_t n = 0; n < LENGTH(names); n++) {
		char call[100];
#define CALL(name) (snprintf(call, sizeof call, "%s %s", name, names[n]), call)
		EACH(CALL("setxattr"), setxattr(p, names[n], "v", 1, 0));
		EACH(CALL("lsetxattr"), lsetxattr(p, names[n], "v", 1, 0));
		EACH(CALL("removexattr"), removexattr(p, names[n]));
		EACH(CALL("lremovexattr"), lremovexattr(p, names[n]));
		if (strcmp(names[n], "user.")) {
			char value[100];
			EACH(CALL("getxattr"), value_of(getxattr(p, names[n], value, sizeof value)));
			EACH(CALL("lgetxattr"), value_of(lgetxattr(p, names[n], value, 0)));
		}
	}
	EACH("setxattr create", setxattr(p, "user.x", "v", 1, XATTR_CREATE));
	EACH("setxattr replace", setxattr(p, "user.x", "v", 1, XATTR_REPLACE));
	EACH("setxattr flags", setxattr(p, "user.x", "v", 1, 4));
	EACH("setxattr long", setxattr(p, "user.x", paths, 70000, 0));
	EACH("setxattr bad value", setxattr(p, "user.x", (void *)1, 1, 0));
	EACH("setxattr bad name", setxattr(p, (void *)1, "v", 1, 0));
	EACH("setxattr long name", setxattr(p, name_256, "v", 1, 0));
	EACH("getxattr bad name", getxattr(p, (void *)1, NULL, 0));
	EACH("getxattr long name", getxattr(p, name_256, NULL, 0));
	EACH("listxattr", listxattr(p, NULL, 0));
	EACH("llistxattr", llistxattr(p, NULL, 0));
}

static void names(void)
{
	EACH("mkdir", syscall(SYS_mkdir, p, 0755));
	EACH_AT("mkdirat", syscall(SYS_mkdirat, fd, p, 0755));
	EACH("mknod", syscall(SYS_mknod, p, S_IFREG | 0644, 0));
	EACH("mknod fifo", syscall(SYS_mknod, p, S_IFIFO | 0644, 0));
	EACH("mknod socket", syscall(SYS_mknod, p, S_IFSOCK | 0644, 0));
	EACH("mknod device", syscall(SYS_mknod, p, S_IFCHR | 0644, makedev(1, 3)));
	EACH("mknod whiteout", syscall(SYS_mknod, p, S_IFCHR | 0644, 0));
	EACH("mknod dir", syscall(SYS_mknod, p, S_IFDIR | 0644, 0));
	EACH("mknod link", syscall(SYS_mknod, p, S_IFLNK | 0644, 0));
	EACH_AT("mknodat", syscall(SYS_mknodat, fd, p, S_IFREG | 0644, 0));
	EACH("unlink", syscall(SYS_unlink, p));
	EACH("rmdir", syscall(SYS_rmdir, p));
	EACH_AT("unlinkat", syscall(SYS_unlinkat, fd, p, 0));
	EACH_AT("unlinkat dir", syscall(SYS_unlinkat, fd, p, AT_REMOVEDIR));
	EACH("rename over", syscall(SYS_renameat2, AT_FDCWD, p, AT_FDCWD, p, 0));
	EACH("unlinkat flags", syscall(SYS_unlinkat, AT_FDCWD, p, AT_EMPTY_PATH));
	EACH("symlink", syscall(SYS_symlink, "target", p));
	EACH("symlink nothing", syscall(SYS_symlink, "", p));
	EACH("symlink bad", syscall(SYS_symlink, (void *)1, p));
	EACH("symlink long", syscall(SYS_symlink, path_4096, p));
	EACH_AT("symlinkat", syscall(SYS_symlinkat, "target", fd, p));
	EACH_AT("linkat", syscall(SYS_linkat, AT_FDCWD, "d/f", fd, p, 0));
	EACH_AT("linkat from", syscall(SYS_linkat, fd, p, AT_FDCWD, "new", 0));
	EACH_AT("linkat follow", syscall(SYS_linkat, fd, p, AT_FDCWD, "new", AT_SYMLINK_FOLLOW));
	EACH("linkat empty", syscall(SYS_linkat, dirs[3].fd, "", AT_FDCWD, p, AT_EMPTY_PATH));
	EACH("linkat flags", syscall(SYS_linkat, AT_FDCWD, p, AT_FDCWD, "new", AT_REMOVEDIR));
	EACH_AT("renameat to", syscall(SYS_renameat, AT_FDCWD, "d/f", fd, p));
	EACH_AT("renameat from", syscall(SYS_renameat, fd, p, AT_FDCWD, "d/new"));
	EACH("renameat2 whiteout", syscall(SYS_renameat2, AT_FDCWD, "d/f", AT_FDCWD, p, RENAME_WHITEOUT));
	EACH("renameat2 both", syscall(SYS_renameat2, AT_FDCWD, "d/f", AT_FDCWD, p, RENAME_NOREPLACE | RENAME_EXCHANGE));
	EACH("renameat2 flags", syscall(SYS_renameat2, AT_FDCWD, "d/f", AT_FDCWD, p, 1 << 10));
}

/* Two paths: what is wrong with which of them first. */
static void pairs(void)
{
	for (size_t n = 0; n < LENGTH(paths); n++) {
		char call[1400], label[1200];
		const char *from = paths[n].path;

		escape(label, sizeof label, paths[n].label, strlen(paths[n].label));
#undef CALL
#define CALL(name) (snprintf(call, sizeof call, "%s %s,", name, label), call)
		EACH(CALL("rename"), syscall(SYS_rename, from, p));
		EACH(CALL("link"), syscall(SYS_link, from, p));
		/* A sixth of the paths is enough to see that the flags come in at the right place. */
		if (n % 6 == 0) {
			EACH(CALL("noreplace"), syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, p, RENAME_NOREPLACE));
			EACH(CALL("exchange"), syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, p, RENAME_EXCHANGE));
			EACH(CALL("link followed"), syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, p, AT_SYMLINK_FOLLOW));
		}
	}
}

static int address(struct sockaddr_un *to, const char *path)
{
	memset(to, 0, sizeof *to);
	to->sun_family = AF_UNIX;
	if ((uintptr_t)path < 4096 || !*path || strlen(path) >= sizeof to->sun_path)
		return 0;
	strcpy(to->sun_path, path);
	return offsetof(struct sockaddr_un, sun_path) + strlen(path) + 1;
}

static void sockets(void)
{
	static const int types[] = { SOCK_STREAM, SOCK_DGRAM };

	for (size_t n = 0; n < LENGTH(types); n++) {
		struct sockaddr_un to;
		char call[100];
#undef CALL
#define CALL(name) (snprintf(call, sizeof call, "%s %zu", name, n), call)
		int s = -1;
		/* Too long for an address, or empty: an abstract one is of no file system. */
#define FRESH (close(s), s = MUST(socket(AF_UNIX, types[n], 0)))
		EACH(CALL("bind"), !address(&to, p) ? 99 : (FRESH, bind(s, (void *)&to, address(&to, p))));
		EACH(CALL("connect"), !address(&to, p) ? 99 : (FRESH, connect(s, (void *)&to, address(&to, p))));
		EACH(CALL("sendto"), !address(&to, p) ? 99 : (FRESH, sendto(s, "x", 1, MSG_NOSIGNAL, (void *)&to, address(&to, p))));
		close(s);
	}
}

static void steps(void)
{
	prepare();
	attributes();
	extended();
	names();
	pairs();
	sockets();
}
