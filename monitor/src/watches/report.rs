//! The functions by which handlers report the changes that they have made.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use goanna_sys::object_handle::ObjectHandle;
use goanna_vfs::{Description, FsError, Node, Place, PlaceKey, Result, TxnId};
use parking_lot::RwLockReadGuard;

use super::events::Event;
pub use super::mirrors::Touch;
use super::mirrors::{Entry, Name};
use super::openings::Open;
use crate::call::Call;
use crate::shadow::Shadow;

/// Held while a call changes names.
#[derive(Debug)]
pub struct Names<'m>(#[expect(dead_code, reason = "held")] RwLockReadGuard<'m, ()>);

/// Called before a call changes names. The caller keeps the lock until it has reported the change. `None` where nothing
/// is watched.
pub fn begin<'m>(call: &Call<'m>) -> Option<Names<'m>> {
    let watches = &call.monitor.watches;
    watches.in_use().then(|| Names(watches.hold_names()))
}

/// The transaction whose changes to `place` others do not see yet.
pub fn view(call: &Call<'_>, place: &Place) -> Option<TxnId> {
    let caller = call.caller().ok()?;
    let is_covered = call.monitor.participants.cover(&place.mount);
    caller.txn.filter(|_| is_covered)
}

fn report(call: &Call<'_>, place: &Place, events: &[Event]) {
    let watches = &call.monitor.watches;
    let change = view(call, place);
    let sees = |view| call.monitor.participants.shows(view, change);
    let is_open = |node: &PlaceKey| call.monitor.shadows.open_file(node);
    let mut state = watches.state.lock();
    watches.repeat(&mut state, events, &sees, &is_open);
    if let Some(id) = change.filter(|id| !call.monitor.participants.is_run_transaction(*id)) {
        let pending = state.pending.entry(id).or_default();
        for event in events {
            pending.push(event.clone());
        }
    }
}

fn entry(dir: &Place, node: &Node) -> Entry {
    Entry {
        node: (dir.key().0, node.ino()),
        is_dir: node.is_dir(),
    }
}

fn name(dir: &Place, name: &[u8]) -> Name {
    (dir.key(), name.to_vec())
}

/// Reports that a call has made `new` in `dir`, which leads to `node`.
pub fn created(call: &Call<'_>, names: Option<Names<'_>>, dir: &Place, new: &[u8], node: &Node) {
    if names.is_some() {
        let created = Event::Created {
            name: name(dir, new),
            entry: entry(dir, node),
        };
        report(call, dir, &[created]);
    }
}

/// Reports that a call has made `new` in `dir`, a further name of `node`.
pub fn linked(call: &Call<'_>, names: Option<Names<'_>>, dir: &Place, new: &[u8], node: &Node) {
    if names.is_some() {
        let entry = entry(dir, node);
        let relinked = Event::Relinked { node: entry.node };
        let name = name(dir, new);
        report(call, dir, &[relinked, Event::Created { name, entry }]);
    }
}

/// A name that is about to be removed.
#[derive(Debug)]
pub struct Removal<'m> {
    _names: Names<'m>,
    name: Name,
    dir: Place,
    node: Node,
}

impl<'m> Removal<'m> {
    /// `None` where nothing is watched, or there is no such name.
    pub fn begin(call: &Call<'m>, dir: &Place, old: &[u8]) -> Result<Option<Self>> {
        let Some(names) = begin(call) else {
            return Ok(None);
        };
        let found = look(call, dir, old)?;
        Ok(found.map(|node| Self {
            _names: names,
            name: name(dir, old),
            dir: dir.clone(),
            node,
        }))
    }

    /// Reports that the name was removed.
    pub fn done(self, call: &Call<'_>) {
        let is_gone = is_gone(call, &self.dir, &self.node);
        let removed = Event::Removed {
            name: self.name,
            entry: entry(&self.dir, &self.node),
            is_gone,
        };
        report(call, &self.dir, &[removed]);
    }
}

/// Names that are about to be moved.
#[derive(Debug)]
pub struct Move<'m> {
    _names: Names<'m>,
    from: Name,
    to: Name,
    dir: Place,
    source: Node,
    target: Option<Node>,
}

impl<'m> Move<'m> {
    /// `None` where nothing is watched, or the rename will do nothing.
    pub fn begin(
        call: &Call<'m>,
        (from_dir, from): (&Place, &[u8]),
        (to_dir, to): (&Place, &[u8]),
    ) -> Result<Option<Self>> {
        let Some(names) = begin(call) else {
            return Ok(None);
        };
        let Some(source) = look(call, from_dir, from)? else {
            return Ok(None);
        };
        let target = look(call, to_dir, to)?;
        if target
            .as_ref()
            .is_some_and(|target| target.ino() == source.ino())
        {
            return Ok(None);
        }
        Ok(Some(Self {
            _names: names,
            from: name(from_dir, from),
            to: name(to_dir, to),
            dir: from_dir.clone(),
            source,
            target,
        }))
    }

    /// Reports that the name was moved. With `is_exchange` the other name was moved, too.
    pub fn done(self, call: &Call<'_>, is_exchange: bool) {
        let source = entry(&self.dir, &self.source);
        let target = self.target.as_ref().map(|node| entry(&self.dir, node));
        let event = match target.filter(|_| is_exchange) {
            Some(target) => Event::Exchanged {
                names: [self.from, self.to],
                entries: [source, target],
            },
            None => Event::Moved {
                from: self.from,
                to: self.to,
                entry: source,
                replaced: self
                    .target
                    .map(|node| (entry(&self.dir, &node), is_gone(call, &self.dir, &node))),
            },
        };
        report(call, &self.dir, &[event]);
    }
}

/// The inode that a name leads to. `None` if there is none, or if the look-up fails, because then the call will fail with
/// the same error.
fn look(call: &Call<'_>, dir: &Place, name: &[u8]) -> Result<Option<Node>> {
    let caller = call.caller()?;
    match dir.mount.fs.lookup(&caller, &dir.node, name) {
        Ok(node) => Ok(Some(node)),
        Err(blocked @ FsError::Blocked(_)) => Err(blocked),
        Err(FsError::Errno(_)) => Ok(None),
    }
}

/// Whether the inode has lost its last name.
fn is_gone(call: &Call<'_>, dir: &Place, node: &Node) -> bool {
    let attr = call
        .caller()
        .ok()
        .map(|caller| dir.mount.fs.getattr(&caller, node));
    node.is_dir() || !matches!(attr, Some(Ok(attr)) if attr.nlink > 0)
}

/// Reports an event of a file without a change of names.
pub fn touched(call: &Call<'_>, place: &Place, touch: Touch) {
    if call.monitor.watches.in_use() {
        let node = place.key();
        report(call, place, &[Event::Touched { node, touch }]);
    }
}

/// Reports that a tracee is about to get a descriptor of `place` that was opened with `flags`.
pub fn opened(call: &Call<'_>, place: &Place, description: &Description, flags: i32) {
    let watches = &call.monitor.watches;
    if !watches.in_use() {
        return;
    }
    // What cannot be opened is not reported.
    let Ok(fd) = description.fd() else { return };
    let node = place.key();
    let handle = match call.monitor.shadows.of_descriptor(fd) {
        Ok(Some(shadow)) => match &*shadow {
            Shadow::File { handle, .. } => Some(Arc::clone(handle)),
            _ => None,
        },
        _ => None,
    };
    let change = view(call, place);
    let sees = |view| call.monitor.participants.shows(view, change);
    let mut state = watches.state.lock();
    let state = &mut *state;
    let mut paths = Vec::new();
    let mut mask = 0;
    for (id, name) in state.mirrors.names_of(&node) {
        if let Some(mirror) = state.mirrors.get(id).filter(|mirror| sees(mirror.view)) {
            mask |= mirror.mask;
            paths.extend(state.mirrors.path_of(id, &name).map(|path| (id, path)));
        }
    }
    for id in state.mirrors.of(&node) {
        if let Some(mirror) = state.mirrors.get(id).filter(|mirror| sees(mirror.view)) {
            mask |= mirror.mask;
            paths.push((id, mirror.path.clone()));
        }
    }
    let wanted = libc::IN_OPEN | libc::IN_ACCESS | libc::IN_CLOSE | libc::IN_MODIFY;
    let Some(openings) = state.openings.as_mut().filter(|_| mask & wanted != 0) else {
        return;
    };
    openings.repeat();
    let open = Open {
        place: node,
        fd: fd.as_fd(),
        handle,
        access: flags & libc::O_ACCMODE,
        twice: call.notification.is_none(),
        reads: mask & libc::IN_ACCESS != 0 && !place.node.is_dir(),
    };
    openings.open(open, &paths);
}

/// Reports that a tracee's descriptor `from` of a file is about to be replaced by `to`, of another object with the handle
/// `handle`.
pub fn relocated(call: &Call<'_>, from: &OwnedFd, to: &OwnedFd, handle: &Arc<ObjectHandle>) {
    let watches = &call.monitor.watches;
    if watches.in_use()
        && let Some(openings) = &mut watches.state.lock().openings
    {
        openings.repeat();
        openings.relocate(from.as_fd(), to.as_fd(), Arc::clone(handle));
    }
}
