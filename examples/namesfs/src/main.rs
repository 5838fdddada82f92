//! Runs a command with a host directory mounted whose names are encoded: `cargo run -p namesfs -- DIR /mnt bash`.

use std::error::Error;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;
use std::sync::Arc;

use goanna_monitor::{Config, Interception, Reporter, Run};
use goanna_passfs::PassFs;
use goanna_vfs::{MountFlags, Mounts, escape_message};
use namesfs::NamesFs;

fn run(dir: OsString, target: OsString, command: Vec<OsString>) -> Result<u8, Box<dyn Error>> {
    let signals = goanna_monitor::prepare()?;
    let mut mounts = Mounts::new(Arc::new(PassFs::host()?));
    let source = dir.to_string_lossy().into_owned();
    let lower = PassFs::new(dir.as_ref()).map_err(|why| format!("{source}: {why}"))?;
    let names = Arc::new(NamesFs::new(Arc::new(lower)));
    let caller = goanna_monitor::credentials(std::process::id() as i32)?;
    let flags = MountFlags::empty();
    mounts.add(&caller, &target.into_vec(), names, flags, source)?;
    let report = Reporter::new(|line| eprintln!("namesfs: {line}"));
    let run = Run::new(Config::new(mounts, report))?;
    let outcome = run.command(command, Interception::Auto, &signals)?;
    Ok(outcome.status.exit_code())
}

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let (Some(dir), Some(target)) = (args.next(), args.next()) else {
        eprintln!("usage: namesfs DIR MOUNTPOINT COMMAND [ARG...]");
        return ExitCode::from(125);
    };
    run(dir, target, args.collect()).map_or_else(
        |error| {
            eprintln!("namesfs: {}", escape_message(&error.to_string()));
            ExitCode::from(125)
        },
        ExitCode::from,
    )
}
