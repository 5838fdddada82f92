//! rename(2) and renameat2(2). Children are filed under their directory's inode number, so moving a directory moves one
//! record.

use std::sync::Arc;

use amino_schema::{PathRecord, Timestamp, key, record::LINK_VALUE};
use amino_txn::locks::Resource;
use amino_txn::{Changes, OpGuard};
use goanna_vfs::{Errno, FileKind, Node, Result, file_flags};

use crate::content::cost::META_COST;
use crate::directory::names::{LINK_MAX, check_name};
use crate::inode::{Inode, MetaLocation, Seen, now, schema_kind};
use crate::view::View;

/// A name in a directory.
struct EntryName<'a> {
    dir: &'a Arc<Inode>,
    name: &'a Arc<[u8]>,
}

fn is_dir(inode: &Inode) -> bool {
    inode.kind == FileKind::Directory
}

impl View<'_> {
    /// Whether `dir` is `ancestor` or lies below it. The answer stays valid until the transaction ends, because another transaction that moves
    /// a directory changes its inode. The namespace lock is held.
    fn is_below(&self, dir: &Arc<Inode>, ancestor: &Arc<Inode>) -> Result<bool> {
        let mut at = Some(Arc::clone(dir));
        while let Some(inode) = at {
            if inode.ino == ancestor.ino {
                return Ok(true);
            }
            self.lock_read(|| Resource::Inode(inode.ino))?;
            let parent = inode.state.lock().seen.parent.clone();
            at = parent.map(|parent| self.current(parent));
        }
        Ok(false)
    }

    pub(crate) fn do_rename(
        &self,
        from_dir: &Node,
        from: &[u8],
        to_dir: &Node,
        to: &[u8],
        flags: u32,
    ) -> Result<()> {
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        let no_replace = flags & libc::RENAME_NOREPLACE != 0;
        if flags & !(libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE) != 0
            || (exchange && no_replace)
        {
            return Err(Errno::EINVAL.into());
        }
        check_name(from)?;
        check_name(to)?;
        let (from_dir, to_dir) = (self.dir(from_dir)?, self.dir(to_dir)?);
        let (from, to): (Arc<[u8]>, Arc<[u8]>) = (Arc::from(from), Arc::from(to));
        let from = EntryName {
            dir: &from_dir,
            name: &from,
        };
        let to = EntryName {
            dir: &to_dir,
            name: &to,
        };
        let replaced = self.retry_on_full_disk(|| {
            self.change(|guard| self.rename_once(guard, &from, &to, exchange, no_replace))
        })?;
        if let Some(replaced) = replaced {
            self.release_if_closed(&replaced);
        }
        Ok(())
    }

    /// What was replaced, if anything.
    fn rename_once(
        &self,
        guard: &OpGuard<'_>,
        from: &EntryName<'_>,
        to: &EntryName<'_>,
        exchange: bool,
        no_replace: bool,
    ) -> Result<Option<Arc<Inode>>> {
        let _names = self.names.write();
        self.lock_entry(from.dir, from.name)?;
        self.lock_entry(to.dir, to.name)?;
        let source = self.find(from.dir, from.name)?.ok_or(Errno::ENOENT)?;
        let target = self.find(to.dir, to.name)?;
        to.dir.state.lock().check_alive()?;
        match &target {
            Some(_) if no_replace => return Err(Errno::EEXIST.into()),
            None if exchange => return Err(Errno::ENOENT.into()),
            _ => {}
        }
        // In the order of do_renameat2 and vfs_rename.
        if is_dir(&source) && self.is_below(to.dir, &source)? {
            return Err(Errno::EINVAL.into());
        }
        if let Some(target) = &target {
            if is_dir(target) && self.is_below(from.dir, target)? {
                return Err(if exchange {
                    Errno::EINVAL.into()
                } else {
                    Errno::ENOTEMPTY.into()
                });
            }
            if target.ino == source.ino {
                return Ok(None);
            }
        }
        for moved in std::iter::once(&source).chain(&target) {
            moved.state.lock().unless_flagged(file_flags::PROTECTED)?;
        }
        let source = self.for_change(&source)?;
        let target = target.map(|target| self.for_change(&target)).transpose()?;
        match &target {
            Some(target) if exchange => self.exchange(guard, from, &source, to, target)?,
            target => self.replace(guard, from, &source, to, target.as_ref())?,
        }
        Ok(target.map(|target| Arc::clone(target.base())))
    }

    fn subdirs(&self, dir: &Arc<Inode>) -> u32 {
        let state = dir.state.lock();
        self.dir_meta(dir, &state).nlink
    }

    /// Records in `changes` that `inode` has the name `to` instead of `from`. The records of both names themselves
    /// are: `to` is set, `from` is left to the caller.
    fn plan_move(
        &self,
        inode: &Arc<Inode>,
        from: &EntryName<'_>,
        to: &EntryName<'_>,
        time: Timestamp,
        changes: &mut Changes,
    ) -> Result<()> {
        let state = inode.state.lock();
        // Nothing grows.
        self.reserve_removal(state.meta_cost())?;
        let meta = if state.home == MetaLocation::Data {
            changes.delete(key::link_key(inode.ino, from.dir.ino, from.name));
            changes.put(key::link_key(inode.ino, to.dir.ino, to.name), LINK_VALUE);
            None
        } else {
            let mut meta = state.meta.clone();
            meta.ctime = time;
            Some(meta)
        };
        let record = PathRecord {
            ino: inode.ino,
            kind: schema_kind(inode.kind),
            meta,
        };
        changes.put(key::path_key(to.dir.ino, to.name), record.encode());
        Ok(())
    }

    /// Does in memory what [`View::plan_move`] planned.
    fn apply_move(
        &self,
        inode: &Arc<Inode>,
        from: &EntryName<'_>,
        to: &EntryName<'_>,
        time: Timestamp,
    ) {
        let mut state = inode.state.lock();
        state.meta.ctime = time;
        if state.home != MetaLocation::Data {
            state.home = MetaLocation::Path {
                parent: to.dir.ino,
                name: Arc::clone(to.name),
            };
        }
        let mut old = None;
        if state.seen.is(from.dir.ino, from.name) || state.home != MetaLocation::Data {
            old = Some(std::mem::replace(
                &mut state.seen,
                Seen::at(to.dir, to.name),
            ));
        }
        self.mark_dirty(inode, &mut state);
        drop(state);
        drop(old);
    }

    fn replace(
        &self,
        guard: &OpGuard<'_>,
        from: &EntryName<'_>,
        source: &Arc<Inode>,
        to: &EntryName<'_>,
        target: Option<&Arc<Inode>>,
    ) -> Result<()> {
        if let Some(target) = target {
            match (is_dir(source), is_dir(target)) {
                (true, false) => return Err(Errno::ENOTDIR.into()),
                (false, true) => return Err(Errno::EISDIR.into()),
                (true, true) => self.check_empty(target)?,
                _ => {}
            }
        }
        let crosses = from.dir.ino != to.dir.ino;
        if is_dir(source) && crosses && target.is_none() && self.subdirs(to.dir) >= LINK_MAX {
            return Err(Errno::EMLINK.into());
        }
        let time = now();
        let mut changes = Changes::new();
        self.reserve_removal(2 * META_COST)?;
        changes.delete(key::path_key(from.dir.ino, from.name));
        let dropped = match target {
            Some(target) => {
                let name = to.name;
                Some(self.plan_drop(target, to.dir.ino, name, time, &mut changes)?)
            }
            None => None,
        };
        self.plan_move(source, from, to, time, &mut changes)?;
        self.submit(guard, changes)?;
        if let (Some(target), Some(dropped)) = (target, dropped) {
            self.apply_drop(target, to.dir.ino, to.name, time, dropped);
            self.entry_removed(to.dir, to.name, target.kind, time);
        }
        self.apply_move(source, from, to, time);
        self.entry_removed(from.dir, from.name, source.kind, time);
        self.entry_added(to.dir, to.name, source, time);
        Ok(())
    }

    fn exchange(
        &self,
        guard: &OpGuard<'_>,
        from: &EntryName<'_>,
        source: &Arc<Inode>,
        to: &EntryName<'_>,
        target: &Arc<Inode>,
    ) -> Result<()> {
        let time = now();
        let mut changes = Changes::new();
        self.reserve_removal(2 * META_COST)?;
        self.plan_move(source, from, to, time, &mut changes)?;
        self.plan_move(target, to, from, time, &mut changes)?;
        self.submit(guard, changes)?;
        self.apply_move(source, from, to, time);
        self.apply_move(target, to, from, time);
        self.entry_changed(from, target, source.kind, time);
        self.entry_changed(to, source, target.kind, time);
        Ok(())
    }

    /// The name stands for `inode` now, and for something of kind `old` before; it keeps its place in the directory.
    fn entry_changed(
        &self,
        entry: &EntryName<'_>,
        inode: &Arc<Inode>,
        old: FileKind,
        time: Timestamp,
    ) {
        let subdirs = i64::from(is_dir(inode)) - i64::from(old == FileKind::Directory);
        if self.overlay_entry(entry.dir, entry.name, Some(inode), (0, subdirs), time) {
            return;
        }
        {
            let mut state = entry.dir.state.lock();
            if is_dir(inode) {
                state.meta.nlink += 1;
            }
            if old == FileKind::Directory {
                state.meta.nlink = state.meta.nlink.saturating_sub(1);
            }
            if let Some(order) = &mut state.dir {
                order.set(entry.name, inode.ino, inode.kind);
            }
            state.touch(time);
            self.mark_dirty(entry.dir, &mut state);
        }
        let name = Arc::clone(entry.name);
        self.dentries
            .put(entry.dir.ino, name, Some(Arc::clone(inode)));
    }
}
