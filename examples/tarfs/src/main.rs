//! Runs a command with a tar archive mounted: `cargo run -p tarfs -- ARCHIVE.tar /mnt ls -lR /mnt`.

use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;
use std::sync::Arc;

use goanna_monitor::{Config, Interception, Reporter, Run};
use goanna_passfs::PassFs;
use goanna_vfs::{MountFlags, Mounts, escape_message};
use tarfs::TarFs;

fn run(archive: OsString, target: OsString, command: Vec<OsString>) -> Result<u8, Box<dyn Error>> {
    let signals = goanna_monitor::prepare()?;
    let mut mounts = Mounts::new(Arc::new(PassFs::host()?));
    let source = archive.to_string_lossy().into_owned();
    let index = File::open(&archive).and_then(TarFs::new);
    let tar = Arc::new(index.map_err(|why| format!("{source}: {why}"))?);
    let caller = goanna_monitor::credentials(std::process::id() as i32)?;
    mounts.add(
        &caller,
        &target.into_vec(),
        tar,
        MountFlags::READ_ONLY,
        source,
    )?;
    let report = Reporter::new(|line| eprintln!("tarfs: {line}"));
    let run = Run::new(Config::new(mounts, report))?;
    let outcome = run.command(command, Interception::Auto, &signals)?;
    Ok(outcome.status.exit_code())
}

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let (Some(archive), Some(target)) = (args.next(), args.next()) else {
        eprintln!("usage: tarfs ARCHIVE.tar MOUNTPOINT COMMAND [ARG...]");
        return ExitCode::from(125);
    };
    run(archive, target, args.collect()).map_or_else(
        |error| {
            eprintln!("tarfs: {}", escape_message(&error.to_string()));
            ExitCode::from(125)
        },
        ExitCode::from,
    )
}
