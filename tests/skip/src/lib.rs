//! Leaves out a test where the machine lacks what the test needs, and records that.
//!
//! libtest counts a test that returns early as passed. So a test that cannot run calls [`skip`] before it returns:
//!
//! * The reason goes to stderr, and is appended to the file that `GOANNA_SKIPPED` names. `cargo xtask ci` lists these lines at
//!   its end, and subtracts the tests from those that passed.
//! * Where `GOANNA_STRICT=1` is set, as `.ci/run` does, the test fails instead, unless `GOANNA_WITHOUT` names the facility. It is a
//!   list of [`Facility`] names with commas between them.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;

/// What a machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Facility {
    /// The tests run as root.
    Root,
    /// Files can be attached to loop devices.
    LoopDevices,
    /// `/dev/fuse` can be opened.
    Fuse,
    /// File systems can be mounted.
    Mounts,
    /// A user namespace can be made.
    UserNamespaces,
    /// The directory for temporary files keeps attributes `user.*`.
    UserAttributes,
    /// A program can be executed from a memfd (the sysctl `vm.memfd_noexec`).
    ExecutableMemory,
    /// Calls can be answered in the process (`goanna check`).
    Stubs,
    /// A process can set breakpoints in itself by perf_event_open(2).
    Breakpoints,
    /// The kernel is the one whose lists are recorded.
    RecordedKernel,
    /// A program that `.ci/run` installs.
    Program,
}

impl Facility {
    /// The name in `GOANNA_WITHOUT`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::LoopDevices => "loop",
            Self::Fuse => "fuse",
            Self::Mounts => "mounts",
            Self::UserNamespaces => "userns",
            Self::UserAttributes => "xattr",
            Self::ExecutableMemory => "memfd-exec",
            Self::Stubs => "stubs",
            Self::Breakpoints => "breakpoints",
            Self::RecordedKernel => "kernel",
            Self::Program => "program",
        }
    }
}

/// Records that the calling test leaves something out, because the machine lacks `facility`; `why` says more.
///
/// # Panics
///
/// With `GOANNA_STRICT=1`, unless `GOANNA_WITHOUT` names the facility.
pub fn skip(facility: Facility, why: impl fmt::Display) {
    let line = format!("{}: {why} ({})", test_name(), facility.name());
    let is_strict = std::env::var_os("GOANNA_STRICT").is_some_and(|value| value == "1");
    let without = std::env::var("GOANNA_WITHOUT").unwrap_or_default();
    assert!(
        !is_strict || is_listed(facility, &without),
        "{line}: with GOANNA_STRICT=1 no test may be left out for that"
    );
    eprintln!("not run: {line}");
    let Some(path) = std::env::var_os("GOANNA_SKIPPED") else {
        return;
    };
    let file = OpenOptions::new().append(true).create(true).open(&path);
    // One write, because other test processes append to the file, too.
    let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    if let Err(why) = written {
        eprintln!("{}: {why}", path.display());
    }
}

fn is_listed(facility: Facility, without: &str) -> bool {
    without
        .split(',')
        .any(|name| name.trim() == facility.name())
}

/// The test binary without the hash that cargo gives it, and the test, whose name libtest gives to its thread.
fn test_name() -> String {
    let exe = std::env::current_exe().unwrap_or_default();
    let stem = exe.file_stem().unwrap_or_default().to_string_lossy();
    let binary = stem
        .rsplit_once('-')
        .map_or(stem.as_ref(), |(name, _)| name);
    let thread = std::thread::current();
    format!("{binary}::{}", thread.name().unwrap_or("?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facilities_are_listed_by_name() {
        assert!(is_listed(Facility::LoopDevices, "root,loop"));
        assert!(is_listed(Facility::Fuse, " fuse "));
        assert!(!is_listed(Facility::Root, ""));
        assert!(!is_listed(Facility::Root, "roots"));
    }

    #[test]
    fn a_test_is_named_by_its_binary_and_its_thread() {
        assert_eq!(
            test_name(),
            "goanna_skip::tests::a_test_is_named_by_its_binary_and_its_thread"
        );
    }
}
