//! Copies of a file that another process replaces meanwhile, as rename(2) by a process of the same transaction does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use amino_fs::{AminoFs, Options};
use goanna_offline::copy::{
    ContentWriter, Copied, CopyError, Export, FileSystemWriter, Import, open_target,
};
use goanna_offline::{Error, Tree, list};
use goanna_vfs::{
    Caller, Errno, FileSystem, Node, OpenFile, Place, Result, WritePosition, forward,
};

const ROUNDS: usize = 3;

/// A store in which the file `new0` replaces `f` at the moment when `f` is about to be read for the first time, `new1` at the
/// second time, and so on.
struct Replacing {
    store: Arc<AminoFs>,
    reads: AtomicUsize,
}

impl FileSystem for Replacing {
    forward! {
        lower: store;
        forward: kind root checks_access is_read_only opens_host_files largest_file transactions content identity lookup parent path
            getattr getattr_at readlink readdir open create tmpfile mknod mkdir symlink link link_open unlink rmdir rename write write_at
            truncate fallocate sync behind_link host_path host_file host_dir setattr flags statfs getxattr setxattr listxattr removexattr;
        own: shared_attributes on_host read_at;
    }

    fn read_at(&self, caller: &Caller, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let round = self.reads.fetch_add(1, SeqCst);
        if round < ROUNDS {
            let (root, new) = (self.store.root(), format!("new{round}"));
            self.store
                .rename(caller, &root, new.as_bytes(), &root, b"f", 0)?;
            // As the store answers once the content is deleted.
            return Err(Errno::ESTALE.into());
        }
        self.store.read_at(caller, node, offset, buf)
    }
}

fn caller() -> Caller {
    Caller {
        caps: u64::MAX,
        real_caps: u64::MAX,
        umask: 0,
        ..Caller::with_ids(0, 0)
    }
}

/// Makes files that are larger than the content that a store keeps with the metadata, and that begin with their names.
fn tree(dir: &Path) -> Tree {
    let source = dir.join("source");
    fs::create_dir(&source).unwrap();
    for name in ["f", "new0", "new1", "new2"] {
        fs::write(source.join(name), name.repeat(100_000)).unwrap();
    }
    let options = Options {
        create: true,
        ..Options::default()
    };
    let store = AminoFs::open(&dir.join("store"), options).unwrap();
    let caller = caller();
    let tree = Tree::new(store.clone(), caller.clone());
    Import::new(&tree, &FileSystemWriter, dir, false, &())
        .run(&source, b"/")
        .unwrap();
    let replacing = Replacing {
        store,
        reads: AtomicUsize::new(0),
    };
    Tree::new(Arc::new(replacing), caller)
}

/// `amino cat` reported "Stale file handle".
#[test]
fn cat_of_a_file_that_is_replaced_shows_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut content = Vec::new();
    list::read(&tree(dir.path()), b"/f", &mut |piece| {
        content.extend_from_slice(piece);
        Ok::<_, Error>(())
    })
    .unwrap();
    assert!(content == b"new2".repeat(100_000));
}

/// `amino export` left the file out.
#[test]
fn export_copies_the_file_that_replaced_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let tree = tree(dir.path());
    let out = dir.path().join("out");
    let (target, empty) = open_target(&out, false).unwrap();
    let exported = Export::new(&tree, false, target, &())
        .run(tree.root(), b"/", empty)
        .unwrap();
    assert!(exported.skipped.iter().all(|skipped| skipped.path != b"/f"));
    assert!(fs::read(out.join("f")).unwrap() == b"new2".repeat(100_000));
}

/// A store in which another process replaces a file as soon as it has its content, or before that, when the disk is full.
struct Overtaking {
    store: Arc<AminoFs>,
    is_full: bool,
}

impl Overtaking {
    fn overtake(&self, caller: &Caller) -> Result<()> {
        let root = self.store.root();
        self.store.rename(caller, &root, b"other", &root, b"f", 0)
    }
}

impl FileSystem for Overtaking {
    forward! {
        lower: store;
        forward: kind root checks_access is_read_only opens_host_files largest_file transactions content identity lookup parent path
            getattr getattr_at readlink readdir open create tmpfile mknod mkdir symlink link link_open unlink rmdir rename read_at write_at
            truncate fallocate sync behind_link host_path host_file host_dir setattr flags statfs getxattr listxattr removexattr;
        own: shared_attributes on_host setxattr write;
    }

    fn write(
        &self,
        caller: &Caller,
        file: OpenFile<'_>,
        position: WritePosition,
        data: &[u8],
    ) -> Result<usize> {
        if self.is_full {
            self.overtake(caller)?;
            return Err(Errno::ENOSPC.into());
        }
        self.store.write(caller, file, position, data)
    }

    fn setxattr(&self, caller: &Caller, _: &Node, _: &[u8], _: &[u8], _: i32) -> Result<()> {
        self.overtake(caller)?;
        // As the store answers once the file is deleted.
        Err(Errno::ESTALE.into())
    }
}

/// Imports `other`, and then `f`, which `other` overtakes. Returns the names that the second import has skipped, and the
/// final content of `f`.
fn import_overtaken(is_full: bool) -> (Vec<String>, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let import = |tree: &Tree, name: &str, set_attribute: bool| {
        let source = dir.path().join(name);
        fs::create_dir(&source).unwrap();
        let file = source.join(name);
        fs::write(&file, name.repeat(1000)).unwrap();
        if set_attribute {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&file, c"user.a", b"value", flags).unwrap();
        }
        Import::new(tree, &FileSystemWriter, dir.path(), false, &())
            .run(&source, b"/")
            .unwrap()
    };
    let options = Options {
        create: true,
        ..Options::default()
    };
    let store = AminoFs::open(&dir.path().join("store"), options).unwrap();
    let caller = caller();
    import(&Tree::new(store.clone(), caller.clone()), "other", false);
    let tree = Tree::new(Arc::new(Overtaking { store, is_full }), caller);
    let imported = import(&tree, "f", true);
    let skipped = imported.skipped.iter();
    let skipped = skipped.map(|skipped| format!("{skipped:?}")).collect();
    let mut content = Vec::new();
    list::read(&tree, b"/f", &mut |piece| {
        content.extend_from_slice(piece);
        Ok::<_, Error>(())
    })
    .unwrap();
    (skipped, content)
}

/// `amino import` reported "Stale file handle" for a file that it had copied.
#[test]
fn import_of_a_file_that_is_replaced_leaves_the_new_one() {
    let (skipped, content) = import_overtaken(false);
    assert!(skipped.is_empty(), "{skipped:?}");
    assert!(content == b"other".repeat(1000));
}

/// The import removed the file that had the name of the file that it could not copy.
#[test]
fn import_that_fails_leaves_the_file_of_another_process() {
    let (skipped, content) = import_overtaken(true);
    assert_eq!(skipped.len(), 1, "{skipped:?}");
    assert!(content == b"other".repeat(1000));
}

/// Fails once, like the owner of a store for a file of a mount that is replaced before it is read.
struct Late(AtomicUsize);

impl ContentWriter for Late {
    fn write(
        &self,
        tree: &Tree,
        dir: &Place,
        name: &[u8],
        from: OwnedFd,
        copied: &mut dyn FnMut(Copied),
    ) -> std::result::Result<Place, CopyError> {
        if self.0.fetch_add(1, SeqCst) == 0 {
            return Err(CopyError::Tree(Errno::ESTALE));
        }
        FileSystemWriter.write(tree, dir, name, from, copied)
    }
}

/// The import left the file out.
#[test]
fn import_copies_the_file_that_replaced_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), "content").unwrap();
    let options = Options {
        create: true,
        ..Options::default()
    };
    let store = AminoFs::open(&dir.path().join("store"), options).unwrap();
    let tree = Tree::new(store, caller());
    let late = Late(AtomicUsize::new(0));
    let imported = Import::new(&tree, &late, dir.path(), false, &())
        .run(&source, b"/")
        .unwrap();
    assert!(imported.skipped.is_empty(), "{:?}", imported.skipped);
    assert_eq!(late.0.into_inner(), 2);
}
