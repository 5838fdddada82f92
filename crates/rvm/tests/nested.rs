//! Transactions within each other, and regions that are mapped and unmapped in them.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

use std::ptr::NonNull;

use amino_rvm::{Error, NoFiles, RegionId, Rvm};

const PAGE: usize = 4096;

fn fixture(pages: usize) -> (Rvm, RegionId) {
    let mut rvm = Rvm::new(NoFiles).unwrap();
    let region = rvm.map(pages * PAGE).unwrap();
    (rvm, region)
}

fn set(rvm: &mut Rvm, region: RegionId, page: usize, value: u8) {
    rvm.bytes_mut(region).unwrap()[page * PAGE] = value;
}

fn firsts(rvm: &Rvm, region: RegionId) -> Vec<u8> {
    let bytes = rvm.bytes(region).unwrap();
    bytes.iter().step_by(PAGE).copied().collect()
}

/// Level 1 writes pages 0 and 1, level 2 pages 1 and 2, level 3 pages 1 and 3.
fn three_levels() -> (Rvm, RegionId) {
    let (mut rvm, region) = fixture(4);
    for page in 0..4 {
        set(&mut rvm, region, page, 10);
    }
    for (level, pages) in [(1, [0, 1]), (2, [1, 2]), (3, [1, 3])] {
        assert_eq!(rvm.begin(), Ok(level));
        for page in pages {
            set(&mut rvm, region, page, level as u8);
        }
    }
    assert_eq!(firsts(&rvm, region), [1, 3, 2, 3]);
    (rvm, region)
}

#[test]
fn each_level_aborts_to_its_own_begin() {
    let (mut rvm, region) = three_levels();
    rvm.abort().unwrap();
    assert_eq!(firsts(&rvm, region), [1, 2, 2, 10]);
    rvm.abort().unwrap();
    assert_eq!(firsts(&rvm, region), [1, 1, 10, 10]);
    rvm.abort().unwrap();
    assert_eq!(firsts(&rvm, region), [10; 4]);
}

#[test]
fn what_a_nested_one_committed_goes_with_the_outer_abort() {
    let (mut rvm, region) = three_levels();
    rvm.commit().unwrap();
    assert_eq!(firsts(&rvm, region), [1, 3, 2, 3]);
    rvm.abort().unwrap();
    assert_eq!(firsts(&rvm, region), [1, 1, 10, 10]);
    rvm.commit().unwrap();
    assert_eq!(firsts(&rvm, region), [1, 1, 10, 10]);
    rvm.begin().unwrap();
    set(&mut rvm, region, 1, 7);
    rvm.abort().unwrap();
    assert_eq!(firsts(&rvm, region), [1, 1, 10, 10]);
}

#[test]
fn all_levels_commit() {
    let (mut rvm, region) = three_levels();
    for _ in 0..3 {
        rvm.commit().unwrap();
    }
    assert_eq!(firsts(&rvm, region), [1, 3, 2, 3]);
}

#[test]
fn nested_ones_in_a_row_keep_the_oldest_before_image() {
    let (mut rvm, region) = fixture(2);
    set(&mut rvm, region, 0, 10);
    rvm.begin().unwrap();
    for value in 1..6 {
        set(&mut rvm, region, 0, value);
        rvm.begin().unwrap();
        set(&mut rvm, region, 0, value + 100);
        set(&mut rvm, region, 1, value);
        if value % 2 == 0 {
            rvm.commit().unwrap();
            assert_eq!(firsts(&rvm, region), [value + 100, value]);
        } else {
            rvm.abort().unwrap();
            assert_eq!(firsts(&rvm, region), [value, value.saturating_sub(1)]);
        }
    }
    rvm.abort().unwrap();
    assert_eq!(firsts(&rvm, region), [10, 0]);
}

/// A parent's write stays, whether or not the child touched the page, when the child aborts.
#[test]
fn a_page_of_the_parent_survives_the_childs_abort() {
    let (mut rvm, region) = fixture(2);
    rvm.begin().unwrap();
    set(&mut rvm, region, 0, 1);
    set(&mut rvm, region, 1, 1);
    rvm.begin().unwrap();
    set(&mut rvm, region, 0, 2);
    rvm.abort().unwrap();
    assert_eq!(firsts(&rvm, region), [1, 1]);
    rvm.commit().unwrap();
    assert_eq!(firsts(&rvm, region), [1, 1]);
}

#[test]
fn a_region_mapped_in_a_transaction_vanishes_with_it() {
    let (mut rvm, _) = fixture(1);
    rvm.begin().unwrap();
    rvm.begin().unwrap();
    let lost = rvm.map(PAGE).unwrap();
    rvm.abort().unwrap();
    assert_eq!(rvm.bytes(lost), Err(Error::NoRegion));
    rvm.begin().unwrap();
    let merged = rvm.map(PAGE).unwrap();
    set(&mut rvm, merged, 0, 1);
    rvm.commit().unwrap();
    assert_eq!(firsts(&rvm, merged), [1]);
    rvm.abort().unwrap();
    assert_eq!(rvm.bytes(merged), Err(Error::NoRegion));
    rvm.begin().unwrap();
    let kept = rvm.map(PAGE).unwrap();
    set(&mut rvm, kept, 0, 5);
    rvm.commit().unwrap();
    rvm.begin().unwrap();
    set(&mut rvm, kept, 0, 6);
    rvm.abort().unwrap();
    assert_eq!(firsts(&rvm, kept), [5]);
}

#[test]
fn a_region_unmapped_in_a_transaction_comes_back() {
    let (mut rvm, region) = fixture(2);
    set(&mut rvm, region, 0, 1);
    let start = rvm.start(region).unwrap();
    rvm.begin().unwrap();
    set(&mut rvm, region, 0, 2);
    rvm.begin().unwrap();
    set(&mut rvm, region, 0, 3);
    rvm.unmap(region).unwrap();
    assert_eq!(rvm.bytes(region), Err(Error::NoRegion));
    assert_eq!(rvm.starting_at(start), None);
    rvm.abort().unwrap();
    assert_eq!(rvm.starting_at(start), Some(region));
    assert_eq!(firsts(&rvm, region), [2, 0]);
    rvm.begin().unwrap();
    rvm.unmap(region).unwrap();
    rvm.commit().unwrap();
    rvm.begin().unwrap();
    rvm.abort().unwrap();
    assert_eq!(rvm.bytes(region), Err(Error::NoRegion));
    rvm.abort().unwrap();
    assert_eq!(firsts(&rvm, region), [1, 0]);
    rvm.begin().unwrap();
    rvm.unmap(region).unwrap();
    let inode = mapped(start);
    assert!(inode.is_some());
    rvm.commit().unwrap();
    assert_ne!(mapped(start), inode);
}

/// The inode of the memfd mapped from there on. Other tests may map another one at the same place.
fn mapped(start: NonNull<u8>) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let from = format!("{:x}-", start.addr());
    let line = maps.lines().find(|line| line.starts_with(&from))?;
    line.split_whitespace().nth(4).map(str::to_owned)
}

#[test]
fn a_region_of_one_transaction_only_does_not_wait_for_its_end() {
    let (mut rvm, _) = fixture(1);
    rvm.begin().unwrap();
    let region = rvm.map(PAGE).unwrap();
    rvm.begin().unwrap();
    let inner = rvm.map(PAGE).unwrap();
    let starts = [region, inner].map(|r| rvm.start(r).unwrap());
    let inodes = starts.map(mapped);
    assert!(inodes.iter().all(Option::is_some));
    rvm.unmap(inner).unwrap();
    assert_ne!(mapped(starts[1]), inodes[1]);
    rvm.unmap(region).unwrap();
    assert_eq!(mapped(starts[0]), inodes[0]);
    rvm.commit().unwrap();
    assert_ne!(mapped(starts[0]), inodes[0]);
    rvm.abort().unwrap();
    assert_eq!(rvm.bytes(region), Err(Error::NoRegion));
}
