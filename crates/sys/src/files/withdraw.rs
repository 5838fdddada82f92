//! Takes write access to a file away from a library that has the file open.
#![allow(unsafe_code, reason = "dup3(2) onto descriptors of other owners")]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The descriptors of the calling thread's table.
const DESCRIPTORS: &str = "/proc/thread-self/fd";
const FLAGS: &str = "/proc/thread-self/fdinfo";

/// Makes every descriptor of this process that has the file of `read_only` open for reading and writing a duplicate of
/// `read_only`. From then on the library reads as before, and each of its writes fails with EBADF. A call in progress is not affected. A
/// lock of the former open file description (flock(2)) lasts until these calls have ended. Returns the number of descriptors replaced.
///
/// The caller must keep the library from closing the descriptors meanwhile.
pub fn withdraw_writing(read_only: &File) -> io::Result<usize> {
    let wanted = read_only.metadata()?;
    let is_same = |path: &Path| {
        fs::metadata(path).is_ok_and(|at| (at.dev(), at.ino()) == (wanted.dev(), wanted.ino()))
    };
    let mut replaced = 0;
    for entry in fs::read_dir(DESCRIPTORS)? {
        let entry = entry?;
        let Some(fd) = number(&entry.file_name().to_string_lossy()) else {
            continue;
        };
        if !is_same(&entry.path()) || access(fd) != Some(libc::O_RDWR) {
            continue;
        }
        // SAFETY: the descriptor stays one of the same file, and valid: its owner may go on using it, and closes it. The owner's calls
        // that write fail, which any call may.
        let result = unsafe { libc::dup3(read_only.as_raw_fd(), fd, libc::O_CLOEXEC) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        replaced += 1;
    }
    Ok(replaced)
}

fn number(name: &str) -> Option<RawFd> {
    name.parse().ok()
}

/// The access mode of a descriptor.
fn access(fd: RawFd) -> Option<i32> {
    let info = fs::read_to_string(format!("{FLAGS}/{fd}")).ok()?;
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
    let flags = i32::from_str_radix(flags.trim(), 8).ok()?;
    Some(flags & libc::O_ACCMODE)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;

    #[test]
    fn a_withdrawn_descriptor_reads_and_does_not_write_and_gives_its_lock_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut owned = File::create_new(&path).unwrap();
        owned.write_all(b"content").unwrap();
        drop(owned);
        let options = || fs::OpenOptions::new().read(true).write(true).clone();
        let mut owned = options().open(&path).unwrap();
        owned.try_lock().unwrap();
        let mut other = options()
            .create(true)
            .open(dir.path().join("other"))
            .unwrap();
        let read_only = File::open(&path).unwrap();
        assert!(read_only.try_lock().is_err());
        assert_eq!(withdraw_writing(&read_only).unwrap(), 1);
        read_only.try_lock().unwrap();
        assert_eq!(
            owned.write(b"x").unwrap_err().raw_os_error(),
            Some(libc::EBADF)
        );
        other.write_all(b"not withdrawn").unwrap();
        owned.rewind().unwrap();
        let mut text = String::new();
        owned.read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        // The lock now belongs to the description that both share.
        drop(read_only);
        let third = File::open(&path).unwrap();
        assert!(third.try_lock().is_err());
        drop(owned);
        third.try_lock().unwrap();
    }
}
