/* inotify(7): what watches of directories and files report. A watch of its own directory marks the end of each step's events. */
#include "step.h"
#include <sys/inotify.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

/* Reads are looked at by themselves: the store reads a file's content, too, when it keeps it. */
#define ALL (IN_ALL_EVENTS & ~IN_ACCESS)

static int queue, marks, mark_wd;
static uint32_t cookies[64];
static int seen;
static struct { int wd; const char *name; } names[64];
static int named;

static const struct { uint32_t bit; const char *name; } bits[] = {
	{IN_ACCESS, "ACCESS"}, {IN_MODIFY, "MODIFY"}, {IN_ATTRIB, "ATTRIB"}, {IN_CLOSE_WRITE, "CLOSE_WRITE"},
	{IN_CLOSE_NOWRITE, "CLOSE_NOWRITE"}, {IN_OPEN, "OPEN"}, {IN_MOVED_FROM, "MOVED_FROM"}, {IN_MOVED_TO, "MOVED_TO"},
	{IN_CREATE, "CREATE"}, {IN_DELETE, "DELETE"}, {IN_DELETE_SELF, "DELETE_SELF"}, {IN_MOVE_SELF, "MOVE_SELF"},
	{IN_UNMOUNT, "UNMOUNT"}, {IN_Q_OVERFLOW, "Q_OVERFLOW"}, {IN_IGNORED, "IGNORED"}, {IN_ISDIR, "ISDIR"},
};

static const char *name_of(int wd)
{
	for (int i = named - 1; i >= 0; i--)
		if (names[i].wd == wd)
			return names[i].name;
	return "?";
}

/* The watch's number counts from 1 natively; here it is only compared. */
static int watch_in(int in, int line, const char *path, uint32_t mask, const char *name)
{
	int wd = inotify_add_watch(in, path, mask);

	if (wd < 0) {
		note("%d watch %s: %s", line, path, strerrorname_np(errno));
		return wd;
	}
	for (int i = 0; i < named; i++)
		if (names[i].wd == wd) {
			note("%d watch %s: that of %s", line, path, names[i].name);
			return wd;
		}
	names[named].wd = wd;
	names[named++].name = name;
	note("%d watch %s: new", line, path);
	return wd;
}
#define WATCH(path, mask) watch_in(queue, __LINE__, path, mask, path)

static void show(int line, const struct inotify_event *event)
{
	char text[300] = "";

	for (unsigned i = 0; i < sizeof bits / sizeof *bits; i++)
		if (event->mask & bits[i].bit)
			sprintf(text + strlen(text), "%s%s", *text ? "|" : "", bits[i].name);
	if (event->cookie) {
		int at = 0;
		while (at < seen && cookies[at] != event->cookie)
			at++;
		if (at == seen && seen < 64)
			cookies[seen++] = event->cookie;
		sprintf(text + strlen(text), " cookie %d", at);
	}
	note("%d   %s: %s%s%s", line, name_of(event->wd), text, event->len ? " " : "", event->len ? event->name : "");
}

/* All events up to a mark, or to the end of the watch WD. */
static void events_up_to(int line, int wd)
{
	static char buffer[1 << 16] __attribute__((aligned(8)));
	struct pollfd pollfd = {queue, POLLIN, 0};

	for (bool has_ended = false; !has_ended;) {
		if (poll(&pollfd, 1, 20000) != 1) {
			note("%d nothing more", line);
			return;
		}
		ssize_t got = MUST(read(queue, buffer, sizeof buffer));
		for (char *at = buffer; at < buffer + got;) {
			struct inotify_event *event = (void *)at;
			at += sizeof *event + event->len;
			if (event->wd == mark_wd)
				return;
			show(line, event);
			has_ended |= event->wd == wd && event->mask & IN_IGNORED;
		}
	}
}

/* All events up to now. */
static void events(int line, const char *what)
{
	char mark[32];

	note("%d %s:", line, what);
	sprintf(mark, "marks/%d", marks++);
	MUST(mknod(mark, S_IFREG | 0600, 0));
	events_up_to(line, mark_wd);
}
#define EVENTS(what) events(__LINE__, what)

static void files(void)
{
	int fd, other;

	make("d/old", "old");
	MUST(mkdir("d/sub", 0755));
	WATCH("d", ALL);
	fd = MUST(open("d/new", O_CREAT | O_WRONLY, 0644));
	EVENTS("create");
	MUST(write(fd, "abc", 3));
	EVENTS("write");
	MUST(pwrite(fd, "abc", 3, 10));
	EVENTS("pwrite");
	MUST(ftruncate(fd, 1));
	EVENTS("ftruncate");
	MUST(fchmod(fd, 0600));
	EVENTS("fchmod");
	close(fd);
	EVENTS("close");
	fd = MUST(open("d/new", O_RDONLY));
	EVENTS("open to read");
	other = MUST(dup(fd));
	close(fd);
	EVENTS("close of one of two");
	close(other);
	EVENTS("close of both");
	fd = MUST(open("d/new", O_WRONLY | O_TRUNC));
	EVENTS("truncating open");
	MUST(unlink("d/new"));
	EVENTS("unlink of an open file");
	MUST(write(fd, "x", 1));
	EVENTS("write to it");
	close(fd);
	EVENTS("close of it");
	MUST(truncate("d/old", 1));
	EVENTS("truncate");
	MUST(chmod("d/old", 0600));
	EVENTS("chmod");
	MUST(chown("d/old", -1, -1));
	EVENTS("chown to nobody");
	MUST(chown("d/old", getuid(), getgid()));
	EVENTS("chown");
	struct timespec both[2] = {{1, 0}, {2, 0}}, access_only[2] = {{1, 0}, {0, UTIME_OMIT}}, modified_only[2] = {{0, UTIME_OMIT}, {3, 0}};
	MUST(utimensat(AT_FDCWD, "d/old", both, 0));
	EVENTS("both times");
	MUST(utimensat(AT_FDCWD, "d/old", access_only, 0));
	EVENTS("access time");
	MUST(utimensat(AT_FDCWD, "d/old", modified_only, 0));
	EVENTS("modification time");
	MUST(setxattr("d/old", "user.a", "b", 1, 0));
	EVENTS("setxattr");
	MUST(removexattr("d/old", "user.a"));
	EVENTS("removexattr");
	MUST(unlink("d/old"));
	EVENTS("unlink");
}

static void directories(void)
{
	MUST(chmod("d/sub", 0700));
	EVENTS("chmod of a directory");
	MUST(mkdir("d/more", 0755));
	EVENTS("mkdir");
	MUST(symlink("nowhere", "d/link"));
	EVENTS("symlink");
	MUST(mknod("d/fifo", S_IFIFO | 0600, 0));
	EVENTS("mkfifo");
	MUST(unlink("d/fifo"));
	MUST(unlink("d/link"));
	EVENTS("unlink of both");
	MUST(rmdir("d/more"));
	EVENTS("rmdir");
	int fd = MUST(open("d", O_RDONLY | O_DIRECTORY));
	EVENTS("open of the directory");
	close(fd);
	EVENTS("close of the directory");
	MUST(chmod("d", 0700));
	EVENTS("chmod of the watched directory");
}

static void moves(void)
{
	MUST(mkdir("e", 0755));
	MUST(mkdir("unwatched", 0755));
	make("d/a", "a");
	make("d/b", "b");
	EVENTS("two files");
	WATCH("e", ALL);
	MUST(rename("d/a", "d/c"));
	EVENTS("rename");
	MUST(rename("d/c", "e/c"));
	EVENTS("rename to another directory");
	MUST(rename("e/c", "unwatched/c"));
	EVENTS("rename out");
	MUST(rename("unwatched/c", "e/c"));
	EVENTS("rename in");
	MUST(rename("d/b", "e/c"));
	EVENTS("rename over a file");
	make("d/b", "b");
	EVENTS("a file");
	T("exchange", renameat2(AT_FDCWD, "d/b", AT_FDCWD, "e/c", RENAME_EXCHANGE));
	EVENTS("exchange");
	make("unwatched/d", "b");
	T("exchange", renameat2(AT_FDCWD, "unwatched/d", AT_FDCWD, "e/c", RENAME_EXCHANGE));
	EVENTS("exchange with an unwatched directory");
	MUST(link("d/b", "d/hard"));
	EVENTS("link");
	T("rename to the same file", rename("d/b", "d/hard"));
	EVENTS("rename to the same file");
	MUST(rename("d/sub", "e/sub"));
	EVENTS("rename of a directory");
	MUST(rmdir("e/sub"));
	EVENTS("rmdir");
	MUST(unlink("d/b"));
	MUST(unlink("d/hard"));
	MUST(unlink("e/c"));
	EVENTS("unlinks");
	T("missing", unlink("d/none"));
	T("taken", mkdir("d", 0755));
	EVENTS("failures");
	close(MUST(open("d/brief", O_CREAT | O_WRONLY, 0644)));
	MUST(rename("d/brief", "d/renamed"));
	EVENTS("a new file, closed and renamed at once");
	close(MUST(open("d/renamed", O_WRONLY)));
	MUST(unlink("d/renamed"));
	EVENTS("opened, closed and removed at once");
}

static void themselves(void)
{
	int fd;

	make("f", "f");
	int wd = WATCH("f", ALL);
	fd = MUST(open("f", O_RDWR));
	EVENTS("open");
	MUST(write(fd, "x", 1));
	EVENTS("write");
	MUST(link("f", "f2"));
	EVENTS("link");
	MUST(rename("f", "f3"));
	EVENTS("rename");
	MUST(unlink("f2"));
	EVENTS("unlink of one");
	MUST(unlink("f3"));
	EVENTS("unlink of the last");
	close(fd);
	EVENTS("close");
	T("remove", inotify_rm_watch(queue, wd));
	make("g", "g");
	make("h", "h");
	wd = WATCH("g", ALL);
	MUST(rename("h", "g"));
	EVENTS("replaced");
	MUST(mkdir("k", 0755));
	WATCH("k", ALL);
	MUST(rename("k", "l"));
	EVENTS("rename of a directory");
	MUST(rmdir("l"));
	EVENTS("rmdir");
	MUST(symlink("g", "s"));
	WATCH("s", ALL | IN_DONT_FOLLOW);
	MUST(unlink("s"));
	EVENTS("unlink of a link");
}

static void arguments_of_watches(void)
{
	WATCH("none", ALL);
	WATCH("g", ALL | IN_ONLYDIR);
	WATCH("d", 0);
	WATCH("d", IN_ONLYDIR | IN_MODIFY);
	WATCH("d/../d/.", IN_MODIFY);
	MUST(symlink("d", "dlink"));
	WATCH("dlink", IN_MODIFY);
	make("d/m", "m");
	EVENTS("a narrower mask");
	WATCH("d", IN_MASK_ADD | IN_CREATE | IN_DELETE);
	MUST(unlink("d/m"));
	EVENTS("a wider mask");
	WATCH("d", IN_MASK_CREATE | IN_DELETE);
	WATCH("d", IN_MASK_CREATE | IN_MASK_ADD | IN_DELETE);
	MUST(mkdir("o", 0755));
	WATCH("o", IN_ONESHOT | IN_CREATE);
	MUST(mkdir("o/1", 0755));
	MUST(mkdir("o/2", 0755));
	EVENTS("once");
	MUST(mkdir("x", 0755));
	make("x/f", "f");
	int wd = WATCH("x", IN_EXCL_UNLINK | IN_MODIFY | IN_OPEN);
	int fd = MUST(open("x/f", O_WRONLY));
	MUST(unlink("x/f"));
	MUST(write(fd, "x", 1));
	EVENTS("without removed files");
	close(fd);
	T("remove", inotify_rm_watch(queue, wd));
	EVENTS("removed");
	T("remove again", inotify_rm_watch(queue, wd));
	MUST(mkdir("x/g", 0755));
	EVENTS("no watch");
	T("no descriptor", inotify_add_watch(-1, "d", IN_CREATE));
	fd = MUST(open("g", O_RDONLY));
	T("no inotify", inotify_add_watch(fd, "d", IN_CREATE));
	close(fd);
	T("no address", inotify_add_watch(queue, (char *)1, IN_CREATE));
	T("no bits", inotify_add_watch(queue, "d", 0x00800000));
	T("dnotify", fcntl(queue, F_NOTIFY, DN_CREATE));
}

static int wait_for(int in, uint32_t mask)
{
	static char buffer[1 << 16] __attribute__((aligned(8)));
	struct pollfd pollfd = {in, POLLIN, 0};

	while (poll(&pollfd, 1, 20000) == 1) {
		ssize_t got = MUST(read(in, buffer, sizeof buffer));
		for (char *at = buffer; at < buffer + got;) {
			struct inotify_event *event = (void *)at;
			at += sizeof *event + event->len;
			if (event->mask == mask)
				return 1;
		}
	}
	return 0;
}

static void reads(void)
{
	int in = MUST(inotify_init1(IN_CLOEXEC));
	char bytes[4096];

	MUST(mkdir("r", 0755));
	make("r/f", "text");
	MUST(inotify_add_watch(in, "r", IN_ACCESS));
	int fd = MUST(open("r/f", O_RDONLY));
	MUST(read(fd, bytes, 1));
	IS("read is reported", wait_for(in, IN_ACCESS));
	close(fd);
	fd = MUST(open("r", O_RDONLY | O_DIRECTORY));
	MUST(syscall(SYS_getdents64, fd, bytes, sizeof bytes));
	IS("listing is reported", wait_for(in, IN_ACCESS | IN_ISDIR));
	close(fd);
	close(in);
}

static void descriptors(void)
{
	int in = MUST(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)), epoll = MUST(epoll_create1(0)), available;
	struct epoll_event event = {EPOLLIN, {0}};
	char buffer[4096], line[200];

	T("cloexec", fcntl(in, F_GETFD));
	T("empty", read(in, buffer, sizeof buffer));
	MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, in, &event));
	T("epoll", epoll_wait(epoll, &event, 1, 0));
	MUST(inotify_add_watch(in, "d", IN_CREATE | IN_DELETE));
	MUST(mkdir("d/1", 0755));
	MUST(rmdir("d/1"));
	T("epoll", epoll_wait(epoll, &event, 1, 20000));
	MUST(ioctl(in, FIONREAD, &available));
	note("available %d", available);
	T("too short", read(in, buffer, 8));
	T("read", read(in, buffer, sizeof buffer));
	int fd = dup(in);
	sprintf(line, "/proc/self/fdinfo/%d", fd);
	FILE *info = fopen(line, "r");
	int lines = 0;
	while (fgets(line, sizeof line, info))
		lines += !strncmp(line, "inotify wd:1 ", 13);
	note("fdinfo has %d", lines);
	fclose(info);
	sprintf(line, "/proc/self/fd/%d", fd);
	ssize_t length = readlink(line, buffer, sizeof buffer);
	note("link %.*s", (int)length, buffer);
	/* A process of its own makes the changes, and another one reads of them. */
	CHILD("child", MUST(mkdir("d/child", 0755)));
	CHILD("reader", { ssize_t got = MUST(read(in, buffer, sizeof buffer)); note("read %zd %s", got, ((struct inotify_event *)buffer)->name); });
	MUST(rmdir("d/child"));
	MUST(chdir("d"));
	WATCH(".", IN_CREATE);
	MUST(chdir(".."));
	close(fd);
	close(in);
	close(epoll);
}

static void overflow(void)
{
	FILE *limit = fopen("/proc/sys/fs/inotify/max_queued_events", "r");
	int max = 16384, in = MUST(inotify_init1(IN_NONBLOCK)), wd, last = 0;
	static char buffer[1 << 16] __attribute__((aligned(8)));
	ssize_t got;

	if (limit)
		MUST(fscanf(limit, "%d", &max));
	wd = MUST(inotify_add_watch(in, "o", IN_MOVE));
	make("o/f", "");
	if (max <= 20000) {
		for (int i = 0; i <= max / 2; i++)
			MUST(rename(i % 2 ? "o/g" : "o/f", i % 2 ? "o/f" : "o/g"));
		while ((got = read(in, buffer, sizeof buffer)) > 0)
			for (char *at = buffer; at < buffer + got;) {
				struct inotify_event *event = (void *)at;
				at += sizeof *event + event->len;
				last = event->mask;
			}
		IS("overflow", last == IN_Q_OVERFLOW);
	} else {
		IS("overflow", 1);
	}
	close(in);
}

/* In which order names and files end. */
static void ends(void)
{
	static const char *const paths[] = {"ends/file", "ends/dir"};
	const uint32_t mask = ALL & ~(IN_OPEN | IN_CLOSE);

	MUST(mkdir("ends", 0755));
	WATCH("ends", mask);
	for (int is_open = 0; is_open < 2; is_open++) {
		int fds[2], wds[2];
		make("ends/file", "");
		MUST(mkdir("ends/dir", 0755));
		for (int i = 0; i < 2; i++) {
			wds[i] = WATCH(paths[i], mask);
			if (is_open)
				fds[i] = MUST(open(paths[i], O_RDONLY));
		}
		EVENTS("made");
		MUST(unlink("ends/file"));
		EVENTS("unlink");
		MUST(rmdir("ends/dir"));
		EVENTS("rmdir");
		for (int i = 0; i < 2 && is_open; i++) {
			close(fds[i]);
			events_up_to(__LINE__, wds[i]);
		}
	}
	make("ends/file", "");
	make("ends/other", "");
	MUST(mkdir("ends/dir", 0755));
	MUST(mkdir("ends/other dir", 0755));
	WATCH("ends/file", mask);
	WATCH("ends/other", mask);
	WATCH("ends/dir", mask);
	WATCH("ends/other dir", mask);
	MUST(rename("ends/file", "ends/other"));
	EVENTS("over a file");
	MUST(rename("ends/dir", "ends/other dir"));
	EVENTS("over a directory");
}

static void steps(void)
{
	queue = MUST(inotify_init1(IN_CLOEXEC));
	MUST(mkdir("d", 0755));
	MUST(mkdir("marks", 0755));
	mark_wd = MUST(inotify_add_watch(queue, "marks", IN_CREATE));
	files();
	directories();
	moves();
	themselves();
	arguments_of_watches();
	reads();
	descriptors();
	overflow();
	ends();
}
