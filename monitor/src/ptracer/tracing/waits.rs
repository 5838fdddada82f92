//! wait4(2) and waitid(2) of programs that trace others.
//!
//! A thread that waits, or is about to, must get the state change of a traced thread. So all threads of the tracer's process are paused, and stop at
//! the entry of their calls until a wait has reported the change. At the entry of a wait that it answers, the call gets options that no such call has: it
//! returns EINVAL without any effect, and at its exit the result is replaced. A call that is skipped there would come to the filters of the
//! program with a number that they may not know.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::Arc;

use goanna_sys::arch::Registers;
use goanna_sys::ptrace::{CallStop, Status, Stopped};
use goanna_sys::restarts::ERESTARTSYS;
use goanna_sys::{procfs, signals};
use goanna_vfs::{Errno, Result};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::wanted::{Wanted, Which, options_of, put_status};
use super::{State, Tracee, Tracees};
use crate::call::{Answer, Call, Work};
use crate::ptracer::calls::{Next, call_of};
use crate::ptracer::{Supervisor, assert_lives_or_ended};

/// What the waits of tracers need.
#[derive(Default)]
pub(super) struct TracerWaits {
    /// Threads that stop at the entry of calls.
    by_call: HashSet<i32>,
    /// Threads in waits that are answered, with the registers after these.
    answered: HashMap<i32, Registers>,
    /// Threads at the entry of waits for a state change.
    held: HashMap<i32, Stopped>,
    /// What wakes the threads of a process that are parked in such waits.
    wakers: HashMap<i32, Vec<Arc<EventFd>>>,
}

/// What the supervisor does with a wait at its entry.
enum Entry {
    /// It has this result.
    Answer(i64),
    /// It waits for a state change.
    Hold,
}

/// An option that neither call has.
const NO_OPTION: u64 = 0x1000_0000;

impl TracerWaits {
    /// The state of thread `tid`, which process `pid` traces, is `raw` now. Its thread `caller` stops at calls already.
    fn notify(&mut self, pid: i32, tid: i32, raw: i32, caller: Option<i32>) {
        for waker in self.wakers.remove(&pid).unwrap_or_default() {
            // The counter cannot be full.
            let _ = waker.write(1);
        }
        for thread in procfs::threads(pid).unwrap_or_default() {
            if Some(thread) != caller {
                // The thread may have ended.
                let _ = signals::pause(pid, thread);
            }
        }
        signals::send_of_child(pid, tid, raw);
    }

    /// Remembers whether thread `tid` stops at the entry of calls.
    pub(super) fn note(&mut self, tid: i32, by_call: bool) {
        if by_call {
            self.by_call.insert(tid);
        } else if !self.by_call.is_empty() {
            self.by_call.remove(&tid);
        }
    }

    pub(super) fn forget(&mut self, tid: i32) {
        self.by_call.remove(&tid);
        self.answered.remove(&tid);
        self.held.remove(&tid);
        self.wakers.remove(&tid);
    }

    pub(super) fn are_none(&self) -> bool {
        self.by_call.is_empty()
    }
}

impl Tracees {
    /// A state change for process `pid` that no wait has reported: the thread, and its status.
    fn take_change(&mut self, pid: i32, wanted: &Wanted) -> Option<(i32, i32)> {
        let own = self.by_tid.iter_mut();
        let mut own = own.filter(|(tid, tracee)| tracee.tracer.pid == pid && wanted.is(**tid));
        let (tid, raw, has_ended) = own.find_map(|(tid, tracee)| match &mut tracee.state {
            State::Stopped(stop) if !stop.is_reported => {
                stop.is_reported = !wanted.keeps;
                Some((*tid, stop.raw, false))
            }
            State::Ended(status) if wanted.ends => Some((*tid, status.raw(), true)),
            _ => None,
        })?;
        if has_ended && !wanted.keeps {
            self.by_tid.remove(&tid);
        }
        Some((tid, raw))
    }

    /// Whether thread `tid` must stop at the entry of each call: its process has not waited for a state change, or traces threads that
    /// the kernel does not count as its children.
    pub(super) fn stops_at_calls(&mut self, tid: i32) -> bool {
        let may = |tracee: &Tracee| !tracee.is_child || tracee.has_changed();
        if !self.by_tid.values().any(may) {
            return false;
        }
        let pid = self.process_of(tid).unwrap_or(tid);
        let mut all = self.by_tid.values();
        all.any(|tracee| tracee.tracer.pid == pid && may(tracee))
    }

    /// Whether the kernel answers ECHILD to a wait of process `pid` which must wait for a state change.
    fn must_wait(&self, pid: i32, wanted: &Wanted) -> bool {
        let mut all = self.by_tid.iter();
        let traces = all
            .any(|(tid, tracee)| tracee.tracer.pid == pid && !tracee.is_child && wanted.is(*tid));
        traces && (matches!(wanted.which, Which::Thread(_)) || procfs::children(pid).is_empty())
    }
}

impl Supervisor {
    /// Any stop of a thread that may trace others. Continues it at the entries and exits of calls that only its waits need.
    pub(super) fn tracer_stop(
        &mut self,
        stopped: Stopped,
        status: Status,
    ) -> Result<Option<Stopped>, Errno> {
        let tid = stopped.tid();
        if status == Status::SignalDelivery(libc::SIGSTOP) {
            return self.paused(stopped);
        }
        if status != Status::SyscallStop || !self.tracees.waits.by_call.contains(&tid) {
            return Ok(Some(stopped));
        }
        if let Some(after) = self.tracees.waits.answered.remove(&tid) {
            stopped.set_regs(&after)?;
            return Ok(Some(stopped));
        }
        let CallStop::Entry { nr, args, .. } = stopped.call()? else {
            return Ok(Some(stopped));
        };
        let is_shown = self.tracees.is_in_call(tid);
        let has_own_tracer = self.tracees.by_call(tid).is_some();
        if self.expects_syscall_stop(tid) || has_own_tracer && !is_shown {
            return Ok(Some(stopped));
        }
        let call = (nr as u32, args);
        // A wait that observers see has a stop of its own (`wait_at_call`).
        let is_observed = self.monitor.observers.interest().contains(call.0);
        let answer = (!is_observed).then(|| self.wait_at_entry(tid, call));
        match answer.flatten() {
            Some(Entry::Hold) => {
                self.tracees.waits.held.insert(tid, stopped);
                Ok(None)
            }
            Some(Entry::Answer(result)) => {
                let regs = stopped.regs()?;
                let (options, nr) = (options_of(call.0), regs.number());
                let mut failing = args;
                failing[options] = NO_OPTION;
                if options == options_of(libc::SYS_waitid as u32) {
                    // The kernel writes there even after an error.
                    failing[2] = 0;
                }
                stopped.set_regs(&regs.with_call(nr, failing))?;
                let after = regs.with_result(result);
                self.tracees.waits.answered.insert(tid, after);
                stopped.cont_syscall(0).map(|()| None)
            }
            None if has_own_tracer => Ok(Some(stopped)),
            None => {
                let until = self.tracees.until(tid);
                stopped.until(until).cont(0).map(|()| None)
            }
        }
    }

    /// Lets a thread go on that is at the entry of its call, which its tracer, if it has one, has seen.
    pub(super) fn enter_kernel(&mut self, stopped: Stopped) -> Result<(), Errno> {
        match self.tracer_stop(stopped, Status::SyscallStop)? {
            Some(stopped) => self.resume(stopped),
            None => Ok(()),
        }
    }

    /// The thread is at the stop for SIGSTOP. If that is a pause which has interrupted a wait, the wait reports the state change without a further stop.
    fn paused(&mut self, stopped: Stopped) -> Result<Option<Stopped>, Errno> {
        let tid = stopped.tid();
        let regs = stopped.regs()?;
        let call = call_of(&regs);
        let is_wait = regs.result() == ERESTARTSYS
            && matches!(regs.number(), libc::SYS_wait4 | libc::SYS_waitid);
        let is_seen = self.monitor.observers.interest().contains(call.0)
            || self.tracees.is_in_call(tid)
            || self.parking.has(tid);
        if !is_wait || is_seen || !signals::is_pause(&stopped)? {
            return Ok(Some(stopped));
        }
        let Some(result) = self.answer_wait(tid, call) else {
            return Ok(Some(stopped));
        };
        stopped.set_regs(&regs.with_result(result).outside_of_call())?;
        let until = self.tracees.until(tid);
        stopped.until(until).cont(0).map(|()| None)
    }

    /// What happens to a wait at its entry. `None`: the kernel performs it.
    fn wait_at_entry(&mut self, tid: i32, call: (u32, [u64; 6])) -> Option<Entry> {
        let wanted = Wanted::of(call, tid)?;
        if let Some(result) = self.answer_wait(tid, call) {
            return Some(Entry::Answer(result));
        }
        let options = call.1[options_of(call.0)] as i32;
        let pid = self.tracees.process_of(tid).ok()?;
        // With __WALL, it stops again (`wait_for_all`).
        let stops = !wanted.is_waitid && options & libc::__WALL != 0;
        if stops || !self.tracees.must_wait(pid, &wanted) {
            return None;
        }
        if options & libc::WNOHANG == 0 {
            return Some(Entry::Hold);
        }
        let task = self.monitor.tasks.get(tid).ok()?;
        let call = Call::new(&self.monitor, task, call.0, call.1);
        let put = match wanted.is_waitid && call.arg(2) != 0 {
            true => call.put(call.arg(2), &[0; size_of::<libc::siginfo_t>()]),
            false => Ok(()),
        };
        let result = put.map_or_else(|errno| -(errno as i64), |()| 0);
        Some(Entry::Answer(result))
    }

    /// Lets the waits of process `pid` report that the state of thread `tid` is `raw` now. Its thread `caller` stops at calls already.
    pub(super) fn notify_tracer(&mut self, pid: i32, tid: i32, raw: i32, caller: Option<i32>) {
        self.tracees.waits.notify(pid, tid, raw, caller);
        let held = std::mem::take(&mut self.tracees.waits.held);
        for (tid, stopped) in held {
            let outcome = self.enter_kernel(stopped);
            assert_lives_or_ended(tid, outcome);
        }
    }

    /// The result of a wait that reports a state change. `None`: there is none for it.
    fn answer_wait(&mut self, tid: i32, call: (u32, [u64; 6])) -> Option<i64> {
        let wanted = Wanted::of(call, tid)?;
        let pid = self.tracees.process_of(tid).ok()?;
        let task = self.monitor.tasks.get(tid).ok()?;
        let change = self.tracees.take_change(pid, &wanted)?;
        let call = Call::new(&self.monitor, task, call.0, call.1);
        let put = put_status(&call, &wanted, change);
        Some(put.unwrap_or_else(|errno| -(errno as i64)))
    }

    /// A wait at the stop of its call. `None`: there is no state change for it.
    pub(in crate::ptracer) fn wait_at_call(
        &mut self,
        stopped: &Stopped,
        regs: &Registers,
    ) -> Option<Result<Next>> {
        let tid = stopped.tid();
        if self.tracees.by_tid.is_empty() {
            return None;
        }
        let result = self.answer_wait(tid, call_of(regs))?;
        Some(self.without_notification(stopped, *regs, Ok(Answer::Value(result))))
    }

    /// wait4(2) with __WALL: the kernel does not know that the caller traces threads which are not its children.
    pub(in crate::ptracer) fn wait_for_all(
        &mut self,
        call: &Call<'_>,
        stopped: &Stopped,
        regs: Registers,
    ) -> Result<Next> {
        if self.tracees.are_none() {
            return Ok(Next::Run);
        }
        if let Some(next) = self.wait_at_call(stopped, &regs) {
            return next;
        }
        let tid = call.task.tid;
        let pid = self.tracees.process_of(tid)?;
        let Some(wanted) = Wanted::of(call_of(&regs), tid) else {
            return Ok(Next::Run);
        };
        if !self.tracees.must_wait(pid, &wanted) {
            return Ok(Next::Run);
        }
        let answer = match call.int(2) & libc::WNOHANG {
            0 => self.tracees.waits.until_change(pid)?,
            _ => Answer::Value(0),
        };
        self.without_notification(stopped, regs, Ok(answer))
    }
}

impl TracerWaits {
    /// The answer that restarts a call when process `pid` has a state change to wait for.
    fn until_change(&mut self, pid: i32) -> Result<Answer, Errno> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let waker = Arc::new(EventFd::from_flags(flags)?);
        let readable = waker.as_ref().as_fd().try_clone_to_owned();
        self.wakers.entry(pid).or_default().push(waker);
        let mut readable = Some(readable.map_err(|_| Errno::EMFILE)?);
        let attempt = move || Ok(readable.take().map_or(Answer::Restart, Answer::Readable));
        Ok(Answer::Block(Work::new(attempt)))
    }
}
