//! The stubs for one library at one address: makes their code and data, and writes them into a process.

use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use goanna_callsites::library::Refusal;
use goanna_callsites::placed::{Sizes, distance};
use goanna_callsites::{ANY, Form, Library, Placed, Site};
use goanna_sys::mappings::Mapping;
use goanna_sys::stub::kind;
use goanna_sys::{stub, tracee};
use goanna_vfs::{Errno, Mounts};

use super::calls::{LIKELY, kind_of};
use super::mount_points::{MountPoints, are_in_root};

/// Calls at a site before it is patched: a patch costs about as much as two.
const CALLS_AT_SITE: u32 = 2;

/// Sites that must fit into the padding of a library, if that is used.
const SITES_MIN: usize = 4;

/// Size of the memory that is mapped for the stubs of a library whose padding does not suffice, in bytes. All sites fit.
pub const STUBS_LEN: u64 = 8192;

/// The values that stubs compare with; the same in all processes of a run.
#[derive(Debug)]
pub struct Constants {
    /// A call whose r9 is the next instruction's address XOR this passes the filter.
    pub key: u64,
    /// The bytes by which the monitor recognises an area.
    pub magic: [u64; 2],
    /// The devices of the run-time directory, of memfds, and of /proc.
    pub devices: [u64; 3],
    /// Stubs count the calls that they answer.
    pub counts: bool,
    /// Notified calls of a process before anything is patched in it.
    pub calls_before: u32,
    /// Notified calls of all processes of the run before it analyses a library.
    pub calls_of_run_before: u32,
    /// Calls that come to the monitor only because there is no memory for their stubs, before a process gets some.
    pub stubs_after: u32,
    /// Calls of patched sites that come to the monitor all the same, before a process gets the map of attributes.
    pub map_after: u32,
    /// Writes to files of a store from patched sites, before a process gets an area for writes.
    pub writes_after: u32,
    /// Libraries are analysed at once, and not while the process continues.
    pub examines_at_once: bool,
    /// The calls that stubs answer at sites which several calls have in common, as [`stub::DispatchLayout::kinds`] has them.
    pub kinds: Vec<u64>,
    /// Of the mounts that the run began with.
    pub names: MountNames,
    /// Whether mount points exist on the host.
    pub mount_points: MountPoints,
}

/// What stubs know of the mounts that a process sees.
#[derive(Debug)]
pub struct MountNames {
    /// [`hash`] of each name that leads from the host into a mount, or into /proc. Others do no harm.
    names: Vec<u64>,
    /// The inode of the only host directory that mount points are in, where no other directory can take its place; else 0.
    list_inode: u64,
}

impl MountNames {
    /// Those of `mounts`. EBUSY where there are more than stubs compare with.
    pub fn of(mounts: &Mounts) -> Result<Self, Errno> {
        let names = mounts.on_host().map(|(_, name, _)| name);
        let names: Vec<u64> = names.chain([&b"proc"[..]]).map(hash).collect();
        Self::new(names, list_inode(mounts)?)
    }

    /// Those of `mounts` and of this, for a process that has them and may share its memory with one that has these.
    pub fn with(&self, mounts: &Mounts) -> Result<Self, Errno> {
        let further = Self::of(mounts)?;
        let is_equal = self.list_inode == further.list_inode;
        let list_inode = if is_equal { self.list_inode } else { 0 };
        Self::new([&self.names[..], &further.names[..]].concat(), list_inode)
    }

    fn new(mut names: Vec<u64>, list_inode: u64) -> Result<Self, Errno> {
        names.sort_unstable();
        names.dedup();
        if names.len() > stub::NAMES_MAX || names.contains(&0) {
            return Err(Errno::EBUSY);
        }
        Ok(Self { names, list_inode })
    }
}

/// The inode of the root directory, where all mount points on the host are in it: its path never leads elsewhere. Else 0.
fn list_inode(mounts: &Mounts) -> Result<u64, Errno> {
    if !are_in_root(mounts) {
        return Ok(0);
    }
    let root = std::fs::metadata("/").map_err(crate::errno::errno)?;
    Ok(root.ino())
}

/// What the stub computes of a component of a path. Other names with the same hash only cost time.
pub fn hash(name: &[u8]) -> u64 {
    name.iter()
        .fold(0u64, |hash, &byte| hash.rotate_left(7) ^ u64::from(byte))
}

/// The address of the map of attributes in a process, the number of the run in the map, the ID of the mount, the address of the area for writes, and the
/// process ID: the words at [`stub::Layout::map`].
pub type MapWords = [u64; 5];

/// The common code and its data, of this size: with the dispatch, or without it.
fn common_code(
    (constants, names): (&Constants, &MountNames),
    counter: u64,
    (flags, map): (u8, MapWords),
    size: usize,
) -> Vec<u8> {
    let layout = stub::layout();
    let mut code = stub::common_and_dispatch().to_vec();
    let mut put = |at: usize, words: &[u64]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        if let Some(place) = code.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(&bytes);
        }
    };
    put(layout.magic, &constants.magic);
    put(layout.key, &[constants.key]);
    put(layout.devices, &constants.devices);
    put(layout.names, &names.names);
    put(layout.list_inode, &[names.list_inode]);
    put(layout.counter, &[counter]);
    put(layout.flags, &[flags.into()]);
    put(layout.map, &map);
    put(stub::dispatch_layout().kinds, &constants.kinds);
    code.truncate(size);
    code
}

/// The code at `here` for `site` of a library.
fn site_code(placed: &Placed, site: &Site, here: u64) -> Option<Vec<u8>> {
    if site.nr == ANY {
        return shared_site_code(placed, site, here);
    }
    let parts = stub::site_layout();
    let mut code = stub::site().to_vec();
    let mut put = |end: usize, value: [u8; 4]| {
        code.get_mut(end - 4..end)?.copy_from_slice(&value);
        Some(())
    };
    let back = placed.return_address(site);
    put(
        parts.return_address,
        distance(here + parts.return_address as u64, back)?,
    )?;
    let from_cwd = match site.form {
        Form::Directory => kind::FROM_CWD,
        _ => 0,
    };
    put(parts.kind, (site.kind | from_cwd).to_le_bytes())?;
    put(parts.number, site.nr.to_le_bytes())?;
    let enter = placed.start() + stub::layout().enter as u64;
    put(parts.jump, distance(here + parts.jump as u64, enter)?)?;
    Some(code)
}

/// The code at `here` for `site`, which several calls have in common.
fn shared_site_code(placed: &Placed, site: &Site, here: u64) -> Option<Vec<u8>> {
    let parts = stub::shared_site_layout();
    let mut code = stub::shared_site().to_vec();
    let mut put = |end: usize, value: &[u8]| {
        code.get_mut(end - value.len()..end)?.copy_from_slice(value);
        Some(())
    };
    put(parts.moved, &moving(site.form)?)?;
    let back = placed.return_address(site);
    let back = distance(here + parts.return_address as u64, back)?;
    put(parts.return_address, &back)?;
    let dispatch = placed.start() + stub::dispatch_layout().start as u64;
    put(parts.jump, &distance(here + parts.jump as u64, dispatch)?)?;
    code.resize(stub::site().len(), 0);
    Some(code)
}

/// The instruction of a shared site that moves a word, below the frame of a stub.
fn moving(form: Form) -> Option<[u8; 8]> {
    /// In the byte that says how the operand is given: the distance has one byte, or four.
    const SIZES: u8 = 0xc0;
    const NOP: [u8; 4] = [0x0f, 0x1f, 0x40, 0];
    let (first, second) = match form {
        Form::Shared([prefix, opcode, operand, base, at]) => {
            let at = i32::from(at.cast_signed()) + stub::FRAME as i32;
            ([prefix, opcode, operand ^ SIZES, base], at.to_le_bytes())
        }
        // It does not depend on rsp.
        Form::Framed { moves, .. } => (moves, NOP),
        Form::Number | Form::Directory | Form::Zero => return None,
    };
    [first, second].concat().try_into().ok()
}

/// Looks into the library with this content.
pub fn analyse(content: &[u8]) -> Result<Library, Refusal> {
    Library::analyse(content, &kind_of)
}

/// The sizes of the code of an area.
fn sizes() -> Sizes {
    let (common, site) = (stub::common().len(), stub::site().len());
    Sizes {
        common,
        site,
        least: common + SITES_MIN * site,
    }
}

/// From where a call came.
#[derive(Debug, Clone, Copy)]
pub enum Use {
    /// From a patched site, whose stub has left it to us.
    Patched,
    /// From a site that is to be patched now.
    Due(Site),
    /// From a site that would be patched if there were memory for its stub.
    WithoutMemory,
    /// From anywhere else.
    Other,
}

/// A library in an address space.
#[derive(Debug, Clone)]
pub struct Area {
    pub placed: Placed,
    /// The sites that have been used, and how often.
    used: Vec<(u64, u32)>,
    /// The process began in it.
    pub is_loader: bool,
    /// What the counter was when it was last asked.
    counted: u64,
}

impl Area {
    /// `library` where `mapping` has all of its code and its padding.
    pub fn mapped(library: Arc<Library>, mapping: &Mapping) -> Option<Self> {
        Some(Self {
            placed: Placed::mapped(library, mapping, sizes())?,
            used: Vec::new(),
            is_loader: false,
            counted: 0,
        })
    }

    /// Notes call `nr` from the instruction before `ip`.
    pub fn used(&mut self, nr: u32, ip: u64) -> Use {
        let site = self.placed.site_before(ip);
        let Some(site) = site.copied().filter(|site| site.makes(nr)) else {
            return Use::Other;
        };
        if self.placed.patched.contains(&site) {
            return Use::Patched;
        }
        let known = self.used.iter().position(|(at, _)| *at == site.at);
        let index = known.unwrap_or_else(|| {
            self.used.push((site.at, 0));
            self.used.len() - 1
        });
        let calls = self.used.get_mut(index).map_or(0, |(_, calls)| {
            *calls = calls.saturating_add(1);
            *calls
        });
        if calls < CALLS_AT_SITE {
            Use::Other
        } else if self.placed.space() > 0 && self.has_place_for(&site) {
            Use::Due(site)
        } else if self.placed.has_memory() {
            Use::Other
        } else {
            Use::WithoutMemory
        }
    }

    /// Whether the stub of `site` can be in the memory for stubs: the padding has no dispatch.
    pub fn has_place_for(&self, site: &Site) -> bool {
        site.nr != ANY || self.has_own_memory()
    }

    /// Whether stubs are in memory of their own.
    pub fn has_own_memory(&self) -> bool {
        self.placed.common() > stub::common().len()
    }

    /// Puts the stubs into `memory`, if there are none so far and jumps reach it. Whether that was done.
    pub fn use_memory(&mut self, memory: Range<u64>) -> bool {
        let common = stub::common_and_dispatch().len();
        !self.placed.is_written && self.placed.use_memory(memory, common).is_ok()
    }

    /// Takes back the patches that lead into the padding, if the library has sites that need the dispatch. Nothing runs in the memory of `tid`.
    pub fn leave_padding(&mut self, tid: i32) {
        let needs_dispatch = self.placed.library.sites.iter().any(|site| site.nr == ANY);
        if self.placed.is_written && !self.has_own_memory() && needs_dispatch {
            // A process that has died has no patches.
            let _ = self.placed.unpatch(tid);
        }
    }

    /// The sites that would have been patched if there had been memory for their stubs, by address.
    pub fn overdue(&self) -> Vec<Site> {
        let is_overdue = |site: &&Site| {
            let mut used = self.used.iter();
            used.any(|(at, calls)| *at == site.at && *calls >= CALLS_AT_SITE)
                && !self.placed.patched.contains(site)
        };
        let sites = self.placed.library.sites.iter();
        sites.filter(is_overdue).copied().collect()
    }

    /// Patches `sites` of `tid`, as far as there is space for them. After an error, some may be patched.
    pub fn patch(
        &mut self,
        (constants, names): (&Constants, &MountNames),
        tid: i32,
        sites: &[Site],
        data: (u8, MapWords),
    ) -> Result<(), Errno> {
        let counter = self.counter().filter(|_| constants.counts);
        let size = self.placed.common();
        let common = || common_code((constants, names), counter.unwrap_or(0), data, size);
        self.placed.patch(tid, sites, common, site_code)
    }

    fn counter(&self) -> Option<u64> {
        let counter = self.placed.library.counter;
        counter.map(|counter| self.placed.base + counter)
    }

    /// The calls that `tid` has answered in the process since it was last asked. The program can write any number there.
    pub fn count(&mut self, tid: i32) -> u64 {
        let counter = self.counter().filter(|_| self.placed.is_written);
        let Some(Ok(now)) = counter.map(|counter| tracee::read_word(tid, counter)) else {
            return 0;
        };
        now.saturating_sub(std::mem::replace(&mut self.counted, now))
    }

    /// The sites that are worth being patched before they are used, by address: as many as there is space for.
    pub fn likely(&self) -> Vec<Site> {
        let placed = &self.placed;
        let of_call = |nr: u32| {
            let sites = placed.library.sites.iter();
            sites.filter(move |site| site.nr == nr)
        };
        let calls = LIKELY.into_iter().map(|nr| nr as u32);
        let sites = [ANY].into_iter().chain(calls).flat_map(of_call);
        let sites = sites.filter(|site| self.has_place_for(site));
        let sites = sites.filter(|site| !placed.patched.contains(site));
        let mut sites: Vec<Site> = sites.take(placed.space()).copied().collect();
        sites.sort_unstable_by_key(|site| site.at);
        sites
    }

    /// The flags in the memory of `tid`, if the area is there.
    pub fn flags(&self, constants: &Constants, tid: i32) -> u8 {
        let mut flags = [0];
        let at = self.placed.start() + stub::layout().flags as u64;
        let is_read =
            self.is_there(constants, tid) && tracee::read_exact(tid, at, &mut flags).is_ok();
        if is_read { flags[0] } else { 0 }
    }

    /// Sets the flags, if the area is still there.
    pub fn set_flags(&self, constants: &Constants, tid: i32, flags: u8) {
        self.set(constants, tid, stub::layout().flags, &[flags]);
    }

    /// Writes the data at `at`, if the area is still there.
    pub fn set(&self, constants: &Constants, tid: i32, at: usize, data: &[u8]) {
        if self.is_there(constants, tid) {
            // A process that has died needs no data.
            let _ = tracee::write_forced(tid, self.placed.start() + at as u64, data);
        }
    }

    fn is_there(&self, constants: &Constants, tid: i32) -> bool {
        self.placed.is_written && are_stubs(constants, tid, self.placed.start())
    }
}

/// Whether stubs begin at `start` in the memory of `tid`.
fn are_stubs(constants: &Constants, tid: i32, start: u64) -> bool {
    let mut magic = [0; 16];
    let at = start.checked_add(stub::layout().magic as u64);
    at.is_some_and(|at| tracee::read_exact(tid, at, &mut magic).is_ok())
        && magic == *constants.magic.map(u64::to_le_bytes).as_flattened()
}

/// Lets the stubs that begin at `start` in the memory of `tid` notify, if there are some.
pub fn turn_off(constants: &Constants, tid: i32, start: u64) {
    if are_stubs(constants, tid, start) {
        // A process that has died needs no data.
        let flags = start + stub::layout().flags as u64;
        let _ = tracee::write_forced(tid, flags, &[stub::flag::OFF]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_further_mounts_are_added() {
        let fs = || -> Arc<dyn goanna_vfs::FileSystem> { Arc::new(goanna_vfs::SynthFs::new(1)) };
        let mut mounts = Mounts::new(fs());
        mounts.cover(b"/a".to_vec(), fs(), String::new());
        let first = MountNames::of(&mounts).unwrap();
        let mut further = mounts.branch();
        further.cover(b"/dir/b".to_vec(), fs(), String::new());
        let both = first.with(&further).unwrap();
        let mut names = [hash(b"a"), hash(b"b"), hash(b"proc")];
        names.sort_unstable();
        assert_eq!(both.names, names);
        assert!(first.list_inode != 0 && both.list_inode == 0);
        for number in 0..stub::NAMES_MAX {
            further.cover(format!("/{number}").into_bytes(), fs(), String::new());
        }
        assert!(first.with(&further).is_err());
    }

    #[test]
    fn names_differ() {
        assert_ne!(hash(b"amino"), hash(b"amin"));
        assert_ne!(hash(b"a"), 0);
    }
}
