# The part of the map's code that writes to files under a grant, and answers fstat(2) for them (writes.rs). It follows the code of map.S, in the same section.
.set WRITES_BUSY, 8            # the layout of the area for writes (writes.rs), in bytes
.set WRITES_APPEND, 16
.set WRITES_OBJECT, 24
.set WRITES_SLOTS, 4096        # the second page
.set WRITES_SLOT_SHIFT, 8
.set WRITES_SLOT_MASK, 15
.set WRITE_MAX, 1048576        # a longer write would keep operations waiting
.set GRANT_START, 8
.set GRANT_END, 16
.set GRANT_LOW, 24
.set GRANT_HIGH, 32
.set GRANT_STAT, 64
.set GRANT, HOW + 8            # in the frame of a write, which has a BASE, too: the address of the grant,
.set WROTE_FROM, HOW + 16      # the offset,
.set RESULT, STAT              # and the result

# The slot in the area for writes at `area` of the object with the inode number in rax, in rcx.
.macro slot_of_grant area
	mov %eax,%ecx
	and $WRITES_SLOT_MASK,%ecx
	shl $WRITES_SLOT_SHIFT,%ecx
	lea WRITES_SLOTS(\area,%rcx),%rcx
.endm

	.section .rodata.goanna_stub, "a", @progbits
	.globl goanna_map_write_made, goanna_map_write_kept, goanna_map_write_end
# A file with a grant is not in the map: its attributes are beside the grant, until something has been written under that.
.Lstub_map_granted:
	mov (.Lstub_writes - .Lstub_slow)(%r9),%rdx
	test %rdx,%rdx
	jz .Lstub_map_object
	testl $STATX,KIND(%rsp)
	jnz .Lstub_map_object
	mov ST_INO(%r11),%rax
	slot_of_grant %rdx
	cmp %rax,(%rcx)
	jne .Lstub_map_object
	mov %rcx,%rdx
	lea GRANT_STAT(%rdx),%rsi
	mov %r11,%rdi
	mov $(STAT_SIZE / 8),%ecx
	rep movsq
	cmpq $0,GRANT_HIGH(%rdx)
	jne .Lstub_map_slow
	cmp %rax,(%rdx)
	jne .Lstub_map_slow
	xor %eax,%eax
	jmp .Lstub_map_done

# A write to the object with the struct stat at r11. Only the process that the area was made for has it: a child of vfork(2) shares the stub, but not the
# process ID. The first check of the grant only saves the calls. The second one counts: the owner of the store revokes a grant and then waits until the process
# is not busy.
9:	movq $0,WRITES_BUSY(%rdi)
	jmp *%r9
.Lstub_map_write:
	mov (.Lstub_writes - .Lstub_slow)(%r9),%r10
	test %r10,%r10
	jz .Lstub_map_slow
	mov %r9,BASE(%rsp)
	mov $SYS_getpid,%eax
	syscall
	cmp (.Lstub_owner - .Lstub_slow)(%r9),%rax
	jne .Lstub_map_slow
	mov STAT+ST_INO(%rsp),%rax
	slot_of_grant %r10
	mov %rcx,%r10
	mov %r10,GRANT(%rsp)
	cmp %rax,(%r10)
	jne .Lstub_map_slow
	mov RDI(%rsp),%rdi
	mov $F_GETFL,%esi
	mov $SYS_fcntl,%eax
	syscall
	test $(O_DSYNC | O_PATH),%eax
	jnz .Lstub_map_slow
	test $O_ACCMODE,%eax
	jz .Lstub_map_slow
# As long as the grant exists, no other process changes the size.
	test $O_APPEND,%eax
	mov STAT+ST_SIZE(%rsp),%rax
	jnz 1f
	mov R10(%rsp),%rax
	cmpl $SYS_write,NR(%rsp)
	jne 1f
	xor %esi,%esi
	mov $SEEK_CUR,%edx
	mov $SYS_lseek,%eax
	syscall
# The kernel copies a range within one page at once, so a process that is killed leaves the whole write or nothing. A longer write must be at the end of the
# file: the owner of the store truncates what a killed process leaves of it.
1:	test %rax,%rax
	js .Lstub_map_slow
	mov RDX(%rsp),%rdx
	lea -1(%rdx),%rcx
	cmp $(WRITE_MAX - 1),%rcx
	ja .Lstub_map_slow
	mov %r10,%rdi
	and $-WRITES_SLOTS,%rdi
	sub $WRITES_SLOTS,%rdi
	mov %eax,%esi
	and $4095,%esi
	add %edx,%esi
	xor %ecx,%ecx
	cmp $4096,%esi
	jbe 5f
	cmp STAT+ST_SIZE(%rsp),%rax
	jne .Lstub_map_slow
	lea 1(%rax),%rcx
5:	mov %rcx,WRITES_APPEND(%rdi)
	mov %rax,WROTE_FROM(%rsp)
	lea (%rax,%rdx),%rcx
	mov STAT+ST_INO(%rsp),%rdx
	mov %rdx,WRITES_OBJECT(%rdi)
	mov $1,%esi
	xchg %rsi,WRITES_BUSY(%rdi)
	cmp %rdx,(%r10)
	jne 9b
	cmp GRANT_START(%r10),%rax
	jb 9b
	cmp GRANT_END(%r10),%rcx
	ja 9b
	cmp GRANT_LOW(%r10),%rax
	jae 2f
	mov %rax,GRANT_LOW(%r10)
2:	cmp GRANT_HIGH(%r10),%rcx
	jbe 3f
	mov %rcx,GRANT_HIGH(%r10)
3:	cookie goanna_map_write_made
	arguments
	mov NR(%rsp),%eax
	syscall
goanna_map_write_made:
	mov %rax,RESULT(%rsp)
goanna_map_write_kept:
	mov GRANT(%rsp),%r10
	cmpl $SYS_write,NR(%rsp)
	jne 4f
# If another process that shares the description has moved its offset meanwhile, this write may have gone anywhere.
	test %rax,%rax
	js 4f
	xor %esi,%esi
	mov $SEEK_CUR,%edx
	mov $SYS_lseek,%eax
	syscall
	sub RESULT(%rsp),%rax
	cmp WROTE_FROM(%rsp),%rax
	je 4f
	movq $-1,GRANT_HIGH(%r10)
4:	and $-WRITES_SLOTS,%r10
	mov BASE(%rsp),%r9
	movq $0,WRITES_BUSY-WRITES_SLOTS(%r10)
	mov RESULT(%rsp),%rax
	add $(.Lstub_done - .Lstub_slow),%r9
	jmp *%r9
goanna_map_write_end:
	.previous
