/* Children by clone3(2), and what they do in a mount. */
#include "step.h"
#include <linux/futex.h>
#include <linux/sched.h>

static int shared_word;
static char stack[65536] __attribute__((aligned(16)));

static void on_signal(int number)
{
	(void)number;
}

static long clone3(struct clone_args *args, size_t size)
{
	return syscall(SYS_clone3, args, size);
}

/* A child that does `body`; its exit status. */
#define CLONED(args, body)                                        \
	({                                                       \
		int status = -1;                                 \
		long child = clone3(&(args), sizeof(args));      \
		if (child == 0) {                                \
			body;                                    \
			_exit(7);                                \
		}                                                \
		if (child > 0 && waitpid(child, &status, __WALL) == child) \
			status = WIFEXITED(status) ? WEXITSTATUS(status) : -2; \
		status;                                          \
	})

static void processes(void)
{
	int pidfd = -1, child_tid = 0, parent_tid = 0;
	struct clone_args plain = { .exit_signal = SIGCHLD };
	struct clone_args more = plain;

	T("child writes", CLONED(plain, make("by the child", "content")));
	SHOW("by the child");
	more.flags = CLONE_PIDFD | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID;
	more.pidfd = (uintptr_t)&pidfd;
	more.parent_tid = (uintptr_t)&parent_tid;
	more.child_tid = (uintptr_t)&child_tid;
	T("with a pidfd", CLONED(more, if (child_tid != getpid()) _exit(1); make("with a pidfd", "")));
	IS("parent_tid", parent_tid > 0);
	T("pidfd", fcntl(pidfd, F_GETFD));
	close(pidfd);

	struct sigaction handler = { .sa_handler = on_signal }, old;
	MUST(sigaction(SIGUSR1, &handler, NULL));
	struct clone_args clear = { .exit_signal = SIGCHLD, .flags = CLONE_CLEAR_SIGHAND };
	T("handlers cleared", CLONED(clear, sigaction(SIGUSR1, NULL, &old); _exit(old.sa_handler == SIG_DFL)));

	MUST(mkdir("entered", 0755));
	struct clone_args together = { .exit_signal = SIGCHLD, .flags = CLONE_FS };
	T("changes the directory of both", CLONED(together, if (chdir("entered")) _exit(1)));
	make("in the directory", "");
	T("back", chdir(".."));
	SHOW("entered/in the directory");
	T("does not change it", CLONED(plain, if (chdir("entered")) _exit(1)));
	SHOW("entered/in the directory");

	struct clone_args files = { .exit_signal = SIGCHLD, .flags = CLONE_FILES };
	int fd = MUST(open("by the child", O_RDONLY));
	T("closes the descriptor of both", CLONED(files, close(fd)));
	T("closed", close(fd));
	struct clone_args parent = { .flags = CLONE_PARENT };
	long sibling = clone3(&parent, sizeof parent);
	if (sibling == 0)
		_exit(0);
	IS("sibling", sibling > 0);
	T("not a child", waitpid(sibling, NULL, __WALL));
}

static void borrowed(void)
{
	struct clone_args args = {
		.exit_signal = SIGCHLD,
		.flags = CLONE_VM | CLONE_VFORK,
		.stack = (uintptr_t)stack,
		.stack_size = sizeof stack,
	};
	int status;
	/* The child has an empty stack: it may not return from anything. */
	long child, null = 0;
	register long eight __asm__("r8") = (long)&shared_word;

	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "movl $5, (%%r8)\n\t"
			 "mov %[exit], %%eax\n\t"
			 "mov $9, %%edi\n\t"
			 "syscall\n\t"
			 "1:"
			 : "=a"(child)
			 : "a"(SYS_clone3), "D"(&args), "S"(sizeof args), "r"(eight), [exit] "i"(SYS_exit), "d"(null)
			 : "rcx", "r11", "memory");
	IS("child", child > 0);
	T("written", shared_word);
	MUST(waitpid(child, &status, 0));
	T("status", WEXITSTATUS(status));
}

static void errors(void)
{
	struct clone_args args = { .exit_signal = SIGCHLD };
	char large[4096] = { 0 };

	T("size 0", clone3(&args, 0));
	T("size 63", clone3(&args, 63));
	T("more than a page", clone3(&args, 4097));
	memcpy(large, &args, sizeof args);
	large[sizeof args] = 1;
	T("unknown field", clone3((void *)large, sizeof large));
	T("bad address", clone3((void *)8, sizeof args));
	T("NULL", clone3(NULL, sizeof args));
	args.flags = 1UL << 40;
	T("unknown flag", clone3(&args, sizeof args));
	args.flags = SIGCHLD;
	T("signal in the flags", clone3(&args, sizeof args));
	args.flags = CLONE_THREAD;
	T("thread without memory", clone3(&args, sizeof args));
	args.flags = 0;
	args.exit_signal = 200;
	T("exit signal", clone3(&args, sizeof args));
	args.exit_signal = SIGCHLD;
	args.stack = (uintptr_t)stack;
	T("stack without a size", clone3(&args, sizeof args));
	args.stack = 0;
	args.pidfd = 8;
	args.flags = CLONE_PIDFD;
	T("bad address for a pidfd", clone3(&args, sizeof args));
	args.flags = CLONE_INTO_CGROUP;
	args.cgroup = 1000;
	T("no cgroup", clone3(&args, sizeof args));
	args.flags = 0;
	T("as before", CLONED(args, _exit(3)));
}

static void steps(void)
{
	processes();
	borrowed();
	errors();
}
