//! The suites: what each is, its script, and the format of its output.
//!
//! A suite is a script in `suites/`, which gets it and runs it (`suites/common.sh` says what a script defines), and a row here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::outcome::Format;

/// A suite of tests that others have written.
#[derive(Debug)]
pub struct Suite {
    /// The name on the command line, in messages and in the list of explained differences.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// The script's text.
    script: &'static str,
    /// How its output names cases and outcomes.
    pub format: Format,
    /// A run that takes longer hangs.
    pub limit: Duration,
}

/// The functions that the scripts share.
const COMMON: &str = include_str!("suites/common.sh");

macro_rules! suites {
    ($($name:literal, $format:ident, $minutes:literal, $about:literal;)*) => {
        /// All suites, the quick ones first.
        pub const SUITES: &[Suite] = &[$(Suite {
            name: $name,
            about: $about,
            script: include_str!(concat!("suites/", $name, ".sh")),
            format: Format::$format,
            limit: Duration::from_secs($minutes * 60),
        }),*];
    };
}

suites! {
    "posixtest", Go, 10, "go-fuse's tests of POSIX calls (Go module; needs go)";
    "pjdfstest", Pjdfstest, 20, "errnos and rights of calls on names (crate; needs cargo)";
    "fsx", Lines, 10, "random reads, writes and mappings of one file (crate; needs cargo)";
    "go", Go, 20, "Go's tests of os, path/filepath and io/ioutil (needs go)";
    "cpython", Junit, 40, "CPython's tests of files (Debian package)";
    "stress-ng", Lines, 40, "stress-ng's classes filesystem and io, with --verify (Debian package)";
    "coreutils", Automake, 120, "coreutils' make check (Debian source; needs gcc and make)";
}

impl Suite {
    /// Gets the suite, unless that was done before, and returns its directory, which all users can read. It is below the directory for
    /// temporary files: nothing of a suite gets into the source tree.
    ///
    /// # Errors
    ///
    /// Why it cannot be had.
    pub fn get(&self) -> Result<PathBuf, String> {
        let dir = std::env::temp_dir().join("goanna-judge").join(self.name);
        // The mark has the script by which the suite was made.
        let mark = dir.join("made-by");
        if fs::read_to_string(&mark).is_ok_and(|made_by| made_by == self.script) {
            return Ok(dir);
        }
        eprintln!("judge: getting {} into {}", self.name, dir.display());
        let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
        if dir.exists() {
            fs::remove_dir_all(&dir).map_err(failed)?;
        }
        fs::create_dir_all(&dir).map_err(failed)?;
        let script = format!(
            "set -euo pipefail\numask 022\n{COMMON}\n{}\nget\n",
            self.script
        );
        let made = Command::new("/bin/bash")
            .args(["-c", &script])
            .current_dir(&dir)
            .output()
            .map_err(failed)?;
        if !made.status.success() {
            let errors = String::from_utf8_lossy(&made.stderr);
            return Err(format!("{} cannot be had: {}", self.name, errors.trim()));
        }
        fs::write(&mark, self.script).map_err(failed)?;
        Ok(dir)
    }

    /// The script that runs the suite, which is in `dir`, below `top`, a directory in the place under test.
    pub fn run_script(&self, dir: &Path, top: &Path) -> String {
        format!(
            "export SUITE='{}' TOP='{}'\nexport TMPDIR=$TOP/tmp\nmkdir -p \"$TOP/work\" \"$TMPDIR\" && cd \"$TOP/work\" || exit\n\
             {COMMON}\n{}\nrun\n",
            dir.display(),
            top.display(),
            self.script
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_defines_get_and_run() {
        for suite in SUITES {
            for function in ["get() {", "run() {"] {
                let found = suite.script.lines().any(|line| line == function);
                assert!(found, "{}: {function}", suite.name);
            }
        }
    }
}
