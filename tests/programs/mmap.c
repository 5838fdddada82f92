/* Mapped files: private and shared, coherent with reads and writes of any process, outliving descriptors and names. */
#include "step.h"
#include <setjmp.h>

static sigjmp_buf escape_point;

static void on_fault(int number)
{
	siglongjmp(escape_point, number);
}

/* The signal that touching the byte raises, or 0. */
static int touch(volatile char *at, bool write)
{
	int number = sigsetjmp(escape_point, 1);

	if (number == 0) {
		if (write)
			*at = 't';
		else
			(void)*at;
	}
	return number;
}

static long map_result(void *address)
{
	return address == MAP_FAILED ? -1 : 0;
}

static void errnos(void)
{
	int reader, writer, both, dir;

	make("f", "0123456789");
	reader = MUST(open("f", O_RDONLY));
	writer = MUST(open("f", O_WRONLY));
	both = MUST(open("f", O_RDWR));
	dir = MUST(open(".", O_RDONLY));
	T("private read of read-only", map_result(mmap(NULL, 10, PROT_READ, MAP_PRIVATE, reader, 0)));
	T("private write of read-only", map_result(mmap(NULL, 10, PROT_READ | PROT_WRITE, MAP_PRIVATE, reader, 0)));
	T("shared read of read-only", map_result(mmap(NULL, 10, PROT_READ, MAP_SHARED, reader, 0)));
	T("shared write of read-only", map_result(mmap(NULL, 10, PROT_READ | PROT_WRITE, MAP_SHARED, reader, 0)));
	T("shared read of write-only", map_result(mmap(NULL, 10, PROT_READ, MAP_SHARED, writer, 0)));
	T("private read of write-only", map_result(mmap(NULL, 10, PROT_READ, MAP_PRIVATE, writer, 0)));
	T("shared write of read-write", map_result(mmap(NULL, 10, PROT_READ | PROT_WRITE, MAP_SHARED, both, 0)));
	T("exec", map_result(mmap(NULL, 10, PROT_READ | PROT_EXEC, MAP_PRIVATE, reader, 0)));
	T("directory", map_result(mmap(NULL, 10, PROT_READ, MAP_PRIVATE, dir, 0)));
	T("bad fd", map_result(mmap(NULL, 10, PROT_READ, MAP_SHARED, 777, 0)));
	T("length 0", map_result(mmap(NULL, 0, PROT_READ, MAP_SHARED, both, 0)));
	T("odd offset", map_result(mmap(NULL, 10, PROT_READ, MAP_SHARED, both, 10)));
	T("beyond the end", map_result(mmap(NULL, 10, PROT_READ, MAP_SHARED, both, 8192)));
	T("neither shared nor private", map_result(mmap(NULL, 10, PROT_READ, 0, both, 0)));
	T("shared validate", map_result(mmap(NULL, 10, PROT_READ, MAP_SHARED_VALIDATE, both, 0)));
	char *view = mmap(NULL, 4096, PROT_READ, MAP_SHARED, reader, 0);
	T("mprotect write of read-only descriptor", mprotect(view, 4096, PROT_READ | PROT_WRITE));
	close(reader);
	close(writer);
	close(both);
	close(dir);
}

static void coherent(void)
{
	char text[16] = "";
	int fd, other;

	make("c", "0123456789");
	fd = MUST(open("c", O_RDWR));
	other = MUST(open("c", O_RDWR));
	char *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	char *private = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	char *second = mmap(NULL, 4096, PROT_READ, MAP_SHARED, other, 0);
	note("%.10s|%.10s|%.10s", shared, private, second);
	shared[0] = 'S';
	T("pread", pread(fd, text, 3, 0));
	note("%.3s %.3s", text, second);
	private[1] = 'P';
	T("pread", pread(fd, text, 3, 0));
	note("%.3s %.3s %.3s", text, second, private);
	T("pwrite", pwrite(other, "W", 1, 2));
	note("%.3s %.3s %.3s", shared, second, private);
	T("extend", pwrite(other, "longer", 6, 10));
	note("%.16s", shared);
	SHOW("c");
	T("extend", ftruncate(fd, 30));
	CHILD("child", ({
		      note("child sees %.3s", shared);
		      shared[3] = 'C';
		      private[4] = 'D';
		      int own = open("c", O_RDWR);
		      pwrite(own, "E", 1, 5);
		      close(own);
	      }));
	note("%.6s %.6s", shared, second);
	note("%c%c", private[3] ? 'x' : '-', private[4]);
	T("msync", msync(shared, 4096, MS_SYNC));
	T("msync async", msync(shared, 4096, MS_ASYNC));
	T("msync bad flags", msync(shared, 4096, MS_SYNC | MS_ASYNC));
	T("msync odd", msync(shared + 1, 10, MS_SYNC));
	CONTENT("c");
	T("close", close(fd));
	T("close", close(other));
	shared[6] = 'L';
	CONTENT("c");
	T("munmap", munmap(shared, 4096));
	T("munmap", munmap(second, 4096));
	CONTENT("c");
	T("msync unmapped", msync(shared, 4096, MS_SYNC));
}

static void lifetimes(void)
{
	int fd;

	make("l", "lifetime");
	fd = MUST(open("l", O_RDWR));
	char *view = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	T("unlink", unlink("l"));
	note("%.8s", view);
	view[0] = 'L';
	CHILD("child", view[1] = 'I');
	note("%.8s", view);
	make("l", "new");
	view[2] = 'F';
	CONTENT("l");
	note("%.8s", view);
	munmap(view, 4096);
	/* Renamed while mapped. */
	make("r", "renamed");
	fd = MUST(open("r", O_RDWR));
	view = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	MUST(rename("r", "r2"));
	view[0] = 'R';
	munmap(view, 4096);
	CONTENT("r2");
	/* Only mapped, written, and the process ends without unmapping. */
	make("e", "exiting");
	CHILD("exits", ({
		      fd = MUST(open("e", O_RDWR));
		      view = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		      close(fd);
		      memcpy(view, "EXIT", 4);
	      }));
	CONTENT("e");
	CHILD("is killed", ({
		      fd = MUST(open("e", O_RDWR));
		      view = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		      memcpy(view, "kill", 4);
		      raise(SIGKILL);
	      }));
	CONTENT("e");
	/* Read-only mapping of a file one may write, made writable later. */
	make("p", "protect");
	fd = MUST(open("p", O_RDWR));
	view = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	T("write before", touch(view, true));
	T("mprotect", mprotect(view, 4096, PROT_READ | PROT_WRITE));
	T("write after", touch(view, true));
	CONTENT("p");
	munmap(view, 4096);
	CONTENT("p");
}

static void edges(void)
{
	int fd;

	make("s", "short");
	fd = MUST(open("s", O_RDWR));
	char *view = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	T("in the last page", touch(view + 4095, false));
	T("behind it", touch(view + 4096, false));
	T("grow", ftruncate(fd, 2 * 4096));
	T("now there", touch(view + 4096, true));
	T("behind", touch(view + 2 * 4096, true));
	T("shrink", ftruncate(fd, 3));
	T("gone", touch(view + 4096, false));
	T("grow", ftruncate(fd, 8192));
	note("zero again: %d %d", view[4096], view[4]);
	note("%.3s", view);
	T("mremap", map_result(view = mremap(view, 3 * 4096, 4096, 0)));
	T("larger", map_result(view = mremap(view, 4096, 4 * 4096, MREMAP_MAYMOVE)));
	T("write", touch(view + 5000, true));
	T("madvise", madvise(view, 8192, MADV_DONTNEED));
	note("%c", view[5000]);
	T("punch", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096));
	note("%d", view[5000]);
	munmap(view, 4 * 4096);
	close(fd);
	SHOW("s");
	/* Part of a large file, at an offset. */
	fd = MUST(open("large", O_RDWR | O_CREAT, 0644));
	MUST(ftruncate(fd, 8 << 20));
	view = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 4 << 20);
	memset(view, 'm', 65536);
	char byte;
	T("pread", pread(fd, &byte, 1, (4 << 20) + 65535));
	note("%c", byte);
	T("pwrite", pwrite(fd, "n", 1, (4 << 20) + 100));
	note("%c", view[100]);
	munmap(view, 65536);
	close(fd);
	unsigned long sum = 0;
	static unsigned char block[65536];
	fd = MUST(open("large", O_RDONLY));
	for (ssize_t got; (got = read(fd, block, sizeof block)) > 0;)
		for (ssize_t i = 0; i < got; i++)
			sum += block[i];
	note("sum %lu", sum);
	close(fd);
}

/* Two processes that started apart see each other's stores. */
static void two_processes(void)
{
	int ready[2], go[2];
	char byte;

	make("two", "................");
	MUST(pipe(ready));
	MUST(pipe(go));
	if (MUST(fork()) == 0) {
		int fd = MUST(open("two", O_RDWR));
		char *view = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		view[0] = 'c';
		MUST(write(ready[1], "x", 1));
		MUST(read(go[0], &byte, 1));
		note("child sees %.4s", view);
		view[2] = 'd';
		_exit(0);
	}
	MUST(read(ready[0], &byte, 1));
	int fd = MUST(open("two", O_RDWR));
	char *view = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	note("parent sees %.4s", view);
	view[1] = 'p';
	MUST(write(go[1], "x", 1));
	wait(NULL);
	note("parent sees %.4s", view);
	/* A counter both increment. */
	int *counter = (int *)(view + 8);
	*counter = 0;
	for (int child = 0; child < 3; child++) {
		if (MUST(fork()) == 0) {
			int own = MUST(open("two", O_RDWR));
			int *there = (int *)((char *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0) + 8);
			for (int i = 0; i < 10000; i++)
				__atomic_fetch_add(there, 1, __ATOMIC_SEQ_CST);
			_exit(0);
		}
	}
	while (wait(NULL) > 0)
		;
	note("counter %d", *counter);
	munmap(view, 4096);
	int back;
	T("pread", pread(fd, &back, sizeof back, 8));
	note("in the file %d", back);
	close(fd);
}

static void steps(void)
{
	struct sigaction action = {.sa_handler = on_fault};

	MUST(sigaction(SIGSEGV, &action, NULL));
	MUST(sigaction(SIGBUS, &action, NULL));
	errnos();
	coherent();
	lifetimes();
	edges();
	two_processes();
}
