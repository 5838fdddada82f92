//! Contents that could not be read when they were to be stored.
//!
//! While a large file is in use, its content is in a host file, which the host may fail to read. Then a flush point omits that
//! file: it stays as it was in the store, and dirty, so the next flush point retries. A caller that waits for the file to be durable
//! must get the error. The kernel reports such an error once for each open file description (errseq), because it drops the data. Here
//! the data are kept, so every fsync(2) fails until they are stored.

use std::collections::HashMap;

use goanna_vfs::{Errno, Result};
use parking_lot::Mutex;

/// The files whose content the committer could not read at the last flush point. A leaf in the lock order.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<HashMap<u64, Failure>>);

#[derive(Debug, Clone, Copy)]
struct Failure {
    errno: Errno,
    /// A transaction changed the file.
    committed: bool,
}

impl Failures {
    /// The content of file `ino` could not be read.
    pub fn add(&self, ino: u64, errno: Errno, committed: bool) {
        let failure = Failure { errno, committed };
        self.0.lock().insert(ino, failure);
    }

    /// The content of file `ino` is stored, or is no longer needed.
    pub fn remove(&self, ino: u64) {
        let mut failures = self.0.lock();
        if !failures.is_empty() {
            failures.remove(&ino);
        }
    }

    /// Whether file `ino` could be stored.
    pub fn check(&self, ino: u64) -> Result<(), Errno> {
        let failure = self.0.lock().get(&ino).copied();
        failure.map_or(Ok(()), |failure| Err(failure.errno))
    }

    /// Whether all files could be stored.
    pub fn check_all(&self) -> Result<(), Errno> {
        let failure = self.0.lock().values().next().copied();
        failure.map_or(Ok(()), |failure| Err(failure.errno))
    }

    /// Whether all files could be stored that transactions changed.
    pub fn check_committed(&self) -> Result<(), Errno> {
        let failures = self.0.lock();
        let failure = failures.values().find(|failure| failure.committed);
        failure.map_or(Ok(()), |failure| Err(failure.errno))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::Path;
    use std::sync::Arc;

    use goanna_cache::CacheObject;
    use goanna_sys::object_handle::ObjectHandle;
    use goanna_vfs::{
        CachedContent, Caller, Errno, FileSystem, Node, OpenFile, Transactions, WritePosition,
    };

    use crate::inode::Inode;
    use crate::{AminoFs, Durability, EngineKind, Options};

    fn caller() -> Caller {
        Caller {
            groups: Arc::from([0]),
            ..Caller::with_ids(0, 0)
        }
    }

    fn open(dir: &Path) -> Arc<AminoFs> {
        let options = Options {
            engine: Some(EngineKind::Memory),
            create: true,
            ..Options::default()
        };
        AminoFs::open(dir, options).unwrap()
    }

    fn create(fs: &AminoFs, name: &str) -> (Node, OwnedFd) {
        create_by(&caller(), fs, name)
    }

    fn create_by(caller: &Caller, fs: &AminoFs, name: &str) -> (Node, OwnedFd) {
        let root = fs.root();
        let made = fs.create(caller, &root, name.as_bytes(), 0o644, libc::O_RDWR);
        let (node, opened) = made.unwrap();
        (node, opened.into_fd().unwrap())
    }

    fn write(
        fs: &AminoFs,
        caller: &Caller,
        (node, fd): &(Node, OwnedFd),
    ) -> goanna_vfs::Result<()> {
        let file = OpenFile {
            node,
            ofd: fd.as_fd(),
            flags: libc::O_RDWR,
        };
        fs.write(caller, file, WritePosition::At(0), &[7; 50_000])
            .map(drop)
    }

    fn unreadable(dir: &Path) -> CacheObject {
        let handle = ObjectHandle::new(File::open(dir).unwrap().into()).unwrap();
        CacheObject::from_handle(Arc::new(handle), true)
    }

    /// Makes the object of the file one that cannot be read, until it is made readable again.
    fn exchange_object(node: &Node, object: CacheObject) -> CacheObject {
        exchange_of(&node.pin_arc::<Inode>().unwrap(), object)
    }

    fn exchange_of(inode: &Inode, object: CacheObject) -> CacheObject {
        let mut state = inode.state.lock();
        state.cache.as_mut().unwrap().exchange_object(object)
    }

    #[test]
    fn each_caller_that_waits_gets_the_error_of_unreadable_content() {
        let dir = tempfile::tempdir().unwrap();
        let unreadable = unreadable(dir.path());
        let fs = open(dir.path());
        let (broken, sound) = (create(&fs, "broken"), create(&fs, "sound"));
        for file in [&broken, &sound] {
            write(&fs, &caller(), file).unwrap();
        }
        let object = exchange_object(&broken.0, unreadable);
        // Not only the first caller gets the error, and a flush in the background in between does not consume it.
        for _ in 0..3 {
            assert_eq!(fs.sync(Some(&broken.0)), Err(Errno::EISDIR.into()));
            assert_eq!(fs.sync(None), Err(Errno::EISDIR.into()));
            assert_eq!(fs.sync(Some(&sound.0)), Ok(()));
        }
        // Each operation waits for the disk, for its own files.
        let acid = fs.with_durability(Durability::Acid);
        assert_eq!(write(&acid, &caller(), &sound), Ok(()));
        assert_eq!(write(&acid, &caller(), &broken), Err(Errno::EISDIR.into()));
        assert_eq!(fs.make_durable(None), Ok(()), "no transaction changed it");
        exchange_object(&broken.0, object);
        assert_eq!(fs.sync(Some(&broken.0)), Ok(()));
        assert_eq!(fs.sync(None), Ok(()));
        fs.close().unwrap();
    }

    #[test]
    fn msync_of_content_that_cannot_be_read_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path());
        let file = create(&fs, "file");
        write(&fs, &caller(), &file).unwrap();
        fs.map_shared(&caller(), &file.0).unwrap();
        let object = exchange_object(&file.0, unreadable(dir.path()));
        // Each caller of each descriptor gets the error, until the content is stored.
        for _ in 0..3 {
            assert_eq!(
                fs.sync_mapped(&file.0, 0..1, true),
                Err(Errno::EISDIR.into())
            );
        }
        exchange_object(&file.0, object);
        assert_eq!(fs.sync_mapped(&file.0, 0..1, true), Ok(()));
        fs.close().unwrap();
    }

    #[test]
    fn a_durable_commit_of_content_that_cannot_be_read_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let unreadable = unreadable(dir.path());
        let fs = open(dir.path());
        let mut inside = caller();
        let id = fs.begin(None).unwrap();
        inside.txn = Some(id);
        let file = create_by(&inside, &fs, "file");
        write(&fs, &inside, &file).unwrap();
        let txn = fs.transactions.of_call(Some(id)).unwrap().unwrap();
        let copy = Arc::clone(&txn.level.lock().inodes[&file.0.ino()]);
        let object = exchange_of(&copy, unreadable);
        assert_eq!(fs.commit(id), Ok(true));
        assert_eq!(fs.make_durable(None), Err(Errno::EISDIR));
        exchange_object(&file.0, object);
        assert_eq!(fs.make_durable(None), Ok(()));
        assert_eq!(fs.sync(Some(&file.0)), Ok(()));
        let object = exchange_object(&file.0, self::unreadable(dir.path()));
        write(&fs, &caller(), &file).unwrap();
        assert!(fs.close().is_err(), "the content is lost");
        drop(object);
    }
}
