//! Measures the lock manager: a lock without a conflict, by one thread and by several, and the way from a release to the
//! thread that waits for it. `cargo run --release -p amino-txn --example locks`

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use amino_txn::locks::{Locks, Mode, Owner, Resource};

/// Nanoseconds for each of `count`.
fn each(what: &str, count: u64, elapsed: Duration) {
    println!(
        "{what:<56} {:>8} ns",
        elapsed.as_nanos() / u128::from(count.max(1))
    );
}

fn names(count: u64) -> Vec<Resource> {
    let name = |at: u64| Arc::from(format!("file{at:08}").as_bytes());
    (0..count)
        .map(|at| Resource::Name(at / 100, name(at)))
        .collect()
}

fn take_all(locks: &Locks, owner: Owner, resources: &[Resource], mode: Mode) -> Duration {
    let began = Instant::now();
    let refused = resources
        .iter()
        .filter(|resource| locks.acquire(owner, resource, mode).is_err());
    assert_eq!(refused.count(), 0, "nobody else holds anything");
    began.elapsed()
}

/// Transactions, one after the other, that each take `size` locks of a kind.
fn without_conflict(size: u64) {
    println!("transactions of {size} locks");
    let (locks, names) = (Locks::default(), names(size));
    let inodes: Vec<_> = (0..size).map(Resource::Inode).collect();
    let rounds = 2_000_000 / size;
    let mut took = [Duration::ZERO; 5];
    for _ in 0..rounds {
        let (outer, other) = (locks.begin(None), locks.begin(None));
        let owner = locks.begin(Some(outer));
        took[0] += take_all(&locks, owner, &names, Mode::Shared);
        took[1] += take_all(&locks, owner, &inodes, Mode::Exclusive);
        took[2] += take_all(&locks, owner, &names, Mode::Shared);
        took[3] += take_all(&locks, other, &names, Mode::Shared);
        locks.end(other);
        let began = Instant::now();
        locks.end(owner);
        took[4] += began.elapsed();
        locks.end(outer);
    }
    let count = size * rounds;
    each("shared, name, free", count, took[0]);
    each("exclusive, inode, free", count, took[1]);
    each("shared, name, held by the owner", count, took[2]);
    each("shared, name, held by another", count, took[3]);
    each("release of each at the end", 2 * count, took[4]);
}

fn single_operations() {
    const COUNT: u64 = 1_000_000;
    let locks = Locks::default();
    let began = Instant::now();
    for at in 0..COUNT {
        let owner = locks.begin(None);
        let _ = locks.acquire(owner, &Resource::Inode(at % 1000), Mode::Exclusive);
        locks.end(owner);
    }
    each("begin, exclusive, end", COUNT, began.elapsed());
}

/// Threads that each begin, lock four inodes and end; of their own, or the same few.
fn threads(what: &str, count: u64, inode: impl Fn(u64, u64) -> u64 + Copy + Send + Sync) {
    const TRANSACTIONS: u64 = 20_000;
    let locks = Locks::default();
    let began = Instant::now();
    thread::scope(|scope| {
        for number in 0..count {
            let locks = &locks;
            scope.spawn(move || {
                for round in 0..TRANSACTIONS {
                    let owner = locks.begin(None);
                    for step in 0..4 {
                        let resource = Resource::Inode(inode(number, round * 4 + step));
                        while let Err(conflict) = locks.acquire(owner, &resource, Mode::Exclusive) {
                            if locks.wait(&conflict, Duration::from_millis(100)).is_err() {
                                break;
                            }
                        }
                    }
                    locks.end(owner);
                }
            });
        }
    });
    each(
        &format!("{count:>2} threads: {what}"),
        TRANSACTIONS * count,
        began.elapsed(),
    );
}

/// From a release to the return of the thread that waits, with 15 others that wait for something else.
fn wake_up() {
    const TURNS: usize = 5_000;
    let locks = Locks::default();
    let elsewhere = locks.begin(None);
    let _ = locks.acquire(elsewhere, &Resource::Inode(1), Mode::Exclusive);
    let wait = |resource| {
        let owner = locks.begin(None);
        if let Err(conflict) = locks.acquire(owner, resource, Mode::Exclusive) {
            let _ = locks.wait(&conflict, Duration::from_secs(60));
        }
        locks.end(owner);
    };
    let mut took = Vec::new();
    thread::scope(|scope| {
        for _ in 0..15 {
            scope.spawn(|| wait(&Resource::Inode(1)));
        }
        for _ in 0..TURNS {
            let holder = locks.begin(None);
            let _ = locks.acquire(holder, &Resource::Inode(0), Mode::Exclusive);
            let waiter = scope.spawn(|| {
                wait(&Resource::Inode(0));
                Instant::now()
            });
            thread::sleep(Duration::from_micros(200));
            let released = Instant::now();
            locks.end(holder);
            let woken = waiter.join().unwrap_or(released);
            took.push(woken.saturating_duration_since(released));
        }
        locks.end(elsewhere);
    });
    took.sort_unstable();
    each(
        "from a release to the thread that waits, median",
        1,
        took[TURNS / 2],
    );
}

fn main() {
    without_conflict(1_000);
    without_conflict(100_000);
    single_operations();
    for count in [1, 2, 4, 16] {
        threads(
            "a transaction of four locks, inodes of its own",
            count,
            |number, step| number * 1000 + step % 1000,
        );
    }
    for count in [2, 4, 16] {
        threads("the same, one of 8 hot inodes each", count, |_, step| {
            step / 4 % 8
        });
    }
    wake_up();
}
