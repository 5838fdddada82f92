/* Bind mounts in a mount namespace of the program's own. */
#ifndef BINDS_H
#define BINDS_H

#include "namespace.h"
#include "mounts.h"

/* Outside of the tests' directories. */
#define NEW "/mnt"
#define DIR_ NEW "/dir"
#define FILE_ NEW "/file"

/* False where a program may not. */
static bool separate(void)
{
	int result;

	T("unshare", result = own_namespace());
	if (result)
		return false;
	MUST(mount("new", NEW, "tmpfs", 0, NULL));
	MUST(mkdir(DIR_, 0755));
	MUST(mkdir(NEW "/other", 0755));
	make(FILE_, "on the host");
	return true;
}

#endif
