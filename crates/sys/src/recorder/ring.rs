//! The tracer's side of a ring.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use nix::errno::Errno;

use super::{CAPACITY, RECORD_MAX, RING};
use crate::limits;
use crate::stub::words::SharedWords;

const WRITTEN_AT: usize = 0;
const BEGUN_AT: usize = 8;
const READ_AT: usize = 64;
const DATA_AT: usize = 0x1000;

/// The ring of a process.
#[derive(Debug)]
pub struct Ring {
    words: SharedWords,
    /// Bytes that were taken. The program can change its own copy of the number.
    taken: u64,
}

/// The program has written something else into its ring.
#[derive(Debug, PartialEq, Eq)]
pub struct Corrupt;

impl Ring {
    /// The flags of the memfd that a process makes for its ring.
    pub const FILE_FLAGS: u32 = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;

    /// An empty ring in a new memfd. EFBIG: it is beyond the limit on file sizes, at which the kernel would send SIGXFSZ.
    pub fn new(file: OwnedFd) -> Result<Self, Errno> {
        if RING as u64 > limits::prlimit_fsize(0)? {
            return Err(Errno::EFBIG);
        }
        let words = SharedWords::of_new(file.as_fd(), RING)?;
        Ok(Self { words, taken: 0 })
    }

    /// Appends the records that were written since the last time to `into`.
    pub fn take(&mut self, into: &mut Vec<u8>) -> Result<(), Corrupt> {
        let written = self.words.at(WRITTEN_AT).load(Acquire);
        let new = written.wrapping_sub(self.taken);
        if new > CAPACITY as u64 || !new.is_multiple_of(8) {
            return Err(Corrupt);
        }
        self.copy(self.taken, written, into);
        self.taken = written;
        self.words.at(READ_AT).store(written, Release);
        Ok(())
    }

    /// The record of the call that the process was making when it ended, without what is known after a call; after all others were taken.
    pub fn unfinished(&self) -> Option<Vec<u8>> {
        let start = self.words.at(BEGUN_AT).load(Acquire).checked_sub(1)?;
        if start < self.taken {
            return None;
        }
        let head = self.words.at(DATA_AT + start as usize % CAPACITY / 8 * 8);
        let size = (head.load(Relaxed) as u32).next_multiple_of(8);
        let mut record = Vec::new();
        let is_inside = size as usize <= RECORD_MAX && start.is_multiple_of(8);
        is_inside.then(|| self.copy(start, start.saturating_add(size.into()), &mut record))?;
        Some(record)
    }

    fn copy(&self, from: u64, to: u64, into: &mut Vec<u8>) {
        into.reserve((to - from) as usize);
        for at in (from..to).step_by(8) {
            let word = self.words.at(DATA_AT + at as usize % CAPACITY);
            into.extend_from_slice(&word.load(Relaxed).to_le_bytes());
        }
    }
}
