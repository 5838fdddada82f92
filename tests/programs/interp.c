/* Programs whose ELF interpreter is in the directory under test, by paths of all kinds: from there and from the host, replaced, damaged, and without permission. */
#define STEP_HELPER
#include "step.h"
#include <elf.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/prctl.h>

static const char loader[] = "/lib64/ld-linux-x86-64.so.2";

static int has_loader(struct dl_phdr_info *info, size_t size, void *data)
{
	char *found = data;

	(void)size;
	if (strstr(info->dlpi_name, "ld"))
		strcpy(found, info->dlpi_name);
	return 0;
}

static int helper(int argc, char **argv)
{
	char link[PATH_MAX] = "", name[PATH_MAX] = "", comm[32] = "";

	host_path = getenv("HOSTDIR");
	top_path = getenv("TOPDIR");
	if (readlink("/proc/self/exe", link, sizeof link - 1) < 0)
		return 1;
	prctl(PR_GET_NAME, comm);
	dl_iterate_phdr(has_loader, name);
	note("%s: %s from %s by %s, argument %s, at a loader: %d", argv[argc - 1], comm, shown(link), shown(name), argv[0], getauxval(AT_BASE) != 0);
	return 0;
}

static void copy(const char *from, const char *to, mode_t mode)
{
	static char block[65536];
	int in = MUST(open(from, O_RDONLY)), out = MUST(open(to, O_WRONLY | O_CREAT | O_TRUNC, 0700));
	ssize_t got;

	while ((got = read(in, block, sizeof block)) > 0)
		if (write(out, block, got) != got)
			_exit(96);
	MUST(fchmod(out, mode));
	close(in);
	close(out);
}

/* This program, with another interpreter: its path stands behind the program. */
static void copy_with(const char *to, const char *interpreter)
{
	Elf64_Ehdr header;
	Elf64_Phdr program;

	copy_self(to, 0755);
	int fd = MUST(open(to, O_RDWR));
	off_t end = lseek(fd, 0, SEEK_END), at;

	if (pread(fd, &header, sizeof header, 0) != sizeof header)
		_exit(96);
	for (int i = 0; i < header.e_phnum; i++) {
		at = header.e_phoff + i * sizeof program;
		if (pread(fd, &program, sizeof program, at) != sizeof program)
			_exit(96);
		if (program.p_type != PT_INTERP)
			continue;
		program.p_offset = end;
		program.p_filesz = strlen(interpreter) + 1;
		if (pwrite(fd, &program, sizeof program, at) != sizeof program ||
		    pwrite(fd, interpreter, program.p_filesz, end) != (ssize_t)program.p_filesz)
			_exit(96);
	}
	close(fd);
}

static const char *in_place(const char *name)
{
	static char path[PATH_MAX];
	static char directory[PATH_MAX - 64];

	MUST((long)getcwd(directory, sizeof directory));
	snprintf(path, sizeof path, "%s/%s", directory, name);
	return path;
}

static void steps(void)
{
	char host[PATH_MAX];
	int fd;

	setenv("TOPDIR", top_path, 1);
	setenv("HOSTDIR", host_path, 1);
	copy(loader, "ld.so", 0755);
	copy_with("prog", in_place("ld.so"));
	RUN("absolute", "./prog", "prog", "-x", "absolute");
	RUN("again", "./prog", "prog", "-x", "again");
	snprintf(host, sizeof host, "%s/prog", host_path);
	copy_with(host, in_place("ld.so"));
	RUN("from the host", host, "prog", "-x", "from the host");
	fd = MUST(fcntl(MUST(open(host, O_RDONLY | O_CLOEXEC)), F_DUPFD_CLOEXEC, 50));
	CHILD("by descriptor", execveat(fd, "", (char *[]){"prog", "-x", "by descriptor", NULL}, environ, AT_EMPTY_PATH);
	      note("%d by descriptor: %s", __LINE__, strerrorname_np(errno)));
	close(fd);
	copy_with("usual", loader);
	RUN("usual", "./usual", "usual", "-x", "usual");
	copy_with("relative", "ld.so");
	RUN("relative", "./relative", "relative", "-x", "relative");
	MUST(mkdir("d", 0755));
	MUST(chdir("d"));
	RUN("not there", "../relative", "relative", "-x", "not there");
	MUST(chdir(".."));
	MUST(symlink("ld.so", "link"));
	copy_with("bylink", in_place("link"));
	RUN("by a link", "./bylink", "bylink", "-x", "by a link");
	MUST(symlink(loader, "out"));
	copy_with("out.prog", in_place("out"));
	RUN("by a link to the host", "./out.prog", "out", "-x", "out");
	make("script", "#!./prog -x\n");
	MUST(chmod("script", 0755));
	RUN("script", "./script", "script", "script");
	/* Another version of both. */
	copy(loader, "new", 0755);
	MUST(rename("new", "ld.so"));
	RUN("replaced", "./prog", "prog", "-x", "replaced");
	MUST(rename("ld.so", "ld2.so"));
	RUN("missing", "./prog", "prog", "-x", "missing");
	copy_with("prog", in_place("ld2.so"));
	RUN("changed", "./prog", "prog", "-x", "changed");
	RUN("missing, from the host", host, "prog", "-x", "missing");
	MUST(rename("ld2.so", "ld.so"));
	copy_with("prog", in_place("ld.so"));
	MUST(chmod("ld.so", 0644));
	RUN("not executable", "./prog", "prog", "-x", "not executable");
	MUST(chmod("ld.so", 0755));
	fd = MUST(open("ld.so", O_RDWR));
	RUN("open for writing", "./prog", "prog", "-x", "open for writing");
	close(fd);
	RUN("closed", "./prog", "prog", "-x", "closed");
	copy_with("bydir", in_place("d"));
	RUN("a directory", "./bydir", "bydir", "-x", "a directory");
	make("text", "no program, though it is long enough to hold the header of one, as the kernel reads it");
	MUST(chmod("text", 0755));
	copy_with("bytext", in_place("text"));
	RUN("no program", "./bytext", "bytext", "-x", "no program");
	T("removed", unlink(host));
}
