//! The source from which the content cache reads files of an image.

use std::fs::File;

use goanna_cache::FileSource;
use goanna_vfs::{Errno, Node, Result};

use crate::entry::{Entry, Meta, Sections};
use crate::format::zisofs::Zisofs;
use crate::iso::Iso;

/// The key of a content: inode and place. An inode number alone is not enough, since a damaged image can give
/// one to several files.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ContentKey {
    ino: u64,
    sections: Sections,
    zisofs: Option<Zisofs>,
}

fn meta(file: &Node) -> Result<&Meta, Errno> {
    let entry = file.pin::<Entry>().ok_or(Errno::ESTALE)?;
    Ok(entry)
}

impl FileSource for Iso {
    type Key = ContentKey;

    fn key(&self, file: &Node) -> Result<ContentKey, Errno> {
        let meta = meta(file)?;
        Ok(ContentKey {
            ino: meta.ino,
            sections: meta.sections.clone(),
            zisofs: meta.zisofs,
        })
    }

    /// A file that does not lie completely within the image cannot be opened.
    fn size(&self, file: &Node) -> Result<u64, Errno> {
        let meta = meta(file)?;
        self.check_content(meta).map_err(|error| error.errno())?;
        Ok(meta.size)
    }

    fn read_at(&self, file: &Node, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let read = Iso::read_at(self, meta(file)?, offset, buf);
        read.map_err(|error| error.errno())
    }

    fn next_data(&self, file: &Node, offset: u64) -> Result<Option<u64>, Errno> {
        let next = Iso::next_data(self, meta(file)?, offset);
        next.map_err(|error| error.errno())
    }

    fn in_host_file(&self, file: &Node) -> Option<(&File, u64)> {
        self.in_one_piece(meta(file).ok()?)
    }
}
