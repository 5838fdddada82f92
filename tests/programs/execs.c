/* Processes that run programs, while others open files: none waits for another one for long. */
#define STEP_HELPER
#include "step.h"

enum { WORKERS = 4, ROUNDS = 60, OPENS = 12, LONG = 5 };

/* The program that they run. */
static int helper(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	char byte;

	for (int i = 0; i < OPENS; i++) {
		int fd = open(i % 2 ? "file" : "other", O_RDONLY | O_CLOEXEC);
		if (fd < 0 || read(fd, &byte, 1) != 1 || close(fd))
			return 1;
	}
	return 0;
}

static int work(void)
{
	int failed = 0;

	for (int i = 0; i < ROUNDS; i++) {
		time_t start = time(NULL);
		int status;
		pid_t child = fork();
		if (!child) {
			execl(self_path, self_path, "-opens", NULL);
			_exit(127);
		}
		if (child < 0 || waitpid(child, &status, 0) != child || status)
			failed |= 1;
		if (time(NULL) - start > LONG)
			failed |= 2;
	}
	return failed;
}

static void steps(void)
{
	make("file", "hello");
	make("other", "hello");
	for (int i = 0; i < WORKERS; i++) {
		pid_t child = MUST(fork());
		if (!child)
			_exit(work());
	}
	for (int i = 0; i < WORKERS; i++) {
		int status;
		MUST(wait(&status));
		note("worker: %d", WEXITSTATUS(status));
	}
}
