//! Memory that a process maps for its stubs: theirs, where the padding of a library does not suffice, and the map of attributes.

use std::ops::Range;
use std::sync::atomic::Ordering;

use goanna_callsites::placed::free_address;
use goanna_sys::{mappings, stub};

use super::{Space, State};
use crate::inprocess::area::{Area, Constants, STUBS_LEN};

/// The size of the memory that a process maps for stubs: of libc and the loader.
pub const STUB_MEMORY_LEN: u64 = 2 * STUBS_LEN;

/// Memory that a process has mapped for stubs of libraries whose padding does not suffice.
#[derive(Debug, Clone)]
pub(super) enum StubMemory {
    /// There is none. This many calls have come to the monitor which stubs could have answered.
    Missed(u32),
    /// It was asked for.
    Asked,
    /// What is left of it.
    At(Range<u64>),
}

impl Default for StubMemory {
    fn default() -> Self {
        Self::Missed(0)
    }
}

/// What a process is to be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    Nothing,
    /// Memory for stubs.
    Stubs,
    /// The map of attributes.
    Map,
}

/// The map of attributes in an address space.
#[derive(Debug, Clone, Copy)]
pub(super) enum Map {
    /// Not there; that many calls have come to the monitor all the same, from patched sites.
    Missed(u32),
    /// A thread is about to map it.
    Asked,
    /// The process is not to have it.
    Never,
    /// The first three of the [`MapWords`].
    At([u64; 3]),
}

impl Default for Map {
    fn default() -> Self {
        Self::Missed(0)
    }
}

impl State {
    pub(super) fn offset_in_map(&self, ip: u64) -> Option<usize> {
        let Map::At([start, ..]) = self.map else {
            return None;
        };
        let offset = usize::try_from(ip.checked_sub(start)?).ok()?;
        (offset < stub::map::CODE_SIZE).then_some(offset)
    }

    /// A call has come to the monitor because there is no memory for its stub.
    pub(super) fn without_memory(&mut self, constants: &Constants) -> Wanted {
        let StubMemory::Missed(calls) = &mut self.stub_memory else {
            return Wanted::Nothing;
        };
        *calls = calls.saturating_add(1);
        if *calls > constants.stubs_after && !self.has_threads {
            Wanted::Stubs
        } else {
            Wanted::Nothing
        }
    }

    /// The address at which the process of `tid` is to map memory for the stubs of an area, if that has none of its own.
    pub(super) fn ask_for_stub_memory(&mut self, tid: i32, index: usize) -> Option<u64> {
        let area = self.areas.get(index);
        let area = area.filter(|area| !area.has_own_memory())?;
        self.stub_memory = StubMemory::Asked;
        let mappings = mappings::all(tid).ok()?;
        free_address(&mappings, &area.placed.code(), STUB_MEMORY_LEN)
    }

    /// Gives the area memory for its stubs, if there is some and it has none so far.
    pub(super) fn give_memory(&mut self, index: usize) {
        let (StubMemory::At(rest), Some(area)) = (&mut self.stub_memory, self.areas.get_mut(index))
        else {
            return;
        };
        let end = rest.start + STUBS_LEN;
        if end <= rest.end && area.use_memory(rest.start..end) {
            rest.start = end;
        }
    }
}

impl Space {
    /// Whether the process has the map of attributes, or had it.
    pub fn has_map(&self) -> bool {
        self.has_map.load(Ordering::Acquire)
    }

    /// The address at which the process of `tid`, which waits in a call, is to map memory for stubs: once.
    pub fn takes_stub_memory(&self, constants: &Constants, tid: i32) -> Option<u64> {
        let mut state = self.state.lock();
        let StubMemory::Missed(calls) = state.stub_memory else {
            return None;
        };
        if calls <= constants.stubs_after || state.is_off || state.has_threads {
            return None;
        }
        let mut areas = state.areas.iter();
        let index = areas.position(|area| !area.placed.has_memory())?;
        state.ask_for_stub_memory(tid, index)
    }

    /// Thread `tid`, which is stopped and the only one that has run in this memory, has mapped memory for stubs at `address`.
    pub fn has_stub_memory(&self, constants: &Constants, tid: i32, address: u64) {
        let mut state = self.state.lock();
        if !matches!(state.stub_memory, StubMemory::Asked) || state.is_off {
            return;
        }
        state.stub_memory = StubMemory::At(address..address + STUB_MEMORY_LEN);
        let sites = if state.has_threads {
            // All of them move, for these are patched now or never.
            for area in &mut state.areas {
                area.leave_padding(tid);
            }
            Area::likely
        } else {
            Area::overdue
        };
        for index in 0..state.areas.len() {
            state.give_memory(index);
            state.patch(constants, (tid, self.owner), index, sites);
        }
    }

    /// Whether the process, of which a thread waits in a call, is to get the map of attributes: once.
    pub fn takes_map(&self, constants: &Constants) -> bool {
        let mut state = self.state.lock();
        let is_due = matches!(state.map, Map::Missed(calls) if calls > constants.map_after);
        let takes = is_due && !state.is_off;
        if takes {
            state.map = Map::Asked;
        }
        takes
    }

    /// Thread `tid`, which is stopped, has mapped the attributes.
    pub fn mapped(&self, constants: &Constants, tid: i32, words: [u64; 3]) {
        let mut state = self.state.lock();
        if !matches!(state.map, Map::Asked) {
            return;
        }
        state.map = Map::At(words);
        self.has_map.store(true, Ordering::Release);
        state.set_map_words(constants, tid, self.owner);
    }

    /// Takes the map from the process of thread `tid` for good. Another thread that reads it now may do so once more.
    pub fn forget_map(&self, constants: &Constants, tid: i32) {
        let mut state = self.state.lock();
        state.map = Map::Never;
        state.set_flags(constants, tid);
    }

    /// The offset of the instruction at `ip` in the code of the map of attributes.
    pub fn offset_in_map(&self, ip: u64) -> Option<usize> {
        self.state.lock().offset_in_map(ip)
    }
}
