/* Calls on mounts. Not every C library declares those by descriptor; linux/mount.h does not get along with sys/mount.h in each of them. */
#ifndef MOUNTS_H
#define MOUNTS_H

#include "step.h"

#include <sys/mount.h>

#define CLONE_TREE 1
#define SYS_OPEN_TREE_ATTR 467
#define RECURSIVE 0x8000
#define FROM_EMPTY_PATH 4
#define TO_EMPTY_PATH 0x40
#define RDONLY_ATTR 1ULL
#define NOEXEC_ATTR 8ULL
struct attributes {
	uint64_t set, clear, propagation, user_namespace;
};

static inline int bind_to(const char *from, const char *to)
{
	return mount(from, to, NULL, MS_BIND, NULL);
}

static inline int open_tree_at(int dirfd, const char *path, unsigned flags)
{
	return syscall(SYS_open_tree, dirfd, path, flags);
}

static inline int set_attributes(int dirfd, const char *path, unsigned flags, uint64_t set, uint64_t clear)
{
	struct attributes attributes = {.set = set, .clear = clear};

	return syscall(SYS_mount_setattr, dirfd, path, flags, &attributes, sizeof attributes);
}

/* Attaches what the descriptor TREE refers to. */
static inline int attach(int tree, const char *path)
{
	return syscall(SYS_move_mount, tree, "", AT_FDCWD, path, FROM_EMPTY_PATH);
}

static inline int move_to(const char *from, const char *to)
{
	return syscall(SYS_move_mount, AT_FDCWD, from, AT_FDCWD, to, 0);
}

/* A descriptor of a new tmpfs. */
static inline int new_file_system(void)
{
	int fs = MUST(syscall(SYS_fsopen, "tmpfs", 1));

	MUST(syscall(SYS_fsconfig, fs, 6, NULL, NULL, 0));
	int mounted = MUST(syscall(SYS_fsmount, fs, 1, 0));
	close(fs);
	return mounted;
}

#endif
