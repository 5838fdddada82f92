# The part of the map's code that opens files (opens.rs). It follows the code of map.S, in the same section.
.set OPEN_FLAGS, HOW + 8       # In that of an open, which has a BASE, too: the flags
.set OPEN_PATH_END, STAT + 40  # the end of the path,
.set OPEN_OBJECT, HOW + 8      # and, of an open that does not notify, the inode number of the object, or 0 for any regular file,
.set OPEN_SLOT, HELD_ENTRY     # the address of the slot, or of the entry with a path of the host,
.set OPEN_ID, HELD_ID          # and its id.
.set OWN, 62                   # bits of the monitor's answer to an open (opens.rs)
.set AT_SITE, 61
.set OWN_FLAGS, 0x1fffffff
.set NAME_SHIFT, 20            # the offset of a name in the program's path, from 1
.set NUMBER, 0xfffff
.set FRAME_END, STAT + STAT_SIZE
.set O_PLAIN, 0xb8900          # O_NOCTTY, O_NONBLOCK, O_LARGEFILE, O_DIRECTORY, O_NOFOLLOW, O_CLOEXEC
.set O_DIRECTORY, 0x10000
.set O_NOFOLLOW, 0x20000
.set EAGAIN, 11
.set SYS_close, 3

	.section .rodata.goanna_stub, "a", @progbits
# The open as the program wants it, which notifies.
.macro ask
	arguments
	mov R9(%rsp),%r9
	mov NR(%rsp),%eax
	syscall
.endm

# The path of descriptor eax of the monitor, which ends at rsi. It begins there afterwards.
.macro path_of_monitor
	mov $10,%ecx
1:	xor %edx,%edx
	div %ecx
	add $'0',%dl
	dec %rsi
	mov %dl,(%rsi)
	test %eax,%eax
	jnz 1b
	lea goanna_map_start(%rip),%rdi
	sub $24,%rsi
	mov MAP_PREFIX(%rdi),%rax
	mov %rax,(%rsi)
	mov MAP_PREFIX+8(%rdi),%rax
	mov %rax,8(%rsi)
	mov MAP_PREFIX+16(%rdi),%rax
	mov %rax,16(%rsi)
.endm

# Opens the path at rsi, with the flags in r11 and the mode in r10. The call ends at the label.
.macro open_path label
	mov $AT_FDCWD,%edi
	mov %r11,%rdx
	mov BASE(%rsp),%r9
	cookie \label
	mov $SYS_openat,%eax
	syscall
.endm

# An open in a mount, from directory edi. A file that the monitor shares with this run is opened here, for reading, and a directory by the path of its backing directory.
.Lstub_map_open:
	mov %r9,BASE(%rsp)
	mov %edi,%r11d
	lea goanna_map_start(%rip),%rdi
	mov MAP_CLOSED(%rdi),%rax
	or MAP_NO_FILES(%rdi),%rax
	jnz .Lstub_map_ask
	testl $~O_PLAIN,RDX(%rsp)
	jnz .Lstub_map_ask
	mov (.Lstub_run - .Lstub_slow)(%r9),%rsi
	test %rsi,%rsi
	jz .Lstub_map_ask
	mov PATH(%rsp),%rax
	cmpb $'/',(%rax)
	je .Lstub_map_path
	mov %r11d,%edi
	lea (.Lstub_flags + 4 - .Lstub_slow)(%r9),%rsi    # ""
	lea STAT(%rsp),%rdx
	mov $AT_EMPTY_PATH,%r10d
	cookie goanna_map_open_started
	mov $SYS_newfstatat,%eax
	syscall
goanna_map_open_started:
	mov BASE(%rsp),%r9
	test %eax,%eax
	jnz .Lstub_map_ask
	lea goanna_map_start(%rip),%rdi
	mov (.Lstub_run - .Lstub_slow)(%r9),%rsi
	lea STAT(%rsp),%r11
	mov $1,%r10d
	jmp .Lstub_map_started

# At rdi is the struct stat of the host's file from before, in the frame that of now, and in rdx the map. A file that is not the host's own one has a content of the
# monitor while all attributes are as they were.
.Lstub_map_open_on_host:
	testb $OWN_FILE,8-SLOT_HOST(%rdi)
	jnz 1f
	confirm_target
	jmp .Lstub_map_shared
# The host's file is opened if it is the same one, whatever its other attributes are. If another regular file is there by then, that is the answer.
1:
	mov (%rdi),%rax
	cmp %rax,STAT(%rsp)
	jne .Lstub_map_ask
	mov 8(%rdi),%rax
	cmp %rax,STAT+ST_INO(%rsp)
	jne .Lstub_map_ask
	mov STAT+ST_MODE(%rsp),%eax
	and $S_IFMT,%eax
	cmp $S_IFREG,%eax
	jne .Lstub_map_ask
	mov FOUND_ID(%rsp),%rax
	sub $SLOT_HOST,%rdi
	cmp %rax,(%rdi)
	jne .Lstub_map_ask
	mov STAT+ST_INO(%rsp),%rsi
	hold_entry
	mov %rsi,OPEN_OBJECT(%rsp)
	mov PATH(%rsp),%rsi
	mov RDX(%rsp),%r11
	or $O_NOFOLLOW,%r11d
	jmp .Lstub_map_open_path

# The directory in the slot at rsi, while that has id rax.
.Lstub_map_directory:
	mov SLOT_DIR_RUN(%rsi),%rcx
	cmp (.Lstub_run - .Lstub_slow)(%r9),%rcx
	jne .Lstub_map_ask
	testb $READABLE,8(%rsi)
	jz .Lstub_map_ask
	mov SLOT_DIR_INO(%rsi),%rcx
	mov %rcx,OPEN_OBJECT(%rsp)
	cmp %rax,(%rsi)
	jne .Lstub_map_ask
	mov %rsi,OPEN_SLOT(%rsp)
	mov %rax,OPEN_ID(%rsp)
	mov RDX(%rsp),%r11
	add $SLOT_DIR_PATH,%rsi
	jmp .Lstub_map_open_path

# The file in slot rsi, while that has id rax; or there is none.
.Lstub_map_shared:
	add %rdi,%rsi
	mov $-1,%ecx            # no process has a descriptor of this number
	test %rax,%rax
	jz 1f
	mov SLOT_STAT+ST_MODE(%rsi),%ecx
	and $S_IFMT,%ecx
	cmp $S_IFDIR,%ecx
	je .Lstub_map_directory
	testl $O_DIRECTORY,RDX(%rsp)
	jnz .Lstub_map_ask
	mov SLOT_RUN(%rsi),%rcx
	cmp (.Lstub_run - .Lstub_slow)(%r9),%rcx
	jne .Lstub_map_ask
	mov SLOT_OBJECT(%rsi),%rcx
	mov %rcx,OPEN_OBJECT(%rsp)
	mov 8(%rsi),%rcx
	shr $NUMBER_SHIFT,%rcx
	cmp %rax,(%rsi)
	jne .Lstub_map_ask
1:	mov %rsi,OPEN_SLOT(%rsp)
	mov %rax,OPEN_ID(%rsp)
	mov %ecx,%eax
	lea OPEN_PATH_END(%rsp),%rsi
	movb $0,(%rsi)
	mov RDX(%rsp),%r11
	and $~O_NOFOLLOW,%r11d  # the name in /proc is a link
	path_of_monitor
.Lstub_map_open_path:
	open_path goanna_map_open_shared
goanna_map_open_shared:
	test %rax,%rax
	js 2f
	mov OPEN_SLOT(%rsp),%rcx
	mov OPEN_ID(%rsp),%rdx
	mov %eax,%edi
	cmp %rdx,(%rcx)
	jne goanna_map_open_unshared
# What has been at a path of the host is the answer, if it is a regular file.
	lea MAP_PATHS + goanna_map_start(%rip),%rdx
	cmp %rdx,%rcx
	jb 4f
	movq $0,OPEN_OBJECT(%rsp)
	jmp goanna_map_open_unshared
4:	mov BASE(%rsp),%r9
	add $(.Lstub_done - .Lstub_slow),%r9
	jmp *%r9
# The descriptor may be of another object by now. Only such a one is closed: a close ends the record locks that the process has on the object.
goanna_map_open_unshared:
	lea STAT(%rsp),%rsi
	mov BASE(%rsp),%r9
	cookie goanna_map_open_compared
	mov $SYS_fstat,%eax
	syscall
goanna_map_open_compared:
	mov STAT+ST_INO(%rsp),%rcx
	mov STAT+ST_MODE(%rsp),%edx
	mov %edi,%eax
	cmpq $0,OPEN_OBJECT(%rsp)
	jne 1f
	and $S_IFMT,%edx
	cmp $S_IFREG,%edx
	je 4b
1:	cmp %rcx,OPEN_OBJECT(%rsp)
	je 4b
	mov $SYS_close,%eax
	syscall
goanna_map_open_closed:
	jmp .Lstub_map_ask
2:	cmp $-EAGAIN,%rax        # with O_NONBLOCK, of a file with a lease; the next open might succeed
	je 4b
	cmpq $0,OPEN_ID(%rsp)
	jne .Lstub_map_ask
	cmp $-2,%rax            # ENOENT, and not EMFILE
	jne .Lstub_map_ask
	mov BASE(%rsp),%r9
	jmp .Lstub_map_done

# An open in a mount. The monitor knows by the place of the call that the answer may be the number of a descriptor of its own: the thread opens that itself.
.Lstub_map_ask:
	ask
goanna_map_open_asked:
	mov BASE(%rsp),%r9
	test %rax,%rax
	js 1f
	bt $OWN,%rax
	jc 2f
1:	add $(.Lstub_return - .Lstub_slow),%r9
	jmp *%r9
2:
goanna_map_open_answered:
	bt $AT_SITE,%rax
	jc .Lstub_map_leave
	mov %rax,%rdx
	shr $32,%rdx
	and $OWN_FLAGS,%edx
	mov %rdx,OPEN_FLAGS(%rsp)
	lea OPEN_PATH_END(%rsp),%rsi
	movb $0,(%rsi)
	mov %eax,%ecx
	and $NUMBER,%eax
	shr $NAME_SHIFT,%ecx
	jz 5f
# The program may have changed its path meanwhile.
	mov RSI(%rsp),%rdi
	lea -1(%rdi,%rcx),%rdi
	movb $'/',(%rsi)
	lea FRAME_END(%rsp),%rcx
	mov %rsi,%r11
4:	inc %r11
	cmp %rcx,%r11
	je 6f
	mov (%rdi),%dl
	inc %rdi
	mov %dl,(%r11)
	cmp $'/',%dl
	je 6f
	test %dl,%dl
	jnz 4b
5:	mov OPEN_FLAGS(%rsp),%r11
	mov R10(%rsp),%r10
	path_of_monitor
	open_path goanna_map_open_made
goanna_map_open_made:
	test %rax,%rax
	jns 3f
# The monitor performs it.
6:
goanna_map_open_resumed:
	ask
goanna_map_open_failed:
3:	mov BASE(%rsp),%r9
	add $(.Lstub_return - .Lstub_slow),%r9
	jmp *%r9
goanna_map_end:
	.previous
