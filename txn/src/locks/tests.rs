//! Models: threads in all orders that shuttle comes across, and the search for cycles against a simulation. A wait has no limit
//! in here, so a lost wake-up stops its model, and shuttle reports it with the order of steps that led there.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst};

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::mpsc::channel;
use shuttle::thread;

use super::state::Wait;
use super::*;

const R: Resource = Resource::Inode(1);
const S: Resource = Resource::Entries(1);

/// Waits as [`Locks::wait`] does, without a limit, on a thread of the model.
fn wait(locks: &Locks, conflict: &Conflict) -> Result<bool, Deadlock> {
    let (report, reported) = channel();
    locks.notify(conflict, move |outcome| report.send(outcome).unwrap());
    reported.recv().unwrap()
}

/// Takes the lock, however long that takes.
fn take(locks: &Locks, owner: Owner, resource: &Resource, mode: Mode) -> Result<(), Deadlock> {
    while let Err(conflict) = locks.acquire(owner, resource, mode) {
        assert!(wait(locks, &conflict)?);
    }
    Ok(())
}

/// Runs `work` in `count` threads and waits for them.
fn threads(count: usize, work: impl Fn(usize) + Send + Sync + 'static) {
    let work = Arc::new(work);
    let started: Vec<_> = (0..count)
        .map(|number| {
            let work = Arc::clone(&work);
            thread::spawn(move || work(number))
        })
        .collect();
    for thread in started {
        thread.join().unwrap();
    }
}

/// The owners inside a resource, to check that no conflicting owner is inside at the same time.
#[derive(Default)]
struct Inside([AtomicUsize; 3]);

impl Inside {
    fn visit(&self, mode: Mode) {
        let [shared, intent, exclusive] = &self.0;
        let (own, others) = match mode {
            Mode::Shared => (shared, [intent, exclusive]),
            Mode::Intent => (intent, [shared, exclusive]),
            Mode::Exclusive => (exclusive, [shared, intent]),
        };
        let before = own.fetch_add(1, SeqCst);
        thread::yield_now();
        assert!(others.iter().all(|count| count.load(SeqCst) == 0));
        assert!(before == 0 || mode != Mode::Exclusive);
        own.fetch_sub(1, SeqCst);
    }
}

/// Each thread visits the resource as often as `rounds` says.
fn exclude(modes: &'static [Mode], rounds: usize) {
    let (locks, inside) = (Locks::default(), Inside::default());
    let begin = |_| locks.begin(None);
    let owners: Vec<_> = (0..modes.len() * rounds).map(begin).collect();
    threads(modes.len(), move |number| {
        for owner in owners.iter().skip(number).step_by(modes.len()) {
            take(&locks, *owner, &R, modes[number]).unwrap();
            inside.visit(modes[number]);
            locks.end(*owner);
        }
    });
}

#[test]
fn two_threads_exclude_each_other_in_every_order() {
    use Mode::{Exclusive, Intent, Shared};
    shuttle::check_dfs(|| exclude(&[Exclusive, Exclusive], 1), None);
    shuttle::check_dfs(|| exclude(&[Shared, Exclusive], 1), None);
    shuttle::check_dfs(|| exclude(&[Shared, Intent], 1), None);
}

#[test]
fn many_threads_exclude_each_other_and_all_get_in() {
    use Mode::{Exclusive, Intent, Shared};
    shuttle::check_random(
        || exclude(&[Shared, Shared, Intent, Intent, Exclusive], 2),
        2_000,
    );
    shuttle::check_pct(
        || exclude(&[Exclusive, Exclusive, Shared, Intent], 2),
        1_000,
        3,
    );
}

/// As in the file system, a single operation ends its owner before it waits, and returns with another one.
#[test]
fn operations_that_have_ended_are_woken_too() {
    fn model() {
        let (locks, inside) = (Locks::default(), Inside::default());
        threads(4, move |_| {
            loop {
                let owner = locks.begin(None);
                let got = locks.acquire(owner, &R, Mode::Exclusive);
                let got = got.map(|()| inside.visit(Mode::Exclusive));
                locks.end(owner);
                match got {
                    Ok(()) => break,
                    Err(conflict) => assert!(wait(&locks, &conflict).unwrap()),
                }
            }
        });
    }
    shuttle::check_random(model, 3_000);
}

/// Two resources in opposite orders. An owner that gets a deadlock error gives up and restarts, so all complete; a cycle
/// that goes unnoticed stops the model.
#[test]
fn every_cycle_is_found() {
    fn model() {
        let (locks, inside) = (Locks::default(), [Inside::default(), Inside::default()]);
        threads(3, move |number| {
            let order = if number % 2 == 0 { [0, 1] } else { [1, 0] };
            loop {
                let owner = locks.begin(None);
                let taken = order.iter().try_for_each(|&at| {
                    take(&locks, owner, &[R, S][at], Mode::Exclusive)
                        .map(|()| inside[at].visit(Mode::Exclusive))
                });
                locks.end(owner);
                if taken.is_ok() {
                    break;
                }
            }
        });
    }
    shuttle::check_random(model, 2_000);
    shuttle::check_pct(model, 1_000, 3);
}

/// Two owners that want to change what both read form a cycle, and one of them gets through.
#[test]
fn one_of_two_upgrades_gets_through() {
    fn model() {
        let locks = Arc::new(Locks::default());
        let owners = [locks.begin(None), locks.begin(None)];
        for owner in owners {
            assert!(locks.acquire(owner, &R, Mode::Shared).is_ok());
        }
        let through = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&through);
        threads(2, move |number| {
            let taken = take(&locks, owners[number], &R, Mode::Exclusive);
            count.fetch_add(usize::from(taken.is_ok()), SeqCst);
            locks.end(owners[number]);
        });
        assert_eq!(through.load(SeqCst), 1);
    }
    shuttle::check_dfs(model, None);
}

/// Circles that close without a new wait: when one more owner takes a lock, and when a child's lock becomes that of its parent,
/// which waits.
#[test]
fn a_cycle_that_closes_behind_the_waiters_is_found() {
    fn shared_by_one_more() {
        let locks = Locks::default();
        let (reader, other, writer) = (locks.begin(None), locks.begin(None), locks.begin(None));
        assert!(locks.acquire(reader, &R, Mode::Shared).is_ok());
        assert!(locks.acquire(writer, &S, Mode::Exclusive).is_ok());
        threads(3, move |number| match number {
            // The writer waits for the reader, and also for the other owner as soon as that reads, too.
            0 => {
                let _ = take(&locks, writer, &R, Mode::Exclusive);
                locks.end(writer);
            }
            1 => {
                let _ = take(&locks, other, &S, Mode::Shared);
                locks.end(other);
                locks.end(reader);
            }
            // Another thread of `other`; it wakes no other thread.
            _ => _ = locks.acquire(other, &R, Mode::Shared),
        });
    }
    fn passed_to_a_parent() {
        let locks = Locks::default();
        let (parent, other) = (locks.begin(None), locks.begin(None));
        let child = locks.begin(Some(parent));
        assert!(locks.acquire(child, &R, Mode::Exclusive).is_ok());
        assert!(locks.acquire(other, &S, Mode::Exclusive).is_ok());
        let told = Arc::new(AtomicU8::new(0));
        let count = Arc::clone(&told);
        threads(3, move |number| match number {
            0 => {
                let taken = take(&locks, parent, &S, Mode::Exclusive);
                count.fetch_add(u8::from(taken.is_err()), SeqCst);
                locks.end(parent);
            }
            1 => {
                let taken = take(&locks, other, &R, Mode::Exclusive);
                count.fetch_add(u8::from(taken.is_err()), SeqCst);
                locks.end(other);
            }
            _ => locks.pass_to_parent(child),
        });
        assert!(told.load(SeqCst) <= 1);
    }
    shuttle::check_random(shared_by_one_more, 5_000);
    shuttle::check_random(passed_to_a_parent, 5_000);
}

/// The locks that a child passes to its parent stay until the parent ends.
#[test]
fn a_childs_locks_are_kept_for_its_parent() {
    fn model() {
        let locks = Locks::default();
        let inside = Inside::default();
        threads(3, move |number| {
            let parent = locks.begin(None);
            if number > 0 {
                take(&locks, parent, &R, Mode::Exclusive).unwrap();
                inside.visit(Mode::Exclusive);
            } else {
                let child = locks.begin(Some(parent));
                take(&locks, child, &R, Mode::Exclusive).unwrap();
                locks.pass_to_parent(child);
                inside.visit(Mode::Exclusive);
            }
            locks.end(parent);
        });
    }
    shuttle::check_random(model, 3_000);
}

/// A thread whose transaction another thread ends does not continue waiting.
#[test]
fn an_owner_that_ends_leaves_no_waiter_behind() {
    fn model() {
        let locks = Locks::default();
        let (holder, waiter) = (locks.begin(None), locks.begin(None));
        assert!(locks.acquire(holder, &R, Mode::Exclusive).is_ok());
        threads(2, move |number| {
            if number == 0 {
                let conflict = locks.acquire(waiter, &R, Mode::Shared).err();
                assert_eq!(wait(&locks, &conflict.unwrap()), Ok(true));
                return;
            }
            while locks.state.lock().waits.is_empty() {
                thread::yield_now();
            }
            locks.end(waiter);
        });
    }
    shuttle::check_random(model, 1_000);
}

/// Whether an owner waits in vain: after all owners that can end have ended, the remaining ones wait forever.
fn somebody_is_stuck(state: &State, owners: &[Owner]) -> bool {
    let mut open: HashSet<_> = owners.iter().copied().collect();
    let mut waiting: Vec<_> = state.waits.iter().collect();
    loop {
        let before = (open.len(), waiting.len());
        open.retain(|owner| {
            let mut lines = waiting.iter().map(|wait| state.line(wait.owner));
            lines.any(|mut line| line.any(|around| around == *owner))
        });
        waiting.retain(|wait| state.blockers_of(wait).any(|owner| open.contains(&owner)));
        if before == (open.len(), waiting.len()) {
            return !waiting.is_empty();
        }
    }
}

/// One random step: an owner begins, takes a lock or waits for it, ends, or passes its locks on.
fn step(state: &mut State, owners: &mut Vec<Owner>) {
    let mut rng = thread_rng();
    let at = rng.gen_range(0..owners.len().max(1));
    let Some(&owner) = owners.get(at).filter(|_| rng.gen_range(0..6) > 0) else {
        let parent = owners.get(at).copied().filter(|_| rng.gen_bool(0.6));
        return owners.push(state.begin(parent));
    };
    if rng.gen_range(0..10) > 0 {
        let resource = Resource::Inode(rng.gen_range(0..6));
        let mode = [Mode::Shared, Mode::Intent, Mode::Exclusive][rng.gen_range(0..3)];
        if !state.acquire(owner, &resource, mode) {
            let conflict = Conflict {
                owner,
                resource,
                mode,
                cancelled: Arc::default(),
            };
            state.add_wait(&conflict, Box::new(|_| ()));
        }
        return;
    }
    let mut others = owners.iter().filter(|other| **other != owner);
    if others.any(|other| state.line(*other).any(|around| around == owner)) {
        return;
    }
    owners.remove(at);
    if rng.gen_bool(0.5) {
        state.end(owner);
    } else {
        state.pass_to_parent(owner);
    }
}

#[test]
fn cycles_are_found_where_somebody_is_stuck_and_nowhere_else() {
    let (stuck, free) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (stuck_seen, free_seen) = (Arc::clone(&stuck), Arc::clone(&free));
    let model = move || {
        let (mut state, mut owners) = (State::default(), Vec::new());
        for _ in 0..60 {
            step(&mut state, &mut owners);
            // Owners that need not wait leave.
            let is_free = |wait: &&Wait| !state.is_blocked(wait);
            let free_ones: Vec<_> = state
                .waits
                .iter()
                .filter(is_free)
                .map(|wait| wait.id)
                .collect();
            for id in free_ones {
                state.remove_wait(id);
            }
            let found = state.waits.iter().any(|wait| state.is_in_cycle(wait));
            assert_eq!(found, somebody_is_stuck(&state, &owners));
            if found {
                stuck.fetch_add(1, SeqCst);
                break;
            }
            free.fetch_add(state.waits.len(), SeqCst);
        }
    };
    shuttle::check_random(model, 600);
    assert!(stuck_seen.load(SeqCst) > 100 && free_seen.load(SeqCst) > 1_000);
}

#[test]
fn the_memory_of_a_large_transaction_is_given_back() {
    let mut state = State::default();
    let owner = state.begin(None);
    for inode in 0..100_000 {
        assert!(state.acquire(owner, &Resource::Inode(inode), Mode::Shared));
    }
    state.end(owner);
    assert!(state.table.capacity() < 50_000);
}
