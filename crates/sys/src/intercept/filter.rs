//! One classic BPF instruction, the unit of a seccomp filter (linux/filter.h). The monitor compiles the filters.

/// One instruction, laid out as `struct sock_filter`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insn {
    /// Operation (`BPF_LD | BPF_W | BPF_ABS`, ...).
    pub code: u16,
    /// Instructions to skip when a jump's condition holds.
    pub jt: u8,
    /// Instructions to skip when it does not.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

// The kernel reads an array of these as an array of sock_filter.
const _: () = assert!(
    size_of::<Insn>() == size_of::<libc::sock_filter>()
        && align_of::<Insn>() == align_of::<libc::sock_filter>()
);

impl Insn {
    /// An instruction that does not jump (`BPF_STMT`).
    pub const fn stmt(code: u32, k: u32) -> Self {
        Self::jump(code, k, 0, 0)
    }

    /// A conditional or unconditional jump (`BPF_JUMP`).
    pub const fn jump(code: u32, k: u32, jt: u8, jf: u8) -> Self {
        // Operation codes are 16 bits wide in sock_filter; libc's constants are u32.
        Self {
            code: code as u16,
            jt,
            jf,
            k,
        }
    }
}
