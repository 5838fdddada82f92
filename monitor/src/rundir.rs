//! The run-time directory: the host objects that stand for virtual ones while a run lasts.
//!
//! ```text
//! goanna-XXXXXX/        0711: tracees that changed user must pass through, nobody may list it
//!   lock                flock'ed while the run lasts; without its owner the directory is litter
//!   d/N                 placeholder of a virtual directory
//!   s/N                 rendezvous of a virtual fifo, socket or device
//!   x/N/NAME            host copy of a program that is executed from a mount
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::statvfs::{FsFlags, statvfs};

const PREFIX: &str = "goanna-";

/// The run-time directory of one run; removed when dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    next: AtomicU64,
    _lock: Flock<File>,
}

impl RunDir {
    /// Makes one, in memory where programs can be executed from there, and clears away what killed monitors
    /// of this user left behind.
    pub fn create() -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        let candidates = [
            PathBuf::from("/dev/shm"),
            std::env::temp_dir(),
            PathBuf::from("/var/tmp"),
        ];
        for base in candidates {
            if statvfs(&base).is_ok_and(|s| s.flags().contains(FsFlags::ST_NOEXEC)) {
                continue;
            }
            clear_litter(&base);
            match Self::create_in(&base) {
                Ok(dir) => return Ok(dir),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn create_in(base: &Path) -> io::Result<Self> {
        let mut random = [0u8; 8];
        io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut random)?;
        let name = format!("{PREFIX}{:016x}", u64::from_ne_bytes(random));
        let path = base.join(&name);
        // Until it is locked it looks like litter, so it has another name.
        let new = base.join(format!(".{name}"));
        DirBuilder::new().mode(0o700).create(&new)?;
        let open = || {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(new.join("lock"))
        };
        let lock = open().and_then(|file| {
            Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
        })?;
        fs::rename(&new, &path)?;
        for name in ["d", "s", "x"] {
            let sub = path.join(name);
            DirBuilder::new().mode(0o711).create(&sub)?;
            fs::set_permissions(&sub, fs::Permissions::from_mode(0o711))?;
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o711))?;
        Ok(Self {
            path,
            next: AtomicU64::new(1),
            _lock: lock,
        })
    }

    /// A path for a new object of class `class` (`d`, `s` or `x`).
    pub fn fresh(&self, class: &str) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.path.join(class).join(number.to_string())
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // What cannot be removed is litter for the next run to clear.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn clear_litter(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_ours = name
            .to_str()
            .is_some_and(|n| n.starts_with(PREFIX) && n.len() == PREFIX.len() + 16);
        if !is_ours || !entry.file_type().is_ok_and(|t| t.is_dir()) {
            continue;
        }
        // Another user's lock file cannot be opened; a running monitor's cannot be locked.
        let Ok(lock) = OpenOptions::new()
            .write(true)
            .open(entry.path().join("lock"))
        else {
            continue;
        };
        if Flock::lock(lock, FlockArg::LockExclusiveNonblock).is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vanishes_when_dropped_and_litter_is_cleared() {
        let base = tempfile::tempdir().unwrap();
        let dir = RunDir::create_in(base.path()).unwrap();
        let path = dir.path().to_owned();
        assert!(path.join("d").is_dir());
        clear_litter(base.path());
        assert!(path.exists(), "a live run's directory was cleared");
        drop(dir);
        assert!(!path.exists());

        let litter = base.path().join("goanna-0123456789abcdef");
        fs::create_dir(&litter).unwrap();
        fs::write(litter.join("lock"), "").unwrap();
        clear_litter(base.path());
        assert!(!litter.exists());
    }
}
