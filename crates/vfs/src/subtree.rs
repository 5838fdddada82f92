//! A part of a file system, as a bind mount shows it.

use std::sync::Arc;

use crate::{Caller, Errno, FileSystem, Node, Result, forward};

/// The file system with `root`, a directory or a file of `lower`, as its root. Everything else is forwarded to `lower`.
///
/// [`FileSystem::parent`] and [`FileSystem::path`] of a directory that has been renamed to a place outside are ENOENT, as in Linux (`path_connected` in
/// `fs/namei.c`): no path leads out of the part.
pub struct Subtree {
    lower: Arc<dyn FileSystem>,
    root: Node,
}

impl Subtree {
    /// The part of `lower` at and below `root`.
    pub fn new(lower: Arc<dyn FileSystem>, root: Node) -> Self {
        Self { lower, root }
    }
}

impl FileSystem for Subtree {
    // The map of attributes walks paths from the root of `lower`.
    forward! {
        lower: lower;
        forward: kind checks_access is_read_only opens_host_files largest_file transactions content identity lookup getattr getattr_at readlink readdir open
            read_at create tmpfile mknod mkdir symlink link link_open unlink rmdir rename write write_at truncate fallocate sync behind_link host_path
            on_host host_file host_dir setattr flags statfs getxattr setxattr listxattr removexattr;
        own: root shared_attributes parent path;
    }

    fn root(&self) -> Node {
        self.root.clone()
    }

    fn parent(&self, caller: &Caller, dir: &Node) -> Result<Node> {
        if dir.ino() == self.root.ino() {
            return Ok(self.root());
        }
        let parent = self.lower.parent(caller, dir)?;
        self.path(caller, &parent)?;
        Ok(parent)
    }

    fn path(&self, caller: &Caller, node: &Node) -> Result<(Vec<u8>, bool)> {
        if node.ino() == self.root.ino() {
            return Ok((Vec::new(), false));
        }
        let (path, is_removed) = self.lower.path(caller, node)?;
        let (root, _) = self.lower.path(caller, &self.root)?;
        let inside = match root.is_empty() {
            true => Some(&path[..]),
            false => path
                .strip_prefix(&root[..])
                .and_then(|rest| rest.strip_prefix(b"/")),
        };
        let inside = inside.ok_or(Errno::ENOENT)?;
        Ok((inside.to_vec(), is_removed))
    }
}
