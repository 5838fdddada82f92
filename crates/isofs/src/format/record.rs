//! Directory records (ECMA-119 section 9).

use goanna_vfs::Stamp;

use crate::Result;
use crate::format::fields::Fields;

/// Bytes of a record before its identifier.
const FIXED: usize = 33;

pub(crate) mod flags {
    /// Not to be shown to users.
    pub const HIDDEN: u8 = 1;
    /// A directory.
    pub const DIRECTORY: u8 = 2;
    /// Further content of the file of the same name (a resource fork).
    pub const ASSOCIATED: u8 = 4;
    /// Owner, group and permissions are specified, in the extended attribute record.
    pub const PROTECTED: u8 = 0x10;
    /// A further record of the same file follows.
    pub const MORE: u8 = 0x80;
}

/// A directory record, its fields as they are recorded.
#[derive(Clone, Copy)]
pub(crate) struct DirRecord<'a> {
    pub fields: Fields<'a>,
    pub flags: u8,
    pub section: Section,
    pub time: Option<Stamp>,
    /// Blocks of data at a time and of gap between them; both 0 for a file in one piece.
    pub interleave: (u8, u8),
    /// The volume of the set that holds the data.
    pub volume: u16,
    pub identifier: &'a [u8],
}

/// A contiguous piece of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Section {
    /// Its first block; the data begin after the extended attribute record.
    pub block: u32,
    /// Blocks of the extended attribute record.
    pub attributes: u8,
    /// Bytes of data.
    pub len: u32,
}

impl Section {
    /// The extent that the directory record at `at` describes.
    pub fn parse(fields: Fields<'_>, at: usize) -> Result<Self> {
        Ok(Self {
            block: fields.u32(at + 2)?,
            attributes: fields.u8(at + 1)?,
            len: fields.u32(at + 10)?,
        })
    }

    /// Where the data begin, in bytes.
    pub fn start(&self, block_size: u32) -> u64 {
        (u64::from(self.block) + u64::from(self.attributes)) * u64::from(block_size)
    }
}

impl<'a> DirRecord<'a> {
    /// Parses the record at the start of `fields`, which continues to the end of what the record may reach.
    pub fn parse(fields: Fields<'a>) -> Result<Self> {
        let len = usize::from(fields.u8(0)?);
        let fields = Fields {
            bytes: fields.slice(0, len)?,
            ..fields
        };
        if len <= FIXED {
            return Err(fields.damaged(format!("{len} bytes long")));
        }
        let identifier = fields.slice(FIXED, fields.u8(32)?.into())?;
        if identifier.is_empty() {
            return Err(fields.damaged("without a name"));
        }
        Ok(Self {
            fields,
            flags: fields.u8(25)?,
            section: Section::parse(fields, 0)?,
            time: fields.short_time(18)?,
            interleave: (fields.u8(26)?, fields.u8(27)?),
            volume: fields.u16(28)?,
            identifier,
        })
    }

    /// The record of the directory itself.
    pub fn is_dot(&self) -> bool {
        self.identifier == [0]
    }

    /// The record of its parent.
    pub fn is_dot_dot(&self) -> bool {
        self.identifier == [1]
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The System Use area: the bytes behind the identifier, which is padded to an even place.
    pub fn system_use(&self) -> Fields<'a> {
        let end = FIXED + self.identifier.len();
        let at = end + end % 2;
        Fields {
            bytes: self.fields.bytes.get(at..).unwrap_or_default(),
            offset: self.fields.offset + at as u64,
            ..self.fields
        }
    }
}
