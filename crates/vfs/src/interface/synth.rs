//! Empty, read-only directories. They stand for those parents of a mount point that do not exist on the
//! host.

use crate::{
    Attr, Caller, DirEntry, Errno, FileKind, FileSystem, Node, Opened, Result, Stamp, StatFs,
};

/// A file system of one empty directory. The mount table finds the mounts below it.
#[derive(Debug)]
pub struct SynthFs {
    ino: u64,
    made: Stamp,
}

impl SynthFs {
    /// A directory with this inode number.
    pub fn new(ino: u64) -> Self {
        Self {
            ino,
            made: Stamp::now(),
        }
    }
}

impl Default for SynthFs {
    fn default() -> Self {
        Self::new(1)
    }
}

impl FileSystem for SynthFs {
    fn kind(&self) -> &'static str {
        "none"
    }

    fn opens_host_files(&self) -> bool {
        true
    }

    fn root(&self) -> Node {
        Node::bare(self.ino, FileKind::Directory)
    }

    fn lookup(&self, _: &Caller, _: &Node, _: &[u8]) -> Result<Node> {
        Err(Errno::ENOENT.into())
    }

    fn parent(&self, _: &Caller, dir: &Node) -> Result<Node> {
        Ok(dir.clone())
    }

    fn path(&self, _: &Caller, _: &Node) -> Result<(Vec<u8>, bool)> {
        Ok((Vec::new(), false))
    }

    fn getattr(&self, _: &Caller, node: &Node) -> Result<Attr> {
        Ok(Attr {
            dev: 0,
            ino: node.ino(),
            mode: libc::S_IFDIR | 0o555,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blksize: 4096,
            blocks: 0,
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
            btime: Some(self.made),
            flags: 0,
            of_statx: None,
            may_have_acl: false,
            version: 0,
        })
    }

    fn readlink(&self, _: &Caller, _: &Node) -> Result<Vec<u8>> {
        Err(Errno::EINVAL.into())
    }

    fn readdir(
        &self,
        _: &Caller,
        _: &Node,
        _: u64,
        _: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        Ok(())
    }

    fn open(&self, _: &Caller, _: &Node, _: i32) -> Result<Opened> {
        Err(Errno::EISDIR.into())
    }

    fn read_at(&self, _: &Caller, _: &Node, _: u64, _: &mut [u8]) -> Result<usize> {
        Err(Errno::EISDIR.into())
    }

    fn statfs(&self, _: &Caller, _: &Node) -> Result<StatFs> {
        Ok(StatFs {
            magic: 0x0102_1994,
            block_size: 4096,
            name_max: 255,
            ..StatFs::default()
        })
    }
}
