/* mount and umount2 with directories of the file system under test. */
#include "step.h"
#include <sys/mount.h>

static void refused(void)
{
	T("onto a missing directory", mount("none", "missing", "tmpfs", 0, NULL));
	T("onto nothing", mount("none", NULL, "tmpfs", 0, NULL));
	T("of a missing directory", umount2("missing", 0));
	T("flags of umount", umount2("missing", 64));
	T("of nothing", umount2(NULL, 0));
}

static void of_a_user(void)
{
	T("onto a directory", mount("none", "d", "tmpfs", 0, NULL));
	T("onto the working directory", mount("none", ".", "tmpfs", 0, NULL));
	T("from a directory", mount("d", host_path, NULL, MS_BIND, NULL));
	T("of a directory", umount2("d", 0));
	T("move", syscall(SYS_move_mount, AT_FDCWD, "d", AT_FDCWD, "d", 0));
}

static void steps(void)
{
	MUST(mkdir("d", 0755));
	refused();
	CHILD("user", drop(); refused(); of_a_user());
	if (geteuid())
		return;
	T("no mount", umount2("d", 0));
	/* The rest is of a mount that the kernel makes. */
	T("mount", mount("none", "d", "tmpfs", 0, NULL));
	T("umount", umount2("d", 0));
	T("no mount any more", umount2("d", 0));
}
