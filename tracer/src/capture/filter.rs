//! The seccomp filter of a traced command: it stops the wanted calls, and lets all others pass almost without a cost.
//!
//! The kernel keeps a bitmap of the calls that a filter allows whatever their arguments are, and does not run the filter for them.

use std::ops::Range;

use goanna_sys::arch::AUDIT_ARCH;
use goanna_sys::filter::Insn;

use crate::select::CallSet;
use crate::select::operation::LIMIT;

const LD_W_ABS: u32 = 0x20;
const JEQ: u32 = 0x15;
const JSET: u32 = 0x45;
const JGT: u32 = 0x25;
const JGE: u32 = 0x35;
const JA: u32 = 0x05;
const RET: u32 = 0x06;

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_TRACE: u32 = 0x7ff0_0000;

const OFFSET_NR: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_INSTRUCTION: u32 = 8;
const OFFSET_FIRST_ARGUMENT: u32 = 16;

/// The operations of prctl(2) that the tracer itself must see: a new name of the thread, a seccomp filter.
pub const PRCTL_SEEN: [u32; 2] = [libc::PR_SET_NAME as u32, libc::PR_SET_SECCOMP as u32];

/// Stops the calls of `set`, calls of 32-bit programs, the prctl operations of [`PRCTL_SEEN`], and clone(2) with `CLONE_UNTRACED`. Calls that the code at `recorder` makes pass; its addresses differ in
/// their lower halves only.
pub fn compile(set: &CallSet, recorder: Option<Range<u64>>) -> Vec<Insn> {
    let mut program = vec![
        Insn::stmt(LD_W_ABS, OFFSET_ARCH),
        Insn::jump(JEQ, AUDIT_ARCH, 1, 0),
        Insn::stmt(RET, RET_TRACE),
        Insn::stmt(LD_W_ABS, OFFSET_NR),
    ];
    if !set.contains(libc::SYS_prctl as u32) {
        program.extend([
            Insn::jump(JEQ, libc::SYS_prctl as u32, 0, 5),
            Insn::stmt(LD_W_ABS, OFFSET_FIRST_ARGUMENT),
            Insn::jump(JEQ, PRCTL_SEEN[0], 1, 0),
            Insn::jump(JEQ, PRCTL_SEEN[1], 0, 1),
            Insn::stmt(RET, RET_TRACE),
            Insn::stmt(RET, RET_ALLOW),
        ]);
    }
    if !set.contains(libc::SYS_clone as u32) {
        program.extend([
            Insn::jump(JEQ, libc::SYS_clone as u32, 0, 4),
            Insn::stmt(LD_W_ABS, OFFSET_FIRST_ARGUMENT),
            Insn::jump(JSET, libc::CLONE_UNTRACED as u32, 0, 1),
            Insn::stmt(RET, RET_TRACE),
            Insn::stmt(RET, RET_ALLOW),
        ]);
    }
    let mut stops = Vec::new();
    for (first, last) in set.ranges() {
        let last = if last == LIMIT { u32::MAX } else { last };
        program.extend([
            Insn::jump(JGE, first, 0, 2),
            Insn::jump(JGT, last, 2, 0),
            Insn::stmt(JA, 0),
            Insn::stmt(RET, RET_ALLOW),
        ]);
        stops.push(program.len() - 2);
    }
    program.push(Insn::stmt(RET, RET_ALLOW));
    // The kernel knows of a call that it always passes, without running the filter, only if that does not depend on the address.
    let end = program.len();
    for at in stops {
        if let Some(stop) = program.get_mut(at) {
            stop.k = (end - at - 1) as u32;
        }
    }
    if let Some(recorder) = recorder {
        program.extend([
            Insn::stmt(LD_W_ABS, OFFSET_INSTRUCTION + 4),
            Insn::jump(JEQ, (recorder.start >> 32) as u32, 0, 4),
            Insn::stmt(LD_W_ABS, OFFSET_INSTRUCTION),
            Insn::jump(JGE, recorder.start as u32, 0, 2),
            Insn::jump(JGE, recorder.end as u32, 1, 0),
            Insn::stmt(RET, RET_ALLOW),
        ]);
    }
    program.push(Insn::stmt(RET, RET_TRACE));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value that the filter returns for a call.
    fn run(program: &[Insn], arch: u32, nr: u32, (argument, ip): (u32, u64)) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let insn = program[at];
            let jump = |holds: bool| usize::from(if holds { insn.jt } else { insn.jf });
            at += 1;
            match u32::from(insn.code) {
                LD_W_ABS => {
                    accumulator = match insn.k {
                        OFFSET_NR => nr,
                        OFFSET_ARCH => arch,
                        OFFSET_INSTRUCTION => ip as u32,
                        12 => (ip >> 32) as u32,
                        _ => argument,
                    }
                }
                JA => at += insn.k as usize,
                JEQ => at += jump(accumulator == insn.k),
                JSET => at += jump(accumulator & insn.k != 0),
                JGT => at += jump(accumulator > insn.k),
                JGE => at += jump(accumulator >= insn.k),
                _ => return insn.k,
            }
        }
    }

    #[test]
    fn a_filter_stops_the_calls_of_its_set_and_no_others() {
        let prctl = libc::SYS_prctl as u32;
        let mut random = fastrand::Rng::with_seed(5);
        for round in 0..50 {
            let density = random.u32(1..20);
            let set: CallSet = match round {
                0 => CallSet::default(),
                1 => (0..=LIMIT).collect(),
                _ => (0..=LIMIT).filter(|_| random.u32(..20) < density).collect(),
            };
            let recorder = 0x12_3456_7000..0x12_3456_a000;
            let program = compile(&set, Some(recorder.clone()));
            assert!(program.len() < 4096);
            for nr in (0..600).chain([u32::MAX, 0x4000_0000]) {
                let stops =
                    |program: &[Insn], ip| run(program, AUDIT_ARCH, nr, (0, ip)) == RET_TRACE;
                for ip in [
                    0,
                    recorder.start - 1,
                    recorder.end,
                    0x13_3456_8000,
                    0x3456_8000,
                ] {
                    assert_eq!(stops(&program, ip), set.contains(nr), "{nr} {set:?}");
                }
                for ip in [recorder.start, recorder.end - 1] {
                    assert!(!stops(&program, ip));
                    assert_eq!(stops(&compile(&set, None), ip), set.contains(nr));
                }
                assert_eq!(run(&program, 0x4000_0003, nr, (0, 0)), RET_TRACE);
            }
            let clone = |flags: i32| run(&program, AUDIT_ARCH, 56, (flags as u32, 0));
            assert_eq!(clone(libc::CLONE_UNTRACED | libc::CLONE_VM), RET_TRACE);
            assert_eq!(clone(libc::CLONE_VM) == RET_TRACE, set.contains(56));
            for operation in PRCTL_SEEN {
                assert_eq!(run(&program, AUDIT_ARCH, prctl, (operation, 0)), RET_TRACE);
            }
        }
    }
}
