//! The mount table of a run while programs change it.

use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::{Errno, FileSystem, Mounts};

/// The mounts of a run as they are now. A system call works with those that it finds at its start.
#[derive(Debug)]
pub struct MountTable(RwLock<Arc<Mounts>>);

impl MountTable {
    /// A table that begins with `mounts`.
    pub fn new(mounts: Mounts) -> Self {
        Self(RwLock::new(Arc::new(mounts)))
    }

    /// The mounts as they are now; the result does not change.
    pub fn current(&self) -> Arc<Mounts> {
        Arc::clone(&self.0.read())
    }

    /// Changes the mounts for calls that begin later.
    pub fn change<T>(&self, by: impl FnOnce(&mut Mounts) -> T) -> T {
        by(Arc::make_mut(&mut self.0.write()))
    }
}

/// A file system that shows a directory of the host.
pub trait HostDirectory: FileSystem {
    /// Closes the directory, which would keep its file system busy, and calls `unmount`, which unmounts that file system.
    /// Operations on the root wait meanwhile. After a success they fail (ENOENT); after a failure the directory is opened again as `dir`.
    fn while_closed(
        &self,
        dir: &Path,
        unmount: &mut dyn FnMut() -> Result<(), Errno>,
    ) -> Result<(), Errno>;
}

/// Opens a directory of the host.
pub type OpenHostDirectory = fn(&Path) -> Result<Arc<dyn HostDirectory>, Errno>;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::{Mount, SynthFs};

    fn fs() -> Arc<dyn FileSystem> {
        Arc::new(SynthFs::new(1))
    }

    fn cover(table: &MountTable, target: &str) -> Arc<Mount> {
        let target = target.as_bytes().to_vec();
        table.change(|mounts| mounts.cover(target, fs(), "source".to_owned()))
    }

    fn at(table: &MountTable, target: &str) -> Option<u64> {
        let mounts = table.current();
        mounts.at(target.as_bytes()).map(|mount| mount.number)
    }

    #[test]
    fn a_mount_covers_another_until_it_is_removed() {
        let table = MountTable::new(Mounts::new(fs()));
        let before = table.current();
        let numbers = ["/a", "/a", "/b"].map(|target| cover(&table, target).number);
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!((at(&table, "/a"), before.iter().count()), (Some(1), 0));
        let top = Arc::clone(table.current().at(b"/a").unwrap());
        table.change(|mounts| mounts.remove(&top));
        assert_eq!(at(&table, "/a"), Some(0));
        // A number is not used again.
        assert_eq!(cover(&table, "/a").number, 3);
    }

    #[test]
    fn a_mount_keeps_its_place_in_the_order_unless_it_moves() {
        let table = MountTable::new(Mounts::new(fs()));
        let outer = cover(&table, "/a");
        cover(&table, "/a/b");
        cover(&table, "/c");
        let replace = |target: &str, flags| {
            let changed = Arc::new(outer.changed(target.as_bytes().to_vec(), flags));
            table.change(|mounts| mounts.replace(&changed));
            let mounts = table.current();
            let numbers: Vec<u64> = mounts.iter().map(|mount| mount.number).collect();
            (numbers, mounts.by_number(outer.number).unwrap().flags)
        };
        let read_only = crate::MountFlags::READ_ONLY;
        assert_eq!(replace("/a", read_only), (vec![0, 1, 2], read_only));
        let none = crate::MountFlags::empty();
        assert_eq!(replace("/c", none), (vec![1, 2, 0], none));
        assert_eq!((at(&table, "/c"), at(&table, "/a")), (Some(0), None));
    }

    #[test]
    fn a_branch_covers_mounts_for_itself_alone() {
        let table = MountTable::new(Mounts::new(fs()));
        cover(&table, "/a");
        cover(&table, "/a/b");
        let other = cover(&table, "/c");
        let mut branch = table.current().branch();
        let caller = crate::Caller::with_ids(0, 0);
        let add = |branch: &mut Mounts, target: &str| {
            let flags = crate::MountFlags::empty();
            branch.add(&caller, target.as_bytes(), fs(), flags, String::new())
        };
        add(&mut branch, "/c").unwrap();
        assert_eq!(add(&mut branch, "/c"), Err(crate::MountError::Busy));
        assert!(branch.is_own(branch.at(b"/c").unwrap()) && !branch.is_own(&other));
        // What is below is hidden, too; a mount of another table is shared as it is.
        let mut second = table.current().branch();
        second.share(Arc::clone(branch.at(b"/c").unwrap()));
        assert!(Arc::ptr_eq(
            second.at(b"/c").unwrap(),
            branch.at(b"/c").unwrap()
        ));
        second.hide(b"/a");
        let targets: Vec<&[u8]> = second.iter().map(|mount| &mount.target[..]).collect();
        assert_eq!(targets, [b"/c"]);
        assert_eq!(table.current().iter().count(), 3);
        assert_eq!(at(&table, "/c"), Some(other.number));
    }

    #[test]
    fn mounts_are_nested_while_one_is_inside_of_another() {
        let table = MountTable::new(Mounts::new(fs()));
        cover(&table, "/a");
        assert!(!table.current().nested());
        let inner = cover(&table, "/a/b");
        assert!(table.current().nested());
        table.change(|mounts| mounts.remove(&inner));
        assert!(!table.current().nested());
    }
}
