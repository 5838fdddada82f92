/* Fifos in the mount. */
#include "step.h"

static void fifos(void)
{
	char text[32] = "";
	int fd, other, status;
	pid_t child;

	T("mkfifo", mkfifo("p", 0640));
	T("exists", mkfifo("p", 0640));
	T("missing parent", mkfifo("none/p", 0640));
	T("slash", mkfifo("p2/", 0640));
	SHOW("p");
	O("write, nobody reads", open("p", O_WRONLY | O_NONBLOCK));
	T("read, non-blocking", fd = open("p", O_RDONLY | O_NONBLOCK));
	T("nothing there", read(fd, text, 1));
	T("write now", other = open("p", O_WRONLY | O_NONBLOCK));
	T("nothing yet", read(fd, text, 1));
	T("write", write(other, "hello", 5));
	T("read", read(fd, text, sizeof text));
	T("lseek", lseek(fd, 0, SEEK_SET));
	T("ftruncate", ftruncate(other, 0));
	SHOW_FD("fifo", fd);
	close(other);
	T("end of file", read(fd, text, 1));
	close(fd);
	T("read-write", fd = open("p", O_RDWR));
	T("write", write(fd, "kept", 4));
	T("read", read(fd, text, sizeof text));
	close(fd);
	/* Two processes that meet by the name. */
	child = MUST(fork());
	if (child == 0) {
		fd = MUST(open("p", O_WRONLY));
		MUST(write(fd, "from child", 10));
		close(fd);
		fd = MUST(open("p", O_RDONLY));
		T("child reads", read(fd, text, sizeof text));
		note("%.11s", text);
		_exit(0);
	}
	T("open blocks until met", fd = open("p", O_RDONLY));
	usleep(50000);
	T("read", read(fd, text, sizeof text));
	note("%.10s", text);
	T("end", read(fd, text, sizeof text));
	close(fd);
	fd = MUST(open("p", O_WRONLY));
	T("write", write(fd, "from parent", 11));
	close(fd);
	waitpid(child, &status, 0);
	ended(__LINE__, "child", status);
	/* Renamed and unlinked while open; the two ends stay together. */
	fd = MUST(open("p", O_RDWR));
	T("rename", rename("p", "q"));
	T("by the new name", other = open("q", O_WRONLY | O_NONBLOCK));
	T("write", write(other, "x", 1));
	T("read", read(fd, text, 1));
	T("link", link("q", "r"));
	close(other);
	T("by the other name", other = open("r", O_WRONLY | O_NONBLOCK));
	T("write", write(other, "y", 1));
	T("read", read(fd, text, 1));
	T("unlink", unlink("q") | unlink("r"));
	T("write", write(other, "z", 1));
	T("read", read(fd, text, 1));
	SHOW_FD("nameless", fd);
	close(fd);
	close(other);
	/* SIGPIPE and EPIPE. */
	MUST(mkfifo("s", 0644));
	CHILD("reader gone", ({
		      int r = MUST(open("s", O_RDONLY | O_NONBLOCK)), w = MUST(open("s", O_WRONLY));
		      close(r);
		      signal(SIGPIPE, SIG_IGN);
		      T("write", write(w, "x", 1));
		      signal(SIGPIPE, SIG_DFL);
		      write(w, "x", 1);
	      }));
	O("O_TRUNC is nothing", open("s", O_RDWR | O_TRUNC | O_CREAT, 0600));
	CHILD("no permission", ({ MUST(chmod("s", 0400)); drop(); O("write", open("s", O_WRONLY | O_NONBLOCK)); O("read", open("s", O_RDONLY | O_NONBLOCK)); }));
	/* Shell plumbing. */
	fflush(stdout);
	system("mkfifo t; (cat t > out) & echo through >t; wait; cat out");
}

static void steps(void)
{
	fifos();
}
