//! The seccomp filter, generated from the system-call table.
//!
//! The crate seccompiler supports only one action for all matching calls, and no notifications, so we assemble the program
//! ourselves (docs/decisions/0001): a binary search over ranges of calls with the same verdict, about nine comparisons a
//! call. For calls whose verdict is "allow" whatever their arguments are, the kernel does not run the filter: it keeps a
//! bitmap of them.

use goanna_sys::arch::{AUDIT_ARCH, X32_BIT};
use goanna_sys::filter::Insn;
use goanna_syscalls::SysnoSet;

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
/// The bits of the action; the others are its data.
const RET_ACTION: u32 = 0xffff_0000;

const OFFSET_NR: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_IP: u32 = 8;
const OFFSET_ARGS: u32 = 16;

/// The event message of a stop of the transaction call, or of one of [`Rule::Trace`], in a program that has the filter
/// of [`compile_participant`].
pub const PARTICIPANT: u32 = 2;
/// As [`PARTICIPANT`], if that filter also stops calls that close descriptors.
pub const CLOSER: u32 = 3;

/// The event message of a stop that only an observer asked for, or of [`Rule::Affinity`]: without it the call would not have reached the monitor.
pub const OBSERVED: u32 = 8;
/// The event message of a stop that an observer asked for at a call which the filter would refuse.
pub const OBSERVED_REFUSAL: u32 = 9;

/// The sockets that a program may have: they determine which of its calls on sockets are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SocketFilter {
    /// Unix sockets: calls that connect, and messages that may carry descriptors.
    Sockets,
    /// Unix datagram sockets, too: all calls that send to an address.
    Datagrams,
}

impl SocketFilter {
    /// The event message of a stop that both the first filter and that of [`compile_socket_filter`] ask for.
    const fn message(self) -> u32 {
        match self {
            Self::Sockets => 1,
            Self::Datagrams => 4,
        }
    }

    /// The filter of [`compile_socket_filter`] that the program has, according to the event message of a stop.
    pub fn of_message(message: u32) -> Option<Self> {
        [Self::Sockets, Self::Datagrams]
            .into_iter()
            .find(|filter| filter.message() == message)
    }
}

/// How calls that the monitor answers reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// By notification.
    Notify,
    /// By a ptrace stop: where notification is refused.
    Stop,
}

/// The parameters of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purpose {
    /// How answered calls reach the monitor.
    pub delivery: Delivery,
    /// Whether any mount gives programs shadow descriptors of files, so that data calls must be seen.
    pub shadow_files: bool,
    /// The Unix sockets that the program inherits from outside of the run.
    pub inherited: Option<SocketFilter>,
    /// The key of the cookies by which stubs in the program make calls natively ([`crate::inprocess`]).
    pub key: Option<u64>,
    /// Calls of interest to observers: each of them is stopped by ptrace, however it is treated.
    pub interest: SysnoSet,
}

/// The verdict on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Verdict {
    /// The key of a cookie that lets the call pass: the sixth argument is then the instruction pointer XOR this.
    key: Option<u64>,
    /// The test of arguments.
    test: Test,
    /// The action in all other cases.
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
}

impl Verdict {
    const fn always(value: u32) -> Self {
        Self {
            key: None,
            test: Test::None,
            otherwise: value,
        }
    }

    const fn tested(test: Test) -> Self {
        Self {
            key: None,
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
        let then = match verdict.test {
            Test::Unless { then, .. } => then,
            _ => verdict.otherwise,
        };
        let admits = then == RET_NOTIFY && admits_cookie(entry.nr);
        Self {
            key: purpose.key.filter(|_| admits),
            ..verdict
        }
    }

    fn of_rule(rule: &'static Rule, purpose: Purpose) -> Self {
        let answered = match purpose.delivery {
            Delivery::Notify => RET_NOTIFY,
            Delivery::Stop => RET_TRACE,
        };
        match rule {
            Rule::Affinity => Self::always(RET_TRACE | OBSERVED),
            Rule::Allow | Rule::Close | Rule::Read(_) => Self::always(RET_ALLOW),
            Rule::TraceSockets | Rule::TraceDatagrams(_) => match purpose.inherited {
                Some(filter) => Self::of_socket_filter(rule, filter),
                None => Self::always(RET_ALLOW),
            },
            Rule::Data(_) | Rule::MapFile(_) | Rule::ReadIf(..) if !purpose.shadow_files => {
                Self::always(RET_ALLOW)
            }
            Rule::ReadIf(all, _) => Self::all(all, answered),
            Rule::Notify(_) | Rule::Data(_) => Self::always(answered),
            Rule::NotifyOrStop(all, _) => Self {
                otherwise: answered,
                ..Self::all(all, RET_TRACE)
            },
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
        }
    }

    /// The verdict of [`compile_socket_filter`].
    fn of_socket_filter(rule: &'static Rule, filter: SocketFilter) -> Self {
        match rule {
            Rule::TraceSockets => Self::always(RET_TRACE),
            Rule::TraceDatagrams(condition) if filter == SocketFilter::Datagrams => {
                Self::when(condition, RET_TRACE)
            }
            Rule::TraceIf(all) | Rule::NotifyOrTrace(_, _, all) => {
                Self::all(all, RET_TRACE | filter.message())
            }
            _ => Self::always(RET_ALLOW),
        }
    }

    /// The verdict of [`compile_participant`].
    fn of_participant(rule: &'static Rule, closes: bool) -> Self {
        match rule {
            Rule::Read(_) | Rule::ReadIf(..) => Self::always(RET_TRACE),
            Rule::Close if closes => Self::always(RET_TRACE),
            Rule::MapFile(_) => Self::when(&MAP_FILE, RET_TRACE),
            Rule::Transaction | Rule::Trace if closes => Self::always(RET_TRACE | CLOSER),
            Rule::Transaction | Rule::Trace => Self::always(RET_TRACE | PARTICIPANT),
            _ => Self::always(RET_ALLOW),
        }
    }

    /// The same verdict, but the call is stopped in every case.
    fn observed(mut self) -> Self {
        self.key = None;
        let stopped = |value: u32| match value {
            RET_ALLOW => RET_TRACE | OBSERVED,
            RET_NOTIFY => RET_TRACE,
            refusal if refusal & RET_ACTION == RET_ERRNO => RET_TRACE | OBSERVED_REFUSAL,
            other => other,
        };
        self.otherwise = stopped(self.otherwise);
        match &mut self.test {
            Test::None => {}
            Test::If { then, .. } | Test::Unless { then, .. } => *then = stopped(*then),
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

/// A further filter for a program that may have the Unix sockets of `filter`: it stops calls that connect or send. The kernel
/// takes the strictest verdict of all filters, and among equal ones that of the youngest filter: so a stop shows whether the
/// program has this filter ([`SocketFilter::of_message`]). Children inherit it, as they inherit the first one.
pub fn compile_socket_filter(filter: SocketFilter) -> Vec<Insn> {
    assemble(RET_ALLOW, |entry| {
        Verdict::of_socket_filter(&entry.rule, filter)
    })
}

/// A further filter for a program that participates in a transaction: it stops calls that read, because the monitor answers
/// them if the transaction has changed the file. With `closes`, when the last close ends a transaction, it also stops calls
/// that close. Children inherit it, and it stays when the transaction has ended.
pub fn compile_participant(closes: bool) -> Vec<Insn> {
    assemble(RET_ALLOW, |entry| {
        Verdict::of_participant(&entry.rule, closes)
    })
}

/// Assembles a program from the verdicts of the table's rows; calls of foreign ABIs and unknown calls get `other`.
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
        insn(JEQ, 1, 0, AUDIT_ARCH),
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
        // Skips the remaining tests and the verdict: at most two tests, of three instructions each.
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

/// Lets a call with the cookie of `key` pass, and otherwise continues after it.
fn pass_with_cookie(key: u64) -> Vec<Insn> {
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
    program.push(insn(RET, 0, 0, RET_ALLOW));
    program
}

fn leaf(verdict: Verdict) -> Vec<Insn> {
    let mut program = verdict.key.map_or_else(Vec::new, pass_with_cookie);
    program.extend(match verdict.test {
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
                // Skips the remaining tests and the verdict: the values are few.
                let found = (any.values.len() - index) as u8;
                program.push(insn(JEQ, found, 0, *value));
            }
            program.push(insn(RET, 0, 0, then));
            program
        }
    });
    program.push(insn(RET, 0, 0, verdict.otherwise));
    program
}

#[cfg(test)]
mod tests;
