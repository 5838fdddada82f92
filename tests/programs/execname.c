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

#define RUN_AT(name, fd, path, flags) \
	CHILD(name, execveat(fd, path, (char *[]){"prog", "-x", name, NULL}, environ, flags); note("%d %s: %s", __LINE__, name, strerrorname_np(errno)))

static void steps(void)
{
	char path[PATH_MAX];
	int dir, file;

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

	/* Paths that are longer than any other, names that are, and a longer one after a shorter one. */
	memset(path, 0, sizeof path);
	while (strlen(path) < 3000)
		strcat(path, "./");
	strcat(path, "prog");
	RUN("long path", path, "prog", "-x", "long path");
	memset(path, 'n', 255);
	path[255] = 0;
	copy_self(path, 0755);
	RUN("long name", path, "prog", "-x", "long name");
	snprintf(path, sizeof path, "%s/w/bin//tool", top_path);
	RUN("absolute", path, "tool", "-x", "absolute");

	/* By a descriptor of the directory, and of the program itself. */
	dir = MUST(fcntl(MUST(open("bin", O_RDONLY | O_DIRECTORY)), F_DUPFD, 50));
	file = MUST(fcntl(MUST(open("bin/tool", O_RDONLY)), F_DUPFD, 60));
	RUN_AT("directory", dir, "tool", 0);
	memset(path, 0, sizeof path);
	while (strlen(path) < 4000)
		strcat(path, "./");
	strcat(path, "tool");
	RUN_AT("long path from a directory", dir, path, 0);
	RUN_AT("descriptor", file, "", AT_EMPTY_PATH);
	file = MUST(fcntl(MUST(open("script", O_RDONLY)), F_DUPFD, 70));
	RUN_AT("script by descriptor", file, "", AT_EMPTY_PATH);

	/* What fails leaves nothing behind. */
	make("garbage", "neither a program nor a script, though it has more bytes than the header of one");
	MUST(chmod("garbage", 0755));
	snprintf(path, sizeof path, "%s/prog", host_path);
	copy_self(path, 0755);
	CHILD("after a failure", T("fails", execv("./garbage", (char *[]){"a", NULL}));
	      execv(path, (char *[]){"prog", "-x", "after a failure", NULL}));
	CHILD("after another", T("fails", execv("./garbage", (char *[]){"a", NULL}));
	      execv("./prog", (char *[]){"prog", "-x", "after another", NULL}));
	MUST(unlink(path));
	CHILD("another user", drop(); execv("./script", (char *[]){"script", "another user", NULL}));
}
