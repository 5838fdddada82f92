//! The attributes that programs read themselves, from a map in shared memory (docs/decisions/0098).
//!
//! # Order
//!
//! An inode's attributes are put into the map under the lock of its state, and taken out ([`Volume::unshare`]) under the same lock before they, or
//! content that programs read natively, change. Names change under the namespace lock, which a look-up takes, too: the directory leaves the map before that lock is
//! released. So attributes and paths in the map are never older than what a read of the file system finds.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock};

use amino_schema::{MetaFlags, ROOT_INO};
use goanna_sys::object_handle::ObjectHandle;
use goanna_sys::stub::map::{AttributeMap, DIRS_MAX, PATH_MAX, Slot};
use goanna_sys::stub::writes::{Moment, WriteArea};
use goanna_vfs::{Caller, FileKind, NAME_MAX, NextFile, Node, Result, SharedAttributes};
use parking_lot::{Mutex, MutexGuard};

use crate::directory::order::Use;
use crate::inode::{Inode, MetaLocation, State};
use crate::view::View;
use crate::{AminoFs, Volume};

/// The bits with which every user may search a directory, and read a file.
const SEARCHABLE: u32 = 0o111;
const READABLE: u32 = 0o444;
/// Size of the largest file that programs open themselves, bytes: its content stays in memory meanwhile.
const CONTENT_MAX: u64 = 256 << 10;
/// Most content that is read ahead at once, bytes.
const READ_AHEAD_MAX: u64 = 1 << 20;

/// The map of one open store, from when the first program wants it.
#[derive(Default)]
pub(crate) struct Shared {
    map: OnceLock<Arc<AttributeMap>>,
    /// Held while the map is opened or closed.
    closing: Mutex<()>,
    /// The directories on which programs have mounted something, once for each mount.
    covered: Mutex<Vec<u64>>,
}

impl Shared {
    fn map(&self) -> Option<&Arc<AttributeMap>> {
        self.map.get()
    }
}

impl Volume {
    /// Closes the map while a transaction is open, and opens it afterwards. Called whenever the number of transactions has changed.
    pub(crate) fn settle_map(&self) {
        let closing = self.lock_map();
        if let Some(map) = self.shared.map() {
            map.set_closed(self.transactions.count.load(SeqCst) > 0);
        }
        drop(closing);
        self.end_grants();
    }

    /// The map is not opened or closed while this exists.
    pub(crate) fn lock_map(&self) -> MutexGuard<'_, ()> {
        self.shared.closing.lock()
    }

    /// Takes the attributes of an inode out of the map, and all paths that lead through it as a directory.
    pub(crate) fn unshare(&self, ino: u64) {
        if let Some(map) = self.shared.map() {
            map.invalidate(ino);
        }
    }

    /// Puts the attributes of an inode of the table into the map. `None` for one that is not to be there: its
    /// allocated blocks change without a call while programs have it mapped.
    fn share(&self, inode: &Inode, state: &State) -> Option<Slot> {
        let map = self.shared.map()?;
        let is_mapped = state.cache.as_ref().is_some_and(|cache| cache.is_mapped());
        if inode.under.is_some() || state.gone || state.uncommitted || is_mapped {
            return None;
        }
        if inode.kind == FileKind::Directory && self.shared.covered.lock().contains(&inode.ino) {
            return None;
        }
        let known = map.slot_of(inode.ino);
        known.or_else(|| {
            let attr = inode.attr(state, self.dev);
            let readable = attr.mode & READABLE == READABLE && !has_xattr(state);
            Some(map.put(inode.ino, &attr.to_shared(attr.ino == ROOT_INO), readable))
        })
    }

    /// Puts the attributes of a file that a program has just opened into the map, with its cache object.
    pub(crate) fn share_opened(&self, inode: &Inode, state: &State) {
        let Some(map) = self.shared.map() else { return };
        let object = state.cache.as_ref().filter(|cache| !cache.is_on_disk());
        if let Some(object) = object
            && let Some(slot) = self.share(inode, state)
        {
            map.put_object(0, object.handle().identity().1, slot);
        }
    }
}

/// An ACL is an extended attribute.
fn has_xattr(state: &State) -> bool {
    state.meta.flags.contains(MetaFlags::HAS_XATTR)
}

/// The directory of a path, and the entries of it to read ahead.
struct Following<'p> {
    /// Where the map has the paths begin.
    start: u64,
    /// What comes before the name in each path.
    before: &'p [u8],
    /// All directories in which a walk to them looks for a name.
    dirs: Vec<Slot>,
    dir: Arc<Inode>,
    names: Vec<Arc<[u8]>>,
}

/// A walk along a path without links.
struct SharedWalk {
    /// All directories in which it looked for a name.
    dirs: Vec<Slot>,
    /// Where it leads; `None` where nothing has the name.
    found: Option<Arc<Inode>>,
}

impl View<'_> {
    /// The slot of a directory that every user may search.
    fn share_searchable(&self, dir: &Inode) -> Option<Slot> {
        let state = dir.state.lock();
        let is_open = state.meta.mode & SEARCHABLE == SEARCHABLE && !has_xattr(&state);
        (dir.kind == FileKind::Directory && is_open && state.check_alive().is_ok())
            .then(|| self.share(dir, &state))
            .flatten()
    }

    /// See [`SharedAttributes::share_path`].
    fn do_share_path(&self, run: Option<u64>, path: &[u8], from: &Node, rest: &[u8]) -> Result<()> {
        let Some(map) = self.shared.map() else {
            return Ok(());
        };
        if path.len() > PATH_MAX || path.ends_with(b"/") {
            return Ok(());
        }
        let _names = self.names.read();
        let Some(SharedWalk { dirs, found }) = self.walk_shared(from, rest)? else {
            return Ok(());
        };
        let target = match found {
            Some(found) => {
                let Some(slot) = self.share(&found, &found.state.lock()) else {
                    return Ok(());
                };
                Some(slot)
            }
            None => None,
        };
        let start = run.or_else(|| dirs.first().map(Slot::id));
        if let Some(start) = start {
            map.put_path(start, path, &dirs, target);
        }
        Ok(())
    }

    /// The way along `rest` from the directory `from`. `None` for one that cannot be in the map. The caller holds the namespace lock.
    fn walk_shared(&self, from: &Node, rest: &[u8]) -> Result<Option<SharedWalk>> {
        let mut at = self.inode(from)?;
        let mut dirs = Vec::with_capacity(DIRS_MAX);
        for name in components(rest) {
            let dir = self.share_searchable(&at);
            let (Some(dir), true) = (dir, dirs.len() < DIRS_MAX && is_plain(name)) else {
                return Ok(None);
            };
            dirs.push(dir);
            match self.find(&at, name)? {
                Some(next) => at = next,
                None => return Ok(Some(SharedWalk { dirs, found: None })),
            }
        }
        let found = Some(at);
        Ok(Some(SharedWalk { dirs, found }))
    }

    /// See [`SharedAttributes::share_following`].
    fn do_share_following(
        &self,
        run: Option<u64>,
        path: &[u8],
        from: &Node,
        rest: &[u8],
    ) -> Result<bool> {
        let Some(map) = self.shared.map() else {
            return Ok(false);
        };
        let _names = self.names.read();
        let Some(following) = self.following(run, (path, from, rest), Use::LookUp)? else {
            return Ok(false);
        };
        for name in &following.names {
            if let Some(found) = self.find(&following.dir, name)?
                && let Some(slot) = self.share(&found, &found.state.lock())
            {
                following.put(map, &following.path(name), slot);
            }
        }
        Ok(true)
    }

    /// What to read ahead when a program uses `path`, which ends with `rest`, from the directory `from`. `None` if there is nothing. The caller holds the namespace lock.
    fn following<'p>(
        &self,
        run: Option<u64>,
        (path, from, rest): (&'p [u8], &Node, &[u8]),
        by: Use,
    ) -> Result<Option<Following<'p>>> {
        let Some(name) = components(rest).last() else {
            return Ok(None);
        };
        let (Some(before), Some(way)) = (path.strip_suffix(name), rest.strip_suffix(name)) else {
            return Ok(None);
        };
        let Some(SharedWalk { mut dirs, found }) = self.walk_shared(from, way)? else {
            return Ok(None);
        };
        let Some(dir) = found else { return Ok(None) };
        let names = {
            let mut state = dir.base().state.lock();
            state.dir.as_mut().map(|order| order.read_ahead(name, by))
        };
        let names = names.unwrap_or_default();
        if names.is_empty() || dirs.len() == DIRS_MAX {
            return Ok(None);
        }
        let Some(slot) = self.share_searchable(&dir) else {
            return Ok(None);
        };
        dirs.push(slot);
        let start = run.or_else(|| dirs.first().map(Slot::id));
        Ok(start.map(|start| Following {
            start,
            before,
            dirs,
            dir,
            names,
        }))
    }

    /// See [`SharedAttributes::following_files`].
    fn do_following_files(
        &self,
        run: Option<u64>,
        path: &[u8],
        from: &Node,
        rest: &[u8],
    ) -> Result<Option<Vec<NextFile>>> {
        let Some(map) = self.shared.map() else {
            return Ok(None);
        };
        let _names = self.names.read();
        let following = self.following(run, (path, from, rest), Use::Open)?;
        let Some(following) = following.filter(|_| !map.is_closed()) else {
            return Ok(None);
        };
        let (mut files, mut bytes) = (Vec::with_capacity(following.names.len()), 0);
        for name in &following.names {
            let Some(found) = self.find(&following.dir, name)? else {
                continue;
            };
            let state = found.state.lock();
            if found.kind != FileKind::Regular || !is_shareable(&state) {
                continue;
            }
            let path = following.path(name);
            let slot = map.slot_of(found.ino);
            if let Some(slot) = slot.filter(|slot| map.has_descriptor(*slot)) {
                following.put(map, &path, slot);
                continue;
            }
            bytes += state.meta.size;
            if bytes > READ_AHEAD_MAX {
                break;
            }
            let node = found.node();
            files.push(NextFile { path, node });
        }
        Ok(Some(files))
    }
}

impl Following<'_> {
    fn path(&self, name: &[u8]) -> Vec<u8> {
        [self.before, name].concat()
    }

    /// Puts the path of an entry into the map.
    fn put(&self, map: &AttributeMap, path: &[u8], slot: Slot) {
        map.put_path(self.start, path, &self.dirs, Some(slot));
    }
}

/// Whether programs may open a file themselves: every user may read it, it is not too large, and it has a name.
fn is_shareable(state: &State) -> bool {
    let is_readable = state.meta.mode & READABLE == READABLE && !has_xattr(state);
    is_readable && state.meta.size <= CONTENT_MAX && state.home != MetaLocation::Orphan
}

fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty())
}

/// Whether a walk looks the name up in a directory.
fn is_plain(name: &[u8]) -> bool {
    name != b"." && name != b".." && name.len() <= NAME_MAX
}

impl SharedAttributes for AminoFs {
    fn map(&self) -> Option<Arc<AttributeMap>> {
        if self.is_snapshot {
            return None;
        }
        if self.shared.map().is_none() {
            // Closed until the transactions have been counted.
            let _ = self.shared.map.set(Arc::new(AttributeMap::new().ok()?));
            self.settle_map();
        }
        self.shared.map().cloned()
    }

    fn set_covered(&self, node: &Node, is_covered: bool) {
        let Some(inode) = node.pin_arc::<Inode>() else {
            return;
        };
        // What is put into the map under this lock does not come after the list has changed.
        let _state = inode.state.lock();
        let mut covered = self.shared.covered.lock();
        if is_covered {
            covered.push(node.ino());
            self.unshare(node.ino());
        } else if let Some(at) = covered.iter().position(|&ino| ino == node.ino()) {
            covered.swap_remove(at);
        }
    }

    fn share_object(&self, node: &Node, space: u64, ino: u64) {
        let _operation = self.operation();
        let (Some(map), Some(inode)) = (self.shared.map(), node.pin_arc::<Inode>()) else {
            return;
        };
        let state = inode.state.lock();
        let shown = state
            .cache
            .as_ref()
            .map(|cache| cache.handle().identity().1);
        // The object of another content, such as that of an aborted transaction, is none of this inode's.
        if node.is_dir() || shown == Some(ino) {
            match self.share(&inode, &state) {
                Some(slot) => map.put_object(space, ino, slot),
                None => map.forget_object(space, ino),
            }
        }
    }

    fn share_directory(&self, node: &Node, run: u64, (ino, path): (u64, &[u8])) {
        let Some(map) = self.shared.map() else { return };
        match self.slot_of_directory(node) {
            Some(slot) => {
                map.put_object(run, ino, slot);
                map.put_directory(slot, run, (ino, path));
            }
            None => map.forget_object(run, ino),
        }
    }

    fn slot_of_directory(&self, node: &Node) -> Option<Slot> {
        let _operation = self.operation();
        let dir = node.pin_arc::<Inode>()?;
        let _names = self.names.read();
        let state = dir.state.lock();
        state.check_alive().ok()?;
        self.share(&dir, &state)
    }

    fn share_path(&self, run: Option<u64>, path: &[u8], from: &Node, rest: &[u8]) {
        // As the committed state is. What fails is not shared.
        let _: Result<()> = self.view(&Caller::with_ids(0, 0), |view| {
            view.do_share_path(run, path, from, rest)
        });
    }

    fn share_following(&self, run: Option<u64>, path: &[u8], from: &Node, rest: &[u8]) -> bool {
        let shared: Result<bool> = self.view(&Caller::with_ids(0, 0), |view| {
            view.do_share_following(run, path, from, rest)
        });
        shared.unwrap_or(false)
    }

    fn following_files(
        &self,
        run: Option<u64>,
        path: &[u8],
        from: &Node,
        rest: &[u8],
    ) -> Option<Vec<NextFile>> {
        let found: Result<_> = self.view(&Caller::with_ids(0, 0), |view| {
            view.do_following_files(run, path, from, rest)
        });
        found.unwrap_or(None)
    }

    fn share_content(&self, node: &Node, run: u64, object: &ObjectHandle) -> Option<Slot> {
        let _operation = self.operation();
        let (map, inode) = (self.shared.map()?, node.pin_arc::<Inode>()?);
        let state = inode.state.lock();
        let shown = state.cache.as_ref()?.handle();
        let is_shown = shown.identity() == object.identity();
        if !is_shown || !is_shareable(&state) {
            return None;
        }
        let (number, slot) = (object.number()?, self.share(&inode, &state)?);
        map.share_descriptor(slot, run, (number, object.identity().1));
        Some(slot)
    }

    fn grant_writes(
        &self,
        caller: &Caller,
        node: &Node,
        moment: Moment,
        offset: Option<u64>,
        area: &Arc<WriteArea>,
    ) -> bool {
        let grant = || self.do_grant_writes(caller, node, (moment, offset), area);
        self.grants_writes() && grant().is_some()
    }

    fn end_writes(&self) {
        self.end_grants();
    }
}
