//! Errors that depend on the mount alone, whatever its back end: read-only, no execution, calls across mounts. The expected outcomes
//! are those of a read-only bind mount (Linux 6.18). Permissions are compared with the kernel itself in
//! goanna-passfs's tests.
#![allow(clippy::unwrap_used, reason = "a test says so by failing")]

#[path = "support/memfs.rs"]
mod memfs;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use goanna_vfs::{Caller, Errno, FileSystem, Mount, MountFlags, Node, Place, Result, TimeSet, ops};
use memfs::MemFs;

fn caller(uid: u32, caps: u64) -> Caller {
    Caller {
        caps,
        real_caps: caps,
        umask: 0,
        ..Caller::with_ids(uid, uid)
    }
}

fn root() -> Caller {
    caller(0, u64::MAX)
}

fn mount(fs: &Arc<MemFs>, flags: MountFlags) -> Place {
    let fs: Arc<dyn FileSystem> = Arc::clone(fs) as _;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let node = fs.root();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mount = Mount::new(fs, b"/mnt".to_vec(), flags, "test".into(), number);
    let mount = Arc::new(mount);
    Place { mount, node }
}

fn at(place: &Place, node: Node) -> Place {
    Place {
        mount: Arc::clone(&place.mount),
        node,
    }
}

fn get(dir: &Place, name: &str) -> Place {
    at(dir, ops::lookup(&root(), dir, name.as_bytes()).unwrap())
}

/// Directories `pub` 0777, `priv` 0755, `lock` 0700 of root's, each with a file `f` 0644, `w` 0666, a fifo
/// 0666 and a directory.
fn tree() -> Arc<MemFs> {
    let fs = Arc::new(MemFs::default());
    let top = mount(&fs, MountFlags::empty());
    for (name, mode) in [("pub", 0o777), ("priv", 0o755), ("lock", 0o700)] {
        let dir = at(
            &top,
            ops::mkdir(&root(), &top, name.as_bytes(), mode).unwrap(),
        );
        ops::create(&root(), &dir, b"f", 0o644, libc::O_RDWR).unwrap();
        ops::create(&root(), &dir, b"w", 0o666, libc::O_RDWR).unwrap();
        ops::mknod(&root(), &dir, b"fifo", libc::S_IFIFO | 0o666, 0).unwrap();
        ops::mkdir(&root(), &dir, b"dir", 0o777).unwrap();
    }
    fs
}

/// As Linux answers nobody on an ext4 that is mounted read-only, where everything is root's.
#[test]
fn a_read_only_file_system_comes_before_permissions() {
    let fs = tree();
    fs.read_only
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let top = mount(&fs, MountFlags::READ_ONLY);
    let me = caller(65534, 0);
    let private = at(&top, ops::lookup(&me, &top, b"priv").unwrap());
    let file = at(&private, ops::lookup(&me, &private, b"f").unwrap());
    let fifo = at(&private, ops::lookup(&me, &private, b"fifo").unwrap());
    for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_TRUNC] {
        assert_eq!(
            ops::open_existing(&me, &file, flags).err(),
            Some(Errno::EROFS.into())
        );
    }
    assert!(ops::open_existing(&me, &file, libc::O_RDONLY).is_ok());
    let write = libc::W_OK;
    assert_eq!(ops::access(&me, &file, write), Err(Errno::EROFS.into()));
    assert_eq!(ops::access(&me, &private, write), Err(Errno::EROFS.into()));
    assert_eq!(
        ops::access(&me, &fifo, write),
        Ok(()),
        "it is no part of what is kept"
    );
    assert_eq!(ops::unlink(&me, &private, b"f"), Err(Errno::EROFS.into()));
    let made = ops::mkdir(&me, &private, b"dir", 0);
    assert_eq!(made.err(), Some(Errno::EEXIST.into()));
}

/// A call on the entries of a directory.
type Call = fn(&Caller, &Place) -> Result<()>;

fn on(c: &Caller, dir: &Place, name: &str) -> Result<Place> {
    Ok(at(dir, ops::lookup(c, dir, name.as_bytes())?))
}

/// Calls that change something, and their errors on a read-only mount: in directories that the caller may search, and in one that it
/// may not.
const CHANGES: &[(&str, Call, [Errno; 2])] = &[
    (
        "mkdir",
        |c, d| ops::mkdir(c, d, b"new", 0).map(drop),
        [Errno::EROFS, Errno::EACCES],
    ),
    (
        "mkdir of a file",
        |c, d| ops::mkdir(c, d, b"f", 0).map(drop),
        [Errno::EEXIST, Errno::EACCES],
    ),
    (
        "mknod",
        |c, d| ops::mknod(c, d, b"new", 0, 0).map(drop),
        [Errno::EROFS, Errno::EACCES],
    ),
    (
        "mknod of a device",
        |c, d| ops::mknod(c, d, b"new", libc::S_IFCHR, 0x103).map(drop),
        [Errno::EROFS, Errno::EACCES],
    ),
    (
        "symlink",
        |c, d| ops::symlink(c, d, b"new", b"x").map(drop),
        [Errno::EROFS, Errno::EACCES],
    ),
    (
        "link",
        |c, d| ops::link(c, &on(c, d, "f")?, d, b"new"),
        [Errno::EROFS, Errno::EACCES],
    ),
    (
        "link to a name",
        |c, d| ops::link(c, &on(c, d, "f")?, d, b"dir"),
        [Errno::EEXIST, Errno::EACCES],
    ),
    (
        "unlink of nothing",
        |c, d| ops::unlink(c, d, b"none"),
        [Errno::EROFS, Errno::EACCES],
    ),
    (
        "rmdir of a file",
        |c, d| ops::rmdir(c, d, b"f"),
        [Errno::EROFS, Errno::EACCES],
    ),
    (
        "rename of nothing",
        |c, d| ops::rename(c, d, b"none", d, b"x", 0),
        [Errno::EROFS, Errno::EACCES],
    ),
    (
        "create",
        |c, d| ops::create(c, d, b"new", 0, libc::O_RDONLY).map(drop),
        [Errno::EROFS, Errno::EACCES],
    ),
    (
        "exclusive create",
        |c, d| ops::create(c, d, b"f", 0, libc::O_EXCL).map(drop),
        [Errno::EEXIST, Errno::EACCES],
    ),
    (
        "open for writing",
        |c, d| ops::open_existing(c, &on(c, d, "f")?, libc::O_WRONLY).map(drop),
        [Errno::EACCES, Errno::EACCES],
    ),
    (
        "open of a writable file for writing",
        |c, d| ops::open_existing(c, &on(c, d, "w")?, libc::O_RDWR).map(drop),
        [Errno::EROFS, Errno::EACCES],
    ),
    (
        "truncating open",
        |c, d| ops::open_existing(c, &on(c, d, "f")?, libc::O_TRUNC).map(drop),
        [Errno::EROFS, Errno::EACCES],
    ),
    (
        "tmpfile",
        |c, d| ops::tmpfile(c, d, 0, libc::O_RDWR).map(drop),
        [Errno::EROFS, Errno::EROFS],
    ),
    (
        "chmod",
        |c, d| ops::chmod(c, &on(c, d, "f")?, 0),
        [Errno::EROFS, Errno::EACCES],
    ),
    (
        "chown",
        |c, d| ops::chown(c, &on(c, d, "f")?, Some(0), None),
        [Errno::EROFS, Errno::EACCES],
    ),
    (
        "utimens",
        |c, d| ops::utimens(c, &on(c, d, "f")?, None, Some(TimeSet::Now)),
        [Errno::EROFS, Errno::EACCES],
    ),
    (
        "truncate",
        |c, d| ops::truncate(c, &on(c, d, "f")?, 0),
        [Errno::EACCES, Errno::EACCES],
    ),
    (
        "truncate, writable",
        |c, d| ops::truncate(c, &on(c, d, "w")?, 0),
        [Errno::EROFS, Errno::EACCES],
    ),
    (
        "truncate of a directory",
        |c, d| ops::truncate(c, &on(c, d, "dir")?, 0),
        [Errno::EISDIR, Errno::EACCES],
    ),
    (
        "setxattr",
        |c, d| ops::setxattr(c, &on(c, d, "f")?, b"user.a", b"x", 0),
        [Errno::EROFS, Errno::EACCES],
    ),
    (
        "removexattr",
        |c, d| ops::removexattr(c, &on(c, d, "f")?, b"user.a"),
        [Errno::EROFS, Errno::EACCES],
    ),
    (
        "access",
        |c, d| ops::access(c, &on(c, d, "f")?, libc::W_OK),
        [Errno::EACCES, Errno::EACCES],
    ),
    (
        "access, writable",
        |c, d| ops::access(c, &on(c, d, "w")?, libc::W_OK),
        [Errno::EROFS, Errno::EACCES],
    ),
];

#[test]
fn read_only_mounts_answer_in_the_order_of_the_kernel() {
    let top = mount(&tree(), MountFlags::READ_ONLY);
    let me = caller(65534, 0);
    for (what, call, [open, locked]) in CHANGES {
        for dir in ["pub", "priv"] {
            assert_eq!(
                call(&me, &get(&top, dir)),
                Err((*open).into()),
                "{what} in {dir}"
            );
        }
        assert_eq!(
            call(&me, &get(&top, "lock")),
            Err((*locked).into()),
            "{what} in lock"
        );
    }
    let dir = get(&top, "pub");
    let open = |name| ops::open_existing(&me, &get(&dir, name), libc::O_RDONLY).map(drop);
    assert_eq!(open("f"), Ok(()));
    assert_eq!(ops::access(&me, &get(&dir, "fifo"), libc::W_OK), Ok(()));
    assert_eq!(ops::utimens(&me, &get(&dir, "f"), None, None), Ok(()));
}

#[test]
fn a_mount_without_execution_refuses_to_run_executables() {
    let fs = tree();
    let (plain, no_exec) = (
        mount(&fs, MountFlags::empty()),
        mount(&fs, MountFlags::NO_EXEC),
    );
    ops::chmod(&root(), &get(&get(&plain, "pub"), "f"), 0o755).unwrap();
    let run = |top: &Place| ops::access(&root(), &get(&get(top, "pub"), "f"), libc::X_OK);
    assert_eq!(run(&plain), Ok(()));
    assert_eq!(run(&no_exec), Err(Errno::EACCES.into()));
    assert_eq!(ops::access(&root(), &no_exec, libc::X_OK), Ok(()));
}

#[test]
fn links_and_renames_stay_inside_a_mount() {
    let fs = tree();
    let (one, other) = (
        get(&mount(&fs, MountFlags::empty()), "pub"),
        get(&mount(&fs, MountFlags::empty()), "priv"),
    );
    let f = get(&one, "f");
    // As `mount --bind` of the same file system: the same inodes, yet another mount.
    assert_eq!(
        ops::link(&root(), &f, &other, b"new"),
        Err(Errno::EXDEV.into())
    );
    assert_eq!(
        ops::link(&root(), &f, &other, b"f"),
        Err(Errno::EEXIST.into())
    );
    let rename = |flags| ops::rename(&root(), &one, b"f", &other, b"new", flags);
    assert_eq!(rename(0), Err(Errno::EXDEV.into()));
    assert_eq!(
        rename(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE),
        Err(Errno::EINVAL.into())
    );
    assert_eq!(rename(64), Err(Errno::EINVAL.into()));
}

#[test]
fn arguments_are_checked_before_the_tree() {
    let top = mount(&tree(), MountFlags::empty());
    let file = get(&get(&top, "pub"), "f");
    let long = [b'n'; 256];
    assert_eq!(
        ops::lookup(&root(), &top, &long).err(),
        Some(Errno::ENAMETOOLONG.into())
    );
    assert_eq!(
        ops::lookup(&root(), &file, &long).err(),
        Some(Errno::ENOTDIR.into())
    );
    assert_eq!(
        ops::mkdir(&root(), &top, &long, 0).err(),
        Some(Errno::ENAMETOOLONG.into())
    );
    assert_eq!(
        ops::symlink(&root(), &file, b"x", b"").err(),
        Some(Errno::ENOENT.into())
    );
    assert!(ops::symlink(&root(), &top, b"longest", &[b't'; 4095]).is_ok());
    let too_long = ops::symlink(&root(), &top, b"x", &[b't'; 4096]);
    assert_eq!(too_long.err(), Some(Errno::ENAMETOOLONG.into()));
    assert_eq!(ops::truncate(&root(), &top, -1), Err(Errno::EINVAL.into()));
    assert_eq!(
        ops::tmpfile(&root(), &top, 0, libc::O_RDONLY).err(),
        Some(Errno::EINVAL.into())
    );
    let set = |name: &[u8], value: &[u8], flags| ops::setxattr(&root(), &file, name, value, flags);
    assert_eq!(set(b"", b"", 0), Err(Errno::ERANGE.into()));
    assert_eq!(set(b"user.a", b"", 8), Err(Errno::EINVAL.into()));
    assert_eq!(set(b"user.a", &[0; 65537], 0), Err(Errno::E2BIG.into()));
    assert_eq!(set(b"user.a", &[0; 65536], 0), Ok(()));
}

#[test]
fn writing_clears_set_id_bits_unless_the_caller_may_keep_them() {
    let top = mount(&tree(), MountFlags::empty());
    let file = get(&get(&top, "pub"), "w");
    let mode = || file.mount.fs.getattr(&root(), &file.node).unwrap().perm();
    let keep = || ops::chmod(&root(), &file, 0o6777).unwrap();
    keep();
    ops::truncate(&root(), &file, 1).unwrap();
    assert_eq!(mode(), 0o6777);
    ops::truncate(&caller(1000, 0), &file, 1).unwrap();
    assert_eq!(mode(), 0o777);
    keep();
    ops::open_existing(&caller(1000, 0), &file, libc::O_RDWR | libc::O_TRUNC).unwrap();
    assert_eq!(mode(), 0o777);
    keep();
    ops::drop_set_id(&caller(1000, 0), &file).unwrap();
    assert_eq!(mode(), 0o777);
}

#[test]
fn statfs_shows_the_mounts_options() {
    let plain = mount(&tree(), MountFlags::empty());
    assert_eq!(ops::statfs(&root(), &plain).unwrap().flags, 0);
    let top = mount(&tree(), MountFlags::READ_ONLY | MountFlags::NO_EXEC);
    let flags = ops::statfs(&root(), &top).unwrap().flags;
    assert_eq!(flags, libc::ST_RDONLY | libc::ST_NOEXEC);
}
