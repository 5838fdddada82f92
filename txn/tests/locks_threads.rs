//! The lock manager under threads: no owner holds a lock that excludes another holder, and every owner completes.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use amino_txn::locks::{Deadlock, Locks, Mode, Owner, Resource};

const THREADS: usize = 16;
const ROUNDS: usize = 150;
const RESOURCES: usize = 6;
/// No thread takes that long.
const WATCHDOG: Duration = Duration::from_secs(120);

/// What the threads believe they hold, noted after it was taken and struck out before it is released.
#[derive(Default)]
struct Shared {
    locks: Locks,
    held: [Mutex<Vec<(Owner, Mode)>>; RESOURCES],
    waits: AtomicUsize,
    cycles: AtomicUsize,
}

/// A transaction and those around it, outermost first.
struct Stack<'a> {
    shared: &'a Shared,
    rng: fastrand::Rng,
    owners: Vec<Owner>,
}

impl Stack<'_> {
    fn begin(&mut self) {
        let owner = self.shared.locks.begin(self.owners.last().copied());
        self.owners.push(owner);
    }

    fn lock(&mut self, at: usize, mode: Mode) -> Result<(), Deadlock> {
        let locks = &self.shared.locks;
        let resource = Resource::Name(1, [at as u8][..].into());
        let owner = *self.owners.last().unwrap();
        while let Err(conflict) = locks.acquire(owner, &resource, mode) {
            self.shared.waits.fetch_add(1, SeqCst);
            let slice = Duration::from_millis(self.rng.u64(1..50));
            while !locks.wait(&conflict, slice)? {}
        }
        let mut held = self.shared.held[at].lock().unwrap();
        for (holder, other) in held
            .iter()
            .filter(|(holder, _)| !self.owners.contains(holder))
        {
            let compatible = *other == mode && mode != Mode::Exclusive;
            assert!(
                compatible,
                "{owner:?} has {mode:?} of {at}, {holder:?} has {other:?}"
            );
        }
        held.push((owner, mode));
        Ok(())
    }

    fn end(&mut self, commits: bool) {
        let owner = self.owners.pop().unwrap();
        let heir = self.owners.last().filter(|_| commits);
        for held in &self.shared.held {
            let mut held = held.lock().unwrap();
            match heir {
                Some(heir) => held
                    .iter_mut()
                    .filter(|(holder, _)| *holder == owner)
                    .for_each(|(holder, _)| *holder = *heir),
                None => held.retain(|(holder, _)| *holder != owner),
            }
        }
        match heir {
            Some(_) => self.shared.locks.pass_to_parent(owner),
            None => self.shared.locks.end(owner),
        }
    }

    fn round(&mut self) -> Result<(), Deadlock> {
        self.begin();
        for _ in 0..self.rng.usize(1..8) {
            match self.rng.u32(..10) {
                0 | 1 if self.owners.len() < 4 => self.begin(),
                2 if self.owners.len() > 1 => {
                    let commits = self.rng.bool();
                    self.end(commits);
                }
                3 => thread::yield_now(),
                _ => {
                    let at = self.rng.usize(..RESOURCES);
                    let mode = [Mode::Shared, Mode::Intent, Mode::Exclusive][self.rng.usize(..3)];
                    self.lock(at, mode)?;
                }
            }
        }
        Ok(())
    }

    fn run(mut self) {
        for _ in 0..ROUNDS {
            while self.round().is_err() {
                self.shared.cycles.fetch_add(1, SeqCst);
                while !self.owners.is_empty() {
                    self.end(false);
                }
            }
            while !self.owners.is_empty() {
                self.end(true);
            }
        }
    }
}

#[test]
fn threads_exclude_each_other_and_all_get_through() {
    let shared = Arc::new(Shared::default());
    let (done, all_done) = mpsc::channel();
    for number in 0..THREADS {
        let (shared, done) = (Arc::clone(&shared), done.clone());
        thread::spawn(move || {
            let rng = fastrand::Rng::with_seed(number as u64);
            let owners = Vec::new();
            Stack {
                shared: &shared,
                rng,
                owners,
            }
            .run();
            done.send(()).unwrap();
        });
    }
    drop(done);
    for _ in 0..THREADS {
        all_done
            .recv_timeout(WATCHDOG)
            .expect("a thread failed or hangs");
    }
    assert!(shared.waits.load(SeqCst) > 0 && shared.cycles.load(SeqCst) > 0);
    // Nothing is left behind.
    let owner = shared.locks.begin(None);
    for at in 0..RESOURCES {
        let resource = Resource::Name(1, [at as u8][..].into());
        assert!(
            shared
                .locks
                .acquire(owner, &resource, Mode::Exclusive)
                .is_ok()
        );
    }
}
