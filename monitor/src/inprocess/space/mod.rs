//! The patches in one address space.
//!
//! `patches` says when they are made, `memory` has what a process maps for its stubs, and `writes` its area for writes.
//!
//! Patches are written while the only thread that can run there waits in the kernel: the last ones when it starts a second one. fork(2) copies them with the
//! memory, execve(2) drops them.

mod memory;
mod patches;
mod writes;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use goanna_callsites::{Library, Placed, Site};
use goanna_sys::mappings::Mapping;
use goanna_sys::stub::{self, flag};
use goanna_vfs::{Errno, Mounts};
use parking_lot::Mutex;

use super::area::{Area, Constants, MapWords, MountNames, STUBS_LEN, turn_off};
use memory::{Map, StubMemory};
pub use memory::{STUB_MEMORY_LEN, Wanted};
pub use writes::WriteAccess;
use writes::Writes;

/// The address space of a process.
#[derive(Debug)]
pub struct Space {
    /// The process it belongs to: others use it between vfork(2) and execve(2) only.
    pub(super) owner: i32,
    /// See [`Space::has_map`].
    has_map: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Default)]
struct State {
    /// Nothing is patched any more, and stubs notify.
    is_off: bool,
    own_filters: bool,
    /// The process has had several threads.
    has_threads: bool,
    /// The process may see other mounts than the one that the run began with.
    other_mounts: bool,
    /// The mounts that stubs know, if they are others.
    names: Option<Arc<MountNames>>,
    /// The same for programs that are executed from now on.
    names_at_exec: Option<Arc<MountNames>>,
    /// The working directory is the host's.
    host_directory: bool,
    /// The working directory is not looked at any more: threads may have different ones, or one may change it while another one asks.
    differs: bool,
    /// Another process may change the working directory (`CLONE_FS`), as long as this process runs: execve(2) does not end that.
    shares_directory: bool,
    /// Notified calls that a stub could have looked at, until there were enough of them.
    calls: u32,
    areas: Vec<Area>,
    /// Code that has no sites.
    without_sites: Vec<Range<u64>>,
    /// A library that is not analysed yet.
    awaited: Option<Mapping>,
    stub_memory: StubMemory,
    map: Map,
    writes: Writes,
    /// An ancestor had its area behind the map, so the memory there was not copied: the program may have mapped something else there.
    is_open_behind_map: bool,
}

impl State {
    fn map_words(&self, owner: i32) -> MapWords {
        let Map::At([map, run, mount]) = self.map else {
            return [0; 5];
        };
        let (writes, owner) = match self.writes {
            Writes::At(_, address) => (address, u64::from(owner.unsigned_abs())),
            _ => (0, 0),
        };
        [map, run, mount, writes, owner]
    }

    /// Writes the words, of which other threads read none before the flag says that they are there.
    fn set_map_words(&self, constants: &Constants, tid: i32, owner: i32) {
        let words = self.map_words(owner).map(u64::to_le_bytes);
        for area in &self.areas {
            area.set(constants, tid, stub::layout().map, words.as_flattened());
        }
        self.set_flags(constants, tid);
    }

    fn flags(&self, constants: &Constants) -> u8 {
        let bits = [
            (self.is_off, flag::OFF),
            (!self.host_directory, flag::CWD_UNKNOWN),
            (
                constants.mount_points.are_absent() && !self.other_mounts,
                flag::NO_MOUNT_POINT,
            ),
            (matches!(self.map, Map::At(_)), flag::HAS_MAP),
        ];
        bits.iter()
            .filter(|(is_set, _)| *is_set)
            .fold(0, |flags, (_, bit)| flags | bit)
    }

    fn set_flags(&self, constants: &Constants, tid: i32) {
        for area in &self.areas {
            area.set_flags(constants, tid, self.flags(constants));
        }
    }
}

impl Space {
    /// The space of a program that `owner` has just executed.
    pub fn new(owner: i32) -> Self {
        Self {
            owner,
            has_map: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// A space in which nothing is ever patched.
    pub fn unused(owner: i32) -> Self {
        let space = Self::new(owner);
        space.state.lock().is_off = true;
        space
    }

    /// As [`Space::new`], of a program that has inherited seccomp filters of its own.
    pub fn with_own_filters(owner: i32) -> Self {
        let space = Self::unused(owner);
        space.set_own_filters();
        space
    }

    /// The space of the program that replaces this one.
    pub fn executed(&self, owner: i32) -> Self {
        let old = self.state.lock();
        let new = if old.own_filters {
            Self::with_own_filters(owner)
        } else {
            Self::new(owner)
        };
        {
            let mut state = new.state.lock();
            state.other_mounts = old.other_mounts;
            state.names.clone_from(&old.names_at_exec);
            state.names_at_exec.clone_from(&old.names_at_exec);
            if state.names.is_some() {
                state.other_mounts = true;
                // It has what absolute paths lead to elsewhere.
                state.map = Map::Never;
            }
            state.shares_directory = old.shares_directory;
        }
        new
    }

    /// The copy for a new process.
    pub fn copied(&self, owner: i32) -> Self {
        let mut state = self.state.lock().clone();
        if state.areas.is_empty() {
            state.calls = 0;
        }
        state.is_open_behind_map |= !matches!(state.writes, Writes::Missed(_));
        state.writes = Writes::default();
        state.has_threads = false;
        state.differs = false;
        state.shares_directory = false;
        Self {
            owner,
            has_map: AtomicBool::new(self.has_map()),
            state: Mutex::new(state),
        }
    }

    /// Makes the stubs of thread `tid` and this one, a copy of `parent`, agree: another thread of the parent may have changed that after the memory was copied. Nothing runs in
    /// this memory.
    pub fn agree_with_memory(&self, parent: &Self, constants: &Constants, tid: i32) {
        if !parent.state.lock().has_threads {
            return;
        }
        let mut state = self.state.lock();
        let has_map = |area: &Area| area.flags(constants, tid) & flag::HAS_MAP != 0;
        if !state.areas.iter().any(has_map) {
            state.map = Map::Never;
        }
        state.set_flags(constants, tid);
    }

    /// If the process has threads, the working directory depends on the thread from now on.
    pub fn separate_directories(&self, constants: &Constants, tid: i32) {
        let mut state = self.state.lock();
        if !state.has_threads {
            return;
        }
        state.differs = true;
        state.host_directory = false;
        state.set_flags(constants, tid);
    }

    /// Takes the address of the area of `parent`, of whose memory this is a copy, out of the stubs of thread `tid`: the area was not copied, and a process in another
    /// PID namespace may have the owner's number. Nothing runs in this memory.
    pub fn leave_area_to(&self, parent: &Self, constants: &Constants, tid: i32) {
        if matches!(parent.state.lock().writes, Writes::At(..)) {
            self.state.lock().set_map_words(constants, tid, self.owner);
        }
    }

    /// See [`Space::with_own_filters`].
    pub fn set_own_filters(&self) {
        self.state.lock().own_filters = true;
    }

    /// Programs that are executed here see `mounts`. EBUSY where these are more than stubs compare with.
    pub fn sees(&self, constants: &Constants, mounts: &Mounts) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let known = state.names_at_exec.as_deref().unwrap_or(&constants.names);
        // With those that another thread of this process may see.
        let names = known.with(mounts)?;
        state.names_at_exec = Some(Arc::new(names));
        Ok(())
    }

    /// Lets all calls notify for good. `tid` uses this memory.
    pub fn turn_off(&self, constants: &Constants, tid: i32) {
        let mut state = self.state.lock();
        if !state.is_off {
            state.is_off = true;
            state.set_flags(constants, tid);
        }
    }

    /// Lets calls that depend on the working directory notify. `tid`, which is about to change it, uses this memory.
    pub fn forget_directory(&self, constants: &Constants, tid: i32) {
        let mut state = self.state.lock();
        state.differs |= state.has_threads;
        if state.host_directory {
            state.host_directory = false;
            state.set_flags(constants, tid);
        }
    }

    /// The process has its working directory in common with another one from now on. Its calls notify until it executes a program.
    pub fn share_directory(&self) {
        self.state.lock().shares_directory = true;
    }

    /// The process, of which `tid` is a thread, may see other mounts than the one that the run began with.
    pub fn forget_mounts(&self, constants: &Constants, tid: i32) {
        let mut state = self.state.lock();
        state.other_mounts = true;
        state.set_flags(constants, tid);
    }

    /// Writes the flags again, after [`Constants::mount_points`] has changed. A thread that runs in this memory sees the old ones or
    /// the new ones. `tid` is such a thread.
    pub fn refresh_flags(&self, constants: &Constants, tid: i32) {
        self.state.lock().set_flags(constants, tid);
    }

    /// Whether something is patched.
    pub fn is_patched(&self) -> bool {
        let state = self.state.lock();
        state.areas.iter().any(|area| area.placed.is_written)
    }

    /// The patched site whose `syscall` ends at `address`, and where its library begins.
    pub fn site_returning_to(&self, address: u64) -> Option<(u64, Site)> {
        let state = self.state.lock();
        let mut areas = state.areas.iter();
        areas.find_map(|area| Some((area.placed.base, area.placed.site_returning_to(address)?)))
    }

    /// See [`Area::count`].
    pub fn count(&self, tid: i32) -> u64 {
        let mut state = self.state.lock();
        let counts = state.areas.iter_mut().map(|area| area.count(tid));
        counts.fold(0, u64::saturating_add)
    }

    /// Shows `see` the library in whose stubs `ip` is.
    pub fn library<R>(&self, ip: u64, see: impl FnOnce(&Placed) -> R) -> Option<R> {
        let state = self.state.lock();
        let mut libraries = state.areas.iter().map(|area| &area.placed);
        libraries
            .find(|placed| placed.is_written && placed.stubs().contains(&ip))
            .map(see)
    }
}

/// Lets the stubs that are in this mapping of `tid` notify, if there are some: behind the code of `library`, or in memory for them.
pub fn turn_off_unknown(
    constants: &Constants,
    tid: i32,
    mapping: &Mapping,
    library: Option<Arc<Library>>,
) {
    let area = library.and_then(|library| Area::mapped(library, mapping));
    if let Some(area) = area {
        turn_off(constants, tid, area.placed.start());
    } else if mapping.ino == 0 {
        turn_off(constants, tid, mapping.start);
        turn_off(constants, tid, mapping.start + STUBS_LEN);
    }
}
