//! `amino run` and `goanna run` inside of a run: the command joins the run, and gets the mounts that the run does not have.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use goanna_daemon::Error as DaemonError;
use goanna_monitor::Error as MonitorError;
use goanna_session::Error as SessionError;
use goanna_session::mounts;
use goanna_session::nested::{self, Refusal, Request};
use goanna_session::subprocess::{self, Signals};
use goanna_vfs::{Errno, mount_list};

use super::mounting::{mounts_of, note_hidden};
use super::open::store_dir;
use super::txn;
use crate::args::Verbosity;
use crate::args::amino::{self, RunOptions};
use crate::args::common::{Durability, Intercept, Keep, Outside};
use crate::args::goanna;
use crate::error::Error;
use crate::report::messages::note;

/// `amino run`: runs the command in the run that this process is in. Without a named store it uses the mounted one.
pub fn amino(args: &amino::Run, verbosity: Verbosity) -> Result<u8, Error> {
    let mounted = mounted_store(&args.at);
    let named = args.store.store.as_ref();
    let is_it = |store: &PathBuf| named.is_none_or(|dir| is_same(dir, store));
    let joins = mounted.as_ref().is_some_and(is_it);
    let of_store = [
        (args.durability != Durability::Commit, "--durability"),
        (args.engine.is_some(), "--engine"),
        (args.keep_log.is_some(), "--keep-log"),
    ];
    refuse(&[(args.profile.is_some(), "--profile")])?;
    let mut request = request(&args.options)?;
    if joins {
        refuse(&of_store)?;
    } else {
        if args.txn {
            return Err(Error::OtherTransactions);
        }
        let dir = store_dir(&args.store)?;
        let store = mounts::of_store(dir, &args.at, args.durability.into())?;
        if mounted.is_none() {
            note_hidden(&args.at, verbosity);
        }
        request.specs.insert(0, store);
        request.engine = args.engine.map(Into::into);
        request.keep_log = args.keep_log.map(|keep| keep == Keep::On);
    }
    let command = &args.options.run.command;
    if request.specs.is_empty() {
        return match args.txn {
            true => txn::run(command, 0, verbosity),
            false => Err(execute(command)),
        };
    }
    with_mounts(request, verbosity, || match args.txn {
        true => txn::run(command, 0, verbosity),
        false => run(command),
    })
}

/// `goanna run`: runs the command in the run that this process is in, with further mounts.
pub fn goanna(args: &goanna::Run, verbosity: Verbosity) -> Result<u8, Error> {
    let request = request(&args.options)?;
    if request.specs.is_empty() {
        return Err(Error::NoMounts);
    }
    with_mounts(request, verbosity, || run(&args.options.run.command))
}

/// The request for the mounts of the options. Fails for options that concern a whole run.
fn request(options: &RunOptions) -> Result<Request, Error> {
    refuse(&[
        (options.trace.is_some(), "--trace"),
        (options.stats.is_some(), "--stats"),
        (options.outside != Outside::Allow, "--outside"),
        (options.intercept != Intercept::Auto, "--intercept"),
        (options.no_fast_path, "--no-fast-path"),
    ])?;
    Ok(Request {
        specs: mounts_of(options)?,
        engine: None,
        keep_log: None,
        create: options.create,
    })
}

/// Fails if one of the options is given.
fn refuse(options: &[(bool, &'static str)]) -> Result<(), Error> {
    let mut given = options.iter().filter(|(is_given, _)| *is_given);
    match given.next() {
        Some((_, option)) => Err(Error::OutermostOnly(option)),
        None => Ok(()),
    }
}

/// Calls `run`, which runs the command, with the mounts of `request`. Fails if their changes cannot be brought to the disk.
fn with_mounts(
    mut request: Request,
    verbosity: Verbosity,
    run: impl FnOnce() -> Result<u8, Error>,
) -> Result<u8, Error> {
    for spec in &mut request.specs {
        let source = spec.source.path_mut();
        *source = std::path::absolute(&*source).map_err(|why| Error::host(source, why))?;
    }
    let show = |text: &str| note(text, verbosity);
    nested::enter(&request, show).map_err(refused)?;
    let ended = run();
    let left = nested::leave(show).map_err(refused);
    let code = ended?;
    left.map(|()| code)
}

fn refused(why: Refusal) -> Error {
    match why {
        Refusal::Failed(report) => Error::Daemon(DaemonError::Reported(report)),
        Refusal::Refused(errno) => Error::NestedRefused(errno),
    }
}

/// Runs the command, and waits for it.
fn run(command: &[OsString]) -> Result<u8, Error> {
    let mut signals = Signals::block().map_err(|why| Error::Signals(why.into()))?;
    Ok(subprocess::run(command, &mut signals)?.exit_code())
}

/// The store that is mounted at `at`.
fn mounted_store(at: &Path) -> Option<PathBuf> {
    let mountinfo = fs::read("/proc/self/mountinfo").ok()?;
    let source = mount_list::source_at(&mountinfo, at.as_os_str().as_bytes(), "amino")?;
    Some(OsString::from_vec(source).into())
}

fn is_same(dir: &Path, store: &Path) -> bool {
    let real = |path| fs::canonicalize(path).ok();
    dir == store || real(dir).is_some_and(|dir| Some(dir) == real(store))
}

/// Executes the command in place of this process. Returns only if that fails.
fn execute(command: &[OsString]) -> Error {
    let Some((program, args)) = command.split_first() else {
        return monitor_error(MonitorError::BadCommand);
    };
    let why = Command::new(program).args(args).exec();
    let errno = why.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw);
    monitor_error(match errno {
        Errno::ENOENT => MonitorError::NotFound(program.clone()),
        errno => MonitorError::NotExecutable(program.clone(), errno),
    })
}

fn monitor_error(why: MonitorError) -> Error {
    Error::Session(SessionError::Monitor(why))
}
