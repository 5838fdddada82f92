//! The transaction calls themselves, on the calling thread or another process.

use goanna_sys::Errno;
#[cfg(not(test))]
use goanna_sys::txncall::call_with;
use goanna_sys::txncall::{ID_LEN, Op};

#[cfg(test)]
use crate::fake::call_with;
use crate::{Error, Id, Status};

/// Size of the first buffer for a description, in bytes. For a longer one the call is repeated.
const STATUS_BYTES: usize = 4096;

/// The thread or process on whose transactions a call acts.
///
/// Every call fails with [`Error::NotUnderAmino`], [`Error::NoStore`], [`Error::NoProcess`] and [`Error::NotPermitted`] where
/// they apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The calling thread.
    Me,
    /// A process of the same run and the same user, by its process id.
    Process(i32),
}

impl Target {
    /// Begins a transaction, nested when there is a current one. [`Error::TooDeep`] beyond 64 levels.
    pub fn begin(self) -> Result<Id, Error> {
        self.call_for_id(Op::Begin)
    }

    /// Commits the current transaction: a nested one into the one around it, an outermost one to the disk.
    ///
    /// [`Error::NoTransaction`] without one; [`Error::NestedOpen`] while another process has one open that is nested in it;
    /// [`Error::NoSpace`] and [`Error::Io`] when it cannot be committed, and was aborted.
    pub fn commit(self) -> Result<(), Error> {
        self.call(Op::Commit, &mut []).map(drop)
    }

    /// Aborts the current transaction with those nested in it. [`Error::NoTransaction`] without one.
    pub fn abort(self) -> Result<(), Error> {
        self.call(Op::Abort, &mut []).map(drop)
    }

    /// Describes the transactions. [`Error::BadAnswer`] when the monitor's answer is not understood.
    pub fn status(self) -> Result<Status, Error> {
        Status::parse(self.call_for_text(Op::Status)?)
    }

    /// Writes the description to `buf`, as much as fits, and returns its whole length in bytes.
    pub fn status_into(self, buf: &mut [u8]) -> Result<usize, Error> {
        self.call_into(Op::Status, buf)
    }

    /// Sets the current transaction, with those around it, aside. [`Error::NoTransaction`] without one.
    pub fn suspend(self) -> Result<Id, Error> {
        self.call_for_id(Op::Suspend)
    }

    /// Resumes a transaction that the target has suspended: it is the current one again. [`Error::NotFound`] when there is
    /// none with that identifier, [`Error::HasCurrent`] when there is a current one.
    pub fn resume(self, id: &Id) -> Result<(), Error> {
        self.call_with_id(Op::Resume, id)
    }

    /// Joins a transaction of another process of the same user. [`Error::NotFound`] when none of that identifier is open,
    /// [`Error::NotPermitted`] when it is another user's, [`Error::HasCurrent`] when there is a current one.
    pub fn attach(self, id: &Id) -> Result<(), Error> {
        self.call_with_id(Op::Attach, id)
    }

    /// Leaves the current transaction, and those around it, without ending them. A transaction is aborted when its last
    /// process leaves it. [`Error::NoTransaction`] without one.
    pub fn detach(self) -> Result<(), Error> {
        self.call(Op::Detach, &mut []).map(drop)
    }

    fn call_for_id(self, op: Op) -> Result<Id, Error> {
        let mut buf = [0; ID_LEN];
        self.call(op, &mut buf)?;
        let text = String::from_utf8_lossy(&buf).into_owned();
        Id::try_from(text).map_err(|why| Error::BadAnswer(why.to_string()))
    }

    fn call_with_id(self, op: Op, id: &Id) -> Result<(), Error> {
        let mut buf = id.as_str().as_bytes().to_vec();
        self.call(op, &mut buf).map(drop)
    }

    /// The whole text that `op` writes.
    pub(crate) fn call_for_text(self, op: Op) -> Result<String, Error> {
        let mut buf = vec![0; STATUS_BYTES];
        loop {
            let len = self.call_into(op, &mut buf)?;
            if len <= buf.len() {
                buf.truncate(len);
                break;
            }
            // With a reserve: other processes may begin transactions before the next call.
            buf.resize(len.saturating_add(STATUS_BYTES), 0);
        }
        String::from_utf8(buf).map_err(|why| Error::BadAnswer(why.to_string()))
    }

    fn call_into(self, op: Op, buf: &mut [u8]) -> Result<usize, Error> {
        let len = self.call(op, buf)?;
        usize::try_from(len).map_err(|_| Error::BadAnswer(format!("a length of {len}")))
    }

    pub(crate) fn call(self, op: Op, buf: &mut [u8]) -> Result<i64, Error> {
        self.call_with(op, buf, 0)
    }

    pub(crate) fn call_with(self, op: Op, buf: &mut [u8], number: u32) -> Result<i64, Error> {
        let pid = match self {
            Self::Me => 0,
            // The call's 0 is the calling thread; getppid(2)'s is a parent in another process name space.
            Self::Process(..=0) => return Err(Error::NoProcess),
            Self::Process(pid) => pid,
        };
        call_with(op, pid, buf, number).map_err(|errno| {
            // Sandboxes answer unknown calls with EPERM. A monitor never refuses to return its version.
            if errno == Errno::EPERM && call_with(Op::Version, 0, &mut [], 0).is_err() {
                Error::NotUnderAmino
            } else {
                Error::of(op, errno)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[test]
    fn each_call_names_its_operation_and_target() {
        fake::reset();
        let shell = Target::Process(77);
        let id = shell.begin().unwrap();
        assert_eq!(shell.suspend().unwrap(), id);
        shell.resume(&id).unwrap();
        assert_eq!(shell.resume(&id), Err(Error::HasCurrent));
        shell.commit().unwrap();
        assert_eq!(shell.abort(), Err(Error::NoTransaction));
        assert_eq!(Target::Me.attach(&id), Err(Error::NotFound));
        assert_eq!(Target::Me.detach(), Err(Error::NoTransaction));
        let calls = [
            (Op::Begin, 77),
            (Op::Suspend, 77),
            (Op::Resume, 77),
            (Op::Resume, 77),
            (Op::Commit, 77),
            (Op::Abort, 77),
            (Op::Attach, 0),
            (Op::Detach, 0),
        ];
        assert_eq!(fake::calls(), calls);
    }

    #[test]
    fn no_process_is_not_taken_for_the_caller() {
        fake::reset();
        for pid in [0, -1] {
            assert_eq!(Target::Process(pid).begin(), Err(Error::NoProcess));
        }
        assert_eq!(fake::calls(), []);
    }

    #[test]
    fn a_long_status_is_read_whole() {
        fake::reset();
        for _ in 0..40 {
            Target::Me.begin().unwrap();
        }
        let status = Target::Me.status().unwrap();
        assert!(status.raw().len() > STATUS_BYTES);
        assert_eq!(status.current.len(), 40);
        assert!(
            (1..)
                .zip(&status.current)
                .all(|(depth, open)| open.depth == depth)
        );
    }

    #[test]
    fn a_sandbox_that_forbids_the_call_is_no_monitor() {
        fake::reset();
        fake::fail(Op::Begin, Errno::EPERM);
        assert_eq!(Target::Me.begin(), Err(Error::NotPermitted));
        fake::fail(Op::Version, Errno::EPERM);
        fake::fail(Op::Begin, Errno::EPERM);
        assert_eq!(Target::Me.begin(), Err(Error::NotUnderAmino));
    }
}
