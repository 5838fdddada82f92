/* Processes that count in few files: each transaction adds one to a file of each of two groups, so that what is lost, doubled
 * or half done shows in the sums.
 *
 *     txn_count DIR PROCESSES ROUNDS [KILLS]
 *
 * With KILLS that many processes are killed at random moments, and others take their places; then ROUNDS is of no account. */
#include "txn.h"

#define FILES 4

static int processes, rounds, kills;
/* In memory that all share: what each has begun to commit, and what was acknowledged. */
static struct score { long tried, done, conflicts; } *scores;

static bool again(void)
{
	return errno == EDEADLK || errno == ETIMEDOUT;
}

static bool add_one(const char *name)
{
	char text[32] = "";
	int fd = open(name, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return false;
	bool ok = read(fd, text, sizeof text - 1) > 0;
	if (ok) {
		int length = snprintf(text, sizeof text, "%ld\n", atol(text) + 1);
		ok = pwrite(fd, text, length, 0) == length;
	}
	int error = errno;
	close(fd);
	errno = error;
	return ok;
}

static void count(struct score *score, unsigned seed, int number)
{
	char first[16], second[16];

	for (int round = 0; kills || round < number;) {
		snprintf(first, sizeof first, "a%d", rand_r(&seed) % FILES);
		snprintf(second, sizeof second, "b%d", rand_r(&seed) % FILES);
		/* In any order: deadlocks come about. */
		bool turned = rand_r(&seed) % 2;
		if (txn(BEGIN) != 1) {
			wrong(__FILE__, __LINE__, "begin: %s", strerrorname_np(errno));
			return;
		}
		bool ok = add_one(turned ? second : first) && add_one(turned ? first : second);
		if (!ok) {
			if (!again())
				wrong(__FILE__, __LINE__, "counting: %s", strerrorname_np(errno));
			IS(txn(ABORT) == 0);
			score->conflicts++;
			usleep(rand_r(&seed) % 3000);
			continue;
		}
		__atomic_add_fetch(&score->tried, 1, __ATOMIC_SEQ_CST);
		if (txn(COMMIT) == 0)
			__atomic_add_fetch(&score->done, 1, __ATOMIC_SEQ_CST);
		else
			wrong(__FILE__, __LINE__, "commit: %s", strerrorname_np(errno));
		round++;
	}
}

static long sum(char group)
{
	char name[16];
	long all = 0;

	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof name, "%c%d", group, i);
		all += atol(get(name));
	}
	return all;
}

static pid_t start(int slot, int turn)
{
	return CHILD(count(&scores[slot], 1000 * turn + slot, rounds));
}

static void test(int argc, char **argv)
{
	processes = argc > 0 ? atoi(argv[0]) : 4;
	rounds = argc > 1 ? atoi(argv[1]) : 10;
	kills = argc > 2 ? atoi(argv[2]) : 0;
	pid_t pids[processes];
	int slots = processes + kills, next = 0;
	unsigned seed = 7;

	scores = mmap(NULL, slots * sizeof *scores, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 2 * FILES; i++) {
		char name[16];
		snprintf(name, sizeof name, "%c%d", "ab"[i % 2], i / 2);
		put(name, "0\n");
	}
	for (int i = 0; i < processes; i++)
		pids[i] = start(next++, 0);
	for (int i = 0; i < kills; i++) {
		usleep(rand_r(&seed) % 20000);
		int victim = rand_r(&seed) % processes;
		kill(pids[victim], SIGKILL);
		MUST(waitpid(pids[victim], NULL, 0));
		pids[victim] = start(next++, i + 1);
		IS(sum('a') >= 0);
	}
	for (int i = 0; i < processes; i++) {
		if (kills)
			kill(pids[i], SIGKILL);
		int status;
		MUST(waitpid(pids[i], &status, 0));
		IS(status == (kills ? SIGKILL : 0));
	}
	long tried = 0, done = 0, conflicts = 0, a = sum('a'), b = sum('b');
	for (int i = 0; i < slots; i++) {
		tried += scores[i].tried;
		done += scores[i].done;
		conflicts += scores[i].conflicts;
	}
	/* A commit of a process that was killed before the call returned may count or not. */
	if (a != b || a < done || a > tried)
		wrong(__FILE__, __LINE__, "sums %ld and %ld, acknowledged %ld, tried %ld", a, b, done, tried);
	IS(kills ? done > 0 : done == (long)processes * rounds && tried == done);
	fprintf(stderr, "%ld commits, %ld conflicts\n", done, conflicts);
}
