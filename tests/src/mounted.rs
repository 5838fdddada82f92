//! Runs a command with one file system mounted, for programs that bring a file system of their own.

use std::error::Error;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use goanna_monitor::{Config, Interception, Reporter, Run, Stubs};
use goanna_passfs::PassFs;
use goanna_vfs::{FileSystem, MountFlags, Mounts};

/// Runs `command` with `fs` mounted at `target`, and returns its exit status. `mountinfo` shows `source`; messages begin with the file system's kind. Called
/// before the process has threads.
pub fn run_mounted(
    fs: impl FnOnce() -> Result<Arc<dyn FileSystem>, Box<dyn Error>>,
    source: &str,
    target: OsString,
    command: Vec<OsString>,
) -> Result<u8, Box<dyn Error>> {
    let signals = goanna_monitor::prepare()?;
    let fs = fs()?;
    let kind = fs.kind();
    let mut mounts = Mounts::new(Arc::new(PassFs::host()?));
    let caller = goanna_monitor::credentials(std::process::id() as i32)?;
    let flags = MountFlags::empty();
    mounts.add(&caller, &target.into_vec(), fs, flags, source.to_owned())?;
    let report = Reporter::new(move |line| eprintln!("{kind}: {line}"));
    let mut config = Config::new(mounts, report);
    config.host_directories = Some(PassFs::shared);
    config.stubs = Stubs::Used;
    let run = Run::new(config)?;
    let outcome = run.command(command, Interception::Auto, &signals)?;
    Ok(outcome.status.exit_code())
}
