/* Random operations of many processes: nested transactions, joining, leaving, children that outlive them, kills. Nothing hangs, no call
* fails with an unexpected error, and the test that runs the program checks the store afterwards.
 *
 *     txn_chaos DIR PROCESSES STEPS SEED */
#include "txn.h"

/* Identifiers of transactions that somebody began. */
#define IDS 8
static char (*ids)[ID_LEN];

static bool is_any(int error, const int *allowed)
{
	while (*allowed && *allowed != error)
		allowed++;
	return *allowed != 0;
}

#define MAY(call, ...) \
	do { \
		errno = 0; \
		if ((call) < 0 && !is_any(errno, (int[]){__VA_ARGS__ __VA_OPT__(,) 0})) \
			wrong(__FILE__, __LINE__, "%s: %s", strerrorname_np(errno), #call); \
	} while (0)

/* What any operation of a transaction can meet: others' locks, and its end by somebody else. */
#define LOCKS EDEADLK, ETIMEDOUT, ECANCELED, ESTALE

static void chaos(int steps, unsigned seed)
{
	char a[32], b[32], id[ID_LEN];
	int depth = 0, fd;

	for (int i = 0; i < steps; i++) {
		snprintf(a, sizeof a, "d%d/f%d", rand_r(&seed) % 3, rand_r(&seed) % 6);
		snprintf(b, sizeof b, "d%d/f%d", rand_r(&seed) % 3, rand_r(&seed) % 6);
		int slot = rand_r(&seed) % IDS;
		switch (rand_r(&seed) % 24) {
		case 0: case 1: case 2:
			if (depth < 6 && txn_of(BEGIN, 0, id) > 0) {
				memcpy(ids[slot], id, ID_LEN);
				depth++;
			}
			break;
		case 3: case 4: case 5:
			MAY(txn(COMMIT), ENODATA, EBUSY, ENOENT);
			depth -= depth > 0;
			break;
		case 6: case 7:
			MAY(txn(ABORT), ENODATA);
			depth -= depth > 0;
			break;
		case 8:
			memcpy(id, ids[slot], ID_LEN);
			MAY(txn_of(ATTACH, 0, id), ENOENT, EBUSY, EINVAL);
			break;
		case 9:
			MAY(txn(DETACH), ENODATA);
			depth = 0;
			break;
		case 10:
			if (txn_of(SUSPEND, 0, id) == 0) {
				MAY(access(a, F_OK), ENOENT);
				/* When it has ended meanwhile, the one around it is set aside, and we would wait for our own locks. */
				if (txn_of(RESUME, 0, id) < 0) {
					if (errno != ENOENT)
						wrong(__FILE__, __LINE__, "resume: %s", strerrorname_np(errno));
					_exit(0);
				}
			}
			break;
		case 11:
			MAY(rename(a, b), ENOENT, LOCKS);
			break;
		case 12:
			MAY(unlink(a), ENOENT, LOCKS);
			break;
		case 13:
			MAY(link(a, b), ENOENT, EEXIST, LOCKS);
			break;
		case 14:
			MAY(truncate(a, rand_r(&seed) % 10000), ENOENT, LOCKS);
			break;
		case 15: {
			pid_t child = CHILD(chaos(steps / 6, seed + 1); _exit(0));
			/* Do not wait for it while it runs: it may wait for our locks. */
			if (rand_r(&seed) % 2) {
				usleep(rand_r(&seed) % 20000);
				kill(child, SIGKILL);
				waitpid(child, NULL, 0);
			}
			break;
		}
		case 16:
			if (rand_r(&seed) % 30 == 0)
				_exit(0);
			break;
		case 17:
			MAY(chmod(a, 0600 + rand_r(&seed) % 64), ENOENT, LOCKS);
			break;
		default:
			MAY(fd = open(a, O_RDWR | O_CREAT, 0644), LOCKS);
			if (fd >= 0) {
				MAY(pwrite(fd, a, sizeof a, rand_r(&seed) % 9000), LOCKS);
				MAY(pread(fd, b, sizeof b, rand_r(&seed) % 9000), LOCKS);
				close(fd);
			}
		}
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}

static void test(int argc, char **argv)
{
	int processes = atoi(argv[0]), steps = atoi(argv[1]);
	unsigned seed = atoi(argv[2]);

	(void)argc;
	ids = mmap(NULL, IDS * ID_LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MAY(mkdir("d0", 0755), EEXIST);
	MAY(mkdir("d1", 0755), EEXIST);
	MAY(mkdir("d2", 0755), EEXIST);
	for (int i = 0; i < processes; i++)
		CHILD(chaos(steps, seed * 1000 + i));
	while (wait(NULL) > 0)
		;
}
