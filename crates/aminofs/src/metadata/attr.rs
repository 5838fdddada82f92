//! Attributes of inodes and figures of the file system.

use goanna_vfs::{Attr, Errno, Node, Result, SetAttr, StatFs, TimeSet};

use crate::Volume;
use crate::inode::{now, set_dir_attr, timestamp};
use crate::view::View;

/// `f_type` of statfs(2): "AMNO".
const MAGIC: u64 = 0x414d_4e4f;

impl View<'_> {
    /// Size, links and times of a directory depend on its entries, which are not locked: others may commit entries before
    /// the transaction looks again.
    pub(crate) fn do_getattr(&self, node: &Node) -> Result<Attr> {
        let inode = self.inode_to_read(node)?;
        // The namespace lock, shared, so that the effect of a name operation on several inodes is seen as a whole.
        let _names = self.names.read();
        let state = inode.state.lock();
        let mut attr = inode.attr(&state, self.dev);
        if node.is_dir() && self.in_transaction() {
            set_dir_attr(&mut attr, &self.dir_meta(&inode, &state));
        }
        attr.version = self.versions.seen(attr.version);
        Ok(attr)
    }

    pub(crate) fn do_setattr(&self, node: &Node, set: &SetAttr) -> Result<()> {
        let inode = self.inode(node)?;
        self.change(|guard| {
            let inode = self.for_change(&inode)?;
            let mut state = inode.state.lock();
            self.reserve(state.meta_cost())?;
            if let Some(mode) = set.mode
                && let Some(changes) = self.list_of_mode(inode.ino, &state.meta, mode)?
            {
                self.submit(guard, changes)?;
            }
            // chown(2), which may leave both ids as they are.
            let owns_anew = set.uid.is_some() || set.gid.is_some() || *set == SetAttr::default();
            if owns_anew && !node.is_dir() {
                self.drop_capabilities(guard, inode.ino, &mut state)?;
            }
            let time = now();
            let at = |set: TimeSet| match set {
                TimeSet::Now => time,
                TimeSet::At(stamp) => timestamp(stamp),
            };
            let meta = &mut state.meta;
            if let Some(mode) = set.mode {
                meta.mode = (meta.mode & libc::S_IFMT) | (mode & 0o7777);
            }
            meta.uid = set.uid.unwrap_or(meta.uid);
            meta.gid = set.gid.unwrap_or(meta.gid);
            meta.atime = set.atime.map_or(meta.atime, at);
            meta.mtime = set.mtime.map_or(meta.mtime, at);
            if let Some(flags) = set.flags {
                meta.flags.set_file_flags(flags);
            }
            meta.ctime = time;
            if set.mtime.is_some()
                && let Some(copy) = &mut state.copy
            {
                copy.times = true;
                self.forget_entry_time(inode.ino);
            }
            self.mark_dirty(&inode, &mut state);
            Ok(())
        })
    }

    pub(crate) fn do_readlink(&self, node: &Node) -> Result<Vec<u8>> {
        let inode = self.inode_to_read(node)?;
        if inode.kind != goanna_vfs::FileKind::Symlink {
            return Err(Errno::EINVAL.into());
        }
        let state = inode.state.lock();
        let target = state.meta.inline.as_ref().ok_or(Errno::EUCLEAN)?;
        Ok(target.to_vec())
    }
}

impl Volume {
    /// The space is that of the host's file system that has the store.
    pub(crate) fn do_statfs(&self) -> Result<StatFs, Errno> {
        let host = nix::sys::statvfs::statvfs(&self.dir)?;
        Ok(StatFs {
            magic: MAGIC,
            block_size: host.fragment_size(),
            blocks: host.blocks(),
            blocks_free: host.blocks_free(),
            blocks_available: host.blocks_available(),
            files: host.files(),
            files_free: host.files_free(),
            name_max: goanna_vfs::NAME_MAX as u64,
            // Reads do not set access times.
            flags: libc::ST_NOATIME,
            fsid: self.dev,
        })
    }
}
