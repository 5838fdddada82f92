//! Operations on whole directories of an engine with two copies: sums, copying one to the other, and disk space behind the
//! ends of files.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use amino_schema::header::FileSum;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

use super::files::sum_up_to;
use crate::Error;
use crate::space::Disk;

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

/// The length of a file; 0 if there is none.
pub(super) fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

/// Bytes of disk that a file has behind its end.
pub(super) fn preallocated(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| {
        (found.blocks() * 512).saturating_sub(found.len())
    })
}

/// Allocates the disk space that a file needs to grow to `end`; its length stays. [`Error::NoSpace`] when there is not
/// enough.
pub(super) fn allocate_behind(path: &Path, end: u64) -> Result<(), Error> {
    let file = match OpenOptions::new().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(Error::io("open", path))?,
    };
    let from = len(path);
    let (Ok(offset), Ok(bytes)) = (i64::try_from(from), i64::try_from(end.saturating_sub(from)))
    else {
        return Err(Error::NoSpace);
    };
    loop {
        match fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, offset, bytes) {
            Err(Errno::EINTR) => {}
            Err(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG) => return Err(Error::NoSpace),
            // The result if the file system cannot allocate.
            Err(Errno::EOPNOTSUPP) if Disk::of(path)?.available < end.saturating_sub(from) => {
                return Err(Error::NoSpace);
            }
            Ok(()) | Err(Errno::EOPNOTSUPP) => return Ok(()),
            Err(errno) => return Err(Error::io("preallocate", path)(errno.into())),
        }
    }
}

/// Frees the disk space that a file has behind its end. No other thread changes its length.
pub(super) fn trim(path: &Path) -> Result<(), Error> {
    let file = match OpenOptions::new().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(Error::io("open", path))?,
    };
    let trimmed = file.metadata().and_then(|found| file.set_len(found.len()));
    trimmed.map_err(Error::io("trim", path))
}

/// Copies the directory `from` in `dir` to `to` in `dir`. Keeps the blocks of existing files: on a full disk other
/// programs would take freed blocks.
pub(super) fn overwrite_tree(dir: &Path, from: &str, to: &str) -> Result<(), Error> {
    let wanted = names(dir, from)?;
    let of_copy = |name: &str| name.replacen(from, to, 1);
    for name in names(dir, to)? {
        if !wanted.iter().any(|wanted| of_copy(wanted) == name) {
            let path = dir.join(name);
            fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        }
    }
    for name in &wanted {
        let path = dir.join(of_copy(name));
        overwrite(&dir.join(name), &path).map_err(Error::io("copy the engine to", &path))?;
    }
    Ok(())
}

fn overwrite(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut options = OpenOptions::new();
    let mut to = options.write(true).create(true).truncate(false).open(to)?;
    let len = io::copy(&mut File::open(from)?, &mut to)?;
    to.set_len(len)
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

/// Length and sum of a whole file.
pub(super) fn sum_of_all(path: &Path) -> Result<(u64, u64), Error> {
    sum_up_to(path, u64::MAX)
}
