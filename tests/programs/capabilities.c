/* Rights come from the effective capabilities and the user namespace of the thread that calls, not from its uid: every capability
 * that concerns files is taken away alone, is the only one of uid 0, and is the only one of another user; then user
 * namespaces with several maps. An ordinary user has no capabilities to give up; the namespaces remain.
 */
#define STEP_HELPER
#include "step.h"
#include <linux/capability.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/fsuid.h>

#define BIT(cap) (1ull << (cap))
#define ALL (~0ull)

enum { USER = 1000, OTHER = 77, GROUP = 5 };

static const struct { const char *name; int cap; } capabilities[] = {
	{ "CHOWN", CAP_CHOWN }, { "DAC_OVERRIDE", CAP_DAC_OVERRIDE }, { "DAC_READ_SEARCH", CAP_DAC_READ_SEARCH },
	{ "FOWNER", CAP_FOWNER }, { "FSETID", CAP_FSETID }, { "LINUX_IMMUTABLE", CAP_LINUX_IMMUTABLE },
	{ "SYS_ADMIN", CAP_SYS_ADMIN }, { "MKNOD", CAP_MKNOD }, { "SETFCAP", CAP_SETFCAP },
};
enum { CAPABILITIES = sizeof capabilities / sizeof *capabilities };

static const char *who;

static const char *step(const char *name)
{
	static char text[200];

	snprintf(text, sizeof text, "%s: %s", who, name);
	return text;
}
#define TRY(name, expression) T(step(name), expression)
#define OPEN(name, expression) O(step(name), expression)

static uint64_t get_caps(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct sets[2];

	MUST(syscall(SYS_capget, &header, sets));
	return sets[0].effective | (uint64_t)sets[1].effective << 32;
}

/* Leaves what is in the masks of the effective and the permitted set. */
static void keep_caps(uint64_t effective, uint64_t permitted)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct sets[2];

	MUST(syscall(SYS_capget, &header, sets));
	for (int word = 0; word < 2; word++) {
		sets[word].permitted &= (uint32_t)(permitted >> 32 * word);
		sets[word].effective = sets[word].permitted & (uint32_t)(effective >> 32 * word);
		sets[word].inheritable = 0;
	}
	MUST(syscall(SYS_capset, &header, sets));
}

/* Another user with the capabilities `kept`, without groups. */
static void become(uid_t id, uint64_t kept)
{
	if (geteuid() != 0)
		return;
	MUST(prctl(PR_SET_KEEPCAPS, 1));
	MUST(setgroups(0, NULL));
	MUST(setresgid(id, id, id));
	MUST(setresuid(id, id, id));
	keep_caps(kept, kept);
}

static void own(const char *path, uid_t uid, gid_t gid, mode_t mode)
{
	if (geteuid() == 0)
		MUST(chown(path, uid, gid));
	MUST(chmod(path, mode));
}

/* Descriptors from before the capabilities went. */
static int closed_path, hidden_path, other_path;

/* The directory of this attempt. */
static char base[PATH_MAX];

/* A fresh directory with something to try each capability on. */
static void prepare(void)
{
	static int number;
	char name[20];

	snprintf(name, sizeof name, "d%d", number++);
	MUST(mkdir(name, 0777));
	MUST(chmod(name, 0777));
	MUST(chdir(name));
	if (!getcwd(base, sizeof base))
		abort();
	make("closed", "closed");
	make("other", "other");
	own("other", OTHER, OTHER, 0644);
	make("setid", "x");
	own("setid", OTHER, GROUP, 06777);
	MUST(mkdir("hidden", 0755));
	make("hidden/f", "f");
	own("hidden/f", OTHER, OTHER, 0666);
	MUST(mkdir("theirs", 0755));
	make("theirs/closed", "x");
	own("theirs/closed", OTHER, OTHER, 0);
	own("theirs", OTHER, OTHER, 0700);
	MUST(mkdir("sticky", 0755));
	make("sticky/f", "f");
	own("sticky/f", OTHER, OTHER, 0666);
	make("sticky/g", "g");
	own("sticky/g", OTHER, OTHER, 0666);
	own("sticky", 3, 3, 01777);
	MUST(mkdir("group", 0755));
	own("group", 3, GROUP, 02777);
	make("of user", "u");
	own("of user", USER, USER, 0644);
	MUST(mkdir("readonly", 0555));
	if (geteuid() == 0)
		MUST(setxattr("other", "trusted.there", "1", 1, 0));
	MUST(chmod("closed", 0));
	MUST(chmod("hidden", 0));
}

static void leave(void)
{
	MUST(chdir(".."));
}

/* In the process that gives up rights: Linux tells a process's own descriptors from inherited ones. */
static void open_paths(void)
{
	closed_path = MUST(open("closed", O_PATH | O_CLOEXEC));
	hidden_path = MUST(open("hidden", O_PATH | O_CLOEXEC));
	other_path = MUST(open("other", O_PATH | O_CLOEXEC));
}

static long set_flag(const char *path, int flag)
{
	int flags = 0, fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return fd;
	ioctl(fd, FS_IOC_GETFLAGS, &flags);
	flags |= flag;
	long result = ioctl(fd, FS_IOC_SETFLAGS, &flags);
	int saved = errno;
	close(fd);
	errno = saved;
	return result;
}

/* What a right to read, write and search decides. */
static void access_steps(void)
{
	char link[40];

	OPEN("read", open("closed", O_RDONLY));
	OPEN("write", open("closed", O_WRONLY));
	TRY("truncate", truncate("closed", 3));
	OPEN("list", open("hidden", O_RDONLY | O_DIRECTORY));
	OPEN("search", open("hidden/f", O_RDONLY));
	OPEN("read theirs", open("theirs/closed", O_RDONLY));
	OPEN("write theirs", open("theirs/closed", O_WRONLY));
	TRY("mkdir theirs", mkdir("theirs/d", 0755));
	TRY("mkdir", mkdir("readonly/d", 0755));
	TRY("access R_OK", access("closed", R_OK));
	TRY("access X_OK", access("closed", X_OK));
	TRY("access W_OK", access("readonly", W_OK));
	TRY("effective access", faccessat(AT_FDCWD, "closed", R_OK, AT_EACCESS));
	TRY("effective access", faccessat(AT_FDCWD, "theirs", R_OK | W_OK | X_OK, AT_EACCESS));
	/* O_PATH descriptors give no rights of their own. */
	OPEN("O_PATH directory", openat(hidden_path, "f", O_RDONLY));
	OPEN("O_PATH directory itself", openat(hidden_path, ".", O_RDONLY | O_DIRECTORY));
	snprintf(link, sizeof link, "/proc/self/fd/%d", closed_path);
	OPEN("O_PATH file", open(link, O_RDONLY));
	TRY("AT_EMPTY_PATH access", syscall(SYS_faccessat2, closed_path, "", R_OK, AT_EMPTY_PATH | AT_EACCESS));
	TRY("AT_EMPTY_PATH link", linkat(other_path, "", AT_FDCWD, "group/linked", AT_EMPTY_PATH));
	TRY("fchdir", fchdir(hidden_path));
	MUST(chdir(base));
}

/* What the owner of a file may do. */
static void owner_steps(void)
{
	struct timespec times[2] = { { 1000, 0 }, { 2000, 0 } };

	TRY("chmod", chmod("other", 0640));
	TRY("utimensat", utimensat(AT_FDCWD, "other", times, 0));
	OPEN("O_NOATIME", open("setid", O_RDONLY | O_NOATIME));
	TRY("sticky unlink", unlink("sticky/f"));
	TRY("sticky rename", rename("sticky/g", "sticky/h"));
	TRY("AT_EMPTY_PATH chown", fchownat(other_path, "", -1, GROUP, AT_EMPTY_PATH));
	TRY("chown", chown("other", GROUP, GROUP));
	SHOW("other");
	/* Set-id bits at a change of content, of mode and of group. */
	int fd = open("setid", O_WRONLY | O_CLOEXEC);
	TRY("write set-id", write(fd, "y", 1));
	close(fd);
	SHOW("setid");
	TRY("create", mknod("mine", S_IFREG | 0644, 0));
	TRY("chmod set-gid", chmod("mine", 02755));
	SHOW("mine");
	OPEN("create set-gid", open("group/mine", O_CREAT | O_RDWR, 02775));
	SHOW("group/mine");
	TRY("chmod set-gid of another group", chmod("group/mine", 02755));
	SHOW("group/mine");
	TRY("chown to a group", chown("mine", -1, GROUP));
	SHOW("mine");
}

/* A file capability: cap_net_raw+ep. */
static const unsigned char file_capability[20] = { 1, 0, 0, 2, 0, 0x20 };

static void privileged_steps(void)
{
	char names[200];

	TRY("mknod", mknod("null", S_IFCHR | 0600, makedev(1, 3)));
	TRY("whiteout", mknod("white", S_IFCHR, 0));
	TRY("fifo", mkfifo("fifo", 0600));
	TRY("trusted set", setxattr("setid", "trusted.a", "1", 1, 0));
	TRY("trusted get", getxattr("other", "trusted.there", names, sizeof names));
	TRY("trusted list", listxattr("other", names, sizeof names));
	TRY("trusted remove", removexattr("other", "trusted.there"));
	TRY("security set", setxattr("setid", "security.a", "1", 1, 0));
	TRY("security remove", removexattr("setid", "security.a"));
	if (!(get_caps() & BIT(CAP_LINUX_IMMUTABLE)) || !strncmp(who, "namespace", 9))
		TRY("immutable", set_flag("setid", FS_IMMUTABLE_FL));
	/* A namespace's root would set another version of it. */
	if (strncmp(who, "namespace", 9)) {
		TRY("file capability", setxattr("setid", "security.capability", file_capability, sizeof file_capability, 0));
		TRY("no file capability", removexattr("setid", "security.capability"));
	}
}

static void attempt(void)
{
	access_steps();
	owner_steps();
	privileged_steps();
}

#define ATTEMPT(name, change) \
	do { \
		who = (name); \
		prepare(); \
		CHILD(step("all"), open_paths(); change; attempt()); \
		leave(); \
	} while (0)

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		note("%s: writing a map: %s", who, strerrorname_np(errno));
	close(fd);
}

/* The child is in a namespace of its own, and asks its parent for maps after its first call on a file. */
static void in_namespace(const char *name, uid_t user, const char *uids, const char *gids)
{
	int ready[2], go[2], status;
	char path[60], byte;

	who = name;
	prepare();
	MUST(pipe(ready));
	MUST(pipe(go));
	pid_t child = MUST(fork());
	if (child == 0) {
		open_paths();
		become(user, 0);
		MUST(unshare(CLONE_NEWUSER));
		OPEN("before the map", open("closed", O_RDONLY));
		SHOW("other");
		MUST(write(ready[1], "x", 1));
		MUST(read(go[0], &byte, 1));
		if (uids && geteuid() == 0) {
			/* All inside, and the capabilities that come with it, already. */
			IS(step("namespace's root has capabilities"), get_caps() != 0);
		}
		SHOW("other");
		SHOW("closed");
		TRY("chown to what is inside 0", chown("of user", 0, 0));
		attempt();
		TRY("create inside", mknod("inside", S_IFREG | 0644, 0));
		SHOW("inside");
		TRY("chown to inside 1", chown("inside", 1, 1));
		SHOW("inside");
		TRY("chown to an id that is not there", chown("inside", 4000, 4000));
		struct statx stx;
		TRY("statx", statx(AT_FDCWD, "inside", 0, STATX_BASIC_STATS, &stx));
		note("%s: statx %u:%u", who, stx.stx_uid, stx.stx_gid);
		_exit(0);
	}
	MUST(read(ready[0], &byte, 1));
	if (uids) {
		snprintf(path, sizeof path, "/proc/%d/setgroups", child);
		put(path, "deny");
		snprintf(path, sizeof path, "/proc/%d/uid_map", child);
		put(path, uids);
		snprintf(path, sizeof path, "/proc/%d/gid_map", child);
		put(path, gids);
	}
	MUST(write(go[1], "x", 1));
	MUST(waitpid(child, &status, 0));
	ended(__LINE__, who, status);
	close(ready[0]), close(ready[1]), close(go[0]), close(go[1]);
	leave();
}

/* What a program does that was executed with less. */
static int helper(int argc, char **argv)
{
	who = "executed with less";
	OPEN("read", open("closed", O_RDONLY));
	OPEN("write", open("closed", O_WRONLY));
	TRY("trusted", setxattr("other", "trusted.there", "1", 1, 0));
	return 0;
}

/* As TRY, with a limit that our own output is not to meet. */
#define LIMITED(name, expression) \
	do { \
		struct rlimit none_ = { RLIM_INFINITY, RLIM_INFINITY }, limit_ = { 5000, RLIM_INFINITY }; \
		MUST(setrlimit(RLIMIT_FSIZE, &limit_)); \
		errno = 0; \
		long long result_ = (expression); \
		int error_ = errno; \
		MUST(setrlimit(RLIMIT_FSIZE, &none_)); \
		say(__LINE__, step(name), result_, error_); \
	} while (0)

/* The limit on file sizes of a process whose ids are not all the same. */
static void file_limit(void)
{
	who = "effective user with a limit";
	signal(SIGXFSZ, SIG_IGN);
	if (geteuid() == 0)
		MUST(seteuid(USER));
	int fd = MUST(open("limited", O_CREAT | O_RDWR, 0644));
	LIMITED("truncate", truncate("limited", 6000));
	LIMITED("ftruncate", ftruncate(fd, 6000));
	LIMITED("pwrite", pwrite(fd, "x", 1, 7000));
	LIMITED("pwrite across", pwrite(fd, "abcdef", 6, 4997));
	LIMITED("ftruncate within", ftruncate(fd, 4000));
	close(fd);
}

static void steps(void)
{
	char name[100], map[100];
	bool root = geteuid() == 0;

	ATTEMPT("as started", );
	if (root) {
		for (int i = 0; i < CAPABILITIES; i++) {
			uint64_t bit = BIT(capabilities[i].cap);
			snprintf(name, sizeof name, "without %s", capabilities[i].name);
			ATTEMPT(name, keep_caps(~bit, ~bit));
			snprintf(name, sizeof name, "only %s", capabilities[i].name);
			ATTEMPT(name, keep_caps(bit, bit));
			snprintf(name, sizeof name, "user with %s", capabilities[i].name);
			ATTEMPT(name, become(USER, bit));
		}
		ATTEMPT("none effective", keep_caps(0, ALL));
		ATTEMPT("effective user", MUST(setegid(USER)); MUST(seteuid(USER)));
		ATTEMPT("file-system user", setfsgid(USER); setfsuid(USER));
		ATTEMPT("real user", MUST(setregid(USER, 0)); MUST(setreuid(USER, 0)));
		ATTEMPT("user", become(USER, 0));
	}
	who = "executed";
	prepare();
	if (root) {
		prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE);
		prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH);
	}
	CHILD(step("less"), execl("/proc/self/exe", self_path, "-", NULL));
	CHILD(step("limit"), file_limit());
	leave();
	ATTEMPT("none", keep_caps(0, 0));
	in_namespace("namespace without maps", USER, NULL, NULL);
	snprintf(map, sizeof map, "0 %d 1", root ? USER : geteuid());
	snprintf(name, sizeof name, "0 %d 1", root ? USER : getegid());
	in_namespace("namespace of one user", USER, map, name);
	if (root) {
		in_namespace("namespace of two users", USER, "0 1000 1\n1 77 1", "0 1000 1\n1 77 1");
		in_namespace("namespace of root's", 0, "0 0 200", "0 0 200");
		in_namespace("namespace elsewhere", USER, "0 100000 2000", "0 100000 2000");
	}
}
