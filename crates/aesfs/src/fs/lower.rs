//! A file of the lower file system, opened to read and write encrypted content.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use goanna_cache::write_all_at;
use goanna_sys::memfile;
use goanna_vfs::{
    Attr, Caller, Description, Errno, FileSystem, FsError, Native, Node, OpenFile, Opened, Result,
    Stamp, WritePosition,
};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::fstat;

/// Maximum time that a change waits for a change of the same file by another process.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// The interval at which a waiting change retries.
const LOCK_POLL: Duration = Duration::from_micros(200);

/// Bytes written between two checks whether the file has outgrown memory in the lower file system.
const VOLUME_TO_ASK: u64 = 256 << 10;

/// The part of the lower file's metadata that changes with its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub size: u64,
    pub mtime: Stamp,
    pub ctime: Stamp,
}

impl Version {
    pub fn of(attr: &Attr) -> Self {
        Self {
            size: attr.size,
            mtime: attr.mtime,
            ctime: attr.ctime,
        }
    }

    /// Whether a file had the same content at both times. The change time differs after a chmod(2) or link(2), too.
    pub fn has_content_of(&self, other: &Self) -> bool {
        (self.size, self.mtime) == (other.size, other.mtime)
    }
}

/// An open file of the lower file system. Later changes of the file's permissions do not affect it.
pub(crate) struct LowerFile {
    fs: Arc<dyn FileSystem>,
    node: Node,
    /// `None` only while it is dropped.
    opened: Option<Opened>,
    caller: Caller,
    access: i32,
    /// Bytes written since the last check whether the file has outgrown memory.
    volume: AtomicU64,
}

impl LowerFile {
    /// Opens `node` as `caller` with the access mode of `access`, and perhaps O_NOATIME.
    pub fn open(
        fs: &Arc<dyn FileSystem>,
        caller: &Caller,
        node: &Node,
        access: i32,
    ) -> Result<Self> {
        let opened = fs.open(caller, node, access)?;
        Ok(Self::of(fs, caller, node, opened, access))
    }

    /// Takes over a file that was opened, or created, with the access mode of `access`.
    pub fn of(
        fs: &Arc<dyn FileSystem>,
        caller: &Caller,
        node: &Node,
        opened: Opened,
        access: i32,
    ) -> Self {
        Self {
            fs: Arc::clone(fs),
            node: node.clone(),
            opened: Some(opened),
            caller: caller.clone(),
            access: access & libc::O_ACCMODE,
            volume: AtomicU64::new(0),
        }
    }

    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    pub fn can_read(&self) -> bool {
        self.access != libc::O_WRONLY
    }

    pub fn can_write(&self) -> bool {
        self.access != libc::O_RDONLY
    }

    fn opened(&self) -> Result<&Opened> {
        self.opened.as_ref().ok_or(Errno::EBADF.into())
    }

    /// The file's size.
    pub fn size(&self) -> Result<u64> {
        Ok(self.version()?.size)
    }

    /// The part of the file's metadata that changes with its content.
    pub fn version(&self) -> Result<Version> {
        let opened = self.opened()?;
        match opened.native {
            Native::All => {
                let stat = fstat(opened.fd()?)?;
                Ok(Version {
                    size: stat.st_size.unsigned_abs(),
                    mtime: stamp(stat.st_mtime, stat.st_mtime_nsec),
                    ctime: stamp(stat.st_ctime, stat.st_ctime_nsec),
                })
            }
            Native::Reads { .. } => Ok(Version::of(&self.fs.getattr(&self.caller, &self.node)?)),
        }
    }

    /// Keeps other runs from changing the file until [`LowerFile::unlock`]: a lock of this open file description (fcntl(2)) on the
    /// header's first byte. The wait has a limit, because any program that can write the encrypted file can hold such a lock: EBUSY.
    pub fn lock(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            match self.set_lock(libc::F_WRLCK) {
                Err(Errno::EAGAIN | Errno::EACCES) if begun.elapsed() < LOCK_WAIT => {
                    std::thread::sleep(LOCK_POLL);
                }
                Err(Errno::EAGAIN | Errno::EACCES) => return Err(Errno::EBUSY.into()),
                // The host's file system has no locks, or the descriptor cannot write.
                _ => return Ok(()),
            }
        }
    }

    /// Ends [`LowerFile::lock`].
    pub fn unlock(&self) {
        let _ = self.set_lock(libc::F_UNLCK);
    }

    fn set_lock(&self, kind: i32) -> std::result::Result<(), Errno> {
        let fd = self.opened.as_ref().ok_or(Errno::EBADF)?.fd()?;
        let lock = libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: 0,
            l_len: 1,
            l_pid: 0,
        };
        fcntl(fd, FcntlArg::F_OFD_SETLK(&lock)).map(drop)
    }

    /// Fills `buf` from `offset`. The result is short only at the end of the file.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let opened = self.opened()?;
        match opened.native {
            Native::All => Ok(memfile::pread(opened.fd()?.as_fd(), buf, offset)?),
            // In a transaction the file may have another content than its descriptor shows.
            Native::Reads { .. } => self.fs.read_at(&self.caller, &self.node, offset, buf),
        }
    }

    /// Writes all of `data`; an error may come after some bytes.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let opened = self.opened()?;
        if matches!(opened.native, Native::All) {
            return Ok(write_all_at(opened.fd()?, offset, data)?);
        }
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            let file = OpenFile {
                node: &self.node,
                ofd: opened.fd()?.as_fd(),
                flags: self.access,
            };
            let at = WritePosition::At(offset + done as u64);
            match self.fs.write(&self.caller, file, at, rest)? {
                0 => return Err(Errno::ENOSPC.into()),
                count => done += count,
            }
        }
        self.volume.fetch_add(done as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Lets a lower file system with a content cache move a file that has outgrown memory to a host file. Programs may have the encrypted file
    /// open as well: then it stays in memory until they close it.
    pub fn leave_memory(&mut self) {
        if self.volume.load(Ordering::Relaxed) < VOLUME_TO_ASK {
            return;
        }
        self.volume.store(0, Ordering::Relaxed);
        let Some(content) = self.fs.content() else {
            return;
        };
        let Some(Native::Reads { handle }) = self.opened.as_ref().map(|it| &it.native) else {
            return;
        };
        if !content.outgrown(&self.caller, &self.node) {
            return;
        }
        let handle = Arc::clone(handle);
        // Closed here, because it would count as a program's descriptor.
        self.opened = None;
        let moved = content.relocate_unused(&self.caller, &self.node, self.access);
        self.opened = match moved {
            Ok(Some(opened)) => Some(opened),
            _ => Some(Opened {
                description: Description::of_object(&handle, self.access),
                native: Native::Reads { handle },
            }),
        };
    }

    /// Sets the file's size.
    pub fn set_len(&self, size: u64) -> Result<()> {
        let opened = self.opened()?;
        match opened.native {
            Native::All => Ok(memfile::set_len(opened.fd()?.as_fd(), size)?),
            Native::Reads { .. } => self.fs.truncate(&self.caller, &self.node, size),
        }
    }

    /// Makes `offset..offset + len` read as zeros; the size stays. EOPNOTSUPP where the host has no holes.
    pub fn punch(&self, offset: u64, len: u64) -> Result<()> {
        let opened = self.opened()?;
        match opened.native {
            Native::All => Ok(memfile::punch(opened.fd()?.as_fd(), offset, len)?),
            Native::Reads { .. } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                self.fs
                    .fallocate(&self.caller, &self.node, mode, offset, len)
            }
        }
    }

    /// Allocates space for `offset..offset + len`; the size stays.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        let opened = self.opened()?;
        match opened.native {
            Native::All => Ok(memfile::allocate(opened.fd()?.as_fd(), offset, len)?),
            Native::Reads { .. } => {
                let mode = libc::FALLOC_FL_KEEP_SIZE;
                self.fs
                    .fallocate(&self.caller, &self.node, mode, offset, len)
            }
        }
    }

    /// The parts of the first `size` bytes that are not holes: offsets and lengths.
    pub fn data_segments(&self, size: u64) -> Result<Vec<(u64, u64)>> {
        let opened = self.opened()?;
        match opened.native {
            Native::All => Ok(memfile::data_segments(opened.fd()?.as_fd(), 0, size)?),
            Native::Reads { .. } => Ok(vec![(0, size)]),
        }
    }

    /// Makes all writes durable. A file that a transaction has made reaches the disk with the transaction.
    pub fn sync(&self) -> Result<()> {
        match self.fs.sync(Some(&self.node)) {
            Err(FsError::Errno(Errno::ESTALE)) if self.caller.txn.is_some() => Ok(()),
            other => other,
        }
    }
}

fn stamp(sec: i64, nsec: i64) -> Stamp {
    Stamp {
        sec,
        nsec: u32::try_from(nsec).unwrap_or(0),
    }
}

impl Drop for LowerFile {
    /// A lower file system with a content cache checks whether it has the only descriptor left.
    fn drop(&mut self) {
        let is_cached = matches!(
            self.opened.take().map(|opened| opened.native),
            Some(Native::Reads { .. })
        );
        if is_cached && let Some(content) = self.fs.content() {
            content.released(&self.node);
        }
    }
}
