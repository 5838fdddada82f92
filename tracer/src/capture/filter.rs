//! The seccomp filter of a traced command: it stops the wanted calls, and lets all others pass almost without a cost.
//!
//! The kernel keeps a bitmap of the calls that a filter allows whatever their arguments are, and does not run the filter for them.

use goanna_sys::arch::AUDIT_ARCH;
use goanna_sys::filter::Insn;

use crate::select::CallSet;
use crate::select::operation::LIMIT;

const LD_W_ABS: u32 = 0x20;
const JEQ: u32 = 0x15;
const JGT: u32 = 0x25;
const JGE: u32 = 0x35;
const RET: u32 = 0x06;

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_TRACE: u32 = 0x7ff0_0000;

const OFFSET_NR: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_FIRST_ARGUMENT: u32 = 16;

/// The operations of prctl(2) that the tracer itself must see: a new name of the thread, a seccomp filter.
pub const PRCTL_SEEN: [u32; 2] = [libc::PR_SET_NAME as u32, libc::PR_SET_SECCOMP as u32];

/// Stops the calls of `set`, calls of 32-bit programs, and the prctl operations of [`PRCTL_SEEN`].
pub fn compile(set: &CallSet) -> Vec<Insn> {
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
    for (first, last) in set.ranges() {
        let last = if last == LIMIT { u32::MAX } else { last };
        program.extend([
            Insn::jump(JGE, first, 0, 2),
            Insn::jump(JGT, last, 2, 0),
            Insn::stmt(RET, RET_TRACE),
            Insn::stmt(RET, RET_ALLOW),
        ]);
    }
    program.push(Insn::stmt(RET, RET_ALLOW));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value that the filter returns for a call.
    fn run(program: &[Insn], arch: u32, nr: u32, argument: u32) -> u32 {
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
                        _ => argument,
                    }
                }
                JEQ => at += jump(accumulator == insn.k),
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
            let program = compile(&set);
            assert!(program.len() < 4096);
            for nr in (0..600).chain([u32::MAX, 0x4000_0000]) {
                let stops = run(&program, AUDIT_ARCH, nr, 0) == RET_TRACE;
                assert_eq!(stops, set.contains(nr), "{nr} {set:?}");
                assert_eq!(run(&program, 0x4000_0003, nr, 0), RET_TRACE);
            }
            for operation in PRCTL_SEEN {
                assert_eq!(run(&program, AUDIT_ARCH, prctl, operation), RET_TRACE);
            }
        }
    }
}
