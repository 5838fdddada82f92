//! ptrace(2) of programs in a run. A thread has at most one tracer, and the monitor is that of all. So the supervisor performs for programs
//! what needs a stopped thread and no control of its further steps: PTRACE_ATTACH, the requests that read or change registers and memory,
//! and PTRACE_DETACH (`docs/decisions/0147-programs-attach-to-threads.md`).
//!
//! The caller of PTRACE_ATTACH stays at the stop of its call until the other thread has stopped. So wait4(2) has the result at once.
//!
//! An attached thread is held at a stop before the supervisor has looked at that. The stop is handled when the thread is released.

use std::collections::HashMap;
use std::fs;

use goanna_sys::arch::Registers;
use goanna_sys::mappings::share_memory;
use goanna_sys::procfs::{self, TaskStatus};
use goanna_sys::ptrace::{self, Block, Status, Stopped};
use goanna_sys::signals::send_for_call;
use goanna_sys::{pidfd, tracee};
use goanna_syscalls::Treatment;
use goanna_vfs::{Errno, FsError, Result, caps};

use super::Supervisor;
use super::calls::{Next, skip};
use crate::call::{Answer, Call, Work};

/// The status of wait4(2) after PTRACE_ATTACH: stopped by SIGSTOP.
const STOPPED: i32 = (libc::SIGSTOP << 8) | 0x7f;

/// The result of PTRACE_ATTACH for a thread that has ended meanwhile.
const GONE: i64 = -(Errno::ESRCH as i64);

/// The largest signal.
const SIGNALS: u64 = 64;

/// The largest register set that is passed on: an XSAVE area with AMX has 11 KiB.
const REGISTER_SET_MAX: usize = 64 << 10;

/// The attached threads.
#[derive(Default)]
pub struct Attachments {
    by_tid: HashMap<i32, Attached>,
}

struct Attached {
    /// The thread that has attached.
    by: i32,
    state: State,
}

enum State {
    /// It has been interrupted. The thread that attaches waits at the stop of its call.
    Stopping { caller: Stopped },
    /// It is at a stop of this kind.
    Stopped {
        stopped: Stopped,
        status: Status,
        is_reported: bool,
        /// Its registers, where those of the call that it waits in are shown instead.
        parked: Option<Box<Registers>>,
    },
    /// It has ended.
    Ended(Status),
}

impl Attachments {
    fn has_tracer(&self, tid: i32) -> bool {
        let attached = self.by_tid.get(&tid);
        attached.is_some_and(|attached| !matches!(attached.state, State::Ended(_)))
    }

    fn is_stopping(&self, tid: i32) -> bool {
        let attached = self.by_tid.get(&tid);
        attached.is_some_and(|attached| matches!(attached.state, State::Stopping { .. }))
    }

    /// The stop of thread `tid`. ESRCH if thread `by` has not attached to it.
    fn stopped(&self, tid: i32, by: i32) -> Result<&Stopped, Errno> {
        match self.by_tid.get(&tid) {
            Some(Attached {
                by: tracer,
                state: State::Stopped { stopped, .. },
            }) if *tracer == by => Ok(stopped),
            _ => Err(Errno::ESRCH),
        }
    }

    /// A state that wait4(2) has not reported yet, of thread `wanted` or, if that is -1, of any thread that `by` has attached to: the thread, and its status.
    fn report(&mut self, by: i32, wanted: i32) -> Option<(i32, i32)> {
        let is_wanted = |tid: i32| wanted == -1 || wanted == tid;
        let own = self
            .by_tid
            .iter_mut()
            .filter(|(_, attached)| attached.by == by);
        let mut wanted = own.filter(|(tid, _)| is_wanted(**tid));
        let (tid, raw) = wanted.find_map(|(tid, attached)| match &mut attached.state {
            State::Stopped { is_reported, .. } => {
                let is_new = !std::mem::replace(is_reported, true);
                is_new.then_some((*tid, STOPPED))
            }
            State::Ended(status) => Some((*tid, status.raw())),
            State::Stopping { .. } => None,
        })?;
        if !self.has_tracer(tid) {
            self.by_tid.remove(&tid);
        }
        Some((tid, raw))
    }

    /// The threads that thread `by` has attached to.
    fn of(&self, by: i32) -> Vec<i32> {
        let all = self.by_tid.iter();
        all.filter(|(_, attached)| attached.by == by)
            .map(|(tid, _)| *tid)
            .collect()
    }
}

impl Supervisor {
    /// ptrace(2). EPERM for PTRACE_TRACEME and PTRACE_SEIZE, EIO for requests that continue an attached thread without detaching.
    pub(super) fn ptrace(
        &mut self,
        call: &Call<'_>,
        stopped: &Stopped,
        regs: Registers,
    ) -> Result<Next> {
        let request = call.uint(0);
        let tid = call.int(1);
        match request {
            libc::PTRACE_TRACEME => return Err(self.trace_by_parent(call).into()),
            libc::PTRACE_SEIZE => return Err(Errno::EPERM.into()),
            libc::PTRACE_ATTACH => return self.attach(call, tid),
            libc::PTRACE_DETACH => self.detach(call, tid)?,
            _ => self.perform(call, request, tid)?,
        }
        self.without_notification(stopped, regs, Ok(Answer::DONE))
    }

    /// PTRACE_TRACEME, which is refused. The child of a process that has attached to a thread is killed: gdb finds out by a child what the kernel
    /// can do, ignores this error, and would wait for ever for the stop.
    fn trace_by_parent(&self, call: &Call<'_>) -> Errno {
        let tid = call.task.tid;
        let parent = procfs::status(tid).map_or(0, |status| status.ppid);
        let threads = procfs::threads(parent).unwrap_or_default();
        let has_attached = |by: &i32| !self.attachments.of(*by).is_empty();
        if threads.iter().any(has_attached) {
            send_for_call(tid, libc::SIGKILL);
        }
        Errno::EPERM
    }

    fn attach(&self, call: &Call<'_>, tid: i32) -> Result<Next> {
        may_attach(call, tid)?;
        // It is not of this run, or has a tracer.
        if !self.known.contains(&tid) || self.attachments.has_tracer(tid) {
            return Err(Errno::EPERM.into());
        }
        ptrace::interrupt(tid)?;
        Ok(Next::Attach(tid))
    }

    /// Keeps the caller of PTRACE_ATTACH at the stop of its call until thread `tid` has stopped.
    pub(super) fn attaching(&mut self, caller: Stopped, tid: i32) {
        let by = caller.tid();
        let state = State::Stopping { caller };
        self.attachments.by_tid.insert(tid, Attached { by, state });
    }

    /// Any stop of a thread. Holds it if another thread waits for that.
    pub(super) fn attached_stop(
        &mut self,
        stopped: Stopped,
        status: Status,
    ) -> Result<Option<Stopped>, Errno> {
        let tid = stopped.tid();
        if !self.attachments.is_stopping(tid) {
            return Ok(Some(stopped));
        }
        let is_interrupt = matches!(status, Status::EventStop | Status::GroupStop(_));
        if !is_interrupt || self.injector.is_calling(tid) || !self.known.contains(&tid) {
            // This stop may have replaced the one that PTRACE_INTERRUPT asked for.
            stopped.interrupt()?;
            return Ok(Some(stopped));
        }
        let mut regs = stopped.regs()?;
        let waits = self.parking.saved(tid);
        if let Some(saved) = &waits {
            stopped.set_regs(saved)?;
        } else if self.monitor.in_process.leave(tid, 0, &mut regs).is_some() {
            stopped.set_regs(&regs)?;
        }
        let state = State::Stopped {
            stopped,
            status,
            is_reported: false,
            parked: waits.map(|_| Box::new(regs)),
        };
        if let Some(attached) = self.attachments.by_tid.get_mut(&tid) {
            let former = std::mem::replace(&mut attached.state, state);
            self.end_attaching(former, 0);
        }
        Ok(None)
    }

    /// If another thread waits in PTRACE_ATTACH for the attached one to leave this state, that call returns `result`.
    fn end_attaching(&mut self, former: State, result: i64) {
        let State::Stopping { caller } = former else {
            return;
        };
        self.observe_end(caller.tid(), result, Treatment::Monitor);
        // It may have been killed.
        let regs = caller.regs();
        let _ = regs.and_then(|regs| skip(&caller, regs, result));
        let _ = caller.cont(0);
    }

    fn detach(&mut self, call: &Call<'_>, tid: i32) -> Result<(), Errno> {
        self.attachments.stopped(tid, call.task.tid)?;
        let signal = call.arg(3);
        if signal > SIGNALS {
            return Err(Errno::EIO);
        }
        if signal > 0 {
            send_for_call(tid, signal as i32);
        }
        self.release(tid);
        Ok(())
    }

    /// Continues an attached thread as if it had just stopped.
    fn release(&mut self, tid: i32) {
        let attached = self.attachments.by_tid.remove(&tid);
        if let Some(State::Stopped {
            stopped,
            status,
            parked,
            ..
        }) = attached.map(|attached| attached.state)
        {
            if let Some(parked) = parked {
                // It may have been killed.
                let _ = stopped.set_regs(&parked);
            }
            let outcome = self.catch_at_stop(tid, status, |this| this.stop(stopped, status));
            debug_assert!(
                matches!(outcome, Ok(()) | Err(Errno::ESRCH)),
                "{tid}: {outcome:?}"
            );
        }
    }

    /// Thread `former` has executed a program, and has the number `tid` from now on. The threads that are gone are not attached any more.
    pub(super) fn attached_executed(&mut self, tid: i32, former: i32) {
        if tid == former {
            return;
        }
        for gone in [tid, former] {
            if let Some(attached) = self.attachments.by_tid.remove(&gone) {
                self.end_attaching(attached.state, GONE);
            }
        }
        for attached in self.attachments.by_tid.values_mut() {
            if attached.by == former {
                attached.by = tid;
            }
        }
    }

    /// A thread has ended: those that it was attached to continue.
    pub(super) fn attached_ended(&mut self, tid: i32, status: Status) {
        if let Some(Attached { by, state }) = self.attachments.by_tid.remove(&tid) {
            if !matches!(state, State::Stopping { .. }) {
                let state = State::Ended(status);
                self.attachments.by_tid.insert(tid, Attached { by, state });
            }
            self.end_attaching(state, GONE);
        }
        for attached in self.attachments.of(tid) {
            self.release(attached);
        }
    }

    /// A request about an attached thread.
    fn perform(&self, call: &Call<'_>, request: u32, tid: i32) -> Result<(), Errno> {
        let by = call.task.tid;
        let stopped = self.attachments.stopped(tid, by)?;
        let (addr, data) = (call.arg(2), call.arg(3));
        if let Some(block) = Block::of(request) {
            let size = block.size_in_address().map(|size| size as u64);
            if size.is_some_and(|size| size != addr) {
                return Err(Errno::EINVAL);
            }
            let mut content = match block.is_change {
                true => call.read(data, block.size)?,
                false => vec![0; block.size],
            };
            stopped.transfer(block, &mut content)?;
            return match block.is_change {
                true => Ok(()),
                false => call.put(data, &content),
            };
        }
        match request {
            libc::PTRACE_PEEKTEXT | libc::PTRACE_PEEKDATA | libc::PTRACE_PEEKUSER => {
                let word = stopped.peek(request == libc::PTRACE_PEEKUSER, addr)?;
                call.put(data, &word.to_ne_bytes())
            }
            libc::PTRACE_POKETEXT | libc::PTRACE_POKEDATA | libc::PTRACE_POKEUSER => {
                stopped.poke(request == libc::PTRACE_POKEUSER, addr, data)
            }
            libc::PTRACE_GETREGSET | libc::PTRACE_SETREGSET => {
                let is_change = request == libc::PTRACE_SETREGSET;
                transfer_set(call, stopped, (addr, is_change))
            }
            libc::PTRACE_GETSIGINFO => call.put(data, &stop_signal()),
            // They would apply to what the thread does before it is detached.
            libc::PTRACE_SETOPTIONS if data & !OPTIONS == 0 => Ok(()),
            libc::PTRACE_SETOPTIONS => Err(Errno::EINVAL),
            libc::PTRACE_GETEVENTMSG => call.put(data, &[0; size_of::<u64>()]),
            libc::PTRACE_KILL => {
                send_for_call(tid, libc::SIGKILL);
                Ok(())
            }
            _ => Err(Errno::EIO),
        }
    }

    /// wait4(2) with __WALL: the kernel has no reports of threads that are attached here.
    pub(super) fn wait_for_attached(
        &mut self,
        call: &Call<'_>,
        stopped: &Stopped,
        regs: Registers,
    ) -> Result<Next> {
        let by = call.task.tid;
        let wanted = call.int(0);
        let Some((tid, raw)) = self.attachments.report(by, wanted) else {
            let is_attached = self.attachments.of(by).contains(&wanted);
            if !is_attached || call.int(2) & libc::WNOHANG != 0 {
                return Ok(Next::Run);
            }
            return self.without_notification(stopped, regs, Ok(after_end(wanted)?));
        };
        let (status, usage) = (call.arg(1), call.arg(3));
        if status != 0 {
            call.put(status, &raw.to_ne_bytes())?;
        }
        if usage != 0 {
            call.put(usage, &[0; size_of::<libc::rusage>()])?;
        }
        self.without_notification(stopped, regs, Ok(Answer::Value(tid.into())))
    }
}

/// The answer that restarts a call when thread `tid` has ended.
fn after_end(tid: i32) -> Result<Answer, Errno> {
    let mut end = match pidfd::open(tid) {
        // It is reaped, and the supervisor handles the report of its end next.
        Err(Errno::ESRCH) => return Ok(Answer::Restart),
        opened => Some(opened?),
    };
    let attempt = move || Ok(end.take().map_or(Answer::Restart, Answer::Readable));
    Ok(Answer::Block(Work::new(attempt)))
}

/// `PTRACE_O_MASK`
const OPTIONS: u64 = 0xff | (1 << 20) | (1 << 21);

/// The `siginfo_t` of the SIGSTOP that PTRACE_ATTACH sends in the name of the kernel.
fn stop_signal() -> [u8; size_of::<libc::siginfo_t>()] {
    let mut info = [0; size_of::<libc::siginfo_t>()];
    info[..4].copy_from_slice(&libc::SIGSTOP.to_ne_bytes());
    info[8..12].copy_from_slice(&libc::SI_KERNEL.to_ne_bytes());
    info
}

/// Transfers the register set of this kind between the stopped thread and the buffer that the caller's `iovec` describes.
fn transfer_set(
    call: &Call<'_>,
    stopped: &Stopped,
    (kind, is_change): (u64, bool),
) -> Result<(), Errno> {
    let vector = call.arg(3);
    let at_length = vector.wrapping_add(8);
    let (base, length) = (call.read_u64(vector)?, call.read_u64(at_length)?);
    let length = usize::try_from(length).map_or(REGISTER_SET_MAX, |it| it.min(REGISTER_SET_MAX));
    let mut content = vec![0; length];
    // Of a buffer for reading, what the program cannot read is not needed.
    let _ = tracee::read(call.task.tid, base, &mut content);
    let size = stopped.transfer_set(kind, is_change, &mut content)?;
    if !is_change {
        call.put(base, content.get(..size).unwrap_or_default())?;
    }
    call.put(at_length, &(size as u64).to_ne_bytes())
}

/// Whether the caller may attach to thread `tid`, by the rules of ptrace(2). ESRCH, EPERM. Also EPERM for the caller's own children, since the kernel would wait for
/// these where the caller asks for the stop without __WALL, and in a PID namespace of the caller's own.
fn may_attach(call: &Call<'_>, tid: i32) -> Result<()> {
    let denied = || FsError::Errno(Errno::EPERM);
    let (own, other) = (procfs::status(call.task.tid)?, procfs::status(tid)?);
    let is_own = [other.tgid, other.ppid].contains(&own.tgid);
    if is_own || procfs::has_ended(tid) || own.own_pid != own.tgid {
        return Err(denied());
    }
    if call.caller()?.capable(caps::SYS_PTRACE) {
        return Ok(());
    }
    let is_same = |own: [u32; 4], other: [u32; 4]| other[..3].iter().all(|id| *id == own[0]);
    let is_dumpable = fs::metadata(format!("/proc/{tid}/mem")).is_ok_and(|memory| {
        use std::os::unix::fs::MetadataExt;
        memory.uid() == other.uid[1]
    });
    let may = is_same(own.uid, other.uid)
        && is_same(own.gid, other.gid)
        && is_dumpable
        && other.cap_prm & !own.cap_prm == 0
        && yama_permits(call.task.tid, &own, tid);
    if may { Ok(()) } else { Err(denied()) }
}

/// Whether Yama, if the kernel has it, lets a thread without capability attach to `tid`: with scope 1 to its descendants. A process that shares its memory needs no
/// protection from it.
fn yama_permits(own_tid: i32, own: &TaskStatus, tid: i32) -> bool {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    match scope.as_deref().map(str::trim) {
        Err(_) | Ok("0") => true,
        Ok("1") => share_memory(own_tid, tid) == Ok(true) || is_descendant(tid, own.tgid),
        Ok(_) => false,
    }
}

fn is_descendant(mut tid: i32, of: i32) -> bool {
    while let Ok(status) = procfs::status(tid) {
        if status.ppid == of {
            return true;
        }
        if status.ppid <= 1 {
            return false;
        }
        tid = status.ppid;
    }
    false
}
