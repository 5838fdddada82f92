//! Host files that processes have opened through a mount. The kernel, which has opened them by their host path, knows nothing of the mount: it would permit changes by
//! descriptors of files in a read-only one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use goanna_vfs::{Mount, MountFlags, Mounts, Node, Place};

use super::{Call, Target};
use crate::process::task::credentials;

/// The permission bit of a link to a descriptor that can be written through.
const WRITABLE: u32 = 0o200;

/// The mount that shows the host file at `path`, and the path from its root. A process that has opened the same file by its host path has it in that mount, too: for the kernel it is one
/// object. Of several mounts that show the file, the one with the innermost source counts. A path that another mount covers does not lead to the file.
pub fn mount_showing<'m>(mounts: &'m Mounts, path: &[u8]) -> Option<(&'m Arc<Mount>, Vec<u8>)> {
    let shown = mounts.iter().filter_map(|mount| {
        let source = mount.fs.host_path(&mount.fs.root())?;
        let inside = Path::new(OsStr::from_bytes(path))
            .strip_prefix(&source)
            .ok()?;
        let inside = inside.as_os_str().as_bytes().to_vec();
        let innermost = mounts.innermost(&mount.absolute(&inside));
        let leads_there = innermost.is_some_and(|innermost| Arc::ptr_eq(innermost, mount));
        leads_there.then(|| (source.as_os_str().len(), mount, inside))
    });
    // The first of several with the same source.
    let best = shown.reduce(|best, other| if other.0 > best.0 { other } else { best });
    best.map(|(_, mount, inside)| (mount, inside))
}

fn is_read_only(mount: &Arc<Mount>) -> bool {
    mount.flags.contains(MountFlags::READ_ONLY)
}

/// Whether one of `mounts` shows files of the host, and is read-only.
pub fn shows_host_read_only(mounts: &Mounts) -> bool {
    let shows_host = |mount: &Arc<Mount>| mount.fs.host_dir(&mount.fs.root()).is_some();
    let mut mounts = mounts.iter();
    mounts.any(|mount| is_read_only(mount) && shows_host(mount))
}

/// The host file behind `link`, a magic link of /proc to a descriptor, a program or a mapping, in the read-only one of `mounts` that shows it. `None` for another file, and for
/// a descriptor that can be written through: it was not opened in a read-only mount.
pub fn in_read_only_mount(mounts: &Mounts, link: &[u8]) -> Option<Place> {
    if !shows_host_read_only(mounts) {
        return None;
    }
    let link = OsStr::from_bytes(link);
    let shown = nix::fcntl::readlink(link).ok()?;
    let (mount, inside) = mount_showing(mounts, shown.as_bytes())?;
    if !is_read_only(mount) || is_descriptor(link) && may_write(link) {
        return None;
    }
    let node = node_at(mount, &inside)?;
    let (there, here) = (mount.fs.on_host(&node)?.attr, link_target(link)?);
    ((there.dev, there.ino) == here).then(|| Place {
        mount: Arc::clone(mount),
        node,
    })
}

fn is_descriptor(link: &OsStr) -> bool {
    Path::new(link)
        .parent()
        .is_some_and(|dir| dir.ends_with("fd"))
}

fn may_write(link: &OsStr) -> bool {
    std::fs::symlink_metadata(link).is_ok_and(|meta| meta.mode() & WRITABLE != 0)
}

fn link_target(link: &OsStr) -> Option<(u64, u64)> {
    let meta = std::fs::metadata(link).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// The inode at a path from the root of `mount`, which the monitor itself looks up: a process may have the descriptor of a file in a directory that it may not search.
fn node_at(mount: &Mount, path: &[u8]) -> Option<Node> {
    let own = credentials(std::process::id().cast_signed()).ok()?;
    let mut node = mount.fs.root();
    let names = path.split(|&byte| byte == b'/');
    for name in names.filter(|name| !name.is_empty()) {
        node = mount.fs.lookup(&own, &node, name).ok()?;
    }
    Some(node)
}

impl Call<'_> {
    /// The object of descriptor `fd`, which has no shadow: the kernel answers for it, unless it was opened in a read-only mount.
    pub fn host_file(&self, fd: i32) -> Target {
        let link = format!("/proc/{}/fd/{fd}", self.task.tid);
        in_read_only_mount(&self.mounts, link.as_bytes()).map_or(Target::PassOn, Target::At)
    }
}
