//! Files that several processes have open, names with several steps in the lower directory, and rights.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;

use goanna_aesfs::Problem;
use goanna_vfs::{Caller, Errno, FileSystem, Native, SetAttr};
use support::{Handle, Mounted, Place};

/// Another process changes a file that a program has open: the next open shows it, by the old descriptor, too. A chmod(2), which
/// changes a time as well, does not make the content be decrypted again.
#[test]
fn changes_of_other_processes_are_seen_at_the_next_open() {
    let place = Place::usual();
    let (ours, theirs) = (place.mount(), place.mount());
    ours.put(b"f", &[b'1'; 9000]);
    let file = ours.open(b"f", libc::O_RDONLY).unwrap();
    let other = theirs.open(b"f", libc::O_RDWR).unwrap();
    theirs.write(&other, 20_000, b"end").unwrap();
    theirs.write(&other, 5000, b"changed").unwrap();
    theirs.close(other);
    let again = ours.open(b"f", libc::O_RDONLY).unwrap();
    let mut wanted = vec![b'1'; 9000];
    wanted[5000..5007].copy_from_slice(b"changed");
    wanted.resize(20_000, 0);
    wanted.extend(b"end");
    assert!(ours.read(&again) == wanted);
    assert!(ours.read(&file) == wanted);
    let set = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    ours.fs.setattr(&ours.caller, &file.node, &set).unwrap();
    ours.close(again);
    assert!(ours.read(&file) == wanted);
    ours.close(file);
    assert!(ours.get(b"f").unwrap() == wanted);
}

/// A removed file keeps its content while it is open, and a new one of that name has its own.
#[test]
fn removed_and_replaced_files() {
    let place = Place::usual();
    let mounted = place.mount();
    mounted.put(b"f", b"old");
    let old = mounted.open(b"f", libc::O_RDWR).unwrap();
    let root = mounted.fs.root();
    mounted.fs.unlink(&mounted.caller, &root, b"f").unwrap();
    mounted.put(b"f", b"new content");
    mounted.write(&old, 3, b"er").unwrap();
    assert_eq!(mounted.read(&old), b"older");
    mounted.close(old);
    assert_eq!(mounted.get(b"f").unwrap(), b"new content");
    assert_eq!(place.findings(), []);
}

/// A thread that finds a new name before the create has ended gets the same content.
#[test]
fn an_open_beside_the_create_shares_the_content() {
    let place = Place::usual();
    let mounted = place.mount();
    for number in 0..500 {
        let name = format!("f{number}").into_bytes();
        let (created, opened) = std::thread::scope(|scope| {
            let found = scope.spawn(|| {
                loop {
                    if let Ok(file) = mounted.open(&name, libc::O_RDWR) {
                        break file;
                    }
                }
            });
            (mounted.create(&name), found.join().unwrap())
        });
        mounted.write(&created, 0, b"content").unwrap();
        assert_eq!(mounted.read(&opened), b"content", "{number}");
        mounted.close(created);
        mounted.close(opened);
    }
}

#[test]
fn directories_replace_empty_ones_only() {
    let place = Place::usual();
    let mounted = place.mount();
    let (fs, by, root) = (&mounted.fs, &mounted.caller, mounted.fs.root());
    let long = [b'd'; 250];
    for name in [&b"from"[..], b"empty", b"full", &long] {
        fs.mkdir(by, &root, name, 0o755).unwrap();
    }
    let full = mounted.lookup(b"full").unwrap();
    mounted.try_create(&full, b"x").unwrap();
    let rename = |from: &[u8], to: &[u8]| fs.rename(by, &root, from, &root, to, 0);
    assert_eq!(rename(b"from", b"full"), Err(Errno::ENOTEMPTY.into()));
    assert_eq!(fs.rmdir(by, &root, b"full"), Err(Errno::ENOTEMPTY.into()));
    rename(b"from", b"empty").unwrap();
    rename(b"full", &long).unwrap();
    assert_eq!(mounted.names(), [&long[..], b"empty"]);
    let moved = mounted.lookup(&long).unwrap();
    fs.lookup(by, &moved, b"x").unwrap();
    fs.unlink(by, &moved, b"x").unwrap();
    fs.rmdir(by, &root, &long).unwrap();
    fs.rmdir(by, &root, b"empty").unwrap();
    assert_eq!(place.findings(), []);
    // Nothing but the config file and the IV is left.
    assert_eq!(fs::read_dir(place.dir.path()).unwrap().count(), 2);
}

/// The remains of an interrupted operation are not shown and affect no other file. The check finds them.
#[test]
fn left_overs_of_interrupted_operations() {
    let place = Place::usual();
    let mounted = place.mount();
    let long = [b'l'; 200];
    mounted.put(&long, b"content");
    let stored = || fs::read_dir(place.dir.path()).unwrap();
    let entry = stored()
        .map(|it| it.unwrap().path())
        .find(|path| {
            path.to_string_lossy().contains("longname")
                && path.extension().is_none_or(|it| it != "name")
        })
        .unwrap();
    fs::remove_file(entry).unwrap();
    fs::create_dir(place.dir.path().join("gocryptfs.tmp.1")).unwrap();
    assert_eq!(mounted.names(), Vec::<Vec<u8>>::new());
    let mut problems: Vec<_> = place
        .findings()
        .iter()
        .map(|it| it.problem.to_string())
        .collect();
    problems.sort();
    let mut wanted = [Problem::NameWithoutEntry, Problem::LeftOver].map(|it| it.to_string());
    wanted.sort();
    assert_eq!(problems, wanted);
    mounted.put(&long, b"again");
    assert_eq!(mounted.get(&long).unwrap(), b"again");
}

/// Root's monitor writes for a program of another user: the kernel does not see that, so the set-id bits are cleared here.
#[test]
fn writes_of_ordinary_users_clear_set_id_bits() {
    let place = Place::usual();
    let mounted = place.mount();
    if mounted.caller.uid != 0 {
        return goanna_skip::skip(goanna_skip::Facility::Root, "acts as another user");
    }
    mounted.put(b"f", b"content");
    let node = mounted.lookup(b"f").unwrap();
    let set = SetAttr {
        mode: Some(0o6777),
        ..SetAttr::default()
    };
    mounted.fs.setattr(&mounted.caller, &node, &set).unwrap();
    let nobody = Caller {
        uid: 65534,
        gid: 65534,
        real_uid: 65534,
        real_gid: 65534,
        groups: [].into(),
        caps: 0,
        real_caps: 0,
        ..mounted.caller.clone()
    };
    let perm = || mounted.fs.getattr(&mounted.caller, &node).unwrap().perm();
    let file = mounted.open(b"f", libc::O_RDWR).unwrap();
    mounted.write(&file, 0, b"root").unwrap();
    assert_eq!(perm(), 0o6777);
    mounted.fs.truncate(&nobody, &node, 3).unwrap();
    assert_eq!(perm(), 0o777);
}

/// `file_remove_privs` and `cap_inode_killpriv` of the kernel: for root, too.
#[test]
fn a_change_removes_the_capabilities_of_a_file() {
    const NAME: &[u8] = b"security.capability";
    let place = Place::usual();
    let mounted = place.mount();
    if mounted.caller.uid != 0 {
        return goanna_skip::skip(goanna_skip::Facility::Root, "sets capabilities");
    }
    let (fs, caller) = (&mounted.fs, &mounted.caller);
    mounted.put(b"f", &[b'x'; 9000]);
    let node = mounted.lookup(b"f").unwrap();
    let file = mounted.open(b"f", libc::O_RDWR).unwrap();
    let has_it = || fs.getxattr(caller, &node, NAME).is_ok();
    let owner = SetAttr {
        uid: Some(caller.uid),
        ..SetAttr::default()
    };
    let mode = SetAttr {
        mode: Some(0o755),
        ..SetAttr::default()
    };
    let changes: [(&str, &dyn Fn()); 4] = [
        ("write", &|| {
            assert_eq!(mounted.write(&file, 5, b"y"), Ok(1))
        }),
        ("truncate", &|| fs.truncate(caller, &node, 5000).unwrap()),
        ("fallocate", &|| {
            fs.fallocate(caller, &node, libc::FALLOC_FL_ZERO_RANGE, 0, 10)
                .unwrap();
        }),
        ("chown", &|| fs.setattr(caller, &node, &owner).unwrap()),
    ];
    for (name, change) in changes {
        // Twice, since the mount remembers that a file has none.
        for _ in 0..2 {
            fs.setxattr(caller, &node, NAME, b"1", 0).unwrap();
            assert!(has_it(), "{name}");
            change();
            assert!(!has_it(), "{name}");
        }
    }
    fs.setxattr(caller, &node, NAME, b"1", 0).unwrap();
    fs.setattr(caller, &node, &mode).unwrap();
    assert!(has_it());
    mounted.close(file);
    let file = mounted.open(b"f", libc::O_WRONLY | libc::O_TRUNC).unwrap();
    assert!(!has_it());
    mounted.close(file);
}

/// ftruncate(2) and fallocate(2) through a descriptor ask for no permission: pjdfstest creates a file without any rights and changes it so. By its
/// path the file cannot be changed.
#[test]
fn a_descriptor_needs_no_permissions() {
    let place = Place::usual();
    let mounted = place.mount();
    mounted.put(b"f", &[b'x'; 9000]);
    let file = mounted.open(b"f", libc::O_RDWR).unwrap();
    let set = SetAttr {
        mode: Some(0),
        ..SetAttr::default()
    };
    mounted
        .fs
        .setattr(&mounted.caller, &file.node, &set)
        .unwrap();
    if mounted.caller.uid != 0 {
        return goanna_skip::skip(goanna_skip::Facility::Root, "acts as another user");
    }
    let nobody = Caller {
        uid: 65534,
        gid: 65534,
        real_uid: 65534,
        real_gid: 65534,
        groups: [].into(),
        caps: 0,
        real_caps: 0,
        ..mounted.caller.clone()
    };
    let (fs, node) = (&mounted.fs, &file.node);
    for size in [0, 5000] {
        let refused = fs.truncate(&nobody, node, size);
        assert_eq!(refused, Err(Errno::EACCES.into()));
    }
    let cache = fs.content().unwrap();
    for size in [5000, 0, 6000] {
        assert_eq!(cache.truncate_open(&nobody, node, size), Some(Ok(())));
        assert_eq!(mounted.size(node), size);
    }
    fs.fallocate(&nobody, node, 0, 0, 10_000).unwrap();
    assert_eq!(mounted.read(&file), [0; 10_000]);
    mounted.close(file);
    // No program has it open.
    let closed = cache.truncate_open(&nobody, &mounted.lookup(b"f").unwrap(), 0);
    assert_eq!(closed, Some(Err(Errno::EACCES.into())));
}

/// One user may only write a file, and another one only read it. The second one gets the content that a third process has changed.
#[test]
fn a_reader_beside_a_user_that_may_only_write() {
    let place = Place::usual();
    let (mounted, theirs) = (place.mount(), place.mount());
    mounted.put(b"f", b"first");
    if mounted.caller.uid != 0 {
        return goanna_skip::skip(goanna_skip::Facility::Root, "acts as other users");
    }
    let user = |id: u32| Caller {
        uid: id,
        gid: id,
        real_uid: id,
        real_gid: id,
        groups: [].into(),
        caps: 0,
        real_caps: 0,
        ..mounted.caller.clone()
    };
    let (writer, reader) = (user(65533), user(65534));
    let (fs, node) = (&mounted.fs, mounted.lookup(b"f").unwrap());
    let set = SetAttr {
        mode: Some(0o642),
        gid: Some(65534),
        ..SetAttr::default()
    };
    fs.setattr(&mounted.caller, &node, &set).unwrap();
    fs::set_permissions(
        place.dir.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    for order in [[true, false], [false, true]] {
        let mut opened = Vec::new();
        // The content must be there for an open to write.
        drop(mounted.get(b"f").unwrap());
        for writes in order {
            let (caller, flags) = if writes {
                (&writer, libc::O_WRONLY)
            } else {
                (&reader, libc::O_RDONLY)
            };
            opened.push(fs.open(caller, &node, flags).unwrap());
            let changed = theirs.open(b"f", libc::O_RDWR | libc::O_TRUNC).unwrap();
            let text = format!("changed after {flags}");
            theirs.write(&changed, 0, text.as_bytes()).unwrap();
            theirs.close(changed);
        }
        opened.push(fs.open(&reader, &node, libc::O_RDONLY).unwrap());
        let refused = fs.open(&reader, &node, libc::O_WRONLY);
        assert_eq!(refused.map(drop), Err(Errno::EACCES.into()));
        drop(opened);
        fs.content().unwrap().released(&node);
        assert!(mounted.get(b"f").unwrap().starts_with(b"changed after "));
    }
}

/// A directory is renamed before it is removed; /proc/PID/fd shows its former path while a program has it open.
#[test]
fn a_removed_directory_keeps_its_name() {
    let place = Place::usual();
    let mounted = place.mount();
    let (fs, caller, root) = (&mounted.fs, &mounted.caller, mounted.fs.root());
    let outer = fs.mkdir(caller, &root, b"outer", 0o755).unwrap();
    let inner = fs.mkdir(caller, &outer, b"inner", 0o755).unwrap();
    fs.rmdir(caller, &outer, b"inner").unwrap();
    let former = Ok((b"outer/inner".to_vec(), true));
    assert_eq!(fs.path(caller, &inner), former);
    // In a directory that was removed, too.
    let (file, opened) = fs
        .create(caller, &outer, b"file", 0o644, libc::O_RDWR)
        .unwrap();
    fs.unlink(caller, &outer, b"file").unwrap();
    fs.rmdir(caller, &root, b"outer").unwrap();
    assert_eq!(fs.path(caller, &inner), former);
    assert_eq!(fs.path(caller, &outer), Ok((b"outer".to_vec(), true)));
    assert_eq!(fs.path(caller, &file), Ok((b"outer/file".to_vec(), true)));
    drop(opened);
    // One that another directory has replaced has the name that both had.
    let replaced = fs.mkdir(caller, &root, b"replaced", 0o755).unwrap();
    let new = fs.mkdir(caller, &root, b"new", 0o755).unwrap();
    fs.rename(caller, &root, b"new", &root, b"replaced", 0)
        .unwrap();
    assert_eq!(fs.path(caller, &replaced), Ok((b"replaced".to_vec(), true)));
    assert_eq!(fs.path(caller, &new), Ok((b"replaced".to_vec(), false)));
    // Names that are not kept any more are shown as the lower file system has them.
    for _ in 0..2000 {
        fs.mkdir(caller, &root, b"d", 0o755).unwrap();
        fs.rmdir(caller, &root, b"d").unwrap();
    }
    for removed in [&inner, &outer, &file] {
        let (path, is_removed) = fs.path(caller, removed).unwrap();
        assert!(
            is_removed && path.starts_with(b"gocryptfs.tmp."),
            "{path:?}"
        );
    }
}

/// What processes may open without a call, while the encrypted file is as it was.
#[test]
fn a_content_may_be_opened_while_it_is_that_of_the_encrypted_file() {
    let mut place = Place::usual();
    let (ours, theirs) = (place.mount(), place.mount());
    ours.put(b"f", b"text");
    let file = ours.open(b"f", libc::O_RDWR).unwrap();
    let may_be_opened = |mounted: &Mounted, file: &Handle| {
        let Native::Reads { handle } = &file.opened.native else {
            return false;
        };
        let on_host = mounted.fs.on_host(&file.node).unwrap();
        let content = mounted.fs.content().unwrap();
        content.may_be_opened(&file.node, handle, &on_host.attr)
    };
    let set_mode = |mode| {
        let set = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        ours.fs.setattr(&ours.caller, &file.node, &set).unwrap();
        // An open looks at the file's times.
        ours.close(ours.open(b"f", libc::O_RDONLY).unwrap());
    };
    set_mode(0o644);
    assert!(may_be_opened(&ours, &file));
    ours.write(&file, 0, b"T").unwrap();
    assert!(may_be_opened(&ours, &file), "after an own change");
    set_mode(0o640);
    assert!(!may_be_opened(&ours, &file), "not for all users");
    set_mode(0o644);
    assert!(may_be_opened(&ours, &file));
    let other = theirs.open(b"f", libc::O_RDWR).unwrap();
    theirs.write(&other, 1, b"E").unwrap();
    theirs.close(other);
    assert!(
        !may_be_opened(&ours, &file),
        "after a change by another process"
    );
    let again = ours.open(b"f", libc::O_RDONLY).unwrap();
    assert!(may_be_opened(&ours, &file) && may_be_opened(&ours, &again));
    ours.fs
        .content()
        .unwrap()
        .map_shared(&ours.caller, &file.node)
        .unwrap();
    assert!(!may_be_opened(&ours, &file), "mapped to write");
    ours.close(again);
    ours.close(file);
    place.memory = Some(100 << 20);
    let small = place.mount();
    let file = small.open(b"f", libc::O_RDONLY).unwrap();
    assert!(!may_be_opened(&small, &file), "with little memory");
    small.close(file);
}
