/* Makes calls of many kinds between two markers, access("/begin") and access("/end"), and writes down each with its result: the
   log is what an observer must have seen of each thread. Usage: observed DIR LOGDIR PROCESSES. The log of thread N is LOGDIR/N. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static __thread char log_text[1 << 18];
static __thread size_t log_len;

static long note(const char *name, long result)
{
	long shown = result == -1 ? -errno : result;
	log_len += snprintf(log_text + log_len, sizeof log_text - log_len, "%s %ld\n", name, shown);
	return result;
}

/* A call by its kernel name, noted. */
#define DO(name, ...) note(#name, syscall(SYS_##name, ##__VA_ARGS__))

static void save(const char *dir)
{
	char path[256];
	syscall(SYS_access, "/end", F_OK);
	snprintf(path, sizeof path, "%s/%ld", dir, syscall(SYS_gettid));
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
	if (fd < 0 || write(fd, log_text, log_len) != (ssize_t)log_len)
		_exit(3);
	close(fd);
}

static const char *logs;

static void files(int number)
{
	char name[32], other[32], text[4096];
	struct stat st;
	snprintf(name, sizeof name, "f%d", number);
	snprintf(other, sizeof other, "g%d", number);
	int fd = DO(openat, AT_FDCWD, name, O_RDWR | O_CREAT, 0640);
	DO(write, fd, "0123456789", 10);
	struct iovec iov[2] = {{"ab", 2}, {"cde", 3}};
	DO(writev, fd, iov, 2);
	DO(pwrite64, fd, "X", 1, 100);
	DO(lseek, fd, 2, SEEK_SET);
	DO(read, fd, text, 5);
	DO(pread64, fd, text, 4096, 0);
	DO(read, fd, (void *)8, 5);
	DO(fstat, fd, &st);
	DO(ftruncate, fd, 50);
	DO(fsync, fd);
	DO(fcntl, fd, F_GETFL);
	int copy = DO(dup, fd);
	DO(close, copy);
	DO(close, copy);
	DO(close, fd);
	DO(stat, "nothing", &st);
	DO(newfstatat, AT_FDCWD, name, &st, 0);
	DO(access, name, W_OK);
	DO(link, name, other);
	DO(rename, other, name);
	DO(unlink, other);
	DO(symlink, name, other);
	DO(readlink, other, text, sizeof text);
	DO(chmod, name, 0600);
	DO(truncate, other, 5);
	DO(unlink, other);
	snprintf(other, sizeof other, "d%d", number);
	DO(mkdir, other, 0700);
	DO(mkdir, other, 0700);
	DO(chdir, other);
	DO(openat, AT_FDCWD, "../nothing", O_RDONLY);
	DO(chdir, "..");
	int dir = DO(openat, AT_FDCWD, other, O_RDONLY | O_DIRECTORY);
	while (DO(getdents64, dir, text, sizeof text) > 0)
		;
	DO(fchdir, dir);
	DO(chdir, "..");
	DO(close, dir);
	DO(unlinkat, AT_FDCWD, other, AT_REMOVEDIR);
	DO(unlink, name);
	DO(execve, "nothing", NULL, NULL);
	DO(open, (char *)8, O_RDONLY);
	DO(io_uring_setup, 1, NULL);
	DO(mmap, NULL, 1, PROT_READ, MAP_PRIVATE, 99, 0);
}

static void on_alarm(int signal)
{
}

static void interrupted(void)
{
	int pipe_ends[2];
	char byte;
	struct sigaction action = {.sa_handler = on_alarm};
	DO(pipe2, pipe_ends, 0);
	/* A handler without SA_RESTART: EINTR. */
	sigaction(SIGALRM, &action, NULL);
	ualarm(20000, 0);
	long result = syscall(SYS_read, pipe_ends[0], &byte, 1);
	note(result == -1 && errno == EINTR ? "read EINTR" : "read", result);
	/* Ignored: the call goes on until there is something to read. */
	signal(SIGCHLD, SIG_DFL);
	int child = DO(fork);
	if (child == 0) {
		usleep(20000);
		_exit(0);
	}
	child = DO(fork);
	if (child == 0) {
		usleep(60000);
		write(pipe_ends[1], "x", 1);
		_exit(0);
	}
	note("read", syscall(SYS_read, pipe_ends[0], &byte, 1));
	DO(wait4, -1, NULL, 0, NULL);
	DO(wait4, -1, NULL, 0, NULL);
	DO(wait4, -1, NULL, 0, NULL);
	DO(close, pipe_ends[0]);
	DO(close, pipe_ends[1]);
	int pair[2];
	DO(socketpair, AF_UNIX, SOCK_STREAM, 0, pair);
	DO(sendto, pair[0], "abc", 3, 0, NULL, 0);
	char text[10];
	DO(recvfrom, pair[1], text, 10, 0, NULL, NULL);
	DO(close, pair[0]);
	DO(close, pair[1]);
}

static void *thread(void *number)
{
	log_len = 0;
	syscall(SYS_access, "/begin", F_OK);
	files((int)(long)number);
	save(logs);
	return NULL;
}

int main(int argc, char **argv)
{
	logs = argv[2];
	int count = atoi(argv[3]);
	if (chdir(argv[1]))
		return 2;
	syscall(SYS_access, "/begin", F_OK);
	interrupted();
	files(1000);
	save(logs);
	for (int i = 0; i < count; i++) {
		if (fork() == 0) {
			pthread_t one;
			log_len = 0;
			syscall(SYS_access, "/begin", F_OK);
			for (int j = 0; j < 10; j++)
				files(i);
			save(logs);
			pthread_create(&one, NULL, thread, (void *)(long)(2000 + i));
			pthread_join(one, NULL);
			return 0;
		}
	}
	int status, failed = 0;
	for (int i = 0; i < count; i++)
		failed |= wait(&status) < 0 || status != 0;
	return failed;
}
