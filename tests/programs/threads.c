/* Calls of processes with several threads, which are answered in the process, too: what one thread does must not change the answers of another one. */
#define STEP_HELPER
#include "step.h"
#include <pthread.h>
#include <spawn.h>

#define THREADS 4
#define ROUNDS 150
#define TEXT "0123456789"

extern char **environ;

static char in_top[PATH_MAX], in_host[PATH_MAX], dir_in_top[PATH_MAX];
static volatile int stop;
static volatile sig_atomic_t handled, wrong_in_handler;

static long size_of(const char *path)
{
	struct stat meta;

	return stat(path, &meta) < 0 ? -errno : meta.st_size;
}

static long entries(const char *path)
{
	DIR *dir = opendir(path);
	long count = 0;

	if (!dir)
		return -errno;
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

/* All calls that read what a path names, once each; the results as one number. */
static long look(const char *path)
{
	struct stat meta;
	struct statx more;
	char text[64];
	long sum = 0;
	int fd;

	sum = sum * 31 + (stat(path, &meta) < 0 ? errno : S_ISREG(meta.st_mode) ? meta.st_size : 1);
	sum = sum * 31 + (lstat(path, &meta) < 0 ? errno : meta.st_mode & S_IFMT);
	sum = sum * 31 + (access(path, R_OK) < 0 ? errno : 0);
	sum = sum * 31 + (readlink(path, text, sizeof text) < 0 ? errno : 1);
	sum = sum * 31 + (statx(AT_FDCWD, path, 0, STATX_SIZE | STATX_TYPE, &more) < 0 ? errno : S_ISREG(more.stx_mode) ? more.stx_size : 1);
	fd = open(path, O_RDONLY);
	sum = sum * 31 + (fd < 0 ? errno : fstat(fd, &meta) < 0 ? errno : S_ISREG(meta.st_mode) ? meta.st_size : 1);
	if (fd >= 0)
		sum = sum * 31 + (S_ISREG(meta.st_mode) ? read(fd, text, sizeof text) : 0);
	if (fd >= 0)
		close(fd);
	return sum;
}

static const char *paths[9];
static long expected[9], count_in_top, count_in_host;

static void expect(void)
{
	for (int i = 0; i < 9; i++)
		expected[i] = look(paths[i]);
	count_in_top = entries(dir_in_top);
	count_in_host = entries(host_path);
}

/* How many answers differ from those that the only thread got. */
static long differing(void)
{
	long wrong = 0;

	for (int i = 0; i < 9; i++)
		wrong += look(paths[i]) != expected[i];
	return wrong + (entries(dir_in_top) != count_in_top) + (entries(host_path) != count_in_host);
}

static void *looks(void *unused)
{
	long wrong = 0;

	for (int round = 0; round < ROUNDS; round++)
		wrong += differing();
	return (void *)wrong;
}

static void on_alarm(int signal)
{
	struct stat meta;
	int saved = errno;

	handled++;
	wrong_in_handler += stat(in_top, &meta) < 0 || meta.st_size != 5;
	wrong_in_handler += stat(in_host, &meta) < 0 || meta.st_size != 9;
	errno = saved;
}

/* A child of a process with threads has one. */
static void child_looks(void)
{
	int status;
	pid_t child = MUST(fork());

	if (child == 0) {
		long wrong = differing();

		if (chdir(top_path) < 0 || chdir("w") < 0 || look("five") != expected[0] || look("only") != expected[2])
			wrong++;
		if (chdir(host_path) < 0 || look("nine") != expected[1] || look("five") == expected[0])
			wrong++;
		_exit(wrong > 100 ? 100 : wrong);
	}
	MUST(waitpid(child, &status, 0));
	if (status)
		note("%d a child: status %x", __LINE__, status);
}

static void child_executes(void)
{
	char *args[] = { self_path, "-child", NULL };
	pid_t child;
	int status;

	if (posix_spawn(&child, self_path, NULL, NULL, args, environ))
		note("%d it cannot be executed", __LINE__);
	MUST(waitpid(child, &status, 0));
	if (status)
		note("%d a program: status %x", __LINE__, status);
}

/* Threads look while one changes names beside what they look at, starts processes, and gets signals. */
static void together(void)
{
	struct itimerval timer = { { 0, 1000 }, { 0, 1000 } }, none = { 0 };
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	pthread_t threads[THREADS];
	long wrong = 0;

	for (int i = 0; i < THREADS; i++)
		MUST(pthread_create(&threads[i], NULL, looks, NULL));
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
	for (int i = 0; i < 15; i++) {
		make("other", "1");
		MUST(rename("other", "another"));
		MUST(mkdir("more", 0755));
		child_looks();
		MUST(rmdir("more"));
		MUST(unlink("another"));
		child_executes();
	}
	for (int i = 0; i < THREADS; i++) {
		void *result;

		pthread_join(threads[i], &result);
		wrong += (long)result;
	}
	setitimer(ITIMER_REAL, &none, NULL);
	T("wrong answers", wrong);
	T("wrong answers in a handler", wrong_in_handler);
	IS("the handler ran", handled > 10);
}

struct writer {
	pthread_t thread;
	char path[PATH_MAX];
	int fd, own;
	long wrong;
};

static void *writes(void *argument)
{
	struct writer *writer = argument;
	struct stat meta;
	char text[10];

	writer->own = open(writer->path, O_RDWR | O_CREAT | O_EXCL, 0644);
	for (int i = 0; i < 200; i++) {
		writer->wrong += write(writer->own, TEXT, 10) != 10;
		writer->wrong += fstat(writer->own, &meta) < 0 || meta.st_size != 10 * (i + 1);
		writer->wrong += pread(writer->own, text, 10, 10 * i) != 10 || memcmp(text, TEXT, 10);
		writer->wrong += write(writer->fd, TEXT, 10) != 10;
	}
	return NULL;
}

/* Each has a file of its own, and all append to one that the process wrote to before it had threads. */
static void writers(void)
{
	static struct writer all[THREADS];
	struct stat meta;
	long wrong = 0;
	char text[10];
	int fd = MUST(open("common", O_RDWR | O_CREAT | O_APPEND, 0644));

	for (int i = 0; i < 200; i++)
		MUST(write(fd, TEXT, 10));
	for (int i = 0; i < THREADS; i++) {
		all[i].fd = fd;
		snprintf(all[i].path, sizeof all[i].path, "own%d", i);
		MUST(pthread_create(&all[i].thread, NULL, writes, &all[i]));
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(all[i].thread, NULL);
		wrong += all[i].wrong;
		close(all[i].own);
		MUST(stat(all[i].path, &meta));
		wrong += meta.st_size != 2000;
		MUST(unlink(all[i].path));
	}
	T("wrong writes", wrong);
	MUST(stat("common", &meta));
	T("size", meta.st_size);
	for (int i = 0; i < meta.st_size / 10; i++)
		wrong += pread(fd, text, 10, 10 * i) != 10 || memcmp(text, TEXT, 10);
	T("wrong contents", wrong);
	close(fd);
	MUST(unlink("common"));
}

static void *looks_meanwhile(void *unused)
{
	while (!stop) {
		size_of("five");
		access("none", F_OK);
		close(open("five", O_RDONLY));
	}
	return NULL;
}

/* One thread goes from directory to directory, while others look for the same names from there. What they find in one directory must not be known of the other. */
static void directories(void)
{
	long wrong = 0;

	for (int round = 0; round < 20; round++) {
		pthread_t threads[2];

		stop = 0;
		for (int i = 0; i < 2; i++)
			MUST(pthread_create(&threads[i], NULL, looks_meanwhile, NULL));
		for (int i = 0; i < 40; i++) {
			MUST(chdir("dir"));
			wrong += size_of("five") != -ENOENT;
			MUST(chdir(".."));
			wrong += size_of("five") != 5;
		}
		stop = 1;
		for (int i = 0; i < 2; i++)
			pthread_join(threads[i], NULL);
		for (int i = 0; i < 3; i++)
			wrong += size_of("five") != 5;
	}
	T("wrong directories", wrong);
}

static pthread_barrier_t moved;

/* Works in the mount, while the others work on the host. */
static void *looks_elsewhere(void *unused)
{
	long wrong = unshare(CLONE_FS) < 0;

	wrong += chdir(top_path) < 0 || chdir("w") < 0;
	pthread_barrier_wait(&moved);
	for (int i = 0; i < ROUNDS; i++)
		wrong += (look("five") != expected[0]) + (look("nine") == expected[1]);
	return (void *)wrong;
}

static void *looks_on_host(void *unused)
{
	long wrong = 0;

	for (int i = 0; i < 5; i++)
		wrong += look("nine") != expected[1];
	pthread_barrier_wait(&moved);
	for (int i = 0; i < ROUNDS; i++)
		wrong += (look("five") == expected[0]) + (look("nine") != expected[1]);
	return (void *)wrong;
}

static void own_directory(void)
{
	pthread_t threads[2];
	void *result;

	pthread_barrier_init(&moved, NULL, 2);
	MUST(chdir(host_path));
	MUST(pthread_create(&threads[0], NULL, looks_elsewhere, NULL));
	MUST(pthread_create(&threads[1], NULL, looks_on_host, NULL));
	pthread_join(threads[0], &result);
	T("wrong in the mount", (long)result);
	pthread_join(threads[1], &result);
	T("wrong on the host", (long)result);
	MUST(chdir(top_path));
	MUST(chdir("w"));
	T("again", look("five") == expected[0]);
}

static void *remains(void *unused)
{
	long wrong;

	usleep(20000);
	wrong = differing();
	wrong += chdir(top_path) < 0 || chdir("w") < 0 || look("five") != expected[0];
	_exit(wrong > 100 ? 100 : wrong);
}

static void *executes(void *unused)
{
	execl(self_path, self_path, "-child", NULL);
	_exit(99);
}

/* The first thread ends before the others, or another one executes a program. */
static void leaders(void)
{
	void *(*others[])(void *) = { remains, executes };

	for (int i = 0; i < 2; i++) {
		int status;
		pid_t child = MUST(fork());

		if (child == 0) {
			pthread_t threads[2];

			pthread_create(&threads[0], NULL, looks, NULL);
			pthread_create(&threads[1], NULL, others[i], NULL);
			pthread_exit(NULL);
		}
		MUST(waitpid(child, &status, 0));
		ended(__LINE__, i ? "executed" : "remained", status);
	}
}

static char *page;

static void *protects(void *unused)
{
	while (!stop) {
		mprotect(page, 4096, PROT_NONE);
		mprotect(page, 4096, PROT_READ | PROT_WRITE);
	}
	return NULL;
}

/* A path, and a buffer for the answer, in memory that comes and goes. */
static void faults(void)
{
	struct stat meta;
	long found = 0, faults = 0, other = 0;
	pthread_t thread;

	stop = 0;
	page = (char *)MUST(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	stpcpy(page, in_top);
	MUST(pthread_create(&thread, NULL, protects, NULL));
	for (int i = 0; i < 4000; i++) {
		errno = 0;
		int result = i % 2 ? stat(page, &meta) : stat(in_top, (struct stat *)(page + 2048));

		found += result == 0;
		faults += result < 0 && errno == EFAULT;
		other += result < 0 && errno != EFAULT;
	}
	stop = 1;
	pthread_join(thread, NULL);
	T("others", other);
	T("all", found + faults);
}

static int helper(int argc, char **argv)
{
	return 0;
}

static void steps(void)
{
	static char missing[PATH_MAX], missing_on_host[PATH_MAX], link[PATH_MAX];

	snprintf(in_top, sizeof in_top, "%s/w/five", top_path);
	snprintf(dir_in_top, sizeof dir_in_top, "%s/w/dir", top_path);
	snprintf(in_host, sizeof in_host, "%s/nine", host_path);
	snprintf(missing, sizeof missing, "%s/w/dir/none", top_path);
	snprintf(missing_on_host, sizeof missing_on_host, "%s/none", host_path);
	snprintf(link, sizeof link, "%s/link", host_path);
	make("five", "12345");
	make("only", "12");
	make(in_host, "123456789");
	MUST(mkdir("dir", 0755));
	make("dir/one", "1");
	unlink(link);
	MUST(symlink(in_top, link));
	const char *all[] = { "five", in_host, "only", in_top, dir_in_top, missing, missing_on_host, link, "dir/one" };

	memcpy(paths, all, sizeof all);
	expect();
	T("again", differing());
	together();
	writers();
	leaders();
	directories();
	faults();
	own_directory();
	unlink(link);
}
