//! A library in the memory of a process: where stubs are, and which sites lead to them.

use std::ops::Range;
use std::sync::Arc;

use goanna_sys::mappings::Mapping;
use goanna_sys::{Errno, tracee};

use crate::sites::JUMP;
use crate::{Library, PAGE, Site};

/// Sites that are less than this many bytes apart are written together, with the code between them.
const CLOSE: u64 = 512;
/// Memory for stubs is at most this far below the code, in bytes.
const REACH: u64 = 1 << 30;
/// The least hole that is used for it.
const GAP: u64 = 64 << 20;

/// The distance from `from` to `to`, where a jump can have it.
pub fn distance(from: u64, to: u64) -> Option<[u8; 4]> {
    let distance = to.wrapping_sub(from).cast_signed();
    i32::try_from(distance).ok().map(i32::to_le_bytes)
}

/// The five bytes at `site` that jump to `here`.
fn jump_bytes(site: u64, here: u64) -> Option<[u8; JUMP as usize]> {
    let [a, b, c, d] = distance(site + JUMP, here)?;
    Some([0xe9, a, b, c, d])
}

/// The address of `len` bytes of free memory that jumps from `code` reach, in an address space with these mappings, which are in order. It is not next to them: the kernel
/// puts what the program maps later there, and the program may count on its own holes.
pub fn free_address(mappings: &[Mapping], code: &Range<u64>, len: u64) -> Option<u64> {
    let near = code.end.saturating_sub(REACH)..code.start + 1;
    let starts = std::iter::once(0).chain(mappings.iter().map(|mapping| mapping.end));
    let gaps = starts.zip(mappings.iter().map(|mapping| mapping.start));
    let gaps = gaps.filter(|(start, end)| near.contains(end) && end.saturating_sub(*start) >= GAP);
    let (_, end) = gaps.last()?;
    let address = end - GAP / 2;
    (len <= GAP / 2 && near.contains(&address)).then_some(address)
}

/// The sizes of what the sites of a library lead to, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Of the code that all stubs of the library have in common, which comes first.
    pub common: usize,
    /// Of the code of one site.
    pub site: usize,
    /// Of the least memory that is worth being used.
    pub least: usize,
}

/// A library at an address of a process.
#[derive(Debug, Clone)]
pub struct Placed {
    /// What is known of it.
    pub library: Arc<Library>,
    /// Where the library begins.
    pub base: u64,
    /// The sites that lead to stubs, in the order of their code.
    pub patched: Vec<Site>,
    /// Whether something is written to the memory of the stubs, perhaps only a part of it.
    pub is_written: bool,
    /// The addresses of the stubs: the padding, or memory that was mapped for them. Empty if there is neither.
    memory: Range<u64>,
    sizes: Sizes,
}

impl Placed {
    /// `library` where `mapping` has all of its code. Its stubs are in its padding, if that suffices.
    pub fn mapped(library: Arc<Library>, mapping: &Mapping, sizes: Sizes) -> Option<Self> {
        let before = library.code_offset % PAGE;
        let needed = library.code.end - library.code.start + before;
        let is_whole =
            mapping.offset == library.code_offset - before && mapping.end - mapping.start >= needed;
        let base = (mapping.start + before).checked_sub(library.code.start)?;
        let padding = base + library.padding.start..base + library.padding.end;
        let suffices = padding.end - padding.start >= sizes.least as u64;
        is_whole.then_some(Self {
            library,
            base,
            patched: Vec::new(),
            is_written: false,
            memory: if suffices { padding } else { 0..0 },
            sizes,
        })
    }

    /// Whether there is memory for stubs.
    pub fn has_memory(&self) -> bool {
        !self.memory.is_empty()
    }

    /// Puts the stubs, of which there are none so far, into `memory`, which has zeros. Their common code has `common` bytes there. ERANGE where jumps do not reach it.
    pub fn use_memory(&mut self, memory: Range<u64>, common: usize) -> Result<(), Errno> {
        let code = self.code();
        let reaches = |from: u64, to: u64| distance(from, to).is_some();
        if !reaches(code.start, memory.end) || !reaches(code.end, memory.start) {
            return Err(Errno::ERANGE);
        }
        self.memory = memory;
        self.sizes.common = common;
        Ok(())
    }

    /// The size of the common code, in bytes.
    pub fn common(&self) -> usize {
        self.sizes.common
    }

    /// Where the common code is.
    pub fn start(&self) -> u64 {
        self.memory.start
    }

    /// Where the code of the patched site `index` is, or would be.
    fn site_start(&self, index: usize) -> u64 {
        let before = self.sizes.common + index * self.sizes.site;
        self.start() + before as u64
    }

    /// The addresses of the common code, and of the code of the patched sites.
    pub fn stubs(&self) -> Range<u64> {
        self.start()..self.site_start(self.patched.len())
    }

    /// The addresses of the library's code.
    pub fn code(&self) -> Range<u64> {
        self.base + self.library.code.start..self.base + self.library.code.end
    }

    /// How many more sites have space for their code.
    pub fn space(&self) -> usize {
        let next = self.site_start(self.patched.len());
        self.memory.end.saturating_sub(next) as usize / self.sizes.site
    }

    /// The site whose `syscall` ends at address `ip`, patched or not.
    pub fn site_before(&self, ip: u64) -> Option<&Site> {
        self.library.site_before(ip.checked_sub(self.base)?)
    }

    /// The patched site whose `syscall` ends at address `ip`.
    pub fn site_returning_to(&self, ip: u64) -> Option<Site> {
        let behind = ip.checked_sub(self.base)?;
        let mut patched = self.patched.iter();
        patched.find(|site| site.behind_call() == behind).copied()
    }

    /// Where the code of a patched site is.
    pub fn stub_of(&self, site: &Site) -> Option<u64> {
        let index = self.patched.iter().position(|patched| patched == site)?;
        Some(self.site_start(index))
    }

    /// The address behind the `syscall` of a site.
    pub fn return_address(&self, site: &Site) -> u64 {
        self.base + site.behind_call()
    }

    /// Patches `sites`, which are sorted by address, in the process of `tid`, which must not run in the library, as far as there is space for them. `common` makes the common code, and
    /// `site_code` the code of a site at an address. After an error, some may be patched.
    pub fn patch(
        &mut self,
        tid: i32,
        sites: &[Site],
        common: impl FnOnce() -> Vec<u8>,
        site_code: impl Fn(&Self, &Site, u64) -> Option<Vec<u8>>,
    ) -> Result<(), Errno> {
        let (mut code, mut start) = (Vec::new(), self.site_start(self.patched.len()));
        if !self.is_written {
            self.verify(tid)?;
            // The code of sites lies behind it.
            code = common();
            start = self.start();
        }
        let first = self.patched.len();
        let sites = sites.get(..self.space()).unwrap_or(sites);
        // Sites that are close to each other are written together.
        let mut texts = Vec::new();
        let mut index = first;
        for group in sites.chunk_by(|one, next| next.at - one.at < CLOSE) {
            let Some((one, last)) = group.first().zip(group.last()) else {
                continue;
            };
            let mut text = vec![0; (last.end() - one.at) as usize];
            tracee::read_exact(tid, self.base + one.at, &mut text)?;
            for site in group {
                let (at, here) = (self.base + site.at, self.site_start(index));
                let bytes = text.get_mut((site.at - one.at) as usize..);
                let bytes = bytes
                    .filter(|bytes| bytes.starts_with(&site.bytes()))
                    .ok_or(Errno::EBUSY)?;
                let jump = jump_bytes(at, here).ok_or(Errno::ERANGE)?;
                for (byte, new) in bytes.iter_mut().zip(site.patched_with(jump)) {
                    *byte = new;
                }
                code.extend_from_slice(&site_code(self, site, here).ok_or(Errno::ERANGE)?);
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

    /// Takes back all patches in the process of `tid`, which must not run in the library or its stubs. These stay where they are.
    pub fn unpatch(&mut self, tid: i32) -> Result<(), Errno> {
        let originals: Vec<_> = self
            .patched
            .iter()
            .map(|site| (self.base + site.at, site.bytes()))
            .collect();
        let pieces: Vec<_> = originals
            .iter()
            .map(|(at, bytes)| (*at, bytes.as_slice()))
            .collect();
        tracee::write_all_forced(tid, &pieces)?;
        self.patched.clear();
        self.is_written = false;
        Ok(())
    }

    /// EBUSY unless the library in memory is the one that was analysed, and the memory of the stubs is unused.
    fn verify(&self, tid: i32) -> Result<(), Errno> {
        let (id_at, id) = &self.library.build_id;
        let mut found = vec![0; id.len()];
        tracee::read_exact(tid, self.base + id_at, &mut found)?;
        let mut memory = vec![0; (self.memory.end - self.memory.start) as usize];
        tracee::read_exact(tid, self.start(), &mut memory)?;
        if found != *id || memory.iter().any(|&byte| byte != 0) {
            return Err(Errno::EBUSY);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_lead_where_they_should() {
        assert_eq!(jump_bytes(0x1000, 0x2000), Some([0xe9, 0xfb, 0x0f, 0, 0]));
        assert_eq!(
            jump_bytes(0x2000, 0x1000),
            Some([0xe9, 0xfb, 0xef, 0xff, 0xff])
        );
        assert_eq!(jump_bytes(0, 1 << 40), None);
    }

    #[test]
    fn memory_is_below_the_libraries() {
        const CODE: u64 = 0x7000_0000_0000;
        let mapping = |start, end| Mapping {
            start,
            end,
            offset: 0,
            dev: 0,
            ino: 0,
        };
        let of = |mappings: &[Mapping]| free_address(mappings, &(CODE..CODE + 0x10_0000), 0x4000);
        let (program, libc) = (mapping(0x5000, 0x6000), mapping(CODE, CODE + 0x10_0000));
        assert_eq!(of(&[program, libc]), Some(CODE - GAP / 2));
        // A hole that is too small, and one behind it.
        let other = mapping(CODE - 0x50_0000, CODE - 0x10_0000);
        assert_eq!(of(&[program, other, libc]), Some(other.start - GAP / 2));
        let full = mapping(CODE - REACH - 1, CODE - 0x1000);
        assert_eq!(of(&[program, full, libc]), None);
        assert_eq!(of(&[libc]), Some(CODE - GAP / 2));
        assert_eq!(of(&[]), None);
    }
}
