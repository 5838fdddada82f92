//! Files of an engine that a checkpoint relies on: their sums, and a copy of an engine for reading.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use amino_schema::holdings::Sum;

use crate::Error;

const CHUNK: usize = 256 << 10;

/// The sum of the first `len` bytes of a file; `None` if it is shorter.
pub(super) fn sum(path: &Path, len: u64) -> Result<Option<u64>, Error> {
    let (total, sum) = sum_up_to(path, len)?;
    Ok((total == len).then_some(sum))
}

/// Length and sum of the first `len` bytes of a file, or of all that it has.
pub(super) fn sum_up_to(path: &Path, len: u64) -> Result<(u64, u64), Error> {
    let file = File::open(path).map_err(Error::io("read", path))?;
    let mut left = file.take(len);
    let (mut sum, mut total) = (Sum::default(), 0);
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = match left.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(Error::io("read", path))?,
        };
        if read == 0 {
            return Ok((total, sum.finish()));
        }
        sum.update(chunk.get(..read).unwrap_or_default());
        total += read as u64;
    }
}

/// Copies the directory `from` to `to`, which does not exist. Files that an engine never writes to again are linked where
/// possible.
pub(crate) fn link_tree(from: &Path, to: &Path) -> Result<(), Error> {
    link_entries(from, to).map_err(Error::io("copy the engine to", to))
}

fn link_entries(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    let link_files = from.ends_with("tables");
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            link_entries(&path, &target)?;
        } else if !link_files || fs::hard_link(&path, &target).is_err() {
            fs::copy(path, target)?;
        }
    }
    Ok(())
}
