//! A file system with the credentials of its user: all functions of this crate work on one.

use std::fmt::{Display, Formatter};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use goanna_vfs::walk::{NoProcess, Pos, Walk};
use goanna_vfs::{
    Attr, Caller, DirEntry, Errno, FileKind, FileSystem, FsError, Mount, MountFlags, Mounts, Place,
    Result, SynthFs, Wait, ops,
};

use crate::Error;

/// The kind of source that a tree comes from; messages name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// An amino store.
    Store,
    /// An ISO 9660 image.
    Image,
}

impl Display for Source {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Store => "store",
            Self::Image => "image",
        })
    }
}

/// The detailed reason of a file system's last failure, which its errno does not express.
#[derive(Debug, Default)]
pub struct ErrorDetails(Mutex<Option<(Errno, String)>>);

impl ErrorDetails {
    /// Records the reason of an operation that is about to fail with `errno`.
    pub fn set(&self, errno: Errno, why: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((errno, why));
    }

    fn take(&self, errno: Errno) -> Option<String> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        last.filter(|(of, _)| *of == errno).map(|(_, why)| why)
    }
}

/// Returns whether the result of an operation is still wanted.
type StillWanted = Box<dyn Fn() -> bool + Send + Sync>;

/// A file system and the credentials it is used with. Its root is `/`, also for symbolic links.
pub struct Tree {
    /// The credentials.
    pub caller: Caller,
    /// The kind of source that the tree comes from.
    pub source: Source,
    details: Option<Arc<ErrorDetails>>,
    mounts: Mounts,
    mount: Arc<Mount>,
    still_wanted: Option<StillWanted>,
}

/// How often a wait for a lock checks whether its result is still wanted.
const WAIT_STEP: Duration = Duration::from_millis(10);

/// One entry of a directory.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// The kind of the file.
    pub place: Place,
}

impl Tree {
    /// The tree of `fs`.
    pub fn new(fs: Arc<dyn FileSystem>, caller: Caller) -> Self {
        let mount = Arc::new(Mount::new(
            fs,
            b"/".to_vec(),
            MountFlags::empty(),
            String::new(),
            0,
        ));
        Self {
            caller,
            source: Source::Store,
            details: None,
            mounts: Mounts::new(Arc::new(SynthFs::default())),
            mount,
            still_wanted: None,
        }
    }

    /// Ends waits for transactions' locks once `still_wanted` returns false.
    pub fn wait_while(mut self, still_wanted: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.still_wanted = Some(Box::new(still_wanted));
        self
    }

    /// Restarts `attempt` until no transaction's lock blocks it. EINTR when the result is no longer wanted; EDEADLK,
    /// ETIMEDOUT.
    pub fn retry_while_locked<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T, Errno> {
        let since = Instant::now();
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(FsError::Errno(errno)) => return Err(errno),
                Err(FsError::Blocked(wait)) => self.wait(&wait, since)?,
            }
        }
    }

    /// Whether the result of a long operation is still wanted.
    pub fn is_wanted(&self) -> bool {
        self.still_wanted.as_ref().is_none_or(|wanted| wanted())
    }

    fn wait(&self, wait: &Wait, since: Instant) -> Result<(), Errno> {
        while self.is_wanted() {
            if wait.wait(since.elapsed(), WAIT_STEP)? {
                return Ok(());
            }
        }
        Err(Errno::EINTR)
    }

    /// Marks the tree as that of an image, whose file system records the reasons of failures in `details`.
    pub fn of_image(mut self, details: Arc<ErrorDetails>) -> Self {
        self.source = Source::Image;
        self.details = Some(details);
        self
    }

    /// The detailed reason of the operation that has just failed with `errno`.
    pub fn why(&self, errno: Errno) -> String {
        let details = self.details.as_ref();
        let why = details.and_then(|details| details.take(errno));
        why.unwrap_or_else(|| errno.desc().to_owned())
    }

    /// The error of an operation on `path` that has just failed with `errno`.
    pub fn error(&self, path: &[u8], errno: Errno) -> Error {
        Error::InTree {
            path: path.to_owned(),
            errno,
            why: self.why(errno),
        }
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

    /// The inode that `path` names. A slash at its beginning makes no difference.
    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<Place, Errno> {
        if path.contains(&0) {
            return Err(Errno::EINVAL);
        }
        let found = self.retry_while_locked(|| {
            let mut walk = Walk::new(&self.mounts, &self.caller, &NoProcess)
                .with_resolve(nix::libc::RESOLVE_IN_ROOT);
            walk.object(Pos::mount_root(&self.mount), path, follow)
        });
        match found? {
            Pos::Mounted(place) => Ok(place),
            Pos::Host(_) => Err(Errno::EXDEV),
        }
    }

    /// The entry `name` of a directory.
    pub fn lookup(&self, dir: &Place, name: &[u8]) -> Result<Place, Errno> {
        let node = self.retry_while_locked(|| ops::lookup(&self.caller, dir, name))?;
        Ok(self.place(node))
    }

    /// The entries of a directory, by name.
    pub fn list(&self, dir: &Place) -> Result<Vec<Entry>, Errno> {
        let mut names = self.retry_while_locked(|| {
            ops::readdir_check(&self.caller, dir)?;
            let mut names = Vec::new();
            let mut add = |entry: DirEntry<'_>| {
                names.push(entry.name.to_vec());
                true
            };
            self.fs().readdir(&self.caller, &dir.node, 0, &mut add)?;
            Ok(names)
        })?;
        names.sort_unstable();
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            match self.lookup(dir, &name) {
                // Removed meanwhile.
                Err(Errno::ENOENT) => {}
                place => entries.push(Entry {
                    name,
                    place: place?,
                }),
            }
        }
        Ok(entries)
    }

    /// An inode's metadata.
    pub fn attr(&self, place: &Place) -> Result<Attr, Errno> {
        self.retry_while_locked(|| self.fs().getattr(&self.caller, &place.node))
    }

    /// A symbolic link's target; `None` for anything else.
    pub fn target(&self, place: &Place) -> Result<Option<Vec<u8>>, Errno> {
        if place.node.kind() != FileKind::Symlink {
            return Ok(None);
        }
        let read = || self.fs().readlink(&self.caller, &place.node);
        self.retry_while_locked(read).map(Some)
    }

    /// Whether the caller may read an inode: EACCES if not. A file system that checks access by itself does so at the read.
    pub fn may_read(&self, place: &Place) -> Result<(), Errno> {
        if self.fs().checks_access() {
            return Ok(());
        }
        self.retry_while_locked(|| ops::access(&self.caller, place, nix::libc::R_OK))
    }

    /// Reads from a regular file.
    pub fn read(&self, place: &Place, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let read = || self.fs().read_at(&self.caller, &place.node, offset, buf);
        self.retry_while_locked(read)
    }

    /// The extended attributes that the caller may see, sorted by name; none where the file system does not support them.
    pub fn xattrs(&self, place: &Place) -> Result<Vec<Xattr>, Errno> {
        let mut names = match self.retry_while_locked(|| ops::listxattr(&self.caller, place)) {
            Err(Errno::EOPNOTSUPP) => Vec::new(),
            names => names?,
        };
        names.sort_unstable();
        names
            .into_iter()
            .map(|name| {
                let read = || ops::getxattr(&self.caller, place, &name);
                let value = self.retry_while_locked(read)?;
                Ok((name, value))
            })
            .collect()
    }
}

/// The name and the value of an extended attribute.
pub type Xattr = (Vec<u8>, Vec<u8>);

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
