//! Files of a store or of an encrypted directory that processes of the run open themselves, without a notification
//! ([ADR 0124](../../../../docs/decisions/0124-opens-from-the-map.md), [ADR 0135](../../../../docs/decisions/0135-opens-in-encrypted-directories.md)).
//!
//! The map of attributes has the number of the monitor's descriptor of the file's cache object, which a process opens through /proc. Meanwhile the monitor has a
//! claim to the object: it counts as open, so it stays registered, and the back end keeps it. When the file is not shared any more, a process may
//! have read the number already. So the claim is kept for some time, except at the end of the run.
//!
//! The lock is a leaf, except for that of the map. Claims and places are dropped without it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use goanna_sys::object_handle::{self, Claim, ObjectHandle};
use goanna_sys::stub::map::Slot;
use goanna_vfs::Place;
use parking_lot::Mutex;

use crate::inprocess::run_map::RunMap;
use crate::shadow::Identity;

/// Most files that are shared: half as many as the map has slots. Where the process has fewer descriptors for objects, fifteen sixteenths of them, or two.
const FILES_MAX: u64 = 16384;
/// How many files of the host a sweep looks at, to find those that have been removed.
const LOOKED_AT: usize = 512;
/// Most memory that their contents take, bytes.
const BYTES_MAX: u64 = 256 << 20;
/// The time for which the claim to an object is kept that is not shared any more: longer than a process takes from reading the number to the open, however
/// busy the CPUs are.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// The shared files of a run.
#[derive(Debug)]
pub(in crate::inprocess) struct SharedFiles {
    state: Mutex<State>,
    /// How many descriptors the process has for objects.
    descriptors: u64,
}

#[derive(Debug, Default)]
struct State {
    files: HashMap<Identity, SharedFile>,
    /// Bytes of their contents.
    bytes: u64,
    /// Their objects, in any order.
    objects: Vec<Identity>,
    /// Where in that order the next sweep looks for files that have been removed.
    next: usize,
    /// How many descriptors had left the map at the last sweep.
    left: u64,
    /// The objects that are being shared: their numbers may be in the map.
    being_shared: Vec<Identity>,
    /// What is kept of files that are not shared any more, each with the time that it is kept until.
    ended: VecDeque<(Instant, Claim, Option<Place>)>,
}

#[derive(Debug)]
struct SharedFile {
    slot: Slot,
    claim: Claim,
    /// Memory that the object takes.
    bytes: u64,
    /// The file, if it may be removed without a change of the map.
    on_host: Option<Place>,
}

impl Default for SharedFiles {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            descriptors: object_handle::descriptors().unwrap_or(0),
        }
    }
}

impl SharedFiles {
    /// Shares the file at `place` whose object `handle` is, if `share` puts it into the map, and `may_be_shared` says so afterwards.
    pub fn add(
        &self,
        map: &RunMap,
        (place, handle): (&Place, &Arc<ObjectHandle>),
        share: impl FnOnce() -> Option<Slot>,
        may_be_shared: impl FnOnce() -> bool,
    ) {
        let claim = Claim::shared(handle);
        let identity = handle.identity();
        let files_max = self.files_max(map);
        {
            let mut state = self.state.lock();
            // What has been shared still takes its descriptors.
            if map.is_on_host()
                && state.files.len() >= files_max
                && state.ended.len() >= files_max / 8
            {
                return;
            }
            let known = state.files.get(&identity);
            if known.is_some_and(|file| map.map().shares_descriptor(file.slot, map.run())) {
                return;
            }
            state.being_shared.push(identity);
        }
        let slot = share();
        let bytes = handle.blocks().unwrap_or(0) * 512;
        let mut state = self.state.lock();
        if let Some(at) = state
            .being_shared
            .iter()
            .position(|being_shared| *being_shared == identity)
        {
            state.being_shared.swap_remove(at);
        }
        let Some(slot) = slot else { return };
        // What leaves the map from now on is found by a sweep.
        let is_shared = map.map().shares_descriptor(slot, map.run());
        if !is_shared || !may_be_shared() {
            map.map().withdraw(slot, map.run());
            state.keep(claim, None);
            return;
        }
        // Another thread may have shared the file anew since.
        let known = state.files.get(&identity);
        if known.is_some_and(|known| known.slot.id() > slot.id()) {
            return;
        }
        state.bytes += bytes;
        let file = SharedFile {
            slot,
            claim,
            bytes,
            on_host: map.is_on_host().then(|| place.clone()),
        };
        let before = state.files.insert(identity, file);
        match &before {
            Some(before) => state.bytes -= before.bytes,
            None => state.objects.push(identity),
        }
        // Nobody knows which files are still opened. Programs open many files in the same order again: then the oldest one is the one that is needed next.
        while (state.files.len() > files_max || state.bytes > BYTES_MAX)
            && !state.objects.is_empty()
        {
            let any = fastrand::usize(..state.objects.len());
            let object = state.objects.swap_remove(any);
            state.end(map, object);
        }
        drop(state);
        drop(before);
    }

    fn files_max(&self, map: &RunMap) -> usize {
        // Of the host's file, the back end has two more descriptors.
        let sixteenths = if map.is_on_host() { 2 } else { 15 };
        FILES_MAX.min(self.descriptors / 16 * sixteenths) as usize
    }

    /// Whether a process may be about to open one of these objects.
    pub fn has_any(&self, objects: &[Identity]) -> bool {
        let state = self.state.lock();
        let ended = state.ended.iter().map(|(_, claim, _)| claim.handle());
        let mut ended = ended.map(|handle| handle.identity());
        let is_shared =
            |object| state.files.contains_key(object) || state.being_shared.contains(object);
        objects.iter().any(is_shared) || ended.any(|object| objects.contains(&object))
    }

    /// Ends the claims to files that have left the map.
    pub fn sweep(&self, map: &RunMap) {
        let mut state = self.state.lock();
        // Before the slots are looked at: what leaves the map meanwhile is found by the next sweep.
        let left = map.map().descriptors_left();
        if state.left != left {
            state.left = left;
            state.end_those_that_left(map);
        }
        let now = Instant::now();
        let over = state.ended.partition_point(|(until, ..)| *until <= now);
        let over: Vec<_> = state.ended.drain(..over).collect();
        let looked_at = state.next_on_host();
        drop(state);
        drop(over);
        let is_removed = |place: &Place| place.mount.fs.on_host(&place.node).is_none();
        for (identity, _) in looked_at.iter().filter(|(_, place)| is_removed(place)) {
            self.state.lock().end(map, *identity);
        }
    }

    /// From now on processes open no files themselves, except for a thread that is about to do so.
    pub fn end_all(&self, map: &RunMap) {
        let mut state = self.state.lock();
        for identity in std::mem::take(&mut state.objects) {
            state.end(map, identity);
        }
    }

    /// The processes of the run have ended.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.state.lock());
        drop(all);
    }
}

impl State {
    fn end_those_that_left(&mut self, map: &RunMap) {
        let is_shared = |file: &SharedFile| map.map().shares_descriptor(file.slot, map.run());
        let left = self.files.iter().filter(|(_, file)| !is_shared(file));
        let left: Vec<Identity> = left.map(|(identity, _)| *identity).collect();
        for identity in left {
            self.end(map, identity);
        }
        let Self { files, objects, .. } = self;
        objects.retain(|object| files.contains_key(object));
    }

    fn end(&mut self, map: &RunMap, identity: Identity) {
        if let Some(file) = self.files.remove(&identity) {
            self.bytes -= file.bytes;
            map.map().withdraw(file.slot, map.run());
            self.keep(file.claim, file.on_host);
        }
    }

    /// The next files of the host to look at.
    fn next_on_host(&mut self) -> Vec<(Identity, Place)> {
        let from = if self.next < self.objects.len() {
            self.next
        } else {
            0
        };
        let objects = self.objects.iter().skip(from).take(LOOKED_AT);
        self.next = from + LOOKED_AT;
        let place = |identity| self.files.get(identity)?.on_host.clone();
        objects
            .filter_map(|identity| Some((*identity, place(identity)?)))
            .collect()
    }

    fn keep(&mut self, claim: Claim, place: Option<Place>) {
        let until = Instant::now() + KEPT_FOR;
        self.ended.push_back((until, claim, place));
    }
}
