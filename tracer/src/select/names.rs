//! Caches which files have a name for which a filter tests: the name cache of Tracefs (section 3).
//!
//! A call on a descriptor knows the file, but not each of its names: a file that was opened as `foo` may be renamed, or have a second name. The
//! cache keeps, by device and inode number, which tests of names held for a file under the names it was seen with. So it answers for files
//! with several names, and a path that was seen before is not compared again. It has a fixed size; for a file whose entry was replaced, only
//! the path of the present call counts.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::facts::{Facts, Named};
use super::predicate::Predicate;

/// Entries: 8192 files.
const SETS: usize = 2048;
const WAYS: usize = 4;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Key {
    device: u64,
    /// 0: a free entry.
    inode: u64,
}

/// Which of a filter's tests of names hold for the files seen last.
#[derive(Debug)]
pub struct NameCache {
    /// 64-bit words for one bit per test.
    words: usize,
    keys: Vec<Key>,
    /// Hash of the path with which the entry's bits were last determined.
    paths: Vec<u64>,
    bits: Vec<u64>,
    /// Which way of a set is replaced next.
    next: usize,
    /// The bits of the call at hand.
    call: Vec<u64>,
}

impl NameCache {
    /// A cache for this many tests.
    pub fn new(tests: usize) -> Self {
        let words = tests.div_ceil(64);
        let entries = if tests == 0 { 0 } else { SETS * WAYS };
        Self {
            words,
            keys: vec![Key::default(); entries],
            paths: vec![0; entries],
            bits: vec![0; entries * words],
            next: 0,
            call: vec![0; words],
        }
    }

    /// Finds out which of `tests` hold for the files of a call. [`holds`](Self::holds) then has the answers.
    pub fn look_up(&mut self, tests: &[Predicate], facts: &Facts<'_>) {
        self.call.fill(0);
        for named in facts.names() {
            match named.file.filter(|file| file.inode != 0) {
                Some(_) => self.by_file(tests, &named),
                None => evaluate(tests, named.path, &mut self.call),
            }
        }
    }

    /// Whether a test held for one of the files of the call looked up last.
    pub fn holds(&self, test: usize) -> bool {
        let word = self.call.get(test / 64).copied().unwrap_or(0);
        word >> (test % 64) & 1 == 1
    }

    /// Adds the bits of a file, determined again where it was not seen under this path.
    fn by_file(&mut self, tests: &[Predicate], named: &Named<'_>) {
        let Some(file) = named.file else { return };
        let key = Key {
            device: file.device,
            inode: file.inode,
        };
        let path = hash(named.path);
        let (entry, is_known) = self.entry(key);
        let range = entry * self.words..(entry + 1) * self.words;
        let (Some(bits), Some(seen)) = (self.bits.get_mut(range), self.paths.get_mut(entry)) else {
            return evaluate(tests, named.path, &mut self.call);
        };
        if !is_known || *seen != path {
            // A file with one link has lost its other names. A new file that reuses an inode number has none of the former file's names.
            if !is_known || file.links == 1 {
                bits.fill(0);
            }
            evaluate(tests, named.path, bits);
            *seen = path;
        }
        for (sum, bits) in self.call.iter_mut().zip(bits) {
            *sum |= *bits;
        }
    }

    /// The entry of a file, and whether it has one already.
    fn entry(&mut self, key: Key) -> (usize, bool) {
        let set = (hash_of(&(key.device, key.inode)) as usize % SETS) * WAYS;
        let ways = self.keys.get(set..set + WAYS).unwrap_or_default();
        if let Some(way) = ways.iter().position(|own| *own == key) {
            return (set + way, true);
        }
        let free = ways.iter().position(|own| own.inode == 0);
        let way = free.unwrap_or_else(|| {
            self.next = (self.next + 1) % WAYS;
            self.next
        });
        if let Some(slot) = self.keys.get_mut(set + way) {
            *slot = key;
        }
        (set + way, false)
    }
}

/// Sets the bit of each test that holds for a path.
fn evaluate(tests: &[Predicate], path: &[u8], bits: &mut [u64]) {
    for (at, test) in tests.iter().enumerate() {
        if let Some(word) = bits.get_mut(at / 64)
            && test.holds_for_path(path)
        {
            *word |= 1 << (at % 64);
        }
    }
}

fn hash(path: &[u8]) -> u64 {
    hash_of(&path)
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
