//! A part of a file system, as a bind mount shows it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::sync::Arc;

use goanna_passfs::PassFs;
use goanna_vfs::walk::{NoProcess, Pos, Walk};
use goanna_vfs::{
    Caller, Errno, FileSystem, FsError, Mount, MountFlags, Mounts, Place, Subtree, SynthFs,
};

fn caller() -> Caller {
    Caller::with_ids(rustix::process::geteuid().as_raw(), 0)
}

#[test]
fn no_path_leads_out_of_a_part() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
    fs::write(dir.path().join("a/file"), "").unwrap();
    let caller = caller();
    let whole = PassFs::new(dir.path()).unwrap();
    let a = whole.lookup(&caller, &whole.root(), b"a").unwrap();
    let part = Subtree::new(Arc::new(whole), a);
    let path = |node: &goanna_vfs::Node| part.path(&caller, node);
    let b = part.lookup(&caller, &part.root(), b"b").unwrap();
    let c = part.lookup(&caller, &b, b"c").unwrap();
    assert_eq!(path(&part.root()), Ok((Vec::new(), false)));
    assert_eq!(path(&c), Ok((b"b/c".to_vec(), false)));
    assert_eq!(part.parent(&caller, &c).unwrap().ino(), b.ino());
    assert_eq!(
        part.parent(&caller, &part.root()).unwrap().ino(),
        part.root().ino()
    );
    fs::rename(dir.path().join("a/b/c"), dir.path().join("c")).unwrap();
    let missing = FsError::Errno(Errno::ENOENT);
    assert_eq!(path(&c).err(), Some(missing.clone()));
    assert_eq!(part.parent(&caller, &c).err(), Some(missing));
}

/// A table that shows `a` of `whole` at `/x`, and a mount of the kernel, with its mount point at `kernel`, on `b` in it.
fn table(whole: &Arc<Mount>, caller: &Caller, kernel: &str) -> Mounts {
    let fs = &whole.fs;
    let a = fs.lookup(caller, &fs.root(), b"a").unwrap();
    let part = Arc::new(Subtree::new(Arc::clone(fs), a));
    let mut mount = Mount::new(
        part,
        b"/x".to_vec(),
        MountFlags::READ_ONLY,
        String::new(),
        7,
    );
    mount.base = Some(Arc::clone(whole));
    let on_b = goanna_vfs::KernelMount {
        target: b"/x/b".to_vec(),
        path: kernel.as_bytes().to_vec(),
    };
    Mounts::new(Arc::new(SynthFs::new(1))).of_namespace(vec![Arc::new(mount)], vec![on_b])
}

#[test]
fn walks_cross_what_the_kernel_has_mounted_in_a_part() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    fs::create_dir_all(dir.path().join("kernel/deep")).unwrap();
    fs::write(dir.path().join("a/file"), "").unwrap();
    let caller = caller();
    let fs: Arc<dyn FileSystem> = Arc::new(PassFs::new(dir.path()).unwrap());
    let flags = MountFlags::empty();
    let whole = Arc::new(Mount::new(fs, b"/w".to_vec(), flags, String::new(), 3));
    let kernel = format!("{}/kernel", dir.path().to_str().unwrap());
    let mounts = table(&whole, &caller, &kernel);
    let find = |path: &[u8]| {
        let mut walk = Walk::new(&mounts, &caller, &NoProcess);
        walk.object(Pos::root(), path, true)
            .and_then(|at| at.path(&caller))
            .map(|(path, _)| String::from_utf8(path).unwrap())
    };
    assert_eq!(find(b"/x/b/deep"), Ok(format!("{kernel}/deep")));
    assert_eq!(find(b"/x/b/../file"), Ok("/x/file".into()));
    assert_eq!(find(b"/x/b/deep/../../b"), Ok(kernel.clone()));
    assert_eq!(find(b"/x/b/../.."), Ok("/".into()));
    assert_eq!(
        mounts.path_in_run(format!("{kernel}/deep").as_bytes()),
        Some(b"/x/b/deep".to_vec())
    );
    // What is open in the whole is seen in the part, a directory only in the same mount.
    let (root, node) = (whole.fs.root(), whole.fs.root());
    let a = whole.fs.lookup(&caller, &root, b"a").unwrap();
    let file = whole.fs.lookup(&caller, &a, b"file").unwrap();
    let place = |node| Place {
        mount: Arc::clone(&whole),
        node,
    };
    assert_eq!(mounts.seen(&caller, &place(file)).mount.number, 7);
    assert_eq!(mounts.seen(&caller, &place(node)).mount.number, 3);
    // Nothing is above a mount that is nowhere.
    let mut walk = Walk::new(&mounts, &caller, &NoProcess);
    let above = walk.object(Pos::Mounted(place(root)), b"../../etc", true);
    assert_eq!(above.err(), Some(FsError::Errno(Errno::ENOENT)));
}
