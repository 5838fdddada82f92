//! What /proc shows of a task if its name, or names of its files, are not UTF-8 or look like something else.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "tests map files")]

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use goanna_sys::{procfs, sched};

/// Maps `size` bytes of a new file for as long as the process lives.
fn map(dir: &Path, name: &[u8], size: usize) {
    let file = File::create_new(dir.join(OsStr::from_bytes(name))).unwrap();
    file.set_len(size as u64).unwrap();
    let file = File::open(dir.join(OsStr::from_bytes(name))).unwrap();
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: new memory, at a place that the kernel chooses.
    let start = unsafe {
        let fd = file.as_raw_fd();
        libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ, flags, fd, 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
}

/// The injector reads the whole of the vDSO. A file with that name once took its place, however large it was, and a file whose name is no
/// UTF-8 hid it.
#[test]
fn the_vdso_is_found_among_files_of_any_name() {
    let own = std::process::id().cast_signed();
    // SAFETY: no pointers.
    let start = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    let dir = tempfile::tempdir().unwrap();
    for (name, size) in [
        (&b"a [vdso]"[..], 1 << 40),
        (b"[vdso]", 4096),
        (b"\xff", 4096),
        (b" \n0-1 r-xp 0 0:0 0 [vdso]", 4096),
    ] {
        map(dir.path(), name, size);
        let found = procfs::vdso(own).unwrap();
        assert_eq!(found.0, start, "{}", name.escape_ascii());
        assert!(found.1 > start && found.1 - start < 1 << 20);
    }
}

/// A thread's name is in its stat and its sched. Without these, the monitor does not know for how long a call has waited.
#[test]
fn a_thread_of_any_name_has_a_schedule() {
    let named = std::thread::Builder::new().spawn(|| {
        // SAFETY: a string; a number.
        let tid = unsafe {
            libc::prctl(libc::PR_SET_NAME, c"\xff) S 1 (\xfe".as_ptr());
            libc::gettid()
        };
        sched::sleeps(tid).and_then(|_| sched::sleep(tid))
    });
    let with_name = named.unwrap().join().unwrap();
    // SAFETY: a number.
    let without = sched::sleep(unsafe { libc::gettid() });
    assert_eq!(with_name.is_ok(), without.is_ok(), "{with_name:?}");
}
