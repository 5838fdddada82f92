//! Shadow objects: the host objects that tracees hold in place of virtual ones.
//!
//! A descriptor or working directory is recognised by the identity `(st_dev, st_ino)` of what the kernel
//! holds; dup, fork, exec and descriptor passing therefore need no bookkeeping here.
//!
//! Lock order: the table's lock is a leaf except for the write lease test (a system call on our own
//! descriptor); no back end is called under it.

mod alarm;
mod idle;
mod permissions;
mod retired;
pub mod run_directory;

use std::collections::HashMap;
use std::fs::{self, DirBuilder};

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use goanna_sys::object_handle::ObjectHandle;
use goanna_sys::{limits, memfile, stat};
use goanna_vfs::{Caller, Errno, FileKind, Place, PlaceKey, Result};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use parking_lot::{Mutex, RwLock};

use crate::errno::errno;
use crate::inprocess::run_map::RunMap;
use crate::process::task::credentials;
use crate::shadow::run_directory::RunDir;
use alarm::Alarm;
pub(crate) use alarm::Alarmed;
use retired::Retired;

pub(crate) use permissions::copy_permissions;

/// `(st_dev, st_ino)` of a host object.
pub type Identity = (u64, u64);

/// The virtual object that a host object stands for.
#[derive(Debug, Clone)]
pub enum Shadow {
    /// A regular file: the object is its back end's cache object.
    File {
        /// The virtual file.
        place: Place,
        /// The back end's handle of the cache object.
        handle: Arc<ObjectHandle>,
        /// The number of bytes written since the last check whether the file has outgrown memory ([`crate::calls::outgrow`]).
        volume: Arc<AtomicU64>,
    },
    /// A directory: the object is a backing directory.
    Dir {
        /// The virtual directory.
        place: Place,
        /// The backing directory.
        path: Arc<Path>,
    },
    /// A fifo, socket or device: the object is the real one in the run-time directory.
    Special {
        /// The virtual inode.
        place: Place,
        /// The object.
        path: Arc<Path>,
    },
    /// A file of /proc whose content the monitor provides: the object is a memfd with the content at the time of the open.
    Snapshot {
        /// The host's file.
        place: Place,
        /// Keeps the identity ours.
        handle: Arc<ObjectHandle>,
    },
    /// An `O_PATH` descriptor of something that is not a directory: the object is an empty memfd.
    Reference {
        /// The virtual inode.
        place: Place,
        /// Keeps the identity ours.
        handle: Arc<ObjectHandle>,
    },
}

impl Shadow {
    /// The virtual object.
    pub fn place(&self) -> &Place {
        match self {
            Self::File { place, .. }
            | Self::Dir { place, .. }
            | Self::Special { place, .. }
            | Self::Snapshot { place, .. }
            | Self::Reference { place, .. } => place,
        }
    }
}

/// A host object of the run-time directory.
#[derive(Debug)]
struct BackingObject {
    /// `None` for a socket.
    identity: Option<Identity>,
    /// The virtual object that it stands for.
    place: Place,
    path: Arc<Path>,
    /// The sweep before which a call last used it: the calling thread may not hold it yet.
    asked: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    by_identity: HashMap<Identity, Arc<Shadow>>,
    backing_objects: HashMap<PlaceKey, BackingObject>,
    /// The objects of `O_PATH` descriptors that no lease shows to be in use, and whether a sweep has seen them.
    references: HashMap<Identity, bool>,
    /// Number of references that the last full sweep found held. The next full sweep waits until there are twice as many.
    references_kept: usize,
    /// Counts sweeps of backing directories.
    sweeps: u64,
    /// The directories whose backing directories were removed.
    retired: Retired,
    /// Number of backing directories left by the last full sweep. The next one waits until there are twice as many.
    dirs_kept: usize,
}

impl Table {
    fn known(&self, key: &PlaceKey) -> Option<Arc<Path>> {
        let backing_object = self.backing_objects.get(key)?;
        backing_object.asked.store(self.sweeps, Ordering::Relaxed);
        Some(Arc::clone(&backing_object.path))
    }
}

/// All shadow objects of a run.
#[derive(Debug)]
pub struct Shadows {
    table: RwLock<Table>,
    rundir: RunDir,
    /// Number of objects from which on an open itself looks for unused files, and does not wait for the next sweep. Each object takes
    /// a descriptor of ours.
    files_before_sweep: AtomicUsize,
    files_before_sweep_min: usize,
    sweeping: Mutex<()>,
    /// The map of attributes, where backing directories are objects.
    attributes: OnceLock<Arc<RunMap>>,
    /// Files registered since the last sweep, and the number of them that starts a sweep early.
    new_files: AtomicUsize,
    many: AtomicUsize,
    /// Wakes the sweeper.
    pub(crate) alarm: Alarm,
    /// Number of sweeps that will still look for removed directories.
    directory_checks: AtomicU64,
    /// Number of sweeps that will still look for removed fifos, sockets and devices.
    removals: AtomicU64,
}

/// A flag that has no effect on a directory and that no program can change: it marks descriptors of backing directories that stand for
/// `O_PATH` ones.
const NAMES_ONLY: OFlag = OFlag::O_DSYNC;

/// Whether this descriptor of a backing directory is an `O_PATH` descriptor, or stands for one.
pub fn names_only(directory: &OwnedFd) -> Result<bool, Errno> {
    use nix::fcntl::{FcntlArg, fcntl};
    let flags = fcntl(directory.as_fd(), FcntlArg::F_GETFL)?;
    Ok(OFlag::from_bits_retain(flags).intersects(NAMES_ONLY | OFlag::O_PATH))
}

/// Number of new files that starts a sweep of the files early. If half of the number of all files is more, that number counts.
const MANY_FILES: usize = 1024;
/// With fewer backing directories than this, /proc is not searched for unused ones. Processes open those in the map without a notification, so they may be in use often.
const DIRS_BEFORE_SWEEP: usize = 8192;
/// The same for objects of `O_PATH` descriptors, each of which takes a descriptor of ours.
const REFERENCES_BEFORE_SWEEP: usize = 1024;
/// Number of sweeps after the removal of a directory that check whether its backing directory is still held: the first few, since most
/// are released at once, and then every tenth.
const DIRECTORY_SWEEPS: u64 = 60;
const FIRST_SWEEPS: u64 = 4;
/// Number of sweeps after the removal of a name that look for fifos, sockets and devices without names. In the committed state a
/// transaction removes the name much later: at its commit.
const REMOVAL_SWEEPS: u64 = 120;

impl Shadows {
    /// Without objects at first; objects are made in `rundir`.
    pub fn new(rundir: RunDir) -> Self {
        // The limit was raised before; this call returns it.
        let limit = limits::raise_nofile().unwrap_or(1024);
        let files_before_sweep_min = usize::try_from(limit / 2).unwrap_or(usize::MAX);
        Self {
            table: RwLock::default(),
            rundir,
            files_before_sweep: AtomicUsize::new(files_before_sweep_min),
            files_before_sweep_min,
            sweeping: Mutex::default(),
            attributes: OnceLock::new(),
            new_files: AtomicUsize::new(0),
            many: AtomicUsize::new(MANY_FILES),
            alarm: Alarm::default(),
            directory_checks: AtomicU64::new(0),
            removals: AtomicU64::new(0),
        }
    }

    /// From now on, backing directories are objects of the map of attributes `map`.
    pub fn share_attributes(&self, map: &Arc<RunMap>) {
        let _ = self.attributes.set(Arc::clone(map));
    }

    /// The run-time directory.
    pub fn rundir(&self) -> &RunDir {
        &self.rundir
    }

    /// The virtual object that the object with this identity stands for.
    pub fn find(&self, identity: Identity) -> Option<Arc<Shadow>> {
        self.table.read().by_identity.get(&identity).cloned()
    }

    /// The file that a mapping of the object with this identity stands for; its device number may be another than stat(2)
    /// shows, as on btrfs.
    pub fn mapped(&self, identity: Identity) -> Option<Arc<Shadow>> {
        let is_file = |shadow: &&Arc<Shadow>| matches!(***shadow, Shadow::File { .. });
        let table = self.table.read();
        let exact = table.by_identity.get(&identity).filter(is_file);
        let alike = || {
            let mut all = table.by_identity.iter();
            all.find(|((_, ino), shadow)| *ino == identity.1 && is_file(shadow))
                .map(|(_, shadow)| shadow)
        };
        exact.or_else(alike).cloned()
    }

    /// The handle of the cache object of a file that tracees have open.
    pub fn open_file(&self, key: &PlaceKey) -> Option<Arc<ObjectHandle>> {
        let table = self.table.read();
        table
            .by_identity
            .values()
            .find_map(|shadow| match &**shadow {
                Shadow::File { place, handle, .. }
                    if place.key() == *key && !handle.sole_known_opener() =>
                {
                    Some(Arc::clone(handle))
                }
                _ => None,
            })
    }

    /// The virtual object that an open file description stands for.
    pub fn of_descriptor(&self, fd: &OwnedFd) -> Result<Option<Arc<Shadow>>> {
        let (dev, ino, _) = stat::identity(fd.as_fd())?;
        let links = || Ok(nix::sys::stat::fstat(fd)?.st_nlink);
        self.of_object((dev, ino), links)
    }

    /// The virtual object that stands behind a link in /proc, such as a thread's descriptor or working directory; `identity` is that
    /// of the host object.
    pub fn of_link(
        &self,
        identity: Identity,
        link: impl FnOnce() -> String,
    ) -> Result<Option<Arc<Shadow>>> {
        let links = || Ok(fs::metadata(link()).map_err(errno)?.nlink());
        self.of_object(identity, links)
    }

    fn of_object(
        &self,
        identity: Identity,
        links: impl FnOnce() -> Result<u64>,
    ) -> Result<Option<Arc<Shadow>>> {
        match self.find(identity) {
            Some(shadow) => Ok(Some(shadow)),
            None => self.find_retired(identity, links),
        }
    }

    /// The directory whose backing directory had this identity. The removed backing directory has no links, which distinguishes it
    /// from a later host object with the same inode number.
    fn find_retired(
        &self,
        identity: Identity,
        links: impl FnOnce() -> Result<u64>,
    ) -> Result<Option<Arc<Shadow>>> {
        let former = self.table.read().retired.get(&identity);
        let Some(former) = former else {
            return Ok(None);
        };
        if links()? != 0 {
            return Ok(None);
        }
        let own = credentials(std::process::id().cast_signed())?;
        let Some(place) = former.find(&own) else {
            return Ok(None);
        };
        let path = self.directory(&place)?;
        Ok(Some(Arc::new(Shadow::Dir { place, path })))
    }

    /// Makes the next sweeps look for the backing directory of a directory that was just removed.
    pub fn directory_removed(&self) {
        self.directory_checks
            .store(DIRECTORY_SWEEPS, Ordering::Relaxed);
    }

    /// Makes the next sweeps look for objects without names, because a name of a file other than a directory was removed or replaced.
    pub fn name_removed(&self) {
        self.removals.store(REMOVAL_SWEEPS, Ordering::Relaxed);
    }

    /// Records that tracees hold descriptors of `place`'s cache object, and returns its [`Shadow::File`]. The caller holds no lock of the back end.
    pub fn register_file(&self, place: &Place, handle: Arc<ObjectHandle>) -> Arc<Shadow> {
        let identity = handle.identity();
        if let Some(shadow) = self.table.read().by_identity.get(&identity) {
            return Arc::clone(shadow);
        }
        let shadow = Arc::new(Shadow::File {
            place: place.in_whole(),
            handle,
            volume: Arc::default(),
        });
        let (shadow, objects) = {
            let mut table = self.table.write();
            let shadow = Arc::clone(table.by_identity.entry(identity).or_insert(shadow));
            (shadow, table.by_identity.len())
        };
        if self.new_files.fetch_add(1, Ordering::Relaxed) + 1 == self.many.load(Ordering::Relaxed) {
            self.alarm.ring();
        }
        if objects > self.files_before_sweep.load(Ordering::Relaxed)
            && let Some(_alone) = self.sweeping.try_lock()
        {
            self.sweep_files();
            let kept = self.table.read().by_identity.len();
            let files_before_sweep = kept
                .saturating_add(kept / 4)
                .max(self.files_before_sweep_min);
            self.files_before_sweep
                .store(files_before_sweep, Ordering::Relaxed);
        }
        shadow
    }

    /// A descriptor for an `O_PATH` open of `place`. A notification (`installed`) cannot install one with `O_PATH`: then it is a descriptor of a sealed memfd,
    /// which is write-only if calls that write come to the monitor (`sees_writes`), so that reads fail with EBADF.
    pub fn reference(&self, place: &Place, sees_writes: bool, installed: bool) -> Result<OwnedFd> {
        let place = place.clone();
        let made = memfile::sealed(c"path", |_| Ok::<_, Errno>(()))?;
        let access = if !installed {
            libc::O_PATH
        } else if sees_writes {
            libc::O_WRONLY
        } else {
            libc::O_RDONLY
        };
        self.open_registered(made, access, |handle| Shadow::Reference { place, handle })
    }

    /// A new descriptor for reading `content` instead of the host's file at `place`.
    pub fn snapshot(&self, place: Place, content: &[u8]) -> Result<OwnedFd> {
        let made = memfile::sealed(c"list", |file| {
            let file = fs::File::from(file.try_clone_to_owned().map_err(errno)?);
            file.write_all_at(content, 0).map_err(errno)
        })?;
        self.open_registered(made, libc::O_RDONLY, |handle| Shadow::Snapshot {
            place,
            handle,
        })
    }

    /// Registers the memfd `made`, and opens it for a tracee with the access mode `access`.
    fn open_registered(
        &self,
        made: OwnedFd,
        access: i32,
        shadow: impl FnOnce(Arc<ObjectHandle>) -> Shadow,
    ) -> Result<OwnedFd> {
        let open = |access| memfile::reopen(made.as_fd(), access);
        let handle = Arc::new(ObjectHandle::new(open(libc::O_RDONLY)?)?);
        let (identity, fd) = (handle.identity(), open(access)?);
        let shadow = Arc::new(shadow(handle));
        let mut table = self.table.write();
        table.by_identity.insert(identity, shadow);
        if access & libc::O_PATH != 0 {
            table.references.insert(identity, false);
        }
        Ok(fd)
    }

    /// The backing directory of a virtual directory.
    pub fn directory(&self, place: &Place) -> Result<Arc<Path>> {
        self.backing_object(place, || {
            let path = self.rundir.backing_dir();
            DirBuilder::new().mode(0o755).create(&path).map_err(errno)?;
            // The umask has removed some bits; the virtual mode decides which users may enter.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(errno)?;
            Ok(path)
        })
    }

    /// The backing directory, as [`Shadows::directory`], for a thread of `caller` that will use its path.
    pub fn directory_for(&self, caller: &Caller, place: &Place) -> Result<Arc<Path>> {
        self.rundir.allow_traversal(caller.uid).map_err(errno)?;
        self.directory(place)
    }

    /// A descriptor of a virtual directory's backing directory, for a program that has opened the directory with `flags`.
    /// `installed`: a notification will install it, which is possible only without `O_PATH`.
    pub fn open_directory(&self, place: &Place, flags: i32, installed: bool) -> Result<OwnedFd> {
        /// Flags that F_GETFL(2) shows and that mean nothing for the backing directory.
        const SHOWN: i32 = libc::O_APPEND
            | libc::O_DIRECTORY
            | libc::O_NOATIME
            | libc::O_NOFOLLOW
            | libc::O_NONBLOCK;
        let path = self.directory(place)?;
        let status = if flags & libc::O_PATH != 0 && !installed {
            OFlag::O_DIRECTORY | OFlag::O_PATH
        } else if flags & libc::O_PATH != 0 {
            OFlag::O_DIRECTORY | NAMES_ONLY
        } else {
            OFlag::from_bits_retain(flags & SHOWN)
        };
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | status;
        Ok(nix::fcntl::open(&*path, flags, Mode::empty())?)
    }

    /// The host object of a virtual fifo, device or socket, for `caller` to use by its path. It has the owner and the permissions of
    /// the virtual object, so that the kernel checks them. The object of a socket is made by bind(2).
    pub fn backing(&self, caller: &Caller, place: &Place) -> Result<Arc<Path>> {
        use nix::sys::stat::{SFlag, mknod};
        let attr = place.mount.fs.getattr(caller, &place.node)?;
        let path = self.backing_object(place, || {
            let path = self.rundir.unguessable("s").map_err(errno)?;
            let mode = Mode::S_IRUSR | Mode::S_IWUSR;
            match place.node.kind() {
                FileKind::Fifo => mknod(&path, SFlag::S_IFIFO, mode, 0)?,
                FileKind::CharDevice => mknod(&path, SFlag::S_IFCHR, mode, attr.rdev)?,
                FileKind::BlockDevice => mknod(&path, SFlag::S_IFBLK, mode, attr.rdev)?,
                _ => {}
            }
            Ok(path)
        })?;
        self.rundir.allow_traversal(caller.uid).map_err(errno)?;
        copy_permissions(caller, place, &path)?;
        Ok(path)
    }

    /// A short path that leads to the host's socket at `path`, which is too long for an address, for `caller` to use.
    pub fn short_path(&self, caller: &Caller, place: &Place, path: &Path) -> Result<Arc<Path>> {
        let link = || {
            let link = self.rundir.unguessable("s").map_err(errno)?;
            symlink(path, &link).map_err(errno)?;
            Ok(link)
        };
        self.rundir.allow_traversal(caller.uid).map_err(errno)?;
        let short = self.backing_object(place, link)?;
        if fs::read_link(&short).map_err(errno)? == path {
            return Ok(short);
        }
        // The socket was renamed.
        let mut table = self.table.write();
        table.backing_objects.remove(&place.key_in_mount());
        drop(table);
        self.backing_object(place, link)
    }

    /// The owner or the permissions of `place` have changed, as `caller` sees it.
    pub fn update_permissions(&self, caller: &Caller, place: &Place) -> Result<()> {
        let fs = &place.mount.fs;
        if place.node.is_dir() || fs.host_path(&place.node).is_some() {
            return Ok(());
        }
        let known = self.table.read().known(&place.key_in_mount());
        known.map_or(Ok(()), |path| copy_permissions(caller, place, &path))
    }

    fn backing_object(
        &self,
        place: &Place,
        make: impl FnOnce() -> Result<PathBuf>,
    ) -> Result<Arc<Path>> {
        let key = place.key_in_mount();
        if let Some(path) = self.table.read().known(&key) {
            return Ok(path);
        }
        let mut table = self.table.write();
        if let Some(path) = table.known(&key) {
            return Ok(path);
        }
        let path: Arc<Path> = make()?.into();
        let shadow = match place.node.kind() {
            FileKind::Directory => Shadow::Dir {
                place: place.clone(),
                path: Arc::clone(&path),
            },
            _ => Shadow::Special {
                place: place.clone(),
                path: Arc::clone(&path),
            },
        };
        // The object of a socket is not bound yet, and no descriptor leads to it: descriptors of a socket have another inode.
        let identity = fs::symlink_metadata(&path)
            .ok()
            .map(|meta| (meta.dev(), meta.ino()));
        if let Some(identity) = identity {
            // The host may have given it the inode number of a former object.
            if let Some(map) = self.attributes.get() {
                map.forget_backing(identity.1);
            }
            table.by_identity.insert(identity, Arc::new(shadow));
        }
        let asked = AtomicU64::new(table.sweeps);
        let backing_object = BackingObject {
            identity,
            place: place.clone(),
            path: Arc::clone(&path),
            asked,
        };
        table.backing_objects.insert(key, backing_object);
        Ok(path)
    }

    /// Drops objects that no tracee holds any more, and notifies their back ends. `threads` lists the tracees.
    pub fn sweep(&self, threads: impl FnOnce() -> Vec<i32>) {
        self.sweep_files();
        self.sweep_others(threads);
    }

    /// Drops the files that no tracee has open any more. The sweeper does so during the run, on a CPU that the tracees may leave idle,
    /// so that the end of the run does not wait for it.
    pub(crate) fn sweep_files(&self) {
        self.new_files.store(0, Ordering::Relaxed);
        let table = self.table.read();
        let with_lease = table
            .by_identity
            .iter()
            .filter(|(identity, _)| !table.references.contains_key(identity));
        let candidates: Vec<(Identity, Arc<ObjectHandle>)> = with_lease
            .filter_map(|(identity, shadow)| match &**shadow {
                Shadow::File { handle, .. }
                | Shadow::Snapshot { handle, .. }
                | Shadow::Reference { handle, .. } => Some((*identity, Arc::clone(handle))),
                _ => None,
            })
            .collect();
        drop(table);
        for (identity, handle) in candidates {
            self.release_if_closed(identity, &handle);
        }
        let kept = self.table.read().by_identity.len();
        self.many.store(MANY_FILES.max(kept / 2), Ordering::Relaxed);
    }

    /// Removes a file unless a tracee has it open. A concurrent open has made its description before the lease test, which then fails, or
    /// it registers after the removal, and adds the file again. The back end tests again under its own lock.
    fn release_if_closed(&self, identity: Identity, handle: &ObjectHandle) {
        let removed = {
            let mut table = self.table.write();
            if !handle.sole_opener() {
                return;
            }
            table.by_identity.remove(&identity)
        };
        if let Some(Shadow::File { place, .. }) = removed.as_deref()
            && let Some(content) = place.mount.fs.content()
        {
            content.released(&place.node);
        }
    }
}
