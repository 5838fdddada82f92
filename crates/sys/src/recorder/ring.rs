//! The tracer's side of a ring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::{CAPACITY, RING};
use crate::memfile;
use crate::stub::words::SharedWords;

const WRITTEN_AT: usize = 0;
const READ_AT: usize = 64;
const DATA_AT: usize = 0x1000;

/// The ring of a process.
#[derive(Debug)]
pub struct Ring {
    file: OwnedFd,
    words: SharedWords,
    /// Bytes that were taken. The program can change its own copy of the number.
    taken: u64,
}

/// The program has written something else into its ring.
#[derive(Debug, PartialEq, Eq)]
pub struct Corrupt;

impl Ring {
    /// An empty ring.
    pub fn new() -> Result<Self, Errno> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create("ring", flags)?;
        memfile::set_len(file.as_fd(), RING as u64)?;
        // If the program could truncate the file, the tracer's next access would be SIGBUS.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let words = SharedWords::map(file.as_fd(), RING)?;
        Ok(Self {
            file,
            words,
            taken: 0,
        })
    }

    /// The memory, for the process to map.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Appends the records that were written since the last time to `into`.
    pub fn take(&mut self, into: &mut Vec<u8>) -> Result<(), Corrupt> {
        let written = self.words.at(WRITTEN_AT).load(Acquire);
        let new = written.wrapping_sub(self.taken);
        if new > CAPACITY as u64 || !new.is_multiple_of(8) {
            return Err(Corrupt);
        }
        into.reserve(new as usize);
        for at in (self.taken..written).step_by(8) {
            let word = self
                .words
                .at(DATA_AT + at as usize % CAPACITY)
                .load(Relaxed);
            into.extend_from_slice(&word.to_le_bytes());
        }
        self.taken = written;
        self.words.at(READ_AT).store(written, Release);
        Ok(())
    }
}
