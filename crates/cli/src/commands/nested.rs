//! `amino run` inside of a run: the command joins the run, if that has the store mounted.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use goanna_monitor::Error as MonitorError;
use goanna_session::Error as SessionError;
use goanna_vfs::{Errno, mount_list};

use super::txn;
use crate::args::Verbosity;
use crate::args::amino::Run;
use crate::args::common::{Durability, Intercept, Outside};
use crate::error::Error;

/// Runs the command in the run that this process is in. Without a named store it uses the mounted one.
pub fn run(args: &Run, verbosity: Verbosity) -> Result<u8, Error> {
    if let Some(option) = option_of_outermost(args) {
        return Err(Error::OutermostOnly(option));
    }
    let mounted = mounted_store(&args.at);
    let named = args.store.store.as_ref();
    let is_it = |store: &PathBuf| named.is_none_or(|dir| is_same(dir, store));
    if !mounted.as_ref().is_some_and(is_it) {
        let at = args.at.clone();
        return Err(Error::OtherStore { mounted, at });
    }
    let command = &args.options.run.command;
    if args.txn {
        return txn::run(command, 0, verbosity);
    }
    Err(execute(command))
}

/// The first option that concerns a whole run.
fn option_of_outermost(args: &Run) -> Option<&'static str> {
    let options = &args.options;
    let given = [
        (args.durability != Durability::Commit, "--durability"),
        (args.engine.is_some(), "--engine"),
        (args.keep_log.is_some(), "--keep-log"),
        (args.profile.is_some(), "--profile"),
        (!options.mount.is_empty(), "--mount"),
        (options.config.is_some(), "--config"),
        (options.trace.is_some(), "--trace"),
        (options.stats.is_some(), "--stats"),
        (options.outside != Outside::Allow, "--outside"),
        (options.intercept != Intercept::Auto, "--intercept"),
        (options.no_fast_path, "--no-fast-path"),
    ];
    let mut given = given.into_iter();
    given.find_map(|(is_given, option)| is_given.then_some(option))
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
