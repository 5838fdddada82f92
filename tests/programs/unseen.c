/* Objects that nobody holds whom the monitor has seen in a call: children that make no call after fork, and sockets. Meanwhile the
 * parent moves or reuses these objects. The argument chooses the part: growing, mapped, standing, flying. */
#include "step.h"

#define MIB (1 << 20)

static volatile int *go;

/* Makes no call that the monitor sees. */
static void spin(void)
{
	while (!*go)
		usleep(1000);
}

static void fill(int fd, int mib, char letter)
{
	static char bytes[MIB];

	memset(bytes, letter, sizeof bytes);
	for (int i = 0; i < mib; i++)
		MUST(write(fd, bytes, sizeof bytes));
}

/* The file grows from memory into a file of the host. */
static void growing(void)
{
	char back[8] = "";
	int fd = MUST(open("growing", O_RDWR | O_CREAT, 0644)), status;
	pid_t child;

	MUST(lseek(fd, 60 * MIB, SEEK_SET));
	fill(fd, 2, 'a');
	*go = 0;
	child = MUST(fork());
	if (child == 0) {
		spin();
		T("write of the child", write(fd, "child", 5));
		_exit(0);
	}
	fill(fd, 10, 'b');
	*go = 1;
	MUST(waitpid(child, &status, 0));
	T("write of the parent", write(fd, "parent", 6));
	SHOW("growing");
	close(fd);
	fd = MUST(open("growing", O_RDONLY));
	MUST(pread(fd, back, 5, 72 * MIB));
	note("%s", back);
	close(fd);
}

/* As a mapping, without a descriptor, in a child that has made other calls. */
static void mapped(void)
{
	int fd = MUST(open("mapped", O_RDWR | O_CREAT, 0644)), status;
	pid_t child;

	MUST(lseek(fd, 60 * MIB, SEEK_SET));
	fill(fd, 2, 'a');
	*go = 0;
	child = MUST(fork());
	if (child == 0) {
		char *text = mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, 0);
		close(fd);
		*go = 1;
		while (*go < 2)
			usleep(1000);
		IS("seen in the mapping", text[0] == 'c');
		_exit(0);
	}
	spin();
	fill(fd, 10, 'b');
	MUST(pwrite(fd, "c", 1, 0));
	*go = 2;
	MUST(waitpid(child, &status, 0));
	close(fd);
}

static void pass(int socket, int fd)
{
	char control[CMSG_SPACE(sizeof fd)] = "", byte = 'x';
	struct iovec data = {&byte, 1};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	*header = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	MUST(sendmsg(socket, &message, 0));
}

static int passed(int socket)
{
	char control[CMSG_SPACE(sizeof(int))], byte;
	struct iovec data = {&byte, 1};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int fd;

	MUST(recvmsg(socket, &message, 0));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return fd;
}

/* Opens more directories than are kept forever. Those that nobody holds go when there are more than 1,024, and then again when there are
 * twice as many as at that time: the first time only shows which are used. */
static void crowd(void)
{
	for (int part = 0; part < 8; part++) {
		for (int i = 0; i < 700; i++) {
			char path[40];
			sprintf(path, "d%d.%d", part, i);
			MUST(mkdir(path, 0755));
			close(MUST(open(path, O_RDONLY)));
		}
		/* What nobody holds is noticed twice a second. */
		usleep(700000);
	}
}

/* A directory is a child's working directory and nothing else. */
static void standing(void)
{
	int status;
	pid_t child;

	MUST(mkdir("here", 0755));
	MUST(chdir("here"));
	*go = 0;
	child = MUST(fork());
	if (child == 0) {
		spin();
		T("make in the working directory", mkdir("made", 0755));
		_exit(0);
	}
	MUST(chdir(".."));
	crowd();
	/* By its former path it would not be found. */
	MUST(rename("here", "there"));
	*go = 1;
	MUST(waitpid(child, &status, 0));
	SHOW("there/made");
}

/* A directory's only descriptor is in a socket. */
static void flying(void)
{
	int pair[2], fd;

	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	MUST(mkdir("flying", 0755));
	fd = MUST(open("flying", O_RDONLY | O_DIRECTORY));
	pass(pair[0], fd);
	close(fd);
	crowd();
	fd = passed(pair[1]);
	SHOW_FD("passed", fd);
	T("make in the passed directory", mkdirat(fd, "arrived", 0755));
	SHOW("flying/arrived");
	T("fchdir", fchdir(fd));
	CWD();
	T("make there", mkdir("beside", 0755));
	MUST(chdir(".."));
	SHOW("flying/beside");
}

static void steps(void)
{
	static const struct {
		const char *name;
		void (*play)(void);
	} parts[] = {{"growing", growing}, {"mapped", mapped}, {"standing", standing}, {"flying", flying}};

	go = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		if (arguments[0] && !strcmp(arguments[0], parts[i].name))
			parts[i].play();
}
