/* Landlock: rules that hold, or calls that fail. */
#include "step.h"
#include <linux/landlock.h>
#include <sys/prctl.h>

static void confined(void)
{
	struct landlock_ruleset_attr handled = {
		.handled_access_fs = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG,
	};
	int rules = syscall(SYS_landlock_create_ruleset, &handled, sizeof handled, 0);

	IS("made", rules >= 0);
	struct landlock_path_beneath_attr beneath = {
		.allowed_access = LANDLOCK_ACCESS_FS_WRITE_FILE,
		.parent_fd = MUST(open("allowed", O_PATH | O_DIRECTORY | O_CLOEXEC)),
	};
	T("rule", syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0));
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	long confined = syscall(SYS_landlock_restrict_self, rules, 0);
	IS("confined", confined == 0);
	/* A program that has confined itself relies on it. */
	int fd = open("file", O_WRONLY | O_CLOEXEC);
	IS("written without permission", confined == 0 && fd >= 0);
	fd = open("allowed/new", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	IS("made without permission", confined == 0 && fd >= 0);
	O("allowed", open("allowed/file", O_WRONLY | O_CLOEXEC));
}

static void steps(void)
{
	MUST(mkdir("allowed", 0755));
	make("file", "");
	make("allowed/file", "");
	IS("available", syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) > 0);
	CHILD("confined", confined());
}
