//! `amino run` and `goanna run`.

use std::io::Write;
use std::time::Instant;

use goanna_monitor::profile::Profile;
use goanna_monitor::{Config, Ending, Interception, Status};

use crate::args::amino::{self, How};
use crate::args::{Engine, Intercept, Loudness, Outside, goanna};
use crate::error::Error;
use crate::mounts::{self, Built};
use crate::spec::{MountSpec, Source};
use crate::stats::Figures;
use crate::{caller, profile, store};

/// Transactions that the command knows nothing of.
#[derive(Default)]
struct Inserted {
    /// One around all of it.
    whole: bool,
    /// Around parts of it.
    profile: Option<Profile>,
}

/// `amino run`.
pub fn amino(args: amino::Run, loud: Loudness) -> Result<u8, Error> {
    refuse_nesting()?;
    let dir = store::dir(&args.store)?;
    let mut specs = vec![mounts::own(dir, &args.at, args.durability)?];
    specs.extend(mounts::requested(&args.how)?);
    if args.txn {
        refuse_several_stores(&specs)?;
    }
    let inserted = Inserted {
        whole: args.txn,
        profile: args.profile.as_deref().map(profile::load).transpose()?,
    };
    run(&specs, args.engine, inserted, args.how, loud)
}

/// `goanna run`.
pub fn goanna(args: goanna::Run, loud: Loudness) -> Result<u8, Error> {
    refuse_nesting()?;
    let specs = mounts::requested(&args.how)?;
    if specs.is_empty() {
        return Err(Error::NoMounts);
    }
    run(&specs, None, Inserted::default(), args.how, loud)
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

/// Runs the command over `specs`; transactions are those of the first, which is a store.
fn run(
    specs: &[MountSpec],
    engine: Option<Engine>,
    inserted: Inserted,
    how: How,
    loud: Loudness,
) -> Result<u8, Error> {
    let signals = goanna_monitor::prepare().map_err(Error::Signals)?;
    let Built { mounts, stores } = mounts::build(specs, engine, &caller::current())?;
    let start = Instant::now();
    let outcome = goanna_monitor::run(Config {
        mounts,
        interception: match how.intercept {
            Intercept::Auto => Interception::Auto,
            Intercept::Notify => Interception::Notify,
            Intercept::Ptrace => Interception::Ptrace,
        },
        command: how.run.command,
        env: Vec::new(),
        signals,
        note: if loud.quiet {
            |_| {}
        } else {
            |text| eprintln!("note: {text}")
        },
        fail: |text| eprintln!("amino: {text}"),
        profile: inserted.profile,
        outside: match how.outside {
            Outside::Allow => goanna_monitor::Outside::Allow,
            Outside::Warn => goanna_monitor::Outside::Warn,
            Outside::Deny => goanna_monitor::Outside::Deny,
        },
        one_transaction: inserted.whole,
    });
    let elapsed = start.elapsed();
    // Whatever became of the command, what it wrote outside a transaction is brought to the disk; every store, even if
    // one fails.
    let closed: Vec<Result<(), Error>> = stores
        .iter()
        .map(|(dir, fs)| store::close(dir, fs))
        .collect();
    let outcome = outcome?;
    if let Some(format) = how.stats {
        let figures = Figures {
            elapsed,
            monitor: &outcome.stats,
            stores: &stores,
        };
        let text = figures.text(format, loud.verbose > 0);
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
    if let (Some(Ending::Failed(errno)), Some((dir, _))) = (outcome.transaction, stores.first()) {
        let what = "cannot commit the transaction";
        return Err(Error::store(
            dir,
            amino_fs::Error::Operation { what, errno },
        ));
    }
    closed.into_iter().collect::<Result<Vec<()>, Error>>()?;
    if outcome.transaction == Some(Ending::Aborted) && !loud.quiet {
        eprintln!(
            "note: {}; the transaction was aborted",
            ending(outcome.status)
        );
    }
    if outcome.lost > 0 {
        return Err(Error::Lost(outcome.lost));
    }
    Ok(exit_status(outcome.status))
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
