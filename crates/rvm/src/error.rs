//! The errors of recoverable memory, and their errnos.

use goanna_sys::Errno;
use thiserror::Error;

/// An error of recoverable memory. [`Error::errno`] is the number that the C interface returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Error {
    /// The process does not run under `amino run`, so there are no file transactions.
    #[error("not running under amino: only transactions of memory work here")]
    NotUnderAmino,
    /// The monitor speaks another version of the transaction call.
    #[error("amino has version {0} of the transaction call, which this library does not support")]
    Version(i64),
    /// Linux before 6.7, which cannot report which pages were written.
    #[error("recoverable memory needs Linux 6.7 or newer")]
    OldKernel,
    /// The file transaction could not begin, commit or abort. Each method documents the effect on memory.
    #[error("the file transaction: {0}")]
    Files(Errno),
    /// The kernel refused to map memory or to report its state.
    #[error("memory: {0}")]
    Memory(Errno),
    /// More than [`DEPTH_MAX`](crate::DEPTH_MAX) transactions within each other.
    #[error("too many nested transactions")]
    TooDeep,
    /// Commit or abort without begin.
    #[error("no transaction")]
    NoTransaction,
    /// There is no such region: it never existed, was unmapped, or an abort has removed it.
    #[error("no such region")]
    NoRegion,
    /// The heap has no free block of this size.
    #[error("the heap is full")]
    Full,
    /// Alignment beyond a page.
    #[error("the alignment is larger than a page")]
    Alignment,
    /// The pointer to free is not an allocated block of this heap.
    #[error("not an allocated block")]
    NotAllocated,
    /// The heap's own data was overwritten, by a write beyond a block for instance.
    #[error("the heap is damaged")]
    Damaged,
    /// This process is a child of fork(2): recoverable memory belongs to the parent alone.
    #[error("recoverable memory is not inherited by fork")]
    Forked,
}

impl Error {
    /// The error number closest to it.
    pub fn errno(self) -> Errno {
        match self {
            Self::NotUnderAmino => Errno::ENOSYS,
            Self::Version(_) | Self::OldKernel => Errno::EOPNOTSUPP,
            Self::Files(errno) | Self::Memory(errno) => errno,
            Self::TooDeep => Errno::EMLINK,
            Self::NoTransaction => Errno::ENODATA,
            Self::NoRegion | Self::NotAllocated | Self::Alignment => Errno::EINVAL,
            Self::Full => Errno::ENOMEM,
            Self::Damaged => Errno::EUCLEAN,
            Self::Forked => Errno::EPERM,
        }
    }
}
