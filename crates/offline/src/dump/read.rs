//! Reads and checks the stream of a dump.

use std::io::{ErrorKind, Read};

use amino_schema::dump::{
    BLOCK_HEADER_LEN, BlockHeader, BlockKind, DUMP_HEADER_LEN, DumpHeader, DumpTotals, read_records,
};
use bytes::Bytes;

use super::DumpError;

/// A dump that is being read.
pub struct Reader<R> {
    from: R,
    header: [u8; DUMP_HEADER_LEN],
    /// Number of the next block.
    block: u64,
    /// Bytes read.
    offset: u64,
    /// The totals so far.
    totals: DumpTotals,
    /// The last key read.
    last: Bytes,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    pub fn open(from: R) -> Result<Self, DumpError> {
        let mut reader = Self {
            from,
            header: [0; DUMP_HEADER_LEN],
            block: 0,
            offset: 0,
            totals: DumpTotals::default(),
            last: Bytes::new(),
        };
        let mut header = [0; DUMP_HEADER_LEN];
        match reader.fill(&mut header) {
            Err(DumpError::EndsEarly { .. }) => return Err(DumpError::NotADump),
            filled => filled?,
        }
        DumpHeader::decode(&header).map_err(|error| match error.offset {
            0 => DumpError::NotADump,
            _ => DumpError::Header(error),
        })?;
        reader.header = header;
        Ok(reader)
    }

    /// The records of the next block; `None` at the end of the dump, which was checked then.
    pub fn next(&mut self) -> Result<Option<Vec<(Bytes, Bytes)>>, DumpError> {
        let start = self.offset;
        let mut raw = [0; BLOCK_HEADER_LEN];
        self.fill(&mut raw)?;
        let header = BlockHeader::decode(&raw, self.block)
            .map_err(|error| self.damaged(start, error.to_string()))?;
        let mut stored = vec![0; header.stored_len as usize];
        self.fill(&mut stored)?;
        if !header.matches(&raw, &self.header, &stored) {
            return Err(self.damaged(start, "its checksum does not match"));
        }
        let payload = self.payload(&header, stored, start)?;
        let result = match header.kind {
            BlockKind::End => {
                self.end(&payload, start)?;
                None
            }
            BlockKind::Records => {
                let records = read_records(&payload, header.records)
                    .map_err(|error| self.damaged(start, error.to_string()))?;
                self.check_order(&records, start)?;
                Some(records)
            }
        };
        self.block += 1;
        Ok(result)
    }

    /// The totals so far.
    pub const fn totals(&self) -> DumpTotals {
        self.totals
    }

    fn payload(
        &self,
        header: &BlockHeader,
        stored: Vec<u8>,
        start: u64,
    ) -> Result<Bytes, DumpError> {
        let length = header.payload_len as usize;
        let payload = if header.is_compressed {
            let payload = zstd::bulk::decompress(&stored, length);
            payload.map_err(|why| self.damaged(start, why.to_string()))?
        } else {
            stored
        };
        if payload.len() != length {
            return Err(self.damaged(start, "it has another length than its header says"));
        }
        Ok(payload.into())
    }

    /// Each key is larger than the one before.
    fn check_order(&mut self, records: &[(Bytes, Bytes)], start: u64) -> Result<(), DumpError> {
        for (key, value) in records {
            if *key <= self.last {
                return Err(self.damaged(start, "its keys are not in order"));
            }
            self.last = key.clone();
            self.totals.count(key, value);
        }
        Ok(())
    }

    fn end(&mut self, payload: &[u8], start: u64) -> Result<(), DumpError> {
        let totals =
            DumpTotals::decode(payload).map_err(|error| self.damaged(start, error.to_string()))?;
        if totals != self.totals {
            return Err(self.damaged(
                start,
                "the dump has another number of records than its end says",
            ));
        }
        match self.fill(&mut [0]) {
            Ok(()) => Err(DumpError::BytesBehind(totals.records)),
            Err(DumpError::EndsEarly { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn damaged(&self, offset: u64, why: impl Into<String>) -> DumpError {
        DumpError::Block {
            block: self.block,
            offset,
            why: why.into(),
        }
    }

    fn fill(&mut self, mut buffer: &mut [u8]) -> Result<(), DumpError> {
        while !buffer.is_empty() {
            match self.from.read(buffer) {
                Ok(0) => {
                    return Err(DumpError::EndsEarly {
                        block: self.block,
                        offset: self.offset,
                    });
                }
                Ok(read) => {
                    self.offset += read as u64;
                    buffer = buffer.split_at_mut(read).1;
                }
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(DumpError::Read(why)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::{Bound, ControlFlow};

    use amino_txn::{Records, Visit};

    use super::*;

    /// This number of records, some of which do not compress.
    struct Numbered(u32);

    impl Records for Numbered {
        fn get(&self, _key: &[u8]) -> Result<Option<Bytes>, amino_txn::Error> {
            Ok(None)
        }

        fn scan(
            &self,
            _from: Bound<&[u8]>,
            _prefix: &[u8],
            visit: &mut Visit<'_>,
        ) -> Result<(), amino_txn::Error> {
            let mut random = 1u32;
            for number in 0..self.0 {
                let mut value = vec![number as u8; 40];
                value.extend((0..20).map(|_| {
                    random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (random >> 24) as u8
                }));
                if visit(&number.to_be_bytes(), &value.into()) == ControlFlow::Break(()) {
                    break;
                }
            }
            Ok(())
        }
    }

    fn dumped(records: u32) -> Vec<u8> {
        let header = DumpHeader {
            store_id: [3; 16],
            time_ns: 4,
        };
        let mut dump = Vec::new();
        let totals =
            super::super::write(&Numbered(records), header, &mut dump, &mut |_| {}).unwrap();
        assert_eq!(totals.records, u64::from(records));
        dump
    }

    /// Reads to the end. Returns the number of records.
    fn read(dump: &[u8]) -> Result<u64, DumpError> {
        let mut reader = Reader::open(dump)?;
        let mut count = 0;
        while let Some(records) = reader.next()? {
            count += records.len() as u64;
        }
        Ok(count)
    }

    #[test]
    fn dumps_are_read_as_written() {
        for records in [0, 1, 50, 60_000] {
            assert_eq!(read(&dumped(records)).unwrap(), u64::from(records));
        }
    }

    #[test]
    fn a_dump_that_was_cut_or_changed_anywhere_is_refused() {
        let dump = dumped(20);
        for at in 0..dump.len() {
            let mut other = dump.clone();
            for bit in 0..8 {
                other[at] ^= 1 << bit;
                assert!(read(&other).is_err(), "bit {bit} of byte {at}");
                other[at] ^= 1 << bit;
            }
            assert!(read(&dump[..at]).is_err(), "cut at {at}");
        }
        let longer = [&dump[..], b"x"].concat();
        let error = read(&longer).unwrap_err().to_string();
        assert_eq!(
            error,
            "bytes follow the end of the dump, which has 20 records"
        );
    }

    #[test]
    fn a_block_of_another_dump_or_place_is_refused() {
        let large = dumped(60_000);
        let first = DUMP_HEADER_LEN;
        let length = |at: usize| {
            let raw = large[at..at + BLOCK_HEADER_LEN].try_into().unwrap();
            let number = u64::from_le_bytes(large[at + 8..at + 16].try_into().unwrap());
            let header = BlockHeader::decode(&raw, number).unwrap();
            BLOCK_HEADER_LEN + header.stored_len as usize
        };
        let second = first + length(first);
        let third = second + length(second);
        let doubled = [&large[..third], &large[second..]].concat();
        let swapped = [
            &large[..first],
            &large[second..third],
            &large[first..second],
            &large[third..],
        ]
        .concat();
        let missing = [&large[..first], &large[second..]].concat();
        for other in [doubled, swapped, missing] {
            assert!(matches!(read(&other), Err(DumpError::Block { .. })));
        }
    }
}
