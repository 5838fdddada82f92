/* The mount at the directory under test, as /proc, stat and statfs show it. Natively a bind mount is there. */
#define STEP_IN_PLACE
#include "step.h"
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <linux/openat2.h>

#ifndef STATX_MNT_ID
#define STATX_MNT_ID 0x1000
#endif
#define STATX_MNT_ID_UNIQUE_ 0x4000
#ifndef STATX_ATTR_MOUNT_ROOT
#define STATX_ATTR_MOUNT_ROOT 0x2000
#endif

struct found {
	int lines, matches;
	long id, parent;
	unsigned dev_major, dev_minor;
	char root[PATH_MAX], kind[64], source[PATH_MAX];
	int is_rw, parent_is_there;
};

static char *slurp(int fd)
{
	size_t used = 0, room = 1 << 20;
	char *text = malloc(room);
	ssize_t got;

	while ((got = read(fd, text + used, room - used - 1)) > 0)
		used += got;
	text[used] = 0;
	return text;
}

static int lines(const char *text)
{
	int count = 0;

	for (; *text; text++)
		count += *text == '\n';
	return count;
}

static struct found info_of(char *text)
{
	struct found found = {0};
	long ids[4096];
	char *save, *line = strtok_r(text, "\n", &save);

	for (; line; line = strtok_r(NULL, "\n", &save)) {
		char root[PATH_MAX], target[PATH_MAX], options[1024], kind[64] = "", source[PATH_MAX] = "";
		long id, parent;
		unsigned ma, mi;
		char *dash = strstr(line, " - ");

		if (sscanf(line, "%ld %ld %u:%u %s %s %s", &id, &parent, &ma, &mi, root, target, options) != 7 || !dash ||
		    sscanf(dash, " - %63s %s", kind, source) < 1)
			note("odd line %s", line);
		if (found.lines < 4096)
			ids[found.lines++] = id;
		if (strcmp(target, top_path))
			continue;
		found.matches++;
		found.id = id;
		found.parent = parent;
		found.dev_major = ma;
		found.dev_minor = mi;
		strcpy(found.root, root);
		strcpy(found.kind, kind);
		strcpy(found.source, source);
		found.is_rw = !strncmp(options, "rw", 2);
	}
	for (int i = 0; i < found.lines; i++)
		found.parent_is_there |= ids[i] == found.parent;
	return found;
}

static struct found info(void)
{
	int fd = MUST(open("/proc/self/mountinfo", O_RDONLY));
	char *text = slurp(fd);
	struct found found = info_of(text);

	close(fd);
	free(text);
	return found;
}

/* Each list has a line for each mount, and one for ours. */
static void list(int line, const char *name, int fd, int expected)
{
	char wanted[PATH_MAX + 64];

	if (fd < 0) {
		note("%d %s: %s", line, name, strerrorname_np(errno));
		return;
	}
	char *text = slurp(fd);
	snprintf(wanted, sizeof wanted, " %s ", top_path);
	char *ours = strstr(text, wanted);
	note("%d %s: %s, %s", line, name, lines(text) == expected ? "all mounts" : "other mounts",
	     ours ? "with ours" : "without ours");
	free(text);
	close(fd);
}
#define LIST(name, fd) list(__LINE__, name, fd, expected)

static void lists(void)
{
	int expected = info().lines, dir, fd;
	char path[64], again[64];
	struct open_how how = {.flags = O_RDONLY};

	LIST("mounts", open("/proc/self/mounts", O_RDONLY));
	LIST("mountinfo", open("/proc/self/mountinfo", O_RDONLY));
	LIST("mountstats", open("/proc/self/mountstats", O_RDONLY));
	LIST("of the thread", open("/proc/thread-self/mountinfo", O_RDONLY));
	LIST("by the link", open("/proc/mounts", O_RDONLY));
	LIST("beside the point", open("/proc/../proc/./self//mounts", O_RDONLY));
	LIST("relative to the root", (chdir("/"), open("proc/self/mounts", O_RDONLY)));
	LIST("in the root", open("/proc/self/root/proc/self/mounts", O_RDONLY));
	snprintf(path, sizeof path, "/proc/%d/mounts", getpid());
	LIST("by number", open(path, O_RDONLY));
	snprintf(again, sizeof again, "%s/link", top_path);
	MUST(symlink(path, again));
	LIST("by a link in the mount", open(again, O_RDONLY));
	dir = MUST(open("/proc/self", O_RDONLY | O_DIRECTORY));
	LIST("from a descriptor", openat(dir, "mounts", O_RDONLY));
	MUST(fchdir(dir));
	LIST("from the working directory", open("mountinfo", O_RDONLY));
	LIST("openat2", syscall(SYS_openat2, dir, "mounts", &how, sizeof how));
	how.resolve = RESOLVE_BENEATH;
	LIST("openat2 beneath", syscall(SYS_openat2, dir, "mounts", &how, sizeof how));
	how.resolve = RESOLVE_NO_SYMLINKS;
	LIST("openat2 without links", syscall(SYS_openat2, AT_FDCWD, "/proc/self/mounts", &how, sizeof how));
	close(dir);
	MUST(chdir(top_path));
	fd = MUST(open("/proc/self/mounts", O_RDONLY));
	snprintf(again, sizeof again, "/proc/self/fd/%d", fd);
	LIST("opened again", open(again, O_RDONLY));
	LIST("its copy", dup(fd));
	close(fd);
	CHILD("child", LIST("the parent's", open(path, O_RDONLY)));
	O("O_PATH", open("/proc/self/mounts", O_PATH));
	O("O_DIRECTORY", open("/proc/self/mounts", O_RDONLY | O_DIRECTORY));
	O("O_EXCL", open("/proc/self/mounts", O_RDONLY | O_CREAT | O_EXCL, 0600));
	O("a name behind", open("/proc/self/mounts/x", O_RDONLY));
	O("another process", open("/proc/999999999/mounts", O_RDONLY));
	CHILD("as a user", drop(); O("write", open("/proc/self/mounts", O_WRONLY));
	      O("mountstats", open("/proc/self/mountstats", O_RDONLY)));
	FILE *stream = fopen("/etc/mtab", "re");
	if (stream)
		LIST("mtab", fileno(stream));
}

/* The list as a file. */
static void file(void)
{
	int fd = MUST(open("/proc/self/mounts", O_RDONLY | O_CLOEXEC)), out[2];
	struct stat st, proc;
	struct statfs fs;
	char whole[65536], part[65536];
	size_t length = 0, used = 0;
	ssize_t got;
	struct pollfd ready = {fd, POLLIN, 0};

	MUST(fstat(fd, &st));
	MUST(stat("/proc/self/mounts", &proc));
	note("%04o size %lld links %lu", st.st_mode, (long long)st.st_size, (unsigned long)st.st_nlink);
	IS("the same file", st.st_dev == proc.st_dev && st.st_ino == proc.st_ino);
	T("fstatfs", fstatfs(fd, &fs));
	IS("of procfs", fs.f_type == 0x9fa0);
	T("flags", fcntl(fd, F_GETFD));
	while ((got = read(fd, whole + length, 4096)) > 0)
		length += got;
	T("at its end", read(fd, part, 10));
	T("rewind", lseek(fd, 0, SEEK_SET));
	while ((got = read(fd, part + used, 7)) > 0)
		used += got;
	IS("small reads", used == length && !memcmp(whole, part, length));
	IS("pread", pread(fd, part, 20, 10) == 20 && !memcmp(part, whole + 10, 20));
	T("write", write(fd, "x", 1));
	T("ftruncate", ftruncate(fd, 0));
	T("fsync", fsync(fd));
	T("FIONREAD", ioctl(fd, FIONREAD, &got));
	T("fchmod", fchmod(fd, 0600));
	T("fsetxattr", fsetxattr(fd, "user.a", "", 0, 0));
	T("poll", poll(&ready, 1, 0));
	IS("can be read", ready.revents & POLLIN);
	MUST(pipe(out));
	MUST(lseek(fd, 0, SEEK_SET));
	T("sendfile", sendfile(out[1], fd, NULL, 30));
	IS("sent", read(out[0], part, 30) == 30 && !memcmp(part, whole, 30));
	close(out[0]);
	close(out[1]);
	close(fd);
}

static long mount_id(const char *path, unsigned mask, unsigned *given)
{
	struct statx stx;

	if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, mask, &stx))
		return -1;
	*given = stx.stx_mask & (STATX_MNT_ID | STATX_MNT_ID_UNIQUE_);
	return stx.stx_mnt_id;
}

static void identities(void)
{
	struct found found = info();
	struct stat st, above;
	struct statx stx;
	struct statfs fs, below;
	unsigned given;
	long id, unique;
	char parent[PATH_MAX];
	int fd;

	note("%d lines for the mount", found.matches);
	IS("writable", found.is_rw);
	IS("its parent is there", found.parent_is_there && found.parent != found.id);
	IS("it has a type", found.kind[0]);
	IS("it has a source", found.source[0]);
	IS("it has a root", found.root[0] == '/');
	MUST(mkdir("d", 0755));
	make("d/file", "text");
	MUST(stat("d/file", &st));
	IS("device of a file", major(st.st_dev) == found.dev_major && minor(st.st_dev) == found.dev_minor);
	MUST(stat(top_path, &st));
	IS("device of the root", major(st.st_dev) == found.dev_major && minor(st.st_dev) == found.dev_minor);
	id = mount_id(top_path, STATX_MNT_ID, &given);
	IS("mount ID of the root", id == found.id);
	IS("only that", given == STATX_MNT_ID);
	IS("mount ID of a file", mount_id("d/file", STATX_MNT_ID, &given) == found.id);
	IS("not asked for", mount_id("d/file", STATX_TYPE, &given) == found.id && given == STATX_MNT_ID);
	snprintf(parent, sizeof parent, "%s/..", top_path);
	IS("mount ID above", mount_id(parent, STATX_MNT_ID, &given) == found.parent);
	unique = mount_id(top_path, STATX_MNT_ID_UNIQUE_, &given);
	if (given == STATX_MNT_ID_UNIQUE_) {
		IS("unique", unique != found.id);
		IS("of a file", mount_id("d/file", STATX_MNT_ID_UNIQUE_, &given) == unique);
		IS("both asked for", mount_id("d", STATX_MNT_ID_UNIQUE_ | STATX_MNT_ID, &given) == unique);
		IS("unique above", mount_id(parent, STATX_MNT_ID_UNIQUE_, &given) != unique);
	}
	MUST(statx(AT_FDCWD, top_path, 0, STATX_TYPE, &stx));
	IS("a root", stx.stx_attributes & STATX_ATTR_MOUNT_ROOT);
	MUST(statx(AT_FDCWD, "d", 0, STATX_TYPE, &stx));
	IS("no root", !(stx.stx_attributes & STATX_ATTR_MOUNT_ROOT));
	MUST(statfs(top_path, &fs));
	fd = MUST(open("d/file", O_RDONLY));
	MUST(fstatfs(fd, &below));
	close(fd);
	IS("one type", fs.f_type == below.f_type && fs.f_type);
	IS("one id", !memcmp(&fs.f_fsid, &below.f_fsid, sizeof fs.f_fsid));
	IS("some id", memcmp(&fs.f_fsid, (int[2]){0, 0}, sizeof fs.f_fsid));
	IS("flags are valid", fs.f_flags & 0x20);
	IS("not read-only", !(fs.f_flags & ST_RDONLY));
}

static void deep(void)
{
	char part[64], expected[PATH_MAX];
	size_t length = snprintf(expected, sizeof expected, "%s", top_path);
	char *whole;

	MUST(chdir(top_path));
	for (int i = 0; i < 60; i++) {
		snprintf(part, sizeof part, "level-%d", i);
		MUST(mkdir(part, 0755));
		MUST(chdir(part));
		length += snprintf(expected + length, sizeof expected - length, "/%s", part);
	}
	whole = getcwd(NULL, 0);
	IS("getcwd far below", whole && !strcmp(whole, expected));
	free(whole);
	for (int i = 60; i-- > 0;) {
		snprintf(part, sizeof part, "level-%d", i);
		MUST(chdir(".."));
		MUST(rmdir(part));
	}
}

static void steps(void)
{
	identities();
	lists();
	file();
	deep();
}
