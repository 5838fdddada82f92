//! Removing names.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use amino_schema::{ParsedKey, PathRecord, Timestamp, key};
use amino_txn::Changes;
use amino_txn::locks::{Mode, Resource};
use goanna_vfs::{Errno, FileKind, FsError, Node, Result, file_flags};

use crate::Volume;
use crate::content::cost::{META_COST, REAP_PAGES, deletes};
use crate::directory::names::check_name;
use crate::inode::{Inode, MetaLocation, Seen, now, schema_kind};
use crate::view::View;

/// How often, and how far apart, a removal is tried again on a full store.
const FULL_RETRIES: u32 = 10;
const FULL_PAUSE: Duration = Duration::from_millis(20);

/// What happens to an inode that loses a name.
pub(crate) struct Dropped {
    nlink: u32,
    home: MetaLocation,
    /// A name that it still has, when its directory is in memory.
    other: Option<Seen>,
    /// The deletion of its content at the next flush point is reserved.
    reap_reserved: bool,
}

impl View<'_> {
    /// Removes `name` in directory `dir` of `inode`, a non-directory or an empty directory, within `changes`; space
    /// for what follows at the next flush point is reserved. The namespace lock is held exclusively.
    pub(crate) fn plan_drop(
        &self,
        inode: &Arc<Inode>,
        dir: u64,
        name: &[u8],
        time: Timestamp,
        changes: &mut Changes,
    ) -> Result<Dropped> {
        let state = inode.state.lock();
        changes.delete(key::path_key(dir, name));
        let pages = state.stored.len();
        if state.home != MetaLocation::Data {
            let reap_reserved = pages <= REAP_PAGES;
            let content = if reap_reserved { deletes(pages + 1) } else { 0 };
            self.reserve_removal(state.meta_cost() + content)?;
            return Ok(Dropped {
                nlink: 0,
                home: MetaLocation::Orphan,
                other: None,
                reap_reserved,
            });
        }
        self.reserve_removal(state.meta_cost())?;
        changes.delete(key::link_key(inode.ino, dir, name));
        let nlink = state.meta.nlink.saturating_sub(1);
        let other = if nlink == 1 || state.seen.is(dir, name) {
            self.other_name(inode.ino, dir, name)?
        } else {
            None
        };
        let seen = other.as_ref().and_then(|(parent, other)| {
            Some(Seen {
                parent: Some(self.table.get(*parent)?),
                name: Arc::clone(other),
                deleted: false,
            })
        });
        if nlink > 1 {
            return Ok(Dropped {
                nlink,
                home: MetaLocation::Data,
                other: seen,
                reap_reserved: false,
            });
        }
        let Some((parent, other)) = &other else {
            return Err(Errno::EUCLEAN.into());
        };
        // The last name takes the metadata back.
        let mut meta = state.meta.clone();
        meta.nlink = 1;
        meta.ctime = time;
        let record = PathRecord {
            ino: inode.ino,
            kind: schema_kind(inode.kind),
            meta: Some(meta),
        };
        changes.put(key::path_key(*parent, other), record.encode());
        changes.delete(key::link_key(inode.ino, *parent, other));
        changes.delete(key::data_key(inode.ino));
        Ok(Dropped {
            nlink: 1,
            home: MetaLocation::Path {
                parent: *parent,
                name: Arc::clone(other),
            },
            other: seen,
            reap_reserved: false,
        })
    }

    /// Another name of inode `ino` than `name` in directory `dir`. The search begins behind that one: where many names go
    /// one after the other, those before are gone already, and each would be looked at again.
    fn other_name(&self, ino: u64, dir: u64, name: &[u8]) -> Result<Option<(u64, Arc<[u8]>)>> {
        let this = key::link_key(ino, dir, name);
        for from in [Bound::Excluded(&this[..]), Bound::Unbounded] {
            let mut found = None;
            self.scan_from(from, &key::link_prefix(ino), |raw, _| {
                if raw != &this[..]
                    && let ParsedKey::Link { parent, name, .. } = ParsedKey::parse(raw)?
                {
                    found = Some((parent, Arc::<[u8]>::from(name)));
                }
                Ok(found.is_none())
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Does in memory what [`View::plan_drop`] planned, after the changes were submitted.
    pub(crate) fn apply_drop(
        &self,
        inode: &Arc<Inode>,
        dir: u64,
        name: &[u8],
        time: Timestamp,
        dropped: Dropped,
    ) {
        let orphan = dropped.home == MetaLocation::Orphan;
        let old = {
            let mut state = inode.state.lock();
            state.meta.nlink = dropped.nlink;
            state.meta.ctime = time;
            state.home = dropped.home;
            state.reap_reserved = dropped.reap_reserved;
            let mut old = None;
            if state.seen.is(dir, name) {
                match dropped.other {
                    Some(seen) => old = Some(std::mem::replace(&mut state.seen, seen)),
                    None => state.seen.deleted = true,
                }
            }
            if orphan {
                state.dir = None;
                if let Some(cache) = &mut state.cache {
                    cache.set_idle(false);
                }
            }
            self.mark_dirty(inode, &mut state);
            old
        };
        drop(old);
        if orphan && !self.in_transaction() {
            self.forget_orphan(inode);
        }
    }

    pub(crate) fn do_unlink(&self, dir: &Node, name: &[u8]) -> Result<()> {
        self.remove(dir, name, |victim: &Arc<Inode>| {
            if victim.kind == FileKind::Directory {
                Err(Errno::EISDIR.into())
            } else {
                Ok(())
            }
        })
    }

    pub(crate) fn do_rmdir(&self, dir: &Node, name: &[u8]) -> Result<()> {
        self.remove(dir, name, |victim| {
            if victim.kind != FileKind::Directory {
                return Err(Errno::ENOTDIR.into());
            }
            self.check_empty(victim)
        })
    }

    /// ENOTEMPTY for a directory with entries. An empty one stays empty until the operation ends.
    pub(crate) fn check_empty(&self, dir: &Arc<Inode>) -> Result<()> {
        self.lock_change(|| Resource::Entries(dir.ino), Mode::Exclusive)?;
        let state = dir.state.lock();
        if self.dir_meta(dir, &state).size > 0 {
            Err(Errno::ENOTEMPTY.into())
        } else {
            Ok(())
        }
    }

    fn remove(
        &self,
        dir: &Node,
        name: &[u8],
        check: impl Fn(&Arc<Inode>) -> Result<()>,
    ) -> Result<()> {
        check_name(name)?;
        let dir = self.dir(dir)?;
        self.retry_on_full_disk(|| self.remove_once(&dir, name, &check))
    }

    /// Runs `op`, which makes space in the end but needs a little of the log. On a full disk the store then writes out and
    /// empties its log, so a few more attempts are made.
    pub(crate) fn retry_on_full_disk<T>(&self, op: impl Fn() -> Result<T>) -> Result<T> {
        for _ in 0..FULL_RETRIES {
            match op() {
                Err(FsError::Errno(Errno::ENOSPC)) if !self.in_transaction() => {
                    std::thread::sleep(FULL_PAUSE)
                }
                other => return other,
            }
        }
        op()
    }

    fn remove_once(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        check: &impl Fn(&Arc<Inode>) -> Result<()>,
    ) -> Result<()> {
        let removed = self.change(|guard| {
            let _names = self.names.write();
            self.lock_entry(dir, name)?;
            let victim = self.find(dir, name)?.ok_or(Errno::ENOENT)?;
            victim.state.lock().unless_flagged(file_flags::PROTECTED)?;
            check(&victim)?;
            let victim = self.for_change(&victim)?;
            let time = now();
            let mut changes = Changes::new();
            self.reserve_removal(META_COST)?;
            let dropped = self.plan_drop(&victim, dir.ino, name, time, &mut changes)?;
            self.submit(guard, changes)?;
            self.apply_drop(&victim, dir.ino, name, time, dropped);
            self.entry_removed(dir, name, victim.kind, time);
            Ok(Arc::clone(victim.base()))
        })?;
        self.release_if_closed(&removed);
        Ok(())
    }
}

impl Volume {
    /// Drops the references of the caches to an inode that has lost its last name.
    pub(crate) fn forget_orphan(&self, inode: &Inode) {
        // Its references would keep the inode in memory.
        let idle = self.idle.lock().remove(inode.ino);
        drop(idle);
        if inode.kind == FileKind::Directory {
            self.dentries.forget_dir(inode.ino);
        }
    }
}
