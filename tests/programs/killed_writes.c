/* Processes that are killed at each instruction of what writes to a file in the process. Each leaves the whole write or nothing, as soon as its parent knows of its end, and other
 * processes go on writing. Natively there is no such code. How many were killed goes to the standard error. */
#include "breakpoints.h"

enum { OLD = 4000, LONG = 5000, SHORT = 100, SHORT_AT = 3000, END = OLD + (WARM + 1) * LONG };

static int file;
static char text[LONG];

static long appends(void)
{
	MUST(lseek(file, 0, SEEK_END));
	return write(file, text, LONG);
}

static long writes_within(void)
{
	return pwrite(file, text, SHORT, SHORT_AT);
}

/* Kills this process at the instruction, if it makes the call. */
static void kill_at(uintptr_t address)
{
	struct f_owner_ex self = {F_OWNER_TID, gettid()};
	struct perf_event_attr attributes = breakpoint_at(address);

	attributes.sigtrap = attributes.remove_on_exec = 0;
	attributes.wakeup_events = 1;
	int fd = MUST(raw_call(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
	MUST(fcntl(fd, F_SETFL, O_ASYNC));
	MUST(fcntl(fd, F_SETSIG, SIGKILL));
	MUST(fcntl(fd, F_SETOWN_EX, &self));
}

/* Whether the file, which was full of `o`, has all of the `n` from `at` on, or none; `is_made`: all. */
static bool is_whole(int fd, long at, long length, bool is_made)
{
	static char all[END + LONG + 1];
	struct stat st;
	long size = pread(fd, all, sizeof all, 0), count = 0;

	MUST(fstat(fd, &st));
	for (long i = 0; i < size; i++) {
		bool is_new = all[i] == 'n';
		if ((is_new && (i < at || i >= at + length)) || (!is_new && all[i] != 'o'))
			return false;
		count += is_new;
	}
	return st.st_size == size && (count == length || (count == 0 && !is_made)) && size == (at == END ? END + count : OLD);
}

static void killed(int line, const char *name, long (*call)(void), long at, long length)
{
	int wrong = 0, kills = 0;

	memset(text, 'o', sizeof text);
	file = MUST(open("first", O_RDWR | O_CREAT | O_TRUNC, 0644));
	MUST(write(file, text, OLD));
	stopped(line, name, call);
	for (int part = 0; part < PARTS; part++) {
		for (int i = 0; i < parts[part].count; i++) {
			int status;

			if (!parts[part].was_hit[i])
				continue;
			memset(text, 'o', sizeof text);
			file = MUST(open("file", O_RDWR | O_CREAT | O_TRUNC, 0644));
			MUST(write(file, text, OLD));
			pid_t child = MUST(fork());
			if (child == 0) {
				uintptr_t starts[PARTS];

				found(call, starts);
				memset(text, 'n', sizeof text);
				if (starts[part])
					kill_at(starts[part] + parts[part].offsets[i]);
				call();
				_exit(0);
			}
			MUST(waitpid(child, &status, 0));
			bool was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
			kills += was_killed;
			bool is_right = (was_killed || status == 0) && is_whole(file, at, length, !was_killed);
			long size = lseek(file, 0, SEEK_END);
			char after[5] = "";
			is_right = is_right && write(file, "after", 5) == 5 && pread(file, after, 5, size) == 5 && !memcmp(after, "after", 5);
			wrong += !is_right;
			close(file);
		}
	}
	note("%d %s: %d wrong", line, name, wrong);
	fprintf(stderr, "%s, killed: %d\n", name, kills);
}

static void steps(void)
{
	begin();
	killed(__LINE__, "append", appends, END, LONG);
	killed(__LINE__, "write within a page", writes_within, SHORT_AT, SHORT);
}
