//! Libraries: what is known of one, and where its code can be changed.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::elf::Elf;
use crate::sites::{Site, sites};
use crate::{KindOf, PAGE};

/// Largest library that is analysed.
const LIBRARY_MAX: u64 = 64 << 20;
/// Uses of a call after which later processes get its stub when they begin.
const OFTEN: u32 = 4;
/// The libraries that are analysed, by their own names.
const NAMES: [&[u8]; 2] = [LIBC, b"ld-linux-x86-64.so.2"];
const LIBC: &[u8] = b"libc.so.6";

/// A library that was analysed.
#[derive(Debug)]
pub struct Library {
    /// Its code in the file: offset, and the same as addresses from the base.
    pub code_offset: u64,
    /// The addresses of its code.
    pub code: Range<u64>,
    /// The zeros behind its code, up to the end of the page. Empty where something else is there.
    pub padding: Range<u64>,
    /// Eight bytes behind its data that nobody uses.
    pub counter: Option<u64>,
    /// Its build id, and the address of that.
    pub build_id: (u64, Vec<u8>),
    /// Its calls, by address.
    pub sites: Vec<Site>,
    /// How often each of them has come to the monitor, in processes that began in this library.
    uses: Vec<AtomicU32>,
}

/// Why a library is left as it is.
pub type Refusal = &'static str;

/// The content of the library at `path`, which must be the file with this device and inode.
pub fn content(path: &Path, key: Option<(u64, u64)>) -> Result<Vec<u8>, Refusal> {
    let unreadable = |_| "it cannot be read";
    let file: File = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(unreadable)?;
    let meta = file.metadata().map_err(unreadable)?;
    if !meta.is_file() || meta.len() > LIBRARY_MAX {
        return Err("no file of a usual size");
    }
    if key.is_some_and(|key| key != (meta.dev(), meta.ino())) {
        return Err("its path leads to another file");
    }
    let size = usize::try_from(meta.len()).unwrap_or(0);
    let mut content = Vec::with_capacity(size);
    // It may have grown since.
    file.take(LIBRARY_MAX)
        .read_to_end(&mut content)
        .map_err(unreadable)?;
    Ok(content)
}

impl Library {
    /// Looks into the file with this content.
    ///
    /// The sites are of the calls for which `kind_of` is `Some`.
    pub fn analyse(data: &[u8], kind_of: KindOf<'_>) -> Result<Self, Refusal> {
        let elf = Elf::parse(data).ok_or("no ELF file of x86-64")?;
        let name = elf.soname().ok_or("no name of a library")?;
        if !NAMES.contains(&name) {
            return Err("not the C library or its loader");
        }
        let (id_at, id) = elf.build_id().ok_or("no build id")?;
        let code = elf.code().ok_or("not one code segment")?;
        if code.file_size != code.memory_size || code.offset % PAGE != code.address % PAGE {
            return Err("an unusual code segment");
        }
        let range = code.address..code.address + code.file_size;
        let padding = padding(&elf, range.end, code.offset + code.file_size);
        let text = elf
            .at(range.clone())
            .ok_or("a code segment outside of the file")?;
        let sites = sites(text, range.start, &elf.functions(), kind_of);
        if sites.is_empty() {
            return Err("no calls of the known form");
        }
        Ok(Self {
            code_offset: code.offset,
            code: range.clone(),
            padding: padding.unwrap_or(range.end..range.end),
            // The loader allocates memory behind its own data.
            counter: elf.data_end().filter(|_| name == LIBC).and_then(counter),
            build_id: (id_at, id.to_vec()),
            uses: sites.iter().map(|_| AtomicU32::new(0)).collect(),
            sites,
        })
    }

    /// Forgets all sites but those that `is_wanted` says.
    pub fn retain(&mut self, is_wanted: impl Fn(&Site) -> bool) {
        self.sites.retain(is_wanted);
        self.uses.truncate(self.sites.len());
    }

    /// Call `nr` has come to the monitor from the instruction before `address`, which is one from the library's base.
    pub fn note_use(&self, nr: u32, address: u64) {
        let mut uses = self.sites.iter().zip(&self.uses);
        let is_it = |site: &Site| site.makes(nr) && site.behind_call() == address;
        if let Some((_, uses)) = uses.find(|(site, _)| is_it(site)) {
            uses.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The calls that have come often, by address.
    pub fn often_used(&self) -> Vec<Site> {
        let uses = self.sites.iter().zip(&self.uses);
        let often = uses.filter(|(_, uses)| uses.load(Ordering::Relaxed) >= OFTEN);
        often.map(|(site, _)| *site).collect()
    }

    /// The site whose `syscall` ends at `address`, from the library's base.
    pub fn site_before(&self, address: u64) -> Option<&Site> {
        let before = self.sites.partition_point(|site| site.at < address);
        let site = self.sites.get(before.checked_sub(1)?)?;
        (site.behind_call() == address).then_some(site)
    }
}

/// The last word of the page in which the data ends, unless it is of the data.
fn counter(end: u64) -> Option<u64> {
    let last = end.checked_next_multiple_of(PAGE)?.checked_sub(8)?;
    (last >= end).then_some(last)
}

/// The zeros from address `end` to the end of its page, where `offset` is the address's place in the file. `None` where something else is there.
fn padding(elf: &Elf<'_>, end: u64, offset: u64) -> Option<Range<u64>> {
    let start = end.next_multiple_of(16);
    let limit = end.next_multiple_of(PAGE);
    let zeros = elf.raw(offset + (start - end), offset + (limit - end))?;
    let is_used = elf.has_section_in(offset, offset + (limit - end));
    let is_free = zeros.iter().all(|&byte| byte == 0) && is_used == Some(false);
    is_free.then_some(start..limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(nr: u32) -> Option<u32> {
        (i64::from(nr) == libc::SYS_stat).then_some(0)
    }

    /// A C library of one function, with everything that [`Library::analyse`] looks at. Addresses are offsets in the file, but of the data.
    fn library() -> Vec<u8> {
        const CODE: u64 = 0x1000;
        let mut file = vec![0; 0x2008];
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"\x7fELF\x02\x01");
        for (at, half) in [(18, 62), (54, 56), (56, 6), (58, 64), (60, 1)] {
            put(at, &u16::to_le_bytes(half));
        }
        put(32, &64_u64.to_le_bytes());
        put(40, &0x3c0_u64.to_le_bytes());
        // Kind, rights, offset, address, size.
        for (index, (kind, rights, offset, address, size)) in [
            (1, 4, 0, 0, 0x1000),
            (1, 5, CODE, CODE, 8),
            (1, 6, 0x2000, 0x3000, 8),
            (2, 4, 0x200, 0x200, 48),
            (4, 4, 0x2c0, 0x2c0, 32),
            (0x6474_e550, 4, 0x300, 0x300, 20),
        ]
        .into_iter()
        .enumerate()
        {
            let at = 64 + 56 * index;
            put(at, &u32::to_le_bytes(kind));
            put(at + 4, &u32::to_le_bytes(rights));
            for (field, value) in [(8, offset), (16, address), (32, size), (40, size)] {
                put(at + field, &u64::to_le_bytes(value));
            }
        }
        let dynamic = [14, 1, 5, 0x280].map(u64::to_le_bytes);
        put(0x200, dynamic.as_flattened());
        put(0x281, LIBC);
        put(0x2c0, [4, 16, 3].map(u32::to_le_bytes).as_flattened());
        put(0x2cc, b"GNU\0an identifier!!");
        put(0x300, &[1, 0, 3, 0x3b]);
        let unwound = [1, 0x1000 - 0x300, 0x360 - 0x300].map(u32::to_le_bytes);
        put(0x308, unwound.as_flattened());
        put(0x348, b"\x01zR\0\x01\x01\x01\x01\x1b");
        let description = [0, 0x24, 0, 8].map(u32::to_le_bytes);
        put(0x360, description.as_flattened());
        put(0x1000, &[0xb8, 4, 0, 0, 0, 0x0f, 0x05, 0xc3]);
        file
    }

    /// Numbers in a file that a program maps are the program's own: with an address near the end of 64 bits, sums overflowed.
    #[test]
    fn a_library_with_any_numbers_is_refused_or_taken() {
        let whole = library();
        let sites = Library::analyse(&whole, &kind_of).unwrap().sites;
        assert_eq!(
            sites.iter().map(|site| site.at).collect::<Vec<_>>(),
            [0x1000]
        );
        let mut taken = 0;
        for at in (0..0x400).step_by(4) {
            for number in [u64::MAX, u64::MAX - 3, u64::MAX << 12, 1 << 63, 1 << 31, 0] {
                let mut file = whole.clone();
                file[at..at + 8].copy_from_slice(&number.to_le_bytes());
                taken += usize::from(Library::analyse(&file, &kind_of).is_ok());
            }
        }
        assert!(taken > 0);
    }
}
