//! Files of a store that processes of the run open themselves, without a notification ([ADR 0124](../../../../docs/decisions/0124-opens-from-the-map.md)).
//!
//! The map of attributes has the number of the monitor's descriptor of the file's cache object, which a process opens through /proc. Meanwhile the monitor has a
//! claim to the object: it counts as open, so it stays registered, and the back end keeps it. When the file is not shared any more, a process may
//! have read the number already. So the claim is kept for some time, except at the end of the run.
//!
//! The lock is a leaf, except for that of the map. Claims are dropped without it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use goanna_sys::object_handle::{Claim, ObjectHandle};
use goanna_sys::stub::map::Slot;
use parking_lot::Mutex;

use crate::inprocess::run_map::RunMap;
use crate::shadow::Identity;

/// Most files that are shared. Each takes a descriptor.
const FILES_MAX: usize = 1024;
/// The time for which the claim to an object is kept that is not shared any more: longer than a process takes from reading the number to the open, however
/// busy the CPUs are.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// The shared files of a run.
#[derive(Debug, Default)]
pub(in crate::inprocess) struct SharedFiles(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    files: HashMap<Identity, (Slot, Claim)>,
    /// Their objects, the first shared first.
    order: VecDeque<Identity>,
    /// The objects that are being shared: their numbers may be in the map.
    being_shared: Vec<Identity>,
    /// The claims that are kept, each with the time that it is kept until.
    ended: VecDeque<(Instant, Claim)>,
}

impl SharedFiles {
    /// Shares the file whose object `handle` is, if `share` puts it into the map, and `may_be_shared` says so afterwards.
    pub fn add(
        &self,
        map: &RunMap,
        handle: &Arc<ObjectHandle>,
        share: impl FnOnce() -> Option<Slot>,
        may_be_shared: impl FnOnce() -> bool,
    ) {
        let claim = Claim::shared(handle);
        let identity = handle.identity();
        {
            let mut state = self.0.lock();
            let known = state.files.get(&identity);
            if known.is_some_and(|(slot, _)| map.map().shares_descriptor(*slot, map.run())) {
                return;
            }
            state.being_shared.push(identity);
        }
        let slot = share();
        let mut state = self.0.lock();
        if let Some(at) = state
            .being_shared
            .iter()
            .position(|being_shared| *being_shared == identity)
        {
            state.being_shared.swap_remove(at);
        }
        let Some(slot) = slot else { return };
        if !may_be_shared() {
            map.map().withdraw(slot, map.run());
            state.keep(claim);
            return;
        }
        // Another thread may have shared the file anew since.
        let known = state.files.get(&identity);
        if known.is_some_and(|(known, _)| known.id() > slot.id()) {
            return;
        }
        let before = state.files.insert(identity, (slot, claim));
        if before.is_none() {
            state.order.push_back(identity);
        }
        if state.files.len() > FILES_MAX
            && let Some(oldest) = state.order.pop_front()
        {
            state.end(map, oldest);
        }
        drop(state);
        drop(before);
    }

    /// Whether a process may be about to open one of these objects.
    pub fn has_any(&self, objects: &[Identity]) -> bool {
        let state = self.0.lock();
        let ended = state.ended.iter().map(|(_, claim)| claim.handle());
        let mut ended = ended.map(|handle| handle.identity());
        let is_shared =
            |object| state.files.contains_key(object) || state.being_shared.contains(object);
        objects.iter().any(is_shared) || ended.any(|object| objects.contains(&object))
    }

    /// Ends the claims to files that have left the map.
    pub fn sweep(&self, map: &RunMap) {
        let mut state = self.0.lock();
        let is_shared = |(slot, _): &(Slot, Claim)| map.map().shares_descriptor(*slot, map.run());
        let left = state.files.iter().filter(|(_, file)| !is_shared(file));
        let left: Vec<Identity> = left.map(|(identity, _)| *identity).collect();
        for identity in left {
            state.end(map, identity);
        }
        let State { files, order, .. } = &mut *state;
        order.retain(|identity| files.contains_key(identity));
        let now = Instant::now();
        let over = state.ended.partition_point(|(until, _)| *until <= now);
        let over: Vec<_> = state.ended.drain(..over).collect();
        drop(state);
        drop(over);
    }

    /// From now on processes open no files themselves, except for a thread that is about to do so.
    pub fn end_all(&self, map: &RunMap) {
        let mut state = self.0.lock();
        for identity in std::mem::take(&mut state.order) {
            state.end(map, identity);
        }
    }

    /// The processes of the run have ended.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        drop(all);
    }
}

impl State {
    fn end(&mut self, map: &RunMap, identity: Identity) {
        if let Some((slot, claim)) = self.files.remove(&identity) {
            map.map().withdraw(slot, map.run());
            self.keep(claim);
        }
    }

    fn keep(&mut self, claim: Claim) {
        self.ended.push_back((Instant::now() + KEPT_FOR, claim));
    }
}
