//! Reads a compiled replay: the index at once, blocks and buffers when they are needed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use amino_schema::DecodeError;
use amino_schema::replay::{HEAD_LEN, Head, Index};

use crate::Error;

/// Longest index, in bytes.
const MAX_INDEX: u64 = 1 << 32;

/// A compiled replay.
#[derive(Debug)]
pub struct Stored {
    path: PathBuf,
    file: File,
    /// The index: everything except commands and buffers.
    pub index: Index,
    /// Where buffers and blocks end in the file.
    pub end: u64,
}

impl Stored {
    /// Opens a compiled replay and checks its index.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |why| Error::file(path, why);
        let damaged = |why| Error::Damaged {
            path: path.to_owned(),
            why,
        };
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let mut raw = vec![0; HEAD_LEN.min(usize::try_from(length).unwrap_or(HEAD_LEN))];
        file.read_exact_at(&mut raw, 0).map_err(failed)?;
        let head = Head::decode(&raw).map_err(damaged)?;
        let is_inside = head.index_at.checked_add(head.index_len) == Some(length);
        if !is_inside || head.index_len > MAX_INDEX {
            return Err(damaged(wrong("the index is not at its end")));
        }
        let mut raw = vec![0; head.index_len as usize];
        file.read_exact_at(&mut raw, head.index_at)
            .map_err(failed)?;
        if crc32c::crc32c(&raw) != head.index_sum {
            return Err(damaged(wrong("the checksum of the index does not match")));
        }
        let index = Index::decode(&raw, head.index_at).map_err(damaged)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            index,
            end: head.index_at,
        })
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Reads a buffer at this position, with this length and checksum.
    pub fn buffer(&self, (offset, length, sum): (u64, u32, u32)) -> Result<Vec<u8>, Error> {
        let end = offset.checked_add(length.into());
        if end.is_none_or(|end| end > self.end) {
            return Err(self.damaged(wrong("a buffer extends beyond the start of the index")));
        }
        let mut raw = vec![0; length as usize];
        self.file
            .read_exact_at(&mut raw, offset)
            .map_err(|why| self.failed(why))?;
        if crc32c::crc32c(&raw) != sum {
            return Err(self.damaged(wrong("the checksum of a buffer does not match")));
        }
        Ok(raw)
    }

    /// This file cannot be read.
    pub fn failed(&self, why: std::io::Error) -> Error {
        Error::file(&self.path, why)
    }

    /// An error in this file.
    pub fn damaged(&self, why: DecodeError) -> Error {
        Error::Damaged {
            path: self.path.clone(),
            why,
        }
    }
}

/// An error that concerns a compiled replay as a whole.
pub fn wrong(why: &'static str) -> DecodeError {
    DecodeError {
        record: "compiled replay",
        offset: 0,
        why,
    }
}
