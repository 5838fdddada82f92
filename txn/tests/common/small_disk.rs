//! A small disk: a tmpfs of its own. Mounting needs root, so without it the tests that need one say so and do nothing.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;

use goanna_skip::{Facility, skip};

/// A file system of its own. Unmounted when dropped.
pub struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// One of `mib` MiB; `None` when this user cannot mount it.
    pub fn mount(mib: u32) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs"])
            .arg(dir.path())
            .output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(dir));
        }
        skip(Facility::Mounts, "no tmpfs can be mounted");
        None
    }

    /// Where the store is.
    pub fn store(&self) -> PathBuf {
        self.0.path().join("s")
    }

    /// What others have on the disk.
    pub fn others(&self) -> PathBuf {
        self.0.path().join("others")
    }

    /// Others take every byte that is left.
    pub fn fill(&self) {
        let options = File::options()
            .append(true)
            .create(true)
            .open(self.others());
        let mut file = options.unwrap();
        let mut len = 1 << 20;
        while len > 0 {
            // Of what does not fit, a part is written before it fails.
            if let Err(error) = file.write_all(&vec![1; len]) {
                assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
                len /= 2;
            }
        }
    }

    /// Removes the file that fills the disk.
    pub fn free_space(&self) {
        fs::remove_file(self.others()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}
