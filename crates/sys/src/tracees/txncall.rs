//! The reserved system call through which programs under `amino run` begin and end transactions.
//!
//! Linux has no call of this number, so outside of a monitor it answers ENOSYS. The monitor stops the caller by ptrace,
//! never by notification, because the first call may have to give the program a further seccomp filter.
//!
//! ```text
//! syscall(NUMBER, op, target, buf, len, number)
//! ```
//!
//! `target` is the process on which the operation acts: 0 for the calling thread, else a process of the same run and the
//! same user (`amino txn begin` names its parent, the shell). `buf` and `len` are an identifier or a name to be read, or space
//! for a text to be written, as the operation says. `number` is 0 where the operation does not say what it means.
#![allow(
    unsafe_code,
    reason = "syscall(2) with a number that libc does not know"
)]

use nix::errno::Errno;

/// The call's number: "amn" in ASCII, far above Linux's own, below the x32 ABI's.
pub const NUMBER: i64 = 0x61_6d_6e;

/// The version of this interface, which [`Op::Version`] returns.
pub const VERSION: i64 = 3;

/// Length of a transaction's identifier: 128 random bits as lower-case hexadecimal digits, without a NUL.
pub const ID_LEN: usize = 32;

/// Length of the longest name of a transaction, in bytes.
pub const NAME_MAX: usize = 64;

/// Whether `text` can be a transaction's name: 1 to [`NAME_MAX`] ASCII letters, digits, `.`, `_` and `-`, of which `-` is not the
/// first.
pub fn is_name(text: &[u8]) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    let length = 1..=NAME_MAX;
    length.contains(&text.len()) && text.iter().all(allowed) && text.first() != Some(&b'-')
}

/// Maximum length of the request and of the answer of [`Op::EnterRun`] and [`Op::LeaveRun`], in bytes.
pub const RUN_TEXT_MAX: usize = 64 << 10;

/// How deep transactions can be nested.
pub const DEPTH_MAX: usize = 64;

/// The operations. Errors of all of them: ENOSYS outside of `amino run`; EINVAL for an unknown operation, flags, or a malformed
/// identifier; EFAULT for a bad buffer; ESRCH when `target` is not a process of this run; EPERM when it is another user's;
/// EOPNOTSUPP when no store is mounted, and for the begin of a transaction in a nested run that has another store. For [`Op::Begin`], [`Op::Resume`] and
/// [`Op::Attach`]: EAGAIN when the program has seccomp filters of its own: the filter of participants cannot be added to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Op {
    /// Returns [`VERSION`].
    Version = 0,
    /// Begins a transaction, nested when there is a current one; writes its identifier to `buf`, returns its depth from 1 on.
    /// EMLINK beyond [`DEPTH_MAX`]; EINVAL when `len` is below [`ID_LEN`].
    Begin = 1,
    /// Commits the current transaction: a nested one into the one around it, an outermost one to the disk. ENODATA when there
    /// is none; EBUSY while one nested in it by another process is open; ENOSPC or EIO when it cannot be committed, and
    /// was aborted.
    Commit = 2,
    /// Aborts the current transaction, with those that are nested in it. ENODATA when there is none.
    Abort = 3,
    /// Writes a description (JSON) to `buf` as far as `len` lets, and returns its whole length.
    Status = 4,
    /// Sets the current transaction, with those around it, aside; writes its identifier to `buf`. ENODATA, EINVAL.
    Suspend = 5,
    /// Resumes a transaction that `target` has suspended: it is the current one again. `buf` holds its identifier. ENOENT when
    /// `target` has suspended no such transaction, EBUSY when there is a current one.
    Resume = 6,
    /// Joins a transaction of another process of the same user; `buf` holds its identifier. ENOENT when none of that
    /// identifier is open, EPERM when it is another user's, EBUSY when there is a current one.
    Attach = 7,
    /// Leaves the current transaction, and those around it, without ending them. A transaction is aborted when its last process leaves
    /// it. ENODATA.
    Detach = 8,
    /// Begins a transaction that the run holds under a name, nested in the current one of `target`; it has no participants at first.
    /// `buf` has [`NAME_MAX`] bytes: the name, filled up with NULs; the identifier is written over it. After `number` seconds the
    /// transaction is aborted; 0 means never. Returns its depth. EINVAL for a malformed name, EEXIST when a transaction of this name
    /// and user is open, EMLINK beyond [`DEPTH_MAX`]. Since version 2.
    BeginNamed = 9,
    /// Joins the transaction of the caller's user whose name `buf` holds. ENOENT when there is none, EBUSY when the current one
    /// is neither that one nor around it. Since version 2.
    AttachNamed = 10,
    /// Commits the transaction of the caller's user whose name `buf` holds. ENOENT when there is none; EBUSY while processes take
    /// part in it, or one nested in it is open; ENOSPC or EIO when it cannot be committed, and was aborted. Since version 2.
    CommitNamed = 11,
    /// Aborts the transaction of the caller's user whose name `buf` holds, with those that are nested in it. Every later
    /// operation on the store of a process that participates in it fails with ECANCELED. ENOENT. Since version 2.
    AbortNamed = 12,
    /// Writes a description (JSON) of the open transactions of the caller's user to `buf` as far as `len` lets, and returns its
    /// whole length. Since version 2.
    List = 13,
    /// Begins a run inside of the run: the calling thread, and the processes that it starts from then on, see further mounts. `buf` holds a request, which only the
    /// same version of amino can make; `target` is 0. Writes an answer to `buf` as far as `len` lets, and returns its whole length. EPERM for a caller with fewer
    /// rights than the monitor, and where changes outside of the store are reported; EOPNOTSUPP where the caller's filter lets calls pass that the monitor would
    /// have to see; E2BIG when `len` is above [`RUN_TEXT_MAX`]. Since version 3.
    EnterRun = 14,
    /// The calling thread leaves the run that it has begun. Writes an answer to `buf` when the changes in the mounts of that run are on the disk, and returns the
    /// whole length of the answer. ENODATA when the thread is in none. Since version 3.
    LeaveRun = 15,
}

impl Op {
    /// The operation of this number.
    pub const fn from_raw(raw: u64) -> Option<Self> {
        Some(match raw {
            0 => Self::Version,
            1 => Self::Begin,
            2 => Self::Commit,
            3 => Self::Abort,
            4 => Self::Status,
            5 => Self::Suspend,
            6 => Self::Resume,
            7 => Self::Attach,
            8 => Self::Detach,
            9 => Self::BeginNamed,
            10 => Self::AttachNamed,
            11 => Self::CommitNamed,
            12 => Self::AbortNamed,
            13 => Self::List,
            14 => Self::EnterRun,
            15 => Self::LeaveRun,
            _ => return None,
        })
    }
}

/// Makes the call, and returns the result of `op`, which reads or writes `buf`.
pub fn call(op: Op, target: i32, buf: &mut [u8]) -> Result<i64, Errno> {
    call_with(op, target, buf, 0)
}

/// As [`call`], with the operation's number.
pub fn call_with(op: Op, target: i32, buf: &mut [u8], number: u32) -> Result<i64, Errno> {
    // SAFETY: the monitor writes at most `len` bytes to `buf`, which is ours alone; the kernel knows no such call.
    let result = unsafe {
        libc::syscall(
            NUMBER,
            op as u64,
            i64::from(target),
            buf.as_mut_ptr(),
            buf.len(),
            u64::from(number),
        )
    };
    Errno::result(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_of_a_monitor_there_is_no_such_call() {
        assert_eq!(call(Op::Version, 0, &mut []), Err(Errno::ENOSYS));
    }

    #[test]
    fn names_are_short_and_plain() {
        for good in [&b"a"[..], b"build-7_x.y", b".9", &[b'n'; NAME_MAX]] {
            assert!(is_name(good));
        }
        let bad = [
            &b""[..],
            b"-x",
            b"a b",
            b"a/b",
            b"a\n",
            b"\xff",
            b"a\0",
            &[b'n'; NAME_MAX + 1],
        ];
        for bad in bad {
            assert!(!is_name(bad), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn numbers_are_what_from_raw_takes() {
        for raw in 0..32 {
            assert!(Op::from_raw(raw).is_none_or(|op| op as u64 == raw));
        }
    }
}
