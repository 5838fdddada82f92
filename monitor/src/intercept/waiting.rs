//! Calls whose answer takes long: they wait for a lock of a transaction, or for something that programs control, such as the
//! other end of a pipe. Attempts to answer such a call run on threads of the [`Executor`], so that the threads that answer other calls do
//! not wait.
//!
//! A call that waits for a lock or for a descriptor holds no thread: the attempt fails, and the next one runs when the lock is free or the
//! descriptor can be read. Only where the kernel has no such event (the open of a FIFO, a lease, the rest of a message) does the attempt
//! block its thread. See docs/decisions/0067.
//!
//! The caller stays in its call for [`PARK_AFTER`]. Then the supervisor parks it ([`crate::ptracer`]): the caller sleeps in a call that
//! signals interrupt, and the kernel reports such a signal to the supervisor as a stop. No thread polls meanwhile. [`Waiting::interrupt`]
//! ends the wait early.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use goanna_sys::interrupt::Waiter;
use goanna_vfs::{Errno, FsError, Result, Wait};
use nix::sys::signal::SigSet;
use parking_lot::Mutex;

use crate::Monitor;
use crate::answer::{Answer, Attempt, Work};
use crate::intercept::executor::{Executor, Id, retire_this_thread};
use crate::process::task::Received;

/// How long a caller stays in its call: parking it costs more than most waits take.
const PARK_AFTER: Duration = Duration::from_millis(10);

/// The pauses between two attempts to end a wait, at first and at most: the signal that ends a wait in the kernel is lost
/// where the wait has not begun.
const REPEAT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Receives the answer of a call whose caller is still in it; `None`: the caller is to be parked, and the supervisor gets a message
/// when the answer is there.
pub type Deliver = Box<dyn FnOnce(Arc<Waiting>, Option<Result<Answer>>) + Send>;

/// A call whose answer takes long.
pub struct Waiting {
    /// The caller.
    pub tid: i32,
    call: Received,
    /// When the wait for a lock began, in this call or in the call that it repeats.
    since: Instant,
    executor: Executor,
    interrupted: AtomicBool,
    /// The caller has left the call. A thread that needs the caller to stay holds this mutex ([`while_in_call`]).
    parked: Mutex<bool>,
    progress: Mutex<Progress>,
}

/// The mutex around it is taken after that of `parked`, and before those of locks and of the executor.
#[derive(Default)]
struct Progress {
    /// The thread that runs an attempt now.
    worker: Option<Waiter>,
    /// The lock that the work waits for.
    lock: Option<Wait>,
    /// The descriptor that it waits for.
    readable: Option<Id>,
    /// The end of the caller's patience, or the limit of the wait for a lock.
    timers: [Option<Id>; 2],
    /// Taken when it is called.
    deliver: Option<Deliver>,
    is_done: bool,
    outcome: Option<Result<Answer>>,
}

/// Indexes of [`Progress::timers`].
const PARK_AFTER_TIMER: usize = 0;
const LIMIT_TIMER: usize = 1;

impl Waiting {
    fn new(tid: i32, call: Received, since: Instant, executor: Executor) -> Arc<Self> {
        Arc::new(Self {
            tid,
            call,
            since,
            executor,
            interrupted: AtomicBool::new(false),
            parked: Mutex::new(false),
            progress: Mutex::default(),
        })
    }

    /// Whether the call has its answer.
    pub fn is_done(&self) -> bool {
        self.progress.lock().is_done
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst)
    }

    /// Begins the work, and starts the timer after which the caller is parked.
    fn start(
        self: &Arc<Self>,
        monitor: &Arc<Monitor>,
        work: Work,
        deliver: Deliver,
    ) -> Result<(), Errno> {
        let waiting = Arc::clone(self);
        let job = Box::new(move || waiting.park());
        self.progress.lock().deliver = Some(deliver);
        let timer = self.executor.at(Instant::now() + PARK_AFTER, job)?;
        self.progress.lock().timers[PARK_AFTER_TIMER] = Some(timer);
        match work.lock {
            Some(lock) => self.wait_for(monitor, lock, work.attempt),
            None => {
                let (waiting, shared) = (Arc::clone(self), Arc::clone(monitor));
                let job = Box::new(move || waiting.attempt(&shared, work.attempt));
                if let Err(errno) = self.executor.run(job) {
                    self.stop_timer(PARK_AFTER_TIMER);
                    return Err(errno);
                }
            }
        }
        Ok(())
    }

    /// Gives the caller to the supervisor for parking, when it has waited in its call for [`PARK_AFTER`].
    fn park(self: &Arc<Self>) {
        let mut parked = self.parked.lock();
        // If it was taken, the answer is being delivered.
        let Some(deliver) = self.progress.lock().deliver.take() else {
            return;
        };
        *parked = true;
        drop(parked);
        deliver(Arc::clone(self), None);
    }

    /// Attempts the call on this thread. If the attempt asks for a wait, schedules the next attempt after that.
    fn attempt(self: &Arc<Self>, monitor: &Arc<Monitor>, mut attempt: Attempt) {
        let mut outcome = self.work(&mut attempt);
        if let Ok(Answer::Block(work)) = outcome {
            attempt = work.attempt;
            outcome = match work.lock {
                Some(lock) => Err(FsError::Blocked(lock)),
                None => self.work(&mut attempt),
            };
        }
        match outcome {
            Err(FsError::Blocked(lock)) => self.wait_for(monitor, lock, attempt),
            Ok(Answer::Readable(fd)) => self.wait_until_readable(monitor, fd, attempt),
            outcome => self.complete(monitor, outcome),
        }
    }

    /// Runs `attempt` on this thread, where an interruption ends its waits.
    fn work(self: &Arc<Self>, attempt: &mut Attempt) -> Result<Answer> {
        WORKING_ON.set(Some(Arc::clone(self)));
        self.progress.lock().worker = Waiter::this_thread().ok();
        let outcome = catch_unwind(AssertUnwindSafe(attempt)).unwrap_or(Err(Errno::EIO.into()));
        {
            let mut progress = self.progress.lock();
            progress.worker = None;
            progress.lock = None;
        }
        // A signal between a descriptor's installation and its report would leave the tracee without its number.
        let _ = SigSet::all().thread_block();
        WORKING_ON.set(None);
        if self.is_interrupted() {
            retire_this_thread();
        }
        match outcome {
            Err(FsError::Errno(Errno::EINTR)) if self.is_interrupted() => Ok(Answer::Interrupted),
            other => other,
        }
    }

    /// Waits for `lock` without blocking a thread; then attempts the call again.
    fn wait_for(self: &Arc<Self>, monitor: &Arc<Monitor>, lock: Wait, attempt: Attempt) {
        let limit = self.since.checked_add(lock.limit());
        if limit.is_none_or(|limit| limit <= Instant::now()) {
            return self.settled(monitor, &lock, Ok(false), attempt);
        }
        let cancelled = lock.clone();
        let timer = limit.map(|limit| {
            self.executor
                .at(limit, Box::new(move || cancelled.cancel()))
        });
        {
            let mut progress = self.progress.lock();
            progress.timers[LIMIT_TIMER] = timer.and_then(Result::ok);
            progress.lock = Some(lock.clone());
        }
        // Checked after the lock is stored above: a later interruption finds it there and cancels the wait.
        if self.is_interrupted() {
            lock.cancel();
        }
        let (waiting, shared, awaited) = (Arc::clone(self), Arc::clone(monitor), lock.clone());
        lock.notify(move |outcome| {
            let executor = waiting.executor.clone();
            executor.run_later(Box::new(move || {
                waiting.stop_timer(LIMIT_TIMER);
                waiting.progress.lock().lock = None;
                waiting.settled(&shared, &awaited, outcome, attempt);
            }));
        });
    }

    /// Continues after the wait for `lock`.
    fn settled(
        self: &Arc<Self>,
        monitor: &Arc<Monitor>,
        lock: &Wait,
        outcome: Result<bool, Errno>,
        attempt: Attempt,
    ) {
        match outcome {
            Ok(true) => self.attempt(monitor, attempt),
            Ok(false) if self.is_interrupted() => self.complete(monitor, Ok(Answer::Restart)),
            // The time is over, which the lock counts.
            Ok(false) => match lock.wait(self.since.elapsed(), Duration::ZERO) {
                Ok(true) => self.attempt(monitor, attempt),
                Ok(false) => self.complete(monitor, Err(Errno::ETIMEDOUT.into())),
                Err(errno) => self.complete(monitor, Err(errno.into())),
            },
            Err(errno) => self.complete(monitor, Err(errno.into())),
        }
    }

    /// Waits until `fd` can be read, without blocking a thread; then attempts the call again.
    fn wait_until_readable(
        self: &Arc<Self>,
        monitor: &Arc<Monitor>,
        fd: OwnedFd,
        attempt: Attempt,
    ) {
        let (waiting, shared) = (Arc::clone(self), Arc::clone(monitor));
        let job = Box::new(move || {
            waiting.progress.lock().readable = None;
            if waiting.is_interrupted() {
                waiting.complete(&shared, Ok(Answer::Interrupted));
            } else {
                waiting.attempt(&shared, attempt);
            }
        });
        let mut progress = self.progress.lock();
        match self.executor.when_readable(fd, job) {
            Ok(id) => {
                progress.readable = Some(id);
                // A later interruption finds the descriptor.
                if self.is_interrupted() {
                    progress.end_wait(&self.executor);
                }
            }
            Err(errno) => {
                drop(progress);
                self.complete(monitor, Err(errno.into()));
            }
        }
    }

    fn complete(self: &Arc<Self>, monitor: &Monitor, outcome: Result<Answer>) {
        self.stop_timer(PARK_AFTER_TIMER);
        let outcome = match outcome {
            Ok(Answer::Interrupted) if is_never_restarted(self.call.0) => Err(Errno::EINTR.into()),
            outcome => outcome,
        };
        // The caller is not parked in between.
        let parked = self.parked.lock();
        let deliver = {
            let mut progress = self.progress.lock();
            progress.is_done = true;
            progress.outcome = Some(outcome);
            progress.deliver.take()
        };
        drop(parked);
        match deliver {
            Some(deliver) => {
                let outcome = monitor.waiting.take(self);
                deliver(
                    Arc::clone(self),
                    Some(outcome.unwrap_or(Ok(Answer::Restart))),
                );
            }
            None => monitor.mailbox.post_ready(self.tid),
        }
    }

    fn stop_timer(&self, which: usize) {
        let timer = self
            .progress
            .lock()
            .timers
            .get_mut(which)
            .and_then(Option::take);
        timer.map(|timer| self.executor.withdraw(timer));
    }

    /// Makes the work end soon: the wait that it is in fails with EINTR, which becomes [`Answer::Interrupted`], or with
    /// [`Answer::Restart`] where it waits for a lock.
    pub fn interrupt(self: &Arc<Self>) {
        if !self.interrupted.swap(true, Ordering::SeqCst) {
            self.interrupt_until_done(REPEAT.0);
        }
    }

    /// Ends the wait that the work is in, and again after `pause`, until the work is done.
    fn interrupt_until_done(self: &Arc<Self>, pause: Duration) {
        {
            let mut progress = self.progress.lock();
            if progress.is_done {
                return;
            }
            progress.end_wait(&self.executor);
        }
        let waiting = Arc::clone(self);
        let again = Box::new(move || waiting.interrupt_until_done((pause * 2).min(REPEAT.1)));
        // The clock runs: it measures the caller's patience.
        let _ = self.executor.at(Instant::now() + pause, again);
    }
}

impl Progress {
    fn end_wait(&mut self, executor: &Executor) {
        if let Some(lock) = &self.lock {
            lock.cancel();
        }
        let readable = self.readable.take();
        if let Some(job) = readable.and_then(|id| executor.withdraw(id)) {
            executor.run_later(job);
        }
        if let Some(worker) = &self.worker {
            // It may have ended.
            let _ = worker.poke();
        }
    }
}

/// Whether a signal that ends the wait of the call ends the call, whatever the flags of the signal's handler.
fn is_never_restarted(nr: u32) -> bool {
    /// `libc` does not have it.
    const SYS_IO_PGETEVENTS: i64 = 333;
    matches!(i64::from(nr), libc::SYS_io_getevents | SYS_IO_PGETEVENTS)
}

/// The state of a waiting call when its caller makes the call again.
pub enum Rejoined {
    /// Its answer.
    Answered(Result<Answer>),
    /// The operation still runs: park the caller again.
    Waits(Arc<Waiting>),
}

/// All calls of a run whose answers take long.
#[derive(Default)]
pub struct WaitingCalls {
    table: Mutex<Table>,
    /// How many entries the table has. If it has none, no thread takes the mutex.
    entries: AtomicUsize,
}

#[derive(Default)]
struct Table {
    by_tid: HashMap<i32, Arc<Waiting>>,
    /// Calls whose wait for a lock was interrupted by a signal. The call that repeats such a call continues the same time limit.
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

    /// Begins `work`, which answers `call` of thread `tid`; `deliver` gets the answer. EAGAIN, EMFILE where no thread can be started.
    pub fn begin(
        &self,
        monitor: &Arc<Monitor>,
        tid: i32,
        call: Received,
        work: Work,
        deliver: Deliver,
    ) -> Result<(), Errno> {
        let waiting = self.with(|table| {
            let former = table.interrupted.remove(&tid);
            let since = former.filter(|former| former.call == call);
            let since = since.map_or_else(Instant::now, |former| former.since);
            let waiting = Waiting::new(tid, call, since, monitor.executor.clone());
            table.by_tid.insert(tid, Arc::clone(&waiting));
            waiting
        });
        let started = waiting.start(monitor, work, deliver);
        if started.is_err() {
            self.with(|table| table.by_tid.remove(&tid));
        }
        started
    }

    /// The state of the waiting call of thread `tid`, which makes `call`. If that is another call than the waiting one, the waiting one is
    /// abandoned.
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

    /// Takes the answer, once.
    pub fn take(&self, waiting: &Waiting) -> Option<Result<Answer>> {
        let outcome = waiting.progress.lock().outcome.take();
        let is_repeated = matches!(outcome, Some(Ok(Answer::Restart)))
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

    /// Puts back an answer that was taken: the caller finds it when it makes its call again.
    pub fn put_back(&self, waiting: &Arc<Waiting>, outcome: Result<Answer>) {
        waiting.progress.lock().outcome = Some(outcome);
        self.with(|table| table.by_tid.insert(waiting.tid, Arc::clone(waiting)));
    }

    /// Whether `tid` has a waiting call.
    pub fn has(&self, tid: i32) -> bool {
        !self.is_empty() && self.with(|table| table.by_tid.contains_key(&tid))
    }

    /// Abandons the call of thread `tid`, which has ended or has left its call.
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
    /// The call that this thread answers. It cannot be found by the caller's thread id, because the caller may wait in another call by
    /// now.
    static WORKING_ON: RefCell<Option<Arc<Waiting>>> = const { RefCell::new(None) };
}

fn current() -> Option<Arc<Waiting>> {
    WORKING_ON.with_borrow(Clone::clone)
}

/// Whether the work for the call that this thread answers must end soon.
pub fn is_interrupted() -> bool {
    current().is_none_or(|waiting| waiting.interrupted.load(Ordering::SeqCst))
}

/// Runs `f` while the caller stays in the call that this thread answers; `None` if the caller has been parked.
pub fn while_in_call<T>(f: impl FnOnce() -> T) -> Option<T> {
    let Some(waiting) = current() else {
        return Some(f());
    };
    let parked = waiting.parked.lock();
    (!*parked).then(f)
}

/// Waits, on a thread that answers a waiting call, for the lock that blocks this call. False when a signal or the death of the caller ends
/// the wait. EDEADLK, ETIMEDOUT.
pub fn wait_for_lock(lock: &Wait, since: Instant) -> Result<bool, Errno> {
    let Some(waiting) = current() else {
        return Ok(false);
    };
    waiting.progress.lock().lock = Some(lock.clone());
    // An interruption after this check cancels the wait.
    while !waiting.interrupted.load(Ordering::SeqCst) {
        if lock.wait(since.elapsed(), Duration::MAX)? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::thread;

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
        Waiting::new(tid, (2, [0; 6]), Instant::now(), Executor::default())
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
