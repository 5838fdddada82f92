//! The state under the lock manager's mutex: the resources that each owner holds, and the waits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Conflict, Counts, Deadlock, Mode, Owner, Resource};

/// Number of resources for which the table keeps its memory.
const KEPT_CAPACITY: usize = 1 << 14;

/// A set of modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Modes(u8);

impl Modes {
    fn of(mode: Mode) -> Self {
        Self(match mode {
            Mode::Shared => 1,
            Mode::Intent => 2,
            Mode::Exclusive => 4,
        })
    }

    fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the modes that one owner holds conflict with a mode that another owner requests.
    fn clash_with(self, mode: Mode) -> bool {
        let compatible = match mode {
            Mode::Shared | Mode::Intent => Self::of(mode),
            Mode::Exclusive => Self::default(),
        };
        self.0 & !compatible.0 != 0
    }
}

pub(super) struct Holder {
    owner: Owner,
    modes: Modes,
}

/// An owner that has not ended.
struct Open {
    parent: Option<Owner>,
    /// The resources that it holds, each once.
    held: Vec<Resource>,
}

/// Receives the outcome of a wait, as [`super::Locks::notify`] describes it.
pub(super) type Done = Box<dyn FnOnce(Result<bool, Deadlock>) + Send>;

/// A wait that [`super::Locks::notify`] has begun.
pub(super) struct Wait {
    pub(super) id: u64,
    pub(super) owner: Owner,
    resource: Resource,
    mode: Mode,
    /// The owner had ended before the wait began.
    had_ended: bool,
    cancelled: Arc<AtomicBool>,
    done: Done,
}

/// A wait that is over. Its `done` is called without the mutex.
pub(super) struct Completed {
    done: Done,
    outcome: Result<bool, Deadlock>,
}

impl Completed {
    pub(super) fn report(self) {
        (self.done)(self.outcome);
    }
}

#[derive(Default)]
pub(super) struct State {
    last_owner: u64,
    open: HashMap<Owner, Open>,
    /// The resources that are held; none of the lists is empty.
    pub(super) table: HashMap<Resource, Vec<Holder>>,
    pub(super) waits: Vec<Wait>,
    last_wait: u64,
    /// Waits that are over and not reported yet.
    completed: Vec<Completed>,
}

impl State {
    pub(super) fn begin(&mut self, parent: Option<Owner>) -> Owner {
        self.last_owner += 1;
        let owner = Owner(self.last_owner);
        let held = Vec::new();
        self.open.insert(owner, Open { parent, held });
        owner
    }

    pub(super) fn is_open(&self, owner: Owner) -> bool {
        self.open.contains_key(&owner)
    }

    /// An owner and its ancestors, innermost first.
    pub(super) fn line(&self, owner: Owner) -> impl Iterator<Item = Owner> {
        std::iter::successors(Some(owner), |owner| {
            self.open.get(owner).and_then(|open| open.parent)
        })
    }

    /// The owners whose locks keep `owner` from taking a resource.
    fn blockers(
        &self,
        owner: Owner,
        resource: &Resource,
        mode: Mode,
    ) -> impl Iterator<Item = Owner> {
        let holders = self.table.get(resource).into_iter().flatten();
        holders
            .filter(move |holder| holder.modes.clash_with(mode))
            .map(|holder| holder.owner)
            .filter(move |holder| self.line(owner).all(|relative| relative != *holder))
    }

    pub(super) fn blockers_of(&self, wait: &Wait) -> impl Iterator<Item = Owner> {
        self.blockers(wait.owner, &wait.resource, wait.mode)
    }

    pub(super) fn is_blocked(&self, wait: &Wait) -> bool {
        self.blockers_of(wait).next().is_some()
    }

    /// Whether the owners that `wait` depends on depend on its own end.
    pub(super) fn is_in_cycle(&self, wait: &Wait) -> bool {
        let mut seen = HashSet::new();
        let mut to_see: Vec<_> = self.blockers_of(wait).collect();
        while let Some(owner) = to_see.pop() {
            if !seen.insert(owner) {
                continue;
            }
            if self.line(wait.owner).any(|relative| relative == owner) {
                return true;
            }
            // Waiting for an owner is waiting for its descendants: it ends after them.
            let inside = |other: &&Wait| self.line(other.owner).any(|around| around == owner);
            for other in self.waits.iter().filter(inside) {
                to_see.extend(self.blockers_of(other));
            }
        }
        false
    }

    /// Whether the owner has got the lock.
    pub(super) fn acquire(&mut self, owner: Owner, resource: &Resource, mode: Mode) -> bool {
        if self.blockers(owner, resource, mode).next().is_some() {
            return false;
        }
        let Some(open) = self.open.get_mut(&owner) else {
            return false;
        };
        let modes = Modes::of(mode);
        let Some(holders) = self.table.get_mut(resource) else {
            open.held.push(resource.clone());
            self.table
                .insert(resource.clone(), vec![Holder { owner, modes }]);
            return true;
        };
        match holders.iter_mut().find(|holder| holder.owner == owner) {
            Some(own) if own.modes.with(modes) == own.modes => return true,
            Some(own) => own.modes = own.modes.with(modes),
            None => {
                open.held.push(resource.clone());
                holders.push(Holder { owner, modes });
            }
        }
        // Owners that wait for the resource now depend on one more owner, or on more modes of one.
        self.settle(self.ids(|wait| wait.resource == *resource));
        true
    }

    pub(super) fn end(&mut self, owner: Owner) {
        let dependents = self.dependents(owner);
        let Some(open) = self.open.remove(&owner) else {
            return;
        };
        for resource in open.held {
            self.release(owner, &resource);
        }
        self.settle(dependents);
        // A transaction can have locked a million names; later ones do not need its memory.
        if self.table.capacity() > KEPT_CAPACITY && self.table.len() < KEPT_CAPACITY / 4 {
            self.table.shrink_to(KEPT_CAPACITY);
        }
    }

    pub(super) fn pass_to_parent(&mut self, owner: Owner) {
        let parent = self.open.get(&owner).and_then(|open| open.parent);
        let Some(parent) = parent.filter(|parent| self.is_open(*parent)) else {
            return self.end(owner);
        };
        // The waits depend on the parent from now on, which may itself wait for their owners.
        let dependents = self.dependents(owner);
        let Some(open) = self.open.remove(&owner) else {
            return;
        };
        for resource in open.held {
            self.transfer(owner, parent, resource);
        }
        self.settle(dependents);
    }

    fn transfer(&mut self, from: Owner, to: Owner, resource: Resource) {
        let Some(holders) = self.table.get_mut(&resource) else {
            return;
        };
        let Some(at) = holders.iter().position(|holder| holder.owner == from) else {
            return;
        };
        let modes = holders.swap_remove(at).modes;
        if let Some(own) = holders.iter_mut().find(|holder| holder.owner == to) {
            own.modes = own.modes.with(modes);
            return;
        }
        holders.push(Holder { owner: to, modes });
        if let Some(open) = self.open.get_mut(&to) {
            open.held.push(resource);
        }
    }

    fn release(&mut self, owner: Owner, resource: &Resource) {
        let Some(holders) = self.table.get_mut(resource) else {
            return;
        };
        holders.retain(|holder| holder.owner != owner);
        if holders.is_empty() {
            self.table.remove(resource);
        }
    }

    pub(super) fn counts(&self, owner: Owner) -> Counts {
        let mut counts = Counts::default();
        let held = self.open.get(&owner).map(|open| open.held.iter());
        for resource in held.into_iter().flatten() {
            let holders = self.table.get(resource).into_iter().flatten();
            for own in holders.filter(|holder| holder.owner == owner) {
                if own.modes == Modes::of(Mode::Shared) {
                    counts.shared += 1;
                } else {
                    counts.exclusive += 1;
                }
            }
        }
        counts
    }

    /// Begins a wait, which may be over at once. Returns its number.
    pub(super) fn add_wait(&mut self, conflict: &Conflict, done: Done) -> u64 {
        self.last_wait += 1;
        let id = self.last_wait;
        self.waits.push(Wait {
            id,
            owner: conflict.owner,
            resource: conflict.resource.clone(),
            mode: conflict.mode,
            had_ended: !self.is_open(conflict.owner),
            cancelled: Arc::clone(&conflict.cancelled),
            done,
        });
        id
    }

    /// Ends a wait without a report; false where it is over already.
    pub(super) fn remove_wait(&mut self, id: u64) -> bool {
        let before = self.waits.len();
        self.waits.retain(|wait| wait.id != id);
        self.waits.len() < before
    }

    /// Ends the waits that share this flag, which is set.
    pub(super) fn cancel(&mut self, flag: &Arc<AtomicBool>) {
        self.settle(self.ids(|wait| Arc::ptr_eq(&wait.cancelled, flag)));
    }

    /// Checks these waits again, in this order, and removes those that are over.
    pub(super) fn settle(&mut self, ids: Vec<u64>) {
        for id in ids {
            let Some(at) = self.waits.iter().position(|wait| wait.id == id) else {
                continue;
            };
            let outcome = self.waits.get(at).and_then(|wait| self.outcome(wait));
            if let Some(outcome) = outcome {
                let done = self.waits.remove(at).done;
                self.completed.push(Completed { done, outcome });
            }
        }
    }

    /// The waits that have ended since the last call.
    pub(super) fn take_completed(&mut self) -> Vec<Completed> {
        std::mem::take(&mut self.completed)
    }

    fn outcome(&self, wait: &Wait) -> Option<Result<bool, Deadlock>> {
        let ended = !wait.had_ended && !self.is_open(wait.owner);
        if ended || !self.is_blocked(wait) {
            Some(Ok(true))
        } else if self.is_in_cycle(wait) {
            Some(Err(Deadlock))
        } else {
            wait.cancelled.load(Ordering::SeqCst).then_some(Ok(false))
        }
    }

    fn ids(&self, selected: impl Fn(&Wait) -> bool) -> Vec<u64> {
        let selected = self.waits.iter().filter(|wait| selected(wait));
        selected.map(|wait| wait.id).collect()
    }

    /// The waits of `owner`, and those for resources that it holds.
    fn dependents(&self, owner: Owner) -> Vec<u64> {
        self.ids(|wait| {
            let mut holders = self.table.get(&wait.resource).into_iter().flatten();
            wait.owner == owner || holders.any(|holder| holder.owner == owner)
        })
    }
}
