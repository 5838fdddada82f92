//! zisofs: files compressed block by block, versions 1 and 2.
//!
//! A file is a header, a table of pointers and the blocks, each a zlib stream of one block of content. A block whose two
//! pointers are equal is all zeros. A file counts as compressed only where its record says so (ZF, Z2), as in Linux.

use flate2::{Decompress, FlushDecompress, Status};

use crate::format::fields::Fields;
use crate::{Error, Record, Result};

/// The parameters of a compressed file, as its record has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Zisofs {
    version: u8,
    header: u8,
    block_log2: u8,
    /// Bytes of content.
    pub size: u64,
}

const MAGIC_1: [u8; 8] = [0x37, 0xe4, 0x53, 0x96, 0xc9, 0xdb, 0xd6, 0x07];
const MAGIC_2: [u8; 8] = [0xef, 0x22, 0x55, 0xa1, 0xbc, 0x1b, 0x95, 0xa0];

/// Number of pointers read at once when blocks of zeros are skipped.
const POINTERS: u64 = 8192;

impl Zisofs {
    /// Parses a ZF or Z2 field; the inner error names what we cannot decompress.
    pub fn parse(field: Fields<'_>) -> Result<std::result::Result<Self, &'static str>> {
        let version = field.u8(3)?;
        let algorithm = field.slice(4, 2)?;
        let (size, header, largest) = match (version, algorithm) {
            (1, b"pz") => (field.u32(8)?.into(), 4, 17),
            (2, b"PZ") => (field.u64(8)?, 6, 20),
            (1, _) => return Ok(Err("a zisofs file that is not compressed with zlib")),
            (2, b"XZ") => return Ok(Err("a zisofs file compressed with xz")),
            (2, b"L4") => return Ok(Err("a zisofs file compressed with LZ4")),
            (2, b"ZD") => return Ok(Err("a zisofs file compressed with Zstandard")),
            (2, b"B2") => return Ok(Err("a zisofs file compressed with bzip2")),
            (2, _) => return Ok(Err("a zisofs file of an unknown compression")),
            _ => return Ok(Err("a zisofs file of an unknown version")),
        };
        if field.u8(6)? != header {
            let why = format!("a zisofs header of {} bytes", u32::from(field.u8(6)?) * 4);
            return Err(field.damaged(why));
        }
        let block_log2 = field.u8(7)?;
        if !(15..=largest).contains(&block_log2) {
            return Err(field.damaged(format!("zisofs blocks of 2^{block_log2} bytes")));
        }
        Ok(Ok(Self {
            version,
            header,
            block_log2,
            size,
        }))
    }

    pub fn block_size(&self) -> u64 {
        1 << self.block_log2
    }

    fn header_len(&self) -> u64 {
        u64::from(self.header) * 4
    }

    fn pointer_len(&self) -> u64 {
        if self.version == 1 { 4 } else { 8 }
    }

    fn blocks(&self) -> u64 {
        self.size.div_ceil(self.block_size())
    }

    /// Where the first block may begin.
    fn table_end(&self) -> Option<u64> {
        let table = self
            .blocks()
            .checked_add(1)?
            .checked_mul(self.pointer_len())?;
        table.checked_add(self.header_len())
    }

    /// Bytes of content in `block`.
    fn len_of(&self, block: u64) -> usize {
        let start = block * self.block_size();
        self.size.saturating_sub(start).min(self.block_size()) as usize
    }
}

/// A compressed file of `len` stored bytes, which `read` returns for an offset from the file's start.
pub(crate) struct Compressed<'a> {
    zisofs: Zisofs,
    len: u64,
    /// Where the file begins in the image, for errors.
    offset: u64,
    read: &'a dyn Fn(Record, u64, u64) -> Result<Vec<u8>>,
}

impl<'a> Compressed<'a> {
    /// Checks that the header agrees with the record, and that the table of pointers is there.
    pub fn open(
        zisofs: Zisofs,
        len: u64,
        offset: u64,
        read: &'a dyn Fn(Record, u64, u64) -> Result<Vec<u8>>,
    ) -> Result<Self> {
        let file = Self {
            zisofs,
            len,
            offset,
            read,
        };
        let fail = |why: &'static str| Err(Error::damaged(Record::ZisofsHeader, offset, why));
        if zisofs.table_end().is_none_or(|end| end > len) {
            return fail("the file is too short for its block pointers");
        }
        let bytes = read(Record::ZisofsHeader, 0, zisofs.header_len())?;
        let header = Fields::new(Record::ZisofsHeader, offset, &bytes);
        let magic: [u8; 8] = header.array(0)?;
        let agrees = match zisofs.version {
            1 => {
                magic == MAGIC_1
                    && u64::from(header.u32(8)?) == zisofs.size
                    && header.u8(12)? == zisofs.header
                    && header.u8(13)? == zisofs.block_log2
            }
            _ => {
                magic == MAGIC_2
                    && header.u8(8)? == 0
                    && header.u8(9)? == zisofs.header
                    && header.u8(10)? == 1
                    && header.u8(11)? == zisofs.block_log2
                    && header.u64(12)? == zisofs.size
            }
        };
        if !agrees {
            return fail("it does not agree with the directory record");
        }
        Ok(file)
    }

    /// The pointers of `count` blocks from `block` on, and the one behind them.
    fn pointers(&self, block: u64, count: u64) -> Result<Vec<u64>> {
        let width = self.zisofs.pointer_len();
        let at = self.zisofs.header_len() + block * width;
        let bytes = (self.read)(Record::ZisofsPointers, at, (count + 1) * width)?;
        let number = |raw: &[u8]| {
            raw.iter()
                .rev()
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
        };
        Ok(bytes.chunks_exact(width as usize).map(number).collect())
    }

    /// The first block from `block` on that is not all zeros.
    pub fn next_data(&self, block: u64) -> Result<Option<u64>> {
        let mut block = block;
        while block < self.zisofs.blocks() {
            let count = POINTERS.min(self.zisofs.blocks() - block);
            let pointers = self.pointers(block, count)?;
            let differ = |pair: &[u64]| pair.first() != pair.last();
            if let Some(at) = pointers.windows(2).position(differ) {
                return Ok(Some(block + at as u64));
            }
            block += count;
        }
        Ok(None)
    }

    /// The content of `block`.
    pub fn block(&self, block: u64) -> Result<Vec<u8>> {
        let len = self.zisofs.len_of(block);
        let pointers = self.pointers(block, 1)?;
        let &[start, end] = pointers.as_slice() else {
            return Ok(Vec::new());
        };
        if start == end {
            return Ok(vec![0; len]);
        }
        let at = self.offset.saturating_add(start);
        let fail = |why: String| Err(Error::damaged(Record::ZisofsBlock, at, why));
        let table_end = self.zisofs.table_end().unwrap_or(u64::MAX);
        if start > end || start < table_end || end > self.len {
            return fail(format!("block {block} goes from {start} to {end}"));
        }
        // Data that zlib cannot compress grow by less than a hundredth.
        if end - start > 2 * self.zisofs.block_size() {
            return fail(format!("block {block} has {} bytes", end - start));
        }
        let packed = (self.read)(Record::ZisofsBlock, start, end - start)?;
        let mut content = vec![0; len];
        let mut zlib = Decompress::new(true);
        match zlib.decompress(&packed, &mut content, FlushDecompress::Finish) {
            Ok(Status::StreamEnd) if zlib.total_out() == len as u64 => Ok(content),
            Ok(_) => fail(format!("block {block} has not the right length")),
            Err(why) => fail(format!("block {block}: {why}")),
        }
    }
}
