//! Calls that need other arguments: executed by the tracee with strings of ours in its memory.
//!
//! They are not written below the stack pointer: a goroutine's stack is small, and below it is other
//! people's data. So the first such call of a thread is turned into an mmap of a scratch area, after
//! which the tracee makes the rewritten call; children of fork and vfork inherit the area with the memory.
//!
//! Registers are put back when the rewritten call returns: compilers rely on all but rax, rcx and r11.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

use goanna_sys::filter::Insn;
use goanna_sys::ptrace::Stopped;
use goanna_sys::tracee;
use goanna_vfs::{Errno, Result};

use crate::ptracer::program::Arg;

/// Registers of a stopped tracee.
pub type Registers = libc::user_regs_struct;

/// Memory of ours in a tracee.
#[derive(Debug, Clone, Copy)]
struct Scratch {
    address: u64,
    len: u64,
}

/// The call that is to run instead.
pub enum Rewrite {
    /// chdir(2) to a host path.
    Chdir(Vec<u8>),
    /// execve(2) of a host path.
    Execve {
        /// Program.
        program: Vec<u8>,
        /// Arguments, where they change.
        argv: Option<Vec<Arg>>,
        /// Address of the vector given.
        old_argv: u64,
        /// Address of the environment.
        envp: u64,
    },
    /// open(2) of a host path: how a descriptor gets into a tracee without notification.
    Open {
        /// The path, of the monitor's own descriptor or another host object.
        path: Vec<u8>,
        /// Flags.
        flags: i32,
        /// Kept until the tracee has opened it.
        source: Option<OwnedFd>,
    },
    /// The call itself, a sending or connecting one, to other addresses.
    Addressed(Addressed),
    /// mmap(2) of memory that then gets this content, instead of a private mapping of a file.
    MapCopy(Vec<u8>),
    /// No call: the kernel finds that a signal has ended it, and restarts it or makes it EINTR.
    Interrupted,
    /// seccomp(2): a further filter for all threads of the program, which then makes its own call again.
    Filter(Vec<Insn>),
}

/// A sending or connecting call with addresses of ours.
pub struct Addressed {
    /// What goes to the scratch area: the structures the call takes, and the addresses.
    pub image: Vec<u8>,
    /// Positions of offsets in it that become pointers.
    pub pointers: Vec<usize>,
    /// Which call.
    pub kind: AddressedKind,
}

/// What the image of a [`Addressed`] begins with.
#[derive(Debug, Clone, Copy)]
pub enum AddressedKind {
    /// connect(2): the address, of this length.
    Connect(u64),
    /// sendto(2): the address, of this length.
    To(u64),
    /// sendmsg(2): a `struct msghdr`.
    Message,
    /// sendmmsg(2): this many `struct mmsghdr`, whose lengths the kernel sets.
    Messages(u64),
}

/// Size of a `struct msghdr`.
pub const MSGHDR: usize = 56;
/// Size of a `struct mmsghdr`, and where in it the length is that the kernel sets.
pub const MMSGHDR: (usize, usize) = (64, 56);

/// What to do when a rewritten call returns, besides restoring the registers.
enum Then {
    Nothing,
    /// The descriptor was kept open for the tracee to open again, by the path at `scratch`.
    Opened {
        source: OwnedFd,
        cloexec: bool,
        scratch: u64,
    },
    /// The program's own call is made.
    Again,
    /// The memory that was mapped gets this content.
    Fill(Vec<u8>),
    /// The lengths in the messages go from our copy to the program's.
    Lengths {
        from: u64,
        to: u64,
    },
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

/// The kernel's own result for a wait that a signal has ended.
const ERESTARTSYS: i64 = -512;
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

impl Rewrite {
    /// `saved`: the registers of the call as the program made it.
    fn then(self, base: u64, saved: &Registers) -> Then {
        match self {
            Self::Open {
                source: Some(source),
                flags,
                ..
            } => Then::Opened {
                source,
                cloexec: flags & libc::O_CLOEXEC != 0,
                scratch: base,
            },
            Self::Addressed(Addressed {
                kind: AddressedKind::Messages(_),
                ..
            }) => Then::Lengths {
                from: base,
                to: saved.rsi,
            },
            Self::Filter(_) => Then::Again,
            Self::MapCopy(content) => Then::Fill(content),
            _ => Then::Nothing,
        }
    }

    fn len(&self) -> u64 {
        let strings = match self {
            Self::Chdir(path) | Self::Open { path, .. } => path.len() + 1,
            Self::Execve { program, argv, .. } => {
                let args = argv.as_deref().unwrap_or_default();
                let new: usize = args
                    .iter()
                    .map(|arg| {
                        if let Arg::New(bytes) = arg {
                            bytes.len() + 1
                        } else {
                            0
                        }
                    })
                    .sum();
                program.len() + 1 + new + 8 * (args.len() + 2)
            }
            Self::Addressed(send) => send.image.len(),
            Self::MapCopy(_) | Self::Interrupted => 0,
            Self::Filter(program) => FPROG + program.len() * size_of::<Insn>(),
        };
        strings as u64
    }

    /// Sets the registers for the call, whose strings are to be at `base`; what is to be there.
    fn apply(&self, base: u64, regs: &mut Registers) -> Vec<u8> {
        match self {
            Self::Chdir(path) => {
                regs.rdi = base;
                with_nul(path)
            }
            Self::Open { path, flags, .. } => {
                regs.orig_rax = libc::SYS_open as u64;
                regs.rdi = base;
                regs.rsi = *flags as u64;
                regs.rdx = 0;
                with_nul(path)
            }
            Self::Execve {
                program,
                argv,
                old_argv,
                envp,
            } => {
                regs.orig_rax = libc::SYS_execve as u64;
                regs.rdi = base;
                regs.rsi = *old_argv;
                regs.rdx = *envp;
                let mut image = with_nul(program);
                if let Some(argv) = argv {
                    let mut pointers = Vec::with_capacity(argv.len() + 1);
                    for arg in argv {
                        match arg {
                            Arg::Old(address) => pointers.push(*address),
                            Arg::New(bytes) => {
                                pointers.push(base + image.len() as u64);
                                image.extend_from_slice(bytes);
                                image.push(0);
                            }
                        }
                    }
                    pointers.push(0);
                    image.resize(image.len().next_multiple_of(8), 0);
                    regs.rsi = base + image.len() as u64;
                    image.extend(pointers.into_iter().flat_map(u64::to_ne_bytes));
                }
                image
            }
            Self::Addressed(send) => send.apply(base, regs),
            Self::Filter(program) => {
                regs.orig_rax = libc::SYS_seccomp as u64;
                regs.rdi = u64::from(libc::SECCOMP_SET_MODE_FILTER);
                regs.rsi = libc::SECCOMP_FILTER_FLAG_TSYNC;
                regs.rdx = base;
                filter_image(program, base)
            }
            Self::Interrupted => {
                regs.orig_rax = u64::MAX;
                regs.rax = ERESTARTSYS.cast_unsigned();
                Vec::new()
            }
            Self::MapCopy(_) => {
                regs.r10 = regs.r10 & !(libc::MAP_SHARED as u64) | MAP_MEMORY;
                regs.r8 = u64::MAX;
                regs.r9 = 0;
                Vec::new()
            }
        }
    }
}

/// Flags of a mapping of memory instead of a file.
const MAP_MEMORY: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;

/// A `struct sock_fprog` of the program, to lie at `base`, and the program behind it.
pub fn filter_image(program: &[Insn], base: u64) -> Vec<u8> {
    let mut image = (program.len() as u64).to_ne_bytes().to_vec();
    image.extend((base + FPROG as u64).to_ne_bytes());
    for insn in program {
        image.extend(insn.code.to_ne_bytes());
        image.extend([insn.jt, insn.jf]);
        image.extend(insn.k.to_ne_bytes());
    }
    image
}

/// Size of a `struct sock_fprog`: a count in the first bytes of eight, a pointer.
const FPROG: usize = 16;

impl Addressed {
    fn apply(&self, base: u64, regs: &mut Registers) -> Vec<u8> {
        match self.kind {
            AddressedKind::Connect(len) => (regs.rsi, regs.rdx) = (base, len),
            AddressedKind::To(len) => (regs.r8, regs.r9) = (base, len),
            AddressedKind::Message => regs.rsi = base,
            AddressedKind::Messages(count) => (regs.rsi, regs.rdx) = (base, count),
        }
        let mut image = self.image.clone();
        for &at in &self.pointers {
            if let Some(pointer) = image.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<8>) {
                *pointer = (base + u64::from_ne_bytes(*pointer)).to_ne_bytes();
            }
        }
        image
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

fn with_nul(path: &[u8]) -> Vec<u8> {
    let mut bytes = path.to_vec();
    bytes.push(0);
    bytes
}
