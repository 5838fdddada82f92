//! Finds blocks in bytes that may be damaged anywhere. Checksums decide; nothing here is decoded.

use std::io::{self, Read};

use amino_schema::trace::{BlockHeader, FILE_HEADER_LEN, FileHeader, Footer, MAGIC, SYNC, Stored};

/// A block or garbage at a position of a trace.
#[derive(Debug)]
pub(super) struct Found {
    /// Where it starts.
    pub offset: u64,
    pub what: What,
}

#[derive(Debug)]
pub(super) enum What {
    FileHeader(FileHeader),
    /// A whole block.
    Block(Stored, Vec<u8>),
    /// A block whose payload is damaged.
    Broken(Stored),
    /// A block that the end of the input cuts.
    Cut(Stored, Vec<u8>),
    Footer(Footer, u64),
    /// Bytes that are not part of the trace.
    Garbage(u64),
}

/// Reads from `source` in order, with a buffer of bounded size.
pub(super) struct Scanner<R> {
    source: R,
    buffer: Vec<u8>,
    /// Number of bytes at the front of the buffer that are consumed.
    start: usize,
    /// Where `start` is in the input.
    offset: u64,
    ended: bool,
    /// The serial of the stream, once known. Bytes of other traces are garbage: they may be content that a program
    /// wrote.
    serial: Option<[u8; 16]>,
}

const CHUNK: usize = 32 << 10;

impl<R: Read> Scanner<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            source,
            buffer: Vec::new(),
            start: 0,
            offset: 0,
            ended: false,
            serial: None,
        }
    }

    /// Reads on until `len` bytes are there, or the input has ended.
    fn fill(&mut self, len: usize) -> io::Result<()> {
        while self.rest().len() < len && !self.ended {
            if self.start > 0 {
                self.buffer.drain(..self.start);
                self.start = 0;
            }
            let old = self.buffer.len();
            self.buffer.resize(old + CHUNK.max(len - old), 0);
            let slot = self.buffer.get_mut(old..).unwrap_or_default();
            let read = loop {
                match self.source.read(slot) {
                    Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                    other => break other,
                }
            };
            self.buffer.truncate(old + *read.as_ref().unwrap_or(&0));
            self.ended = read? == 0;
        }
        Ok(())
    }

    pub(super) fn rest(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    /// The first bytes of the input, before anything was taken.
    pub(super) fn peek(&mut self, len: usize) -> io::Result<&[u8]> {
        self.fill(len)?;
        Ok(self.rest())
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        let taken = self.rest().get(..len).unwrap_or_default().to_vec();
        self.skip(len);
        taken
    }

    fn skip(&mut self, len: usize) {
        self.start += len;
        self.offset += len as u64;
    }

    /// Finds the next block or garbage; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Found>> {
        self.fill(BlockHeader::LEN)?;
        let offset = self.offset;
        let mut garbage = 0u64;
        while !self.rest().is_empty() {
            let what = self.whole()?;
            if garbage > 0 && (what.is_some() || self.starts_block(self.rest())) {
                let what = What::Garbage(garbage);
                // The piece is put back: the next call returns it.
                return Ok(Some(Found { offset, what }));
            }
            if let Some(what) = what {
                return Ok(Some(Found {
                    offset,
                    what: self.consume(what),
                }));
            }
            let skipped = self.next_candidate();
            self.skip(skipped);
            garbage += skipped as u64;
            self.fill(BlockHeader::LEN)?;
        }
        let what = What::Garbage(garbage);
        Ok((garbage > 0).then_some(Found { offset, what }))
    }

    /// Number of bytes to the next place where a block might start, at least one.
    fn next_candidate(&self) -> usize {
        let rest = self.rest();
        let starts = |window: &[u8]| {
            window == &SYNC[..4] || window == &MAGIC[..4] || window == &Footer::MAGIC[..4]
        };
        let found = rest.windows(4).skip(1).position(starts);
        match found {
            Some(at) => at + 1,
            // The last bytes may be the beginning of a marker, unless the input has ended.
            None if self.ended => rest.len(),
            None => rest.len().saturating_sub(3).max(1),
        }
    }

    fn starts_block(&self, bytes: &[u8]) -> bool {
        self.header(bytes).is_some()
    }

    fn header(&self, bytes: &[u8]) -> Option<Stored> {
        let stored = Stored::decode(bytes.get(..BlockHeader::LEN)?).ok()?;
        let ours = self
            .serial
            .is_none_or(|serial| serial == stored.header.serial);
        ours.then_some(stored)
    }

    /// The piece of a trace at the front of the buffer, if there is one. Consumes nothing.
    fn whole(&mut self) -> io::Result<Option<Piece>> {
        let header = self.rest().get(..FILE_HEADER_LEN).map(FileHeader::decode);
        if let Some(Ok(header)) = header
            && self.serial.is_none_or(|serial| serial == header.serial)
        {
            return Ok(Some(Piece::FileHeader(header)));
        }
        if let Some(stored) = self.header(self.rest()) {
            return Ok(Some(Piece::Block(stored)));
        }
        let Some(len) = Footer::len(self.rest()) else {
            return Ok(None);
        };
        self.fill(len)?;
        let footer = self.rest().get(..len).map(Footer::decode);
        Ok(match footer {
            Some(Ok((footer, offset))) => Some(Piece::Footer(footer, offset, len)),
            _ => None,
        })
    }

    fn consume(&mut self, piece: Piece) -> What {
        match piece {
            Piece::FileHeader(header) => {
                self.serial = Some(header.serial);
                self.skip(FILE_HEADER_LEN);
                What::FileHeader(header)
            }
            Piece::Footer(footer, offset, len) => {
                self.skip(len);
                What::Footer(footer, offset)
            }
            Piece::Block(stored) => self.block(stored),
        }
    }

    fn block(&mut self, stored: Stored) -> What {
        self.serial = Some(stored.header.serial);
        self.skip(BlockHeader::LEN);
        let len = stored.stored_len as usize;
        // An error of the input counts as its end here; the next call gets the error again.
        let failed = self.fill(len).is_err();
        let payload = self.rest().get(..len);
        if payload.is_some_and(|payload| stored.matches(payload)) {
            return What::Block(stored, self.take(len));
        }
        let there = self.rest().get(..len).unwrap_or(self.rest());
        let (whole, len) = (there.len() == len, there.len());
        let other = (0..there.len()).find(|&at| {
            there.get(at..at + SYNC.len()) == Some(&SYNC)
                && self.starts_block(self.rest().get(at..).unwrap_or_default())
        });
        match other {
            Some(at) => self.broken(stored, at),
            None if whole || failed => self.broken(stored, len),
            None => What::Cut(stored, self.take(len)),
        }
    }
}

impl<R: Read + 'static> Scanner<R> {
    pub(super) fn boxed(self) -> Scanner<Box<dyn Read>> {
        Scanner {
            source: Box::new(self.source),
            buffer: self.buffer,
            start: self.start,
            offset: self.offset,
            ended: self.ended,
            serial: self.serial,
        }
    }
}

impl<R: Read> Scanner<R> {
    fn broken(&mut self, stored: Stored, len: usize) -> What {
        self.skip(len);
        What::Broken(stored)
    }
}

/// Something at the front of the buffer.
enum Piece {
    FileHeader(FileHeader),
    Block(Stored),
    Footer(Footer, u64, usize),
}
