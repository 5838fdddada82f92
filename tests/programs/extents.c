/* Where a file has data: FS_IOC_FIEMAP. What cachestat(2) tells, and whom. */
#include "step.h"

#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

enum { ROOM = 8 };

static struct {
	struct fiemap map;
	struct fiemap_extent extents[ROOM];
} list;

static int ask(int fd, uint64_t start, uint64_t length, unsigned flags, unsigned room)
{
	memset(&list, 0xee, sizeof list);
	list.map = (struct fiemap){ .fm_start = start, .fm_length = length, .fm_flags = flags, .fm_extent_count = room };
	return ioctl(fd, FS_IOC_FIEMAP, &list);
}

static void show(const char *name, int fd, uint64_t start, uint64_t length, unsigned room)
{
	T(name, ask(fd, start, length, FIEMAP_FLAG_SYNC, room));
	note("  flags %x, found %u", list.map.fm_flags, list.map.fm_mapped_extents);
	for (unsigned i = 0; i < list.map.fm_mapped_extents && i < room; i++) {
		struct fiemap_extent *extent = &list.extents[i];
		note("  %llu + %llu%s", extent->fe_logical, extent->fe_length, extent->fe_flags & FIEMAP_EXTENT_LAST ? ", last" : "");
	}
	if (room < ROOM)
		IS("nothing behind it", list.extents[room].fe_flags == 0xeeeeeeee);
}

static void extents(void)
{
	int fd = MUST(open("holes", O_CREAT | O_RDWR, 0644)), directory = MUST(open(".", O_RDONLY | O_DIRECTORY));

	show("empty", fd, 0, -1, ROOM);
	MUST(pwrite(fd, "a", 1, 0));
	MUST(pwrite(fd, "b", 1, 3 * 65536 + 10));
	MUST(pwrite(fd, "cc", 2, 9 * 65536 - 1));
	MUST(ftruncate(fd, 20 * 65536));
	show("all", fd, 0, -1, ROOM);
	show("count", fd, 0, -1, 0);
	show("first", fd, 0, -1, 1);
	show("from the second", fd, 65536, -1, ROOM);
	show("one part", fd, 3 * 65536, 65536, ROOM);
	show("a hole", fd, 65536, 65536, ROOM);
	show("behind the end", fd, 30 * 65536, 65536, ROOM);
	MUST(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3 * 65536, 65536));
	show("punched", fd, 0, -1, ROOM);

	T("nothing", ask(fd, 0, 0, 0, ROOM));
	T("unknown flag", ask(fd, 0, -1, 0x100, ROOM));
	note("  flags %x", list.map.fm_flags);
	T("too far", ask(fd, -1, 1, 0, ROOM));
	T("too much room", ask(fd, 0, -1, 0, -1));
	T("null", ioctl(fd, FS_IOC_FIEMAP, NULL));
	T("directory", ask(directory, 0, -1, 0, ROOM));
	T("O_PATH", ask(MUST(open("holes", O_PATH)), 0, -1, 0, ROOM));
	close(directory);
	close(fd);
}

static int cached(int fd, unsigned flags)
{
	struct { uint64_t offset, length; } range = { 0, 0 };
	struct { uint64_t cache, dirty, writeback, evicted, recently; } found = { 0 };
	int result = syscall(SYS_cachestat, fd, &range, &found, flags);

	if (!result)
		IS("pages", found.cache == 2);
	return result;
}

static void cache(void)
{
	char text[5000];
	int fd = MUST(open("cached", O_CREAT | O_RDWR, 0600));

	memset(text, 'x', sizeof text);
	MUST(write(fd, text, sizeof text));
	T("for writing", cached(fd, 0));
	T("flags", cached(fd, 1));
	T("O_PATH", cached(MUST(open("cached", O_PATH)), 0));
	T("closed", cached(-1, 0));
	close(fd);
	fd = MUST(open("cached", O_RDONLY));
	T("the owner, for reading", cached(fd, 0));
	CHILD("another user", drop(); T("for reading", cached(fd, 0)));
	MUST(chmod("cached", 0666));
	CHILD("another user who may write", drop(); T("for reading", cached(fd, 0)));
	close(fd);
}

static void steps(void)
{
	extents();
	cache();
}
