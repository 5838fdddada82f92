/* statx(2), many times of each file, so that answers come from wherever they may come: they are those of stat(2), and whole. */
#include "step.h"

static char top_file[PATH_MAX + 16];

/* The C library's, of which the compiler does not know what its arguments must not be. */
static int (*volatile look)(int, const char *, int, unsigned, struct statx *) = statx;

/* One answer, compared with that of stat(2); returns its mask, or the negative errno. */
static long one(int at, const char *path, int flags, unsigned mask)
{
	struct statx found;
	struct stat meta;

	memset(&found, 0xaa, sizeof found);
	if (look(at, path, flags, mask, &found) < 0)
		return -errno;
	if (fstatat(at, path ? path : "", &meta, (flags & AT_SYMLINK_NOFOLLOW) | (flags & AT_EMPTY_PATH)) < 0)
		return -1000;
	unsigned char *end = (unsigned char *)&found + sizeof found;
	bool rest_is_zero = true;
	/* The fields of masks that are not asked for. */
	for (unsigned char *byte = (unsigned char *)&found.stx_mnt_id + 8; byte < end; byte++)
		rest_is_zero &= *byte == 0;
	bool same = found.stx_ino == meta.st_ino && found.stx_mode == meta.st_mode && found.stx_nlink == meta.st_nlink &&
		found.stx_uid == meta.st_uid && found.stx_gid == meta.st_gid && found.stx_size == (unsigned long)meta.st_size &&
		found.stx_blocks == (unsigned long)meta.st_blocks && found.stx_blksize == (unsigned)meta.st_blksize &&
		makedev(found.stx_dev_major, found.stx_dev_minor) == meta.st_dev &&
		makedev(found.stx_rdev_major, found.stx_rdev_minor) == meta.st_rdev &&
		(!(mask & (STATX_MTIME | STATX_CTIME)) ||
		 (found.stx_mtime.tv_sec == meta.st_mtim.tv_sec && found.stx_mtime.tv_nsec == meta.st_mtim.tv_nsec &&
		  found.stx_ctime.tv_sec == meta.st_ctim.tv_sec && found.stx_ctime.tv_nsec == meta.st_ctim.tv_nsec)) &&
		found.stx_atime.tv_sec == meta.st_atim.tv_sec && found.stx_atime.tv_nsec == meta.st_atim.tv_nsec &&
		(!(mask & STATX_BTIME) || (found.stx_btime.tv_sec != 0 && found.stx_btime.tv_sec <= found.stx_ctime.tv_sec));
	if (!same || !rest_is_zero)
		return same ? -2000 : -3000;
	/* ext4 reports the time of creation only if STATX_BTIME is in the mask, btrfs always. */
	return found.stx_mask & ~(mask & STATX_BTIME ? 0 : STATX_BTIME);
}

static void all(int line, const char *name, int at, const char *path)
{
	static const struct { int flags; unsigned mask; } ways[] = {
		{ 0, STATX_BASIC_STATS }, { 0, STATX_BASIC_STATS | STATX_BTIME }, { 0, STATX_SIZE }, { 0, 0 }, { 0, STATX_MTIME },
		{ AT_SYMLINK_NOFOLLOW, STATX_ALL }, { AT_NO_AUTOMOUNT, STATX_CTIME }, { AT_STATX_DONT_SYNC, STATX_MODE },
		{ AT_STATX_FORCE_SYNC, STATX_MODE }, { AT_STATX_DONT_SYNC | AT_STATX_FORCE_SYNC, STATX_MODE }, { 0x80000, STATX_MODE },
		{ 0, 0x80000000 }, { 0, STATX_MNT_ID }, { AT_EMPTY_PATH, STATX_BASIC_STATS },
	};

	for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
		long first = one(at, path, ways[way].flags, ways[way].mask), all = first;
		for (int i = 0; i < 6; i++) {
			long again = one(at, path, ways[way].flags, ways[way].mask);
			if (again != first)
				all = -4000;
		}
		note("%d %s %#x %#x: %#lx%s", line, name, ways[way].flags, ways[way].mask, all, all == -4000 ? ", not always" : "");
	}
}

#define ALL(name, at, path) all(__LINE__, name, at, path)

static void looks(const char *when)
{
	int dir = MUST(open(".", O_RDONLY | O_DIRECTORY)), file = open("file", O_RDONLY);

	note("%s", when);
	ALL("a file", AT_FDCWD, "file");
	ALL("from the root", AT_FDCWD, top_file);
	ALL("from a directory", dir, "sub/other");
	ALL("a link", AT_FDCWD, "link");
	ALL("a fifo", AT_FDCWD, "fifo");
	ALL("a directory", AT_FDCWD, "sub");
	ALL("nothing", AT_FDCWD, "none");
	ALL("through a file", AT_FDCWD, "file/x");
	ALL("an empty path", file, "");
	ALL("an empty path of a directory", dir, "");
	ALL("no path", file, NULL);
	ALL("a bad descriptor", 987, "file");
	ALL("a bad descriptor and no path", 987, "");
	ALL("a file as a directory", file, "x");
	ALL("the host", AT_FDCWD, host_path);
	close(dir);
	close(file);
}

/* The answer where it cannot be, or where the path is. */
static void buffers(void)
{
	union { char path[256]; struct statx found; } place;
	char *pages = (char *)MUST(mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));

	MUST(mprotect(pages + 4096, 4096, PROT_NONE));
	for (int i = 0; i < 8; i++) {
		T("it ends with the page", look(AT_FDCWD, "file", 0, STATX_BASIC_STATS, (void *)(pages + 4096 - 256)));
		T("it ends behind the page", look(AT_FDCWD, "file", 0, STATX_BASIC_STATS, (void *)(pages + 4096 - 160)));
		T("nowhere", look(AT_FDCWD, "file", 0, STATX_BASIC_STATS, NULL));
		T("nowhere for nothing", look(AT_FDCWD, "none", 0, STATX_BASIC_STATS, NULL));
		T("a path that cannot be read", look(AT_FDCWD, pages + 4096, 0, STATX_BASIC_STATS, &place.found));
		strcpy(place.path, "file");
		T("in the path's place", look(AT_FDCWD, place.path, 0, STATX_SIZE, &place.found));
		IS("it is there", place.found.stx_size == 5);
		strcpy(place.path, "none");
		T("nothing in the path's place", look(AT_FDCWD, place.path, 0, STATX_SIZE, &place.found));
		IS("the path is as it was", !strcmp(place.path, "none"));
		strcpy(place.path + 200, "file");
		T("in front of the path", look(AT_FDCWD, place.path + 200, 0, STATX_SIZE, &place.found));
		IS("it is there", place.found.stx_size == 5);
	}
	munmap(pages, 8192);
}

static void steps(void)
{
	struct statx root, inside;
	int file = MUST(open("file", O_CREAT | O_RDWR, 0644));

	MUST(write(file, "hello", 5));
	MUST(mkdir("sub", 0755));
	close(MUST(open("sub/other", O_CREAT | O_WRONLY, 0600)));
	MUST(symlink("file", "link"));
	MUST(mkfifo("fifo", 0640));
	char here[PATH_MAX];
	snprintf(top_file, sizeof top_file, "%s/file", getcwd(here, sizeof here));
	looks("at first");
	looks("again");
	buffers();
	MUST(chmod("file", 0400));
	MUST(pwrite(file, "more and more", 13, 9000));
	MUST(rename("sub/other", "sub/next"));
	close(MUST(open("sub/other", O_CREAT | O_WRONLY, 0600)));
	looks("after changes");
	MUST(unlink("file"));
	looks("without the file");
	MUST(look(AT_FDCWD, ".", 0, STATX_MNT_ID, &root));
	for (int i = 0; i < 6; i++) {
		MUST(look(AT_FDCWD, "sub", 0, STATX_BASIC_STATS, &inside));
		IS("the mount's ID", root.stx_mnt_id == inside.stx_mnt_id && root.stx_mnt_id != 0);
		IS("the attributes", !(inside.stx_attributes & STATX_ATTR_MOUNT_ROOT) && (inside.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT));
	}
	close(file);
}
