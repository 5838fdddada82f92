//! The header of an open store on disk: it is always replaced atomically, so that a crash leaves the former header or
//! the new one.
//!
//! The former header stays beside it as `AMINO.next`, and the next replacement overwrites that file: so the header can
//! be replaced on a full disk.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use amino_schema::header::Header;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use parking_lot::Mutex;

use super::{HEADER, NEXT_HEADER};
use crate::Error;
use crate::host::sync_dir;

/// The header of the store in a directory that this process has locked.
pub(crate) struct HeaderFile {
    dir: PathBuf,
    header: Mutex<Header>,
}

impl HeaderFile {
    /// `header` is the content of the file, or the base of its first version.
    pub(crate) fn new(dir: &Path, header: Header) -> Self {
        Self {
            dir: dir.to_owned(),
            header: Mutex::new(header),
        }
    }

    /// The present header.
    pub(crate) fn get(&self) -> Header {
        self.header.lock().clone()
    }

    /// Changes the header; returns when the new one is on disk. After a failure the file may have either.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Header)) -> Result<(), Error> {
        let mut header = self.header.lock();
        let mut new = header.clone();
        change(&mut new);
        if new != *header {
            replace(&self.dir, &new)?;
            *header = new;
        }
        Ok(())
    }
}

fn replace(dir: &Path, header: &Header) -> Result<(), Error> {
    let (next, path) = (dir.join(NEXT_HEADER), dir.join(HEADER));
    write_synced(&next, &header.encode())?;
    let exchanged = renameat2(
        AT_FDCWD,
        &next,
        AT_FDCWD,
        &path,
        RenameFlags::RENAME_EXCHANGE,
    );
    // The first header has no former one to be exchanged with, and some file systems cannot exchange files.
    if exchanged.is_err() {
        fs::rename(&next, &path).map_err(Error::io("rename", &next))?;
    }
    sync_dir(dir)
}

/// Writes these bytes to the file `path`, and syncs it. Keeps the blocks that the file has.
pub(super) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let written = options.open(path).and_then(|file| {
        file.write_all_at(bytes, 0)?;
        file.set_len(bytes.len() as u64)?;
        file.sync_all()
    });
    written.map_err(Error::io("write", path))
}
