//! Creates the initial state of a replay below a directory.
//!
//! `check.rs` finds out which files are missing before any is created, `make.rs` creates files as the trace shows them, `snapshot.rs`
//! copies them from a directory.

mod check;
mod make;
mod snapshot;

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::Path;

use amino_schema::replay::What;
use goanna_sys::replay as sys;

use crate::Error;
use crate::stored::Stored;

pub use check::missing;
use check::{conflicts, is_there, space};
use make::{at, make};
use snapshot::Snapshot;

/// Name of the file that stands for the unknown content of a directory that is not empty. A directory with other files does not need it.
pub const FILLER: &[u8] = b".replayer-filler";

/// Counts of the files that were created.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// Files of all types.
    pub files: u64,
    /// Bytes of regular files whose content is known.
    pub known: u64,
    /// Bytes of regular files.
    pub bytes: u64,
    /// Files that existed already with the right type.
    pub present: u64,
    /// Files whose owner only root can set.
    pub skipped_owners: u64,
    /// Extended attributes that the file system or the kernel refused.
    pub skipped_attributes: u64,
    /// Devices and sockets of the snapshot.
    pub skipped_files: u64,
}

/// Makes the initial state of the compiled replay at `path` below `root`: as the trace shows it, or as a copy of `snapshot`.
///
/// All checks precede the first change. `root` is created if its parent exists.
///
/// # Errors
///
/// [`Error::Snapshot`] lists the files that the snapshot lacks, [`Error::Conflict`] the files below `root` that have another type.
pub fn prepare(path: &Path, root: &Path, snapshot: Option<&Path>) -> Result<Made, Error> {
    let stored = Stored::open(path)?;
    let snapshot = match snapshot {
        Some(directory) => Some(Snapshot::open(&stored.index, directory, root)?),
        None => None,
    };
    let sizes = stored.index.initial.iter().map(|file| file.size);
    let needed = match &snapshot {
        Some(snapshot) => snapshot.bytes,
        None => sizes.fold(0u64, u64::saturating_add),
    };
    let opened = open_root(root, needed, |root| {
        let conflicts = match &snapshot {
            Some(snapshot) => snapshot.conflicts(root)?,
            None => conflicts(&stored.index, root),
        };
        match conflicts.is_empty() {
            true => Ok(()),
            false => Err(Error::Conflict { conflicts }),
        }
    })?;
    sys::own_directory().map_err(|why| Error::System {
        what: "unshare",
        why,
    })?;
    let _ = sys::umask(0);
    match &snapshot {
        Some(snapshot) => snapshot.copy(&opened),
        None => from_trace(&stored, opened.as_raw_fd()),
    }
}

/// Opens the root, which is made if it does not exist. `check` examines a root that exists.
fn open_root(
    root: &Path,
    needed: u64,
    check: impl FnOnce(i32) -> Result<(), Error>,
) -> Result<File, Error> {
    let failed = |why| Error::file(root, why);
    match File::open(root) {
        Ok(opened) => {
            space(needed, &opened)?;
            check(opened.as_raw_fd())?;
            Ok(opened)
        }
        Err(why) if why.kind() == ErrorKind::NotFound => {
            let parent = match root.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            space(needed, &File::open(parent).map_err(failed)?)?;
            std::fs::create_dir(root).map_err(failed)?;
            File::open(root).map_err(failed)
        }
        Err(why) => Err(failed(why)),
    }
}

fn from_trace(stored: &Stored, root: i32) -> Result<Made, Error> {
    let mut made = Made::default();
    for file in &stored.index.initial {
        let failed = |why| Error::Place {
            path: file.path.clone(),
            why,
        };
        if is_there(&stored.index, root, file).map_err(failed)? {
            made.present += 1;
            continue;
        }
        make(stored, root, file, &mut made)?;
        made.files += 1;
    }
    // Directories last: files cannot be created in a directory without write permission.
    for file in stored.index.initial.iter().rev() {
        if let (What::Directory, Some(mode)) = (&file.what, file.mode) {
            let set = at(root, &file.path, |directory, name| {
                sys::chmod(directory, name, mode)
            });
            set.map_err(|why| Error::Place {
                path: file.path.clone(),
                why,
            })?;
        }
    }
    Ok(made)
}
