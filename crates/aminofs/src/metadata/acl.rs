//! The attributes of POSIX access control lists, which the store does not support: no file has a list, setting a well-formed one is
//! EOPNOTSUPP, and removing a missing one succeeds. A list for owner, group and others alone is a mode, on Linux, too: setting it
//! changes the mode (docs/decisions/0080).

use goanna_vfs::{Errno, Result};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Version of the attribute's layout: a 32-bit word, before entries of 8 bytes (tag, permissions, id).
const VERSION: u32 = 2;
const ENTRY: usize = 8;

/// Tags of entries, in the order that a list must have.
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Whether the attribute holds an access control list.
pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// The permission bits that setting attribute `name` to `value` sets; `None` for an empty list, which removes the list. EINVAL for
/// a malformed list, EOPNOTSUPP for one that says more than a mode.
pub(crate) fn mode(name: &[u8], value: &[u8]) -> Result<Option<u32>, Errno> {
    if value.is_empty() {
        return Ok(None);
    }
    let (version, entries) = value.split_first_chunk::<4>().ok_or(Errno::EINVAL)?;
    if u32::from_le_bytes(*version) != VERSION {
        return Err(Errno::EOPNOTSUPP);
    }
    if entries.is_empty() {
        return Ok(None);
    }
    let word = |entry: &[u8], at: usize| match entry.get(at..at + 2) {
        Some(&[low, high]) => u16::from_le_bytes([low, high]),
        _ => 0,
    };
    let entries = entries.chunks(ENTRY);
    if entries
        .clone()
        .any(|entry| entry.len() != ENTRY || word(entry, 2) > 7)
    {
        return Err(Errno::EINVAL);
    }
    let tags: Vec<u16> = entries.clone().map(|entry| word(entry, 0)).collect();
    let count = |tag: u16| tags.iter().filter(|&&found| found == tag).count();
    let known = [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER];
    let masks = usize::from(count(USER) + count(GROUP) > 0);
    let valid = tags.is_sorted()
        && tags.iter().all(|tag| known.contains(tag))
        && [USER_OBJ, GROUP_OBJ, OTHER]
            .iter()
            .all(|&tag| count(tag) == 1)
        && (masks..=1).contains(&count(MASK));
    if !valid {
        return Err(Errno::EINVAL);
    }
    if name != ACCESS || tags != [USER_OBJ, GROUP_OBJ, OTHER] {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(Some(entries.fold(0, |mode, entry| {
        mode << 3 | u32::from(word(entry, 2))
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(tags: &[u16]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for tag in tags {
            value.extend(tag.to_le_bytes());
            value.extend([6, 0, 0xff, 0xff, 0xff, 0xff]);
        }
        value
    }

    #[test]
    fn lists_are_distinguished_from_other_values_and_from_modes() {
        let valid = [
            &[USER_OBJ, USER, USER, GROUP_OBJ, GROUP, MASK, OTHER][..],
            &[USER_OBJ, GROUP_OBJ, MASK, OTHER],
        ];
        for tags in valid {
            assert_eq!(
                mode(ACCESS, &list(tags)),
                Err(Errno::EOPNOTSUPP),
                "{tags:?}"
            );
        }
        let mut least = list(&[USER_OBJ, GROUP_OBJ, OTHER]);
        assert_eq!(mode(ACCESS, &least), Ok(Some(0o666)));
        assert_eq!(mode(DEFAULT, &least), Err(Errno::EOPNOTSUPP));
        least[6] = 7;
        least[22] = 0;
        assert_eq!(mode(ACCESS, &least), Ok(Some(0o760)));
        let invalid = [
            &[USER_OBJ, GROUP_OBJ][..],
            &[USER_OBJ, USER, GROUP_OBJ, OTHER],
            &[OTHER, GROUP_OBJ, USER_OBJ],
            &[USER_OBJ, GROUP_OBJ, MASK, MASK, OTHER],
            &[USER_OBJ, GROUP_OBJ, OTHER, 0x40],
        ];
        for tags in invalid {
            assert_eq!(mode(ACCESS, &list(tags)), Err(Errno::EINVAL), "{tags:?}");
        }
        assert_eq!(mode(ACCESS, b"x"), Err(Errno::EINVAL));
        assert_eq!(mode(ACCESS, &list(&[USER_OBJ])[..11]), Err(Errno::EINVAL));
        assert_eq!(mode(ACCESS, &[1, 0, 0, 0]), Err(Errno::EOPNOTSUPP));
        assert_eq!(
            (mode(ACCESS, b""), mode(ACCESS, &list(&[]))),
            (Ok(None), Ok(None))
        );
    }
}
