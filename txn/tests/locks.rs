//! The lock manager: what excludes what, nesting, cycles, waits; against a naive model, and under threads.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use amino_txn::locks::{Conflict, Counts, Deadlock, Locks, Mode, Owner, Resource};
use proptest::prelude::*;

use Mode::{Exclusive, Intent, Shared};

const MODES: [Mode; 3] = [Shared, Intent, Exclusive];
const A: Resource = Resource::Inode(1);
const B: Resource = Resource::Inode(2);
const C: Resource = Resource::Inode(3);

/// Longer than any wait that works.
const LONG: Duration = Duration::from_secs(20);
/// A wait that is not to succeed.
const SHORT: Duration = Duration::from_millis(30);

/// Takes the lock, which must be free.
fn take(locks: &Locks, owner: Owner, resource: &Resource, mode: Mode) {
    locks.acquire(owner, resource, mode).unwrap();
}

fn conflict(locks: &Locks, owner: Owner, resource: &Resource, mode: Mode) -> Conflict {
    locks.acquire(owner, resource, mode).unwrap_err()
}

fn name(dir: u64, name: &str) -> Resource {
    Resource::Name(dir, name.as_bytes().into())
}

/// Waits in a thread of its own; returns when that is within the wait, as well as can be seen from outside.
fn wait_aside<'s>(
    scope: &'s thread::Scope<'s, '_>,
    locks: &'s Locks,
    conflict: Conflict,
) -> thread::ScopedJoinHandle<'s, Result<bool, Deadlock>> {
    let (entering, entered) = mpsc::channel();
    let waiter = scope.spawn(move || {
        entering.send(()).unwrap();
        locks.wait(&conflict, LONG)
    });
    entered.recv().unwrap();
    thread::sleep(SHORT);
    waiter
}

#[test]
fn modes_exclude_each_other() {
    let compatible = [(Shared, Shared), (Intent, Intent)];
    for held in MODES {
        for wanted in MODES {
            let locks = Locks::default();
            let (holder, other) = (locks.begin(None), locks.begin(None));
            take(&locks, holder, &A, held);
            let got = locks.acquire(other, &A, wanted).is_ok();
            assert_eq!(
                got,
                compatible.contains(&(held, wanted)),
                "{held:?} {wanted:?}"
            );
            locks.end(holder);
            take(&locks, other, &A, wanted);
        }
    }
}

#[test]
fn modes_of_one_owner_add_up() {
    let locks = Locks::default();
    let (both, reader, adder) = (locks.begin(None), locks.begin(None), locks.begin(None));
    take(&locks, both, &A, Shared);
    take(&locks, reader, &A, Shared);
    conflict(&locks, both, &A, Intent);
    locks.end(reader);
    take(&locks, both, &A, Intent);
    for mode in MODES {
        conflict(&locks, adder, &A, mode);
    }
    take(&locks, both, &A, Exclusive);
    locks.end(both);
    take(&locks, adder, &A, Intent);
}

#[test]
fn resources_are_distinguished() {
    let locks = Locks::default();
    let (one, other) = (locks.begin(None), locks.begin(None));
    take(&locks, one, &Resource::Inode(7), Exclusive);
    take(&locks, other, &Resource::Entries(7), Exclusive);
    take(&locks, one, &name(7, "a"), Exclusive);
    take(&locks, other, &name(7, "b"), Exclusive);
    take(&locks, other, &name(8, "a"), Exclusive);
    take(&locks, one, &name(7, ""), Exclusive);
    // Equal by what they say, not by where that is stored; names are bytes.
    conflict(&locks, other, &name(7, "a"), Shared);
    take(&locks, one, &Resource::Name(7, [0xff][..].into()), Shared);
    conflict(&locks, other, &Resource::Name(7, [0xff][..].into()), Intent);
}

/// A transaction that has looked for a name and not found it prevents others from creating it.
#[test]
fn absent_names_are_locked() {
    let locks = Locks::default();
    let (seeker, maker) = (locks.begin(None), locks.begin(None));
    take(&locks, seeker, &name(1, "absent"), Shared);
    let refused = conflict(&locks, maker, &name(1, "absent"), Exclusive);
    assert_eq!(locks.wait(&refused, SHORT), Ok(false));
    locks.end(seeker);
    assert_eq!(locks.wait(&refused, LONG), Ok(true));
    take(&locks, maker, &name(1, "absent"), Exclusive);
}

#[test]
fn a_cancelled_wait_ends_whether_it_has_begun_or_not() {
    let locks = Locks::default();
    let (holder, waiter, other) = (locks.begin(None), locks.begin(None), locks.begin(None));
    take(&locks, holder, &name(1, "a"), Exclusive);
    let early = conflict(&locks, waiter, &name(1, "a"), Shared);
    let late = conflict(&locks, waiter, &name(1, "a"), Shared);
    let others = conflict(&locks, other, &name(1, "a"), Shared);
    locks.cancel(&early);
    assert_eq!(locks.wait(&early, LONG), Ok(false));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| locks.wait(&late, LONG));
        let going_on = scope.spawn(|| locks.wait(&others, LONG));
        std::thread::sleep(SHORT);
        locks.cancel(&late);
        assert_eq!(waiting.join().unwrap(), Ok(false));
        locks.end(holder);
        assert_eq!(going_on.join().unwrap(), Ok(true));
    });
}

#[test]
fn a_child_takes_what_only_its_ancestors_hold() {
    let locks = Locks::default();
    let top = locks.begin(None);
    let middle = locks.begin(Some(top));
    let child = locks.begin(Some(middle));
    let stranger = locks.begin(None);
    take(&locks, top, &A, Exclusive);
    take(&locks, middle, &A, Exclusive);
    for mode in MODES {
        take(&locks, child, &A, mode);
    }
    take(&locks, top, &B, Shared);
    take(&locks, stranger, &B, Shared);
    // The unrelated owner blocks it, the ancestor does not.
    conflict(&locks, child, &B, Exclusive);
    locks.end(stranger);
    take(&locks, child, &B, Exclusive);
}

#[test]
fn a_parent_and_a_sibling_wait_for_a_child() {
    let locks = Locks::default();
    let parent = locks.begin(None);
    let (child, sibling) = (locks.begin(Some(parent)), locks.begin(Some(parent)));
    take(&locks, parent, &A, Exclusive);
    take(&locks, child, &A, Shared);
    take(&locks, sibling, &A, Shared);
    conflict(&locks, parent, &A, Intent);
    conflict(&locks, sibling, &A, Exclusive);
    locks.end(child);
    take(&locks, sibling, &A, Exclusive);
    conflict(&locks, parent, &A, Shared);
    locks.end(sibling);
    take(&locks, parent, &A, Intent);
}

#[test]
fn a_child_that_is_aborted_releases_its_own_only() {
    let locks = Locks::default();
    let (parent, stranger) = (locks.begin(None), locks.begin(None));
    take(&locks, parent, &A, Shared);
    let child = locks.begin(Some(parent));
    take(&locks, child, &A, Exclusive);
    take(&locks, child, &B, Exclusive);
    locks.end(child);
    take(&locks, stranger, &B, Exclusive);
    conflict(&locks, stranger, &A, Exclusive);
    take(&locks, stranger, &A, Shared);
}

#[test]
fn a_child_that_commits_leaves_its_locks_to_its_parent() {
    let locks = Locks::default();
    let top = locks.begin(None);
    let parent = locks.begin(Some(top));
    let child = locks.begin(Some(parent));
    let stranger = locks.begin(None);
    take(&locks, parent, &A, Shared);
    take(&locks, child, &A, Exclusive);
    take(&locks, child, &B, Intent);
    locks.pass_to_parent(child);
    let exclusive = |exclusive| Counts {
        shared: 0,
        exclusive,
    };
    assert_eq!(locks.counts(child), exclusive(0));
    assert_eq!(locks.counts(parent), exclusive(2));
    assert_eq!(locks.counts(top), exclusive(0));
    // Not the grandparent's yet, so it is in its way.
    conflict(&locks, top, &A, Shared);
    locks.pass_to_parent(parent);
    take(&locks, top, &A, Shared);
    conflict(&locks, stranger, &A, Shared);
    conflict(&locks, stranger, &B, Shared);
    // Without a parent, no transaction inherits them.
    locks.pass_to_parent(top);
    take(&locks, stranger, &A, Exclusive);
    take(&locks, stranger, &B, Exclusive);
}

#[test]
fn locks_are_counted_once_for_each_resource() {
    let locks = Locks::default();
    let (owner, other) = (locks.begin(None), locks.begin(None));
    take(&locks, owner, &A, Shared);
    take(&locks, owner, &A, Shared);
    take(&locks, owner, &B, Shared);
    take(&locks, other, &B, Shared);
    take(&locks, owner, &C, Intent);
    let counts = |shared, exclusive| Counts { shared, exclusive };
    assert_eq!(locks.counts(owner), counts(2, 1));
    take(&locks, owner, &A, Exclusive);
    assert_eq!(locks.counts(owner), counts(1, 2));
    assert_eq!(locks.counts(other), counts(1, 0));
    locks.end(owner);
    assert_eq!(locks.counts(owner), counts(0, 0));
}

#[test]
fn an_owner_that_has_ended_gets_nothing() {
    let locks = Locks::default();
    let (ended, other) = (locks.begin(None), locks.begin(None));
    locks.end(ended);
    conflict(&locks, ended, &A, Shared);
    take(&locks, other, &A, Exclusive);
    locks.end(ended);
    conflict(&locks, ended, &A, Shared);
}

#[test]
fn a_wait_ends_when_the_lock_is_free_and_not_before() {
    let locks = Locks::default();
    let (first, second, waiter) = (locks.begin(None), locks.begin(None), locks.begin(None));
    take(&locks, first, &A, Shared);
    take(&locks, second, &A, Shared);
    let refused = conflict(&locks, waiter, &A, Exclusive);
    let began = Instant::now();
    assert_eq!(locks.wait(&refused, SHORT), Ok(false));
    assert!(began.elapsed() >= SHORT);
    thread::scope(|scope| {
        let waiting = wait_aside(scope, &locks, refused);
        locks.end(first);
        thread::sleep(SHORT);
        assert!(!waiting.is_finished());
        let released = Instant::now();
        locks.end(second);
        assert_eq!(waiting.join().unwrap(), Ok(true));
        assert!(released.elapsed() < LONG / 2);
    });
    take(&locks, waiter, &A, Exclusive);
}

#[test]
fn a_parent_that_inherits_goes_on() {
    let locks = Locks::default();
    let parent = locks.begin(None);
    let child = locks.begin(Some(parent));
    take(&locks, child, &A, Exclusive);
    let refused = conflict(&locks, parent, &A, Exclusive);
    thread::scope(|scope| {
        let waiting = wait_aside(scope, &locks, refused);
        locks.pass_to_parent(child);
        assert_eq!(waiting.join().unwrap(), Ok(true));
    });
}

/// A single operation ends before it waits; it holds nothing, so it is in no cycle.
#[test]
fn an_operation_that_has_ended_waits_and_is_in_no_cycle() {
    let locks = Locks::default();
    let (holder, operation) = (locks.begin(None), locks.begin(None));
    take(&locks, holder, &A, Exclusive);
    take(&locks, operation, &B, Exclusive);
    let refused = conflict(&locks, operation, &A, Shared);
    let back = conflict(&locks, holder, &B, Shared);
    locks.end(operation);
    thread::scope(|scope| {
        let waiting = wait_aside(scope, &locks, refused);
        assert!(!waiting.is_finished());
        assert_eq!(locks.wait(&back, LONG), Ok(true));
        take(&locks, holder, &B, Shared);
        locks.end(holder);
        assert_eq!(waiting.join().unwrap(), Ok(true));
    });
}

/// A thread for each of `waits`, which waits for what its owner, the first of the list, wants, and then ends
/// all in the list. Exactly one gets the deadlock error, and the others continue.
fn cycle(locks: &Locks, waits: &[(Vec<Owner>, Resource, Mode)]) {
    let began = Instant::now();
    let told = AtomicUsize::new(0);
    // All conflicts are there before anybody ends.
    let refused: Vec<_> = waits
        .iter()
        .map(|(owners, resource, mode)| conflict(locks, owners[0], resource, *mode))
        .collect();
    thread::scope(|scope| {
        for ((owners, ..), refused) in waits.iter().zip(refused) {
            let told = &told;
            scope.spawn(move || {
                match locks.wait(&refused, LONG) {
                    Ok(free) => assert!(free),
                    Err(Deadlock) => _ = told.fetch_add(1, SeqCst),
                }
                owners.iter().for_each(|owner| locks.end(*owner));
            });
        }
    });
    assert_eq!(told.load(SeqCst), 1);
    assert!(began.elapsed() < LONG / 2);
}

#[test]
fn two_in_a_cycle() {
    let locks = Locks::default();
    let (a, b) = (locks.begin(None), locks.begin(None));
    take(&locks, a, &A, Exclusive);
    take(&locks, b, &B, Exclusive);
    cycle(&locks, &[(vec![a], B, Shared), (vec![b], A, Shared)]);
}

#[test]
fn three_in_a_cycle() {
    let locks = Locks::default();
    let [a, b, c] = [A, B, C].map(|own| {
        let owner = locks.begin(None);
        take(&locks, owner, &own, Exclusive);
        owner
    });
    let waits = [
        (vec![a], B, Shared),
        (vec![b], C, Intent),
        (vec![c], A, Exclusive),
    ];
    cycle(&locks, &waits);
}

#[test]
fn two_owners_that_want_to_change_what_both_read() {
    let locks = Locks::default();
    let (a, b) = (locks.begin(None), locks.begin(None));
    take(&locks, a, &A, Shared);
    take(&locks, b, &A, Shared);
    cycle(&locks, &[(vec![a], A, Exclusive), (vec![b], A, Exclusive)]);
}

/// The outermost hold, those inside wait.
#[test]
fn a_cycle_through_nested_transactions() {
    let locks = Locks::default();
    let (p, q) = (locks.begin(None), locks.begin(None));
    take(&locks, p, &A, Exclusive);
    take(&locks, q, &B, Exclusive);
    let (inner, child) = (locks.begin(Some(p)), locks.begin(Some(q)));
    let grandchild = locks.begin(Some(inner));
    let waits = [
        (vec![grandchild, inner, p], B, Shared),
        (vec![child, q], A, Shared),
    ];
    cycle(&locks, &waits);
}

/// Two children of one parent can wait for each other, too; and for what their parent holds neither waits.
#[test]
fn siblings_in_a_cycle() {
    let locks = Locks::default();
    let parent = locks.begin(None);
    take(&locks, parent, &A, Shared);
    take(&locks, parent, &B, Shared);
    let (a, b) = (locks.begin(Some(parent)), locks.begin(Some(parent)));
    take(&locks, a, &A, Exclusive);
    take(&locks, b, &B, Exclusive);
    cycle(&locks, &[(vec![a], B, Shared), (vec![b], A, Shared)]);
}

/// The cycle is not there before the parent has the lock: it cannot end before the child that waits.
#[test]
fn a_cycle_that_closes_when_a_child_commits() {
    let locks = Locks::default();
    let (parent, other) = (locks.begin(None), locks.begin(None));
    let (child, sibling) = (locks.begin(Some(parent)), locks.begin(Some(parent)));
    take(&locks, child, &A, Exclusive);
    take(&locks, other, &B, Exclusive);
    thread::scope(|scope| {
        let waits = [(vec![sibling, parent], B, Shared), (vec![other], A, Shared)];
        let locks = &locks;
        let all_told = scope.spawn(move || cycle(locks, &waits));
        thread::sleep(SHORT);
        assert!(!all_told.is_finished());
        locks.pass_to_parent(child);
    });
}

/// A cycle that one more reader closes, which comes while the writer waits and waits for the writer already.
#[test]
fn a_cycle_that_closes_when_somebody_takes_a_lock() {
    let locks = Locks::default();
    let [writer, reader, other] = [(); 3].map(|()| locks.begin(None));
    take(&locks, reader, &A, Shared);
    take(&locks, writer, &B, Exclusive);
    thread::scope(|scope| {
        let waits = [(vec![writer], A, Exclusive), (vec![other], B, Shared)];
        let locks = &locks;
        let all_told = scope.spawn(move || cycle(locks, &waits));
        thread::sleep(SHORT);
        assert!(!all_told.is_finished());
        take(locks, other, &A, Shared);
    });
    locks.end(reader);
}

/// A chain, a fork, and a parent that waits for its own child.
#[test]
fn what_is_no_cycle_is_not_taken_for_one() {
    let locks = Locks::default();
    let [a, b, c, d] = [(); 4].map(|()| locks.begin(None));
    let child = locks.begin(Some(a));
    take(&locks, child, &A, Exclusive);
    take(&locks, b, &B, Exclusive);
    take(&locks, b, &C, Shared);
    take(&locks, d, &C, Shared);
    let wants = [
        (a, &A, Shared),
        (b, &A, Shared),
        (d, &A, Shared),
        (c, &B, Intent),
        (c, &C, Exclusive),
    ];
    let refused = wants.map(|(owner, resource, mode)| conflict(&locks, owner, resource, mode));
    thread::scope(|scope| {
        let waiting = refused.map(|refused| wait_aside(scope, &locks, refused));
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
        for owner in [child, a, b, d] {
            locks.end(owner);
        }
        for waiting in waiting {
            assert_eq!(waiting.join().unwrap(), Ok(true));
        }
    });
}

/// The rules once more, as plainly as they can be said.
#[derive(Default)]
struct Model(Vec<Modelled>);

struct Modelled {
    owner: Owner,
    parent: Option<usize>,
    open: bool,
    held: BTreeMap<u64, Vec<Mode>>,
}

impl Model {
    fn is_ancestor(&self, ancestor: usize, at: usize) -> bool {
        ancestor == at
            || self.0[at]
                .parent
                .is_some_and(|parent| self.is_ancestor(ancestor, parent))
    }

    fn may_take(&self, at: usize, resource: u64, mode: Mode) -> bool {
        self.0[at].open
            && self.0.iter().enumerate().all(|(other, holder)| {
                let mut held = holder.held.get(&resource).into_iter().flatten();
                self.is_ancestor(other, at) || held.all(|held| *held == mode && mode != Exclusive)
            })
    }

    fn has_children(&self, at: usize) -> bool {
        self.0
            .iter()
            .any(|other| other.open && other.parent == Some(at))
    }

    fn counts(&self, at: usize) -> Counts {
        let held = self.0[at].held.values();
        let (shared, exclusive): (Vec<_>, Vec<_>) =
            held.partition(|modes| modes.iter().all(|mode| *mode == Shared));
        Counts {
            shared: shared.len(),
            exclusive: exclusive.len(),
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Begin {
        parent: Option<prop::sample::Index>,
    },
    Acquire {
        at: prop::sample::Index,
        resource: u64,
        mode: Mode,
    },
    End {
        at: prop::sample::Index,
        commits: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        2 => prop::option::of(index()).prop_map(|parent| Step::Begin { parent }),
        8 => (index(), 0..4u64, prop::sample::select(&MODES))
            .prop_map(|(at, resource, mode)| Step::Acquire { at, resource, mode }),
        2 => (index(), any::<bool>()).prop_map(|(at, commits)| Step::End { at, commits }),
    ]
}

fn perform(locks: &Locks, model: &mut Model, step: Step) {
    let count = model.0.len();
    match step {
        Step::Begin { parent } => {
            let parent = parent
                .filter(|_| count > 0)
                .map(|parent| parent.index(count));
            let parent = parent.filter(|parent| model.0[*parent].open);
            let owner = locks.begin(parent.map(|parent| model.0[parent].owner));
            let held = BTreeMap::new();
            model.0.push(Modelled {
                owner,
                parent,
                open: true,
                held,
            });
        }
        Step::Acquire { at, resource, mode } if count > 0 => {
            let at = at.index(count);
            let got = locks.acquire(model.0[at].owner, &Resource::Inode(resource), mode);
            assert_eq!(got.is_ok(), model.may_take(at, resource, mode));
            if got.is_ok() {
                model.0[at].held.entry(resource).or_default().push(mode);
            }
        }
        Step::End { at, commits } if count > 0 && !model.has_children(at.index(count)) => {
            let ended = &mut model.0[at.index(count)];
            ended.open = false;
            let held = std::mem::take(&mut ended.held);
            let (owner, parent) = (ended.owner, ended.parent);
            if !commits {
                return locks.end(owner);
            }
            locks.pass_to_parent(owner);
            if let Some(parent) = parent.filter(|parent| model.0[*parent].open) {
                for (resource, modes) in held {
                    model.0[parent]
                        .held
                        .entry(resource)
                        .or_default()
                        .extend(modes);
                }
            }
        }
        _ => {}
    }
}

proptest! {
    #[test]
    fn as_the_model_says(steps in prop::collection::vec(step(), 1..120)) {
        let (locks, mut model) = (Locks::default(), Model::default());
        for step in steps {
            perform(&locks, &mut model, step);
            for at in 0..model.0.len() {
                assert_eq!(locks.counts(model.0[at].owner), model.counts(at));
            }
        }
    }
}
