/* A mount namespace of the program's own: nothing else sees what is mounted there. */
#ifndef NAMESPACE_H
#define NAMESPACE_H

#include "step.h"

#include <sched.h>
#include <sys/mount.h>

static void put(const char *path, const char *format, unsigned id)
{
	int file = open(path, O_WRONLY | O_CLOEXEC);

	if (file >= 0) {
		dprintf(file, format, id);
		close(file);
	}
}

/* As root in it; an ordinary user gets a user namespace, too. -1 where a program may not. */
static int own_namespace(void)
{
	unsigned uid = geteuid(), gid = getegid();

	if (unshare(CLONE_NEWNS | (uid ? CLONE_NEWUSER : 0)))
		return -1;
	if (uid) {
		put("/proc/self/setgroups", "deny", 0);
		put("/proc/self/uid_map", "0 %u 1", uid);
		put("/proc/self/gid_map", "0 %u 1", gid);
	}
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	return 0;
}

#endif
