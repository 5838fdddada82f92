/* Names of Unix sockets: every process sees the name that the program gave, from any directory. */
#include "step.h"
#include <stddef.h>

static struct sockaddr_un name_of(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	strncpy(address.sun_path, path, sizeof address.sun_path - 1);
	return address;
}

static int bound(const char *path, int type)
{
	struct sockaddr_un address = name_of(path);
	int fd = MUST(socket(AF_UNIX, type, 0));

	if (bind(fd, (void *)&address, sizeof address) == 0)
		return fd;
	int error = errno;
	close(fd);
	errno = error;
	return -1;
}

static int dial(int fd, const char *path)
{
	struct sockaddr_un address = name_of(path);

	return connect(fd, (void *)&address, sizeof address);
}

typedef int ask(int, struct sockaddr *, socklen_t *);

/* What a socket is called. */
static void called(int line, const char *name, ask *ask, int fd)
{
	char bytes[200];
	socklen_t length = sizeof bytes;

	memset(bytes, 'x', sizeof bytes);
	if (ask(fd, (void *)bytes, &length) < 0) {
		note("%d %s: %s", line, name, strerrorname_np(errno));
		return;
	}
	const char *path = bytes + offsetof(struct sockaddr_un, sun_path);
	if (length <= offsetof(struct sockaddr_un, sun_path))
		note("%d %s: no name", line, name);
	else
		note("%d %s: '%s' %s", line, name, shown(path), offsetof(struct sockaddr_un, sun_path) + strlen(path) + 1 == length ? "" : "of another length");
}
#define CALLED(name, ask, fd) called(__LINE__, name, ask, fd)

/* In the directory under test, in short. */
static const char *absolute(const char *name)
{
	static char path[PATH_MAX];

	snprintf(path, sizeof path, "%s/w/%s", top_path, name);
	return path;
}

/* Binds, connects, and asks both ends. */
static void both_ends(const char *path)
{
	int client = MUST(socket(AF_UNIX, SOCK_STREAM, 0)), accepted, server;

	note("-- %s", shown(path));
	T("bind", (server = bound(path, SOCK_STREAM)) < 0 ? -1 : 0);
	if (server < 0)
		return;
	CALLED("own name", getsockname, server);
	T("listen", listen(server, 3));
	T("connect", dial(client, path));
	CALLED("the peer's name", getpeername, client);
	CALLED("the client's name", getsockname, client);
	accepted = accept(server, NULL, NULL);
	CALLED("the accepted one's name", getsockname, accepted);
	CALLED("the accepted one's peer", getpeername, accepted);
	T("unlink", unlink(path));
	CALLED("after unlink", getsockname, server);
	close(accepted);
	close(client);
	close(server);
	/* A server that starts again. */
	T("bind again", (server = bound(path, SOCK_STREAM)) < 0 ? -1 : 0);
	T("unlink", unlink(path));
	close(server);
}

static void lengths(void)
{
	struct sockaddr_un address;
	socklen_t length = 5;
	int fd;

	T("bind", (fd = bound(absolute("lengths"), SOCK_STREAM)) < 0 ? -1 : 0);
	memset(&address, 'x', sizeof address);
	T("a short buffer", getsockname(fd, (void *)&address, &length));
	note("%u bytes, then %.4s", length == 2 + strlen(absolute("lengths")) + 1, address.sun_path + 3);
	length = 0;
	T("no buffer", getsockname(fd, NULL, &length));
	IS("the whole length", length == 2 + strlen(absolute("lengths")) + 1);
	length = -1;
	T("a negative length", getsockname(fd, (void *)&address, &length));
	length = sizeof address;
	T("a bad buffer", getsockname(fd, (void *)16, &length));
	T("a bad length", getsockname(fd, (void *)&address, (void *)16));
	T("no peer", getpeername(fd, (void *)&address, &length));
	T("no socket", getsockname(1, (void *)&address, &length));
	T("no descriptor", getsockname(-1, (void *)&address, &length));
	close(fd);
}

/* A datagram's sender can be answered by the name that came with the datagram. */
static void answers(const char *client_name)
{
	struct sockaddr_un from;
	socklen_t length = sizeof from;
	char text[32] = "";
	int server, client;

	note("-- from %s", shown(client_name));
	T("bind server", (server = bound("service", SOCK_DGRAM)) < 0 ? -1 : 0);
	T("bind client", (client = bound(client_name, SOCK_DGRAM)) < 0 ? -1 : 0);
	T("connect", dial(client, "service"));
	T("ask", send(client, "ask", 3, 0));
	memset(&from, 0, sizeof from);
	T("receive", recvfrom(server, text, sizeof text, MSG_DONTWAIT, (void *)&from, &length));
	note("%d from '%s'", __LINE__, shown(from.sun_path));
	T("answer", sendto(server, "answer", 6, 0, (void *)&from, length));
	T("get it", recv(client, text, sizeof text, MSG_DONTWAIT));
	close(server);
	close(client);
	MUST(unlink("service"));
	MUST(unlink(client_name));
}

/* Errors in the kernel's order. */
static void errors(void)
{
	int inet = MUST(socket(AF_INET, SOCK_STREAM, 0)), named = MUST(bound("named", SOCK_STREAM)), bad = MUST(open("/dev/null", O_RDONLY));
	struct sockaddr_un address = name_of("named"), other = name_of("other"), dot = name_of("."), below = name_of("none/x");

	T("bound already, new name", bind(named, (void *)&other, sizeof other));
	T("which is free", access("other", F_OK));
	T("bound already, taken name", bind(named, (void *)&address, sizeof address));
	T("bound already, missing directory", bind(named, (void *)&below, sizeof below));
	T("inet, new name", bind(inet, (void *)&other, sizeof other));
	T("inet, directory", bind(inet, (void *)&dot, sizeof dot));
	T("inet, taken name", bind(inet, (void *)&address, sizeof address));
	T("inet, connect", connect(inet, (void *)&address, sizeof address));
	T("inet, connect to missing", connect(inet, (void *)&other, sizeof other));
	T("no socket", bind(bad, (void *)&other, sizeof other));
	T("no socket, connect to missing", connect(bad, (void *)&other, sizeof other));
	T("no descriptor", bind(-1, (void *)&other, sizeof other));
	T("no descriptor, connect, bad address", connect(-1, (void *)16, sizeof other));
	T("connect, bad address", connect(named, (void *)16, sizeof other));
	T("connect, too long", connect(named, (void *)&address, sizeof address + 1));
	T("other", access("other", F_OK));
	MUST(unlink("named"));
	close(inet);
	close(named);
	close(bad);
}

static void deep(void)
{
	char name[41];

	memset(name, 'd', 40);
	name[40] = 0;
	for (int depth = 0; depth < 4; depth++) {
		MUST(mkdir(name, 0755));
		MUST(chdir(name));
		both_ends("s");
	}
	/* A name that fills the address, where no path to it would fit. */
	char full[108];
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	memset(full, 'f', 108);
	memcpy(address.sun_path, full, 108);
	int server = MUST(socket(AF_UNIX, SOCK_STREAM, 0)), client = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	T("bind 108", bind(server, (void *)&address, sizeof address));
	CALLED("108", getsockname, server);
	T("listen", listen(server, 1));
	T("connect 108", connect(client, (void *)&address, sizeof address));
	CALLED("108", getpeername, client);
	close(client);
	close(server);
	MUST(chdir(absolute("")));
}

/* A daemon that was started by root. */
static void dropped_root(void)
{
	MUST(mkdir("spool", 0755));
	MUST(chmod("spool", 0777));
	CHILD("daemon", ({
		drop();
		int fd;
		T("bind", (fd = bound("spool/socket", SOCK_STREAM)) < 0 ? -1 : 0);
		T("chmod", chmod("spool/socket", 0700));
		T("listen", listen(fd, 1));
		int client = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
		T("connect", dial(client, "spool/socket"));
		struct ucred who;
		socklen_t length = sizeof who;
		T("who listens", getsockopt(client, SOL_SOCKET, SO_PEERCRED, &who, &length));
		IS("this process", who.pid == getpid() && who.uid == geteuid());
	}));
	SHOW("spool/socket");
	MUST(unlink("spool/socket"));
}

static void modes(void)
{
	struct sockaddr_un address = name_of("moded");
	int fd = MUST(socket(AF_UNIX, SOCK_STREAM, 0));

	T("fchmod", fchmod(fd, 0751));
	T("bind", bind(fd, (void *)&address, sizeof address));
	SHOW("moded");
	close(fd);
	/* A connect checks the present modes. */
	T("listen", ({ fd = bound("gate", SOCK_STREAM); listen(fd, 5); }));
	for (int round = 0; round < 2; round++) {
		MUST(chmod("gate", round ? 0700 : 0777));
		CHILD("other user", ({
			if (geteuid() == 0) {
				MUST(setgroups(0, NULL));
				MUST(setresgid(12345, 12345, 12345));
				MUST(setresuid(12345, 12345, 12345));
			}
			T("connect", dial(MUST(socket(AF_UNIX, SOCK_STREAM, 0)), "gate"));
		}));
	}
	close(fd);
	T("mkfifo", mkfifo("pipe", 0600));
	T("open", (fd = open("pipe", O_RDWR | O_NONBLOCK)) < 0 ? -1 : 0);
	MUST(chmod("pipe", 0622));
	CHILD("other user", ({ drop(); O("open", open("pipe", O_WRONLY | O_NONBLOCK)); O("read", open("pipe", O_RDONLY | O_NONBLOCK)); }));
	close(fd);
}

static void steps(void)
{
	both_ends("plain");
	both_ends("./dotted");
	MUST(mkdir("dir", 0755));
	MUST(mkdir("dir/sub", 0755));
	both_ends("dir/sub/inside");
	both_ends("dir//sub/../twice");
	both_ends("../above");
	both_ends("dir/dir");
	MUST(symlink("dir/sub", "link"));
	both_ends("link/inside");
	both_ends(absolute("absolute"));
	both_ends(absolute("dir/../dir/sub/./absolute"));
	/* Lengths of addresses of the network. */
	both_ends("fourteenchars");
	both_ends("a.name.of.twenty.five.chr");
	lengths();
	answers("asker");
	answers(absolute("asker"));
	errors();
	deep();
	dropped_root();
	modes();
}
