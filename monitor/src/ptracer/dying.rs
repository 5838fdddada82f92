//! Threads that were killed in a call that the monitor is still answering.
//!
//! The supervisor does not reap them until the call has ended ([`crate::intercept::in_flight`]), which may take long, for example when
//! a file server does not respond. Meanwhile it serves all other threads. The kernel would report the end of such a thread again and
//! again, so the supervisor then waits for stops only, and looks for the ends of the other threads at intervals.

use std::sync::Arc;
use std::time::{Duration, Instant};

use goanna_sys::procfs;
use goanna_sys::ptrace::{self, Event};
use goanna_vfs::Errno;

use super::children::process_tree::Parent;
use super::mailbox::Message;
use super::{Supervisor, end_of, panics};
use crate::Monitor;
use crate::intercept::in_flight::LIMIT;

/// The first interval at which the supervisor looks for ends, and the longest.
const INTERVALS: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(10));

/// A thread that is not reaped.
struct Unreaped {
    tid: i32,
    how: ptrace::Status,
    /// When it is reaped even if the call has not ended.
    until: Instant,
}

/// All threads that are not reaped, and when the supervisor looks for the ends of others.
pub struct Dying {
    threads: Vec<Unreaped>,
    interval: Duration,
    is_check_due: bool,
}

impl Default for Dying {
    fn default() -> Self {
        Self {
            threads: Vec::new(),
            interval: INTERVALS.0,
            is_check_due: true,
        }
    }
}

impl Dying {
    /// Makes the supervisor look for the ends of other threads next.
    pub fn check_due(&mut self) {
        self.is_check_due = true;
    }

    fn has(&self, tid: i32) -> bool {
        self.threads.iter().any(|thread| thread.tid == tid)
    }

    /// Removes and returns a thread that can be reaped.
    fn take(&mut self, monitor: &Monitor) -> Option<Unreaped> {
        let now = Instant::now();
        let can_go = |thread: &Unreaped| thread.until <= now || !monitor.in_flight.has(thread.tid);
        let at = self.threads.iter().position(can_go)?;
        let thread = self.threads.swap_remove(at);
        if self.threads.is_empty() {
            *self = Self::default();
        }
        Some(thread)
    }
}

impl Supervisor {
    /// The next stop or end of a tracee. `None` also when a signal ends the wait.
    pub(super) fn next_event(&mut self) -> Result<Option<Event>, Errno> {
        if let Some(thread) = self.dying.take(&self.monitor) {
            self.leaving(thread.tid, thread.how);
            return ptrace::reap(thread.tid);
        }
        if let Some(event) = self.reports.take() {
            return Ok(Some(event));
        }
        let Some(event) = self.wait()? else {
            return Ok(None);
        };
        if self.known.len() + self.early.len() < 2 {
            return Ok(Some(event));
        }
        let mut reports = std::mem::take(&mut self.reports);
        let oldest = reports.gather(event, || match self.dying.threads.is_empty() {
            true => self.wait_leaving(libc::WEXITED | libc::WNOHANG),
            false => Ok(None),
        });
        self.reports = reports;
        Ok(oldest)
    }

    fn wait_leaving(&mut self, flags: i32) -> Result<Option<Event>, Errno> {
        ptrace::wait_leaving(flags, |tid, how| self.may_leave(tid, how))
    }

    fn wait(&mut self) -> Result<Option<Event>, Errno> {
        let monitor = Arc::clone(&self.monitor);
        let Some(first) = self.dying.threads.first() else {
            return self.wait_leaving(ptrace::ANY);
        };
        let first = first.tid;
        if std::mem::take(&mut self.dying.is_check_due) {
            if let Some(tid) = self.find_end()? {
                self.dying.is_check_due = true;
                return ptrace::reap(tid);
            }
            if self.look_later().is_err() {
                monitor.in_flight.settle(first);
                return Ok(None);
            }
        }
        match ptrace::wait_stopped(0) {
            // No other tracee is left.
            Err(Errno::ECHILD) => {
                monitor.in_flight.settle(first);
                Ok(None)
            }
            event => event,
        }
    }

    /// A thread that has ended and may be reaped, other than those that are dying.
    fn find_end(&mut self) -> Result<Option<i32>, Errno> {
        let all = self.known.iter().chain(self.early.keys()).copied();
        let others: Vec<i32> = all.filter(|tid| !self.dying.has(*tid)).collect();
        for tid in others {
            if let Some(how) = ptrace::ended(tid)?
                && self.may_leave(tid, how)
            {
                return Ok(Some(tid));
            }
        }
        Ok(None)
    }

    /// Sends the supervisor [`Message::CheckDying`] after the interval.
    fn look_later(&mut self) -> Result<(), Errno> {
        let monitor = Arc::downgrade(&self.monitor);
        let wake = Box::new(move || {
            if let Some(monitor) = monitor.upgrade() {
                monitor.mailbox.post(Message::CheckDying);
            }
        });
        let interval = self.dying.interval;
        self.dying.interval = (interval * 2).min(INTERVALS.1);
        let executor = &self.monitor.executor;
        executor.at(Instant::now() + interval, wake).map(drop)
    }

    /// Handles the end of thread `tid`. Returns whether it may be reaped now; if not, it is dying.
    fn may_leave(&mut self, tid: i32, how: ptrace::Status) -> bool {
        let monitor = Arc::clone(&self.monitor);
        self.process_tree.ended(tid);
        // This comes before the check: a call that still finds its task is in flight by now.
        panics::catch_at_exit(&monitor, tid, || {
            monitor.tasks.remove(tid);
            monitor.waiting.abandon(tid);
            monitor.in_process.settle_write(&monitor, tid);
        });
        if monitor.in_flight.has(tid) {
            let until = Instant::now() + LIMIT;
            self.dying.threads.push(Unreaped { tid, how, until });
            return false;
        }
        self.leaving(tid, how);
        true
    }

    /// Ends the state of thread `tid`, which is about to be reaped, before its parent can see its end.
    fn leaving(&mut self, tid: i32, how: ptrace::Status) {
        let monitor = Arc::clone(&self.monitor);
        panics::catch_at_exit(&monitor, tid, || {
            if let Some(status) = end_of(how) {
                monitor.run_end.leave(tid, status);
                monitor.alive.remove(tid);
                monitor.participants.leaving(tid);
                monitor.nested.ended(tid);
                monitor.roots.ended(tid);
                monitor.namespaces.ended(tid);
                monitor.profiled.exited(&monitor, tid, status);
            }
            // Its parent gets SIGCHLD when it is reaped.
            if let Some(parent) = self.notified_parent(tid) {
                self.waits.note_sleep(parent);
            }
        });
    }

    /// The traced process that gets SIGCHLD for the end of thread `tid`. `None`: no process, or one that is not traced.
    fn notified_parent(&self, tid: i32) -> Option<i32> {
        let parent = match self.process_tree.parent(tid) {
            Parent::Process(parent) => Some(parent),
            Parent::None => None,
            Parent::Unknown => {
                let status = procfs::status(tid).ok()?;
                (status.tgid == tid).then_some(status.ppid)
            }
        };
        parent.filter(|parent| self.known.contains(parent))
    }
}
