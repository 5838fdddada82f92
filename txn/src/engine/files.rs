//! Files of an engine that a checkpoint relies on: their sums, and copies of whole directories.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use amino_schema::header::FileSum;
use amino_schema::holdings::Sum;

use crate::Error;

const CHUNK: usize = 256 << 10;

/// The sum of the first `len` bytes of a file; `None` if it is shorter.
pub(super) fn sum(path: &Path, len: u64) -> Result<Option<u64>, Error> {
    let (total, sum) = sum_up_to(path, len)?;
    Ok((total == len).then_some(sum))
}

/// Length and sum of a whole file.
pub(super) fn sum_of_all(path: &Path) -> Result<(u64, u64), Error> {
    sum_up_to(path, u64::MAX)
}

fn sum_up_to(path: &Path, len: u64) -> Result<(u64, u64), Error> {
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

/// The files in the directory `below` of `dir` and in its directories, as paths from `dir`, in order.
pub(super) fn names(dir: &Path, below: &str) -> Result<Vec<String>, Error> {
    let path = dir.join(below);
    let mut names = Vec::new();
    let entries = match fs::read_dir(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(names),
        entries => entries.map_err(Error::io("list", &path))?,
    };
    for entry in entries {
        let entry = entry.map_err(Error::io("list", &path))?;
        let name = format!("{below}/{}", entry.file_name().to_string_lossy());
        if entry
            .file_type()
            .map_err(Error::io("list", &path))?
            .is_dir()
        {
            names.extend(self::names(dir, &name)?);
        } else {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The sums of all files in the directory `below` of `dir`.
pub(super) fn sums(dir: &Path, below: &str) -> Result<Vec<FileSum>, Error> {
    let names = names(dir, below)?.into_iter();
    let sums = names.map(|name| {
        let (len, sum) = sum_of_all(&dir.join(&name))?;
        Ok(FileSum { name, len, sum })
    });
    sums.collect()
}

/// Makes `to` a copy of the directory `from`, in place of whatever is there.
pub(super) fn copy_tree(from: &Path, to: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::io("remove", to)(error));
        }
        _ => {}
    }
    copy_entries(from, to, false).map_err(Error::io("copy the engine to", to))
}

/// As [`copy_tree`]; files that an engine never writes to again are linked where that can be.
pub(crate) fn link_tree(from: &Path, to: &Path) -> Result<(), Error> {
    copy_entries(from, to, true).map_err(Error::io("copy the engine to", to))
}

fn copy_entries(from: &Path, to: &Path, link: bool) -> io::Result<()> {
    fs::create_dir(to)?;
    let link_files = link && from.ends_with("tables");
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy_entries(&path, &target, link)?;
        } else if !link_files || fs::hard_link(&path, &target).is_err() {
            fs::copy(path, target)?;
        }
    }
    Ok(())
}

/// Syncs every file below `dir` and every directory, `dir` included.
pub(super) fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        } else {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(dir)?.sync_all()
}
