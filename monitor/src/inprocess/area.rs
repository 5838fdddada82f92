//! The stubs for one library at one address: makes their code and data, and writes them into a process.

use std::ops::Range;
use std::sync::Arc;

use goanna_sys::mappings::Mapping;
use goanna_sys::{stub, tracee};
use goanna_vfs::Errno;

use super::mount_points::MountPoints;
use super::sites::{Library, PAGE, SITE, Site};

/// Calls at a site before it is patched: a patch costs about as much as two.
const CALLS_AT_SITE: u32 = 2;

/// Sites that are less than this many bytes apart are written together, with the code between them.
const CLOSE: u64 = 512;

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
    /// Calls of patched sites that come to the monitor all the same, before a process gets the map of attributes.
    pub map_after: u32,
    /// Writes to files of a store from patched sites, before a process gets an area for writes.
    pub writes_after: u32,
    /// Libraries are analysed at once, and not while the process continues.
    pub examines_at_once: bool,
    /// [`hash`] of each name that leads from the host into a mount, or into /proc.
    pub names: Vec<u64>,
    /// The inode of the only host directory that mount points are in, where no other directory can take its place; else 0.
    pub list_inode: u64,
    /// Whether mount points exist on the host.
    pub mount_points: MountPoints,
}

/// What the stub computes of a component of a path. Other names with the same hash only cost time.
pub fn hash(name: &[u8]) -> u64 {
    name.iter()
        .fold(0u64, |hash, &byte| hash.rotate_left(7) ^ u64::from(byte))
}

/// The address of the map of attributes in a process, the number of the run in the map, the ID of the mount, the address of the area for writes, and the
/// process ID: the words at [`stub::Layout::map`].
pub type MapWords = [u64; 5];

/// The common code and its data.
fn common_code(constants: &Constants, counter: u64, flags: u8, map: MapWords) -> Vec<u8> {
    let layout = stub::layout();
    let mut code = stub::common().to_vec();
    let mut put = |at: usize, words: &[u64]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        if let Some(place) = code.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(&bytes);
        }
    };
    put(layout.magic, &constants.magic);
    put(layout.key, &[constants.key]);
    put(layout.devices, &constants.devices);
    put(layout.names, &constants.names);
    put(layout.list_inode, &[constants.list_inode]);
    put(layout.counter, &[counter]);
    put(layout.flags, &[flags.into()]);
    put(layout.map, &map);
    code
}

/// The distance from `from` to `to`, where a jump can have it.
fn distance(from: u64, to: u64) -> Option<[u8; 4]> {
    let distance = to.wrapping_sub(from).cast_signed();
    i32::try_from(distance).ok().map(i32::to_le_bytes)
}

/// The code at `here` for `site` of a library at `base`, whose area is at `area`.
fn site_code(site: &Site, base: u64, area: u64, here: u64) -> Option<Vec<u8>> {
    let parts = stub::site_layout();
    let mut code = stub::site().to_vec();
    let mut put = |end: usize, value: [u8; 4]| {
        code.get_mut(end - 4..end)?.copy_from_slice(&value);
        Some(())
    };
    let back = base + site.at + SITE;
    put(
        parts.return_address,
        distance(here + parts.return_address as u64, back)?,
    )?;
    put(parts.kind, site.kind.to_le_bytes())?;
    put(parts.number, site.nr.to_le_bytes())?;
    let enter = area + stub::layout().enter as u64;
    put(parts.jump, distance(here + parts.jump as u64, enter)?)?;
    Some(code)
}

/// The five bytes at `site` that jump to `here`.
fn jump_bytes(site: u64, here: u64) -> Option<[u8; 5]> {
    let [a, b, c, d] = distance(site + 5, here)?;
    Some([0xe9, a, b, c, d])
}

/// From where a call came.
#[derive(Debug, Clone, Copy)]
pub enum Use {
    /// From a patched site, whose stub has left it to us.
    Patched,
    /// From a site that is to be patched now.
    Due(Site),
    /// From anywhere else.
    Other,
}

/// A library in an address space.
#[derive(Debug, Clone)]
pub struct Area {
    pub library: Arc<Library>,
    /// Where the library begins.
    pub base: u64,
    /// The sites that have been used, how often, and which of them are patched, in the order of their code.
    used: Vec<(u64, u32)>,
    pub patched: Vec<Site>,
    pub is_written: bool,
    /// The process began in it.
    pub is_loader: bool,
    /// What the counter was when it was last asked.
    counted: u64,
}

impl Area {
    /// `library` where `mapping` has all of its code and its padding.
    pub fn mapped(library: Arc<Library>, mapping: &Mapping) -> Option<Self> {
        let before = library.code_offset % PAGE;
        let needed = library.padding.end - library.code.start + before;
        let is_whole =
            mapping.offset == library.code_offset - before && mapping.end - mapping.start >= needed;
        let base = (mapping.start + before).checked_sub(library.code.start)?;
        is_whole.then_some(Self {
            library,
            base,
            used: Vec::new(),
            patched: Vec::new(),
            is_written: false,
            is_loader: false,
            counted: 0,
        })
    }

    /// Where the common code is.
    pub fn start(&self) -> u64 {
        self.base + self.library.padding.start
    }

    /// Where the code of the patched site `index` is, or would be.
    pub fn site_start(&self, index: usize) -> u64 {
        let before = stub::common().len() + index * stub::site().len();
        self.start() + before as u64
    }

    pub fn code(&self) -> Range<u64> {
        self.base + self.library.code.start..self.base + self.library.code.end
    }

    /// Whether all of the code of the site `index` would be in the padding.
    fn has_space(&self, index: usize) -> bool {
        self.site_start(index + 1) <= self.base + self.library.padding.end
    }

    /// Notes call `nr` from the instruction before `ip`.
    pub fn used(&mut self, nr: u32, ip: u64) -> Use {
        let address = ip.checked_sub(self.base);
        let site = address.and_then(|address| self.library.site_before(address));
        let Some(site) = site.copied().filter(|site| site.nr == nr) else {
            return Use::Other;
        };
        if self.patched.contains(&site) {
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
        if calls == CALLS_AT_SITE && self.has_space(self.patched.len()) {
            Use::Due(site)
        } else {
            Use::Other
        }
    }

    /// Patches `sites` of `tid`, as far as there is space for them. After an error, some may be patched.
    pub fn patch(
        &mut self,
        constants: &Constants,
        tid: i32,
        sites: &[Site],
        (flags, map): (u8, MapWords),
    ) -> Result<(), Errno> {
        let (mut code, mut start) = (Vec::new(), self.site_start(self.patched.len()));
        if !self.is_written {
            self.verify(tid)?;
            let counter = self.counter().filter(|_| constants.counts);
            // The code of sites lies behind it.
            code = common_code(constants, counter.unwrap_or(0), flags, map);
            start = self.start();
        }
        let first = self.patched.len();
        let space = (first..)
            .take_while(|index| self.has_space(*index))
            .take(sites.len())
            .count();
        let sites = sites.get(..space).unwrap_or_default();
        // Sites that are close to each other are written together.
        let mut texts = Vec::new();
        let mut index = first;
        for group in sites.chunk_by(|one, next| next.at - one.at < CLOSE) {
            let Some((one, last)) = group.first().zip(group.last()) else {
                continue;
            };
            let mut text = vec![0; (last.at + SITE - one.at) as usize];
            tracee::read_exact(tid, self.base + one.at, &mut text)?;
            for site in group {
                let (at, here) = (self.base + site.at, self.site_start(index));
                let bytes = text.get_mut((site.at - one.at) as usize..);
                let bytes = bytes.and_then(|bytes| bytes.first_chunk_mut::<{ SITE as usize }>());
                let bytes = bytes
                    .filter(|bytes| **bytes == site.bytes())
                    .ok_or(Errno::EBUSY)?;
                let jump = jump_bytes(at, here).ok_or(Errno::ERANGE)?;
                for (byte, new) in bytes.iter_mut().zip(jump) {
                    *byte = new;
                }
                let own = site_code(site, self.base, self.start(), here).ok_or(Errno::ERANGE)?;
                code.extend_from_slice(&own);
                index += 1;
            }
            texts.push((self.base + one.at, text));
        }
        let mut pieces = vec![(start, code.as_slice())];
        pieces.extend(texts.iter().map(|(at, text)| (*at, text.as_slice())));
        // Recorded first: if only some pieces can be written, a thread that runs in them must be found there all the same.
        self.is_written = true;
        self.patched.extend_from_slice(sites);
        tracee::write_all_forced(tid, &pieces)
    }

    /// EBUSY unless the library in memory is the one that was analysed, and what is behind its code is unused.
    fn verify(&self, tid: i32) -> Result<(), Errno> {
        let (id_at, id) = &self.library.build_id;
        let mut found = vec![0; id.len()];
        tracee::read_exact(tid, self.base + id_at, &mut found)?;
        let length = self.library.padding.end - self.library.padding.start;
        let mut padding = vec![0; length as usize];
        tracee::read_exact(tid, self.start(), &mut padding)?;
        if found != *id || padding.iter().any(|&byte| byte != 0) {
            return Err(Errno::EBUSY);
        }
        Ok(())
    }

    /// The patched site whose `syscall` ends at `address`.
    pub fn site_returning_to(&self, address: u64) -> Option<Site> {
        let at = address.checked_sub(self.base)?.checked_sub(SITE)?;
        self.patched.iter().find(|site| site.at == at).copied()
    }

    fn counter(&self) -> Option<u64> {
        self.library.counter.map(|counter| self.base + counter)
    }

    /// The calls that `tid` has answered in the process since it was last asked. The program can write any number there.
    pub fn count(&mut self, tid: i32) -> u64 {
        let mut word = [0; 8];
        let counter = self.counter().filter(|_| self.is_written);
        let read = counter.map(|counter| tracee::read_exact(tid, counter, &mut word));
        if read != Some(Ok(())) {
            return 0;
        }
        let now = u64::from_le_bytes(word);
        now.saturating_sub(std::mem::replace(&mut self.counted, now))
    }

    /// Sets the flags, if the area is still there.
    pub fn set_flags(&self, constants: &Constants, tid: i32, flags: u8) {
        self.set(constants, tid, stub::layout().flags, &[flags]);
    }

    /// Writes the data at `at`, if the area is still there.
    pub fn set(&self, constants: &Constants, tid: i32, at: usize, data: &[u8]) {
        let layout = stub::layout();
        let mut magic = [0; 16];
        let [first, second] = constants.magic.map(u64::to_le_bytes);
        let is_there = self.is_written
            && tracee::read_exact(tid, self.start() + layout.magic as u64, &mut magic).is_ok()
            && magic == *[first, second].as_flattened();
        if is_there {
            // A process that has died needs no data.
            let _ = tracee::write_forced(tid, self.start() + at as u64, data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_jumps_lead_where_they_should() {
        assert_ne!(hash(b"amino"), hash(b"amin"));
        assert_ne!(hash(b"a"), 0);
        assert_eq!(jump_bytes(0x1000, 0x2000), Some([0xe9, 0xfb, 0x0f, 0, 0]));
        assert_eq!(
            jump_bytes(0x2000, 0x1000),
            Some([0xe9, 0xfb, 0xef, 0xff, 0xff])
        );
        assert_eq!(jump_bytes(0, 1 << 40), None);
    }
}
