//! Files of an engine that a checkpoint relies on: their sums, and whether they are still what they were.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use amino_schema::holdings::Sum;

use crate::Error;

const CHUNK: usize = 256 << 10;

/// The sum of the first `len` bytes of a file; `None` if it is shorter.
pub(super) fn sum(path: &Path, len: u64) -> Result<Option<u64>, Error> {
    let reading = |error| Error::io("read", path)(error);
    let file = File::open(path).map_err(reading)?;
    let mut left = file.take(len);
    let (mut sum, mut total) = (Sum::default(), 0);
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = match left.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(|error| Error::io("read", path)(error))?,
        };
        if read == 0 {
            return Ok((total == len).then(|| sum.finish()));
        }
        sum.update(chunk.get(..read).unwrap_or_default());
        total += read as u64;
    }
}
