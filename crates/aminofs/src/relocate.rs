//! What is asked of a cache object in use: who writes to it; and moving one that outgrew memory to a host file, while
//! its writer has it open.

use goanna_vfs::{Native, Node, Opened, Result};

use crate::cache::Cache;
use crate::cache_dir;
use crate::view::View;

impl View<'_> {
    pub(crate) fn is_open_for_writing(&self, node: &Node) -> Result<bool> {
        let inode = self.anchor(&self.inode(node)?);
        let state = inode.state.lock();
        let cache = state.cache.as_ref();
        Ok(cache.is_some_and(|cache| cache.witness.open_for_write_elsewhere()))
    }

    pub(crate) fn is_outgrown(&self, node: &Node) -> Result<bool> {
        let inode = self.anchor(&self.inode(node)?);
        let state = inode.state.lock();
        let in_memory = state.cache.as_ref().is_some_and(|cache| !cache.on_disk);
        Ok(in_memory && state.meta.size > self.options.large_file_bytes)
    }

    /// The state's lock is held throughout, so nothing is written meanwhile.
    pub(crate) fn do_relocate(&self, node: &Node, flags: i32) -> Result<Option<Opened>> {
        let inode = self.anchor(&self.inode(node)?);
        // A commit that is publishing may have the object in hand.
        let _names = self.names.read();
        let mut state = inode.state.lock();
        let size = state.meta.size;
        let Some(old) = state.cache.as_mut().filter(|cache| !cache.on_disk) else {
            return Ok(None);
        };
        let (mut new, fd) = Cache::create(size, Some(&cache_dir(&self.dir)))?;
        old.copy_to(&fd, size)?;
        let opened = Opened {
            fd: new.open(flags)?,
            native: Native::Reads {
                witness: new.witness.clone(),
            },
        };
        // Nothing can fail from here on: what is dirty must not be lost between the two.
        new.in_use = old.in_use;
        new.idle = old.idle;
        new.mapped = old.mapped;
        new.dirty = std::mem::take(&mut old.dirty);
        new.erased = std::mem::take(&mut old.erased);
        *old = new;
        Ok(Some(opened))
    }
}
