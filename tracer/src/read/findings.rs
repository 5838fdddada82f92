//! Findings: how a trace differs from what its writer left.

use std::fmt;

/// Something that is lost or altered, or that a reader should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where in the file, in bytes.
    pub offset: u64,
    /// What is wrong there.
    pub what: Problem,
}

/// What is wrong at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// Bytes that are no part of a trace.
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
    /// Events never became records, as the writer says.
    Lost {
        /// How many.
        events: u64,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Problem as P;
        let offset = self.offset;
        match &self.what {
            P::Garbage { bytes } => {
                write!(f, "byte {offset}: {bytes} bytes are no part of a trace")
            }
            P::Missing {
                first,
                last,
                records,
            } if first == last => {
                write!(
                    f,
                    "byte {offset}: block {first} is missing; lost: {records} records"
                )
            }
            P::Missing {
                first,
                last,
                records,
            } => {
                write!(
                    f,
                    "byte {offset}: blocks {first} to {last} are missing; lost: {records} records"
                )
            }
            P::Broken { sequence, records } => {
                write!(
                    f,
                    "byte {offset}: block {sequence} is damaged; lost: {records} records"
                )
            }
            P::Cut {
                sequence,
                recovered,
                records,
            } => write!(
                f,
                "byte {offset}: the file ends within block {sequence}; recovered: {recovered} records; lost: {records} records"
            ),
            P::Repeated { sequence } => {
                write!(
                    f,
                    "byte {offset}: block {sequence} stands here a second time; its records are not read again"
                )
            }
            P::OutOfOrder { sequence } => {
                write!(
                    f,
                    "byte {offset}: block {sequence} stands behind blocks that follow it"
                )
            }
            P::Unauthenticated { sequence, records } => {
                write!(
                    f,
                    "byte {offset}: block {sequence} has no HMAC; not read: {records} records"
                )
            }
            P::Codec {
                sequence,
                records,
                why,
            } => {
                write!(
                    f,
                    "byte {offset}: block {sequence}: {why}; lost: {records} records"
                )
            }
            P::NoSchema { sequence, records } => write!(
                f,
                "byte {offset}: no schema describes block {sequence}; lost: {records} records"
            ),
            P::Malformed {
                sequence,
                records,
                why,
            } => {
                write!(
                    f,
                    "byte {offset}: block {sequence}: {why}; lost: {records} records"
                )
            }
            P::NoEnd => write!(
                f,
                "byte {offset}: the trace has no end: it was cut, or its writer has not ended; what is missing is not known"
            ),
            P::WrongIndex => write!(f, "byte {offset}: the index does not fit the blocks"),
            P::Lost { events } => write!(f, "the writer lost {events} events"),
        }
    }
}

impl Problem {
    /// Records that are lost by it, as far as that is known.
    pub fn lost_records(&self) -> u64 {
        match self {
            Self::Missing { records, .. }
            | Self::Broken { records, .. }
            | Self::Cut { records, .. }
            | Self::Unauthenticated { records, .. }
            | Self::Codec { records, .. }
            | Self::NoSchema { records, .. }
            | Self::Malformed { records, .. } => *records,
            _ => 0,
        }
    }
}
