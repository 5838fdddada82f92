# What stub.S and map.S have in common: the frame, the constants and the macros of what answers system calls inside a tracee.
#
# A site, `mov $nr,%eax` or `mov $AT_FDCWD,%edi` before `syscall`, becomes a jump to a copy of `stub_site`, which ends in a jump to `stub_enter`. From the first
# instruction of the copy to the last one of an exit the frame is below the red zone and has this layout. Nothing moves the stack
# pointer in between: by the instruction pointer alone the supervisor knows what to put back when a signal arrives.
.set NR, 0             # the call's number
.set KIND, 8           # what the stub must look at
.set RET, 16           # behind the site's `syscall`
.set R9, 24            # the caller's registers
.set RDI, 32
.set RSI, 40
.set RDX, 48
.set R10, 56
.set PATH, 64          # the address of the path
.set HOW, 72           # a struct open_how
.set STAT, 96          # a struct stat
.set FIRST, 96         # where no struct stat is needed: what the call failed with, or 0 if it was not made
.set FRAME, 240 + 128

# Kinds
.set IN_RSI, 1         # the path is the second argument, and a directory the first
.set NO_FOLLOW, 2      # a link at the path's end is not followed
.set FLAGS_R10, 4      # AT_* flags are in r10
.set FLAGS_RDX, 8      # AT_* flags are in rdx
.set STAT_RDX, 16      # a struct stat is at rdx
.set ACCESS, 32        # access(2) and its variants: the mode is in rsi, or behind a directory in rdx
.set OPEN, 128         # an open
.set DESCRIPTOR, 256   # the first argument is a descriptor, and there is no path
.set CWD, 512          # depends on the working directory alone
.set STAT_RSI, 1024    # fstat(2)
.set NO_PATH, 2048     # as DESCRIPTOR, if the second argument is NULL
.set REQUEST, 4096     # ioctl(2)
.set COPY, 8192        # copy_file_range(2)
.set LIST, 16384       # getdents64(2)
.set LINK, 32768       # readlink(2), readlinkat(2)
.set STATX, 65536      # a struct statx is at r8
.set WRITE, 131072      # write(2), pwrite64(2)
.set FROM_CWD, 262144   # an open whose directory is AT_FDCWD: the jump to the stub has replaced the instruction that says so

.set KINDS_MAX, 64      # calls that a site may have in common, and an end

.set OFF, 1            # bits of `flags`
.set CWD_UNKNOWN, 2
.set NO_MOUNT_POINT, 4
.set HAS_MAP, 8

.set AT_FDCWD, -100
.set AT_SYMLINK_NOFOLLOW, 0x100
.set AT_EMPTY_PATH, 0x1000
.set O_CHECK, 0x90001          # O_WRONLY, O_DIRECTORY, O_CLOEXEC: an open of anything fails
.set O_CHECK_NO_FOLLOW, 0xb0001
# O_NOCTTY, O_NONBLOCK, O_LARGEFILE, O_DIRECTORY, O_NOFOLLOW, O_NOATIME, O_CLOEXEC
.set O_HARMLESS, 0xf8900
.set RESOLVE_NO_SYMLINKS, 4
.set RESOLVE_IN_MOUNT, 3       # RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS
.set ST_INO, 8                 # offsets in struct stat
.set ST_NLINK, 16
.set ST_MODE, 24
.set ST_SIZE, 48
.set STAT_SIZE, 144
.set STX_NLINK, 16             # offsets in struct statx
.set STX_INO, 32
.set STX_DEV_MAJOR, 136
.set STX_DEV_MINOR, 140
.set STX_MNT_ID, 144
.set STATX_SIZE, 256
.set S_IFMT, 0xf000
.set S_IFREG, 0x8000
.set S_ISVTX, 0x200
.set O_ACCMODE, 3
.set O_WRONLY, 1
.set O_APPEND, 0x400
.set O_DSYNC, 0x1000
.set O_DIRECT, 0x4000
.set O_PATH, 0x200000
.set SEEK_CUR, 1
.set F_GETFL, 3
.set FICLONE, 0x40049409
.set SYS_write, 1
.set SYS_fstat, 5
.set SYS_lseek, 8
.set SYS_rt_sigprocmask, 14
.set SYS_getpid, 39
.set SYS_fcntl, 72
.set SYS_openat, 257
.set SYS_newfstatat, 262
.set SYS_readlinkat, 267
.set SYS_statx, 332
.set SYS_openat2, 437

# The caller's argument registers.
.macro arguments
	mov RDI(%rsp),%rdi
	mov RSI(%rsp),%rsi
	mov RDX(%rsp),%rdx
	mov R10(%rsp),%r10
.endm

# The call in rax, natively: the filter lets it pass for the cookie in r9.
.macro native
	lea 77f(%rip),%r9
	xor .Lstub_key(%rip),%r9
	syscall
77:
.endm

# Puts the struct stat of descriptor edi into the frame, and its address into r11. Goes to `slow` if it is not open. Room behind a library's code
# is scarce, so the code of this and of `host_object` is there once.
.macro stat_of_descriptor
	lea 76f(%rip),%r9
	jmp .Lstub_stat_of_descriptor
76:
.endm

# Goes to `slow` unless descriptor edi is the host's: not in the run-time directory, no memfd, nothing without a name, not of /proc.
.macro host_descriptor
	stat_of_descriptor
	host_object
.endm

# The flags of descriptor edi in eax, as fcntl(2) gives them.
.macro status_flags
	mov $F_GETFL,%esi
	mov $SYS_fcntl,%eax
	syscall
	mov RSI(%rsp),%rsi
.endm

# Goes to `slow` unless the struct stat at r11 is of the host's.
.macro host_object
	lea 78f(%rip),%r9
	jmp .Lstub_host_object
78:
.endm

# Goes to `in_mount` if the path at r11 has one of the names as a component, and to `slow` if it goes on in another page.
.macro no_name
	xor %eax,%eax
70:	movzbl (%r11),%ecx
	inc %r11
	cmp $'/',%cl
	je 71f
	test %cl,%cl
	je 71f
	rol $7,%rax
	xor %rcx,%rax
	test $0xfff,%r11d
	jnz 70b
	jmp .Lstub_slow
71:	lea .Lstub_names(%rip),%r9
72:	cmpq $0,(%r9)
	je 73f
	cmp (%r9),%rax
	je .Lstub_in_mount
	add $8,%r9
	jmp 72b
73:	test %cl,%cl
	je 74f
	xor %eax,%eax
	test $0xfff,%r11d
	jnz 70b
	jmp .Lstub_slow
74:
.endm

# The arguments of a call that takes a directory, edi, and a path, rsi, from those of the caller.
.macro directory_and_path
	test $IN_RSI,%ecx
	jnz 79f
	mov %rdi,%rsi
	mov $AT_FDCWD,%edi
79:
.endm

# The rest of an openat2(2) with the flags in HOW(%rsp), of the path at rsi from directory edi.
.macro resolve_without_links
	movq $0,HOW+8(%rsp)
	movq $RESOLVE_NO_SYMLINKS,HOW+16(%rsp)
	lea HOW(%rsp),%rdx
	mov $24,%r10d
	mov $SYS_openat2,%eax
.endm

# The program's buffer for a struct stat, or a struct statx: from r9 to rax.
.macro buffer
	mov %rdx,%r9
	lea STAT_SIZE(%rdx),%rax
	test $STATX,%ecx
	jz 69f
	mov %r8,%r9
	lea STATX_SIZE(%r8),%rax
69:
.endm

# Puts what the struct statx at r8 says of the object's identity into the frame as a struct stat, and its address into r11. rax is 0.
.macro stat_of_statx
	lea 75f(%rip),%r11
	jmp .Lstub_stat_of_statx
75:
.endm
