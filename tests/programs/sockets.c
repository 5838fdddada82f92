/* Unix sockets whose names are in the mount. */
#include "step.h"
#include <pthread.h>
#include <stddef.h>

static struct sockaddr_un name_of(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	strncpy(address.sun_path, path, sizeof address.sun_path - 1);
	return address;
}

static int dial(const char *path, int type)
{
	struct sockaddr_un address = name_of(path);
	int fd = MUST(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));

	if (connect(fd, (void *)&address, sizeof address) == 0)
		return fd;
	int error = errno;
	close(fd);
	errno = error;
	return -1;
}

static void streams(void)
{
	struct sockaddr_un address = name_of("sock"), other;
	socklen_t length = sizeof other;
	char text[64] = "", path[300];
	int listener, fd, status;

	T("socket", listener = socket(AF_UNIX, SOCK_STREAM, 0));
	T("bind", bind(listener, (void *)&address, sizeof address));
	SHOW("sock");
	T("getsockname", getsockname(listener, (void *)&other, &length));
	note("%s", other.sun_path);
	T("connect before listen", dial("sock", SOCK_STREAM));
	T("listen", listen(listener, 5));
	T("bind again", bind(listener, (void *)&address, sizeof address));
	int second = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	T("bind on existing", bind(second, (void *)&address, sizeof address));
	address = name_of("none/sock");
	T("bind in missing", bind(second, (void *)&address, sizeof address));
	make("plain", "x");
	address = name_of("plain/sock");
	T("bind below file", bind(second, (void *)&address, sizeof address));
	close(second);
	T("connect to missing", dial("none", SOCK_STREAM));
	T("connect to file", dial("plain", SOCK_STREAM));
	T("connect to directory", dial(".", SOCK_STREAM));
	T("connect, other type", dial("sock", SOCK_DGRAM));
	O("open", open("sock", O_RDWR));
	pid_t child = MUST(fork());
	if (child == 0) {
		int c = MUST(dial("sock", SOCK_STREAM));
		T("child sends", send(c, "hello socket", 12, 0));
		length = sizeof other;
		memset(&other, 0, sizeof other);
		T("getpeername", getpeername(c, (void *)&other, &length));
		note("%s", other.sun_path);
		T("child receives", recv(c, text, sizeof text, 0));
		note("%.6s", text);
		_exit(0);
	}
	T("accept", fd = accept(listener, NULL, NULL));
	T("receive", recv(fd, text, 12, MSG_WAITALL));
	T("answer", send(fd, "answer", 6, 0));
	waitpid(child, &status, 0);
	ended(__LINE__, "child", status);
	struct ucred who;
	length = sizeof who;
	T("peer", getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length));
	IS("is the child", who.pid == child && who.uid == geteuid());
	close(fd);
	/* By an absolute name, by another link, after a rename. */
	snprintf(path, sizeof path, "%s/w/sock", top_path);
	if (strlen(path) < 100) {
		T("absolute", ({ fd = dial(path, SOCK_STREAM); fd >= 0 ? 0 : -1; }));
		close(fd);
	}
	MUST(symlink("sock", "slink"));
	T("by symbolic link", ({ fd = dial("slink", SOCK_STREAM); fd >= 0 ? 0 : -1; }));
	close(fd);
	MUST(link("sock", "hlink"));
	T("by hard link", ({ fd = dial("hlink", SOCK_STREAM); fd >= 0 ? 0 : -1; }));
	close(fd);
	MUST(unlink("hlink"));
	MUST(rename("sock", "moved"));
	T("by the old name", dial("sock", SOCK_STREAM));
	T("by the new name", ({ fd = dial("moved", SOCK_STREAM); fd >= 0 ? 0 : -1; }));
	close(fd);
	MUST(chmod("moved", 0));
	CHILD("no permission", ({ drop(); T("connect", dial("moved", SOCK_STREAM)); }));
	MUST(chmod("moved", 0777));
	close(listener);
	T("nobody listens", dial("moved", SOCK_STREAM));
	T("unlink", unlink("moved"));
	T("gone", dial("moved", SOCK_STREAM));
	/* The mode is what the umask leaves. */
	umask(077);
	listener = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	address = name_of("private");
	T("bind", bind(listener, (void *)&address, sizeof address));
	umask(022);
	SHOW("private");
	close(listener);
	/* Names without a file are not ours. */
	listener = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	T("abstract", bind(listener, (void *)&(struct sockaddr_un){.sun_family = AF_UNIX, .sun_path = ""}, sizeof(sa_family_t)));
	close(listener);
	/* A long name, without a final zero. */
	memset(&address, 'n', sizeof address);
	address.sun_family = AF_UNIX;
	listener = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	T("name of 108", bind(listener, (void *)&address, sizeof address));
	T("listen", listen(listener, 1));
	fd = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	T("connect", connect(fd, (void *)&address, sizeof address));
	close(fd);
	T("bind bad pointer", bind(listener, (void *)16, 20));
	T("bind to no socket", bind(2, (void *)&address, sizeof address));
	close(listener);
}

static void datagrams(void)
{
	struct sockaddr_un address = name_of("dgram"), mine = name_of("mine"), from;
	socklen_t length = sizeof from;
	char text[64] = "";
	int receiver = MUST(socket(AF_UNIX, SOCK_DGRAM, 0)), sender = MUST(socket(AF_UNIX, SOCK_DGRAM, 0));

	T("bind", bind(receiver, (void *)&address, sizeof address));
	T("bind sender", bind(sender, (void *)&mine, sizeof mine));
	T("sendto", sendto(sender, "one", 3, 0, (void *)&address, sizeof address));
	memset(&from, 0, sizeof from);
	T("recvfrom", recvfrom(receiver, text, sizeof text, MSG_DONTWAIT, (void *)&from, &length));
	note("%.3s from %s", text, from.sun_path);
	struct iovec vector = {"two", 3};
	struct msghdr message = {.msg_name = &address, .msg_namelen = sizeof address, .msg_iov = &vector, .msg_iovlen = 1};
	T("sendmsg", sendmsg(sender, &message, 0));
	T("recv", recv(receiver, text, sizeof text, MSG_DONTWAIT));
	address = name_of("none");
	T("sendto missing", sendto(sender, "x", 1, 0, (void *)&address, sizeof address));
	address = name_of("dgram");
	T("connect", connect(sender, (void *)&address, sizeof address));
	T("send", send(sender, "three", 5, 0));
	T("recv", recv(receiver, text, sizeof text, MSG_DONTWAIT));
	close(sender);
	close(receiver);
}

/* What lies in the receiver's queue. */
static void received(int line, int fd)
{
	char text[64] = "";
	struct sockaddr_un from = {0};
	socklen_t length = sizeof from;

	errno = 0;
	ssize_t got = recvfrom(fd, text, sizeof text - 1, MSG_DONTWAIT, (void *)&from, &length);
	say(line, "received", got, errno);
	/* A name of the kernel's own shows as it is; one in a mount need not. */
	note("%d '%s' from a socket %s", line, text, length > sizeof(sa_family_t) ? "with a name" : "without");
}

static void many(int fd, int receiver, struct sockaddr_un *good, struct sockaddr_un *bad)
{
	struct iovec vectors[4] = {{"first", 5}, {"the second", 10}, {"3rd", 3}, {"last", 4}};
	struct mmsghdr messages[4];

	memset(messages, 0, sizeof messages);
	for (int i = 0; i < 4; i++)
		messages[i] = (struct mmsghdr){{.msg_name = good, .msg_namelen = sizeof *good, .msg_iov = &vectors[i], .msg_iovlen = 1}, -1};
	T("sendmmsg", sendmmsg(fd, messages, 4, 0));
	note("%u %u %u %u", messages[0].msg_len, messages[1].msg_len, messages[2].msg_len, messages[3].msg_len);
	IS("the name is as it was", messages[2].msg_hdr.msg_name == good && messages[2].msg_hdr.msg_namelen == sizeof *good);
	for (int i = 0; i < 4; i++)
		received(__LINE__, receiver);
	messages[1].msg_len = messages[2].msg_len = 77;
	messages[2].msg_hdr.msg_name = bad;
	T("third is bad", sendmmsg(fd, messages, 4, 0));
	note("%u %u %u", messages[0].msg_len, messages[1].msg_len, messages[2].msg_len);
	messages[0].msg_hdr.msg_name = bad;
	T("first is bad", sendmmsg(fd, messages, 4, 0));
	T("none", sendmmsg(fd, messages, 0, 0));
	T("bad vector", sendmmsg(fd, (void *)16, 2, 0));
	received(__LINE__, receiver);
	received(__LINE__, receiver);
	received(__LINE__, receiver);
}

static void passed(int fd, int receiver, struct sockaddr_un *address)
{
	char control[CMSG_SPACE(sizeof(int))] = {0}, text[64] = "";
	struct iovec vector = {"descriptor", 10};
	struct msghdr message = {.msg_name = address, .msg_namelen = sizeof *address, .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	int one = 1, file, got = -1;

	make("carried", "content of the carried");
	file = MUST(open("carried", O_RDONLY));
	*header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(header), &file, sizeof file);
	T("send a descriptor", sendmsg(fd, &message, 0));
	close(file);
	vector = (struct iovec){text, sizeof text};
	message.msg_name = NULL;
	message.msg_namelen = 0;
	T("receive it", recvmsg(receiver, &message, MSG_DONTWAIT));
	header = CMSG_FIRSTHDR(&message);
	if (header && header->cmsg_type == SCM_RIGHTS)
		memcpy(&got, CMSG_DATA(header), sizeof got);
	memset(text, 0, sizeof text);
	T("read it", read(got, text, sizeof text));
	note("%s", text);
	close(got);
	/* The credentials of a message are the sender's, not the monitor's. */
	MUST(setsockopt(receiver, SOL_SOCKET, SO_PASSCRED, &one, sizeof one));
	char space[CMSG_SPACE(sizeof(struct ucred))] = {0};
	T("sendto", sendto(fd, "me", 2, 0, (void *)address, sizeof *address));
	vector = (struct iovec){text, sizeof text};
	message = (struct msghdr){.msg_iov = &vector, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
	T("receive it", recvmsg(receiver, &message, MSG_DONTWAIT));
	header = CMSG_FIRSTHDR(&message);
	struct ucred who = {0};
	if (header && header->cmsg_type == SCM_CREDENTIALS)
		memcpy(&who, CMSG_DATA(header), sizeof who);
	IS("from this process", who.pid == getpid() && who.uid == getuid());
	one = 0;
	MUST(setsockopt(receiver, SOL_SOCKET, SO_PASSCRED, &one, sizeof one));
}

static int sender;
static struct sockaddr_un target;

static int early_gate[2];

/* A thread that is older than the program's first datagram socket. */
static void *send_early(void *unused)
{
	char go;

	if (read(early_gate[0], &go, 1) != 1)
		return (void *)-1L;
	return (void *)(long)sendto(sender, "early", 5, 0, (void *)&target, sizeof target);
}

static pthread_t early;

static void *send_in_thread(void *unused)
{
	return (void *)(long)sendto(sender, "threaded", 8, 0, (void *)&target, sizeof target);
}

static void interrupted(int signal)
{
	(void)signal;
}

/* Sends by name, after datagrams(): other ways to the name, other senders, other contents. */
static void sends(void)
{
	struct sockaddr_un missing = name_of("missing"), plain = name_of("plain"), stream = name_of("streamer"), host;
	char path[300];
	int status, listener, count;

	target = name_of("inbox");
	int receiver = MUST(socket(AF_UNIX, SOCK_DGRAM, 0)), other = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	sender = MUST(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0));
	MUST(bind(receiver, (void *)&target, sizeof target));
	MUST(listener = socket(AF_UNIX, SOCK_STREAM, 0));
	MUST(bind(listener, (void *)&stream, sizeof stream));
	MUST(listen(listener, 1));
	T("short address", sendto(sender, "short", 5, 0, (void *)&target, offsetof(struct sockaddr_un, sun_path) + 5));
	received(__LINE__, receiver);
	T("of 16 bytes", symlink("inbox", "fourteenbytes_"));
	struct sockaddr_un sixteen = name_of("fourteenbytes_");
	T("by 16 bytes", sendto(sender, "16", 2, 0, (void *)&sixteen, 16));
	received(__LINE__, receiver);
	snprintf(path, sizeof path, "%s/w/inbox", top_path);
	if (strlen(path) < 100) {
		struct sockaddr_un absolute = name_of(path);
		T("absolute", sendto(sender, "absolute", 8, 0, (void *)&absolute, sizeof absolute));
		received(__LINE__, receiver);
	}
	T("nothing", sendto(sender, NULL, 0, 0, (void *)&target, sizeof target));
	received(__LINE__, receiver);
	T("to missing", sendto(sender, "x", 1, 0, (void *)&missing, sizeof missing));
	T("to file", sendto(sender, "x", 1, 0, (void *)&plain, sizeof plain));
	T("to stream socket", sendto(sender, "x", 1, 0, (void *)&stream, sizeof stream));
	T("from stream socket", sendto(other, "x", 1, 0, (void *)&target, sizeof target));
	T("from stream to missing", sendto(other, "x", 1, 0, (void *)&missing, sizeof missing));
	T("from no socket", sendto(1, "x", 1, 0, (void *)&target, sizeof target));
	T("from closed", sendto(-1, "x", 1, 0, (void *)&target, sizeof target));
	T("bad address", sendto(sender, "x", 1, 0, (void *)16, sizeof target));
	T("bad data", sendto(sender, (void *)16, 1, 0, (void *)&target, sizeof target));
	T("address too long", sendto(sender, "x", 1, 0, (void *)&target, sizeof target + 1));
	T("no address", sendto(sender, "x", 1, 0, NULL, 0));
	T("bad message", sendmsg(sender, (void *)16, 0));
	many(sender, receiver, &target, &missing);
	passed(sender, receiver, &target);
	pthread_t thread;
	void *sent;
	MUST(-pthread_create(&thread, NULL, send_in_thread, NULL));
	pthread_join(thread, &sent);
	T("from a thread", (long)sent);
	received(__LINE__, receiver);
	MUST(write(early_gate[1], "", 1));
	pthread_join(early, &sent);
	T("from an early thread", (long)sent);
	received(__LINE__, receiver);
	CHILD("child", ({ T("child sends", sendto(sender, "child", 5, 0, (void *)&target, sizeof target)); }));
	received(__LINE__, receiver);
	MUST(chdir("/"));
	T("from elsewhere", sendto(sender, "lost", 4, 0, (void *)&target, sizeof target));
	if (strlen(path) < 100) {
		struct sockaddr_un absolute = name_of(path);
		T("by its path", sendto(sender, "found", 5, 0, (void *)&absolute, sizeof absolute));
		received(__LINE__, receiver);
	}
	snprintf(path, sizeof path, "%s/w", top_path);
	MUST(chdir(path));
	/* A host socket, which the kernel finds itself. */
	snprintf(path, sizeof path, "%s/h", host_path);
	if (strlen(path) < 100) {
		int at_host = MUST(socket(AF_UNIX, SOCK_DGRAM, 0));
		host = name_of(path);
		T("bind on host", bind(at_host, (void *)&host, sizeof host));
		T("to host", sendto(sender, "host", 4, 0, (void *)&host, sizeof host));
		received(__LINE__, at_host);
		T("host to mount", sendto(at_host, "back", 4, 0, (void *)&target, sizeof target));
		received(__LINE__, receiver);
		close(at_host);
		unlink(path);
	}
	/* A full queue. */
	for (count = 0; sendto(sender, "x", 1, 0, (void *)&target, sizeof target) == 1; count++)
		;
	IS("full", errno == EAGAIN);
	IS("some fit", count > 3);
	MUST(fcntl(sender, F_SETFL, 0));
	struct sigaction action = {.sa_handler = interrupted};
	sigaction(SIGALRM, &action, NULL);
	struct itimerval soon = {.it_value.tv_usec = 50000}, never = {0};
	setitimer(ITIMER_REAL, &soon, NULL);
	T("interrupted", sendto(sender, "x", 1, 0, (void *)&target, sizeof target));
	pid_t child = MUST(fork());
	if (child == 0) {
		usleep(50000);
		char text[8];
		recv(receiver, text, sizeof text, 0);
		_exit(0);
	}
	action.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &action, NULL);
	soon.it_value.tv_usec = 20000;
	setitimer(ITIMER_REAL, &soon, NULL);
	T("waits for room", sendto(sender, "y", 1, 0, (void *)&target, sizeof target));
	waitpid(child, &status, 0);
	setitimer(ITIMER_REAL, &never, NULL);
	while (--count > 0)
		recv(receiver, path, sizeof path, MSG_DONTWAIT);
	received(__LINE__, receiver);
	T("connect elsewhere", connect(sender, (void *)&target, sizeof target));
	T("send", send(sender, "connected", 9, 0));
	received(__LINE__, receiver);
	/* Permissions, as the name has them. */
	MUST(chmod("inbox", 0));
	CHILD("no permission", ({ drop(); T("sendto", sendto(sender, "x", 1, 0, (void *)&target, sizeof target)); }));
	MUST(chmod("inbox", 0777));
	CHILD("permission", ({ drop(); T("sendto", sendto(sender, "other", 5, 0, (void *)&target, sizeof target)); }));
	received(__LINE__, receiver);
	close(receiver);
	T("nobody receives", sendto(sender, "x", 1, 0, (void *)&target, sizeof target));
	T("unlink", unlink("inbox"));
	T("gone", sendto(sender, "x", 1, 0, (void *)&target, sizeof target));
	close(sender);
	close(other);
	close(listener);
}

static void steps(void)
{
	MUST(pipe(early_gate));
	MUST(-pthread_create(&early, NULL, send_early, NULL));
	streams();
	datagrams();
	sends();
}
