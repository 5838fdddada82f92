/* Breakpoints at each instruction of what answers calls in the process. Four arguments of the program are the offsets of all instructions in the code of a site, in that of a site that several
 * calls have in common, in the code that all sites of a library have in common, and in that of the map of attributes. */
#ifndef BREAKPOINTS_H
#define BREAKPOINTS_H

#define STEP_HELPER
#include "step.h"
#include <linux/hw_breakpoint.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <ucontext.h>

/* A call of the program's own, which has no stub. -1 and errno, as from syscall(2). */
static long raw_call(long number, ...)
{
	long arg[5], result;
	va_list args;

	va_start(args, number);
	for (int i = 0; i < 5; i++)
		arg[i] = va_arg(args, long);
	va_end(args);
	register long fourth __asm__("r10") = arg[3];
	register long fifth __asm__("r8") = arg[4];
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(arg[0]), "S"(arg[1]), "d"(arg[2]), "r"(fourth), "r"(fifth) : "rcx", "r11", "memory");
	if (result < 0 && result > -4096) {
		errno = -result;
		return -1;
	}
	return result;
}

enum { OF_SITE, OF_SHARED, COMMON, OF_MAP, PARTS };
enum { INSTRUCTIONS_MAX = 4096, SITE_SIZE = 48, WARM = 5, TRAP_FLAG = 0x100, RESUME_FLAG = 0x10000 };

/* The offsets of the instructions of each part, and whether a signal came there. */
static struct { int count, offsets[INSTRUCTIONS_MAX]; bool was_hit[INSTRUCTIONS_MAX]; } parts[PARTS];

static const int kept[] = {REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9, REG_RSP, REG_RBP, REG_RBX, REG_R12, REG_R13, REG_R14, REG_R15};
enum { KEPT = sizeof kept / sizeof *kept };

/* Of the call that is looked at: the address of its `syscall`, or 0, and the registers there. */
static volatile uintptr_t site;
static long at_site[KEPT];
static volatile bool finds_site;
static volatile long hits, wrong_registers, wrong_in_handler, total;

/* What the handler does without breakpoints, and whether that was right. */
static bool (*handled)(void);

/* As many as an x86 processor has. */
enum { BREAKPOINTS = 4 };
static int breakpoints[BREAKPOINTS];

static void disable_breakpoints(int count)
{
	for (int i = 0; i < count; i++)
		MUST(raw_call(SYS_ioctl, breakpoints[i], PERF_EVENT_IOC_DISABLE, 0));
}

/* The jump to the stub before the call at this address, or 0. At a site with a frame pointer, a short jump leads back to it. */
static uintptr_t jump_before(uintptr_t call)
{
	const unsigned char *code = (const unsigned char *)call;

	if (code[-5] == 0xe9)
		return call - 5;
	if (code[-4] != 0xeb || code[-3] < 0xf0)
		return 0;
	return call - 2 - (256 - code[-3]);
}

static void trapped(int signal, siginfo_t *info, void *context)
{
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
	uintptr_t ip = regs[REG_RIP];
	const unsigned char *code = (const unsigned char *)ip;

	(void)signal;
	(void)info;
	if (finds_site) {
		if (code[0] != 0x0f || code[1] != 0x05 || !jump_before(ip))
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
	if (handled) {
		int error = errno;

		disable_breakpoints(BREAKPOINTS);
		wrong_in_handler += !handled();
		errno = error;
	}
}

static char stack[1 << 16] __attribute__((aligned(64)));

/* Makes the call, with the same values in all registers each time, and on the same stack; with flag TRAP_FLAG, instruction by instruction. */
static long made(long (*call)(void), long flag)
{
	long result;

	__asm__ volatile("mov %%rsp,%%r12; mov %3,%%rsp; push %%r12; push %%rbp\n\t"
			 "xor %%ebp,%%ebp; xor %%ebx,%%ebx; xor %%r8d,%%r8d; xor %%r9d,%%r9d; xor %%r10d,%%r10d\n\t"
			 "xor %%r12d,%%r12d; xor %%r13d,%%r13d; xor %%r14d,%%r14d; xor %%r15d,%%r15d\n\t"
			 "pushfq; or %%rdi,(%%rsp); xor %%edi,%%edi; xor %%esi,%%esi; popfq\n\t"
			 "call *%%rdx\n\t"
			 "pushfq; andl $~0x100,(%%rsp); popfq\n\t"
			 "pop %%rbp; pop %%rsp"
			 : "=a"(result), "+d"(call), "+D"(flag)
			 : "r"(stack + sizeof stack)
			 : "rbx", "rcx", "rsi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "cc", "memory");
	return result;
}

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
		breakpoints[i] = raw_call(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
		if (breakpoints[i] < 0)
			return -1;
	}
	return 0;
}

/* Makes the call with breakpoints at `count` addresses. With TRAP_FLAG in `flag`, it is made instruction by instruction. */
static long stopped_at(long (*call)(void), uintptr_t start, const int *offsets, int count, long flag)
{
	hits = wrong_registers = wrong_in_handler = 0;
	for (int i = 0; i < count; i++) {
		struct perf_event_attr attributes = breakpoint_at(start + offsets[i]);
		MUST(raw_call(SYS_ioctl, breakpoints[i], PERF_EVENT_IOC_MODIFY_ATTRIBUTES, &attributes));
	}
	long result = made(call, flag);
	disable_breakpoints(count);
	return result;
}

static uintptr_t target(uintptr_t jump)
{
	int32_t by;

	memcpy(&by, (const void *)(jump + 1), sizeof by);
	return jump + 5 + by;
}

/* The common code: the code of a site ends in a jump to it, or that of a shared site to the dispatch in the same page. It begins with `testl $0x40000,8(%rsp)`. */
static uintptr_t common_of(uintptr_t placed, bool *is_shared)
{
	static const unsigned char first[] = {0xf7, 0x44, 0x24, 0x08, 0x00, 0x00, 0x04, 0x00};
	static const unsigned char dispatch[] = {0x4c, 0x8d, 0x1d};

	for (uintptr_t at = placed + 10; at < placed + SITE_SIZE; at++) {
		if (*(const unsigned char *)at != 0xe9 || target(at) + (1 << 20) <= placed || target(at) >= placed + (1 << 20))
			continue;
		uintptr_t to = target(at), page = to & ~4095ul;
		*is_shared = !memcmp((const void *)to, dispatch, sizeof dispatch) && !memcmp((const void *)page, first, sizeof first);
		if (*is_shared)
			return page;
		if (!memcmp((const void *)to, first, sizeof first))
			return to;
	}
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

/* Makes the call until it is answered in the process, and finds the addresses of the parts. 0 where there is none. Returns the result. */
static long found(long (*call)(void), uintptr_t starts[PARTS])
{
	long result = 0;

	for (int i = 0; i < WARM; i++)
		result = stopped_at(call, 0, NULL, 0, 0);
	site = 0;
	finds_site = true;
	stopped_at(call, 0, NULL, 0, TRAP_FLAG);
	finds_site = false;
	uintptr_t placed = site ? target(jump_before(site)) : 0;
	bool is_shared = false;
	starts[COMMON] = site ? common_of(placed, &is_shared) : 0;
	starts[OF_SITE] = is_shared ? 0 : placed;
	starts[OF_SHARED] = is_shared ? placed : 0;
	starts[OF_MAP] = site ? find_map() : 0;
	return result;
}

/* Makes the call with a signal at each instruction. */
static void stopped(int line, const char *name, long (*call)(void))
{
	uintptr_t starts[PARTS];
	long wrong = 0, before = total, expected = found(call, starts);

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
			if (part == OF_MAP && at == 0 && !hits)
				break;
			if (got == expected && !wrong_registers && !wrong_in_handler)
				continue;
			wrong++;
			fprintf(stderr, "%s: part %d at %d: %ld, not %ld, %ld registers, %ld in handlers, %ld signals\n", name, part, *offsets, got, expected, wrong_registers, wrong_in_handler, hits);
		}
	}
	note("%d %s: %ld wrong", line, name, wrong);
	fprintf(stderr, "%s: %ld signals\n", name, total - before);
}
#define STOPPED(name, call) stopped(__LINE__, name, call)

/* Takes the arguments, makes the breakpoints, and handles their signal. */
static void begin(void)
{
	struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};

	sigemptyset(&action.sa_mask);
	MUST(sigaction(SIGTRAP, &action, NULL));
	for (int part = 0; part < PARTS && arguments[part]; part++)
		for (char *offset = strtok(arguments[part], ","); offset && parts[part].count < INSTRUCTIONS_MAX; offset = strtok(NULL, ","))
			parts[part].offsets[parts[part].count++] = atoi(offset);
	MUST(make_breakpoints());
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

#endif
