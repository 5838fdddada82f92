//! The messages of error codes, for `amino_strerror`.

use std::ffi::CStr;

use amino_client::Errno;

/// What a code means, in words that live as long as the program.
pub fn of(code: i32) -> &'static CStr {
    match Errno::from_raw(code.saturating_abs()) {
        _ if code == 0 => c"success",
        Errno::ENOSYS => c"not running under amino",
        Errno::EOPNOTSUPP => c"no store for transactions is mounted in this run",
        Errno::EINVAL => c"invalid operation or malformed identifier",
        Errno::EFAULT => c"the buffer is not accessible memory",
        Errno::ESRCH => c"the process does not belong to this run",
        Errno::EPERM => c"the process or the transaction belongs to another user",
        Errno::EMLINK => c"transactions are nested 64 deep already",
        Errno::ENODATA => c"there is no current transaction",
        Errno::EBUSY => {
            c"there is a current transaction already, or another process has one open that is nested in this one"
        }
        Errno::ENOENT => c"there is no such transaction",
        Errno::ENOSPC => c"no space left to commit; the transaction was aborted",
        Errno::EIO => c"the disk failed at the commit; the transaction was aborted",
        Errno::EDEADLK => c"deadlock: transactions would wait for each other's locks",
        Errno::ETIMEDOUT => c"timed out waiting for a lock",
        Errno::EPROTO => c"the monitor's answer is not understood",
        _ => c"unknown error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_mean_what_they_mean_in_rust() {
        use amino_client::Error;
        for error in [
            Error::NotUnderAmino,
            Error::NoStore,
            Error::Invalid,
            Error::BadBuffer,
            Error::NoProcess,
            Error::NotPermitted,
            Error::TooDeep,
            Error::NoTransaction,
            Error::NotFound,
            Error::NoSpace,
            Error::Io,
            Error::Deadlock,
            Error::LockTimeout,
        ] {
            let code = error.errno() as i32;
            assert_eq!(of(-code).to_str(), Ok(&*error.to_string()));
            assert_eq!(of(code), of(-code));
        }
        assert_eq!(of(0), c"success");
        assert_eq!(of(i32::MIN), c"unknown error");
    }
}
