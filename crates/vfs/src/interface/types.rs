//! Values that the switch and back ends exchange: nodes, attributes, entries, times.

use std::any::Any;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use goanna_sys::stub::map::{Attributes, STATX_SIZE};
use serde::{Deserialize, Serialize};

use crate::Errno;

/// What an inode is (the `S_IFMT` part of its mode).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A Unix-domain socket's name.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    /// Whether it is a character or block device.
    pub const fn is_device(self) -> bool {
        matches!(self, Self::CharDevice | Self::BlockDevice)
    }

    /// The `S_IF*` bits of this kind.
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Regular => libc::S_IFREG,
            Self::Directory => libc::S_IFDIR,
            Self::Symlink => libc::S_IFLNK,
            Self::Fifo => libc::S_IFIFO,
            Self::Socket => libc::S_IFSOCK,
            Self::CharDevice => libc::S_IFCHR,
            Self::BlockDevice => libc::S_IFBLK,
        }
    }

    /// The kind a mode names; `None` for bits no Linux file has. A mode without type bits is a regular
    /// file, as mknod(2) takes it.
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & libc::S_IFMT {
            0 | libc::S_IFREG => Self::Regular,
            libc::S_IFDIR => Self::Directory,
            libc::S_IFLNK => Self::Symlink,
            libc::S_IFIFO => Self::Fifo,
            libc::S_IFSOCK => Self::Socket,
            libc::S_IFCHR => Self::CharDevice,
            libc::S_IFBLK => Self::BlockDevice,
            _ => return None,
        })
    }

    /// The `d_type` of getdents64(2).
    pub const fn dirent_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }
}

/// A reference to one inode of one back end.
///
/// Cloning is cheap. `pin` is whatever the back end must keep to reach the inode again (passfs: an `O_PATH`
/// descriptor; aminofs: its in-memory inode); it is dropped with the last clone, so there is no forget
/// protocol.
#[derive(Clone)]
pub struct Node {
    ino: u64,
    kind: FileKind,
    pin: Arc<dyn Any + Send + Sync>,
}

impl Node {
    /// A node whose back end needs `pin` to find it again.
    pub fn new(ino: u64, kind: FileKind, pin: Arc<dyn Any + Send + Sync>) -> Self {
        Self { ino, kind, pin }
    }

    /// A node that its inode number alone identifies.
    pub fn bare(ino: u64, kind: FileKind) -> Self {
        Self::new(ino, kind, Arc::new(()))
    }

    /// The inode number, unique within the back end while the node lives.
    pub fn ino(&self) -> u64 {
        self.ino
    }

    /// What the inode is; it never changes during an inode's life.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// The back end's own part, when it is a `T`.
    pub fn pin<T: Any>(&self) -> Option<&T> {
        self.pin.downcast_ref()
    }

    /// A counted reference to the back end's own part, when it is a `T`.
    pub fn pin_arc<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(&self.pin).downcast().ok()
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({:?} {})", self.kind, self.ino)
    }
}

/// A point in time: seconds since 1970 and nanoseconds below 10^9.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Stamp {
    /// Seconds since the epoch; negative before 1970.
    pub sec: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nsec: u32,
}

impl Stamp {
    /// The wall clock.
    pub fn now() -> Self {
        match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
            Ok(d) => Self {
                sec: d.as_secs() as i64,
                nsec: d.subsec_nanos(),
            },
            Err(_) => Self::default(),
        }
    }
}

/// Flags of an inode that chattr(1) sets, with the values of linux/fs.h (ioctl_iflags(2)).
pub mod file_flags {
    /// Nothing of the inode or its content changes: `chattr +i`.
    pub const IMMUTABLE: u32 = 0x10;
    /// Content and entries are added only: `chattr +a`.
    pub const APPEND_ONLY: u32 = 0x20;
    /// dump(8) leaves it out: `chattr +d`.
    pub const NO_DUMP: u32 = 0x40;
    /// Reads do not change the access time: `chattr +A`.
    pub const NO_ATIME: u32 = 0x80;
    /// Names cannot be removed, and metadata cannot be changed.
    pub const PROTECTED: u32 = IMMUTABLE | APPEND_ONLY;
    /// The flags that this project's file systems can store.
    pub const KEPT: u32 = PROTECTED | NO_DUMP | NO_ATIME;
    /// The flags that a new inode inherits from its directory.
    pub const INHERITED: u32 = NO_DUMP | NO_ATIME;

    /// The flags that forbid fallocate(2) with this `mode`. A file that only grows may get space for its growth in advance.
    pub const fn against_fallocate(mode: i32) -> u32 {
        if mode & !libc::FALLOC_FL_KEEP_SIZE == 0 {
            IMMUTABLE
        } else {
            PROTECTED
        }
    }
}

/// An object of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnHost {
    /// An absolute path of it, without symbolic links.
    pub path: PathBuf,
    /// The host's attributes of it.
    pub attr: Attr,
}

/// What stat(2) and statx(2) report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// Device number of the file system, in the encoding of `makedev(3)`; 0 for a file system without a number of its own: the switch
    /// then assigns one to each mount.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Type and permission bits.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
    /// Allocated units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Stamp,
    /// Last change of content.
    pub mtime: Stamp,
    /// Last change of metadata.
    pub ctime: Stamp,
    /// Creation, where known.
    pub btime: Option<Stamp>,
    /// Flags of chattr(1), as in [`file_flags`].
    pub flags: u32,
    /// The attributes that statx(2) reports. `None`: some of `flags`.
    pub of_statx: Option<StatxAttributes>,
    /// Whether the inode may have an access control list that says more than the mode: the attribute [`crate::Acl::ACCESS`]. If it is
    /// false, callers need not read that attribute.
    pub may_have_acl: bool,
    /// A version number, which differs after each change of content, attributes or, of a directory, names. A back end with versions of its
    /// own increases it. A file of the host has its change time (`st_ctime`), so before Linux 6.13 two changes in one tick of the kernel's clock can have
    /// the same number. A write through a mapping counts from the moment at which the back end detects it: at the latest at
    /// msync(2), fsync(2) and the last close. 0 in a file system that never changes.
    pub version: u64,
}

/// Attributes of an inode as statx(2) reports them (`STATX_ATTR_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatxAttributes {
    /// Those that it has.
    pub set: u64,
    /// Those that the file system knows.
    pub known: u64,
    /// The ID of the mount of the host that the inode is in, unless that is the one of the root directory.
    pub mount_inside: Option<u64>,
}

/// The word of two fields of 32 bits that follow one another.
fn two(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The words of a `struct timespec`; as those of a `struct statx_timestamp`, its padding is zero.
fn time_words(time: Stamp) -> [u64; 2] {
    [time.sec.cast_unsigned(), u64::from(time.nsec)]
}

fn put_words(out: &mut [u8], words: impl Iterator<Item = u64>) {
    for (field, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *field = word.to_ne_bytes();
    }
}

impl Attr {
    /// EPERM for an inode with one of these [`file_flags`].
    pub fn unless_flagged(&self, flags: u32) -> Result<(), Errno> {
        if self.flags & flags != 0 {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// A `struct stat` of x86-64.
    pub fn to_stat(&self) -> [u8; 144] {
        let [atime, mtime, ctime] = [self.atime, self.mtime, self.ctime].map(time_words);
        let head = [
            self.dev,
            self.ino,
            u64::from(self.nlink),
            two(self.mode, self.uid),
        ];
        let size = [
            two(self.gid, 0),
            self.rdev,
            self.size,
            u64::from(self.blksize),
            self.blocks,
        ];
        let mut out = [0; 144];
        put_words(
            &mut out,
            head.into_iter()
                .chain(size)
                .chain(atime)
                .chain(mtime)
                .chain(ctime),
        );
        out
    }

    /// A `struct statx`, with the basic fields and the time of creation where it is known.
    pub fn to_statx(&self, is_mount_root: bool) -> [u8; 256] {
        let root = libc::STATX_ATTR_MOUNT_ROOT as u64;
        // The attributes have the values of the flags.
        let shown = u64::from(file_flags::PROTECTED | file_flags::NO_DUMP);
        let own = (u64::from(self.flags) & shown, shown);
        let (set, known) = self.of_statx.map_or(own, |of| (of.set, of.known));
        let birth = self.btime.map_or(0, |_| libc::STATX_BTIME);
        let numbers = [
            two(libc::STATX_BASIC_STATS | birth, self.blksize),
            if is_mount_root { root } else { 0 } | set,
            two(self.nlink, self.uid),
            two(self.gid, self.mode & 0xffff),
            self.ino,
            self.size,
            self.blocks,
            root | known,
        ];
        let birth = self.btime.unwrap_or_default();
        let times = [self.atime, birth, self.ctime, self.mtime].map(time_words);
        let devices =
            [self.rdev, self.dev].map(|device| two(libc::major(device), libc::minor(device)));
        let mut out = [0; 256];
        put_words(
            &mut out,
            numbers
                .into_iter()
                .chain(times.into_iter().flatten())
                .chain(devices),
        );
        out
    }

    /// As the map has it that programs read themselves.
    pub fn to_shared(&self, is_mount_root: bool) -> Attributes {
        let mut whole = self.to_statx(is_mount_root);
        let mut statx = [0; STATX_SIZE];
        if let Some(mask) = whole.first_chunk_mut() {
            *mask = (u32::from_ne_bytes(*mask) | libc::STATX_MNT_ID).to_ne_bytes();
        }
        for (to, from) in statx.iter_mut().zip(whole) {
            *to = from;
        }
        let stat = self.to_stat();
        Attributes { stat, statx }
    }

    /// An inode of root with one link, all of whose times are `time`. `mode` has the type and the permission bits.
    pub fn new(ino: u64, mode: u32, size: u64, time: Stamp) -> Self {
        Self {
            dev: 0,
            ino,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blksize: 4096,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            btime: None,
            flags: 0,
            of_statx: None,
            may_have_acl: false,
            version: 0,
        }
    }

    /// The inode's kind.
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::Regular)
    }

    /// The permission, set-id and sticky bits.
    pub fn perm(&self) -> u32 {
        self.mode & 0o7777
    }
}

/// A time given to utimensat(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimeSet {
    /// The clock at the moment of the call (`UTIME_NOW`).
    Now,
    /// This time.
    At(Stamp),
}

/// Changes to an inode's metadata; `None` leaves a field as it is. The back end sets the change time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttr {
    /// Permission, set-id and sticky bits (no type bits).
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New access time.
    pub atime: Option<TimeSet>,
    /// New modification time.
    pub mtime: Option<TimeSet>,
    /// New flags, of [`file_flags`]; a back end that leaves the checks to the host may receive others.
    pub flags: Option<u32>,
}

/// One directory entry.
#[derive(Debug, Clone, Copy)]
pub struct DirEntry<'a> {
    /// The entry's name: bytes, never `.` or `..`, never with `/` or NUL.
    pub name: &'a [u8],
    /// Inode number.
    pub ino: u64,
    /// Inode kind.
    pub kind: FileKind,
    /// Position after this entry: passed back to [`crate::FileSystem::readdir`] to continue. Above 0, below
    /// 2^62, and stable while the directory is in use, whatever is created or removed in it.
    pub cookie: u64,
}

/// What statfs(2) reports, in the units of struct statfs.
#[derive(Debug, Clone, Default)]
pub struct StatFs {
    /// Magic number of the file-system type.
    pub magic: u64,
    /// Block size in bytes.
    pub block_size: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for ordinary users.
    pub blocks_available: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u64,
    /// `ST_*` mount flags.
    pub flags: u64,
    /// The file system's id: for one that is not the host's the device number of its files (see [`Attr::dev`]).
    pub fsid: u64,
}
