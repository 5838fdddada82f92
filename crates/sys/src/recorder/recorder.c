/* Records system calls inside a tracee. The tracer copies this code, whose entry is in entry.S, into the tracee's memory; see mod.rs for the layout.
 *
 * It must be position-independent and complete in itself: one section, no data, no calls to anything outside. It runs on a stack of its own, of one page, in
 * programs of one thread only. It never reads memory of the program that the kernel has not just read or written for the same call. What it cannot record it
 * leaves to the site's `syscall`, at which the tracer stops the thread: `return` without KEEP.
 */

__asm__(".include \"entry.S\"");

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

/* What is to be recorded of a call, by its number: the u16s behind the code. As in mod.rs. */
#define SHAPES_AT 0x2800
#define SHAPES 512
#define RECORDED 1
/* An argument is a descriptor: which one. */
#define DESCRIPTOR 2
#define DESCRIPTOR_AT(shape) ((shape) >> 2 & 7)
/* The descriptor's file is looked at before the call, which closes it. */
#define CLOSES 0x20
#define PATH 0x40
/* The path is the second argument, and a directory the first. */
#define DIRECTORY 0x80
#define NO_FOLLOW 0x100
/* The fourth argument has AT_* flags. */
#define FLAGS 0x200
/* The path is looked at by the new descriptor. */
#define OPENS 0x400
/* The second argument, or the third of a call with a directory, points to what the call hands over: a struct stat, or a text as long as the result. */
#define STAT 0x800
#define TEXT 0x1000
/* The files are wanted, and their names. */
#define FILES 0x2000
/* The third argument has AT_* flags. */
#define EARLY_FLAGS 0x4000
/* The fifth argument points to a struct statx that the call fills. */
#define STATX 0x8000

/* What follows in a record. */
enum item { MEMORY = 1, LINK, PATH_LINK, PARENT_LINK, FILE_STAT, PATH_STAT, NO_LINKS };

#define STATE_SIZE 0x3000
#define SCRATCH_AT 0x1000
#define RING_AT STATE_SIZE
#define DATA_AT 0x1000
#define RECORD_MAX 0x6000
#define PATH_MAX 4096
#define STAT_SIZE 144
#define STATX_SIZE 256

#define AT_FDCWD -100
#define O_CREAT 0100
#define O_EXCL 0200
#define O_TMPFILE 020200000
#define O_PATH 010000000
#define O_NOFOLLOW 0400000
#define O_CLOEXEC 02000000
#define AT_SYMLINK_NOFOLLOW 0x100
#define AT_EMPTY_PATH 0x1000
#define CLOCK_MONOTONIC 1
#define EPERM 1
#define ENOENT 2
#define ENOTDIR 20
#define ELOOP 40
#define EACCES 13
#define EFAULT 14
#define ENOSYS 38
#define ABANDONED -4096

#define SYS_close 3
#define SYS_readlink 89
#define SYS_clock_gettime 228
#define SYS_openat 257
#define SYS_newfstatat 262
#define SYS_openat2 437
#define RESOLVE_NO_SYMLINKS 4

struct timespec {
	long seconds, nanoseconds;
};

/* As in entry.S. */
struct state {
	u64 busy, off, trap, abandon, keep;
	long result;
	u64 nr, return_address, stack;
	u64 args[6];
	/* The vDSO's clock_gettime, or 0. */
	int (*clock)(int, struct timespec *);
	/* Bytes of the ring's data, a power of two. */
	u64 capacity;
};

/* Bytes that the tracee has ever written, and those that the tracer has read. From before a call until its record is written, `begun` is one more than the place of
 * the record. */
struct ring {
	u64 written, begun;
	u8 padding[48];
	u64 read;
};

struct record {
	u32 size, nr;
	u64 args[6];
	long result;
	u64 entered, left;
};

struct item_head {
	u32 kind, size;
	u64 key;
};

#define LOCAL static __attribute__((section("goanna_recorder")))

extern __attribute__((visibility("hidden"))) long goanna_recorder_make(struct state *state);

LOCAL inline __attribute__((always_inline)) long call(long nr, long a, long b, long c, long d)
{
	register long r10 __asm__("r10") = d;
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return result;
}

LOCAL void copy(u8 *to, const u8 *from, u64 size)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
}

LOCAL u64 now(const struct state *state)
{
	struct timespec time;
	if (state->clock)
		state->clock(CLOCK_MONOTONIC, &time);
	else
		call(SYS_clock_gettime, CLOCK_MONOTONIC, (long)&time, 0, 0);
	return (u64)time.seconds * 1000000000 + (u64)time.nanoseconds;
}

/* The end of an item of `size` bytes that begins at `at`; items are aligned to 8 bytes. */
LOCAL u8 *put(u8 *at, u32 kind, u64 key, u64 size)
{
	struct item_head *head = (struct item_head *)at;
	head->kind = kind;
	head->size = (u32)size;
	head->key = key;
	return at + sizeof *head + ((size + 7) & ~7ul);
}

LOCAL u8 *put_memory(u8 *at, const u8 *memory, u64 size)
{
	copy(at + sizeof(struct item_head), memory, size);
	return put(at, MEMORY, (u64)memory, size);
}

/* A string of at most PATH_MAX bytes with its NUL. */
LOCAL u8 *put_string(u8 *at, const u8 *string)
{
	u64 size = 0;
	while (size < PATH_MAX && string[size++])
		;
	return put_memory(at, string, size);
}

/* The struct stat of a descriptor; AT_FDCWD is the working directory. */
LOCAL u8 *put_stat(u8 *at, u32 kind, int number)
{
	u8 *stat = at + sizeof(struct item_head);
	u64 empty = 0;
	long result = call(SYS_newfstatat, number, (long)&empty, (long)stat, AT_EMPTY_PATH);
	return result == 0 ? put(at, kind, (u64)(long)number, STAT_SIZE) : at;
}

/* Where the kernel's link to a descriptor leads; AT_FDCWD is the working directory. */
LOCAL u8 *put_link(u8 *at, u32 kind, int number)
{
	char link[32];
	u64 names[2] = { 0x65732f636f72702f /* /proc/se */, 0x2f64662f666c /* lf/fd/ */ };
	u8 *end = (u8 *)link + 14;
	long size;
	*(u64 *)link = names[0];
	*(u64 *)(link + 8) = names[1];
	if (number == AT_FDCWD) {
		*(u32 *)(link + 11) = 0x647763; /* cwd */
	} else {
		u32 rest = (u32)number, power = 1;
		while (rest / power >= 10)
			power *= 10;
		for (; power; power /= 10)
			*end++ = (u8)('0' + rest / power % 10);
		*end = 0;
	}
	size = call(SYS_readlink, (long)link, (long)(at + sizeof(struct item_head)), PATH_MAX, 0);
	return size > 0 ? put(at, kind, (u64)(long)number, (u64)size) : at;
}

/* Where the directory of a relative path is. The kernel's link to one that was removed has a suffix. */
LOCAL u8 *put_directory(u8 *at, int number)
{
	u8 *end = put_link(at, LINK, number);
	const struct item_head *head = (struct item_head *)at;
	if (end > at && ((u8 *)(head + 1))[head->size - 1] == ')')
		end = put_stat(end, FILE_STAT, number);
	return end;
}

/* Opens what a path leads to without symbolic links: -ELOOP where it meets one. */
LOCAL long open_without_links(int directory, const u8 *path, u64 flags)
{
	u64 how[3] = { O_PATH | O_CLOEXEC | flags, 0, RESOLVE_NO_SYMLINKS };
	return call(SYS_openat2, directory, (long)path, (long)how, sizeof how);
}

/* It has met a link, or a filter that the program was started with refuses the call. */
LOCAL int is_unknown(long opened)
{
	return opened == -ELOOP || opened == -ENOSYS || opened == -EPERM;
}

/* An absolute path says itself where it leads, if it meets no symbolic link and has no component like `..`. That is much faster than to ask the kernel. */
LOCAL u8 *put_target(u8 *at, u32 kind, long opened, int is_without_links, const u8 *path)
{
	const u8 *next = path;
	if (!is_without_links || *path != '/')
		return put_link(at, kind, (int)opened);
	for (; *next; next++)
		if (next[0] == '/' && (next[1] == '/' || next[1] == '.'))
			return put_link(at, kind, (int)opened);
	return put(at, NO_LINKS, kind, 0);
}

/* The directory in which the last component of a path is to be found, and that component. */
LOCAL u8 *put_parent(u8 *at, u8 *scratch, int directory, const u8 *path)
{
	u64 size = 0, end, name;
	long parent;
	int is_without_links;
	while (size < PATH_MAX && path[size])
		size++;
	if (size == PATH_MAX)
		return at;
	for (end = size; end && path[end - 1] == '/'; end--)
		;
	for (name = end; name && path[name - 1] != '/'; name--)
		;
	copy(scratch, path, name);
	if (!name)
		scratch[name++] = '.';
	scratch[name] = 0;
	parent = open_without_links(directory, scratch, 0);
	is_without_links = parent >= 0;
	if (is_unknown(parent))
		parent = call(SYS_openat, directory, (long)scratch, O_PATH | O_CLOEXEC, 0);
	if (parent < 0)
		return at;
	at = put_target(at, PARENT_LINK, parent, is_without_links, path);
	call(SYS_close, parent, 0, 0, 0);
	return at;
}

/* Whether the target at `at` is in /proc, which shows the recorder's own descriptor. */
LOCAL int is_in_proc(const u8 *at, const u8 *path)
{
	const struct item_head *head = (const struct item_head *)at;
	const u8 *target = head->kind == NO_LINKS ? path : (const u8 *)(head + 1);
	return target[0] == '/' && target[1] == 'p' && target[2] == 'r' && target[3] == 'o' && target[4] == 'c';
}

/* Opens what a path names, and records where the path leads. Returns the descriptor, or a negative error; -EFAULT also for
 * what must not be open when the call is made. */
LOCAL u8 *resolve(u8 *at, struct state *state, u32 shape, int directory, const u8 *path, int no_follow, long *opened)
{
	u64 flags = no_follow ? O_NOFOLLOW : 0;
	int is_without_links;
	u8 *end;
	*opened = open_without_links(directory, path, flags);
	is_without_links = *opened >= 0;
	if (is_unknown(*opened))
		*opened = call(SYS_openat, directory, (long)path, (long)(O_PATH | O_CLOEXEC | flags), 0);
	switch (*opened) {
	case -ENOENT:
	case -ENOTDIR:
	case -ELOOP:
	case -EACCES:
		if (shape & FILES)
			at = put_parent(at, (u8 *)state + SCRATCH_AT, directory, path);
		break;
	default:
		if (*opened < 0)
			break;
		end = put_target(at, PATH_LINK, *opened, is_without_links, path);
		if (!(shape & OPENS) && is_in_proc(at, path)) {
			call(SYS_close, *opened, 0, 0, 0);
			*opened = -EFAULT;
			break;
		}
		at = end;
	}
	return at;
}

/* Whether what resolve() has returned says that the kernel could read the path. */
LOCAL int is_readable(long opened)
{
	return opened >= 0 || opened == -ENOENT || opened == -ENOTDIR || opened == -ELOOP || opened == -EACCES;
}

__attribute__((section("goanna_recorder"), visibility("hidden"))) void goanna_recorder_record(struct state *state)
{
	struct ring *ring = (struct ring *)((u8 *)state + RING_AT);
	u8 *data = (u8 *)ring + DATA_AT;
	const u16 *shapes = (const u16 *)((const u8 *)state - 0x3000 + SHAPES_AT);
	u32 shape = state->nr < SHAPES ? shapes[state->nr] : 0;
	u64 written = ring->written, mask = state->capacity - 1;
	u64 used = written - __atomic_load_n(&ring->read, __ATOMIC_ACQUIRE);
	int number = (int)state->args[DESCRIPTOR_AT(shape)];
	int directory = shape & DIRECTORY ? (int)state->args[0] : AT_FDCWD;
	const u8 *path = (const u8 *)state->args[shape & DIRECTORY ? 1 : 0];
	u64 output = state->args[shape & DIRECTORY ? 2 : 1];
	int is_descriptor = shape & DESCRIPTOR && number >= 0;
	/* Of an open. */
	u64 flags = output;
	u64 at_flags = shape & FLAGS ? state->args[3] : shape & EARLY_FLAGS ? state->args[2] : 0;
	int no_follow = shape & OPENS ? flags & O_NOFOLLOW || (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL) :
					shape & NO_FOLLOW || at_flags & AT_SYMLINK_NOFOLLOW;
	/* The path is empty. */
	int is_directory = 0;
	long opened = -1, result;
	struct record *record;
	u8 *at;

	state->keep = 0;
	/* A record lies in one piece. */
	if (!(shape & RECORDED) || used + 2 * RECORD_MAX > state->capacity)
		return;
	record = (struct record *)(data + (written & mask));
	if ((written & mask) + RECORD_MAX > state->capacity) {
		record->size = (u32)(state->capacity - (written & mask));
		record->nr = ~0u;
		written += record->size;
		record = (struct record *)data;
	}
	at = (u8 *)(record + 1);

	if (is_descriptor && shape & FILES) {
		at = put_link(at, LINK, number);
		if (shape & CLOSES)
			at = put_stat(at, FILE_STAT, number);
	}
	if (shape & OPENS) {
		if ((flags & O_TMPFILE) == O_TMPFILE)
			return;
	} else if (shape & PATH) {
		/* This tells whether the path can be read. */
		u8 *resolved = resolve(at, state, shape, directory, path, no_follow, &opened);
		if (!is_readable(opened))
			return;
		if (!*path) {
			if (opened >= 0)
				call(SYS_close, opened, 0, 0, 0);
			opened = -1;
			is_directory = 1;
			if (!(at_flags & AT_EMPTY_PATH))
				return;
		} else {
			at = resolved;
		}
		at = put_string(at, path);
		if (shape & DIRECTORY && shape & FILES && *path != '/')
			at = put_directory(at, directory);
	}

	for (u64 i = 0; i < 6; i++)
		record->args[i] = state->args[i];
	record->nr = (u32)state->nr;
	record->size = (u32)(at - (u8 *)record);
	record->entered = now(state);
	/* If the process is killed from here on, the tracer finds the call. */
	__atomic_store_n(&ring->begun, written + 1, __ATOMIC_RELEASE);
	result = goanna_recorder_make(state);
	if (result == ABANDONED) {
		__atomic_store_n(&ring->begun, 0, __ATOMIC_RELEASE);
		if (opened >= 0)
			call(SYS_close, opened, 0, 0, 0);
		return;
	}
	state->result = result;
	state->keep = 1;
	record->left = now(state);
	record->result = result;

	if (shape & OPENS && result != -EFAULT) {
		at = put_string(at, path);
		if (shape & FILES) {
			if (result >= 0) {
				at = put_link(at, LINK, (int)result);
				at = put_stat(at, FILE_STAT, (int)result);
			} else {
				at = resolve(at, state, shape, directory, path, no_follow, &opened);
			}
			if (shape & DIRECTORY && *path != '/')
				at = put_directory(at, directory);
		}
	}
	if (shape & DIRECTORY && shape & FILES && (directory >= 0 || is_directory))
		at = put_stat(at, FILE_STAT, directory);
	if (opened >= 0) {
		if (shape & FILES)
			at = put_stat(at, PATH_STAT, (int)opened);
		call(SYS_close, opened, 0, 0, 0);
	}
	if (is_descriptor && shape & FILES && !(shape & CLOSES))
		at = put_stat(at, FILE_STAT, number);
	if (shape & STAT && result == 0)
		at = put_memory(at, (const u8 *)output, STAT_SIZE);
	if (shape & STATX && result == 0)
		at = put_memory(at, (const u8 *)state->args[4], STATX_SIZE);
	if (shape & TEXT && result > 0)
		at = put_memory(at, (const u8 *)output, (u64)result < PATH_MAX ? (u64)result : PATH_MAX);

	record->size = (u32)(at - (u8 *)record);
	__atomic_store_n(&ring->written, written + record->size, __ATOMIC_RELEASE);
	__atomic_store_n(&ring->begun, 0, __ATOMIC_RELEASE);
}

/* The end of the code. Behind the last function, which the compiler does not reorder (build.rs). */
__attribute__((section("goanna_recorder"), visibility("hidden"))) void goanna_recorder_end(void)
{
}
