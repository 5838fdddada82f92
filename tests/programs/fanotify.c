/* fanotify(7) in a mount, where it has no meaning. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/fanotify.h>

int main(int argc, char **argv)
{
	/* An ordinary user may have a descriptor that reports file handles; before Linux 5.13 none at all. */
	int queue = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID | FAN_CLOEXEC, 0);
	int marked = fanotify_mark(queue, FAN_MARK_ADD, FAN_CREATE | FAN_ONDIR, AT_FDCWD, argv[1]);

	printf("fanotify %s\n", marked ? strerrorname_np(errno) : "marked");
	return 0;
}
