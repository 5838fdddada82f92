//! Finds the system calls in code that can be replaced by jumps.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use goanna_sys::arch::SYSCALL;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

use crate::KindOf;
use crate::elf::relative;

/// The bytes of a jump.
pub(crate) const JUMP: u64 = 5;
/// The bytes of `mov $nr,%eax`.
const MOV: u64 = 5;
/// The most bytes of a site.
const SITE_MAX: u64 = 15;
/// `xor %eax,%eax`, which stands for `mov $0,%eax`.
const SET_ZERO: [u8; 2] = [0x31, 0xc0];
/// `cmp $-4096,%rax`
const COMPARE: [u8; 6] = [0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff];
/// `mov $AT_FDCWD,%edi`.
const SET_DIRECTORY: [u8; 5] = [0xbf, 0x9c, 0xff, 0xff, 0xff];
/// `mov %rdi,%rsi`, which is before that.
const PASS_PATH: [u8; 3] = [0x48, 0x89, 0xfe];
/// The number of a site that has several calls.
pub const ANY: u32 = u32::MAX;
/// `mov 16(%rsp),%rax`, `mov 8(%rsp),%r9` and `mov %r11,8(%rsp)`, without their last byte, which is the distance from rsp.
const MOVES: [[u8; 4]; 3] = [
    [0x48, 0x8b, 0x44, 0x24],
    [0x4c, 0x8b, 0x4c, 0x24],
    [0x4c, 0x89, 0x5c, 0x24],
];
/// `mov 16(%rbp),%rax`, without its last byte, which is the distance from rbp.
const MOVE_OF_FRAME: [u8; 3] = [0x48, 0x8b, 0x45];
/// Instructions that do nothing, which compilers put in front of targets of branches.
const NOPS: [&[u8]; 5] = [
    &[0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
    &[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
    &[0x0f, 0x1f, 0x80, 0, 0, 0, 0],
    &[0x66, 0x0f, 0x1f, 0x44, 0, 0],
    &[0x0f, 0x1f, 0x44, 0, 0],
];
/// Reach of a short branch, in bytes.
const SHORT: u64 = 130;

/// A call of a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// The address of the instruction that becomes a jump, from the library's base.
    pub at: u64,
    /// The call's number. [`ANY`] for one of [`Form::Shared`] and [`Form::Framed`].
    pub nr: u32,
    /// What the caller's [`KindOf`] says of the call; 0 for [`ANY`].
    pub kind: u32,
    /// Its instructions.
    pub form: Form,
}

/// The instructions of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `mov $nr,%eax; syscall`. The jump replaces the first.
    Number,
    /// `mov $nr,%eax; mov %rdi,%rsi; mov $AT_FDCWD,%edi; syscall`, as in the loader's opens. The jump replaces the third.
    Directory,
    /// An instruction that moves a word between the stack and a register; and `syscall`, of whatever number is in rax then. The jump replaces the former. glibc's syscall(2) has
    /// `mov 8(%rsp),%r9` there. Since 2.41 its cancellable calls have `mov 16(%rsp),%rax`, or `mov %r11,8(%rsp)` in a process with threads.
    Shared([u8; JUMP as usize]),
    /// The same with frame pointers: an instruction of four bytes moves a word of the caller's frame to rax, too few for a jump that reaches the stub. This jump replaces the nop in front, and a short
    /// one, to that, replaces the instruction.
    Framed {
        /// The bytes of the nop.
        nop: &'static [u8],
        /// The instruction.
        moves: [u8; 4],
    },
    /// `xor %eax,%eax; syscall; cmp $-4096,%rax`, of read(2), whose number is 0. The jump replaces the first two, and a part of the third. So a site of this form must
    /// not be patched while a thread is in the call, or a signal's handler may return there.
    Zero,
}

/// What the instruction of a [`Form::Shared`] moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moves {
    /// A word of the stack to rax.
    ToRax,
    /// A word at a distance from rbp to rax.
    OfFrameToRax,
    /// A word of the stack to r9.
    ToR9,
    /// r11 to the stack.
    FromR11,
}

impl Form {
    /// What the instruction of a shared site moves, and the distance of the word from rsp, or from rbp.
    pub fn moves(self) -> Option<(Moves, i8)> {
        const ALL: [Moves; 3] = [Moves::ToRax, Moves::ToR9, Moves::FromR11];
        let (moves, distance) = match self {
            Self::Shared([moves @ .., distance]) => (moves, distance),
            Self::Framed { moves, .. } => {
                let [.., distance] = moves;
                return Some((Moves::OfFrameToRax, distance.cast_signed()));
            }
            Self::Number | Self::Directory | Self::Zero => return None,
        };
        let kind = MOVES.iter().position(|known| *known == moves)?;
        Some((*ALL.get(kind)?, distance.cast_signed()))
    }
}

impl Site {
    /// The site, of which this number and kind are those of a call that was made there.
    pub fn called(self, nr: u32, kind: u32) -> Self {
        match self.nr {
            ANY => Self { nr, kind, ..self },
            _ => self,
        }
    }

    /// Whether call `nr` may come from there.
    pub fn makes(&self, nr: u32) -> bool {
        self.nr == nr || self.nr == ANY
    }

    /// The bytes of the site where it is not patched.
    pub fn bytes(&self) -> Vec<u8> {
        match self.form {
            Form::Number => [&[0xb8], self.nr.to_le_bytes().as_slice(), &SYSCALL].concat(),
            Form::Directory => [SET_DIRECTORY.as_slice(), &SYSCALL].concat(),
            Form::Shared(moves) => [moves.as_slice(), &SYSCALL].concat(),
            Form::Framed { nop, moves } => [nop, &moves, &SYSCALL].concat(),
            Form::Zero => [SET_ZERO.as_slice(), &SYSCALL, &COMPARE].concat(),
        }
    }

    /// The instruction that the jump replaces. The stub must execute it.
    pub fn replaced(&self) -> Vec<u8> {
        match self.form {
            Form::Framed { moves, .. } => moves.to_vec(),
            Form::Zero => SET_ZERO.to_vec(),
            Form::Number | Form::Directory | Form::Shared(_) => {
                let mut bytes = self.bytes();
                bytes.truncate(MOV as usize);
                bytes
            }
        }
    }

    /// The bytes of the site with `jump` in it.
    pub(crate) fn patched_with(&self, jump: [u8; JUMP as usize]) -> Vec<u8> {
        /// The opcode of a short jump. Its operand is the distance from the next instruction.
        const SHORT_JUMP: u8 = 0xeb;
        let mut bytes = self.bytes();
        for (byte, new) in bytes.iter_mut().zip(jump) {
            *byte = new;
        }
        if let Form::Framed { nop, .. } = self.form {
            let back = (nop.len() as u8 + 2).wrapping_neg();
            let moving = bytes.iter_mut().skip(nop.len());
            for (byte, new) in moving.zip([SHORT_JUMP, back]) {
                *byte = new;
            }
        }
        bytes
    }

    /// The address of the call's instruction, from the library's base.
    fn call(&self) -> u64 {
        match self.form {
            Form::Number | Form::Directory | Form::Shared(_) => self.at + MOV,
            Form::Framed { nop, moves } => self.at + (nop.len() + moves.len()) as u64,
            Form::Zero => self.at + SET_ZERO.len() as u64,
        }
    }

    /// The address behind the call's instruction, from the library's base.
    pub fn behind_call(&self) -> u64 {
        self.call() + SYSCALL.len() as u64
    }

    /// The end of the site, from the library's base.
    pub fn end(&self) -> u64 {
        match self.form {
            Form::Number | Form::Directory | Form::Shared(_) | Form::Framed { .. } => {
                self.behind_call()
            }
            Form::Zero => self.behind_call() + COMPARE.len() as u64,
        }
    }

    /// The addresses of the instructions that lead to the call, of the call, and of those behind it that the site has.
    fn instructions(&self) -> Vec<u64> {
        let mut all = vec![self.at, self.call()];
        match self.form {
            Form::Number | Form::Shared(_) => {}
            Form::Framed { nop, .. } => all.push(self.at + nop.len() as u64),
            Form::Directory => {
                let pass_path = self.at - PASS_PATH.len() as u64;
                all.splice(..0, [pass_path - MOV, pass_path]);
            }
            Form::Zero => all.push(self.behind_call()),
        }
        all
    }

    /// The addresses of the site's bytes that no branch may lead to, with the exception that [`Site::allows`] makes.
    fn inside(&self) -> Range<u64> {
        match self.form {
            Form::Number | Form::Shared(_) => self.at + 1..self.at + MOV,
            Form::Framed { .. } => self.at + 1..self.call(),
            Form::Directory => self.at - PASS_PATH.len() as u64 - MOV + 1..self.at + MOV + 1,
            Form::Zero => self.at + 1..self.end(),
        }
    }

    /// Whether `target` may be that of a branch: it is not behind the first byte of what is replaced. A branch to the call itself is allowed unless it needs a register that is set before, or the
    /// call is replaced.
    fn allows(&self, target: u64) -> bool {
        let is_moving =
            matches!(self.form, Form::Framed { nop, .. } if target == self.at + nop.len() as u64);
        is_moving || !self.inside().contains(&target)
    }
}

/// The sites in `text`, which begins at address `base`.
pub(crate) fn sites(
    text: &[u8],
    base: u64,
    functions: &[Range<u64>],
    kind_of: KindOf<'_>,
) -> Vec<Site> {
    let mut candidates: Vec<Site> = memchr::memmem::find_iter(text, &SYSCALL)
        .filter_map(|call| {
            let behind = text.get(call + SYSCALL.len()..)?;
            candidate(text.get(..call)?, behind, base, kind_of)
        })
        .collect();
    candidates.retain(|site| is_decoded(text, base, functions, site));
    let starts: BTreeMap<u64, Site> = candidates.iter().map(|site| (site.at, *site)).collect();
    let hit = |target: u64| {
        let near = starts.range(target.saturating_sub(SITE_MAX)..target.saturating_add(SHORT));
        let mut hit = near.filter(|(_, site)| !site.allows(target));
        hit.next().map(|(site, _)| *site)
    };
    let blocks = Blocks::containing(starts.values().map(Site::inside), text.len(), base);
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

/// The site whose `syscall` is between `text` and `behind`.
fn candidate(text: &[u8], behind: &[u8], base: u64, kind_of: KindOf<'_>) -> Option<Site> {
    let site = |before: &[u8], nr: u32, form: Form| {
        let at = base + before.len() as u64;
        kind_of(nr).map(|kind| Site { at, nr, kind, form })
    };
    if let Some(before) = text.strip_suffix(&SET_ZERO)
        && behind.starts_with(&COMPARE)
    {
        return site(before, 0, Form::Zero);
    }
    let (before, mov) = text.split_last_chunk::<{ MOV as usize }>()?;
    if let [0xb8, number @ ..] = mov {
        return site(before, u32::from_le_bytes(*number), Form::Number);
    }
    let shared = |before: usize, form: Form| {
        let (at, nr, kind) = (base + before as u64, ANY, 0);
        Some(Site { at, nr, kind, form })
    };
    if MOVES.iter().any(|moves| mov.starts_with(moves)) {
        return shared(before.len(), Form::Shared(*mov));
    }
    if let Some((before, moves)) = text.split_last_chunk::<4>()
        && moves.starts_with(&MOVE_OF_FRAME)
        && let Some(nop) = NOPS.into_iter().find(|nop| before.ends_with(nop))
    {
        let form = Form::Framed { nop, moves: *moves };
        return shared(before.len() - nop.len(), form);
    }
    let setting = before.strip_suffix(&PASS_PATH)?;
    let (_, [0xb8, number @ ..]) = setting.split_last_chunk::<{ MOV as usize }>()? else {
        return None;
    };
    let nr = u32::from_le_bytes(*number);
    let is_open = *mov == SET_DIRECTORY && i64::from(nr) == libc::SYS_openat;
    is_open.then(|| site(before, nr, Form::Directory)).flatten()
}

/// Whether the function that `site` is in has these instructions there.
fn is_decoded(text: &[u8], base: u64, functions: &[Range<u64>], site: &Site) -> bool {
    let after = functions.partition_point(|function| function.start <= site.at);
    let Some(function) = after.checked_sub(1).and_then(|index| functions.get(index)) else {
        return false;
    };
    if function.end < site.end() {
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
    fn containing(ranges: impl Iterator<Item = Range<u64>>, len: usize, base: u64) -> Self {
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

    /// read(2), stat(2) and openat(2).
    fn kind_of(nr: u32) -> Option<u32> {
        matches!(nr, 0 | 4 | 257).then_some(0)
    }

    fn found(text: &[u8]) -> Vec<u64> {
        let whole = 0x1000..0x1000 + text.len() as u64;
        let sites = sites(text, 0x1000, std::slice::from_ref(&whole), &kind_of);
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
    fn a_call_with_any_number_is_found_by_what_is_before_it() {
        for (moves, expected) in [
            ([0x48, 0x8b, 0x44, 0x24, 16], Some((Moves::ToRax, 16))),
            ([0x4c, 0x8b, 0x4c, 0x24, 8], Some((Moves::ToR9, 8))),
            ([0x4c, 0x89, 0x5c, 0x24, 8], Some((Moves::FromR11, 8))),
            // mov 8(%rsp),%rbx
            ([0x48, 0x8b, 0x5c, 0x24, 8], None),
        ] {
            let text = [moves.as_slice(), &SYSCALL, &[0xc3]].concat();
            let whole = 0x1000..0x1000 + text.len() as u64;
            let found = sites(&text, 0x1000, std::slice::from_ref(&whole), &kind_of);
            let moved: Vec<_> = found.iter().filter_map(|site| site.form.moves()).collect();
            assert_eq!(moved, expected.into_iter().collect::<Vec<_>>());
            let all_make = found.iter().all(|site| site.makes(0) && site.makes(257));
            assert!(all_make && found.iter().all(|site| site.called(4, 1).nr == 4));
        }
        // jmp to the syscall, and to the middle of what is before it.
        let site = [0x48, 0x8b, 0x44, 0x24, 16, 0x0f, 0x05, 0xc3];
        assert_eq!(found(&[[0xeb, 5].as_slice(), &site].concat()), [0x1002]);
        assert_eq!(found(&[[0xeb, 2].as_slice(), &site].concat()), [0u64; 0]);
    }

    #[test]
    fn a_call_with_a_frame_pointer_is_patched_in_the_nop_before_it() {
        // mov 16(%rbp),%rax; syscall; leave; ret
        let call = [0x48, 0x8b, 0x45, 16, 0x0f, 0x05, 0xc9, 0xc3];
        for nop in NOPS {
            let text = [nop, &call].concat();
            let whole = 0x1000..0x1000 + text.len() as u64;
            let [site] = sites(&text, 0x1000, std::slice::from_ref(&whole), &kind_of)[..] else {
                panic!("{nop:x?}");
            };
            assert_eq!(site.form.moves(), Some((Moves::OfFrameToRax, 16)));
            assert_eq!((site.at, site.makes(257)), (0x1000, true));
            assert_eq!(site.behind_call(), 0x1000 + nop.len() as u64 + 6);
            assert_eq!(
                (site.bytes(), site.end()),
                (text[..nop.len() + 6].to_vec(), site.behind_call())
            );
            let patched = site.patched_with([0xe9, 1, 2, 3, 4]);
            assert_eq!(patched[..5], [0xe9, 1, 2, 3, 4]);
            let mut decoder =
                Decoder::with_ip(64, &patched[nop.len()..], 0x1000 + nop.len() as u64, 0);
            assert_eq!(decoder.decode().near_branch_target(), 0x1000);
            assert_eq!(patched[nop.len() + 4..], SYSCALL);
            // jmp to the nop, into it, to the instruction, into that, and to the syscall.
            let behind = |distance: usize| [&[0xeb, distance as u8], nop, &call].concat();
            let len = nop.len();
            for (distance, expected) in [
                (0, 1),
                (1, 0),
                (len - 1, 0),
                (len, 1),
                (len + 1, 0),
                (len + 4, 1),
            ] {
                assert_eq!(
                    found(&behind(distance)).len(),
                    expected,
                    "{nop:x?} {distance}"
                );
            }
        }
        // Without a nop there is no space for the jump.
        assert_eq!(found(&[[0x90; 4].as_slice(), &call].concat()), [0u64; 0]);
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
        let site = sites(&open, 0x1000, std::slice::from_ref(&whole), &kind_of)[0];
        assert!(site.form == Form::Directory && site.nr == 257);
        assert_eq!(site.bytes(), open[8..15]);
    }

    #[test]
    fn a_read_is_found_with_the_comparison_behind_it() {
        let read = [SET_ZERO.as_slice(), &SYSCALL, &COMPARE, &[0xc3]].concat();
        let behind = |before: &[u8]| [before, &read].concat();
        assert_eq!(found(&read), [0x1000]);
        assert_eq!(found(&behind(&[0xeb, 0])), [0x1002]);
        for inside in [1, 2, 4, 5, 9] {
            assert_eq!(found(&behind(&[0xeb, inside])), [0u64; 0]);
        }
        assert_eq!(found(&behind(&[0xeb, 10])), [0x1002]);
        assert_eq!(found(&read[..4]), [0u64; 0]);
        let whole = 0x1000..0x1000 + read.len() as u64;
        let site = sites(&read, 0x1000, std::slice::from_ref(&whole), &kind_of)[0];
        assert_eq!((site.form, site.nr, site.end()), (Form::Zero, 0, 0x100a));
        assert_eq!(site.behind_call(), 0x1004);
        assert_eq!(site.bytes(), read[..10]);
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
        assert_eq!(
            sites(&text, 0x1000, std::slice::from_ref(&elsewhere), &kind_of),
            []
        );
    }
}
