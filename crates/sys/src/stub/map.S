# The code at the start of the shared map of attributes (map.rs), which programs map with it. A stub jumps here with its frame on the stack,
# and with
#   r9   the address of `.Lstub_slow`
#   r10d 0 for the attributes of a descriptor, 1 for a path, 2 for a write to a descriptor of memory, 3 for an open in a mount, from directory edi; r11 and r8 mean nothing then;
#        4 for the entries of a directory
#   r11  a struct stat: of the descriptor, which is the program's buffer unless that is for a struct statx; or of the directory that a
#        relative path starts at.
#   r8   the program's buffer, if it is for a struct statx
# Writes are made in writes.S, opens in opens.S. It goes back to `.Lstub_slow`, or to `.Lstub_done` with the answer in rax. Until it goes back only the program's buffer has changed, except by a write, an open or a list. The only
# other calls that it makes are newfstatat(2) into the frame or that buffer, faccessat2(2), and for a list clock_gettime(2) into that buffer and lseek(2). Each id in the map is given once. So an entry was valid while it was read if its id is the same before and afterwards.
.set MAP_CLOSED, 4096          # the layout of the map, in bytes
.set MAP_PREFIX, 4104
.set MAP_NO_FILES, 4128
.set MAP_OBJECTS, 8192
.set OBJECT_SHIFT, 6           # log2 of an entry's size
.set WAYS, 4                   # entries that an object, or a path, may have
.set MAP_SLOTS, 2105344
.set SLOT_RUN, 16
.set SLOT_OBJECT, 24
.set SLOT_STAT, 32
.set SLOT_STATX, 176
.set SLOT_HOST, 336
.set SLOT_DIR_RUN, SLOT_HOST      # of a directory in a store: the run of its backing directory, or 0,
.set SLOT_DIR_INO, SLOT_HOST + 8  # the inode number of that,
.set SLOT_DIR_END, SLOT_HOST + 16 # the position in it behind all entries, or 0,
.set SLOT_DIR_PATH, SLOT_HOST + 24 # and its path
.set SLOT_SHIFT, 9
.set MAP_PATHS, 18882560
.set PATH_SHIFT, 9
.set ENTRY_DIRS, 56
.set DIRS_MAX, 12
.set ENTRY_PATH, 248
.set ON_HOST, -1             # in the place of the number of directories: the host is asked
.set NAMED_IN, ENTRY_DIRS    # of a name that is missing there: device and inode number of its directory,
.set NAME_AT, ENTRY_DIRS + 16 # and where the name's path begins behind the directory's
.set HOST_PATHS, 16777216      # from an entry to its path on the host
.set MAP_LISTS, 52436992
.set LIST_SHIFT, 11
.set LISTS_SIZE, 33554432
.set LIST_LENGTH, 8             # of the entries, in bytes
.set LIST_BYTES, 16
.set READABLE, 1
.set OWN_FILE, 2              # beside READABLE: the file is the host's object
.set NUMBER_SHIFT, 32          # of the descriptor in the word of READABLE
.set SPREAD, 0x9e3779b97f4a7c15
.set INDEX_SHIFT, 49           # leaves the bits of an index into a table
.set S_IFLNK, 0xa000
.set S_IFDIR, 0x4000
.set AT_NO_AUTOMOUNT, 0x800
.set AT_EACCESS, 0x200
.set R_OK, 4
.set STATX_TIMES, 0xc0         # STATX_MTIME, STATX_CTIME
.set STATX_ANSWERED, 0x1fff    # the basic fields, STATX_BTIME, STATX_MNT_ID

.set BASE, HOW                 # in the frame of a look at the host: the address of `.Lstub_slow`,
.set FOUND_SLOT, HOW + 8       # the slot
.set FOUND_ID, HOW + 16        # and its id;
.set FOUND_ENTRY, HOW + 8      # or, of a look for a missing name, the entry
.set ENTRY_ID, HOW + 16        # and its id.
.set HELD_ENTRY, STAT + 56     # For a second call: the entry whose path that has,
.set HELD_ID, STAT + 64        # and its id.
.set FOUND_LIST, STAT          # In that of a list, which has a slot and an id, too: the entries,
.set LISTED, STAT + 8          # and their length.
.set CLOCK_MONOTONIC, 1
.set TIMESPEC_SIZE, 16
.set SYS_clock_gettime, 228
.set SYS_faccessat2, 439

# The cookie of the call that ends at the label, for the filter; r9 is the address of `.Lstub_slow`.
.macro cookie label
	mov (.Lstub_key - .Lstub_slow)(%r9),%rcx
	lea \label(%rip),%r9
	xor %rcx,%r9
.endm

.macro spread_into reg         # an index from rax
	movabs $SPREAD,\reg
	imul %rax,\reg
	shr $INDEX_SHIFT,\reg
.endm

# The program's buffer for a struct stat, or a struct statx, in rdx.
.macro programs_buffer
	mov RDX(%rsp),%rdx
	testl $STATX,KIND(%rsp)
	cmovnz %r8,%rdx
.endm

# The mode of an access in edx, and its flags in r10d. Goes to `slow` for those that are not answered here.
.macro access_arguments
	mov KIND(%rsp),%ecx
	xor %r10d,%r10d
	test $FLAGS_R10,%ecx
	cmovnz R10(%rsp),%r10d
	test $~AT_EACCESS,%r10d
	jnz .Lstub_map_slow
	mov RSI(%rsp),%edx
	test $IN_RSI,%ecx
	cmovnz RDX(%rsp),%edx
	test $~R_OK,%edx
	jnz .Lstub_map_slow
.endm

	.section .rodata.goanna_stub, "a", @progbits
	.balign 16
	.globl goanna_map_start, goanna_map_list_moved, goanna_map_list_made, goanna_map_list_end, goanna_map_list_undone
	.globl goanna_map_open_shared, goanna_map_open_unshared, goanna_map_open_closed
	.globl goanna_map_open_asked, goanna_map_open_answered, goanna_map_open_made, goanna_map_open_resumed
	.globl goanna_map_open_failed, goanna_map_end
goanna_map_start:
	cmp $3,%r10d
	je .Lstub_map_open
	lea goanna_map_start(%rip),%rdi
	cmpq $0,MAP_CLOSED(%rdi)
	jne .Lstub_map_slow
	cmp $2,%r10d
	je .Lstub_map_write
	testl $STATX,KIND(%rsp)
	jz 2f
	testl $~STATX_ANSWERED,R10(%rsp)
	jnz .Lstub_map_slow
2:	mov (.Lstub_run - .Lstub_slow)(%r9),%rsi
	test $~4,%r10d
	jz 1f
	mov PATH(%rsp),%rax
	cmpb $'/',(%rax)
	je .Lstub_map_path
# By its identity: memfds, or the backing directories of this run.
.Lstub_map_started:
1:	mov (%r11),%rax
	cmp (.Lstub_devices - .Lstub_slow)(%r9),%rax
	je 2f
	cmp (.Lstub_devices + 8 - .Lstub_slow)(%r9),%rax
	jne .Lstub_map_slow
	xor %esi,%esi
	test %r10d,%r10d
	jz .Lstub_map_granted
	jmp .Lstub_map_object
2:	cmpq $0,16(%r11)
	je .Lstub_map_slow
.Lstub_map_object:
	mov ST_INO(%r11),%rax
	add %rsi,%rax
	spread_into %rdx
	and $-WAYS,%edx
	shl $OBJECT_SHIFT,%rdx
	lea MAP_OBJECTS(%rdi,%rdx),%rdx
	mov ST_INO(%r11),%rax
	mov $WAYS,%ecx
4:	cmp %rax,16(%rdx)
	jne 5f
	cmp %rsi,8(%rdx)
	je 6f
5:	add $(1 << OBJECT_SHIFT),%rdx
	dec %ecx
	jnz 4b
	jmp .Lstub_map_slow
6:	mov (%rdx),%rcx
	test %rcx,%rcx
	jz .Lstub_map_slow
	cmp %rsi,8(%rdx)
	jne .Lstub_map_slow
	cmp %rax,16(%rdx)
	jne .Lstub_map_slow
	mov 24(%rdx),%rsi
	mov 32(%rdx),%rax
	cmp %rcx,(%rdx)
	jne .Lstub_map_slow
	test %r10d,%r10d
	jz .Lstub_map_descriptor
	cmp $4,%r10d
	je .Lstub_map_list
	mov %rax,%rsi

# The path, from the directory with the id rsi.
.Lstub_map_path:
	mov PATH(%rsp),%rdx
	mov %rsi,%rax
4:	movzbl (%rdx),%ecx
	test %cl,%cl
	jz 5f
	rol $7,%rax
	xor %rcx,%rax
	inc %rdx
	test $0xfff,%edx
	jnz 4b
	jmp .Lstub_map_slow
5:	sub PATH(%rsp),%rdx
	spread_into %rcx
	and $-WAYS,%ecx
	shl $PATH_SHIFT,%rcx
	lea MAP_PATHS(%rdi,%rcx),%rcx
	mov $WAYS,%r11d
4:	mov (%rcx),%r10
	cmp %rax,16(%rcx)
	jne 5f
	cmp %rsi,8(%rcx)
	jne 5f
	cmp %rdx,24(%rcx)
	je 6f
5:	add $(1 << PATH_SHIFT),%rcx
	dec %r11d
	jnz 4b
	jmp .Lstub_map_slow
6:	test %r10,%r10
	jz .Lstub_map_slow
	mov PATH(%rsp),%r11
6:	dec %rdx
	js 7f
	movzbl (%r11,%rdx),%eax
	cmp %al,ENTRY_PATH(%rcx,%rdx)
	jne .Lstub_map_slow
	jmp 6b
# Are all directories of the way as they were?
7:	mov 32(%rcx),%rdx
	cmp $ON_HOST,%rdx
	je .Lstub_map_on_host
	cmp $DIRS_MAX,%rdx
	ja .Lstub_map_slow
8:	dec %rdx
	js 9f
	mov %rdx,%rax
	shl $4,%rax
	mov ENTRY_DIRS(%rcx,%rax),%rsi
	mov ENTRY_DIRS+8(%rcx,%rax),%rax
	cmp %rax,(%rdi,%rsi)
	jne .Lstub_map_slow
	jmp 8b
9:	mov 40(%rcx),%rsi
	mov 48(%rcx),%rax
	cmp %r10,(%rcx)
	jne .Lstub_map_slow
	testl $(OPEN | ACCESS),KIND(%rsp)
	jnz .Lstub_map_found
	mov PATH(%rsp),%rdx
	cmpb $'/',(%rdx)
	jne .Lstub_map_found
# Can the program's buffer be written?
	mov %r9,BASE(%rsp)
	mov %rsi,FOUND_SLOT(%rsp)
	mov %rax,FOUND_ID(%rsp)
	mov $AT_FDCWD,%edi
	lea (.Lstub_flags + 4 - .Lstub_slow)(%r9),%rsi    # ""
	programs_buffer
	mov $AT_EMPTY_PATH,%r10d
	cookie 8f
	mov $SYS_newfstatat,%eax
	syscall
8:	mov BASE(%rsp),%r9
	test %eax,%eax
	jnz .Lstub_map_slow
	lea goanna_map_start(%rip),%rdi
	mov FOUND_SLOT(%rsp),%rsi
	mov FOUND_ID(%rsp),%rax
.Lstub_map_found:
	mov KIND(%rsp),%ecx
	mov R10(%rsp),%edx
	test $OPEN,%ecx
	jnz .Lstub_map_shared
	test $ACCESS,%ecx
	jnz .Lstub_map_access
	test $STATX,%ecx
	cmovnz RDX(%rsp),%edx
	test $~(AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT),%edx
	jnz .Lstub_map_slow
	test %rax,%rax
	jz .Lstub_map_absent
	mov RDX(%rsp),%r11
	test $AT_SYMLINK_NOFOLLOW,%edx
	jnz .Lstub_map_stat
	mov SLOT_STAT+ST_MODE(%rdi,%rsi),%edx
	and $S_IFMT,%edx
	cmp $S_IFLNK,%edx
	je .Lstub_map_slow

# The attributes in slot rsi, while it has id rax, into the buffer at r11, or as a struct statx into that at r8.
.Lstub_map_stat:
	lea (%rdi,%rsi),%rdx
	lea SLOT_STAT(%rdx),%rsi
	mov %r11,%rdi
	mov $18,%ecx
	testl $STATX,KIND(%rsp)
	jz 1f
	lea SLOT_STATX(%rdx),%rsi
	mov %r8,%rdi
	mov $20,%ecx
1:	cmp %rax,(%rdx)
	jne .Lstub_map_slow
	rep movsq
	cmp %rax,(%rdx)
	jne .Lstub_map_slow
	xor %eax,%eax
	testl $STATX,KIND(%rsp)
	jz .Lstub_map_done
	mov $12,%ecx
	rep stosq
	mov (.Lstub_mount - .Lstub_slow)(%r9),%rax
	mov %rax,STX_MNT_ID(%r8)
# Change times are claimed only where one of them is asked for, as by Linux since 6.13.
	testl $STATX_TIMES,R10(%rsp)
	jnz 1f
	andl $~STATX_TIMES,(%r8)
1:	xor %eax,%eax
	jmp .Lstub_map_done

.Lstub_map_access:
	access_arguments
	test %rax,%rax
	jz .Lstub_map_absent
	mov SLOT_STAT+ST_MODE(%rdi,%rsi),%ecx
	and $S_IFMT,%ecx
	cmp $S_IFLNK,%ecx
	je .Lstub_map_slow
	test %edx,%edx
	jz 2f
	testb $READABLE,8(%rdi,%rsi)
	jz .Lstub_map_slow
2:	cmp %rax,(%rdi,%rsi)
	jne .Lstub_map_slow
	xor %eax,%eax
	jmp .Lstub_map_done

# Puts the struct stat of the host's path at rsi into the buffer at rdx.
.macro look_at_host
	mov $AT_FDCWD,%edi
	mov $AT_SYMLINK_NOFOLLOW,%r10d
	cookie 68f
	mov $SYS_newfstatat,%eax
	syscall
68:	mov BASE(%rsp),%r9
.endm

# For another call on the host's path of an entry that leads to the slot that was found: while the entry has the id HELD_ID, the path is that. The entry is in rcx.
.macro hold_entry
	mov PATH(%rsp),%rcx
	sub $HOST_PATHS,%rcx
	mov (%rcx),%rdx
	test %rdx,%rdx
	jz .Lstub_map_slow
	mov FOUND_SLOT(%rsp),%rax
	cmp %rax,40(%rcx)
	jne .Lstub_map_slow
	mov FOUND_ID(%rsp),%rax
	cmp %rax,48(%rcx)
	jne .Lstub_map_slow
	cmp %rdx,(%rcx)
	jne .Lstub_map_slow
	mov %rcx,HELD_ENTRY(%rsp)
	mov %rdx,HELD_ID(%rsp)
.endm

# Where the entry at rcx, with id r10, leads: to the slot rsi with id rax, or nowhere.
.macro target_of_entry
	mov 40(%rcx),%rsi
	mov 48(%rcx),%rax
	cmp %r10,(%rcx)
	jne .Lstub_map_slow
	mov %r9,BASE(%rsp)
.endm

# Looks at the host's object of that slot, by the entry's path. At rdi is its struct stat from before, at rsi, where rdx was, that of now, and in rdx the map.
.macro look_at_target
	mov %rsi,FOUND_SLOT(%rsp)
	mov %rax,FOUND_ID(%rsp)
	lea HOST_PATHS(%rcx),%rsi
	look_at_host
	test %eax,%eax
	jnz .Lstub_map_slow
	mov %rdx,%rsi
	lea goanna_map_start(%rip),%rdx
	mov FOUND_SLOT(%rsp),%rdi
	lea SLOT_HOST(%rdx,%rdi),%rdi
.endm

# Are both the same? Then the slot, rsi, had what its id, rax, stands for.
.macro confirm_target
	mov $(STAT_SIZE / 8),%ecx
	repe cmpsq
	jne .Lstub_map_slow
	mov %rdx,%rdi
	mov FOUND_SLOT(%rsp),%rsi
	mov FOUND_ID(%rsp),%rax
.endm

# The attributes of a descriptor are in slot rsi, while it has id rax; or the entry there has the host's path of the file.
.Lstub_map_descriptor:
	cmp $MAP_PATHS,%rsi
	jb .Lstub_map_stat
	mov %r11,PATH(%rsp)
	lea (%rdi,%rsi),%rcx
	mov %rax,%r10
	target_of_entry
	lea STAT(%rsp),%rdx
	look_at_target
	confirm_target
	mov PATH(%rsp),%r11
	jmp .Lstub_map_stat

# The path in the entry at rcx, with id r10, leads to what its slot has if the object on the host is as it was.
.Lstub_map_on_host:
	target_of_entry
	test %rax,%rax
	jz .Lstub_map_absent_on_host
	lea HOST_PATHS(%rcx),%rdx
	mov %rdx,PATH(%rsp)
	lea STAT(%rsp),%rdx
	testl $(OPEN | ACCESS),KIND(%rsp)
	jnz 1f
	programs_buffer
1:	look_at_target
	testl $OPEN,KIND(%rsp)
	jnz .Lstub_map_open_on_host
	confirm_target
	testl $ACCESS,KIND(%rsp)
	jz .Lstub_map_found
# access(2) goes there by the real user, and so does this call: only success counts.
	cmp %rax,(%rdi,%rsi)
	jne .Lstub_map_slow
	hold_entry
	access_arguments
	mov PATH(%rsp),%rsi
	mov $AT_FDCWD,%edi
	cookie goanna_map_host_allowed
	mov $SYS_faccessat2,%eax
	syscall
goanna_map_host_allowed:
	mov BASE(%rsp),%r9
	test %eax,%eax
	jnz .Lstub_map_slow
	mov HELD_ENTRY(%rsp),%rcx
	mov HELD_ID(%rsp),%rdx
	cmp %rdx,(%rcx)
	je .Lstub_map_done
	jmp .Lstub_map_slow

# It leads to nothing if its last name is still missing in the same directory.
.Lstub_map_absent_on_host:
	mov %rcx,FOUND_ENTRY(%rsp)
	mov %r10,ENTRY_ID(%rsp)
	lea HOST_PATHS(%rcx),%rsi
	lea STAT(%rsp),%rdx
	look_at_host
	test %eax,%eax
	jnz .Lstub_map_slow
	mov FOUND_ENTRY(%rsp),%rcx
	mov NAMED_IN(%rcx),%rax
	cmp %rax,STAT(%rsp)
	jne .Lstub_map_slow
	mov NAMED_IN+8(%rcx),%rax
	cmp %rax,STAT+ST_INO(%rsp)
	jne .Lstub_map_slow
	mov NAME_AT(%rcx),%rsi
	lea HOST_PATHS(%rcx,%rsi),%rsi
	lea STAT(%rsp),%rdx
	look_at_host
	cmp $-2,%eax            # ENOENT
	jne .Lstub_map_slow
	mov FOUND_ENTRY(%rsp),%rcx
	mov ENTRY_ID(%rsp),%rax
	cmp %rax,(%rcx)
	jne .Lstub_map_slow
	lea goanna_map_start(%rip),%rdi
	mov $MAP_SLOTS,%esi
	xor %eax,%eax
	jmp .Lstub_map_found

.Lstub_map_absent:
	mov $-2,%rax            # ENOENT
.Lstub_map_done:
	add $(.Lstub_done - .Lstub_slow),%r9
	jmp *%r9
.Lstub_map_slow:
	testl $OPEN,KIND(%rsp)
	jnz .Lstub_map_ask
.Lstub_map_leave:
	jmp *%r9

# The directory in slot rsi, while it has id rax. Behind all entries there are none; at the start of the directory all of them are put into the program's buffer, if
# they are in the map.
.Lstub_map_list:
	cmp $MAP_PATHS,%rsi
	jae .Lstub_map_slow
	add %rdi,%rsi
	testb $READABLE,8(%rsi)   # none that the host confirms
	jz .Lstub_map_slow
	mov SLOT_DIR_RUN(%rsi),%rcx
	cmp %rcx,(.Lstub_run - .Lstub_slow)(%r9)
	jne .Lstub_map_slow
	mov SLOT_DIR_END(%rsi),%r10
	test %r10,%r10
	jz .Lstub_map_slow
	mov %rsi,FOUND_SLOT(%rsp)
	mov %rax,FOUND_ID(%rsp)
	mov RDI(%rsp),%rdi
	xor %esi,%esi
	mov $SEEK_CUR,%edx
	mov $SYS_lseek,%eax
	syscall
	mov FOUND_SLOT(%rsp),%rsi
	mov FOUND_ID(%rsp),%rdx
	cmp %rdx,(%rsi)
	jne .Lstub_map_slow
	test %rax,%rax
	jz 1f
	cmp %r10,%rax
	jne .Lstub_map_slow
	xor %eax,%eax
	jmp .Lstub_map_done
# A descriptor that stands for one with O_PATH has O_DSYNC.
1:	mov $F_GETFL,%esi
	mov $SYS_fcntl,%eax
	syscall
	test $(O_DSYNC | O_PATH),%eax
	jnz .Lstub_map_slow
	mov FOUND_SLOT(%rsp),%rsi
	mov FOUND_ID(%rsp),%rdx
	lea goanna_map_start + MAP_SLOTS(%rip),%rdi
	sub %rdi,%rsi
	shl $(LIST_SHIFT - SLOT_SHIFT),%esi
	and $(LISTS_SIZE - 1),%esi
	lea (MAP_LISTS - MAP_SLOTS)(%rdi,%rsi),%rsi
	cmp %rdx,(%rsi)
	jne .Lstub_map_slow
	mov LIST_LENGTH(%rsi),%ecx
	cmp %ecx,RDX(%rsp)
	jb .Lstub_map_slow
	mov %rsi,FOUND_LIST(%rsp)
	mov %rcx,LISTED(%rsp)
# Can the program's buffer, which is in two pages at most, be written?
	mov RSI(%rsp),%rsi
	mov $CLOCK_MONOTONIC,%edi
	mov $SYS_clock_gettime,%eax
	syscall
	test %eax,%eax
	jnz .Lstub_map_slow
	add LISTED(%rsp),%rsi
	sub $TIMESPEC_SIZE,%rsi
	mov $SYS_clock_gettime,%eax
	syscall
	test %eax,%eax
	jnz .Lstub_map_slow
	mov FOUND_LIST(%rsp),%rdx
	lea LIST_BYTES(%rdx),%rsi
	mov RSI(%rsp),%rdi
	mov LISTED(%rsp),%rcx
	rep movsb
	mov FOUND_ID(%rsp),%rax
	cmp %rax,(%rdx)
	jne .Lstub_map_slow
	mov FOUND_SLOT(%rsp),%rsi
	cmp %rax,(%rsi)
	jne .Lstub_map_slow
	mov RDI(%rsp),%rdi
	mov %r10,%rsi
	mov $SEEK_CUR,%edx
	mov $SYS_lseek,%eax
	syscall
goanna_map_list_moved:
	cmp %r10,%rax
	jne 2f
goanna_map_list_made:
	mov LISTED(%rsp),%rax
	add $(.Lstub_done - .Lstub_slow),%r9
	jmp *%r9
goanna_map_list_end:
# Another thread has moved the position meanwhile: these entries may be its own ones.
2:	test %rax,%rax
	js .Lstub_map_slow
	neg %rsi
	mov $SYS_lseek,%eax
	syscall
goanna_map_list_undone:
	jmp .Lstub_map_slow
	.previous
