/* A signal before each instruction of what answers calls in the process, where a breakpoint raises SIGTRAP. Each call has the result that it has without that, and the handler
 * finds the thread at the library's own `syscall`, with the arguments of the call, or behind it. Natively there is no such code. Three arguments are the offsets of
 * all instructions in the code of a site, in the code that all sites of a library have in common, and in that of the map of attributes. How many signals came, and at how many
 * instructions, goes to the standard error. */
#define STEP_HELPER
#include "step.h"
#include <linux/fs.h>
#include <linux/hw_breakpoint.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <ucontext.h>

enum { PARTS = 3, INSTRUCTIONS_MAX = 4096, SITE_SIZE = 48, WARM = 5, TRAP_FLAG = 0x100, RESUME_FLAG = 0x10000 };

/* The offsets of the instructions of each part, and whether a signal came there. */
static struct { int count, offsets[INSTRUCTIONS_MAX]; bool was_hit[INSTRUCTIONS_MAX]; } parts[PARTS];

static const int kept[] = {REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9, REG_RSP, REG_RBP, REG_RBX, REG_R12, REG_R13, REG_R14, REG_R15};
enum { KEPT = sizeof kept / sizeof *kept };

/* Of the call that is looked at: the address of its `syscall`, or 0, and the registers there. */
static volatile uintptr_t site;
static long at_site[KEPT];
static volatile bool finds_site;
static volatile long hits, wrong_registers, total;
static int file, dir, other, counted;
static const char *path;
/* A file on the host. */
static char other_path[PATH_MAX];

static void trapped(int signal, siginfo_t *info, void *context)
{
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
	uintptr_t ip = regs[REG_RIP];
	const unsigned char *code = (const unsigned char *)ip;

	(void)signal;
	(void)info;
	if (finds_site) {
		if (code[0] != 0x0f || code[1] != 0x05 || code[-5] != 0xe9)
			return;
		regs[REG_EFL] &= ~TRAP_FLAG;
		finds_site = false;
		site = ip;
		for (int i = 0; i < KEPT; i++)
			at_site[i] = regs[kept[i]];
		return;
	}
	hits++;
	regs[REG_EFL] |= RESUME_FLAG;
	wrong_registers += ip != site && ip != site + 2;
	for (int i = 0; i < KEPT; i++)
		wrong_registers += at_site[i] != regs[kept[i]];
}

/* Makes the call, with the same values in all registers each time; with flag TRAP_FLAG, instruction by instruction. */
static long made(long (*call)(void), long flag)
{
	long result;

	__asm__ volatile("mov %%rsp,%%r12; sub $256,%%rsp; and $-64,%%rsp; push %%r12; push %%rbp\n\t"
			 "xor %%ebp,%%ebp; xor %%ebx,%%ebx; xor %%r8d,%%r8d; xor %%r9d,%%r9d; xor %%r10d,%%r10d\n\t"
			 "xor %%r12d,%%r12d; xor %%r13d,%%r13d; xor %%r14d,%%r14d; xor %%r15d,%%r15d\n\t"
			 "pushfq; or %%rdi,(%%rsp); xor %%edi,%%edi; xor %%esi,%%esi; popfq\n\t"
			 "call *%%rdx\n\t"
			 "pushfq; andl $~0x100,(%%rsp); popfq\n\t"
			 "pop %%rbp; pop %%rsp"
			 : "=a"(result), "+d"(call), "+D"(flag)
			 :
			 : "rbx", "rcx", "rsi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "cc", "memory");
	return result;
}

/* As many as an x86 processor has. */
enum { BREAKPOINTS = 4 };
static int breakpoints[BREAKPOINTS];

static struct perf_event_attr breakpoint_at(uintptr_t address)
{
	return (struct perf_event_attr){
		.type = PERF_TYPE_BREAKPOINT, .size = sizeof(struct perf_event_attr), .bp_type = HW_BREAKPOINT_X, .bp_len = sizeof(long), .bp_addr = address,
		.sample_period = 1, .disabled = address == 0, .exclude_kernel = 1, .exclude_hv = 1, .sigtrap = 1, .remove_on_exec = 1,
	};
}

/* Makes breakpoints, which stop nothing yet. */
static int make_breakpoints(void)
{
	struct perf_event_attr attributes = breakpoint_at(0);

	for (int i = 0; i < BREAKPOINTS; i++) {
		breakpoints[i] = syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
		if (breakpoints[i] < 0)
			return -1;
	}
	return 0;
}

/* Makes the call with breakpoints at `count` addresses. With TRAP_FLAG in `flag`, it is made instruction by instruction. */
static long stopped_at(long (*call)(void), uintptr_t start, const int *offsets, int count, long flag)
{
	hits = wrong_registers = 0;
	for (int i = 0; i < count; i++) {
		struct perf_event_attr attributes = breakpoint_at(start + offsets[i]);
		MUST(syscall(SYS_ioctl, breakpoints[i], PERF_EVENT_IOC_MODIFY_ATTRIBUTES, &attributes));
	}
	long result = made(call, flag);
	for (int i = 0; i < count; i++)
		MUST(syscall(SYS_ioctl, breakpoints[i], PERF_EVENT_IOC_DISABLE, 0));
	return result;
}

static uintptr_t target(uintptr_t jump)
{
	int32_t by;

	memcpy(&by, (const void *)(jump + 1), sizeof by);
	return jump + 5 + by;
}

/* The common code, to which the last instruction of a site's own code jumps. Its first instruction is `testl $0x40000,8(%rsp)`. */
static uintptr_t common_of(uintptr_t placed)
{
	static const unsigned char first[] = {0xf7, 0x44, 0x24, 0x08, 0x00, 0x00, 0x04, 0x00};

	for (uintptr_t at = placed + 10; at < placed + SITE_SIZE; at++)
		if (*(const unsigned char *)at == 0xe9 && target(at) + (1 << 20) > placed && target(at) < placed + (1 << 20) && !memcmp((const void *)target(at), first, sizeof first))
			return target(at);
	return 0;
}

/* The code that is mapped with the map of attributes, or 0. */
static uintptr_t find_map(void)
{
	uintptr_t start = 0;
	char line[1024];
	FILE *maps = fopen("/proc/self/maps", "re");

	while (maps && fgets(line, sizeof line, maps))
		if (strstr(line, "r-xs") && strstr(line, "/memfd:attributes"))
			start = strtoul(line, NULL, 16);
	if (maps)
		fclose(maps);
	return start;
}

static void stopped(int line, const char *name, long (*call)(void))
{
	long wrong = 0, before = total, expected = 0;
	uintptr_t starts[PARTS] = {0};

	for (int i = 0; i < WARM; i++)
		expected = stopped_at(call, 0, NULL, 0, 0);
	site = 0;
	finds_site = true;
	stopped_at(call, 0, NULL, 0, TRAP_FLAG);
	finds_site = false;
	if (site) {
		starts[0] = target(site - 5);
		starts[1] = common_of(starts[0]);
		starts[2] = find_map();
	}
	for (int part = 0; part < PARTS; part++) {
		int step = BREAKPOINTS;
		for (int at = 0; at < parts[part].count && starts[part]; at += step) {
			const int *offsets = parts[part].offsets + at;

			/* Several where no signal comes, and where one does, each alone. */
			if (at % BREAKPOINTS == 0)
				step = parts[part].count - at < BREAKPOINTS ? 1 : BREAKPOINTS;
			long got = stopped_at(call, starts[part], offsets, step, 0);
			if (hits && step > 1) {
				step = 1;
				got = stopped_at(call, starts[part], offsets, 1, 0);
			}
			total += hits;
			parts[part].was_hit[at] |= hits > 0;
			/* The first instruction of the map's code is behind all others. */
			if (part == 2 && at == 0 && !hits)
				break;
			if (got == expected && !wrong_registers)
				continue;
			wrong++;
			fprintf(stderr, "%s: part %d at %d: %ld, not %ld, %ld registers, %ld signals\n", name, part, *offsets, got, expected, wrong_registers, hits);
		}
	}
	note("%d %s: %ld wrong", line, name, wrong);
	fprintf(stderr, "%s: %ld signals\n", name, total - before);
}
#define STOPPED(name, call) stopped(__LINE__, name, call)

static long of_stat(int result, const struct stat *st)
{
	return result ? -errno : (long)(st->st_ino * 31 + st->st_mode * 7 + st->st_size);
}

static struct stat st;

static long stats_path(void) { memset(&st, 0, sizeof st); return of_stat(stat(path, &st), &st); }
static long stats_link(void) { memset(&st, 0, sizeof st); return of_stat(lstat(path, &st), &st); }
static long stats_file(void) { memset(&st, 0, sizeof st); return of_stat(fstat(file, &st), &st); }
static long stats_missing(void) { return of_stat(stat("missing", &st), &st); }
static long stats_in_directory(void) { memset(&st, 0, sizeof st); return of_stat(fstatat(dir, "inside", &st, 0), &st); }

static long extends_stat(void)
{
	struct statx stx = {0};
	int result = statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &stx);

	return result ? -errno : (long)(stx.stx_ino * 31 + stx.stx_mode * 7 + stx.stx_size);
}

static long accesses(void) { return access(path, R_OK) ? -errno : 0; }
static long accesses_missing(void) { return access("missing", F_OK) ? -errno : 0; }

static long reads_link(void)
{
	char text[100] = {0};
	ssize_t length = readlink(path, text, sizeof text);

	return length < 0 ? -errno : length * 256 + text[0];
}

static long opened(int fd)
{
	if (fd < 0)
		return -errno;
	memset(&st, 0, sizeof st);
	long result = of_stat(syscall(SYS_fstat, fd, &st), &st);
	close(fd);
	/* None is left over. */
	int next = dup(0);
	close(next);
	return result * 100 + next + fd;
}
static long opens(void) { return opened(open(path, O_RDONLY | O_CLOEXEC)); }
static long opens_directory(void) { return opened(open("d", O_RDONLY | O_DIRECTORY | O_CLOEXEC)); }
static long opens_missing(void) { return opened(open("missing", O_RDONLY)); }

static long opens_in_directory(void) { return opened(openat(dir, "inside", O_RDONLY | O_CLOEXEC)); }

static long accesses_by_owner(void) { return faccessat(dir, "inside", R_OK, AT_EACCESS) ? -errno : 0; }
static long stats_below_file(void) { return of_stat(stat("file/below", &st), &st); }
static long stats_by_descriptor(void) { memset(&st, 0, sizeof st); return of_stat(fstatat(file, "", &st, AT_EMPTY_PATH), &st); }
static long changes_mode(void) { return fchmod(file, 0640) ? -errno : 0; }
static long clones(void) { return ioctl(file, FICLONE, other) ? -errno : 0; }

static long working_directory(void)
{
	char text[PATH_MAX];
	return getcwd(text, sizeof text) ? (long)strlen(text) : -errno;
}

/* From the end of a file. */
static long copies(void)
{
	ssize_t copied = copy_file_range(other, NULL, file, NULL, 100, 0);
	return copied < 0 ? -errno : copied;
}

static long lists(void)
{
	char bytes[4096] __attribute__((aligned(8)));
	long sum = 0;

	MUST(lseek(dir, 0, SEEK_SET));
	long got = getdents64(dir, bytes, sizeof bytes);
	for (long at = 0; at < got; at += ((struct dirent64 *)(bytes + at))->d_reclen)
		sum += ((struct dirent64 *)(bytes + at))->d_ino * 31 + ((struct dirent64 *)(bytes + at))->d_name[0];
	return got < 0 ? -errno : sum * 1000 + lseek(dir, 0, SEEK_CUR);
}

static long lists_end(void)
{
	char bytes[4096] __attribute__((aligned(8)));
	off_t at = lseek(dir, 0, SEEK_CUR);
	long got = getdents64(dir, bytes, sizeof bytes);

	return got < 0 ? -errno : got * 1000 + (lseek(dir, 0, SEEK_CUR) == at);
}

/* A write and what it has done. */
static long writes(void)
{
	char text[8] = {0};

	MUST(lseek(file, 3, SEEK_SET));
	counted++;
	char byte = 'a' + counted % 26;
	long got = write(file, &byte, 1);
	if (got < 0)
		return -errno;
	MUST(pread(file, text, sizeof text, 2));
	return got * 1000 + lseek(file, 0, SEEK_CUR) * 10 + (text[1] == byte) * 2 + (text[2] == 't');
}

static long writes_at(void)
{
	char text[8] = {0};

	counted++;
	char byte = 'a' + counted % 26;
	long got = pwrite(file, &byte, 1, 3);
	if (got < 0)
		return -errno;
	MUST(pread(file, text, sizeof text, 2));
	return got * 1000 + (text[1] == byte) * 2 + (text[2] == 't');
}

/* Each write at the end adds as much as it says. */
static long appends(void)
{
	off_t size = lseek(file, 0, SEEK_END);
	long got = write(file, "more", 4);

	if (got < 0)
		return -errno;
	off_t now = lseek(file, 0, SEEK_CUR);
	MUST(syscall(SYS_ftruncate, file, size));
	return got * 1000 + (now == size + 4);
}

static void in_directory(const char *parent, const char *name)
{
	note("%s", shown(parent));
	MUST(chdir(parent));
	MUST(mkdir(name, 0755));
	MUST(chdir(name));
	make("file", "content");
	MUST(symlink("file", "link"));
	MUST(mkdir("d", 0755));
	make("d/inside", "some text");
	file = MUST(open("file", O_RDWR | O_CLOEXEC));
	other = MUST(open(other_path, O_RDONLY | O_CLOEXEC));
	MUST(lseek(other, 0, SEEK_END));
	dir = MUST(open("d", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	path = "file";
	STOPPED("stat", stats_path);
	STOPPED("fstat", stats_file);
	STOPPED("stat of what is missing", stats_missing);
	STOPPED("fstatat", stats_in_directory);
	STOPPED("statx", extends_stat);
	STOPPED("access", accesses);
	STOPPED("access of what is missing", accesses_missing);
	STOPPED("open", opens);
	STOPPED("open of a directory", opens_directory);
	STOPPED("open of what is missing", opens_missing);
	STOPPED("list", lists);
	STOPPED("list at the end", lists_end);
	path = "link";
	STOPPED("lstat of a link", stats_link);
	STOPPED("stat through a link", stats_path);
	STOPPED("open through a link", opens);
	STOPPED("readlink", reads_link);
	char full[PATH_MAX];
	MUST(getcwd(full, sizeof full) ? 0 : -1);
	strcat(full, "/file");
	path = full;
	STOPPED("stat of a full path", stats_path);
	STOPPED("statx of a full path", extends_stat);
	STOPPED("access of a full path", accesses);
	STOPPED("open of a full path", opens);
	STOPPED("write", writes);
	STOPPED("pwrite", writes_at);
	STOPPED("append", appends);
	STOPPED("access in a directory", accesses_by_owner);
	STOPPED("stat below a file", stats_below_file);
	STOPPED("stat by a descriptor alone", stats_by_descriptor);
	STOPPED("open in a directory", opens_in_directory);
	STOPPED("fchmod", changes_mode);
	STOPPED("clone", clones);
	STOPPED("copy", copies);
	STOPPED("getcwd", working_directory);
	close(file);
	close(other);
	close(dir);
}

static void *ends(void *argument)
{
	return argument;
}

static void steps(void)
{
	static const char *const names[PARTS] = {"site", "common", "map"};
	struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};

	sigemptyset(&action.sa_mask);
	MUST(sigaction(SIGTRAP, &action, NULL));
	for (int part = 0; part < PARTS && arguments[part]; part++)
		for (char *offset = strtok(arguments[part], ","); offset && parts[part].count < INSTRUCTIONS_MAX; offset = strtok(NULL, ","))
			parts[part].offsets[parts[part].count++] = atoi(offset);
	MUST(make_breakpoints());
	snprintf(other_path, sizeof other_path, "%s/other", host_path);
	make(other_path, "from here");
	in_directory(top_path, "one");
	in_directory(host_path, "one");
	/* The calls of a process with several threads are not answered inside. */
	pthread_t thread;
	MUST(-pthread_create(&thread, NULL, ends, NULL));
	MUST(-pthread_join(thread, NULL));
	in_directory(top_path, "several");
	in_directory(host_path, "several");
	for (int part = 0; part < PARTS; part++) {
		int met = 0;

		for (int at = 0; at < parts[part].count; at++)
			met += parts[part].was_hit[at];
		fprintf(stderr, "%s: %d of %d\n", names[part], met, parts[part].count);
	}
	fprintf(stderr, "total: %ld\n", total);
}

/* Whether there are breakpoints here. */
static int helper(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	if (make_breakpoints() == 0)
		return 0;
	fprintf(stderr, "perf_event_open: %s\n", strerrorname_np(errno));
	return 1;
}
