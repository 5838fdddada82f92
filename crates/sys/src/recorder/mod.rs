//! The recorder: code that records system calls inside a tracee, and the ring from which a tracer takes the records.
//!
//! A process has three things, one behind the other, at an address from which the tracer's seccomp filter lets it make any call:
//!
//! | offset | size | what | protection |
//! |---|---|---|---|
//! | 0 | [`CODE`] | the code (`recorder.c`, `entry.S`), and behind it the [`shape`] of each call | read, execute |
//! | [`STATE_AT`] | [`STATE`] | the state ([`state`]) and the recorder's stack | read, write; private |
//! | [`RING_AT`] | [`RING`] | the ring | read, write; shared with the tracer |
//!
//! The tracer lets the process map the code, and run [`Layout::set_up`], which makes the rest.
//!
//! A stub that has replaced a call of libc jumps to the code's first instruction. The recorder looks at the files that the call names, makes the call, and
//! writes a record, or leaves the call to the site's `syscall`. It is for programs of one thread, and has one state: a tracer takes a thread out of it before a signal's handler runs.
//!
//! The program can write anything into its ring, so the tracer only takes from it what the program's own calls may have been.
#![allow(
    unsafe_code,
    reason = "the code is written in C and assembly language, and read by its symbols"
)]

mod record;
mod ring;

pub use record::{Item, Record};
pub use ring::{Corrupt, Ring};

/// Size of the code, bytes.
pub const CODE: usize = 0x3000;
/// Offset of the state from the start of the code.
pub const STATE_AT: usize = CODE;
/// Size of the state and the stack.
pub const STATE: usize = 0x3000;
/// Offset of the ring.
pub const RING_AT: usize = STATE_AT + STATE;
/// Bytes of records that a ring holds at most, a power of two.
pub const CAPACITY: usize = 1 << 18;
/// Size of the ring: a page for the numbers of bytes written and read, and the records.
pub const RING: usize = 0x1000 + CAPACITY;
/// Size of it all.
pub const LEN: usize = RING_AT + RING;

/// The largest record, bytes.
const RECORD_MAX: usize = 0x6000;
const SHAPES_AT: usize = 0x2800;
/// Calls with larger numbers have no shape.
pub const SHAPES: usize = 512;

unsafe extern "C" {
    static goanna_recorder_entry: u8;
    static goanna_recorder_entered: u8;
    static goanna_recorder_left: u8;
    static goanna_recorder_trapped: u8;
    static goanna_recorder_unrecorded: u8;
    static goanna_recorder_leaving: u8;
    static goanna_recorder_make: u8;
    static goanna_recorder_check: u8;
    static goanna_recorder_call: u8;
    static goanna_recorder_called: u8;
    static goanna_recorder_abandoned: u8;
    static goanna_recorder_set_up: u8;
    static goanna_recorder_set_up_ring: u8;
    static goanna_recorder_end: u8;
}

/// What the recorder looks at for a call: the constants of `recorder.c` of the same names, of which a shape is the sum.
pub mod shape {
    /// The call is recorded.
    pub const RECORDED: u16 = 1;
    /// The first argument is a descriptor.
    pub const DESCRIPTOR: u16 = 2;
    /// The fifth argument is one.
    pub const FIFTH_DESCRIPTOR: u16 = DESCRIPTOR | 4 << 2;
    /// The call closes it.
    pub const CLOSES: u16 = 0x20;
    /// The first argument is a path.
    pub const PATH: u16 = 0x40;
    /// The first argument is a directory, and the second the path.
    pub const DIRECTORY: u16 = 0x80;
    /// A link at the path's end is not followed.
    pub const NO_FOLLOW: u16 = 0x100;
    /// The fourth argument has `AT_*` flags.
    pub const FLAGS: u16 = 0x200;
    /// The call opens the path with the flags in the next argument.
    pub const OPENS: u16 = 0x400;
    /// The next argument points to a `struct stat` that the call fills.
    pub const STAT: u16 = 0x800;
    /// The next argument points to a text that the call makes, as long as its result.
    pub const TEXT: u16 = 0x1000;
    /// Identity and state of the files that the call names are wanted, and where its paths lead.
    pub const FILES: u16 = 0x2000;
    /// The third argument has `AT_*` flags.
    pub const EARLY_FLAGS: u16 = 0x4000;
    /// The fifth argument points to a `struct statx` that the call fills.
    pub const STATX: u16 = 0x8000;
}

/// Offsets in the state that a tracer uses, in bytes. Each is a word.
pub mod state {
    /// Not 0 while the thread is in the recorder and its registers are in the state.
    pub const BUSY: u64 = 0;
    /// Not 0: no call is recorded.
    pub const OFF: u64 = 8;
    /// Not 0: the recorder stops by `int3` when it is left.
    pub const TRAP: u64 = 16;
    /// Not 0: the recorder does not make the call, if it has not made it yet.
    pub const ABANDON: u64 = 24;
    /// Not 0: the call has been made, else the site's `syscall` makes it.
    pub const KEEP: u64 = 32;
    /// The call's result.
    pub const RESULT: u64 = 40;
    /// The call's number.
    pub const NR: u64 = 48;
    /// The address behind the site's `syscall`.
    pub const RETURN: u64 = 56;
    /// The program's stack pointer.
    pub const STACK: u64 = 64;
    /// The call's six arguments.
    pub const ARGS: u64 = 72;
    /// The function clock_gettime of the process's vDSO; 0: the system call is made.
    pub const CLOCK: u64 = 120;
    /// [`super::CAPACITY`]
    pub const CAPACITY: u64 = 128;
}

/// Addresses of the code, in bytes from its start.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// From here on [`state::BUSY`] is set, and the registers are the recorder's own.
    pub entered: u64,
    /// From here on the registers are the program's again, and rcx says where it continues.
    pub left: u64,
    /// Behind the `int3`.
    pub trapped: u64,
    /// From here on a call that is not recorded is left to the site's `syscall`, which is 2 bytes before rcx.
    pub unrecorded: u64,
    /// From here on rcx is the address of the site's `syscall`.
    pub leaving: u64,
    /// From here on the registers are the recorder's own, as behind `entered`.
    pub make: u64,
    /// From here to `call`, the thread is about to make the call.
    pub check: u64,
    /// The `syscall`.
    pub call: u64,
    /// Behind it.
    pub called: u64,
    /// Where the thread continues that is not to make it.
    pub abandoned: u64,
    /// Where a thread begins that makes the state and the ring.
    pub set_up: u64,
    /// Where it begins if it has the state already.
    pub set_up_ring: u64,
    /// The end of the code.
    pub end: u64,
}

/// The addresses of the code.
pub fn layout() -> Layout {
    let start = (&raw const goanna_recorder_entry).addr();
    let from_start = |symbol: *const u8| (symbol.addr() - start) as u64;
    Layout {
        entered: from_start(&raw const goanna_recorder_entered),
        left: from_start(&raw const goanna_recorder_left),
        trapped: from_start(&raw const goanna_recorder_trapped),
        unrecorded: from_start(&raw const goanna_recorder_unrecorded),
        leaving: from_start(&raw const goanna_recorder_leaving),
        make: from_start(&raw const goanna_recorder_make),
        check: from_start(&raw const goanna_recorder_check),
        call: from_start(&raw const goanna_recorder_call),
        called: from_start(&raw const goanna_recorder_called),
        abandoned: from_start(&raw const goanna_recorder_abandoned),
        set_up: from_start(&raw const goanna_recorder_set_up),
        set_up_ring: from_start(&raw const goanna_recorder_set_up_ring),
        end: from_start(&raw const goanna_recorder_end),
    }
}

/// The code for calls of these shapes, by number.
pub fn code(shapes: &[u16; SHAPES]) -> Vec<u8> {
    let len = layout().end as usize;
    debug_assert!(len <= SHAPES_AT);
    // SAFETY: from its first to its last symbol, the code lies in one section.
    let code = unsafe { std::slice::from_raw_parts(&raw const goanna_recorder_entry, len) };
    let mut all = code.to_vec();
    all.resize(SHAPES_AT, 0);
    all.extend(shapes.iter().flat_map(|shape| shape.to_le_bytes()));
    all.resize(CODE, 0);
    all
}

/// The offset of the function clock_gettime in the vDSO, of which all processes have the same; `None` if this process has none.
pub fn clock_in_vdso() -> Option<u64> {
    // SAFETY: names of C; the library is in memory for as long as the process.
    unsafe {
        let start = libc::getauxval(libc::AT_SYSINFO_EHDR);
        let vdso = libc::dlopen(
            c"linux-vdso.so.1".as_ptr(),
            libc::RTLD_NOW | libc::RTLD_NOLOAD,
        );
        if start == 0 || vdso.is_null() {
            return None;
        }
        let clock = libc::dlsym(vdso, c"__vdso_clock_gettime".as_ptr());
        (clock as u64).checked_sub(start)
    }
}

/// The first words of the state of a process.
pub fn initial_state(clock: u64) -> Vec<u8> {
    let mut words = [0_u64; 17];
    let set = [(state::CLOCK, clock), (state::CAPACITY, CAPACITY as u64)];
    for (at, value) in set {
        if let Some(word) = words.get_mut(at as usize / 8) {
            *word = value;
        }
    }
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests;
