//! A child that shares this process's descriptor table (`CLONE_FILES`): other processes of the user open this process's descriptors by the child's
//! `/proc/PID/fd`.
//!
//! A process that has made itself unreadable ([`super::secret::forbid_reading`]) has no such directory for them. The child is readable, and keeps the memory that this
//! process had when it started, so there must be no secrets by then. [`super::secret::Locked`] is not in it.
#![allow(unsafe_code, reason = "clone(2), and what the child calls")]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::sys::signal::SigSet;

use super::child;

static HOLDER: Mutex<Option<Holder>> = Mutex::new(None);

struct Holder {
    pid: i32,
    /// The child's parent is a thread of its own, so that a thread that waits for its children does not wait for this one.
    parent: JoinHandle<()>,
    /// The thread ends the child when this is dropped.
    lasts: Sender<()>,
}

/// Starts the child, if there is none. It ends with this process, or by [`end`]. EAGAIN: the user has too many processes.
pub fn start() -> Result<(), Errno> {
    let mut holder = HOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    if holder.is_some() {
        return Ok(());
    }
    let (started, pid) = channel();
    let (lasts, ends) = channel();
    let parent = std::thread::Builder::new().name("descriptors".into());
    let parent = parent.spawn(move || keep_child(&started, &ends));
    let parent = parent.map_err(|_| Errno::EAGAIN)?;
    let pid = pid.recv().map_err(|_| Errno::EAGAIN)??;
    *holder = Some(Holder { pid, parent, lasts });
    Ok(())
}

fn keep_child(started: &Sender<Result<i32, Errno>>, ends: &Receiver<()>) {
    // The child has this mask: signals of the terminal do not end it.
    let cloned = SigSet::all().thread_set_mask().and_then(|()| clone_child());
    let _ = started.send(cloned);
    if let Ok(pid) = cloned {
        let _ = ends.recv();
        child::reap(pid);
    }
}

fn clone_child() -> Result<i32, Errno> {
    let parent = std::process::id().cast_signed();
    // SAFETY: the child has a copy of the memory, and makes nothing but system calls. It sends no signal at its end.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES, 0, 0, 0, 0) };
    match Errno::result(pid)? as i32 {
        0 => hold(parent),
        pid => Ok(pid),
    }
}

/// What the child does.
fn hold(parent: i32) -> ! {
    // SAFETY: takes numbers, and a string that ends with a null byte.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, c"descriptors".as_ptr());
        libc::prctl(libc::PR_SET_DUMPABLE, 1);
        // The parent may have ended before its end could be reported.
        while libc::getppid() == parent {
            libc::pause();
        }
        libc::_exit(0)
    }
}

/// The number PID of the directory `/proc/PID/fd` by which other processes open this process's descriptors: the child's, or else this process's own.
pub fn pid() -> u32 {
    let holder = HOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    holder
        .as_ref()
        .map_or_else(std::process::id, |holder| holder.pid.cast_unsigned())
}

/// Ends the child, which otherwise keeps this process's files open for a moment after its end.
pub fn end() {
    let mut holder = HOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(Holder { parent, lasts, .. }) = holder.take() {
        drop(lasts);
        let _ = parent.join();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn descriptors_from_before_and_after_are_open_by_the_child() {
        let identity = |path: String| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
        let before = tempfile::tempfile().unwrap();
        start().unwrap();
        let child = pid();
        assert_ne!(child, std::process::id());
        start().unwrap();
        assert_eq!(pid(), child, "a second one");
        let after = tempfile::tempfile().unwrap();
        for file in [&before, &after] {
            let path = |pid| format!("/proc/{pid}/fd/{}", file.as_raw_fd());
            let own = identity(path(std::process::id())).unwrap();
            assert_eq!(identity(path(child)).unwrap(), own);
        }
        let number = after.as_raw_fd();
        let ino = after.metadata().unwrap().ino();
        drop(after);
        let left = identity(format!("/proc/{child}/fd/{number}"));
        assert!(left.is_err() || left.is_ok_and(|(_, left)| left != ino));
        end();
        assert_eq!(pid(), std::process::id());
        assert!(!std::path::Path::new(&format!("/proc/{child}")).exists());
    }
}
