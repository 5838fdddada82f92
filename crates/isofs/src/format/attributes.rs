//! Extended attribute records (ECMA-119 section 9.5): owner, permissions and times of a file, in blocks of its own
//! before the content. Images without Rock Ridge have no other attributes.
//!
//! Few images have them and few readers use them, so a record with an error is ignored: a file that other readers can
//! read can be read here, too.

use goanna_vfs::Stamp;

use crate::Record;
use crate::format::fields::Fields;
use crate::format::record::{DirRecord, flags};
use crate::source::Image;

/// Bytes up to the record's version, the last field that is read. The standard's fixed part has 250, and at least one
/// block belongs to each record.
const LEN: u64 = 181;

/// The only version there is.
const VERSION: u8 = 1;

/// The position of a file's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    block: u32,
    /// The flag of the directory record: owner, group and permissions count.
    is_protected: bool,
}

impl Place {
    /// `None` if the directory record announces no such record.
    pub fn of(record: &DirRecord<'_>) -> Option<Self> {
        (record.section.attributes > 0).then(|| Self {
            block: record.section.block,
            is_protected: record.has(flags::PROTECTED),
        })
    }

    /// The content of the record; `None` when it cannot be read.
    pub fn read(self, image: &Image, block_size: u32) -> Option<Attributes> {
        let offset = u64::from(self.block) * u64::from(block_size);
        let bytes = image.read(Record::ExtendedAttributes, offset, LEN).ok()?;
        Attributes::parse(
            Fields::new(Record::ExtendedAttributes, offset, &bytes),
            self.is_protected,
        )
    }
}

/// The content of such a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// Where it counts.
    pub protection: Option<Protection>,
    pub created: Option<Stamp>,
    pub modified: Option<Stamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Protection {
    /// User id; 0 if none is specified. The group id likewise.
    pub uid: u16,
    pub gid: u16,
    /// The bits of chmod(2).
    pub mode: u32,
}

impl Attributes {
    fn parse(fields: Fields<'_>, is_protected: bool) -> Option<Self> {
        if fields.u8(180).ok()? != VERSION {
            return None;
        }
        let protection = Protection {
            uid: fields.u16(0).ok()?,
            gid: fields.u16(4).ok()?,
            mode: mode(u16::from_be_bytes(fields.array(8).ok()?)),
        };
        Some(Self {
            protection: is_protected.then_some(protection),
            created: fields.long_time(10).ok()?,
            modified: fields.long_time(27).ok()?,
        })
    }
}

/// A bit that is 0 permits. Bits 0 and 2 are for a class of users, System, that POSIX lacks; there are none for writing.
/// The standard leaves open which byte comes first; the kernels that read the field, those of BSD, take the higher one.
fn mode(permissions: u16) -> u32 {
    let bits = [
        (4, 0o400),
        (6, 0o100),
        (8, 0o040),
        (10, 0o010),
        (12, 0o004),
        (14, 0o001),
    ];
    let granted = bits.iter().filter(|(bit, _)| permissions >> bit & 1 == 0);
    granted.map(|(_, mode)| mode).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(permissions: [u8; 2]) -> Vec<u8> {
        let mut bytes = [&[7, 0, 0, 7, 9, 0, 0, 9], &permissions[..]].concat();
        bytes.extend(b"1970010100000000\0");
        bytes.extend(b"1970010200000050\0");
        bytes.resize(180, 0);
        bytes.push(1);
        bytes
    }

    fn parse(bytes: &[u8], is_protected: bool) -> Option<Attributes> {
        let fields = Fields::new(Record::ExtendedAttributes, 0, bytes);
        Attributes::parse(fields, is_protected)
    }

    #[test]
    fn permissions() {
        assert_eq!(mode(0), 0o555);
        assert_eq!(mode(0xffff), 0);
        assert_eq!(mode(0xaaaa), 0o555, "as recorded: odd bits are 1");
        for (bit, expected) in [
            (4, 0o400),
            (6, 0o100),
            (8, 0o40),
            (10, 0o10),
            (12, 0o4),
            (14, 1),
        ] {
            assert_eq!(mode(!(1 << bit)), expected, "bit {bit}");
        }
        for system in [0, 2] {
            assert_eq!(mode(!(1 << system)), 0);
        }
        // The higher byte first: its bit 4 is bit 12.
        let parsed = parse(&record([0xef, 0xff]), true).unwrap();
        assert_eq!(parsed.protection.unwrap().mode, 0o4);
    }

    #[test]
    fn what_counts_when() {
        let bytes = record([0xff, 0xef]);
        let parsed = parse(&bytes, true).unwrap();
        let protection = Protection {
            uid: 7,
            gid: 9,
            mode: 0o400,
        };
        assert_eq!(parsed.protection, Some(protection));
        let at = |sec, nsec| Some(Stamp { sec, nsec });
        assert_eq!(parsed.created, at(0, 0));
        assert_eq!(parsed.modified, at(86_400, 500_000_000));
        let unprotected = parse(&bytes, false).unwrap();
        assert_eq!(unprotected.protection, None);
        assert_eq!(unprotected.modified, parsed.modified);
        for version in [0, 2, 255] {
            let mut other = bytes.clone();
            other[180] = version;
            assert_eq!(parse(&other, true), None);
        }
        assert_eq!(parse(&bytes[..180], true), None, "too short");
        let mut no_digits = bytes;
        no_digits[27] = b'x';
        no_digits[10..26].fill(b'0');
        let parsed = parse(&no_digits, true).unwrap();
        assert_eq!((parsed.created, parsed.modified), (None, None));
        assert_eq!(parsed.protection, Some(protection));
    }
}
