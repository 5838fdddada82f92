/* msync of a range reaches the file, whichever mapping of it the range is in, and nothing is lost beside it. */
#include "step.h"

#define MIB (1 << 20)

static void show(const char *path, off_t at)
{
	char byte = '?';
	int fd = MUST(open(path, O_RDONLY));

	MUST(pread(fd, &byte, 1, at));
	note("%s at %ld: %c", path, (long)at, byte);
	close(fd);
}

static void steps(void)
{
	int fd = MUST(open("f", O_RDWR | O_CREAT, 0644)), other = MUST(open("g", O_RDWR | O_CREAT, 0644));
	char *all, *end, *second;

	MUST(ftruncate(fd, 8 * MIB));
	MUST(ftruncate(other, MIB));
	all = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	end = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 7 * MIB);
	second = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0);
	close(fd);
	close(other);
	all[5 * MIB] = 'a';
	T("sync of a page", msync(all + 5 * MIB, 4096, MS_SYNC));
	end[100] = 'b';
	T("sync of a mapping with an offset", msync(end, 4096, MS_SYNC));
	second[9] = 'c';
	T("sync later", msync(second, MIB, MS_ASYNC));
	T("sync of nothing", msync(all, 0, MS_SYNC));
	T("not at a page", msync(all + 1, 4096, MS_SYNC));
	T("both flags", msync(all, 4096, MS_SYNC | MS_ASYNC));
	MUST(munmap(second, MIB));
	T("unmapped", msync(second, 4096, MS_SYNC));
	T("beyond the end", msync((void *)(-4096UL), 8192, MS_SYNC));
	show("f", 5 * MIB);
	show("f", 7 * MIB + 100);
	show("g", 9);
	/* What no msync was told of is seen all the same. */
	all[MIB] = 'd';
	show("f", MIB);
	/* Still mapped when the run ends. */
	all[3] = 'e';
}
