//! The seccomp filter, generated from the system-call table.
//!
//! seccompiler has one action for everything that matches and none that notifies, so we assemble the
//! program ourselves (docs/decisions/0001): a binary search over ranges of calls with the same verdict, about
//! nine comparisons a call. Calls whose verdict depends on the number alone and is "allow" never run it at
//! all: the kernel keeps a bitmap of them.

use goanna_sys::filter::Insn;
use goanna_syscalls::SysnoSet;
use goanna_vfs::Mounts;

use crate::inprocess::calls::admits_cookie;
use crate::table::{AnyOf, Condition, Entry, MAP_FILE, MAP_SHARED_FILE, ROWS, Rule};

const LD_W_ABS: u16 = 0x20;
const JEQ: u16 = 0x15;
const JGE: u16 = 0x35;
const JA: u16 = 0x05;
const AND: u16 = 0x54;
const XOR: u16 = 0xa4;
const TAX: u16 = 0x07;
const JEQ_X: u16 = 0x1d;
const RET: u16 = 0x06;

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_NOTIFY: u32 = 0x7fc0_0000;
const RET_TRACE: u32 = 0x7ff0_0000;
const RET_ERRNO: u32 = 0x0005_0000;
/// The bits that say what is done; the others are its data.
const RET_ACTION: u32 = 0xffff_0000;

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// Numbers from here on are the x32 ABI's.
const X32_BIT: u32 = 0x4000_0000;

const OFFSET_NR: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_IP: u32 = 8;
const OFFSET_ARGS: u32 = 16;

/// The event message of a stop of the transaction call, or of one of [`Rule::Trace`], in a program that has the filter
/// of [`compile_participant`].
pub const MEMBER: u32 = 2;
/// As [`MEMBER`], where that filter also stops calls that close descriptors.
pub const CLOSER: u32 = 3;

/// The event message of a stop that only an observer asked for: without it the call would not have reached the monitor.
pub const OBSERVED: u32 = 8;
/// The event message of a stop that an observer asked for at a call which the filter would refuse.
pub const OBSERVED_REFUSAL: u32 = 9;

/// Which sockets a program may have, and so which of its calls on sockets are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watch {
    /// Unix sockets: calls that connect, and messages that may carry descriptors.
    Sockets,
    /// Unix datagram sockets, too: all calls that send to an address.
    Datagrams,
}

impl Watch {
    /// The event message of a stop that both the first filter and that of [`compile_watch`] ask for.
    const fn message(self) -> u32 {
        match self {
            Self::Sockets => 1,
            Self::Datagrams => 4,
        }
    }

    /// The filter of [`compile_watch`] that a stop with this event message shows the program to have.
    pub fn of_message(message: u32) -> Option<Self> {
        [Self::Sockets, Self::Datagrams]
            .into_iter()
            .find(|watch| watch.message() == message)
    }
}

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
    /// What the program inherits from outside of the run.
    pub inherited: Option<Watch>,
    /// The key of the cookies by which stubs in the program make calls natively ([`crate::inprocess`]).
    pub key: Option<u64>,
    /// Calls of interest to observers: each of them is stopped by ptrace, whatever becomes of it.
    pub interest: SysnoSet,
}

/// Whether any of `mounts` hands out shadow files.
pub fn shadow_files(mounts: &Mounts) -> bool {
    mounts.iter().any(|mount| !mount.fs.opens_host_files())
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Verdict {
    /// Where it depends on arguments.
    test: Test,
    /// In all other cases.
    otherwise: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Test {
    None,
    If {
        all: &'static [Condition],
        then: u32,
    },
    /// `then` where `all` hold, else `second` where `others` do.
    Either {
        all: &'static [Condition],
        then: u32,
        others: &'static [Condition],
        second: u32,
    },
    Unless {
        any: &'static AnyOf,
        then: u32,
    },
    /// `then` unless the sixth argument is the instruction pointer XOR `key`.
    UnlessCookie {
        key: u64,
        then: u32,
    },
}

impl Verdict {
    const fn always(value: u32) -> Self {
        Self {
            test: Test::None,
            otherwise: value,
        }
    }

    const fn tested(test: Test) -> Self {
        Self {
            test,
            otherwise: RET_ALLOW,
        }
    }

    fn when(condition: &'static Condition, then: u32) -> Self {
        Self::all(std::slice::from_ref(condition), then)
    }

    fn all(all: &'static [Condition], then: u32) -> Self {
        Self::tested(Test::If { all, then })
    }

    fn of(entry: &'static Entry, purpose: Purpose) -> Self {
        let verdict = Self::of_rule(&entry.rule, purpose);
        let is_notified = verdict == Self::always(RET_NOTIFY);
        match purpose.key {
            Some(key) if is_notified && admits_cookie(entry.nr) => {
                let then = RET_NOTIFY;
                Self::tested(Test::UnlessCookie { key, then })
            }
            _ => verdict,
        }
    }

    fn of_rule(rule: &'static Rule, purpose: Purpose) -> Self {
        let answered = match purpose.delivery {
            Delivery::Notify => RET_NOTIFY,
            Delivery::Stop => RET_TRACE,
        };
        match rule {
            Rule::Allow | Rule::Close | Rule::Read(_) => Self::always(RET_ALLOW),
            Rule::TraceSockets | Rule::TraceDatagrams(_) => match purpose.inherited {
                Some(watch) => Self::watching(rule, watch),
                None => Self::always(RET_ALLOW),
            },
            Rule::Data(_) | Rule::MapFile(_) | Rule::ReadIf(..) if !purpose.shadow_files => {
                Self::always(RET_ALLOW)
            }
            Rule::ReadIf(all, _) => Self::all(all, answered),
            Rule::Notify(_) | Rule::Data(_) => Self::always(answered),
            Rule::NotifyIf(condition, _) => Self::when(condition, answered),
            Rule::NotifyOrTrace(condition, _, all) => Self::tested(Test::Either {
                all: std::slice::from_ref(condition),
                then: answered,
                others: all,
                second: RET_TRACE,
            }),
            Rule::NotifyUnless(any, _) => Self::tested(Test::Unless {
                any,
                then: answered,
            }),
            Rule::MapFile(_) => Self::when(&MAP_SHARED_FILE, answered),
            Rule::Trace | Rule::Transaction => Self::always(RET_TRACE),
            Rule::TraceIf(all) => Self::all(all, RET_TRACE),
            Rule::Refuse(errno) => Self::always(RET_ERRNO | *errno as u32),
            Rule::RefuseIf(condition, errno) => Self::when(condition, RET_ERRNO | *errno as u32),
        }
    }

    /// The verdict of [`compile_watch`].
    fn watching(rule: &'static Rule, watch: Watch) -> Self {
        match rule {
            Rule::TraceSockets => Self::always(RET_TRACE),
            Rule::TraceDatagrams(condition) if watch == Watch::Datagrams => {
                Self::when(condition, RET_TRACE)
            }
            Rule::TraceIf(all) | Rule::NotifyOrTrace(_, _, all) => {
                Self::all(all, RET_TRACE | watch.message())
            }
            _ => Self::always(RET_ALLOW),
        }
    }

    /// The verdict of [`compile_participant`].
    fn of_member(rule: &'static Rule, closes: bool) -> Self {
        match rule {
            Rule::Read(_) | Rule::ReadIf(..) => Self::always(RET_TRACE),
            Rule::Close if closes => Self::always(RET_TRACE),
            Rule::MapFile(_) => Self::when(&MAP_FILE, RET_TRACE),
            Rule::Transaction | Rule::Trace if closes => Self::always(RET_TRACE | CLOSER),
            Rule::Transaction | Rule::Trace => Self::always(RET_TRACE | MEMBER),
            _ => Self::always(RET_ALLOW),
        }
    }

    /// The same, but stopped in every case.
    fn observed(mut self) -> Self {
        let stopped = |value: u32| match value {
            RET_ALLOW => RET_TRACE | OBSERVED,
            RET_NOTIFY => RET_TRACE,
            refusal if refusal & RET_ACTION == RET_ERRNO => RET_TRACE | OBSERVED_REFUSAL,
            other => other,
        };
        self.otherwise = stopped(self.otherwise);
        match &mut self.test {
            Test::None => {}
            Test::If { then, .. } | Test::Unless { then, .. } | Test::UnlessCookie { then, .. } => {
                *then = stopped(*then);
            }
            Test::Either { then, second, .. } => {
                *then = stopped(*then);
                *second = stopped(*second);
            }
        }
        self
    }

    /// The verdict on a call with these arguments.
    #[cfg(test)]
    fn on(&self, args: &[u64; 6]) -> u32 {
        let hold = |all: &[Condition]| all.iter().all(|one| one.is_met(args));
        match self.test {
            Test::If { all, then } | Test::Either { all, then, .. } if hold(all) => then,
            Test::Either { others, second, .. } if hold(others) => second,
            Test::Unless { any, then } if !any.is_met(args) => then,
            // The instruction pointer is none of the arguments.
            Test::UnlessCookie { then, .. } => then,
            _ => self.otherwise,
        }
    }
}

const fn insn(code: u16, jt: u8, jf: u8, k: u32) -> Insn {
    Insn { code, jt, jf, k }
}

/// The filter for `purpose`. Calls of foreign ABIs and calls the table does not know answer ENOSYS.
pub fn compile(purpose: Purpose) -> Vec<Insn> {
    assemble(RET_ERRNO | libc::ENOSYS as u32, |entry| {
        let verdict = Verdict::of(entry, purpose);
        if purpose.interest.contains(entry.nr) {
            verdict.observed()
        } else {
            verdict
        }
    })
}

/// A further filter for a program that may have the Unix sockets of `watch`: it stops calls that connect or send. The kernel
/// takes the stricter verdict of all filters, and the younger filter's of two that are alike: so a stop tells whether the
/// program has this filter ([`Watch::of_message`]), which it hands on to its children as it does the first.
pub fn compile_watch(watch: Watch) -> Vec<Insn> {
    assemble(RET_ALLOW, |entry| Verdict::watching(&entry.rule, watch))
}

/// A further filter for a program that participates in a transaction: it stops calls that read, whose answer is not the
/// kernel's where the transaction has changed the file; where the last close ends one (`closes`) also calls that close.
/// Children inherit it, and it stays when the transaction has ended.
pub fn compile_participant(closes: bool) -> Vec<Insn> {
    assemble(RET_ALLOW, |entry| Verdict::of_member(&entry.rule, closes))
}

/// A program of the rows' verdicts; calls of foreign ABIs and calls the table does not know get `other`.
fn assemble(other: u32, verdict: impl Fn(&'static Entry) -> Verdict) -> Vec<Insn> {
    let unknown = Verdict::always(other);
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
        push(entry.nr, verdict(entry));
        next = entry.nr + 1;
    }
    push(next, unknown);

    let mut program = vec![
        insn(LD_W_ABS, 0, 0, OFFSET_ARCH),
        insn(JEQ, 1, 0, AUDIT_ARCH_X86_64),
        insn(RET, 0, 0, other),
        insn(LD_W_ABS, 0, 0, OFFSET_NR),
        insn(JGE, 0, 1, X32_BIT),
        insn(RET, 0, 0, other),
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

/// Returns `then` if `all` hold, and otherwise continues after it.
fn return_if(all: &[Condition], then: u32) -> Vec<Insn> {
    let mut program = Vec::new();
    for (index, condition) in all.iter().enumerate() {
        // Past what is left of the tests, and past the verdict: at most two tests, of three instructions each.
        let fails = (3 * (all.len() - index - 1) + 1) as u8;
        let (jt, jf) = if condition.holds {
            (0, fails)
        } else {
            (fails, 0)
        };
        let half = if condition.high { 4 } else { 0 };
        let argument = OFFSET_ARGS + 8 * u32::from(condition.arg) + half;
        program.extend([
            insn(LD_W_ABS, 0, 0, argument),
            insn(AND, 0, 0, condition.mask),
            insn(JEQ, jt, jf, condition.value),
        ]);
    }
    program.push(insn(RET, 0, 0, then));
    program
}

fn leaf(verdict: Verdict) -> Vec<Insn> {
    let mut program = match verdict.test {
        Test::None => Vec::new(),
        Test::If { all, then } => return_if(all, then),
        Test::Either {
            all,
            then,
            others,
            second,
        } => {
            let mut program = return_if(all, then);
            program.extend(return_if(others, second));
            program
        }
        Test::Unless { any, then } => {
            let argument = OFFSET_ARGS + 8 * u32::from(any.arg);
            let mut program = vec![insn(LD_W_ABS, 0, 0, argument), insn(AND, 0, 0, any.mask)];
            for (index, value) in any.values.iter().enumerate() {
                // Past what is left of the tests, and past the verdict: the values are few.
                let found = (any.values.len() - index) as u8;
                program.push(insn(JEQ, found, 0, *value));
            }
            program.push(insn(RET, 0, 0, then));
            program
        }
        Test::UnlessCookie { key, then } => {
            let sixth = OFFSET_ARGS + 8 * 5;
            let half = |half: u32, no_match: u8| {
                [
                    insn(LD_W_ABS, 0, 0, OFFSET_IP + 4 * half),
                    insn(XOR, 0, 0, (key >> (32 * half)) as u32),
                    insn(TAX, 0, 0, 0),
                    insn(LD_W_ABS, 0, 0, sixth + 4 * half),
                    insn(JEQ_X, 0, no_match, 0),
                ]
            };
            let mut program = Vec::from(half(0, 6));
            program.extend(half(1, 1));
            program.extend([insn(JA, 0, 0, 1), insn(RET, 0, 0, then)]);
            program
        }
    };
    program.push(insn(RET, 0, 0, verdict.otherwise));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTIFY: Purpose = Purpose {
        delivery: Delivery::Notify,
        shadow_files: true,
        inherited: None,
        key: None,
        interest: SysnoSet::EMPTY,
    };

    /// Runs the program as the kernel would.
    fn run(program: &[Insn], arch: u32, nr: u32, args: [u64; 6]) -> u32 {
        run_at(program, arch, nr, args, 0)
    }

    fn run_at(program: &[Insn], arch: u32, nr: u32, args: [u64; 6], ip: u64) -> u32 {
        let (mut pc, mut acc, mut index) = (0usize, 0u32, 0u32);
        loop {
            let i = &program[pc];
            pc += 1;
            let jump = |taken: bool| usize::from(if taken { i.jt } else { i.jf });
            match i.code {
                LD_W_ABS => {
                    acc = match i.k {
                        OFFSET_NR => nr,
                        OFFSET_ARCH => arch,
                        k if k < OFFSET_ARGS => (ip >> (8 * (k - OFFSET_IP))) as u32,
                        k => {
                            let (argument, byte) = ((k - OFFSET_ARGS) / 8, (k - OFFSET_ARGS) % 8);
                            (args[argument as usize] >> (8 * byte)) as u32
                        }
                    }
                }
                JEQ => pc += jump(acc == i.k),
                JGE => pc += jump(acc >= i.k),
                JA => pc += i.k as usize,
                AND => acc &= i.k,
                XOR => acc ^= i.k,
                TAX => index = acc,
                JEQ_X => pc += jump(acc == index),
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
            let want = Verdict::of(entry, NOTIFY).on(&[0; 6]);
            assert_eq!(got, want, "{}", entry.name);
        }
    }

    #[test]
    fn calls_of_a_stub_pass_by_their_cookie_and_no_others_do() {
        let (key, ip) = (0x9e37_79b9_7f4a_7c15, 0x7fff_dead_beef);
        let purpose = Purpose {
            key: Some(key),
            ..NOTIFY
        };
        let program = compile(purpose);
        let verdict = |nr: i64, sixth: u64| {
            let args = [1, 2, 3, 4, 5, sixth];
            run_at(&program, AUDIT_ARCH_X86_64, nr as u32, args, ip)
        };
        for nr in [libc::SYS_openat2, libc::SYS_newfstatat, libc::SYS_write] {
            assert_eq!(verdict(nr, ip ^ key), RET_ALLOW);
            for wrong in [0, key, ip, ip ^ key ^ 1, ip ^ key ^ 1 << 32] {
                assert_eq!(verdict(nr, wrong), RET_NOTIFY);
            }
        }
        for nr in [libc::SYS_unlink, libc::SYS_mkdir, libc::SYS_fchdir] {
            assert_eq!(verdict(nr, ip ^ key), RET_NOTIFY);
        }
        assert_eq!(verdict(libc::SYS_execve, ip ^ key), RET_TRACE);
    }

    #[test]
    fn without_an_observer_the_program_is_made_of_the_rows_alone() {
        for (delivery, shadow_files) in [
            (Delivery::Notify, true),
            (Delivery::Notify, false),
            (Delivery::Stop, true),
        ] {
            let purpose = Purpose {
                delivery,
                shadow_files,
                ..NOTIFY
            };
            let unobserved = assemble(RET_ERRNO | libc::ENOSYS as u32, |entry| {
                Verdict::of(entry, purpose)
            });
            assert_eq!(compile(purpose), unobserved);
        }
    }

    #[test]
    fn every_call_of_interest_stops_and_says_what_it_would_have_been_without() {
        let plain = compile(NOTIFY);
        let observed = compile(Purpose {
            interest: SysnoSet::of(|_| true),
            ..NOTIFY
        });
        let samples = [
            [0; 6],
            [1; 6],
            [3, 0xffff_ffff, 0x1, 0x1, 4, 0],
            [u64::MAX; 6],
            [1, 9, 9, 0, 0, 0],
        ];
        for entry in ROWS
            .iter()
            .filter(|row| goanna_syscalls::signature(row.nr).is_some())
        {
            for args in samples {
                let before = run(&plain, AUDIT_ARCH_X86_64, entry.nr, args);
                let after = run(&observed, AUDIT_ARCH_X86_64, entry.nr, args);
                assert_eq!(after & RET_ACTION, RET_TRACE, "{}", entry.name);
                let message = match before & RET_ACTION {
                    RET_ALLOW => OBSERVED,
                    RET_ERRNO => OBSERVED_REFUSAL,
                    _ => 0,
                };
                assert_eq!(after & !RET_ACTION, message, "{}", entry.name);
            }
        }
        let one = compile(Purpose {
            interest: SysnoSet::of(|call| call.name == "close"),
            ..NOTIFY
        });
        for entry in ROWS.iter().filter(|row| row.name != "close") {
            let of = |program: &[Insn]| run(program, AUDIT_ARCH_X86_64, entry.nr, [1; 6]);
            assert_eq!(of(&one), of(&plain), "{}", entry.name);
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
    fn sockets_are_stopped_under_a_second_filter_only() {
        let first = compile(NOTIFY);
        let sockets = compile_watch(Watch::Sockets);
        let datagrams = compile_watch(Watch::Datagrams);
        let verdict =
            |program: &[Insn], nr: i64, args| run(program, AUDIT_ARCH_X86_64, nr as u32, args);
        let socket = |domain: i32| [domain as u64, libc::SOCK_DGRAM as u64, 0, 0, 0, 0];
        for nr in [libc::SYS_socket, libc::SYS_socketpair] {
            assert_eq!(verdict(&first, nr, socket(libc::AF_UNIX)), RET_TRACE);
            for (program, watch) in [(&sockets, Watch::Sockets), (&datagrams, Watch::Datagrams)] {
                let stop = verdict(program, nr, socket(libc::AF_UNIX));
                assert_eq!(stop & !0xffff, RET_TRACE);
                assert_eq!(Watch::of_message(stop & 0xffff), Some(watch));
            }
            for program in [&first, &sockets, &datagrams] {
                assert_eq!(verdict(program, nr, socket(libc::AF_INET)), RET_ALLOW);
            }
        }
        for nr in [libc::SYS_connect, libc::SYS_sendmsg, libc::SYS_sendmmsg] {
            assert_eq!(verdict(&first, nr, [0; 6]), RET_ALLOW);
            assert_eq!(verdict(&sockets, nr, [0; 6]), RET_TRACE);
            assert_eq!(verdict(&datagrams, nr, [0; 6]), RET_TRACE);
        }
        let (bare, addressed) = ([3, 16, 1, 0, 16, 0], [3, 16, 1, 0, 16, 110]);
        let to = libc::SYS_sendto;
        assert_eq!(verdict(&first, to, addressed), RET_ALLOW);
        assert_eq!(verdict(&sockets, to, addressed), RET_ALLOW);
        assert_eq!(verdict(&datagrams, to, addressed), RET_TRACE);
        assert_eq!(verdict(&datagrams, to, bare), RET_ALLOW);
        assert_eq!(verdict(&datagrams, libc::SYS_openat, [0; 6]), RET_ALLOW);
        assert_eq!(verdict(&datagrams, 9999, [0; 6]), RET_ALLOW);
    }

    #[test]
    fn inherited_sockets_are_stopped_from_the_start() {
        let verdict = |inherited, nr: i64| {
            let program = compile(Purpose {
                inherited,
                ..NOTIFY
            });
            run(&program, AUDIT_ARCH_X86_64, nr as u32, [1; 6])
        };
        assert_eq!(verdict(None, libc::SYS_connect), RET_ALLOW);
        let sockets = Some(Watch::Sockets);
        assert_eq!(verdict(sockets, libc::SYS_connect), RET_TRACE);
        assert_eq!(verdict(sockets, libc::SYS_sendmsg), RET_TRACE);
        assert_eq!(verdict(sockets, libc::SYS_sendto), RET_ALLOW);
        assert_eq!(verdict(Some(Watch::Datagrams), libc::SYS_sendto), RET_TRACE);
    }

    #[test]
    fn filters_of_the_program_itself_come_after_ours() {
        let first = compile(NOTIFY);
        let verdict = |nr: i64, args| run(&first, AUDIT_ARCH_X86_64, nr as u32, args);
        let filter = [u64::from(libc::SECCOMP_SET_MODE_FILTER), 0, 0, 0, 0, 0];
        assert_eq!(verdict(libc::SYS_seccomp, filter), RET_TRACE);
        assert_eq!(verdict(libc::SYS_seccomp, [2, 0, 0, 0, 0, 0]), RET_ALLOW);
        let set = libc::PR_SET_SECCOMP as u64;
        let by_prctl = [set, u64::from(libc::SECCOMP_MODE_FILTER), 0, 0, 0, 0];
        assert_eq!(verdict(libc::SYS_prctl, by_prctl), RET_TRACE);
        let dumpable = [libc::PR_SET_DUMPABLE as u64, 0, 0, 0, 0, 0];
        assert_eq!(verdict(libc::SYS_prctl, dumpable), RET_NOTIFY);
        let name = [libc::PR_SET_NAME as u64, 0, 0, 0, 0, 0];
        assert_eq!(verdict(libc::SYS_prctl, name), RET_ALLOW);
    }

    #[test]
    fn members_are_told_apart_and_only_closers_stop_at_close() {
        let (member, closer) = (compile_participant(false), compile_participant(true));
        let verdict =
            |program: &[Insn], nr: i64| run(program, AUDIT_ARCH_X86_64, nr as u32, [0; 6]);
        for nr in [libc::SYS_execve, libc::SYS_execveat] {
            assert_eq!(verdict(&member, nr), RET_TRACE | MEMBER);
            assert_eq!(verdict(&closer, nr), RET_TRACE | CLOSER);
        }
        let closing = [
            libc::SYS_close,
            libc::SYS_close_range,
            libc::SYS_dup2,
            libc::SYS_dup3,
        ];
        for nr in closing {
            assert_eq!(verdict(&compile(NOTIFY), nr), RET_ALLOW);
            assert_eq!(verdict(&member, nr), RET_ALLOW);
            assert_eq!(verdict(&closer, nr), RET_TRACE);
        }
        assert_eq!(verdict(&closer, libc::SYS_read), RET_TRACE);
        assert_eq!(verdict(&closer, libc::SYS_openat), RET_ALLOW);
    }

    #[test]
    fn only_requests_of_devices_run_in_the_kernel_unseen() {
        let program = compile(NOTIFY);
        let verdict = |request: u64| {
            let args = [3, request, 0, 0, 0, 0];
            run(&program, AUDIT_ARCH_X86_64, libc::SYS_ioctl as u32, args)
        };
        let natively = [
            libc::TCGETS,
            libc::FIONREAD,
            libc::FIOCLEX,
            libc::SIOCGIFCONF,
        ];
        for request in natively {
            assert_eq!(verdict(request), RET_ALLOW, "{request:#x}");
        }
        // FICLONE, FICLONERANGE, FS_IOC_UNRESVSP64, FIFREEZE, FITRIM, and an unknown one.
        let seen = [
            0x4004_9409,
            0x4020_940d,
            0x4030_582b,
            0xc004_5877,
            0xc018_5879,
            0x4004_f0f0,
        ];
        for request in seen {
            assert_eq!(verdict(request), RET_NOTIFY, "{request:#x}");
            // The kernel looks at 32 bits.
            assert_eq!(verdict(1 << 32 | request), RET_NOTIFY, "{request:#x}");
        }
    }

    #[test]
    fn seeks_beyond_the_largest_file_are_seen() {
        let program = compile(NOTIFY);
        let verdict = |offset: i64| {
            let args = [3, offset as u64, 0, 0, 0, 0];
            run(&program, AUDIT_ARCH_X86_64, libc::SYS_lseek as u32, args)
        };
        for offset in [0, 4096, (1 << 44) - 1, -1, -(1 << 50), i64::MIN] {
            assert_eq!(verdict(offset), RET_ALLOW, "{offset}");
        }
        for offset in [1 << 44, 1 << 62, i64::MAX] {
            assert_eq!(verdict(offset), RET_NOTIFY, "{offset}");
        }
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
