//! Keeps the tracer and the threads that it stops often on one CPU.
//!
//! A stop wakes the tracer, and the tracer's answer wakes the thread. Between two CPUs each of the two costs an interrupt of the other CPU, which
//! is more than all else that the tracer does for a call. So a thread that stops again and again after a short time is kept on the tracer's
//! CPU. A second thread, the watch, gives a thread that runs for longer its own CPUs back: it may compute beside others.
//!
//! A program must not see this. A child has its parent's own CPUs from its first instruction on, and all threads have theirs while one of them asks
//! for CPUs or sets some (sched_getaffinity(2), sched_setaffinity(2)). See docs/decisions/0092.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use goanna_sys::clock::monotonic_ns;
use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use parking_lot::{Condvar, Mutex};

/// A thread runs a short time if it stops again before this has passed.
const SHORT_NS: u64 = 200_000;
/// A thread is kept once it has run so many short times more than long ones.
const OFTEN: u8 = 16;
/// The child of such a thread needs fewer.
const OFTEN_OF_CHILD: u8 = 8;
/// A kept thread that runs, or waits in a call, for longer than this gets its CPUs back.
const LONG_NS: u64 = 4_000_000;
/// How often the watch looks.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How long the tracer stays on one CPU; after that time the scheduler may choose a better one.
const SERVES_NS: u64 = 100_000_000;

/// How a thread runs between its stops.
#[derive(Debug, Clone, Default)]
pub struct Pace {
    /// When it was continued last; 0 before the first time.
    continued_ns: u64,
    /// The number of short times minus that of long ones, between 0 and [`OFTEN`].
    short: u8,
    /// Its own CPUs, if it was kept when it was continued last.
    own: Option<CpuSet>,
    /// The thread cannot be kept: it has one CPU only, or other CPUs than the tracer.
    is_left_alone: bool,
    /// The thread is in a call that asks for CPUs or sets some.
    pub asks: bool,
}

impl Pace {
    /// The pace of a new child of the thread with this pace.
    pub fn of_child(&self) -> Self {
        Self {
            short: self.short.min(OFTEN - OFTEN_OF_CHILD),
            ..Self::default()
        }
    }
}

/// A thread on the tracer's CPU.
#[derive(Debug)]
struct Kept {
    own: CpuSet,
    /// Since when it runs; `None` while it is stopped.
    runs_since_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct Shared {
    kept: HashMap<i32, Kept>,
    has_ended: bool,
}

impl Shared {
    /// Gives kept threads that `is_chosen` accepts their own CPUs back.
    fn release(&mut self, is_chosen: impl Fn(&Kept) -> bool) {
        self.kept.retain(|&tid, kept| {
            let is_chosen = is_chosen(kept);
            if is_chosen {
                give(tid, &kept.own);
            }
            !is_chosen
        });
    }
}

/// Lets a thread run on these CPUs. A thread that has ended needs none.
fn give(tid: i32, cpus: &CpuSet) {
    let _ = sched_setaffinity(Pid::from_raw(tid), cpus);
}

fn count(cpus: &CpuSet) -> usize {
    let all = 0..CpuSet::count();
    all.filter(|&cpu| cpus.is_set(cpu).unwrap_or(false)).count()
}

/// The threads on the tracer's CPU, and that CPU.
#[derive(Debug)]
pub struct OneCpu {
    /// The tracer's CPUs; `None` where no thread is to be kept.
    own: Option<CpuSet>,
    /// The CPU on which the tracer is kept, and since when.
    cpu: Option<(usize, u64)>,
    shared: Arc<(Mutex<Shared>, Condvar)>,
    watch: Option<JoinHandle<()>>,
}

impl OneCpu {
    /// Keeps no thread yet. If the calling thread has one CPU only, never keeps one.
    pub fn new() -> Self {
        let own = sched_getaffinity(Pid::from_raw(0)).ok();
        let mut one = Self::never();
        one.own = own.filter(|own| count(own) > 1);
        one
    }

    /// Never keeps a thread.
    pub fn never() -> Self {
        Self {
            own: None,
            cpu: None,
            shared: Arc::default(),
            watch: None,
        }
    }

    /// Handles a stop of a thread.
    pub fn stopped(&mut self, tid: i32, pace: &mut Pace, now: u64) {
        if self.own.is_none() {
            return;
        }
        pace.short = match now.saturating_sub(pace.continued_ns) < SHORT_NS {
            true => pace.short.saturating_add(1).min(OFTEN),
            false => pace.short.saturating_sub(1),
        };
        let Some((_, since)) = self.cpu else { return };
        let mut shared = self.shared.0.lock();
        if let Some(kept) = shared.kept.get_mut(&tid) {
            kept.runs_since_ns = None;
        } else if pace.own.is_some() {
            // The watch has released it.
            pace.short = 0;
        }
        let is_over = now.saturating_sub(since) > SERVES_NS;
        if is_over {
            shared.release(|_| true);
        }
        let is_unused = shared.kept.is_empty();
        drop(shared);
        if is_unused {
            self.leave_cpu();
        }
    }

    /// Handles a stopped thread before the tracer continues it.
    pub fn continues(&mut self, tid: i32, pace: &mut Pace, is_asked: impl FnOnce() -> bool) {
        if self.own.is_none() {
            return;
        }
        let now = monotonic_ns();
        pace.continued_ns = now;
        if self.cpu.is_some() || pace.own.is_some() {
            let mut shared = self.shared.0.lock();
            if let Some(kept) = shared.kept.get_mut(&tid) {
                kept.runs_since_ns = Some(now);
                return;
            }
            pace.own = None;
        }
        if pace.short == OFTEN && !pace.is_left_alone && !is_asked() {
            pace.own = self.keep(tid, now);
            pace.is_left_alone = pace.own.is_none();
        }
    }

    /// Moves a stopped thread to the tracer's CPU, and returns the thread's own CPUs; `None` if it must not move.
    fn keep(&mut self, tid: i32, now: u64) -> Option<CpuSet> {
        let own = sched_getaffinity(Pid::from_raw(tid)).ok()?;
        if count(&own) < 2 {
            return None;
        }
        self.start_watch()?;
        let is_first = self.cpu.is_none();
        let cpu = match self.cpu {
            Some((cpu, _)) => cpu,
            None => sched_getcpu().ok()?,
        };
        let mut one = CpuSet::new();
        one.set(cpu).ok()?;
        if !own.is_set(cpu).unwrap_or(false) {
            return None;
        }
        sched_setaffinity(Pid::from_raw(tid), &one).ok()?;
        if is_first {
            give(0, &one);
            self.cpu = Some((cpu, now));
        }
        let kept = Kept {
            own,
            runs_since_ns: Some(now),
        };
        self.shared.0.lock().kept.insert(tid, kept);
        self.shared.1.notify_one();
        Some(own)
    }

    /// Gives the child of a thread, which has not run yet, that thread's own CPUs.
    pub fn has_child(&self, parent: &Pace, child: i32) {
        if let Some(own) = &parent.own {
            give(child, own);
        }
    }

    /// Gives a thread whose parent is not known the tracer's own CPUs, if it has inherited the tracer's one CPU.
    pub fn has_found(&self, tid: i32) {
        let cpus = sched_getaffinity(Pid::from_raw(tid));
        if let Some(own) = &self.own
            && cpus.is_ok_and(|cpus| count(&cpus) < 2)
            && self.watch.is_some()
        {
            give(tid, own);
        }
    }

    /// Gives all threads their own CPUs back, before one of them asks which CPUs it has.
    pub fn release_all(&mut self) {
        self.shared.0.lock().release(|_| true);
        self.leave_cpu();
    }

    /// Forgets a thread that has ended.
    pub fn has_ended(&mut self, tid: i32) {
        if self.cpu.is_some() {
            self.shared.0.lock().kept.remove(&tid);
        }
    }

    /// Thread `former` has the number `tid` from now on; the thread that had it is gone.
    pub fn is_renamed(&mut self, former: i32, tid: i32, pace: &Pace) {
        self.has_ended(tid);
        self.has_ended(former);
        self.has_child(pace, tid);
    }

    fn leave_cpu(&mut self) {
        if self.cpu.take().is_some()
            && let Some(own) = &self.own
        {
            give(0, own);
        }
    }

    fn start_watch(&mut self) -> Option<()> {
        if self.watch.is_none() {
            let shared = Arc::clone(&self.shared);
            let watch = std::thread::Builder::new().name("cpu watch".into());
            self.watch = watch.spawn(move || watch_kept(&shared)).ok();
        }
        self.watch.as_ref().map(|_| ())
    }
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        self.release_all();
        self.shared.0.lock().has_ended = true;
        self.shared.1.notify_one();
        if let Some(watch) = self.watch.take() {
            // The thread returns no result.
            let _ = watch.join();
        }
    }
}

/// Gives kept threads that run for long their own CPUs back.
fn watch_kept((shared, changed): &(Mutex<Shared>, Condvar)) {
    let mut shared = shared.lock();
    while !shared.has_ended {
        if shared.kept.is_empty() {
            changed.wait(&mut shared);
            continue;
        }
        changed.wait_for(&mut shared, POLL_INTERVAL);
        let now = monotonic_ns();
        shared.release(|kept| {
            let since = kept.runs_since_ns;
            since.is_some_and(|since| now.saturating_sub(since) > LONG_NS)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::Instant;

    use super::*;

    /// A process that does nothing; killed at the end.
    struct Idle(Child);

    impl Idle {
        fn new() -> (Self, i32) {
            let child = Command::new("sleep").arg("1000").spawn().unwrap();
            let tid = child.id().cast_signed();
            (Self(child), tid)
        }
    }

    impl Drop for Idle {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn cpus(tid: i32) -> usize {
        count(&sched_getaffinity(Pid::from_raw(tid)).unwrap())
    }

    /// Stops and continues a thread after times of this length.
    fn run(one: &mut OneCpu, tid: i32, pace: &mut Pace, times: u8, length_ns: u64) {
        for _ in 0..times {
            let now = pace.continued_ns + length_ns;
            one.stopped(tid, pace, now);
            one.continues(tid, pace, || false);
        }
    }

    fn wait_for_all(tid: i32, all: usize) {
        let began = Instant::now();
        while cpus(tid) != all {
            assert!(began.elapsed() < Duration::from_secs(60));
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn a_thread_that_stops_often_is_kept_until_it_runs_for_long() {
        let all = cpus(0);
        if all < 2 {
            return;
        }
        let (_idle, tid) = Idle::new();
        let mut one = OneCpu::new();
        let mut pace = Pace::default();
        one.continues(tid, &mut pace, || false);
        run(&mut one, tid, &mut pace, OFTEN, SHORT_NS + 1);
        assert_eq!((cpus(tid), cpus(0)), (all, all));
        run(&mut one, tid, &mut pace, OFTEN, SHORT_NS - 1);
        assert!(pace.own.is_some());
        // The process is stopped here, but counts as running for the watch.
        wait_for_all(tid, all);
        let now = monotonic_ns();
        one.stopped(tid, &mut pace, now);
        one.continues(tid, &mut pace, || false);
        assert!(pace.own.is_none());
        assert_eq!((cpus(tid), cpus(0)), (all, all));
    }

    #[test]
    fn a_child_has_the_cpus_that_its_parent_would_have() {
        let all = cpus(0);
        if all < 2 {
            return;
        }
        let ((_parent, tid), (_child, child)) = (Idle::new(), Idle::new());
        let mut one = OneCpu::new();
        let mut pace = Pace::default();
        one.continues(tid, &mut pace, || false);
        run(&mut one, tid, &mut pace, OFTEN, SHORT_NS - 1);
        // As the kernel does: a child inherits its parent's CPUs.
        let mut inherited = CpuSet::new();
        inherited.set(0).unwrap();
        give(child, &inherited);
        one.has_child(&pace, child);
        assert_eq!(cpus(child), all);
        drop(one);
        assert_eq!((cpus(tid), cpus(0)), (all, all));
    }

    #[test]
    fn a_thread_is_not_kept_while_one_asks_for_cpus() {
        let all = cpus(0);
        if all < 2 {
            return;
        }
        let (_idle, tid) = Idle::new();
        let mut one = OneCpu::new();
        let mut pace = Pace {
            short: OFTEN,
            ..Pace::default()
        };
        one.continues(tid, &mut pace, || true);
        assert_eq!((cpus(tid), cpus(0)), (all, all));
        one.continues(tid, &mut pace, || false);
        one.release_all();
        assert_eq!((cpus(tid), cpus(0)), (all, all));
    }
}
