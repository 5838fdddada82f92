/* Processes: starting them in every way, programs and scripts in the mount, signals, how they end. */
#define STEP_HELPER
#include "step.h"
#include <pthread.h>
#include <spawn.h>

/* What the program does when it is started again, by its first argument. */
static int helper(int argc, char **argv)
{
	char path[PATH_MAX];

	host_path = getenv("HOSTDIR");
	top_path = getenv("TOPDIR");
	if (!strcmp(argv[1], "-args")) {
		for (int i = 0; i < argc; i++)
			note("argv[%d] %s", i, shown(argv[i]));
		ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
		path[length < 0 ? 0 : length] = 0;
		note("exe %s", shown(path));
		struct stat exe, given;
		int fd = open("/proc/self/exe", O_RDONLY);
		note("exe opens %s", fd >= 0 ? "yes" : strerrorname_np(errno));
		if (fd >= 0 && !fstat(fd, &exe) && !stat(path, &given))
			note("exe is %s", exe.st_size == given.st_size && exe.st_ino == given.st_ino ? "itself" : "another");
		close(fd);
		CWD();
		note("VARIABLE %s", getenv("VARIABLE") ? getenv("VARIABLE") : "unset");
		return 0;
	}
	if (!strcmp(argv[1], "-exit"))
		return atoi(argv[2]);
	if (!strcmp(argv[1], "-signal")) {
		signal(atoi(argv[2]), SIG_DFL);
		raise(atoi(argv[2]));
		return 1;
	}
	if (!strcmp(argv[1], "-self")) {
		/* Starts itself again through /proc, as many runtimes do. */
		execl("/proc/self/exe", "again", "-exit", "23", NULL);
		return 1;
	}
	if (!strcmp(argv[1], "-sleep")) {
		pause();
		return 0;
	}
	return 97;
}

static void script(const char *name, const char *text, mode_t mode)
{
	make(name, text);
	MUST(chmod(name, mode));
}

static void programs(void)
{
	char text[2 * PATH_MAX];
	int fd, status;
	pid_t child;

	copy_self("prog", 0755);
	MUST(mkdir("bin", 0755));
	copy_self("bin/tool", 0755);
	MUST(symlink("bin/tool", "link"));
	RUN("relative", "prog", "prog", "-args", "one", "two");
	RUN("dot", "./prog", "another-name", "-args");
	RUN("by link", "link", "link", "-args");
	RUN("deeper", "bin/../bin//tool", "x", "-args", "", " ");
	snprintf(text, sizeof text, "%s/w/prog", top_path);
	RUN("absolute", text, text, "-args");
	RUN("again through /proc", "prog", "prog", "-self");
	RUN("host program", "/bin/true", "true");
	RUN("host program fails", "/bin/false", "false");
	RUN("exit 42", "prog", "prog", "-exit", "42");
	RUN("exit 256", "prog", "prog", "-exit", "256");
	RUN("exit 255", "prog", "prog", "-exit", "255");
	RUN("killed", "prog", "prog", "-signal", "9");
	RUN("terminated", "prog", "prog", "-signal", "15");
	RUN("SIGUSR1", "prog", "prog", "-signal", "10");
	RUN("missing", "none", "none");
	RUN("missing directory", "none/none", "none");
	RUN("directory", "bin", "bin");
	RUN("below file", "prog/x", "x");
	RUN("slash", "prog/", "prog", "-exit", "1");
	RUN("empty path", "", "x");
	copy_self("notx", 0644);
	RUN("not executable", "notx", "notx", "-exit", "1");
	make("empty", "");
	MUST(chmod("empty", 0755));
	RUN("empty file", "empty", "empty");
	script("garbage", "this is no program\n", 0755);
	RUN("garbage", "garbage", "garbage");
	script("elfish", "\177ELF", 0755);
	RUN("torn ELF", "elfish", "elfish");
	MUST(mkfifo("pipe", 0777));
	RUN("fifo", "pipe", "pipe");
	MUST(symlink("loop", "loop"));
	RUN("loop", "loop", "loop");
	T("null path", execve(NULL, (char *[]){"x", NULL}, environ));
	T("bad argv", execve("prog", (char **)16, environ));
	T("bad string", execve("prog", (char *[]){(char *)16, NULL}, environ));
	RUN("search by PATH", "/bin/sh", "sh", "-c", "PATH=bin:$PATH; tool -exit 7; echo $?");
	/* While it is open for writing it cannot be run. */
	fd = MUST(open("prog", O_WRONLY | O_CLOEXEC));
	RUN("open for writing", "prog", "prog", "-exit", "1");
	close(fd);
	RUN("closed", "prog", "prog", "-exit", "1");
	/* And the other way round. */
	child = MUST(fork());
	if (child == 0) {
		execl("bin/tool", "tool", "-sleep", NULL);
		_exit(1);
	}
	for (int i = 0; i < 500; i++) {
		snprintf(text, sizeof text, "/proc/%d/comm", child);
		fd = open(text, O_RDONLY | O_CLOEXEC);
		ssize_t got = read(fd, text, sizeof text);
		close(fd);
		if (got == 5 && !memcmp(text, "tool\n", 5))
			break;
		usleep(10000);
	}
	O("write to a running program", open("bin/tool", O_WRONLY | O_CLOEXEC));
	T("truncate a running program", truncate("bin/tool", 0));
	T("unlink a running program", unlink("bin/tool"));
	kill(child, SIGTERM);
	waitpid(child, &status, 0);
	ended(__LINE__, "it", status);
	/* Replaced. */
	copy_self("bin/tool", 0755);
	RUN("replaced", "link", "link", "-exit", "3");
	/* By descriptor. */
	fd = MUST(open("prog", O_RDONLY));
	child = MUST(fork());
	if (child == 0) {
		syscall(SYS_execveat, fd, "", (char *[]){"byfd", "-exit", "5", NULL}, environ, AT_EMPTY_PATH);
		note("execveat %s", strerrorname_np(errno));
		_exit(1);
	}
	waitpid(child, &status, 0);
	ended(__LINE__, "execveat empty", status);
	child = MUST(fork());
	if (child == 0) {
		fexecve(fd, (char *[]){"byfd", "-exit", "6", NULL}, environ);
		_exit(1);
	}
	waitpid(child, &status, 0);
	ended(__LINE__, "fexecve", status);
	close(fd);
	fd = MUST(open("bin", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	child = MUST(fork());
	if (child == 0) {
		syscall(SYS_execveat, fd, "tool", (char *[]){"tool", "-args", NULL}, environ, 0);
		_exit(1);
	}
	waitpid(child, &status, 0);
	ended(__LINE__, "execveat", status);
	child = MUST(fork());
	if (child == 0) {
		syscall(SYS_execveat, AT_FDCWD, "link", (char *[]){"link", "-exit", "1", NULL}, environ, AT_SYMLINK_NOFOLLOW);
		note("execveat nofollow %s", strerrorname_np(errno));
		_exit(1);
	}
	waitpid(child, &status, 0);
	ended(__LINE__, "execveat nofollow", status);
	close(fd);
	/* A new environment. */
	child = MUST(fork());
	if (child == 0) {
		char top[PATH_MAX], host[PATH_MAX];
		snprintf(top, sizeof top, "TOPDIR=%s", top_path);
		snprintf(host, sizeof host, "HOSTDIR=%s", host_path);
		execve("prog", (char *[]){"prog", "-args", NULL}, (char *[]){"VARIABLE=value", top, host, NULL});
		_exit(1);
	}
	waitpid(child, &status, 0);
}

static void scripts(void)
{
	char text[2 * PATH_MAX], top[PATH_MAX];

	snprintf(top, sizeof top, "%s/w", top_path);
	script("sh1", "#!/bin/sh\necho \"$0\" \"$@\"\nexit 5\n", 0755);
	RUN("script", "./sh1", "ignored", "a", "b c");
	RUN("script by link", "/bin/sh", "sh", "-c", "ln -s sh1 sh1l; ./sh1l x");
	script("opt", "#! /bin/sh -e\nfalse\necho not reached\n", 0755);
	RUN("script with option", "./opt", "opt");
	script("noline", "#!/bin/sh", 0755);
	RUN("only a first line", "./noline", "noline");
	script("crlf", "#!/bin/sh\r\n", 0755);
	RUN("carriage return", "./crlf", "crlf");
	script("nothing", "#!", 0755);
	RUN("no interpreter", "./nothing", "nothing");
	script("blank", "#!   \n", 0755);
	RUN("blank interpreter", "./blank", "blank");
	script("missing", "#!/no/such/interpreter\n", 0755);
	RUN("missing interpreter", "./missing", "missing");
	script("notx", "#!/bin/sh\n", 0644);
	RUN("not executable", "./notx", "notx");
	snprintf(text, sizeof text, "#!%s/prog -args\n", top);
	script("inmount", text, 0755);
	RUN("interpreter in the mount", "./inmount", "inmount", "x");
	script("relative", "#!prog -args\n", 0755);
	RUN("relative interpreter", "./relative", "relative", "x");
	script("relative2", "#!./bin/tool -args  two  words \n", 0755);
	RUN("relative interpreter with words", "./relative2", "relative2", "x");
	snprintf(text, sizeof text, "#!%s/inmount second\n", top);
	script("nested", text, 0755);
	RUN("nested interpreters", "./nested", "nested", "y");
	MUST(symlink("nested", "l1"));
	RUN("nested by link", "./l1", "l1");
	snprintf(text, sizeof text, "#!%s/self\n", top);
	script("self", text, 0755);
	RUN("its own interpreter", "./self", "self");
	script("dirint", "#!/usr\n", 0755);
	RUN("directory as interpreter", "./dirint", "dirint");
	memset(text, 'x', 300);
	memcpy(text, "#!/", 3);
	strcpy(text + 300, "\n");
	script("longint", text, 0755);
	RUN("long first line", "./longint", "longint");
	script("noshebang", "echo from no shebang $0\n", 0755);
	RUN("by the shell", "/bin/sh", "sh", "-c", "./noshebang");
	RUN("bash runs it", "/bin/bash", "bash", "-c", "./sh1 q; echo $?; cd bin; ../sh1 r; source ../noshebang");
	RUN("here document", "/bin/sh", "sh", "-c", "cat > here <<X\nline $((1+1))\nX\ncat here; ./sh1 \"$(cat here)\"");
	/* In a directory one may search but not read. */
	MUST(mkdir("xonly", 0755));
	script("xonly/s", "#!/bin/sh\necho ran\n", 0755);
	MUST(chmod("xonly", 0311));
	RUN("script in unreadable directory", "xonly/s", "s");
	CHILD("program one may not read", ({
		      copy_self("unread", 0711);
		      script("unreads", "#!/bin/sh\necho ran\n", 0711);
		      if (geteuid() == 0) {
			      drop();
			      RUN("program", "./unread", "unread", "-exit", "9");
			      RUN("script", "./unreads", "unreads");
		      }
	      }));
}

static void shared_library(void)
{
	/* The dynamic linker loads a library that lies in the mount. */
	RUN("library", "/bin/sh", "sh", "-c",
	    "lib=$(ldd /bin/ls | sed -n 's/.*=> \\(.*selinux[^ ]*\\|.*libc[.]so[^ ]*\\) .*/\\1/p' | head -n 1); "
	    "mkdir lib && cp -L \"$lib\" lib/ && LD_LIBRARY_PATH=$PWD/lib /bin/ls -d lib && echo loaded");
}

static volatile sig_atomic_t got_signal;

static void on_signal(int number)
{
	got_signal = number;
}

static void signals(void)
{
	struct sigaction action = {.sa_handler = on_signal};
	int pair[2], status, fd;
	char byte;
	pid_t child;

	MUST(sigaction(SIGTERM, &action, NULL));
	MUST(sigaction(SIGALRM, &action, NULL));
	MUST(sigaction(SIGUSR1, &action, NULL));
	kill(getpid(), SIGTERM);
	note("handled %d", got_signal);
	MUST(pipe(pair));
	struct itimerval soon = {.it_value = {0, 100000}};
	setitimer(ITIMER_REAL, &soon, NULL);
	T("interrupted read", read(pair[0], &byte, 1));
	note("handled %d", got_signal);
	setitimer(ITIMER_REAL, &soon, NULL);
	T("interrupted sleep", nanosleep(&(struct timespec){5, 0}, NULL));
	setitimer(ITIMER_REAL, &soon, NULL);
	T("interrupted poll", poll(&(struct pollfd){pair[0], POLLIN, 0}, 1, 5000));
	setitimer(ITIMER_REAL, &soon, NULL);
	T("interrupted pause", pause());
	action.sa_flags = SA_RESTART;
	MUST(sigaction(SIGALRM, &action, NULL));
	child = MUST(fork());
	if (child == 0) {
		usleep(300000);
		MUST(write(pair[1], "r", 1));
		_exit(0);
	}
	setitimer(ITIMER_REAL, &soon, NULL);
	T("restarted read", read(pair[0], &byte, 1));
	waitpid(child, &status, 0);
	/* Every write under a storm of signals happens exactly once. */
	MUST(sigaction(SIGALRM, &action, NULL));
	struct itimerval storm = {.it_interval = {0, 700}, .it_value = {0, 700}};
	fd = MUST(open("storm", O_WRONLY | O_CREAT | O_APPEND, 0644));
	setitimer(ITIMER_REAL, &storm, NULL);
	int wrong = 0;
	for (int i = 0; i < 1000; i++) {
		if (write(fd, "12345678", 8) != 8)
			wrong++;
		struct stat st;
		if (stat("storm", &st) || st.st_size != 8L * (i + 1))
			wrong++;
	}
	setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
	note("wrong %d", wrong);
	close(fd);
	SHOW("storm");
	/* A child's end. */
	MUST(sigaction(SIGCHLD, &action, NULL));
	got_signal = 0;
	child = MUST(fork());
	if (child == 0)
		_exit(0);
	for (int i = 0; i < 500 && got_signal != SIGCHLD; i++)
		usleep(10000);
	note("SIGCHLD %d", got_signal == SIGCHLD);
	waitpid(child, &status, 0);
	signal(SIGCHLD, SIG_DFL);
	/* Stopped and continued. */
	child = MUST(fork());
	if (child == 0) {
		pause();
		_exit(0);
	}
	kill(child, SIGSTOP);
	T("stopped", waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status) ? WSTOPSIG(status) : -1);
	kill(child, SIGCONT);
	T("continued", waitpid(child, &status, WCONTINUED) == child && WIFCONTINUED(status));
	kill(child, SIGKILL);
	T("killed", waitpid(child, &status, 0) == child && WIFSIGNALED(status) ? WTERMSIG(status) : -1);
	CHILD("SIGSEGV", *(volatile int *)16 = 1);
	CHILD("SIGABRT", abort());
	CHILD("SIGPIPE", ({ int p[2]; MUST(pipe(p)); close(p[0]); write(p[1], "x", 1); }));
	CHILD("blocked", ({
		      sigset_t set;
		      sigemptyset(&set);
		      sigaddset(&set, SIGUSR1);
		      sigprocmask(SIG_BLOCK, &set, NULL);
		      got_signal = 0;
		      kill(getpid(), SIGUSR1);
		      make("while-blocked", "x");
		      note("while blocked %d", got_signal);
		      sigprocmask(SIG_UNBLOCK, &set, NULL);
		      note("after %d", got_signal);
	      }));
}

static void *opens(void *argument)
{
	*(int *)argument = open("shared", O_RDONLY);
	return NULL;
}

static int clone_closes(void *argument)
{
	close(*(int *)argument);
	return 0;
}

static void *appends(void *argument)
{
	int fd = open("threads", O_WRONLY | O_APPEND);

	for (int i = 0; i < 100; i++) {
		if (write(fd, argument, 8) != 8)
			note("short");
	}
	close(fd);
	return NULL;
}

static void *waits(void *argument)
{
	pause();
	return argument;
}

static void *execs(void *argument)
{
	execl("prog", "prog", "-exit", "13", NULL);
	return argument;
}

static void starting(void)
{
	static char stack[65536];
	int status, fd;
	pid_t child;

	make("shared", "shared");
	child = vfork();
	if (child == 0) {
		execl("prog", "prog", "-exit", "11", NULL);
		_exit(1);
	}
	waitpid(child, &status, 0);
	ended(__LINE__, "vfork", status);
	child = vfork();
	if (child == 0)
		_exit(execl("none", "none", NULL) == -1 ? errno : 0);
	waitpid(child, &status, 0);
	ended(__LINE__, "vfork missing", status);
	T("posix_spawn", posix_spawn(&child, "prog", NULL, NULL, (char *[]){"prog", "-exit", "12", NULL}, environ));
	waitpid(child, &status, 0);
	ended(__LINE__, "posix_spawn", status);
	T("posix_spawn missing", posix_spawn(&child, "none", NULL, NULL, (char *[]){"none", NULL}, environ));
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 5, "spawned", O_WRONLY | O_CREAT | O_TRUNC, 0644);
	posix_spawn_file_actions_adddup2(&actions, 5, 1);
	posix_spawn_file_actions_addchdir_np(&actions, "bin");
	T("posix_spawn with actions", posix_spawn(&child, "/bin/pwd", &actions, NULL, (char *[]){"pwd", NULL}, environ));
	waitpid(child, &status, 0);
	ended(__LINE__, "it", status);
	fd = open("spawned", O_RDONLY);
	char text[PATH_MAX] = "";
	read(fd, text, sizeof text - 1);
	close(fd);
	note("spawned %s", shown(text));
	/* Threads share descriptors. */
	pthread_t thread, four[4];
	int opened = -1;
	pthread_create(&thread, NULL, opens, &opened);
	pthread_join(thread, NULL);
	T("opened by a thread", opened);
	T("read", read(opened, text, 6));
	/* clone with and without CLONE_FILES. */
	child = clone(clone_closes, stack + sizeof stack, SIGCHLD, &opened);
	waitpid(child, &status, 0);
	T("closed in a copy", lseek(opened, 0, SEEK_SET));
	child = clone(clone_closes, stack + sizeof stack, CLONE_FILES | CLONE_FS | SIGCHLD, &opened);
	waitpid(child, &status, 0);
	T("closed in a shared table", lseek(opened, 0, SEEK_SET));
	make("threads", "");
	for (int i = 0; i < 4; i++)
		pthread_create(&four[i], NULL, appends, "8 bytes!");
	for (int i = 0; i < 4; i++)
		pthread_join(four[i], NULL);
	SHOW("threads");
	/* exec by a thread that is not the first ends the others and keeps the pid. */
	child = MUST(fork());
	if (child == 0) {
		pthread_create(&thread, NULL, waits, NULL);
		pthread_create(&thread, NULL, execs, NULL);
		pthread_join(thread, NULL);
		_exit(1);
	}
	waitpid(child, &status, 0);
	ended(__LINE__, "exec by a thread", status);
	/* A grandchild outlives its parent and still sees the mount. */
	int pair[2];
	MUST(pipe(pair));
	child = MUST(fork());
	if (child == 0) {
		if (MUST(fork()) == 0) {
			while (getppid() == child)
				;
			usleep(50000);
			make("by-orphan", "orphan");
			MUST(write(pair[1], "x", 1));
			_exit(0);
		}
		_exit(0);
	}
	waitpid(child, &status, 0);
	close(pair[1]);
	T("orphan reports", read(pair[0], text, 1));
	close(pair[0]);
	CONTENT("by-orphan");
	/* Process group and session. */
	CHILD("session", ({ T("setsid", setsid() == getpid()); T("getsid", getsid(0) == getpid()); make("insession", "s"); }));
	CONTENT("insession");
	/* Many at once. */
	for (int i = 0; i < 30; i++) {
		if (MUST(fork()) == 0) {
			char name[32];
			sprintf(name, "many%d", i);
			make(name, name);
			_exit(i);
		}
	}
	int sum = 0;
	while (wait(&status) > 0)
		sum += WEXITSTATUS(status);
	note("sum %d", sum);
	CONTENT("many0");
	CONTENT("many29");
	RUN("umask", "/bin/sh", "sh", "-c", "umask 027; : > um; umask; ls -l um | cut -c1-10");
	RUN("background", "/bin/bash", "bash", "-c", "for i in 1 2 3; do (sleep 0.05; echo $i > bg$i) & done; wait; cat bg1 bg2 bg3");
	RUN("descriptors of bash", "/bin/bash", "bash", "-c", "exec 3>three 4<shared; echo to three >&3; read -r x <&4; exec 3>&- 4<&-; cat three; echo \"$x\"; echo $(< three)");
	RUN("pipe line", "/bin/bash", "bash", "-c", "seq 1000 | tee seq | tail -n 1; wc -l < seq; diff <(head -n 5 seq) <(sed -n 1,5p seq) && echo same");
}

static void steps(void)
{
	setenv("TOPDIR", top_path, 1);
	setenv("HOSTDIR", host_path, 1);
	programs();
	scripts();
	shared_library();
	signals();
	starting();
}
