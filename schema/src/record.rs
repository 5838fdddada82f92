//! The values stored under the keys of [`crate::key`].
//!
//! Path, data, orphan and super records end with a CRC-32C (4 bytes, little-endian) of all bytes before it. Pages and
//! attribute values carry none: the log and the engine check their blocks, and pages are the largest part of the data.

use bytes::Bytes;

use crate::meta::META_FIXED_LEN;
use crate::wire::{Reader, put_varint, seal, share, unseal};
use crate::{DecodeError, FileKind, Meta, PAGE_SIZE};

const VERSION: u8 = 1;
/// Version of path, data and orphan records. Those of version 1 have no generation and no version in their metadata.
const META_VERSION: u8 = 2;
/// Version of the superblock. That of version 1 ends with the engine's name.
const SUPER_VERSION: u8 = 2;
const CRC_LEN: usize = 4;

/// Value of a link index entry: the version byte alone.
pub const LINK_VALUE: &[u8] = &[VERSION];

/// The file that a name stands for.
///
/// Layout: version u8 = 2, kind u8 (`d_type`), ino u64, has-metadata u8 (0 or 1), metadata if so, crc u32.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathRecord {
    /// Inode number, never 0.
    pub ino: u64,
    /// Type, so that readdir needs no other record.
    pub kind: FileKind,
    /// The metadata when this is the file's only name; `None`: the [`DataRecord`] has it.
    pub meta: Option<Meta>,
}

impl PathRecord {
    const NAME: &'static str = "path record";

    /// The record's bytes.
    pub fn encode(&self) -> Bytes {
        let meta_len = self.meta.as_ref().map_or(0, Meta::encoded_len);
        let mut out = Vec::with_capacity(11 + meta_len + CRC_LEN);
        out.push(META_VERSION);
        out.push(self.kind.d_type());
        out.extend_from_slice(&self.ino.to_le_bytes());
        out.push(u8::from(self.meta.is_some()));
        if let Some(meta) = &self.meta {
            meta.encode_into(&mut out);
        }
        seal(&mut out);
        out.into()
    }

    /// Reads what [`PathRecord::encode`] wrote; inline content shares memory with `raw`.
    pub fn decode(raw: &Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(Self::NAME, unseal(Self::NAME, raw)?);
        let version = reader.version(META_VERSION)?;
        let code = reader.u8()?;
        let kind = FileKind::from_d_type(code)
            .ok_or_else(|| reader.error(1, "the file type is unknown"))?;
        let ino = reader.u64()?;
        if ino == 0 {
            return Err(reader.error(2, "the inode number is 0"));
        }
        let meta = match reader.flag()? {
            false => None,
            true => Some(Meta::decode_from(raw, &mut reader, version)?),
        };
        reader.end()?;
        if meta.as_ref().is_some_and(|meta| meta.kind() != Some(kind)) {
            return Err(reader.error(1, "the file type differs from the mode"));
        }
        Ok(Self { ino, kind, meta })
    }
}

fn encode_meta(meta: &Meta) -> Bytes {
    let mut out = Vec::with_capacity(
        1 + META_FIXED_LEN + meta.inline.as_ref().map_or(0, Bytes::len) + CRC_LEN,
    );
    out.push(META_VERSION);
    meta.encode_into(&mut out);
    seal(&mut out);
    out.into()
}

fn decode_meta(name: &'static str, raw: &Bytes) -> Result<Meta, DecodeError> {
    let mut reader = Reader::new(name, unseal(name, raw)?);
    let version = reader.version(META_VERSION)?;
    let meta = Meta::decode_from(raw, &mut reader, version)?;
    reader.end()?;
    Ok(meta)
}

/// Metadata of a file with more than one name. Layout: version u8 = 2, metadata, crc u32.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataRecord {
    /// The metadata that all names share.
    pub meta: Meta,
}

impl DataRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Bytes {
        encode_meta(&self.meta)
    }

    /// Reads what [`DataRecord::encode`] wrote.
    pub fn decode(raw: &Bytes) -> Result<Self, DecodeError> {
        Ok(Self {
            meta: decode_meta("data record", raw)?,
        })
    }
}

/// Metadata of a file without names. Layout: version u8 = 2, metadata, crc u32.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrphanRecord {
    /// The metadata; its `nlink` is 0.
    pub meta: Meta,
}

impl OrphanRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Bytes {
        encode_meta(&self.meta)
    }

    /// Reads what [`OrphanRecord::encode`] wrote.
    pub fn decode(raw: &Bytes) -> Result<Self, DecodeError> {
        Ok(Self {
            meta: decode_meta("orphan record", raw)?,
        })
    }
}

/// The superblock.
///
/// Layout: version u8 = 2, format u32, page size u32, next ino u64, created u64 (ns since 1970), store id 16 bytes,
/// engine name (LEB128 length, bytes of UTF-8), session u32, first session u32, closed u8 (0 or 1), crc u32.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Super {
    /// Version of the whole schema.
    pub format: u32,
    /// Bytes of a page; a power of two from 512 to 1 MiB.
    pub page_size: u32,
    /// Lowest inode number that was never allocated; at most 2^63 - 1.
    pub next_ino: u64,
    /// Creation time, nanoseconds since 1970.
    pub created_ns: u64,
    /// Random id of the store; that of the marker file and of the log.
    pub store_id: [u8; 16],
    /// Name of the engine it was created with.
    pub engine: String,
    /// The number of times that the store was opened and changed. Versions that files get in a session are larger than
    /// those of all earlier sessions.
    pub session: u32,
    /// The first session after the last crash. A crash may have undone changes after programs have seen their
    /// versions. So files that have not changed since then count as changed at the start of that session.
    pub first_session: u32,
    /// The session has ended without a crash, and all its changes are durable.
    pub closed: bool,
}

/// The largest inode number, which no store reaches.
const INO_MAX: u64 = i64::MAX as u64;

impl Super {
    const NAME: &'static str = "superblock";

    /// The schema version that this program writes.
    pub const FORMAT: u32 = 1;

    /// A superblock with this program's format and page size.
    pub fn new(store_id: [u8; 16], engine: &str, created_ns: u64) -> Self {
        let next_ino = crate::ROOT_INO + 1;
        let engine = engine.to_owned();
        Self {
            format: Self::FORMAT,
            page_size: PAGE_SIZE,
            next_ino,
            created_ns,
            store_id,
            engine,
            session: 0,
            first_session: 0,
            closed: true,
        }
    }

    /// The record's bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(64);
        out.push(SUPER_VERSION);
        out.extend_from_slice(&self.format.to_le_bytes());
        out.extend_from_slice(&self.page_size.to_le_bytes());
        out.extend_from_slice(&self.next_ino.to_le_bytes());
        out.extend_from_slice(&self.created_ns.to_le_bytes());
        out.extend_from_slice(&self.store_id);
        put_varint(&mut out, self.engine.len() as u64);
        out.extend_from_slice(self.engine.as_bytes());
        out.extend_from_slice(&self.session.to_le_bytes());
        out.extend_from_slice(&self.first_session.to_le_bytes());
        out.push(u8::from(self.closed));
        seal(&mut out);
        out.into()
    }

    /// Reads what [`Super::encode`] wrote.
    pub fn decode(raw: &Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(Self::NAME, unseal(Self::NAME, raw)?);
        let version = reader.version(SUPER_VERSION)?;
        let format = reader.u32()?;
        let page_size = reader.u32()?;
        if !page_size.is_power_of_two() || !(512..=1 << 20).contains(&page_size) {
            return Err(reader.error(5, "the page size is not a power of two from 512 to 1048576"));
        }
        let at = reader.at();
        let next_ino = reader.u64()?;
        if next_ino > INO_MAX {
            return Err(reader.error(at, "no store has had that many files"));
        }
        let created_ns = reader.u64()?;
        let store_id = reader.bytes()?;
        let at = reader.at();
        let len = usize::try_from(reader.varint()?).unwrap_or(usize::MAX);
        let Ok(engine) = std::str::from_utf8(reader.take(len)?) else {
            return Err(reader.error(at, "the engine's name is not text"));
        };
        let engine = engine.to_owned();
        let (session, first_session, closed) = match version {
            1 => (0, 0, true),
            _ => (reader.u32()?, reader.u32()?, reader.flag()?),
        };
        reader.end()?;
        Ok(Self {
            format,
            page_size,
            next_ino,
            created_ns,
            store_id,
            engine,
            session,
            first_session,
            closed,
        })
    }
}

/// First byte of a page whose other bytes are the content itself. Other codecs get other numbers.
pub const PAGE_RAW: u8 = 1;

/// A page's value: the codec byte, then `content` (at most a page; its tail may be left out only at the file's end).
pub fn encode_page(content: &[u8]) -> Bytes {
    prefixed(PAGE_RAW, content)
}

/// The content of a page; shares memory with `raw`.
pub fn decode_page(raw: &Bytes, page_size: u32) -> Result<Bytes, DecodeError> {
    let error = |offset, why| {
        Err(DecodeError {
            record: "page",
            offset,
            why,
        })
    };
    match raw.split_first() {
        None => error(0, "the bytes end early"),
        Some((&PAGE_RAW, content)) if content.len() > page_size as usize => {
            error(1, "it is longer than a page")
        }
        Some((&PAGE_RAW, content)) => Ok(share(raw, content)),
        Some(_) => error(0, "its codec is unknown"),
    }
}

/// An extended attribute's value: version u8 = 1, then `value`.
pub fn encode_xattr(value: &[u8]) -> Bytes {
    prefixed(VERSION, value)
}

/// The value of an extended attribute; shares memory with `raw`.
pub fn decode_xattr(raw: &Bytes) -> Result<Bytes, DecodeError> {
    let mut reader = Reader::new("extended attribute", raw);
    reader.version(VERSION)?;
    Ok(share(raw, raw.get(1..).unwrap_or_default()))
}

fn prefixed(first: u8, rest: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(1 + rest.len());
    out.push(first);
    out.extend_from_slice(rest);
    out.into()
}
