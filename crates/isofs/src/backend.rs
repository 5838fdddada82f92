//! The operations of `FileSystem` on an image. They translate errors of the reader to errnos.

use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};

use goanna_cache::FileCache;
use goanna_vfs::{
    Attr, CachedContent, Caller, DirEntry, Errno, FileId, FileSystem, Identity, Node, Opened,
    Result, StatFs, Subscriber,
};

use crate::Error;
use crate::entry::Entry;
use crate::iso::Iso;

/// `ISOFS_SUPER_MAGIC` of Linux.
const MAGIC: u64 = 0x9660;

/// Receives errors.
type Listener = Box<dyn Fn(&Error) + Send + Sync>;

/// An image as a read-only file system.
pub struct IsoFs {
    cache: FileCache<Iso>,
    listener: Option<Listener>,
}

impl std::fmt::Debug for IsoFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IsoFs")
            .field("iso", self.iso())
            .finish_non_exhaustive()
    }
}

impl IsoFs {
    /// Makes a file system of an open image.
    pub fn new(iso: Iso) -> Self {
        Self {
            cache: FileCache::new(iso),
            listener: None,
        }
    }

    /// Calls `listener` with the reason before an operation fails: the switch has errnos only, which name neither the record
    /// nor its place. Failed opens of files are not reported.
    pub fn with_listener(mut self, listener: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.listener = Some(Box::new(listener));
        self
    }

    fn errno(&self, error: &Error) -> Errno {
        if let Some(listener) = &self.listener {
            listener(error);
        }
        error.errno()
    }

    /// The image.
    pub fn iso(&self) -> &Iso {
        self.cache.source()
    }
}

fn node(entry: Arc<Entry>) -> Node {
    Node::new(entry.ino, entry.kind, entry)
}

fn entry(node: &Node) -> Result<Arc<Entry>> {
    node.pin_arc().ok_or(Errno::ESTALE.into())
}

impl FileSystem for IsoFs {
    fn kind(&self) -> &'static str {
        "iso"
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn content(&self) -> Option<&dyn CachedContent> {
        Some(&self.cache)
    }

    fn largest_file(&self) -> u64 {
        // As Linux reports for ISO 9660 images.
        1 << 43
    }

    fn root(&self) -> Node {
        node(Arc::clone(self.iso().root()))
    }

    fn lookup(&self, _: &Caller, dir: &Node, name: &[u8]) -> Result<Node> {
        match self.iso().lookup(&entry(dir)?, name) {
            Ok(Some(found)) => Ok(node(found)),
            Ok(None) => Err(Errno::ENOENT.into()),
            Err(error) => Err(self.errno(&error).into()),
        }
    }

    fn identity(&self) -> Option<&dyn Identity> {
        Some(self)
    }

    fn parent(&self, _: &Caller, dir: &Node) -> Result<Node> {
        let parent = entry(dir)?.parent().map(Arc::clone);
        Ok(parent.map_or_else(|| self.root(), node))
    }

    fn path(&self, _: &Caller, node: &Node) -> Result<(Vec<u8>, bool)> {
        Ok((entry(node)?.path(), false))
    }

    fn getattr(&self, _: &Caller, node: &Node) -> Result<Attr> {
        let meta = entry(node)?;
        let sound = self.iso().check_record(&meta);
        sound.map_err(|error| self.errno(&error))?;
        Ok(Attr {
            dev: 0,
            ino: meta.ino,
            mode: meta.mode,
            nlink: meta.nlink,
            uid: meta.uid,
            gid: meta.gid,
            rdev: meta.rdev,
            size: meta.size,
            blksize: self.iso().block_size(),
            blocks: meta.size.div_ceil(512),
            atime: meta.atime,
            mtime: meta.mtime,
            ctime: meta.ctime,
            btime: meta.btime,
            flags: 0,
            of_statx: None,
            may_have_acl: false,
            version: 0,
        })
    }

    fn readlink(&self, _: &Caller, node: &Node) -> Result<Vec<u8>> {
        let target = self.iso().readlink(&*entry(node)?);
        Ok(target.map_err(|error| self.errno(&error))?)
    }

    /// The cookie is the entry's place in the listing, which never changes.
    fn readdir(
        &self,
        _: &Caller,
        dir: &Node,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let listing = self
            .iso()
            .listing(&*entry(dir)?)
            .map_err(|error| self.errno(&error))?;
        let skip = usize::try_from(cookie).unwrap_or(usize::MAX);
        for (meta, cookie) in listing.names.iter().zip(1..).skip(skip) {
            let more = sink(DirEntry {
                name: &meta.name,
                ino: meta.ino,
                kind: meta.kind,
                cookie,
            });
            if !more {
                break;
            }
        }
        Ok(())
    }

    fn open(&self, _: &Caller, node: &Node, flags: i32) -> Result<Opened> {
        Ok(self.cache.open(node, flags)?)
    }

    fn read_at(&self, _: &Caller, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let read = self.iso().read_at(&*entry(node)?, offset, buf);
        Ok(read.map_err(|error| self.errno(&error))?)
    }

    fn statfs(&self, _: &Caller, _: &Node) -> Result<StatFs> {
        Ok(StatFs {
            magic: MAGIC,
            block_size: self.iso().block_size().into(),
            blocks: self.iso().blocks(),
            name_max: goanna_vfs::NAME_MAX as u64,
            ..StatFs::default()
        })
    }
}

/// The id of an image is that of its file on the host. A rewritten image has another id.
impl Identity for IsoFs {
    fn file_id(&self, _: &Caller, node: &Node) -> Result<FileId> {
        let inode = entry(node)?.ino;
        let Some(image) = self.iso().file() else {
            return Err(Errno::EOPNOTSUPP.into());
        };
        let host = image.metadata();
        let host = host.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))?;
        let modified = u128::from(host.mtime().cast_unsigned()) * 1_000_000_000
            + u128::from(host.mtime_nsec().cast_unsigned());
        Ok(FileId {
            fs: u128::from(host.dev()) << 64 | u128::from(host.ino()),
            inode,
            generation: modified as u64,
        })
    }

    /// An image never changes.
    fn subscribe(&self, _: Weak<dyn Subscriber>) -> Result<()> {
        Ok(())
    }
}
