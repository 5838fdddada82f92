//! Determines whether the processes of a run end by themselves, or are killed.
//!
//! The exit status of the command shows whether its work is done. There is no such status for processes that the command leaves
//! running: when one of them is killed, its work is half-finished, and the run transaction must not be committed. A
//! process counts as killed when a signal from outside of the run has ended it. Signals that processes of the run
//! send to each other, and those that the kernel sends because of a process's own action (SIGSEGV, SIGPIPE, SIGXCPU), do not
//! count.
//!
//! The stop for the delivery of a signal shows the sender. SIGKILL has no such stop. So the filter notifies the monitor
//! of each SIGKILL that a process of the run sends ([`crate::calls::kill`]), before the kernel sends it.
//!
//! The mutex in here is a leaf in the lock order.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::time::{Duration, Instant};

use goanna_sys::procfs;
use goanna_sys::ptrace::{SignalOrigin, Stopped};
use parking_lot::Mutex;

use crate::process::living::Alive;
use crate::{Reporter, Status};

/// Why a run transaction was aborted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Abort {
    /// The command failed.
    Status,
    /// The run was ended: its launcher has ended, or a user has requested it.
    Ended,
    /// A process that the command had left running was killed from outside.
    Killed {
        /// Its name.
        name: String,
        /// Its process id.
        pid: i32,
        /// The signal that ended it.
        signal: i32,
    },
}

/// The time from the command's end until the user is notified of processes that continue. Most of them end sooner.
const REPORT_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of names of processes in that message.
const NAMED_MAX: usize = 10;
/// Number of ended threads that are remembered as possible senders of signals.
const PAST_MAX: usize = 4096;

/// Watches the processes of one run.
#[derive(Debug)]
pub struct RunEnd {
    is_transaction: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    command: i32,
    /// How the command ended, and when.
    ended: Option<(Status, Instant)>,
    reported: bool,
    /// Signals from outside that were delivered after the command's end, a bit each, by process.
    outside_signals: HashMap<i32, u64>,
    /// Processes that a process of the run has killed by SIGKILL, or has set up the kernel to kill.
    sigkilled: HashSet<i32>,
    /// Threads of the run that have ended, the latest ones last.
    past: VecDeque<i32>,
    abort: Option<Abort>,
}

impl RunEnd {
    /// `is_transaction`: the whole run is one transaction.
    pub fn new(is_transaction: bool) -> Self {
        Self {
            is_transaction,
            state: Mutex::default(),
        }
    }

    /// Process `pid` is the command.
    pub fn set_command(&self, pid: i32) {
        self.state.lock().command = pid;
    }

    /// The monitor is about to kill the run.
    pub fn end_run(&self) {
        self.state.lock().abort.get_or_insert(Abort::Ended);
    }

    /// The reason why a run is not committed although its command exited with 0.
    pub fn abort(&self) -> Option<Abort> {
        self.state.lock().abort.clone()
    }

    /// A process of the run sends SIGKILL to the processes `targets`, or has set up the kernel to do so.
    pub fn note_sigkill(&self, targets: impl IntoIterator<Item = i32>) {
        if self.is_transaction {
            self.state.lock().sigkilled.extend(targets);
        }
    }

    /// `signal` is about to be delivered to the thread, which is stopped for that.
    pub fn deliver(&self, stopped: &Stopped, signal: i32, alive: &Alive) {
        if !self.is_transaction || self.state.lock().ended.is_none() {
            return;
        }
        // For a thread that was killed meanwhile, nothing is recorded.
        let (Ok(origin), Ok(status)) = (stopped.signal_origin(), procfs::status(stopped.tid()))
        else {
            return;
        };
        let mut state = self.state.lock();
        let is_own = |pid| {
            pid == std::process::id().cast_signed()
                || alive.contains(pid)
                || state.past.contains(&pid)
        };
        if is_from_outside(signal, origin, is_own) {
            *state.outside_signals.entry(status.tgid).or_default() |= bit(signal);
        }
    }

    /// Thread `tid` has ended in this way and is not reaped yet.
    pub fn leave(&self, tid: i32, how: Status) {
        let mut state = self.state.lock();
        if tid == state.command {
            state.ended = Some((how, Instant::now()));
        }
        if !self.is_transaction {
            return;
        }
        if state.past.len() == PAST_MAX {
            state.past.pop_front();
        }
        state.past.push_back(tid);
        let outside_signals = state.outside_signals.remove(&tid).unwrap_or(0);
        let sigkilled = state.sigkilled.remove(&tid);
        if tid == state.command || state.ended.is_none() || state.abort.is_some() {
            return;
        }
        if let Some(signal) = killed_by(how, outside_signals, sigkilled)
            && procfs::status(tid).is_ok_and(|status| status.tgid == tid)
        {
            state.abort = Some(Abort::Killed {
                name: name(tid),
                pid: tid,
                signal,
            });
        }
    }

    /// Notifies the user once which processes continue after the command's end.
    pub fn report_left_processes(&self, alive: &Alive, report: &Reporter) {
        let status = match self.state.lock().ended {
            Some((status, at)) if at.elapsed() >= REPORT_AFTER => status,
            _ => return,
        };
        let is_process = |tid: &i32| procfs::status(*tid).is_ok_and(|status| status.tgid == *tid);
        let mut rest: Vec<i32> = alive.all().into_iter().filter(is_process).collect();
        if rest.is_empty() || std::mem::replace(&mut self.state.lock().reported, true) {
            return;
        }
        rest.sort_unstable();
        let named = rest.iter().take(NAMED_MAX);
        let mut names: Vec<_> = named.map(|pid| format!("{} ({pid})", name(*pid))).collect();
        if rest.len() > NAMED_MAX {
            names.push(format!("and {} more", rest.len() - NAMED_MAX));
        }
        let consequence = match (self.is_transaction, status) {
            (true, Status::Exited(0)) => {
                "the transaction is committed when they have ended; SIGINT (Ctrl-C) or SIGTERM to amino kills them and aborts it"
            }
            (true, _) => {
                "the transaction is aborted when they have ended; SIGINT (Ctrl-C) or SIGTERM to amino kills them now"
            }
            (false, _) => "the run goes on until they have ended; kill those that are not needed",
        };
        report.line(&format!(
            "the command has ended, but processes that it started go on: {}: {consequence}",
            names.join(", ")
        ));
    }
}

fn bit(signal: i32) -> u64 {
    u32::try_from(signal - 1)
        .ok()
        .and_then(|shift| 1_u64.checked_shl(shift))
        .unwrap_or(0)
}

/// Whether a process outside of the run has sent `signal`; `is_own` recognises the run's processes.
fn is_from_outside(signal: i32, origin: SignalOrigin, is_own: impl Fn(i32) -> bool) -> bool {
    match origin {
        SignalOrigin::Process(pid) => !is_own(pid),
        // These signals come from a terminal; the kernel sends all others because of an action of the process.
        SignalOrigin::Kernel => matches!(signal, libc::SIGINT | libc::SIGQUIT | libc::SIGHUP),
        SignalOrigin::Own => false,
    }
}

/// The signal from outside that ended a process: `outside_signals` has a bit for each signal from outside, and a process of
/// the run had sent it SIGKILL (`sigkilled`).
fn killed_by(how: Status, outside_signals: u64, sigkilled: bool) -> Option<i32> {
    // Shells exit with this status plus the signal's number when a signal ends them.
    const BY_SIGNAL: i32 = 128;
    match how {
        Status::Signaled(libc::SIGKILL) => (!sigkilled).then_some(libc::SIGKILL),
        Status::Signaled(signal) => (outside_signals & bit(signal) != 0).then_some(signal),
        Status::Exited(code) => {
            let signal = code - BY_SIGNAL;
            (outside_signals & bit(signal) != 0).then_some(signal)
        }
    }
}

/// The name of process `pid`, escaped for messages.
fn name(pid: i32) -> String {
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    comm.trim_ascii_end().escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signals_from_outside_kill() {
        let own = |pid| pid == 7;
        let outside = |signal, origin| is_from_outside(signal, origin, own);
        assert!(outside(libc::SIGTERM, SignalOrigin::Process(8)));
        assert!(!outside(libc::SIGTERM, SignalOrigin::Process(7)));
        assert!(outside(libc::SIGINT, SignalOrigin::Kernel), "a terminal");
        assert!(!outside(libc::SIGXCPU, SignalOrigin::Kernel));
        assert!(!outside(libc::SIGALRM, SignalOrigin::Own));
    }

    #[test]
    fn a_process_is_killed_by_the_signal_that_ended_it() {
        let term = bit(libc::SIGTERM);
        let killed = |how, outside_signals| killed_by(how, outside_signals, false);
        assert_eq!(killed(Status::Signaled(libc::SIGTERM), term), Some(15));
        assert_eq!(killed(Status::Signaled(libc::SIGTERM), 0), None, "its own");
        assert_eq!(killed(Status::Signaled(libc::SIGSEGV), term), None);
        assert_eq!(killed(Status::Exited(143), term), Some(15), "a handler");
        assert_eq!(killed(Status::Exited(0), term), None, "it was done");
        assert_eq!(killed(Status::Exited(1), u64::MAX), None);
        assert_eq!(killed(Status::Signaled(libc::SIGKILL), 0), Some(9));
        let kill = Status::Signaled(libc::SIGKILL);
        assert_eq!(killed_by(kill, 0, true), None, "the run has sent it");
    }
}
