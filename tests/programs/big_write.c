/* A write of 20 MiB is one operation: a process that looks at the file's size sees it all or nothing of it, and of two that write the
 * same range at the same time one comes after the other.
 *
 *     big_write DIR ROUNDS */
#include "txn.h"

#define LENGTH (20 << 20)

static char *data;

/* Two processes write the range, each a letter of its own: what one of them wrote is there, and nothing of the other one. */
static void race(int fd)
{
	pid_t writers[2];
	int go[2];

	MUST(pipe(go));
	for (int i = 0; i < 2; i++)
		writers[i] = CHILD(({
			char byte;

			memset(data, 'x' + i, LENGTH);
			close(go[1]);
			IS(read(go[0], &byte, 1) == 0);
			IS(pwrite(fd, data, LENGTH, 0) == LENGTH);
		}));
	/* Both have their data by then, as a rule. */
	usleep(50000);
	close(go[0]);
	close(go[1]);
	ENDS(writers[0]);
	ENDS(writers[1]);
	IS(pread(fd, data, LENGTH, 0) == LENGTH);
	for (int i = 1; i < LENGTH; i++) {
		if (data[i] != data[0]) {
			wrong(__FILE__, __LINE__, "%c before byte %d, %c from there", data[0], i, data[i]);
			break;
		}
	}
}

static void test(int argc, char **argv)
{
	volatile int *over = mmap(NULL, sizeof *over, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int fd = MUST(open("big", O_RDWR | O_CREAT | O_TRUNC, 0644));

	data = malloc(LENGTH);
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
	for (int i = 0; i < 2 * atoi(argv[0]); i++)
		race(fd);
}
