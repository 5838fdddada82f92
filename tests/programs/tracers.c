/* ptrace(2) of a process to another one that is not its child: attach, look, change, detach. */
#include "step.h"
#include <elf.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/user.h>

#define ROUNDS 100

static struct shared {
	volatile pid_t pid;
	volatile pid_t threads[3];
	volatile int is_ready, is_over, result, error, status, handled;
	volatile uint64_t counter;
	int pipe[2];
} *shared;

static volatile uint64_t word = 0x1122334455667788;

static long trace(long request, pid_t pid, void *address, void *data)
{
	return syscall(SYS_ptrace, request, pid, address, data);
}

/* Runs `body` in a grandchild, and stores its process ID in `shared`. Returns its parent. */
static pid_t start(void (*body)(void))
{
	memset(shared, 0, offsetof(struct shared, pipe));
	MUST(pipe(shared->pipe));
	pid_t parent = MUST(fork());
	if (parent == 0) {
		pid_t child = fork();
		int status;

		if (child == 0) {
			body();
			shared->is_over = 1;
			_exit(7);
		}
		shared->pid = child;
		while (waitpid(child, &status, 0) < 0 && errno == EINTR)
			;
		shared->status = status;
		_exit(0);
	}
	while (!shared->is_ready || !shared->pid)
		usleep(1000);
	/* It is in its call by then. */
	usleep(20000);
	return parent;
}

static void finish(pid_t parent)
{
	MUST(waitpid(parent, NULL, 0));
	note("ended: %x, result %d, %s", shared->status, shared->result, shared->error ? strerrorname_np(shared->error) : "no error");
	close(shared->pipe[0]);
	close(shared->pipe[1]);
}

static void attach(pid_t pid)
{
	int status = 0;

	T("attach", trace(PTRACE_ATTACH, pid, NULL, NULL));
	IS("wait4 has it", wait4(pid, &status, __WALL, NULL) == pid);
	IS("stopped by SIGSTOP", WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
}

static void set(int result)
{
	shared->result = result;
	shared->error = result < 0 ? errno : 0;
}

static void on_usr1(int number)
{
	(void)number;
	shared->handled++;
}

static void counts(void)
{
	signal(SIGUSR1, on_usr1);
	shared->is_ready = 1;
	while (word != 5)
		shared->counter++;
}

static void opens_fifo(void)
{
	shared->is_ready = 1;
	int fd = open("fifo", O_RDONLY);
	set(fd < 0 ? fd : 0);
}

static void reads_pipe(void)
{
	char byte;

	shared->is_ready = 1;
	set(read(shared->pipe[0], &byte, 1));
}

static void sleeps(void)
{
	struct timespec time = {.tv_nsec = 300000000};

	shared->is_ready = 1;
	set(nanosleep(&time, NULL));
}

static void polls(void)
{
	struct epoll_event event;
	int fd = epoll_create1(0);

	shared->is_ready = 1;
	set(epoll_wait(fd, &event, 1, 300));
}

static void makes_files(void)
{
	int failed = 0;
	char bytes[4];

	shared->is_ready = 1;
	for (int i = 0; !shared->is_over; i++) {
		char name[16];
		struct stat st;

		snprintf(name, sizeof name, "file%d", i % 20);
		int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
		failed += fd < 0;
		failed += write(fd, "abcd", 4) != 4;
		failed += pread(fd, bytes, 4, 0) != 4;
		failed += stat(name, &st) != 0 || st.st_size != 4;
		failed += access("missing", F_OK) == 0 || errno != ENOENT;
		failed += close(fd) != 0;
	}
	set(failed);
}

static void *waits(void *index)
{
	char byte;

	shared->threads[(long)index] = gettid();
	return (void *)read(shared->pipe[0], &byte, 1);
}

static void has_threads(void)
{
	pthread_t threads[3];
	long all = 0;

	for (long i = 0; i < 3; i++)
		pthread_create(&threads[i], NULL, waits, (void *)i);
	while (!shared->threads[0] || !shared->threads[1] || !shared->threads[2])
		usleep(1000);
	shared->is_ready = 1;
	for (int i = 0; i < 3; i++) {
		void *result;

		pthread_join(threads[i], &result);
		all += (long)result;
	}
	set(all);
}

static int runs(void)
{
	uint64_t before = shared->counter;

	usleep(20000);
	return shared->counter != before;
}

/* Registers, memory and signals of a process that computes. */
static void computes(void)
{
	pid_t parent = start(counts), pid = shared->pid;
	struct user_regs_struct regs, again;
	struct user_fpregs_struct floats;
	struct iovec set = {&again, sizeof again};
	siginfo_t info;
	uint64_t read_word = 0, mask = 0;
	int status;

	attach(pid);
	IS("runs", runs());
	T("again", trace(PTRACE_ATTACH, pid, NULL, NULL));
	T("registers", trace(PTRACE_GETREGS, pid, NULL, &regs));
	T("register set", trace(PTRACE_GETREGSET, pid, (void *)NT_PRSTATUS, &set));
	IS("the same", !memcmp(&regs, &again, sizeof regs) && set.iov_len == sizeof regs);
	IS("in the program, outside of a call", regs.rip > 4096 && regs.orig_rax == (uint64_t)-1);
	set.iov_len = 17;
	T("of an odd size", trace(PTRACE_GETREGSET, pid, (void *)NT_PRSTATUS, &set));
	set.iov_len = sizeof regs;
	T("another set", trace(PTRACE_GETREGSET, pid, (void *)12345L, &set));
	T("floating point registers", trace(PTRACE_GETFPREGS, pid, NULL, &floats));
	T("set registers", trace(PTRACE_SETREGS, pid, NULL, &regs));
	T("set the register set", trace(PTRACE_SETREGSET, pid, (void *)NT_PRSTATUS, &set));
	T("registers to nowhere", trace(PTRACE_GETREGS, pid, NULL, (void *)8));
	T("signal mask", trace(PTRACE_GETSIGMASK, pid, (void *)8, &mask));
	T("signal mask of another size", trace(PTRACE_GETSIGMASK, pid, (void *)4, &mask));
	T("signal", trace(PTRACE_GETSIGINFO, pid, NULL, &info));
	IS("SIGSTOP", info.si_signo == SIGSTOP);
	T("options", trace(PTRACE_SETOPTIONS, pid, NULL, (void *)PTRACE_O_TRACEFORK));
	T("unknown options", trace(PTRACE_SETOPTIONS, pid, NULL, (void *)0x40000000L));
	T("a word", trace(PTRACE_PEEKDATA, pid, (void *)&word, &read_word));
	IS("of the program", read_word == word);
	T("a word of nowhere", trace(PTRACE_PEEKDATA, pid, (void *)8, &read_word));
	T("a register", trace(PTRACE_PEEKUSER, pid, (void *)offsetof(struct user, regs.rip), &read_word));
	IS("the instruction pointer", read_word == regs.rip);
	T("no register", trace(PTRACE_PEEKUSER, pid, (void *)3, &read_word));
	T("unknown request", trace(0x7777, pid, NULL, NULL));
	T("detach with an unknown signal", trace(PTRACE_DETACH, pid, NULL, (void *)65));
	T("detach with SIGUSR1", trace(PTRACE_DETACH, pid, NULL, (void *)SIGUSR1));
	T("detach again", trace(PTRACE_DETACH, pid, NULL, NULL));
	T("registers of a detached process", trace(PTRACE_GETREGS, pid, NULL, &regs));
	T("wait for it", wait4(pid, &status, __WALL | WNOHANG, NULL));
	while (!shared->handled)
		usleep(1000);
	IS("runs again", runs());
	attach(pid);
	T("change the word", trace(PTRACE_POKEDATA, pid, (void *)&word, (void *)5L));
	T("detach", trace(PTRACE_DETACH, pid, NULL, NULL));
	finish(parent);
}

/* Attaches to a process that waits in a call, and lets it continue. */
static void in_call(const char *what, void (*body)(void), long number)
{
	struct user_regs_struct regs;

	note("%s", what);
	pid_t parent = start(body), pid = shared->pid;
	attach(pid);
	T("registers", trace(PTRACE_GETREGS, pid, NULL, &regs));
	IS("its call", (long)regs.orig_rax == number);
	T("detach", trace(PTRACE_DETACH, pid, NULL, NULL));
	if (body == opens_fifo)
		close(MUST(open("fifo", O_WRONLY)));
	if (body == reads_pipe)
		MUST(write(shared->pipe[1], "x", 1));
	finish(parent);
}

/* Often, while the process changes files. */
static void often(void)
{
	pid_t parent = start(makes_files), pid = shared->pid;
	int failed = 0, status;

	for (int i = 0; i < ROUNDS; i++) {
		struct user_regs_struct regs;

		failed += trace(PTRACE_ATTACH, pid, NULL, NULL) != 0;
		failed += wait4(pid, &status, __WALL, NULL) != pid;
		failed += trace(PTRACE_GETREGS, pid, NULL, &regs) != 0;
		failed += trace(PTRACE_DETACH, pid, NULL, NULL) != 0;
		usleep(300);
	}
	T("failed", failed);
	shared->is_over = 1;
	finish(parent);
}

static void all_threads(void)
{
	pid_t parent = start(has_threads), pid = shared->pid;
	int status;

	attach(pid);
	for (int i = 0; i < 3; i++)
		T("attach to a thread", trace(PTRACE_ATTACH, shared->threads[i], NULL, NULL));
	for (int i = 0; i < 3; i++)
		IS("wait for any", wait4(-1, &status, __WALL, NULL) > 0 && WSTOPSIG(status) == SIGSTOP);
	T("detach", trace(PTRACE_DETACH, pid, NULL, NULL));
	for (int i = 0; i < 3; i++)
		T("detach", trace(PTRACE_DETACH, shared->threads[i], NULL, NULL));
	MUST(write(shared->pipe[1], "xyz", 3));
	finish(parent);
}

/* A process that job control has stopped stays so. */
static void stopped(void)
{
	pid_t parent = start(counts), pid = shared->pid;
	struct user_regs_struct regs;

	MUST(kill(pid, SIGSTOP));
	while (runs())
		;
	attach(pid);
	T("registers", trace(PTRACE_GETREGS, pid, NULL, &regs));
	T("detach", trace(PTRACE_DETACH, pid, NULL, NULL));
	IS("runs after that", runs());
	MUST(kill(pid, SIGCONT));
	IS("runs after SIGCONT", runs());
	attach(pid);
	T("change the word", trace(PTRACE_POKEDATA, pid, (void *)&word, (void *)5L));
	T("detach", trace(PTRACE_DETACH, pid, NULL, NULL));
	finish(parent);
}

/* The death of the one, and of the other. */
static void deaths(void)
{
	pid_t parent = start(counts), pid = shared->pid;
	int status;

	attach(pid);
	T("kill", kill(pid, SIGKILL));
	IS("wait4 has the end", wait4(pid, &status, __WALL, NULL) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	T("registers", trace(PTRACE_GETREGS, pid, NULL, &status));
	finish(parent);

	parent = start(counts);
	pid = shared->pid;
	pid_t tracer = MUST(fork());
	if (tracer == 0) {
		trace(PTRACE_ATTACH, pid, NULL, NULL);
		wait4(pid, &status, __WALL, NULL);
		_exit(0);
	}
	MUST(waitpid(tracer, NULL, 0));
	IS("runs after its tracer's death", runs());
	attach(pid);
	T("change the word", trace(PTRACE_POKEDATA, pid, (void *)&word, (void *)5L));
	T("detach", trace(PTRACE_DETACH, pid, NULL, NULL));
	finish(parent);
}

static void errors(void)
{
	struct user_regs_struct regs;
	pid_t parent = start(reads_pipe), pid = shared->pid;

	T("attach to itself", trace(PTRACE_ATTACH, getpid(), NULL, NULL));
	T("attach to nothing", trace(PTRACE_ATTACH, 0x3ffff0, NULL, NULL));
	T("registers of a process without tracer", trace(PTRACE_GETREGS, pid, NULL, &regs));
	T("detach from it", trace(PTRACE_DETACH, pid, NULL, NULL));
	T("unknown request", trace(0x7777, pid, NULL, NULL));
	attach(pid);
	pid_t other = MUST(fork());
	if (other == 0) {
		T("attach by another process", trace(PTRACE_ATTACH, pid, NULL, NULL));
		T("registers by another process", trace(PTRACE_GETREGS, pid, NULL, &regs));
		_exit(0);
	}
	MUST(waitpid(other, NULL, 0));
	if (geteuid() == 0) {
		other = MUST(fork());
		if (other == 0) {
			MUST(setresgid(NOBODY, NOBODY, NOBODY));
			MUST(setresuid(NOBODY, NOBODY, NOBODY));
			T("attach to a process of root", trace(PTRACE_ATTACH, parent, NULL, NULL));
			_exit(0);
		}
		MUST(waitpid(other, NULL, 0));
	}
	T("detach", trace(PTRACE_DETACH, pid, NULL, NULL));
	MUST(write(shared->pipe[1], "x", 1));
	finish(parent);
}

/* A process that was not to be traced. */
static void untraced(void)
{
	int status;
	pid_t child = syscall(SYS_clone, CLONE_UNTRACED | SIGCHLD, NULL, NULL, NULL, 0);

	if (child == 0) {
		O("a file", open("of_child", O_RDWR | O_CREAT, 0644));
		_exit(3);
	}
	IS("a child", child > 0);
	IS("it ends", waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
}

static void steps(void)
{
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(mkfifo("fifo", 0644));
	computes();
	in_call("open(2) of a FIFO", opens_fifo, SYS_openat);
	in_call("read(2)", reads_pipe, SYS_read);
	in_call("nanosleep(2)", sleeps, SYS_clock_nanosleep);
	in_call("epoll_wait(2)", polls, SYS_epoll_wait);
	often();
	all_threads();
	stopped();
	deaths();
	errors();
	untraced();
}
