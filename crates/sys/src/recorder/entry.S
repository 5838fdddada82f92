# How a thread enters the recorder, makes the recorded call, and returns. recorder.c includes this file, so that it comes first; see mod.rs.
#
# A stub jumps to the entry with the call's number in eax, its arguments in their registers, and in rcx the address behind the site's `syscall`. The kernel
# overwrites rcx and r11 in each call, so both are free.

	.set STATE_AT, 0x3000       # from the start of the code
	.set STATE_SIZE, 0x3000
	.set RING_SIZE, 0x41000
	.set RING_FILE_FLAGS, 3     # MFD_CLOEXEC | MFD_ALLOW_SEALING
	.set READ_WRITE, 3
	.set MAP_SHARED_FIXED, 0x11
	.set MAP_PRIVATE_ANONYMOUS_FIXED, 0x32
	.set SYS_close, 3
	.set SYS_mmap, 9
	.set SYS_memfd_create, 319
	.set BUSY, 0
	.set OFF, 8
	.set TRAP, 16
	.set ABANDON, 24
	.set KEEP, 32
	.set RESULT, 40
	.set NR, 48
	.set RETURN, 56
	.set STACK, 64
	.set ARGS, 72

	.section goanna_recorder, "ax", @progbits
	.balign 64
	.globl goanna_recorder_entry, goanna_recorder_entered, goanna_recorder_check, goanna_recorder_call, goanna_recorder_called
	.globl goanna_recorder_abandoned, goanna_recorder_left, goanna_recorder_trapped, goanna_recorder_unrecorded, goanna_recorder_leaving

# The first instruction of the recorder, at the start of its section.
goanna_recorder_entry:
	lea goanna_recorder_entry+STATE_AT(%rip),%r11
	cmpq $0,OFF(%r11)
	jne goanna_recorder_unrecorded
	mov %eax,NR(%r11)
	mov %rcx,RETURN(%r11)
	mov %rsp,STACK(%r11)
	mov %rdi,ARGS(%r11)
	mov %rsi,ARGS+8(%r11)
	mov %rdx,ARGS+16(%r11)
	mov %r10,ARGS+24(%r11)
	mov %r8,ARGS+32(%r11)
	mov %r9,ARGS+40(%r11)
	movq $1,BUSY(%r11)
# From here on the registers are in the state, and the stack is the recorder's own: a call may come from the end of the program's.
goanna_recorder_entered:
	lea STATE_SIZE(%r11),%rsp
	mov %r11,%rdi
	call goanna_recorder_record
	lea goanna_recorder_entry+STATE_AT(%rip),%r11
	mov RETURN(%r11),%rcx
	mov RESULT(%r11),%rax
	cmpq $0,KEEP(%r11)
	jne 1f
	mov NR(%r11),%eax
	lea -2(%rcx),%rcx
1:	mov ARGS(%r11),%rdi
	mov ARGS+8(%r11),%rsi
	mov ARGS+16(%r11),%rdx
	mov ARGS+24(%r11),%r10
	mov ARGS+32(%r11),%r8
	mov ARGS+40(%r11),%r9
	mov STACK(%r11),%rsp
# All registers are the program's again, and rcx says where it continues.
goanna_recorder_left:
	movq $0,BUSY(%r11)
	cmpq $0,TRAP(%r11)
	jne 2f
	jmp *%rcx
2:	int3
goanna_recorder_trapped:
	jmp *%rcx

# The call is made as if this had not been there: the site's `syscall` stops.
goanna_recorder_unrecorded:
	lea -2(%rcx),%rcx
goanna_recorder_leaving:
	jmp *%rcx

# Makes the call in the state rdi, and returns its result.
	.globl goanna_recorder_make
goanna_recorder_make:
	mov NR(%rdi),%eax
	mov ARGS+8(%rdi),%rsi
	mov ARGS+16(%rdi),%rdx
	mov ARGS+24(%rdi),%r10
	mov ARGS+32(%rdi),%r8
	mov ARGS+40(%rdi),%r9
goanna_recorder_check:
	cmpq $0,ABANDON(%rdi)
	jne goanna_recorder_abandoned
	mov ARGS(%rdi),%rdi
goanna_recorder_call:
	syscall
goanna_recorder_called:
	ret
# Not a result that the kernel gives.
goanna_recorder_abandoned:
	mov $-4096,%rax
	ret

# Makes the state and the ring, behind the code. Runs once, before anything else, while the tracer keeps the thread's registers. At each `int3` the
# tracer looks at rax, and continues the thread if that is no error.
	.globl goanna_recorder_set_up, goanna_recorder_set_up_ring
goanna_recorder_set_up:
	lea goanna_recorder_entry+STATE_AT(%rip),%rdi
	mov $STATE_SIZE,%esi
	mov $READ_WRITE,%edx
	mov $MAP_PRIVATE_ANONYMOUS_FIXED,%r10d
	mov $-1,%r8
	xor %r9d,%r9d
	mov $SYS_mmap,%eax
	syscall
	test %rax,%rax
	js 1f
# For a process that has the code and the state as a copy.
goanna_recorder_set_up_ring:
	lea .Lname(%rip),%rdi
	mov $RING_FILE_FLAGS,%esi
	mov $SYS_memfd_create,%eax
	syscall
	mov %eax,%ebx
1:	int3
	lea goanna_recorder_entry+STATE_AT+STATE_SIZE(%rip),%rdi
	mov $RING_SIZE,%esi
	mov $READ_WRITE,%edx
	mov $MAP_SHARED_FIXED,%r10d
	mov %ebx,%r8d
	xor %r9d,%r9d
	mov $SYS_mmap,%eax
	syscall
	mov %rax,%r12
	mov %ebx,%edi
	mov $SYS_close,%eax
	syscall
	mov %r12,%rax
	int3
.Lname:
	.asciz "ring"
	.previous
