//! The common part of the benchmarks: the calls that are measured, the settings they are measured in, and the page that is
//! printed at the end. See `README.md` of this package.
//!
//! A *setting* is a file system on which a program's calls operate: a host directory (`native`), a pass-through mount
//! (`passfs`), an amino store (`amino`), a FUSE mount (`fuse`). One *tracee* (the program `bench-tracee`) lives in
//! each setting for a whole run and times calls on demand, so that settings alternate and the machine's load affects all alike.

mod binaries;
mod lockstep;
mod operation;
mod page;
mod setting;

pub use binaries::{Binaries, build_cli};
pub use lockstep::Lockstep;
pub use operation::Operation;
pub use page::{Page, Row, Unit};
pub use setting::{Kind, Setting};

use std::io;
use std::path::Path;
use std::process::ExitStatus;

use thiserror::Error;

/// Why a benchmark could not continue.
#[derive(Debug, Error)]
pub enum Error {
    /// A call of the benchmark itself failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation and its object.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
    /// A tracee ended, or never began.
    #[error("{kind}: the tracee ended; its standard error:\n{stderr}")]
    Ended {
        /// The setting's name.
        kind: &'static str,
        /// Its messages and those of the monitor.
        stderr: String,
    },
    /// A tracee could not perform a request.
    #[error("{kind}: {request}: {answer}")]
    Refused {
        /// The setting's name.
        kind: &'static str,
        /// The line sent.
        request: String,
        /// The line received.
        answer: String,
    },
    /// The FUSE file system did not appear in time.
    #[error("{kind}: no mount after 10 s; standard error of the FUSE program:\n{stderr}")]
    NoMount {
        /// The setting's name.
        kind: &'static str,
        /// The messages of the FUSE program.
        stderr: String,
    },
    /// An encrypted volume could not be made.
    #[error("{kind}: no new volume; standard error of its program:\n{stderr}")]
    NoVolume {
        /// The setting's name.
        kind: &'static str,
        /// The messages of the program.
        stderr: String,
    },
    /// The program of a requested setting is missing.
    #[error("{kind}: {program} is not there; {advice}")]
    Missing {
        /// The setting's name.
        kind: &'static str,
        /// The program.
        program: &'static str,
        /// How to get it.
        advice: &'static str,
    },
    /// The binaries to measure could not be built.
    #[error("cargo build of amino and goanna: {0}")]
    Build(ExitStatus),
}

impl Error {
    /// An I/O error with what was done to `path`.
    pub fn io<'a>(verb: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + use<'a> {
        move |source| Self::Io {
            what: format!("{verb} {}", path.display()),
            source,
        }
    }
}
