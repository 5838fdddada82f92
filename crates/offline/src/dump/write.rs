//! Writes the stream of a dump.

use std::io::Write;
use std::ops::{Bound, ControlFlow};
use std::time::{SystemTime, UNIX_EPOCH};

use amino_schema::dump::{
    BLOCK_MAX, BlockHeader, BlockKind, DUMP_HEADER_LEN, DumpHeader, DumpTotals, put_record,
};
use amino_txn::{Records, Store};

use super::DumpError;

/// Number of bytes of records at which a block is written. Larger blocks would compress only slightly better.
const BLOCK_TARGET: usize = 1 << 20;
/// zstd's own default.
const LEVEL: i32 = 3;

/// Writes the present state of `store`, which other threads may change meanwhile, to `out`. `progress` receives the number of records.
pub fn dump(
    store: &Store,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
) -> Result<DumpTotals, DumpError> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let header = DumpHeader {
        store_id: store.info().store_id,
        time_ns: since_1970.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
    };
    write(&store.snapshot()?, header, out, progress)
}

/// Writes `records`, which must not change meanwhile, to `out`.
pub fn write(
    records: &dyn Records,
    header: DumpHeader,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
) -> Result<DumpTotals, DumpError> {
    let header = header.encode();
    out.write_all(&header).map_err(DumpError::Write)?;
    let mut blocks = Blocks {
        out,
        header,
        number: 0,
        payload: Vec::with_capacity(BLOCK_TARGET),
        records: 0,
    };
    let mut totals = DumpTotals::default();
    let mut failure = None;
    records.scan(Bound::Unbounded, b"", &mut |key, value| {
        totals.count(key, value);
        match blocks.add(key, value) {
            Ok(false) => ControlFlow::Continue(()),
            Ok(true) => {
                progress(totals.records);
                ControlFlow::Continue(())
            }
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    blocks.end(&totals)?;
    progress(totals.records);
    Ok(totals)
}

/// The blocks that are being written.
struct Blocks<'a> {
    out: &'a mut dyn Write,
    header: [u8; DUMP_HEADER_LEN],
    number: u64,
    payload: Vec<u8>,
    records: u32,
}

impl Blocks<'_> {
    /// Adds a record. Returns whether a block was written.
    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<bool, DumpError> {
        put_record(&mut self.payload, key, value);
        self.records += 1;
        if self.payload.len() < BLOCK_TARGET {
            return Ok(false);
        }
        self.write(BlockKind::Records)?;
        Ok(true)
    }

    fn end(&mut self, totals: &DumpTotals) -> Result<(), DumpError> {
        if self.records > 0 {
            self.write(BlockKind::Records)?;
        }
        self.payload = totals.encode();
        self.write(BlockKind::End)?;
        self.out.flush().map_err(DumpError::Write)
    }

    fn write(&mut self, kind: BlockKind) -> Result<(), DumpError> {
        let compressed = zstd::bulk::compress(&self.payload, LEVEL).map_err(DumpError::Write)?;
        let is_compressed = compressed.len() < self.payload.len();
        let stored = if is_compressed {
            &compressed
        } else {
            &self.payload
        };
        let length = |bytes: &[u8]| {
            u32::try_from(bytes.len())
                .ok()
                .filter(|len| *len <= BLOCK_MAX)
        };
        let (Some(stored_len), Some(payload_len)) = (length(stored), length(&self.payload)) else {
            return Err(DumpError::Write(std::io::ErrorKind::FileTooLarge.into()));
        };
        let block = BlockHeader {
            kind,
            is_compressed,
            number: self.number,
            stored_len,
            payload_len,
            records: self.records,
        };
        let header = block.encode(&self.header, stored);
        self.out.write_all(&header).map_err(DumpError::Write)?;
        self.out.write_all(stored).map_err(DumpError::Write)?;
        self.payload.clear();
        self.records = 0;
        self.number += 1;
        Ok(())
    }
}
