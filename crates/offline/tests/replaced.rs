//! Reads of a file that another process replaces between its lookup and the reading, as rename(2) by a process of the same transaction
//! does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use amino_fs::{AminoFs, Options};
use goanna_offline::copy::{Export, FileSystemWriter, Import, open_target};
use goanna_offline::{Error, Tree, list};
use goanna_vfs::{Caller, Errno, FileSystem, Node, Result, forward};

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
            getattr readlink readdir open create tmpfile mknod mkdir symlink link link_open unlink rmdir rename write write_at
            truncate fallocate sync host_path setattr flags statfs getxattr setxattr listxattr removexattr;
        own: read_at;
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

/// Its files are larger than what a store keeps with their metadata, and begin with their names.
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
    let caller = Caller {
        caps: u64::MAX,
        real_caps: u64::MAX,
        umask: 0,
        ..Caller::with_ids(0, 0)
    };
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
