//! Requests of ptrace(2) that read or change a stopped tracee, with the data in the form in which programs pass them.

use nix::errno::Errno;

use super::Stopped;
use crate::restarts::ERESTARTSYS;

/// A request that transfers a block of data that always has the same size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    request: libc::c_uint,
    /// The block's size in bytes.
    pub size: usize,
    /// Whether the request changes the tracee.
    pub is_change: bool,
}

const GET_SIGNAL_MASK: Block = Block::signal_mask(libc::PTRACE_GETSIGMASK, false);
const SET_SIGNAL_MASK: Block = Block::signal_mask(libc::PTRACE_SETSIGMASK, true);

impl Block {
    /// The request with this number, if it is one.
    pub fn of(request: libc::c_uint) -> Option<Self> {
        let (size, is_change) = match request {
            libc::PTRACE_GETSIGMASK => return Some(GET_SIGNAL_MASK),
            libc::PTRACE_SETSIGMASK => return Some(SET_SIGNAL_MASK),
            libc::PTRACE_GETREGS => (size_of::<libc::user_regs_struct>(), false),
            libc::PTRACE_SETREGS => (size_of::<libc::user_regs_struct>(), true),
            libc::PTRACE_GETFPREGS => (size_of::<libc::user_fpregs_struct>(), false),
            libc::PTRACE_SETFPREGS => (size_of::<libc::user_fpregs_struct>(), true),
            libc::PTRACE_GETSIGINFO => (size_of::<libc::siginfo_t>(), false),
            libc::PTRACE_SETSIGINFO => (size_of::<libc::siginfo_t>(), true),
            _ => return None,
        };
        Some(Self {
            request,
            size,
            is_change,
        })
    }

    const fn signal_mask(request: libc::c_uint, is_change: bool) -> Self {
        Self {
            request,
            size: size_of::<u64>(),
            is_change,
        }
    }

    /// The size, where programs pass it as the address of the request.
    pub fn size_in_address(&self) -> Option<usize> {
        let has = matches!(
            self.request,
            libc::PTRACE_GETSIGMASK | libc::PTRACE_SETSIGMASK
        );
        has.then_some(self.size)
    }
}

impl Stopped {
    /// Performs the request with `data`. EINVAL: not of the block's size.
    pub fn transfer(&self, block: Block, data: &mut [u8]) -> Result<(), Errno> {
        if data.len() != block.size {
            return Err(Errno::EINVAL);
        }
        let at = data.as_mut_ptr();
        let size = block.size_in_address().unwrap_or_default();
        // SAFETY: `data` is live and as large as what the kernel reads or writes.
        let r = unsafe { libc::ptrace(block.request, self.tid, size, at) };
        Errno::result(r).map(drop)
    }

    /// The `struct ptrace_syscall_info` of its call (PTRACE_GET_SYSCALL_INFO). Returns the number of bytes that the kernel has.
    pub fn call_info(&self, content: &mut [u8]) -> Result<usize, Errno> {
        let (at, size) = (content.as_mut_ptr(), content.len());
        // SAFETY: `content` is live, and the kernel writes at most `size` bytes.
        let r = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, self.tid, size, at) };
        Errno::result(r).map(|size| size as usize)
    }

    /// The same, as at the exit of a call that a signal has interrupted.
    pub fn interrupted_call_info(&self, content: &mut [u8]) -> Result<usize, Errno> {
        self.call_info(content)?;
        let result = std::mem::offset_of!(libc::ptrace_syscall_info, u);
        let end = result + size_of::<i64>();
        let size = end + size_of::<u8>();
        let content = content.get_mut(..size).ok_or(Errno::EINVAL)?;
        content[0] = libc::PTRACE_SYSCALL_INFO_EXIT;
        content[result..end].copy_from_slice(&ERESTARTSYS.to_ne_bytes());
        content[end] = 1;
        Ok(size)
    }

    /// Its signal mask: bit n-1 for signal n. In sigsuspend(2), ppoll(2) and the like, the mask that comes back at their end.
    pub fn signal_mask(&self) -> Result<u64, Errno> {
        let mut mask = [0; size_of::<u64>()];
        self.transfer(GET_SIGNAL_MASK, &mut mask)?;
        Ok(u64::from_ne_bytes(mask))
    }

    /// Replaces its signal mask. SIGKILL and SIGSTOP cannot be blocked.
    pub fn set_signal_mask(&self, mask: u64) -> Result<(), Errno> {
        self.transfer(SET_SIGNAL_MASK, &mut mask.to_ne_bytes())
    }

    /// Fills `data` with the register set `kind` (`NT_PRSTATUS` and others of `elf.h`), or with `is_change` changes the set to what is in `data`, as far as
    /// the other is as large; returns the size. EINVAL: there is no such set, or the size is no multiple of the set's unit.
    pub fn transfer_set(
        &self,
        kind: u64,
        is_change: bool,
        data: &mut [u8],
    ) -> Result<usize, Errno> {
        let request = match is_change {
            true => libc::PTRACE_SETREGSET,
            false => libc::PTRACE_GETREGSET,
        };
        let mut vector = libc::iovec {
            iov_base: data.as_mut_ptr().cast(),
            iov_len: data.len(),
        };
        // SAFETY: the vector is live and describes `data`, of which the kernel reads or writes no more.
        let r = unsafe { libc::ptrace(request, self.tid, kind, &raw mut vector) };
        Errno::result(r).map(|_| vector.iov_len)
    }

    /// The word at `addr` of the memory, or of the user area (`PTRACE_PEEKUSER`).
    pub fn peek(&self, is_user_area: bool, addr: u64) -> Result<u64, Errno> {
        let request = match is_user_area {
            true => libc::PTRACE_PEEKUSER,
            false => libc::PTRACE_PEEKDATA,
        };
        let mut word = 0u64;
        // SAFETY: the system call writes one word, which is live. The C library's function would return it.
        let r = unsafe {
            let word = &raw mut word;
            libc::syscall(libc::SYS_ptrace, request, self.tid, addr, word)
        };
        Errno::result(r).map(|_| word)
    }

    /// Changes the word at `addr` of the memory, or of the user area (`PTRACE_POKEUSER`).
    pub fn poke(&self, is_user_area: bool, addr: u64, word: u64) -> Result<(), Errno> {
        let request = match is_user_area {
            true => libc::PTRACE_POKEUSER,
            false => libc::PTRACE_POKEDATA,
        };
        // SAFETY: both arguments are passed by value.
        let r = unsafe { libc::ptrace(request, self.tid, addr, word) };
        Errno::result(r).map(drop)
    }
}
