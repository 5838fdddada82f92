//! The recorder, run in this process.

use std::arch::asm;
use std::ffi::{CStr, CString};
use std::os::fd::AsRawFd;
use std::path::Path;

use super::*;

/// The recorder's mappings.
struct Mapped {
    start: u64,
    ring: Ring,
}

fn map(at: u64, len: usize, protection: i32, flags: i32, fd: i32) -> u64 {
    // SAFETY: at an address that the kernel chooses, or in what was mapped there.
    let start = unsafe { libc::mmap(at as *mut _, len, protection, flags, fd, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start as u64
}

impl Mapped {
    fn new() -> Self {
        use shape::*;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let start = map(0, LEN, access, private, -1);
        let file = nix::sys::memfd::memfd_create(
            c"ring",
            nix::sys::memfd::MFdFlags::from_bits_retain(Ring::FILE_FLAGS),
        )
        .unwrap();
        let number = file.as_raw_fd();
        let shared = libc::MAP_SHARED | libc::MAP_FIXED;
        map(start + RING_AT as u64, RING, access, shared, number);
        let ring = Ring::new(file).unwrap();
        let mut shapes = [0; SHAPES];
        for (nr, shape) in [
            (libc::SYS_openat, PATH | DIRECTORY | OPENS | FILES),
            (libc::SYS_readlink, PATH | NO_FOLLOW | TEXT | FILES),
            (
                libc::SYS_newfstatat,
                PATH | DIRECTORY | FLAGS | STAT | FILES,
            ),
            (libc::SYS_close, DESCRIPTOR | CLOSES | FILES),
            (libc::SYS_write, DESCRIPTOR | FILES),
            (libc::SYS_brk, 0),
        ] {
            shapes[nr as usize] = shape | RECORDED;
        }
        let mut content = code(&shapes);
        content.extend(initial_state(0));
        // SAFETY: the memory has just been mapped, and is larger.
        unsafe {
            std::ptr::copy_nonoverlapping(content.as_ptr(), start as *mut u8, content.len());
            let code = start as *mut libc::c_void;
            assert_eq!(
                libc::mprotect(code, CODE, libc::PROT_READ | libc::PROT_EXEC),
                0
            );
        }
        Self { start, ring }
    }

    /// Makes a call as from a site.
    fn call(&self, nr: i64, args: [u64; 4]) -> i64 {
        let mut result = nr;
        // SAFETY: the registers are those of a call; the recorder changes no others.
        unsafe {
            asm!(
                "lea rcx, [rip + 2f]",
                "jmp r11",
                "syscall",
                "2:",
                inout("rax") result,
                in("rdi") args[0],
                in("rsi") args[1],
                in("rdx") args[2],
                in("r10") args[3],
                in("r8") 8,
                in("r9") 9,
                out("rcx") _,
                inout("r11") self.start => _,
            );
        }
        result
    }

    fn records(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        self.ring.take(&mut all).unwrap();
        all
    }
}

fn record<'d>(mut data: &'d [u8]) -> (Record<'d>, Vec<Item<'d>>) {
    let record = Record::take(&mut data).unwrap().unwrap();
    assert!(data.is_empty());
    (record, record.items().collect())
}

const CWD: u64 = libc::AT_FDCWD as u64;

#[test]
fn an_open_is_recorded_with_its_file() {
    let mut mapped = Mapped::new();
    let path = c"/etc/../etc/passwd";
    let fd = mapped.call(libc::SYS_openat, [CWD, path.as_ptr() as u64, 0, 0]);
    assert!(fd >= 0);
    let records = mapped.records();
    let (record, items) = record(&records);
    assert_eq!((record.nr, record.result), (257, fd));
    assert_eq!(record.args[..3], [CWD, path.as_ptr() as u64, 0]);
    assert_eq!(record.args[4..], [8, 9]);
    assert!(record.entered_ns > 0 && record.entered_ns <= record.left_ns);
    let number = fd as i32;
    let [
        Item::Memory(address, text),
        Item::Link(linked, target),
        Item::FileStat(of, stat),
    ] = items[..]
    else {
        panic!("{items:?}");
    };
    assert_eq!(
        (address, text),
        (path.as_ptr() as u64, path.to_bytes_with_nul())
    );
    assert_eq!((linked, target), (number, b"/etc/passwd".as_slice()));
    assert_eq!((of, stat.len()), (number, 144));
    assert_eq!(mapped.call(libc::SYS_close, [fd as u64, 0, 0, 0]), 0);
    let records = mapped.records();
    let (_, items) = self::record(&records);
    assert_eq!(
        items,
        [
            Item::Link(number, b"/etc/passwd"),
            Item::FileStat(number, stat)
        ]
    );
    assert_eq!(
        mapped.call(libc::SYS_close, [fd as u64, 0, 0, 0]),
        -i64::from(libc::EBADF)
    );
    assert_eq!(self::record(&mapped.records()).1, []);
}

#[test]
fn what_is_not_there_is_recorded_with_its_directory() {
    let mut mapped = Mapped::new();
    for (path, parent) in [
        (c"/etc/none/", Some("/etc")),
        (c"/none", Some("/")),
        (c"none", None),
        (c"/none/none", Some("")),
    ] {
        for nr in [libc::SYS_newfstatat, libc::SYS_openat] {
            let mut stat = [0_u64; 18];
            let third = if nr == libc::SYS_openat {
                0
            } else {
                stat.as_mut_ptr() as u64
            };
            let result = mapped.call(nr, [CWD, path.as_ptr() as u64, third, 0]);
            assert_eq!(result, -i64::from(libc::ENOENT));
            let records = mapped.records();
            let items = record(&records).1;
            let own = std::env::current_dir().unwrap();
            let parent = parent.map_or(own.as_path(), Path::new);
            let mut expected = vec![Item::Memory(path.as_ptr() as u64, path.to_bytes_with_nul())];
            let parent = parent.as_os_str().as_encoded_bytes();
            if !parent.is_empty() {
                let at = if nr == libc::SYS_openat { 1 } else { 0 };
                let of_parent = match path.to_bytes().first() {
                    Some(b'/') => Item::ParentWithoutLinks,
                    _ => Item::ParentLink(parent),
                };
                expected.insert(at, of_parent);
            }
            if path == c"none" {
                let cwd = own.as_os_str().as_encoded_bytes();
                expected.push(Item::Link(libc::AT_FDCWD, cwd));
            }
            assert_eq!(items, expected);
        }
    }
}

#[test]
fn outputs_are_recorded() {
    let mut mapped = Mapped::new();
    let mut text = [0_u8; 64];
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink("target", &link).unwrap();
    let path = CString::new(link.as_os_str().as_encoded_bytes()).unwrap();
    let args = [path.as_ptr() as u64, text.as_mut_ptr() as u64, 64, 0];
    assert_eq!(mapped.call(libc::SYS_readlink, args), 6);
    let records = mapped.records();
    let items = record(&records).1;
    let is_hidden = link.to_string_lossy().contains("/.");
    assert_eq!(items[0] == Item::PathWithoutLinks, !is_hidden);
    assert_eq!(items[3], Item::Memory(text.as_ptr() as u64, b"target"));
    assert!(
        mapped.call(
            libc::SYS_readlink,
            [c"/proc/self".as_ptr() as u64, args[1], 64, 0]
        ) > 0
    );
    assert!(mapped.records().is_empty());
    let mut stat = [0_u64; 18];
    let args = [
        CWD,
        c"/etc/passwd".as_ptr() as u64,
        stat.as_mut_ptr() as u64,
        0,
    ];
    assert_eq!(mapped.call(libc::SYS_newfstatat, args), 0);
    let records = mapped.records();
    let items = record(&records).1;
    let [
        Item::PathWithoutLinks,
        Item::Memory(..),
        Item::PathStat(found),
        Item::Memory(at, copy),
    ] = items[..]
    else {
        panic!("{items:?}");
    };
    assert_eq!((at, copy), (stat.as_ptr() as u64, found));
}

#[test]
fn an_empty_path_is_recorded_as_its_directory() {
    let mut mapped = Mapped::new();
    let mut stat = [0_u64; 18];
    let empty = c"".as_ptr() as u64;
    let args = [
        CWD,
        empty,
        stat.as_mut_ptr() as u64,
        libc::AT_EMPTY_PATH as u64,
    ];
    assert_eq!(mapped.call(libc::SYS_newfstatat, args), 0);
    let own = std::env::current_dir().unwrap();
    let own = own.as_os_str().as_encoded_bytes();
    let records = mapped.records();
    let items = record(&records).1;
    let [
        Item::Memory(_, b"\0"),
        Item::Link(libc::AT_FDCWD, link),
        Item::FileStat(libc::AT_FDCWD, found),
        Item::Memory(_, copy),
    ] = items[..]
    else {
        panic!("{items:?}");
    };
    assert_eq!((link, copy), (own, found));
}

#[test]
fn what_cannot_be_recorded_is_left_to_the_program() {
    let mut mapped = Mapped::new();
    let mut stat = [0_u64; 18];
    let stat = stat.as_mut_ptr() as u64;
    let none = -i64::from(libc::ENOENT);
    let empty = [CWD, c"".as_ptr() as u64, stat, 0];
    assert_eq!(mapped.call(libc::SYS_newfstatat, empty), none);
    let fault = -i64::from(libc::EFAULT);
    assert_eq!(mapped.call(libc::SYS_newfstatat, [CWD, 8, stat, 0]), fault);
    let temporary = [
        CWD,
        c"/tmp".as_ptr() as u64,
        (libc::O_TMPFILE | libc::O_RDWR) as u64,
        0o600,
    ];
    assert!(mapped.call(libc::SYS_openat, temporary) >= 0);
    assert!(mapped.call(libc::SYS_getppid, [0; 4]) > 0);
    assert!(mapped.records().is_empty());
    // An open has been made before it is known that its path cannot be read.
    assert_eq!(mapped.call(libc::SYS_openat, [CWD, 8, 0, 0]), fault);
    assert_eq!(record(&mapped.records()).1, []);
    let link = |path: &CStr| mapped.call(libc::SYS_readlink, [path.as_ptr() as u64, 8, 64, 0]);
    assert_eq!(link(c"/proc/self"), fault);
}

#[test]
fn a_full_ring_loses_nothing() {
    let mut mapped = Mapped::new();
    let (mut seen, mut left) = (0_u64, 0);
    for round in 0..20_000 {
        assert!(mapped.call(libc::SYS_brk, [round, 0, 0, 0]) > 0);
        if round % 6_000 == 5_999 {
            let records = mapped.records();
            let mut rest = records.as_slice();
            while let Some(record) = Record::take(&mut rest) {
                let Some(record) = record else { continue };
                assert!(record.args[0] >= seen);
                left += record.args[0] - seen;
                seen = record.args[0] + 1;
            }
            assert!(rest.is_empty());
        }
    }
    assert!(left > 0 && seen > 12_000);
}
