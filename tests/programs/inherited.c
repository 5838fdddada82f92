/* What a new process has from the one that started it: its mode creation mask, its user, its groups. Each changes in the parent
 * before the child begins, in the child before its first call on a file, or afterwards; and the child starts a child, or a program. */
#define STEP_HELPER
#include "step.h"
#include <pthread.h>

static void named(const char *name, const char *suffix, char *path)
{
	snprintf(path, PATH_MAX, "%s/w/%s%s", top_path, name, suffix);
}

/* Makes a file and shows its mode and owner. */
static void makes(const char *name, const char *suffix)
{
	char path[PATH_MAX];
	struct stat st;

	named(name, suffix, path);
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0 || fstat(fd, &st)) {
		note("%s%s: %s", name, suffix, strerrorname_np(errno));
		return;
	}
	note("%s%s: %04o uid=%u gid=%u", name, suffix, st.st_mode & 07777, st.st_uid, st.st_gid);
	close(fd);
}

static int helper(int argc, char **argv)
{
	if (argc < 6)
		return 98;
	top_path = argv[3];
	makes(argv[2], argv[4]);
	umask(0007);
	CHILD(argv[2], makes(argv[2], argv[5]));
	return 0;
}

static void *forks(void *name)
{
	CHILD((char *)name, makes(name, " by a thread"));
	return NULL;
}

/* All ways to start a process that makes a file as its first call. */
static void ways(const char *name)
{
	pthread_t thread;
	int status;

	CHILD(name, makes(name, " by fork"));
	CHILD(name, umask(0013); makes(name, " after umask"));
	CHILD(name, CHILD(name, makes(name, " by fork twice")));
	CHILD(name, umask(0031); CHILD(name, makes(name, " by fork after umask")));
	CHILD(name, execl("/proc/self/exe", self_path, "-", name, top_path, " after execve", " in its child", NULL));
	pid_t child = vfork();
	if (child == 0) {
		execl("/proc/self/exe", self_path, "-", name, top_path, " after vfork", " in the child of that", NULL);
		_exit(97);
	}
	MUST(waitpid(child, &status, 0));
	ended(__LINE__, name, status);
	if (pthread_create(&thread, NULL, forks, (void *)name) || pthread_join(thread, NULL))
		_exit(96);
}

/* A child that shares the working directory and the mask, which it changes. */
static int shares(void *name)
{
	umask(0070);
	makes(name, " with the mask shared");
	return 0;
}

static void steps(void)
{
	static char stack[65536] __attribute__((aligned(16)));
	int status;

	MUST(chmod(".", 0777));
	ways("as started");
	umask(0077);
	ways("mask 077");
	pid_t child = MUST(clone(shares, stack + sizeof stack, CLONE_FS | SIGCHLD, "child"));
	MUST(waitpid(child, &status, 0));
	makes("parent", " with the mask shared");
	umask(0);
	ways("mask 0");
	if (geteuid() == 0) {
		CHILD("file-system user", setfsgid(NOBODY); setfsuid(NOBODY); ways("file-system user"));
		CHILD("effective user", MUST(setegid(NOBODY)); MUST(seteuid(NOBODY)); ways("effective user"));
	}
	drop();
	ways("user");
}
