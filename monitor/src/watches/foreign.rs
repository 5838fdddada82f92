//! Changes that other runs and commands make in a watched mount.
//!
//! The back end reports which files have changed, and not how. So a directory is compared with its mirror, and a file's times show
//! whether its content or only its attributes have changed.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use goanna_vfs::{Attr, Caller, Change, FsError, Mount, Node, Place, PlaceKey, Subscriber};

use super::events::Event;
use super::mirrors::{Entry, Listing, MirrorId, Mirrors, Touch, View};
use super::{ANSWERING, Watches, list};
use crate::process::task::credentials;

/// Receives a mount's reports.
#[derive(Debug)]
pub(super) struct Foreign {
    watches: Weak<Watches>,
    mount: Weak<Mount>,
}

impl Foreign {
    pub fn new(watches: &Arc<Watches>, mount: &Arc<Mount>) -> Self {
        Self {
            watches: Arc::downgrade(watches),
            mount: Arc::downgrade(mount),
        }
    }
}

impl Subscriber for Foreign {
    fn changed(&self, changes: &[Change]) {
        let (Some(watches), Some(mount)) = (self.watches.upgrade(), self.mount.upgrade()) else {
            return;
        };
        if !watches.in_use() || ANSWERING.get() == watches.address() {
            return;
        }
        let nodes = changes
            .iter()
            .map(|change| (mount.number, change.file.inode));
        watches.changed(&nodes.collect::<Vec<_>>());
    }

    fn lost(&self) {
        if let Some(watches) = self.watches.upgrade() {
            let mut all = watches.state.lock().mirrors.ids();
            all.retain(|id| watches.state.lock().mirrors.find_view(*id) == Some(None));
            watches.compare(&all);
        }
    }
}

/// A watched file, and a way to reach it.
enum Handle {
    /// The file itself.
    Itself(Place),
    /// A directory, and the file's name in it.
    Name(Place, Vec<u8>),
}

impl Handle {
    fn attr(&self, caller: &Caller) -> Result<Attr, FsError> {
        let found: Node;
        let (fs, node) = match self {
            Self::Itself(place) => (&place.mount.fs, &place.node),
            Self::Name(dir, name) => {
                found = dir.mount.fs.lookup(caller, &dir.node, name)?;
                (&dir.mount.fs, &found)
            }
        };
        fs.getattr(caller, node)
    }
}

/// The monitor's own credentials, with which it may read everything, in the given view.
fn observer(view: View) -> Option<Caller> {
    let own = credentials(std::process::id().cast_signed()).ok()?;
    Some(Caller { txn: view, ..own })
}

impl Watches {
    /// Repeats changes of these files that calls of this run have not made.
    fn changed(&self, nodes: &[PlaceKey]) {
        let (mut dirs, files) = self.watched_among(nodes);
        // A read in the view of a transaction that is committing now would wait for the commit, and so for itself.
        dirs.retain(|id| self.state.lock().mirrors.find_view(*id) == Some(None));
        self.compare(&dirs);
        let Some(caller) = observer(None) else {
            return;
        };
        for (node, handle) in files {
            let Ok(attr) = handle.attr(&caller) else {
                continue;
            };
            let touch = if attr.ctime == attr.mtime {
                Touch::Modify
            } else {
                Touch::Attrib
            };
            let mut state = self.state.lock();
            if attr.nlink == 0 {
                for id in state.mirrors.of(&node) {
                    state.mirrors.remove(id);
                }
            } else {
                let touched = Event::Touched { node, touch };
                self.repeat(&mut state, &[touched], &|view| view.is_none(), &|_| None);
            }
        }
    }

    /// The mirrors of directories among `nodes`, and the watched files.
    fn watched_among(&self, nodes: &[PlaceKey]) -> (Vec<MirrorId>, Vec<(PlaceKey, Handle)>) {
        let state = self.state.lock();
        let mirrors = &state.mirrors;
        let mut dirs = Vec::new();
        let mut files = Vec::new();
        for node in nodes {
            let own: Vec<_> = mirrors.of(node);
            let is_dir = |id: &MirrorId| {
                mirrors
                    .get(*id)
                    .is_some_and(|mirror| mirror.place.node.is_dir())
            };
            if own.iter().any(is_dir) {
                dirs.extend(own);
                continue;
            }
            let itself = own.first().and_then(|id| mirrors.get(*id));
            let name = || {
                let (id, name) = mirrors.names_of(node).into_iter().next()?;
                let mirror = mirrors.get(id)?;
                let is_dir = mirror.names.get(&name)?.is_dir;
                // A report about a directory concerns its names.
                (!is_dir).then(|| Handle::Name(mirror.place.clone(), name))
            };
            let handle = itself.map(|mirror| Handle::Itself(mirror.place.clone()));
            files.extend(handle.or_else(name).map(|handle| (*node, handle)));
        }
        (dirs, files)
    }

    /// Repeats the differences between the names in directories and those in their mirrors.
    pub(super) fn compare(&self, ids: &[MirrorId]) {
        let places: Vec<(MirrorId, Place, View)> = {
            let state = self.state.lock();
            let mirror = |id: &MirrorId| {
                let mirror = state.mirrors.get(*id)?;
                Some((*id, mirror.place.clone(), mirror.view))
            };
            ids.iter().filter_map(mirror).collect()
        };
        let mut lists = Vec::new();
        for (id, place, view) in places {
            let names = observer(view).and_then(|caller| list(&caller, &place).ok());
            lists.extend(names.map(|names| (id, names)));
        }
        let mut state = self.state.lock();
        Comparison::of(&state.mirrors, lists).repeat(&mut state.mirrors);
    }
}

/// Determines the differences between directories and their mirrors.
#[derive(Default)]
struct Comparison {
    removed: Vec<(MirrorId, Vec<u8>, Entry)>,
    added: Vec<(MirrorId, Vec<u8>, Entry)>,
}

impl Comparison {
    fn of(mirrors: &Mirrors, lists: Vec<(MirrorId, Listing)>) -> Self {
        let mut comparison = Self::default();
        for (id, names) in lists {
            let Some(mirror) = mirrors.get(id) else {
                continue;
            };
            let now: HashMap<_, _> = names.into_iter().collect();
            let missing = mirror
                .names
                .iter()
                .filter(|(name, entry)| now.get(*name) != Some(entry));
            let missing = missing.map(|(name, entry)| (id, name.clone(), *entry));
            comparison.removed.extend(missing);
            let fresh = now
                .into_iter()
                .filter(|(name, entry)| mirror.names.get(name) != Some(entry));
            comparison
                .added
                .extend(fresh.map(|(name, entry)| (id, name, entry)));
        }
        comparison
    }

    fn repeat(self, mirrors: &mut Mirrors) {
        let mut moved_to = HashSet::new();
        let mut moved_from = HashSet::new();
        for (from, old, entry) in &self.removed {
            let view = mirrors.get(*from).and_then(|mirror| mirror.view);
            let target = self.added.iter().enumerate().find(|(at, (to, _, new))| {
                let same_view = mirrors.get(*to).is_some_and(|mirror| mirror.view == view);
                new == entry && same_view && !moved_to.contains(at)
            });
            if let Some((at, (to, new, _))) = target {
                moved_to.insert(at);
                moved_from.insert((*from, old.clone()));
                mirrors.rename(Some((*from, old)), Some((*to, new)), *entry);
                for id in mirrors.of(&entry.node) {
                    mirrors.move_self(id);
                }
            }
        }
        for (id, name, entry) in self.removed {
            let is_as_it_was = mirrors
                .get(id)
                .is_some_and(|mirror| mirror.names.get(&name) == Some(&entry));
            if is_as_it_was && !moved_from.contains(&(id, name.clone())) {
                mirrors.delete(id, &name);
            }
        }
        for (at, (id, name, entry)) in self.added.into_iter().enumerate() {
            if !moved_to.contains(&at) {
                mirrors.create(id, &name, entry);
            }
        }
    }
}
