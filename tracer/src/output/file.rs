//! The driver for files: one, or segments that follow each other.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use amino_schema::trace::{BlockHeader, Footer, Indexed};

use super::{Block, Output, Stream, file_header};
use crate::Error;

/// How a file is written.
#[derive(Debug, Clone)]
pub struct FileOptions {
    /// Bytes that are collected before a write. 0 writes each block at once.
    pub buffer: usize,
    /// Whether each write waits until the disk has the bytes.
    pub sync: bool,
    /// Segments instead of one file.
    pub rotation: Option<Rotation>,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            buffer: 256 << 10,
            sync: false,
            rotation: None,
        }
    }
}

/// How many segments are kept. The pipeline decides when a new segment begins.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rotation {
    /// Number of segments that stay; older ones are removed. `None` keeps all.
    pub keep: Option<usize>,
}

/// The path of segment `number` of the trace at `path`.
pub fn segment_path(path: &Path, number: u64) -> PathBuf {
    suffixed(path, &format!(".{number}"))
}

/// The path of the file that lists the segments of the trace at `path`.
pub fn manifest_path(path: &Path) -> PathBuf {
    suffixed(path, ".manifest")
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Writes blocks to a file or to segments. Each file ends with an index.
///
/// When a write fails, as on a full disk, the bytes stay in the buffer and the next write tries again; a block that finds the buffer full
/// is refused as a whole, so that the file never has half of a block before a whole one.
pub struct FileOutput {
    path: PathBuf,
    options: FileOptions,
    stream: Option<Stream>,
    current: Option<Current>,
    next_segment: u64,
    segments: VecDeque<Segment>,
}

struct Current {
    path: PathBuf,
    file: File,
    /// Bytes that are in the file.
    written: u64,
    /// Bytes that are not yet there.
    pending: Vec<u8>,
    footer: Footer,
}

/// A line of the manifest.
struct Segment {
    path: PathBuf,
    sequence: u64,
    blocks: usize,
    bytes: u64,
}

/// Bytes that may wait for a disk that has no space, beyond the buffer.
const SPARE: usize = 1 << 20;
/// Maximum number of blocks that an index names: readers find later blocks by reading on.
const MAX_INDEXED: usize = 1 << 20;

impl FileOutput {
    /// Writes to `path`, or to segments whose names begin with it. Nothing exists before the stream begins.
    pub fn new(path: impl Into<PathBuf>, options: FileOptions) -> Self {
        Self {
            path: path.into(),
            options,
            stream: None,
            current: None,
            next_segment: 0,
            segments: VecDeque::new(),
        }
    }

    /// Opens the next file, which begins with the block of this sequence number.
    fn open(&mut self, sequence: u64) -> Result<(), Error> {
        let path = match self.options.rotation {
            Some(_) => segment_path(&self.path, self.next_segment),
            None => self.path.clone(),
        };
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path);
        let file = opened.map_err(|why| Error::output(&path, why))?;
        let serial = self.stream.as_ref().map(|stream| stream.serial);
        self.current = Some(Current {
            path: path.clone(),
            file,
            written: 0,
            pending: file_header(serial.unwrap_or_default()),
            footer: Footer::default(),
        });
        if let Some(stream) = &self.stream {
            stream.progress.new_file();
        }
        self.next_segment += 1;
        if let Some(rotation) = self.options.rotation {
            self.segments.push_back(Segment {
                path,
                sequence,
                blocks: 0,
                bytes: 0,
            });
            while rotation
                .keep
                .is_some_and(|keep| self.segments.len() > keep.max(1))
            {
                if let Some(old) = self.segments.pop_front() {
                    std::fs::remove_file(&old.path).map_err(|why| Error::output(&old.path, why))?;
                }
            }
            self.write_manifest()?;
        }
        Ok(())
    }

    /// Ends the current file, with its index.
    fn close(&mut self) -> Result<(), Error> {
        let sync = self.options.sync;
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        let offset = current.written + current.pending.len() as u64;
        current.pending.extend(current.footer.encode(offset));
        current
            .drain(sync)
            .map_err(|why| Error::output(&current.path, why))?;
        if let Some(segment) = self.segments.back_mut() {
            segment.blocks = current.footer.blocks.len();
            segment.bytes = current.written;
            self.write_manifest()?;
        }
        Ok(())
    }

    /// Replaces the manifest as a whole.
    fn write_manifest(&self) -> Result<(), Error> {
        let mut text = String::new();
        for segment in &self.segments {
            let name = segment
                .path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy();
            let Segment {
                sequence,
                blocks,
                bytes,
                ..
            } = segment;
            text.push_str(&format!("{name}\t{sequence}\t{blocks}\t{bytes}\n"));
        }
        let path = manifest_path(&self.path);
        let new = suffixed(&path, ".new");
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &path));
        written.map_err(|why| Error::output(&path, why))
    }
}

impl Current {
    /// Writes the pending bytes, as many as the disk takes.
    fn drain(&mut self, sync: bool) -> io::Result<()> {
        let mut done = 0;
        let result = loop {
            let rest = self.pending.get(done..).unwrap_or_default();
            if rest.is_empty() {
                break Ok(());
            }
            match self.file.write(rest) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => done += len,
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => break Err(why),
            }
        };
        self.pending.drain(..done);
        self.written += done as u64;
        result?;
        if sync { self.file.sync_data() } else { Ok(()) }
    }
}

impl Output for FileOutput {
    fn initialise(&mut self, stream: &Stream) -> Result<(), Error> {
        self.stream = Some(stream.clone());
        self.open(0)
    }

    fn write(&mut self, block: Block) -> Result<(), Error> {
        let rotates = block.starts_file && self.options.rotation.is_some();
        let begun = self
            .current
            .as_ref()
            .is_some_and(|it| !it.footer.blocks.is_empty());
        if rotates && begun {
            self.close()?;
            self.open(block.header.sequence)?;
        }
        let (buffer, sync) = (self.options.buffer, self.options.sync);
        let current = self.current.as_mut().ok_or(Error::Ended)?;
        let before = current.pending.len();
        let indexed = current.footer.blocks.len();
        if indexed < MAX_INDEXED {
            current.footer.blocks.push(Indexed {
                kind: block.header.kind,
                offset: current.written + before as u64,
                sequence: block.header.sequence,
                first_ns: block.header.first_ns,
            });
        }
        block.header.encode(&block.payload, &mut current.pending);
        let len = BlockHeader::LEN + block.payload.len();
        if current.pending.len() >= buffer {
            let (start, result) = (current.written, current.drain(sync));
            if let Err(why) = result {
                let kept = current.pending.len() <= buffer + SPARE;
                let written = current.written - start;
                // A block that is partly in the file already must be finished; a later block can be refused.
                if !kept && written <= before as u64 {
                    current.pending.truncate(before - written as usize);
                    current.footer.blocks.truncate(indexed);
                    return Err(Error::output(&current.path, why));
                }
            }
        }
        if let Some(stream) = &self.stream {
            stream.progress.add(len);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        let sync = self.options.sync;
        match &mut self.current {
            Some(current) => {
                let drained = current.drain(sync);
                drained.map_err(|why| Error::output(&current.path, why))
            }
            None => Ok(()),
        }
    }

    fn release(&mut self) -> Result<(), Error> {
        self.close()
    }

    fn preferred_block(&self) -> usize {
        64 << 10
    }
}
