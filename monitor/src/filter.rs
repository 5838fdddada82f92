//! The seccomp filter, generated from the system-call table.
//!
//! seccompiler has one action for everything that matches and none that notifies, so we assemble the
//! program ourselves (docs/decisions/0001): a binary search over ranges of calls with the same verdict, about
//! nine comparisons a call. Calls whose verdict depends on the number alone and is "allow" never run it at
//! all: the kernel keeps a bitmap of them.

use goanna_sys::filter::Insn;

use crate::table::{Condition, ROWS, Rule};

const LD_W_ABS: u16 = 0x20;
const JEQ: u16 = 0x15;
const JGE: u16 = 0x35;
const JA: u16 = 0x05;
const AND: u16 = 0x54;
const RET: u16 = 0x06;

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_NOTIFY: u32 = 0x7fc0_0000;
const RET_TRACE: u32 = 0x7ff0_0000;
const RET_ERRNO: u32 = 0x0005_0000;

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// Numbers from here on are the x32 ABI's.
const X32_BIT: u32 = 0x4000_0000;

const OFFSET_NR: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_ARGS: u32 = 16;

/// How calls that the monitor answers are to reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// By notification.
    Notify,
    /// By a ptrace stop: where notification is refused.
    Stop,
}

/// What a filter is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purpose {
    /// How answered calls reach the monitor.
    pub delivery: Delivery,
    /// Whether any mount hands out shadow files, so that data calls must be seen.
    pub shadow_files: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Return(u32),
    If {
        arg: u8,
        mask: u32,
        value: u32,
        then: u32,
    },
}

impl Verdict {
    fn of(rule: &Rule, purpose: Purpose) -> Self {
        let answered = match purpose.delivery {
            Delivery::Notify => RET_NOTIFY,
            Delivery::Stop => RET_TRACE,
        };
        let when = |c: &Condition, then| Self::If {
            arg: c.arg,
            mask: c.mask,
            value: c.value,
            then,
        };
        match rule {
            Rule::Allow => Self::Return(RET_ALLOW),
            Rule::Data(_) | Rule::DataIf(..) if !purpose.shadow_files => Self::Return(RET_ALLOW),
            Rule::Notify(_) | Rule::Data(_) => Self::Return(answered),
            Rule::DataIf(condition, _) => when(condition, answered),
            Rule::Trace => Self::Return(RET_TRACE),
            Rule::Refuse(errno) => Self::Return(RET_ERRNO | *errno as u32),
            Rule::RefuseIf(condition, errno) => when(condition, RET_ERRNO | *errno as u32),
            Rule::PretendIf(condition) => when(condition, RET_ERRNO),
        }
    }
}

const fn insn(code: u16, jt: u8, jf: u8, k: u32) -> Insn {
    Insn { code, jt, jf, k }
}

/// The filter for `purpose`. Calls of foreign ABIs and calls the table does not know answer ENOSYS.
pub fn compile(purpose: Purpose) -> Vec<Insn> {
    let unknown = Verdict::Return(RET_ERRNO | libc::ENOSYS as u32);
    let mut ranges: Vec<(u32, Verdict)> = Vec::new();
    let mut next = 0;
    let mut push = |start: u32, verdict: Verdict| match ranges.last() {
        Some((_, last)) if *last == verdict => {}
        _ => ranges.push((start, verdict)),
    };
    for entry in ROWS {
        if entry.nr > next {
            push(next, unknown);
        }
        push(entry.nr, Verdict::of(&entry.rule, purpose));
        next = entry.nr + 1;
    }
    push(next, unknown);

    let mut program = vec![
        insn(LD_W_ABS, 0, 0, OFFSET_ARCH),
        insn(JEQ, 1, 0, AUDIT_ARCH_X86_64),
        insn(RET, 0, 0, RET_ERRNO | libc::ENOSYS as u32),
        insn(LD_W_ABS, 0, 0, OFFSET_NR),
        insn(JGE, 0, 1, X32_BIT),
        insn(RET, 0, 0, RET_ERRNO | libc::ENOSYS as u32),
    ];
    program.extend(search(&ranges));
    program
}

fn search(ranges: &[(u32, Verdict)]) -> Vec<Insn> {
    match ranges {
        [] => Vec::new(),
        [(_, verdict)] => leaf(*verdict),
        _ => {
            let (low, high) = ranges.split_at(ranges.len() / 2);
            let pivot = high.first().map_or(0, |(start, _)| *start);
            let low = search(low);
            // A conditional jump reaches 255 instructions, JA any number.
            let mut program = vec![insn(JGE, 0, 1, pivot), insn(JA, 0, 0, low.len() as u32)];
            program.extend(low);
            program.extend(search(high));
            program
        }
    }
}

fn leaf(verdict: Verdict) -> Vec<Insn> {
    match verdict {
        Verdict::Return(value) => vec![insn(RET, 0, 0, value)],
        Verdict::If {
            arg,
            mask,
            value,
            then,
        } => vec![
            insn(LD_W_ABS, 0, 0, OFFSET_ARGS + 8 * u32::from(arg)),
            insn(AND, 0, 0, mask),
            insn(JEQ, 0, 1, value),
            insn(RET, 0, 0, then),
            insn(RET, 0, 0, RET_ALLOW),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTIFY: Purpose = Purpose {
        delivery: Delivery::Notify,
        shadow_files: true,
    };

    /// Runs the program as the kernel would.
    fn run(program: &[Insn], arch: u32, nr: u32, args: [u64; 6]) -> u32 {
        let (mut pc, mut acc) = (0usize, 0u32);
        loop {
            let i = &program[pc];
            pc += 1;
            let jump = |taken: bool| usize::from(if taken { i.jt } else { i.jf });
            match i.code {
                LD_W_ABS => {
                    acc = match i.k {
                        OFFSET_NR => nr,
                        OFFSET_ARCH => arch,
                        k => args[(k - OFFSET_ARGS) as usize / 8] as u32,
                    }
                }
                JEQ => pc += jump(acc == i.k),
                JGE => pc += jump(acc >= i.k),
                JA => pc += i.k as usize,
                AND => acc &= i.k,
                RET => return i.k,
                code => panic!("instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn every_row_gets_its_verdict() {
        let program = compile(NOTIFY);
        for entry in ROWS {
            let got = run(&program, AUDIT_ARCH_X86_64, entry.nr, [0; 6]);
            let want = match Verdict::of(&entry.rule, NOTIFY) {
                Verdict::Return(value) => value,
                Verdict::If { value: 0, then, .. } => then,
                Verdict::If { .. } => RET_ALLOW,
            };
            assert_eq!(got, want, "{}", entry.name);
        }
    }

    #[test]
    fn foreign_and_unknown_calls_are_refused() {
        let program = compile(NOTIFY);
        let enosys = RET_ERRNO | libc::ENOSYS as u32;
        assert_eq!(run(&program, 0x4000_0003, 5, [0; 6]), enosys);
        assert_eq!(
            run(&program, AUDIT_ARCH_X86_64, X32_BIT | 2, [0; 6]),
            enosys
        );
        assert_eq!(run(&program, AUDIT_ARCH_X86_64, 9999, [0; 6]), enosys);
    }

    #[test]
    fn data_calls_run_in_the_kernel_where_all_files_are_the_hosts() {
        let host_files = Purpose {
            shadow_files: false,
            ..NOTIFY
        };
        let write = libc::SYS_write as u32;
        let verdict = |purpose| run(&compile(purpose), AUDIT_ARCH_X86_64, write, [0; 6]);
        assert_eq!(verdict(NOTIFY), RET_NOTIFY);
        assert_eq!(verdict(host_files), RET_ALLOW);
    }

    #[test]
    fn conditions_look_at_arguments() {
        let program = compile(NOTIFY);
        let mmap = libc::SYS_mmap as u32;
        let verdict = |flags: i32| {
            run(
                &program,
                AUDIT_ARCH_X86_64,
                mmap,
                [0, 0, 0, flags as u64, 3, 0],
            )
        };
        assert_eq!(verdict(libc::MAP_SHARED), RET_NOTIFY);
        assert_eq!(verdict(libc::MAP_PRIVATE), RET_ALLOW);
        assert_eq!(verdict(libc::MAP_SHARED | libc::MAP_ANONYMOUS), RET_ALLOW);
    }
}
