//! Finds the system calls of a library that can be patched to go through a stub.
//!
//! A site is an instruction of five bytes, which becomes a jump, with `syscall` behind it, which stays: `mov $nr,%eax`; or, in the loader's opens,
//! `mov $AT_FDCWD,%edi` with the number set by an instruction shortly before. A site is used only if a decoder that starts at the function's first byte
//! decodes exactly these instructions, and no branch leads between them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use goanna_sys::arch::SYSCALL;
use goanna_sys::stub::{self, kind};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

use super::calls::kind_of;
use super::elf::{Elf, relative};
use crate::shadow::Identity;

/// Largest library that is analysed.
const LIBRARY_MAX: u64 = 64 << 20;
/// Uses of a call after which later processes get its stub when they begin.
const OFTEN: u32 = 4;
/// Size of a page of memory.
pub const PAGE: u64 = 4096;
/// The bytes of the instruction that becomes a jump.
pub const MOV: u64 = 5;
/// The bytes of a site, with its `syscall`.
pub const SITE: u64 = 7;
/// `mov $AT_FDCWD,%edi`.
const SET_DIRECTORY: [u8; 5] = [0xbf, 0x9c, 0xff, 0xff, 0xff];
/// `mov %rdi,%rsi`, which is before that.
const PASS_PATH: [u8; 3] = [0x48, 0x89, 0xfe];
/// Reach of a short branch, in bytes.
const SHORT: u64 = 130;
/// The libraries that are analysed, by their own names.
const NAMES: [&[u8]; 2] = [LIBC, b"ld-linux-x86-64.so.2"];
const LIBC: &[u8] = b"libc.so.6";

/// A call of a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// The address of the instruction that becomes a jump, from the library's base.
    pub at: u64,
    /// The call's number.
    pub nr: u32,
    /// What a stub must look at for it.
    pub kind: u32,
}

impl Site {
    /// Whether the jump replaces `mov $AT_FDCWD,%edi`.
    pub fn is_from_cwd(&self) -> bool {
        self.kind & kind::FROM_CWD != 0
    }

    /// The bytes of the site where it is not patched.
    pub fn bytes(&self) -> [u8; SITE as usize] {
        let [a, b, c, d] = self.nr.to_le_bytes();
        let [first, second, third, fourth, fifth] = if self.is_from_cwd() {
            SET_DIRECTORY
        } else {
            [0xb8, a, b, c, d]
        };
        let [sixth, seventh] = SYSCALL;
        [first, second, third, fourth, fifth, sixth, seventh]
    }

    /// The addresses of the instructions that lead to the call, and of the call.
    fn instructions(&self) -> Vec<u64> {
        let mut all = vec![self.at, self.at + MOV];
        if self.is_from_cwd() {
            let pass_path = self.at - PASS_PATH.len() as u64;
            all.splice(..0, [pass_path - MOV, pass_path]);
        }
        all
    }

    /// The addresses that must not be the target of a branch: from the second byte of these instructions on. A branch to the call itself is allowed unless it
    /// needs a register that they set.
    fn unbranched(&self) -> Range<u64> {
        if self.is_from_cwd() {
            self.at - PASS_PATH.len() as u64 - MOV + 1..self.at + MOV + 1
        } else {
            self.at + 1..self.at + MOV
        }
    }
}

/// A library that was analysed.
#[derive(Debug)]
pub struct Library {
    /// Its code in the file: offset, and the same as addresses from the base.
    pub code_offset: u64,
    /// The addresses of its code.
    pub code: Range<u64>,
    /// The zeros behind its code, up to the end of the page.
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
pub fn content(path: &Path, key: Option<Identity>) -> Result<Vec<u8>, Refusal> {
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
    pub fn analyse(data: &[u8]) -> Result<Self, Refusal> {
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
        let padding = padding(&elf, range.end, code.offset + code.file_size)?;
        let text = elf
            .at(range.clone())
            .ok_or("a code segment outside of the file")?;
        let sites = sites(text, range.start, &elf.functions());
        if sites.is_empty() {
            return Err("no calls of the known form");
        }
        Ok(Self {
            code_offset: code.offset,
            code: range,
            padding,
            // The loader allocates memory behind its own data.
            counter: elf.data_end().filter(|_| name == LIBC).and_then(counter),
            build_id: (id_at, id.to_vec()),
            uses: sites.iter().map(|_| AtomicU32::new(0)).collect(),
            sites,
        })
    }

    /// Call `nr` has come to the monitor from the instruction before `address`, which is one from the library's base.
    pub fn note_use(&self, nr: u32, address: u64) {
        let mut uses = self.sites.iter().zip(&self.uses);
        let is_it = |site: &Site| site.nr == nr && site.at + SITE == address;
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
        let at = address.checked_sub(SITE)?;
        let index = self.sites.binary_search_by_key(&at, |site| site.at).ok()?;
        self.sites.get(index)
    }
}

/// The last word of the page in which the data ends, unless it is of the data.
fn counter(end: u64) -> Option<u64> {
    let last = end.checked_next_multiple_of(PAGE)?.checked_sub(8)?;
    (last >= end).then_some(last)
}

/// The zeros from address `end` to the end of its page, where `offset` is the address's place in the file.
fn padding(elf: &Elf<'_>, end: u64, offset: u64) -> Result<Range<u64>, Refusal> {
    let start = end.next_multiple_of(16);
    let limit = end.next_multiple_of(PAGE);
    let zeros = elf
        .raw(offset + (start - end), offset + (limit - end))
        .ok_or("nothing behind the code")?;
    let needed = stub::common().len() + 4 * stub::site().len();
    if zeros.len() < needed {
        return Err("too little space behind the code");
    }
    let is_used = elf.has_section_in(offset, offset + (limit - end));
    if zeros.iter().any(|&byte| byte != 0) || is_used != Some(false) {
        return Err("the space behind the code is used");
    }
    Ok(start..limit)
}

/// The sites in `text`, which begins at address `base`.
fn sites(text: &[u8], base: u64, functions: &[Range<u64>]) -> Vec<Site> {
    let mut candidates: Vec<Site> = memchr::memmem::find_iter(text, &SYSCALL)
        .filter_map(|call| candidate(text.get(..call)?, base))
        .collect();
    candidates.retain(|site| is_decoded(text, base, functions, site));
    let starts: BTreeMap<u64, Range<u64>> = candidates
        .iter()
        .map(|site| (site.at, site.unbranched()))
        .collect();
    let hit = |target: u64| {
        let near = starts.range(target.saturating_sub(SITE)..target.saturating_add(SHORT));
        let mut hit = near.filter(|(_, range)| range.contains(&target));
        hit.next().map(|(site, _)| *site)
    };
    let blocks = Blocks::containing(starts.values(), text.len(), base);
    let mut branched: BTreeSet<u64> = long_branches(text, base)
        .filter(|target| blocks.has(*target))
        .filter_map(hit)
        .collect();
    for site in starts.keys() {
        let near = site.saturating_sub(SHORT)..site + SHORT;
        for function in functions
            .iter()
            .filter(|function| function.start < near.end && function.end > near.start)
        {
            decode(text, base, function, |instruction| {
                if is_branch(instruction) {
                    branched.extend(hit(instruction.near_branch_target()));
                }
            });
        }
    }
    candidates.retain(|site| !branched.contains(&site.at));
    candidates
}

/// The site whose `syscall` is behind `text`.
fn candidate(text: &[u8], base: u64) -> Option<Site> {
    let (before, mov) = text.split_last_chunk::<{ MOV as usize }>()?;
    let at = base + before.len() as u64;
    if let [0xb8, number @ ..] = mov {
        let nr = u32::from_le_bytes(*number);
        return kind_of(nr).map(|kind| Site { at, nr, kind });
    }
    let before = before.strip_suffix(&PASS_PATH)?;
    let (_, [0xb8, number @ ..]) = before.split_last_chunk::<{ MOV as usize }>()? else {
        return None;
    };
    let nr = u32::from_le_bytes(*number);
    let kind = kind_of(nr).filter(|kind| kind & kind::OPEN != 0)?;
    let kind = kind | kind::FROM_CWD;
    (*mov == SET_DIRECTORY).then_some(Site { at, nr, kind })
}

/// Whether the function that `site` is in has these instructions there.
fn is_decoded(text: &[u8], base: u64, functions: &[Range<u64>], site: &Site) -> bool {
    let after = functions.partition_point(|function| function.start <= site.at);
    let Some(function) = after.checked_sub(1).and_then(|index| functions.get(index)) else {
        return false;
    };
    if function.end < site.at + SITE {
        return false;
    }
    // Their bytes are known.
    let expected = site.instructions();
    let mut seen = 0;
    let whole = decode(text, base, function, |instruction| {
        seen += usize::from(expected.contains(&instruction.ip()));
    });
    whole && seen == expected.len()
}

/// Calls `see` with each instruction of `function`. False if the function has bytes that are not an instruction.
fn decode(
    text: &[u8],
    base: u64,
    function: &Range<u64>,
    mut see: impl FnMut(&Instruction),
) -> bool {
    let place = function
        .start
        .checked_sub(base)
        .zip(function.end.checked_sub(base));
    let code = place.and_then(|(start, end)| text.get(start as usize..end as usize));
    let Some(code) = code else { return false };
    let mut decoder = Decoder::with_ip(64, code, function.start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            return false;
        }
        see(&instruction);
    }
    true
}

fn is_branch(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch | FlowControl::Call
    ) && instruction.near_branch_target() != 0
}

/// The blocks of a code segment that sites are in, a bit for each: most branches lead elsewhere, and need no search.
struct Blocks {
    base: u64,
    bits: Vec<u64>,
}

impl Blocks {
    /// log2 of a block's size in bytes.
    const SHIFT: u32 = 4;

    /// Each of `ranges` is shorter than a block.
    fn containing<'a>(ranges: impl Iterator<Item = &'a Range<u64>>, len: usize, base: u64) -> Self {
        let words = (len >> Self::SHIFT) / 64 + 1;
        let mut blocks = Self {
            base,
            bits: vec![0; words],
        };
        for at in ranges.flat_map(|range| [range.start, range.end - 1]) {
            let (word, bit) = blocks.place(at);
            if let Some(word) = blocks.bits.get_mut(word) {
                *word |= bit;
            }
        }
        blocks
    }

    fn place(&self, address: u64) -> (usize, u64) {
        let block = address.wrapping_sub(self.base) >> Self::SHIFT;
        let word = usize::try_from(block / 64).unwrap_or(usize::MAX);
        (word, 1 << (block % 64))
    }

    fn has(&self, address: u64) -> bool {
        let (word, bit) = self.place(address);
        self.bits.get(word).is_some_and(|word| word & bit != 0)
    }
}

/// Where bytes lead that may be a near jump or call, whether they are instructions or not.
fn long_branches(text: &[u8], base: u64) -> impl Iterator<Item = u64> {
    let target = move |at: usize, opcode: usize| {
        let distance = text.get(at + opcode..)?.first_chunk::<4>()?;
        let next = base + (at + opcode + 4) as u64;
        Some(relative(next, i32::from_le_bytes(*distance)))
    };
    let calls = memchr::memchr2_iter(0xe8, 0xe9, text).filter_map(move |at| target(at, 1));
    let conditional = memchr::memchr_iter(0x0f, text).filter_map(move |at| {
        let is_branch = matches!(text.get(at + 1), Some(0x80..=0x8f));
        is_branch.then(|| target(at, 2)).flatten()
    });
    calls.chain(conditional)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `mov $4,%eax; syscall; ret`, with `before` in front.
    fn function(before: &[u8]) -> Vec<u8> {
        [before, &[0xb8, 4, 0, 0, 0, 0x0f, 0x05, 0xc3]].concat()
    }

    fn found(text: &[u8]) -> Vec<u64> {
        let whole = 0x1000..0x1000 + text.len() as u64;
        let sites = sites(text, 0x1000, std::slice::from_ref(&whole));
        sites.iter().map(|site| site.at).collect()
    }

    #[test]
    fn a_call_is_found_by_decoding_its_function() {
        assert_eq!(found(&function(&[])), [0x1000]);
        assert_eq!(found(&function(&[0x90])), [0x1001]);
        // The tail of `movabs $..,%rcx` looks like one.
        assert_eq!(found(&function(&[0x48, 0xb9, 1, 2])), [0u64; 0]);
        // A call that changes names.
        assert_eq!(found(&[0xb8, 87, 0, 0, 0, 0x0f, 0x05, 0xc3]), [0u64; 0]);
    }

    #[test]
    fn a_branch_between_the_two_instructions_spares_the_site() {
        // jmp to the mov's second byte, to the mov, and to the syscall.
        assert_eq!(found(&function(&[0xeb, 1])), [0u64; 0]);
        assert_eq!(found(&function(&[0xeb, 0])), [0x1002]);
        assert_eq!(found(&function(&[0xeb, 5])), [0x1002]);
        assert_eq!(found(&function(&[0xe9, 2, 0, 0, 0])), [0u64; 0]);
    }

    #[test]
    fn an_open_in_the_working_directory_is_found_by_what_is_before_it() {
        // mov $257,%eax; mov %rdi,%rsi; mov $AT_FDCWD,%edi; syscall; ret
        let number = [0xb8, 1, 1, 0, 0];
        let open = [
            number.as_slice(),
            &PASS_PATH,
            &SET_DIRECTORY,
            &SYSCALL,
            &[0xc3],
        ]
        .concat();
        let behind = |before: &[u8]| [before, &open].concat();
        assert_eq!(found(&open), [0x1008]);
        // jmp to the start, into it, to the instructions in the middle, and to the syscall.
        assert_eq!(found(&behind(&[0xeb, 0])), [0x100a]);
        for inside in [1, 5, 8, 10, 13] {
            assert_eq!(found(&behind(&[0xeb, inside])), [0u64; 0]);
        }
        assert_eq!(found(&behind(&[0xe9, 13, 0, 0, 0])), [0u64; 0]);
        // Another call, and another instruction in between.
        assert_eq!(found(&[&[0xb8, 2], &open[2..]].concat()), [0u64; 0]);
        assert_eq!(
            found(&[&open[..5], &[0x90, 0x90, 0x90], &open[8..]].concat()),
            [0u64; 0]
        );
        let whole = 0x1000..0x1000 + open.len() as u64;
        let site = sites(&open, 0x1000, std::slice::from_ref(&whole))[0];
        assert!(site.is_from_cwd() && site.nr == 257);
        assert_eq!(site.bytes(), open[8..15]);
    }

    #[test]
    fn a_function_with_what_is_no_instruction_is_left_alone() {
        let mut text = function(&[]);
        text.push(0x06);
        assert_eq!(found(&text), [0u64; 0]);
    }

    #[test]
    fn code_outside_of_known_functions_is_left_alone() {
        let text = function(&[]);
        let elsewhere = 0x2000..0x2008;
        assert_eq!(sites(&text, 0x1000, std::slice::from_ref(&elsewhere)), []);
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
        put(0x1000, &function(&[]));
        file
    }

    /// Numbers in a file that a program maps are the program's own: with an address near the end of 64 bits, sums overflowed.
    #[test]
    fn a_library_with_any_numbers_is_refused_or_taken() {
        let whole = library();
        let sites = Library::analyse(&whole).unwrap().sites;
        assert_eq!(
            sites.iter().map(|site| site.at).collect::<Vec<_>>(),
            [0x1000]
        );
        let mut taken = 0;
        for at in (0..0x400).step_by(4) {
            for number in [u64::MAX, u64::MAX - 3, u64::MAX << 12, 1 << 63, 1 << 31, 0] {
                let mut file = whole.clone();
                file[at..at + 8].copy_from_slice(&number.to_le_bytes());
                taken += usize::from(Library::analyse(&file).is_ok());
            }
        }
        assert!(taken > 0);
    }
}
