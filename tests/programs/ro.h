/* What the programs on a read-only tree share: paths of every kind, and a line for each call on each of them.
 *
 * The tree is that of tests/iso_calls.rs. A line is `CALL PATH: RESULT`.
 */
#ifndef RO_H
#define RO_H

#define STEP_IN_PLACE
#include "step.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))
#define NAME_100 "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"

static char name_255[256], name_256[257], path_4095[4096], path_4096[4097], outside[PATH_MAX], absolute[PATH_MAX];

/* Labels are what is printed, as paths may be long, unprintable or of this run. */
static struct {
	const char *label, *path;
} paths[] = {
	{ "a" }, { "secret" }, { "mine" }, { "mine0400" }, { "mine0200" }, { "mine0000" }, { "nothing" }, { "d" }, { "d/f" }, { "d/hard" },
	{ "missing" }, { "missing/x" }, { "d/missing" }, { "a/" }, { "a/x" }, { "a/." }, { "a/.." }, { "d/" }, { "d//" }, { "d/." },
	{ "d/.." }, { "d/../a" }, { "./a" }, { "." }, { "./" }, { "missing/" }, { "missing/." }, { "missing/.." }, { "d/missing/" },
	{ "link" }, { "link/" }, { "link/x" }, { "dlink" }, { "dlink/" }, { "dlink/." }, { "dlink/f" }, { "dlink/missing" },
	{ "dangling" }, { "dangling/" }, { "dangling/x" }, { "loop" }, { "loop/" }, { "loop/x" },
	{ "uplink" }, { "uplink/a" }, { "abslink" }, { "dotlink" }, { "privlink" }, { "forty" }, { "fortyone" },
	{ "private" }, { "private/" }, { "private/f" }, { "private/missing" }, { "private/." }, { "private/.." }, { "noread" }, { "noread/f" },
	{ "nox" }, { "nox/" }, { "nox/f" }, { "nox/missing" }, { "nox/f/x" }, { "mydir" }, { "mydir/f" }, { "mydir/missing" }, { "mydir/full/" },
	{ "sticky" }, { "sticky/theirs" }, { "sticky/mine" }, { "sticky/missing" }, { "sticky/link" }, { "sticky/fifo" },
	{ "setgid" }, { "setgid/f" }, { "suid" }, { "empty" }, { "empty/" }, { "empty/x" },
	{ "fifo" }, { "fifo/" }, { "fifo/x" }, { "nofifo" }, { "sock" }, { "sock/" }, { "null" }, { "null/" }, { "nodevice" }, { "nullzero" },
	{ "bin/tool" }, { "bin/script" }, { "bin/bad" }, { "bin/noexec" }, { "bin/onlyx" }, { "bin/nothing" }, { "bin/lost" }, { "bin/link" },
	{ "bin/within" }, { "bin/env" }, { "bin/long" }, { "1/2/3/4/5/6/7/8/9" }, { "1/2/3/4/5/6/7/8/9/f" }, { "1/2/3/../../../a" },
	{ NAME_100 }, { NAME_100 "0" }, { "\n\\\xff" }, { "with blank" }, { "" },
	{ "OUTSIDE", outside }, { "ABSOLUTE", absolute }, { "NAME_255", name_255 }, { "NAME_256", name_256 },
	{ "PATH_4095", path_4095 }, { "PATH_4096", path_4096 }, { "NULL", NULL }, { "BAD", (const char *)1 },
};

static void tell(const char *call, const char *where, const char *label, long long result)
{
	char text[1200];
	const char *error = result == -1 && errno ? strerrorname_np(errno) : NULL;

	escape(text, sizeof text, label, strlen(label));
	if (error)
		note("%s%s \"%s\": %s", call, where, text, error);
	else
		note("%s%s \"%s\": %lld", call, where, text, result);
}

/* A call on every path, which is `p` in the expression. */
#define EACH(call, expression) \
	for (size_t i_ = 0; i_ < LENGTH(paths); i_++) { \
		const char *p = paths[i_].path; \
		long long result_ = AGAIN_AFTER_ELOOP(expression); \
		tell((call), "", paths[i_].label, result_); \
	}

/* The directories that paths are taken from, by descriptor. */
static struct {
	const char *label;
	int fd;
} dirs[] = { { " of cwd", AT_FDCWD }, { " of top" }, { " of O_PATH top" }, { " of file" }, { " of O_PATH link" }, { " of fifo" }, { " of private" }, { " of nowhere", 777 } };

/* A call on every path from every directory, which is `fd`. */
#define EACH_AT(call, expression) \
	for (size_t j_ = 0; j_ < LENGTH(dirs); j_++) { \
		for (size_t i_ = 0; i_ < LENGTH(paths); i_++) { \
			const char *p = paths[i_].path; \
			int fd = dirs[j_].fd; \
			long long result_ = AGAIN_AFTER_ELOOP(expression); \
			tell((call), dirs[j_].label, paths[i_].label, result_); \
		} \
	}

static void prepare(void)
{
	memset(name_255, 'n', 255);
	memset(name_256, 'n', 256);
	for (size_t i = 0; i < sizeof path_4095 - 2; i += 2)
		memcpy(path_4095 + i, "./", 2);
	path_4095[4094] = 'a';
	for (size_t i = 0; i < sizeof path_4096 - 1; i += 2)
		memcpy(path_4096 + i, "./", 2);
	snprintf(outside, sizeof outside, "%s/out", host_path);
	snprintf(absolute, sizeof absolute, "%s/d/f", top_path);
	for (size_t i = 0; i < LENGTH(paths); i++) {
		if (!paths[i].path && strcmp(paths[i].label, "NULL"))
			paths[i].path = paths[i].label;
	}
	dirs[1].fd = MUST(open(".", O_RDONLY | O_DIRECTORY));
	dirs[2].fd = MUST(open(".", O_PATH));
	dirs[3].fd = MUST(open("a", O_RDONLY));
	dirs[4].fd = MUST(open("dlink", O_PATH | O_NOFOLLOW));
	dirs[5].fd = MUST(open("fifo", O_RDONLY | O_NONBLOCK));
	/* An ordinary user has none. */
	dirs[6].fd = open("private", O_RDONLY | O_DIRECTORY);
	note("private: %d", dirs[6].fd < 0 ? errno : 0);
}

#endif
