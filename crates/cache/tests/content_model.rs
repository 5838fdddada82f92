//! A `Content` as a back end uses it, against a byte vector: fills, writes, cuts, holes, shifts, writes through mappings,
//! moves to a host file, stores and evictions in random order.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use goanna_cache::{ChangedPages, Content, RangeSet, Transfer, write_all_at};
use proptest::prelude::*;

const PAGE: u64 = 8192;
const BLOCK: u64 = 4096;
const MAX: u64 = 12 * PAGE;

#[derive(Debug, Clone)]
enum Step {
    Write { at: u64, len: u64, byte: u8 },
    WriteMapped { at: u64, len: u64, byte: u8 },
    Resize(u64),
    Punch { at: u64, len: u64 },
    Collapse { at: u64, blocks: u64 },
    Insert { at: u64, blocks: u64 },
    Relocate,
    Store,
    Evict,
    CommitInPlace { at: u64, len: u64, byte: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (0..MAX, 1..3 * PAGE, 0_u8..4);
    let blocks = || (0..MAX / BLOCK, 1_u64..6);
    prop_oneof![
        3 => range().prop_map(|(at, len, byte)| Step::Write { at, len, byte }),
        2 => range().prop_map(|(at, len, byte)| Step::WriteMapped { at, len, byte }),
        2 => (0..MAX).prop_map(Step::Resize),
        2 => range().prop_map(|(at, len, _)| Step::Punch { at, len }),
        1 => blocks().prop_map(|(at, blocks)| Step::Collapse { at: at * BLOCK, blocks }),
        1 => blocks().prop_map(|(at, blocks)| Step::Insert { at: at * BLOCK, blocks }),
        1 => Just(Step::Relocate),
        3 => Just(Step::Store),
        1 => Just(Step::Evict),
        2 => range().prop_map(|(at, len, byte)| Step::CommitInPlace { at, len, byte }),
    ]
}

/// A back end with one file: what it has stored, the content in use, and a program's descriptor.
struct Store<'a> {
    large_dir: &'a Path,
    pages: BTreeMap<u64, Vec<u8>>,
    stored: RangeSet,
    size: u64,
    content: Content<PAGE>,
    program: File,
}

impl<'a> Store<'a> {
    fn new(large_dir: &'a Path) -> Self {
        let (mut content, _) = Content::create(0, None).unwrap();
        let program = File::from(content.open(libc::O_RDWR).into_fd().unwrap());
        Self {
            large_dir,
            pages: BTreeMap::new(),
            stored: RangeSet::default(),
            size: 0,
            content,
            program,
        }
    }

    fn change(&mut self, start: u64, end: u64) {
        let pages = self.content.pages_mut();
        pages.change(start / PAGE, end.div_ceil(PAGE));
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        self.program.write_all_at(data, at).unwrap();
        let end = at + data.len() as u64;
        self.change(at, end);
        self.size = self.size.max(end);
    }

    fn resize(&mut self, size: u64) {
        self.content.resize(size).unwrap();
        if size < self.size {
            let end = size.div_ceil(PAGE);
            self.content.pages_mut().erase(end, u64::MAX, &self.stored);
            if !size.is_multiple_of(PAGE) {
                self.change(size - 1, size);
            }
        }
        self.size = size;
    }

    /// Only whole pages are erased; those at the edges change.
    fn punch(&mut self, at: u64, len: u64) {
        let end = (at + len).min(self.size);
        self.content.punch(at, len).unwrap();
        if at < end {
            self.change(at, at + 1);
            self.change(end - 1, end);
            let (first, last) = (at / PAGE + 1, (end - 1) / PAGE);
            self.content.pages_mut().erase(first, last, &self.stored);
        }
    }

    fn shift(&mut self, from: u64, to: u64) {
        let len = self.size - from;
        let transfer = Transfer::within(&self.content).unwrap();
        let size = to + len;
        self.change(from.min(to), size.max(self.size));
        if size > self.size {
            self.resize(size);
        }
        transfer.shift(from, to, len).unwrap();
        if to > from {
            transfer.punch(from, to - from).unwrap();
        } else {
            self.resize(size);
        }
    }

    /// Finds writes through mappings, which the back end does not see.
    fn find_mapped_writes(&mut self) {
        let mut found = Vec::new();
        let stored = |page| Ok(self.pages.get(&page));
        let all = 0..u64::MAX / PAGE;
        let result =
            self.content
                .find_mapped_changes(all, self.size, &self.stored, stored, &mut found);
        result.unwrap();
        for page in found {
            assert_eq!(self.content.pages_mut().change(page, page + 1), 1);
        }
    }

    /// Stores the changed pages, and only those.
    fn store(&mut self) {
        let pages = std::mem::take(self.content.pages_mut());
        for (start, end) in pages.erased().ranges() {
            (start..end).for_each(|page| drop(self.pages.remove(&page)));
            self.stored.remove(start, end);
        }
        let last = self.size.div_ceil(PAGE);
        for (start, end) in pages.changed().intersect(0, last) {
            for page in start..end {
                let mut data = vec![0; (self.size - page * PAGE).min(PAGE) as usize];
                let got = self.content.read_at(page * PAGE, &mut data).unwrap();
                assert_eq!(got, data.len());
                self.pages.insert(page, data);
                self.stored.insert(page, page + 1);
            }
        }
    }

    /// The stored content.
    fn filled(&self) -> Content<PAGE> {
        let (content, writer) = Content::create(self.size, None).unwrap();
        for (page, data) in &self.pages {
            write_all_at(&writer, page * PAGE, data).unwrap();
        }
        content
    }

    /// Drops the content, and fills a new one.
    fn evict(&mut self) {
        self.store();
        self.program = File::open("/dev/null").unwrap();
        assert!(self.content.is_unused());
        self.content = self.filled();
        self.program = File::from(self.content.open(libc::O_RDWR).into_fd().unwrap());
    }

    /// A copy of the content is written to, as by a transaction; then the program's object becomes like it.
    fn commit_in_place(&mut self, at: u64, data: &[u8]) {
        let (mut copy, writer) = Content::<PAGE>::create(self.size, None).unwrap();
        self.content.copy_to(&writer, self.size).unwrap();
        write_all_at(&writer, at, data).unwrap();
        let end = at + data.len() as u64;
        copy.pages_mut().change(at / PAGE, end.div_ceil(PAGE));
        let size = self.size.max(end);
        let transfer = Transfer::between(&copy, &self.content).unwrap();
        transfer.resize(size).unwrap();
        for (start, end) in copy.pages().changed().ranges() {
            transfer
                .allocate(start * PAGE, (end - start) * PAGE)
                .unwrap();
            transfer
                .copy(start * PAGE, (end * PAGE).min(size), |_, _| {})
                .unwrap();
        }
        self.change(at, end);
        self.size = size;
    }

    fn relocate(&mut self) {
        let opened = self
            .content
            .relocate(self.size, self.large_dir, libc::O_RDWR);
        self.program = File::from(opened.unwrap().into_fd().unwrap());
        assert!(self.content.is_on_disk());
    }

    fn run(&mut self, step: &Step, model: &mut Vec<u8>) {
        let put = |model: &mut Vec<u8>, at: u64, data: &[u8]| {
            let end = at as usize + data.len();
            model.resize(model.len().max(end), 0);
            model[at as usize..end].copy_from_slice(data);
        };
        let size = model.len() as u64;
        match *step {
            Step::Write { at, len, byte } => {
                let data = vec![byte; len as usize];
                self.write(at, &data);
                put(model, at, &data);
            }
            Step::WriteMapped { at, len, byte } if at < size => {
                let data = vec![byte; len.min(size - at) as usize];
                // As through a mapping: nothing is recorded until it is looked for.
                self.program.write_all_at(&data, at).unwrap();
                put(model, at, &data);
                self.find_mapped_writes();
            }
            Step::Resize(size) => {
                self.resize(size);
                model.resize(size as usize, 0);
            }
            Step::Punch { at, len } => {
                self.punch(at, len);
                let end = (at + len).min(size);
                if at < end {
                    model[at as usize..end as usize].fill(0);
                }
            }
            Step::Collapse { at, blocks } if at + blocks * BLOCK < size => {
                self.shift(at + blocks * BLOCK, at);
                model.drain(at as usize..(at + blocks * BLOCK) as usize);
            }
            Step::Insert { at, blocks } if at < size && size + blocks * BLOCK <= 2 * MAX => {
                self.shift(at, at + blocks * BLOCK);
                let hole = vec![0; (blocks * BLOCK) as usize];
                model.splice(at as usize..at as usize, hole);
            }
            Step::Relocate if !self.content.is_on_disk() => self.relocate(),
            Step::Store => self.store(),
            Step::Evict => self.evict(),
            Step::CommitInPlace { at, len, byte } => {
                let data = vec![byte; len as usize];
                self.commit_in_place(at, &data);
                put(model, at, &data);
            }
            _ => {}
        }
    }
}

fn all_of(content: &Content<PAGE>, size: u64) -> Vec<u8> {
    // One byte more than there may be.
    let mut bytes = vec![0; size as usize + 1];
    let got = content.read_at(0, &mut bytes).unwrap();
    bytes.truncate(got);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// After every step a program reads the model's bytes, and the stored content together with the changed pages equals
    /// them.
    #[test]
    fn content_and_store_agree_with_a_vector(steps in prop::collection::vec(step(), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::new(dir.path());
        let mut model = Vec::new();
        for step in &steps {
            store.run(step, &mut model);
            prop_assert_eq!(store.size, model.len() as u64, "{:?}", step);
            prop_assert!(all_of(&store.content, store.size) == model, "{:?}", step);
            prop_assert!(store.content.is_written_through(store.program.as_fd()).unwrap());
            let pages = store.content.pages();
            prop_assert!(pages.erased().pages().all(|page| !pages.changed().contains(page)), "{:?}", step);
        }
        store.store();
        prop_assert!(all_of(&store.filled(), store.size) == model);
        prop_assert_eq!(store.content.pages(), &ChangedPages::default());
    }
}

/// Erased pages are deleted from the store, so a mapping that writes the same bytes again changes the file.
#[test]
fn a_mapping_that_writes_what_was_punched_out_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::new(dir.path());
    let data = vec![7; 3 * PAGE as usize];
    store.write(0, &data);
    store.store();
    store.punch(0, 3 * PAGE);
    store.program.write_all_at(&data, 0).unwrap();
    store.find_mapped_writes();
    store.store();
    assert!(all_of(&store.filled(), store.size) == data);
}

#[test]
fn long_ranges_shift_to_both_sides() {
    let data: Vec<u8> = (0..5_000_000_u32).map(|n| (n / 4096 % 251) as u8).collect();
    let (from, to) = (1_000_000, 2_200_000);
    for (from, to) in [(from, to), (to, from)] {
        let (content, writer) = Content::<PAGE>::create(0, None).unwrap();
        write_all_at(&writer, 0, &data).unwrap();
        let transfer = Transfer::within(&content).unwrap();
        let len = data.len() - from.max(to);
        transfer.shift(from as u64, to as u64, len as u64).unwrap();
        let mut expected = data.clone();
        expected.copy_within(from..from + len, to);
        assert!(
            all_of(&content, data.len() as u64) == expected,
            "{from} to {to}"
        );
    }
}

#[test]
fn a_content_knows_whether_a_program_holds_it() {
    let (mut content, writer) = Content::<PAGE>::create(PAGE, None).unwrap();
    drop(writer);
    assert!(content.is_unused() && !content.is_in_use());
    let opened = content.open(libc::O_RDWR);
    assert!(
        content.is_in_use() && content.refresh_use(),
        "before it has a descriptor"
    );
    let opened = opened.into_fd().unwrap();
    assert!(content.map_shared() && !content.map_shared());
    assert!(content.is_open_for_writing() && content.refresh_use());
    drop(opened);
    assert!(content.is_in_use(), "until somebody asks");
    assert!(!content.refresh_use());
    content.release();
    assert!(!content.is_mapped());
}

#[test]
fn writes_to_an_object_that_was_left_behind_are_known() {
    let (mut content, _) = Content::<PAGE>::create(PAGE, None).unwrap();
    let old = content.open(libc::O_RDWR);
    let (other, _) = goanna_cache::CacheObject::create(PAGE, None).unwrap();
    content.exchange_object(other);
    content.mark_descriptors_stale();
    let new = content.open(libc::O_RDWR);
    assert!(!content.is_written_through(old.fd().unwrap()).unwrap());
    assert!(content.is_written_through(new.fd().unwrap()).unwrap());
}
