/* Names that /proc/PID/maps and /proc/PID/stat show as they are: no UTF-8, or a name of the kernel's own mappings. The monitor
 * reads these files to see what a process maps. */
#include "step.h"
#include <sys/prctl.h>

#define MIB (1 << 20)

/* Maps a new file of the host until the process ends. */
static void map_file(const char *name, off_t size)
{
	char path[PATH_MAX];

	snprintf(path, sizeof path, "%s/%s", host_path, name);
	int fd = MUST(open(path, O_RDWR | O_CREAT | O_TRUNC, 0600));
	MUST(ftruncate(fd, size));
	IS("mapped", mmap(NULL, size, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0) != MAP_FAILED);
	close(fd);
}

/* Calls enough for the monitor to answer them in the process from some time on. */
static void many_calls(void)
{
	struct stat st;
	int failed = 0;

	make("looked at", "");
	for (int i = 0; i < 3000; i++)
		failed += stat("looked at", &st) != 0;
	note("failed %d", failed);
}

/* A file that is mapped, and then becomes too large for memory. */
static void grow(long mebibytes)
{
	static char block[MIB], back[6];
	int fd = MUST(open("mapped", O_RDWR | O_CREAT, 0600)), failed = 0;

	memset(block, 'a', sizeof block);
	MUST(write(fd, block, 4096));
	char *view = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	IS("mapped", view != MAP_FAILED);
	for (long i = 0; i < mebibytes; i++)
		failed += write(fd, block, sizeof block) != sizeof block;
	note("failed %d", failed);
	memcpy(view, "mapped", 6);
	T("read", pread(fd, back, 6, 0));
	note("%.6s", back);
	T("write", pwrite(fd, "WRITE", 5, 0));
	note("%.6s", view);
	munmap(view, 4096);
	close(fd);
	fd = MUST(open("mapped", O_RDONLY));
	T("read later", pread(fd, back, 6, 0));
	note("%.6s", back);
	close(fd);
}

static void steps(void)
{
	/* The name of the thread is in its stat. */
	prctl(PR_SET_NAME, "\xff) S 1 (\xfe");
	/* A monitor that takes it for the vDSO has not the memory to read all of it. */
	map_file("a [vdso]", (off_t)1 << 40);
	many_calls();
	map_file("\xff\xfe", 4096);
	grow(atol(arguments[0]));
}
