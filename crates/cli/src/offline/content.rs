//! The content of a file as that of a new file of the store.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use amino_fs::AminoFs;
use goanna_vfs::{Errno, FileKind, Native, OpenFile, Opened, Place, Spot, ops};
use rustix::fs::SeekFrom;

use super::host;
use super::tree::Tree;
use super::trouble::Trouble;

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

/// A regular file whose content is copied.
pub enum Source {
    /// A file of the host.
    Host(OwnedFd),
    /// A file of a mount, with the content that the tree's caller sees: a descriptor shows what is outside of its transaction.
    Mounted(Place),
}

impl Source {
    /// Its size in bytes, and whether it may have holes.
    fn measure(&self, tree: &Tree) -> Result<(u64, bool), Trouble> {
        let changed = Trouble::text("was exchanged while it was read");
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
                let attr = tree.until_free(|| fs.getattr(&tree.caller, &place.node))?;
                Ok((attr.size, true))
            }
        }
    }

    /// The first range of data at or after `at`: start and end.
    fn next_data(&self, at: u64, size: u64) -> Result<(u64, u64), Trouble> {
        let Self::Host(fd) = self else {
            return Ok((at, size));
        };
        let start = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Ok(start) => start.min(size),
            // No data up to the end.
            Err(rustix::io::Errno::NXIO) => size,
            // No notion of holes: all is data.
            Err(rustix::io::Errno::INVAL) => at,
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(fd, SeekFrom::Hole(start)).unwrap_or(size);
        Ok((start, end.min(size)))
    }

    fn read(&self, tree: &Tree, at: u64, buffer: &mut [u8]) -> Result<usize, Trouble> {
        match self {
            Self::Host(fd) => Ok(rustix::io::pread(fd, buffer, at)?),
            Self::Mounted(place) => {
                let fs = &place.mount.fs;
                Ok(tree.until_free(|| fs.read_at(&tree.caller, &place.node, at, buffer))?)
            }
        }
    }
}

/// Makes the file `name` in `dir` of `tree` with what the regular file `from` holds, holes included. `store`, if the tree is
/// one's, takes files without holes faster than the switch can. `copied` is told of each piece.
///
/// A file that could not be copied as a whole is removed.
pub fn fill(
    tree: &Tree,
    store: Option<&AminoFs>,
    dir: &Place,
    name: &[u8],
    from: Source,
    copied: &mut dyn FnMut(Copied),
) -> Result<Place, Trouble> {
    let (size, has_holes) = from.measure(tree)?;
    let result = match (store, from) {
        (Some(store), Source::Host(from)) if !has_holes => {
            pour(tree, store, dir, name, from, size, copied)
        }
        (_, from) => write(tree, dir, name, &from, size, copied),
    };
    result.inspect_err(|trouble| {
        // Half a file under its full name would be taken for the whole. One that was there is somebody else's.
        if !matches!(trouble, Trouble::Store(Errno::EEXIST)) {
            let _ = tree.until_free(|| ops::unlink(&tree.caller, dir, name));
        }
    })
}

/// Makes the file through the store's own entrance.
fn pour(
    tree: &Tree,
    store: &AminoFs,
    dir: &Place,
    name: &[u8],
    from: OwnedFd,
    size: u64,
    copied: &mut dyn FnMut(Copied),
) -> Result<Place, Trouble> {
    let caller = &tree.caller;
    ops::access(caller, dir, nix::libc::W_OK | nix::libc::X_OK)?;
    let mut reader = std::fs::File::from(from).take(size);
    let mut data = 0;
    let mut progress = |bytes| {
        data += bytes;
        copied(Copied {
            data: bytes,
            holes: 0,
        });
    };
    // A lock is met before anything is read.
    let node = tree.until_free(|| {
        let poured = store.import_file(caller, &dir.node, name, 0o600, &mut reader, &mut progress);
        match poured {
            Err(amino_fs::Error::Operation { errno, .. }) => Err(errno),
            poured => Ok(poured),
        }
    })?;
    let node = node.map_err(|error| Trouble::Other(error.to_string().into()))?;
    if data < size {
        return Err(Trouble::text(SHORTER));
    }
    Ok(tree.place(node))
}

/// Makes the file through the switch, with its holes.
fn write(
    tree: &Tree,
    dir: &Place,
    name: &[u8],
    from: &Source,
    size: u64,
    copied: &mut dyn FnMut(Copied),
) -> Result<Place, Trouble> {
    let flags = nix::libc::O_RDWR | nix::libc::O_CREAT | nix::libc::O_EXCL;
    let made = tree.until_free(|| ops::create(&tree.caller, dir, name, 0o600, flags));
    let (node, opened) = made?;
    let place = tree.place(node);
    let done = data(tree, from, size, &place, &opened, copied);
    let cached = matches!(opened.native, Native::Reads { .. });
    drop(opened);
    if let Some(content) = tree.fs().content().filter(|_| cached) {
        content.released(&place.node);
    }
    done?;
    Ok(place)
}

/// Copies data, and leaves holes where the source has them.
fn data(
    tree: &Tree,
    from: &Source,
    size: u64,
    to: &Place,
    opened: &Opened,
    copied: &mut dyn FnMut(Copied),
) -> Result<(), Trouble> {
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
                return Err(Trouble::text(SHORTER));
            }
            let piece = buffer.get(..count).unwrap_or_default();
            let mut done = Copied::default();
            // Nobody says where a file of a mount has holes.
            if matches!(from, Source::Mounted(_)) && piece.iter().all(|&byte| byte == 0) {
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
            Native::All => rustix::fs::ftruncate(&opened.fd, size)?,
            Native::Reads { .. } => {
                tree.until_free(|| tree.fs().truncate(&tree.caller, &to.node, size))?;
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
) -> Result<(), Trouble> {
    while !data.is_empty() {
        if !tree.is_wanted() {
            return Err(Errno::EINTR.into());
        }
        let count = match opened.native {
            Native::All => rustix::io::pwrite(&opened.fd, data, offset)?,
            Native::Reads { .. } => {
                let file = OpenFile {
                    node: &to.node,
                    ofd: opened.fd.as_fd(),
                    flags: nix::libc::O_RDWR,
                };
                let spot = Spot::At(offset);
                tree.until_free(|| tree.fs().write(&tree.caller, file, spot, data))?
            }
        };
        if count == 0 {
            return Err(Trouble::Store(Errno::EIO));
        }
        data = data.get(count..).unwrap_or_default();
        offset += count as u64;
    }
    Ok(())
}
