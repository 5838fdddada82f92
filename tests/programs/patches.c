/* Processes in which calls of several libraries are being patched: children that are started meanwhile, further copies of the C library,
 * stacks on which a stub has no room, and calls that a handler of the program answers. */
#define STEP_HELPER
#include "step.h"
#include <dlfcn.h>
#include <sys/prctl.h>
#include <ucontext.h>

static char in_top[PATH_MAX], in_host[PATH_MAX];

typedef int stat_function(const char *, struct stat *);
typedef int access_function(const char *, int);

static long size_by(stat_function *look, const char *path)
{
	struct stat meta;

	return look(path, &meta) < 0 ? -errno : meta.st_size;
}

/* Whether all calls answer as they should. */
static int is_right(stat_function *look, access_function *may)
{
	return size_by(look, in_top) == 5 && size_by(look, in_host) == 9 && size_by(look, "five") == 5
		&& may(in_top, R_OK) == 0 && may(in_host, R_OK) == 0 && may("/etc/none", F_OK) == -1;
}

/* Children are started after each number of calls, and make the same calls as their parent. */
static void children(void)
{
	int status, failed = 0, wrong = 0;

	for (int i = 0; i < 120; i++) {
		pid_t child = MUST(fork());

		if (child == 0) {
			int right = 1;

			for (int j = 0; j < i % 12; j++)
				right &= is_right(stat, access);
			_exit(!right);
		}
		if (i % 3 == 0)
			wrong += !is_right(stat, access);
		MUST(waitpid(child, &status, 0));
		failed += status != 0;
	}
	note("%d children: %d failed, %d wrong", __LINE__, failed, wrong);
}

/* Each namespace has a C library of its own, at its own address. */
static void namespaces(void)
{
	int wrong = 0, missing = 0;

	for (int i = 0; i < 3; i++) {
		void *library = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
		stat_function *look = library ? dlsym(library, "stat") : NULL;
		access_function *may = library ? dlsym(library, "access") : NULL;

		if (!look || !may) {
			missing++;
			continue;
		}
		for (int j = 0; j < 50; j++) {
			struct stat meta;

			/* `errno` is the other library's. */
			wrong += look(in_top, &meta) != 0 || meta.st_size != 5 || look(in_host, &meta) != 0 || meta.st_size != 9
				|| may("/etc/none", F_OK) != -1;
		}
		wrong += !is_right(stat, access);
		/* Its code goes, and with it what is patched there; the next one may come to the same place. */
		dlclose(library);
	}
	note("%d namespaces: %d missing, %d wrong", __LINE__, missing, wrong);
}

/* access(2) with `room` bytes of stack below the frame of the caller. */
static long access_on(char *stack, const char *path)
{
	long result;

	asm volatile("mov %%rsp,%%rbx; mov %[stack],%%rsp; call *%[function]; mov %%rbx,%%rsp"
		     : "=a"(result)
		     : [stack] "r"(stack), [function] "r"(access), "D"(path), "S"((long)F_OK)
		     : "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "memory", "cc");
	return (int)result;
}

static volatile sig_atomic_t faults;

static void fault(int signal)
{
	faults++;
}

/* A stub needs more room on the stack than the call itself. */
static void stacks(void)
{
	char *pages = (char *)MUST(mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	struct sigaction action = { .sa_handler = fault }, old;
	int wrong = 0;

	MUST(mprotect(pages, 4096, PROT_NONE));
	MUST(sigaction(SIGSEGV, &action, NULL));
	for (int room = 64; room <= 1024; room += 16) {
		char *stack = pages + 4096 + room;

		for (int i = 0; i < 4; i++) {
			wrong += access_on(stack, in_host) != 0;
			wrong += access_on(stack, in_top) != 0;
			wrong += access_on(stack, "/etc/none") != -1;
		}
	}
	MUST(sigaction(SIGSEGV, NULL, &old));
	note("%d stacks: %d wrong, %d faults, handler %s", __LINE__, wrong, (int)faults, old.sa_handler == fault ? "there" : "gone");
	signal(SIGSEGV, SIG_DFL);
}

static volatile char selector;
static volatile int expected, dispatched, others;

static void dispatch(int signal, siginfo_t *info, void *context)
{
	ucontext_t *registers = context;

	selector = 0;
	dispatched++;
	others += info->si_syscall != expected;
	registers->uc_mcontext.gregs[REG_RAX] = -EXFULL;
}

#define DISPATCHED(number, call) do { \
		expected = number; \
		errno = 0; \
		selector = 1; \
		call; \
		selector = 0; \
		wrong += errno != EXFULL; \
	} while (0)

/* The kernel sends all calls to a handler, which sees those that the C library makes, and no stub's. */
static void dispatching(void)
{
	struct sigaction action = { .sa_sigaction = dispatch, .sa_flags = SA_SIGINFO };
	int wrong = 0, null = MUST(open("/dev/null", O_WRONLY));
	struct stat meta;
	char text[PATH_MAX];

	MUST(sigaction(SIGSYS, &action, NULL));
	/* PR_SET_SYSCALL_USER_DISPATCH */
	T("dispatch", prctl(59, 1, 0, 0, &selector));
	for (int i = 0; i < 6; i++) {
		DISPATCHED(SYS_access, access(in_host, F_OK));
		DISPATCHED(SYS_newfstatat, stat(in_host, &meta));
		DISPATCHED(SYS_openat, open(in_host, O_RDONLY));
		DISPATCHED(SYS_readlink, readlink(in_host, text, sizeof text));
		DISPATCHED(SYS_write, write(null, text, 1));
		DISPATCHED(SYS_fsync, fsync(null));
		DISPATCHED(SYS_getcwd, getcwd(text, sizeof text));
	}
	MUST(prctl(59, 0, 0, 0, 0));
	note("%d dispatched: %d, %d others, %d wrong", __LINE__, dispatched, others, wrong);
	signal(SIGSYS, SIG_DFL);
	close(null);
}

static int helper(int argc, char **argv)
{
	return 0;
}

static void steps(void)
{
	snprintf(in_top, sizeof in_top, "%s/w/five", top_path);
	snprintf(in_host, sizeof in_host, "%s/nine", host_path);
	make("five", "12345");
	make(in_host, "123456789");
	children();
	namespaces();
	stacks();
	for (int i = 0; i < 20; i++) {
		char text[PATH_MAX];

		is_right(stat, access);
		close(open(in_host, O_RDONLY));
		readlink(in_host, text, sizeof text);
		fsync(1);
		MUST(chdir(i % 2 ? "/" : "/etc"));
		getcwd(text, sizeof text);
	}
	stacks();
	dispatching();
	chdir(top_path);
	MUST(chdir("w"));
	IS("right at the end", is_right(stat, access));
}
