//! POSIX access control lists: attributes that control access and are inherited, as on ext4.
//!
//! The records are those of extended attributes ([`crate::metadata::xattr`]), in the kernel's layout. Two flags of the metadata show
//! whether the lists exist. A list for owner, group and others alone is a mode, on Linux, too: setting it changes the mode
//! (docs/decisions/0080). [`goanna_vfs::ops`] checks access by lists.

use std::sync::Arc;

use amino_schema::{Meta, MetaFlags, key, record};
use amino_txn::Changes;
use goanna_vfs::{Acl, Caller, Errno, FileKind, FsError, Node, Result};

use crate::damaged;
use crate::inode::{Inode, now};
use crate::metadata::xattr_space::cost_of_list;
use crate::view::View;

/// Puts the list that attribute `name` of an inode holds into `changes`, and into the flags of its metadata.
fn put(changes: &mut Changes, ino: u64, meta: &mut Meta, name: &[u8], list: Option<&Acl>) {
    let flag = if name == Acl::ACCESS {
        MetaFlags::HAS_ACL
    } else {
        MetaFlags::HAS_DEFAULT_ACL
    };
    match list {
        Some(list) => {
            let value = record::encode_xattr(&list.encode());
            changes.put(key::xattr_key(ino, name), value);
            meta.flags.set(MetaFlags::HAS_XATTR, true);
        }
        None if meta.flags.contains(flag) => changes.delete(key::xattr_key(ino, name)),
        None => {}
    }
    meta.flags.set(flag, list.is_some());
}

/// The lists that a new inode inherits from its directory.
pub(crate) struct Inherited {
    access: Option<Acl>,
    default: Option<Acl>,
    /// The permission bits that the inode gets, instead of those that the umask leaves.
    pub perm: u32,
}

impl Inherited {
    /// Sets the lists on the inode `ino`, with the metadata `meta`.
    pub(crate) fn put(&self, changes: &mut Changes, ino: u64, meta: &mut Meta) {
        put(changes, ino, meta, Acl::ACCESS, self.access.as_ref());
        put(changes, ino, meta, Acl::DEFAULT, self.default.as_ref());
    }
}

impl View<'_> {
    /// The list that attribute `name` of an inode holds.
    fn list(&self, ino: u64, name: &[u8]) -> Result<Option<Acl>> {
        let Some(raw) = self.get(&key::xattr_key(ino, name))? else {
            return Ok(None);
        };
        let value = record::decode_xattr(&raw).map_err(damaged)?;
        Ok(Acl::parse(&value).map_err(|_| Errno::EUCLEAN)?)
    }

    /// The lists that a new inode of `kind`, which a program creates with `mode`, inherits from the directory `dir` with metadata
    /// `meta`; `None` if `dir` has no default list.
    pub(crate) fn inherited(
        &self,
        dir: u64,
        meta: &Meta,
        kind: FileKind,
        mode: u32,
    ) -> Result<Option<Inherited>> {
        if kind == FileKind::Symlink || !meta.flags.contains(MetaFlags::HAS_DEFAULT_ACL) {
            return Ok(None);
        }
        let Some(default) = self.list(dir, Acl::DEFAULT)? else {
            return Ok(None);
        };
        let access = default.clone().inherited(mode);
        Ok(Some(Inherited {
            perm: mode & 0o7000 | access.mode(),
            access: (!access.is_mode()).then_some(access),
            default: (kind == FileKind::Directory).then_some(default),
        }))
    }

    /// The change of the list of the inode `ino`, with the metadata `meta`, that follows from a change of its mode to `mode`.
    pub(crate) fn list_of_mode(&self, ino: u64, meta: &Meta, mode: u32) -> Result<Option<Changes>> {
        if !meta.flags.contains(MetaFlags::HAS_ACL) {
            return Ok(None);
        }
        let Some(list) = self.list(ino, Acl::ACCESS)? else {
            return Ok(None);
        };
        let value = record::encode_xattr(&list.with_mode(mode).encode());
        let mut changes = Changes::new();
        changes.put(key::xattr_key(ino, Acl::ACCESS), value);
        Ok(Some(changes))
    }

    /// Sets the list that attribute `name` holds to `value`, or removes it. EOPNOTSUPP for a symbolic link, EACCES for a default list
    /// of anything but a directory, EPERM for callers other than the owner, EINVAL for a malformed list.
    pub(crate) fn set_acl(
        &self,
        caller: &Caller,
        inode: &Arc<Inode>,
        name: &[u8],
        value: &[u8],
    ) -> Result<()> {
        let list = Acl::parse(value)?;
        match inode.kind {
            FileKind::Symlink => return Err(Errno::EOPNOTSUPP.into()),
            FileKind::Directory => {}
            _ if name != Acl::DEFAULT => {}
            _ if list.is_some() => return Err(Errno::EACCES.into()),
            _ => return Ok(()),
        }
        self.change_once(|guard| {
            let inode = &self.for_change(inode)?;
            let mut state = inode.state.lock();
            state.check_there()?;
            let attr = inode.attr(&state, self.dev);
            if !caller.owns(&attr) {
                return Err(Errno::EPERM.into());
            }
            let mut meta = state.meta.clone();
            if let Some(list) = &list {
                list.check()?;
                self.must_fit(inode, name, cost_of_list(list))?;
                if name == Acl::ACCESS {
                    meta.mode = meta.mode & !0o777 | list.mode();
                    if !caller.in_group_or_capable(&attr, attr.gid) {
                        meta.mode &= !libc::S_ISGID;
                    }
                }
            }
            let kept = list.filter(|list| name != Acl::ACCESS || !list.is_mode());
            let mut changes = Changes::new();
            put(&mut changes, inode.ino, &mut meta, name, kept.as_ref());
            self.reserve(state.meta_cost())?;
            self.submit(guard, changes)?;
            meta.ctime = now();
            state.meta = meta;
            self.mark_dirty(inode, &mut state);
            Ok(())
        })
    }

    /// The value of attribute `name`, which holds a list; EOPNOTSUPP for a symbolic link, ENODATA where there is no list.
    pub(crate) fn get_acl(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let inode = self.inode_to_read(node)?;
        if inode.kind == FileKind::Symlink {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let state = inode.state.lock();
        if !state.meta.flags.contains(MetaFlags::HAS_XATTR) {
            return Err(Errno::ENODATA.into());
        }
        let list = self.list(inode.ino, name)?;
        Ok(list.ok_or(Errno::ENODATA)?.encode())
    }
}
