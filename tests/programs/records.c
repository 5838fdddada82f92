/* Writes numbered records of 8 bytes to TOP/log, and makes the file TOP/mN after every 50th record N, until it is killed. Notes in HOST the last
 * N whose file is there. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char record[16], name[4096];
	int log, done;

	if (argc < 3)
		return 98;
	snprintf(name, sizeof name, "%s/log", argv[1]);
	log = open(name, O_WRONLY | O_CREAT, 0644);
	done = open(argv[2], O_WRONLY | O_CREAT, 0644);
	for (int i = 1; log >= 0 && done >= 0; i++) {
		snprintf(record, sizeof record, "%07d\n", i);
		if (write(log, record, 8) != 8)
			return 1;
		if (i % 50)
			continue;
		snprintf(name, sizeof name, "%s/m%d", argv[1], i);
		if (close(open(name, O_WRONLY | O_CREAT, 0644)) || pwrite(done, record, 8, 0) != 8)
			return 1;
	}
	return 1;
}
