/* A large file, written and read at random; every byte can be foretold. */
#include "step.h"

#define BLOCK 65536

static uint64_t state = 88172645463325252ULL;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static void fill(unsigned char *block, uint64_t number, unsigned version)
{
	uint64_t *words = (uint64_t *)block;

	for (int i = 0; i < BLOCK / 8; i++)
		words[i] = version ? (number * 1000003 + version) * 2654435761u + i : 0;
}

static void steps(void)
{
	uint64_t blocks = strtoull(arguments[0], NULL, 10) * 16, wrong = 0, sum = 0;
	unsigned char *version = calloc(blocks, 1);
	static unsigned char block[BLOCK], back[BLOCK];
	int fd = MUST(open("large", O_RDWR | O_CREAT, 0644)), reader = MUST(open("large", O_RDONLY));

	for (uint64_t i = 0; i < blocks; i++) {
		fill(block, i, version[i] = 1);
		wrong += write(fd, block, BLOCK) != BLOCK;
	}
	SHOW("large");
	for (uint64_t i = 0; i < blocks / 2; i++) {
		uint64_t at = next() % blocks;
		fill(block, at, ++version[at]);
		wrong += pwrite(fd, block, BLOCK, at * BLOCK) != BLOCK;
		at = next() % blocks;
		fill(block, at, version[at]);
		wrong += pread(reader, back, BLOCK, at * BLOCK) != BLOCK || memcmp(block, back, BLOCK);
		if (i == blocks / 4) {
			T("fsync", fsync(fd));
			/* Cut off, then grown again: the end is zeros. */
			T("shrink", ftruncate(fd, (blocks - 8) * BLOCK));
			T("grow", ftruncate(fd, blocks * BLOCK));
			memset(version + blocks - 8, 0, 8);
		}
	}
	note("wrong %lu", wrong);
	close(fd);
	close(reader);
	fd = MUST(open("large", O_RDONLY));
	for (uint64_t i = 0; i < blocks; i++) {
		fill(block, i, version[i]);
		wrong += read(fd, back, BLOCK) != BLOCK || memcmp(block, back, BLOCK);
		sum += back[i % BLOCK];
	}
	note("wrong %lu sum %lu", wrong, sum);
	const unsigned char *view = mmap(NULL, blocks * BLOCK, PROT_READ, MAP_SHARED, fd, 0);
	for (uint64_t i = 0; i < 200; i++) {
		uint64_t at = next() % blocks;
		fill(block, at, version[at]);
		wrong += memcmp(view + at * BLOCK, block, BLOCK) != 0;
	}
	note("mapped wrong %lu", wrong);
	SHOW("large");
}
