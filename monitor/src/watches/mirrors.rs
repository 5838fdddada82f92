//! Mirrors: the host objects on which inotify watches of virtual objects lie.
//!
//! The mirror of a directory is a directory with an empty entry for each name; that of anything else is an empty file. The kernel
//! makes the events: each method performs the operation on a mirror that raises exactly the event after which it is named.

use std::collections::HashMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use goanna_vfs::{Errno, Place, PlaceKey, TxnId};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
};

use crate::errno::errno;

/// The transaction whose changes a mirror shows before they are committed; `None`: only the committed state.
pub(super) type View = Option<TxnId>;

/// Identifies a mirror, even after its removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct MirrorId(u64);

/// The file that a name in a directory leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// The inode.
    pub node: PlaceKey,
    /// Whether it is a directory, as `IN_ISDIR` says.
    pub is_dir: bool,
}

/// A name in a directory.
pub(super) type Name = (PlaceKey, Vec<u8>);

/// The names in a directory.
pub(super) type Listing = Vec<(Vec<u8>, Entry)>;

/// An event of a file without a change of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// `IN_ATTRIB`
    Attrib,
    /// `IN_MODIFY`
    Modify,
    /// `IN_ACCESS`
    Access,
}

impl Touch {
    /// The times whose setting raises the event.
    fn times(self) -> Timestamps {
        let set = |is_set: bool| Timespec {
            tv_sec: 0,
            tv_nsec: if is_set { UTIME_NOW } else { UTIME_OMIT },
        };
        Timestamps {
            last_access: set(self != Self::Modify),
            last_modification: set(self != Self::Access),
        }
    }

    /// Raises the event for the file at `path`.
    pub fn at(self, path: &Path) {
        let _ = rustix::fs::utimensat(CWD, path, &self.times(), AtFlags::SYMLINK_NOFOLLOW);
    }

    /// Raises the event for an open file, also for one without a name.
    pub fn of(self, file: &OwnedFd) {
        let has_no_name = || rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink == 0);
        if self == Self::Modify && has_no_name() {
            // IN_EXCL_UNLINK concerns writes only, not times that are set. It fails where the program does not write, either.
            let _ = rustix::io::pwrite(file, &[0], 0);
            return;
        }
        let _ = rustix::fs::futimens(file.as_fd(), &self.times());
    }
}

/// The mirror of one virtual object, for one view.
#[derive(Debug)]
pub(super) struct Mirror {
    /// The virtual object.
    pub place: Place,
    /// The transaction whose changes it shows.
    pub view: View,
    /// The host object.
    pub path: PathBuf,
    /// Its inode number.
    pub ino: u64,
    /// Masks of all watches that were added.
    pub mask: u32,
    /// The names, of a directory.
    pub names: HashMap<Vec<u8>, Entry>,
}

impl Mirror {
    fn at(&self, name: &[u8]) -> PathBuf {
        self.path.join(std::ffi::OsStr::from_bytes(name))
    }
}

/// All mirrors of a run. If the host refuses an operation, an event is missing; nothing else depends on it.
#[derive(Debug, Default)]
pub(super) struct Mirrors {
    all: HashMap<MirrorId, Mirror>,
    by_place: HashMap<PlaceKey, Vec<MirrorId>>,
    /// The names in mirrors that lead to an inode.
    by_node: HashMap<PlaceKey, Vec<(MirrorId, Vec<u8>)>>,
    /// The directory of the mirrors.
    base: PathBuf,
    next: u64,
}

impl Mirrors {
    /// The directory for mirrors, which no other user may enter. Made by the first call.
    pub fn set_base(&mut self, base: &Path) -> Result<(), Errno> {
        if self.base.as_os_str().is_empty() {
            DirBuilder::new().mode(0o700).create(base).map_err(errno)?;
            self.base = base.to_owned();
        }
        Ok(())
    }

    fn fresh(&mut self) -> (MirrorId, PathBuf) {
        self.next += 1;
        (MirrorId(self.next), self.base.join(self.next.to_string()))
    }

    /// The mirror of `key` for `view`.
    pub fn find(&self, key: &PlaceKey, view: View) -> Option<MirrorId> {
        let mut ids = self.of(key).into_iter();
        ids.find(|id| self.get(*id).is_some_and(|mirror| mirror.view == view))
    }

    pub fn get(&self, id: MirrorId) -> Option<&Mirror> {
        self.all.get(&id)
    }

    pub fn get_mut(&mut self, id: MirrorId) -> Option<&mut Mirror> {
        self.all.get_mut(&id)
    }

    /// The view of a mirror; the outer `None` for one that was removed.
    pub fn find_view(&self, id: MirrorId) -> Option<View> {
        self.get(id).map(|mirror| mirror.view)
    }

    /// All mirrors of an inode.
    pub fn of(&self, key: &PlaceKey) -> Vec<MirrorId> {
        self.by_place.get(key).cloned().unwrap_or_default()
    }

    pub fn ids(&self) -> Vec<MirrorId> {
        self.all.keys().copied().collect()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Mirror> {
        self.all.values_mut()
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// The names in mirrors that lead to an inode, one for each mirror: the youngest one.
    pub fn names_of(&self, node: &PlaceKey) -> Vec<(MirrorId, Vec<u8>)> {
        let all = self.by_node.get(node).map_or(&[][..], Vec::as_slice);
        let mut found: Vec<(MirrorId, Vec<u8>)> = Vec::new();
        for (id, name) in all.iter().rev() {
            if !found.iter().any(|(known, _)| known == id) {
                found.push((*id, name.clone()));
            }
        }
        found
    }

    /// Makes the mirror of `place` with these names. ENOSPC: programs then fall back to polling.
    pub fn make(&mut self, place: &Place, view: View, names: Listing) -> Result<MirrorId, Errno> {
        let (id, path) = self.fresh();
        make_object(&path, place.node.is_dir()).map_err(errno)?;
        let ino = fs::symlink_metadata(&path).map_err(errno)?.ino();
        let mirror = Mirror {
            place: place.clone(),
            view,
            path,
            ino,
            mask: 0,
            names: HashMap::with_capacity(names.len()),
        };
        self.all.insert(id, mirror);
        self.by_place.entry(place.key()).or_default().push(id);
        for (name, entry) in names {
            if let Err(error) = self.insert(id, &name, entry) {
                self.remove(id);
                return Err(errno(error));
            }
        }
        Ok(id)
    }

    /// The path of an entry of a mirror.
    pub fn path_of(&self, id: MirrorId, name: &[u8]) -> Option<PathBuf> {
        Some(self.get(id)?.at(name))
    }

    fn insert(&mut self, id: MirrorId, name: &[u8], entry: Entry) -> io::Result<()> {
        if let Some(mirror) = self.all.get(&id) {
            make_object(&mirror.at(name), entry.is_dir)?;
            self.note(id, name, entry);
        }
        Ok(())
    }

    fn note(&mut self, id: MirrorId, name: &[u8], entry: Entry) {
        if let Some(mirror) = self.all.get_mut(&id) {
            mirror.names.insert(name.to_vec(), entry);
            let names = self.by_node.entry(entry.node).or_default();
            names.push((id, name.to_vec()));
        }
    }

    fn remove_entry(&mut self, id: MirrorId, name: &[u8]) -> Option<Entry> {
        let entry = self.all.get_mut(&id)?.names.remove(name)?;
        if let Some(names) = self.by_node.get_mut(&entry.node) {
            names.retain(|(mirror, other)| *mirror != id || other != name);
            if names.is_empty() {
                self.by_node.remove(&entry.node);
            }
        }
        Some(entry)
    }

    /// `IN_CREATE`
    pub fn create(&mut self, id: MirrorId, name: &[u8], entry: Entry) {
        if self
            .get(id)
            .is_some_and(|mirror| mirror.names.contains_key(name))
        {
            self.delete(id, name);
        }
        let _ = self.insert(id, name, entry);
    }

    /// `IN_DELETE`
    pub fn delete(&mut self, id: MirrorId, name: &[u8]) {
        if let Some(path) = self.path_of(id, name)
            && let Some(entry) = self.remove_entry(id, name)
        {
            remove_object(&path, entry.is_dir);
        }
    }

    /// `IN_MOVED_FROM` and `IN_MOVED_TO`, with one cookie. A side without a mirror gets a temporary entry outside of all mirrors.
    pub fn rename(
        &mut self,
        from: Option<(MirrorId, &[u8])>,
        to: Option<(MirrorId, &[u8])>,
        entry: Entry,
    ) {
        let known = from
            .and_then(|(id, name)| Some((self.path_of(id, name)?, self.remove_entry(id, name)?)));
        let (_, spare) = self.fresh();
        let source = match known {
            Some((path, _)) => path,
            None if to.is_some() && make_object(&spare, entry.is_dir).is_ok() => spare.clone(),
            None => return,
        };
        let target = to.and_then(|(id, name)| {
            self.remove_entry(id, name);
            self.path_of(id, name)
        });
        if fs::rename(&source, target.as_deref().unwrap_or(&spare)).is_ok()
            && let Some((id, name)) = to
        {
            self.note(id, name, entry);
        }
        if target.is_none() {
            remove_object(&spare, entry.is_dir);
        }
    }

    /// The events of an exchange of two names, whose present entries are `first` and `second`.
    pub fn exchange(
        &mut self,
        (one, first): (Option<(MirrorId, &[u8])>, Entry),
        (other, second): (Option<(MirrorId, &[u8])>, Entry),
    ) {
        let (_, spare) = self.fresh();
        let mut side = |at: Option<(MirrorId, &[u8])>, entry: Entry| match at {
            Some((id, name)) => {
                let path = self.path_of(id, name);
                self.remove_entry(id, name).and(path)
            }
            None => make_object(&spare, entry.is_dir)
                .ok()
                .map(|()| spare.clone()),
        };
        if one.is_none() && other.is_none() {
            return;
        }
        if let (Some(from), Some(to)) = (side(one, first), side(other, second)) {
            let _ = rustix::fs::renameat_with(CWD, &from, CWD, &to, RenameFlags::EXCHANGE);
        }
        if let Some((id, name)) = one {
            self.note(id, name, second);
        }
        if let Some((id, name)) = other {
            self.note(id, name, first);
        }
        remove_object(&spare, false);
        remove_object(&spare, true);
    }

    /// `IN_MOVE_SELF`
    pub fn move_self(&mut self, id: MirrorId) {
        let (_, path) = self.fresh();
        if let Some(mirror) = self.all.get_mut(&id)
            && fs::rename(&mirror.path, &path).is_ok()
        {
            mirror.path = path;
        }
    }

    /// Removes a mirror: `IN_ATTRIB` at once if it is not that of a directory, `IN_DELETE_SELF` and `IN_IGNORED` when the returned descriptor
    /// and all others of it are closed.
    pub fn remove(&mut self, id: MirrorId) -> Option<OwnedFd> {
        let names: Vec<_> = self.get(id)?.names.keys().cloned().collect();
        for name in names {
            self.delete(id, &name);
        }
        let mirror = self.all.remove(&id)?;
        let key = mirror.place.key();
        if let Some(ids) = self.by_place.get_mut(&key) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_place.remove(&key);
            }
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = rustix::fs::openat(CWD, &mirror.path, flags, Mode::empty()).ok();
        remove_object(&mirror.path, mirror.place.node.is_dir());
        held
    }
}

fn make_object(path: &Path, is_dir: bool) -> io::Result<()> {
    if is_dir {
        return DirBuilder::new().mode(0o700).create(path);
    }
    let mode = Mode::RUSR | Mode::WUSR;
    Ok(rustix::fs::mknodat(
        CWD,
        path,
        FileType::RegularFile,
        mode,
        0,
    )?)
}

fn remove_object(path: &Path, is_dir: bool) {
    let _ = if is_dir {
        fs::remove_dir(path)
    } else {
        fs::remove_file(path)
    };
}
