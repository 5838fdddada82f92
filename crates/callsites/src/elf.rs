//! What the analysis of a library needs of its ELF file: segments, build id, and where functions begin and end.
//!
//! Files are not trusted: each access is checked, and what does not have the usual form is taken as absent.

use std::ops::Range;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_NOTE: u32 = 4;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const NT_GNU_BUILD_ID: u32 = 3;
const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;
const SHT_NOBITS: u32 = 8;
const SHF_ALLOC: u64 = 2;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
/// The end of the addresses that a program can have. No segment that is mapped has a larger address, offset or size, and sums of some
/// smaller ones do not overflow.
const ADDRESSES_END: u64 = 1 << 47;
/// Maximum number of program headers, of section headers, and of entries of the dynamic section and of the table of functions that are read.
const HEADERS_MAX: usize = 256;
const FUNCTIONS_MAX: usize = 1 << 17;
/// Signed offsets of 4 bytes, from the table's start, and from the field itself.
const FROM_TABLE: u8 = 0x3b;
const FROM_FIELD: u8 = 0x1b;
const UNSIGNED_4: u8 = 0x03;

/// A part of the file that is mapped.
#[derive(Debug, Clone)]
pub struct Segment {
    kind: u32,
    /// Rights.
    flags: u32,
    /// Where it is in the file.
    pub offset: u64,
    /// Its first address, from the library's base.
    pub address: u64,
    /// Its bytes in the file.
    pub file_size: u64,
    /// Its bytes in memory.
    pub memory_size: u64,
}

/// An ELF file of x86-64.
pub struct Elf<'d> {
    data: &'d [u8],
    segments: Vec<Segment>,
}

fn bytes<const N: usize>(data: &[u8], at: u64) -> Option<[u8; N]> {
    let at = usize::try_from(at).ok()?;
    data.get(at..)?.first_chunk::<N>().copied()
}

/// The number at an offset, if the data reach that far.
pub fn u16_at(data: &[u8], at: u64) -> Option<u16> {
    bytes(data, at).map(u16::from_le_bytes)
}

/// The number at an offset, if the data reach that far.
pub fn u32_at(data: &[u8], at: u64) -> Option<u32> {
    bytes(data, at).map(u32::from_le_bytes)
}

/// The number at an offset, if the data reach that far.
pub fn u64_at(data: &[u8], at: u64) -> Option<u64> {
    bytes(data, at).map(u64::from_le_bytes)
}

/// The address `offset` bytes from `address`.
pub fn relative(address: u64, offset: i32) -> u64 {
    address.wrapping_add_signed(offset.into())
}

impl<'d> Elf<'d> {
    /// The file with this content, if it is one.
    pub fn parse(data: &'d [u8]) -> Option<Self> {
        // 64 bits, little-endian; x86-64.
        if data.get(..6)? != b"\x7fELF\x02\x01" || u16_at(data, 18)? != 62 {
            return None;
        }
        let (start, size) = (u64_at(data, 32)?, u64::from(u16_at(data, 54)?));
        let count = usize::from(u16_at(data, 56)?).min(HEADERS_MAX);
        let mut segments = Vec::with_capacity(count);
        for index in 0..count as u64 {
            let at = start.checked_add(index * size)?;
            let header = data.get(usize::try_from(at).ok()?..)?;
            let number = |at: u64| u64_at(header, at).filter(|number| *number < ADDRESSES_END);
            segments.push(Segment {
                kind: u32_at(header, 0)?,
                flags: u32_at(header, 4)?,
                offset: number(8)?,
                address: number(16)?,
                file_size: number(32)?,
                memory_size: number(40)?,
            });
        }
        Some(Self { data, segments })
    }

    fn of_kind(&self, kind: u32) -> impl Iterator<Item = &Segment> {
        let of_kind = move |segment: &&Segment| segment.kind == kind;
        self.segments.iter().filter(of_kind)
    }

    /// The only segment that can be executed; `None` where there are several.
    pub fn code(&self) -> Option<&Segment> {
        let mut code = self
            .of_kind(PT_LOAD)
            .filter(|segment| segment.flags & PF_X != 0);
        let first = code.next()?;
        code.next().is_none().then_some(first)
    }

    /// Where the last segment that can be written ends in memory.
    pub fn data_end(&self) -> Option<u64> {
        let data = self
            .of_kind(PT_LOAD)
            .filter(|segment| segment.flags & PF_W != 0);
        let last = data.last()?;
        last.address.checked_add(last.memory_size)
    }

    /// The file's bytes at these addresses.
    pub fn at(&self, range: Range<u64>) -> Option<&'d [u8]> {
        let holds = |segment: &&Segment| {
            segment.address <= range.start
                && range.end.checked_sub(segment.address) <= Some(segment.file_size)
        };
        let segment = self.of_kind(PT_LOAD).find(holds)?;
        let start = segment.offset.checked_add(range.start - segment.address)?;
        let length = range.end.checked_sub(range.start)?;
        let start = usize::try_from(start).ok()?;
        self.data
            .get(start..start.checked_add(usize::try_from(length).ok()?)?)
    }

    /// The file's bytes from `start` to `end`, whatever they are.
    pub fn raw(&self, start: u64, end: u64) -> Option<&'d [u8]> {
        self.data
            .get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }

    fn u32_in_memory(&self, address: u64) -> Option<u32> {
        u32_at(self.at(address..address.checked_add(4)?)?, 0)
    }

    /// The build id and its address.
    pub fn build_id(&self) -> Option<(u64, &'d [u8])> {
        for segment in self.of_kind(PT_NOTE) {
            let mut at = 0u64;
            while at + 12 <= segment.file_size {
                let head = segment.offset.checked_add(at)?;
                let name = u64::from(u32_at(self.data, head)?);
                let length = u64::from(u32_at(self.data, head + 4)?);
                let kind = u32_at(self.data, head + 8)?;
                let content = 12 + name.next_multiple_of(4);
                if kind == NT_GNU_BUILD_ID && name == 4 && length >= 8 {
                    let start = head.checked_add(content)?;
                    let id = self.raw(start, start.checked_add(length)?)?;
                    return Some((segment.address.checked_add(at + content)?, id));
                }
                at += content + length.next_multiple_of(4);
            }
        }
        None
    }

    /// The library's own name.
    pub fn soname(&self) -> Option<&'d [u8]> {
        let dynamic = self.of_kind(PT_DYNAMIC).next()?;
        let (mut name, mut strings) = (None, None);
        for index in 0..HEADERS_MAX as u64 {
            let at = dynamic.offset.checked_add(index * 16)?;
            match u64_at(self.data, at)? {
                DT_NULL => break,
                DT_SONAME => name = u64_at(self.data, at + 8),
                DT_STRTAB => strings = u64_at(self.data, at + 8),
                _ => {}
            }
        }
        let start = strings?.checked_add(name?)?;
        let text = self.at(start..start.checked_add(32)?)?;
        text.split(|&byte| byte == 0).next()
    }

    /// Whether a section that is loaded has bytes in the file from `start` to `end`.
    pub fn has_section_in(&self, start: u64, end: u64) -> Option<bool> {
        let (table, size) = (u64_at(self.data, 40)?, u64::from(u16_at(self.data, 58)?));
        let count = usize::from(u16_at(self.data, 60)?).min(HEADERS_MAX);
        for index in 0..count as u64 {
            let at = table.checked_add(index * size)?;
            let header = self.data.get(usize::try_from(at).ok()?..)?;
            let (kind, flags) = (u32_at(header, 4)?, u64_at(header, 8)?);
            let offset = u64_at(header, 24)?;
            let section_end = offset.checked_add(u64_at(header, 32)?)?;
            let loaded = flags & SHF_ALLOC != 0 && kind != SHT_NOBITS;
            if loaded && offset < end && section_end > start {
                return Some(true);
            }
        }
        Some(false)
    }

    /// The functions, by the table for unwinding (`.eh_frame_hdr`), in order. Empty where it has another form than usual.
    pub fn functions(&self) -> Vec<Range<u64>> {
        self.unwound().unwrap_or_default()
    }

    fn unwound(&self) -> Option<Vec<Range<u64>>> {
        let table = self.of_kind(PT_GNU_EH_FRAME).next()?;
        let head = self.at(table.address..table.address.checked_add(12)?)?;
        let forms = head.get(2..4)?;
        if head.first() != Some(&1) || forms != [UNSIGNED_4, FROM_TABLE] {
            return None;
        }
        let count = u32_at(head, 8)? as usize;
        let mut functions = Vec::with_capacity(count.min(FUNCTIONS_MAX));
        for index in 0..count.min(FUNCTIONS_MAX) as u64 {
            let entry = table.address.checked_add(12 + 8 * index)?;
            let at = |field: u64| {
                let offset = self.u32_in_memory(entry + field)?;
                Some(relative(table.address, offset.cast_signed()))
            };
            let (start, description) = (at(0)?, at(4)?);
            if let Some(length) = self.length_of_function(description) {
                functions.push(start..start.checked_add(length)?);
            }
        }
        functions.sort_unstable_by_key(|function| function.start);
        Some(functions)
    }

    /// The length of the function that the entry of `.eh_frame` at `description` is for.
    fn length_of_function(&self, description: u64) -> Option<u64> {
        let to_common = self.u32_in_memory(description.checked_add(4)?)?;
        let common = description
            .checked_add(4)?
            .checked_sub(u64::from(to_common))?;
        // Length, zero, version 1, then the augmentation: "zR" and its data, in which R says how addresses are written.
        let head = self.at(common..common.checked_add(24)?)?;
        if head.get(8..12)? != b"\x01zR\0" {
            return None;
        }
        let mut rest = head.get(12..)?;
        // Three numbers of variable length, and that of the augmentation's data.
        for _ in 0..4 {
            let length = rest.iter().position(|byte| byte & 0x80 == 0)? + 1;
            rest = rest.get(length..)?;
        }
        (rest.first() == Some(&FROM_FIELD))
            .then(|| self.u32_in_memory(description.checked_add(12)?))
            .flatten()
            .map(u64::from)
    }
}
