//! Puts attributes that follow from those of an object of the host into the map of a run. The stub asks the host whether that object is as it was
//! ([ADR 0132](../../../docs/decisions/0132-attributes-that-the-host-confirms.md)).

use goanna_sys::stub::map::Slot;
use goanna_vfs::{Attr, Caller, Errno, FileKind, FsError, Node, OnHost, Place};

use super::run_map::RunMap;
use crate::call::Call;
use crate::shadow::Shadow;

/// The start of objects among the paths that are remembered.
const OBJECT: u64 = u64::MAX;

/// The names of a path that leads downwards only, and by no other name than its own ones.
fn names(path: &[u8]) -> Option<Vec<&[u8]>> {
    if path.is_empty() {
        return Some(Vec::new());
    }
    let names = path.split(|byte| *byte == b'/').collect::<Vec<_>>();
    let is_plain = |name: &&[u8]| !matches!(*name, b"" | b"." | b"..");
    names.iter().all(is_plain).then_some(names)
}

/// Why a path is not in the map.
enum Absent {
    /// It may be there at a later call.
    Now,
    /// It would be tried in vain again.
    Always,
}

/// An object whose attributes are in the map.
pub(super) struct InMap {
    pub node: Node,
    pub slot: Slot,
    /// The attributes of the object of the host.
    pub on_host: Attr,
}

/// Where a path leads.
struct Found {
    /// `None` if the last name is missing in its directory.
    node: Option<Node>,
    /// The object of the host, or that directory.
    on_host: OnHost,
}

impl RunMap {
    /// Puts `path` from `dirfd` into the map, if it was asked for twice before. Returns the object that it leads to.
    pub(super) fn share_on_host(
        &self,
        call: &Call<'_>,
        (dirfd, path): (i32, &[u8]),
    ) -> Option<InMap> {
        let start = self.start(call, (dirfd, path))?;
        let rest = start.rest(path);
        let (asked_from, rest) = if start.is_relative {
            (start.node.ino(), rest)
        } else {
            (0, rest.strip_prefix(b"/").unwrap_or(rest))
        };
        let names = names(rest)?;
        if !self.is_asked_often(asked_from, path) {
            return None;
        }
        let caller = call.caller().ok()?;
        let before = self.find_on_host(&caller, &start.node, &names);
        if matches!(before, Err(Absent::Always)) {
            self.refuse(asked_from, path);
        }
        let Found { node, on_host } = before.ok()?;
        let attr = node.as_ref().map(|node| self.attr(call, &caller, node));
        let attr = attr.transpose().ok()?;
        // The path has led to the object under the name at which the stub will look for it, and attributes and host belong together, if all is as before.
        let after = self.find_on_host(&caller, &start.node, &names).ok()?;
        if after.node.is_some() != node.is_some() || after.on_host != on_host {
            return None;
        }
        let from = if start.is_relative {
            let directory = self.start_object(call, dirfd, &start)?;
            self.map().start_on_host(self.run(), directory)
        } else {
            self.run()
        };
        let host = on_host.path.as_os_str().as_encoded_bytes();
        if let (Some(node), Some(attr)) = (node, attr) {
            let is_root = !start.is_relative && names.is_empty();
            let slot = self.put(&node, (&attr, is_root), &on_host.attr);
            self.map().put_path_on_host(from, path, host, slot);
            let on_host = on_host.attr;
            Some(InMap {
                node,
                slot,
                on_host,
            })
        } else {
            let name = names.last()?;
            let directory = (on_host.attr.dev, on_host.attr.ino);
            self.map()
                .put_missing_on_host(from, path, (host, name), directory);
            None
        }
    }

    /// Puts the attributes of `node` into its slot, which follow from those of the host's object.
    fn put(&self, node: &Node, (attr, is_root): (&Attr, bool), on_host: &Attr) -> Slot {
        let host = (&on_host.to_stat(), self.has_host_files());
        self.map()
            .put_with_host(node.ino(), &attr.to_shared(is_root), host)
    }

    /// Puts the attributes of the file that `fd` refers to into the map, if it was asked for twice before.
    pub(super) fn share_object_on_host(&self, call: &Call<'_>, fd: i32) -> Option<()> {
        let identity = call.task.identity(fd).ok()?;
        let (shadow, object) = (call.monitor.shadows.find(identity)?, identity.1);
        let Shadow::File { .. } = &*shadow else {
            return None;
        };
        let Place { mount, node } = shadow.place();
        if !self.has(mount) || !self.is_asked_often(OBJECT, &object.to_ne_bytes()) {
            return None;
        }
        let before = mount.fs.on_host(node)?;
        let caller = call.caller().ok()?;
        let attr = self.attr(call, &caller, node).ok()?;
        if mount.fs.on_host(node)? != before {
            return None;
        }
        let slot = self.put(node, (&attr, false), &before.attr);
        let host = before.path.as_os_str().as_encoded_bytes();
        self.map().put_object_on_host(object, host, slot);
        Some(())
    }

    /// The attributes of `node` as programs see them.
    fn attr(&self, call: &Call<'_>, caller: &Caller, node: &Node) -> Result<Attr, FsError> {
        let mount = self.mount.as_ref().ok_or(Errno::ENOENT)?;
        let mut attr = mount.fs.getattr(caller, node)?;
        attr.dev = call.mounts.device(mount, attr.dev);
        Ok(attr)
    }

    /// What the names lead to from `dir`, which is no symbolic link, by none.
    fn find_on_host(&self, caller: &Caller, dir: &Node, names: &[&[u8]]) -> Result<Found, Absent> {
        let fs = &self.mount.as_ref().ok_or(Absent::Always)?.fs;
        let found = |node: Option<Node>, at: &Node| {
            let on_host = fs.on_host(at).ok_or(Absent::Now)?;
            Ok(Found { node, on_host })
        };
        let mut node = dir.clone();
        for (index, name) in names.iter().enumerate() {
            if node.kind() == FileKind::Symlink {
                return Err(Absent::Always);
            }
            let is_last = index + 1 == names.len();
            node = match fs.lookup(caller, &node, name) {
                Ok(node) => node,
                Err(error) if error == Errno::ENOENT && is_last && self.has_host_files() => {
                    return found(None, &node);
                }
                Err(_) => return Err(Absent::Now),
            };
        }
        // A link is mostly followed, and its target is another object.
        if node.kind() == FileKind::Symlink {
            return Err(Absent::Always);
        }
        found(Some(node.clone()), &node)
    }
}
