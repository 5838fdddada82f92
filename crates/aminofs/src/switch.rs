//! The operations of `FileSystem` on a store: one short method each, which calls the function with the work.

use std::ops::Range;

use goanna_vfs::{
    Attr, CachedContent, Caller, DirEntry, FileSystem, Identity, Node, OpenFile, Opened, Result,
    SetAttr, SharedAttributes, StatFs, Transactions, WritePosition,
};

use crate::AminoFs;

impl FileSystem for AminoFs {
    fn kind(&self) -> &'static str {
        "amino"
    }

    fn is_read_only(&self) -> bool {
        self.is_snapshot
    }

    fn largest_file(&self) -> u64 {
        crate::content::write::MAX_FILE
    }

    fn root(&self) -> Node {
        self.root.node()
    }

    fn lookup(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<Node> {
        self.view(caller, |view| view.do_lookup(dir, name))
    }

    fn parent(&self, caller: &Caller, dir: &Node) -> Result<Node> {
        self.view(caller, |view| view.do_parent(dir))
    }

    fn path(&self, caller: &Caller, node: &Node) -> Result<(Vec<u8>, bool)> {
        self.view(caller, |view| view.do_path(node))
    }

    fn getattr(&self, caller: &Caller, node: &Node) -> Result<Attr> {
        self.view(caller, |view| view.do_getattr(node))
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        (!self.is_snapshot).then_some(self as &dyn Transactions)
    }

    fn content(&self) -> Option<&dyn CachedContent> {
        Some(self)
    }

    fn identity(&self) -> Option<&dyn Identity> {
        Some(self)
    }

    fn shared_attributes(&self) -> Option<&dyn SharedAttributes> {
        Some(self)
    }

    fn readlink(&self, caller: &Caller, node: &Node) -> Result<Vec<u8>> {
        self.view(caller, |view| view.do_readlink(node))
    }

    fn readdir(
        &self,
        caller: &Caller,
        dir: &Node,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.view(caller, |view| view.do_readdir(dir, cookie, sink))
    }

    fn open(&self, caller: &Caller, node: &Node, flags: i32) -> Result<Opened> {
        self.view(caller, |view| view.do_open(caller, node, flags))
    }

    fn read_at(&self, caller: &Caller, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.view(caller, |view| view.do_read_at(node, offset, buf))
    }

    fn create(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Node, Opened)> {
        self.view(caller, |view| {
            view.do_create(caller, dir, name, mode, flags)
        })
    }

    fn tmpfile(
        &self,
        caller: &Caller,
        dir: &Node,
        mode: u32,
        flags: i32,
    ) -> Result<(Node, Opened)> {
        self.view(caller, |view| view.do_tmpfile(caller, dir, mode, flags))
    }

    fn mknod(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        rdev: u64,
    ) -> Result<Node> {
        self.view(caller, |view| view.do_mknod(caller, dir, name, mode, rdev))
    }

    fn mkdir(&self, caller: &Caller, dir: &Node, name: &[u8], mode: u32) -> Result<Node> {
        self.view(caller, |view| view.do_mkdir(caller, dir, name, mode))
    }

    fn symlink(&self, caller: &Caller, dir: &Node, name: &[u8], target: &[u8]) -> Result<Node> {
        self.view(caller, |view| view.do_symlink(caller, dir, name, target))
    }

    fn link(&self, caller: &Caller, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        self.view(caller, |view| view.do_link(node, dir, name))
    }

    fn unlink(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
        self.view(caller, |view| view.do_unlink(dir, name))
    }

    fn rmdir(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
        self.view(caller, |view| view.do_rmdir(dir, name))
    }

    fn rename(
        &self,
        caller: &Caller,
        from_dir: &Node,
        from: &[u8],
        to_dir: &Node,
        to: &[u8],
        flags: u32,
    ) -> Result<()> {
        self.view(caller, |view| {
            view.do_rename(from_dir, from, to_dir, to, flags)
        })
    }

    fn write(
        &self,
        caller: &Caller,
        file: OpenFile<'_>,
        position: WritePosition,
        data: &[u8],
    ) -> Result<usize> {
        self.view(caller, |view| view.do_write(caller, file, position, data))
    }

    fn truncate(&self, caller: &Caller, node: &Node, size: u64) -> Result<()> {
        self.view(caller, |view| view.do_truncate(caller, node, size))
    }

    fn fallocate(
        &self,
        caller: &Caller,
        node: &Node,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.view(caller, |view| {
            view.do_fallocate(caller, node, mode, offset, len)
        })
    }

    fn sync(&self, node: Option<&Node>) -> Result<()> {
        Ok(self.do_sync(node)?)
    }

    fn setattr(&self, caller: &Caller, node: &Node, set: &SetAttr) -> Result<()> {
        self.view(caller, |view| view.do_setattr(node, set))
    }

    fn statfs(&self, _: &Caller, _: &Node) -> Result<StatFs> {
        Ok(self.do_statfs()?)
    }

    fn getxattr(&self, caller: &Caller, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        self.view(caller, |view| view.do_getxattr(node, name))
    }

    fn setxattr(
        &self,
        caller: &Caller,
        node: &Node,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        self.view(caller, |view| {
            view.do_setxattr(caller, node, name, value, flags)
        })
    }

    fn listxattr(&self, caller: &Caller, node: &Node) -> Result<Vec<Vec<u8>>> {
        self.view(caller, |view| view.do_listxattr(node))
    }

    fn removexattr(&self, caller: &Caller, node: &Node, name: &[u8]) -> Result<()> {
        self.view(caller, |view| view.do_removexattr(caller, node, name))
    }
}

impl CachedContent for AminoFs {
    fn released(&self, node: &Node) {
        self.do_released(node);
    }

    fn map_shared(&self, caller: &Caller, node: &Node) -> Result<()> {
        self.view(caller, |view| view.do_map_shared(node))
    }

    fn sync_mapped(&self, node: &Node, range: Range<u64>, durable: bool) -> Result<()> {
        Ok(self.do_sync_mapped(node, range, durable)?)
    }

    fn open_for_writing(&self, caller: &Caller, node: &Node) -> bool {
        self.view(caller, |view| view.is_open_for_writing(node))
            .unwrap_or(false)
    }

    fn has_own_content(&self, caller: &Caller, node: &Node) -> Result<bool> {
        self.view(caller, |view| view.do_has_own_content(node))
    }

    fn read_own(
        &self,
        caller: &Caller,
        node: &Node,
        offset: u64,
        len: usize,
    ) -> Result<Option<Vec<u8>>> {
        self.view(caller, |view| view.do_read_own(node, offset, len))
    }

    fn outgrown(&self, caller: &Caller, node: &Node) -> bool {
        self.view(caller, |view| view.is_outgrown(node))
            .unwrap_or(false)
    }

    fn relocate(&self, caller: &Caller, node: &Node, flags: i32) -> Result<Option<Opened>> {
        self.view(caller, |view| view.do_relocate(node, flags, false))
    }

    fn relocate_unused(&self, caller: &Caller, node: &Node, flags: i32) -> Result<Option<Opened>> {
        self.view(caller, |view| view.do_relocate(node, flags, true))
    }
}
