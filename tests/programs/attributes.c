/* Attributes of files that change between two looks at them: by random calls, the same in each run, and by several processes at once. A
 * process that looks often is answered from the map of attributes. */
#include "step.h"
#include <stdatomic.h>

#define CHANGES 500
#define ROUNDS 400

static uint64_t state = 20261123;

static unsigned pick(unsigned below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 11) % below;
}

static char base[PATH_MAX];
static const char *const names[] = { "a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "l", "l/a", "d//a", "d/../a", "./d", "d/", "." };
#define NAMES (sizeof names / sizeof *names)

static const char *absolute(char *path, const char *name)
{
	snprintf(path, 2 * PATH_MAX, "%s/%s", base, name);
	return path;
}

/* What a program sees of a file: blocks and sizes of directories differ from file system to file system. */
static void show_meta(int number, const char *what, const char *name, int result, const struct stat *meta)
{
	if (result < 0)
		note("%d %s %s: %s", number, what, name, strerrorname_np(errno));
	else
		note("%d %s %s: %o %d %d %lld", number, what, name, meta->st_mode, (int)meta->st_nlink, (int)meta->st_uid,
			S_ISREG(meta->st_mode) ? (long long)meta->st_size : 0);
}

/* Looks at a name several times: what has come to the monitor twice is answered from the map afterwards. */
static void look(int number, int dir, const char *name)
{
	char path[2 * PATH_MAX];
	struct stat meta, again;
	int result;

	for (int i = 0; i < 3; i++) {
		result = stat(absolute(path, name), &meta);
		show_meta(number, "stat", name, result, &meta);
		result = lstat(name, &meta);
		show_meta(number, "lstat", name, result, &meta);
		result = fstatat(dir, name, &again, pick(2) ? AT_SYMLINK_NOFOLLOW : 0);
		show_meta(number, "fstatat", name, result, &again);
		note("%d", access(path, i == 2 ? R_OK : F_OK) < 0 ? errno : 0);
		note("%d", faccessat(dir, name, i, 0) < 0 ? errno : 0);
	}
}

static void change(int number, int *open_file)
{
	char from[2 * PATH_MAX], to[2 * PATH_MAX], text[300] = "text";
	const char *name = names[pick(8)], *other = names[pick(8)];
	int result = 0, fd;

	absolute(from, name);
	absolute(to, other);
	switch (pick(13)) {
	case 0:
	case 1:
	case 2:
		if (*open_file >= 0)
			close(*open_file);
		result = *open_file = open(from, O_RDWR | O_CREAT | (pick(2) ? O_TRUNC : 0), 0644);
		result = result < 0 ? -1 : 0;
		break;
	case 3:
		result = mkdir(from, 0755);
		break;
	case 4:
		result = unlink(from);
		break;
	case 5:
		result = rmdir(from);
		break;
	case 6:
		result = rename(from, to);
		break;
	case 7:
		result = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE);
		break;
	case 8:
		result = link(from, to);
		break;
	case 9:
		result = symlink("d", from);
		break;
	case 10: {
		static const mode_t modes[] = { 0755, 0700, 0600, 0111, 0444 };

		result = chmod(from, modes[pick(5)]);
		break;
	}
	case 11:
		result = truncate(from, pick(10000));
		break;
	default:
		if (*open_file >= 0)
			result = write(*open_file, text, 1 + pick(200));
	}
	note("%d %s %s: %d", number, name, other, result < 0 ? errno : result);
}

static void by_one(void)
{
	int file = -1, dir;

	snprintf(base, sizeof base, "%s/attributes", top_path);
	MUST(mkdir(base, 0755));
	MUST(chdir(base));
	dir = MUST(open(".", O_RDONLY | O_DIRECTORY));
	for (int i = 0; i < CHANGES; i++) {
		struct stat meta;

		for (int looks = 0; looks < 2; looks++)
			look(i, dir, names[pick(NAMES)]);
		change(i, &file);
		for (int again = 0; file >= 0 && again < 3; again++)
			show_meta(i, "fstat", "", fstat(file, &meta), &meta);
		show_meta(i, "fstat", "directory", fstat(dir, &meta), &meta);
		if (pick(20) == 0) {
			/* Another start of relative paths. */
			if (chdir(pick(2) ? "d" : base) == 0)
				look(i, AT_FDCWD, "a");
			MUST(chdir(base));
		}
	}
	if (file >= 0)
		close(file);
	close(dir);
}

/* What a process has done before it said so is seen by all others. */
static struct {
	/* Rounds of the writer that have begun, and that are over. */
	_Atomic long begun;
	_Atomic long done;
	_Atomic long over;
} *shared;

static void writer(void)
{
	char one[2 * PATH_MAX], other[2 * PATH_MAX], name[2 * PATH_MAX];
	int file;

	snprintf(one, sizeof one, "%s/one", base);
	snprintf(other, sizeof other, "%s/other", base);
	file = MUST(open("grows", O_WRONLY | O_CREAT | O_APPEND, 0644));
	for (long round = 1; round <= ROUNDS; round++) {
		/* The directory with the file "x" is "one" after an even round, "other" after an odd one, and closed in between. */
		const char *from = round % 2 ? one : other, *to = round % 2 ? other : one;

		atomic_store(&shared->begun, round);
		MUST(write(file, "x", 1));
		MUST(chmod(from, 0700));
		MUST(rename(from, to));
		snprintf(name, sizeof name, "%s/step%ld", to, round % 4);
		if (round % 8 < 4)
			close(MUST(open(name, O_WRONLY | O_CREAT, 0644)));
		else
			unlink(name);
		MUST(chmod(to, 0755));
		atomic_store(&shared->done, round);
	}
	atomic_store(&shared->over, 1);
	_exit(0);
}

static void reader(int which, pid_t parent)
{
	char one[2 * PATH_MAX], other[2 * PATH_MAX];
	struct stat meta;
	long stale = 0;
	int file = MUST(open("grows", O_RDONLY));

	snprintf(one, sizeof one, "%s/one/x", base);
	snprintf(other, sizeof other, "%s/other/x", base);
	while (!atomic_load(&shared->over) && getppid() == parent) {
		long before = atomic_load(&shared->done);
		int in_one, in_other;

		if (which == 0) {
			/* By path, or by descriptor. */
			if (stat("grows", &meta) || meta.st_size < before)
				stale++;
			if (fstat(file, &meta) || meta.st_size < before)
				stale++;
			continue;
		}
		in_one = which == 1 ? stat(one, &meta) == 0 : access("one/x", F_OK) == 0;
		in_other = which == 1 ? stat(other, &meta) == 0 : access("other/x", F_OK) == 0;
		/* Unless a round has begun meanwhile, the directory is where the last one has put it. */
		if (atomic_load(&shared->begun) == before && before && (before % 2 ? in_one || !in_other : in_other || !in_one))
			stale++;
	}
	_exit(stale > 100 ? 100 : stale);
}

static void by_many(void)
{
	char path[2 * PATH_MAX];
	pid_t parent = getpid();

	shared = (void *)MUST(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	MUST(chdir(base));
	MUST(mkdir(absolute(path, "one"), 0755));
	make(absolute(path, "one/x"), "x");
	make(absolute(path, "grows"), "");
	for (int which = 0; which < 4; which++) {
		if (fork() == 0) {
			if (which == 3)
				writer();
			reader(which, parent);
		}
	}
	for (int status; wait(&status) > 0;) {
		if (status)
			atomic_store(&shared->over, 1);
		note("%x", status);
	}
}

/* What is seen in a buffer: the attributes, or EFAULT. */
static void in_buffer(const char *what, const char *path, void *buffer)
{
	struct statx *more = buffer;
	struct stat *meta = buffer;
	int result = stat(path, buffer);

	note("%s: %s %lld", what, result < 0 ? strerrorname_np(errno) : "stat", result < 0 ? 0 : (long long)meta->st_size);
	result = statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, buffer);
	note("%s: %s %lld", what, result < 0 ? strerrorname_np(errno) : "statx", result < 0 ? 0 : (long long)more->stx_size);
}

/* Buffers of which the kernel can write a part, or nothing. */
static void buffers(void)
{
	const int sizes[] = { sizeof(struct stat), sizeof(struct statx) };
	char path[2 * PATH_MAX], none[2 * PATH_MAX];
	char *memory = (void *)MUST(mmap(NULL, 12288, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	char *constant = (void *)MUST(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	char *inside = memory + 1000, *end = memory + 8192;

	MUST(munmap(end, 4096));
	make(absolute(path, "five"), "bytes");
	absolute(none, "none");
	for (int round = 0; round < 20; round++) {
		in_buffer("buffer", path, memory);
		in_buffer("no address", path, (void *)1);
		in_buffer("constant", path, constant);
		in_buffer("in two pages", path, memory + 4000);
		for (int i = 0; i < 2; i++) {
			in_buffer("at the end of memory", path, end - sizes[i]);
			in_buffer("beyond it", path, end - sizes[i] + 8);
			in_buffer("relative, beyond it", "five", end - sizes[i] + 8);
		}
		strcpy(inside, path);
		in_buffer("around the path", inside, inside - 50);
		in_buffer("no address for no file", none, (void *)1);
	}
}

static void steps(void)
{
	by_one();
	MUST(chdir(base));
	buffers();
	by_many();
}
