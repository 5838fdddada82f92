//! The ptracer: one thread that follows every tracee through its life, and changes registers where a call
//! needs other arguments than it was given.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use goanna_sys::ptrace::{self, Options};
use goanna_vfs::walk::Pos;
use goanna_vfs::{Errno, Place, Result, ops};

use crate::call::{Answer, Call};
use crate::calls::datagram;
use crate::program::{Exec, Plan};
use crate::rewrite::{Registers, Rewrite, Rewriter};
use crate::table::entry;
use crate::{Monitor, Status, restart};

/// Follows the tracees of one run.
pub struct Supervisor {
    monitor: Arc<Monitor>,
    /// Calls come as notifications, not only as stops.
    notified: bool,
    rewriter: Rewriter,
    /// Answers of calls that took long, where there is no notification to reply to.
    late: (Sender<Late>, Receiver<Late>),
    late_count: usize,
}

struct Late {
    tid: i32,
    regs: Registers,
    answer: Result<Answer>,
}

const POLL_MS: u64 = 2;

/// Flags with which a description is opened again; the others were about finding the file.
const REOPEN_FLAGS: i32 = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_DIRECT
    | libc::O_NOATIME;

/// How a stopped call goes on.
enum Next {
    /// As it stands, or as its registers were set.
    Run,
    /// With other arguments.
    Instead(Rewrite),
    /// Not yet: its answer is being worked out.
    Wait,
}

impl Next {
    fn of(rewrite: Option<Rewrite>) -> Self {
        rewrite.map_or(Self::Run, Self::Instead)
    }
}

impl Supervisor {
    /// For the tracees of `monitor`.
    pub fn new(monitor: Arc<Monitor>, notified: bool) -> Self {
        Self {
            monitor,
            notified,
            rewriter: Rewriter::default(),
            late: channel(),
            late_count: 0,
        }
    }

    /// Seizes `pid`, which waits at its gate.
    pub fn seize(&self, pid: i32) -> Result<()> {
        ptrace::seize(pid, Options::MONITOR)
    }

    /// Runs until no tracee is left; how `main` ended.
    pub fn run(&mut self, main: i32) -> Result<Status> {
        let mut status = None;
        loop {
            let flags = if self.late_count > 0 {
                libc::WNOHANG
            } else {
                0
            };
            let monitor = &self.monitor;
            let leaving = |tid| {
                monitor.tasks.remove(tid);
                monitor.in_flight.settle(tid);
            };
            match ptrace::wait_leaving(flags, leaving) {
                Ok(Some((tid, event))) => {
                    if let Some(end) = self.event(tid, event)
                        && tid == main
                    {
                        status = Some(end);
                    }
                }
                Ok(None) => self.finish_late(),
                Err(Errno::ECHILD) => return status.ok_or(Errno::ECHILD),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Handles one report. A tracee that is killed while stopped answers ESRCH to everything; its end is
    /// reported like any other, so those errors mean nothing.
    fn event(&mut self, tid: i32, event: ptrace::Status) -> Option<Status> {
        let outcome = match event {
            ptrace::Status::Exited(code) => {
                self.ended(tid);
                return Some(Status::Exited(code));
            }
            ptrace::Status::Signaled { signal, .. } => {
                self.ended(tid);
                return Some(Status::Signaled(signal));
            }
            ptrace::Status::Seccomp => self.call(tid),
            ptrace::Status::SyscallStop => self.syscall_stop(tid),
            ptrace::Status::SignalDelivery(signal) => self.deliver(tid, signal),
            ptrace::Status::GroupStop(_) => ptrace::listen(tid),
            ptrace::Status::NewChild { child, .. } => {
                // What cannot be told is taken as not inherited.
                let _ = self.rewriter.inherit(tid, child);
                ptrace::cont(tid, 0)
            }
            ptrace::Status::Exec { former_tid } => {
                for tid in [tid, former_tid] {
                    self.rewriter.forget(tid);
                    self.monitor.tasks.remove(tid);
                }
                ptrace::cont(tid, 0)
            }
            ptrace::Status::EventStop | ptrace::Status::VforkDone | ptrace::Status::ExitEvent => {
                ptrace::cont(tid, 0)
            }
        };
        debug_assert!(
            matches!(outcome, Ok(()) | Err(Errno::ESRCH)),
            "{tid}: {outcome:?}"
        );
        None
    }

    fn ended(&mut self, tid: i32) {
        self.rewriter.forget(tid);
        self.monitor.tasks.remove(tid);
    }

    /// Lets a signal be delivered; a call that it took back from us unseen is made again afterwards.
    fn deliver(&self, tid: i32, signal: i32) -> Result<()> {
        if !self.notified {
            return ptrace::cont(tid, signal);
        }
        let mut regs = ptrace::get_regs(tid)?;
        // Outside of a call the number is -1, which is none of the table.
        let (nr, args) = call_of(&regs);
        let received = || self.monitor.tasks.left_to_wait(tid);
        let result = regs.rax.cast_signed();
        if let Some(instead) = restart::instead(nr, args, result, received) {
            regs.rax = instead.cast_unsigned();
            ptrace::set_regs(tid, &regs)?;
        }
        ptrace::cont(tid, signal)
    }

    fn syscall_stop(&mut self, tid: i32) -> Result<()> {
        self.rewriter.syscall_stop(tid)?;
        ptrace::cont(tid, 0)
    }

    fn call(&mut self, tid: i32) -> Result<()> {
        let regs = ptrace::get_regs(tid)?;
        if self.rewriter.seccomp_stop(tid, &regs) {
            return ptrace::cont_syscall(tid, 0);
        }
        let next = self.treat(tid, &regs);
        self.go_on(tid, regs, next)
    }

    fn go_on(&mut self, tid: i32, regs: Registers, next: Result<Next>) -> Result<()> {
        match next {
            Ok(Next::Run) => ptrace::cont(tid, 0),
            Ok(Next::Instead(rewrite)) => {
                self.rewriter.start(tid, regs, rewrite)?;
                ptrace::cont_syscall(tid, 0)
            }
            Ok(Next::Wait) => Ok(()),
            Err(errno) => {
                skip(tid, regs, -(errno as i64))?;
                ptrace::cont(tid, 0)
            }
        }
    }

    /// What the call at this stop becomes.
    fn treat(&mut self, tid: i32, regs: &Registers) -> Result<Next> {
        let (nr, args) = call_of(regs);
        let monitor = Arc::clone(&self.monitor);
        let task = monitor.tasks.get(tid)?;
        let mut call = Call::new(&monitor, task, nr, args);
        match (
            i64::from(nr),
            entry(nr).and_then(|entry| entry.rule.handler()),
        ) {
            (libc::SYS_chdir, _) => change_directory(&call),
            (libc::SYS_socket, _) if self.rewriter.was_filtered(tid) => Ok(Next::Run),
            (libc::SYS_socket, _) => datagram::watch(&call).map(Next::of),
            (libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_sendmmsg, _) => {
                datagram::redirect(&call).map(Next::of)
            }
            (libc::SYS_execve, _) => {
                let path = call.path(0)?;
                let exec = Exec {
                    dirfd: libc::AT_FDCWD,
                    path,
                    argv: args[1],
                    flags: 0,
                };
                execute(&call, &exec, args[2])
            }
            (libc::SYS_execveat, _) => {
                let exec = Exec {
                    dirfd: call.int(0),
                    path: call.path(1)?,
                    argv: args[2],
                    flags: call.int(4),
                };
                execute(&call, &exec, args[3])
            }
            (_, Some(handler)) => {
                let answer = handler(&mut call);
                drop(call);
                self.without_notification(tid, *regs, answer)
            }
            _ => Ok(Next::Run),
        }
    }

    /// One-stop emulation, where notification is refused: the answer is set at this stop.
    fn without_notification(
        &mut self,
        tid: i32,
        regs: Registers,
        answer: Result<Answer>,
    ) -> Result<Next> {
        self.monitor.stats.count(regs.orig_rax as u32, &answer);
        match answer? {
            Answer::PassOn => Ok(Next::Run),
            Answer::Value(value) => {
                skip(tid, regs, value)?;
                Ok(Next::Run)
            }
            Answer::Install { fd, cloexec, .. } => {
                use nix::fcntl::{FcntlArg, fcntl};
                use std::os::fd::AsRawFd;
                let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
                let cloexec = if cloexec { libc::O_CLOEXEC } else { 0 };
                let flags = fcntl(fd.as_fd(), FcntlArg::F_GETFL)? & REOPEN_FLAGS | cloexec;
                Ok(Next::Instead(Rewrite::Open {
                    path: path.into_bytes(),
                    flags,
                    source: Some(fd),
                }))
            }
            Answer::OpenHost { path, flags } => Ok(Next::Instead(Rewrite::Open {
                path,
                flags,
                source: None,
            })),
            Answer::Block(work) => {
                let done = self.late.0.clone();
                self.late_count += 1;
                thread::spawn(move || {
                    // The supervisor outlives its tracees.
                    let _ = done.send(Late {
                        tid,
                        regs,
                        answer: work(),
                    });
                });
                Ok(Next::Wait)
            }
        }
    }

    fn finish_late(&mut self) {
        let wait = Duration::from_millis(POLL_MS);
        let Ok(Late { tid, regs, answer }) = self.late.1.recv_timeout(wait) else {
            return;
        };
        self.late_count -= 1;
        let next = self.without_notification(tid, regs, answer);
        let outcome = self.go_on(tid, regs, next);
        debug_assert!(
            matches!(outcome, Ok(()) | Err(Errno::ESRCH)),
            "{tid}: {outcome:?}"
        );
    }
}

/// The number and the arguments of the call a tracee is stopped in.
fn call_of(regs: &Registers) -> (u32, [u64; 6]) {
    let args = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
    (regs.orig_rax as u32, args)
}

/// Makes the call at this seccomp stop not happen and return `value`.
fn skip(tid: i32, mut regs: Registers, value: i64) -> Result<()> {
    regs.orig_rax = u64::MAX;
    regs.rax = value as u64;
    ptrace::set_regs(tid, &regs)
}

fn change_directory(call: &Call<'_>) -> Result<Next> {
    let resolved = call.resolve(libc::AT_FDCWD, &call.path(0)?, true)?;
    call.monitor.tasks.about_to_change(&call.task);
    match resolved.at {
        Pos::Host(_) if resolved.native => Ok(Next::Run),
        Pos::Host(path) if path.is_empty() => Ok(Next::Instead(Rewrite::Chdir(b"/".to_vec()))),
        Pos::Host(path) => Ok(Next::Instead(Rewrite::Chdir(path))),
        Pos::Mounted(place) => {
            may_enter(call, &place)?;
            let path = call.monitor.shadows.directory(&place)?;
            Ok(Next::Instead(Rewrite::Chdir(
                path.as_os_str().as_bytes().to_vec(),
            )))
        }
    }
}

/// The working directory is found without a look-up that a back end could judge.
fn may_enter(call: &Call<'_>, place: &Place) -> Result<()> {
    if !place.node.is_dir() {
        return Err(Errno::ENOTDIR);
    }
    ops::access(&*call.caller()?, place, libc::X_OK)
}

fn execute(call: &Call<'_>, exec: &Exec, envp: u64) -> Result<Next> {
    call.monitor.installs.settle_all();
    Ok(match exec.plan(call)? {
        Plan::PassOn => Next::Run,
        Plan::Instead { program, argv } => Next::Instead(Rewrite::Execve {
            program,
            argv,
            old_argv: exec.argv,
            envp,
        }),
    })
}
