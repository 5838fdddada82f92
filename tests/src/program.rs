//! Compiles the tracee programs. They are written in C, the language of the kernel's interface.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `programs/NAME.c` to `dir/NAME`, a static executable when `is_static`.
///
/// # Panics
///
/// When there is no C compiler, or it finds an error.
#[track_caller]
pub fn program(name: &str, dir: &Path, is_static: bool) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("programs/{name}.c"));
    let out = dir.join(name);
    let output = Command::new("cc")
        // -w: wrong pointers and sizes are passed on purpose.
        .args(["-std=gnu17", "-O1", "-w", "-pthread", "-o"])
        .arg(&out)
        .arg(&source)
        .args(is_static.then_some("-static"))
        .output()
        .expect("the C compiler cc; on Debian: apt-get install gcc libc6-dev");
    assert!(
        output.status.success(),
        "{}: {}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    out
}

/// Compiles the Go program `source` to the static executable `out`.
///
/// # Panics
///
/// When the compiler finds an error.
#[track_caller]
pub fn go_program(source: &Path, out: &Path) {
    // Built natively, as the user that runs the tests, for the build cache is that user's.
    let output = Command::new("go")
        .args(["build", "-o"])
        .arg(out)
        .arg(source)
        .env("CGO_ENABLED", "0")
        .env("GO111MODULE", "off")
        .env("GOFLAGS", "")
        .output()
        .expect("the Go compiler");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
