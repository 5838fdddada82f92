//! Puts the attributes of files into the map of a run, for the calls that have come to the monitor.

use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use goanna_sys::object_handle::ObjectHandle;
use goanna_sys::stat;
use goanna_sys::stub::map::Slot;
use goanna_vfs::walk::Pos;
use goanna_vfs::{Caller, Native, NextFile, Node, Place, SharedAttributes};

use super::InProcess;
use super::on_host::InMap;
use super::run_map::{RunMap, attributes};
use crate::call::Call;
use crate::calls::lease;
use crate::shadow::{Identity, Shadow};

/// The start of files among the paths that are remembered. An open is remembered by its file: another open may find another object.
const OPENED: u64 = u64::MAX;

/// The largest file that processes open themselves where the host confirms its content, bytes.
const CONTENT_MAX: u64 = 256 << 10;

/// Where the map has a path begin.
pub(super) struct Start {
    /// The directory.
    pub node: Node,
    /// How many bytes of the path stand for it.
    len: usize,
    pub is_relative: bool,
}

impl Start {
    /// What follows the start in a path that has it.
    pub fn rest<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        path.get(self.len..).unwrap_or_default()
    }
}

impl RunMap {
    /// The start of a path from `dirfd`. `None` for one that cannot be in the map.
    pub(super) fn start(&self, call: &Call<'_>, (dirfd, path): (i32, &[u8])) -> Option<Start> {
        if path.first() == Some(&b'/') {
            let prefix = self.prefix.as_deref()?;
            let rest = path.strip_prefix(prefix)?;
            let is_below = rest.first().is_none_or(|&byte| byte == b'/');
            return is_below.then_some(Start {
                node: self.mount.as_ref()?.fs.root(),
                len: prefix.len(),
                is_relative: false,
            });
        }
        let Pos::Mounted(place) = call.walk_start(dirfd, path).ok()?.at else {
            return None;
        };
        self.has(&place.mount).then_some(Start {
            node: place.node,
            len: 0,
            is_relative: true,
        })
    }

    /// The run as the start of absolute paths.
    fn run_of(&self, start: &Start) -> Option<u64> {
        (!start.is_relative).then(|| self.run())
    }

    /// Puts the directory of relative paths from `dirfd` into the map.
    fn share_start(&self, call: &Call<'_>, dirfd: i32, start: &Start) -> Option<()> {
        if start.is_relative {
            let attributes = attributes(self.mount.as_ref()?)?;
            let object = self.start_object(call, dirfd, start)?;
            attributes.share_object(&start.node, self.run(), object);
        }
        Some(())
    }

    /// The inode number of the host object where a relative path starts. `None` if another thread has changed the working directory since `start` was looked up.
    pub(super) fn start_object(&self, call: &Call<'_>, dirfd: i32, start: &Start) -> Option<u64> {
        let identity = call.start_identity(dirfd).ok()?;
        let shadow = call.monitor.shadows.find(identity)?;
        let place = shadow.place();
        let is_start = self.has(&place.mount) && place.node.ino() == start.node.ino();
        is_start.then_some(identity.1)
    }

    /// Puts `path` into the map if it was asked for before; else, if `looks_ahead`, what follows it in its directory.
    fn share_path(
        &self,
        call: &Call<'_>,
        (dirfd, path): (i32, &[u8]),
        looks_ahead: bool,
    ) -> Option<()> {
        let attributes = attributes(self.mount.as_ref()?)?;
        let start = self.start(call, (dirfd, path))?;
        let (run, rest) = (self.run_of(&start), start.rest(path));
        let directory = if start.is_relative {
            start.node.ino()
        } else {
            0
        };
        let is_shared = if self.is_repeated(directory, path) {
            attributes.share_path(run, path, &start.node, rest);
            true
        } else {
            looks_ahead && attributes.share_following(run, path, &start.node, rest)
        };
        if is_shared {
            self.share_start(call, dirfd, &start)?;
        }
        Some(())
    }

    fn share_descriptor(&self, call: &Call<'_>, fd: i32) -> Option<()> {
        let identity = call.task.identity(fd).ok()?;
        let shadow = call.monitor.shadows.find(identity)?;
        let space = match &*shadow {
            Shadow::File { .. } => 0,
            Shadow::Dir { .. } => self.run(),
            _ => return None,
        };
        let place = shadow.place();
        if self.has(&place.mount) {
            attributes(&place.mount)?.share_object(&place.node, space, identity.1);
        }
        Some(())
    }
}

/// Whether no program is to be told of opens: by inotify(7), or by the end of a lease.
fn may_be_shared(call: &Call<'_>) -> bool {
    !call.monitor.watches.in_use() && !lease::in_use()
}

/// [`RunMap::share_on_host`]. Opens look into the map from now on, if programs are not to be told of them.
fn share_on_host(map: &RunMap, call: &Call<'_>, from: (i32, &[u8])) -> Option<InMap> {
    if may_be_shared(call) {
        map.set_may_open_files(true);
        // A watch that began meanwhile is seen here, or ends this itself.
        if !may_be_shared(call) {
            map.set_may_open_files(false);
        }
    }
    map.share_on_host(call, from)
}

/// A caller that may read what every user may read, outside of all transactions.
fn reader() -> Caller {
    Caller::with_ids(0, 0)
}

impl InProcess {
    /// A call that asks for attributes has come to the monitor: the next ones of the process may be answered from the map. An empty path is
    /// `dirfd` itself. `exists`: the path led to an object.
    pub fn share(&self, call: &Call<'_>, (dirfd, path): (i32, &[u8]), exists: bool) {
        let Some(Some(shared)) = self.shared.get() else {
            return;
        };
        if !self.has_map(call.task.tid) {
            return;
        }
        // What is not shared notifies.
        let _ = if shared.is_on_host() {
            if path.is_empty() {
                shared.share_object_on_host(call, dirfd)
            } else if exists || shared.has_host_files() {
                share_on_host(shared, call, (dirfd, path)).map(drop)
            } else {
                None
            }
        } else if path.is_empty() {
            shared.share_descriptor(call, dirfd)
        } else {
            shared.share_path(call, (dirfd, path), true)
        };
    }

    /// The thread opens a file of the host for reading, by `path` from `dirfd`: the next times perhaps without a notification.
    pub fn share_host_file(&self, call: &Call<'_>, (dirfd, path): (i32, &[u8])) {
        let Some(Some(shared)) = self.shared.get() else {
            return;
        };
        if shared.is_on_host() {
            self.share(call, (dirfd, path), true);
        }
    }

    /// The file at `place` was opened for reading, by `path` from `dirfd`; its object is `handle`. After the second such open, processes may open it themselves.
    /// If the program opens the files of the directory one after the other, they may open the next ones at once.
    pub fn share_content(
        &self,
        call: &Call<'_>,
        (dirfd, path): (i32, &[u8]),
        place: &Place,
        handle: &Arc<ObjectHandle>,
    ) {
        let Some(Some(shared)) = self.shared.get() else {
            return;
        };
        if !self.has_map(call.task.tid) || !shared.has(&place.mount) || !may_be_shared(call) {
            return;
        }
        if shared.is_on_host() {
            self.share_content_on_host(shared, call, (dirfd, path), place, handle);
            return;
        }
        let (Some(attributes), Some(start)) =
            (attributes(&place.mount), shared.start(call, (dirfd, path)))
        else {
            return;
        };
        let run = shared.run_of(&start);
        let following = attributes.following_files(run, path, &start.node, start.rest(path));
        let is_repeated = shared.is_repeated(OPENED, &place.node.ino().to_ne_bytes());
        if following.is_none() && !is_repeated {
            return;
        }
        let share = |path: &[u8], place: &Place, handle: &Arc<ObjectHandle>| {
            let share = || attributes.share_content(&place.node, shared.run(), handle);
            self.shared_files
                .add(shared, (place, handle), share, || may_be_shared(call));
            attributes.share_path(run, path, &start.node, start.rest(path));
        };
        if is_repeated {
            share(path, place, handle);
        }
        for NextFile { path, node } in following.unwrap_or_default() {
            let place = Place {
                mount: Arc::clone(&place.mount),
                node,
            };
            // A file that cannot be opened now is opened, or fails, when the program opens it.
            let opened = place.mount.fs.open(&reader(), &place.node, libc::O_RDONLY);
            if let Ok(opened) = opened
                && let Native::Reads { handle } = &opened.native
            {
                call.monitor
                    .shadows
                    .register_file(&place, Arc::clone(handle));
                share(&path, &place, handle);
            }
        }
        let _ = shared.share_start(call, dirfd, &start);
    }

    /// As [`InProcess::share_content`], where the host confirms that the object has the content of the file.
    fn share_content_on_host(
        &self,
        map: &RunMap,
        call: &Call<'_>,
        from: (i32, &[u8]),
        place: &Place,
        handle: &Arc<ObjectHandle>,
    ) {
        let (Some(found), Some(content)) =
            (share_on_host(map, call, from), place.mount.fs.content())
        else {
            return;
        };
        let InMap {
            node,
            slot,
            on_host,
        } = found;
        if node.ino() != place.node.ino() || on_host.size > CONTENT_MAX {
            return;
        }
        let share = || {
            let may_be_opened = content.may_be_opened(&place.node, handle, &on_host);
            let number = handle.number().filter(|_| may_be_opened)?;
            let descriptor = (number, handle.identity().1);
            map.map().share_descriptor(slot, map.run(), descriptor);
            Some(slot)
        };
        self.shared_files
            .add(map, (place, handle), share, || may_be_shared(call));
    }

    /// The map of a store that the calling process has, and what the mount of `place` shares there, where no program is to be told of opens and reads.
    fn map_of_store<'a>(
        &'a self,
        call: &Call<'_>,
        place: &'a Place,
    ) -> Option<(&'a RunMap, &'a dyn SharedAttributes)> {
        let map = self.shared.get()?.as_deref()?;
        let is_there = self.has_map(call.task.tid) && map.has(&place.mount) && !map.is_on_host();
        let attributes = attributes(&place.mount).filter(|_| is_there && may_be_shared(call))?;
        Some((map, attributes))
    }

    /// The process is about to get `backing`, by `path` from `dirfd`, for the directory at `place`: the next times perhaps without a notification.
    pub fn share_directory(
        &self,
        call: &Call<'_>,
        (dirfd, path): (i32, &[u8]),
        place: &Place,
        backing: BorrowedFd<'_>,
    ) {
        let share = || {
            let (map, attributes) = self.map_of_store(call, place)?;
            let (dev, ino, _) = stat::identity(backing).ok()?;
            let shadow = call.monitor.shadows.find((dev, ino))?;
            let Shadow::Dir { path: backing, .. } = &*shadow else {
                return None;
            };
            let backing = (ino, backing.as_os_str().as_bytes());
            attributes.share_directory(&place.node, map.run(), backing);
            map.set_has_directories();
            // A watch that began meanwhile is seen here, or ends this itself.
            if !may_be_shared(call) {
                map.forget_directories();
            }
            // Programs look a name up before they open the directory: read-ahead follows the look-ups.
            map.share_path(call, (dirfd, path), false)
        };
        let _ = share();
    }

    /// The process is about to read the directory at `place`. What it reads may be put into the map by [`InProcess::share_list`], if this returns what it is to be put there for.
    pub fn begin_list(&self, call: &Call<'_>, caller: &Caller, place: &Place) -> Option<Slot> {
        let (_, attributes) = self
            .map_of_store(call, place)
            .filter(|_| caller.txn.is_none())?;
        attributes.slot_of_directory(&place.node)
    }

    /// The process has read that directory up to its end, which is `position` in its backing directory. The next reads of the process from there, and of these `entries` if they are all, perhaps do not
    /// notify.
    pub fn share_list(&self, slot: Slot, position: u64, entries: Option<&[u8]>) {
        if let Some(Some(map)) = self.shared.get() {
            map.map().put_list(slot, map.run(), position, entries);
        }
    }

    /// A program maps the file at `place` to write.
    pub fn file_is_mapped(&self, place: &Place) {
        if let Some(Some(shared)) = self.shared.get() {
            shared.end_file(place);
        }
    }

    /// From now on processes open no files and directories themselves, until that is wanted again.
    pub fn unshare_opened(&self) {
        if let Some(Some(shared)) = self.shared.get() {
            shared.set_may_open_files(false);
            self.shared_files.end_all(shared);
            shared.forget_directories();
        }
    }

    /// The processes of the run have ended.
    pub fn forget_opened(&self) {
        self.shared_files.clear();
        if let Some(Some(shared)) = self.shared.get() {
            shared.forget_directories();
        }
    }

    /// Whether a process may be about to open one of these objects without a notification.
    pub fn may_open(&self, objects: &[Identity]) -> bool {
        self.shared_files.has_any(objects)
    }

    /// Whether the process of `tid` has the map, by which it opens files without a notification.
    pub fn has_map(&self, tid: i32) -> bool {
        self.space(tid).is_some_and(|space| space.has_map())
    }
}
