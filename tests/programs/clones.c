/* Requests of a host file system that change files without write: of a large file, and of files of HOST with it. */
#include "step.h"
#include <linux/fs.h>
#include <sys/ioctl.h>

#define LARGE (65 << 20)

struct exchange {
	int32_t fd;
	uint32_t pad;
	uint64_t own_offset, offset, length, flags;
};

static int filled(const char *path, char letter)
{
	static char bytes[1 << 20];
	int fd = MUST(open(path, O_RDWR | O_CREAT | O_TRUNC, 0644));

	memset(bytes, letter, sizeof bytes);
	for (int i = 0; i < LARGE; i += sizeof bytes)
		MUST(write(fd, bytes, sizeof bytes));
	return fd;
}

static void steps(void)
{
	char path[PATH_MAX];
	int large, other;

	snprintf(path, sizeof path, "%s/other", host_path);
	other = filled(path, 'y');
	large = filled("large", 'x');

	struct file_clone_range range = {.src_fd = other, .src_length = 1 << 20};
	struct exchange exchange = {.fd = large, .length = LARGE};
	struct exchange moved = {.fd = other, .length = LARGE};
	char *request = calloc(1, 4096);
	struct file_dedupe_range *dedupe = (void *)request;

	T("clone", ioctl(large, FICLONE, other));
	T("clone range", ioctl(large, FICLONERANGE, &range));
	*dedupe = (struct file_dedupe_range){.src_length = 4096, .dest_count = 1};
	dedupe->info[0].dest_fd = other;
	T("dedupe", ioctl(large, FIDEDUPERANGE, dedupe));
	T("exchange with the host's", ioctl(large, _IOW('X', 129, struct exchange), &moved));
	T("exchange with ours", ioctl(other, _IOW('X', 129, struct exchange), &exchange));
	T("commit with ours", ioctl(other, _IOC(_IOC_WRITE, 'X', 131, 88), &exchange));
	T("encoded write", ioctl(large, _IOC(_IOC_WRITE, 0x94, 64, 128), request));
	T("defragment", ioctl(large, _IOC(_IOC_WRITE, 0x94, 2, 4096), request));
	T("trim", ioctl(large, FITRIM, request));
	T("verity", ioctl(large, _IOC(_IOC_WRITE, 'f', 133, 128), request));
	T("move extents", ioctl(large, _IOC(_IOC_READ | _IOC_WRITE, 'f', 15, 40), request));
	T("nobody's", ioctl(large, 0xf0f0, request));
	T("freeze", ioctl(large, FIFREEZE, 0));
	IS("size", lseek(large, 0, SEEK_END) == LARGE);
	unlink(path);
}
