//! Moves a cache object that has outgrown memory to a host file, while its writer has it open, and tests whether programs write to one.

use goanna_vfs::{Node, Opened, Result};

use crate::cache_dir;
use crate::inode::Content;
use crate::view::View;

impl View<'_> {
    pub(crate) fn is_open_for_writing(&self, node: &Node) -> Result<bool> {
        let inode = self.inode_with_object(&self.inode(node)?);
        let state = inode.state.lock();
        let cache = state.cache.as_ref();
        Ok(cache.is_some_and(|cache| cache.is_open_for_writing()))
    }

    pub(crate) fn is_outgrown(&self, node: &Node) -> Result<bool> {
        let inode = self.inode_with_object(&self.inode(node)?);
        let state = inode.state.lock();
        let in_memory = state
            .cache
            .as_ref()
            .is_some_and(|cache| !cache.is_on_disk());
        Ok(in_memory && state.meta.size > self.options.large_file_bytes)
    }

    /// The state's lock is held throughout, so nothing is written meanwhile, and the file is not opened. `if_unused`: only if nobody has a
    /// descriptor of the object; otherwise the writer has one.
    pub(crate) fn do_relocate(
        &self,
        node: &Node,
        flags: i32,
        if_unused: bool,
    ) -> Result<Option<Opened>> {
        // Dropped after the locks: other mounts of a run that has ended may go with them.
        let mut readers = Vec::new();
        let inode = self.inode_with_object(&self.inode(node)?);
        // A commit that is publishing may have the object in hand.
        let _names = self.names.read();
        let mut state = inode.state.lock();
        let size = state.meta.size;
        // Opens of the file make their claims under the state's lock.
        let mut is_unused = |cache: &Content| {
            if if_unused {
                return cache.is_unused();
            }
            readers = self.all_readers();
            let object = cache.handle().identity();
            let users = readers.iter().map(|readers| readers.users(object));
            !cache.handle().is_claimed() && users.sum::<usize>() <= 1
        };
        let Some(cache) = state.cache.as_mut().filter(|cache| !cache.is_on_disk()) else {
            return Ok(None);
        };
        if !is_unused(cache) {
            return Ok(None);
        }
        let dir = cache_dir(&self.dir);
        self.unshare(inode.ino);
        Ok(cache.relocate(size, &dir, flags).map(Some)?)
    }
}
