// Touches known pages of files through mappings. Arguments: what to do, a file of 64 pages that the program makes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 64

static volatile char seen;

static void reads(char *map, int page)
{
	seen = map[page * PAGE + 17];
}

static void writes(char *map, int page)
{
	((volatile char *)map)[page * PAGE + 23] = 1;
}

static char *map(int file, int pages, int sharing, int first)
{
	char *map = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, sharing, file, (off_t)first * PAGE);
	if (map == MAP_FAILED)
		_exit(80);
	return map;
}

// Reads 3 and 40 to 41, writes 7, reads and writes 9; the kernel writes 20 and reads 30.
static void shared(int file)
{
	char *at = map(file, PAGES, MAP_SHARED, 0);
	int zero = open("/dev/zero", O_RDONLY), pipes[2];
	reads(at, 3);
	reads(at, 40);
	reads(at, 41);
	writes(at, 7);
	reads(at, 9);
	writes(at, 9);
	if (read(zero, at + 20 * PAGE, 100) != 100)
		_exit(81);
	if (pipe(pipes) != 0 || write(pipes[1], at + 30 * PAGE, 100) != 100)
		_exit(82);
	munmap(at, PAGES * PAGE);
}

// Of a private mapping that begins at page 32: writes 33, reads 36. The part with 33 is unmapped first; 36 is written again before the rest is.
static void private(int file)
{
	char *at = map(file, 8, MAP_PRIVATE, 32);
	writes(at, 1);
	reads(at, 4);
	munmap(at, 2 * PAGE);
	writes(at, 4);
	munmap(at + 2 * PAGE, 6 * PAGE);
}

// The parent reads 10. The child reads 10 and writes 12, the parent writes 13. Both exit with the mapping.
static void forks(int file)
{
	char *at = map(file, PAGES, MAP_SHARED, 0);
	reads(at, 10);
	pid_t child = fork();
	if (child == 0) {
		reads(at, 10);
		writes(at, 12);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	writes(at, 13);
}

// Writes 1, and 6 of the mapping once it is larger.
static void grows(int file)
{
	char *at = map(file, 4, MAP_SHARED, 0);
	writes(at, 1);
	at = mremap(at, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE);
	if (at == MAP_FAILED)
		_exit(83);
	writes(at, 6);
}

// Writes 2, then is replaced by another program; the first exec fails.
static void executes(int file)
{
	char *at = map(file, 4, MAP_SHARED, 0);
	writes(at, 2);
	execl("/nowhere/program", "program", NULL);
	reads(at, 3);
	execl("/bin/true", "true", NULL);
	_exit(84);
}

// Writes 5 and is killed.
static void dies(int file)
{
	char *at = map(file, 8, MAP_SHARED, 0);
	writes(at, 5);
	abort();
}

// Writes 5, reads 6, and sends itself SIGKILL.
static void killed(int file)
{
	char *at = map(file, 8, MAP_SHARED, 0);
	writes(at, 5);
	reads(at, 6);
	raise(SIGKILL);
}

// Has a filter of its own from now on: a userfaultfd kills it.
static void filter(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof *code, code };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
		_exit(85);
}

// With that filter, reads 3 and writes 7.
static void filtered(int file)
{
	filter();
	char *at = map(file, 8, MAP_SHARED, 0);
	reads(at, 3);
	writes(at, 7);
	munmap(at, 8 * PAGE);
}

// For a tracer that attaches: has a mapping already and writes 1 of it; makes another one for each byte of its input, writes 7 and reads 9.
static void serves(int file)
{
	char byte, *old = map(file, 4, MAP_SHARED, 0);
	writes(old, 1);
	if (write(1, "r", 1) != 1)
		_exit(86);
	while (read(0, &byte, 1) == 1) {
		char *at = map(file, PAGES, MAP_SHARED, 0);
		writes(at, 7);
		reads(at, 9);
		munmap(at, PAGES * PAGE);
		if (write(1, &byte, 1) != 1)
			_exit(87);
	}
}

// The file lies on a file system with huge pages: the first 4 MiB of it are made, and then 600 is read and 100 written.
static void huge(int file)
{
	size_t size = 4 << 20;
	if (ftruncate(file, size) != 0)
		_exit(88);
	char *at = map(file, size / PAGE, MAP_SHARED, 0);
	memset(at, 1, size);
	munmap(at, size);
	at = map(file, size / PAGE, MAP_SHARED, 0);
	reads(at, 600);
	writes(at, 100);
	munmap(at, size);
}

// Maps the file again and again while an alarm interrupts it: each time 0 is written, and 1 read.
static void handler(int signal)
{
	(void)signal;
}

static void signals(int file)
{
	struct sigaction action = { .sa_handler = handler };
	sigaction(SIGALRM, &action, NULL);
	pid_t parent = getpid(), child = fork();
	if (child == 0) {
		for (;;)
			kill(parent, SIGALRM);
	}
	for (int i = 0; i < 100; i++) {
		char *at = map(file, 2, MAP_SHARED, 0);
		writes(at, 0);
		reads(at, 1);
		munmap(at, 2 * PAGE);
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 1;
	int file = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
	char page[PAGE];
	memset(page, 'x', PAGE);
	for (int i = 0; i < PAGES; i++)
		if (write(file, page, PAGE) != PAGE)
			return 2;
	const char *what = argv[1];
	if (!strcmp(what, "shared"))
		shared(file);
	else if (!strcmp(what, "private"))
		private(file);
	else if (!strcmp(what, "forks"))
		forks(file);
	else if (!strcmp(what, "grows"))
		grows(file);
	else if (!strcmp(what, "executes"))
		executes(file);
	else if (!strcmp(what, "dies"))
		dies(file);
	else if (!strcmp(what, "killed"))
		killed(file);
	else if (!strcmp(what, "filtered"))
		filtered(file);
	else if (!strcmp(what, "inherits")) {
		filter();
		execl(argv[0], argv[0], "shared", argv[2], NULL);
		return 3;
	} else if (!strcmp(what, "serves"))
		serves(file);
	else if (!strcmp(what, "huge"))
		huge(file);
	else if (!strcmp(what, "signals"))
		signals(file);
	else
		return 1;
	return 0;
}
