//! Fuzz targets: each is a reader of bytes that others may have written. Any bytes must give values or errors: no panic, and
//! no time or memory without bound.
//!
//! `cargo xtask fuzz TARGET` runs a target under libFuzzer. `tests/seeds.rs` changes the seeds at random in each run of the tests, without
//! libFuzzer. Checksums are corrected before a format that has them is read: otherwise nearly all inputs would fail there.

mod checksums;
mod targets;

use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use targets::{filter, image, library, recording, replay, store, trace, volume};

/// A reader, and inputs for it.
#[derive(Debug)]
pub struct Target {
    /// Its name on the command line.
    pub name: &'static str,
    /// Reads an input.
    pub read: fn(&[u8]),
    /// Valid inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    // Images of ISO 9660.
    Target {
        name: "image",
        read: image::read,
        seeds: image::seeds,
    },
    // Traces: reading them, and all tools.
    Target {
        name: "trace",
        read: trace::read,
        seeds: trace::seeds,
    },
    // Traces, compiled to replays.
    Target {
        name: "compile",
        read: trace::compile,
        seeds: trace::seeds,
    },
    // Files of keys for anonymizing.
    Target {
        name: "keys",
        read: trace::read_keys,
        seeds: trace::key_seeds,
    },
    // Expressions of input filters.
    Target {
        name: "filter",
        read: filter::read,
        seeds: filter::seeds,
    },
    // Compiled replays.
    Target {
        name: "replay",
        read: replay::read,
        seeds: replay::seeds,
    },
    // Text of strace.
    Target {
        name: "strace",
        read: recording::strace,
        seeds: recording::strace_seeds,
    },
    // Logs of fio.
    Target {
        name: "fio",
        read: recording::fio,
        seeds: recording::fio_seeds,
    },
    // Records, frames of the log, and dumps of a store.
    Target {
        name: "store",
        read: store::read,
        seeds: store::seeds,
    },
    // Configuration, names and contents of encrypted volumes.
    Target {
        name: "volume",
        read: volume::read,
        seeds: volume::seeds,
    },
    // Libraries of tracees, in which calls are patched.
    Target {
        name: "library",
        read: library::read,
        seeds: library::seeds,
    },
];

impl Target {
    /// Writes the seeds into `directory`, a file each.
    pub fn write_seeds(&self, directory: &Path) -> io::Result<()> {
        std::fs::create_dir_all(directory)?;
        for (number, seed) in (self.seeds)().iter().enumerate() {
            std::fs::write(directory.join(format!("seed-{number}")), seed)?;
        }
        Ok(())
    }
}

/// A directory for files of this thread. Tests of several targets run at the same time.
fn scratch() -> io::Result<PathBuf> {
    thread_local! {
        static SCRATCH: io::Result<TempDir> = tempfile::tempdir();
    }
    SCRATCH.with(|scratch| match scratch {
        Ok(directory) => Ok(directory.path().to_owned()),
        Err(why) => Err(io::Error::new(why.kind(), why.to_string())),
    })
}
