//! Processes under a rule of the profile, and the transactions that were begun for them.
//!
//! Lock order: the table, then all locks that beginning a transaction takes. No thread waits for a tracee while it holds
//! them.

use std::collections::HashMap;
use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use goanna_sys::procfs;
use goanna_syscalls::Named;
use goanna_vfs::walk::Pos;
use goanna_vfs::{Errno, FsError, Result, TxnId, look_up_again};
use parking_lot::Mutex;

use super::{Begin, End, Profile, Rule};
use crate::call::{Answer, Call, Work};
use crate::participants::{Deferred, Offset, offsets};
use crate::shadow::{Identity, Shadow};
use crate::table::Handler;
use crate::{Monitor, Status};

/// A descriptor, and the object that it refers to.
type Held = (i32, Identity);

/// A transaction that was begun for a process.
#[derive(Debug)]
struct Begun {
    id: TxnId,
    rule: Arc<Rule>,
    program: Arc<str>,
    /// Files of the store that the process had open when the transaction began.
    held: Vec<Held>,
    /// Number of pending calls for which it was begun; `None` when one of them has succeeded.
    tried_by: Option<usize>,
}

#[derive(Debug)]
struct Process {
    /// The rule for transactions that begin from now on.
    rule: Option<Arc<Rule>>,
    program: Arc<str>,
    open: Option<Begun>,
}

/// The processes that have a rule of the profile, and their transactions.
#[derive(Debug, Default)]
pub struct Profiled {
    profile: Option<Profile>,
    processes: Mutex<HashMap<i32, Process>>,
}

impl Begun {
    fn deferred(&self) -> Deferred {
        Deferred {
            durable: self.rule.durable,
            program: Arc::clone(&self.program),
        }
    }
}

impl Profiled {
    /// Without processes at first.
    pub fn new(profile: Option<Profile>) -> Self {
        Self {
            profile,
            processes: Mutex::default(),
        }
    }

    /// The rule for the program at `path`.
    pub fn rule(&self, path: &[u8]) -> Option<Arc<Rule>> {
        self.profile.as_ref()?.rule(path)
    }

    /// Process `pid` has executed `program`, to which `rule` applies. A transaction that was begun for the process
    /// continues.
    pub fn executed(
        &self,
        monitor: &Monitor,
        pid: i32,
        entered: Option<(Option<Arc<Rule>>, Arc<str>)>,
    ) {
        if self.profile.is_none() {
            return;
        }
        let former = self.processes.lock().remove(&pid);
        let mut open = former.and_then(|process| process.open);
        // Descriptors that are closed on exec are closed by now.
        let is_over = |begun: &mut Begun| {
            begun.rule.end == End::LastClose && !begun.continues(monitor, pid, None)
        };
        if let Some(begun) = open.take_if(is_over) {
            monitor
                .participants
                .commit_when_free(begun.id, begun.deferred());
        }
        let Some((rule, program)) = entered.or_else(|| {
            let begun = open.as_ref()?;
            Some((None, Arc::clone(&begun.program)))
        }) else {
            return;
        };
        if open.is_none()
            && let Some(rule) = rule.as_ref().filter(|rule| rule.begin == Begin::Exec)
        {
            open = begin(monitor, pid, pid, rule, &program, None);
        }
        let process = Process {
            rule,
            program,
            open,
        };
        self.processes.lock().insert(pid, process);
    }

    /// `parent` has started `child`, which runs the same program.
    pub fn forked(&self, parent: i32, child: i32) {
        if self.profile.is_none() {
            return;
        }
        let (Ok(parent), Ok(child)) = (procfs::status(parent), procfs::status(child)) else {
            return;
        };
        if parent.tgid == child.tgid {
            return;
        }
        let mut processes = self.processes.lock();
        let Some(Process {
            rule: Some(rule),
            program,
            ..
        }) = processes.get(&parent.tgid)
        else {
            return;
        };
        let inherited = Process {
            rule: Some(Arc::clone(rule)),
            program: Arc::clone(program),
            open: None,
        };
        processes.insert(child.tgid, inherited);
    }

    /// Process `pid` has exited with `status`; its parent has not been notified yet.
    pub fn exited(&self, monitor: &Monitor, pid: i32, status: Status) {
        let process = self.processes.lock().remove(&pid);
        let Some(begun) = process.and_then(|process| process.open) else {
            return;
        };
        monitor.participants.end_inner(pid, begun.id);
        if begun.rule.commits(status) {
            monitor
                .participants
                .commit_when_free(begun.id, begun.deferred());
        } else {
            monitor.participants.abort_one(begun.id);
        }
    }

    /// The transaction that ends with the close of these descriptors, if any, and how to commit it.
    fn last_close(
        &self,
        call: &Call<'_>,
        closed: RangeInclusive<i32>,
    ) -> Option<(TxnId, Deferred)> {
        let pid = call.task.caller().ok()?.pid;
        let mut processes = self.processes.lock();
        let process = processes.get_mut(&pid)?;
        let begun = process.open.as_ref()?;
        if begun.rule.end != End::LastClose || begun.tried_by.is_some() {
            return None;
        }
        let single = closed.start() == closed.end();
        if single && of_store(call.monitor, pid, *closed.start()).is_none() {
            return None;
        }
        if begun.continues(call.monitor, pid, Some(closed)) {
            return None;
        }
        let begun = process.open.take()?;
        Some((begun.id, begun.deferred()))
    }

    /// Begins a transaction with this call if a rule says so. Returns whether the call is in such a transaction.
    fn before(&self, call: &mut Call<'_>) -> bool {
        let Ok(pid) = call.task.caller().map(|caller| caller.pid) else {
            return false;
        };
        let begins = {
            let processes = self.processes.lock();
            let Some(process) = processes.get(&pid) else {
                return false;
            };
            match (&process.open, &process.rule) {
                (None, Some(rule)) => rule.begin,
                (Some(begun), _) if begun.tried_by.is_some() => begun.rule.begin,
                _ => return false,
            }
        };
        let relevant = match begins {
            Begin::Exec => false,
            Begin::Open => call.opened().is_some_and(|at| is_in_store(call, at)),
            Begin::FirstWrite => call.changed().is_some_and(|at| is_in_store(call, at)),
        };
        if !relevant {
            return false;
        }
        let mut processes = self.processes.lock();
        let Some(process) = processes.get_mut(&pid) else {
            return false;
        };
        match &mut process.open {
            Some(begun) => match &mut begun.tried_by {
                Some(calls) => *calls += 1,
                None => return false,
            },
            None => {
                let Some(rule) = &process.rule else {
                    return false;
                };
                let tid = call.task.tid;
                process.open = begin(call.monitor, pid, tid, rule, &process.program, Some(1));
            }
        }
        let begun = process.open.is_some();
        call.forget_caller();
        begun
    }

    /// Handles the answer to a call for which [`Profiled::before`] was true: if the call has not succeeded, the
    /// transaction is aborted.
    fn after(&self, call: &Call<'_>, answer: &Result<Answer>) {
        let Ok(pid) = call.task.caller().map(|caller| caller.pid) else {
            return;
        };
        let mut processes = self.processes.lock();
        let Some(process) = processes.get_mut(&pid) else {
            return;
        };
        let Some(begun) = &mut process.open else {
            return;
        };
        let Some(calls) = &mut begun.tried_by else {
            return;
        };
        *calls = calls.saturating_sub(1);
        let is_last = *calls == 0;
        match answer {
            // The call will be restarted.
            Err(FsError::Blocked(_)) | Ok(Answer::Wait | Answer::Readable(_)) => {}
            Ok(Answer::PassOn) | Err(_) => {
                if is_last && let Some(begun) = process.open.take() {
                    // With the table locked, so that no transaction begins inside this one.
                    call.monitor.participants.abort_one(begun.id);
                }
            }
            Ok(_) => begun.tried_by = None,
        }
    }

    fn knows(&self, call: &Call<'_>) -> bool {
        let caller = call.task.caller();
        caller.is_ok_and(|caller| self.processes.lock().contains_key(&caller.pid))
    }
}

impl Begun {
    /// Whether the process has files of the store open that it has opened since the transaction began, other than those
    /// being closed.
    fn continues(&self, monitor: &Monitor, pid: i32, closed: Option<RangeInclusive<i32>>) -> bool {
        let is_closed = |fd: i32| closed.as_ref().is_some_and(|range| range.contains(&fd));
        held(monitor, pid)
            .into_iter()
            .any(|held| !is_closed(held.0) && !self.held.contains(&held))
    }
}

/// The time for which an operation is retried that fails because its transaction is ending. That takes only an instant, unless the machine is busy.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// The wait for the end of a transaction that another thread is ending.
struct Ending(Instant);

impl Ending {
    fn begin() -> Self {
        Self(Instant::now())
    }

    /// Waits a little for thread `tid` to leave the transaction. Returns whether the operation is to be retried: not if the thread keeps the transaction.
    fn waits(&self, monitor: &Monitor, tid: i32) -> bool {
        let elapsed = self.0.elapsed();
        if elapsed > ENDS_WITHIN || monitor.participants.keeps_ended(tid) {
            return false;
        }
        if elapsed < Duration::from_millis(1) {
            thread::yield_now();
        } else {
            thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

/// Answers a call by `handler`, in a transaction that begins with the call if a rule says so.
pub fn answer(call: &mut Call<'_>, handler: Handler) -> Result<Answer> {
    let handler = |call: &mut Call<'_>| {
        let answer = look_up_again(|| handler(call));
        call.monitor.watches.raise_notifications();
        answer
    };
    let profiled = &call.monitor.profiled;
    let _answering = call.monitor.watches.answering();
    if profiled.profile.is_none() {
        return handler(call);
    }
    let begins = profiled.before(call);
    let mut answer = handler(call);
    // Another thread has just closed the last file, which has ended the transaction. The program must not see an error
    // of a transaction that it did not begin.
    let ending = Ending::begin();
    while matches!(answer, Err(FsError::Errno(Errno::ECANCELED)))
        && profiled.knows(call)
        && ending.waits(call.monitor, call.task.tid)
    {
        call.forget_caller();
        answer = handler(call);
    }
    if begins {
        profiled.after(call, &answer);
        if matches!(answer, Ok(Answer::PassOn)) {
            call.forget_caller();
        }
    }
    answer
}

/// The answer to a call that closes descriptors: the kernel performs it, after a commit if a rule says so.
pub fn close(monitor: &Arc<Monitor>, call: &Call<'_>) -> Answer {
    let ended = closed_by(call).and_then(|closed| monitor.profiled.last_close(call, closed));
    let Some((id, deferred)) = ended else {
        return Answer::PassOn;
    };
    let monitor = Arc::clone(monitor);
    Answer::Block(Work::new(move || {
        let deferred = deferred.clone();
        monitor.participants.commit_when_free(id, deferred);
        Ok(Answer::PassOn)
    }))
}

fn closed_by(call: &Call<'_>) -> Option<RangeInclusive<i32>> {
    let bound = |index: usize| i32::try_from(call.uint(index)).unwrap_or(i32::MAX);
    match i64::from(call.nr) {
        libc::SYS_close => Some(call.int(0)..=call.int(0)),
        libc::SYS_dup2 | libc::SYS_dup3 if call.int(0) != call.int(1) => {
            Some(call.int(1)..=call.int(1))
        }
        libc::SYS_close_range if call.uint(2) & libc::CLOSE_RANGE_CLOEXEC == 0 => {
            Some(bound(0)..=bound(1))
        }
        _ => None,
    }
}

/// Begins a transaction of `rule` for process `pid`, because of its thread `tid`. If that fails, the process continues
/// without it.
fn begin(
    monitor: &Monitor,
    pid: i32,
    tid: i32,
    rule: &Arc<Rule>,
    program: &Arc<str>,
    tried_by: Option<usize>,
) -> Option<Begun> {
    let try_begin = || -> Result<Begun, Errno> {
        let status = procfs::status(tid)?;
        let mut tids = procfs::threads(pid)?;
        // The current transaction of the first thread is the one around it.
        tids.retain(|&other| other != tid);
        tids.insert(0, tid);
        let is_ours = |object| monitor.shadows.find(object).is_some();
        let mut before = offsets(pid, is_ours);
        // When the process has exited, its offsets can be restored only through its parent, which shares open file
        // descriptions with it.
        let parents = offsets(status.ppid, is_ours);
        let shared = |theirs: &Offset| before.iter().any(|own| own.is_twin(theirs));
        let parents: Vec<_> = parents.into_iter().filter(shared).collect();
        before.extend(parents);
        let held = if rule.end == End::LastClose {
            held(monitor, pid)
        } else {
            Vec::new()
        };
        let (id, _) = monitor.participants.begin(&tids, status.uid[0], before)?;
        Ok(Begun {
            id,
            rule: Arc::clone(rule),
            program: Arc::clone(program),
            held,
            tried_by,
        })
    };
    let mut begun = try_begin();
    // The transaction around it is just ending.
    let ending = Ending::begin();
    while matches!(begun, Err(Errno::ECANCELED)) && ending.waits(monitor, tid) {
        begun = try_begin();
    }
    match begun {
        Ok(begun) => Some(begun),
        // The process has ended.
        Err(Errno::ESRCH) => None,
        Err(errno) => {
            let why = errno.desc();
            monitor.fail.line(&format!(
                "{program}: no transaction could be begun for it: {why}"
            ));
            None
        }
    }
}

/// The descriptors of process `pid` that are files of the store, of any kind.
fn held(monitor: &Monitor, pid: i32) -> Vec<Held> {
    let fds = procfs::fds(pid).unwrap_or_default();
    fds.into_iter()
        .filter_map(|fd| Some((fd, of_store(monitor, pid, fd)?)))
        .collect()
}

fn of_store(monitor: &Monitor, pid: i32, fd: i32) -> Option<Identity> {
    let meta = fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok()?;
    let identity = (meta.dev(), meta.ino());
    let shadow = monitor.shadows.find(identity)?;
    let covered = monitor.participants.cover(&shadow.place().mount);
    covered.then_some(identity)
}

/// Whether this names a file of the store, existing or not.
fn is_in_store(call: &Call<'_>, named: Named) -> bool {
    match named {
        Named::Path { dirfd, path, .. } => leads_into_store(call, dirfd, path),
        Named::Descriptor(index) => {
            let shadow = call.shadow(call.int(index)).ok().flatten();
            let cover =
                |shadow: Arc<Shadow>| call.monitor.participants.cover(&shadow.place().mount);
            shadow.is_some_and(cover)
        }
    }
}

/// Whether the path in argument `path` leads into the store; its last component need not exist.
fn leads_into_store(call: &Call<'_>, dirfd: Option<usize>, path: usize) -> bool {
    let participants = &call.monitor.participants;
    let is_ours = |at: &Pos| matches!(at, Pos::Mounted(place) if participants.cover(&place.mount));
    let dirfd = dirfd.map_or(libc::AT_FDCWD, |index| call.int(index));
    let Ok(path) = call.path(path) else {
        return false;
    };
    match call.resolve(dirfd, &path, true) {
        Ok(resolved) => is_ours(&resolved.at),
        Err(_) => {
            let parent = call.resolve_parent(dirfd, &path);
            parent.is_ok_and(|parent| is_ours(&parent.at.dir))
        }
    }
}
