//! Performs a run: mounts, command, disk.

use std::time::Instant;

use goanna_monitor::{Abort, Config, Ending, Outcome, Run, Status, Tell};
use goanna_vfs::Caller;

use crate::mounts::{self, MountedStores, OpenStore};
use crate::profile::ProfileSource;
use crate::{AbortReason, Error, Figures, Plan, RunResult, StoreError, store};

/// Mounts what the plan says, has `start` run the command, and brings to the disk what it did. `owned` is a store that this
/// process has open already, and that stays open. `caller` has the credentials of the user of the run. `note` and `fail`
/// report notes and failures meanwhile.
pub fn perform(
    plan: &Plan,
    owned: Option<&OpenStore>,
    caller: &Caller,
    note: Tell,
    fail: Tell,
    start: impl FnOnce(Run) -> Result<Outcome, Error>,
) -> Result<RunResult, Error> {
    let profile = plan
        .profile
        .as_ref()
        .map(ProfileSource::parse)
        .transpose()?;
    let MountedStores { mounts, stores } = {
        let made = |text: &str| note.line(text);
        mounts::build(&plan.specs, plan.engine, plan.create(), caller, owned, made)?
    };
    let before: Vec<_> = stores.iter().map(|(_, fs)| fs.store().stats()).collect();
    let begun = Instant::now();
    let outcome = Run::new(Config {
        mounts,
        note,
        fail,
        profile,
        outside: plan.outside.into(),
        one_transaction: plan.one_transaction,
    })
    .map_err(Error::from)
    .and_then(start);
    let elapsed = begun.elapsed();
    // Also after a failure. Every store is brought to the disk, even if one fails.
    let flushed: Vec<Result<(), Error>> = stores
        .iter()
        .map(|(dir, fs)| match owned {
            Some((own, _)) if mounts::real(own) == mounts::real(dir) => store::flush(dir, fs),
            _ => store::close(dir, fs),
        })
        .collect();
    let outcome = outcome?;
    let figures = plan
        .figures
        .then(|| Figures::new(elapsed, &outcome.stats, &stores, &before));
    if let (Some(Ending::Failed(errno)), Some((dir, _))) = (&outcome.transaction, stores.first()) {
        let what = "cannot commit the transaction";
        return Err(Error::store(dir, StoreError::operation(what, *errno)));
    }
    flushed.into_iter().collect::<Result<Vec<()>, Error>>()?;
    let (status, aborted) = match outcome.transaction {
        Some(Ending::Aborted(abort)) => {
            let (status, reason) = aborted(abort, outcome.status);
            (status, Some(reason))
        }
        _ => (outcome.status, None),
    };
    Ok(RunResult {
        ended: match status {
            Status::Exited(code) => Ok(code),
            Status::Signaled(signal) => Err(signal),
        },
        figures,
        aborted,
        lost: outcome.lost,
    })
}

/// The status of a run whose transaction was aborted, and the reason. The status is that of the command, or says what
/// happened to the processes that it left running.
fn aborted(abort: Abort, status: Status) -> (Status, AbortReason) {
    match abort {
        Abort::Status => (status, AbortReason::CommandFailed),
        Abort::Ended => (Status::Signaled(nix::libc::SIGKILL), AbortReason::RunEnded),
        Abort::Killed { name, pid, signal } => (
            Status::Signaled(signal),
            AbortReason::ProcessKilled { name, pid, signal },
        ),
    }
}
