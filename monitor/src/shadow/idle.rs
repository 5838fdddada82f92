//! Removes host objects that no process needs any more: backing directories that no thread holds, and backing objects of fifos,
//! sockets and devices that have lost their last name.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use goanna_sys::procfs;
use goanna_vfs::{Caller, FileKind, Mount, Place, PlaceKey};

use super::retired::Former;
use super::{
    BackingObject, DIRECTORY_SWEEPS, DIRS_BEFORE_SWEEP, FIRST_SWEEPS, Identity,
    REFERENCES_BEFORE_SWEEP, Shadow, Shadows, Table,
};
use crate::process::task::credentials;

/// The result of [`Shadows::idle_directories`].
struct Idle {
    places: Vec<(Identity, Place)>,
    /// Whether to drop all of them, and not only those of removed directories.
    all: bool,
}

/// From when on no call must have used a directory that is retired.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unused {
    /// The last sweep.
    SinceSweep,
    /// Now.
    FromNow,
}

/// The result of [`Shadows::references`].
#[derive(Default)]
struct References {
    seen: Vec<(Identity, Place)>,
    /// Whether to drop all of them, and not only those of objects without a name.
    all: bool,
}

impl Shadows {
    /// Drops directories, references and backing objects that no thread has. No event reports the close of their descriptors,
    /// so this examines the descriptors of all threads, at long intervals.
    pub(super) fn sweep_others(&self, threads: impl FnOnce() -> Vec<i32>) {
        let is_after_removal = self.removals.load(Ordering::Relaxed) > 0;
        let removed = self.removed();
        let mut references = self.references(is_after_removal);
        let idle = self.idle_directories();
        if removed.is_empty() && references.seen.is_empty() && idle.is_none() {
            return;
        }
        let Ok(own) = credentials(std::process::id().cast_signed()) else {
            return;
        };
        let mut without_names = removed;
        without_names.retain(|place| has_no_name(&own, place));
        let may_go = |(_, place): &(Identity, Place)| references.all || has_no_name(&own, place);
        references.seen.retain(may_go);
        // No descriptor leads to the host object of a socket.
        let only_sockets = without_names.iter().all(is_socket);
        let held = if idle.is_none() && references.seen.is_empty() && only_sockets {
            HashSet::new()
        } else {
            held_by(threads())
        };
        self.forget_references(&references, &held);
        for place in without_names {
            self.remove_without_name(&place, &held);
        }
        let Some(idle) = idle else {
            return;
        };
        for (identity, place) in idle.places {
            // A directory that an open transaction has made has no path by which it could be found again: it stays.
            if !held.contains(&identity)
                && let Ok(former) = Former::of(&own, &place)
                && (idle.all || former.is_none())
            {
                self.retire(identity, &place.key_in_mount(), former, Unused::SinceSweep);
            }
        }
        let mut table = self.table.write();
        table.dirs_kept = table.backing_objects.len();
    }

    /// Drops the directories and references in `mount` that none of `threads` has, so that they do not keep its file system busy.
    pub fn release_unheld(&self, mount: &Mount, threads: Vec<i32>) {
        let Ok(own) = credentials(std::process::id().cast_signed()) else {
            return;
        };
        let held = held_by(threads);
        let table = self.table.read();
        let all = table.by_identity.iter();
        let unheld = all.filter(|(identity, _)| !held.contains(identity));
        let inside: Vec<_> = unheld
            .filter(|(_, shadow)| shadow.place().mount.number == mount.number)
            .map(|(identity, shadow)| (*identity, Arc::clone(shadow)))
            .collect();
        drop(table);
        for (identity, shadow) in inside {
            match &*shadow {
                Shadow::Dir { place, .. } => {
                    if let Ok(former) = Former::of(&own, place) {
                        self.retire(identity, &place.key_in_mount(), former, Unused::FromNow);
                    }
                }
                Shadow::Reference { .. } => {
                    let mut table = self.table.write();
                    table.references.remove(&identity);
                    let gone = table.by_identity.remove(&identity);
                    drop(table);
                    drop(gone);
                }
                _ => {}
            }
        }
    }

    /// Whether there are files, directories or references in `mount`: after a sweep, those that processes have open.
    pub fn any_in(&self, mount: &Mount) -> bool {
        let table = self.table.read();
        table.by_identity.values().any(|shadow| {
            let can_be_released = matches!(
                **shadow,
                Shadow::File { .. } | Shadow::Dir { .. } | Shadow::Reference { .. }
            );
            can_be_released && shadow.place().mount.number == mount.number
        })
    }

    /// Forgets all that is known of `mount`, in which no process has a file or directory open: it keeps the back end in memory.
    pub fn forget(&self, mount: &Mount) {
        let is_inside = |place: &Place| place.mount.number == mount.number;
        let mut table = self.table.write();
        let shadows: Vec<_> = table
            .by_identity
            .extract_if(|_, shadow| is_inside(shadow.place()))
            .collect();
        let backing_objects: Vec<_> = table
            .backing_objects
            .extract_if(|_, object| is_inside(&object.place))
            .collect();
        let retired = table.retired.take(mount);
        drop(table);
        for (_, object) in &backing_objects {
            // Where this fails, the end of the run removes it.
            let _ = fs::remove_dir(&object.path).or_else(|_| fs::remove_file(&object.path));
        }
        // Without the lock, as in `retire`.
        drop((shadows, backing_objects, retired));
    }

    /// The objects of `O_PATH` descriptors that a sweep has seen before, after the removal of a name or where there are many.
    fn references(&self, is_after_removal: bool) -> References {
        let mut table = self.table.write();
        let all = table.references.len() >= REFERENCES_BEFORE_SWEEP.max(2 * table.references_kept);
        if !all && !is_after_removal {
            return References::default();
        }
        let table = &mut *table;
        let seen_before = table.references.iter_mut().filter_map(|(identity, seen)| {
            // One that is new may be on its way to the tracee.
            let before = std::mem::replace(seen, true);
            let shadow = table.by_identity.get(identity).filter(|_| before)?;
            Some((*identity, shadow.place().clone()))
        });
        References {
            seen: seen_before.collect(),
            all,
        }
    }

    /// Drops the references that no thread holds.
    fn forget_references(&self, references: &References, held: &HashSet<Identity>) {
        let mut table = self.table.write();
        let mut gone = Vec::new();
        for (identity, _) in &references.seen {
            if !held.contains(identity) {
                table.references.remove(identity);
                gone.extend(table.by_identity.remove(identity));
            }
        }
        if references.all && !references.seen.is_empty() {
            table.references_kept = table.references.len();
        }
        drop(table);
        // These may be the last references to inodes. Dropping them calls the back ends, so no lock may be held.
        drop(gone);
    }

    /// The objects other than directories that may have lost their names, if it is time to look for such.
    fn removed(&self) -> Vec<Place> {
        let left = self.removals.load(Ordering::Relaxed);
        if left == 0 {
            return Vec::new();
        }
        // A concurrent removal restarts the count.
        let _ =
            self.removals
                .compare_exchange(left, left - 1, Ordering::Relaxed, Ordering::Relaxed);
        let table = self.table.read();
        let backing_objects = table.backing_objects.values();
        let others = backing_objects.filter(|backing_object| !backing_object.place.node.is_dir());
        others
            .map(|backing_object| backing_object.place.clone())
            .collect()
    }

    /// Removes the backing object of `place`, which has no name, unless a thread holds it.
    fn remove_without_name(&self, place: &Place, held: &HashSet<Identity>) {
        let mut table = self.table.write();
        let key = place.key();
        let keeps = |backing_object: &BackingObject| {
            backing_object
                .identity
                .is_some_and(|identity| held.contains(&identity))
                || table.is_referred_to(&key)
        };
        if table.backing_objects.get(&key).is_none_or(keeps) {
            return;
        }
        let gone = table.backing_objects.remove(&key);
        let identity = gone
            .as_ref()
            .and_then(|backing_object| backing_object.identity);
        let shadow = identity.and_then(|identity| table.by_identity.remove(&identity));
        drop(table);
        if let Some(backing_object) = &gone {
            // A socket that was not bound in this run has no host object.
            let _ = fs::remove_file(&backing_object.path);
        }
        // This may be the last reference to the inode. Dropping it calls the back end, so no lock may be held.
        drop((gone, shadow));
    }

    /// Backing directories that no call has used since the previous sweep; `None` if it is not time to look for them.
    fn idle_directories(&self) -> Option<Idle> {
        let left = self.directory_checks.load(Ordering::Relaxed);
        // A concurrent removal restarts the count.
        let _ = self.directory_checks.compare_exchange(
            left,
            left.saturating_sub(1),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        let directory_checks =
            left > DIRECTORY_SWEEPS - FIRST_SWEEPS || left > 0 && left.is_multiple_of(10);
        let mut table = self.table.write();
        let all = table.backing_objects.len() >= DIRS_BEFORE_SWEEP.max(2 * table.dirs_kept);
        if !all && !directory_checks {
            return None;
        }
        table.sweeps += 1;
        let sweep = table.sweeps;
        let is_idle = |backing_object: &&BackingObject| {
            backing_object.asked.load(Ordering::Relaxed) + 1 < sweep
        };
        let idle = table.backing_objects.values().filter(is_idle);
        let places = idle.filter_map(|backing_object| {
            let identity = backing_object.identity?;
            match &**table.by_identity.get(&identity)? {
                Shadow::Dir { place, .. } => Some((identity, place.clone())),
                _ => None,
            }
        });
        Some(Idle {
            places: places.collect(),
            all,
        })
    }

    /// Removes a backing directory that no process holds, unless a call has used it in the meantime.
    fn retire(&self, identity: Identity, key: &PlaceKey, former: Option<Former>, unused: Unused) {
        let mut table = self.table.write();
        let sweep = table.sweeps;
        let again = |backing_object: &BackingObject| {
            unused == Unused::SinceSweep && backing_object.asked.load(Ordering::Relaxed) == sweep
        };
        if table.backing_objects.get(key).is_none_or(again) {
            return;
        }
        let gone = table.by_identity.remove(&identity);
        let backing_object = table.backing_objects.remove(key);
        if let Some(backing_object) = &backing_object {
            let _ = fs::remove_dir(&backing_object.path);
        }
        if let Some(former) = former {
            table.retired.add(identity, former);
        }
        drop(table);
        // This may be the last reference to the directory. Dropping it calls the back end, so no lock may be held.
        drop((gone, backing_object));
    }
}

impl Table {
    /// Whether an `O_PATH` descriptor of the object with this key may be open: it leads to the host object.
    fn is_referred_to(&self, key: &PlaceKey) -> bool {
        self.by_identity.values().any(
            |shadow| matches!(&**shadow, Shadow::Reference { place, .. } if place.key() == *key),
        )
    }
}

fn is_socket(place: &Place) -> bool {
    place.node.kind() == FileKind::Socket
}

/// Whether the object has no name left in any view. This is not known for an object that an open transaction has made: it
/// stays.
fn has_no_name(own: &Caller, place: &Place) -> bool {
    let attr = place.mount.fs.getattr(own, &place.node);
    attr.is_ok_and(|attr| attr.nlink == 0)
}

/// The objects that these threads have as descriptor or working directory.
fn held_by(threads: Vec<i32>) -> HashSet<Identity> {
    let mut held = HashSet::new();
    for tid in threads {
        held.extend(procfs::cwd_identity(tid).ok());
        for fd in procfs::fds(tid).unwrap_or_default() {
            if let Ok(meta) = fs::metadata(format!("/proc/{tid}/fd/{fd}")) {
                held.insert((meta.dev(), meta.ino()));
            }
        }
    }
    held
}
