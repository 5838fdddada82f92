//! Every method against the native call on the same directory, as root and as an ordinary user.
#![allow(clippy::unwrap_used, reason = "a test says so by failing")]

mod common;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use common::{Dir, compare, create, everybody, file_of, me, nobody};
use goanna_passfs::{Error, PassFs};
use goanna_vfs::{Caller, Errno, FileKind, FileSystem, Node, Result, SetAttr, Stamp, TimeSet};

#[test]
fn opening_a_directory_names_what_is_wrong_with_it() {
    let dir = Dir::new();
    fs::write(dir.host("file"), b"").unwrap();
    let errno = |path: PathBuf| match PassFs::new(&path) {
        Err(error @ Error::Directory { errno, .. }) => {
            assert!(
                error.to_string().contains(path.to_str().unwrap()),
                "{error}"
            );
            errno
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(errno(dir.host("file")), Errno::ENOTDIR);
    assert_eq!(errno(dir.host("none")), Errno::ENOENT);
}

#[test]
fn every_kind_of_file_is_made_and_seen_as_the_host_does() {
    for who in everybody() {
        let dir = Dir::new();
        let root = dir.fs.root();
        let (file, _) = create(&dir, &who, "file", 0o666).unwrap();
        let sub = dir.fs.mkdir(&who, &root, b"sub", 0o777).unwrap();
        let link = dir.fs.symlink(&who, &root, b"link", b"file").unwrap();
        let fifo = dir
            .fs
            .mknod(&who, &root, b"fifo", libc::S_IFIFO | 0o666, 0)
            .unwrap();
        let sock = dir
            .fs
            .mknod(&who, &root, b"sock", libc::S_IFSOCK | 0o666, 0)
            .unwrap();
        let device = dir
            .fs
            .mknod(&who, &root, b"null", libc::S_IFCHR | 0o666, 0x103);
        assert_eq!(device.err(), (who.uid != 0).then_some(Errno::EPERM.into()));
        let all = [
            ("file", file, FileKind::Regular),
            ("sub", sub, FileKind::Directory),
            ("link", link, FileKind::Symlink),
            ("fifo", fifo, FileKind::Fifo),
            ("sock", sock, FileKind::Socket),
        ];
        for (name, node, kind) in all {
            assert_eq!(node.kind(), kind);
            compare(&dir, &node, &dir.host(name));
            let meta = fs::symlink_metadata(dir.host(name)).unwrap();
            assert_eq!((meta.uid(), meta.gid()), (who.uid, who.gid));
            let found = dir.fs.lookup(&who, &root, name.as_bytes()).unwrap();
            assert_eq!((found.ino(), found.kind()), (node.ino(), kind));
            assert_eq!(
                dir.fs.path(&me(), &node),
                Ok((name.as_bytes().to_vec(), false))
            );
        }
        assert!(
            fs::symlink_metadata(dir.host("fifo"))
                .unwrap()
                .file_type()
                .is_fifo()
        );
        assert_eq!(fs::metadata(dir.host("sub")).unwrap().mode() & 0o777, 0o755);
        assert_eq!(
            create(&dir, &who, "file", 0).err(),
            Some(Errno::EEXIST.into())
        );
        assert_eq!(
            create(&dir, &who, "link", 0).err(),
            Some(Errno::EEXIST.into())
        );
    }
}

#[test]
fn an_open_file_is_the_lower_file_itself() {
    for who in everybody() {
        let dir = Dir::new();
        let (node, opened) = create(&dir, &who, "file", 0o600).unwrap();
        file_of(opened).write_all(b"hello, world").unwrap();
        let append = dir
            .fs
            .open(&who, &node, libc::O_WRONLY | libc::O_APPEND)
            .unwrap();
        file_of(append).write_all(b"!").unwrap();
        assert_eq!(fs::read(dir.host("file")).unwrap(), b"hello, world!");
        let mut text = String::new();
        let reader = dir
            .fs
            .open(&who, &node, libc::O_RDONLY | libc::O_CREAT | libc::O_EXCL);
        file_of(reader.unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello, world!");
        let mut buf = [0; 32];
        assert_eq!(dir.fs.read_at(&who, &node, 7, &mut buf), Ok(6));
        assert_eq!(&buf[..6], b"world!");
        assert_eq!(dir.fs.read_at(&who, &node, 700, &mut buf), Ok(0));
        dir.fs.truncate(&who, &node, 5).unwrap();
        assert_eq!(fs::read(dir.host("file")).unwrap(), b"hello");
        dir.fs.fallocate(&who, &node, 0, 0, 10_000).unwrap();
        assert_eq!(fs::metadata(dir.host("file")).unwrap().len(), 10_000);
        assert_eq!(
            dir.fs.truncate(&who, &node, u64::MAX),
            Err(Errno::EFBIG.into())
        );
        dir.fs
            .open(&who, &node, libc::O_WRONLY | libc::O_TRUNC)
            .unwrap();
        assert_eq!(fs::metadata(dir.host("file")).unwrap().len(), 0);
        assert_eq!(dir.fs.sync(Some(&node)), Ok(()));
        assert_eq!(dir.fs.sync(Some(&dir.fs.root())), Ok(()));
        assert_eq!(dir.fs.sync(None), Ok(()));
    }
}

#[test]
fn a_write_needs_no_description_of_a_program() {
    for who in everybody() {
        let dir = Dir::new();
        let (node, opened) = create(&dir, &who, "file", 0o600).unwrap();
        drop(opened);
        assert_eq!(dir.fs.write_at(&who, &node, 2, b"text"), Ok(4));
        let path = dir.temp.path().join("file");
        assert_eq!(fs::read(path).unwrap(), b"\0\0text");
    }
}

#[test]
fn the_umask_is_the_callers() {
    let dir = Dir::new();
    let who = Caller {
        umask: 0o077,
        txn: None,
        ..me()
    };
    create(&dir, &who, "closed", 0o666).unwrap();
    let who = Caller { umask: 0, ..me() };
    create(&dir, &who, "open", 0o666).unwrap();
    let mode = |name| fs::metadata(dir.host(name)).unwrap().mode() & 0o777;
    assert_eq!((mode("closed"), mode("open")), (0o600, 0o666));
}

#[test]
fn the_host_checks_the_caller() {
    let Some(nobody) = nobody() else {
        return;
    };
    let dir = Dir::new();
    fs::create_dir(dir.host("private")).unwrap();
    fs::write(dir.host("private/file"), b"secret").unwrap();
    fs::set_permissions(dir.host("private/file"), PermissionsExt::from_mode(0o600)).unwrap();
    fs::set_permissions(dir.host("private"), PermissionsExt::from_mode(0o700)).unwrap();
    let (private, file) = (dir.get("/private"), dir.get("/private/file"));
    let denied = Err(Errno::EACCES.into());
    assert_eq!(dir.fs.lookup(&nobody, &private, b"file").map(drop), denied);
    assert_eq!(
        dir.fs.node_at(&nobody, b"/private/file").map(drop),
        Err(Errno::EACCES)
    );
    assert_eq!(dir.fs.readdir(&nobody, &private, 0, &mut |_| true), denied);
    assert_eq!(
        dir.fs.open(&nobody, &file, libc::O_RDONLY).map(drop),
        denied
    );
    assert_eq!(
        dir.fs.read_at(&nobody, &file, 0, &mut [0; 4]).map(drop),
        denied
    );
    assert_eq!(dir.fs.truncate(&nobody, &file, 0), denied);
    assert_eq!(
        dir.fs.access(&nobody, &file, libc::R_OK),
        Err(Errno::EACCES)
    );
    assert_eq!(dir.fs.unlink(&nobody, &private, b"file"), denied);
    let chmod = SetAttr {
        mode: Some(0o777),
        ..SetAttr::default()
    };
    assert_eq!(
        dir.fs.setattr(&nobody, &file, &chmod),
        Err(Errno::EPERM.into())
    );
    // Afterwards the thread has its own credentials again.
    assert!(dir.fs.open(&me(), &file, libc::O_RDWR).is_ok());
    assert_eq!(dir.fs.setattr(&me(), &file, &chmod), Ok(()));
    assert_eq!(
        fs::metadata(dir.host("private/file")).unwrap().mode() & 0o777,
        0o777
    );
}

#[test]
fn a_node_follows_its_inode_through_renames() {
    let dir = Dir::new();
    fs::create_dir_all(dir.host("a/b")).unwrap();
    fs::write(dir.host("a/b/file"), b"1").unwrap();
    let (a, b, file) = (dir.get("/a"), dir.get("/a/b"), dir.get("/a/b/file"));
    let root = dir.fs.root();
    dir.fs.rename(&me(), &root, b"a", &root, b"z", 0).unwrap();
    assert_eq!(dir.fs.path(&me(), &file), Ok((b"z/b/file".to_vec(), false)));
    assert_eq!(dir.fs.parent(&me(), &b).unwrap().ino(), a.ino());
    assert_eq!(dir.fs.lookup(&me(), &b, b"file").unwrap().ino(), file.ino());
    fs::rename(dir.host("z/b"), dir.host("b")).unwrap();
    assert_eq!(dir.fs.parent(&me(), &b).unwrap().ino(), root.ino());
    assert_eq!(dir.fs.parent(&me(), &root).unwrap().ino(), root.ino());
    assert_eq!(dir.fs.path(&me(), &root), Ok((Vec::new(), false)));
    let noreplace = dir
        .fs
        .rename(&me(), &root, b"b", &root, b"z", libc::RENAME_NOREPLACE);
    assert_eq!(noreplace, Err(Errno::EEXIST.into()));
    dir.fs
        .rename(&me(), &root, b"b", &root, b"z", libc::RENAME_EXCHANGE)
        .unwrap();
    assert_eq!(dir.fs.path(&me(), &file), Ok((b"z/file".to_vec(), false)));
    let into_itself = dir.fs.rename(&me(), &root, b"z", &b, b"z", 0);
    assert_eq!(into_itself, Err(Errno::EINVAL.into()));
}

#[test]
fn the_tree_may_move_but_what_leaves_it_has_no_way_up() {
    let dir = Dir::new();
    fs::create_dir_all(dir.host("tree/in/deep")).unwrap();
    let tree = PassFs::new(&dir.host("tree")).unwrap();
    let deep = tree.node_at(&me(), b"/in/deep").unwrap();
    fs::rename(dir.host("tree"), dir.host("moved")).unwrap();
    assert_eq!(tree.path(&me(), &deep), Ok((b"in/deep".to_vec(), false)));
    fs::rename(dir.host("moved/in/deep"), dir.host("out")).unwrap();
    assert_eq!(
        tree.parent(&me(), &deep).map(drop),
        Err(Errno::ENOENT.into())
    );
    assert_eq!(tree.path(&me(), &deep), Err(Errno::ENOENT.into()));
}

#[test]
fn removed_names_are_distinguished_from_names_with_their_suffix() {
    let dir = Dir::new();
    for name in ["gone", "two", "odd (deleted)"] {
        fs::write(dir.host(name), name).unwrap();
    }
    fs::hard_link(dir.host("two"), dir.host("other")).unwrap();
    fs::create_dir(dir.host("dir")).unwrap();
    let root = dir.fs.root();
    let [gone, two, odd, sub] = ["gone", "two", "odd (deleted)", "dir"].map(|n| dir.get(n));
    dir.fs.unlink(&me(), &root, b"gone").unwrap();
    dir.fs.unlink(&me(), &root, b"two").unwrap();
    dir.fs.rmdir(&me(), &root, b"dir").unwrap();
    assert_eq!(dir.fs.path(&me(), &gone), Ok((b"gone".to_vec(), true)));
    assert_eq!(dir.fs.path(&me(), &two), Ok((b"two".to_vec(), true)));
    assert_eq!(
        dir.fs.path(&me(), &odd),
        Ok((b"odd (deleted)".to_vec(), false))
    );
    assert_eq!(dir.fs.path(&me(), &sub), Ok((b"dir".to_vec(), true)));
    assert_eq!(dir.fs.host_path(&gone), None);
    assert_eq!(dir.fs.host_path(&odd), Some(dir.host("odd (deleted)")));
    assert_eq!(dir.fs.getattr(&me(), &gone).unwrap().nlink, 0);
    assert!(dir.fs.open(&me(), &gone, libc::O_RDONLY).is_ok());
    assert_eq!(
        dir.fs.link(&me(), &gone, &root, b"back"),
        Err(Errno::ENOENT.into())
    );
    assert_eq!(dir.fs.link(&me(), &two, &root, b"back"), Ok(()));
    assert_eq!(create_in(&dir, &sub), Err(Errno::ENOENT.into()));
    assert_eq!(
        dir.fs.lookup(&me(), &sub, b"x").map(drop),
        Err(Errno::ENOENT.into())
    );
    // As from a removed working directory.
    assert_eq!(dir.fs.parent(&me(), &sub).unwrap().ino(), root.ino());
}

fn create_in(dir: &Dir, at: &Node) -> Result<()> {
    dir.fs
        .create(&me(), at, b"x", 0o600, libc::O_RDWR)
        .map(drop)
}

#[test]
fn hard_links_are_of_the_inode_and_not_of_what_it_points_at() {
    for who in everybody() {
        let dir = Dir::new();
        let root = dir.fs.root();
        let (file, _) = create(&dir, &who, "file", 0o600).unwrap();
        let link = dir.fs.symlink(&who, &root, b"link", b"file").unwrap();
        dir.fs.link(&who, &file, &root, b"file2").unwrap();
        dir.fs.link(&who, &link, &root, b"link2").unwrap();
        compare(&dir, &file, &dir.host("file2"));
        compare(&dir, &link, &dir.host("link2"));
        assert_eq!(dir.fs.getattr(&who, &link).unwrap().nlink, 2);
        assert_eq!(
            dir.fs.link(&who, &file, &root, b"link"),
            Err(Errno::EEXIST.into())
        );
        let sub = dir.fs.mkdir(&who, &root, b"sub", 0o700).unwrap();
        assert_eq!(
            dir.fs.link(&who, &sub, &root, b"sub2"),
            Err(Errno::EPERM.into())
        );
    }
}

#[test]
fn an_unnamed_file_can_be_given_a_name() {
    for who in everybody() {
        let dir = Dir::new();
        let root = dir.fs.root();
        let (node, opened) = dir.fs.tmpfile(&who, &root, 0o640, libc::O_RDWR).unwrap();
        file_of(opened).write_all(b"complete").unwrap();
        assert!(dir.names(&root).is_empty());
        dir.fs.link(&who, &node, &root, b"now").unwrap();
        assert_eq!(fs::read(dir.host("now")).unwrap(), b"complete");
        compare(&dir, &node, &dir.host("now"));
    }
}

#[test]
fn what_is_no_directory_or_no_link_says_so() {
    let dir = Dir::new();
    fs::write(dir.host("file"), b"").unwrap();
    fs::create_dir(dir.host("sub")).unwrap();
    symlink("sub", dir.host("link")).unwrap();
    let root = dir.fs.root();
    let [file, sub, link] = ["file", "sub", "link"].map(|n| dir.get(n));
    for node in [&file, &link] {
        let errno = Err(Errno::ENOTDIR.into());
        assert_eq!(dir.fs.lookup(&me(), node, b"x").map(drop), errno);
        assert_eq!(dir.fs.readdir(&me(), node, 0, &mut |_| true), errno);
        assert_eq!(dir.fs.mkdir(&me(), node, b"x", 0o700).map(drop), errno);
    }
    assert_eq!(
        dir.fs.open(&me(), &link, libc::O_RDONLY).map(drop),
        Err(Errno::ELOOP.into())
    );
    assert_eq!(
        dir.fs.open(&me(), &sub, libc::O_RDWR).map(drop),
        Err(Errno::EISDIR.into())
    );
    assert_eq!(
        dir.fs.read_at(&me(), &sub, 0, &mut [0]),
        Err(Errno::EISDIR.into())
    );
    assert_eq!(dir.fs.readlink(&me(), &link), Ok(b"sub".to_vec()));
    assert_eq!(dir.fs.readlink(&me(), &file), Err(Errno::EINVAL.into()));
    assert_eq!(
        dir.fs.unlink(&me(), &root, b"sub"),
        Err(Errno::EISDIR.into())
    );
    assert_eq!(
        dir.fs.rmdir(&me(), &root, b"link"),
        Err(Errno::ENOTDIR.into())
    );
    assert_eq!(
        dir.fs.rmdir(&me(), &root, b"none"),
        Err(Errno::ENOENT.into())
    );
    let long = [b'x'; 256];
    assert_eq!(
        dir.fs.lookup(&me(), &root, &long).map(drop),
        Err(Errno::ENAMETOOLONG.into())
    );
    // A link in the last place is the node itself.
    assert_eq!(
        dir.fs.node_at(&me(), b"/link").unwrap().kind(),
        FileKind::Symlink
    );
}

#[test]
fn attributes_are_set_on_the_inode_itself() {
    let dir = Dir::new();
    fs::write(dir.host("file"), b"").unwrap();
    symlink("file", dir.host("link")).unwrap();
    let (file, link) = (dir.get("file"), dir.get("link"));
    let at = |sec| Some(TimeSet::At(Stamp { sec, nsec: 5 }));
    let times = SetAttr {
        atime: at(-10),
        mtime: at(20),
        ..SetAttr::default()
    };
    dir.fs.setattr(&me(), &link, &times).unwrap();
    let meta = fs::symlink_metadata(dir.host("link")).unwrap();
    assert_eq!(
        (meta.atime(), meta.atime_nsec(), meta.mtime()),
        (-10, 5, 20)
    );
    assert_ne!(fs::metadata(dir.host("file")).unwrap().mtime(), 20);
    let only_mtime = SetAttr {
        mtime: at(30),
        ..SetAttr::default()
    };
    dir.fs.setattr(&me(), &link, &only_mtime).unwrap();
    let meta = fs::symlink_metadata(dir.host("link")).unwrap();
    assert_eq!((meta.atime(), meta.mtime()), (-10, 30));
    let mode = SetAttr {
        mode: Some(0o4711),
        ..SetAttr::default()
    };
    assert_eq!(
        dir.fs.setattr(&me(), &link, &mode),
        Err(Errno::EOPNOTSUPP.into())
    );
    dir.fs.setattr(&me(), &file, &mode).unwrap();
    assert_eq!(
        fs::metadata(dir.host("file")).unwrap().mode() & 0o7777,
        0o4711
    );
    // chown(-1, -1)
    dir.fs.setattr(&me(), &file, &SetAttr::default()).unwrap();
    assert_eq!(
        fs::metadata(dir.host("file")).unwrap().mode() & 0o7777,
        0o711
    );
    if nobody().is_some() {
        let owner = SetAttr {
            uid: Some(65534),
            gid: Some(7),
            ..SetAttr::default()
        };
        dir.fs.setattr(&me(), &link, &owner).unwrap();
        compare(&dir, &link, &dir.host("link"));
        assert_eq!(fs::symlink_metadata(dir.host("link")).unwrap().uid(), 65534);
        assert_eq!(fs::metadata(dir.host("file")).unwrap().uid(), me().uid);
    }
}

#[test]
fn extended_attributes_are_the_inodes_own() {
    for who in everybody() {
        let dir = Dir::new();
        let (file, _) = create(&dir, &who, "file", 0o600).unwrap();
        let large = vec![7; 3000];
        let set =
            |name: &[u8], value: &[u8], flags| dir.fs.setxattr(&who, &file, name, value, flags);
        set(b"user.one", b"1", 0).unwrap();
        set(b"user.large", &large, libc::XATTR_CREATE).unwrap();
        assert_eq!(
            set(b"user.one", b"2", libc::XATTR_CREATE),
            Err(Errno::EEXIST.into())
        );
        assert_eq!(
            set(b"user.two", b"2", libc::XATTR_REPLACE),
            Err(Errno::ENODATA.into())
        );
        assert_eq!(dir.fs.getxattr(&who, &file, b"user.large"), Ok(large));
        let mut names = dir.fs.listxattr(&who, &file).unwrap();
        names.sort();
        assert_eq!(names, [b"user.large".to_vec(), b"user.one".to_vec()]);
        dir.fs.removexattr(&who, &file, b"user.one").unwrap();
        let gone = dir.fs.getxattr(&who, &file, b"user.one");
        assert_eq!(gone, Err(Errno::ENODATA.into()));

        let link = dir
            .fs
            .symlink(&who, &dir.fs.root(), b"link", b"file")
            .unwrap();
        let on_link = dir.fs.setxattr(&who, &link, b"user.x", b"x", 0);
        assert_eq!(on_link, Err(Errno::EPERM.into()));
        let trusted = dir.fs.setxattr(&who, &link, b"trusted.x", b"x", 0);
        if who.caps == 0 {
            assert_eq!(trusted, Err(Errno::EPERM.into()));
        } else {
            assert_eq!(trusted, Ok(()));
            assert_eq!(
                dir.fs.getxattr(&who, &link, b"trusted.x"),
                Ok(b"x".to_vec())
            );
            let target = dir.fs.getxattr(&who, &file, b"trusted.x");
            assert_eq!(target, Err(Errno::ENODATA.into()));
        }
    }
}

#[test]
fn a_large_directory_is_listed_once_whatever_the_steps() {
    let dir = Dir::new();
    let expected: BTreeSet<Vec<u8>> = (0..3000)
        .map(|i| {
            let name = format!("{i}-{}", "n".repeat(i % 200));
            fs::write(dir.host(&name), b"").unwrap();
            name.into_bytes()
        })
        .collect();
    assert_eq!(dir.names(&dir.fs.root()), expected);
    let (mut cookie, mut names, mut step) = (0, BTreeSet::new(), 1);
    let mut last = Vec::new();
    loop {
        let mut left = step;
        let before = names.len();
        let result = dir.fs.readdir(&me(), &dir.fs.root(), cookie, &mut |entry| {
            assert!((1..1 << 62).contains(&entry.cookie));
            assert_eq!(entry.kind, FileKind::Regular);
            last = entry.name.to_vec();
            assert!(names.insert(last.clone()), "listed twice");
            cookie = entry.cookie;
            left -= 1;
            left > 0
        });
        result.unwrap();
        if names.len() == before {
            break;
        }
        // Removing listed entries does not move later ones.
        if step == 4 {
            fs::remove_file(dir.temp.path().join(OsStr::from_bytes(&last))).unwrap();
        }
        step = step % 37 + 1;
    }
    assert_eq!(names, expected);
}
