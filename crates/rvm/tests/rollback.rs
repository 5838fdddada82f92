//! What an abort undoes and a commit keeps, whichever code wrote it.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::thread;

use amino_rvm::{AminoFiles, DEPTH_MAX, Errno, Error, NoFiles, Rvm};

const PAGE: usize = 4096;

fn memory() -> Rvm {
    Rvm::new(NoFiles).unwrap()
}

#[test]
fn a_byte_rolls_back() {
    let mut rvm = memory();
    let region = rvm.map(PAGE).unwrap();
    rvm.bytes_mut(region).unwrap()[7] = 1;
    rvm.begin().unwrap();
    rvm.bytes_mut(region).unwrap()[7] = 2;
    rvm.abort().unwrap();
    assert_eq!(rvm.bytes(region).unwrap()[7], 1);
}

#[test]
fn a_commit_keeps_and_the_next_abort_returns_to_it() {
    let mut rvm = memory();
    let region = rvm.map(PAGE).unwrap();
    for round in 1..10 {
        rvm.begin().unwrap();
        rvm.bytes_mut(region).unwrap()[0] = round;
        rvm.commit().unwrap();
        rvm.begin().unwrap();
        rvm.bytes_mut(region).unwrap()[0] = 99;
        rvm.abort().unwrap();
        assert_eq!(rvm.bytes(region).unwrap()[0], round);
    }
}

#[test]
fn a_write_across_pages_rolls_back() {
    let mut rvm = memory();
    let region = rvm.map(8 * PAGE).unwrap();
    rvm.bytes_mut(region).unwrap().fill(3);
    rvm.begin().unwrap();
    rvm.bytes_mut(region).unwrap()[PAGE - 5..6 * PAGE + 5].fill(4);
    rvm.abort().unwrap();
    assert!(rvm.bytes(region).unwrap().iter().all(|b| *b == 3));
}

#[test]
fn a_page_left_alone_for_some_transactions_rolls_back() {
    let mut rvm = memory();
    let region = rvm.map(2 * PAGE).unwrap();
    rvm.bytes_mut(region).unwrap()[0] = 1;
    for round in 0..4 {
        rvm.begin().unwrap();
        rvm.bytes_mut(region).unwrap()[PAGE] = round;
        rvm.commit().unwrap();
    }
    rvm.begin().unwrap();
    rvm.bytes_mut(region).unwrap()[0] = 2;
    rvm.abort().unwrap();
    assert_eq!(rvm.bytes(region).unwrap()[0], 1);
    assert_eq!(rvm.bytes(region).unwrap()[PAGE], 3);
}

/// With protected pages this read would fail with EFAULT.
#[test]
fn what_a_system_call_writes_rolls_back() {
    let mut rvm = memory();
    let region = rvm.map(4 * PAGE).unwrap();
    rvm.bytes_mut(region).unwrap().fill(b'a');
    rvm.begin().unwrap();
    let target = &mut rvm.bytes_mut(region).unwrap()[100..3 * PAGE];
    let count = File::open("/dev/zero").unwrap().read(target).unwrap();
    assert_eq!(count, 3 * PAGE - 100);
    assert_eq!(rvm.bytes(region).unwrap()[PAGE], 0);
    rvm.abort().unwrap();
    assert!(rvm.bytes(region).unwrap().iter().all(|b| *b == b'a'));
}

/// Ptracers write by force, which protected pages would not even notice; a monitor answers reads that way.
#[test]
fn what_a_ptracer_writes_rolls_back() {
    let mut rvm = memory();
    let region = rvm.map(PAGE).unwrap();
    let address = rvm.start(region).unwrap().addr().get() as u64;
    let mem = OpenOptions::new()
        .write(true)
        .open("/proc/self/mem")
        .unwrap();
    rvm.begin().unwrap();
    mem.write_all_at(b"forced", address).unwrap();
    assert_eq!(&rvm.bytes(region).unwrap()[..6], b"forced");
    rvm.abort().unwrap();
    assert_eq!(rvm.bytes(region).unwrap()[..6], [0; 6]);
}

#[test]
fn threads_write_in_one_transaction() {
    let mut rvm = memory();
    let region = rvm.map(64 * PAGE).unwrap();
    let write = |rvm: &mut Rvm, value: u8| {
        let bytes = rvm.bytes_mut(region).unwrap();
        // Neighbours share pages.
        thread::scope(|scope| {
            for part in bytes.chunks_mut(16 * PAGE + 123) {
                scope.spawn(move || part.fill(value));
            }
        });
    };
    write(&mut rvm, 1);
    rvm.begin().unwrap();
    write(&mut rvm, 2);
    rvm.abort().unwrap();
    assert!(rvm.bytes(region).unwrap().iter().all(|b| *b == 1));
    rvm.begin().unwrap();
    write(&mut rvm, 3);
    rvm.commit().unwrap();
    assert!(rvm.bytes(region).unwrap().iter().all(|b| *b == 3));
}

#[test]
fn another_thread_may_end_what_one_began() {
    let mut rvm = memory();
    let region = rvm.map(PAGE).unwrap();
    rvm.begin().unwrap();
    rvm.bytes_mut(region).unwrap()[0] = 1;
    let rvm = thread::spawn(move || {
        rvm.abort().unwrap();
        rvm
    });
    let rvm = rvm.join().unwrap();
    assert_eq!(rvm.bytes(region).unwrap()[0], 0);
}

#[test]
fn a_large_sparse_region_costs_what_it_uses() {
    let before = resident_bytes();
    let mut rvm = memory();
    let len = 1 << 30;
    let region = rvm.map(len).unwrap();
    for _ in 0..100 {
        rvm.begin().unwrap();
        for at in [0, len / 2, len - 1] {
            rvm.bytes_mut(region).unwrap()[at] += 1;
        }
        rvm.commit().unwrap();
    }
    rvm.begin().unwrap();
    rvm.bytes_mut(region).unwrap()[len - 1] = 0;
    rvm.abort().unwrap();
    assert_eq!(rvm.bytes(region).unwrap()[len - 1], 100);
    // Other tests of this process run at the same time.
    assert!(resident_bytes() < before + (64 << 20));
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * PAGE
}

/// Otherwise each begin would look at all pages that were ever read.
#[test]
fn pages_out_of_use_are_unmapped() {
    let mut rvm = memory();
    let pages = 2000;
    let region = rvm.map(pages * PAGE).unwrap();
    assert!(rvm.bytes(region).unwrap().iter().all(|b| *b == 0));
    let start = rvm.start(region).unwrap().addr().get();
    assert_eq!(pages_at(start, "Rss:"), pages);
    for _ in 0..100 {
        rvm.begin().unwrap();
        rvm.bytes_mut(region).unwrap()[0] ^= 1;
        rvm.commit().unwrap();
    }
    assert!(pages_at(start, "Rss:") < 100);
}

/// A page written in each transaction keeps its copy, and so costs no page fault.
#[test]
fn pages_lose_their_copy_when_a_transaction_leaves_them_alone() {
    let mut rvm = memory();
    let region = rvm.map(30 * PAGE).unwrap();
    let start = rvm.start(region).unwrap().addr().get();
    rvm.bytes_mut(region).unwrap().fill(1);
    rvm.begin().unwrap();
    assert_eq!(pages_at(start, "Anonymous:"), 30);
    rvm.bytes_mut(region).unwrap()[10 * PAGE] = 2;
    rvm.bytes_mut(region).unwrap()[20 * PAGE] = 2;
    rvm.commit().unwrap();
    rvm.begin().unwrap();
    assert_eq!(pages_at(start, "Anonymous:"), 2);
    rvm.abort().unwrap();
    assert_eq!(pages_at(start, "Anonymous:"), 0);
}

/// How many pages of the mapping at `start` smaps counts so.
fn pages_at(start: usize, what: &str) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let from = format!("{start:x}-");
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&from));
    let size = lines.find_map(|line| line.strip_prefix(what)).unwrap();
    let kib: usize = size.trim().trim_end_matches(" kB").parse().unwrap();
    kib * 1024 / PAGE
}

#[test]
fn a_page_that_is_only_read_keeps_its_content() {
    let mut rvm = memory();
    let region = rvm.map(3 * PAGE).unwrap();
    rvm.bytes_mut(region).unwrap().fill(5);
    for _ in 0..3 {
        rvm.begin().unwrap();
        assert!(rvm.bytes(region).unwrap().iter().all(|b| *b == 5));
        rvm.abort().unwrap();
        rvm.begin().unwrap();
        rvm.commit().unwrap();
    }
    assert!(rvm.bytes(region).unwrap().iter().all(|b| *b == 5));
}

#[test]
fn transaction_commits_ok_and_aborts_err_and_panics() {
    let mut rvm = memory();
    let region = rvm.map(PAGE).unwrap();
    let set = |rvm: &mut Rvm, value| rvm.bytes_mut(region).map(|b| b[0] = value);
    rvm.transaction(|rvm| set(rvm, 1)).unwrap();
    assert_eq!(rvm.bytes(region).unwrap()[0], 1);
    let refused: Result<(), Error> = rvm.transaction(|rvm| {
        set(rvm, 2)?;
        Err(Error::Full)
    });
    assert_eq!(refused, Err(Error::Full));
    assert_eq!(rvm.bytes(region).unwrap()[0], 1);
    rvm.transaction(|rvm| {
        set(rvm, 3)?;
        rvm.begin()?;
        set(rvm, 4)
    })
    .unwrap();
    assert_eq!(rvm.bytes(region).unwrap()[0], 3);
    rvm.begin().unwrap();
    let ended = rvm.transaction(Rvm::commit);
    assert_eq!(ended, Err(Error::NoTransaction));
    assert_eq!(rvm.depth(), 1);
    rvm.commit().unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        rvm.transaction(|rvm| -> Result<(), Error> {
            set(rvm, 5)?;
            panic!("in the body");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(rvm.depth(), 0);
    assert_eq!(rvm.bytes(region).unwrap()[0], 3);
}

#[test]
fn what_is_out_of_order_is_refused() {
    let mut rvm = memory();
    assert_eq!(rvm.commit(), Err(Error::NoTransaction));
    assert_eq!(rvm.abort(), Err(Error::NoTransaction));
    assert_eq!(rvm.map(0), Err(Error::Memory(Errno::EINVAL)));
    let region = rvm.map(1).unwrap();
    rvm.unmap(region).unwrap();
    assert_eq!(rvm.unmap(region), Err(Error::NoRegion));
    assert_eq!(rvm.bytes(region), Err(Error::NoRegion));
    for depth in 1..=DEPTH_MAX {
        assert_eq!(rvm.begin(), Ok(depth));
    }
    assert_eq!(rvm.begin(), Err(Error::TooDeep));
}

#[test]
fn without_a_monitor_there_are_no_file_transactions() {
    assert_eq!(AminoFiles::connect().unwrap_err(), Error::NotUnderAmino);
}
