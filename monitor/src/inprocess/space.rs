//! The patches in one address space.
//!
//! Patches are written while the only thread that can run there waits in the kernel: the last ones when it starts a second one. fork(2) copies them with the
//! memory, execve(2) drops them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use goanna_callsites::placed::free_address;
use goanna_callsites::{Library, Placed, Site};
use goanna_sys::mappings::{self, Mapping};
use goanna_sys::stub::writes::{Moment, WriteArea};
use goanna_sys::stub::{self, flag};
use goanna_vfs::{Errno, Mounts};
use parking_lot::{Mutex, MutexGuard};

use super::area::{Area, Constants, MapWords, MountNames, STUBS_LEN, Use, turn_off};
use super::libraries::Examined;

/// Notified calls of a process before anything is patched in it but the loader, if the run makes many calls.
const CALLS_IN_BUSY_RUN: u32 = 4;
/// The size of the memory that a process maps for stubs: of libc and the loader.
pub const STUB_MEMORY_LEN: u64 = 2 * STUBS_LEN;
/// Places without sites that are remembered.
const WITHOUT_SITES_MAX: usize = 64;

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

/// Memory that a process has mapped for stubs of libraries whose padding does not suffice.
#[derive(Debug, Clone)]
enum StubMemory {
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
enum Map {
    /// Not there; that many calls have come to the monitor all the same, from patched sites.
    Missed(u32),
    /// A thread is about to map it.
    Asked,
    /// The process is not to have it.
    Never,
    /// The first three of the [`MapWords`].
    At([u64; 3]),
}

/// The area for writes of a process (docs/decisions/0121).
#[derive(Debug, Clone)]
enum Writes {
    /// There is none. This many writes have come to the monitor from patched sites.
    Missed(u32),
    /// It was asked for.
    Never,
    /// The area, and its address.
    At(Arc<OwnArea>, u64),
}

impl Default for Writes {
    fn default() -> Self {
        Self::Missed(0)
    }
}

/// An area, as long as its process has it mapped.
#[derive(Debug)]
struct OwnArea(Arc<WriteArea>);

impl Drop for OwnArea {
    fn drop(&mut self) {
        self.0.set_ended();
    }
}

/// Whether a process can get grants.
#[derive(Debug)]
pub enum WriteAccess {
    /// It can, by this area.
    By(Arc<WriteArea>),
    /// It is to get an area.
    Due,
    /// It cannot.
    No,
}

impl Default for Map {
    fn default() -> Self {
        Self::Missed(0)
    }
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

    /// A call at the instruction before `ip` has come to the monitor.
    fn note_use_in_loader(&self, nr: u32, ip: u64) {
        let mut loaders = self.areas.iter().filter(|area| area.is_loader);
        if let Some(loader) = loaders.find(|area| area.placed.code().contains(&ip)) {
            loader.placed.library.note_use(nr, ip - loader.placed.base);
        }
    }

    /// Writes the words, of which other threads read none before the flag says that they are there.
    fn set_map_words(&self, constants: &Constants, tid: i32, owner: i32) {
        let words = self.map_words(owner).map(u64::to_le_bytes);
        for area in &self.areas {
            area.set(constants, tid, stub::layout().map, words.as_flattened());
        }
        self.set_flags(constants, tid);
    }

    fn offset_in_map(&self, ip: u64) -> Option<usize> {
        let Map::At([start, ..]) = self.map else {
            return None;
        };
        let offset = usize::try_from(ip.checked_sub(start)?).ok()?;
        (offset < stub::map::CODE_SIZE).then_some(offset)
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

    /// A call has come to the monitor because there is no memory for its stub.
    fn without_memory(&mut self, constants: &Constants) -> Wanted {
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

    /// Gives the area memory for its stubs, if it needs some and there is some.
    fn give_memory(&mut self, index: usize) {
        let (StubMemory::At(rest), Some(area)) = (&mut self.stub_memory, self.areas.get_mut(index))
        else {
            return;
        };
        let end = rest.start + STUBS_LEN;
        if !area.placed.has_memory()
            && end <= rest.end
            && area.placed.use_memory(rest.start..end).is_ok()
        {
            rest.start = end;
        }
    }

    /// Patches these sites of an area in the memory of `tid`, which belongs to process `owner`. Nothing runs there.
    fn patch(
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

    /// Thread `tid`, which is stopped at the instruction at `ip` and was alone in this memory, has started another thread, which has not run. Patches what it has not
    /// used so far, too, because later that cannot be done.
    pub fn starts_threads(
        &self,
        constants: &Constants,
        (tid, ip): (i32, u64),
        library: impl FnOnce(&Mapping) -> Examined,
    ) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.has_threads, true) {
            return;
        }
        // The area has one writer.
        if !matches!(state.writes, Writes::Never) {
            state.writes = Writes::Never;
            state.set_map_words(constants, tid, self.owner);
        }
        if state.is_off {
            return;
        }
        let mut known = state.areas.iter();
        let known = known.position(|area| area.placed.code().contains(&ip));
        let index = known.unwrap_or(state.areas.len());
        if known.is_none() {
            let Located::Area(area) = locate(tid, ip, None, library) else {
                return;
            };
            state.areas.push(area);
        }
        state.patch(constants, (tid, self.owner), index, Area::likely);
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
        state.stub_memory = StubMemory::Asked;
        let mut areas = state.areas.iter();
        let area = areas.find(|area| !area.placed.has_memory())?;
        let mappings = mappings::all(tid).ok()?;
        free_address(&mappings, &area.placed.code(), STUB_MEMORY_LEN)
    }

    /// Thread `tid`, which is stopped and alone in this memory, has mapped memory for stubs at `address`.
    pub fn has_stub_memory(&self, constants: &Constants, tid: i32, address: u64) {
        let mut state = self.state.lock();
        if !matches!(state.stub_memory, StubMemory::Asked) || state.has_threads || state.is_off {
            return;
        }
        state.stub_memory = StubMemory::At(address..address + STUB_MEMORY_LEN);
        for index in 0..state.areas.len() {
            state.give_memory(index);
            state.patch(constants, (tid, self.owner), index, Area::overdue);
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

    /// How thread `tid`, which waits in its call, can get a grant for a file of a store. Counts its writes.
    pub fn write_access(&self, constants: &Constants, tid: i32, moment: Moment) -> WriteAccess {
        let mut state = self.state.lock();
        let has_map = matches!(state.map, Map::At(_));
        if !has_map || state.is_off || state.has_threads || tid != self.owner {
            return WriteAccess::No;
        }
        match &mut state.writes {
            Writes::At(area, _) => WriteAccess::By(Arc::clone(&area.0)),
            Writes::Missed(calls) if moment == Moment::Write => {
                *calls = calls.saturating_add(1);
                if *calls > constants.writes_after {
                    WriteAccess::Due
                } else {
                    WriteAccess::No
                }
            }
            Writes::Missed(_) | Writes::Never => WriteAccess::No,
        }
    }

    /// The address at which the process of `tid`, which waits in a call, maps its area for writes, and the flag of mmap(2) for that. `None` if the process is to get
    /// none; a process is asked to map an area once.
    pub fn takes_area(&self, constants: &Constants, tid: i32) -> Option<(u64, i32)> {
        let mut state = self.state.lock();
        let Map::At([map, ..]) = state.map else {
            return None;
        };
        let Writes::Missed(calls) = state.writes else {
            return None;
        };
        let is_alone = tid == self.owner && !state.has_threads;
        if calls <= constants.writes_after || state.is_off || !is_alone {
            return None;
        }
        state.writes = Writes::Never;
        let firmly = if state.is_open_behind_map {
            // The program may have something there by now.
            libc::MAP_FIXED_NOREPLACE
        } else {
            libc::MAP_FIXED
        };
        Some((map + stub::map::LEN as u64, firmly))
    }

    /// Thread `tid`, which is stopped and alone in this memory, has mapped `area` at `address`.
    pub fn has_area(&self, constants: &Constants, tid: i32, area: Arc<WriteArea>, address: u64) {
        let mut state = self.state.lock();
        state.writes = Writes::At(Arc::new(OwnArea(area)), address);
        state.set_map_words(constants, tid, self.owner);
    }

    /// Ends a write whose thread the supervisor takes out of the code of the map. `lost` is the inode number of the object, if the offset of the write is not
    /// known.
    pub fn leaves_write(&self, lost: Option<u64>) {
        if let Writes::At(area, _) = &self.state.lock().writes {
            if let Some(ino) = lost {
                area.0.set_somewhere(ino);
            }
            area.0.set_idle();
        }
    }

    /// Thread `tid` has ended. Whether it was killed in a write.
    pub fn ended_in_write(&self, tid: i32) -> bool {
        let state = self.state.lock();
        let Writes::At(area, _) = &state.writes else {
            return false;
        };
        let is_in_write = tid == self.owner && area.0.is_busy();
        if is_in_write {
            area.0.set_ended();
        }
        is_in_write
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

    /// The patched site whose `syscall` ends at `address`, and where its library begins.
    pub fn site_returning_to(&self, address: u64) -> Option<(u64, Site)> {
        let state = self.state.lock();
        let mut areas = state.areas.iter();
        areas.find_map(|area| Some((area.placed.base, area.placed.site_returning_to(address)?)))
    }

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
        let known = state
            .areas
            .iter()
            .position(|area| area.placed.code().contains(&ip));
        let index = match known {
            Some(index) => index,
            None if state.has_threads => return Wanted::Nothing,
            None if state.without_sites.iter().any(|code| code.contains(&ip)) => {
                return Wanted::Nothing;
            }
            None => match locate(tid, ip, state.awaited.take(), library) {
                Located::Area(area) => {
                    state.areas.push(area);
                    state.areas.len() - 1
                }
                Located::Awaited(mapping) => {
                    state.awaited = Some(mapping);
                    return Wanted::Nothing;
                }
                Located::NoSites(code) => {
                    if state.without_sites.len() >= WITHOUT_SITES_MAX {
                        state.without_sites.clear();
                    }
                    state.without_sites.extend(code);
                    return Wanted::Nothing;
                }
            },
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
