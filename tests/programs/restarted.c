/* One signal for a process, two threads that wait: only the thread that handles it is interrupted, and no thread sees the
 * numbers by which the kernel restarts calls. */
#include "step.h"
#include <pthread.h>

static void on_signal(int number)
{
	(void)number;
}

/* Shared with the process that sends the signals. */
static volatile int *returned;

static void *waits(void *result)
{
	int fd = open("q", O_RDONLY);

	*(int *)result = fd < 0 ? errno : 0;
	close(fd);
	return NULL;
}

static void steps(void)
{
	struct sigaction action = {.sa_handler = on_signal};

	returned = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(sigaction(SIGUSR1, &action, NULL));
	MUST(mkfifo("p", 0644));
	MUST(mkfifo("q", 0644));
	for (int round = 0; round < 5; round++) {
		pthread_t thread;
		int result = -1;
		pid_t process = getpid();

		*returned = 0;
		pid_t child = MUST(fork());
		if (child == 0) {
			/* Until the main thread has been interrupted. */
			while (!*returned) {
				usleep(50000);
				kill(process, SIGUSR1);
			}
			int fd = open("q", O_WRONLY);
			_exit(fd < 0);
		}
		pthread_create(&thread, NULL, waits, &result);
		O("main thread", open("p", O_RDONLY));
		*returned = 1;
		pthread_join(thread, NULL);
		IS("other thread is not interrupted, or by a signal of its own", result == 0 || result == EINTR);
		int status;
		/* An interrupted reader leaves the writer alone. */
		int fd = open("q", O_RDONLY | O_NONBLOCK);
		while (waitpid(child, &status, 0) < 0 && errno == EINTR)
			;
		close(fd);
	}
}
