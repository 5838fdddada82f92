//! Puts attributes that follow from those of an object of the host into the map of a run. The stub asks the host whether that object is as it was
//! ([ADR 0132](../../../docs/decisions/0132-attributes-that-the-host-confirms.md)).

use goanna_vfs::{Caller, Errno, FileKind, Node, OnHost};

use super::run_map::RunMap;
use crate::call::Call;

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

/// Where a path leads.
enum End {
    Object(Node, OnHost),
    /// To no object of the host: the last name is missing in this directory.
    Missing(OnHost),
}

impl RunMap {
    /// Puts `path` from `dirfd` into the map, if it was asked for twice before.
    pub(super) fn share_on_host(&self, call: &Call<'_>, (dirfd, path): (i32, &[u8])) -> Option<()> {
        let start = self
            .start(call, (dirfd, path))
            .filter(|_| !path.is_empty())?;
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
        let from = || {
            if !start.is_relative {
                return Some(self.run());
            }
            let (_, directory) = call.start_identity(dirfd).ok()?;
            Some(self.map().start_on_host(self.run(), directory))
        };
        let (node, before) = match before.ok()? {
            End::Object(node, before) => (node, before),
            End::Missing(OnHost { path: dir, attr }) => {
                let missing = (dir.as_os_str().as_encoded_bytes(), *names.last()?);
                self.map()
                    .put_missing_on_host(from()?, path, missing, (attr.dev, attr.ino));
                return Some(());
            }
        };
        let mount = self.mount.as_ref()?;
        let mut attr = mount.fs.getattr(&caller, &node).ok()?;
        // The path has led to the object under the name at which the stub will look for it, and attributes and host belong together, if all is as before.
        let found = match self.find_on_host(&caller, &start.node, &names).ok()? {
            End::Object(_, found) if found == before => found,
            _ => return None,
        };
        attr.dev = call.mounts.device(mount, attr.dev);
        let is_root = !start.is_relative && names.is_empty();
        let host = found.attr.to_stat();
        let attr = attr.to_shared(is_root);
        let slot = self.map().put_with_host(node.ino(), &attr, &host);
        let host = found.path.as_os_str().as_encoded_bytes();
        self.map().put_path_on_host(from()?, path, host, slot);
        Some(())
    }

    /// What the names lead to from `dir`, which is no symbolic link, by none.
    fn find_on_host(&self, caller: &Caller, dir: &Node, names: &[&[u8]]) -> Result<End, Absent> {
        let fs = &self.mount.as_ref().ok_or(Absent::Always)?.fs;
        let on_host = |node: &Node| fs.on_host(node).ok_or(Absent::Now);
        let mut node = dir.clone();
        for (index, name) in names.iter().enumerate() {
            if node.kind() == FileKind::Symlink {
                return Err(Absent::Always);
            }
            node = match fs.lookup(caller, &node, name) {
                Ok(node) => node,
                Err(error)
                    if error == Errno::ENOENT
                        && index + 1 == names.len()
                        && self.has_host_files() =>
                {
                    return on_host(&node).map(End::Missing);
                }
                Err(_) => return Err(Absent::Now),
            };
        }
        // A link is mostly followed, and its target is another object.
        if node.kind() == FileKind::Symlink {
            return Err(Absent::Always);
        }
        let found = on_host(&node)?;
        Ok(End::Object(node, found))
    }
}
