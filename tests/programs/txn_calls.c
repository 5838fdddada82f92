/* Beginning, ending, leaving and joining, and what is refused. */
#include "txn.h"

static char outer_id[ID_LEN], inner_id[ID_LEN];

static void *in_thread(void *unused)
{
	/* A thread inherits the transaction, and may end its own part only. */
	IS(!strcmp(get("t"), "inside"));
	IS(txn(DETACH) == 0);
	IS(!strcmp(get("t"), "-"));
	IS(txn(BEGIN) == 1);
	put("t2", "thread's own");
	IS(txn(COMMIT) == 0);
	return unused;
}

static void refused(void)
{
	char bad[ID_LEN];

	IS(txn(VERSION) == 3);
	FAILS(EINVAL, syscall(0x616d6e, 77, 0, bad, ID_LEN, 0));
	FAILS(EINVAL, syscall(0x616d6e, BEGIN, 0, bad, ID_LEN, 1));
	FAILS(EINVAL, syscall(0x616d6e, BEGIN, 0, bad, ID_LEN - 1, 0));
	FAILS(EFAULT, syscall(0x616d6e, BEGIN, 0, (char *)8, ID_LEN, 0));
	FAILS(ENODATA, txn(COMMIT));
	FAILS(ENODATA, txn(ABORT));
	FAILS(ENODATA, txn(SUSPEND));
	FAILS(ENODATA, txn(DETACH));
	memset(bad, 'a', ID_LEN);
	FAILS(ENOENT, txn_of(ATTACH, 0, bad));
	FAILS(ENOENT, txn_of(RESUME, 0, bad));
	memset(bad, 'Z', ID_LEN);
	FAILS(EINVAL, txn_of(ATTACH, 0, bad));
	FAILS(ESRCH, txn_of(BEGIN, -3, bad));
	FAILS(ESRCH, txn_of(BEGIN, 0x7ffffff0, bad));
	if (getuid() == 0)
		FAILS(ESRCH, txn_of(BEGIN, 1, bad));
}

static void names_refused(void)
{
	char name[64] = "calls", slash[64] = "a/b", list[16];

	FAILS(EINVAL, syscall(0x616d6e, BEGIN_NAMED, 0, name, 63, 0));
	FAILS(EINVAL, syscall(0x616d6e, BEGIN_NAMED, 0, slash, 64, 0));
	FAILS(EINVAL, syscall(0x616d6e, BEGIN_NAMED, 0, name, 64, 1L << 32));
	FAILS(EFAULT, syscall(0x616d6e, BEGIN_NAMED, 0, (char *)8, 64, 0));
	FAILS(EINVAL, syscall(0x616d6e, ATTACH_NAMED, 0, name, 5, 1));
	FAILS(EINVAL, syscall(0x616d6e, ATTACH_NAMED, 0, name, 65, 0));
	FAILS(EINVAL, syscall(0x616d6e, ATTACH_NAMED, 0, name, 0, 0));
	FAILS(ENOENT, syscall(0x616d6e, ATTACH_NAMED, 0, name, 5, 0));
	FAILS(ENOENT, syscall(0x616d6e, COMMIT_NAMED, 0, name, 5, 0));
	FAILS(ENOENT, syscall(0x616d6e, ABORT_NAMED, 0, name, 64, 0));
	IS(syscall(0x616d6e, BEGIN_NAMED, 0, name, 64, 60) == 1);
	IS(syscall(0x616d6e, LIST, 0, list, sizeof list, 0) > (long)sizeof list);
	memcpy(name, "calls", 6);
	IS(syscall(0x616d6e, ATTACH_NAMED, 0, name, 5, 0) == 0);
	FAILS(EBUSY, syscall(0x616d6e, COMMIT_NAMED, 0, name, 5, 0));
	IS(syscall(0x616d6e, ABORT_NAMED, 0, name, 5, 0) == 0);
	FAILS(ECANCELED, mkdir("not-outside", 0777));
	IS(txn(ABORT) == 0);
	FAILS(ENODATA, txn(ABORT));
	IS(mkdir("outside", 0777) == 0 && rmdir("outside") == 0);
}

static void nested(void)
{
	for (int depth = 1; depth <= 64; depth++) {
		char name[16];
		snprintf(name, sizeof name, "n%d", depth);
		IS(txn(BEGIN) == depth);
		put(name, "x");
	}
	FAILS(EMLINK, txn(BEGIN));
	/* Every other one is given up, with those inside it that were committed. */
	for (int depth = 64; depth >= 1; depth--)
		IS(txn(depth == 33 ? ABORT : COMMIT) == 0);
	for (int depth = 1; depth <= 64; depth++) {
		char name[16];
		snprintf(name, sizeof name, "n%d", depth);
		IS(!strcmp(get(name), depth < 33 ? "x" : "-"));
	}
	FAILS(ENODATA, txn(COMMIT));
}

/* One process has a nested transaction open; the other one cannot commit around it, but abort. */
static void both_inside(void)
{
	struct flag began = new_flag(), tried = new_flag();

	IS(txn(BEGIN) == 1);
	put("b", "outer");
	pid_t child = CHILD({
		IS(txn(BEGIN) == 2);
		put("b", "inner");
		set(began);
		wait_for(tried);
		IS(!strcmp(get("b"), "inner") && txn(COMMIT) == 0);
		set(began);
		wait_for(tried);
	});
	wait_for(began);
	FAILS(EBUSY, txn(COMMIT));
	set(tried);
	wait_for(began);
	IS(!strcmp(get("b"), "inner"));
	IS(txn(COMMIT) == 0);
	set(tried);
	ENDS(child);
	IS(!strcmp(get("b"), "inner"));

	IS(txn(BEGIN) == 1);
	put("b", "outer");
	child = CHILD({
		IS(txn(BEGIN) == 2);
		put("b", "inner again");
		set(began);
		wait_for(tried);
		/* Its own has gone with the outer one; it is outside. */
		IS(!strcmp(get("b"), "inner"));
		FAILS(ENODATA, txn(COMMIT));
	});
	wait_for(began);
	IS(txn(ABORT) == 0);
	set(tried);
	ENDS(child);
	IS(!strcmp(get("b"), "inner"));
}

static void aside(void)
{
	struct flag made = new_flag(), seen = new_flag();

	IS(txn(BEGIN) == 1);
	put("s", "suspended");
	IS(txn_of(SUSPEND, 0, outer_id) == 0);
	IS(!strcmp(get("s"), "-"));
	put("s2", "outside");
	IS(txn_of(BEGIN, 0, inner_id) == 1);
	put("s3", "another");
	FAILS(EBUSY, txn_of(RESUME, 0, outer_id));
	FAILS(EBUSY, txn_of(ATTACH, 0, outer_id));
	IS(txn(ABORT) == 0);
	IS(txn_of(RESUME, 0, outer_id) == 0);
	FAILS(ENOENT, txn_of(RESUME, 0, outer_id));
	IS(!strcmp(get("s"), "suspended") && !strcmp(get("s2"), "outside") && !strcmp(get("s3"), "-"));
	IS(txn(COMMIT) == 0);
	FAILS(ENOENT, txn_of(RESUME, 0, outer_id));
	FAILS(ENOENT, txn_of(ATTACH, 0, outer_id));
	IS(!strcmp(get("s"), "suspended"));

	/* Another process joins by the identifier, and ends what this one began. */
	pid_t child = CHILD({
		wait_for(made);
		IS(read(made.fd[0], outer_id, ID_LEN) == ID_LEN);
		IS(!strcmp(get("j"), "-"));
		FAILS(ENOENT, txn_of(RESUME, 0, outer_id));
		IS(txn_of(ATTACH, 0, outer_id) == 0);
		IS(!strcmp(get("j"), "from the owner"));
		put("j2", "from the helper");
		IS(txn(DETACH) == 0);
		IS(!strcmp(get("j"), "-"));
		IS(txn_of(ATTACH, 0, outer_id) == 0);
		IS(txn(COMMIT) == 0);
		FAILS(ENODATA, txn(COMMIT));
		set(seen);
	});
	IS(txn_of(BEGIN, 0, outer_id) == 1);
	put("j", "from the owner");
	set(made);
	IS(write(made.fd[1], outer_id, ID_LEN) == ID_LEN);
	wait_for(seen);
	ENDS(child);
	FAILS(ENODATA, txn(COMMIT));
	IS(!strcmp(get("j"), "from the owner") && !strcmp(get("j2"), "from the helper"));

	/* The last one that leaves takes it along. */
	IS(txn(BEGIN) == 1);
	put("gone", "gone");
	IS(txn(DETACH) == 0);
	IS(!strcmp(get("gone"), "-"));
	put("gone", "free at once");
}

/* A process that ends without ending its transaction aborts it, however it ends. */
static void deserted(void)
{
	static const int signals[] = {0, SIGKILL, SIGSEGV, SIGTERM};
	struct flag began = new_flag(), go = new_flag();

	for (int i = 0; i < 4; i++) {
		int status;
		pid_t child = CHILD({
			IS(txn(BEGIN) == 1);
			put("d", "never");
			IS(txn(BEGIN) == 2);
			put("d2", "never");
			set(began);
			wait_for(go);
			_exit(0);
		});
		wait_for(began);
		IS(!strcmp(get("d"), "-"));
		if (signals[i])
			kill(child, signals[i]);
		else
			set(go);
		MUST(waitpid(child, &status, 0));
		/* Its locks have gone with it. */
		put("d", "free");
		IS(access("d2", F_OK) < 0 && unlink("d") == 0);
	}
	/* A child goes on in it. */
	pid_t child = CHILD({
		IS(txn(BEGIN) == 1);
		put("d", "from the parent");
		pid_t heir = CHILD({
			wait_for(go);
			IS(!strcmp(get("d"), "from the parent"));
			put("d2", "from the heir");
			IS(txn(COMMIT) == 0);
			set(began);
		});
		(void)heir;
	});
	ENDS(child);
	IS(!strcmp(get("d"), "-"));
	set(go);
	wait_for(began);
	IS(!strcmp(get("d"), "from the parent") && !strcmp(get("d2"), "from the heir"));
}

static void test(int argc, char **argv)
{
	pthread_t thread;

	(void)argc;
	(void)argv;
	refused();
	names_refused();
	nested();
	both_inside();
	aside();
	deserted();
	IS(txn(BEGIN) == 1);
	put("t", "inside");
	MUST(pthread_create(&thread, NULL, in_thread, NULL) ? -1 : 0);
	pthread_join(thread, NULL);
	IS(!strcmp(get("t"), "inside") && !strcmp(get("t2"), "thread's own"));
	IS(txn(COMMIT) == 0);
	refused();
}
