/* A call is over when its caller's end is known: nothing changes after the parent of a killed process has waited for it. */
#include "step.h"

static int count(const char *path)
{
	DIR *dir = opendir(path);
	int entries = 0;

	while (readdir(dir))
		entries++;
	closedir(dir);
	return entries;
}

static void steps(void)
{
	int late = 0;

	for (int round = 0; round < 60; round++) {
		char name[32];
		snprintf(name, sizeof name, "d%d", round);
		MUST(mkdir(name, 0755));
		pid_t child[2];
		for (int i = 0; i < 2; i++) {
			child[i] = MUST(fork());
			if (child[i] == 0) {
				for (int n = 0;; n++) {
					char file[64];
					snprintf(file, sizeof file, "%s/%d-%d", name, i, n);
					close(open(file, O_CREAT | O_WRONLY, 0644));
				}
			}
		}
		usleep(2000 + 137 * round);
		while (count(name) <= 2)
			usleep(500);
		for (int i = 0; i < 2; i++)
			kill(child[i], SIGKILL);
		for (int i = 0; i < 2; i++) {
			int status;
			waitpid(child[i], &status, 0);
		}
		int before = count(name);
		usleep(2000);
		late += count(name) - before;
	}
	IS("nothing made after the end", late == 0);
}
