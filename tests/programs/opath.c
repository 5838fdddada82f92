/* Descriptors that only name a file: O_PATH. */
#include "step.h"

/* The monitor looks twice a second for objects that no process holds any more. */
static void held_for_long(void)
{
	int named, unnamed, directory;

	make("named", "text");
	make("unnamed", "longer text");
	MUST(mkdir("directory", 0700));
	named = MUST(open("named", O_PATH));
	unnamed = MUST(open("unnamed", O_PATH));
	directory = MUST(open("directory", O_PATH));
	MUST(unlink("unnamed"));
	MUST(rmdir("directory"));
	MUST(usleep(1600000));
	SHOW_FD("named", named);
	SHOW_FD("unnamed", unnamed);
	SHOW_FD("directory", directory);
	close(named);
	close(unnamed);
	close(directory);
}

static void steps(void)
{
	int fd, dir, other;
	char text[64], link[64];
	struct stat st, st2;

	make("pfile", "pdata");
	MUST(symlink("pfile", "plink"));
	MUST(mkdir("pdir", 0755));
	make("pdir/in", "inside");
	T("O_PATH file", fd = open("pfile", O_PATH));
	T("read", read(fd, text, 4));
	T("write", write(fd, text, 4));
	T("lseek", lseek(fd, 0, SEEK_CUR));
	T("fsync", fsync(fd));
	T("fchmod", fchmod(fd, 0600));
	T("fchown", fchown(fd, -1, -1));
	T("ftruncate", ftruncate(fd, 0));
	T("mmap", mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0);
	T("fgetxattr", fgetxattr(fd, "user.x", text, 8));
	T("F_GETFL", (fcntl(fd, F_GETFL) & O_PATH) != 0);
	SHOW_FD("pfile", fd);
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	T("reopen", other = open(link, O_RDWR));
	T("read reopened", read(other, text, 64));
	close(other);
	T("dup", other = dup(fd));
	SHOW_FD("dup", other);
	close(other);
	close(fd);
	T("O_PATH link nofollow", fd = open("plink", O_PATH | O_NOFOLLOW));
	SHOW_FD("plink", fd);
	T("readlinkat empty", readlinkat(fd, "", text, sizeof text));
	close(fd);
	T("O_PATH link", fd = open("plink", O_PATH));
	T("readlinkat empty of file", readlinkat(fd, "", text, sizeof text));
	SHOW_FD("plink followed", fd);
	close(fd);
	T("O_PATH create ignored", fd = open("pnew", O_PATH | O_CREAT, 0644));
	T("O_PATH dir", dir = open("pdir", O_PATH | O_DIRECTORY));
	T("openat below", fd = openat(dir, "in", O_RDONLY));
	T("read", read(fd, text, 64));
	close(fd);
	O("create below", openat(dir, "made", O_RDWR | O_CREAT, 0644));
	SHOW("pdir/made");
	T("getdents", syscall(SYS_getdents64, dir, text, sizeof text));
	T("fchdir", fchdir(dir));
	O("here", open("in", O_RDONLY));
	MUST(chdir(".."));
	T("fstatat empty", fstatat(dir, "", &st, AT_EMPTY_PATH));
	T("stat", stat("pdir", &st2));
	IS("same", st.st_ino == st2.st_ino && st.st_dev == st2.st_dev);
	close(dir);
	O("O_PATH on file as directory", open("pfile", O_PATH | O_DIRECTORY));
	O("O_PATH with slash", open("pfile/", O_PATH));
	held_for_long();
}
