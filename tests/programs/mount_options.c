/* The options of mounts in the file system under test, and how they are told apart. */
#include "mounts.h"
#include <sys/statvfs.h>

static struct statx with_id(int dirfd, const char *path, unsigned int mask)
{
	struct statx stx = {};

	MUST(statx(dirfd, path, AT_EMPTY_PATH, mask, &stx));
	return stx;
}

/* Whether mountinfo has a mount with this ID and the mount point PATH. */
static int has_id(unsigned long long id, const char *path)
{
	char entry[PATH_MAX * 2], wanted[PATH_MAX], target[PATH_MAX];
	unsigned long long listed;
	int found = 0;
	FILE *list = fopen("/proc/self/mountinfo", "re");

	MUST(realpath(path, wanted) ? 0 : -1);
	while (list && fgets(entry, sizeof entry, list))
		found |= sscanf(entry, "%llu %*s %*s %*s %s", &listed, target) == 2 && listed == id && !strcmp(target, wanted);
	fclose(list);
	return found;
}

/* Each mount has an ID of its own, also where the file system is the same. */
static void told_apart(void)
{
	static const unsigned int masks[] = {STATX_MNT_ID, 0x4000};

	MUST(mkdir("one", 0755) | mkdir("one/dir", 0755) | mkdir("two", 0755) | mkdir("three", 0755));
	T("bind", mount("one", "two", NULL, MS_BIND, NULL));
	T("tmpfs", mount("none", "three", "tmpfs", 0, NULL));
	int fd = MUST(open("two/dir", O_RDONLY | O_DIRECTORY));
	for (int i = 0; i < 2; i++) {
		struct statx one = with_id(AT_FDCWD, "one", masks[i]), two = with_id(AT_FDCWD, "two", masks[i]);
		struct statx three = with_id(AT_FDCWD, "three", masks[i]), dir = with_id(AT_FDCWD, "two/dir", masks[i]);
		note("asked %#x: given %d, differ %d %d %d, inside %d, by a descriptor %d", masks[i], one.stx_mask & two.stx_mask & three.stx_mask & masks[i] ? 1 : 0,
		     one.stx_mnt_id != two.stx_mnt_id, one.stx_mnt_id != three.stx_mnt_id, two.stx_mnt_id != three.stx_mnt_id,
		     dir.stx_mnt_id == two.stx_mnt_id, with_id(fd, "", masks[i]).stx_mnt_id == two.stx_mnt_id);
		note("roots %d %d %d", !!(one.stx_attributes & STATX_ATTR_MOUNT_ROOT), !!(two.stx_attributes & STATX_ATTR_MOUNT_ROOT),
		     !!(three.stx_attributes & STATX_ATTR_MOUNT_ROOT));
		if (i == 0)
			note("listed %d %d", has_id(two.stx_mnt_id, "two"), has_id(three.stx_mnt_id, "three"));
	}
	close(fd);
	T("umount", umount2("two", 0));
	T("umount", umount2("three", 0));
}

/* The options of a mount, of those that concern its files. */
static unsigned long options_of(const char *path)
{
	struct statvfs found = {0};

	MUST(statvfs(path, &found));
	return found.f_flag & (ST_RDONLY | ST_NOSUID | ST_NODEV | ST_NOEXEC);
}

/* How often OPTION is one of the mount's on PATH in mountinfo. */
static int has_option(const char *path, const char *option)
{
	char entry[PATH_MAX * 2], wanted[PATH_MAX], target[PATH_MAX], options[PATH_MAX];
	int found = 0;
	FILE *list = fopen("/proc/self/mountinfo", "re");

	MUST(realpath(path, wanted) ? 0 : -1);
	while (list && fgets(entry, sizeof entry, list))
		if (sscanf(entry, "%*s %*s %*s %*s %s %s", target, options) == 2 && !strcmp(target, wanted))
			for (char *one = strtok(options, ","); one; one = strtok(NULL, ","))
				found += !strcmp(one, option);
	fclose(list);
	return found;
}

static void options(void)
{
	static const unsigned long each[] = {MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_NOSUID | MS_NODEV, 0};
	static const char *const names[] = {"nosuid", "nodev", "noexec"};
	struct mount_attr_ { unsigned long long set, clear, propagation, user_namespace; } attributes = {.set = MS_NODEV};

	MUST(mkdir("from", 0755) | mkdir("onto", 0755) | mknod("from/null", S_IFCHR | 0666, makedev(1, 3)) | mknod("from/block", S_IFBLK | 0666, makedev(240, 5)));
	MUST(chmod("from/null", 0666));
	T("bind", mount("from", "onto", NULL, MS_BIND, NULL));
	for (unsigned int i = 0; i < sizeof each / sizeof *each; i++) {
		T("remount", mount(NULL, "onto", NULL, MS_REMOUNT | MS_BIND | each[i], NULL));
		note("options %#lx", options_of("onto"));
		for (int j = 0; j < 3; j++)
			note("%s listed %d", names[j], has_option("onto", names[j]));
		int fd = open("onto/null", O_RDWR);
		note("device: %d", fd < 0 ? errno : 0);
		close(fd);
		T("by its path", access("onto/null", R_OK | W_OK));
		T("a mount of a device", mount("onto/null", "d", "ext4", 0, NULL));
		T("path alone", close(open("onto/null", O_PATH)));
	}
	T("another device", mount("onto/block", "d", "ext4", MS_RDONLY, NULL));
	T("by mount_setattr", syscall(442, AT_FDCWD, "onto", 0, &attributes, sizeof attributes));
	note("options %#lx", options_of("onto"));
	T("no devices", open("onto/null", O_RDWR));
	T("here", close(open("from/null", O_RDWR)));
	T("another device", mount("onto/block", "d", "ext4", MS_RDONLY, NULL));
	T("umount", umount2("onto", 0));
}

static void steps(void)
{
	if (geteuid())
		return;
	MUST(mkdir("d", 0755));
	told_apart();
	options();
}
