//! The errors of the transaction calls, and the errnos that they come from.

use goanna_sys::Errno;
use goanna_sys::txncall::{DEPTH_MAX, NAME_MAX, Op};

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// `ENOSYS`: no monitor answers. Of every call.
    #[error("not running under amino")]
    NotUnderAmino,
    /// `EOPNOTSUPP`: the run has no store, or the process is in a nested run with another one. Of every call.
    #[error("no store for transactions is mounted in this run")]
    NoStore,
    /// `EINVAL`: the monitor does not know the operation, its flags or the form of the identifier. Of every call.
    #[error("invalid operation or malformed identifier")]
    Invalid,
    /// `EFAULT`: the buffer is not accessible memory. Of every call with a buffer.
    #[error("the buffer is not accessible memory")]
    BadBuffer,
    /// `ESRCH`: the target is not a process of this run. Of every call.
    #[error("the process does not belong to this run")]
    NoProcess,
    /// `EPERM`: the target, or the transaction to attach to, is another user's.
    #[error("the process or the transaction belongs to another user")]
    NotPermitted,
    /// `EMLINK`: begin beyond the deepest nesting.
    #[error("transactions are nested {DEPTH_MAX} deep already")]
    TooDeep,
    /// `ENODATA`: commit, abort, suspend or detach without a current transaction.
    #[error("there is no current transaction")]
    NoTransaction,
    /// `EBUSY` of commit: another process is in a transaction that is nested in this one. It stays open.
    #[error("another process has a transaction open that is nested in this one")]
    NestedOpen,
    /// `EBUSY` of resume and attach.
    #[error("there is a current transaction already")]
    HasCurrent,
    /// `ENOENT`: resume, attach, and the calls with a name.
    #[error("there is no such transaction")]
    NotFound,
    /// `EEXIST`: begin with the name of an open transaction.
    #[error("a transaction of this name is open already")]
    NameTaken,
    /// `EBUSY` of a commit by name: processes participate in the transaction, or one nested in it is open. It stays open.
    #[error("processes take part in the transaction, or one nested in it is open")]
    InUse,
    /// A text that is not a valid name: see [`Name`](crate::Name).
    #[error(
        "a name has 1 to {NAME_MAX} letters, digits, dots, underscores and hyphens, and no hyphen first"
    )]
    BadName,
    /// `ENOSPC` of commit: no space for it. It was aborted.
    #[error("no space left to commit; the transaction was aborted")]
    NoSpace,
    /// `EIO` of commit: the disk failed. It was aborted.
    #[error("the disk failed at the commit; the transaction was aborted")]
    Io,
    /// `EDEADLK`: waiting for a lock would be a deadlock. A retry may succeed.
    #[error("deadlock: transactions would wait for each other's locks")]
    Deadlock,
    /// `ETIMEDOUT`: a lock was not free in time. A retry may succeed.
    #[error("timed out waiting for a lock")]
    LockTimeout,
    /// An errno that no call is documented to fail with.
    #[error("{}", .0.desc())]
    Other(Errno),
    /// A text that is not an identifier: 32 lower-case hexadecimal digits.
    #[error("a transaction's identifier has 32 hexadecimal digits in lower case")]
    BadId,
    /// The monitor's answer is not understood by this library.
    #[error("the monitor's answer is not understood: {0}")]
    BadAnswer(String),
    /// [`Transaction::commit`](crate::Transaction::commit) while a transaction that was begun inside is current. Nothing was
    /// committed.
    #[error("a transaction that was begun inside this one has not ended")]
    NotInnermost,
    /// The work failed, and then its transaction could not be aborted: it is still current.
    #[error("{work}; and the transaction could not be aborted: {why}")]
    NotAborted {
        /// The error of the work.
        work: String,
        /// The error of the abort.
        why: Box<Error>,
    },
}

impl Error {
    /// The error that `errno` means as the answer to `op`.
    pub(crate) fn of(op: Op, errno: Errno) -> Self {
        match errno {
            Errno::ENOSYS => Self::NotUnderAmino,
            Errno::EOPNOTSUPP => Self::NoStore,
            Errno::EINVAL => Self::Invalid,
            Errno::EFAULT => Self::BadBuffer,
            Errno::ESRCH => Self::NoProcess,
            Errno::EPERM => Self::NotPermitted,
            Errno::EMLINK => Self::TooDeep,
            Errno::ENODATA => Self::NoTransaction,
            Errno::EBUSY if op == Op::Commit => Self::NestedOpen,
            Errno::EBUSY if op == Op::CommitNamed => Self::InUse,
            Errno::EBUSY => Self::HasCurrent,
            Errno::EEXIST => Self::NameTaken,
            Errno::ENOENT => Self::NotFound,
            Errno::ENOSPC => Self::NoSpace,
            Errno::EIO => Self::Io,
            Errno::EDEADLK => Self::Deadlock,
            Errno::ETIMEDOUT => Self::LockTimeout,
            other => Self::Other(other),
        }
    }

    /// The errno it stands for.
    pub fn errno(&self) -> Errno {
        match self {
            Self::NotUnderAmino => Errno::ENOSYS,
            Self::NoStore => Errno::EOPNOTSUPP,
            Self::Invalid | Self::BadId | Self::BadName => Errno::EINVAL,
            Self::BadBuffer => Errno::EFAULT,
            Self::NoProcess => Errno::ESRCH,
            Self::NotPermitted => Errno::EPERM,
            Self::TooDeep => Errno::EMLINK,
            Self::NoTransaction => Errno::ENODATA,
            Self::NestedOpen | Self::HasCurrent | Self::NotInnermost | Self::InUse => Errno::EBUSY,
            Self::NameTaken => Errno::EEXIST,
            Self::NotFound => Errno::ENOENT,
            Self::NoSpace => Errno::ENOSPC,
            Self::Io => Errno::EIO,
            Self::Deadlock => Errno::EDEADLK,
            Self::LockTimeout => Errno::ETIMEDOUT,
            Self::Other(errno) => *errno,
            Self::BadAnswer(_) => Errno::EPROTO,
            Self::NotAborted { why, .. } => why.errno(),
        }
    }

    /// Whether the call failed because of locks of other transactions, so that a retry may succeed.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Deadlock | Self::LockTimeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_survives_the_way_there_and_back() {
        for raw in 1..134 {
            let errno = Errno::from_raw(raw);
            for op in (0..14).filter_map(Op::from_raw) {
                assert_eq!(Error::of(op, errno).errno(), errno);
            }
        }
    }

    #[test]
    fn busy_says_what_is_in_the_way() {
        assert_eq!(Error::of(Op::Commit, Errno::EBUSY), Error::NestedOpen);
        assert_eq!(Error::of(Op::Resume, Errno::EBUSY), Error::HasCurrent);
        assert_eq!(Error::of(Op::Attach, Errno::EBUSY), Error::HasCurrent);
    }
}
