//! The file transactions that begin and end together with those of memory.

use goanna_sys::Errno;
use goanna_sys::txncall::{self, ID_LEN, Op, VERSION};

use crate::Error;

/// The file transactions that accompany those of memory: one for each, with the same nesting.
pub trait Files {
    /// Begins a transaction, nested when there is a current one.
    fn begin(&mut self) -> Result<(), Errno>;
    /// Commits the current one. EBUSY: it is still open. Any other error: it was aborted, or another process has ended it.
    fn commit(&mut self) -> Result<(), Errno>;
    /// Aborts the current one. ENODATA: it had ended already.
    fn abort(&mut self) -> Result<(), Errno>;
}

/// No file transactions: memory alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFiles;

impl Files for NoFiles {
    fn begin(&mut self) -> Result<(), Errno> {
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Errno> {
        Ok(())
    }

    fn abort(&mut self) -> Result<(), Errno> {
        Ok(())
    }
}

/// The file transactions of `amino run`, by the reserved system call.
#[derive(Debug)]
pub struct AminoFiles(());

impl AminoFiles {
    /// Checks whether there is a monitor. [`Error::NotUnderAmino`], [`Error::Version`]; [`Error::Files`] with EOPNOTSUPP
    /// when the run has no store.
    pub fn connect() -> Result<Self, Error> {
        match txncall::call(Op::Version, 0, &mut []) {
            Ok(VERSION) => Ok(Self(())),
            Ok(other) => Err(Error::Version(other)),
            Err(Errno::ENOSYS) => Err(Error::NotUnderAmino),
            Err(errno) => Err(Error::Files(errno)),
        }
    }
}

impl Files for AminoFiles {
    fn begin(&mut self) -> Result<(), Errno> {
        txncall::call(Op::Begin, 0, &mut [0; ID_LEN]).map(drop)
    }

    fn commit(&mut self) -> Result<(), Errno> {
        txncall::call(Op::Commit, 0, &mut []).map(drop)
    }

    fn abort(&mut self) -> Result<(), Errno> {
        txncall::call(Op::Abort, 0, &mut []).map(drop)
    }
}
