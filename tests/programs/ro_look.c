/* Every call that looks at something by a path, goes there, or runs it. */
#include "ro.h"

#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

static struct stat found;

/* Times but of the top: an image has its own for that. */
static void shown_stat(const char *call, const char *where, size_t i, int result)
{
	char text[1200], name[1400];

	if (result != 0) {
		tell(call, where, paths[i].label, result);
		return;
	}
	escape(text, sizeof text, paths[i].label, strlen(paths[i].label));
	bool is_dir = S_ISDIR(found.st_mode);
	note("%s%s \"%s\": %c%04o nlink=%ld uid=%u gid=%u size=%lld rdev=%u:%u mtime=%lld", call, where, text, type_letter(found.st_mode),
	     found.st_mode & 07777, is_dir ? -1 : (long)found.st_nlink, found.st_uid, found.st_gid, is_dir ? -1 : (long long)found.st_size,
	     major(found.st_rdev), minor(found.st_rdev), is_dir ? -1 : (long long)found.st_mtime);
}

#define STATS(call, where, expression) \
	for (size_t i_ = 0; i_ < LENGTH(paths); i_++) { \
		const char *p = paths[i_].path; \
		shown_stat(call, where, i_, AGAIN_AFTER_ELOOP(expression)); \
	}

static void stats(void)
{
	static const int flags[] = { 0, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, AT_NO_AUTOMOUNT, AT_REMOVEDIR };
	char call[100];

	STATS("stat", "", syscall(SYS_stat, p, &found));
	STATS("lstat", "", syscall(SYS_lstat, p, &found));
	for (size_t n = 0; n < LENGTH(flags); n++) {
		snprintf(call, sizeof call, "newfstatat %x", flags[n]);
		for (size_t j = 0; j < LENGTH(dirs); j++)
			STATS(call, dirs[j].label, syscall(SYS_newfstatat, dirs[j].fd, p, &found, flags[n]));
	}
	EACH("stat bad", syscall(SYS_stat, p, (void *)1));
}

/* What both file systems can tell, and tell when asked: the basic fields of an image are always known. */
static long long extended_stat(int fd, const char *path, int flags, unsigned mask)
{
	struct statx stx;

	memset(&stx, 0xee, sizeof stx);
	if (syscall(SYS_statx, fd, path, flags, mask, &stx) != 0)
		return -1;
	bool is_dir = S_ISDIR(stx.stx_mode);
	note("statx %x %x: has %x %c%04o nlink=%d uid=%u gid=%u size=%lld rdev=%u:%u mtime=%lld.%u", flags, mask,
	     stx.stx_mask & STATX_BASIC_STATS, type_letter(stx.stx_mode), stx.stx_mode & 07777, is_dir ? -1 : (int)stx.stx_nlink,
	     stx.stx_uid, stx.stx_gid, is_dir ? -1 : (long long)stx.stx_size, stx.stx_rdev_major, stx.stx_rdev_minor,
	     is_dir || !(stx.stx_mask & STATX_MTIME) ? -1 : (long long)stx.stx_mtime.tv_sec, is_dir || !(stx.stx_mask & STATX_MTIME) ? 0 : stx.stx_mtime.tv_nsec);
	return stx.stx_attributes & STATX_ATTR_MOUNT_ROOT;
}

static void extended_stats(void)
{
	static const unsigned masks[] = { 0, STATX_TYPE, STATX_SIZE, STATX_BASIC_STATS, STATX_ALL, STATX_MNT_ID, 1u << 31 };
	static const int flags[] = { 0, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, AT_STATX_FORCE_SYNC, AT_STATX_DONT_SYNC, AT_STATX_SYNC_TYPE, AT_REMOVEDIR };
	char call[100];

	for (size_t n = 0; n < LENGTH(masks); n++) {
		for (size_t m = 0; m < LENGTH(flags); m++) {
			snprintf(call, sizeof call, "statx %x %x", flags[m], masks[n]);
			if (masks[n] == STATX_BASIC_STATS) {
				EACH_AT(call, extended_stat(fd, p, flags[m], masks[n]));
			} else {
				EACH(call, extended_stat(AT_FDCWD, p, flags[m], masks[n]));
			}
		}
	}
	EACH("statx bad", syscall(SYS_statx, AT_FDCWD, p, 0, STATX_ALL, (void *)1));
}

static void permissions(void)
{
	char call[100];

	for (int mask = 0; mask < 9; mask++) {
		snprintf(call, sizeof call, "access %d", mask);
		EACH(call, syscall(SYS_access, p, mask));
		snprintf(call, sizeof call, "faccessat2 eaccess %d", mask);
		EACH(call, syscall(SYS_faccessat2, AT_FDCWD, p, mask, AT_EACCESS));
		snprintf(call, sizeof call, "faccessat2 nofollow %d", mask);
		EACH(call, syscall(SYS_faccessat2, AT_FDCWD, p, mask, AT_SYMLINK_NOFOLLOW));
	}
	for (int mask = 0; mask < 8; mask += 3) {
		snprintf(call, sizeof call, "faccessat %d", mask);
		EACH_AT(call, syscall(SYS_faccessat, fd, p, mask));
		snprintf(call, sizeof call, "faccessat2 empty %d", mask);
		EACH_AT(call, syscall(SYS_faccessat2, fd, p, mask, AT_EMPTY_PATH));
	}
	EACH("faccessat2 flags", syscall(SYS_faccessat2, AT_FDCWD, p, 0, AT_REMOVEDIR));
}

static long long target_of(int fd, const char *path, size_t room)
{
	char target[PATH_MAX], text[3 * PATH_MAX];
	long length = syscall(SYS_readlinkat, fd, path, target, room);

	if (length >= 0) {
		escape(text, sizeof text, target, length);
		note("leads to %s", text);
	}
	return length;
}

static void links(void)
{
	char target[PATH_MAX];

	EACH("readlink", syscall(SYS_readlink, p, target, sizeof target));
	EACH("readlink 3", target_of(AT_FDCWD, p, 3));
	EACH("readlink 0", syscall(SYS_readlink, p, target, 0));
	EACH("readlink -1", syscall(SYS_readlink, p, target, -1));
	EACH("readlink bad", syscall(SYS_readlink, p, (void *)1, 10));
	EACH_AT("readlinkat", target_of(fd, p, sizeof target));
}

/* Where a directory leads: chdir, getcwd, and back. */
static long long gone_to(const char *path)
{
	char text[PATH_MAX];
	long result = syscall(SYS_chdir, path);

	if (result == 0) {
		long length = syscall(SYS_getcwd, text, sizeof text);
		note("chdir: %s %ld", length > 0 ? shown(text) : "unknown", length < 0 ? (long)errno : length - (long)strlen(text));
		note("getcwd short: %s", syscall(SYS_getcwd, text, 2) < 0 ? strerrorname_np(errno) : "works");
		length = readlink("/proc/self/cwd", text, sizeof text - 1);
		text[length < 0 ? 0 : length] = 0;
		note("link to it: %s", shown(text));
		struct stat here;
		note("stat there: %d", stat("..", &here));
		MUST(fchdir(dirs[1].fd));
	}
	return result;
}

static void listings(const char *path)
{
	struct dirent **entries;
	int count = scandir(path, &entries, NULL, alphasort);
	char text[1200];

	if (count < 0) {
		note("list %s: %s", path, strerrorname_np(errno));
		return;
	}
	for (int i = 0; i < count; i++) {
		struct stat st;
		char full[PATH_MAX];
		const char *name = entries[i]->d_name;

		/* Where genisoimage keeps directories that are too deep for an image. */
		if (!strcmp(name, "rr_moved"))
			continue;
		snprintf(full, sizeof full, "%s/%s", path, name);
		bool dots = !strcmp(name, ".") || !strcmp(name, "..");
		int got = lstat(full, &st);
		escape(text, sizeof text, name, strlen(name));
		/* Behind the top there is another file system, with the place of the mount as its name. */
		note("list %s: %s type %d number %s", path, text, entries[i]->d_type,
		     dots || got ? "-" : st.st_ino == entries[i]->d_ino ? "right" : "wrong");
	}
}

static void places(void)
{
	struct statfs fs;

	EACH("chdir", gone_to(p));
	EACH("statfs", syscall(SYS_statfs, p, &fs));
	EACH("statfs bad", syscall(SYS_statfs, p, (void *)1));
	MUST(statfs("a", &fs));
	IS("statfs read-only", fs.f_flags & ST_RDONLY);
	IS("statfs plausible", fs.f_bsize > 0 && fs.f_blocks > 0 && fs.f_bfree <= fs.f_blocks && fs.f_bavail <= fs.f_bfree && fs.f_namelen == 255 && fs.f_type);
	static const char *const listed[] = { ".", "d", "empty", "bin", "private", "noread", "nox", "mydir", "sticky", "dlink", "dlink/", "a", "missing", "1/2/3/4/5/6/7/8/9" };
	for (size_t n = 0; n < LENGTH(listed); n++)
		listings(listed[n]);
}

/* Handles, watches and what only the kernel can do to a path. */
static void watches(void)
{
	int in = MUST(inotify_init1(IN_NONBLOCK));
	struct {
		struct file_handle head;
		char room[MAX_HANDLE_SZ];
	} handle;
	int mount;

	/* With an answer that tells nothing of the file where the call is not offered, only its errors on bad paths count. */
	EACH("inotify_add_watch", syscall(SYS_inotify_add_watch, in, p, IN_ALL_EVENTS) < 0 && errno != ENOSPC ? -1 : 0);
	EACH("inotify_add_watch link", syscall(SYS_inotify_add_watch, in, p, IN_OPEN | IN_DONT_FOLLOW) < 0 && errno != ENOSPC ? -1 : 0);
	EACH("inotify_add_watch dir", syscall(SYS_inotify_add_watch, in, p, IN_OPEN | IN_ONLYDIR) < 0 && errno != ENOSPC ? -1 : 0);
	EACH("inotify_add_watch nothing", syscall(SYS_inotify_add_watch, in, p, 0));
	EACH("inotify_add_watch no queue", syscall(SYS_inotify_add_watch, dirs[3].fd, p, IN_OPEN));
	handle.head.handle_bytes = MAX_HANDLE_SZ;
	EACH_AT("name_to_handle_at", (handle.head.handle_bytes = MAX_HANDLE_SZ, syscall(SYS_name_to_handle_at, fd, p, &handle, &mount, 0)) < 0 && errno != EOPNOTSUPP ? -1 : 0);
	EACH("name_to_handle_at flags", syscall(SYS_name_to_handle_at, AT_FDCWD, p, &handle, &mount, 0x4000));
}

static long long executed(int fd, const char *path, int flags, bool is_at)
{
	char *const args[] = { "name", "one", "two", NULL };
	char *const none[] = { NULL };
	int status, report[2], error = 0;

	MUST(pipe2(report, O_CLOEXEC));
	pid_t child = MUST(fork());
	if (child == 0) {
		if (is_at)
			syscall(SYS_execveat, fd, path, args, none, flags);
		else
			syscall(SYS_execve, path, args, none);
		error = errno;
		(void)!write(report[1], &error, sizeof error);
		_exit(127);
	}
	close(report[1]);
	(void)!read(report[0], &error, sizeof error);
	close(report[0]);
	MUST(waitpid(child, &status, 0));
	errno = error;
	return error ? -1 : status;
}

static void programs(void)
{
	int fd;

	EACH("execve", executed(0, p, 0, false));
	EACH("execveat of top", executed(dirs[1].fd, p, 0, true));
	EACH("execveat of file", executed(dirs[3].fd, p, 0, true));
	EACH("execveat nofollow", executed(AT_FDCWD, p, AT_SYMLINK_NOFOLLOW, true));
	EACH("execveat flags", executed(AT_FDCWD, p, AT_REMOVEDIR, true));
	for (int cloexec = 0; cloexec < 2; cloexec++) {
		char call[100];
		snprintf(call, sizeof call, "execveat descriptor %d", cloexec);
		EACH(call, (fd = open(p, O_RDONLY | O_NONBLOCK | (cloexec ? O_CLOEXEC : 0))) < 0 ? -2 : executed(fd, "", AT_EMPTY_PATH, true) + 0 * close(fd));
		snprintf(call, sizeof call, "execveat O_PATH %d", cloexec);
		EACH(call, (fd = open(p, O_PATH | (cloexec ? O_CLOEXEC : 0))) < 0 ? -2 : executed(fd, "", AT_EMPTY_PATH, true) + 0 * close(fd));
	}
}

static void steps(void)
{
	prepare();
	stats();
	extended_stats();
	permissions();
	links();
	places();
	watches();
	programs();
}
