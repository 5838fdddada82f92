/* POSIX access control lists: setting and showing them, modes, inheritance, and whom they let in. */
#include "step.h"

#define ACCESS "system.posix_acl_access"
#define DEFAULT "system.posix_acl_default"

enum { USER_OBJ = 1, USER = 2, GROUP_OBJ = 4, GROUP = 8, MASK = 16, OTHER = 32 };

struct entry { uint16_t tag, perm; uint32_t id; };
struct list { uint32_t version; struct entry entries[1200]; };

#define LENGTH(array) (sizeof(array) / sizeof *(array))
#define LIST(...) ((struct entry[]){ __VA_ARGS__ }), LENGTH(((struct entry[]){ __VA_ARGS__ }))
#define SET(path, name, ...) set(path, name, 0, LIST(__VA_ARGS__))

/* Users and groups that nothing belongs to. */
enum { ANN = 2001, BOB = 2002, TEAM = 3001, CREW = 3002 };

static int set(const char *path, const char *name, int flags, const struct entry *entries, size_t count)
{
	struct list list = { 2 };

	memcpy(list.entries, entries, count * sizeof *entries);
	return lsetxattr(path, name, &list, 4 + count * sizeof *entries, flags);
}

static void show(int line, const char *path)
{
	static const char *const names[] = { ACCESS, DEFAULT };
	struct stat meta;

	if (lstat(path, &meta)) {
		note("%d %s: %s", line, path, strerrorname_np(errno));
		return;
	}
	note("%d %s: %c%04o", line, path, type_letter(meta.st_mode), meta.st_mode & 07777);
	for (int n = 0; n < 2; n++) {
		struct list list;
		ssize_t size = lgetxattr(path, names[n], &list, sizeof list);

		if (size < 0) {
			note("  %s: %s", names[n], strerrorname_np(errno));
			continue;
		}
		note("  %s: version %u, %zd bytes", names[n], list.version, size);
		for (ssize_t i = 0; i < (size - 4) / 8; i++)
			note("    %02x %o %d", list.entries[i].tag, list.entries[i].perm, (int)list.entries[i].id);
	}
}
#define SHOW_LIST(path) show(__LINE__, path)

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names(int line, const char *path)
{
	char names[4096], *each[64];
	int count = 0;
	ssize_t size = llistxattr(path, names, sizeof names);

	for (char *name = names; name < names + size; name += strlen(name) + 1)
		if (strncmp(name, "security.", 9))
			each[count++] = name;
	qsort(each, count, sizeof *each, by_text);
	note("%d %s has %d attributes", line, path, count);
	for (int i = 0; i < count; i++)
		note("  %s", each[i]);
}
#define NAMES(path) names(__LINE__, path)

#define BASE(u, g, o) { USER_OBJ, u, -1 }, { GROUP_OBJ, g, -1 }, { OTHER, o, -1 }
#define ANN_RW { USER_OBJ, 6, -1 }, { USER, 6, ANN }, { GROUP_OBJ, 4, -1 }, { MASK, 6, -1 }, { OTHER, 0, -1 }

static void setting(void)
{
	char value[200];
	struct stat before, after;
	int fd;

	make("f", "text");
	MUST(mkdir("d", 0755));
	MUST(symlink("f", "l"));
	MUST(mkfifo("p", 0644));
	SHOW_LIST("f");
	T("set", SET("f", ACCESS, ANN_RW));
	SHOW_LIST("f");
	NAMES("f");
	T("size", getxattr("f", ACCESS, NULL, 0));
	T("too small", getxattr("f", ACCESS, value, 43));
	T("exact", getxattr("f", ACCESS, value, 44));
	T("create, which is ignored", set("f", ACCESS, XATTR_CREATE, LIST(ANN_RW)));
	T("replace, which is ignored", set("d", ACCESS, XATTR_REPLACE, LIST(ANN_RW)));
	T("unknown flags", set("f", ACCESS, 4, LIST(ANN_RW)));
	T("a mask alone", SET("f", ACCESS, { USER_OBJ, 7, -1 }, { GROUP_OBJ, 6, -1 }, { MASK, 5, -1 }, { OTHER, 4, -1 }));
	SHOW_LIST("f");
	T("ids of entries without", SET("f", ACCESS, { USER_OBJ, 6, 5 }, { GROUP_OBJ, 6, 6 }, { MASK, 5, 7 }, { OTHER, 4, 8 }));
	SHOW_LIST("f");
	T("two of one user", SET("f", ACCESS, { USER_OBJ, 6, -1 }, { USER, 6, ANN }, { USER, 4, ANN }, { GROUP_OBJ, 6, -1 },
				 { MASK, 5, -1 }, { OTHER, 4, -1 }));
	SHOW_LIST("f");
	T("a mode", SET("f", ACCESS, BASE(6, 4, 1)));
	SHOW_LIST("f");
	NAMES("f");
	fd = MUST(open("f", O_RDONLY));
	T("by descriptor", fsetxattr(fd, ACCESS, &(struct list){ 2, { ANN_RW } }, 44, 0));
	T("get by descriptor", fgetxattr(fd, ACCESS, value, sizeof value));
	SHOW_FD("f", fd);
	T("remove by descriptor", fremovexattr(fd, ACCESS));
	T("remove again", fremovexattr(fd, ACCESS));
	SHOW_LIST("f");
	T("set to remove", SET("f", ACCESS, ANN_RW));
	T("set nothing", setxattr("f", ACCESS, "", 0, 0));
	SHOW_LIST("f");
	T("set to remove", SET("f", ACCESS, ANN_RW));
	T("set a version only", setxattr("f", ACCESS, "\2\0\0\0", 4, 0));
	SHOW_LIST("f");
	close(fd);

	T("of a directory", SET("d", ACCESS, { USER_OBJ, 7, -1 }, { GROUP_OBJ, 5, -1 }, { GROUP, 7, TEAM }, { MASK, 7, -1 }, { OTHER, 0, -1 }));
	T("default", SET("d", DEFAULT, { USER_OBJ, 7, -1 }, { USER, 7, BOB }, { GROUP_OBJ, 5, -1 }, { MASK, 7, -1 }, { OTHER, 5, -1 }));
	SHOW_LIST("d");
	NAMES("d");
	T("default that is a mode", SET("d", DEFAULT, BASE(7, 5, 0)));
	SHOW_LIST("d");
	T("remove default", removexattr("d", DEFAULT));
	T("remove default again", removexattr("d", DEFAULT));
	SHOW_LIST("d");
	T("through a link", setxattr("l", ACCESS, &(struct list){ 2, { ANN_RW } }, 44, 0));
	SHOW_LIST("f");
	T("of a fifo", SET("p", ACCESS, ANN_RW));
	SHOW_LIST("p");
	T("default of a fifo", SET("p", DEFAULT, ANN_RW));

	MUST(lstat("f", &before));
	usleep(20000);
	T("chmod", chmod("f", 0640));
	MUST(lstat("f", &after));
	IS("changed later", after.st_ctim.tv_sec > before.st_ctim.tv_sec || after.st_ctim.tv_nsec > before.st_ctim.tv_nsec);
	usleep(20000);
	T("list that changes no mode", SET("f", ACCESS, { USER_OBJ, 6, -1 }, { USER, 6, BOB }, { GROUP_OBJ, 4, -1 }, { MASK, 4, -1 },
					   { OTHER, 0, -1 }));
	MUST(lstat("f", &before));
	IS("changed later", after.st_ctim.tv_sec < before.st_ctim.tv_sec || after.st_ctim.tv_nsec < before.st_ctim.tv_nsec);
	SHOW_LIST("f");
}

static void errors(void)
{
	char value[100];
	struct list list = { 2, { ANN_RW } };

	make("e", "text");
	MUST(symlink("e", "el"));
	T("link itself", lsetxattr("el", ACCESS, &list, 44, 0));
	T("link itself, nothing", lsetxattr("el", ACCESS, "", 0, 0));
	T("link itself, get", lgetxattr("el", ACCESS, value, sizeof value));
	T("link itself, remove", lremovexattr("el", ACCESS));
	T("link itself, default", lsetxattr("el", DEFAULT, &list, 44, 0));
	T("default of a file", SET("e", DEFAULT, ANN_RW));
	T("no default of a file", setxattr("e", DEFAULT, "", 0, 0));
	T("malformed default of a file", SET("e", DEFAULT, { USER_OBJ, 7, -1 }));
	T("remove default of a file", removexattr("e", DEFAULT));
	T("get default of a file", getxattr("e", DEFAULT, value, sizeof value));
	T("short", setxattr("e", ACCESS, &list, 3, 0));
	T("half an entry", setxattr("e", ACCESS, &list, 40, 0));
	T("another version", setxattr("e", ACCESS, "\1\0\0\0", 4, 0));
	T("another version of more", setxattr("e", ACCESS, "\3\0\0\0\0", 5, 0));
	T("unknown tag", SET("e", ACCESS, { USER_OBJ, 7, -1 }, { GROUP_OBJ, 7, -1 }, { OTHER, 7, -1 }, { 64, 7, -1 }));
	T("unknown tag of many", SET("e", ACCESS, { 3, 7, -1 }));
	T("unknown permission", SET("e", ACCESS, BASE(8, 7, 7)));
	T("no others", SET("e", ACCESS, { USER_OBJ, 7, -1 }, { GROUP_OBJ, 7, -1 }));
	T("no owner", SET("e", ACCESS, { GROUP_OBJ, 7, -1 }, { OTHER, 7, -1 }));
	T("two owners", SET("e", ACCESS, { USER_OBJ, 7, -1 }, { USER_OBJ, 7, -1 }, { GROUP_OBJ, 7, -1 }, { OTHER, 7, -1 }));
	T("no mask", SET("e", ACCESS, { USER_OBJ, 7, -1 }, { USER, 7, ANN }, { GROUP_OBJ, 7, -1 }, { OTHER, 7, -1 }));
	T("no mask for a group", SET("e", ACCESS, { USER_OBJ, 7, -1 }, { GROUP_OBJ, 7, -1 }, { GROUP, 7, TEAM }, { OTHER, 7, -1 }));
	T("two masks", SET("e", ACCESS, { USER_OBJ, 7, -1 }, { GROUP_OBJ, 7, -1 }, { MASK, 7, -1 }, { MASK, 7, -1 }, { OTHER, 7, -1 }));
	T("other order", SET("e", ACCESS, { OTHER, 7, -1 }, { GROUP_OBJ, 7, -1 }, { USER_OBJ, 7, -1 }));
	T("user without id", SET("e", ACCESS, { USER_OBJ, 7, -1 }, { USER, 7, -1 }, { GROUP_OBJ, 7, -1 }, { MASK, 7, -1 }, { OTHER, 7, -1 }));
	T("malformed default of a directory", SET("d", DEFAULT, { USER_OBJ, 7, -1 }));
	T("missing", SET("none", ACCESS, ANN_RW));
	T("bad pointer", setxattr("e", ACCESS, (void *)8, 44, 0));
	T("too large", setxattr("e", ACCESS, &list, 65537, 0));
	for (size_t i = 0; i < LENGTH(list.entries); i++)
		list.entries[i] = (struct entry){ USER, 6, 5000 + i };
	list.entries[0] = (struct entry){ USER_OBJ, 6, -1 };
	list.entries[1197] = (struct entry){ GROUP_OBJ, 6, -1 };
	list.entries[1198] = (struct entry){ MASK, 6, -1 };
	list.entries[1199] = (struct entry){ OTHER, 6, -1 };
	T("too long for the disk", setxattr("e", ACCESS, &list, 4 + 1200 * 8, 0));
	SHOW_LIST("e");
	CHILD("another user", {
		drop();
		if (geteuid() == NOBODY) {
			T("set", SET("e", ACCESS, ANN_RW));
			T("set what is malformed", SET("e", ACCESS, { USER_OBJ, 7, -1 }));
			T("set what is unreadable", setxattr("e", ACCESS, "x", 1, 0));
			T("remove", removexattr("e", ACCESS));
			T("default of a file", SET("e", DEFAULT, ANN_RW));
			T("default", SET("d", DEFAULT, ANN_RW));
		}
	});
}

static void modes(void)
{
	make("m", "text");
	MUST(SET("m", ACCESS, { USER_OBJ, 6, -1 }, { USER, 7, ANN }, { GROUP_OBJ, 5, -1 }, { GROUP, 6, TEAM }, { MASK, 7, -1 }, { OTHER, 1, -1 }));
	SHOW_LIST("m");
	T("chmod", chmod("m", 04642));
	SHOW_LIST("m");
	T("fchmodat", fchmodat(AT_FDCWD, "m", 0, 0));
	SHOW_LIST("m");
	T("chown", chown("m", -1, -1));
	SHOW_LIST("m");
	T("chmod back", chmod("m", 02775));
	T("list", SET("m", ACCESS, ANN_RW));
	SHOW_LIST("m");
	T("rename", rename("m", "m2"));
	T("link", link("m2", "m3"));
	SHOW_LIST("m3");
	T("write", truncate("m2", 2));
	SHOW_LIST("m2");
}

static void inherit(const char *dir)
{
	int fd;

	MUST(chdir(dir));
	fd = MUST(open("created", O_CREAT | O_WRONLY, 0666));
	close(fd);
	SHOW_LIST("created");
	close(MUST(open("program", O_CREAT | O_WRONLY | O_EXCL, 0777)));
	SHOW_LIST("program");
	close(MUST(open("private", O_CREAT | O_WRONLY | O_EXCL, 0600)));
	SHOW_LIST("private");
	close(MUST(open("none", O_CREAT | O_WRONLY | O_EXCL, 0)));
	SHOW_LIST("none");
	MUST(mkdir("sub", 0777));
	SHOW_LIST("sub");
	MUST(mkdir("narrow", 01700));
	SHOW_LIST("narrow");
	T("below", mkdir("sub/sub", 0755));
	SHOW_LIST("sub/sub");
	MUST(mkfifo("fifo", 0666));
	SHOW_LIST("fifo");
	MUST(mknod("node", S_IFREG | 0622, 0));
	SHOW_LIST("node");
	MUST(symlink("x", "link"));
	SHOW_LIST("link");
	int sock = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	struct sockaddr_un address = { AF_UNIX, "sock" };
	MUST(bind(sock, (struct sockaddr *)&address, sizeof address));
	close(sock);
	SHOW_LIST("sock");
	fd = MUST(open(".", O_TMPFILE | O_RDWR, 0666));
	struct list list;
	T("list of a file without name", fgetxattr(fd, ACCESS, &list, sizeof list));
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	T("name it", linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
	close(fd);
	SHOW_LIST("named");
	make("../moved", "text");
	T("move in", rename("../moved", "moved"));
	SHOW_LIST("moved");
	MUST(chdir(".."));
}

static void inheritance(void)
{
	MUST(mkdir("i1", 0755));
	MUST(SET("i1", DEFAULT, { USER_OBJ, 7, -1 }, { USER, 7, ANN }, { GROUP_OBJ, 5, -1 }, { GROUP, 6, TEAM }, { MASK, 7, -1 }, { OTHER, 4, -1 }));
	SHOW_LIST("i1");
	umask(077);
	inherit("i1");
	MUST(mkdir("i2", 0755));
	MUST(chmod("i2", 02755));
	MUST(SET("i2", DEFAULT, BASE(7, 6, 4)));
	inherit("i2");
	umask(022);
	MUST(mkdir("i3", 0755));
	MUST(SET("i3", DEFAULT, { USER_OBJ, 7, -1 }, { GROUP_OBJ, 7, -1 }, { MASK, 4, -1 }, { OTHER, 0, -1 }));
	inherit("i3");
	T("remove default", removexattr("i3", DEFAULT));
	MUST(mkdir("i3/later", 0777));
	SHOW_LIST("i3/later");
}

/* What a user may do; each of the steps, in a process of its own user. */
static void tries(const char *name)
{
	note("--- %s", name);
	O("read", open("t/file", O_RDONLY));
	O("write", open("t/file", O_WRONLY));
	O("append", open("t/file", O_WRONLY | O_APPEND));
	T("access R", access("t/file", R_OK));
	T("access W", access("t/file", W_OK));
	T("access X", access("t/file", X_OK));
	T("access RW", access("t/file", R_OK | W_OK));
	T("eaccess X", faccessat(AT_FDCWD, "t/file", X_OK, AT_EACCESS));
	T("truncate", truncate("t/file", 3));
	T("utimes", utimensat(AT_FDCWD, "t/file", NULL, 0));
	T("chmod", chmod("t/file", 0777));
	char value[100];
	T("user attribute", getxattr("t/file", "user.x", value, sizeof value));
	T("list", getxattr("t/file", ACCESS, value, sizeof value) > 0);
	O("list the directory", open("t/dir", O_RDONLY | O_DIRECTORY));
	T("search it", access("t/dir/inner", F_OK));
	O("through it", open("t/dir/inner", O_RDONLY));
	T("create in it", mknod("t/dir/made", S_IFREG | 0644, 0));
	T("remove from it", unlink("t/dir/made"));
	T("rename in it", rename("t/dir/inner", "t/dir/inner"));
	T("rename out of it", rename("t/dir/inner", "t/free/inner"));
	T("and back", rename("t/free/inner", "t/dir/inner"));
	T("link", link("t/file", "t/free/hard"));
	unlink("t/free/hard");
	T("go there", chdir("t/dir"));
	if (access("../dir", F_OK) == 0)
		chdir("../..");
	O("fifo", open("t/fifo", O_RDWR | O_NONBLOCK));
	int sock = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	struct sockaddr_un address = { AF_UNIX, "t/sock" };
	T("connect", connect(sock, (struct sockaddr *)&address, sizeof address));
	close(sock);
	RUN("execute", "t/true", "true");
}

static void become(uid_t uid, gid_t gid, gid_t further)
{
	MUST(setgroups(further != 0, &further));
	MUST(setresgid(gid, gid, gid));
	MUST(setresuid(uid, uid, uid));
}

static void protect(const struct entry *entries, size_t count)
{
	static const char *const each[] = { "t/file", "t/dir", "t/fifo", "t/sock", "t/true" };

	for (size_t n = 0; n < LENGTH(each); n++) {
		struct entry own[16];

		/* A program in an encrypted directory is decrypted by those who execute it. */
		for (size_t i = 0; i < count; i++) {
			own[i] = entries[i];
			if (!strcmp(each[n], "t/true") && own[i].perm & 1)
				own[i].perm |= 4;
		}
		MUST(set(each[n], ACCESS, 0, own, count));
	}
}

static void everybody(const char *title)
{
	note("=== %s", title);
	CHILD("ann", { become(ANN, 4000, 0); tries("ann"); });
	CHILD("ann in the team", { become(ANN, TEAM, 0); tries("ann in the team"); });
	CHILD("bob in the team", { become(BOB, 4000, TEAM); tries("bob in the team"); });
	CHILD("bob in two groups", { become(BOB, TEAM, CREW); tries("bob in two groups"); });
	CHILD("bob in the file's group", { become(BOB, 4000, 500); tries("bob in the file's group"); });
	CHILD("stranger", { become(2999, 4000, 0); tries("stranger"); });
	CHILD("the owner", { become(400, 4000, 0); tries("the owner"); });
}

static void rights(void)
{
	MUST(chmod(".", 0755));
	MUST(mkdir("t", 0755));
	MUST(mkdir("t/dir", 0755));
	MUST(mkdir("t/free", 0777));
	MUST(chmod("t/free", 0777));
	make("t/file", "text");
	MUST(setxattr("t/file", "user.x", "v", 1, 0));
	make("t/dir/inner", "text");
	MUST(chmod("t/dir/inner", 0666));
	MUST(mkfifo("t/fifo", 0644));
	int sock = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	struct sockaddr_un address = { AF_UNIX, "t/sock" };
	MUST(bind(sock, (struct sockaddr *)&address, sizeof address));
	MUST(listen(sock, 100));
	int from = MUST(open("/bin/true", O_RDONLY)), to = MUST(open("t/true", O_CREAT | O_WRONLY, 0755));
	char block[65536];
	for (ssize_t got; (got = read(from, block, sizeof block)) > 0;)
		MUST(write(to, block, got));
	close(from);
	close(to);
	const char *const own[] = { "t/file", "t/dir", "t/fifo", "t/sock", "t/true" };
	for (size_t n = 0; n < LENGTH(own); n++)
		MUST(chown(own[n], 400, 500));

	protect(LIST({ USER_OBJ, 7, -1 }, { USER, 5, ANN }, { GROUP_OBJ, 0, -1 }, { MASK, 7, -1 }, { OTHER, 0, -1 }));
	everybody("read and search for ann");
	protect(LIST({ USER_OBJ, 0, -1 }, { USER, 7, ANN }, { GROUP_OBJ, 5, -1 }, { GROUP, 3, TEAM }, { GROUP, 4, CREW }, { MASK, 7, -1 }, { OTHER, 7, -1 }));
	everybody("groups");
	protect(LIST({ USER_OBJ, 7, -1 }, { USER, 7, ANN }, { GROUP_OBJ, 7, -1 }, { GROUP, 7, TEAM }, { MASK, 5, -1 }, { OTHER, 0, -1 }));
	everybody("a mask");
	protect(LIST({ USER_OBJ, 7, -1 }, { USER, 7, ANN }, { GROUP_OBJ, 7, -1 }, { GROUP, 7, TEAM }, { MASK, 0, -1 }, { OTHER, 5, -1 }));
	everybody("an empty mask");
	protect(LIST({ USER_OBJ, 7, -1 }, { USER, 0, ANN }, { GROUP_OBJ, 7, -1 }, { GROUP, 0, TEAM }, { MASK, 7, -1 }, { OTHER, 7, -1 }));
	everybody("kept out");
	for (size_t n = 0; n < LENGTH(own); n++)
		MUST(chmod(own[n], 0705));
	everybody("chmod");
	for (size_t n = 0; n < LENGTH(own); n++)
		MUST(removexattr(own[n], ACCESS));
	everybody("removed");
}

static void steps(void)
{
	setting();
	errors();
	modes();
	inheritance();
	if (geteuid() == 0)
		rights();
}
