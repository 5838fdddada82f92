//! Payload of record blocks: records one after the other. Fields that follow from earlier ones take no space (elision).
//!
//! A record is its length (LEB128, without itself) and its body. The body starts with the number of a *shape* (LEB128): a message with one
//! code for each of its arguments. Number 0 is followed by a new shape, which gets the next number, from 1 on, while fewer than
//! [`MAX_SHAPES`] have one:
//!
//! | field                                                                     |
//! |---------------------------------------------------------------------------|
//! | message id * 2 (LEB128), plus 1 when the number of a lane follows the shape |
//! | codes, 4 bits for each argument, the first one in the lower half of a byte |
//!
//! Then the lane, a byte, if the shape says so, and the fields. Bytes behind them in the body are skipped.
//!
//! A *lane* is a set of memory cells, one for each cell number of the schema; a writer gives each thread a lane, so that the records of
//! one thread are compared with each other. A block starts with lane 0, whose cells are 0 and empty. The lane with the next free
//! number starts as a copy of the lane of the record before. A record without a lane number belongs to the lane of the record before.
//!
//! | code | value of the field                        | bytes that follow                                         |
//! |------|-------------------------------------------|-----------------------------------------------------------|
//! | 0    | absent                                    | none                                                      |
//! | 1    | plain                                     | a number in the argument's size; a byte string after its length (LEB128) |
//! | 2    | that of the cell                          | none                                                      |
//! | 3    | the cell's number plus a difference       | difference, LEB128 of its zigzag form                     |
//! | 4    | the cell's number plus its last difference | none                                                     |
//! | 5    | a string of the table                     | LEB128: 0 is the newest entry, 1 the one before, ...       |
//! | 6    | the first bytes of the cell's string, and more | their number, number of the further ones (LEB128), those |
//! | 7    | that of the nearest field before it in the record, of numbers or of strings | none                    |
//! | 8    | a NULL pointer                            | none                                                      |
//! | 9    | memory that could not be read             | its address, LEB128                                       |
//! | 10   | the first bytes of the cell's string, and the whole string of code 7 | their number (LEB128)          |
//!
//! Arithmetic is that of 64 bits with wrap-around. A number that codes 1, 3, 4 or 7 give goes into the cell, and its difference to the number
//! that was there becomes the cell's last difference. A string that codes 5, 6 and 10 give goes into the cell, and so does that of
//! code 7 when it came from the table or went there. Codes 6 and 10 append their string to the table; a writer uses them for strings of at most
//! [`MAX_STRING`] bytes, while the table has fewer than [`MAX_STRINGS`] entries and its bytes with the new ones are at most
//! [`MAX_STRING_BYTES`]. Arguments of type data know only codes 0, 1, 8 and 9.
//!
//! A block with *columns* has the same records in another order, which compresses better: first the bodies without their fields (shape and
//! lane), then for each cell the fields of all arguments that have this cell. Only such blocks have code 10.
//!
//! | field                                                                     |
//! |---------------------------------------------------------------------------|
//! | length of the bodies (LEB128), number of columns (LEB128)                 |
//! | for each column, by ascending cell: cell, length (LEB128)                 |
//! | the bodies, then the columns                                              |

mod decode;
mod encode;
mod strings;

pub use decode::{Record, Records};
pub use encode::Encoder;

/// Maximum number of shapes with a number in a block.
pub const MAX_SHAPES: usize = 4096;
/// Maximum number of lanes in a block.
pub const MAX_LANES: usize = 64;
/// Maximum number of strings in a block's table.
pub const MAX_STRINGS: usize = 1 << 16;
/// Longest string in the table, in bytes.
pub const MAX_STRING: usize = 4096;
/// Maximum number of bytes of all strings in the table.
pub const MAX_STRING_BYTES: usize = 4 << 20;

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// Not recorded, or the call has none.
    Absent,
    /// A NULL pointer.
    Null,
    /// Memory at this address could not be read.
    Unread(u64),
    /// A number; signed ones in two's complement.
    Number(u64),
    /// A byte string.
    Bytes(&'a [u8]),
}

const ABSENT: u8 = 0;
const PLAIN: u8 = 1;
const SAME: u8 = 2;
const DIFFERENCE: u8 = 3;
const STEP: u8 = 4;
const TABLE: u8 = 5;
const PREFIX: u8 = 6;
const EARLIER: u8 = 7;
const NULL: u8 = 8;
const UNREAD: u8 = 9;
const JOINED: u8 = 10;

/// A memory cell: elision compares the next value of an argument with it.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    number: u64,
    step: u64,
    text: strings::Span,
}

impl Cell {
    fn set(&mut self, number: u64) {
        self.step = number.wrapping_sub(self.number);
        self.number = number;
    }
}

fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ ((difference as i64 >> 63) as u64)
}

fn unzigzag(coded: u64) -> u64 {
    (coded >> 1) ^ (coded & 1).wrapping_neg()
}
