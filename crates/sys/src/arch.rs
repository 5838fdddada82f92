//! The processor's part of the system-call interface: x86-64.
//!
//! Registers of stopped threads, the instruction that makes a call, and how filters tell this interface from others. The other things that depend
//! on the processor are listed in docs/porting.md.

use libc::user_regs_struct;

/// The instruction that makes a call.
pub const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `AUDIT_ARCH_X86_64`: the interface of a call, as filters see it.
pub const AUDIT_ARCH: u32 = 0xc000_003e;
/// Calls of the x32 interface, which has the same `AUDIT_ARCH`, have this bit in their numbers.
pub const X32_BIT: u32 = 0x4000_0000;

/// The number of no call.
pub const NO_CALL: u64 = u64::MAX;

/// The registers of a stopped thread.
#[derive(Debug, Clone, Copy)]
pub struct Registers(user_regs_struct);

impl From<user_regs_struct> for Registers {
    fn from(registers: user_regs_struct) -> Self {
        Self(registers)
    }
}

impl Registers {
    /// As ptrace(2) has them.
    pub fn user(&self) -> &user_regs_struct {
        &self.0
    }

    /// As ptrace(2) has them.
    pub fn user_mut(&mut self) -> &mut user_regs_struct {
        &mut self.0
    }

    /// The number of the call that the thread is in; -1 outside of a call.
    pub fn number(&self) -> i64 {
        self.0.orig_rax.cast_signed()
    }

    /// The arguments of the call that the thread is in.
    pub fn args(&self) -> [u64; 6] {
        let user_regs_struct {
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..
        } = self.0;
        [rdi, rsi, rdx, r10, r8, r9]
    }

    /// The result of the call that the thread has made.
    pub fn result(&self) -> i64 {
        self.0.rax.cast_signed()
    }

    /// The address of the next instruction.
    pub fn instruction(&self) -> u64 {
        self.0.rip
    }

    /// The address of the instruction that has made the call.
    pub fn call_instruction(&self) -> u64 {
        self.0.rip.wrapping_sub(SYSCALL.len() as u64)
    }

    /// Sets the result of the call. The thread may still be in it: the kernel restarts it for some results.
    pub fn set_result(&mut self, result: i64) {
        self.0.rax = result.cast_unsigned();
    }

    /// Sets the number of the call that is made at this seccomp stop.
    pub fn set_number(&mut self, number: i64) {
        self.0.orig_rax = number.cast_unsigned();
    }

    /// Sets the arguments of the call that is made at this seccomp stop.
    pub fn set_args(&mut self, args: [u64; 6]) {
        let all = [
            &mut self.0.rdi,
            &mut self.0.rsi,
            &mut self.0.rdx,
            &mut self.0.r10,
            &mut self.0.r8,
            &mut self.0.r9,
        ];
        for (register, value) in all.into_iter().zip(args) {
            *register = value;
        }
    }

    /// Sets the first arguments of the call that is made at this seccomp stop.
    pub fn set_first_args<const COUNT: usize>(&mut self, first: [u64; COUNT]) {
        let mut args = self.args();
        for (arg, value) in args.iter_mut().zip(first) {
            *arg = value;
        }
        self.set_args(args);
    }

    /// The thread is in no call: at a seccomp stop the kernel does not perform the call, and elsewhere it does not restart it.
    pub fn leave_call(&mut self) {
        self.0.orig_rax = NO_CALL;
    }

    /// Whether the next instruction is that of the call which ends at `end`.
    pub fn is_before_call(&self, end: u64) -> bool {
        self.0.rip == end.wrapping_sub(SYSCALL.len() as u64)
    }

    /// With this result.
    pub fn with_result(mut self, result: i64) -> Self {
        self.set_result(result);
        self
    }

    /// With another call at this seccomp stop.
    pub fn with_call(mut self, number: i64, args: [u64; 6]) -> Self {
        self.set_number(number);
        self.set_args(args);
        self
    }

    /// In no call ([`Registers::leave_call`]).
    pub fn outside_of_call(mut self) -> Self {
        self.leave_call();
        self
    }

    /// So that the thread makes its call again.
    pub fn before_call(self) -> Self {
        let (instruction, number) = (self.call_instruction(), self.number());
        self.calling(instruction, number, self.args())
    }

    /// So that the thread makes this call by the instruction at this address.
    pub fn calling(mut self, instruction: u64, number: i64, args: [u64; 6]) -> Self {
        self.set_args(args);
        self.0.rip = instruction;
        self.0.rax = number.cast_unsigned();
        self.outside_of_call()
    }
}
