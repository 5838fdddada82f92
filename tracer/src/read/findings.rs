//! Findings: the differences between a trace and the bytes that its writer wrote.

use std::fmt;

use goanna_sys::plural::counted;

/// Something that is lost or altered, or that a reader should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where in the file, in bytes.
    pub offset: u64,
    /// The kind of problem.
    pub what: Problem,
}

/// A kind of problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// Bytes that are not part of a trace.
    Garbage {
        /// How many.
        bytes: u64,
    },
    /// Blocks that should be here are not.
    Missing {
        /// Sequence number of the first one.
        first: u64,
        /// Sequence number of the last one.
        last: u64,
        /// Records in them.
        records: u64,
    },
    /// The payload of a block is damaged.
    Broken {
        /// Its sequence number.
        sequence: u64,
        /// Records that are lost with it.
        records: u64,
    },
    /// The end of the file cuts a block.
    Cut {
        /// Its sequence number.
        sequence: u64,
        /// Records of it that are whole.
        recovered: u64,
        /// Records of it that are lost.
        records: u64,
    },
    /// A block is repeated here.
    Repeated {
        /// Its sequence number.
        sequence: u64,
    },
    /// A block comes after one with a higher sequence number.
    OutOfOrder {
        /// Its sequence number.
        sequence: u64,
    },
    /// A block carries no authentication, though a key was given.
    Unauthenticated {
        /// Its sequence number.
        sequence: u64,
        /// Records in it.
        records: u64,
    },
    /// A codec could not be undone.
    Codec {
        /// Sequence number of the block.
        sequence: u64,
        /// Records in it.
        records: u64,
        /// Why.
        why: String,
    },
    /// No schema describes the records of a block.
    NoSchema {
        /// Its sequence number.
        sequence: u64,
        /// Records in it.
        records: u64,
    },
    /// The records of a block do not follow the format, though its checksum is right.
    Malformed {
        /// Its sequence number.
        sequence: u64,
        /// Records that could not be read.
        records: u64,
        /// Why.
        why: String,
    },
    /// The trace has no end.
    NoEnd,
    /// The index does not fit the blocks.
    WrongIndex,
    /// Events never became records; the writer has recorded their number.
    Lost {
        /// How many.
        events: u64,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Events that the writer lost have no position in the file.
        if !matches!(self.what, Problem::Lost { .. }) {
            write!(f, "byte {}: ", self.offset)?;
        }
        self.what.fmt(f)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Garbage { bytes } => {
                write!(f, "no part of a trace: {}", counted(*bytes, "byte"))
            }
            Self::Missing { first, last, .. } if first == last => {
                write!(f, "block {first} is missing")
            }
            Self::Missing { first, last, .. } => write!(f, "blocks {first} to {last} are missing"),
            Self::Broken { sequence, .. } => write!(f, "block {sequence} is damaged"),
            Self::Cut {
                sequence,
                recovered,
                ..
            } => write!(
                f,
                "the file ends within block {sequence}; recovered: {}",
                counted(*recovered, "record")
            ),
            Self::Repeated { sequence } => write!(
                f,
                "block {sequence} stands here a second time; its records are not read again"
            ),
            Self::OutOfOrder { sequence } => {
                write!(f, "block {sequence} stands behind blocks that follow it")
            }
            Self::Unauthenticated { sequence, records } => {
                let records = counted(*records, "record");
                return write!(f, "block {sequence} has no HMAC; not read: {records}");
            }
            Self::Codec { sequence, why, .. } | Self::Malformed { sequence, why, .. } => {
                write!(f, "block {sequence}: {why}")
            }
            Self::NoSchema { sequence, .. } => write!(f, "no schema describes block {sequence}"),
            Self::NoEnd => f.write_str(
                "the trace has no end: it was cut, or its writer has not ended; what is missing is not known",
            ),
            Self::WrongIndex => f.write_str("the index does not fit the blocks"),
            Self::Lost { events } => write!(f, "the writer lost {}", counted(*events, "event")),
        }?;
        match self.lost() {
            Some(records) => write!(f, "; lost: {}", counted(records, "record")),
            None => Ok(()),
        }
    }
}

impl Problem {
    /// The number of records that are lost by the problem, as far as it is known.
    pub fn lost_records(&self) -> u64 {
        self.lost().unwrap_or(0)
    }

    /// Like [`Problem::lost_records`], but `None` for a problem that loses no records.
    fn lost(&self) -> Option<u64> {
        match self {
            Self::Missing { records, .. }
            | Self::Broken { records, .. }
            | Self::Cut { records, .. }
            | Self::Unauthenticated { records, .. }
            | Self::Codec { records, .. }
            | Self::NoSchema { records, .. }
            | Self::Malformed { records, .. } => Some(*records),
            _ => None,
        }
    }
}
