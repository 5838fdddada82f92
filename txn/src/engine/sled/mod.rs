//! The engine sled: a lock-free tree over a log of its own.
//!
//! sled rewrites its files in any order, so a synced state does not stay valid: after a crash a file may be unusable. Therefore
//! there are two copies, in the directories `a` and `b`. One rests: it is synced, closed and not changed, and the checkpoint has
//! the sums of all its files. The other one is open for readers.
//!
//! Batches stay in memory, where readers look first, until a checkpoint puts them into the open copy. That copy then rests,
//! and the other one gets the batches, too, and is opened. So sled writes only during a checkpoint. If the disk is full then,
//! the batches are still in memory, and the open copy is overwritten with the resting one.
//! After a crash the copy that was open is overwritten in the same way.
//!
//! sled has no snapshots. A snapshot here shares the batches in memory, and reads the open copy. Before a checkpoint
//! overwrites entries there, it keeps their former values for the snapshots that still exist ([`Former`]).
//!
//! Read `database.rs` next, then `copies.rs` and `snapshot.rs`.

mod copies;
mod database;
mod recent;
mod snapshot;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amino_schema::header::FileSum;
use amino_schema::key::APPLIED;
use bytes::Bytes;
use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock};

use self::copies::{Copies, Opened, Rest, Side, adopt, choose, remove, replace};
use self::database::{DB, GROWTH, abandon, close, error, grown, rewrite, write};
use self::recent::Recent;
use self::snapshot::{Former, SledSnapshot};
use super::{Engine, Files, Reclaim, Snapshot, tree};
use crate::{Changes, Error};

/// The directory in which a new copy is made before it replaces the old one.
const REWRITTEN: &str = "new";

/// Two sled databases; one of them is open.
///
/// Lock order: `recent`, `former`, `copies.opened`, `copies.rest`.
pub(super) struct SledEngine {
    dir: PathBuf,
    recent: RwLock<Arc<Recent>>,
    /// The last link, which is still empty.
    former: Mutex<Arc<Former>>,
    copies: Arc<Copies>,
}

impl SledEngine {
    pub(super) fn open(dir: &Path, listed: Option<&[FileSum]>) -> Result<Self, Error> {
        let listed = listed.unwrap_or_default();
        remove(&dir.join(REWRITTEN))?;
        let (side, rest) = if listed.is_empty() {
            adopt(dir)?;
            (Side::A, Rest::None)
        } else {
            let side = choose(dir, listed)?;
            (side, Rest::One(side.other()))
        };
        Ok(Self {
            dir: dir.to_owned(),
            recent: RwLock::default(),
            former: Mutex::default(),
            copies: Arc::new(Copies {
                opened: RwLock::new(Some(Opened::new(dir, side)?)),
                rest: Mutex::new(rest),
            }),
        })
    }

    fn opened(&self) -> Result<MappedRwLockReadGuard<'_, Opened>, Error> {
        self.copies.opened()
    }

    /// Keeps the values that `recent` will overwrite in `opened`, if a snapshot exists.
    fn keep_former(&self, recent: &Recent, opened: &Opened) -> Result<(), Error> {
        let mut last = self.former.lock();
        if Arc::strong_count(&last) == 1 {
            return Ok(());
        }
        let mut former = Changes::new();
        former.set(APPLIED.into(), opened.get(APPLIED)?);
        for (key, _) in recent.changes.iter() {
            former.set(key.clone(), opened.get(key)?);
        }
        let next = Arc::<Former>::default();
        // The last link is empty.
        let _ = last.0.set((former, Arc::clone(&next)));
        *last = next;
        Ok(())
    }

    fn copy(&self, side: Side) -> PathBuf {
        self.dir.join(side.name())
    }

    /// Bytes by which each copy grows at the next checkpoint, with `pending` bytes of batches to come.
    fn growth(&self, pending: u64) -> u64 {
        let recent = self.recent.read_recursive().changes.byte_size() as u64;
        grown(recent.saturating_add(pending))
    }

    /// Allocates the space for a checkpoint beyond the end of both copies, which does not change their content: the disk must not
    /// be full when sled writes.
    fn allocate(&self) -> Result<(), Error> {
        let growth = self.growth(0);
        let log = |side| self.copy(side).join(DB);
        let end = Side::BOTH.map(|side| tree::len(&log(side)));
        let end = end.into_iter().max().unwrap_or(0).saturating_add(growth);
        let allocated = Side::BOTH
            .into_iter()
            .try_for_each(|side| tree::allocate_behind(&log(side), end));
        // The open copy, which sled may change, keeps the allocated space for the next time.
        if allocated.is_err()
            && let Rest::One(side) = *self.copies.rest.lock()
        {
            tree::trim(&log(side))?;
        }
        allocated
    }

    /// Writes recent changes to the open copy. Readers continue: they find the recent changes or the old state.
    fn settle(&self) -> Result<(), Error> {
        let recent = self.recent.read_recursive();
        if recent.applied.is_none() {
            return Ok(());
        }
        self.allocate()?;
        let opened = self.opened()?;
        self.keep_former(&recent, &opened)?;
        let written = write(&opened.database, &recent)?;
        drop((opened, recent));
        if written.is_err() {
            self.close_unusable()?;
        }
        written
    }

    /// Closes the open copy, which is unusable.
    fn close_unusable(&self) -> Result<(), Error> {
        match self.copies.opened.write().take() {
            Some(Opened { side, database, .. }) => abandon(&self.copy(side), database),
            None => Ok(()),
        }
    }

    /// Brings the copy other than `rested` up to date, by copying `rested` or by writing `recent` to it, and opens it.
    fn catch_up(&self, rested: Side, recent: &Recent, by_copying: bool) -> Result<Opened, Error> {
        let side = rested.other();
        if by_copying {
            tree::overwrite_tree(&self.dir, rested.name(), side.name())?;
        }
        let opened = Opened::new(&self.dir, side)?;
        if !by_copying && let Err(error) = write(&opened.database, recent)? {
            abandon(&self.copy(side), opened.database)?;
            return Err(error);
        }
        Ok(opened)
    }

    /// Bytes of the files of a copy.
    fn copy_bytes(&self, side: Side) -> Result<u64, Error> {
        let names = tree::names(&self.dir, side.name())?;
        // sled's threads remove snapshots and blobs that a newer one replaces.
        let bytes = |name| fs::metadata(self.dir.join(name)).map_or(0, |found| found.len());
        Ok(names.iter().map(bytes).sum())
    }

    /// Bytes of the entries in the open copy; `None` when a copy that has only these may take `limit` bytes or more.
    fn live_bytes(&self, limit: u64) -> Result<Option<u64>, Error> {
        let opened = self.opened()?;
        let mut live = 0_u64;
        for entry in opened.database.iter() {
            let (key, value) = entry.map_err(error("read a range"))?;
            live += (key.len() + value.len()) as u64;
            if grown(live) >= limit {
                return Ok(None);
            }
        }
        Ok((grown(live) < limit).then_some(live))
    }
}

impl Engine for SledEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let recent = self.recent.read_recursive();
        let opened = self.opened()?;
        recent.change(key).map_or_else(|| opened.get(key), Ok)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        let recent = self.recent.read_recursive();
        drop(self.opened()?);
        Ok(Box::new(SledSnapshot {
            recent: Arc::clone(&recent),
            former: Arc::clone(&self.former.lock()),
            copies: Arc::clone(&self.copies),
        }))
    }

    fn apply(&self, changes: &Changes, applied: &[u8]) -> Result<(), Error> {
        let mut recent = self.recent.write();
        drop(self.opened()?);
        let recent = Arc::make_mut(&mut recent);
        recent.changes.merge(changes.clone());
        recent.applied = Some(applied.to_vec());
        Ok(())
    }

    fn checkpoint(
        &self,
        last: bool,
        publish: &mut dyn FnMut(Vec<FileSum>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Copies { opened, rest } = &*self.copies;
        if *rest.lock() == Rest::Both {
            // The last checkpoint was made; nothing can have changed.
            return Ok(());
        }
        self.settle()?;
        let mut recent = self.recent.write();
        let mut opened = opened.write();
        let Opened {
            side,
            database,
            is_rewritten,
        } = opened.take().ok_or(Error::NoSpace)?;
        close(&self.copy(side), database)?;
        let mut relied_on = tree::sums(&self.dir, side.name())?;
        if let Err(error) = publish(relied_on.clone()) {
            *opened = Some(Opened {
                is_rewritten,
                ..Opened::new(&self.dir, side)?
            });
            return Err(error);
        }
        let former = std::mem::replace(&mut *rest.lock(), Rest::One(side));
        let recent = std::mem::take(&mut *recent);
        let by_copying = is_rewritten || former == Rest::None;
        let current = self.catch_up(side, &recent, by_copying)?;
        if !last {
            *opened = Some(current);
            return Ok(());
        }
        let other = current.side;
        close(&self.copy(other), current.database)?;
        relied_on.extend(tree::sums(&self.dir, other.name())?);
        *rest.lock() = Rest::Both;
        publish(relied_on)
    }

    fn applied(&self) -> Result<Option<Bytes>, Error> {
        self.get(APPLIED)
    }

    fn is_persistent(&self) -> bool {
        true
    }

    fn files(&self) -> Option<&dyn Files> {
        Some(self)
    }
}

impl Files for SledEngine {
    fn reopen(&self) -> Result<(), Error> {
        let mut opened = self.copies.opened.write();
        let Rest::One(side) = *self.copies.rest.lock() else {
            return Ok(());
        };
        if opened.is_none() {
            let side = replace(&self.dir, side.other())?;
            *opened = Some(Opened::new(&self.dir, side)?);
        }
        Ok(())
    }

    fn space_needed(&self, pending: u64) -> u64 {
        let growth = self.growth(pending);
        let missing = |side| growth.saturating_sub(tree::preallocated(&self.copy(side).join(DB)));
        Side::BOTH.into_iter().map(missing).sum()
    }

    fn space_per_byte(&self) -> u64 {
        2 * GROWTH
    }

    fn reclaim(&self, available: u64) -> Result<Reclaim, Error> {
        let is_settled = self.recent.read_recursive().applied.is_none();
        let (true, Rest::One(rested)) = (is_settled, *self.copies.rest.lock()) else {
            return Ok(Reclaim::NoSpace);
        };
        let worthwhile = self.copy_bytes(rested.other())? / 2;
        let Some(live) = self.live_bytes(worthwhile.min(available))? else {
            let reason = if worthwhile <= available {
                Reclaim::NotWorthwhile
            } else {
                Reclaim::NoSpace
            };
            return Ok(reason);
        };
        let path = self.dir.join(REWRITTEN);
        let rewritten = rewrite(&self.opened()?.database, &path, live);
        if rewritten.is_err() {
            remove(&path)?;
            return rewritten.map(|()| Reclaim::NoSpace);
        }
        let mut opened = self.copies.opened.write();
        let Opened { side, database, .. } = opened.take().ok_or(Error::NoSpace)?;
        close(&self.copy(side), database)?;
        remove(&self.copy(side))?;
        fs::rename(&path, self.copy(side)).map_err(Error::io("rename", &path))?;
        *opened = Some(Opened {
            is_rewritten: true,
            ..Opened::new(&self.dir, side)?
        });
        Ok(Reclaim::Done)
    }

    fn size_on_disk(&self) -> Result<u64, Error> {
        Ok(self.copy_bytes(Side::A)? + self.copy_bytes(Side::B)?)
    }

    fn changes_by_itself(&self) -> bool {
        true
    }
}
