//! A fake monitor for unit tests of one thread: stacks of transactions, scripted failures, and a record of the calls.

use std::cell::RefCell;

use goanna_sys::Errno;
use goanna_sys::txncall::{ID_LEN, Op};

#[derive(Default)]
struct Monitor {
    begun: u64,
    /// Identifiers with their counts of conflicts, outermost first.
    current: Vec<(String, u64)>,
    suspended: Vec<(String, u64)>,
    /// Names, identifiers, and seconds to expire.
    named: Vec<(String, String, u32)>,
    failures: Vec<(Op, Errno)>,
    calls: Vec<(Op, i32)>,
}

thread_local! {
    static MONITOR: RefCell<Monitor> = RefCell::default();
}

fn with<T>(act: impl FnOnce(&mut Monitor) -> T) -> T {
    MONITOR.with_borrow_mut(act)
}

/// Starts with nothing.
pub fn reset() {
    with(|monitor| *monitor = Monitor::default());
}

/// Makes the next call of `op` fail.
pub fn fail(op: Op, errno: Errno) {
    with(|monitor| monitor.failures.push((op, errno)));
}

/// Simulates that a lock of another transaction blocks an operation of the current one.
pub fn conflict() {
    with(|monitor| monitor.current.last_mut().unwrap().1 += 1);
}

/// All calls since the start, with their targets.
pub fn calls() -> Vec<(Op, i32)> {
    with(|monitor| monitor.calls.clone())
}

/// Number of calls of `op`.
pub fn count(op: Op) -> usize {
    calls().iter().filter(|call| call.0 == op).count()
}

/// Number of open transactions.
pub fn depth() -> usize {
    with(|monitor| monitor.current.len())
}

pub fn call_with(op: Op, target: i32, buf: &mut [u8], number: u32) -> Result<i64, Errno> {
    with(|monitor| {
        monitor.calls.push((op, target));
        if let Some(at) = monitor.failures.iter().position(|failure| failure.0 == op) {
            let errno = monitor.failures.remove(at).1;
            // As documented: it was aborted.
            if op == Op::Commit && matches!(errno, Errno::ENOSPC | Errno::EIO) {
                monitor.current.pop();
            }
            return Err(errno);
        }
        monitor.answer(op, buf, number)
    })
}

impl Monitor {
    fn answer(&mut self, op: Op, buf: &mut [u8], number: u32) -> Result<i64, Errno> {
        match op {
            Op::Version => return Ok(1),
            Op::Begin => {
                self.begun += 1;
                let id = format!("{:032x}", self.begun);
                buf.copy_from_slice(id.as_bytes());
                self.current.push((id, 0));
                return Ok(self.current.len() as i64);
            }
            Op::Status => {
                let text = self.describe();
                let len = text.len().min(buf.len());
                buf[..len].copy_from_slice(&text.as_bytes()[..len]);
                return Ok(text.len() as i64);
            }
            Op::Commit | Op::Abort => drop(self.current.pop().ok_or(Errno::ENODATA)?),
            Op::Suspend => {
                let (id, _) = self.current.last().ok_or(Errno::ENODATA)?;
                buf.copy_from_slice(id.as_bytes());
                self.suspended = std::mem::take(&mut self.current);
            }
            Op::Resume | Op::Attach if !self.current.is_empty() => return Err(Errno::EBUSY),
            Op::Resume if self.suspended.last().is_some_and(|s| s.0.as_bytes() == buf) => {
                self.current = std::mem::take(&mut self.suspended);
            }
            Op::Resume | Op::Attach => return Err(Errno::ENOENT),
            Op::Detach if self.current.is_empty() => return Err(Errno::ENODATA),
            Op::Detach => self.current.clear(),
            Op::BeginNamed => {
                let name = String::from_utf8_lossy(buf);
                let name = name.trim_end_matches('\0').to_owned();
                if self.named.iter().any(|named| named.0 == name) {
                    return Err(Errno::EEXIST);
                }
                self.begun += 1;
                let id = format!("{:032x}", self.begun);
                buf[..ID_LEN].copy_from_slice(id.as_bytes());
                self.named.push((name, id, number));
                return Ok(1);
            }
            Op::List => {
                let text = self.list();
                let len = text.len().min(buf.len());
                buf[..len].copy_from_slice(&text.as_bytes()[..len]);
                return Ok(text.len() as i64);
            }
            Op::EnterRun | Op::LeaveRun => return Err(Errno::EOPNOTSUPP),
            Op::AttachNamed | Op::CommitNamed | Op::AbortNamed => {
                let is_it = |named: &(String, String, u32)| named.0.as_bytes() == buf;
                let at = self.named.iter().position(is_it).ok_or(Errno::ENOENT)?;
                match op {
                    Op::AttachNamed => self.current.push((self.named[at].1.clone(), 0)),
                    _ => drop(self.named.remove(at)),
                }
            }
        }
        Ok(0)
    }

    fn list(&self) -> String {
        let transactions = self.named.iter().map(|(name, id, seconds)| {
            serde_json::json!({
                "name": name, "parent": null, "expires_s": (*seconds > 0).then_some(seconds), "id": id, "depth": 1,
                "names": 0, "inodes": 0, "bytes": 0, "shared_locks": 0, "exclusive_locks": 0, "conflicts": 0,
                "processes": [],
            })
        });
        let transactions: Vec<_> = transactions.collect();
        serde_json::json!({ "transactions": transactions }).to_string()
    }

    fn describe(&self) -> String {
        let mut depth = 0;
        let current = self.current.iter().map(|(id, conflicts)| {
            depth += 1;
            serde_json::json!({
                "id": id, "depth": depth, "names": 0, "inodes": 0, "bytes": 0, "shared_locks": 0,
                "exclusive_locks": 0, "conflicts": conflicts, "processes": [1],
            })
        });
        let current: Vec<_> = current.collect();
        let suspended: Vec<&String> = self.suspended.last().iter().map(|s| &s.0).collect();
        serde_json::json!({"current": current, "suspended": suspended}).to_string()
    }
}
