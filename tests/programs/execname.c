/* What the kernel notes about a program that was executed: its short name and the path that was used. */
#define STEP_HELPER
#include "step.h"
#include <sys/auxv.h>
#include <sys/prctl.h>

static int helper(int argc, char **argv)
{
	char name[32] = "";

	host_path = getenv("HOSTDIR");
	top_path = getenv("TOPDIR");
	prctl(PR_GET_NAME, name);
	note("%s: comm %s execfn %s", argv[argc - 1], name, shown((char *)getauxval(AT_EXECFN)));
	return 0;
}

static void steps(void)
{
	setenv("TOPDIR", top_path, 1);
	setenv("HOSTDIR", host_path, 1);
	copy_self("prog", 0755);
	MUST(mkdir("bin", 0755));
	copy_self("bin/tool", 0755);
	MUST(symlink("bin/tool", "link"));
	make("script", "#!prog -x\n");
	MUST(chmod("script", 0755));
	RUN("relative", "prog", "prog", "-x", "relative");
	RUN("dot", "./prog", "other", "-x", "dot");
	RUN("link", "link", "link", "-x", "link");
	RUN("script", "./script", "script", "script");
}
