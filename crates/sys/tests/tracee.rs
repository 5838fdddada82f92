//! Tracee memory: whole, partial, at the end of mappings, read-only, and where process_vm_* is refused.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(unsafe_code, reason = "tests map memory and fork")]

mod common;

use common::{everyone, filter, launch_self, tracee_role};
use goanna_sys::Errno;
use goanna_sys::launch::launch;
use goanna_sys::ptrace::{Status, wait};
use goanna_sys::tracee::{
    IOV_MAX, IOVEC_SIZE, MAX_RW_COUNT, parse_iovecs, read, read_cstr, read_exact, read_vec, write,
    write_all, write_vec,
};

const PAGE: u64 = 4096;

/// A child that waits, with two pages of its own at `base`, then a page it may only read, then nothing mapped.
struct Child {
    pid: i32,
    base: u64,
}

impl Child {
    fn new() -> Self {
        // SAFETY: new memory of our own; the child makes async-signal-safe calls only.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let base = libc::mmap(std::ptr::null_mut(), 4 * 4096, access, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            base.cast::<u8>().write_bytes(b'x', 4 * 4096);
            assert_eq!(libc::munmap(base.add(3 * 4096), 4096), 0);
            assert_eq!(libc::mprotect(base.add(2 * 4096), 4096, libc::PROT_READ), 0);
            let pid = libc::fork();
            assert!(pid >= 0);
            if pid == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                loop {
                    libc::pause();
                }
            }
            // Ours differs from the child's from here on.
            base.cast::<u8>().write_bytes(b'o', 2 * 4096);
            Self {
                pid,
                base: base as u64,
            }
        }
    }

    fn end(&self) -> u64 {
        self.base + 3 * PAGE
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

fn bytes() {
    let child = Child::new();
    let (pid, base, end) = (child.pid, child.base, child.end());
    let mut buf = [0; 8192];
    assert_eq!(read(pid, base, &mut buf), Ok(8192));
    assert!(buf.iter().all(|&byte| byte == b'x'), "the child's memory");
    assert_eq!(read(pid, end - 100, &mut buf), Ok(100));
    assert_eq!(read(pid, end, &mut buf), Err(Errno::EFAULT));
    assert_eq!(read(pid, 0, &mut buf), Err(Errno::EFAULT));
    assert_eq!(read(pid, u64::MAX - 4, &mut buf), Err(Errno::EFAULT));
    assert_eq!(read(pid, end, &mut []), Ok(0));
    assert_eq!(read_exact(pid, end - 4, &mut buf[..4]), Ok(()));
    assert_eq!(read_exact(pid, end - 4, &mut buf[..5]), Err(Errno::EFAULT));
    assert_eq!(read(i32::MAX, base, &mut buf), Err(Errno::ESRCH));

    write_all(pid, base + PAGE - 2, b"abcd").unwrap();
    read_exact(pid, base + PAGE - 3, &mut buf[..6]).unwrap();
    assert_eq!(&buf[..6], b"xabcdx");
    assert_eq!(write_all(pid, 0, b"abcd"), Err(Errno::EFAULT));
}

fn strings() {
    let child = Child::new();
    let (pid, base, end) = (child.pid, child.base, child.end());
    for (at, len) in [
        (0, 0),
        (PAGE - 3, 2),
        (PAGE - 3, 3),
        (10, 255),
        (10, 256),
        (5, 4096),
    ] {
        let string = vec![b's'; len];
        write_all(pid, base + at, &string).unwrap();
        write_all(pid, base + at + len as u64, b"\0").unwrap();
        let max = len + 1;
        assert_eq!(read_cstr(pid, base + at, max), Ok(string));
        assert_eq!(read_cstr(pid, base + at, len), Err(Errno::ENAMETOOLONG));
    }
    let last = base + 2 * PAGE - 1;
    write_all(pid, last - 2, b"ab\0").unwrap();
    assert_eq!(read_cstr(pid, last - 2, 4096), Ok(b"ab".to_vec()));
    assert_eq!(read_cstr(pid, end - 5, 4096), Err(Errno::EFAULT));
    assert_eq!(read_cstr(pid, end - 5, 5), Err(Errno::ENAMETOOLONG));
    assert_eq!(read_cstr(pid, 0, 4096), Err(Errno::EFAULT));
    assert_eq!(read_cstr(pid, u64::MAX, 4096), Err(Errno::EFAULT));
}

fn vectors() {
    let child = Child::new();
    let (pid, base, end) = (child.pid, child.base, child.end());
    let parsed = |elements: &[(u64, u64)]| {
        let raw: Vec<u8> = elements
            .iter()
            .flat_map(|&(addr, len)| [addr.to_le_bytes(), len.to_le_bytes()].concat())
            .collect();
        parse_iovecs(&raw)
    };
    let expected = vec![(base, 5), (0, 0), (end - 3, 3)];
    assert_eq!(parsed(&[(base, 5), (0, 0), (end - 3, 3)]), Ok(expected));
    assert_eq!(parsed(&[]), Ok(vec![]));
    assert_eq!(
        parse_iovecs(&vec![0; (IOV_MAX + 1) * IOVEC_SIZE]),
        Err(Errno::EINVAL)
    );
    let lens: Vec<usize> = parsed(&[(base, MAX_RW_COUNT as u64 - 1), (base, 7), (base, 7)])
        .unwrap()
        .iter()
        .map(|e| e.1)
        .collect();
    assert_eq!(lens, [MAX_RW_COUNT - 1, 1, 0]);
    assert_eq!(parsed(&[(base, 1 << 63)]), Err(Errno::EINVAL));
    assert_eq!(parsed(&[(1 << 63, 1)]), Err(Errno::EFAULT));

    let text = base + PAGE;
    write_all(pid, text, b"0123456789").unwrap();
    let gather: Vec<(u64, usize)> = (0..100).map(|i| (text + i % 10, 1)).collect();
    let mut out = b"kept".to_vec();
    assert_eq!(read_vec(pid, &gather, &mut out, 95), Ok(95));
    assert_eq!(
        out,
        [b"kept".as_slice(), &b"0123456789".repeat(10)[..95]].concat()
    );
    out.clear();
    let torn = [(text, 3), (end - 2, 9), (text, 3)];
    assert_eq!(read_vec(pid, &torn, &mut out, 1000), Ok(5));
    assert_eq!(out, b"012xx");
    assert_eq!(read_vec(pid, &[(end, 4)], &mut out, 9), Err(Errno::EFAULT));
    assert_eq!(read_vec(pid, &[(end, 4)], &mut out, 0), Ok(0));
    assert_eq!(out, b"012xx");

    let scatter = [(text, 2), (0, 0), (text + 5, 2), (text + 8, 2)];
    assert_eq!(write_vec(pid, &scatter, b"ABCDE"), Ok(5));
    let mut back = [0; 10];
    read_exact(pid, text, &mut back).unwrap();
    assert_eq!(&back, b"AB234CD7E9");
    assert_eq!(write_vec(pid, &[(text, 1), (0, 1)], b"zz"), Ok(1));

    // A hole early in a long vector ends the transfer, however the kernel is asked for it.
    let mut holed: Vec<(u64, usize)> = (0..100).map(|i| (text + i, 1)).collect();
    holed[10] = (end, 1);
    out.clear();
    assert_eq!(read_vec(pid, &holed, &mut out, 1000), Ok(10));
    assert_eq!(write_vec(pid, &holed, &[b'w'; 100]), Ok(10));
    read_exact(pid, text + 95, &mut back[..1]).unwrap();
    assert_eq!(back[0], b'x', "nothing is written behind the hole");
}

#[test]
fn reads_and_writes_what_is_mapped() {
    everyone("reads_and_writes_what_is_mapped", bytes);
}

#[test]
fn read_only_memory_is_not_written() {
    everyone("read_only_memory_is_not_written", || {
        let child = Child::new();
        let (pid, end) = (child.pid, child.end());
        assert_eq!(write(pid, end - 4, b"abcd"), Err(Errno::EFAULT));
        assert_eq!(write(pid, end - PAGE - 4, b"abcdefgh"), Ok(4));
        let across = write_all(pid, end - PAGE - 4, b"abcdefgh");
        assert_eq!(across, Err(Errno::EFAULT));
    });
}

#[test]
fn strings_end_at_nul_limit_or_mapping() {
    everyone("strings_end_at_nul_limit_or_mapping", strings);
}

#[test]
fn vectors_are_bounded_gathered_and_scattered() {
    everyone("vectors_are_bounded_gathered_and_scattered", vectors);
}

#[test]
fn memory_files_stand_in_for_refused_calls() {
    const NAME: &str = "memory_files_stand_in_for_refused_calls";
    everyone(NAME, || {
        if tracee_role().is_some() {
            bytes();
            strings();
            vectors();
            return;
        }
        for errno in [Errno::EPERM, Errno::ENOSYS] {
            let verdict = libc::SECCOMP_RET_ERRNO | errno as i32 as u32;
            let refuse = filter(&[
                (libc::SYS_process_vm_readv, verdict),
                (libc::SYS_process_vm_writev, verdict),
            ]);
            let request = launch_self(NAME, "refused", refuse, false);
            let _report = launch(&request).unwrap().go().unwrap();
            let status = wait(0).unwrap().map(|ended| ended.status());
            assert_eq!(status, Some(Status::Exited(0)));
        }
    });
}
