//! Sets of calls and of operations, and other properties of a call that a filter tests.

use goanna_syscalls::{Class, DecodedCall, Kind, Operation, SIGNATURES, SysnoSet, Value};

/// Numbers from here on are one element of a [`CallSet`]: no kernel has as many calls.
pub const LIMIT: u32 = 511;

/// A set of system calls, in which all numbers that no kernel has are one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct CallSet(SysnoSet);

impl CallSet {
    /// Adds a call.
    pub fn insert(&mut self, nr: u32) {
        self.0.insert(nr.min(LIMIT));
    }

    /// Adds the calls of another set.
    pub fn add(&mut self, other: &Self) {
        self.0 = self.0.union(other.0);
    }

    /// Keeps only the calls that another set has, too.
    pub fn keep(&mut self, other: &Self) {
        self.0 = self.0.intersection(other.0);
    }

    /// Whether call `nr` is in it.
    pub fn contains(&self, nr: u32) -> bool {
        self.0.contains(nr.min(LIMIT))
    }

    /// Whether it has no call.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its ranges of numbers in ascending order, first and last.
    pub fn ranges(&self) -> Vec<(u32, u32)> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for nr in self.0.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == nr => *last = nr,
                _ => ranges.push((nr, nr)),
            }
        }
        ranges
    }
}

impl FromIterator<u32> for CallSet {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        let mut set = Self::default();
        for nr in numbers {
            set.insert(nr);
        }
        set
    }
}

/// A set of operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct OperationSet(u128);

const _: () = assert!(Operation::ALL.len() <= 128);

impl OperationSet {
    /// Adds an operation.
    pub fn insert(&mut self, operation: Operation) {
        self.0 |= 1 << operation as u32;
    }

    /// Whether an operation is in it.
    pub fn contains(self, operation: Operation) -> bool {
        self.0 >> operation as u32 & 1 == 1
    }

    /// Whether the number of a call always decides if the call does one of the operations.
    pub fn is_known_by_number(self) -> bool {
        let bases = Operation::ALL.iter();
        bases.copied().all(|base| self.has_usual(base).is_some())
    }

    /// Whether call `nr` does one of the operations; `None` where that depends on its arguments.
    pub fn has_call(self, nr: u32) -> Option<bool> {
        let Some(signature) = goanna_syscalls::signature(nr) else {
            return Some(false);
        };
        self.has_usual(signature.operation)
    }

    fn has_usual(self, operation: Operation) -> Option<bool> {
        let usual = self.contains(operation);
        let others = depending_on_arguments(operation);
        let is_same = others.iter().all(|&other| self.contains(other) == usual);
        is_same.then_some(usual)
    }
}

/// The operations that a call whose number stands for `operation` may do instead; see [`DecodedCall::operation`].
const fn depending_on_arguments(operation: Operation) -> &'static [Operation] {
    match operation {
        Operation::Open => &[Operation::Create],
        Operation::Unlink => &[Operation::Rmdir],
        Operation::Fcntl => &[Operation::Dup, Operation::Lock],
        Operation::Ioctl => &[Operation::Copy],
        _ => &[],
    }
}

/// Names of all operations.
pub fn names() -> impl Iterator<Item = &'static str> {
    Operation::ALL.iter().map(|operation| operation.name())
}

/// Names of all calls.
pub fn call_names() -> impl Iterator<Item = &'static str> {
    SIGNATURES.iter().map(|signature| signature.name)
}

/// The calls that touch files, descriptors, mappings, sockets, the working directory or the process tree, and unknown calls.
pub fn concerning_files() -> CallSet {
    let concerns = |nr: &u32| {
        goanna_syscalls::signature(*nr).is_none_or(goanna_syscalls::Signature::concerns_files)
    };
    (0..=LIMIT).filter(concerns).collect()
}

/// The number of bytes that a call which reads or writes data requests.
pub fn size(call: &DecodedCall) -> Option<i64> {
    let signature = call.signature?;
    if !signature.class.intersects(Class::READ | Class::WRITE) {
        return None;
    }
    let values = signature.params.iter().zip(&call.args);
    let mut sizes = values.filter_map(|(param, value)| match (param.kind, value) {
        (Kind::Size, Value::Unsigned(size)) => Some(*size),
        (Kind::InputVector(_) | Kind::OutputVector(_), Value::Bytes { len, .. }) => Some(*len),
        _ => None,
    });
    sizes
        .next()
        .map(|size| i64::try_from(size).unwrap_or(i64::MAX))
}
