//! Threads that stop often are kept on the CPU of the thread that follows them.
//!
//! A stop wakes the follower, and the follower's answer wakes the thread. So a thread that stops again and again after a short time is kept on the
//! follower's CPU. A second thread, the watch, gives a thread that runs for longer its own CPUs back: it may compute beside others.
//!
//! A program must not see this. A child has its parent's own CPUs from its first instruction on, and all threads have theirs while one of them asks
//! for CPUs or sets some ([`KeptThreads::asks`]).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use goanna_sys::clock::monotonic_ns;
use goanna_sys::procfs::{self, Activity};
use goanna_sys::sched::is_real_time;
use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::{Pid, gettid};
use parking_lot::{Condvar, Mutex};

use crate::{FOLLOWERS, count, cpus, give};

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
/// How long the follower stays on one CPU, or on none; after that time another choice may be better.
const SERVES_NS: u64 = 100_000_000;

/// How a thread runs between its stops.
#[derive(Debug, Clone, Default)]
struct Pace {
    /// When it was continued last; 0 before the first time.
    continued_ns: u64,
    /// The number of short times minus that of long ones, between 0 and [`OFTEN`].
    short: u8,
    /// Its own CPUs, if it was kept when it was continued last.
    own: Option<CpuSet>,
    /// The thread cannot be kept: it has one CPU only, or other CPUs than the follower, or is a real-time thread.
    is_left_alone: bool,
}

/// A thread on the follower's CPU.
#[derive(Debug)]
struct Kept {
    own: CpuSet,
    /// The follower's CPU.
    one: CpuSet,
    /// Since when it runs; `None` while it is stopped.
    runs_since_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct Shared {
    kept: HashMap<i32, Kept>,
    /// The follower, while it is kept on one CPU, and its own CPUs.
    follower: Option<(i32, CpuSet)>,
    has_ended: bool,
}

impl Shared {
    /// Gives kept threads that `is_chosen` accepts their own CPUs back, unless another process has chosen their CPUs since.
    fn release(&mut self, is_chosen: impl Fn(&Kept) -> bool) {
        self.kept.retain(|&tid, kept| {
            let is_chosen = is_chosen(kept);
            if is_chosen && cpus(tid) == Some(kept.one) {
                give(tid, &kept.own);
            }
            !is_chosen
        });
    }
}

/// The threads that one thread follows, and of these the ones that it keeps on its CPU.
///
/// The follower calls it at each stop of a thread. All methods concern the calling thread, which must be the follower.
#[derive(Debug)]
pub struct KeptThreads {
    /// The follower's CPUs; `None` where no thread is to be kept.
    own: Option<CpuSet>,
    /// The CPU on which the follower is kept, and since when.
    cpu: Option<(usize, u64)>,
    /// No thread is kept while another one runs.
    is_for_one: bool,
    /// No thread is kept until then.
    free_until_ns: u64,
    paces: HashMap<i32, Pace>,
    /// Threads in calls that ask for CPUs or set some.
    asking: HashSet<i32>,
    shared: Arc<(Mutex<Shared>, Condvar)>,
    watch: Option<JoinHandle<()>>,
}

impl KeptThreads {
    /// Keeps no thread yet. If the calling thread has one CPU only, never keeps one.
    pub fn new() -> Self {
        let own = cpus(0);
        if let Some(own) = own {
            let _ = FOLLOWERS.set(own);
        }
        let mut none = Self::never();
        none.own = own.filter(|own| count(own) > 1);
        none
    }

    /// As [`KeptThreads::new`], but keeps none for a while where several threads that stop often run at the same time: then no CPU is idle.
    pub fn for_one() -> Self {
        let mut one = Self::new();
        one.is_for_one = true;
        one
    }

    /// Never keeps a thread.
    pub fn never() -> Self {
        Self {
            own: None,
            cpu: None,
            is_for_one: false,
            free_until_ns: 0,
            paces: HashMap::new(),
            asking: HashSet::new(),
            shared: Arc::default(),
            watch: None,
        }
    }

    /// Handles a stop of a thread at `now`.
    pub fn stopped(&mut self, tid: i32, now: u64) {
        if self.own.is_none() {
            return;
        }
        let pace = self.paces.entry(tid).or_default();
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

    /// Handles a stopped thread that is continued next.
    pub fn continues(&mut self, tid: i32) {
        if self.own.is_none() {
            return;
        }
        let now = monotonic_ns();
        let pace = self.paces.entry(tid).or_default();
        pace.continued_ns = now;
        if self.cpu.is_some() || pace.own.is_some() {
            let mut shared = self.shared.0.lock();
            if let Some(kept) = shared.kept.get_mut(&tid) {
                kept.runs_since_ns = Some(now);
                return;
            }
            pace.own = None;
        }
        let is_fit = pace.short >= OFTEN && !pace.is_left_alone;
        if !is_fit || now < self.free_until_ns || !self.asking.is_empty() {
            return;
        }
        if self.another_runs() {
            self.release_all();
            self.free_until_ns = now + SERVES_NS;
            return;
        }
        let own = self.keep(tid, now);
        if let Some(pace) = self.paces.get_mut(&tid) {
            pace.own = own;
            pace.is_left_alone = own.is_none();
        }
    }

    /// Whether a kept thread is running, or at a stop that has not been handled, and no other one is to be kept then.
    fn another_runs(&self) -> bool {
        if !self.is_for_one || self.cpu.is_none() {
            return false;
        }
        let shared = self.shared.0.lock();
        let mut continued = shared
            .kept
            .iter()
            .filter(|(_, kept)| kept.runs_since_ns.is_some());
        continued.any(|(&tid, _)| {
            matches!(
                procfs::activity(tid),
                Ok(Activity::Running | Activity::Stopped)
            )
        })
    }

    /// Moves a stopped thread to the follower's CPU, and returns the thread's own CPUs; `None` if it must not move. A real-time thread could keep that CPU from the
    /// follower.
    fn keep(&mut self, tid: i32, now: u64) -> Option<CpuSet> {
        let own = cpus(tid)?;
        if count(&own) < 2 || is_real_time(tid) {
            return None;
        }
        self.start_watch()?;
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
        if self.cpu.is_none() {
            self.cpu = Some((cpu, now));
        }
        let kept = Kept {
            own,
            one,
            runs_since_ns: Some(now),
        };
        let mut shared = self.shared.0.lock();
        shared.kept.insert(tid, kept);
        shared.follower = self.own.map(|own| (gettid().as_raw(), own));
        drop(shared);
        self.shared.1.notify_one();
        // Even if it is there: the watch may have given it its own CPUs back.
        give(0, &one);
        Some(own)
    }

    /// Gives the child of a thread, which has not run yet, that thread's own CPUs. The thread is at the stop that reports the child, and must not be continued
    /// before.
    pub fn has_child(&mut self, parent: i32, child: i32) {
        let Some(parent) = self.paces.get(&parent) else {
            return;
        };
        if let Some(own) = &parent.own {
            give(child, own);
        }
        let pace = Pace {
            short: parent.short.min(OFTEN - OFTEN_OF_CHILD),
            ..Pace::default()
        };
        self.paces.insert(child, pace);
    }

    /// Gives a thread whose parent is not known the follower's own CPUs, if it has inherited the follower's one CPU.
    pub fn has_found(&self, tid: i32) {
        if let Some(own) = &self.own
            && self.watch.is_some()
            && cpus(tid).is_some_and(|cpus| count(&cpus) < 2)
        {
            give(tid, own);
        }
    }

    /// A thread is about to ask for CPUs, or to set some: sched_getaffinity(2), sched_setaffinity(2). All threads get their own CPUs back, and none is kept until
    /// [`KeptThreads::has_asked`].
    pub fn asks(&mut self, tid: i32) {
        self.asking.insert(tid);
        self.release_all();
    }

    /// The call of a thread has ended: it does not ask any more, if it did.
    pub fn has_asked(&mut self, tid: i32) {
        if !self.asking.is_empty() {
            self.asking.remove(&tid);
        }
    }

    /// Forgets a thread that has ended.
    pub fn has_ended(&mut self, tid: i32) {
        self.paces.remove(&tid);
        self.asking.remove(&tid);
        if self.cpu.is_some() {
            self.shared.0.lock().kept.remove(&tid);
        }
    }

    /// Thread `former` has the number `tid` from now on; the thread that had it is gone.
    pub fn is_renamed(&mut self, former: i32, tid: i32) {
        let pace = self.paces.get(&former).cloned();
        self.has_ended(tid);
        self.has_ended(former);
        if let Some(mut pace) = pace {
            if let Some(own) = pace.own.take() {
                give(tid, &own);
            }
            self.paces.insert(tid, pace);
        }
    }

    fn release_all(&mut self) {
        self.shared.0.lock().release(|_| true);
        self.leave_cpu();
    }

    fn leave_cpu(&mut self) {
        if self.cpu.take().is_some()
            && let Some(own) = &self.own
        {
            self.shared.0.lock().follower = None;
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

impl Default for KeptThreads {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for KeptThreads {
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

/// Gives kept threads that run for long their own CPUs back, and the follower when none is left: a real-time thread may have taken the CPU from it.
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
        if shared.kept.is_empty()
            && let Some((follower, own)) = shared.follower.take()
        {
            give(follower, &own);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::Instant;

    use super::*;

    /// A process that does nothing of use; killed at the end.
    struct Idle(Child);

    impl Idle {
        fn new() -> (Self, i32) {
            let child = Command::new("sleep").arg("1000").spawn().unwrap();
            let tid = child.id().cast_signed();
            while procfs::activity(tid) != Ok(Activity::Sleeping) {
                std::thread::yield_now();
            }
            (Self(child), tid)
        }
    }

    impl Drop for Idle {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn number(tid: i32) -> usize {
        count(&cpus(tid).unwrap())
    }

    /// Stops and continues a thread after times of this length.
    fn run(kept: &mut KeptThreads, tid: i32, times: u8, length_ns: u64) {
        for _ in 0..times {
            let now = kept.paces[&tid].continued_ns + length_ns;
            kept.stopped(tid, now);
            kept.continues(tid);
        }
    }

    /// Threads that are followed, of which one has stopped often: it is kept.
    fn following(tid: i32) -> KeptThreads {
        let mut kept = KeptThreads::new();
        kept.continues(tid);
        run(&mut kept, tid, OFTEN, SHORT_NS - 1);
        assert_eq!((number(tid), number(0)), (1, 1));
        kept
    }

    fn wait_for_all(tid: i32, all: usize) {
        let began = Instant::now();
        while number(tid) != all {
            assert!(began.elapsed() < Duration::from_secs(60));
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn a_thread_that_stops_often_is_kept_until_it_runs_for_long() {
        let all = number(0);
        if all < 2 {
            return;
        }
        let (_idle, tid) = Idle::new();
        let mut kept = KeptThreads::new();
        kept.continues(tid);
        run(&mut kept, tid, OFTEN, SHORT_NS + 1);
        assert_eq!((number(tid), number(0)), (all, all));
        run(&mut kept, tid, OFTEN, SHORT_NS - 1);
        assert!(kept.paces[&tid].own.is_some());
        // The process is stopped here, but counts as running for the watch.
        wait_for_all(tid, all);
        wait_for_all(0, all);
        kept.stopped(tid, monotonic_ns());
        kept.continues(tid);
        assert!(kept.paces[&tid].own.is_none());
        assert_eq!((number(tid), number(0)), (all, all));
    }

    #[test]
    fn none_is_kept_where_two_that_stop_often_run() {
        let all = number(0);
        if all < 2 {
            return;
        }
        let ((_idle, sleeping), (_other, other)) = (Idle::new(), Idle::new());
        let mut busy = Command::new("sh");
        let busy = Idle(busy.args(["-c", "while :; do :; done"]).spawn().unwrap());
        let running = busy.0.id().cast_signed();
        let mut kept = following(sleeping);
        kept.is_for_one = true;
        let (own, one) = (cpus(running).unwrap(), cpus(0).unwrap());
        give(running, &one);
        // So the watch never releases it.
        let runs_since_ns = Some(u64::MAX);
        let entry = Kept {
            own,
            one,
            runs_since_ns,
        };
        kept.shared.0.lock().kept.insert(running, entry);
        kept.continues(other);
        run(&mut kept, other, OFTEN, SHORT_NS - 1);
        let are_free = |of: &[i32]| of.iter().all(|&tid| number(tid) == all);
        assert!(are_free(&[sleeping, running, other, 0]));
        let until = kept.free_until_ns;
        run(&mut kept, other, OFTEN, SHORT_NS - 1);
        assert!(monotonic_ns() > until || are_free(&[other, 0]));
    }

    #[test]
    fn a_child_has_the_cpus_that_its_parent_would_have() {
        let all = number(0);
        if all < 2 {
            return;
        }
        let ((_parent, tid), (_child, child)) = (Idle::new(), Idle::new());
        let mut kept = following(tid);
        // As the kernel does: a child inherits its parent's CPUs.
        give(child, &cpus(tid).unwrap());
        kept.has_child(tid, child);
        assert_eq!(number(child), all);
        drop(kept);
        assert_eq!((number(tid), number(0)), (all, all));
    }

    #[test]
    fn a_child_has_them_although_its_parent_is_not_kept_any_more() {
        let all = number(0);
        if all < 2 {
            return;
        }
        let ((_parent, tid), (_child, child)) = (Idle::new(), Idle::new());
        let mut kept = following(tid);
        give(child, &cpus(tid).unwrap());
        let since = kept.cpu.unwrap().1;
        kept.stopped(tid, since + SERVES_NS + 1);
        assert_eq!((number(tid), number(0), number(child)), (all, all, 1));
        kept.has_child(tid, child);
        assert_eq!(number(child), all);
    }

    #[test]
    fn a_thread_is_not_kept_while_one_asks_for_cpus() {
        let all = number(0);
        if all < 2 {
            return;
        }
        let ((_idle, tid), (_other, other)) = (Idle::new(), Idle::new());
        let mut kept = following(tid);
        kept.asks(other);
        assert_eq!((number(tid), number(0)), (all, all));
        run(&mut kept, tid, 2 * OFTEN, SHORT_NS - 1);
        assert_eq!((number(tid), number(0)), (all, all));
        kept.has_asked(other);
        run(&mut kept, tid, OFTEN, SHORT_NS - 1);
        assert_eq!((number(tid), number(0)), (1, 1));
        kept.asks(tid);
        kept.has_ended(tid);
        assert!(kept.asking.is_empty());
    }

    #[test]
    fn cpus_that_another_process_chose_meanwhile_stay() {
        if number(0) < 2 {
            return;
        }
        let (_idle, tid) = Idle::new();
        let mut kept = following(tid);
        let mut other = kept.own.unwrap();
        other.unset(kept.cpu.unwrap().0).unwrap();
        give(tid, &other);
        kept.release_all();
        assert_eq!(cpus(tid), Some(other));
    }

    #[test]
    fn a_thread_that_the_follower_starts_can_leave_its_cpu() {
        let all = number(0);
        if all < 2 {
            return;
        }
        let (_idle, tid) = Idle::new();
        let _kept = following(tid);
        let of_new = std::thread::spawn(|| {
            let inherited = number(0);
            crate::leave_one_cpu();
            (inherited, number(0))
        });
        assert_eq!(of_new.join().unwrap(), (1, all));
    }
}
