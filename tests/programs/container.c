/* Executes a program as in a container: container PROFILE COMMAND [ARGUMENT...], with the calls that the default seccomp profile
 * of PROFILE refuses ("docker" or "podman", x86-64, without further capabilities), and with the capabilities of its root.
 * The lists name what the profiles leave out of the calls they allow.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define COUNT(array) (sizeof array / sizeof *array)

/* Refused by both, by moby 28 and containers/common 0.60 (with EPERM). */
static const int refused[] = {
	SYS_acct, SYS_add_key, SYS_bpf, SYS_clock_settime, SYS_delete_module, SYS_fanotify_init, SYS_finit_module,
	SYS_get_mempolicy, SYS_init_module, SYS_ioperm, SYS_iopl, SYS_kcmp, SYS_kexec_file_load, SYS_kexec_load,
	SYS_lookup_dcookie, SYS_mbind, SYS_migrate_pages, SYS_move_pages, SYS_open_by_handle_at, SYS_perf_event_open,
	SYS_process_madvise, SYS_quotactl, SYS_request_key, SYS_set_mempolicy, SYS_setdomainname, SYS_sethostname, SYS_setns,
	SYS_settimeofday, SYS_swapoff, SYS_swapon, SYS_sysfs, SYS_userfaultfd, SYS_ustat, SYS_vhangup,
};
static const int refused_by_docker[] = {
	SYS_fsconfig, SYS_fsmount, SYS_fsopen, SYS_fspick, SYS_keyctl, SYS_mount, SYS_mount_setattr, SYS_move_mount, SYS_open_tree,
	SYS_pidfd_getfd, SYS_pivot_root, SYS_syslog, SYS_umount2, SYS_unshare,
};
static const int refused_by_podman[] = { SYS_process_vm_readv, SYS_process_vm_writev, SYS_ptrace, SYS_vmsplice };

/* Calls newer than the profile are answered as by a kernel that does not know them. */
enum { NEWEST = 462 };

static struct sock_filter filter[400];
static unsigned short length;

static void put(struct sock_filter instruction)
{
	filter[length++] = instruction;
}

static void refuse(int number, int error)
{
	put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
	put((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error));
}

static void compile(int docker)
{
	static const int namespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |
				      CLONE_NEWNET;

	put((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
	for (size_t i = 0; i < COUNT(refused); i++)
		refuse(refused[i], EPERM);
	for (size_t i = 0; docker && i < COUNT(refused_by_docker); i++)
		refuse(refused_by_docker[i], EPERM);
	for (size_t i = 0; !docker && i < COUNT(refused_by_podman); i++)
		refuse(refused_by_podman[i], EPERM);
	if (docker) {
		refuse(SYS_clone3, ENOSYS);
		/* clone: no namespaces. */
		put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4));
		put((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])));
		put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, namespaces, 0, 1));
		put((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
		put((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
	}
	put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, NEWEST, 0, 1));
	put((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS));
	put((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
}

/* What both give to root: no CAP_SYS_PTRACE, CAP_SYS_ADMIN or CAP_DAC_READ_SEARCH. */
static void drop_capabilities(void)
{
	static const int kept[] = {
		CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SETPCAP,
		CAP_NET_BIND_SERVICE, CAP_NET_RAW, CAP_SYS_CHROOT, CAP_MKNOD, CAP_AUDIT_WRITE, CAP_SETFCAP,
	};
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct sets[2];
	unsigned long long mask = 0;

	for (size_t i = 0; i < COUNT(kept); i++)
		mask |= 1ull << kept[i];
	for (int cap = 0; prctl(PR_CAPBSET_READ, cap) >= 0; cap++) {
		if (!(mask & 1ull << cap))
			prctl(PR_CAPBSET_DROP, cap);
	}
	if (syscall(SYS_capget, &header, sets))
		exit(96);
	for (int word = 0; word < 2; word++) {
		sets[word].permitted &= (unsigned)(mask >> 32 * word);
		sets[word].effective &= (unsigned)(mask >> 32 * word);
		sets[word].inheritable = 0;
	}
	if (syscall(SYS_capset, &header, sets))
		exit(97);
}

int main(int argc, char **argv)
{
	struct sock_fprog program = { 0, filter };

	if (argc < 3)
		return 98;
	drop_capabilities();
	compile(!strcmp(argv[1], "docker"));
	program.len = length;
	/* Without CAP_SYS_ADMIN. */
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return 99;
	execv(argv[2], argv + 2);
	return 100;
}
