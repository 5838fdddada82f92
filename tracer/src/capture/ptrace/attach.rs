//! Attaches to running processes, and detaches from them.
//!
//! Each thread is seized and interrupted (PTRACE_INTERRUPT). From that stop on it stops at each call. Both this stop and the one for the
//! detachment interrupt the call that a thread waits in. The kernel restarts most calls by itself; for those that would return EINTR,
//! [`restart_undisturbed`](super::restart::restart_undisturbed) makes it restart them, too. A wait with a timeout then starts over.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use goanna_sys::clock::monotonic_ns;
use goanna_sys::interrupt::Waiter;
use goanna_sys::ptrace::{self, Status, Stopped};
use goanna_sys::{Errno, procfs};

use super::follow::Follower;
use super::mapping::Pages;
use super::restart::is_interrupted_call;
use super::signals::Signals;
use super::snapshot;
use super::thread::Mode;
use crate::Sink;
use crate::capture::{CaptureEnd, CaptureError, Wanted};

/// How long to wait, for all threads together, before the snapshot. A thread that cannot stop, such as a parent in vfork(2), runs on.
const ALL_STOP_TRIES: u32 = 200;
const ALL_STOP_PAUSE: Duration = Duration::from_millis(1);

/// Follows processes until they have ended or a signal asks for the end.
pub fn run(
    pids: &[i32],
    signals: Option<&Signals>,
    ends: Arc<AtomicBool>,
    wanted: &Wanted,
    sink: &dyn Sink,
) -> Result<CaptureEnd, CaptureError> {
    if let Some(signals) = signals {
        let waiter = Waiter::with_own_mask()?;
        signals
            .end_at_first(Arc::clone(&ends), waiter)
            .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?;
    }
    let mut follower = Follower::new(wanted, sink, ends);
    if wanted.wants_pages() {
        follower.pages = Some(Pages::new(false));
    }
    let mut attached = Ok(());
    for &pid in pids {
        attached = follower.seize_process(pid);
        if attached.is_err() {
            break;
        }
    }
    let followed = attached
        .and_then(|()| follower.first_stops())
        .and_then(|()| follower.run());
    let is_complete = matches!(followed, Ok(true));
    if !is_complete {
        follower.detach_all()?;
    }
    followed?;
    match follower.failure {
        Some(error) => Err(error.into()),
        None => Ok(CaptureEnd::Detached),
    }
}

impl Follower<'_> {
    /// Seizes all threads of a process and interrupts them.
    fn seize_process(&mut self, pid: i32) -> Result<(), CaptureError> {
        let refused = |errno| CaptureError::Attach {
            pid,
            why: why_not(pid, errno),
        };
        let process = procfs::status(pid).map_err(refused)?.tgid;
        loop {
            // A thread that a seized thread has created meanwhile is traced already. A thread that another thread has created is in the next
            // list.
            let threads = procfs::threads(process).map_err(refused)?;
            let new: Vec<i32> = threads
                .into_iter()
                .filter(|tid| !self.threads.contains_key(tid))
                .collect();
            let mut has_seized = false;
            for tid in new {
                match ptrace::seize(tid, self.options()) {
                    Ok(()) => {}
                    Err(Errno::ESRCH) => continue,
                    // A child of a seized thread: the kernel reports it later.
                    Err(Errno::EPERM) if is_ours(tid) => continue,
                    Err(errno) => return Err(refused(errno)),
                }
                has_seized = true;
                self.add(tid, Mode::EachCall, 0, monotonic_ns());
                if let Some(thread) = self.threads.get_mut(&tid) {
                    thread.is_interrupted = ptrace::interrupt(tid).is_ok();
                }
            }
            if !has_seized {
                return Ok(());
            }
        }
    }

    /// Waits until all seized threads have stopped, reports the descriptors and mappings of their processes, and handles the stops.
    fn first_stops(&mut self) -> Result<(), CaptureError> {
        let mut stops = HashMap::new();
        let mut others = Vec::new();
        for _ in 0..ALL_STOP_TRIES {
            while let Some(event) = wait_now()? {
                if self.threads.contains_key(&event.tid()) && !event.status().is_end() {
                    stops.insert(event.tid(), event);
                } else {
                    others.push(event);
                }
            }
            let ends = others.iter().filter(|event| event.status().is_end());
            let ended = ends.count();
            if stops.len() + ended >= self.threads.len() || self.ends.load(Ordering::Acquire) {
                break;
            }
            std::thread::sleep(ALL_STOP_PAUSE);
        }
        let mut seen = Vec::new();
        let mut threads: Vec<_> = self.threads.values().collect();
        threads.sort_by_key(|thread| (thread.subject.pid, thread.subject.tid));
        let mut events = Vec::new();
        for thread in threads {
            let subject = &thread.subject;
            if seen.contains(&subject.pid) {
                continue;
            }
            seen.push(subject.pid);
            events.extend(snapshot::descriptors(&self.tracer, thread));
            events.extend(snapshot::mappings(subject));
        }
        for event in events {
            self.send(event);
        }
        for event in stops.into_values().chain(others) {
            self.stop(event)?;
        }
        Ok(())
    }

    /// Detaches from all threads: interrupts each, and continues it from its next stop as if it had never been traced.
    fn detach_all(&mut self) -> Result<(), CaptureError> {
        self.end_watch();
        for (&tid, thread) in &mut self.threads {
            // If the thread has ended, its end is reported below.
            thread.is_interrupted = ptrace::interrupt(tid).is_ok();
        }
        for (_, stopped) in std::mem::take(&mut self.early) {
            // If the thread was killed, the kernel reports its end.
            let _ = stopped.detach(0);
        }
        loop {
            let taken = self.reports.take();
            let report = taken.map_or_else(ptrace::wait_once, |report| Ok(Some(report)));
            let event = match report {
                Ok(Some(event)) => event,
                Ok(None) => continue,
                Err(Errno::ECHILD) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            };
            match event {
                ptrace::Event::Stopped(stopped, status) => self.let_go(stopped, status),
                ended @ ptrace::Event::Ended { .. } => self.stop(ended)?,
            }
        }
    }

    /// Detaches from a stopped thread, if that is possible in this stop. If the thread was killed in its stop, the kernel reports its end.
    fn let_go(&mut self, stopped: Stopped, status: Status) {
        let tid = stopped.tid();
        if !self.threads.contains_key(&tid) && !matches!(status, Status::Exec { .. }) {
            // The parent's stop that identifies the child comes after this one.
            let _ = stopped.detach(0);
            return;
        }
        if status == Status::SyscallStop && is_interrupted_call(&stopped) {
            // The tracer does not see the call's restart any more.
            let thread = self.threads.get_mut(&tid);
            let pending = thread.and_then(|thread| thread.pending.take());
            self.abandon(pending);
        }
        let _ = self.note(stopped, status, monotonic_ns());
        let thread = self.threads.get(&tid);
        let is_inside = thread.is_some_and(|thread| thread.is_inside);
        let stopped = self.take(tid);
        if status == Status::SyscallStop && is_inside {
            // The stop at the call's entry has replaced the requested one, but the call is interrupted nevertheless.
            let _ = stopped.map(|stopped| stopped.cont_syscall(0));
            return;
        }
        let thread = self.threads.remove(&tid);
        self.abandon(thread.and_then(|thread| thread.pending));
        let signal = match status {
            Status::SignalDelivery(signal) => signal,
            _ => 0,
        };
        let _ = stopped.map(|stopped| stopped.detach(signal));
    }
}

/// The next stop or end that the kernel can report without waiting.
fn wait_now() -> Result<Option<ptrace::Event>, Errno> {
    match ptrace::wait(libc::WNOHANG) {
        Err(Errno::ECHILD) => Ok(None),
        other => other,
    }
}

/// Whether this process traces the thread already.
fn is_ours(tid: i32) -> bool {
    let tracer = procfs::status(tid).map(|status| status.tracer);
    tracer.is_ok_and(|tracer| {
        tracer != 0
            && procfs::status(tracer)
                .is_ok_and(|status| status.tgid.cast_unsigned() == std::process::id())
    })
}

fn why_not(pid: i32, errno: Errno) -> String {
    let tracer = procfs::status(pid).map_or(0, |status| status.tracer);
    match errno {
        Errno::ESRCH => "no such process".into(),
        Errno::EPERM if tracer != 0 => format!("process {tracer} traces it already"),
        Errno::EPERM => "not permitted (another user's process, or ptrace_scope forbids it)".into(),
        other => other.desc().into(),
    }
}
