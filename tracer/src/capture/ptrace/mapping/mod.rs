//! The mappings of files that the followed processes have, and the calls that change them.

mod pages;

use std::collections::{BTreeSet, HashMap};

use goanna_sys::page_watch::PageWatch;
use goanna_sys::{Errno, procfs};

use crate::event::File;
use crate::select::CallSet;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// The calls that change mappings, or end all mappings of a process.
const CALLS: [i64; 6] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_execve,
    libc::SYS_execveat,
];

/// The calls that must stop.
pub fn calls() -> CallSet {
    CALLS.iter().map(|&nr| nr as u32).collect()
}

/// A call that changes mappings.
#[derive(Debug, Clone, Copy)]
pub struct Change {
    pub nr: i64,
    pub args: [u64; 6],
}

/// A mapping of a file.
#[derive(Debug, Clone)]
pub struct Mapped {
    pub start: u64,
    pub end: u64,
    /// Where in the file it begins.
    pub offset: u64,
    pub file: File,
    /// Pages, by number within the file, that need no report if they are only read: they were mapped already when the watch began, or have
    /// been reported.
    pub known: BTreeSet<u64>,
}

/// The mappings of a process.
#[derive(Debug, Default)]
pub struct Process {
    /// `None` if the process could not make a userfaultfd; the tracer does not try again.
    pub watch: Option<PageWatch>,
    pub mappings: Vec<Mapped>,
    pub has_failed: bool,
}

/// All processes with mappings of files.
#[derive(Debug)]
pub struct Pages {
    pub processes: HashMap<i32, Process>,
    /// The number of seccomp filters that a program has without installing one itself. Further ones might forbid it to make a userfaultfd.
    pub filters: u32,
}

impl Pages {
    /// Has no process yet. `with_filter`: the programs have the filter of the tracer.
    pub fn new(with_filter: bool) -> Self {
        let inherited = procfs::status(std::process::id().cast_signed());
        let inherited = inherited.map_or(0, |status| status.seccomp_filters);
        Self {
            processes: HashMap::new(),
            filters: inherited + u32::from(with_filter),
        }
    }
}

impl Mapped {
    /// The parts that remain without the range from `start` to `end`.
    fn without(self, start: u64, end: u64) -> Vec<Self> {
        let part = |from: u64, to: u64| {
            let offset = self.offset + (from - self.start);
            (from < to).then(|| Self {
                start: from,
                end: to,
                offset,
                file: self.file.clone(),
                known: self.known.clone(),
            })
        };
        let before = part(self.start, start.clamp(self.start, self.end));
        let after = part(end.clamp(self.start, self.end), self.end);
        before.into_iter().chain(after).collect()
    }

    /// The number within the file of the page at `address`.
    fn page(&self, address: u64) -> u64 {
        (self.offset + (address - self.start)) / PAGE
    }

    /// The numbers within the file of the pages in ranges of addresses.
    pub fn numbers(&self, ranges: &[(u64, u64)]) -> Vec<u64> {
        let ranges = ranges.iter();
        ranges
            .flat_map(|&(start, end)| self.page(start)..self.page(end))
            .collect()
    }

    /// The pages touched since the last examination: runs of written pages, and of pages that were only read.
    pub fn look(&mut self, watch: &PageWatch) -> Result<[Vec<(u64, u64)>; 2], Errno> {
        // In this order: a page that another thread writes in between is reported by the next examination.
        let written = self.numbers(&watch.written(self.start, self.end)?);
        let mapped = self.numbers(&watch.mapped(self.start, self.end)?);
        self.known.extend(&written);
        let read: Vec<u64> = mapped
            .into_iter()
            .filter(|page| self.known.insert(*page))
            .collect();
        Ok([runs(&written), runs(&read)])
    }
}

/// Runs of successive numbers: the first number, and the length of the run.
fn runs(numbers: &[u64]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == number => *count += 1,
            _ => runs.push((number, 1)),
        }
    }
    runs
}

impl Process {
    /// Removes the mapping that an mremap(2) has moved, and returns it at its new address `start`.
    pub fn moved(&mut self, change: Change, start: u64) -> Option<Mapped> {
        let [from, len, new_len, ..] = change.args;
        if change.nr != libc::SYS_mremap {
            return None;
        }
        let is_here = |one: &&Mapped| (one.start..one.end).contains(&from);
        let here = self.mappings.iter().find(is_here)?.clone();
        self.forget(from, from.saturating_add(len).next_multiple_of(PAGE));
        Some(Mapped {
            start,
            end: start.saturating_add(new_len).next_multiple_of(PAGE),
            offset: here.offset + (from - here.start),
            ..here
        })
    }

    /// Forgets the mappings of a range, which are gone.
    pub fn forget(&mut self, start: u64, end: u64) {
        let all = std::mem::take(&mut self.mappings).into_iter();
        self.mappings = all.flat_map(|one| one.without(start, end)).collect();
    }
}

impl Change {
    /// The change that call `nr` makes; `None` if it changes no mappings.
    pub fn of(nr: u32, args: [u64; 6]) -> Option<Self> {
        let nr = i64::from(nr);
        CALLS.contains(&nr).then_some(Self { nr, args })
    }

    /// Whether mappings must be examined before the call.
    pub fn may_end_mappings(self) -> bool {
        self.nr != libc::SYS_mmap || self.is_fixed()
    }

    fn is_fixed(self) -> bool {
        self.args[3] & libc::MAP_FIXED as u64 != 0
    }

    /// The range that has no watched mapping any more after the call.
    pub fn unmapped(self, result: u64) -> Option<(u64, u64)> {
        let [start, len, new_len, ..] = self.args;
        let end = |start: u64, len: u64| start.saturating_add(len).next_multiple_of(PAGE);
        match self.nr {
            libc::SYS_mmap => Some((result, end(result, len))),
            libc::SYS_munmap => Some((start, end(start, len))),
            libc::SYS_mremap => Some((result, end(result, new_len))),
            _ => None,
        }
    }
}
