/* Copies, clones and lists of directories that are answered in the process: each call is repeated, because a site is patched when it is used
 * for the second time. */
#include "step.h"
#include <linux/fs.h>
#include <sys/ioctl.h>

/* What cp asks for. */
#define HUGE 9223372035781033984ul

/* A clone is refused, by EOPNOTSUPP where both files are on one file system that has none. */
#define REFUSED(name, call) IS(name, ({ int r_ = call; r_ == -1 && (errno == EXDEV || errno == EOPNOTSUPP); }))

/* Copies and clones between files of the host, those under test, and memory of the program's own. */
static void copied(void)
{
	char path[PATH_MAX], text[100];

	snprintf(path, sizeof path, "%s/grows", host_path);
	make(path, "content");
	int in = MUST(open(path, O_RDONLY)), writer = MUST(open(path, O_WRONLY | O_APPEND));
	int reference = MUST(open(path, O_PATH)), empty = MUST(open("/dev/null", O_RDONLY));
	int dir = MUST(open(host_path, O_RDONLY | O_DIRECTORY)), top = MUST(open(".", O_RDONLY | O_DIRECTORY));

	for (int i = 0; i < 6; i++) {
		int out = MUST(open("copied", O_RDWR | O_CREAT | O_TRUNC, 0600)), reader = MUST(open("copied", O_RDONLY));
		int appends = MUST(open("copied", O_WRONLY | O_APPEND)), own = MUST(memfd_create("own", 0));
		off_t at = 0;

		MUST(lseek(in, 0, SEEK_SET));
		REFUSED("clone", ioctl(out, FICLONE, in));
		T("clone of nothing", ioctl(out, FICLONE, -1));
		T("clone into nothing", ioctl(-1, FICLONE, in));
		REFUSED("clone into memory", ioctl(own, FICLONE, in));
		REFUSED("clone within", ioctl(out, FICLONE, reader));
		T("into memory", copy_file_range(in, NULL, own, NULL, HUGE, 0));
		T("copy", copy_file_range(in, NULL, out, NULL, HUGE, 0));
		T("at the end", copy_file_range(in, NULL, out, NULL, HUGE, 0));
		T("with flags", copy_file_range(in, NULL, out, NULL, HUGE, 1));
		T("below no length", copy_file_range(in, NULL, out, NULL, -1, 0));
		T("at the end into memory", copy_file_range(in, NULL, own, NULL, HUGE, 0));
		T("into a reader", copy_file_range(in, NULL, reader, NULL, HUGE, 0));
		T("into what appends", copy_file_range(in, NULL, appends, NULL, HUGE, 0));
		T("into a directory", copy_file_range(in, NULL, top, NULL, HUGE, 0));
		T("into a path", copy_file_range(in, NULL, reference, NULL, HUGE, 0));
		T("into nothing", copy_file_range(in, NULL, -1, NULL, HUGE, 0));
		T("from a writer", copy_file_range(writer, NULL, out, NULL, HUGE, 0));
		T("from a path", copy_file_range(reference, NULL, out, NULL, HUGE, 0));
		T("from a directory", copy_file_range(dir, NULL, out, NULL, HUGE, 0));
		T("from nothing", copy_file_range(-1, NULL, out, NULL, HUGE, 0));
		T("from a device", copy_file_range(empty, NULL, out, NULL, HUGE, 0));
		T("from an offset", copy_file_range(in, &at, out, NULL, 3, 0));
		MUST(write(writer, "+++", 3));
		T("when there is more", copy_file_range(in, NULL, out, NULL, HUGE, 0));
		MUST(lseek(in, 1000, SEEK_SET));
		T("behind the end", copy_file_range(in, NULL, out, NULL, HUGE, 0));
		T("read", pread(reader, text, sizeof text, 0));
		note("%.*s", (int)lseek(out, 0, SEEK_CUR), text);
		close(out);
		close(reader);
		close(appends);
		close(own);
	}
	unlink("copied");
	unlink(path);
	close(in);
	close(writer);
	close(reference);
	close(empty);
	close(dir);
	close(top);
}

/* How many entries the directory shows from here on, and whether NAME is among them. */
static int entries(DIR *dir, const char *name)
{
	int count = 0, found = 0;

	for (struct dirent *entry; (entry = readdir(dir)); count++)
		found |= !strcmp(entry->d_name, name);
	return found ? count : -count;
}

/* Lists of host directories: the mount point is in the root directory. */
static void lists(void)
{
	char name[NAME_MAX + 1], path[PATH_MAX], file[PATH_MAX], bytes[100];
	int here = MUST(open(".", O_RDONLY | O_DIRECTORY));

	sscanf(top_path, "/%255[^/]", name);
	snprintf(file, sizeof file, "%s/nine", host_path);
	make(file, "123456789");
	snprintf(path, sizeof path, "%s/listed", host_path);
	MUST(mkdir(path, 0700));
	MUST(chdir(path));
	for (int i = 0; i < 2000; i++) {
		char entry[20];

		snprintf(entry, sizeof entry, "%d", i);
		make(entry, "");
	}
	for (int i = 0; i < 6; i++) {
		DIR *root = opendir("/"), *host = opendir(path);

		IS("in the root", entries(root, name) > 0);
		rewinddir(root);
		IS("again", entries(root, name) > 0);
		T("entries", entries(host, "1999"));
		T("at the end", entries(host, "1999"));
		rewinddir(host);
		T("again", entries(host, "none"));
		T("a file", getdents64(open(file, O_RDONLY), bytes, sizeof bytes));
		T("a path", getdents64(open("/", O_RDONLY | O_PATH), bytes, sizeof bytes));
		T("nothing", getdents64(-1, bytes, sizeof bytes));
		closedir(root);
		closedir(host);
	}
	for (int i = 0; i < 2000; i++) {
		char entry[20];

		snprintf(entry, sizeof entry, "%d", i);
		MUST(unlink(entry));
	}
	MUST(fchdir(here));
	DIR *removed = opendir(path);
	MUST(rmdir(path));
	T("removed", entries(removed, "."));
	unlink(file);
	closedir(removed);
	close(here);
}

static void steps(void)
{
	copied();
	lists();
}
