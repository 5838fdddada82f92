//! The trait [`FileSystem`], which every back end implements.

use std::os::fd::{AsFd, BorrowedFd};

use goanna_sys::memfile;

use crate::{
    Attr, CachedContent, Caller, DirEntry, Errno, Identity, Native, Node, OnHost, OpenFile, Opened,
    Result, SetAttr, SharedAttributes, StatFs, Transactions, WritePosition,
};

/// A back end of the switch.
///
/// Names are single components: bytes without `/` and NUL, never empty, `.` or `..`, at most
/// [`crate::NAME_MAX`] long. Unless [`FileSystem::checks_access`] is true, [`crate::ops`] has checked
/// permissions before a method is called. Every method is atomic with respect to every other.
#[allow(
    unused_variables,
    reason = "defaults answer without looking at their arguments"
)]
pub trait FileSystem: Send + Sync + 'static {
    /// The type as `statfs` and mount listings name it: `pass`, `amino`, `aes`, `iso`.
    fn kind(&self) -> &'static str;

    /// The root directory.
    fn root(&self) -> Node;

    /// True when the back end itself enforces permissions as `caller` (passfs acts with the caller's
    /// credentials, so the host's kernel checks them); then [`crate::ops`] does not.
    fn checks_access(&self) -> bool {
        false
    }

    /// True when the file system itself cannot be written, and not only this mount of it: EROFS then comes before
    /// errors of permission checks, because the kernel checks its superblock first (`sb_permission` in `fs/namei.c`).
    fn is_read_only(&self) -> bool {
        false
    }

    /// True when every open answers [`Native::All`]; a run with only such mounts does not see data calls at all.
    fn opens_host_files(&self) -> bool {
        false
    }

    /// Maximum size of a file in bytes. lseek(2) fails with EINVAL for an offset beyond it.
    fn largest_file(&self) -> u64 {
        i64::MAX.unsigned_abs()
    }

    /// Transactions across several calls, where the back end has them.
    fn transactions(&self) -> Option<&dyn Transactions> {
        None
    }

    /// The content cache, where opens answer [`Native::Reads`].
    fn content(&self) -> Option<&dyn CachedContent> {
        None
    }

    /// Ids of files that outlive this process, and reports of changes, where the back end has them.
    fn identity(&self) -> Option<&dyn Identity> {
        None
    }

    /// The map from which programs read attributes without the monitor, and the grants by which they write, where the back end has them. It walks
    /// paths itself, so a layer forwards this only if names, attributes, permissions and content are the same in both.
    fn shared_attributes(&self) -> Option<&dyn SharedAttributes> {
        None
    }

    // Required: a read-only file system.

    /// The entry `name` of `dir`. ENOENT if it does not exist, ENOTDIR if `dir` is not a directory.
    fn lookup(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<Node>;
    /// The parent of directory `dir`, the one it had for a removed directory; the root is its own parent.
    fn parent(&self, caller: &Caller, dir: &Node) -> Result<Node>;
    /// A name of the inode relative to the root, without leading slash ("" for the root), and whether that
    /// name has been removed meanwhile (the kernel's " (deleted)").
    fn path(&self, caller: &Caller, node: &Node) -> Result<(Vec<u8>, bool)>;
    /// The inode's metadata.
    fn getattr(&self, caller: &Caller, node: &Node) -> Result<Attr>;
    /// The metadata of the entry `name` of `dir`, where that costs less than [`FileSystem::lookup`] and [`FileSystem::getattr`], `None` elsewhere. Called only where
    /// [`FileSystem::checks_access`] is true. The errors of both.
    fn getattr_at(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<Option<Attr>> {
        Ok(None)
    }
    /// A symbolic link's target. EINVAL for anything else.
    fn readlink(&self, caller: &Caller, node: &Node) -> Result<Vec<u8>>;
    /// Entries after `cookie` (0: from the start), without `.` and `..`, until `sink` returns false.
    fn readdir(
        &self,
        caller: &Caller,
        dir: &Node,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()>;
    /// Opens a regular file with the access mode and status flags of `flags` (`O_CREAT`, `O_EXCL`,
    /// `O_NOFOLLOW`, `O_DIRECTORY` are settled before); truncates it under `O_TRUNC`.
    fn open(&self, caller: &Caller, node: &Node, flags: i32) -> Result<Opened>;
    /// Reads without an open file description (exec, copies, tools). The result is short only at the end of the file.
    fn read_at(&self, caller: &Caller, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize>;

    // Names.

    /// Creates and opens a regular file; EEXIST when the name is taken. `mode` is as the program gave it; the back end
    /// applies the caller's umask. Owner and group are the caller's (or the group is that of the set-gid directory).
    fn create(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Node, Opened)> {
        Err(Errno::EROFS.into())
    }
    /// Creates and opens a file without a name in `dir` (`O_TMPFILE`).
    fn tmpfile(
        &self,
        caller: &Caller,
        dir: &Node,
        mode: u32,
        flags: i32,
    ) -> Result<(Node, Opened)> {
        Err(Errno::EOPNOTSUPP.into())
    }
    /// Makes a regular file, fifo, socket name or device node; `mode` has type and permission bits.
    fn mknod(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        rdev: u64,
    ) -> Result<Node> {
        Err(Errno::EROFS.into())
    }
    /// Makes a directory.
    fn mkdir(&self, caller: &Caller, dir: &Node, name: &[u8], mode: u32) -> Result<Node> {
        Err(Errno::EROFS.into())
    }
    /// Makes a symbolic link.
    fn symlink(&self, caller: &Caller, dir: &Node, name: &[u8], target: &[u8]) -> Result<Node> {
        Err(Errno::EROFS.into())
    }
    /// Gives `node` a further name; ENOENT for one without names unless it was made by
    /// [`FileSystem::tmpfile`], EMLINK at the limit, EPERM for directories.
    fn link(&self, caller: &Caller, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        Err(Errno::EROFS.into())
    }
    /// Gives a further name to the host file that a tracee has open as `file`, if the file belongs to this back end:
    /// no node stands for a file of [`Native::All`]. EXDEV for other files; else as [`FileSystem::link`].
    fn link_open(
        &self,
        caller: &Caller,
        file: BorrowedFd<'_>,
        dir: &Node,
        name: &[u8],
    ) -> Result<()> {
        Err(Errno::EXDEV.into())
    }
    /// Removes a name that is not a directory (EISDIR when it is one).
    fn unlink(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
        Err(Errno::EROFS.into())
    }
    /// Removes an empty directory (ENOTEMPTY, ENOTDIR).
    fn rmdir(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
        Err(Errno::EROFS.into())
    }
    /// rename(2), renameat2(2) with `RENAME_NOREPLACE` and `RENAME_EXCHANGE` in `flags`; both names are of
    /// this back end. EINVAL into its own subtree, ENOTEMPTY, EISDIR, ENOTDIR as rename(2).
    fn rename(
        &self,
        caller: &Caller,
        from_dir: &Node,
        from: &[u8],
        to_dir: &Node,
        to: &[u8],
        flags: u32,
    ) -> Result<()> {
        Err(Errno::EROFS.into())
    }

    // Data.

    /// Writes `data`, returns how much was written.
    fn write(
        &self,
        caller: &Caller,
        file: OpenFile<'_>,
        position: WritePosition,
        data: &[u8],
    ) -> Result<usize> {
        Err(Errno::EBADF.into())
    }
    /// Writes at `offset` without a program's open file description (layers, tools); returns how much was written.
    fn write_at(&self, caller: &Caller, node: &Node, offset: u64, data: &[u8]) -> Result<usize> {
        let opened = self.open(caller, node, libc::O_WRONLY)?;
        let file = OpenFile {
            node,
            ofd: opened.fd()?.as_fd(),
            flags: libc::O_WRONLY,
        };
        match opened.native {
            Native::All => Ok(memfile::pwrite(file.ofd, data, offset)?),
            Native::Reads { .. } => self.write(caller, file, WritePosition::At(offset), data),
        }
    }
    /// Sets the size; a hole appears when it grows.
    fn truncate(&self, caller: &Caller, node: &Node, size: u64) -> Result<()> {
        Err(Errno::EROFS.into())
    }
    /// fallocate(2) with `FALLOC_FL_*` in `mode`; EOPNOTSUPP for modes the back end lacks.
    fn fallocate(
        &self,
        caller: &Caller,
        node: &Node,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        Err(Errno::EOPNOTSUPP.into())
    }
    /// Makes the inode (or all of the file system, with `None`) durable.
    fn sync(&self, node: Option<&Node>) -> Result<()> {
        Ok(())
    }
    /// The object behind the entry `name` of `dir`, a link of the host's /proc that leads to an object and not to a path. EOPNOTSUPP where there are none.
    fn behind_link(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<Node> {
        Err(Errno::EOPNOTSUPP.into())
    }
    /// The host path of the inode's own file, when there is one (passfs): programs are executed from it
    /// without a copy.
    fn host_path(&self, node: &Node) -> Option<std::path::PathBuf> {
        None
    }
    /// The host object from whose attributes alone [`FileSystem::getattr`] computes those of the inode. While they stay the same, so do the inode's, and
    /// programs ask the host for them without the monitor (docs/decisions/0132). `None` if there is no such object, or if it has lost its name.
    fn on_host(&self, node: &Node) -> Option<OnHost> {
        None
    }
    /// A descriptor (`O_PATH`) of the regular host file that the inode is, where opens answer [`Native::All`] and the back end enforces permissions itself: a program
    /// may open that file with its own permissions then, also by the path of [`FileSystem::on_host`] (docs/decisions/0133).
    fn host_file<'n>(&self, node: &'n Node) -> Option<BorrowedFd<'n>> {
        None
    }
    /// A descriptor (`O_PATH`) of the host directory that `dir` is, where a file that a program creates there, with its own permissions, is the file that
    /// [`FileSystem::create`] would create: under the same name, and opened as [`Native::All`]. A name that is missing there is missing in `dir`. All directories
    /// of a file system have one, or none has.
    fn host_dir<'n>(&self, dir: &'n Node) -> Option<BorrowedFd<'n>> {
        None
    }

    // Metadata.

    /// Changes metadata; permission has been checked.
    fn setattr(&self, caller: &Caller, node: &Node, set: &SetAttr) -> Result<()> {
        Err(Errno::EROFS.into())
    }
    /// The flags that chattr(1) shows, as `FS_IOC_GETFLAGS` gives them.
    fn flags(&self, caller: &Caller, node: &Node) -> Result<u32> {
        Ok(self.getattr(caller, node)?.flags)
    }
    /// File-system figures.
    fn statfs(&self, caller: &Caller, node: &Node) -> Result<StatFs> {
        Err(Errno::ENOSYS.into())
    }
    /// An extended attribute's value; ENODATA when absent.
    fn getxattr(&self, caller: &Caller, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::EOPNOTSUPP.into())
    }
    /// Sets an extended attribute; `flags` may hold `XATTR_CREATE` or `XATTR_REPLACE`.
    fn setxattr(
        &self,
        caller: &Caller,
        node: &Node,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        Err(Errno::EOPNOTSUPP.into())
    }
    /// All extended attribute names.
    fn listxattr(&self, caller: &Caller, node: &Node) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }
    /// Removes an extended attribute; ENODATA when absent.
    fn removexattr(&self, caller: &Caller, node: &Node, name: &[u8]) -> Result<()> {
        Err(Errno::EOPNOTSUPP.into())
    }
}
