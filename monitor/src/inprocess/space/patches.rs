//! When the sites in an address space are patched.

use std::ops::Range;

use goanna_callsites::Site;
use goanna_sys::mappings::{self, Mapping};
use parking_lot::MutexGuard;

use super::memory::{Map, StubMemory, Wanted};
use super::writes::Writes;
use super::{Space, State};
use crate::inprocess::area::{Area, Constants, Use};
use crate::inprocess::libraries::Examined;

/// Notified calls of a process before anything is patched in it but the loader, if the run makes many calls.
const CALLS_IN_BUSY_RUN: u32 = 4;
/// Places without sites that are remembered.
const WITHOUT_SITES_MAX: usize = 64;

impl State {
    /// A call at the instruction before `ip` has come to the monitor.
    pub(super) fn note_use_in_loader(&self, nr: u32, ip: u64) {
        let mut loaders = self.areas.iter().filter(|area| area.is_loader);
        if let Some(loader) = loaders.find(|area| area.placed.code().contains(&ip)) {
            loader.placed.library.note_use(nr, ip - loader.placed.base);
        }
    }

    /// The area with the instruction before `ip`, where `tid` waits.
    fn area_around(
        &mut self,
        tid: i32,
        ip: u64,
        library: impl FnOnce(&Mapping) -> Examined,
    ) -> Option<usize> {
        let mut areas = self.areas.iter();
        let known = areas.position(|area| area.placed.code().contains(&ip));
        let mut others = self.without_sites.iter();
        if known.is_some() || self.has_threads || others.any(|code| code.contains(&ip)) {
            return known;
        }
        match locate(tid, ip, self.awaited.take(), library) {
            Located::Area(area) => {
                self.areas.push(area);
                return Some(self.areas.len() - 1);
            }
            Located::Awaited(mapping) => self.awaited = Some(mapping),
            Located::NoSites(code) => {
                if self.without_sites.len() >= WITHOUT_SITES_MAX {
                    self.without_sites.clear();
                }
                self.without_sites.extend(code);
            }
        }
        None
    }

    /// Patches these sites of an area in the memory of `tid`, which belongs to process `owner`. Nothing runs there.
    pub(super) fn patch(
        &mut self,
        constants: &Constants,
        (tid, owner): (i32, i32),
        index: usize,
        sites: impl FnOnce(&Area) -> Vec<Site>,
    ) {
        let data = (self.flags(constants), self.map_words(owner));
        let names = self.names.as_deref().unwrap_or(&constants.names);
        let Some(area) = self.areas.get_mut(index) else {
            return;
        };
        let mut sites = sites(area);
        sites.retain(|site| area.has_place_for(site));
        sites.truncate(area.placed.space());
        let is_patched =
            sites.is_empty() || area.patch((constants, names), tid, &sites, data).is_ok();
        if !is_patched {
            // Whatever it is, it would happen again.
            self.is_off = true;
            self.set_flags(constants, tid);
        }
    }
}

impl Space {
    /// Thread `tid` waits in call `nr` at the instruction before `ip`. See [`super::InProcess::observe`]. Says whether the process is to get
    /// something.
    pub fn observe(
        &self,
        constants: &Constants,
        (tid, nr, ip): (i32, u32, u64),
        library: impl FnOnce(&Mapping) -> Examined,
        has_host_directory: impl FnOnce() -> bool,
    ) -> Wanted {
        let mut state = self.state.lock();
        if state.is_off || state.offset_in_map(ip).is_some() {
            return Wanted::Nothing;
        }
        state.note_use_in_loader(nr, ip);
        if state.calls < constants.calls_before {
            state.calls += 1;
            let is_of_busy_run = state.areas.iter().any(|area| area.is_loader);
            if is_of_busy_run && state.calls == CALLS_IN_BUSY_RUN {
                state.calls = constants.calls_before;
            }
            return Wanted::Nothing;
        }
        let Some(index) = state.area_around(tid, ip, library) else {
            return Wanted::Nothing;
        };
        state.give_memory(index);
        let used = state.areas.get_mut(index).map(|area| area.used(nr, ip));
        let used = match used {
            Some(used @ (Use::Patched | Use::Due(_))) => used,
            Some(Use::WithoutMemory) => return state.without_memory(constants),
            Some(Use::Other) | None => return Wanted::Nothing,
        };
        // It asks the back end, perhaps one whose commit waits until the supervisor, which takes this lock, has seen threads stop.
        let may_know =
            |state: &State| !state.host_directory && !state.shares_directory && !state.differs;
        // Another thread may go elsewhere meanwhile.
        if may_know(&state)
            && MutexGuard::unlocked(&mut state, has_host_directory)
            && may_know(&state)
        {
            state.host_directory = true;
            state.set_flags(constants, tid);
        }
        if state.is_off {
            return Wanted::Nothing;
        }
        match used {
            Use::Due(site) if !state.has_threads => {
                state.patch(constants, (tid, self.owner), index, |_| vec![site]);
                Wanted::Nothing
            }
            Use::Due(_) | Use::WithoutMemory | Use::Other => Wanted::Nothing,
            Use::Patched => {
                let Map::Missed(calls) = &mut state.map else {
                    return Wanted::Nothing;
                };
                *calls = calls.saturating_add(1);
                if *calls > constants.map_after {
                    Wanted::Map
                } else {
                    Wanted::Nothing
                }
            }
        }
    }

    /// Thread `tid`, which is stopped, has just executed a program whose first instruction is at `entry`. If that is in a loader, patches the calls that it
    /// makes for each library.
    pub fn patch_loader(
        &self,
        constants: &Constants,
        (tid, entry): (i32, u64),
        library: impl FnOnce(&Mapping) -> Examined,
    ) {
        let mut state = self.state.lock();
        if state.is_off {
            return;
        }
        let Located::Area(mut area) = locate(tid, entry + 1, None, library) else {
            return;
        };
        area.is_loader = true;
        state.areas.push(area);
        let index = state.areas.len() - 1;
        let often_used = |area: &Area| area.placed.library.often_used();
        state.patch(constants, (tid, self.owner), index, often_used);
    }

    /// Thread `tid`, which is stopped at the instruction at `ip` and was alone in this memory, has started another thread, which has not run. Patches what it has not
    /// used so far, too, because later that cannot be done. Returns the address at which memory for stubs must be mapped before that.
    pub fn starts_threads(
        &self,
        constants: &Constants,
        (tid, ip): (i32, u64),
        library: impl FnOnce(&Mapping) -> Examined,
    ) -> Option<u64> {
        let mut state = self.state.lock();
        if state.has_threads {
            return None;
        }
        let index = if state.is_off {
            None
        } else {
            state.area_around(tid, ip, library)
        };
        state.has_threads = true;
        // The area has one writer.
        if !matches!(state.writes, Writes::Never) {
            state.writes = Writes::Never;
            state.set_map_words(constants, tid, self.owner);
        }
        let index = index?;
        state.give_memory(index);
        // Rather than in the padding, which has space for few stubs, and not for the dispatch.
        let address = match state.stub_memory {
            StubMemory::Missed(_) => state.ask_for_stub_memory(tid, index),
            StubMemory::Asked | StubMemory::At(_) => None,
        };
        if address.is_none() {
            state.patch(constants, (tid, self.owner), index, Area::likely);
        }
        address
    }
}

/// What is around an instruction.
enum Located {
    Area(Area),
    /// A library that is not analysed yet.
    Awaited(Mapping),
    /// Code without sites, if it is known where that is.
    NoSites(Option<Range<u64>>),
}

/// What has the instruction before `ip` in the process of `tid`; perhaps `awaited`.
fn locate(
    tid: i32,
    ip: u64,
    awaited: Option<Mapping>,
    library: impl FnOnce(&Mapping) -> Examined,
) -> Located {
    let is_awaited = |mapping: &Mapping| (mapping.start..mapping.end).contains(&(ip - 1));
    let mapping = awaited.filter(is_awaited).or_else(|| {
        let mappings = mappings::of_range(tid, ip - 1, ip).ok()?;
        mappings.into_iter().next()
    });
    let Some(mapping) = mapping else {
        return Located::NoSites(None);
    };
    let code = Some(mapping.start..mapping.end);
    match library(&mapping) {
        Examined::NotYet => Located::Awaited(mapping),
        Examined::Is(library) => {
            Area::mapped(library, &mapping).map_or(Located::NoSites(code), Located::Area)
        }
        Examined::Refused => Located::NoSites(code),
    }
}
