/* Calls that wait cost nothing: while many of them wait for locks, pipes and FIFOs, no thread of the monitor runs for them. With the
   argument "threads": those that wait for locks and pipes hold no thread either. */
#include "txn.h"
#include <dirent.h>
#include <limits.h>

#define SLEEPS "voluntary_ctxt_switches:"

/* A number in a file of lines "NAME: NUMBER"; -1 where it is not there. */
static long number(const char *path, const char *name)
{
	char line[256];
	long found = -1;
	FILE *file = fopen(path, "r");

	while (file && fgets(line, sizeof line, file))
		if (!strncmp(line, name, strlen(name)))
			found = atol(line + strlen(name));
	if (file)
		fclose(file);
	return found;
}

/* How often threads of the monitor have gone to sleep that work for calls which wait, or keep their timers; and how many work for
   such calls. */
static long sleeps(const char *tasks, int *threads)
{
	DIR *dir = opendir(tasks);
	struct dirent *entry;
	long sum = 0;

	IS(dir);
	*threads = 0;
	while (dir && (entry = readdir(dir))) {
		char path[512], name[64] = "";
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "%s/%s/comm", tasks, entry->d_name);
		FILE *file = fopen(path, "r");
		if (!file)
			continue;
		bool works = fgets(name, sizeof name, file) && !strcmp(name, "waiting\n");
		if (works || !strcmp(name, "clock\n")) {
			snprintf(path, sizeof path, "%s/%s/status", tasks, entry->d_name);
			sum += number(path, SLEEPS);
			*threads += works;
		}
		fclose(file);
	}
	if (dir)
		closedir(dir);
	return sum;
}

enum { EACH = 4 };

static void test(int argc, char **argv)
{
	char tasks[64], status[64];
	struct flag held = new_flag(), end = new_flag();
	pid_t waiters[4 * EACH];
	int count = 0, threads, pipe_[2];
	long idle = LONG_MAX;

	snprintf(status, sizeof status, "/proc/%ld/status", number("/proc/self/status", "TracerPid:"));
	snprintf(tasks, sizeof tasks, "/proc/%ld/task", number(status, "Tgid:"));
	put("locked", "first");
	put("into", "");
	MUST(mkfifo("fifo", 0600));
	MUST(pipe(pipe_));
	int fd = MUST(open("locked", O_RDWR));

	pid_t holder = CHILD({
		IS(txn(BEGIN) == 1);
		put("locked", "holder");
		set(held);
		wait_for(end);
		IS(txn(COMMIT) == 0);
	});
	wait_for(held);
	for (int i = 0; i < EACH; i++) {
		waiters[count++] = CHILD({ IS(pwrite(fd, "w", 1, 0) == 1); });
		waiters[count++] = CHILD({ put("locked", "waiter"); });
		waiters[count++] = CHILD({
			int into = MUST(open("into", O_RDWR));
			IS(splice(pipe_[0], NULL, into, NULL, 1, 0) == 1);
		});
		waiters[count++] = CHILD({ IS(open("fifo", O_RDONLY) >= 0); });
	}
	/* On a busy machine it takes longer until all of them wait. */
	usleep(500000);
	for (int second = 0; second < 10 && idle > 2 * count; second++) {
		/* That of the thread which follows the processes is looked at last and first: with ptrace it wakes for calls of this test. */
		long before = sleeps(tasks, &threads);
		before += number(status, SLEEPS);
		usleep(1000000);
		idle = number(status, SLEEPS) - before;
		idle += sleeps(tasks, &threads);
		IS(before > 0);
	}
	/* Only for each open of the FIFO, and a few without work. */
	if (argc > 0 && !strcmp(argv[0], "threads") && threads > 2 * EACH)
		wrong(__FILE__, __LINE__, "%d threads for calls that wait", threads);
	/* A single thread that looked every 10 ms would sleep 100 times. */
	if (idle > 2 * count)
		wrong(__FILE__, __LINE__, "%ld sleeps of the monitor's threads in a second", idle);
	set(end);
	IS(write(pipe_[1], "xxxx", EACH) == EACH);
	int writer = MUST(open("fifo", O_WRONLY));
	ENDS(holder);
	for (int i = 0; i < count; i++)
		ENDS(waiters[i]);
	close(writer);
}
