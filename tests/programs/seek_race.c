/* A thread writes at its descriptor's offset while another one moves that offset. Wherever the data go, they are in the store
 * afterwards. Prints a checksum of the content as the program reads it; with "look" only that.
 *
 *     seek_race DIR ROUNDS|look */
#include "txn.h"

/* Many more than are written, so that a page that was not taken for changed is not written later. */
#define PAGES 8000

static volatile int over;

static void *seek(void *fd)
{
	unsigned int seed = 1;

	while (!over)
		lseek((int)(long)fd, (off_t)(rand_r(&seed) % PAGES) * 4096, SEEK_SET);
	return NULL;
}

static void test(int argc, char **argv)
{
	static char page[4096];
	int fd = MUST(open("raced", O_RDWR | O_CREAT, 0644));
	unsigned long sum = 0;
	pthread_t seeker;

	if (strcmp(argv[0], "look")) {
		IS(ftruncate(fd, PAGES * 4096) == 0);
		MUST(fsync(fd));
		IS(pthread_create(&seeker, NULL, seek, (void *)(long)fd) == 0);
		for (int i = 0; i < atoi(argv[0]); i++) {
			memset(page, 1 + i % 255, sizeof page);
			IS(write(fd, page, sizeof page) == sizeof page);
		}
		over = 1;
		pthread_join(seeker, NULL);
	}
	for (int i = 0; i < PAGES + 1; i++) {
		memset(page, 0, sizeof page);
		IS(pread(fd, page, sizeof page, (off_t)i * 4096) >= 0);
		for (size_t at = 0; at < sizeof page; at++)
			sum = sum * 31 + page[at];
	}
	printf("%lx\n", sum);
}
