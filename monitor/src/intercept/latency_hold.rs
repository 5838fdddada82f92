//! Keeps idle CPUs from halting while descriptors are being handed out.
//!
//! Installing a descriptor is the one answer that the kernel cannot give on the CPU it was asked on: the thread that
//! installs wakes the tracee and waits until the tracee has taken the descriptor, so the two meet on two CPUs. A CPU that
//! has nothing to do halts within a microsecond, and waking a halted virtual CPU takes 10 to 20 us, twice a descriptor.
//! So while descriptors follow each other closely, threads of the lowest priority there is (SCHED_IDLE, which every other
//! thread displaces at once) stay awake on CPUs that would halt. Measured on two virtual CPUs: open and close 45 us
//! without, 17 with them. Linux does the same below us where `haltpoll` is configured, which is for the host to decide.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use goanna_sys::sched;

/// As many CPUs participate in handing over a descriptor.
const WATCHERS: usize = 2;
/// How long a CPU is kept awake after a descriptor, and so how close the next must follow to find it awake.
const WATCH: Duration = Duration::from_micros(100);
/// A thread that does not get the CPU back for so long has displaced one with work to do, and pauses for a while: the
/// lowest priority counts within a scheduling group only, and others may have groups of their own.
const DISPLACED: Duration = Duration::from_micros(500);
const LEAVE: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Debug)]
pub struct LatencyHold {
    shared: Arc<Shared>,
    watchers: Vec<Watcher>,
}

#[derive(Debug)]
struct Watcher {
    thread: Thread,
    parked: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Shared {
    epoch: Instant,
    /// Nanoseconds after the epoch.
    last: AtomicU64,
    until: AtomicU64,
    over: AtomicBool,
}

impl Shared {
    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn watch(&self, parked: &AtomicBool) {
        while !self.over.load(Ordering::SeqCst) {
            let mut seen = self.now();
            while seen < self.until.load(Ordering::Relaxed) {
                for _ in 0..16 {
                    std::hint::spin_loop();
                }
                let now = self.now();
                if now - seen > DISPLACED.as_nanos() as u64 {
                    thread::sleep(LEAVE);
                    break;
                }
                seen = now;
            }
            parked.store(true, Ordering::SeqCst);
            let over = self.over.load(Ordering::SeqCst);
            if !over && self.now() >= self.until.load(Ordering::SeqCst) {
                thread::park();
            }
            parked.store(false, Ordering::SeqCst);
        }
    }
}

impl LatencyHold {
    /// No thread watches yet.
    pub fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared {
            epoch: Instant::now(),
            last: AtomicU64::new(0),
            until: AtomicU64::new(0),
            over: AtomicBool::new(false),
        });
        let watchers = (0..WATCHERS).map(|_| Watcher::start(&shared));
        Ok(Self {
            watchers: watchers.collect::<io::Result<_>>()?,
            shared,
        })
    }

    /// Records that a descriptor is about to be installed.
    pub fn keep(&self) {
        let now = self.shared.now();
        let last = self.shared.last.swap(now, Ordering::Relaxed);
        let watch = WATCH.as_nanos() as u64;
        if now.saturating_sub(last) > watch {
            return;
        }
        self.shared.until.store(now + watch, Ordering::SeqCst);
        for watcher in &self.watchers {
            if watcher.parked.load(Ordering::SeqCst) {
                watcher.thread.unpark();
            }
        }
    }
}

impl Drop for LatencyHold {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        for watcher in &self.watchers {
            watcher.thread.unpark();
        }
    }
}

impl Watcher {
    fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let parked = Arc::new(AtomicBool::new(false));
        let (shared, flag) = (Arc::clone(shared), Arc::clone(&parked));
        let handle = thread::Builder::new()
            .name("latency-hold".into())
            .spawn(move || {
                // At a higher priority it would take the CPU from those it is to serve.
                if sched::lowest_priority().is_ok() {
                    shared.watch(&flag);
                }
            })?;
        Ok(Self {
            thread: handle.thread().clone(),
            parked,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(long: Duration, mut holds: impl FnMut() -> bool) -> bool {
        let end = Instant::now() + long;
        while Instant::now() < end {
            if holds() {
                return true;
            }
            thread::yield_now();
        }
        false
    }

    #[test]
    fn watches_while_descriptors_follow_each_other_and_ends_with_its_owner() {
        let hold = LatencyHold::start().unwrap();
        let parked = |hold: &LatencyHold, all: bool| {
            let mut flags = hold
                .watchers
                .iter()
                .map(|w| w.parked.load(Ordering::SeqCst));
            if all {
                flags.all(|p| p)
            } else {
                flags.any(|p| p)
            }
        };
        let long = Duration::from_secs(10);
        assert!(within(long, || parked(&hold, true)), "nobody asked");
        assert!(within(long, || {
            hold.keep();
            !parked(&hold, false)
        }));
        assert!(within(long, || parked(&hold, true)), "watched for ever");
        let shared = Arc::clone(&hold.shared);
        drop(hold);
        assert!(within(long, || Arc::strong_count(&shared) == 1));
    }
}
