/* Changes of content and owner remove a file's capabilities, and set-id bits as chown(2) says. */
#include "step.h"
#include <sys/sendfile.h>

static void steps(void)
{
	struct { uint32_t magic, values[4]; } cap = { 0x02000000, { 1 << 10 } };
	char text[64];
	int fd;

	if (geteuid())
		return;
	make("f", "some text");
	make("cap", "text");
#define SETCAP T("set capability", setxattr("cap", "security.capability", &cap, sizeof cap, 0))
#define GETCAP(name) T(name, getxattr("cap", "security.capability", text, sizeof text))
	SETCAP;
	GETCAP("there");
	fd = MUST(open("cap", O_RDWR));
	T("write", write(fd, "x", 1));
	GETCAP("after write");
	SETCAP;
	T("pwritev", pwritev(fd, &(struct iovec){ text, 1 }, 1, 0));
	GETCAP("after pwritev");
	SETCAP;
	T("write nothing", write(fd, "x", 0));
	GETCAP("after write of nothing");
	SETCAP;
	T("ftruncate", ftruncate(fd, 1));
	GETCAP("after ftruncate");
	SETCAP;
	T("truncate", truncate("cap", 3));
	GETCAP("after truncate");
	SETCAP;
	T("fallocate", fallocate(fd, 0, 0, 100));
	GETCAP("after fallocate");
	SETCAP;
	T("chown", chown("cap", 0, 0));
	GETCAP("after chown");
	SETCAP;
	T("chown nothing", chown("cap", -1, -1));
	GETCAP("after chown of nothing");
	SETCAP;
	T("chmod", chmod("cap", 0755));
	GETCAP("after chmod");
	T("utimes", utimensat(AT_FDCWD, "cap", NULL, 0));
	GETCAP("after utimes");
	O("truncating open", open("cap", O_WRONLY | O_TRUNC));
	GETCAP("after truncating open");
	SETCAP;
	int in = MUST(open("f", O_RDONLY));
	T("sendfile", sendfile(fd, in, NULL, 2));
	GETCAP("after sendfile");
	SETCAP;
	T("copy_file_range", copy_file_range(in, &(loff_t){ 0 }, fd, &(loff_t){ 0 }, 2, 0));
	GETCAP("after copy_file_range");
	SETCAP;
	char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	map[0] = 'y';
	MUST(msync(map, 4096, MS_SYNC));
	GETCAP("after a write through a mapping");
	close(fd);
	close(in);
	for (int mode = 0; mode < 8; mode++) {
		char name[50];
		make("ids", "text");
		int bits = (mode & 1 ? 04000 : 0) | (mode & 2 ? 02000 : 0) | (mode & 4 ? 0755 : 0644);
		MUST(chmod("ids", bits));
		snprintf(name, sizeof name, "chown %o", bits);
		T(name, chown("ids", 5, 6));
		SHOW("ids");
		MUST(mkdir("idd", 0755));
		MUST(chmod("idd", bits));
		T("of a directory", chown("idd", 5, 6));
		SHOW("idd");
		MUST(rmdir("idd"));
		MUST(unlink("ids"));
	}
}
