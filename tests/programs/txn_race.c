/* The race of Amino's paper: a privileged program asks with access(2) whether something is there, and then makes it, while an
 * adversary slips a symbolic link between. Ends when it has made ROUNDS files, and outside of transactions the adversary has
 * succeeded; prints how often that was.
 *
 *     txn_race DIR inside|outside ROUNDS */
#include "txn.h"

static void adversary(int target)
{
	for (;;) {
		if (symlink("secret", "name") == 0 || errno == EEXIST)
			unlink("name");
		usleep(rand() % 300);
	}
}

static void test(int argc, char **argv)
{
	bool inside = !strcmp(argv[0], "inside");
	int hits = 0, made = 0, rounds = atoi(argv[1]);
	unsigned long links = 0;

	put("secret", "");
	pid_t other = CHILD(adversary(0));
	while (made < rounds || (!inside && hits == 0)) {
		if (inside)
			IS(txn(BEGIN) == 1);
		if (access("name", F_OK) < 0) {
			if (errno == ENOENT) {
				/* Time for the adversary. */
				usleep(1000);
				int fd = open("name", O_WRONLY | O_CREAT, 0644);
				if (fd < 0 || write(fd, "mine", 4) != 4)
					wrong(__FILE__, __LINE__, "%d: %s", fd, strerrorname_np(errno));
				made++;
				close(fd);
			} else {
				IS(errno == EDEADLK || errno == ETIMEDOUT);
			}
		} else {
			/* The adversary may not be running. */
			links++;
			usleep(100);
		}
		if (inside)
			IS(txn(COMMIT) == 0);
		if (*get("secret")) {
			hits++;
			put("secret", "");
		}
		struct stat st;
		/* Only the adversary removes links. */
		if (lstat("name", &st) == 0 && S_ISREG(st.st_mode))
			unlink("name");
	}
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
	fprintf(stderr, "%d hits, %d made, %lu rounds with a link\n", hits, made, links);
	if (inside)
		IS(hits == 0);
}
