//! Objects of callers in mount namespaces of their own, and their paths there.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use goanna_sys::procfs;
use goanna_vfs::walk::Pos;
use goanna_vfs::{Errno, Place, Result};

use super::Call;
use crate::shadow::{Identity, Shadow};

impl Call<'_> {
    /// The virtual object of a descriptor or working directory of the caller, in a mount that the caller sees, if it sees one that has it.
    pub fn place_of(&self, shadow: &Shadow) -> Result<Place, Errno> {
        self.seen(shadow.place())
    }

    /// The same, of something else that is known by its place.
    pub fn seen(&self, place: &Place) -> Result<Place, Errno> {
        let mount = &place.mount;
        if !self.monitor.roots.may_have_left(self.task.tid) && !mount.is_made() {
            return Ok(place.clone());
        }
        // It may have been attached, moved or changed since.
        if let Some(mount) = self.monitor.hosted.detached(place) {
            let node = place.node.clone();
            return Ok(Place { mount, node });
        }
        Ok(self.mounts.seen(&*self.caller()?, place))
    }

    /// The directory that a mount shows for which the kernel has the backing object `identity`, a mount that may be attached nowhere.
    pub(super) fn detached(&self, identity: Identity) -> Option<Arc<Shadow>> {
        if !self.monitor.roots.may_have_left(self.task.tid) {
            return None;
        }
        let (place, object) = self.monitor.namespaces.bound_as(identity)?;
        let path = Arc::from(object);
        Some(Arc::new(Shadow::Dir { place, path }))
    }

    /// The canonical path of `place`, and whether that name has been removed.
    pub fn path_of(&self, place: &Place) -> Result<(Vec<u8>, bool)> {
        let (path, is_removed) = Pos::Mounted(place.clone()).path(&*self.caller()?)?;
        if !place.mount.is_host() {
            return Ok((path, is_removed));
        }
        let path = match self.reached(&path) {
            Some(inside) => self.mounts.path_in_run(&inside).unwrap_or(inside),
            None => path,
        };
        Ok((path, is_removed))
    }

    /// The canonical path in the run of the host object behind `link` in /proc, if it is in a mount of the kernel on something in a mount.
    pub fn path_in_run(&self, link: &[u8]) -> Option<Vec<u8>> {
        if self.mounts.in_kernel().is_empty() {
            return None;
        }
        let shown = nix::fcntl::readlink(OsStr::from_bytes(link)).ok()?;
        let link = str::from_utf8(link).ok()?;
        match self.host_pos(shown.into_encoded_bytes(), || link.to_owned()) {
            Pos::Host(path) => self.mounts.path_in_run(&path),
            Pos::Mounted(_) => None,
        }
    }

    /// The rest of the canonical path of a host object behind the link to the caller's root directory, if it begins with that.
    fn below_root<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        path.strip_prefix(&self.elsewhere.as_ref()?.kernel_root[..])
    }

    /// Whether the caller finds the host object with the canonical path `path` below the root directory that it has in a mount namespace of its own.
    pub fn is_below_root(&self, path: &[u8]) -> bool {
        self.below_root(path).is_some()
    }

    /// The canonical path of a host object as the kernel finds it for the caller.
    pub fn path_in_kernel(&self, path: Vec<u8>) -> Vec<u8> {
        match self.below_root(&path).unwrap_or(&path) {
            b"" => b"/".to_vec(),
            below => below.to_vec(),
        }
    }

    /// The position of the host object behind `link` in /proc, for which the kernel showed `path`. It is found from the root directory that this task has in the kernel, by
    /// its own path in the mount namespace of the run, or by `link`.
    pub(super) fn host_pos(&self, path: Vec<u8>, link: impl FnOnce() -> String) -> Pos {
        let path = if path == b"/" { Vec::new() } else { path };
        let Some(inside) = self.reached(&path) else {
            return Pos::Host(path);
        };
        let link = link().into_bytes();
        if leads_to(&inside, &link) {
            Pos::Host(inside)
        } else if leads_to(&path, &link) {
            Pos::Host(path)
        } else {
            // Of another mount namespace.
            Pos::Host(link)
        }
    }

    /// The path by which the monitor reaches what the kernel shows as `path`, below the root directory of the caller in its own mount namespace.
    pub fn reached(&self, path: &[u8]) -> Option<Vec<u8>> {
        let dir = &self.elsewhere.as_ref()?.kernel_root[..];
        let shown = procfs::root(self.task.tid).ok()?;
        let shown: &[u8] = if shown == b"/" { b"" } else { &shown };
        let rest = path.strip_prefix(shown)?;
        matches!(rest.first(), None | Some(b'/')).then(|| [dir, rest].concat())
    }
}

/// Whether two paths, which may be links in /proc, lead to the same object in the same mount.
fn leads_to(path: &[u8], link: &[u8]) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let identity = |path: &[u8]| {
        let path: &[u8] = if path.is_empty() { b"/" } else { path };
        let found = statx(
            CWD,
            path,
            AtFlags::empty(),
            StatxFlags::INO | StatxFlags::MNT_ID,
        );
        found.map(|found| (found.stx_mnt_id, found.stx_ino))
    };
    matches!((identity(path), identity(link)), (Ok(one), Ok(other)) if one == other)
}
