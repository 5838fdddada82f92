//! Memfds: identity, reopening, holes, and leases that show whether another process has one open.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(
    unsafe_code,
    reason = "tests map memory, duplicate descriptors and fork"
)]

mod common;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use common::everyone;
use goanna_skip::{Facility, skip};
use goanna_sys::memfile::{
    create, data_segments, open_for_write_elsewhere, pread, punch, pwrite, reopen, set_len,
    sole_opener,
};
use goanna_sys::{Errno, stat};

#[test]
fn reopened_descriptors_have_offsets_and_flags_of_their_own() {
    everyone(
        "reopened_descriptors_have_offsets_and_flags_of_their_own",
        || {
            let file = create(c"name").unwrap();
            assert_eq!(pwrite(file.as_fd(), b"0123456789", 5), Ok(10));
            let a = reopen(file.as_fd(), libc::O_RDONLY).unwrap();
            let b = reopen(file.as_fd(), libc::O_RDWR | libc::O_APPEND).unwrap();
            let identity = stat::identity(file.as_fd()).unwrap();
            assert_eq!(stat::identity(a.as_fd()), Ok(identity));
            assert_ne!(
                stat::identity(create(c"name").unwrap().as_fd()),
                Ok(identity)
            );
            assert_eq!(pwrite(a.as_fd(), b"x", 0), Err(Errno::EBADF));
            let mut buf = [1; 20];
            assert_eq!(pread(a.as_fd(), &mut buf, 0), Ok(15));
            assert_eq!(&buf[..15], b"\0\0\0\0\x000123456789");
            assert_eq!(pread(a.as_fd(), &mut buf, 15), Ok(0));
            assert_eq!(pread(a.as_fd(), &mut buf, u64::MAX), Err(Errno::EINVAL));
            // SAFETY: integers only.
            let flags = unsafe { libc::fcntl(b.as_raw_fd(), libc::F_GETFL) };
            assert_ne!(flags & libc::O_APPEND, 0);
            // SAFETY: integers only.
            let flags = unsafe { libc::fcntl(b.as_raw_fd(), libc::F_GETFD) };
            assert_eq!(flags, libc::FD_CLOEXEC);
        },
    );
}

#[test]
fn holes_are_found_and_made() {
    everyone("holes_are_found_and_made", || {
        let file = create(c"holes").unwrap();
        let fd = file.as_fd();
        set_len(fd, 1 << 20).unwrap();
        assert_eq!(data_segments(fd, 0, 1 << 20), Ok(vec![]));
        pwrite(fd, &[1; 4096 * 4], 4096 * 2).unwrap();
        pwrite(fd, b"x", 4096 * 100).unwrap();
        let all = vec![(4096 * 2, 4096 * 4), (4096 * 100, 4096)];
        assert_eq!(data_segments(fd, 0, u64::MAX), Ok(all));
        assert_eq!(
            data_segments(fd, 4096 * 3 + 7, 4096 * 4),
            Ok(vec![(4096 * 3 + 7, 4089)])
        );
        punch(fd, 4096 * 3, 4096).unwrap();
        punch(fd, 0, 0).unwrap();
        let torn = vec![(4096 * 2, 4096), (4096 * 4, 4096 * 2)];
        assert_eq!(data_segments(fd, 0, 4096 * 100), Ok(torn));
        assert_eq!(stat::fstat(fd).unwrap().st_size, 1 << 20);
        assert_eq!(set_len(fd, u64::MAX), Err(Errno::EINVAL));
        assert_eq!(data_segments(fd, 1 << 21, 1 << 22), Ok(vec![]));
    });
}

/// What both questions answer: (sole opener, open for writing elsewhere).
fn asked(fd: BorrowedFd<'_>) -> (bool, bool) {
    (sole_opener(fd), open_for_write_elsewhere(fd))
}

const ALONE: (bool, bool) = (true, false);
const READ: (bool, bool) = (false, false);
const WRITTEN: (bool, bool) = (false, true);

fn map(fd: &OwnedFd, access: i32, flags: i32) -> *mut libc::c_void {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, flags, fd.as_raw_fd(), 0) };
    assert_ne!(page, libc::MAP_FAILED);
    page
}

fn unmap(page: *mut libc::c_void) {
    // SAFETY: mapped by `map`, and nobody looks at it any more.
    unsafe { libc::munmap(page, 4096) };
}

#[test]
fn leases_see_descriptors_of_this_process() {
    everyone("leases_see_descriptors_of_this_process", || {
        let file = create(c"leases").unwrap();
        let fd = file.as_fd();
        pwrite(fd, &[0; 4096], 0).unwrap();
        assert_eq!(asked(fd), ALONE);
        let reader = reopen(fd, libc::O_RDONLY).unwrap();
        assert_eq!(asked(fd), READ);
        assert_eq!(
            asked(reader.as_fd()),
            ALONE,
            "asked through the only reader"
        );
        let writer = reopen(fd, libc::O_RDWR).unwrap();
        assert_eq!(asked(fd), WRITTEN);
        assert_eq!(asked(reader.as_fd()), WRITTEN);
        let duplicate = writer.try_clone().unwrap();
        drop(writer);
        drop(reader);
        assert_eq!(asked(fd), WRITTEN, "the description lives on");
        drop(duplicate);
        assert_eq!(asked(fd), ALONE);
        let write_only = reopen(fd, libc::O_WRONLY).unwrap();
        assert_eq!(asked(fd), WRITTEN);
        drop(write_only);
        let path = reopen(fd, libc::O_PATH).unwrap();
        assert_eq!(asked(fd), ALONE, "O_PATH is no opener");
        drop(path);
        let copy = file.try_clone().unwrap();
        assert_eq!(asked(fd), ALONE, "nor is the created description itself");
        drop(copy);
        let foreign = create(c"other").unwrap();
        let _writer = reopen(foreign.as_fd(), libc::O_RDWR).unwrap();
        assert_eq!(asked(fd), ALONE);
    });
}

#[test]
fn leases_see_mappings_that_outlive_their_descriptor() {
    everyone("leases_see_mappings_that_outlive_their_descriptor", || {
        let file = create(c"mapped").unwrap();
        let fd = file.as_fd();
        pwrite(fd, &[0; 4096], 0).unwrap();
        let both = libc::PROT_READ | libc::PROT_WRITE;
        for (open, access, flags, expected) in [
            (libc::O_RDONLY, libc::PROT_READ, libc::MAP_SHARED, READ),
            (libc::O_RDONLY, both, libc::MAP_PRIVATE, READ),
            (libc::O_RDWR, both, libc::MAP_SHARED, WRITTEN),
            (libc::O_RDWR, libc::PROT_READ, libc::MAP_SHARED, WRITTEN),
            (libc::O_RDWR, libc::PROT_READ, libc::MAP_PRIVATE, WRITTEN),
        ] {
            let opened = reopen(fd, open).unwrap();
            let page = map(&opened, access, flags);
            drop(opened);
            assert_eq!(asked(fd), expected, "{open} {access} {flags}");
            unmap(page);
            assert_eq!(asked(fd), ALONE);
        }
    });
}

/// A forked child that runs `act` when told, then waits to be killed.
fn in_child(act: impl FnOnce()) -> i32 {
    let mut ends = [0; 2];
    // SAFETY: space for two descriptors; the child makes few and simple calls before it pauses.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        let pid = libc::fork();
        if pid == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            act();
            libc::write(ends[1], b"x".as_ptr().cast(), 1);
            loop {
                libc::pause();
            }
        }
        let mut byte = 0u8;
        assert_eq!(libc::read(ends[0], (&raw mut byte).cast(), 1), 1);
        pid
    }
}

fn kill(pid: i32) {
    // SAFETY: our own child.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}

#[test]
fn leases_see_other_processes() {
    everyone("leases_see_other_processes", || {
        let file = create(c"shared").unwrap();
        let fd = file.as_fd();
        pwrite(fd, &[0; 4096], 0).unwrap();
        let pid = in_child(|| {});
        assert_eq!(
            asked(fd),
            ALONE,
            "inherited: the created description itself"
        );
        kill(pid);
        let pid = in_child(|| std::mem::forget(reopen(fd, libc::O_RDONLY).unwrap()));
        assert_eq!(asked(fd), READ);
        kill(pid);
        let pid = in_child(|| {
            let opened = reopen(fd, libc::O_RDWR).unwrap();
            map(
                &opened,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
            );
        });
        assert_eq!(asked(fd), WRITTEN, "mapped there, closed there");
        kill(pid);
        assert_eq!(asked(fd), ALONE);
        let opened = reopen(fd, libc::O_RDWR).unwrap();
        let pid = in_child(|| {});
        drop(opened);
        assert_eq!(asked(fd), WRITTEN, "inherited there, closed here");
        kill(pid);
        assert_eq!(asked(fd), ALONE);
    });
}

/// Asking must neither kill the process by SIGIO nor fail an opener that comes in between.
#[test]
fn openers_and_askers_do_not_hurt_each_other() {
    everyone("openers_and_askers_do_not_hurt_each_other", || {
        let file = create(c"race").unwrap();
        let fd = file.as_fd();
        std::thread::scope(|scope| {
            let opener = scope.spawn(|| {
                for _ in 0..5000 {
                    drop(reopen(fd, libc::O_RDWR).unwrap());
                }
            });
            while !opener.is_finished() {
                asked(fd);
            }
        });
        assert_eq!(asked(fd), ALONE);
    });
}

/// A program can be executed from a memfd.
#[test]
fn memfds_can_be_executed() {
    everyone("memfds_can_be_executed", || {
        let forbidden = std::fs::read_to_string("/proc/sys/vm/memfd_noexec");
        if forbidden.is_ok_and(|value| value.trim() == "2") {
            skip(Facility::ExecutableMemory, "vm.memfd_noexec forbids it");
            return;
        }
        let file = create(c"true").unwrap();
        pwrite(file.as_fd(), &std::fs::read("/bin/true").unwrap(), 0).unwrap();
        let program = reopen(file.as_fd(), libc::O_RDONLY).unwrap();
        drop(file);
        let path = format!("/proc/{}/fd/{}", std::process::id(), program.as_raw_fd());
        assert!(std::process::Command::new(path).status().unwrap().success());
    });
}
