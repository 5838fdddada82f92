//! Writes the content of a regular file into a new file of a tree.
//!
//! [`ContentWriter`] is how an import does it: through the file system, or by a shorter way that a store offers.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use amino_fs::{AminoFs, ImportError};
use goanna_vfs::{Errno, FileKind, Native, OpenFile, Opened, Place, WritePosition, ops};
use rustix::fs::SeekFrom;

use super::error::CopyError;
use super::host;
use crate::Tree;

/// How much is written at once: large enough to make calls cheap, small enough to keep memory flat.
const CHUNK: usize = 1 << 20;

const SHORTER: &str = "became shorter while it was read";

/// Bytes that were copied.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Of data.
    pub data: u64,
    /// Of holes.
    pub holes: u64,
}

/// Makes files with the content of host files.
pub trait ContentWriter {
    /// Makes the file `name` in the directory `dir` of `tree`, with the content of the regular file `from`, holes included.
    /// A file that could not be copied as a whole is removed.
    fn write(
        &self,
        tree: &Tree,
        dir: &Place,
        name: &[u8],
        from: OwnedFd,
        copied: &mut dyn FnMut(Copied),
    ) -> Result<Place, CopyError>;
}

/// Writes through the calls of the tree's file system.
pub struct FileSystemWriter;

impl ContentWriter for FileSystemWriter {
    fn write(
        &self,
        tree: &Tree,
        dir: &Place,
        name: &[u8],
        from: OwnedFd,
        copied: &mut dyn FnMut(Copied),
    ) -> Result<Place, CopyError> {
        write_content(tree, None, dir, name, ContentSource::Host(from), copied)
    }
}

/// Writes into the store that holds the tree, which takes files without holes faster than through the calls.
pub struct StoreWriter(pub Arc<AminoFs>);

impl ContentWriter for StoreWriter {
    fn write(
        &self,
        tree: &Tree,
        dir: &Place,
        name: &[u8],
        from: OwnedFd,
        copied: &mut dyn FnMut(Copied),
    ) -> Result<Place, CopyError> {
        let from = ContentSource::Host(from);
        write_content(tree, Some(&self.0), dir, name, from, copied)
    }
}

/// A regular file whose content is copied.
pub enum ContentSource {
    /// A file of the host.
    Host(OwnedFd),
    /// A file of a mount, with the content that the tree's caller sees in its transaction. A descriptor of it would show
    /// the committed content.
    Mounted(Place),
}

impl ContentSource {
    /// Its size in bytes, and whether it may have holes.
    fn measure(&self, tree: &Tree) -> Result<(u64, bool), CopyError> {
        let changed = CopyError::text("was exchanged while it was read");
        match self {
            Self::Host(fd) => {
                let stat = rustix::fs::fstat(fd)?;
                if host::kind(&stat) != Some(FileKind::Regular) {
                    return Err(changed);
                }
                let size = stat.st_size.unsigned_abs();
                Ok((size, stat.st_blocks.unsigned_abs() * 512 < size))
            }
            Self::Mounted(place) if place.node.kind() != FileKind::Regular => Err(changed),
            Self::Mounted(place) => {
                let fs = &place.mount.fs;
                let attr = tree.retry_while_locked(|| fs.getattr(&tree.caller, &place.node))?;
                Ok((attr.size, true))
            }
        }
    }

    /// The first range of data at or after `at`: start and end.
    fn next_data(&self, at: u64, size: u64) -> Result<(u64, u64), CopyError> {
        let Self::Host(fd) = self else {
            return Ok((at, size));
        };
        let start = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Ok(start) => start.min(size),
            // No data up to the end.
            Err(rustix::io::Errno::NXIO) => size,
            // The file system does not report holes: everything is data.
            Err(rustix::io::Errno::INVAL) => at,
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(fd, SeekFrom::Hole(start)).unwrap_or(size);
        Ok((start, end.min(size)))
    }

    fn read(&self, tree: &Tree, at: u64, buffer: &mut [u8]) -> Result<usize, CopyError> {
        match self {
            Self::Host(fd) => Ok(rustix::io::pread(fd, buffer, at)?),
            Self::Mounted(place) => {
                let fs = &place.mount.fs;
                Ok(tree.retry_while_locked(|| fs.read_at(&tree.caller, &place.node, at, buffer))?)
            }
        }
    }
}

/// Makes the file `name` in `dir` of `tree` with the content of the regular file `from`, holes included. `store` is the
/// store that holds the tree, if one does and may be written to directly. `copied` receives the size of each piece.
///
/// A file that could not be copied as a whole is removed.
pub fn write_content(
    tree: &Tree,
    store: Option<&AminoFs>,
    dir: &Place,
    name: &[u8],
    from: ContentSource,
    copied: &mut dyn FnMut(Copied),
) -> Result<Place, CopyError> {
    let (size, has_holes) = from.measure(tree)?;
    match (store, from) {
        (Some(store), ContentSource::Host(from)) if !has_holes => {
            write_to_store(tree, store, dir, name, from, size, copied)
        }
        (_, from) => write_through_calls(tree, dir, name, &from, size, copied),
    }
}

/// Removes a file that could not be copied completely, because a reader could take it for the complete file. If another file has its
/// name by now, that file stays.
fn remove_part(tree: &Tree, dir: &Place, name: &[u8], part: &Place) {
    let _ = tree.retry_while_locked(|| {
        let found = ops::lookup(&tree.caller, dir, name)?;
        match found.ino() == part.node.ino() {
            true => ops::unlink(&tree.caller, dir, name),
            false => Ok(()),
        }
    });
}

/// Makes the file by the store's import.
fn write_to_store(
    tree: &Tree,
    store: &AminoFs,
    dir: &Place,
    name: &[u8],
    from: OwnedFd,
    size: u64,
    copied: &mut dyn FnMut(Copied),
) -> Result<Place, CopyError> {
    let caller = &tree.caller;
    let may_add = || ops::access(caller, dir, nix::libc::W_OK | nix::libc::X_OK);
    tree.retry_while_locked(may_add)?;
    let mut reader = std::fs::File::from(from).take(size);
    let mut data = 0;
    let mut progress = |bytes| {
        data += bytes;
        copied(Copied {
            data: bytes,
            holes: 0,
        });
    };
    let node = tree.retry_while_locked(|| store.import_new(caller, &dir.node, name, 0o600))?;
    let done = match store.import(caller, &node, &mut reader, &mut progress) {
        Ok(()) if data < size => Err(CopyError::text(SHORTER)),
        Ok(()) => Ok(()),
        Err(ImportError::Store(error)) => Err(error.errno().unwrap_or(Errno::EAGAIN).into()),
        Err(error) => Err(CopyError::Other(error.to_string().into())),
    };
    let place = tree.place(node);
    done.inspect_err(|_| remove_part(tree, dir, name, &place))?;
    Ok(place)
}

/// Makes the file through the calls of the file system, with its holes.
fn write_through_calls(
    tree: &Tree,
    dir: &Place,
    name: &[u8],
    from: &ContentSource,
    size: u64,
    copied: &mut dyn FnMut(Copied),
) -> Result<Place, CopyError> {
    let flags = nix::libc::O_RDWR | nix::libc::O_CREAT | nix::libc::O_EXCL;
    let made = tree.retry_while_locked(|| ops::create(&tree.caller, dir, name, 0o600, flags));
    let (node, opened) = made?;
    let place = tree.place(node);
    let done = copy_data(tree, from, size, &place, &opened, copied);
    let cached = matches!(opened.native, Native::Reads { .. });
    drop(opened);
    if let Some(content) = tree.fs().content().filter(|_| cached) {
        content.released(&place.node);
    }
    done.inspect_err(|_| remove_part(tree, dir, name, &place))?;
    Ok(place)
}

/// Copies data, and leaves holes where the source has them.
fn copy_data(
    tree: &Tree,
    from: &ContentSource,
    size: u64,
    to: &Place,
    opened: &Opened,
    copied: &mut dyn FnMut(Copied),
) -> Result<(), CopyError> {
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while at < size {
        let (start, end) = from.next_data(at, size)?;
        copied(Copied {
            data: 0,
            holes: start - at,
        });
        at = start;
        while at < end {
            let length = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
            let buffer = buffer.get_mut(..length).unwrap_or_default();
            let count = from.read(tree, at, buffer)?;
            if count == 0 {
                return Err(CopyError::text(SHORTER));
            }
            let piece = buffer.get(..count).unwrap_or_default();
            let mut done = Copied::default();
            // The file system does not report where a file of a mount has holes.
            if matches!(from, ContentSource::Mounted(_)) && piece.iter().all(|&byte| byte == 0) {
                done.holes = count as u64;
            } else {
                write_all(tree, to, opened, at, piece)?;
                done.data = count as u64;
            }
            at += count as u64;
            copied(done);
        }
    }
    let now = tree.attr(to)?.size;
    if now < size {
        match opened.native {
            Native::All => rustix::fs::ftruncate(opened.fd()?, size)?,
            Native::Reads { .. } => {
                tree.retry_while_locked(|| tree.fs().truncate(&tree.caller, &to.node, size))?;
            }
        }
    }
    Ok(())
}

fn write_all(
    tree: &Tree,
    to: &Place,
    opened: &Opened,
    mut offset: u64,
    mut data: &[u8],
) -> Result<(), CopyError> {
    while !data.is_empty() {
        if !tree.is_wanted() {
            return Err(Errno::EINTR.into());
        }
        let count = match opened.native {
            Native::All => rustix::io::pwrite(opened.fd()?, data, offset)?,
            Native::Reads { .. } => {
                let file = OpenFile {
                    node: &to.node,
                    ofd: opened.fd()?.as_fd(),
                    flags: nix::libc::O_RDWR,
                };
                let position = WritePosition::At(offset);
                tree.retry_while_locked(|| tree.fs().write(&tree.caller, file, position, data))?
            }
        };
        if count == 0 {
            return Err(CopyError::Tree(Errno::EIO));
        }
        data = data.get(count..).unwrap_or_default();
        offset += count as u64;
    }
    Ok(())
}
