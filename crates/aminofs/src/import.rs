//! Copying files into the store without a content object for each.

use std::io::Read;

use amino_schema::{INLINE_MAX, key, record};
use amino_txn::Changes;
use bytes::Bytes;
use goanna_cache::write_all_at;
use goanna_vfs::{Caller, Errno, FsError, Node};

use crate::AminoFs;
use crate::content::cost::PAGE_COST;
use crate::inode::{PAGE, now};
use crate::view::View;

/// Number of pages that are submitted in one operation.
const CHUNK_PAGES: usize = 64;

/// The reason why a file could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The source could not be read.
    #[error("cannot read the source: {0}")]
    Source(std::io::Error),
    /// The store could not be written.
    #[error(transparent)]
    Store(#[from] FsError),
}

impl AminoFs {
    /// Makes the regular file `name` in `dir`, without a content object, for [`AminoFs::import`] to fill. Unlike that, it waits for locks.
    pub fn import_new(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
    ) -> goanna_vfs::Result<Node> {
        let made = self.view(caller, |view| view.make_file(caller, dir, name, mode))?;
        Ok(made.node())
    }

    /// Fills `file`, which is empty, from `reader`: in steps of 1 MiB, as a program that writes the file, but directly to the store. The
    /// caller sets times and owner by [`setattr`](goanna_vfs::FileSystem::setattr) afterwards. After an error the file has the part that
    /// was written. Bytes read are reported to `progress` after each step.
    pub fn import(
        &self,
        caller: &Caller,
        file: &Node,
        reader: &mut dyn Read,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), ImportError> {
        let inode = self.view(caller, |view| view.inode(file))?;
        let mut buf = vec![0; CHUNK_PAGES * PAGE as usize];
        let mut offset = 0;
        loop {
            let len = fill(reader, &mut buf).map_err(ImportError::Source)?;
            let data = buf.get(..len).unwrap_or_default();
            if !data.is_empty() {
                self.view(caller, |view| view.import_chunk(&inode, offset, data))?;
                offset += len as u64;
                progress(len as u64);
            }
            if len < buf.len() {
                return Ok(());
            }
        }
    }
}

impl View<'_> {
    /// Appends `data` at `offset`, which is the end of the file and the start of a page.
    fn import_chunk(
        &self,
        inode: &std::sync::Arc<crate::inode::Inode>,
        offset: u64,
        data: &[u8],
    ) -> goanna_vfs::Result<()> {
        self.change(|guard| {
            let mut state = inode.state.lock();
            if state.gone {
                return Err(Errno::ENOENT.into());
            }
            let end = offset + data.len() as u64;
            let first = offset / PAGE;
            let pages = data.len().div_ceil(PAGE as usize);
            if let Some(cache) = &state.cache {
                // A process has opened it in the meantime: it sees the content object.
                self.reserve((pages + 1) * PAGE_COST + state.meta_cost())?;
                write_all_at(cache.writer()?, offset, data)?;
                self.dirty_pages(&mut state, first, first + pages as u64);
            } else if offset == 0 && data.len() <= INLINE_MAX {
                self.reserve(state.meta_cost() + data.len())?;
                state.meta.inline = Some(Bytes::copy_from_slice(data));
            } else {
                self.reserve(state.meta_cost())?;
                let mut changes = Changes::new();
                for (page, content) in (first..).zip(data.chunks(PAGE as usize)) {
                    changes.put(key::page_key(inode.ino, page), record::encode_page(content));
                }
                self.submit(guard, changes)?;
                state.stored.insert(first, first + pages as u64);
                state.meta.inline = None;
            }
            state.meta.size = state.meta.size.max(end);
            state.touch(now());
            self.mark_dirty(inode, &mut state);
            Ok(())
        })
    }
}

/// Reads until `buf` is full or the source ends.
fn fill(reader: &mut dyn Read, buf: &mut [u8]) -> std::io::Result<usize> {
    let mut len = 0;
    while let Some(rest) = buf.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match reader.read(rest) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
