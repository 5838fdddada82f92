//! `amino run` and `goanna run`.

use std::io::Write;
use std::time::Instant;

use goanna_monitor::{Config, Interception, Status};

use crate::args::amino::{self, How};
use crate::args::{Engine, Intercept, Loudness, goanna};
use crate::error::Error;
use crate::mounts::{self, Built};
use crate::spec::MountSpec;
use crate::stats::Figures;
use crate::{caller, store};

/// `amino run`.
pub fn amino(args: amino::Run, loud: Loudness) -> Result<u8, Error> {
    refuse_nesting()?;
    let dir = store::dir(&args.store)?;
    let mut specs = vec![mounts::own(dir, &args.at, args.durability)?];
    specs.extend(mounts::requested(&args.how)?);
    run(&specs, args.engine, args.how, loud)
}

/// `goanna run`.
pub fn goanna(args: goanna::Run, loud: Loudness) -> Result<u8, Error> {
    refuse_nesting()?;
    let specs = mounts::requested(&args.how)?;
    if specs.is_empty() {
        return Err(Error::NoMounts);
    }
    run(&specs, None, args.how, loud)
}

fn refuse_nesting() -> Result<(), Error> {
    if goanna_monitor::inside() {
        return Err(Error::Nested);
    }
    Ok(())
}

fn run(specs: &[MountSpec], engine: Option<Engine>, how: How, loud: Loudness) -> Result<u8, Error> {
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
        command: how.command,
        env: Vec::new(),
        signals,
        note: if loud.quiet {
            |_| {}
        } else {
            |text| eprintln!("note: {text}")
        },
    });
    let elapsed = start.elapsed();
    // Whatever became of the command, what it wrote is brought to the disk; every store, even if one fails.
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
    closed.into_iter().collect::<Result<Vec<()>, Error>>()?;
    Ok(status(outcome.status))
}

/// The status as shells give it: 128+N for signal N.
fn status(status: Status) -> u8 {
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
        assert_eq!(status(Status::Exited(0)), 0);
        assert_eq!(status(Status::Exited(255)), 255);
        assert_eq!(status(Status::Signaled(9)), 137);
        assert_eq!(status(Status::Signaled(64)), 192);
    }
}
