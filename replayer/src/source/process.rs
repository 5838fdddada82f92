//! The descriptors, working directories and mappings of the processes of a trace. A descriptor of a file below the directory has a
//! *slot*, which is reused when it is free.

use std::collections::{BTreeMap, HashMap};

/// A process of the trace.
#[derive(Debug, Default)]
pub struct Process {
    pub descriptors: HashMap<i32, Entry>,
    /// Descriptors whose number was given out again before the record of their close(2): records of threads come in the order in which
    /// calls were seen to end.
    pub closing: HashMap<i32, Vec<Entry>>,
    pub cwd: Option<Vec<u8>>,
    pub umask: u32,
    /// By first address.
    pub mappings: BTreeMap<u64, Mapped>,
    /// Mappings at addresses that were given out again before the record of the munmap(2), by first address.
    pub unmapping: BTreeMap<u64, Mapped>,
    /// Its threads that have not ended.
    pub threads: u32,
}

/// A descriptor.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub slot: u32,
    pub cloexec: bool,
    /// When the call that made it ended, in nanoseconds.
    pub since_ns: u64,
}

/// A mapping of a file.
#[derive(Debug, Clone)]
pub struct Mapped {
    pub slot: u32,
    pub length: u64,
    pub offset: u64,
    pub path: Vec<u8>,
    /// When the call that made it ended, in nanoseconds.
    pub since_ns: u64,
}

impl Process {
    /// Removes all mappings.
    pub fn take_mappings(&mut self) -> impl Iterator<Item = Mapped> {
        let current = std::mem::take(&mut self.mappings);
        let earlier = std::mem::take(&mut self.unmapping);
        current.into_values().chain(earlier.into_values())
    }

    /// Removes the mappings that a munmap(2) removes: those that lie completely in the range, and were there when it began. A mapping of
    /// which only a part is in the range stays.
    pub fn unmap(&mut self, start: u64, end: u64, entered_ns: u64) -> Vec<Mapped> {
        let is_whole = |at: &u64, mapped: &Mapped| {
            (start..end).contains(at) && at.saturating_add(mapped.length) <= end
        };
        let mut found: Vec<_> = self
            .unmapping
            .extract_if(start..end, |at, it| is_whole(at, it))
            .collect();
        found.extend(self.mappings.extract_if(start..end, |at, it| {
            is_whole(at, it) && it.since_ns <= entered_ns
        }));
        if found.is_empty() {
            found.extend(
                self.mappings
                    .extract_if(start..end, |at, it| is_whole(at, it)),
            );
        }
        found.sort_by_key(|(at, _)| *at);
        found.into_iter().map(|(_, mapped)| mapped).collect()
    }
}

/// Slots, and which of them are free. A thread reuses the slots that it has freed itself, so that threads do not wait for each other.
#[derive(Debug, Default)]
pub struct Slots {
    free: HashMap<i32, Vec<u32>>,
    common: Vec<u32>,
    next: u32,
}

impl Slots {
    /// A slot for a thread; `None` if `most` slots exist already.
    pub fn take(&mut self, tid: i32, most: u32) -> Option<u32> {
        let own = self.free.get_mut(&tid).and_then(Vec::pop);
        let slot = own.or_else(|| self.common.pop()).or_else(|| {
            let next = self.next;
            (next < most).then(|| {
                self.next += 1;
                next
            })
        })?;
        Some(slot)
    }

    pub fn give(&mut self, tid: i32, slot: u32) {
        self.free.entry(tid).or_default().push(slot);
    }

    /// Records that a thread has ended: other threads may use the slots that it has freed.
    pub fn end(&mut self, tid: i32) {
        self.common
            .extend(self.free.remove(&tid).unwrap_or_default());
    }

    /// How many there are.
    pub fn len(&self) -> u32 {
        self.next
    }
}

/// `path`, relative to `start` unless it is absolute, without `.`, `..` and repeated slashes. Links are not resolved.
pub fn absolute(start: &[u8], path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    let whole = match path.first() {
        Some(b'/') => [path].concat(),
        _ => [start, b"/", path].concat(),
    };
    for part in whole.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let mut out = Vec::with_capacity(whole.len());
    for part in parts {
        out.push(b'/');
        out.extend_from_slice(part);
    }
    if out.is_empty() {
        out.push(b'/');
    }
    out
}

/// `path` relative to `directory`, if it is below it or the same.
pub fn below<'a>(directory: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    if directory == b"/" {
        return path.strip_prefix(b"/");
    }
    match path.strip_prefix(directory)? {
        b"" => Some(b""),
        rest => rest.strip_prefix(b"/"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_shortened_and_never_rise_above_the_root() {
        assert_eq!(absolute(b"/a/b", b"../c/./d//e"), b"/a/c/d/e");
        assert_eq!(absolute(b"/a", b"../../../etc/passwd"), b"/etc/passwd");
        assert_eq!(absolute(b"/a", b"/"), b"/");
        assert_eq!(below(b"/a", b"/a/b"), Some(b"b".as_slice()));
        assert_eq!(below(b"/a", b"/ab"), None);
        assert_eq!(below(b"/", b"/ab"), Some(b"ab".as_slice()));
        assert_eq!(below(b"/a", b"/a"), Some(b"".as_slice()));
    }

    #[test]
    fn a_munmap_removes_the_mapping_that_was_there_when_it_began() {
        let mapped = |slot, since_ns| Mapped {
            slot,
            length: 8192,
            offset: 0,
            path: Vec::new(),
            since_ns,
        };
        let mut process = Process::default();
        process.unmapping.insert(8192, mapped(0, 10));
        process.mappings.insert(8192, mapped(1, 30));
        process.mappings.insert(16384, mapped(2, 10));
        let unmap = |process: &mut Process, start, end, entered_ns| {
            let found = process.unmap(start, end, entered_ns).into_iter();
            found.map(|it| it.slot).collect::<Vec<_>>()
        };
        assert_eq!(unmap(&mut process, 4096, 12288, 20), [0; 0]);
        assert_eq!(unmap(&mut process, 8192, 65536, 20), [0, 2]);
        assert_eq!(unmap(&mut process, 8192, 16384, 40), [1]);
        // Times of other tracers are not that exact.
        process.mappings.insert(8192, mapped(3, 50));
        assert_eq!(unmap(&mut process, 8192, 16384, 49), [3]);
        assert!(process.take_mappings().next().is_none());
    }

    #[test]
    fn a_thread_gets_the_slot_back_that_it_has_freed() {
        let mut slots = Slots::default();
        let first = slots.take(1, 8).unwrap();
        let second = slots.take(2, 8).unwrap();
        slots.give(1, first);
        assert_eq!(slots.take(2, 8), Some(2));
        assert_eq!(slots.take(1, 8), Some(first));
        slots.give(2, second);
        slots.end(2);
        assert_eq!(slots.take(1, 8), Some(second));
        assert_eq!(slots.take(1, 3), None);
    }
}
