/* Random paths and calls, the same in each run: between host and mount, by links, dots, slashes, descriptors and the working
 * directory. */
#include "step.h"

#define CALLS 6000

static uint64_t state = 20261122;

static unsigned pick(unsigned below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 11) % below;
}

/* The trees, each two directories deep where paths start, so that two `..` stay inside. */
static char roots[2][PATH_MAX];

static void tree(int which)
{
	static const char *const dirs[] = { "a", "a/b", "a/b/c", "a/b/d", "a/b/c/e" };
	static const char *const files[] = { "a/f", "a/b/f", "a/b/c/f", "a/b/d/g", "a/b/c/e/long-name-of-a-file" };
	char path[2 * PATH_MAX], target[PATH_MAX + 16];

	MUST(mkdir(roots[which], 0755));
	for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
		snprintf(path, sizeof path, "%s/%s", roots[which], dirs[i]);
		MUST(mkdir(path, 0755));
		/* To the same place of the other tree, to one's own, relative, to nothing, and to itself. */
		for (int link = 0; link < 5; link++) {
			static const char *const names[] = { "other", "own", "near", "gone", "loop" };

			if (link == 0 || link == 1)
				snprintf(target, sizeof target, "%s/a/b/c", roots[link == 0 ? !which : which]);
			else
				snprintf(target, sizeof target, "%s", link == 2 ? "./f" : link == 3 ? "none/x" : "loop");
			snprintf(path, sizeof path, "%s/%s/%s", roots[which], dirs[i], names[link]);
			MUST(symlink(target, path));
		}
	}
	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		snprintf(path, sizeof path, "%s/%s", roots[which], files[i]);
		make(path, which ? "host" : "top's");
	}
}

static void random_path(char *path, const char *start)
{
	static const char *const names[] = { "a", "b", "c", "d", "e", "f", "g", "f", "c", "other", "own", "near", "gone", "loop", "none",
		"long-name-of-a-file", ".", "" };
	int dots = 0, parts = pick(5);

	strcpy(path, start);
	for (int i = 0; i < parts; i++) {
		if (*path)
			strcat(path, "/");
		if (dots < 2 && pick(8) == 0) {
			strcat(path, "..");
			dots++;
		} else {
			strcat(path, names[pick(sizeof names / sizeof *names)]);
		}
	}
	if (pick(10) == 0)
		strcat(path, "/");
	if (!*start && *path == '/')
		memmove(path, path + 1, strlen(path));
	/* A relative path must not begin with a slash. */
	while (!*start && *path == '/')
		memmove(path, path + 1, strlen(path));
}

static void show_result(int number, const char *what, const char *path, long result)
{
	note("%d %s %s: %s", number, what, shown(path), result < 0 ? strerrorname_np(errno) : "");
	if (result >= 0)
		note("%ld", result);
}

static long kind_and_size(const struct stat *meta)
{
	return (meta->st_mode & (S_IFMT | 0777)) * 1000 + (S_ISREG(meta->st_mode) ? meta->st_size : 0);
}

static void steps(void)
{
	char path[2 * PATH_MAX], start[PATH_MAX + 16], text[PATH_MAX + 1];
	int dirs[2];

	snprintf(roots[0], sizeof roots[0], "%s/w/z", top_path);
	snprintf(roots[1], sizeof roots[1], "%s/z", host_path);
	snprintf(path, sizeof path, "rm -rf %s", roots[1]);
	if (system(path))
		note("rm");
	tree(0);
	tree(1);
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%s/a/b", roots[i]);
		dirs[i] = MUST(open(path, O_RDONLY | O_DIRECTORY));
	}
	MUST(fchdir(dirs[0]));
	for (int i = 0; i < CALLS; i++) {
		struct stat meta;
		struct statx more;
		long result;
		int from = AT_FDCWD, fd;

		*start = 0;
		switch (pick(4)) {
		case 0:
		case 1:
			snprintf(start, sizeof start, "%s/a/b", roots[pick(2)]);
			break;
		case 2:
			from = dirs[pick(2)];
			break;
		}
		random_path(path, start);
		switch (pick(from == AT_FDCWD ? 11 : 6)) {
		case 0:
			show_result(i, "fstatat", path, fstatat(from, path, &meta, 0) < 0 ? -1 : kind_and_size(&meta));
			break;
		case 1:
			show_result(i, "fstatat itself", path, fstatat(from, path, &meta, AT_SYMLINK_NOFOLLOW) < 0 ? -1 : kind_and_size(&meta));
			break;
		case 2:
			show_result(i, "faccessat", path, faccessat(from, path, pick(8), 0));
			break;
		case 3:
			result = readlinkat(from, path, text, pick(20) ? PATH_MAX : 3);
			show_result(i, "readlinkat", path, result < 0 ? -1 : 0);
			text[result < 3 ? 0 : result] = 0;
			note("%s", shown(text));
			break;
		case 4:
			result = statx(from, path, pick(2) ? AT_SYMLINK_NOFOLLOW : 0, STATX_BASIC_STATS, &more);
			show_result(i, "statx", path, result < 0 ? -1 : more.stx_mode);
			break;
		case 5:
			fd = openat(from, path, (pick(3) ? O_RDONLY : O_NOFOLLOW) | (pick(4) ? 0 : O_DIRECTORY));
			show_result(i, "openat", path, fd < 0 ? -1 : fstat(fd, &meta) < 0 ? -1 : kind_and_size(&meta));
			if (fd >= 0 && S_ISREG(meta.st_mode)) {
				result = read(fd, text, 100);
				text[result < 0 ? 0 : result] = 0;
				note("%s", text);
			}
			if (fd >= 0)
				close(fd);
			break;
		case 6:
			show_result(i, "stat", path, stat(path, &meta) < 0 ? -1 : kind_and_size(&meta));
			break;
		case 7:
			show_result(i, "lstat", path, lstat(path, &meta) < 0 ? -1 : kind_and_size(&meta));
			break;
		case 8:
			show_result(i, "access", path, access(path, pick(8)));
			break;
		case 9:
			result = readlink(path, text, PATH_MAX);
			show_result(i, "readlink", path, result < 0 ? -1 : 0);
			break;
		case 10:
			if (pick(4) == 0) {
				MUST(fchdir(dirs[pick(2)]));
				note("%s", getcwd(text, sizeof text) ? shown(text) : "");
			}
			show_result(i, "getxattr", path, getxattr(path, "user.none", text, sizeof text));
			break;
		}
	}
}
