//! Calls whose answer takes long: they wait for a lock of a transaction, or for something that programs control, such as the
//! other end of a pipe. Each is worked out on a thread of its own, so that no thread that answers other calls waits with it.
//!
//! The caller stays in its call for [`PATIENCE`]. Then the supervisor parks it ([`crate::ptracer`]): it sleeps where a signal
//! wakes it, and the kernel reports that to the supervisor as a stop. Nothing looks at the caller meanwhile. What
//! ends the wait early calls [`Waiting::interrupt`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use goanna_sys::cred;
use goanna_sys::interrupt::Waiter;
use goanna_vfs::{Errno, FsError, Result, Wait};
use parking_lot::{Condvar, Mutex};

use crate::Monitor;
use crate::answer::{Answer, Work};
use crate::process::task::Received;

/// How long a caller stays in its call: parking it costs more than most waits take.
const PATIENCE: Duration = Duration::from_millis(10);

/// The pauses between two attempts to end a wait, at first and at most: the signal that ends a wait in the kernel is lost
/// where the wait has not begun.
const REPEAT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// The work of a call that could not be answered at once, because of `lock` if it met one. `attempt` answers it on a thread that may
/// wait.
pub fn again(lock: Option<Wait>, attempt: impl Fn() -> Result<Answer> + Send + 'static) -> Answer {
    Answer::Block(Box::new(move || match lock {
        Some(lock) => until_free(lock, attempt),
        None => match attempt() {
            Err(FsError::Blocked(lock)) => until_free(lock, attempt),
            other => other,
        },
    }))
}

/// A call that is being worked out.
pub struct Waiting {
    /// The caller.
    pub tid: i32,
    call: Received,
    /// When the call, or the one that it repeats, met the lock that it waits for.
    since: Instant,
    interrupted: AtomicBool,
    /// The caller has left the call. A thread that needs the caller to stay holds this mutex ([`while_in_call`]).
    parked: Mutex<bool>,
    progress: Mutex<Progress>,
    done: Condvar,
}

#[derive(Default)]
struct Progress {
    worker: Option<Waiter>,
    /// The lock that the work waits for.
    lock: Option<Wait>,
    is_done: bool,
    outcome: Option<Result<Answer>>,
}

impl Waiting {
    /// Whether its answer is there.
    pub fn is_done(&self) -> bool {
        self.progress.lock().is_done
    }

    /// The answer, if it comes while the caller stays in its call. `None`: the supervisor parks the caller, and gets
    /// a message when the answer is there.
    pub fn first_answer(&self, monitor: &Monitor) -> Option<Result<Answer>> {
        let limit = Instant::now() + PATIENCE;
        let mut progress = self.progress.lock();
        while !progress.is_done {
            if self.done.wait_until(&mut progress, limit).timed_out() && !progress.is_done {
                drop(progress);
                *self.parked.lock() = true;
                return None;
            }
        }
        drop(progress);
        monitor.waiting.take(self)
    }

    /// Works the call out on the calling thread.
    fn work(self: &Arc<Self>, monitor: &Monitor, work: Work) {
        WORKING_ON.set(Some(Arc::clone(self)));
        let _ = cred::thread_owns_fs();
        if let Ok(waiter) = Waiter::this_thread() {
            self.progress.lock().worker = Some(waiter);
        }
        let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Errno::EIO.into()));
        let outcome = match outcome {
            Err(FsError::Errno(Errno::EINTR)) if self.interrupted.load(Ordering::SeqCst) => {
                Ok(Answer::Interrupted)
            }
            other => other,
        };
        {
            let mut progress = self.progress.lock();
            progress.worker = None;
            progress.is_done = true;
            progress.outcome = Some(outcome);
            self.done.notify_all();
        }
        if *self.parked.lock() {
            monitor.mailbox.post_ready(self.tid);
        }
    }

    /// Makes the work end soon: the wait that it is in fails with EINTR, which becomes [`Answer::Interrupted`], or with
    /// [`Answer::Again`] where it waits for a lock.
    pub fn interrupt(self: &Arc<Self>) {
        if self.interrupted.swap(true, Ordering::SeqCst) || self.is_done() {
            return;
        }
        let waiting = Arc::clone(self);
        let insist = move || {
            let (mut pause, longest) = REPEAT;
            let mut progress = waiting.progress.lock();
            while !progress.is_done {
                progress.end_wait();
                waiting.done.wait_for(&mut progress, pause);
                pause = (pause * 2).min(longest);
            }
        };
        let thread = thread::Builder::new().name("interrupt".into());
        if thread.spawn(insist).is_err() {
            self.progress.lock().end_wait();
        }
    }
}

impl Progress {
    fn end_wait(&self) {
        if let Some(lock) = &self.lock {
            lock.cancel();
        }
        if let Some(worker) = &self.worker {
            // It may have ended.
            let _ = worker.poke();
        }
    }
}

/// What there is for a caller that makes its call again.
pub enum Rejoined {
    /// Its answer.
    Answered(Result<Answer>),
    /// The operation still runs: park the caller again.
    Waits(Arc<Waiting>),
}

/// All calls of a run that are being worked out.
#[derive(Default)]
pub struct WaitingCalls {
    table: Mutex<Table>,
    /// How many entries the table has. If it has none, no thread takes the mutex.
    entries: AtomicUsize,
}

#[derive(Default)]
struct Table {
    by_tid: HashMap<i32, Arc<Waiting>>,
    /// Calls whose wait for a lock a signal has interrupted: the limit of the wait holds for the call that repeats it, too.
    interrupted: HashMap<i32, Interrupted>,
}

struct Interrupted {
    call: Received,
    since: Instant,
    at: Instant,
    is_repeated: bool,
}

/// A call that follows an interrupted one later than this is not the repetition of that one.
const HANDLERS_TIME: Duration = Duration::from_secs(1);

impl Table {
    /// Thread `tid` makes `call`.
    fn note(&mut self, tid: i32, call: Received) {
        let Some(former) = self.interrupted.get_mut(&tid) else {
            return;
        };
        let is_over = former.is_repeated && former.call == call;
        if is_over || former.at.elapsed() > HANDLERS_TIME {
            self.interrupted.remove(&tid);
        } else {
            // The handler may make other calls before.
            former.is_repeated |= former.call == call;
        }
    }
}

impl std::fmt::Debug for WaitingCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WaitingCalls({})", self.entries.load(Ordering::Relaxed))
    }
}

impl WaitingCalls {
    fn with<T>(&self, f: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table.lock();
        let result = f(&mut table);
        let entries = table.by_tid.len() + table.interrupted.len();
        self.entries.store(entries, Ordering::SeqCst);
        result
    }

    fn is_empty(&self) -> bool {
        self.entries.load(Ordering::SeqCst) == 0
    }

    /// Begins to work out `call` of thread `tid` by `work`. EAGAIN where no thread can be started.
    pub fn begin(
        &self,
        monitor: &Arc<Monitor>,
        tid: i32,
        call: Received,
        work: Work,
    ) -> Result<Arc<Waiting>, Errno> {
        let waiting = self.with(|table| {
            let former = table.interrupted.remove(&tid);
            let since = former.filter(|former| former.call == call);
            let waiting = Arc::new(Waiting {
                tid,
                call,
                since: since.map_or_else(Instant::now, |former| former.since),
                interrupted: AtomicBool::new(false),
                parked: Mutex::new(false),
                progress: Mutex::default(),
                done: Condvar::new(),
            });
            table.by_tid.insert(tid, Arc::clone(&waiting));
            waiting
        });
        let (working, shared) = (Arc::clone(&waiting), Arc::clone(monitor));
        let thread = thread::Builder::new().name("waiting".into());
        let spawned = thread.spawn(move || working.work(&shared, work));
        if spawned.is_err() {
            self.with(|table| table.by_tid.remove(&tid));
            return Err(Errno::EAGAIN);
        }
        Ok(waiting)
    }

    /// What there is for thread `tid`, which makes `call`. Where it makes another call than the one that is being worked out,
    /// that one is not wanted any more.
    pub fn rejoin(&self, tid: i32, call: Received) -> Option<Rejoined> {
        if self.is_empty() {
            return None;
        }
        let waiting = self.with(|table| {
            table.note(tid, call);
            table.by_tid.get(&tid).cloned()
        })?;
        if waiting.call != call {
            self.abandon(tid);
            return None;
        }
        if !waiting.is_done() {
            return Some(Rejoined::Waits(waiting));
        }
        self.take(&waiting).map(Rejoined::Answered)
    }

    /// Takes the answer out, once.
    pub fn take(&self, waiting: &Waiting) -> Option<Result<Answer>> {
        let outcome = waiting.progress.lock().outcome.take();
        let is_repeated = matches!(outcome, Some(Ok(Answer::Again)))
            && waiting.interrupted.load(Ordering::SeqCst);
        self.with(|table| {
            let ours = table.by_tid.get(&waiting.tid);
            if ours.is_some_and(|ours| std::ptr::eq(&**ours, waiting)) {
                table.by_tid.remove(&waiting.tid);
                if is_repeated {
                    let interrupted = Interrupted {
                        call: waiting.call,
                        since: waiting.since,
                        at: Instant::now(),
                        is_repeated: false,
                    };
                    table.interrupted.insert(waiting.tid, interrupted);
                }
            }
        });
        outcome
    }

    /// Puts back an answer that was taken out, for the caller to find when it makes its call again.
    pub fn put_back(&self, waiting: &Arc<Waiting>, outcome: Result<Answer>) {
        waiting.progress.lock().outcome = Some(outcome);
        self.with(|table| table.by_tid.insert(waiting.tid, Arc::clone(waiting)));
    }

    /// Whether a call of `tid` is being worked out.
    pub fn has(&self, tid: i32) -> bool {
        !self.is_empty() && self.with(|table| table.by_tid.contains_key(&tid))
    }

    /// Thread `tid` does not wait any more: it has ended, or has left its call.
    pub fn abandon(&self, tid: i32) {
        if self.is_empty() {
            return;
        }
        let waiting = self.with(|table| {
            table.interrupted.remove(&tid);
            table.by_tid.remove(&tid)
        });
        if let Some(waiting) = waiting {
            waiting.interrupt();
        }
    }
}

thread_local! {
    /// What this thread works out. Not found by the caller's number: the caller may wait in another call by now.
    static WORKING_ON: RefCell<Option<Arc<Waiting>>> = const { RefCell::new(None) };
}

fn current() -> Option<Arc<Waiting>> {
    WORKING_ON.with_borrow(Clone::clone)
}

/// Whether the call that this thread works out is to end soon.
pub fn is_interrupted() -> bool {
    current().is_none_or(|waiting| waiting.interrupted.load(Ordering::SeqCst))
}

/// Since when the call waits that this thread works out.
pub fn since() -> Instant {
    current().map_or_else(Instant::now, |waiting| waiting.since)
}

/// Runs `f` while the caller stays in the call that this thread works out; `None` where it has been parked.
pub fn while_in_call<T>(f: impl FnOnce() -> T) -> Option<T> {
    let Some(waiting) = current() else {
        return Some(f());
    };
    let parked = waiting.parked.lock();
    (!*parked).then(f)
}

/// Waits, on a thread that works out a call, for the lock that this call met; false when a signal, or death, ends the wait.
/// EDEADLK, ETIMEDOUT.
pub fn wait_for_lock(lock: &Wait, since: Instant) -> Result<bool, Errno> {
    let Some(waiting) = current() else {
        return Ok(false);
    };
    waiting.progress.lock().lock = Some(lock.clone());
    // An interruption after this look cancels the wait.
    while !waiting.interrupted.load(Ordering::SeqCst) {
        if lock.wait(since.elapsed(), Duration::MAX)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes a call by `attempt` until it meets no lock.
fn until_free(mut lock: Wait, mut attempt: impl FnMut() -> Result<Answer>) -> Result<Answer> {
    let since = since();
    loop {
        if !wait_for_lock(&lock, since)? {
            return Ok(Answer::Again);
        }
        match attempt() {
            Err(FsError::Blocked(next)) => lock = next,
            Ok(Answer::Block(work)) => return work(),
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_wait_is_repeated_once_whatever_its_handler_calls() {
        let (open, write) = ((2, [1, 0, 0, 0, 0, 0]), (1, [2, 0, 0, 0, 0, 0]));
        let mut table = Table::default();
        let interrupted = |at| Interrupted {
            call: open,
            since: at,
            at,
            is_repeated: false,
        };
        table.interrupted.insert(7, interrupted(Instant::now()));
        table.note(7, write);
        table.note(7, open);
        assert!(table.interrupted.contains_key(&7));
        table.note(7, write);
        table.note(7, open);
        assert!(!table.interrupted.contains_key(&7), "another call");
        let former = Instant::now().checked_sub(2 * HANDLERS_TIME).unwrap();
        table.interrupted.insert(7, interrupted(former));
        table.note(7, open);
        assert!(!table.interrupted.contains_key(&7), "much later");
    }

    fn call_of(tid: i32) -> Arc<Waiting> {
        Arc::new(Waiting {
            tid,
            call: (2, [0; 6]),
            since: Instant::now(),
            interrupted: AtomicBool::new(false),
            parked: Mutex::new(false),
            progress: Mutex::default(),
            done: Condvar::new(),
        })
    }

    #[test]
    fn the_work_of_an_abandoned_call_ends_though_its_caller_waits_in_another_one() {
        let (former, next) = (call_of(7), call_of(7));
        former.interrupted.store(true, Ordering::SeqCst);
        *former.parked.lock() = true;
        let on_thread_of = |waiting: &Arc<Waiting>| {
            let waiting = Arc::clone(waiting);
            let look = move || {
                WORKING_ON.set(Some(waiting));
                (is_interrupted(), while_in_call(|| ()))
            };
            thread::spawn(look).join().unwrap()
        };
        assert_eq!(on_thread_of(&former), (true, None));
        assert_eq!(on_thread_of(&next), (false, Some(())));
    }
}
