/* A signal before each instruction of what answers calls in the process, where a breakpoint raises SIGTRAP. Each call has the result that it has without that, and the handler
 * finds the thread at the library's own `syscall`, with the arguments of the call, or behind it. It makes such calls itself. Natively there is no such code. How many signals came, and at how many instructions,
 * goes to the standard error. */
#include "breakpoints.h"
#include <linux/fs.h>
#include <pthread.h>

static int file, dir, other, counted;
static const char *path;
/* A file on the host. */
static char other_path[PATH_MAX];

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
	long result = of_stat(raw_call(SYS_fstat, fd, &st), &st);
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
	MUST(raw_call(SYS_ftruncate, file, size));
	return got * 1000 + (now == size + 4);
}

/* By libc's syscall(2), whose site these calls have in common. */
static long stats_by_number(void) { memset(&st, 0, sizeof st); return of_stat(syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0), &st); }
static long opens_by_number(void) { return opened(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0)); }
static long numbers(void) { return syscall(SYS_geteuid, 0, 0, 0, 0, 0, 0) == geteuid(); }
static long wrong_number(void) { return syscall(-1, 1, 2, 3, 4, 5, 6) == -1 ? -errno : 0; }

/* Six arguments. */
static long maps_by_number(void)
{
	char *mapped = (char *)syscall(SYS_mmap, NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
	long result = mapped == MAP_FAILED ? -errno : mapped[0];

	munmap(mapped, 4096);
	return result;
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
	STOPPED("stat by its number", stats_by_number);
	STOPPED("open by its number", opens_by_number);
	STOPPED("mmap by its number", maps_by_number);
	STOPPED("a number without a path", numbers);
	STOPPED("a number of no call", wrong_number);
	close(file);
	close(other);
	close(dir);
}

/* Calls of the handler, which are answered in the process, too. */
static bool opens_lists_and_writes(void)
{
	struct stat by_path, by_descriptor;
	char bytes[1000] __attribute__((aligned(8)));
	int opened_dir = open("d", O_RDONLY | O_DIRECTORY | O_CLOEXEC), log = open("log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	bool is_right = getdents64(opened_dir, bytes, sizeof bytes) > 0 && fstat(opened_dir, &by_descriptor) == 0 && stat("d", &by_path) == 0;

	is_right = is_right && by_path.st_ino == by_descriptor.st_ino && access("d/inside", R_OK) == 0 && write(log, "x", 1) == 1;
	close(opened_dir);
	close(log);
	return is_right;
}

static void *ends(void *argument)
{
	return argument;
}

static void steps(void)
{
	static const char *const names[PARTS] = {[OF_SITE] = "site", [OF_SHARED] = "shared", [COMMON] = "common", [OF_MAP] = "map"};

	begin();
	handled = opens_lists_and_writes;
	snprintf(other_path, sizeof other_path, "%s/other", host_path);
	make(other_path, "from here");
	in_directory(top_path, "one");
	in_directory(host_path, "one");
	/* A process with several threads has other stubs, and writes are not answered inside. */
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
