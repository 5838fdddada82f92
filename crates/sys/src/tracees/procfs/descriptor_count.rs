//! Whether processes can be given further descriptors.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fstat};

use super::fds;
use crate::limits;

/// Counts the descriptors of processes. A process that makes files asks again and again, so the directory of its descriptors in `/proc` stays open for the next
/// time.
#[derive(Debug, Default)]
pub struct DescriptorCount {
    last: Mutex<Option<(i32, OwnedFd)>>,
}

impl DescriptorCount {
    /// Whether process or thread `tid` can be given a further descriptor: a number below its limit is free. ESRCH when it has ended.
    pub fn is_below_limit(&self, tid: i32) -> Result<bool, Errno> {
        let limit = limits::prlimit_nofile(tid)?;
        let count = self.count(tid)?;
        if count > 0 && count < limit {
            return Ok(true);
        }
        // Before Linux 6.2 the count was 0. Some of the descriptors may lie above a limit that has been lowered.
        let below = |&fd: &i32| u64::try_from(fd).is_ok_and(|fd| fd < limit);
        let taken = fds(tid)?.iter().filter(|fd| below(fd)).count();
        Ok((taken as u64) < limit)
    }

    /// The number of descriptors of `tid`, which is the size of their directory.
    fn count(&self, tid: i32) -> Result<u64, Errno> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // The directory of a thread that has ended has no size, even if another thread has its number by now.
        if let Some((of, dir)) = &*last
            && *of == tid
            && let Ok(count) = size(dir)
        {
            return Ok(count);
        }
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let path = format!("/proc/{tid}/fd");
        let dir =
            nix::fcntl::open(path.as_str(), flags, Mode::empty()).map_err(|errno| match errno {
                Errno::ENOENT => Errno::ESRCH,
                other => other,
            })?;
        let count = size(&dir)?;
        *last = Some((tid, dir));
        Ok(count)
    }
}

fn size(dir: &OwnedFd) -> Result<u64, Errno> {
    let size = fstat(dir)?.st_size;
    Ok(size.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_count_is_that_of_now_and_of_the_process_that_is_asked_for() {
        let counts = DescriptorCount::default();
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // From its answer on it opens nothing more.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let theirs = child.id().cast_signed();
        let own = std::process::id().cast_signed();
        let before = counts.count(own).unwrap();
        let files: Vec<File> = (0..50).map(|_| File::open("/").unwrap()).collect();
        assert!(counts.count(own).unwrap() >= before + 40);
        drop(files);
        let listed = fds(theirs).unwrap().len() as u64;
        assert_eq!(counts.count(theirs), Ok(listed));
        assert_eq!(counts.is_below_limit(theirs), Ok(true));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(counts.count(theirs), Err(Errno::ESRCH));
    }
}
