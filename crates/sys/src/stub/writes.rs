//! The memory through which a process learns its grants, and reports its writes under them (`writes.S`, docs/decisions/0121).
//!
//! An area is two pages of memory, shared by one tracee and the monitor. A word near its start is not zero while the process writes. The next two words describe
//! that write, if it appends more than a page: the size of the object before it, plus one, and the object's inode number. The second page has slots.
//! A slot with an inode number is a *grant*: the process may write to that cache object between two offsets. Before each write it extends the slot's range
//! of written offsets. The inode number selects the slot. The file's attributes, which the slot has, too, are valid as long as that range is empty: nothing else changes a file with a grant.
//!
//! The process can store anything in its area, so the monitor only takes from it that content may have changed.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::map::STAT_SIZE;
use super::words::SharedWords;

/// Size of an area, bytes.
pub const LEN: usize = 8192;

// The layout, as in `writes.S`. Offsets and sizes in bytes.
const BUSY_AT: usize = 8;
const APPEND_AT: usize = 16;
const OBJECT_AT: usize = 24;
const SLOTS_AT: usize = 4096;
const SLOT_SIZE: usize = 256;
const SLOTS: u64 = 16;
const SLOT_INO: usize = 0;
const SLOT_START: usize = 8;
const SLOT_END: usize = 16;
const SLOT_LOW: usize = 24;
const SLOT_HIGH: usize = 32;
const SLOT_STAT: usize = 64;

const _: () = assert!(SLOT_STAT + STAT_SIZE <= SLOT_SIZE);
const _: () = assert!(SLOTS_AT + SLOTS as usize * SLOT_SIZE == LEN);

/// After this many grants in a row under which the process has written nothing, there are fewer: after writes, a file gets one only at the second
/// write in a row; at opens, see [`OPENS_BETWEEN`]. Both are counted apart.
const UNUSED_MAX: u32 = 4;
/// Number of opens without a grant between two that get one, after [`UNUSED_MAX`] unused grants at opens.
const OPENS_BETWEEN: u32 = 64;

/// The grants of one process, and its writes under them.
#[derive(Debug)]
pub struct WriteArea {
    file: OwnedFd,
    words: SharedWords,
    /// The process has ended in the middle of a write.
    ended_busy: AtomicBool,
    /// Number of grants in a row after a write under which the process has written nothing.
    unused: AtomicU32,
    /// The same of grants at an open.
    unused_at_open: AtomicU32,
    /// Opens since the last of these grants.
    opens: AtomicU32,
    /// The file of the last write that came to the monitor.
    last_file: AtomicU64,
}

/// When a process gets a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// When it opens the file for writing.
    Open,
    /// After a write that came to the monitor.
    Write,
}

/// The part of a file that a process has written under a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// Nothing.
    Nothing,
    /// At most these offsets.
    Within(Range<u64>),
    /// Any part: another process has moved the offset of the open file description during a write.
    Somewhere,
}

impl WriteArea {
    /// An area without grants.
    pub fn new() -> Result<Self, Errno> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create("writes", flags)?;
        let words = SharedWords::of_new(file.as_fd(), LEN)?;
        Ok(Self {
            file,
            words,
            ended_busy: AtomicBool::new(false),
            unused: AtomicU32::new(0),
            unused_at_open: AtomicU32::new(0),
            opens: AtomicU32::new(0),
            last_file: AtomicU64::new(0),
        })
    }

    /// A descriptor to map the area by, with `PROT_READ | PROT_WRITE` and `MAP_SHARED`.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        self.words.at(at)
    }

    /// The offset of the slot of a grant for the object with this inode number.
    pub fn slot_of(ino: u64) -> usize {
        SLOTS_AT + (ino % SLOTS) as usize * SLOT_SIZE
    }

    /// Whether the process is likely to use a grant after the write to `file`, an inode number, that it makes now.
    pub fn is_likely_to_write_more(&self, file: u64) -> bool {
        let is_second = self.last_file.swap(file, Relaxed) == file;
        is_second || self.unused.load(Relaxed) < UNUSED_MAX
    }

    /// Whether the process is likely to use a grant for the file that it opens now for writing.
    pub fn is_likely_to_write_next(&self) -> bool {
        let opens = self.opens.fetch_add(1, Relaxed);
        let grants = self.unused_at_open.load(Relaxed) < UNUSED_MAX || opens >= OPENS_BETWEEN;
        if grants {
            self.opens.store(0, Relaxed);
        }
        grants
    }

    /// Records whether the process has written under a grant that has ended.
    pub fn record_use(&self, moment: Moment, has_written: bool) {
        let unused = match moment {
            Moment::Open => &self.unused_at_open,
            Moment::Write => &self.unused,
        };
        if has_written {
            unused.store(0, Relaxed);
        } else {
            unused.fetch_add(1, Relaxed);
        }
    }

    /// Allows the process to write to the object with inode number `ino` between these offsets, in bytes. `stat` is the file's struct stat. The slot must have no grant.
    pub fn grant(&self, ino: u64, offsets: Range<u64>, stat: &[u8; STAT_SIZE]) {
        let slot = Self::slot_of(ino);
        let words = stat.as_chunks::<8>().0.iter();
        for (bytes, at) in words.zip((slot + SLOT_STAT..).step_by(8)) {
            self.word(at).store(u64::from_ne_bytes(*bytes), Relaxed);
        }
        self.word(slot + SLOT_START).store(offsets.start, SeqCst);
        self.word(slot + SLOT_END).store(offsets.end, SeqCst);
        self.word(slot + SLOT_LOW).store(u64::MAX, SeqCst);
        self.word(slot + SLOT_HIGH).store(0, SeqCst);
        self.word(slot + SLOT_INO).store(ino, SeqCst);
    }

    /// Ends the grant. The process begins no further write under it, but may be [in the middle of one](WriteArea::is_busy).
    pub fn revoke(&self, ino: u64) {
        self.word(Self::slot_of(ino) + SLOT_INO).store(0, SeqCst);
    }

    /// Whether the process may be in the middle of a write.
    pub fn is_busy(&self) -> bool {
        self.word(BUSY_AT).load(SeqCst) != 0
    }

    /// Records that the process is in no write, because the supervisor has taken it out of the stub.
    pub fn set_idle(&self) {
        self.word(BUSY_AT).store(0, SeqCst);
    }

    /// Records that the process has ended, or has executed another program.
    pub fn set_ended(&self) {
        if self.is_busy() {
            self.ended_busy.store(true, SeqCst);
        }
        self.set_idle();
    }

    /// The size that the object with inode number `ino` had before a write of more than a page, in the middle of which the process has ended.
    pub fn size_before_end(&self, ino: u64) -> Option<u64> {
        let is_object = self.word(OBJECT_AT).load(SeqCst) == ino;
        (is_object && self.ended_busy.load(SeqCst))
            .then(|| self.word(APPEND_AT).load(SeqCst).checked_sub(1))?
    }

    /// Records that a write under the grant for `ino` may have gone anywhere in the object.
    pub fn set_somewhere(&self, ino: u64) {
        self.word(Self::slot_of(ino) + SLOT_HIGH)
            .store(u64::MAX, SeqCst);
    }

    /// The part that the process has written under the grant for `ino`.
    pub fn written(&self, ino: u64) -> Written {
        let slot = Self::slot_of(ino);
        let low = self.word(slot + SLOT_LOW).load(SeqCst);
        let high = self.word(slot + SLOT_HIGH).load(SeqCst);
        match high {
            u64::MAX => Written::Somewhere,
            high if high <= low => Written::Nothing,
            high => Written::Within(low..high),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_grant_begins_with_nothing_written() {
        let area = WriteArea::new().unwrap();
        assert!(!area.is_busy());
        area.grant(33, 4096..8192, &[7; STAT_SIZE]);
        assert_eq!(WriteArea::slot_of(33), WriteArea::slot_of(1));
        assert_eq!(area.written(33), Written::Nothing);
        let slot = WriteArea::slot_of(33);
        // As a stub does.
        area.word(slot + SLOT_LOW).store(5000, SeqCst);
        area.word(slot + SLOT_HIGH).store(6000, SeqCst);
        area.revoke(33);
        assert_eq!(area.written(33), Written::Within(5000..6000));
        assert_eq!(area.word(slot + SLOT_INO).load(SeqCst), 0);
        area.set_somewhere(33);
        assert_eq!(area.written(33), Written::Somewhere);
        area.grant(1, 0..4096, &[7; STAT_SIZE]);
        assert_eq!(area.written(1), Written::Nothing);
    }

    #[test]
    fn after_unused_grants_a_file_gets_one_at_its_second_write() {
        let area = WriteArea::new().unwrap();
        for file in 1..=4 {
            assert!(area.is_likely_to_write_more(file));
            area.record_use(Moment::Write, false);
        }
        assert!(!area.is_likely_to_write_more(5));
        assert!(!area.is_likely_to_write_more(6));
        assert!(area.is_likely_to_write_more(6));
        area.record_use(Moment::Write, true);
        assert!(area.is_likely_to_write_more(7));
    }

    #[test]
    fn after_unused_grants_at_opens_few_opens_get_one() {
        let area = WriteArea::new().unwrap();
        for _ in 0..4 {
            assert!(area.is_likely_to_write_next());
            area.record_use(Moment::Open, false);
        }
        let grants = |opens: u32| {
            (0..opens)
                .filter(|_| area.is_likely_to_write_next())
                .count()
        };
        assert_eq!(grants(OPENS_BETWEEN), 0);
        assert_eq!(grants(OPENS_BETWEEN + 1), 1);
        area.record_use(Moment::Open, true);
        assert_eq!(grants(10), 10);
        assert!(area.is_likely_to_write_more(1), "writes are counted apart");
    }

    #[test]
    fn an_append_that_the_end_of_a_process_interrupts_has_a_size_before_it() {
        let area = WriteArea::new().unwrap();
        area.word(APPEND_AT).store(5001, SeqCst);
        area.word(OBJECT_AT).store(33, SeqCst);
        area.set_ended();
        assert_eq!(area.size_before_end(33), None);
        area.word(BUSY_AT).store(1, SeqCst);
        area.set_ended();
        assert!(!area.is_busy());
        assert_eq!(area.size_before_end(33), Some(5000));
        assert_eq!(area.size_before_end(34), None);
        // A write within a page.
        area.word(APPEND_AT).store(0, SeqCst);
        assert_eq!(area.size_before_end(33), None);
    }
}
