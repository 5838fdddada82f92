/* A program with seccomp filters of its own, which kill the thread that installs another one, then talks to a Unix socket by name;
 * and one that gets its socket from another process. */
#include "step.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

static struct sockaddr_un address = {AF_UNIX, "server"};

/* A filter that kills a process which installs a further filter by seccomp(2). */
static void sandbox(bool by_prctl)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_seccomp, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {4, code};

	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	if (by_prctl)
		T("filter by prctl", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
	else
		T("filter by seccomp", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
}

static void talk(int type)
{
	int fd = MUST(socket(AF_UNIX, type, 0));

	T("connect", connect(fd, (void *)&address, sizeof address));
	T("send", send(fd, "hello", 5, 0));
	close(fd);
	fd = MUST(socket(AF_UNIX, type, 0));
	if (type == SOCK_DGRAM)
		T("sendto", sendto(fd, "hello", 5, 0, (void *)&address, sizeof address));
	close(fd);
}

static void serve(int type)
{
	int server = MUST(socket(AF_UNIX, type, 0));

	MUST(bind(server, (void *)&address, sizeof address));
	if (type == SOCK_STREAM)
		MUST(listen(server, 9));
	/* A child of its own, for the filter stays. */
	CHILD("by seccomp", sandbox(false); talk(type));
	CHILD("by prctl", sandbox(true); talk(type));
	close(server);
	unlink(address.sun_path);
}

/* A process that makes no socket takes one out of another process. */
static void taken(void)
{
	int server = MUST(socket(AF_UNIX, SOCK_STREAM, 0));

	MUST(bind(server, (void *)&address, sizeof address));
	MUST(listen(server, 9));
	int other = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	int process = MUST(syscall(SYS_pidfd_open, getpid(), 0));
	int copy = MUST(syscall(SYS_pidfd_getfd, process, other, 0));
	T("connect a socket of another process", connect(copy, (void *)&address, sizeof address));
	close(copy);
	close(other);
	close(server);
	unlink(address.sun_path);
}

static void steps(void)
{
	serve(SOCK_STREAM);
	serve(SOCK_DGRAM);
	taken();
}
