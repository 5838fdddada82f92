//! Tests of single facts, in a form in which equal tests are equal values.

use goanna_syscalls::Subject;

use super::glob::Glob;
use super::operation::{CallSet, OperationSet};

/// A test of one fact.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Predicate {
    /// The call's number.
    Call(CallSet),
    /// The operation of the call.
    Operation(OperationSet),
    /// A number is in one of these ranges, which are sorted, disjoint, and hold both ends.
    Number(Number, Box<[(i64, i64)]>),
    /// The process's name.
    Comm(Text),
    /// A part of the path of one of the files.
    File(Part, Text),
}

/// A fact that is a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Number {
    /// Effective user id.
    Uid,
    /// Effective group id.
    Gid,
    /// Process id.
    Pid,
    /// Thread id.
    Tid,
    /// Session id.
    Sid,
    /// Bytes that the call asks for.
    Size,
    /// Result.
    Ret,
}

/// The part of a path that a test of a file compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The last component.
    Name,
    /// The part of the last component after its last full stop; a full stop at its beginning does not count.
    Extension,
    /// All of it.
    Path,
}

/// The strings that pass a test.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Text {
    /// One of these; sorted.
    OneOf(Box<[Box<[u8]>]>),
    /// The strings that the pattern matches.
    Like(Glob),
}

impl Text {
    fn holds(&self, text: &[u8]) -> bool {
        match self {
            Self::OneOf(list) => list.iter().any(|own| **own == *text),
            Self::Like(glob) => glob.matches(text),
        }
    }
}

impl Predicate {
    /// The place of the test in the order of tests: first those that the call's number decides, then those that the entry and the thread
    /// decide, then the others.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Call(_) => 0,
            Self::Operation(set) if set.is_known_by_number() => 0,
            Self::Operation(_) => 3,
            Self::Number(Number::Size | Number::Ret, _) => 4,
            Self::Number(..) => 1,
            Self::Comm(_) => 2,
            Self::File(..) => 5,
        }
    }

    /// The outcome of the test at the entry of a call; `nr` is `None` for an event that is not a call. `None` if the entry does not decide it.
    pub fn at_entry(&self, nr: Option<u32>, subject: &Subject) -> Option<bool> {
        match self {
            Self::Call(set) => nr.map(|nr| set.contains(nr)),
            Self::Operation(set) => nr.and_then(|nr| set.has_call(nr)),
            Self::Number(number, ranges) => {
                of_subject(*number, subject).map(|value| contains(ranges, value))
            }
            Self::Comm(text) => Some(text.holds(subject.comm.as_bytes())),
            Self::File(..) => None,
        }
    }

    /// Whether a file with this path passes the test; tests of other facts do not hold.
    pub fn holds_for_path(&self, path: &[u8]) -> bool {
        let Self::File(part, text) = self else {
            return false;
        };
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        match part {
            Part::Path => text.holds(path),
            Part::Name => text.holds(name),
            Part::Extension => {
                let stop = name.iter().rposition(|&byte| byte == b'.');
                let behind = stop.filter(|&at| at > 0).and_then(|at| name.get(at + 1..));
                behind.is_some_and(|extension| text.holds(extension))
            }
        }
    }
}

fn of_subject(number: Number, subject: &Subject) -> Option<i64> {
    match number {
        Number::Uid => Some(subject.uid.into()),
        Number::Gid => Some(subject.gid.into()),
        Number::Pid => Some(subject.pid.into()),
        Number::Tid => Some(subject.tid.into()),
        Number::Sid => Some(subject.sid.into()),
        Number::Size | Number::Ret => None,
    }
}

/// Whether one of the ranges holds a value.
pub fn contains(ranges: &[(i64, i64)], value: i64) -> bool {
    ranges
        .iter()
        .any(|&(low, high)| (low..=high).contains(&value))
}
