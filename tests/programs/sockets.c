/* Unix sockets whose names are in the mount. */
#include "step.h"

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

static void steps(void)
{
	streams();
	datagrams();
}
