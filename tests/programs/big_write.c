/* A write of 20 MiB is one operation: a process that looks at the file's size sees it all or nothing of it, and another one that
 * writes a page at the same time comes before or after it.
 *
 *     big_write DIR ROUNDS */
#include "txn.h"

#define LENGTH (20 << 20)

static void test(int argc, char **argv)
{
	char *data = malloc(LENGTH);
	volatile int *over = mmap(NULL, sizeof *over, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int fd = MUST(open("big", O_RDWR | O_CREAT | O_TRUNC, 0644));

	memset(data, 'b', LENGTH);
	struct iovec parts[3] = {{data, 1 << 20}, {data, LENGTH - (2 << 20)}, {data, 1 << 20}};
	pid_t looker = CHILD(({
		struct stat st;

		while (!*over) {
			IS(fstat(fd, &st) == 0);
			if (st.st_size != 0 && st.st_size != LENGTH)
				wrong(__FILE__, __LINE__, "%ld bytes", (long)st.st_size);
		}
	}));
	for (int i = 0; i < atoi(argv[0]); i++) {
		IS(i % 2 ? pwrite(fd, data, LENGTH, 0) == LENGTH : pwritev(fd, parts, 3, 0) == LENGTH);
		IS(ftruncate(fd, 0) == 0);
	}
	*over = 1;
	ENDS(looker);
}
