//! The tree of the host itself, and the ids of the host's files.
#![allow(clippy::unwrap_used, reason = "a test says so by failing")]

mod common;

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;

use common::{Dir, me};
use goanna_passfs::PassFs;
use goanna_vfs::{Errno, FileSystem};

#[test]
fn the_host_tree_spans_its_file_systems() {
    let host = PassFs::host().unwrap();
    let proc = host.lookup(&me(), &host.root(), b"proc").unwrap();
    let attr = host.getattr(&me(), &proc).unwrap();
    assert_eq!(attr.ino, fs::metadata("/proc").unwrap().ino());
    assert_ne!(attr.dev, host.getattr(&me(), &host.root()).unwrap().dev);
    assert_eq!(host.statfs(&me(), &proc).unwrap().magic, 0x9fa0);
    assert_eq!(host.parent(&me(), &proc).unwrap().ino(), host.root().ino());
    assert_eq!(host.path(&me(), &proc), Ok((b"proc".to_vec(), false)));
    // The caller's credentials count, not those of this process.
    let link = |name| {
        let node = host.lookup(&me(), &proc, name).unwrap();
        String::from_utf8(host.readlink(&me(), &node).unwrap()).unwrap()
    };
    assert_eq!(link(b"self"), "1234");
    assert_eq!(link(b"thread-self"), "1234/task/4321");
    let here = std::env::current_dir().unwrap().into_os_string().into_vec();
    let node = host.node_at(&me(), &here).unwrap();
    assert_eq!(host.absolute_path(&node), Ok((here.clone(), false)));
    assert_eq!(host.node_at(&me(), b"//").unwrap().ino(), host.root().ino());
}

#[test]
fn statfs_is_the_hosts() {
    let dir = Dir::new();
    let figures = dir.fs.statfs(&me(), &dir.fs.root()).unwrap();
    let native = nix::sys::statfs::statfs(dir.temp.path()).unwrap();
    assert_eq!(figures.magic, native.filesystem_type().0 as u64);
    assert_eq!(figures.block_size, native.block_size() as u64);
    assert_eq!(
        (figures.blocks, figures.files),
        (native.blocks(), native.files())
    );
    assert_eq!(figures.name_max, 255);
}

/// A file that gets the inode number of a removed one has another id; each change has another version. There are no reports.
#[test]
fn host_files_have_ids_and_versions() {
    struct Nobody;
    impl goanna_vfs::Subscriber for Nobody {
        fn changed(&self, _: &[goanna_vfs::Change]) {}
        fn lost(&self) {}
    }
    let dir = tempfile::tempdir().unwrap();
    let (pass, again) = (
        PassFs::new(dir.path()).unwrap(),
        PassFs::new(dir.path()).unwrap(),
    );
    let path = dir.path().join("f");
    let seen = |fs: &PassFs| {
        let node = fs.lookup(&me(), &fs.root(), b"f").unwrap();
        let id = fs.identity().unwrap().file_id(&me(), &node).unwrap();
        (id, fs.getattr(&me(), &node).unwrap().version)
    };
    fs::write(&path, "one").unwrap();
    let (id, mut last) = seen(&pass);
    assert_eq!(seen(&again), (id, last));
    let changes: [&dyn Fn(); 3] = [
        &|| fs::write(&path, "two").unwrap(),
        &|| fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap(),
        &|| fs::hard_link(&path, dir.path().join("g")).unwrap(),
    ];
    for change in changes {
        // Old kernels count in clock ticks.
        std::thread::sleep(std::time::Duration::from_millis(15));
        change();
        let now = seen(&pass);
        assert!(now.0 == id && now.1 > last);
        last = now.1;
    }
    for _ in 0..50 {
        fs::remove_file(&path).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(15));
        fs::write(&path, "another").unwrap();
        let (new, _) = seen(&pass);
        assert_ne!(new, id);
        if new.inode == id.inode {
            break;
        }
    }
    let subscriber: Arc<dyn goanna_vfs::Subscriber> = Arc::new(Nobody);
    let refused = pass
        .identity()
        .unwrap()
        .subscribe(Arc::downgrade(&subscriber));
    assert_eq!(refused, Err(Errno::EOPNOTSUPP.into()));
}
