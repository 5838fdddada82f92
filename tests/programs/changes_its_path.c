/* Opens a path again and again while another thread changes its last byte: DIR/a and DIR/b. Usage: changes_its_path DIR. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[256];
static char *last;
static atomic_int is_over;

static void *change(void *unused)
{
	while (!atomic_load(&is_over)) {
		*(volatile char *)last = 'b';
		*(volatile char *)last = 'a';
	}
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t changer;
	if (argc != 2 || chdir(argv[1]) != 0)
		return 2;
	for (const char *name = "ab"; *name; name++) {
		char text[2] = {*name, 0};
		int fd = open(text, O_WRONLY | O_CREAT, 0644);
		if (fd < 0 || close(fd) != 0)
			return 3;
	}
	snprintf(path, sizeof path, "%s/a", argv[1]);
	last = path + strlen(path) - 1;
	if (pthread_create(&changer, NULL, change, NULL) != 0)
		return 4;
	for (int i = 0; i < 2000; i++) {
		int fd = open(path, O_RDONLY);
		if (fd < 0 || close(fd) != 0)
			return 5;
	}
	atomic_store(&is_over, 1);
	return pthread_join(changer, NULL) != 0;
}
