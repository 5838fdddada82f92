//! Finds the measured programs.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Error;

/// The programs that a run needs. A setting whose program is missing is left out.
#[derive(Debug, Clone)]
pub struct Binaries {
    /// `bench-tracee`.
    pub tracee: PathBuf,
    /// `amino`.
    pub amino: Option<PathBuf>,
    /// `goanna`.
    pub goanna: Option<PathBuf>,
    /// libfuse's `passthrough_ll`, from the environment variable `GOANNA_FUSE_PASSTHROUGH`.
    pub fuse: Option<PathBuf>,
    /// `gocryptfs`, from `$PATH`.
    pub gocryptfs: Option<PathBuf>,
}

impl Binaries {
    /// Looks for `amino` and `goanna` in `$GOANNA_BIN_DIR`, else beside `tracee`.
    pub fn beside(tracee: &Path) -> Self {
        let dir = env::var_os("GOANNA_BIN_DIR")
            .map(PathBuf::from)
            .or_else(|| tracee.parent().map(Path::to_path_buf))
            .unwrap_or_default();
        let there = |name: &str| Some(dir.join(name)).filter(|path| path.is_file());
        Self {
            tracee: tracee.to_path_buf(),
            amino: there("amino"),
            goanna: there("goanna"),
            fuse: env::var_os("GOANNA_FUSE_PASSTHROUGH").map(PathBuf::from),
            gocryptfs: in_path("gocryptfs"),
        }
    }
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = env::split_paths(&path).map(|directory| directory.join(program));
    places.find(|place| place.is_file())
}

/// Builds `amino` and `goanna` in release mode into `target_dir`, so that a run never measures an outdated monitor.
///
/// Does nothing when `$GOANNA_BIN_DIR` names the binaries to measure.
///
/// # Errors
///
/// cargo cannot be started, or the build fails.
pub fn build_cli(target_dir: &Path) -> Result<(), Error> {
    if env::var_os("GOANNA_BIN_DIR").is_some() {
        return Ok(());
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut build = Command::new(cargo);
    build
        .args(["build", "--release", "--package", "goanna-cli", "--bins"])
        .arg("--manifest-path")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"))
        .arg("--target-dir")
        .arg(target_dir)
        .stdin(Stdio::null());
    let status = build
        .status()
        .map_err(Error::io("start cargo to build in", target_dir))?;
    if status.success() {
        Ok(())
    } else {
        Err(Error::Build(status))
    }
}
