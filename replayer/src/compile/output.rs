//! Writes the compiled file: buffers, each content once, and blocks of commands, in the order in which they
//! are complete.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use amino_schema::replay::{Block, Command, HEAD_LEN, Head, Index, Lane, Located};
use goanna_sys::replacement::Replacement;

use crate::Error;

/// Bytes of commands of a lane that are collected before they are written.
const BLOCK: usize = 64 << 10;
/// Bytes of commands of all lanes.
const MAX_PENDING: usize = 32 << 20;

/// A compiled file.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    replacement: Replacement,
    file: BufWriter<File>,
    at: u64,
    buffers: HashMap<[u8; 16], (u64, u32, u32)>,
    blocks: Vec<Block>,
    lanes: Vec<Lane>,
    pending: usize,
    /// Bytes of the parts that have been written.
    pub sizes: Sizes,
}

/// Bytes of the parts of a compiled file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Commands.
    pub commands: u64,
    /// Buffers.
    pub buffers: u64,
    /// The index, which is in memory while the replay runs.
    pub index: u64,
}

impl Output {
    pub fn create(path: &Path) -> Result<Self, Error> {
        let failed = |why| Error::file(path, why);
        let replacement = Replacement::begin(path).map_err(failed)?;
        let file = File::create(replacement.file()).map_err(failed)?;
        let mut output = Self {
            path: path.to_owned(),
            replacement,
            file: BufWriter::with_capacity(1 << 20, file),
            at: 0,
            buffers: HashMap::new(),
            blocks: Vec::new(),
            lanes: Vec::new(),
            pending: 0,
            sizes: Sizes::default(),
        };
        output.write(&[0; HEAD_LEN])?;
        Ok(output)
    }

    fn error(&self) -> impl Fn(io::Error) -> Error + use<> {
        let path = self.path.clone();
        move |why| Error::file(&path, why)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<Located, Error> {
        self.file.write_all(bytes).map_err(self.error())?;
        let offset = self.at;
        self.at += bytes.len() as u64;
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        Ok(Located { offset, length })
    }

    /// Stores content, once for equal contents.
    pub fn buffer(&mut self, hash: [u8; 16], data: &[u8]) -> Result<(), Error> {
        if self.buffers.contains_key(&hash) {
            return Ok(());
        }
        let located = self.write(data)?;
        let sum = crc32c::crc32c(data);
        let buffer = (located.offset, located.length, sum);
        self.buffers.insert(hash, buffer);
        self.sizes.buffers += data.len() as u64;
        Ok(())
    }

    /// The position of the content with this hash.
    pub fn find(&self, hash: &[u8; 16]) -> Option<(u64, u32, u32)> {
        self.buffers.get(hash).copied()
    }

    /// Adds a command to a lane.
    pub fn command(&mut self, lane: u32, command: &Command) -> Result<(), Error> {
        let lane = lane as usize;
        if self.blocks.len() <= lane {
            self.blocks.resize_with(lane + 1, Block::default);
            self.lanes.resize_with(lane + 1, Lane::default);
        }
        let Some(block) = self.blocks.get_mut(lane) else {
            return Ok(());
        };
        let before = block.len();
        block.push(command);
        self.pending += block.len().saturating_sub(before);
        if block.len() >= BLOCK {
            self.flush(lane)?;
        }
        if self.pending >= MAX_PENDING {
            for lane in 0..self.blocks.len() {
                self.flush(lane)?;
            }
        }
        Ok(())
    }

    fn flush(&mut self, lane: usize) -> Result<(), Error> {
        let raw = match self.blocks.get_mut(lane) {
            Some(block) if !block.is_empty() => block.finish(),
            _ => return Ok(()),
        };
        self.pending = self.pending.saturating_sub(raw.len());
        self.sizes.commands += raw.len() as u64;
        let located = self.write(&raw)?;
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.blocks.push(located);
        }
        Ok(())
    }

    /// Writes the index and the head.
    pub fn finish(mut self, mut index: Index) -> Result<Sizes, Error> {
        for lane in 0..self.blocks.len() {
            self.flush(lane)?;
        }
        index.lanes = std::mem::take(&mut self.lanes);
        let raw = index.encode();
        let index_at = self.at;
        let index_sum = crc32c::crc32c(&raw);
        self.write(&raw)?;
        self.sizes.index = raw.len() as u64;
        let head = Head {
            index_at,
            index_len: raw.len() as u64,
            index_sum,
        };
        let error = self.error();
        self.file.seek(SeekFrom::Start(0)).map_err(&error)?;
        self.file.write_all(&head.encode()).map_err(&error)?;
        self.file.flush().map_err(&error)?;
        self.replacement.finish().map_err(&error)?;
        Ok(self.sizes)
    }
}
