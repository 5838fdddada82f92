//! Calls that need other arguments: executed by the tracee with strings of ours in its memory.
//!
//! The strings are not written below the stack pointer: a goroutine's stack is small, and other data lie below it. So the first
//! such call of a thread is turned into an mmap of a scratch area, after which the tracee makes the rewritten call; children of
//! fork and vfork inherit the area with the memory.
//!
//! `call.rs` has the calls. Registers are put back when the rewritten call returns: compilers rely on all but those that every call changes.

mod call;

use std::collections::{HashMap, HashSet};

use goanna_sys::arch::Registers;
use goanna_sys::ptrace::Stopped;
use goanna_sys::{restarts, tracee};
use goanna_vfs::{Description, Errno, Result};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use call::Then;
pub use call::{Addressed, AddressedKind, MMSGHDR, MSGHDR, Rewrite, filter_image};

/// Memory of ours in a tracee.
#[derive(Debug, Clone, Copy)]
struct Scratch {
    address: u64,
    len: u64,
}

enum Pending {
    /// The tracee maps the scratch area, and will then make the rewritten call.
    Mapping {
        saved: Registers,
        len: u64,
        rewrite: Rewrite,
    },
    /// The rewritten call has not reached the filter yet.
    Ready {
        saved: Registers,
        rewritten: Registers,
        then: Then,
    },
    /// The rewritten call runs; the registers are restored when it returns.
    Running { saved: Registers, then: Then },
}

/// A tracee at the exit stop of its call was not permitted to open the descriptor that it must get, or did not find the directory that it must enter. Its
/// registers are set to continue with the error.
pub struct Refused {
    /// What the descriptor refers to.
    pub source: Description,
    /// What the tracee needs it for.
    pub purpose: Purpose,
    /// The start of the scratch area.
    pub scratch: u64,
}

/// What a tracee needs a descriptor for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Its program gets it.
    Keep {
        /// Whether it gets close-on-exec.
        cloexec: bool,
    },
    /// The directory becomes its working directory.
    Enter,
}

/// The kind of a syscall stop.
pub enum Boundary {
    /// A stop of a call that is not rewritten.
    Foreign,
    /// The tracee will make the program's call, or the rewritten one.
    Again,
    /// The rewritten call has returned.
    Returned {
        /// The result that the program gets.
        result: i64,
        /// Whether the result is the monitor's answer, and not that of the program's own call.
        answered: bool,
    },
    /// The tracee was not permitted to open the descriptor, or did not find the directory.
    Refused(Refused),
}

/// All rewriting in progress.
#[derive(Default)]
pub struct Rewriter {
    scratch: HashMap<i32, Scratch>,
    pending: HashMap<i32, Pending>,
    /// Children that run in the memory of their parents, which wait meanwhile.
    lenders: HashMap<i32, i32>,
    /// Threads whose installation of a filter is over, and that will make their own call now, with the filter or without it.
    filtered: HashSet<i32>,
}

const PAGE: u64 = 4096;

impl Rewriter {
    /// Prepares a tracee at its seccomp stop for `rewrite`. It must then be continued with
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
            // The rewritten call needs no string, and may have no seccomp stop of its own.
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
            // The program has unmapped the scratch area, which it did not know.
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
        let access = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let args = [0, len, access, kind, u64::MAX, 0];
        stopped.set_regs(&saved.with_call(libc::SYS_mmap, args))?;
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
        let call = |regs: &Registers| (regs.instruction(), regs.number(), regs.args());
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
                let regs = self.returned(tid, saved, now.result(), &then);
                if !matches!(then, Then::Again) {
                    boundary = Boundary::Returned {
                        result: regs.result(),
                        answered: matches!(then, Then::Opened { .. } | Then::Fill(_)),
                    };
                }
                if is_refusal(regs.result())
                    && let Some(refused) = refused(then)
                {
                    boundary = Boundary::Refused(refused);
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
                    address: now.result().cast_unsigned(),
                    len,
                },
                rewrite,
            ),
            Pending::Ready { .. } => now,
        };
        // Only a call that a signal has ended may be restarted: by the kernel, as the program's own call, or by the supervisor
        // ([`super::undisturbed`]). The others must not be, even if a signal arrives now.
        let result = regs.result();
        if !restarts::is_interrupted(result) {
            regs.leave_call();
        }
        stopped.set_regs(&regs)?;
        Ok(boundary)
    }

    /// The registers after a rewritten call that returned `result`.
    fn returned(&mut self, tid: i32, saved: Registers, result: i64, then: &Then) -> Registers {
        match *then {
            Then::Again => {
                self.filtered.insert(tid);
                saved.before_call()
            }
            Then::Lengths { from, to } => {
                copy_lengths(tid, from, to, result);
                saved.with_result(result)
            }
            Then::Fill(ref content) => saved.with_result(fill(tid, result, content)),
            Then::Nothing | Then::Opened { .. } | Then::Entered { .. } => saved.with_result(result),
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
                return saved.before_call();
            }
            return saved.with_result(-(Errno::ENOMEM as i64));
        }
        self.scratch.insert(tid, scratch);
        if let Some(lender) = self.lenders.get(&tid) {
            self.scratch.insert(*lender, scratch);
        }
        if matches!(rewrite, Rewrite::Filter(_)) {
            // seccomp(2) has no seccomp stop. The program's call has one: it will find the scratch area mapped.
            return saved.before_call();
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
        rewritten.before_call()
    }

    /// Whether `tid` is in a rewritten call.
    pub fn is_running(&self, tid: i32) -> bool {
        matches!(self.pending.get(&tid), Some(Pending::Running { .. }))
    }

    /// Whether `tid` is about to make a rewritten call.
    pub fn is_ready(&self, tid: i32) -> bool {
        matches!(self.pending.get(&tid), Some(Pending::Ready { .. }))
    }

    /// Memory of ours in `tid` that is not in use now, at least a page.
    pub fn spare(&self, tid: i32) -> Option<u64> {
        let scratch = self.scratch.get(&tid)?;
        let free = !self.pending.contains_key(&tid) && scratch.len >= PAGE;
        free.then_some(scratch.address)
    }

    /// Whether `tid` is at the call that it makes after the installation of a filter. Reset by this call.
    pub fn was_filtered(&mut self, tid: i32) -> bool {
        self.filtered.remove(&tid)
    }

    /// `parent` is at the stop of the call that made `child`. A copy of its memory has a copy of the scratch area; an area that
    /// a child maps while it borrows the memory, as after vfork, remains in the parent.
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

    /// The thread has ended, or its memory is that of another program.
    pub fn forget(&mut self, tid: i32) {
        self.scratch.remove(&tid);
        self.pending.remove(&tid);
        self.lenders.remove(&tid);
        self.filtered.remove(&tid);
    }
}

/// What the tracee did not get by a call that was refused.
fn refused(then: Then) -> Option<Refused> {
    match then {
        Then::Opened {
            source,
            cloexec,
            scratch,
        } => Some(Refused {
            source,
            purpose: Purpose::Keep { cloexec },
            scratch,
        }),
        Then::Entered { path, scratch } => {
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            let dir = nix::fcntl::open(&path[..], flags, Mode::empty()).ok()?;
            Some(Refused {
                source: dir.into(),
                purpose: Purpose::Enter,
                scratch,
            })
        }
        _ => None,
    }
}

/// Whether this is an error of an open by `/proc`, or of a path to the run-time directory, that does not concern the object: missing permission for the process or
/// the object, or no such entry.
fn is_refusal(result: i64) -> bool {
    let refusals = [Errno::EACCES, Errno::EPERM, Errno::ENOENT, Errno::ENOTDIR];
    refusals.iter().any(|errno| -(*errno as i64) == result)
}

/// Writes `content` to the memory that mmap(2) has mapped with this result, if it has succeeded. Returns the result of the call.
fn fill(tid: i32, result: i64, content: &[u8]) -> i64 {
    let failed = (-PAGE.cast_signed()..0).contains(&result);
    let fill = || tracee::write_forced(tid, result.cast_unsigned(), content);
    if failed || content.is_empty() || fill().is_ok() {
        return result;
    }
    -(Errno::ENOMEM as i64)
}

/// Copies the lengths of `count` sent messages. An error is ignored: the kernel could not have written them either, and the
/// messages are sent.
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
