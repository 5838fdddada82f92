//! Extended attributes.
//!
//! Name spaces as on Linux's disk file systems: `user.` on regular files and directories, `trusted.`, `security.`, and of `system.`
//! access control lists ([`crate::metadata::acl`]). [`goanna_vfs::ops`] checks the permission to read and change them.

use std::sync::Arc;

use amino_schema::{MetaFlags, ParsedKey, key, record};
use amino_txn::{Changes, OpGuard};
use goanna_vfs::{Acl, Caller, Errno, FileKind, Node, Result};

use crate::damaged;
use crate::inode::{Inode, State, now};
use crate::metadata::xattr_space::cost;
use crate::view::View;

/// `XATTR_NAME_MAX`.
const NAME_MAX: usize = 255;
/// `XATTR_SIZE_MAX`.
const SIZE_MAX: usize = 65536;

/// The capabilities that a program gets when it is executed.
const CAPABILITY: &[u8] = b"security.capability";

/// Whether an attribute of this name can exist, according to the tables of handlers.
fn check(inode: &Inode, name: &[u8], write: bool) -> Result<(), Errno> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Errno::ERANGE);
    }
    let rest = if let Some(rest) = name.strip_prefix(b"user.") {
        if !matches!(inode.kind, FileKind::Regular | FileKind::Directory) {
            return Err(if write { Errno::EPERM } else { Errno::ENODATA });
        }
        rest
    } else if let Some(rest) = name.strip_prefix(b"trusted.") {
        rest
    } else if let Some(rest) = name.strip_prefix(b"security.") {
        rest
    } else {
        return Err(Errno::EOPNOTSUPP);
    };
    if rest.is_empty() {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

impl View<'_> {
    pub(crate) fn do_getxattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        if Acl::is_name(name) {
            return self.get_acl(node, name);
        }
        let inode = self.inode_to_read(node)?;
        check(&inode, name, false)?;
        let state = inode.state.lock();
        if !state.meta.flags.contains(MetaFlags::HAS_XATTR) {
            return Err(Errno::ENODATA.into());
        }
        let raw = self.get(&key::xattr_key(inode.ino, name))?;
        let value = record::decode_xattr(&raw.ok_or(Errno::ENODATA)?).map_err(damaged)?;
        Ok(value.to_vec())
    }

    pub(crate) fn do_listxattr(&self, node: &Node) -> Result<Vec<Vec<u8>>> {
        let inode = self.inode_to_read(node)?;
        let state = inode.state.lock();
        let mut names = Vec::new();
        if state.meta.flags.contains(MetaFlags::HAS_XATTR) {
            self.scan(&key::xattr_prefix(inode.ino), |raw, _| {
                if let ParsedKey::Xattr { name, .. } = ParsedKey::parse(raw)? {
                    names.push(name.to_vec());
                }
                Ok(true)
            })?;
        }
        Ok(names)
    }

    pub(crate) fn do_setxattr(
        &self,
        caller: &Caller,
        node: &Node,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        if flags & !(libc::XATTR_CREATE | libc::XATTR_REPLACE) != 0 {
            return Err(Errno::EINVAL.into());
        }
        if value.len() > SIZE_MAX {
            return Err(Errno::E2BIG.into());
        }
        let inode = self.inode(node)?;
        if Acl::is_name(name) {
            return self.set_acl(caller, &inode, name, value);
        }
        check(&inode, name, true)?;
        self.edit_xattr(&inode, name, |exists, changes| {
            if exists && flags & libc::XATTR_CREATE != 0 {
                return Err(Errno::EEXIST.into());
            }
            if !exists && flags & libc::XATTR_REPLACE != 0 {
                return Err(Errno::ENODATA.into());
            }
            self.must_fit(&inode, name, cost(name, value))?;
            changes.put(key::xattr_key(inode.ino, name), record::encode_xattr(value));
            Ok(())
        })
    }

    pub(crate) fn do_removexattr(&self, caller: &Caller, node: &Node, name: &[u8]) -> Result<()> {
        let inode = self.inode(node)?;
        if Acl::is_name(name) {
            return self.set_acl(caller, &inode, name, b"");
        }
        check(&inode, name, true)?;
        self.edit_xattr(&inode, name, |exists, changes| {
            if !exists {
                return Err(Errno::ENODATA.into());
            }
            changes.delete(key::xattr_key(inode.ino, name));
            Ok(())
        })
    }

    /// Removes the capabilities of a file before a change of its content or owner by any caller (the kernel's
    /// `cap_inode_killpriv`).
    pub(crate) fn drop_capabilities(
        &self,
        guard: &OpGuard<'_>,
        ino: u64,
        state: &mut State,
    ) -> Result<()> {
        if !state.meta.flags.contains(MetaFlags::HAS_CAPABILITY) {
            return Ok(());
        }
        let mut changes = Changes::new();
        changes.delete(key::xattr_key(ino, CAPABILITY));
        self.submit(guard, changes)?;
        state.meta.flags.set(MetaFlags::HAS_CAPABILITY, false);
        Ok(())
    }

    /// The flag that the inode has attributes stays when the last one is removed: it only saves look-ups.
    fn edit_xattr(
        &self,
        inode: &Arc<Inode>,
        name: &[u8],
        edit: impl FnOnce(bool, &mut Changes) -> Result<()>,
    ) -> Result<()> {
        self.change_once(|guard| {
            let inode = &self.for_change(inode)?;
            let mut state = inode.state.lock();
            state.check_there()?;
            let exists = state.meta.flags.contains(MetaFlags::HAS_XATTR)
                && self.get(&key::xattr_key(inode.ino, name))?.is_some();
            let mut changes = Changes::new();
            edit(exists, &mut changes)?;
            self.reserve(state.meta_cost())?;
            self.submit(guard, changes)?;
            state.meta.flags.set(MetaFlags::HAS_XATTR, true);
            if name == CAPABILITY {
                state.meta.flags.set(MetaFlags::HAS_CAPABILITY, true);
            }
            state.meta.ctime = now();
            self.mark_dirty(inode, &mut state);
            Ok(())
        })
    }
}
