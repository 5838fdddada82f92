//! The tree of a store or an image, as it is seen without a monitor.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use goanna_vfs::walk::{NoProcess, Pos, Walk};
use goanna_vfs::{
    Attr, Caller, Errno, FileKind, FileSystem, LOCKED, Mount, MountFlags, Mounts, Place, Result,
    SynthFs, ops,
};

use crate::error::Error;

/// What holds a tree, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// What it is called.
    pub word: &'static str,
}

/// An amino store.
pub const STORE: Holder = Holder { word: "store" };

/// An ISO 9660 image.
pub const IMAGE: Holder = Holder { word: "image" };

/// Why the last operation failed, in more words than its errno has.
#[derive(Debug, Default)]
pub struct Details(Mutex<Option<(Errno, String)>>);

impl Details {
    /// An operation is about to fail with `errno`.
    pub fn tell(&self, errno: Errno, why: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((errno, why));
    }

    fn take(&self, errno: Errno) -> Option<String> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        last.filter(|(told, _)| *told == errno).map(|(_, why)| why)
    }
}

/// A file system and who looks at it. Its root is `/`, for symbolic links, too.
pub struct Tree {
    /// On whose behalf.
    pub caller: Caller,
    /// What holds it.
    pub holder: Holder,
    details: Option<Arc<Details>>,
    mounts: Mounts,
    mount: Arc<Mount>,
    waits: Option<Box<dyn Fn() -> bool + Send + Sync>>,
}

/// How often to look whether a wait for a lock is still wanted.
const SLICE: Duration = Duration::from_millis(10);

/// One entry of a directory.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// What it names.
    pub place: Place,
}

impl Tree {
    /// The tree of `fs`.
    pub fn new(fs: Arc<dyn FileSystem>, caller: Caller) -> Self {
        let mount = Arc::new(Mount {
            fs,
            target: b"/".to_vec(),
            flags: MountFlags::empty(),
            source: String::new(),
        });
        Self {
            caller,
            holder: STORE,
            details: None,
            mounts: Mounts::new(Arc::new(SynthFs::default())),
            mount,
            waits: None,
        }
    }

    /// Waits for transactions' locks only as long as `waits` is true.
    pub fn while_waiting(mut self, waits: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.waits = Some(Box::new(waits));
        self
    }

    /// Makes `attempt` until it meets no lock of a transaction. EINTR when the wait is not wanted any more; EDEADLK,
    /// ETIMEDOUT.
    pub fn until_free<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let since = Instant::now();
        loop {
            match attempt() {
                Err(LOCKED) => self.wait(since)?,
                other => return other,
            }
        }
    }

    /// Whether somebody waits for the result of a long operation.
    pub fn is_wanted(&self) -> bool {
        self.waits.as_ref().is_none_or(|waits| waits())
    }

    fn wait(&self, since: Instant) -> Result<()> {
        let transactions = self.fs().transactions().ok_or(Errno::EIO)?;
        while self.is_wanted() {
            if transactions.wait(self.caller.tid, since.elapsed(), SLICE)? {
                return Ok(());
            }
        }
        Err(Errno::EINTR)
    }

    /// Makes it the tree of an image, whose file system leaves in `details` why it fails.
    pub fn of_image(mut self, details: Arc<Details>) -> Self {
        self.holder = IMAGE;
        self.details = Some(details);
        self
    }

    /// Why the operation that has just failed with `errno` did.
    pub fn why(&self, errno: Errno) -> String {
        let details = self.details.as_ref();
        let why = details.and_then(|details| details.take(errno));
        why.unwrap_or_else(|| errno.desc().to_owned())
    }

    /// [`Tree::why`] of an operation on `path`.
    pub fn error(&self, path: &[u8], errno: Errno) -> Error {
        Error::in_tree(path, self.why(errno))
    }

    /// The file system.
    pub fn fs(&self) -> &dyn FileSystem {
        self.mount.fs.as_ref()
    }

    /// An inode of this tree.
    pub fn place(&self, node: goanna_vfs::Node) -> Place {
        Place {
            mount: Arc::clone(&self.mount),
            node,
        }
    }

    /// The root.
    pub fn root(&self) -> Place {
        self.place(self.fs().root())
    }

    /// What `path` names; it may begin with a slash or not.
    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<Place> {
        if path.contains(&0) {
            return Err(Errno::EINVAL);
        }
        let mut walk = Walk::new(&self.mounts, &self.caller, &NoProcess)
            .with_resolve(nix::libc::RESOLVE_IN_ROOT);
        match walk.object(Pos::mount_root(&self.mount), path, follow)? {
            Pos::Mounted(place) => Ok(place),
            Pos::Host(_) => Err(Errno::EXDEV),
        }
    }

    /// The entries of a directory, by name.
    pub fn list(&self, dir: &Place) -> Result<Vec<Entry>> {
        ops::readdir_check(&self.caller, dir)?;
        let mut names = Vec::new();
        self.fs()
            .readdir(&self.caller, &dir.node, 0, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            })?;
        names.sort_unstable();
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            match ops::lookup(&self.caller, dir, &name) {
                // Removed meanwhile.
                Err(Errno::ENOENT) => {}
                node => {
                    let place = self.place(node?);
                    entries.push(Entry { name, place });
                }
            }
        }
        Ok(entries)
    }

    /// An inode's metadata.
    pub fn attr(&self, place: &Place) -> Result<Attr> {
        self.fs().getattr(&self.caller, &place.node)
    }

    /// A symbolic link's target; `None` for anything else.
    pub fn target(&self, place: &Place) -> Result<Option<Vec<u8>>> {
        match place.node.kind() {
            FileKind::Symlink => self.fs().readlink(&self.caller, &place.node).map(Some),
            _ => Ok(None),
        }
    }

    /// Whether the caller may read an inode: EACCES if not. A file system that judges itself tells when it is read.
    pub fn may_read(&self, place: &Place) -> Result<()> {
        if self.fs().checks_access() {
            return Ok(());
        }
        ops::access(&self.caller, place, nix::libc::R_OK)
    }

    /// Reads from a regular file.
    pub fn read(&self, place: &Place, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.fs().read_at(&self.caller, &place.node, offset, buf)
    }

    /// The extended attributes the caller may see, by name. None where the file system has none at all.
    pub fn xattrs(&self, place: &Place) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut names = match ops::listxattr(&self.caller, place) {
            Err(Errno::EOPNOTSUPP) => Vec::new(),
            names => names?,
        };
        names.sort_unstable();
        names
            .into_iter()
            .map(|name| {
                let value = ops::getxattr(&self.caller, place, &name)?;
                Ok((name, value))
            })
            .collect()
    }
}

/// `dir` and `name` as one path.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// `path` as an absolute one.
pub fn absolute(path: &[u8]) -> Vec<u8> {
    match path.first() {
        Some(b'/') => path.to_vec(),
        _ => join(b"/", path),
    }
}
