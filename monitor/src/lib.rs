//! The monitor (Goanna 3): runs an unmodified program and its children, and routes their file calls through
//! the switch.
//!
//! * [`table`] says how each system call is treated; [`table::filter`] makes the seccomp filter of it.
//! * `intercept` answers notifications: it finds the row, makes a [`call::Call`], and runs the row's handler
//!   from [`calls`].
//! * `ptracer` has the supervisor: process tree, signals, and the few calls whose arguments must change.
//! * [`shadow`] maps host objects to virtual ones; it keeps nothing that the kernel keeps.
//!
//! Threads of a run: one supervisor (the thread that calls [`Run::follow`]; ptrace belongs to a thread), a small pool, one
//! sweeper, one for signals; two for each call that waits, one of them for 10 ms, and one for the deadlines of waits. Lock order: the table of `profiled` comes first; `tasks` and `shadows` tables and
//! `programs` are leaves, as are the registry of `participants` and the supervisor's `mailbox`; none is held while a tracee or a back end is waited for, but
//! `programs` while a program is copied, and that of `profiled` while a transaction begins.

mod abi;
pub mod answer;
pub mod call;
pub mod calls;
mod check;
mod errno;
pub mod inprocess;
mod intercept;
mod launch;
pub mod observe;
pub mod participants;
mod process;
mod ptracer;
pub mod shadow;
mod signals;
mod stats;
pub mod table;

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use goanna_sys::launch::LaunchError;
use goanna_sys::notify::Listener;
use goanna_sys::{cred, limits};
use goanna_vfs::{Errno, Mounts, escape};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::{Condvar, Mutex};
use thiserror::Error;

pub use check::{Facility, check};
pub use goanna_sys::inherited::close as close_inherited;
pub use goanna_sys::launch::{ExecReport, Launched};
pub use goanna_sys::limits::raise_others as raise_limits;
pub use launch::{Command, Program, Start, inside, start};
pub use participants::delegate::Delegate;
pub use participants::outside::Outside;
pub use participants::run_transaction::{Abort, Ending};
pub use process::task::credentials;
pub use signals::{End, Signals};
pub use stats::Stats;

use calls::outgrow::Reluctant;
use calls::socket::Names;
use inprocess::{InProcess, Unused};
use intercept::executor::Executor;
use intercept::in_flight::InFlight;
use intercept::waiting::WaitingCalls;
use observe::{Observer, Observers};
use participants::Participants;
use participants::delegate::Gate;
use participants::outside::Policy;
use participants::profile::Profile;
use participants::profiled::Profiled;
use participants::run_transaction::RunTransaction;
use process::living::Alive;
use process::task::Tasks;
use ptracer::Supervisor;
use ptracer::mailbox::Mailbox;
use ptracer::pause::Pause;
use ptracer::program::Programs;
use shadow::Shadows;
use stats::Counters;

/// How calls reach the monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Interception {
    /// By notification where the kernel gives it, else by ptrace stops.
    #[default]
    Auto,
    /// By seccomp user notification.
    Notify,
    /// By ptrace stops.
    Ptrace,
}

/// Tells the user something, a line at a time.
#[derive(Clone)]
pub struct Reporter(Arc<dyn Fn(&str) + Send + Sync>);

impl Reporter {
    /// By `tell`, which any thread may call.
    pub fn new(report: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(report))
    }

    /// Tells one line.
    pub fn line(&self, text: &str) {
        (self.0)(text);
    }
}

impl std::fmt::Debug for Reporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reporter")
    }
}

/// The mounts and rules of a run.
pub struct Config {
    /// What is mounted where.
    pub mounts: Mounts,
    /// Receives notes about the run.
    pub note: Reporter,
    /// Receives failures for which there is no caller to return them to.
    pub fail: Reporter,
    /// Where transactions are inserted into programs.
    pub profile: Option<Profile>,
    /// What becomes of changes that transactions do not cover.
    pub outside: Outside,
    /// The whole run is one transaction. It belongs to the first mount, in mount order, that has transactions and can be
    /// changed.
    pub one_transaction: bool,
    /// What is done about calls that concern no mount.
    pub stubs: Stubs,
    /// What sees the calls of the run's programs. Their filter must stop these calls ([`Start::interest`]).
    pub observers: Vec<Arc<dyn Observer>>,
}

impl Config {
    /// A run with these mounts and no rules; `report` receives notes and failures.
    pub fn new(mounts: Mounts, report: Reporter) -> Self {
        Self {
            mounts,
            note: report.clone(),
            fail: report,
            profile: None,
            outside: Outside::default(),
            one_transaction: false,
            stubs: Stubs::default(),
            observers: Vec::new(),
        }
    }
}

/// Whether calls that concern no mount are answered in the process, by stubs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stubs {
    /// They come to the monitor.
    #[default]
    Unused,
    /// Where that is possible.
    Used,
    /// As `Used`, and they are counted.
    Counted,
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// With this exit status.
    Exited(i32),
    /// Killed by this signal.
    Signaled(i32),
}

impl Status {
    /// What a shell would report: the exit status, or 128 and the signal.
    pub fn exit_code(self) -> u8 {
        match self {
            // The kernel keeps eight bits of an exit status.
            Self::Exited(status) => (status & 0xff) as u8,
            Self::Signaled(signal) => 128_u8.saturating_add(u8::try_from(signal).unwrap_or(127)),
        }
    }
}

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// How the command ended.
    pub status: Status,
    /// What the monitor did.
    pub stats: Stats,
    /// What became of the transaction of [`Config::one_transaction`].
    pub transaction: Option<Ending>,
    /// Transactions of the profile whose commit failed, as [`Config::fail`] has been told.
    pub lost: usize,
}

/// Why a command could not be run.
#[derive(Debug, Error)]
pub enum Error {
    /// No program of that name in PATH, or no such file.
    #[error("{}: command not found", escape(.0.as_bytes()))]
    NotFound(OsString),
    /// The file cannot be executed.
    #[error("{}: cannot be executed: {}", escape(.0.as_bytes()), .1.desc())]
    NotExecutable(OsString, Errno),
    /// An argument holds a NUL byte, or there is no command.
    #[error("the command line is empty or holds a NUL byte")]
    BadCommand,
    /// No directory for the run-time objects.
    #[error("no run-time directory: {0}")]
    RunDir(#[source] io::Error),
    /// The kernel does not let us intercept.
    #[error("cannot intercept system calls: {0}")]
    Launch(#[from] LaunchError),
    /// The tracee could not be seized.
    #[error("cannot trace the command: {}", .0.desc())]
    Trace(Errno),
    /// The run's transaction could not be begun.
    #[error("cannot begin the transaction: {}", .0.desc())]
    Transaction(Errno),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

impl Error {
    /// 127 for a missing command, 126 for one that cannot be executed, 125 for our own failures.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable(..) => 126,
            _ => 125,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Launch(_) | Self::Trace(_) => Some("'goanna check' shows what the kernel offers"),
            Self::RunDir(_) => {
                Some("a directory from which programs may be executed is needed: set TMPDIR")
            }
            _ => None,
        }
    }
}

/// The state all threads of a run share.
#[derive(Debug)]
pub struct Monitor {
    /// The mount table.
    pub mounts: Mounts,
    /// Known tracees.
    pub(crate) tasks: Tasks,
    /// Calls being answered.
    pub(crate) in_flight: InFlight,
    /// Descriptors being installed.
    pub(crate) installs: InFlight,
    /// Which threads participate in which transaction.
    pub(crate) participants: Participants,
    pub(crate) outside: Policy,
    /// Processes for which transactions are begun.
    pub(crate) profiled: Profiled,
    /// Shadow objects.
    pub(crate) shadows: Shadows,
    /// Calls that are answered in the process.
    pub(crate) in_process: InProcess,
    /// What programs called their sockets.
    pub(crate) socket_names: Names,
    /// Programs executed from mounts.
    pub(crate) programs: Programs,
    /// Some file has been mapped shared and writable.
    pub(crate) mapped: AtomicBool,
    /// Large files that stay where they are for now.
    pub(crate) reluctant: Reluctant,
    pub(crate) stats: Counters,
    /// What sees calls.
    pub(crate) observers: Observers,
    /// What the supervisor is to do.
    pub(crate) mailbox: Mailbox,
    /// Calls whose answer takes long.
    pub(crate) waiting: WaitingCalls,
    /// The threads for these, and for what is due later.
    pub(crate) executor: Executor,
    /// Threads that end with the run.
    pub(crate) alive: Alive,
    /// Closed when the run has ended.
    pub(crate) gate: Gate,
    /// How its processes end.
    pub(crate) ending: participants::run_end::Ending,
    /// Whether threads are stopped for a commit.
    pub(crate) pause: Pause,
    pub(crate) note: Reporter,
    pub(crate) fail: Reporter,
    noted: AtomicBool,
    /// The user knows that processes outside of the run get copies of files.
    pub(crate) passed_out: AtomicBool,
    /// The user knows that descriptors have run out.
    short: AtomicBool,
}

impl Monitor {
    /// Tells the user once.
    pub(crate) fn note_once(&self, text: &str) {
        if !self.noted.swap(true, Ordering::Relaxed) {
            self.note.line(text);
        }
    }

    /// Tells a failure for want of descriptors in this process from one in the tracee's: the program has not reached its own
    /// limit (EMFILE), so it gets ENFILE, and the user is notified once.
    pub(crate) fn report_shortage<T>(
        &self,
        outcome: goanna_vfs::Result<T>,
    ) -> goanna_vfs::Result<T> {
        if !outcome.as_ref().is_err_and(|error| *error == Errno::EMFILE) {
            return outcome;
        }
        let Some(limit) = limits::exhausted_nofile() else {
            return outcome;
        };
        if !self.short.swap(true, Ordering::Relaxed) {
            self.fail.line(&format!(
                "the monitor has no descriptors left (its limit is {limit}): calls fail with ENFILE; raise the hard limit \
                 (ulimit -Hn) before the next run"
            ));
        }
        Err(Errno::ENFILE.into())
    }

    /// Sends a tracee the signal the kernel would have sent.
    pub(crate) fn signal(&self, tid: i32, signal: i32) {
        // It may have died meanwhile.
        let _ = kill(Pid::from_raw(tid), Signal::try_from(signal).ok());
    }
}

/// Makes the process ready to host a monitor and back ends. To be called before the first thread is started.
pub fn prepare() -> io::Result<Signals> {
    // The limit bounds how many files can be in use; tracees keep the one they had.
    let _ = limits::raise_nofile();
    limits::widen_descriptor_table();
    hold_signals()
}

/// Holds the signals that would end this process, which waits for a command. To be called before the first thread is started.
pub fn hold_signals() -> io::Result<Signals> {
    Signals::hold()
}

/// A run whose command is not started yet.
#[derive(Debug)]
pub struct Run {
    monitor: Arc<Monitor>,
    one_transaction: bool,
}

/// Ends a run from another thread.
#[derive(Debug, Clone)]
pub struct Killer(Arc<Monitor>);

impl Killer {
    /// Sends SIGKILL to all processes of the run, whose transaction is not committed from then on. A process that is starting
    /// another one in that moment may leave that behind: call this until the run has ended.
    pub fn kill(&self) {
        self.0.ending.end_run();
        self.0.participants.end_run();
        self.0.alive.kill();
    }
}

impl Run {
    /// A run by `config`.
    pub fn new(config: Config) -> Result<Self, Error> {
        let unused = unused(&config);
        let run_dir = shadow::run_directory::RunDir::create().map_err(Error::RunDir)?;
        let monitor = Arc::new(Monitor {
            participants: Participants::new(
                &config.mounts,
                config.note.clone(),
                config.fail.clone(),
            ),
            profiled: Profiled::new(config.profile),
            outside: Policy::new(config.outside, config.one_transaction, config.note.clone()),
            in_process: InProcess::new(
                &config.mounts,
                run_dir.path(),
                unused,
                config.stubs == Stubs::Counted,
            ),
            mounts: config.mounts,
            tasks: Tasks::default(),
            in_flight: InFlight::default(),
            installs: InFlight::default(),
            shadows: Shadows::new(run_dir),
            socket_names: Names::default(),
            programs: Programs::default(),
            mapped: AtomicBool::new(false),
            reluctant: Reluctant::default(),
            stats: Counters::default(),
            observers: Observers::new(config.observers),
            mailbox: Mailbox::default(),
            waiting: WaitingCalls::default(),
            executor: Executor::default(),
            alive: Alive::default(),
            gate: Gate::default(),
            ending: participants::run_end::Ending::new(config.one_transaction),
            pause: Pause::default(),
            note: config.note,
            fail: config.fail,
            noted: AtomicBool::new(false),
            passed_out: AtomicBool::new(false),
            short: AtomicBool::new(false),
        });
        let readers: Weak<Monitor> = Arc::downgrade(&monitor);
        for mount in monitor.mounts.iter() {
            if let Some(transactions) = mount.fs.transactions() {
                transactions.attach_readers(readers.clone());
            }
        }
        Ok(Self {
            monitor,
            one_transaction: config.one_transaction,
        })
    }

    /// The program that `command` names, to be started by [`start`].
    pub fn find(&self, command: &Command) -> Result<Program, Error> {
        let mut program = launch::find(&self.monitor.mounts, command)?;
        program.key = self.monitor.in_process.key();
        Ok(program)
    }

    /// What ends the run early.
    pub fn killer(&self) -> Killer {
        Killer(Arc::clone(&self.monitor))
    }

    /// What performs operations for the run's tracees.
    pub fn delegate(&self) -> Delegate {
        Delegate(Arc::clone(&self.monitor))
    }

    /// Runs the command `argv` until it and all its children have ended. `signals` are from [`prepare`], called before the
    /// back ends of the mounts started their threads.
    ///
    /// The calling thread must have no other children.
    pub fn command(
        self,
        argv: Vec<OsString>,
        interception: Interception,
        signals: &Signals,
    ) -> Result<Outcome, Error> {
        let command = Command::here(argv)?;
        let program = self.find(&command)?;
        let how = Start {
            interception,
            unblock: signals.of_command(),
            tracer: None,
            interest: self.monitor.observers.interest(),
        };
        let mut launched = start(&program, &command.argv, &how)?;
        let (pid, listener) = (launched.pid, launched.listener.take());
        let mut report = None;
        let outcome = self.follow(pid, listener, || {
            // A signal that comes earlier stays pending.
            let forwarded = signals.forward_to(pid, None);
            forwarded.map_err(|_| Errno::EAGAIN)?;
            report = Some(launched.go()?);
            Ok(())
        })?;
        let failure = report.and_then(|report| not_executed(&report, &command.argv));
        failure.map_or(Ok(outcome), Err)
    }

    /// Follows process `pid`, which waits at its gate and may be another process's child, until it and all its children
    /// have ended. `listener` is its filter's, if it has one; `open` opens the gate.
    ///
    /// The calling thread must have no other children.
    pub fn follow(
        self,
        pid: i32,
        listener: Option<OwnedFd>,
        open: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<Outcome, Error> {
        // Where it is forbidden, threads take turns.
        let _ = cred::thread_owns_fs();
        let monitor = self.monitor;
        let transaction = self
            .one_transaction
            .then(|| RunTransaction::begin(&monitor));
        let transaction = transaction.transpose().map_err(Error::Transaction)?;
        let mut supervisor = Supervisor::new(Arc::clone(&monitor), listener.is_some());
        monitor.ending.set_command(pid);
        supervisor.seize(pid).map_err(Error::Trace)?;
        if let Some(listener) = listener {
            let listener = Listener::from_fd(listener);
            // Without it answers are only slower (Linux before 6.6).
            let _ = listener.set_sync_wake_up(true);
            intercept::pool::start(&monitor, listener).map_err(Error::Thread)?;
        }
        let sweeper = Sweeper::start(&monitor).map_err(Error::Thread)?;
        open().map_err(Error::Trace)?;
        let status = supervisor.run(pid).map_err(Error::Trace)?;
        sweeper.stop();
        monitor.gate.close();
        monitor.participants.note_refused();
        monitor.participants.end_named();
        monitor.shadows.sweep(Vec::new);
        Ok(Outcome {
            status,
            stats: Stats {
                in_process: monitor.in_process.answered(),
                ..monitor.stats.snapshot()
            },
            transaction: transaction.map(|transaction| transaction.end(status)),
            lost: monitor.participants.lost(),
        })
    }
}

/// Why no call is answered in the process under `config`.
fn unused(config: &Config) -> Option<Unused> {
    if config.stubs == Stubs::Unused {
        return Some(Unused::Option);
    }
    let is_watched = config.profile.is_some()
        || config.outside != Outside::Allow
        || !config.observers.is_empty();
    is_watched.then_some(Unused::Watched)
}

/// Why `argv` was not executed, if it was not: `report` is from its gate, and it has ended.
pub fn not_executed(report: &ExecReport, argv: &[OsString]) -> Option<Error> {
    let command = argv.first().cloned().unwrap_or_default();
    Some(match report.exec_errno()? {
        Errno::ENOENT => Error::NotFound(command),
        errno => Error::NotExecutable(command, errno),
    })
}

const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// Notices, twice a second, which files no tracee holds any more, which named transactions have expired, and which
/// processes outlive the command.
struct Sweeper {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: thread::JoinHandle<()>,
}

impl Sweeper {
    fn start(monitor: &Arc<Monitor>) -> io::Result<Self> {
        let monitor = Arc::clone(monitor);
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("sweeper".into())
            .spawn(move || {
                let (flag, wake) = &*stopped;
                let mut stop = flag.lock();
                while !*stop {
                    wake.wait_for(&mut stop, SWEEP_INTERVAL);
                    if *stop {
                        return;
                    }
                    drop(stop);
                    monitor.participants.expire();
                    monitor.participants.note_refused();
                    monitor.shadows.sweep(|| monitor.alive.all());
                    monitor
                        .ending
                        .report_left_processes(&monitor.alive, &monitor.note);
                    stop = flag.lock();
                }
            })?;
        Ok(Self { stop, thread })
    }

    fn stop(self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::Status;

    #[test]
    fn statuses_are_those_of_a_shell() {
        assert_eq!(Status::Exited(0).exit_code(), 0);
        assert_eq!(Status::Exited(255).exit_code(), 255);
        assert_eq!(Status::Signaled(9).exit_code(), 137);
        assert_eq!(Status::Signaled(64).exit_code(), 192);
    }
}
