/* Every way to open every path, and what the descriptor is. */
#include "ro.h"

#include <linux/openat2.h>

static const struct {
	const char *label;
	int flags;
} ways[] = {
#define WAY(flags) { #flags, flags }
	WAY(O_RDONLY), WAY(O_WRONLY), WAY(O_RDWR), WAY(O_ACCMODE), WAY(O_RDONLY | O_TRUNC), WAY(O_WRONLY | O_TRUNC),
	WAY(O_WRONLY | O_APPEND), WAY(O_RDWR | O_APPEND), WAY(O_RDONLY | O_APPEND), WAY(O_CREAT | O_RDONLY), WAY(O_CREAT | O_WRONLY), WAY(O_CREAT | O_RDWR | O_TRUNC),
	WAY(O_CREAT | O_EXCL | O_RDONLY), WAY(O_CREAT | O_EXCL | O_WRONLY), WAY(O_EXCL | O_RDONLY), WAY(O_CREAT | O_DIRECTORY),
	WAY(O_CREAT | O_NOFOLLOW | O_WRONLY), WAY(O_CREAT | O_NOFOLLOW | O_RDONLY), WAY(O_DIRECTORY), WAY(O_DIRECTORY | O_WRONLY), WAY(O_DIRECTORY | O_RDWR),
	WAY(O_DIRECTORY | O_TRUNC), WAY(O_NOFOLLOW), WAY(O_NOFOLLOW | O_WRONLY), WAY(O_NOFOLLOW | O_DIRECTORY), WAY(O_PATH),
	WAY(O_PATH | O_NOFOLLOW), WAY(O_PATH | O_DIRECTORY), WAY(O_PATH | O_NOFOLLOW | O_DIRECTORY), WAY(O_PATH | O_RDWR | O_CREAT | O_TRUNC | O_EXCL),
	WAY(O_TMPFILE | O_RDWR), WAY(O_TMPFILE | O_WRONLY), WAY(O_TMPFILE | O_RDONLY), WAY(O_TMPFILE | O_RDWR | O_EXCL), WAY(O_TMPFILE | O_RDWR | O_CREAT), WAY(O_NOATIME),
	WAY(O_NOATIME | O_WRONLY), WAY(O_SYNC), WAY(O_DSYNC | O_WRONLY), WAY(O_NOCTTY | O_LARGEFILE), WAY(O_CLOEXEC), WAY(040000000),
};

/* What a descriptor is: its flags, type and size; it is closed. */
static void opened(const char *call, const char *where, const char *label, int fd, bool is_path)
{
	struct stat st;
	char text[1200];

	if (fd < 0) {
		tell(call, where, label, fd);
		return;
	}
	MUST(fstat(fd, &st));
	/* That of a directory says how its stand-in was opened, and O_NOFOLLOW and O_TMPFILE are not handed on. */
	int flags = is_path || S_ISDIR(st.st_mode) ? 0 : fcntl(fd, F_GETFL) & ~(O_NOFOLLOW | O_TMPFILE);
	escape(text, sizeof text, label, strlen(label));
	note("%s%s \"%s\": %c%04o size %lld flags %o %o", call, where, text, type_letter(st.st_mode), st.st_mode & 07777,
	     S_ISDIR(st.st_mode) ? -1 : (long long)st.st_size, flags, fcntl(fd, F_GETFD));
	close(fd);
}

/* An ordinary user's monitor cannot make the device that a tracee is to get: said once is enough. */
static bool no_devices;

#define OPENED(call, where, is_path, expression) \
	for (size_t i_ = 0; i_ < LENGTH(paths); i_++) { \
		const char *p = paths[i_].path; \
		if (no_devices && (!strcmp(paths[i_].label, "null") || !strcmp(paths[i_].label, "nodevice"))) \
			continue; \
		int fd_ = (int)AGAIN_AFTER_ELOOP(expression); \
		opened((call), (where), paths[i_].label, fd_, (is_path)); \
	}

/* With O_NONBLOCK, or a fifo waits for its other end. */
static void ways_to_open(void)
{
	for (size_t n = 0; n < LENGTH(ways); n++) {
		char call[200];
		int flags = ways[n].flags | O_NONBLOCK;
		bool is_path = flags & O_PATH;

		snprintf(call, sizeof call, "open %s", ways[n].label);
		OPENED(call, "", is_path, syscall(SYS_open, p, flags, 0644));
		snprintf(call, sizeof call, "openat %s", ways[n].label);
		for (size_t j = 0; j < LENGTH(dirs); j++)
			OPENED(call, dirs[j].label, is_path, syscall(SYS_openat, dirs[j].fd, p, flags, 0644));
	}
	OPENED("creat", "", false, strstr(paths[i_].label, "fifo") ? -1 : syscall(SYS_creat, p, 0644));
	OPENED("open bits", "", false, syscall(SYS_open, p, O_CREAT | O_WRONLY | O_NONBLOCK, 0xffffffff));
}

static int open_how(int dirfd, const char *path, uint64_t flags, uint64_t mode, uint64_t resolve)
{
	struct open_how how = { .flags = flags, .mode = mode, .resolve = resolve };

	return syscall(SYS_openat2, dirfd, path, &how, sizeof how);
}

static void resolved(void)
{
	static const uint64_t resolve[] = {
		0, RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH, RESOLVE_IN_ROOT,
		RESOLVE_BENEATH | RESOLVE_IN_ROOT, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS, 1 << 20,
	};
	static const uint64_t flags[] = { O_RDONLY | O_NONBLOCK, O_WRONLY | O_CREAT | O_NONBLOCK, O_PATH | O_NOFOLLOW, O_TMPFILE | O_RDWR };

	for (size_t n = 0; n < LENGTH(resolve); n++) {
		for (size_t m = 0; m < LENGTH(flags); m++) {
			char call[100];
			snprintf(call, sizeof call, "openat2 %llx %llo", (long long)resolve[n], (long long)flags[m]);
			for (size_t j = 0; j < 3; j++)
				OPENED(call, dirs[j].label, flags[m] & O_PATH, open_how(dirs[j].fd, p, flags[m], m % 2 ? 0644 : 0, resolve[n]));
		}
	}
	OPENED("openat2 cached create", "", false, open_how(AT_FDCWD, p, O_CREAT | O_WRONLY | O_NONBLOCK, 0644, RESOLVE_CACHED));
	OPENED("openat2 mode for nothing", "", false, open_how(AT_FDCWD, p, O_RDONLY, 0644, 0));
	OPENED("openat2 wide mode", "", false, open_how(AT_FDCWD, p, O_CREAT | O_WRONLY, 010644, 0));
	OPENED("openat2 unknown flag", "", false, open_how(AT_FDCWD, p, 1ull << 40, 0, 0));
	OPENED("openat2 path and more", "", false, open_how(AT_FDCWD, p, O_PATH | O_RDWR, 0, 0));

	struct open_how how[3] = { { .flags = O_RDONLY | O_NONBLOCK } };
	OPENED("openat2 short", "", false, syscall(SYS_openat2, AT_FDCWD, p, how, 23));
	OPENED("openat2 longer", "", false, syscall(SYS_openat2, AT_FDCWD, p, how, sizeof how));
	OPENED("openat2 too long", "", false, syscall(SYS_openat2, AT_FDCWD, p, how, 5000));
	OPENED("openat2 bad how", "", false, syscall(SYS_openat2, AT_FDCWD, p, (void *)1, sizeof *how));
	how[2].flags = 1;
	OPENED("openat2 newer", "", false, syscall(SYS_openat2, AT_FDCWD, p, how, sizeof how));
}

static void steps(void)
{
	prepare();
	no_devices = geteuid() != 0;
	O("a device", open("null", O_RDONLY));
	O("a block device", open("nodevice", O_RDONLY | O_NONBLOCK));
	ways_to_open();
	resolved();
}
