/* Core files, which land in the working directory where core_pattern is relative. */
#include "step.h"
#include <pthread.h>
#include <sys/prctl.h>

/* A child with a limit on core files dies in DIR by SIGNAL. */
static void dies(int line, const char *name, const char *dir, int signal, rlim_t limit, bool dropped)
{
	int status;
	pid_t child = MUST(fork());

	if (child == 0) {
		struct rlimit now;
		MUST(getrlimit(RLIMIT_CORE, &now));
		now.rlim_cur = limit < now.rlim_max ? limit : now.rlim_max;
		MUST(setrlimit(RLIMIT_CORE, &now));
		if (dropped) {
			drop();
			/* What has changed its user dumps no core, but what it then makes may. */
			prctl(PR_SET_DUMPABLE, 1);
		}
		MUST(chdir(dir));
		raise(signal);
		_exit(0);
	}
	MUST(waitpid(child, &status, 0));
	if (WIFSIGNALED(status))
		note("%d %s: signal %d%s", line, name, WTERMSIG(status), WCOREDUMP(status) ? ", core dumped" : "");
	else
		ended(line, name, status);
}
#define DIES(name, ...) dies(__LINE__, name, __VA_ARGS__)

/* The core files in DIR, without the process ids in their names. */
static void cores(int line, const char *dir)
{
	struct dirent *entry;
	int count = 0;
	DIR *list = opendir(dir);

	if (!list) {
		note("%d %s: %s", line, dir, strerrorname_np(errno));
		return;
	}
	while ((entry = readdir(list))) {
		char path[PATH_MAX];
		struct stat st;
		unsigned char head[20] = "";

		if (entry->d_name[0] == '.')
			continue;
		count++;
		snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
		MUST(lstat(path, &st));
		int fd = open(path, O_RDONLY | O_NONBLOCK);
		if (fd >= 0 && S_ISREG(st.st_mode))
			pread(fd, head, sizeof head, 0);
		close(fd);
		/* ELF, ET_CORE. */
		note("%d %s: %c%04o nlink=%lu uid=%u gid=%u, %s, %s", line, dir, type_letter(st.st_mode),
		     st.st_mode & 07777, (unsigned long)st.st_nlink, st.st_uid, st.st_gid,
		     st.st_size > 65536 ? "large" : "small",
		     !memcmp(head, "\177ELF", 4) && head[16] == 4 ? "a core" : "no core");
		unlink(path);
	}
	note("%d %s: %d files", line, dir, count);
	closedir(list);
}
#define CORES(dir) cores(__LINE__, dir)

static void handler(int signal)
{
	_exit(signal);
}

static void *aborts(void *argument)
{
	(void)argument;
	abort();
}

/* One of several threads. */
static void by_a_thread(void)
{
	int status;
	pid_t child = MUST(fork());

	if (child == 0) {
		pthread_t threads[3];
		struct rlimit now;
		MUST(getrlimit(RLIMIT_CORE, &now));
		now.rlim_cur = now.rlim_max;
		MUST(setrlimit(RLIMIT_CORE, &now));
		MUST(chdir("d"));
		for (int i = 0; i < 2; i++)
			pthread_create(threads + i, NULL, (void *(*)(void *))pause, NULL);
		pthread_create(threads + 2, NULL, aborts, NULL);
		pause();
	}
	MUST(waitpid(child, &status, 0));
	note("a thread aborts: signal %d%s", WTERMSIG(status), WCOREDUMP(status) ? ", core dumped" : "");
	CORES("d");
}

static void steps(void)
{
	T("dumpable 1", prctl(PR_SET_DUMPABLE, 1));
	T("dumpable 2", prctl(PR_SET_DUMPABLE, 2));
	T("dumpable -1", prctl(PR_SET_DUMPABLE, -1L));
	MUST(mkdir("d", 0755));
	DIES("abort", "d", SIGABRT, RLIM_INFINITY, false);
	CORES("d");
	DIES("segmentation fault", "d", SIGSEGV, RLIM_INFINITY, false);
	CORES("d");
	DIES("no room", "d", SIGSEGV, 0, false);
	CORES("d");
	DIES("little room", "d", SIGSEGV, 20000, false);
	CORES("d");
	DIES("terminated", "d", SIGTERM, RLIM_INFINITY, false);
	CORES("d");
	signal(SIGQUIT, handler);
	DIES("handled", "d", SIGQUIT, RLIM_INFINITY, false);
	signal(SIGQUIT, SIG_IGN);
	DIES("ignored", "d", SIGQUIT, RLIM_INFINITY, false);
	signal(SIGQUIT, SIG_DFL);
	CORES("d");
	make("d/core", "an old one");
	DIES("over an old one", "d", SIGQUIT, RLIM_INFINITY, false);
	CORES("d");
	by_a_thread();
	DIES("as another user, in a closed directory", "d", SIGABRT, RLIM_INFINITY, true);
	CORES("d");
	MUST(mkdir("open", 0777));
	MUST(chmod("open", 02777));
	DIES("as another user", "open", SIGABRT, RLIM_INFINITY, true);
	CORES("open");
	MUST(mkdir("sealed", 0555));
	DIES("in a directory of mode 0555", "sealed", SIGABRT, RLIM_INFINITY, false);
	CORES("sealed");
	DIES("on the host", host_path, SIGABRT, RLIM_INFINITY, false);
	CORES(host_path);
}
