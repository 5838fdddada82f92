//! The call by which programs begin and end transactions ([`goanna_sys::txncall`]). It comes at a ptrace stop, because a
//! program that takes part in one must have the filter of members first.

use std::sync::Arc;

use goanna_sys::procfs;
use goanna_sys::txncall::{ID_LEN, Op, VERSION};
use goanna_vfs::{Errno, Result, TxnId};

use crate::Monitor;
use crate::call::{Answer, Call};
use crate::members::offsets;
use crate::task::credentials;

/// What is asked, by whom, for whom.
#[derive(Debug, Clone)]
pub struct Request {
    op: Op,
    caller: i32,
    uid: u32,
    /// The process that it is for, when that is another.
    pub target: Option<i32>,
    buf: u64,
    len: usize,
    id: Option<TxnId>,
}

impl Request {
    /// Reads the call. EINVAL, EFAULT, ESRCH, EPERM.
    pub fn of(call: &Call<'_>) -> Result<Self> {
        let op = Op::from_raw(call.arg(0)).ok_or(Errno::EINVAL)?;
        if call.arg(4) != 0 {
            return Err(Errno::EINVAL);
        }
        let caller = call.caller()?;
        let target = match call.int(1) {
            0 => None,
            pid if pid == caller.pid => None,
            pid if pid < 0 => return Err(Errno::ESRCH),
            pid => Some(pid),
        };
        if let Some(pid) = target {
            let owner = credentials(pid).map_err(|_| Errno::ESRCH)?;
            if owner.real_uid != caller.real_uid && caller.real_uid != 0 {
                return Err(Errno::EPERM);
            }
        }
        let len = usize::try_from(call.arg(3)).unwrap_or(usize::MAX);
        let id = match op {
            Op::Resume | Op::Attach if len != ID_LEN => return Err(Errno::EINVAL),
            Op::Resume | Op::Attach => {
                let text = call.read(call.arg(2), ID_LEN)?;
                Some(TxnId::parse(&text).ok_or(Errno::EINVAL)?)
            }
            Op::Begin | Op::Suspend if len < ID_LEN => return Err(Errno::EINVAL),
            _ => None,
        };
        Ok(Self {
            op,
            caller: caller.tid,
            uid: caller.real_uid,
            target,
            buf: call.arg(2),
            len,
            id,
        })
    }

    /// Whether who it is for takes part in a transaction afterwards.
    pub fn joins(&self) -> bool {
        matches!(self.op, Op::Begin | Op::Resume | Op::Attach)
    }

    fn perform(&self, monitor: &Monitor) -> Result<Answer> {
        let members = &monitor.members;
        members.transactions()?;
        let tids = match self.target {
            Some(pid) => procfs::threads(pid).map_err(|_| Errno::ESRCH)?,
            None => vec![self.caller],
        };
        let value = match self.op {
            Op::Version => VERSION,
            Op::Begin => return self.begin(monitor, &tids),
            Op::Commit => members.commit(&tids).map(|()| 0)?,
            Op::Abort => members.abort(&tids).map(|()| 0)?,
            Op::Status => {
                let tid = tids.first().copied().unwrap_or(self.caller);
                let text = members.describe(tid);
                let shown = text.as_bytes().get(..self.len).unwrap_or(text.as_bytes());
                self.put(shown)?;
                text.len() as i64
            }
            Op::Suspend => {
                let id = members.suspend(&tids)?;
                self.put(id.to_string().as_bytes())?;
                0
            }
            Op::Resume => members.resume(&tids, self.given()?).map(|()| 0)?,
            Op::Attach => members.attach(&tids, self.uid, self.given()?).map(|()| 0)?,
            Op::Detach => members.detach(&tids).map(|()| 0)?,
        };
        Ok(Answer::Value(value))
    }

    fn begin(&self, monitor: &Monitor, tids: &[i32]) -> Result<Answer> {
        let process = match self.target {
            Some(pid) => pid,
            None => procfs::status(self.caller)?.tgid,
        };
        let before = offsets(process, |object| monitor.shadows.find(object).is_some());
        let (id, depth) = monitor.members.begin(tids, self.uid, before)?;
        if let Err(errno) = self.put(id.to_string().as_bytes()) {
            let _ = monitor.members.abort(tids);
            return Err(errno);
        }
        Ok(Answer::Value(depth as i64))
    }

    fn given(&self) -> Result<TxnId> {
        self.id.ok_or(Errno::EINVAL)
    }

    fn put(&self, text: &[u8]) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        goanna_sys::tracee::write_all(self.caller, self.buf, text)
    }

    /// The answer; what may wait for the disk, and for calls that are under way, is worked out on a thread of its own.
    pub fn answer(self, monitor: &Arc<Monitor>) -> Result<Answer> {
        match self.op {
            Op::Commit | Op::Abort | Op::Detach => {
                let monitor = Arc::clone(monitor);
                Ok(Answer::Block(Box::new(move || self.perform(&monitor))))
            }
            _ => self.perform(monitor),
        }
    }
}
