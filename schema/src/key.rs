//! The ordered key space: a tag byte, then fixed-width big-endian ids, then a name to the end of the key.
//!
//! | key                                   | value                                        |
//! |---------------------------------------|----------------------------------------------|
//! | `B` ino:u64 index:u64                 | a data page, [`crate::record::decode_page`]  |
//! | `D` ino:u64                           | [`crate::DataRecord`]                        |
//! | `L` ino:u64 parent:u64 name           | [`crate::record::LINK_VALUE`]                |
//! | `O` ino:u64                           | [`crate::OrphanRecord`]                      |
//! | `P` parent:u64 name                   | [`crate::PathRecord`]                        |
//! | `S`                                   | [`crate::Super`]                             |
//! | `X` ino:u64 name                      | a value, [`crate::record::decode_xattr`]     |
//!
//! Names are bytes: anything but `/` and NUL. Only the root directory's entry (parent 0) has an empty name. Keys
//! whose first byte is 0 belong to the storage engine's adapter, which hides them.

use crate::{DecodeError, PAGE_SIZE, ROOT_PARENT, SIZE_MAX};

const PAGE: u8 = b'B';
const DATA: u8 = b'D';
const LINK: u8 = b'L';
const ORPHAN: u8 = b'O';
const PATH: u8 = b'P';
const SUPER: u8 = b'S';
const XATTR: u8 = b'X';

/// The key under which an engine stores the counts of its content ([`crate::holdings::Holdings`]).
pub const APPLIED: &[u8] = b"\0applied";

/// Prefix of every path key.
pub const PATH_TAG: &[u8] = &[PATH];
/// Prefix of every data header key.
pub const DATA_TAG: &[u8] = &[DATA];
/// Prefix of every page key.
pub const PAGE_TAG: &[u8] = &[PAGE];
/// Prefix of every link index key.
pub const LINK_TAG: &[u8] = &[LINK];
/// Prefix of every orphan key.
pub const ORPHAN_TAG: &[u8] = &[ORPHAN];
/// Prefix of every extended attribute key.
pub const XATTR_TAG: &[u8] = &[XATTR];

fn with_id(tag: u8, id: u64, extra: usize) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + extra);
    key.push(tag);
    key.extend_from_slice(&id.to_be_bytes());
    key
}

/// Key of the name `name` in directory `parent`.
pub fn path_key(parent: u64, name: &[u8]) -> Vec<u8> {
    let mut key = with_id(PATH, parent, name.len());
    key.extend_from_slice(name);
    key
}

/// Prefix of all names in directory `parent`.
pub fn path_prefix(parent: u64) -> Vec<u8> {
    with_id(PATH, parent, 0)
}

/// Key of the root directory's own entry.
pub fn root_key() -> Vec<u8> {
    path_prefix(ROOT_PARENT)
}

/// Key of the metadata of a file with more than one name.
pub fn data_key(ino: u64) -> Vec<u8> {
    with_id(DATA, ino, 0)
}

/// Key of page `index` of file `ino`; the page holds bytes from `index * page_size`.
pub fn page_key(ino: u64, index: u64) -> Vec<u8> {
    let mut key = with_id(PAGE, ino, 8);
    key.extend_from_slice(&index.to_be_bytes());
    key
}

/// Prefix of all pages of file `ino`.
pub fn page_prefix(ino: u64) -> Vec<u8> {
    with_id(PAGE, ino, 0)
}

/// Key of the link index: `name` in `parent` is one of the names of the hard-linked file `ino`.
pub fn link_key(ino: u64, parent: u64, name: &[u8]) -> Vec<u8> {
    let mut key = with_id(LINK, ino, 8 + name.len());
    key.extend_from_slice(&parent.to_be_bytes());
    key.extend_from_slice(name);
    key
}

/// Prefix of all names of the hard-linked file `ino`.
pub fn link_prefix(ino: u64) -> Vec<u8> {
    with_id(LINK, ino, 0)
}

/// Key of the metadata of a file without names that was still open.
pub fn orphan_key(ino: u64) -> Vec<u8> {
    with_id(ORPHAN, ino, 0)
}

/// Key of extended attribute `name` (with its namespace, such as `user.x`) of file `ino`.
pub fn xattr_key(ino: u64, name: &[u8]) -> Vec<u8> {
    let mut key = with_id(XATTR, ino, name.len());
    key.extend_from_slice(name);
    key
}

/// Prefix of all extended attributes of file `ino`.
pub fn xattr_prefix(ino: u64) -> Vec<u8> {
    with_id(XATTR, ino, 0)
}

/// Key of the store's superblock.
pub fn super_key() -> Vec<u8> {
    vec![SUPER]
}

/// The smallest key greater than every key that starts with `prefix`; `None` when there is none.
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut end = prefix.get(..=last)?.to_vec();
    if let Some(byte) = end.last_mut() {
        *byte += 1;
    }
    Some(end)
}

/// A parsed key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParsedKey<'a> {
    /// A name in a directory.
    Path {
        /// Inode number of the directory.
        parent: u64,
        /// The name; empty only for the root directory.
        name: &'a [u8],
    },
    /// Metadata of a file with several names.
    Data {
        /// Inode number.
        ino: u64,
    },
    /// A page of data.
    Page {
        /// Inode number.
        ino: u64,
        /// Page number from the start of the file.
        index: u64,
    },
    /// One of the names of a file with several.
    Link {
        /// Inode number of the file.
        ino: u64,
        /// Inode number of the directory.
        parent: u64,
        /// The name.
        name: &'a [u8],
    },
    /// A file without names.
    Orphan {
        /// Inode number.
        ino: u64,
    },
    /// An extended attribute.
    Xattr {
        /// Inode number.
        ino: u64,
        /// The attribute's name with its namespace.
        name: &'a [u8],
    },
    /// The superblock.
    Super,
}

fn split_id(raw: &[u8], at: usize) -> Result<(u64, &[u8]), DecodeError> {
    let rest = raw.get(at..).unwrap_or_default();
    match rest.split_first_chunk::<8>() {
        Some((id, rest)) => Ok((u64::from_be_bytes(*id), rest)),
        None => Err(DecodeError {
            record: "key",
            offset: raw.len(),
            why: "the bytes end early",
        }),
    }
}

fn no_more(raw: &[u8], rest: &[u8]) -> Result<(), DecodeError> {
    if rest.is_empty() {
        return Ok(());
    }
    Err(DecodeError {
        record: "key",
        offset: raw.len() - rest.len(),
        why: "bytes follow its end",
    })
}

fn check_name(raw: &[u8], name: &[u8], parent: u64) -> Result<(), DecodeError> {
    let start = raw.len() - name.len();
    let error = |offset, why| {
        Err(DecodeError {
            record: "key",
            offset,
            why,
        })
    };
    if name.is_empty() != (parent == ROOT_PARENT) {
        return error(
            start,
            "an empty name belongs to the root directory and no other",
        );
    }
    match name.iter().position(|&byte| byte == b'/' || byte == 0) {
        Some(at) => error(start + at, "a name holds a slash or a NUL"),
        None => Ok(()),
    }
}

impl<'a> ParsedKey<'a> {
    /// Parses `raw`; refuses bytes that no builder in this module makes.
    pub fn parse(raw: &'a [u8]) -> Result<Self, DecodeError> {
        let Some(&tag) = raw.first() else {
            return Err(DecodeError {
                record: "key",
                offset: 0,
                why: "the key is empty",
            });
        };
        if tag == SUPER {
            no_more(raw, raw.get(1..).unwrap_or_default())?;
            return Ok(Self::Super);
        }
        if !matches!(tag, PAGE | DATA | LINK | ORPHAN | PATH | XATTR) {
            return Err(DecodeError {
                record: "key",
                offset: 0,
                why: "the tag is unknown",
            });
        }
        let (ino, rest) = split_id(raw, 1)?;
        match tag {
            PATH => {
                check_name(raw, rest, ino)?;
                Ok(Self::Path {
                    parent: ino,
                    name: rest,
                })
            }
            PAGE => {
                let (index, rest) = split_id(raw, 9)?;
                no_more(raw, rest)?;
                if index > SIZE_MAX / u64::from(PAGE_SIZE) {
                    return Err(DecodeError {
                        record: "key",
                        offset: 9,
                        why: "a page lies behind the largest offset",
                    });
                }
                Ok(Self::Page { ino, index })
            }
            LINK => {
                let (parent, name) = split_id(raw, 9)?;
                check_name(raw, name, parent)?;
                Ok(Self::Link { ino, parent, name })
            }
            XATTR if rest.is_empty() => Err(DecodeError {
                record: "key",
                offset: 9,
                why: "an attribute has no name",
            }),
            XATTR => Ok(Self::Xattr { ino, name: rest }),
            _ => {
                no_more(raw, rest)?;
                Ok(if tag == DATA {
                    Self::Data { ino }
                } else {
                    Self::Orphan { ino }
                })
            }
        }
    }

    /// The key's bytes; the inverse of [`ParsedKey::parse`].
    pub fn to_vec(&self) -> Vec<u8> {
        match *self {
            Self::Path { parent, name } => path_key(parent, name),
            Self::Data { ino } => data_key(ino),
            Self::Page { ino, index } => page_key(ino, index),
            Self::Link { ino, parent, name } => link_key(ino, parent, name),
            Self::Orphan { ino } => orphan_key(ino),
            Self::Xattr { ino, name } => xattr_key(ino, name),
            Self::Super => super_key(),
        }
    }
}
