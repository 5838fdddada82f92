//! Calls that need other arguments: executed by the tracee with strings of ours in its memory.
//!
//! They are not written below the stack pointer: a goroutine's stack is small, and below it is other
//! people's data. So the first such call of a thread is turned into an mmap of a scratch area, after
//! which the tracee makes the rewritten call; children of fork and vfork inherit the area with the memory.
//!
//! `call.rs` has the calls. Registers are put back when the rewritten call returns: compilers rely on all but rax, rcx and r11.

mod call;

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

use goanna_sys::ptrace::Stopped;
use goanna_sys::tracee;
use goanna_vfs::{Errno, Result};

use call::Then;
pub use call::{Addressed, AddressedKind, MMSGHDR, MSGHDR, Registers, Rewrite, filter_image};

/// Memory of ours in a tracee.
#[derive(Debug, Clone, Copy)]
struct Scratch {
    address: u64,
    len: u64,
}

enum Pending {
    /// The scratch area is being mapped; then the rewritten call is made from the start.
    Mapping {
        saved: Registers,
        len: u64,
        rewrite: Rewrite,
    },
    /// The rewritten call is about to meet the filter.
    Ready {
        saved: Registers,
        rewritten: Registers,
        then: Then,
    },
    /// The rewritten call runs; then the registers come back.
    Running { saved: Registers, then: Then },
}

/// A tracee, at the exit stop of its call, may not open what it is to get. Its registers are set to continue with the error.
pub struct Refused {
    /// The descriptor.
    pub source: OwnedFd,
    /// Whether it is to have close-on-exec.
    pub cloexec: bool,
    /// Where the scratch area begins.
    pub scratch: u64,
}

/// What a syscall stop of a tracee was.
pub enum Boundary {
    /// Of a call that is not rewritten.
    Foreign,
    /// The program's call, or the rewritten one, is about to be made.
    Again,
    /// The rewritten call has this result. `answered`: the monitor's doing, not that of the program's own call.
    Returned {
        /// As the program gets it.
        result: i64,
        /// See there.
        answered: bool,
    },
    /// See there.
    Refused(Refused),
}

/// All rewriting in progress.
#[derive(Default)]
pub struct Rewriter {
    scratch: HashMap<i32, Scratch>,
    pending: HashMap<i32, Pending>,
    /// Children that run in their parents' memory while these wait.
    lenders: HashMap<i32, i32>,
    /// Threads that were to get a filter and are to make their own call now, with or without it.
    filtered: HashSet<i32>,
}

const PAGE: u64 = 4096;

const EINTR: i64 = -(Errno::EINTR as i64);
/// The kernel's own results ERESTARTSYS to ERESTART_RESTARTBLOCK.
const RESTARTS: std::ops::RangeInclusive<i64> = -516..=-512;

impl Rewriter {
    /// Sets a tracee at its seccomp stop on the way to `rewrite`. It must then be continued with
    /// [`Stopped::cont_syscall`], and its next syscall stop given to [`Rewriter::syscall_stop`].
    pub fn start(
        &mut self,
        stopped: &Stopped,
        saved: Registers,
        rewrite: Rewrite,
    ) -> Result<(), Errno> {
        let tid = stopped.tid();
        let need = rewrite.len();
        let scratch = match need {
            // No string of ours, and perhaps no stop at which the rewritten call could be told from others.
            0 => Some(Scratch { address: 0, len: 0 }),
            _ => self
                .scratch
                .get(&tid)
                .filter(|area| area.len >= need)
                .copied(),
        };
        let Some(scratch) = scratch else {
            return self.map(stopped, saved, rewrite);
        };
        let mut regs = saved;
        let image = rewrite.apply(scratch.address, &mut regs);
        if tracee::write_all(tid, scratch.address, &image).is_err() {
            // The program unmapped what it did not know was ours.
            self.scratch.remove(&tid);
            return self.map(stopped, saved, rewrite);
        }
        stopped.set_regs(&regs)?;
        let then = rewrite.then(scratch.address, &saved);
        self.pending.insert(tid, Pending::Running { saved, then });
        Ok(())
    }

    fn map(&mut self, stopped: &Stopped, saved: Registers, rewrite: Rewrite) -> Result<(), Errno> {
        let len = rewrite.len().max(2 * PAGE).next_multiple_of(PAGE);
        let regs = Registers {
            orig_rax: libc::SYS_mmap as u64,
            rdi: 0,
            rsi: len,
            rdx: (libc::PROT_READ | libc::PROT_WRITE) as u64,
            r10: (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64,
            r8: u64::MAX,
            r9: 0,
            ..saved
        };
        stopped.set_regs(&regs)?;
        let mapping = Pending::Mapping {
            saved,
            len,
            rewrite,
        };
        self.pending.insert(stopped.tid(), mapping);
        Ok(())
    }

    /// Whether this seccomp stop of `tid` is that of a call already rewritten, which is then to be continued with
    /// [`Stopped::cont_syscall`]. It is not when a signal handler runs first; the rewritten call follows behind it.
    pub fn seccomp_stop(&mut self, tid: i32, regs: &Registers) -> bool {
        let call = |regs: &Registers| {
            let Registers {
                rip,
                orig_rax,
                rdi,
                rsi,
                rdx,
                r8,
                ..
            } = *regs;
            [rip, orig_rax, rdi, rsi, rdx, r8]
        };
        match self.pending.remove(&tid) {
            Some(Pending::Ready {
                saved,
                rewritten,
                then,
            }) if call(regs) == call(&rewritten) => {
                self.pending.insert(tid, Pending::Running { saved, then });
                true
            }
            Some(other) => {
                self.pending.insert(tid, other);
                false
            }
            None => false,
        }
    }

    /// Handles a syscall stop.
    pub fn syscall_stop(&mut self, stopped: &Stopped) -> Result<Boundary, Errno> {
        let tid = stopped.tid();
        let Some(pending) = self.pending.remove(&tid) else {
            return Ok(Boundary::Foreign);
        };
        let mut boundary = Boundary::Again;
        let now = stopped.regs()?;
        let mut regs = match pending {
            Pending::Running { saved, then } => {
                let regs = self.returned(tid, saved, now.rax, &then);
                if !matches!(then, Then::Again) {
                    boundary = Boundary::Returned {
                        result: regs.rax.cast_signed(),
                        answered: matches!(then, Then::Opened { .. } | Then::Fill(_)),
                    };
                }
                if let Then::Opened {
                    source,
                    cloexec,
                    scratch,
                } = then
                    && is_refusal(regs.rax.cast_signed())
                {
                    boundary = Boundary::Refused(Refused {
                        source,
                        cloexec,
                        scratch,
                    });
                }
                regs
            }
            Pending::Mapping {
                saved,
                len,
                rewrite,
            } => self.mapped(
                tid,
                saved,
                Scratch {
                    address: now.rax,
                    len,
                },
                rewrite,
            ),
            Pending::Ready { .. } => now,
        };
        // A call that a signal ended is restarted by the kernel, as the one the program made, or by the supervisor
        // ([`super::undisturbed`]); nothing else is, whatever a handler finds in rax.
        let result = regs.rax.cast_signed();
        if !RESTARTS.contains(&result) && result != EINTR {
            regs.orig_rax = u64::MAX;
        }
        stopped.set_regs(&regs)?;
        Ok(boundary)
    }

    /// The registers after a rewritten call that returned `result`.
    fn returned(&mut self, tid: i32, saved: Registers, result: u64, then: &Then) -> Registers {
        match *then {
            Then::Again => {
                self.filtered.insert(tid);
                again(saved)
            }
            Then::Lengths { from, to } => {
                copy_lengths(tid, from, to, result.cast_signed());
                Registers {
                    rax: result,
                    ..saved
                }
            }
            Then::Fill(ref content) => Registers {
                rax: fill(tid, result, content),
                ..saved
            },
            Then::Nothing | Then::Opened { .. } => Registers {
                rax: result,
                ..saved
            },
        }
    }

    /// The registers after the mmap of the scratch area: for the rewritten call.
    fn mapped(
        &mut self,
        tid: i32,
        saved: Registers,
        scratch: Scratch,
        rewrite: Rewrite,
    ) -> Registers {
        let address = scratch.address;
        let failed = (-PAGE.cast_signed()..0).contains(&address.cast_signed());
        let mut rewritten = saved;
        let image = rewrite.apply(address, &mut rewritten);
        if failed || tracee::write_all(tid, address, &image).is_err() {
            if matches!(rewrite, Rewrite::Filter(_)) {
                self.filtered.insert(tid);
                return again(saved);
            }
            return Registers {
                rax: -(Errno::ENOMEM as i64) as u64,
                ..saved
            };
        }
        self.scratch.insert(tid, scratch);
        if let Some(lender) = self.lenders.get(&tid) {
            self.scratch.insert(*lender, scratch);
        }
        if matches!(rewrite, Rewrite::Filter(_)) {
            // seccomp(2) has no stop of its own: the program's call has, and finds the scratch area there.
            return again(saved);
        }
        let then = rewrite.then(address, &saved);
        self.pending.insert(
            tid,
            Pending::Ready {
                saved,
                rewritten,
                then,
            },
        );
        again(rewritten)
    }

    /// Whether `tid` is in a rewritten call.
    pub fn is_running(&self, tid: i32) -> bool {
        matches!(self.pending.get(&tid), Some(Pending::Running { .. }))
    }

    /// Memory of ours in `tid` that nothing is in now, a page at least.
    pub fn spare(&self, tid: i32) -> Option<u64> {
        let scratch = self.scratch.get(&tid)?;
        let free = !self.pending.contains_key(&tid) && scratch.len >= PAGE;
        free.then_some(scratch.address)
    }

    /// Whether `tid` is at the call that it makes after a filter was to be installed; asked once.
    pub fn was_filtered(&mut self, tid: i32) -> bool {
        self.filtered.remove(&tid)
    }

    /// `parent` is at the stop of the call that made `child`. A copy of its memory has a copy of the scratch area; a
    /// child that borrows the memory, as vfork's does, leaves behind what it maps there.
    pub fn inherit(&mut self, parent: i32, child: i32, flags: u64) {
        let shared = flags & libc::CLONE_VM as u64 != 0;
        let borrowed = flags & libc::CLONE_VFORK as u64 != 0;
        if shared && !borrowed {
            return;
        }
        if shared {
            self.lenders.insert(child, parent);
        }
        if let Some(scratch) = self.scratch.get(&parent).copied() {
            self.scratch.insert(child, scratch);
        }
    }

    /// The thread is gone, or its memory is another program's.
    pub fn forget(&mut self, tid: i32) {
        self.scratch.remove(&tid);
        self.pending.remove(&tid);
        self.lenders.remove(&tid);
        self.filtered.remove(&tid);
    }
}

/// The registers of a call that has returned, set to make it from the start, as `regs` has it.
fn again(regs: Registers) -> Registers {
    // The syscall instruction is two bytes long.
    Registers {
        rip: regs.rip - 2,
        rax: regs.orig_rax,
        ..regs
    }
}

/// What opening by way of `/proc` answers that is not about the file: permissions of the process and of the object, no such
/// entry.
fn is_refusal(result: i64) -> bool {
    let refusals = [Errno::EACCES, Errno::EPERM, Errno::ENOENT];
    refusals.iter().any(|errno| -(*errno as i64) == result)
}

/// Puts `content` into memory that was mapped at `address`, if it was; the call's result.
fn fill(tid: i32, address: u64, content: &[u8]) -> u64 {
    let failed = (-PAGE.cast_signed()..0).contains(&address.cast_signed());
    if failed || content.is_empty() || tracee::write_forced(tid, address, content).is_ok() {
        return address;
    }
    -(Errno::ENOMEM as i64) as u64
}

/// What cannot be written the kernel could not have written, either; the messages are sent.
fn copy_lengths(tid: i32, from: u64, to: u64, count: i64) {
    let (size, at) = MMSGHDR;
    for index in 0..u64::try_from(count).unwrap_or(0) {
        let at = index * size as u64 + at as u64;
        let mut length = [0; 4];
        if tracee::read_exact(tid, from + at, &mut length).is_err()
            || tracee::write_all(tid, to + at, &length).is_err()
        {
            return;
        }
    }
}

/// The flags of the call that the thread is in, which made a child.
pub fn clone_flags(stopped: &Stopped) -> Result<u64, Errno> {
    let regs = stopped.regs()?;
    match regs.orig_rax as i64 {
        libc::SYS_vfork => Ok((libc::CLONE_VM | libc::CLONE_VFORK) as u64),
        libc::SYS_clone => Ok(regs.rdi),
        _ => Ok(0),
    }
}
