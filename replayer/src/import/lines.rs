//! Reads the lines of a text, and makes errors with the position in a line.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::Error;

/// Reads a file line by line.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    file: BufReader<File>,
    /// A line of this many bytes is refused.
    limit: u64,
    /// Number of the last line, from 1.
    pub number: u64,
    /// Bytes that were read.
    pub read: u64,
}

impl Lines {
    pub fn open(path: &Path, limit: u64) -> Result<Self, Error> {
        let file = File::open(path).map_err(|why| Error::file(path, why))?;
        Ok(Self {
            path: path.to_owned(),
            file: BufReader::with_capacity(1 << 20, file),
            limit,
            number: 0,
            read: 0,
        })
    }

    /// Puts the next line in the place of `line`, with its end; `false` at the end of the file.
    pub fn next(&mut self, line: &mut Vec<u8>) -> Result<bool, Error> {
        line.clear();
        let mut limited = self.file.by_ref().take(self.limit);
        let read = limited.read_until(b'\n', line);
        let read = read.map_err(|why| Error::file(&self.path, why))? as u64;
        if read == 0 {
            return Ok(false);
        }
        self.read += read;
        self.number += 1;
        if read == self.limit {
            return Err(self.wrong(line.len(), "the line is too long"));
        }
        Ok(true)
    }

    /// An error at byte `at` of the last line, from 0.
    pub fn wrong(&self, at: usize, why: &'static str) -> Error {
        self.wrong_in(self.number.max(1), at, why)
    }

    /// An error at byte `at` of a line that was read before.
    pub fn wrong_in(&self, line: u64, at: usize, why: &'static str) -> Error {
        Error::Text {
            path: self.path.clone(),
            line,
            column: at as u64 + 1,
            why,
        }
    }
}
