//! The bound on the memory of contents that programs have open.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use goanna_vfs::{Errno, FileSystem};
use support::{Mounted, Place};

const LIMIT: u64 = 1 << 20;

fn bounded() -> Place {
    let mut place = Place::usual();
    let mounted = place.mount();
    for name in [b"a", b"b"] {
        mounted.put(name, &vec![name[0]; 600 << 10]);
    }
    mounted.put(b"large", &vec![b'l'; 2 << 20]);
    place.memory = Some(LIMIT);
    place
}

fn refused(mounted: &Mounted, name: &[u8]) {
    let opened = mounted.open(name, libc::O_RDONLY).map(drop);
    assert_eq!(opened, Err(Errno::ENOMEM.into()));
}

#[test]
fn what_exceeds_the_bound_is_refused_until_other_files_are_closed() {
    let place = bounded();
    let mounted = place.mount();
    let a = mounted.open(b"a", libc::O_RDONLY).unwrap();
    refused(&mounted, b"b");
    refused(&mounted, b"large");
    // A second descriptor of one file needs no memory.
    let again = mounted.open(b"a", libc::O_RDWR).unwrap();
    mounted.close(a);
    refused(&mounted, b"b");
    mounted.close(again);
    let b = mounted.open(b"b", libc::O_RDONLY).unwrap();
    assert!(mounted.read(&b) == vec![b'b'; 600 << 10]);
    // Its content was kept, and counts again when it is opened.
    refused(&mounted, b"a");
    mounted.close(b);
    assert!(mounted.get(b"a").unwrap() == vec![b'a'; 600 << 10]);
    // A file that cannot be opened can be read without a descriptor, and truncated.
    let node = mounted.lookup(b"large").unwrap();
    let mut end = [0; 10];
    let at = (2 << 20) - 5;
    let got = mounted.fs.read_at(&mounted.caller, &node, at, &mut end);
    assert_eq!((got, &end[..6]), (Ok(5), &b"lllll\0"[..]));
    mounted
        .fs
        .truncate(&mounted.caller, &node, 500_001)
        .unwrap();
    assert_eq!(mounted.get(b"large").unwrap(), vec![b'l'; 500_001]);
}

/// For a file that grows by writes the bound is like a full file system. Holes need no memory.
#[test]
fn writes_stop_at_the_bound_and_holes_do_not_count() {
    let place = bounded();
    let mounted = place.mount();
    let file = mounted.create(b"new");
    let piece = vec![1; 64 << 10];
    let mut at = 1 << 40;
    while mounted.write(&file, at, &piece).is_ok() {
        at += piece.len() as u64;
    }
    assert_eq!(at, (1 << 40) + LIMIT);
    let more = mounted.write(&file, at, b"x").map(drop);
    assert_eq!(more, Err(Errno::ENOSPC.into()));
    // In place.
    mounted.write(&file, 1 << 40, b"y").unwrap();
    let node = file.node.clone();
    mounted
        .fs
        .truncate(&mounted.caller, &node, 1 << 40)
        .unwrap();
    mounted.write(&file, 0, &piece).unwrap();
    mounted.close(file);
    // Without its holes it fits.
    let file = mounted.open(b"new", libc::O_RDONLY).unwrap();
    assert_eq!(mounted.size(&file.node), 1 << 40);
    mounted.close(file);
    assert_eq!(place.findings().len(), 0);
}

/// After opens, closes, failures and truncations in random order, no memory stays reserved.
#[test]
fn nothing_stays_taken() {
    let place = bounded();
    let mounted = place.mount();
    let mut random = fastrand::Rng::with_seed(61);
    let mut open = Vec::new();
    for _ in 0..500 {
        let name: &[u8] = [&b"a"[..], b"b", b"large"][random.usize(..3)];
        match random.u8(..6) {
            0..=2 => open.extend(mounted.open(name, libc::O_RDWR).ok()),
            3 if !open.is_empty() => mounted.close(open.swap_remove(random.usize(..open.len()))),
            4 => {
                let node = mounted.lookup(name).unwrap();
                let size = random.u64(..900 << 10);
                let _ = mounted.fs.truncate(&mounted.caller, &node, size);
            }
            5 if !open.is_empty() => {
                let file = &open[random.usize(..open.len())];
                let _ = mounted.write(file, random.u64(..900 << 10), &[7; 100_000]);
            }
            _ => {}
        }
    }
    for file in open {
        mounted.close(file);
    }
    for name in [&b"a"[..], b"b", b"large"] {
        let node = mounted.lookup(name).unwrap();
        mounted.fs.truncate(&mounted.caller, &node, 0).unwrap();
    }
    let file = mounted.create(b"all");
    assert_eq!(
        mounted.write(&file, 0, &vec![1; LIMIT as usize]),
        Ok(LIMIT as usize)
    );
}
