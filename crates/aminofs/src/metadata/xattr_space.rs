//! The space that extended attributes and access control lists of a file take, and its limit.

use amino_schema::{ParsedKey, key, record};
use goanna_vfs::{Acl, Errno, Result, Tag};

use crate::inode::Inode;
use crate::view::View;

/// Maximum size of all attributes of a file in bytes: ext4's block of 4 KiB, without its header and end mark.
const SPACE: usize = 4096 - 32 - 4;

/// The part of [`SPACE`] that an attribute takes, as on ext4: an entry, the name without its namespace, and the value.
pub(crate) fn cost(name: &[u8], value: &[u8]) -> usize {
    if Acl::is_name(name)
        && let Ok(Some(list)) = Acl::parse(value)
    {
        return cost_of_list(&list);
    }
    let own = name.splitn(2, |&byte| byte == b'.').nth(1).unwrap_or(name);
    16 + own.len().next_multiple_of(4) + value.len().next_multiple_of(4)
}

/// The part of [`SPACE`] that a list takes, as on ext4, which stores ids only in entries that have one.
pub(crate) fn cost_of_list(list: &Acl) -> usize {
    let entry = |tag: Tag| {
        if matches!(tag, Tag::User | Tag::Group) {
            8
        } else {
            4
        }
    };
    let entries: usize = list.entries().iter().map(|each| entry(each.tag)).sum();
    16 + 4 + entries
}

impl View<'_> {
    /// ENOSPC if a change to an attribute of size `new` makes the attributes of the inode larger, and larger than [`SPACE`].
    pub(crate) fn must_fit(&self, inode: &Inode, name: &[u8], new: usize) -> Result<()> {
        let (mut others, mut old) = (0, 0);
        self.scan(&key::xattr_prefix(inode.ino), |raw, stored| {
            if let ParsedKey::Xattr { name: found, .. } = ParsedKey::parse(raw)? {
                let cost = cost(found, &record::decode_xattr(stored)?);
                *(if found == name { &mut old } else { &mut others }) += cost;
            }
            Ok(true)
        })?;
        if new > old && others + new > SPACE {
            return Err(Errno::ENOSPC.into());
        }
        Ok(())
    }
}
