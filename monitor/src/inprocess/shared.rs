//! Puts the attributes of files into the map of a run, for the calls that have come to the monitor.

use std::sync::Arc;

use goanna_sys::object_handle::ObjectHandle;
use goanna_sys::procfs;
use goanna_vfs::Place;

use super::InProcess;
use super::run_map::{RunMap, attributes};
use crate::call::Call;
use crate::shadow::{Identity, Shadow};

/// The start of objects among the paths that are remembered.
const OPENED: u64 = u64::MAX;

impl RunMap {
    /// Puts `path` into the map if it was asked for before, or `at_once`; else what follows it in its directory.
    fn share_path(
        &self,
        call: &Call<'_>,
        (dirfd, path): (i32, &[u8]),
        at_once: bool,
    ) -> Option<()> {
        let mount = self.mount.as_ref()?;
        let attributes = attributes(mount)?;
        if path.first() == Some(&b'/') {
            let rest = path.strip_prefix(self.prefix.as_deref()?)?;
            if rest.first().is_none_or(|&byte| byte == b'/') {
                let (run, root) = (Some(self.run()), mount.fs.root());
                if at_once || self.is_repeated(0, path) {
                    attributes.share_path(run, path, &root, rest);
                } else {
                    attributes.share_following(run, path, &root, rest);
                }
            }
            return Some(());
        }
        let identity = if dirfd == libc::AT_FDCWD {
            procfs::cwd_identity(call.task.tid).ok()?
        } else {
            call.task.identity(dirfd).ok()?
        };
        let shadow = call.monitor.shadows.find(identity)?;
        let Shadow::Dir { place, .. } = &*shadow else {
            return None;
        };
        if !self.has(&place.mount) {
            return None;
        }
        let is_shared = if at_once || self.is_repeated(identity.1, path) {
            attributes.share_path(None, path, &place.node, path);
            true
        } else {
            attributes.share_following(None, path, &place.node, path)
        };
        if is_shared {
            attributes.share_object(&place.node, self.run(), identity.1);
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

impl InProcess {
    /// A call that asks for attributes has come to the monitor: the next ones of the process may be answered from the map. An empty path is
    /// `dirfd` itself.
    pub fn share(&self, call: &Call<'_>, dirfd: i32, path: &[u8]) {
        let Some(Some(shared)) = self.shared.get() else {
            return;
        };
        if !self.has_map(call.task.tid) {
            return;
        }
        // What is not shared notifies.
        let _ = if path.is_empty() {
            shared.share_descriptor(call, dirfd)
        } else {
            shared.share_path(call, (dirfd, path), false)
        };
    }

    /// The file at `place` was opened for reading, by `path` from `dirfd`; its object is `handle`. After the second such open, processes may open it themselves.
    pub fn share_content(
        &self,
        call: &Call<'_>,
        from: (i32, &[u8]),
        place: &Place,
        handle: &Arc<ObjectHandle>,
    ) {
        let Some(Some(shared)) = self.shared.get() else {
            return;
        };
        let may_be_shared = || !call.monitor.watches.in_use();
        if !self.has_map(call.task.tid)
            || !shared.has(&place.mount)
            || !may_be_shared()
            || !shared.is_repeated(OPENED, &handle.identity().1.to_ne_bytes())
        {
            return;
        }
        let Some(attributes) = attributes(&place.mount) else {
            return;
        };
        let share = || attributes.share_content(&place.node, shared.run(), handle);
        self.shared_files.add(shared, handle, share, may_be_shared);
        let _ = shared.share_path(call, from, true);
    }

    /// From now on processes open no files themselves, until that is wanted again.
    pub fn unshare_files(&self) {
        if let Some(Some(shared)) = self.shared.get() {
            self.shared_files.end_all(shared);
        }
    }

    /// The processes of the run have ended.
    pub fn forget_shared_files(&self) {
        self.shared_files.clear();
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
