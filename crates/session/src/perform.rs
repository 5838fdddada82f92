//! Performs a run: makes the mounts, runs the command, and makes the changes durable.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use amino_fs::AminoFs;
use goanna_monitor::observe::Observer;
use goanna_monitor::{
    Abort, Config, Counters, Outcome, Reporter, Run, Status, Stubs, TransactionOutcome,
};
use goanna_passfs::PassFs;
use goanna_vfs::Caller;

use crate::mounts::{self, Builder, MountTypes, MountedStores, OpenStore};
use crate::nested::{Describe, NestedMounts};
use crate::profile::ProfileSource;
use crate::trace::{Recorder, TraceFile};
use crate::{AbortReason, Error, Plan, RunResult, RunStats, StoreError, store};

/// The environment of a run.
pub struct Environment<'a> {
    /// The available types of mounts.
    pub types: MountTypes,
    /// A store that this process has open already, and that stays open.
    pub owned: Option<&'a OpenStore>,
    /// The credentials of the user of the run.
    pub caller: &'a Caller,
    /// Reports notes.
    pub note: Reporter,
    /// Reports failures that do not end the run.
    pub fail: Reporter,
    /// Observers of the calls of the run's programs.
    pub observers: Vec<Arc<dyn Observer>>,
    /// The file for a trace of the run, if the plan requests one.
    pub trace: Option<TraceFile>,
    /// Converts errors of runs inside of the run to reports for their users.
    pub describe: Describe,
}

/// Makes the plan's mounts, runs the command by `start`, and makes its changes durable.
pub fn perform(
    plan: &Plan,
    environment: Environment<'_>,
    start: impl FnOnce(Run) -> Result<Outcome, Error>,
) -> Result<RunResult, Error> {
    let Environment {
        types,
        owned,
        caller,
        note,
        fail,
        mut observers,
        trace,
        describe,
    } = environment;
    let profile = plan
        .profile
        .as_ref()
        .map(ProfileSource::parse)
        .transpose()?;
    let MountedStores { mounts, stores } = {
        let builder = Builder {
            types,
            caller,
            owned,
            engine: plan.engine,
            keep_log: plan.keep_log,
            create: plan.create(),
            note: &|text| note.line(text),
        };
        mounts::build(&plan.specs, builder)?
    };
    let before: Vec<_> = stores.iter().map(|(_, fs)| fs.store().stats()).collect();
    let begun = Instant::now();
    let recorder = trace.map(|trace| Recorder::start(trace, fail.clone()));
    let recorder = recorder.transpose()?.map(Arc::new);
    observers.extend(recorder.clone().map(|one| -> Arc<dyn Observer> { one }));
    let counters = plan.stats.then(Arc::<Counters>::default);
    observers.extend(counters.clone().map(|one| -> Arc<dyn Observer> { one }));
    let nested = Arc::new(NestedMounts::new(types, describe, stores.clone()));
    let outcome = Run::new(Config {
        mounts,
        host_directories: Some(PassFs::shared),
        nesting: Some(Arc::clone(&nested) as _),
        note,
        fail,
        profile,
        outside: plan.outside.into(),
        one_transaction: plan.one_transaction,
        stubs: stubs(plan),
        observers,
    })
    .map_err(Error::from)
    .and_then(start);
    let elapsed = begun.elapsed();
    let traced = recorder.map_or(Ok(()), |recorder| recorder.finish());
    // Also after a failure. Every store is synced, even if one fails.
    let bring = |(dir, fs): &(PathBuf, Arc<AminoFs>)| bring_to_disk(dir, fs, owned);
    let closed = nested.close();
    let flushed: Vec<Result<(), Error>> = stores.iter().map(bring).chain([closed]).collect();
    let outcome = outcome?;
    let stats = counters.map(|counters| {
        let calls = (&counters.snapshot(), outcome.in_process);
        RunStats::new(elapsed, calls, &stores, &before)
    });
    if let (Some(TransactionOutcome::Failed(errno)), Some((dir, _))) =
        (&outcome.transaction, stores.first())
    {
        let what = "cannot commit the transaction";
        return Err(Error::store(dir, StoreError::operation(what, *errno)));
    }
    flushed.into_iter().collect::<Result<Vec<()>, Error>>()?;
    traced?;
    Ok(result(outcome, stats))
}

/// The plan's setting for calls that are answered in the process.
fn stubs(plan: &Plan) -> Stubs {
    match (plan.in_process, plan.stats) {
        (false, _) => Stubs::Unused,
        (true, false) => Stubs::Used,
        (true, true) => Stubs::Counted,
    }
}

/// Makes a store durable. It stays open only if this process is its owner.
fn bring_to_disk(dir: &Path, fs: &Arc<AminoFs>, owned: Option<&OpenStore>) -> Result<(), Error> {
    match owned {
        Some((own, _)) if mounts::real(own) == mounts::real(dir) => store::flush(dir, &**fs),
        _ => store::close(dir, fs),
    }
}

fn result(outcome: Outcome, stats: Option<RunStats>) -> RunResult {
    let (status, aborted) = match outcome.transaction {
        Some(TransactionOutcome::Aborted(abort)) => {
            let (status, reason) = aborted(abort, outcome.status);
            (status, Some(reason))
        }
        _ => (outcome.status, None),
    };
    RunResult {
        ended: match status {
            Status::Exited(code) => Ok(code),
            Status::Signaled(signal) => Err(signal),
        },
        stats,
        aborted,
        lost: outcome.lost,
    }
}

/// The status of a run whose transaction was aborted, and the reason. The status is that of the command, or, if the
/// command succeeded, that of the processes that it left running.
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
