//! A run that is one transaction: begun before the first call of the command is answered, and ended when all processes have
//! ended. Threads without a transaction of their own belong to it ([`crate::participants`]); all threads read natively.
//! [`crate::participants::run_end`] decides whether the processes have ended by themselves.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use goanna_vfs::{Errno, Result};

pub use crate::participants::run_end::Abort;
use crate::{Monitor, Status};

/// The outcome of the transaction of a whole run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// It is committed, and on the disk.
    Committed,
    /// It was aborted, for this reason.
    Aborted(Abort),
    /// Its commit failed: with ENOSPC it was aborted; with EIO the next opening of the store shows whether it took effect.
    Failed(Errno),
}

/// How often a commit is tried again while a thread that outlived its process still ends a transaction inside.
const REPEATS: usize = 1000;
const PAUSE: Duration = Duration::from_millis(5);

/// The transaction of a whole run; aborted where it is dropped without an end.
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

    /// Commits it durably if the command succeeded and no process that it left running was killed; else aborts it. No
    /// process is left, and no descriptor.
    pub fn end(mut self, status: Status) -> Ending {
        if status != Status::Exited(0) {
            return Ending::Aborted(Abort::Status);
        }
        if let Some(abort) = self.monitor.ending.abort() {
            return Ending::Aborted(abort);
        }
        let ended = self.commit();
        // A commit that failed has aborted it, but for one that could not begin.
        self.open = ended == Err(Errno::EBUSY);
        match ended {
            Ok(()) => Ending::Committed,
            Err(errno) => Ending::Failed(errno),
        }
    }

    fn commit(&self) -> Result<(), Errno> {
        let members = &self.monitor.participants;
        let mut ended = members.commit_run();
        for _ in 0..REPEATS {
            if ended != Err(Errno::EBUSY) {
                break;
            }
            thread::sleep(PAUSE);
            ended = members.commit_run();
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
