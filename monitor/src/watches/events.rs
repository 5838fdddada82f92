//! Events of virtual files, and their repetition on the mirrors.

use std::os::fd::OwnedFd;

use goanna_vfs::PlaceKey;

use super::mirrors::{Entry, MirrorId, Mirrors, Name, Touch, View};
use super::openings::{IsOpen, Openings};

/// A change that watches report.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// A name was made.
    Created { name: Name, entry: Entry },
    /// A name was removed.
    Removed {
        name: Name,
        entry: Entry,
        /// Whether it was the file's last name.
        is_gone: bool,
    },
    /// A name was moved.
    Moved {
        from: Name,
        to: Name,
        entry: Entry,
        /// The file that the new name led to before, and whether that was its last name.
        replaced: Option<(Entry, bool)>,
    },
    /// Two names were exchanged.
    Exchanged {
        names: [Name; 2],
        entries: [Entry; 2],
    },
    /// A file has changed without a change of names.
    Touched { node: PlaceKey, touch: Touch },
    /// As `Touched` with [`Touch::Attrib`], reported by watches of the file itself only: its number of names has changed.
    Relinked { node: PlaceKey },
}

impl Event {
    /// The directories whose names it changes.
    pub fn directories(&self) -> Vec<PlaceKey> {
        match self {
            Self::Created { name, .. } | Self::Removed { name, .. } => vec![name.0],
            Self::Moved { from, to, .. } => vec![from.0, to.0],
            Self::Exchanged { names, .. } => names.iter().map(|name| name.0).collect(),
            Self::Touched { .. } | Self::Relinked { .. } => Vec::new(),
        }
    }
}

/// Repeats events in those mirrors whose views `sees` accepts.
pub(super) struct Repeater<'a> {
    pub mirrors: &'a mut Mirrors,
    pub openings: Option<&'a mut Openings>,
    pub sees: &'a dyn Fn(View) -> bool,
    /// Whether a program has a removed file open.
    pub is_open: &'a IsOpen<'a>,
}

impl Repeater<'_> {
    /// The events of `event`, in the kernel's order.
    pub fn repeat(&mut self, event: &Event) {
        match event {
            Event::Created { name, entry } => {
                for id in self.of(&name.0) {
                    self.mirrors.create(id, &name.1, *entry);
                }
            }
            Event::Removed {
                name,
                entry,
                is_gone,
            } => self.removed(name, *entry, *is_gone),
            Event::Moved {
                from,
                to,
                entry,
                replaced,
            } => self.moved(from, to, *entry, *replaced),
            Event::Exchanged { names, entries } => self.exchanged(names, *entries),
            Event::Touched { node, touch } => self.touched(node, *touch),
            Event::Relinked { node } => self.touched_itself(node, Touch::Attrib),
        }
    }

    /// The mirrors of an inode that show the event.
    fn of(&self, key: &PlaceKey) -> Vec<MirrorId> {
        let mut ids = self.mirrors.of(key);
        ids.retain(|id| self.shows(*id));
        ids
    }

    fn shows(&self, id: MirrorId) -> bool {
        self.mirrors
            .get(id)
            .is_some_and(|mirror| (self.sees)(mirror.view))
    }

    fn view(&self, id: MirrorId) -> View {
        self.mirrors.get(id).and_then(|mirror| mirror.view)
    }

    fn removed(&mut self, name: &Name, entry: Entry, is_gone: bool) {
        let gone = self.unlinked(entry, is_gone);
        self.let_go(&entry.node, gone);
        for id in self.of(&name.0) {
            self.mirrors.delete(id, &name.1);
        }
    }

    /// Repeats the events of a file that has lost a name. Returns the mirrors of a removed file.
    #[must_use]
    fn unlinked(&mut self, entry: Entry, is_gone: bool) -> Vec<OwnedFd> {
        let ids = self.of(&entry.node);
        if is_gone {
            return ids
                .into_iter()
                .filter_map(|id| self.mirrors.remove(id))
                .collect();
        }
        for id in ids {
            self.touch_mirror(id, Touch::Attrib);
        }
        Vec::new()
    }

    /// Closes the mirrors of a removed file, at once or when no program has the file open any more.
    fn let_go(&mut self, node: &PlaceKey, gone: Vec<OwnedFd>) {
        for mirror in gone {
            if let Some(openings) = self.openings.as_deref_mut()
                && !openings.is_open(node)
                && let Some(handle) = (self.is_open)(node)
            {
                openings.keep(handle, mirror);
            }
        }
    }

    fn moved(&mut self, from: &Name, to: &Name, entry: Entry, replaced: Option<(Entry, bool)>) {
        for (from, to) in self.pairs(from, to) {
            self.mirrors.rename(from, to, entry);
        }
        let gone = replaced.map(|(target, is_gone)| {
            if target.is_dir {
                self.touched_itself(&target.node, Touch::Attrib);
            }
            (target.node, self.unlinked(target, is_gone))
        });
        self.moved_itself(&entry.node);
        if let Some((node, gone)) = gone {
            self.let_go(&node, gone);
        }
    }

    fn exchanged(&mut self, names: &[Name; 2], entries: [Entry; 2]) {
        let [one, other] = names;
        for (one, other) in self.pairs(one, other) {
            self.mirrors
                .exchange((one, entries[0]), (other, entries[1]));
        }
        for entry in entries {
            self.moved_itself(&entry.node);
        }
    }

    fn moved_itself(&mut self, node: &PlaceKey) {
        for id in self.of(node) {
            self.mirrors.move_self(id);
        }
    }

    /// The mirrors of two directories, those of the same view together.
    #[expect(clippy::type_complexity, reason = "two optional names")]
    fn pairs<'n>(
        &self,
        one: &'n Name,
        other: &'n Name,
    ) -> Vec<(Option<(MirrorId, &'n [u8])>, Option<(MirrorId, &'n [u8])>)> {
        let mut others = self.of(&other.0);
        let mut pairs = Vec::new();
        for id in self.of(&one.0) {
            let view = self.view(id);
            let twin = others.iter().position(|twin| self.view(*twin) == view);
            let twin = twin.map(|at| (others.swap_remove(at), other.1.as_slice()));
            pairs.push((Some((id, one.1.as_slice())), twin));
        }
        let alone = others
            .into_iter()
            .map(|id| (None, Some((id, other.1.as_slice()))));
        pairs.extend(alone);
        pairs
    }

    fn touched(&mut self, node: &PlaceKey, touch: Touch) {
        let open = self
            .openings
            .as_deref()
            .map_or(&[][..], |openings| openings.of(node));
        for (id, file) in open {
            // The mirror of a removed file is not found any more, but is still watched.
            if self.mirrors.get(*id).is_none() || self.shows(*id) {
                touch.of(file);
            }
        }
        let is_open = |id: MirrorId| open.iter().any(|(known, _)| *known == id);
        for (id, name) in self.mirrors.names_of(node) {
            if !is_open(id)
                && self.shows(id)
                && let Some(path) = self.mirrors.path_of(id, &name)
            {
                touch.at(&path);
            }
        }
        for id in self.of(node) {
            if !is_open(id) {
                self.touch_mirror(id, touch);
            }
        }
    }

    fn touched_itself(&mut self, node: &PlaceKey, touch: Touch) {
        for id in self.of(node) {
            self.touch_mirror(id, touch);
        }
    }

    fn touch_mirror(&self, id: MirrorId, touch: Touch) {
        if let Some(mirror) = self.mirrors.get(id) {
            touch.at(&mirror.path);
        }
    }
}
