//! The call by which programs begin and end transactions ([`goanna_sys::txncall`]). It comes at a ptrace stop, because a
//! program that participates in one must have the filter of participants first. [`nested`] has its operations for runs inside of the run.

use std::sync::Arc;

use goanna_sys::procfs;
use goanna_sys::txncall::{ID_LEN, NAME_MAX, Op, RUN_TEXT_MAX, VERSION, is_name};
use goanna_vfs::{Errno, Result, TxnId};

use crate::Monitor;
use crate::call::{Answer, Call, Work};
use crate::calls::nested;
use crate::participants::offsets;
use crate::process::task::credentials;

/// A request: the calling thread, and the thread or process that it concerns.
#[derive(Debug, Clone)]
pub struct Request {
    op: Op,
    caller: i32,
    uid: u32,
    /// The process that the request concerns, if it is not the caller's.
    pub target: Option<i32>,
    buf: u64,
    len: usize,
    id: Option<TxnId>,
    name: String,
    /// The request for a nested run.
    text: Vec<u8>,
    /// The remaining arguments of the operation.
    number: u32,
}

impl Request {
    /// Reads the call. EINVAL, EFAULT, ESRCH, EPERM.
    pub fn of(call: &Call<'_>) -> Result<Self, Errno> {
        let op = Op::from_raw(call.arg(0)).ok_or(Errno::EINVAL)?;
        let number = u32::try_from(call.arg(4)).map_err(|_| Errno::EINVAL)?;
        if number != 0 && op != Op::BeginNamed {
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
        let name = match op {
            Op::BeginNamed if len != NAME_MAX => return Err(Errno::EINVAL),
            Op::BeginNamed | Op::AttachNamed | Op::CommitNamed | Op::AbortNamed => name(call, len)?,
            _ => String::new(),
        };
        let text = match op {
            Op::EnterRun | Op::LeaveRun if len > RUN_TEXT_MAX => return Err(Errno::E2BIG),
            Op::EnterRun | Op::LeaveRun if target.is_some() => return Err(Errno::EINVAL),
            Op::EnterRun => call.read(call.arg(2), len)?,
            _ => Vec::new(),
        };
        Ok(Self {
            op,
            caller: caller.tid,
            uid: caller.real_uid,
            target,
            buf: call.arg(2),
            len,
            id,
            name,
            text,
            number,
        })
    }

    /// Whether the process that it concerns participates in a transaction afterwards.
    pub fn joins(&self) -> bool {
        matches!(
            self.op,
            Op::Begin | Op::Resume | Op::Attach | Op::AttachNamed
        )
    }

    fn perform(&self, monitor: &Arc<Monitor>) -> Result<Answer> {
        match self.op {
            Op::EnterRun => self.put_answer(nested::enter(monitor, self.caller, &self.text)?),
            Op::LeaveRun => self.put_answer(nested::leave(monitor, self.caller)?),
            _ => self.perform_on_transactions(monitor),
        }
    }

    fn perform_on_transactions(&self, monitor: &Monitor) -> Result<Answer> {
        let participants = &monitor.participants;
        participants.transactions()?;
        let tids = match self.target {
            Some(pid) => procfs::threads(pid).map_err(|_| Errno::ESRCH)?,
            None => vec![self.caller],
        };
        let value = match self.op {
            Op::Version => VERSION,
            Op::Begin | Op::BeginNamed => return self.begin(monitor, &tids),
            Op::Commit => participants.commit(&tids).map(|()| 0)?,
            Op::Abort => participants.abort(&tids).map(|()| 0)?,
            Op::Status => {
                let tid = tids.first().copied().unwrap_or(self.caller);
                self.put_text(participants.describe(tid)?.as_bytes())?
            }
            Op::List => self.put_text(participants.list(self.uid)?.as_bytes())?,
            Op::Suspend => {
                let id = participants.suspend(&tids)?;
                self.put(id.to_string().as_bytes())?;
                0
            }
            Op::Resume => participants
                .resume(&tids, self.txn_id_argument()?)
                .map(|()| 0)?,
            Op::Attach => participants
                .attach(&tids, self.uid, self.txn_id_argument()?)
                .map(|()| 0)?,
            Op::Detach => participants.detach(&tids).map(|()| 0)?,
            Op::AttachNamed => {
                let joined = participants.attach_named(&tids, self.uid, &self.name);
                joined.map(|()| 0)?
            }
            Op::CommitNamed => participants
                .commit_named(self.uid, &self.name)
                .map(|()| 0)?,
            Op::AbortNamed => participants.abort_named(self.uid, &self.name).map(|()| 0)?,
            Op::EnterRun | Op::LeaveRun => return Err(Errno::EINVAL.into()),
        };
        Ok(Answer::Value(value))
    }

    fn begin(&self, monitor: &Monitor, tids: &[i32]) -> Result<Answer> {
        let process = match self.target {
            Some(pid) => pid,
            None => procfs::status(self.caller)?.tgid,
        };
        let tid = tids.first().copied().unwrap_or(self.caller);
        if nested::has_other_store(monitor, tid) {
            // They would not cover it.
            return Err(Errno::EOPNOTSUPP.into());
        }
        let before = offsets(process, |object| monitor.shadows.find(object).is_some());
        let participants = &monitor.participants;
        let (id, depth) = match self.op {
            Op::BeginNamed => {
                participants.begin_named(tids, self.uid, &self.name, self.number, before)?
            }
            _ => participants.begin(tids, self.uid, before)?,
        };
        if let Err(errno) = self.put(id.to_string().as_bytes()) {
            participants.abort_one(id);
            return Err(errno.into());
        }
        Ok(Answer::Value(depth as i64))
    }

    fn txn_id_argument(&self) -> Result<TxnId, Errno> {
        self.id.ok_or(Errno::EINVAL)
    }

    /// Writes as much of `text` as fits the buffer; returns the length of all of it.
    fn put_text(&self, text: &[u8]) -> Result<i64, Errno> {
        self.put(text.get(..self.len).unwrap_or(text))?;
        Ok(text.len() as i64)
    }

    fn put_answer(&self, answer: Vec<u8>) -> Result<Answer> {
        Ok(Answer::Value(self.put_text(&answer)?))
    }

    fn put(&self, text: &[u8]) -> Result<(), Errno> {
        if text.is_empty() {
            return Ok(());
        }
        goanna_sys::tracee::write_all(self.caller, self.buf, text)
    }

    /// Performs the operation. Where it may wait for the disk, or for calls in progress, it runs on a thread that may wait.
    pub fn answer(self, monitor: &Arc<Monitor>) -> Result<Answer> {
        match self.op {
            Op::Commit
            | Op::Abort
            | Op::Detach
            | Op::CommitNamed
            | Op::AbortNamed
            | Op::EnterRun
            | Op::LeaveRun => {
                let monitor = Arc::clone(monitor);
                Ok(Answer::Block(Work::new(move || self.perform(&monitor))))
            }
            _ => self.perform(monitor),
        }
    }
}

/// The name in the call's buffer, without the NULs behind it. EINVAL.
fn name(call: &Call<'_>, len: usize) -> Result<String, Errno> {
    if len > NAME_MAX {
        return Err(Errno::EINVAL);
    }
    let text = call.read(call.arg(2), len)?;
    let end = text.iter().rposition(|&byte| byte != 0);
    let text = text.get(..end.map_or(0, |end| end + 1)).unwrap_or_default();
    if !is_name(text) {
        return Err(Errno::EINVAL);
    }
    String::from_utf8(text.to_vec()).map_err(|_| Errno::EINVAL)
}
