//! Sources of an image's bytes.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::{Error, Record, Result};

/// A source of bytes that several threads can read at any offset at once.
pub trait ReadAt: Send + Sync {
    /// Fills `buf` from `offset`, and returns the count. It is short only at the end.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// The size in bytes.
    fn size(&self) -> io::Result<u64>;

    /// The file itself, from which the kernel can copy.
    fn file(&self) -> Option<&File> {
        None
    }
}

impl ReadAt for File {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match FileExt::read_at(self, rest, offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// By seeking, since a block device's metadata has no size.
    fn size(&self) -> io::Result<u64> {
        let mut file = self;
        file.seek(SeekFrom::End(0))
    }

    fn file(&self) -> Option<&File> {
        Some(self)
    }
}

fn copy_from(bytes: &[u8], offset: u64, buf: &mut [u8]) -> usize {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let rest = bytes.get(start..).unwrap_or_default();
    let len = rest.len().min(buf.len());
    if let (Some(to), Some(from)) = (buf.get_mut(..len), rest.get(..len)) {
        to.copy_from_slice(from);
    }
    len
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        Ok(copy_from(self, offset, buf))
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

impl ReadAt for &'static [u8] {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        Ok(copy_from(self, offset, buf))
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

impl ReadAt for Arc<[u8]> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        Ok(copy_from(self, offset, buf))
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

/// An image: a source whose size is known. Reads are checked against the size.
pub(crate) struct Image {
    source: Box<dyn ReadAt>,
    size: u64,
}

impl Image {
    pub fn new(source: Box<dyn ReadAt>) -> Result<Self> {
        let size = source
            .size()
            .map_err(|source| Error::Read { offset: 0, source })?;
        Ok(Self { source, size })
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn file(&self) -> Option<&File> {
        self.source.file()
    }

    /// Checks that the `len` bytes of a `record` at `offset` lie within the image.
    pub fn check(&self, record: Record, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => {
                let why = format!(
                    "its {len} bytes end beyond the image, which has {}",
                    self.size
                );
                Err(Error::damaged(record, offset, why))
            }
        }
    }

    /// Fills `buf` with the bytes of a `record` at `offset`.
    pub fn fill(&self, record: Record, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.check(record, offset, buf.len() as u64)?;
        match self.source.read_at(offset, buf) {
            Ok(n) if n == buf.len() => Ok(()),
            Ok(_) => Err(Error::damaged(record, offset, "the image ends within it")),
            Err(source) => Err(Error::Read { offset, source }),
        }
    }

    /// The `len` bytes of a `record` at `offset`. The check limits the allocation to the image's
    /// size.
    pub fn read(&self, record: Record, offset: u64, len: u64) -> Result<Vec<u8>> {
        self.check(record, offset, len)?;
        let mut buf = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        self.fill(record, offset, &mut buf)?;
        Ok(buf)
    }
}
