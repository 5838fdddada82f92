//! Runs a command with a new store mounted in which names are encoded: `encoded STORE MOUNTPOINT COMMAND...`.

use std::error::Error;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use amino_fs::{AminoFs, Options};
use goanna_tests::run_mounted;
use goanna_vfs::FileSystem;
use namesfs::NamesFs;

fn run(mut args: impl Iterator<Item = OsString>) -> Result<u8, Box<dyn Error>> {
    let (Some(store), Some(target)) = (args.next(), args.next()) else {
        return Err("usage: encoded STORE MOUNTPOINT COMMAND...".into());
    };
    let source = store.to_string_lossy().into_owned();
    let encoded = || -> Result<Arc<dyn FileSystem>, Box<dyn Error>> {
        let options = Options {
            create: true,
            ..Options::default()
        };
        let lower = AminoFs::open(Path::new(&store), options)?;
        Ok(Arc::new(NamesFs::new(lower)))
    };
    run_mounted(encoded, &source, target, args.collect())
}

fn main() -> ExitCode {
    run(std::env::args_os().skip(1)).map_or_else(
        |error| {
            eprintln!("encoded: {error}");
            ExitCode::from(125)
        },
        ExitCode::from,
    )
}
