//! Runs a command, and writes the names that it looks up or creates in a mounted directory: `lookups OUT DIR MOUNTPOINT COMMAND...`.

use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use goanna_passfs::PassFs;
use goanna_tests::run_mounted;
use goanna_vfs::{Caller, FileSystem, Node, Opened, Result, forward};

/// Writes a line for each look-up and creation that it forwards.
struct Counted {
    lower: PassFs,
    out: Mutex<File>,
}

impl Counted {
    fn note(&self, what: &str, name: &[u8]) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // The test that reads the file notices missing lines.
        let _ = writeln!(out, "{what} {}", String::from_utf8_lossy(name));
    }
}

impl FileSystem for Counted {
    forward! {
        lower: lower;
        forward: kind root checks_access is_read_only opens_host_files largest_file transactions content identity parent path
            getattr readlink readdir open read_at tmpfile mknod mkdir symlink link link_open unlink rmdir rename write write_at
            truncate fallocate sync behind_link host_path host_file host_dir setattr flags statfs getxattr setxattr listxattr removexattr;
        own: shared_attributes on_host lookup getattr_at create;
    }

    fn lookup(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<Node> {
        self.note("lookup", name);
        self.lower.lookup(caller, dir, name)
    }

    fn create(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Node, Opened)> {
        self.note("create", name);
        self.lower.create(caller, dir, name, mode, flags)
    }
}

fn run(mut args: impl Iterator<Item = OsString>) -> std::result::Result<u8, Box<dyn Error>> {
    let (Some(out), Some(dir), Some(target)) = (args.next(), args.next(), args.next()) else {
        return Err("usage: lookups OUT DIR MOUNTPOINT COMMAND...".into());
    };
    let source = dir.to_string_lossy().into_owned();
    let counted = || -> std::result::Result<Arc<dyn FileSystem>, Box<dyn Error>> {
        Ok(Arc::new(Counted {
            lower: PassFs::new(dir.as_ref())?,
            out: Mutex::new(File::create(out)?),
        }))
    };
    run_mounted(counted, &source, target, args.collect())
}

fn main() -> ExitCode {
    run(std::env::args_os().skip(1)).map_or_else(
        |error| {
            eprintln!("lookups: {error}");
            ExitCode::from(125)
        },
        ExitCode::from,
    )
}
