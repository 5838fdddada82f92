//! POSIX access control lists (acl(5)): their layout as an extended attribute, and the kernel's operations on them
//! (`fs/posix_acl.c`).

use crate::{Attr, Caller, Errno};

/// A list's attribute: version u32 = 2, then for each entry tag u16, permissions u16, id u32, all little-endian.
const VERSION: u32 = 2;
const ENTRY: usize = 8;
/// The id of entries that have none.
const NO_ID: u32 = u32::MAX;

/// The tag type of an entry. A list has its entries in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum Tag {
    /// The owner of the file.
    UserObj = 0x01,
    /// The user whose id the entry has.
    User = 0x02,
    /// The group of the file.
    GroupObj = 0x04,
    /// The group whose id the entry has.
    Group = 0x08,
    /// The mask: the maximum permissions of all entries except those of the owner and of others.
    Mask = 0x10,
    /// Everybody else.
    Other = 0x20,
}

impl Tag {
    fn from_code(code: u16) -> Option<Self> {
        let tags = [
            Self::UserObj,
            Self::User,
            Self::GroupObj,
            Self::Group,
            Self::Mask,
            Self::Other,
        ];
        tags.into_iter().find(|&tag| tag as u16 == code)
    }

    fn has_id(self) -> bool {
        matches!(self, Self::User | Self::Group)
    }
}

/// One entry of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AclEntry {
    /// The tag type.
    pub tag: Tag,
    /// `R_OK`, `W_OK`, `X_OK`; other bits make the list invalid.
    pub perm: u16,
    /// User or group id, in [`Tag::User`] and [`Tag::Group`] entries.
    pub id: u32,
}

/// An access control list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl(Vec<AclEntry>);

impl Acl {
    /// The attribute that holds a file's access list.
    pub const ACCESS: &[u8] = b"system.posix_acl_access";
    /// The attribute that holds a directory's default list, which new entries inherit.
    pub const DEFAULT: &[u8] = b"system.posix_acl_default";

    /// Whether attribute `name` holds an access control list.
    pub fn is_name(name: &[u8]) -> bool {
        name == Self::ACCESS || name == Self::DEFAULT
    }

    /// Reads an attribute's value; `None` for a list without entries, which stands for no list. EINVAL for a malformed value,
    /// EOPNOTSUPP for another version. [`Acl::check`] tests whether the entries form a valid list.
    pub fn parse(value: &[u8]) -> Result<Option<Self>, Errno> {
        if value.is_empty() {
            return Ok(None);
        }
        let (version, entries) = value.split_first_chunk::<4>().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        let (entries, rest) = entries.as_chunks::<ENTRY>();
        if !rest.is_empty() {
            return Err(Errno::EINVAL);
        }
        let entries = entries.iter().map(|&[t0, t1, p0, p1, id @ ..]| {
            let tag = Tag::from_code(u16::from_le_bytes([t0, t1])).ok_or(Errno::EINVAL)?;
            let id = u32::from_le_bytes(id);
            if tag.has_id() && id == NO_ID {
                return Err(Errno::EINVAL);
            }
            Ok(AclEntry {
                tag,
                perm: u16::from_le_bytes([p0, p1]),
                id: if tag.has_id() { id } else { NO_ID },
            })
        });
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        Ok((!entries.is_empty()).then_some(Self(entries)))
    }

    /// The attribute's value.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(4 + self.0.len() * ENTRY);
        value.extend(VERSION.to_le_bytes());
        for entry in &self.0 {
            value.extend((entry.tag as u16).to_le_bytes());
            value.extend(entry.perm.to_le_bytes());
            value.extend(entry.id.to_le_bytes());
        }
        value
    }

    /// The entries, in their order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.0
    }

    /// EINVAL unless the entries are in order, with one for the owner, the group and others each, and a mask if a user or a group
    /// is named (`posix_acl_valid`).
    pub fn check(&self) -> Result<(), Errno> {
        let count = |tag: Tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let masks = usize::from(count(Tag::User) + count(Tag::Group) > 0);
        let valid = self.0.is_sorted_by_key(|entry| entry.tag)
            && self.0.iter().all(|entry| entry.perm <= 7)
            && [Tag::UserObj, Tag::GroupObj, Tag::Other]
                .into_iter()
                .all(|tag| count(tag) == 1)
            && (masks..=1).contains(&count(Tag::Mask));
        if valid { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// The permission bits that a file with this list has. Those of the group are the mask's, if there is one.
    pub fn mode(&self) -> u32 {
        let bits = |entry: &AclEntry| Some(u32::from(entry.perm & 7) << self.shift(entry.tag)?);
        self.0.iter().filter_map(bits).sum()
    }

    /// Whether [`Acl::mode`] expresses the whole list: it has no mask and names no user or group.
    pub fn is_mode(&self) -> bool {
        let further = |entry: &AclEntry| entry.tag.has_id() || entry.tag == Tag::Mask;
        !self.0.iter().any(further)
    }

    /// Changes the list as chmod(2) with `mode` changes that of a file (`posix_acl_chmod`).
    #[must_use]
    pub fn with_mode(self, mode: u32) -> Self {
        self.map_classes(|_, bits| bits, mode)
    }

    /// Turns a directory's default list into the list of a new file that a program creates with `mode`. The result grants nothing
    /// beyond `mode` (`posix_acl_create`).
    #[must_use]
    pub fn inherited(self, mode: u32) -> Self {
        self.map_classes(|perm, bits| perm & bits, mode)
    }

    /// Sets the permissions of each entry that permission bits show to `change(permissions, bits of mode)`.
    fn map_classes(mut self, change: impl Fn(u16, u16) -> u16, mode: u32) -> Self {
        let shifts: Vec<_> = self.0.iter().map(|entry| self.shift(entry.tag)).collect();
        for (entry, shift) in self.0.iter_mut().zip(shifts) {
            if let Some(shift) = shift {
                entry.perm = change(entry.perm, (mode >> shift & 7) as u16);
            }
        }
        self
    }

    /// The position in a mode of the permission bits that show the entry with `tag`; `None` for an entry that no permission bits
    /// show.
    fn shift(&self, tag: Tag) -> Option<u32> {
        let masked = self.0.iter().any(|entry| entry.tag == Tag::Mask);
        match tag {
            Tag::UserObj => Some(6),
            Tag::Mask => Some(3),
            Tag::GroupObj if !masked => Some(3),
            Tag::Other => Some(0),
            Tag::User | Tag::Group | Tag::GroupObj => None,
        }
    }

    /// Whether the list of an inode with attributes `attr` grants `caller` all of `mask` (`posix_acl_permission`).
    pub fn grants(&self, caller: &Caller, attr: &Attr, mask: u32) -> bool {
        let masked = |perm: u16| {
            let limit = self.0.iter().find(|entry| entry.tag == Tag::Mask);
            perm & limit.map_or(7, |limit| limit.perm)
        };
        let enough = |perm: u16| mask & 7 & !u32::from(perm) == 0;
        let mut in_group = false;
        for entry in &self.0 {
            let is_callers = match entry.tag {
                Tag::UserObj if attr.uid == caller.uid => return enough(entry.perm),
                Tag::User if entry.id == caller.uid => return enough(masked(entry.perm)),
                Tag::GroupObj => caller.in_group(attr.gid),
                Tag::Group => caller.in_group(entry.id),
                Tag::Other => return !in_group && enough(entry.perm),
                _ => false,
            };
            // It is enough that one of the caller's groups is granted all of `mask`.
            if is_callers && enough(entry.perm) {
                return enough(masked(entry.perm));
            }
            in_group |= is_callers;
        }
        false
    }

    /// The list with ids of users mapped by `uid` and ids of groups by `gid`; `None` where either has none for an id.
    pub fn mapped(
        mut self,
        uid: impl Fn(u32) -> Option<u32>,
        gid: impl Fn(u32) -> Option<u32>,
    ) -> Option<Self> {
        for entry in &mut self.0 {
            match entry.tag {
                Tag::User => entry.id = uid(entry.id)?,
                Tag::Group => entry.id = gid(entry.id)?,
                _ => {}
            }
        }
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stamp;

    fn list(entries: &[(Tag, u16, u32)]) -> Acl {
        let entry = |&(tag, perm, id)| AclEntry { tag, perm, id };
        Acl(entries.iter().map(entry).collect())
    }

    fn masked() -> Acl {
        list(&[
            (Tag::UserObj, 7, NO_ID),
            (Tag::User, 6, 1000),
            (Tag::GroupObj, 4, NO_ID),
            (Tag::Group, 3, 50),
            (Tag::Mask, 5, NO_ID),
            (Tag::Other, 1, NO_ID),
        ])
    }

    fn least() -> Acl {
        list(&[
            (Tag::UserObj, 7, NO_ID),
            (Tag::GroupObj, 6, NO_ID),
            (Tag::Other, 0, NO_ID),
        ])
    }

    #[test]
    fn values_are_read_and_written() {
        for acl in [masked(), least()] {
            assert_eq!(Acl::parse(&acl.encode()), Ok(Some(acl.clone())));
            assert_eq!(acl.check(), Ok(()));
        }
        let value = least().encode();
        assert_eq!(Acl::parse(b""), Ok(None));
        assert_eq!(Acl::parse(&value[..4]), Ok(None));
        assert_eq!(Acl::parse(b"x"), Err(Errno::EINVAL));
        assert_eq!(Acl::parse(&value[..11]), Err(Errno::EINVAL));
        assert_eq!(Acl::parse(&[1, 0, 0, 0]), Err(Errno::EOPNOTSUPP));
        let unknown = [&value[..4], &[0x40, 0, 7, 0, 0, 0, 0, 0]].concat();
        assert_eq!(Acl::parse(&unknown), Err(Errno::EINVAL));
        let nobody = [&value[..4], &[2, 0, 7, 0, 0xff, 0xff, 0xff, 0xff]].concat();
        assert_eq!(Acl::parse(&nobody), Err(Errno::EINVAL));
    }

    #[test]
    fn invalid_lists_are_refused() {
        let (user, group, other) = (Tag::UserObj, Tag::GroupObj, Tag::Other);
        let invalid = [
            &[user, group][..],
            &[user, Tag::User, group, other],
            &[other, group, user],
            &[user, group, Tag::Mask, Tag::Mask, other],
            &[user, user, group, other],
        ];
        for tags in invalid {
            let entries: Vec<_> = tags.iter().map(|&tag| (tag, 6, 1)).collect();
            assert_eq!(list(&entries).check(), Err(Errno::EINVAL), "{tags:?}");
        }
        let perm = list(&[(user, 8, 0), (group, 6, 0), (other, 0, 0)]);
        assert_eq!(perm.check(), Err(Errno::EINVAL));
    }

    #[test]
    fn a_mode_shows_the_mask_and_sets_it() {
        assert_eq!((masked().mode(), masked().is_mode()), (0o751, false));
        assert_eq!((least().mode(), least().is_mode()), (0o760, true));
        let changed = masked().with_mode(0o4640);
        assert_eq!(changed.mode(), 0o640);
        assert_eq!(changed.entries()[2], masked().entries()[2]);
        assert_eq!(masked().inherited(0o666).mode(), 0o640);
        assert_eq!(least().inherited(0o4777), least());
    }

    #[test]
    fn the_first_entry_of_a_user_counts_and_any_of_its_groups() {
        let attr = Attr {
            uid: 1,
            gid: 60,
            ..Attr::new(1, libc::S_IFREG | masked().mode(), 0, Stamp::default())
        };
        // User, groups, mask, granted.
        let table: &[(u32, &[u32], u32, bool)] = &[
            (1, &[], 7, true),
            (1000, &[], 4, true),
            (1000, &[50], 6, false),
            (1000, &[50], 1, false),
            (2000, &[60], 4, true),
            (2000, &[60], 1, false),
            (2000, &[50], 1, true),
            (2000, &[50], 2, false),
            (2000, &[50, 60], 4, true),
            (2000, &[50, 60], 5, false),
            (2000, &[70], 1, true),
            (2000, &[70], 4, false),
        ];
        for &(uid, groups, mask, granted) in table {
            let caller = Caller {
                groups: groups.into(),
                ..Caller::with_ids(uid, 9)
            };
            let result = masked().grants(&caller, &attr, mask);
            assert_eq!(result, granted, "{uid} {groups:?} {mask}");
        }
    }

    #[test]
    fn ids_are_mapped() {
        let mapped = masked().mapped(|uid| Some(uid + 1), |gid| Some(gid + 2));
        let ids: Vec<u32> = mapped
            .iter()
            .flat_map(|acl| acl.entries())
            .map(|e| e.id)
            .collect();
        assert_eq!(ids, [NO_ID, 1001, NO_ID, 52, NO_ID, NO_ID]);
        assert_eq!(masked().mapped(|_| None, Some), None);
    }
}
