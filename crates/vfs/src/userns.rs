//! User namespaces other than the monitor's: their ids, and the monitor's ids for them (user_namespaces(7)).

use crate::Attr;

/// What the kernel shows in place of an id that a namespace does not have (`/proc/sys/kernel/overflowuid`).
const OVERFLOW: u32 = 65534;

/// Ids of a namespace and the monitor's ids for them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdMap(Vec<IdRange>);

/// Consecutive ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// The first one in the namespace.
    pub inside: u32,
    /// The monitor's id for the first one.
    pub outside: u32,
    /// How many there are.
    pub count: u32,
}

impl IdMap {
    /// A map of `ranges`, which do not overlap.
    pub fn new(ranges: Vec<IdRange>) -> Self {
        Self(ranges)
    }

    /// Whether nothing has been written to the map yet.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The monitor's id for `inside`; `None` where the namespace has no such id.
    pub fn outside(&self, inside: u32) -> Option<u32> {
        self.0.iter().find_map(|range| {
            let offset = inside.checked_sub(range.inside)?;
            (offset < range.count).then(|| range.outside.checked_add(offset))?
        })
    }

    /// The namespace's id for the monitor's id `outside`.
    pub fn inside(&self, outside: u32) -> Option<u32> {
        self.0.iter().find_map(|range| {
            let offset = outside.checked_sub(range.outside)?;
            (offset < range.count).then(|| range.inside.checked_add(offset))?
        })
    }
}

/// A user namespace that is not the monitor's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserNamespace {
    /// User ids.
    pub uids: IdMap,
    /// Group ids.
    pub gids: IdMap,
}

impl UserNamespace {
    /// Whether the namespace has both the owner and the group of an inode, so that capabilities in the namespace hold
    /// over it (the kernel's `privileged_wrt_inode_uidgid`).
    pub fn has(&self, uid: u32, gid: u32) -> bool {
        self.uids.inside(uid).is_some() && self.gids.inside(gid).is_some()
    }

    /// `attr` as stat(2) shows it in the namespace.
    pub fn shown(&self, attr: Attr) -> Attr {
        Attr {
            uid: self.uids.inside(attr.uid).unwrap_or(OVERFLOW),
            gid: self.gids.inside(attr.gid).unwrap_or(OVERFLOW),
            ..attr
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_mapped_range_by_range() {
        let range = |inside, outside, count| IdRange {
            inside,
            outside,
            count,
        };
        let map = IdMap::new(vec![range(0, 1000, 1), range(1, 100_000, 10)]);
        let pairs = [(0, 1000), (1, 100_000), (10, 100_009)];
        for (inside, outside) in pairs {
            assert_eq!(map.outside(inside), Some(outside));
            assert_eq!(map.inside(outside), Some(inside));
        }
        assert_eq!(map.outside(11), None);
        assert_eq!(map.inside(0), None);
        assert_eq!(map.inside(100_010), None);
        // Ranges at the end of all ids do not wrap.
        let last = IdMap::new(vec![range(0, u32::MAX - 1, u32::MAX)]);
        assert_eq!(last.outside(1), Some(u32::MAX));
        assert_eq!(last.outside(2), None);
    }
}
