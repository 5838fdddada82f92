//! A run: follows a command from its gate to the end of its last process. `config.rs` has its configuration.

pub mod config;
pub mod error;
pub mod status;
mod sweeper;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use goanna_sys::launch::ExecReport;
use goanna_sys::notify::Listener;
use goanna_sys::{cred, table_holder};
use goanna_vfs::Errno;

use crate::launch::{self, Command, Program, Start, start};
use crate::participants::delegate::Delegate;
use crate::participants::run_transaction::{RunTransaction, TransactionOutcome};
use crate::ptracer::Supervisor;
use crate::shadow::run_directory::RunDir;
use crate::signals::Signals;
use crate::watches::Watches;
use crate::{Monitor, intercept};
use config::{Config, Interception};
use error::Error;
use status::Status;
use sweeper::Sweeper;

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// How the command ended.
    pub status: Status,
    /// Calls that were answered in the processes, if they were counted ([`crate::Stubs::Counted`]).
    pub in_process: u64,
    /// The outcome of the transaction of [`Config::one_transaction`].
    pub transaction: Option<TransactionOutcome>,
    /// Number of transactions of the profile whose commit failed; [`Config::fail`] has received each.
    pub lost: usize,
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
    /// Sends SIGKILL to all processes of the run, whose transaction is not committed from then on. A process that is just
    /// starting another one may leave it behind: repeat this call until the run has ended.
    pub fn kill(&self) {
        self.0.run_end.end_run();
        self.0.participants.end_run();
        self.0.alive.kill();
    }
}

impl Run {
    /// A run with the configuration `config`.
    pub fn new(config: Config) -> Result<Self, Error> {
        let one_transaction = config.one_transaction;
        let run_dir = RunDir::create().map_err(Error::RunDir)?;
        let monitor = Arc::new(Monitor::new(config, run_dir));
        let watches: Arc<Watches> = Arc::clone(&monitor.watches);
        monitor.participants.observe(watches);
        monitor.attach(monitor.mounts.current().iter());
        Ok(Self {
            monitor,
            one_transaction,
        })
    }

    /// The program of `command`, for [`start`].
    pub fn find(&self, command: &Command) -> Result<Program, Error> {
        let mut program = launch::find(&self.monitor.mounts.current(), command)?;
        program.key = self.monitor.in_process.key();
        Ok(program)
    }

    /// A handle that ends the run early.
    pub fn killer(&self) -> Killer {
        Killer(Arc::clone(&self.monitor))
    }

    /// A handle that performs operations for the run's tracees.
    pub fn delegate(&self) -> Delegate {
        Delegate(Arc::clone(&self.monitor))
    }

    /// Runs the command `argv` until it and all its children have ended. `signals` are from
    /// [`prepare`](crate::prepare), called before the back ends of the mounts started their threads.
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
        // Where this is forbidden, threads take turns.
        let _ = cred::thread_owns_fs();
        let monitor = self.monitor;
        let transaction = self
            .one_transaction
            .then(|| RunTransaction::begin(&monitor));
        let transaction = transaction.transpose().map_err(Error::Transaction)?;
        let mut supervisor = Supervisor::new(Arc::clone(&monitor), listener.is_some());
        monitor.run_end.set_command(pid);
        supervisor.seize(pid).map_err(Error::Trace)?;
        if let Some(listener) = listener {
            let listener = Listener::from_fd(listener);
            // Without this, answers are only slower (Linux before 6.6).
            let _ = listener.set_sync_wake_up(true);
            intercept::pool::start(&monitor, listener).map_err(Error::Thread)?;
        }
        let sweeper = Sweeper::start(&monitor).map_err(Error::Thread)?;
        open().map_err(Error::Trace)?;
        let status = supervisor.run(pid).map_err(Error::Trace)?;
        sweeper.stop();
        monitor.delegate_lock.close();
        monitor.participants.note_refused();
        monitor.participants.end_named();
        monitor.in_process.forget_opened();
        monitor.shadows.sweep(Vec::new);
        monitor.hosted.end(&monitor);
        table_holder::end();
        Ok(Outcome {
            status,
            in_process: monitor.in_process.answered(),
            transaction: transaction.map(|transaction| transaction.end(status)),
            lost: monitor.participants.lost(),
        })
    }
}

/// The error if `argv` was not executed, according to the `report` of its gate. The process must have ended.
pub fn not_executed(report: &ExecReport, argv: &[OsString]) -> Option<Error> {
    let command = argv.first().cloned().unwrap_or_default();
    Some(match report.exec_errno()? {
        Errno::ENOENT => Error::NotFound(command),
        errno => Error::NotExecutable(command, errno),
    })
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
