/* getcwd(2) of a directory whose path is longer than PATH_MAX: the call fails, whatever the size of the buffer. */
#include "step.h"

static void steps(void)
{
	static char text[4 * PATH_MAX];
	char part[101];
	int levels = 0;
	long length = 0, longest = 0;

	memset(part, 'p', sizeof part - 1);
	part[sizeof part - 1] = 0;
	while (levels < 60) {
		MUST(mkdir(part, 0755));
		MUST(chdir(part));
		levels++;
		length = syscall(SYS_getcwd, text, sizeof text);
		if (length < 0)
			break;
		longest = length;
	}
	T("getcwd", syscall(SYS_getcwd, text, sizeof text));
	T("getcwd small", syscall(SYS_getcwd, text, 2));
	T("getcwd bad", syscall(SYS_getcwd, 16, sizeof text));
	/* The next level would have been longer than PATH_MAX. */
	IS("up to PATH_MAX", longest <= PATH_MAX && longest + (long)sizeof part > PATH_MAX);
	T("access", access("..", X_OK));
	T("create", close(open("f", O_WRONLY | O_CREAT, 0644)));
	T("unlink", unlink("f"));
	for (; levels > 0; levels--) {
		MUST(chdir(".."));
		MUST(rmdir(part));
	}
	IS("short again", syscall(SYS_getcwd, text, sizeof text) > 0);
}
