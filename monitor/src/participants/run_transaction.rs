//! A run that is one transaction: begun before the first call of the command is answered, and ended when all processes have
//! ended. Threads without a transaction of their own belong to it ([`crate::participants`]); all threads read natively.
//! [`crate::participants::run_end`] decides whether the processes have ended by themselves.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use goanna_vfs::{Errno, Result};

pub use crate::participants::run_end::Abort;
use crate::{Monitor, Status};

/// The outcome of a run transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransactionOutcome {
    /// It is committed, and on the disk.
    Committed,
    /// It was aborted, for this reason.
    Aborted(Abort),
    /// Its commit failed: with ENOSPC it was aborted; with EIO the next opening of the store shows whether it took effect.
    Failed(Errno),
}

/// Maximum number of retries of the commit, while a monitor thread is still ending a nested transaction of a process that
/// has ended.
const REPEATS: usize = 1000;
const PAUSE: Duration = Duration::from_millis(5);

/// The run transaction. Dropping it without [`RunTransaction::end`] aborts it.
#[derive(Debug)]
pub struct RunTransaction {
    monitor: Arc<Monitor>,
    open: bool,
}

impl RunTransaction {
    /// Begins it. EOPNOTSUPP where no back end has transactions.
    pub fn begin(monitor: &Arc<Monitor>) -> Result<Self, Errno> {
        monitor.participants.begin_run()?;
        Ok(Self {
            monitor: Arc::clone(monitor),
            open: true,
        })
    }

    /// Commits it durably if the command succeeded and no process that it left running was killed; else aborts it. All
    /// processes must have ended, and all descriptors must be closed.
    pub fn end(mut self, status: Status) -> TransactionOutcome {
        if status != Status::Exited(0) {
            return TransactionOutcome::Aborted(Abort::Status);
        }
        if let Some(abort) = self.monitor.run_end.abort() {
            return TransactionOutcome::Aborted(abort);
        }
        let ended = self.commit();
        // A failed commit has aborted it, unless the commit could not begin (EBUSY).
        self.open = ended == Err(Errno::EBUSY);
        match ended {
            Ok(()) => TransactionOutcome::Committed,
            Err(errno) => TransactionOutcome::Failed(errno),
        }
    }

    fn commit(&self) -> Result<(), Errno> {
        let participants = &self.monitor.participants;
        let mut ended = participants.commit_run();
        for _ in 0..REPEATS {
            if ended != Err(Errno::EBUSY) {
                break;
            }
            thread::sleep(PAUSE);
            ended = participants.commit_run();
        }
        ended
    }
}

impl Drop for RunTransaction {
    fn drop(&mut self) {
        if self.open {
            self.monitor.participants.abort_run();
        }
    }
}
