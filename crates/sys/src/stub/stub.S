# What answers system calls inside a tracee. The monitor copies it into the zero padding behind a library's code, or into memory that the
# process maps for it (docs/decisions/0143); see mod.rs for the layout, and docs/decisions/0053 for the rules. It needs no stack of its own, and no state but the data at its end. The frame is described in frame.S.

# Labels begin with .Lstub_: with link-time optimisation all code of the program is one assembly, where a label `open` hides libc's.
	.section .rodata.goanna_stub, "a", @progbits
	.balign 16
	.globl goanna_stub_start, goanna_stub_saved, goanna_stub_final, goanna_stub_done, goanna_stub_data, goanna_stub_end
	.globl goanna_stub_slow_jump, goanna_stub_done_jump, goanna_stub_enter
	.globl goanna_stub_site, goanna_stub_site_return, goanna_stub_site_kind, goanna_stub_site_number, goanna_stub_site_jump
	.globl goanna_stub_site_framed, goanna_stub_site_saved, goanna_stub_site_end
	.globl goanna_stub_dispatch, goanna_stub_other_jump, goanna_stub_kinds, goanna_stub_dispatch_end
	.globl goanna_stub_shared_site, goanna_stub_shared_framed, goanna_stub_shared_moved, goanna_stub_shared_saved, goanna_stub_shared_return, goanna_stub_shared_jump
	.globl goanna_stub_shared_site_end
	.globl goanna_stub_magic, goanna_stub_key, goanna_stub_devices, goanna_stub_names, goanna_stub_list_inode, goanna_stub_counter
	.globl goanna_stub_flags, goanna_stub_map, goanna_stub_run, goanna_stub_mount, goanna_stub_writes, goanna_stub_owner

goanna_stub_start:
goanna_stub_enter:
.Lstub_enter:
	testl $FROM_CWD,KIND(%rsp)
	jz 1f
	mov $AT_FDCWD,%edi
1:	mov %rdi,RDI(%rsp)
	mov %rsi,RSI(%rsp)
	mov %rdx,RDX(%rsp)
	mov %r10,R10(%rsp)
goanna_stub_saved:
	testb $OFF,.Lstub_flags(%rip)
	jnz .Lstub_slow
	mov KIND(%rsp),%ecx
	test $DESCRIPTOR,%ecx
	jnz .Lstub_descriptor
	test $STAT_RSI,%ecx
	jnz .Lstub_fstat
	test $CWD,%ecx
	jnz .Lstub_working_directory
	test $REQUEST,%ecx
	jnz .Lstub_request
	test $COPY,%ecx
	jnz .Lstub_copy
	test $LIST,%ecx
	jnz .Lstub_list

# What newfstatat(2) and statx(2) find with an empty path, or with none, is of the descriptor. The kernel has read the path then, and it must not
# be in the program's buffer.
	test $(STAT_RDX | STATX),%ecx
	jz .Lstub_path
	buffer
	mov %r10d,%r11d
	test $STATX,%ecx
	cmovnz %edx,%r11d
	test $AT_EMPTY_PATH,%r11d
	jz .Lstub_path
	sub $4096,%r9
	cmp %r9,%rsi
	jb 1f
	cmp %rax,%rsi
	jb .Lstub_path
1:	mov NR(%rsp),%eax
	native
	mov KIND(%rsp),%ecx
	test %eax,%eax
	jnz .Lstub_path
	test %rsi,%rsi
	jz 2f
	cmpb $0,(%rsi)
	jne .Lstub_path
2:	mov %rdx,%r11
	test $STATX,%ecx
	jz .Lstub_stat_made
	stat_of_statx
	jmp .Lstub_stat_made

.Lstub_path:
# A path. rt_sigprocmask(2) without an operation tells whether its first page can be read; the stub reads no other. Nothing is called that
# writes where the program wants its answer: it may want it in the path's place, and the site's `syscall` may have to read that yet.
	mov %rdi,%r11
	test $IN_RSI,%ecx
	cmovnz %rsi,%r11
	mov %r11,PATH(%rsp)
	mov $-1,%edi
	mov %r11,%rsi
	and $-8,%rsi
	xor %edx,%edx
	mov $8,%r10d
	mov $SYS_rt_sigprocmask,%eax
	syscall
	arguments
	cmp $-22,%eax           # EINVAL
	jne .Lstub_slow
	mov KIND(%rsp),%ecx
	mov PATH(%rsp),%r11
	movzbl (%r11),%eax
	cmp $'/',%al
	je .Lstub_named
	test %al,%al
	jz .Lstub_empty
	test $IN_RSI,%ecx
	jz 1f
	cmp $AT_FDCWD,%edi
	jne 2f
1:	testb $CWD_UNKNOWN,.Lstub_flags(%rip)
	jz .Lstub_named
	mov $AT_FDCWD,%edi
	jmp .Lstub_in_directory
2:	stat_of_descriptor
	mov (%r11),%rcx
	cmp .Lstub_devices(%rip),%rcx
	je .Lstub_in_directory
	host_object
.Lstub_named:
	mov PATH(%rsp),%r11
	no_name
	mov KIND(%rsp),%ecx
	test $OPEN,%ecx
	jnz .Lstub_open
# Where no mount point exists on the host, no link leads the kernel into one: what it finds is the answer, if that is the host's. ENOENT
# and ENOTDIR may be the answers for another path. newfstatat(2) and statx(2) say themselves what they have found. The path, which ends
# before r11, must not be in the program's buffer.
	movq $0,FIRST(%rsp)
	testb $NO_MOUNT_POINT,.Lstub_flags(%rip)
	jz .Lstub_links
	test $ACCESS,%ecx
	jnz .Lstub_access
	test $LINK,%ecx
	jnz .Lstub_link
	test $(STAT_RDX | STATX),%ecx
	jz .Lstub_links
	buffer
	cmp %r9,%r11
	jbe 2f
	cmp %rax,PATH(%rsp)
	jb .Lstub_links
2:	mov NR(%rsp),%eax
	native
	mov %rax,FIRST(%rsp)
	mov KIND(%rsp),%ecx
	test %eax,%eax
	jnz .Lstub_links
	mov %rdx,%r11
	test $STATX,%ecx
	jz 3f
	stat_of_statx
3:	host_object
	jmp .Lstub_done

# access(2) changes nothing, and so may come first. newfstatat(2) says what it has found.
.Lstub_access:
	mov NR(%rsp),%eax
	native
	mov %rax,FIRST(%rsp)
	mov KIND(%rsp),%ecx
	cmp $-2,%eax            # ENOENT
	je .Lstub_links
	cmp $-20,%eax           # ENOTDIR
	je .Lstub_links
	mov %rax,HOW(%rsp)
	test $FLAGS_R10,%ecx
	jnz 1f
	xor %r10d,%r10d
1:	and $AT_SYMLINK_NOFOLLOW,%r10d
	directory_and_path
# What the call with these arguments finds must be the host's. Then the answer of access(2) is in HOW, and the final readlink(2) is yet to come.
.Lstub_found:
	lea STAT(%rsp),%rdx
	mov $SYS_newfstatat,%eax
	native
	test %eax,%eax
	jnz .Lstub_slow
	lea STAT(%rsp),%r11
	host_object
	testl $LINK,KIND(%rsp)
	jnz .Lstub_read_link
	mov HOW(%rsp),%rax
	jmp .Lstub_done

# readlink(2) into the frame tells what is no link. A program may count on bytes of its buffer behind the answer, so only the final call may
# write there.
.Lstub_link:
	mov %edx,%eax
	test $IN_RSI,%ecx
	jz 1f
	mov %r10d,%eax
1:	test %eax,%eax
	jle .Lstub_slow
	directory_and_path
	lea STAT(%rsp),%rdx
	mov $STAT_SIZE,%r10d
	mov $SYS_readlinkat,%eax
	native
	cmp $-22,%eax           # EINVAL
	je .Lstub_done
	test %eax,%eax
	jle 4f
# The links of /proc to what a process uses show a path, or have a colon; the monitor may show another path.
	mov $AT_SYMLINK_NOFOLLOW,%r10d
	lea STAT(%rsp),%r11
	cmpb $'/',(%r11)
	je .Lstub_found
	cmpb $'(',(%r11)        # (unreachable)
	je .Lstub_found
	add %r11,%rax
2:	cmpb $':',(%r11)
	je .Lstub_found
	inc %r11
	cmp %rax,%r11
	jb 2b
# ENOENT and ENOTDIR are not to be kept: the link was there.
.Lstub_read_link:
	movq $0,HOW(%rsp)
	arguments
	mov NR(%rsp),%eax
	jmp .Lstub_final
4:	mov %rax,FIRST(%rsp)
	mov KIND(%rsp),%ecx
	arguments
# Does the way there meet a symbolic link? An open that must fail, without following links, fails in one of three ways if not.
.Lstub_links:
	mov $O_CHECK,%eax
	test $NO_FOLLOW,%ecx
	jnz 1f
	mov %r10d,%r9d
	test $FLAGS_R10,%ecx
	jnz 2f
	mov %edx,%r9d
	test $FLAGS_RDX,%ecx
	jz 3f
2:	test $AT_SYMLINK_NOFOLLOW,%r9d
	jz 3f
1:	mov $O_CHECK_NO_FOLLOW,%eax
3:	mov %rax,HOW(%rsp)
	test $IN_RSI,%ecx
	jnz 4f
	mov %rdi,%rsi
	mov $AT_FDCWD,%edi
4:	resolve_without_links
	native
	mov %rax,HOW(%rsp)
	arguments
	mov FIRST(%rsp),%rcx
	test %ecx,%ecx
	jnz 5f
	mov NR(%rsp),%ecx
	xchg %ecx,%eax
	cmp $-20,%ecx           # ENOTDIR
	je .Lstub_final
	cmp $-21,%ecx           # EISDIR
	je .Lstub_final
	cmp $-2,%ecx            # ENOENT
	je .Lstub_final
	jmp .Lstub_slow
# The call has failed already: in the same way?
5:	cmp %eax,%ecx
	jne .Lstub_slow
	cmp $-2,%eax
	je .Lstub_done
	cmp $-20,%eax
	je .Lstub_done
	jmp .Lstub_slow

# An open for reading.
.Lstub_open:
	test $~O_HARMLESS,%edx
	jnz .Lstub_slow
	mov %edx,%eax
	mov %rax,HOW(%rsp)
	resolve_without_links
	jmp .Lstub_final

# An empty path is the descriptor itself, of which newfstatat(2) says what it is.
.Lstub_empty:
	test $STAT_RDX,%ecx
	jz .Lstub_slow
	test $AT_EMPTY_PATH,%r10d
	jz .Lstub_slow
	sub %rdx,%r11
	cmp $144,%r11
	jb .Lstub_slow
	mov NR(%rsp),%eax
	native
	test %eax,%eax
	jnz .Lstub_slow
	mov %rdx,%r11
	jmp .Lstub_stat_made

.Lstub_fstat:
	mov NR(%rsp),%eax
	native
	test %eax,%eax
	jnz .Lstub_slow
	mov %rsi,%r11
# The struct stat at r11 is of a descriptor. What stands for a file in a mount may be in the map.
.Lstub_stat_made:
	xor %r10d,%r10d
	mov (%r11),%rcx
	cmp .Lstub_devices(%rip),%rcx
	je .Lstub_mapped
	cmp .Lstub_devices+8(%rip),%rcx
	je .Lstub_mapped
	host_object
	jmp .Lstub_done

# A path with the name of a mount point; as a relative one it begins at a directory of the host.
.Lstub_in_mount:
	mov PATH(%rsp),%r11
	cmpb $'/',(%r11)
	jne .Lstub_slow
	mov $AT_FDCWD,%edi
# A path that begins at directory edi in a mount, or at the root. newfstatat(2) of that directory says which one it is; and this call, or statx(2), that
# the program's buffer can be written: the path must not be there. For a path from the root that is left to the code of the map,
# unless the buffer is in two pages, as newfstatat(2) writes less than a struct statx.
.Lstub_in_directory:
	testb $HAS_MAP,.Lstub_flags(%rip)
	jz .Lstub_slow
	mov KIND(%rsp),%ecx
	test %cl,%cl            # OPEN is its sign
	js .Lstub_open_in_mount
	cmpq $0,.Lstub_run(%rip)
	je .Lstub_slow
	lea STAT(%rsp),%r11
	test $ACCESS,%ecx
	jnz 4f
	test $(STAT_RDX | STATX),%ecx
	jz .Lstub_slow
	buffer
	mov PATH(%rsp),%r11
	cmp %rax,%r11
	jae 3f
2:	cmpb $0,(%r11)
	je 1f
	inc %r11
	test $0xfff,%r11d
	jnz 2b
	jmp .Lstub_slow
1:	cmp %r9,%r11
	jae .Lstub_slow
3:	test $STATX,%ecx
	jnz 5f
	mov %rdx,%r11
4:	mov PATH(%rsp),%rax
	cmpb $'/',(%rax)
	je 6f
	mov %r11,HOW(%rsp)
	mov %r11,%rdx
	lea .Lstub_flags+4(%rip),%rsi    # ""
	mov $AT_EMPTY_PATH,%r10d
	mov $SYS_newfstatat,%eax
	native
	mov HOW(%rsp),%r11
	test %eax,%eax
	jnz .Lstub_slow
6:	mov $1,%r10d
	jmp .Lstub_mapped
5:	mov PATH(%rsp),%rax
	cmpb $'/',(%rax)
	jne 7f
	mov %r8d,%eax
	and $0xfff,%eax
	cmp $(4096 - STATX_SIZE),%eax
	jbe 6b
7:	lea .Lstub_flags+4(%rip),%rsi
	mov $AT_EMPTY_PATH,%edx
	mov $SYS_statx,%eax
	native
	test %eax,%eax
	jnz .Lstub_slow
	stat_of_statx
	jmp 6b
.Lstub_open_in_mount:
	mov $3,%r10d
# To the code of the map, if there is one (map.S).
.Lstub_mapped:
	testb $HAS_MAP,.Lstub_flags(%rip)
	jz .Lstub_slow
	lea .Lstub_slow(%rip),%r9
	jmp *.Lstub_map(%rip)

.Lstub_working_directory:
	testb $CWD_UNKNOWN,.Lstub_flags(%rip)
	jnz .Lstub_slow
	mov NR(%rsp),%eax
	jmp .Lstub_final

.Lstub_descriptor:
	test $NO_PATH,%ecx
	jz 1f
	test %rsi,%rsi
	jnz .Lstub_slow
1:	stat_of_descriptor
	mov (%r11),%rcx
	cmp .Lstub_devices+8(%rip),%rcx
	jne 2f
	testl $WRITE,KIND(%rsp)
	jz .Lstub_slow
	mov $2,%r10d
	jmp .Lstub_mapped
2:	host_object
	mov NR(%rsp),%eax
	jmp .Lstub_final

# Entries of a directory. In a mount, the map may know that all have been read. Mount points are shown with the first entries of the host directory that they are
# in: what follows is the kernel's, and so is all of a directory that has none.
.Lstub_list:
	stat_of_descriptor
	mov (%r11),%rcx
	mov $4,%r10d
	cmp .Lstub_devices(%rip),%rcx
	je .Lstub_mapped
	host_object
	mov .Lstub_list_inode(%rip),%rcx
	test %rcx,%rcx
	jz 1f
	cmp ST_INO(%r11),%rcx
	jne 2f
1:	xor %esi,%esi
	mov $SEEK_CUR,%edx
	mov $SYS_lseek,%eax
	syscall
	mov RSI(%rsp),%rsi
	mov RDX(%rsp),%rdx
	test %rax,%rax
	jle .Lstub_slow
2:	mov NR(%rsp),%eax
	jmp .Lstub_final

# FICLONE of a host file. The kernel refuses it for a memfd, whose file system clones nothing: EXDEV, as the monitor answers.
.Lstub_request:
	cmp $FICLONE,%esi
	jne .Lstub_slow
	stat_of_descriptor
	mov (%r11),%rcx
	cmp .Lstub_devices+8(%rip),%rcx
	je 1f
	host_object
1:	mov %edx,%edi
	host_descriptor
	mov RDI(%rsp),%rdi
	mov NR(%rsp),%eax
	jmp .Lstub_final

# A copy from the end of a host file into a cache object copies nothing. Its sixth argument is in the cookie's register, so this
# is found out without the call.
.Lstub_copy:
	cmpl $0,R9(%rsp)
	jne .Lstub_slow
	test %rsi,%rsi
	jnz .Lstub_slow
	test %r10,%r10
	jnz .Lstub_slow
	test %r8,%r8
	js .Lstub_slow
	host_descriptor
	mov ST_MODE(%r11),%eax
	and $S_IFMT,%eax
	cmp $S_IFREG,%eax
	jne .Lstub_slow
	mov ST_SIZE(%r11),%rax
	test %rax,%rax
	jle .Lstub_slow
	mov %rax,HOW(%rsp)
	xor %esi,%esi
	mov $SEEK_CUR,%edx
	mov $SYS_lseek,%eax
	syscall
	cmp HOW(%rsp),%rax
	jl .Lstub_slow
	status_flags
	test $(O_DIRECT | O_PATH),%eax
	jnz .Lstub_slow
	and $O_ACCMODE,%eax
	cmp $O_WRONLY,%eax
	je .Lstub_slow
	mov RDX(%rsp),%edi
	stat_of_descriptor
	mov (%r11),%rcx
	cmp .Lstub_devices+8(%rip),%rcx
	jne .Lstub_slow
	testl $S_ISVTX,ST_MODE(%r11)
	jz .Lstub_slow
	status_flags
	test $(O_APPEND | O_PATH),%eax
	jnz .Lstub_slow
	test $O_ACCMODE,%eax
	jz .Lstub_slow
	xor %eax,%eax
	jmp .Lstub_done

# See `stat_of_descriptor`.
.Lstub_stat_of_descriptor:
	mov %r9,HOW+8(%rsp)
	lea STAT(%rsp),%rsi
	mov $SYS_fstat,%eax
	native
	mov RSI(%rsp),%rsi
	test %eax,%eax
	jnz .Lstub_slow
	lea STAT(%rsp),%r11
	jmp *HOW+8(%rsp)

# See `stat_of_statx`. The device as a struct stat has it.
.Lstub_stat_of_statx:
	mov STX_DEV_MAJOR(%r8),%eax
	mov STX_DEV_MINOR(%r8),%ecx
	movzbl %cl,%r9d
	shl $8,%eax
	or %r9d,%eax
	and $~0xff,%ecx
	shl $12,%ecx
	or %ecx,%eax
	mov %rax,STAT(%rsp)
	mov STX_INO(%r8),%rax
	mov %rax,STAT+ST_INO(%rsp)
	mov STX_NLINK(%r8),%eax
	mov %rax,STAT+ST_NLINK(%rsp)
	mov %r11,%rcx
	lea STAT(%rsp),%r11
	xor %eax,%eax
	jmp *%rcx

# See `host_object`.
.Lstub_host_object:
	mov (%r11),%rcx
	cmp .Lstub_devices(%rip),%rcx
	je .Lstub_slow
	cmp .Lstub_devices+8(%rip),%rcx
	je .Lstub_slow
	cmp .Lstub_devices+16(%rip),%rcx
	je .Lstub_slow
	cmpq $0,16(%r11)
	je .Lstub_slow
	jmp *%r9

# The call is made as if this had not been there: the site's `syscall` notifies.
.Lstub_slow:
	mov NR(%rsp),%eax
	arguments
	mov RET(%rsp),%r11
	lea -2(%r11),%r11
	mov R9(%rsp),%r9
	lea FRAME(%rsp),%rsp
goanna_stub_slow_jump:
	jmp *%r11

# The call itself. Behind it rax has its result until the end, which is to be kept, unless it says that the way has changed since, or has met a link.
.Lstub_final_openat2:
	mov $SYS_openat2,%eax
.Lstub_final:
	native
goanna_stub_final:
	mov KIND(%rsp),%ecx
	test $(DESCRIPTOR | CWD | REQUEST | LIST),%ecx
	jnz .Lstub_done
	test $OPEN,%ecx
	jnz 1f
	cmp $-2,%eax            # ENOENT
	je 2f
	cmp $-20,%eax           # ENOTDIR
	jne .Lstub_done
2:	cmp HOW(%rsp),%eax
	jne .Lstub_slow
	jmp .Lstub_done
1:	test %eax,%eax
	jns .Lstub_done
	cmpl $RESOLVE_NO_SYMLINKS,HOW+16(%rsp)
	jne 3f
	cmp $-2,%eax
	je .Lstub_done
	cmp $-20,%eax
	je .Lstub_done
	cmp $-13,%eax           # EACCES
	je .Lstub_done
# Where no mount point exists on the host, links that leave no mount lead to files of the host, and not into /proc. Errors may be the answers for another path.
	cmp $-40,%eax           # ELOOP
	jne 3f
	testb $NO_MOUNT_POINT,.Lstub_flags(%rip)
	jz .Lstub_slow
	movl $RESOLVE_IN_MOUNT,HOW+16(%rsp)
	jmp .Lstub_final_openat2
3:	cmp $-4,%eax            # EINTR
	jne .Lstub_slow
goanna_stub_done:
.Lstub_done:
	mov .Lstub_counter(%rip),%r11
	test %r11,%r11
	jz .Lstub_return
	lock incq (%r11)
# Of a call that has notified.
.Lstub_return:
	arguments
	mov RET(%rsp),%r11
	mov R9(%rsp),%r9
	lea FRAME(%rsp),%rsp
goanna_stub_done_jump:
	jmp *%r11

	.balign 8
goanna_stub_data:
goanna_stub_magic:
	.quad 0, 0
goanna_stub_key:
.Lstub_key:	.quad 0
goanna_stub_devices:
.Lstub_devices:	.quad 0, 0, 0
goanna_stub_names:
.Lstub_names:	.quad 0, 0, 0, 0, 0, 0, 0, 0, 0
goanna_stub_list_inode:
.Lstub_list_inode:	.quad 0
goanna_stub_counter:
.Lstub_counter:	.quad 0
goanna_stub_flags:
.Lstub_flags:	.quad 0
goanna_stub_map:
.Lstub_map:	.quad 0
goanna_stub_run:
.Lstub_run:	.quad 0
goanna_stub_mount:
.Lstub_mount:	.quad 0
goanna_stub_writes:
.Lstub_writes:	.quad 0
goanna_stub_owner:
.Lstub_owner:	.quad 0
	.balign 16
goanna_stub_end:

# Where stubs have memory of their own, this follows. A site that several calls have in common, whose number is in rax, comes here; the frame has no kind yet, and the
# argument registers are the caller's until the end.
goanna_stub_dispatch:
	lea .Lstub_kinds(%rip),%r11
1:	mov (%r11),%ecx
	cmp NR(%rsp),%ecx
	jae 2f
	add $8,%r11
	jmp 1b
2:	jne 3f
	test %ecx,%ecx
	js 3f
	mov 4(%r11),%ecx
	mov %ecx,KIND(%rsp)
	jmp .Lstub_enter
3:	mov RET(%rsp),%r11
	lea -2(%r11),%r11
	mov R9(%rsp),%r9
	lea FRAME(%rsp),%rsp
goanna_stub_other_jump:
	jmp *%r11
	.balign 8
goanna_stub_kinds:
.Lstub_kinds:	.fill 2 * KINDS_MAX, 4, -1
	.balign 16
goanna_stub_dispatch_end:

goanna_stub_site:
	lea -FRAME(%rsp),%rsp
goanna_stub_site_framed:
	mov %r9,R9(%rsp)
goanna_stub_site_saved:
	lea 0x7fffffff(%rip),%r9
goanna_stub_site_return:
	mov %r9,RET(%rsp)
	movl $0x7fffffff,KIND(%rsp)
goanna_stub_site_kind:
	movl $0x7fffffff,NR(%rsp)
goanna_stub_site_number:
	.byte 0xe9
	.long 0x7fffffff
goanna_stub_site_jump:
	.balign 16
goanna_stub_site_end:

# The same for a site that several calls have in common. What its first instruction moves between the stack and a register is moved here, and the number is in rax then.
goanna_stub_shared_site:
	lea -FRAME(%rsp),%rsp
goanna_stub_shared_framed:
	mov 0x7fffffff(%rsp),%rax
goanna_stub_shared_moved:
	mov %r9,R9(%rsp)
goanna_stub_shared_saved:
	lea 0x7fffffff(%rip),%r9
goanna_stub_shared_return:
	mov %r9,RET(%rsp)
	mov %eax,NR(%rsp)
	.byte 0xe9
	.long 0x7fffffff
goanna_stub_shared_jump:
	.balign 16
goanna_stub_shared_site_end:
	.previous
