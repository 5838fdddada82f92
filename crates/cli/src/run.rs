//! `amino run` and `goanna run`.

use std::ffi::OsString;
use std::time::Instant;

use goanna_monitor::{Abort, Config, Ending, Interception, Outcome, Run, Signals, Status, Tell};
use goanna_vfs::Caller;
use serde::{Deserialize, Serialize};

use crate::args::amino;
use crate::args::{Engine, Intercept, Loudness, Outside, StatsFormat, goanna};
use crate::error::Error;
use crate::mounts::{self, Built, OpenStore};
use crate::profile::Source as ProfileSource;
use crate::report::messages::block;
pub use crate::report::messages::{complain, note};
use crate::report::names;
use crate::report::stats::Figures;
use crate::spec::{MountSpec, Source};
use crate::store::Create;
use crate::{caller, daemon, store};

/// What a command is run over, and by which rules.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plan {
    /// What is mounted; transactions are those of the first store.
    pub specs: Vec<MountSpec>,
    /// The engine of that store, if it is made now.
    pub engine: Option<Engine>,
    /// Stores are made also where there is no directory to make them in.
    pub create: bool,
    /// The first store is at the default place.
    pub default_store: bool,
    /// The whole command is one transaction.
    pub whole: bool,
    /// Where transactions are inserted.
    pub profile: Option<ProfileSource>,
    /// What becomes of changes that they do not cover.
    pub outside: Outside,
    /// Figures to tell at the end.
    pub stats: Option<StatsFormat>,
    /// All kinds of calls among them.
    pub all_stats: bool,
}

impl Plan {
    /// Where stores are made that do not exist.
    pub fn create(&self) -> Create {
        if self.create {
            Create::WithParents
        } else {
            Create::InParent
        }
    }
}

/// What became of a command.
#[derive(Debug, Serialize, Deserialize)]
pub struct Done {
    /// Its exit status, or the signal that killed it.
    pub ended: Result<i32, i32>,
    /// The figures asked for.
    pub stats: Option<String>,
    /// Why its transaction was aborted, if it was.
    pub aborted: Option<String>,
    /// Transactions of the profile that could not be committed.
    pub lost: usize,
}

/// `amino run`.
pub fn amino(args: amino::Run, loud: Loudness) -> Result<u8, Error> {
    refuse_nesting()?;
    let dir = store::dir(&args.store)?;
    let mut specs = vec![mounts::own(dir.clone(), &args.at, args.durability)?];
    if mounts::hides_host(&args.at) {
        let at = names::escape_path(&args.at);
        note(
            &format!(
                "--at {at} hides what the host has there from the command; \
                 a place that does not exist hides nothing"
            ),
            loud,
        );
    }
    specs.extend(mounts::requested(&args.how)?);
    if args.txn {
        refuse_several_stores(&specs)?;
    }
    let plan = Plan {
        specs,
        create: args.how.create,
        default_store: args.store.store.is_none(),
        engine: args.engine,
        whole: args.txn,
        profile: args
            .profile
            .as_deref()
            .map(ProfileSource::read)
            .transpose()?,
        outside: args.how.outside,
        stats: args.how.stats,
        all_stats: loud.verbose > 0,
    };
    let done = daemon::run(&dir, plan, args.how.run.command, args.how.intercept, loud)?;
    conclude(done, loud)
}

/// `goanna run`.
pub fn goanna(args: goanna::Run, loud: Loudness) -> Result<u8, Error> {
    refuse_nesting()?;
    let specs = mounts::requested(&args.how)?;
    if specs.is_empty() {
        return Err(Error::NoMounts);
    }
    let plan = Plan {
        specs,
        create: args.how.create,
        default_store: false,
        engine: None,
        whole: false,
        profile: None,
        outside: args.how.outside,
        stats: args.how.stats,
        all_stats: loud.verbose > 0,
    };
    let argv = args.how.run.command;
    let signals = goanna_monitor::prepare().map_err(Error::Signals)?;
    let (note, fail) = tells(loud);
    let intercept = args.how.intercept;
    let done = perform(&plan, None, &caller::current(), note, fail, |run| {
        in_this_process(run, argv, intercept, &signals)
    })?;
    conclude(done, loud)
}

fn in_this_process(
    run: Run,
    argv: Vec<OsString>,
    intercept: Intercept,
    signals: &Signals,
) -> Result<Outcome, Error> {
    Ok(run.command(argv, interception(intercept), signals)?)
}

/// As the monitor calls it.
pub fn interception(intercept: Intercept) -> Interception {
    match intercept {
        Intercept::Auto => Interception::Auto,
        Intercept::Notify => Interception::Notify,
        Intercept::Ptrace => Interception::Ptrace,
    }
}

/// Tell notes and failures on stderr.
fn tells(loud: Loudness) -> (Tell, Tell) {
    let note = Tell::new(move |text| note(text, loud));
    (note, Tell::new(complain))
}

fn refuse_nesting() -> Result<(), Error> {
    if goanna_monitor::inside() {
        return Err(Error::Nested);
    }
    Ok(())
}

/// A transaction belongs to one store: two could not commit at the same instant.
fn refuse_several_stores(specs: &[MountSpec]) -> Result<(), Error> {
    let others = specs.iter().skip(1);
    let mut changed =
        others.filter(|spec| matches!(spec.source, Source::Amino { .. }) && !spec.read_only);
    match changed.next() {
        Some(spec) => Err(Error::SeveralStores(spec.target.clone())),
        None => Ok(()),
    }
}

/// Mounts what the plan says, has `start` run the command, and brings to the disk what it has done. `owned` is a store that
/// is open already and stays open; `caller` is who wants the run.
pub fn perform(
    plan: &Plan,
    owned: Option<&OpenStore>,
    caller: &Caller,
    note: Tell,
    fail: Tell,
    start: impl FnOnce(Run) -> Result<Outcome, Error>,
) -> Result<Done, Error> {
    let profile = plan
        .profile
        .as_ref()
        .map(ProfileSource::parse)
        .transpose()?;
    let Built { mounts, stores } = {
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
        outside: match plan.outside {
            Outside::Allow => goanna_monitor::Outside::Allow,
            Outside::Warn => goanna_monitor::Outside::Warn,
            Outside::Deny => goanna_monitor::Outside::Deny,
        },
        one_transaction: plan.whole,
    })
    .map_err(Error::from)
    .and_then(start);
    let elapsed = begun.elapsed();
    // Whatever became of the command, what it wrote is brought to the disk: of every store, even if one fails.
    let settled: Vec<Result<(), Error>> = stores
        .iter()
        .map(|(dir, fs)| match owned {
            Some((own, _)) if mounts::real(own) == mounts::real(dir) => store::settle(dir, fs),
            _ => store::close(dir, fs),
        })
        .collect();
    let outcome = outcome?;
    let stats = plan.stats.map(|format| {
        let figures = Figures {
            elapsed,
            monitor: &outcome.stats,
            stores: &stores,
            before: &before,
        };
        figures.text(format, plan.all_stats)
    });
    if let (Some(Ending::Failed(errno)), Some((dir, _))) = (&outcome.transaction, stores.first()) {
        let errno = *errno;
        let what = "cannot commit the transaction";
        return Err(Error::store(
            dir,
            amino_fs::Error::Operation { what, errno },
        ));
    }
    settled.into_iter().collect::<Result<Vec<()>, Error>>()?;
    let (status, aborted) = match outcome.transaction {
        Some(Ending::Aborted(abort)) => {
            let (status, why) = aborted(abort, outcome.status);
            (status, Some(why))
        }
        _ => (outcome.status, None),
    };
    Ok(Done {
        ended: match status {
            Status::Exited(code) => Ok(code),
            Status::Signaled(signal) => Err(signal),
        },
        stats,
        aborted,
        lost: outcome.lost,
    })
}

/// The status of a run whose transaction was aborted, and the reason: the command's own end, or what became of those it left.
fn aborted(abort: Abort, status: Status) -> (Status, String) {
    match abort {
        Abort::Status => (status, ending(status)),
        Abort::Ended => (
            Status::Signaled(nix::libc::SIGKILL),
            "the run was ended before all of its processes were done".into(),
        ),
        Abort::Killed { name, pid, signal } => (
            Status::Signaled(signal),
            format!("signal {signal} killed {name} ({pid}), which the command had left running"),
        ),
    }
}

/// Tells what became of the command; the exit status.
fn conclude(done: Done, loud: Loudness) -> Result<u8, Error> {
    if let Some(text) = done.stats {
        block(&text);
    }
    let status = match done.ended {
        Ok(code) => Status::Exited(code),
        Err(signal) => Status::Signaled(signal),
    };
    if let Some(why) = done.aborted {
        note(&format!("{why}; the transaction was aborted"), loud);
    }
    if done.lost > 0 {
        return Err(Error::Lost(done.lost));
    }
    Ok(exit_status(status))
}

/// How the command ended, in words.
pub fn ending(status: Status) -> String {
    match status {
        Status::Exited(code) => format!("the command exited with {code}"),
        Status::Signaled(signal) => format!("signal {signal} killed the command"),
    }
}

/// The status as shells give it: 128+N for signal N.
pub fn exit_status(status: Status) -> u8 {
    match status {
        // The kernel keeps eight bits of an exit status.
        Status::Exited(code) => (code & 0xff) as u8,
        Status::Signaled(signal) => 128_u8.saturating_add(u8::try_from(signal).unwrap_or(127)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_those_of_a_shell() {
        assert_eq!(exit_status(Status::Exited(0)), 0);
        assert_eq!(exit_status(Status::Exited(255)), 255);
        assert_eq!(exit_status(Status::Signaled(9)), 137);
        assert_eq!(exit_status(Status::Signaled(64)), 192);
    }
}
