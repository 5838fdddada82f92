//! Finding names and making them.

use std::sync::Arc;

use amino_schema::{
    DataRecord, Meta, MetaFlags, PathRecord, SYMLINK_MAX, Timestamp, key, record::LINK_VALUE,
};
use amino_txn::locks::{Mode, Resource};
use amino_txn::{Changes, OpGuard};
use bytes::Bytes;
use goanna_vfs::{Caller, Errno, FileKind, Node, Opened, Result, file_flags};

use crate::content::cost::META_COST;
use crate::damaged;
use crate::directory::order::DirOrder;
use crate::inode::{Content, Inode, MetaLocation, Seen, State, kind_of, now, schema_kind};
use crate::metadata::acl::Inherited;
use crate::view::View;

/// Maximum number of names of one file, and of subdirectories of a directory plus 2.
pub(crate) const LINK_MAX: u32 = 65000;

/// The kind of file to create, and its parameters.
struct Template {
    kind: FileKind,
    /// Permission bits as the caller gave them.
    mode: u32,
    rdev: u64,
    /// A symbolic link's target.
    target: Option<Bytes>,
    /// The content object of a file that is made and opened in one step.
    cache: Option<Content>,
}

impl Template {
    /// The permission bits that the caller asked for.
    fn perm(&self) -> u32 {
        match self.kind {
            FileKind::Directory => self.mode & 0o1777,
            _ => self.mode & 0o7777,
        }
    }

    fn new(kind: FileKind, mode: u32) -> Self {
        Self {
            kind,
            mode,
            rdev: 0,
            target: None,
            cache: None,
        }
    }

    /// The metadata of a new file of `caller` in the directory `parent`, as in `inode_init_owner`.
    /// `perm` are inherited permission bits, if any; `version` is a new one.
    fn meta(
        &self,
        caller: &Caller,
        parent: &Meta,
        perm: Option<u32>,
        time: Timestamp,
        version: u64,
    ) -> Meta {
        let mut perm = match self.kind {
            FileKind::Symlink => 0o777,
            _ => perm.unwrap_or(self.perm() & !caller.umask),
        };
        let mut gid = caller.gid;
        if parent.mode & libc::S_ISGID != 0 {
            gid = parent.gid;
            if self.kind == FileKind::Directory {
                perm |= libc::S_ISGID;
            }
        }
        let inline = match self.kind {
            FileKind::Regular => Some(Bytes::new()),
            _ => self.target.clone(),
        };
        let mut flags = MetaFlags::default();
        flags.set_file_flags(parent.flags.file_flags() & file_flags::INHERITED);
        Meta {
            mode: self.kind.mode_bits() | perm,
            nlink: if self.kind == FileKind::Directory {
                2
            } else {
                1
            },
            uid: caller.uid,
            gid,
            rdev: self.rdev,
            size: inline.as_ref().map_or(0, |inline| inline.len() as u64),
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            flags,
            generation: version,
            version,
            inline,
        }
    }
}

/// Checks a single name; the path walk above has made all other checks.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > goanna_vfs::NAME_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

impl View<'_> {
    /// The inode of `name` in `dir`. The caller holds the namespace lock.
    pub(crate) fn find(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<Arc<Inode>>> {
        self.lock_read(|| Resource::Name(dir.ino, Arc::from(name)))?;
        if let Some(changed) = self.overlaid(dir.ino, name) {
            return Ok(changed);
        }
        let committed = self.find_committed(dir, name)?;
        Ok(committed.map(|inode| self.current(inode)))
    }

    /// The inode of `name` in `dir` in the committed state, without the changes of transactions.
    fn find_committed(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<Arc<Inode>>> {
        if let Some(known) = self.dentries.get(dir.ino, name) {
            return Ok(known);
        }
        {
            let state = dir.state.lock();
            state.check_alive()?;
            if state.dir.as_ref().is_some_and(|order| !order.has(name)) {
                return Ok(None);
            }
        }
        let drops = self.table.drops();
        let shared: Arc<[u8]> = Arc::from(name);
        let read = || -> Result<Option<(u64, FileKind, State)>, Errno> {
            let Some(raw) = self.committed(&key::path_key(dir.ino, name))? else {
                return Ok(None);
            };
            let record = PathRecord::decode(&raw).map_err(damaged)?;
            let (ino, kind) = (record.ino, kind_of(record.kind));
            let (meta, home) = match record.meta {
                Some(meta) => {
                    let name = Arc::clone(&shared);
                    let parent = dir.ino;
                    (meta, MetaLocation::Path { parent, name })
                }
                None => {
                    let raw = self.committed(&key::data_key(ino))?.ok_or(Errno::EUCLEAN)?;
                    let data = DataRecord::decode(&raw).map_err(damaged)?;
                    (data.meta, MetaLocation::Data)
                }
            };
            let seen = Seen::at(dir, &shared);
            Ok(Some((ino, kind, State::stored(meta, home, seen))))
        };
        let Some((ino, kind, state)) = read()? else {
            self.dentries.put(dir.ino, shared, None);
            return Ok(None);
        };
        let reread = || {
            let (_, _, state) = read()?.ok_or(Errno::EUCLEAN)?;
            Ok(state)
        };
        let inode = self.table.load(ino, kind, drops, state, reread)?;
        {
            let mut state = inode.state.lock();
            if state.seen.deleted && state.home == MetaLocation::Data {
                // The inode was loaded by a name that was removed since.
                state.seen = Seen::at(dir, &shared);
            }
        }
        self.dentries.put(dir.ino, shared, Some(Arc::clone(&inode)));
        Ok(Some(inode))
    }

    pub(crate) fn do_lookup(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        check_name(name)?;
        let dir = self.dir(dir)?;
        let _names = self.names.read();
        Ok(self.find(&dir, name)?.ok_or(Errno::ENOENT)?.node())
    }

    pub(crate) fn do_parent(&self, dir: &Node) -> Result<Node> {
        let dir = self.dir(dir)?;
        self.lock_read(|| Resource::Inode(dir.ino))?;
        let _names = self.names.read();
        let parent = dir.state.lock().seen.parent.clone();
        Ok(parent.map_or_else(|| self.root.node(), |parent| parent.node()))
    }

    pub(crate) fn do_path(&self, node: &Node) -> Result<(Vec<u8>, bool)> {
        let _names = self.names.read();
        let mut inode = self.inode(node)?;
        let mut parts = Vec::new();
        let mut deleted = None;
        loop {
            // A transaction that moves or removes it changes its inode, so it needs this lock.
            self.lock_read(|| Resource::Inode(inode.ino))?;
            let (name, parent) = {
                let state = inode.state.lock();
                // As in the kernel, only the last name decides whether the path counts as removed.
                deleted.get_or_insert(state.seen.deleted);
                (Arc::clone(&state.seen.name), state.seen.parent.clone())
            };
            let Some(parent) = parent else { break };
            parts.push(name);
            inode = self.current(parent);
        }
        parts.reverse();
        Ok((parts.join(&b'/'), deleted.unwrap_or(false)))
    }

    /// Makes a file in `dir`.
    fn make(&self, caller: &Caller, dir: &Node, name: &[u8], what: Template) -> Result<Arc<Inode>> {
        check_name(name)?;
        let dir = self.dir(dir)?;
        self.change_once(|guard| {
            let _names = self.names.write();
            self.make_locked(guard, caller, &dir, name, what)
        })
    }

    fn make_locked(
        &self,
        guard: &OpGuard<'_>,
        caller: &Caller,
        dir: &Arc<Inode>,
        name: &[u8],
        what: Template,
    ) -> Result<Arc<Inode>> {
        self.lock_entry(dir, name)?;
        if self.find(dir, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let time = now();
        let (mut meta, inherited) = {
            let state = dir.state.lock();
            state.check_alive()?;
            if what.kind == FileKind::Directory && self.dir_meta(dir, &state).nlink >= LINK_MAX {
                return Err(Errno::EMLINK.into());
            }
            self.meta_in(caller, dir, &state.meta, &what, time)?
        };
        self.reserve(META_COST)?;
        let ino = self.new_ino(guard)?;
        let mut changes = Changes::new();
        if let Some(lists) = inherited {
            lists.put(&mut changes, ino, &mut meta);
        }
        let record = PathRecord {
            ino,
            kind: schema_kind(what.kind),
            meta: Some(meta),
        };
        changes.put(key::path_key(dir.ino, name), record.encode());
        self.submit(guard, changes)?;
        let Some(meta) = record.meta else {
            return Err(Errno::EIO.into());
        };
        let name: Arc<[u8]> = Arc::from(name);
        let home = MetaLocation::Path {
            parent: dir.ino,
            name: Arc::clone(&name),
        };
        let mut state = State::stored(meta, home, Seen::at(dir, &name));
        state.cache = what.cache;
        if what.kind == FileKind::Directory {
            state.dir = Some(DirOrder::default());
        }
        let inode = self.new_inode(ino, what.kind, state);
        self.entry_added(dir, &name, &inode, time);
        Ok(inode)
    }

    /// The metadata of a new file of `caller` in `dir`, and the access control lists that it inherits. `parent` is the metadata
    /// of `dir`.
    fn meta_in(
        &self,
        caller: &Caller,
        dir: &Inode,
        parent: &Meta,
        what: &Template,
        time: Timestamp,
    ) -> Result<(Meta, Option<Inherited>)> {
        let lists = self.inherited(dir.ino, parent, what.kind, what.perm())?;
        let perm = lists.as_ref().map(|lists| lists.perm);
        let meta = what.meta(caller, parent, perm, time, self.versions.next());
        Ok((meta, lists))
    }

    /// Locks a name in a directory that is to be made, removed or replaced.
    pub(crate) fn lock_entry(&self, dir: &Inode, name: &[u8]) -> Result<()> {
        self.lock_read(|| Resource::Inode(dir.ino))?;
        self.lock_change(|| Resource::Name(dir.ino, Arc::from(name)), Mode::Exclusive)?;
        self.lock_change(|| Resource::Entries(dir.ino), Mode::Intent)
    }

    /// Records that the directory has one more entry. The caller holds the namespace lock exclusively, and has reserved space
    /// for the directory's metadata.
    pub(crate) fn entry_added(
        &self,
        dir: &Arc<Inode>,
        name: &Arc<[u8]>,
        inode: &Arc<Inode>,
        time: Timestamp,
    ) {
        let subdirs = i64::from(inode.kind == FileKind::Directory);
        if self.overlay_entry(dir, name, Some(inode), (1, subdirs), time) {
            return;
        }
        {
            let mut state = dir.state.lock();
            state.meta.size += 1;
            if inode.kind == FileKind::Directory {
                state.meta.nlink += 1;
            }
            if let Some(order) = &mut state.dir {
                order.set(name, inode.ino, inode.kind);
            }
            state.touch(time);
            self.mark_dirty(dir, &mut state);
        }
        self.dentries
            .put(dir.ino, Arc::clone(name), Some(Arc::clone(inode)));
    }

    /// Records that the directory has one entry less, as [`View::entry_added`].
    pub(crate) fn entry_removed(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        kind: FileKind,
        time: Timestamp,
    ) {
        let subdirs = -i64::from(kind == FileKind::Directory);
        if self.overlay_entry(dir, &Arc::from(name), None, (-1, subdirs), time) {
            return;
        }
        {
            let mut state = dir.state.lock();
            state.meta.size = state.meta.size.saturating_sub(1);
            if kind == FileKind::Directory {
                state.meta.nlink = state.meta.nlink.saturating_sub(1);
            }
            if let Some(order) = &mut state.dir {
                order.remove(name);
            }
            state.touch(time);
            self.mark_dirty(dir, &mut state);
        }
        self.dentries.put(dir.ino, Arc::from(name), None);
    }

    pub(crate) fn do_create(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Node, Opened)> {
        let mut what = Template::new(FileKind::Regular, mode);
        // Before the name is made, so that a lack of descriptors leaves no file behind.
        let (opened, cache) = self.with_descriptors(|| {
            let (mut cache, _) = self.new_cache(0)?;
            Ok::<_, Errno>((cache.open(flags), cache))
        })?;
        what.cache = Some(cache);
        let inode = self.make(caller, dir, name, what)?;
        self.share_opened(&inode, &inode.state.lock());
        Ok((inode.node(), opened))
    }

    pub(crate) fn do_tmpfile(
        &self,
        caller: &Caller,
        dir: &Node,
        mode: u32,
        flags: i32,
    ) -> Result<(Node, Opened)> {
        let dir = self.dir(dir)?;
        let what = Template::new(FileKind::Regular, mode);
        self.change(|guard| {
            let _names = self.names.read();
            let (mut meta, inherited) = {
                let state = dir.state.lock();
                state.check_alive()?;
                self.meta_in(caller, &dir, &state.meta, &what, now())?
            };
            meta.nlink = 0;
            let mut cache = self.new_cache(0)?.0;
            self.reserve(META_COST)?;
            let ino = self.new_ino(guard)?;
            let opened = cache.open(flags);
            if let Some(lists) = inherited {
                let mut changes = Changes::new();
                lists.put(&mut changes, ino, &mut meta);
                self.submit(guard, changes)?;
            }
            let seen = Seen {
                deleted: true,
                ..Seen::at(&dir, &Arc::from(format!("#{ino}").as_bytes()))
            };
            let mut state = State::stored(meta, MetaLocation::Orphan, seen);
            state.cache = Some(cache);
            state.linkable = flags & libc::O_EXCL == 0;
            let inode = self.new_inode(ino, FileKind::Regular, state);
            self.mark_dirty(&inode, &mut inode.state.lock());
            Ok((inode.node(), opened))
        })
    }

    pub(crate) fn do_mknod(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        rdev: u64,
    ) -> Result<Node> {
        let kind = FileKind::from_mode(mode).ok_or(Errno::EINVAL)?;
        let mut what = Template::new(kind, mode);
        match kind {
            FileKind::Directory => return Err(Errno::EPERM.into()),
            FileKind::Symlink => return Err(Errno::EINVAL.into()),
            FileKind::CharDevice | FileKind::BlockDevice => what.rdev = rdev,
            _ => {}
        }
        Ok(self.make(caller, dir, name, what)?.node())
    }

    pub(crate) fn do_mkdir(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
    ) -> Result<Node> {
        let what = Template::new(FileKind::Directory, mode);
        Ok(self.make(caller, dir, name, what)?.node())
    }

    pub(crate) fn do_symlink(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        target: &[u8],
    ) -> Result<Node> {
        match target.len() {
            0 => return Err(Errno::ENOENT.into()),
            len if len > SYMLINK_MAX => return Err(Errno::ENAMETOOLONG.into()),
            _ => {}
        }
        let mut what = Template::new(FileKind::Symlink, 0o777);
        what.target = Some(Bytes::copy_from_slice(target));
        Ok(self.make(caller, dir, name, what)?.node())
    }

    /// Makes a regular file without a content object, for imports.
    pub(crate) fn make_file(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
    ) -> Result<Arc<Inode>> {
        self.make(caller, dir, name, Template::new(FileKind::Regular, mode))
    }

    pub(crate) fn do_link(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let inode = self.inode(node)?;
        let dir = self.dir(dir)?;
        if inode.kind == FileKind::Directory {
            return Err(Errno::EPERM.into());
        }
        self.change(|guard| {
            let _names = self.names.write();
            self.lock_entry(&dir, name)?;
            let inode = self.for_change(&inode)?;
            if self.find(&dir, name)?.is_some() {
                return Err(Errno::EEXIST.into());
            }
            dir.state.lock().check_alive()?;
            let time = now();
            let name: Arc<[u8]> = Arc::from(name);
            self.link_locked(guard, &inode, &dir, &name, time)?;
            self.entry_added(&dir, &name, &inode, time);
            Ok(())
        })
    }

    /// Adds a further name. The second name moves the metadata to a data record of its own.
    fn link_locked(
        &self,
        guard: &OpGuard<'_>,
        inode: &Arc<Inode>,
        dir: &Arc<Inode>,
        name: &Arc<[u8]>,
        time: Timestamp,
    ) -> Result<()> {
        let mut state = inode.state.lock();
        let state = &mut *state;
        let mut meta = state.meta.clone();
        if meta.nlink >= LINK_MAX {
            return Err(Errno::EMLINK.into());
        }
        meta.nlink += 1;
        meta.ctime = time;
        self.reserve(META_COST + state.meta_cost())?;
        let (ino, kind) = (inode.ino, schema_kind(inode.kind));
        let nameless = |meta| PathRecord { ino, kind, meta }.encode();
        let mut changes = Changes::new();
        let home = match &state.home {
            MetaLocation::Orphan => {
                if !state.linkable || state.gone {
                    return Err(Errno::ENOENT.into());
                }
                changes.delete(key::orphan_key(ino));
                changes.put(key::path_key(dir.ino, name), nameless(Some(meta.clone())));
                let (parent, name) = (dir.ino, Arc::clone(name));
                MetaLocation::Path { parent, name }
            }
            home => {
                if let MetaLocation::Path { parent, name } = home {
                    changes.put(key::path_key(*parent, name), nameless(None));
                    changes.put(key::link_key(ino, *parent, name), LINK_VALUE);
                }
                changes.put(key::path_key(dir.ino, name), nameless(None));
                changes.put(key::link_key(ino, dir.ino, name), LINK_VALUE);
                let meta = meta.clone();
                changes.put(key::data_key(ino), DataRecord { meta }.encode());
                MetaLocation::Data
            }
        };
        self.submit(guard, changes)?;
        if state.home == MetaLocation::Orphan {
            state.linkable = false;
            state.orphan_stored = false;
            state.doomed = false;
        }
        if state.seen.deleted {
            state.seen = Seen::at(dir, name);
        }
        state.home = home;
        state.meta = meta;
        self.mark_dirty(inode, state);
        Ok(())
    }
}
