//! Finds the binaries under test.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The path of `amino` or `goanna`, which any user can execute there.
///
/// # Panics
///
/// When it was not built; the message names the command that does.
pub fn binary(name: &str) -> PathBuf {
    static REACHABLE: OnceLock<PathBuf> = OnceLock::new();
    REACHABLE.get_or_init(|| reachable(&profile())).join(name)
}

/// `target/debug` or its like: the test executable is in its `deps`.
fn profile() -> PathBuf {
    let own = std::env::current_exe().expect("the path of the test executable");
    let profile = own
        .ancestors()
        .nth(2)
        .expect("a directory above the test executable")
        .to_owned();
    for name in ["amino", "goanna"] {
        let path = profile.join(name);
        assert!(
            path.is_file(),
            "{} is missing; build it with: cargo build -p goanna-cli --bins",
            path.display()
        );
    }
    profile
}

/// `dir` itself, or a copy of its binaries where an ordinary user may execute them.
fn reachable(dir: &Path) -> PathBuf {
    let open = |dir: &Path| fs::metadata(dir).is_ok_and(|meta| meta.mode() & 0o001 != 0);
    if !crate::is_root() || dir.ancestors().all(open) {
        return dir.to_owned();
    }
    // One directory a build directory, so that nothing piles up; named by inode, which is stable.
    let inode = fs::metadata(dir).expect("the build directory").ino();
    let copies = std::env::temp_dir().join(format!("goanna-tests-binaries-{inode}"));
    fs::create_dir_all(&copies).expect("a directory for copies of the binaries");
    for name in ["amino", "goanna"] {
        let (from, to) = (dir.join(name), copies.join(name));
        let is_current = fs::metadata(&to).is_ok_and(|copy| {
            fs::metadata(&from).is_ok_and(|original| {
                copy.len() == original.len() && copy.mtime() >= original.mtime()
            })
        });
        if !is_current {
            // By a new name first: another test process may be executing the old copy.
            let fresh = copies.join(format!("{name}.{}", std::process::id()));
            fs::copy(&from, &fresh).expect("a copy of a binary");
            fs::rename(&fresh, &to).expect("the copy in its place");
        }
    }
    copies
}
