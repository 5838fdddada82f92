//! Path walk through mounts: links, `..`, crossings, limits, RESOLVE_* flags.
#![allow(clippy::unwrap_used, reason = "a test says so by failing")]

#[path = "support/memfs.rs"]
mod memfs;

use std::sync::Arc;

use goanna_vfs::walk::{Last, NoProcess, Pos, Walk};
use goanna_vfs::{Caller, Errno, FileSystem, MountError, MountFlags, Mounts, Place, Result, ops};
use memfs::MemFs;

fn root() -> Caller {
    Caller {
        umask: 0,
        ..Caller::with_ids(0, 0)
    }
}

/// `/goanna-test` holds `a/b/file`, links `up -> ..`, `abs -> /goanna-test/a`, `host -> /usr`, `loop -> loop`,
/// `dangling -> nowhere`; `/goanna-test/a/in` is a second mount, `/goanna-deep/x/y` a third.
fn mounts() -> Mounts {
    let host: Arc<dyn FileSystem> = Arc::new(MemFs::default());
    let mut mounts = Mounts::new(host);
    for target in ["/goanna-test", "/goanna-test/a/in", "/goanna-deep/x/y"] {
        let fs: Arc<dyn FileSystem> = Arc::new(MemFs::default());
        let empty = MountFlags::empty();
        mounts
            .add(&root(), target.as_bytes(), fs, empty, "test".into())
            .unwrap();
        if target == "/goanna-test" {
            fill(&mounts);
        }
    }
    mounts
}

fn fill(mounts: &Mounts) {
    let mount = mounts.at(b"/goanna-test").unwrap();
    let top = Place {
        mount: Arc::clone(mount),
        node: mount.fs.root(),
    };
    let inside = |dir: &Place, node| Place {
        mount: Arc::clone(&dir.mount),
        node,
    };
    let a = inside(&top, ops::mkdir(&root(), &top, b"a", 0o755).unwrap());
    let b = inside(&a, ops::mkdir(&root(), &a, b"b", 0o755).unwrap());
    ops::create(&root(), &b, b"file", 0o644, libc::O_RDWR).unwrap();
    for (name, target) in [
        ("up", ".."),
        ("abs", "/goanna-test/a"),
        ("host", "/usr"),
        ("loop", "loop"),
        ("dangling", "nowhere"),
        ("escape", "../../../../usr/bin"),
    ] {
        ops::symlink(&root(), &a, name.as_bytes(), target.as_bytes()).unwrap();
    }
}

fn path_of(pos: &Pos) -> String {
    String::from_utf8(pos.path(&root()).unwrap().0).unwrap()
}

fn object(path: &str, follow: bool) -> Result<String> {
    let (mounts, caller) = (mounts(), root());
    let mut walk = Walk::new(&mounts, &caller, &NoProcess);
    walk.object(Pos::root(), path.as_bytes(), follow)
        .map(|pos| path_of(&pos))
}

#[test]
fn paths_lead_where_linux_leads_them() {
    for (path, want) in [
        ("/goanna-test", "/goanna-test"),
        ("/goanna-test/", "/goanna-test"),
        ("//goanna-test//a/./b", "/goanna-test/a/b"),
        ("/goanna-test/a/b/file", "/goanna-test/a/b/file"),
        ("/goanna-test/a/b/..", "/goanna-test/a"),
        ("/goanna-test/..", "/"),
        ("/goanna-test/../goanna-test/a", "/goanna-test/a"),
        ("/goanna-test/a/up/a", "/goanna-test/a"),
        ("/goanna-test/a/abs/b", "/goanna-test/a/b"),
        ("/goanna-test/a/host/share", "/usr/share"),
        ("/goanna-test/a/escape", "/usr/bin"),
        ("/goanna-test/a/in", "/goanna-test/a/in"),
        ("/goanna-test/a/in/..", "/goanna-test/a"),
        ("/goanna-deep", "/goanna-deep"),
        ("/goanna-deep/x/y/..", "/goanna-deep/x"),
        ("/usr/../goanna-test", "/goanna-test"),
        ("/proc/self/root/usr", "/proc/self/root/usr"),
    ] {
        let want = want.replace("self", &std::process::id().to_string());
        assert_eq!(object(path, true).as_deref(), Ok(want.as_str()), "{path}");
    }
}

#[test]
fn errors_are_those_of_path_resolution() {
    for (path, want) in [
        ("", Errno::ENOENT),
        ("/goanna-none/../goanna-test", Errno::ENOENT),
        ("/goanna-none/x/../../goanna-test/a", Errno::ENOENT),
        ("/goanna-test/../goanna-none/../usr", Errno::ENOENT),
        ("/goanna-test/../goanna-none/../goanna-test", Errno::ENOENT),
        ("/goanna-test/nope/../a", Errno::ENOENT),
        ("/proc/version/../../goanna-test", Errno::ENOTDIR),
        ("/goanna-test/../proc/version/..", Errno::ENOTDIR),
        ("/goanna-test/missing", Errno::ENOENT),
        ("/goanna-test/missing/x", Errno::ENOENT),
        ("/goanna-test/a/b/file/", Errno::ENOTDIR),
        ("/goanna-test/a/b/file/x", Errno::ENOTDIR),
        ("/goanna-test/a/b/file/..", Errno::ENOTDIR),
        ("/goanna-test/a/b/file/.", Errno::ENOTDIR),
        ("/goanna-test/a/loop", Errno::ELOOP),
        ("/goanna-test/a/dangling", Errno::ENOENT),
        ("/goanna-deep/other", Errno::ENOENT),
    ] {
        assert_eq!(object(path, true), Err(want.into()), "{path}");
    }
    let long = format!("/goanna-test/{}", "n".repeat(256));
    assert_eq!(object(&long, true), Err(Errno::ENAMETOOLONG.into()));
}

#[test]
fn a_final_link_is_itself_unless_followed() {
    assert_eq!(
        object("/goanna-test/a/loop", false).as_deref(),
        Ok("/goanna-test/a/loop")
    );
    assert_eq!(
        object("/goanna-test/a/up", false).as_deref(),
        Ok("/goanna-test/a/up")
    );
    assert_eq!(
        object("/goanna-test/a/up/", false).as_deref(),
        Ok("/goanna-test")
    );
}

#[test]
fn parents_keep_the_last_component_unresolved() {
    let (mounts, caller) = (mounts(), root());
    let parent = |path: &[u8]| {
        let found = Walk::new(&mounts, &caller, &NoProcess)
            .parent(Pos::root(), path)
            .unwrap();
        (path_of(&found.dir), found.last, found.must_be_dir)
    };
    let name = |name: &str| Last::Name(name.as_bytes().to_vec());
    assert_eq!(
        parent(b"/goanna-test/a/new"),
        ("/goanna-test/a".into(), name("new"), false)
    );
    assert_eq!(
        parent(b"/goanna-test/a/up/new/"),
        ("/goanna-test".into(), name("new"), true)
    );
    assert_eq!(
        parent(b"/goanna-test/a/."),
        ("/goanna-test/a".into(), Last::Dot, false)
    );
    assert_eq!(
        parent(b"/goanna-test/a/.."),
        ("/goanna-test/a".into(), Last::DotDot, false)
    );
    assert_eq!(parent(b"/"), ("/".into(), Last::Root, true));
}

#[test]
fn resolve_flags_bound_the_walk() {
    let (mounts, caller) = (mounts(), root());
    let start = Walk::new(&mounts, &caller, &NoProcess)
        .object(Pos::root(), b"/goanna-test/a", true)
        .unwrap();
    let go = |path: &[u8], resolve| {
        Walk::new(&mounts, &caller, &NoProcess)
            .with_resolve(resolve)
            .object(start.clone(), path, true)
            .map(|pos| path_of(&pos))
    };
    assert_eq!(
        go(b"b/../b/file", libc::RESOLVE_BENEATH).as_deref(),
        Ok("/goanna-test/a/b/file")
    );
    assert_eq!(go(b"..", libc::RESOLVE_BENEATH), Err(Errno::EXDEV.into()));
    assert_eq!(
        go(b"b/../../a", libc::RESOLVE_BENEATH),
        Err(Errno::EXDEV.into())
    );
    assert_eq!(go(b"abs", libc::RESOLVE_BENEATH), Err(Errno::EXDEV.into()));
    assert_eq!(go(b"/etc", libc::RESOLVE_BENEATH), Err(Errno::EXDEV.into()));
    assert_eq!(
        go(b"../../b", libc::RESOLVE_IN_ROOT).as_deref(),
        Ok("/goanna-test/a/b")
    );
    assert_eq!(
        go(b"/b", libc::RESOLVE_IN_ROOT).as_deref(),
        Ok("/goanna-test/a/b")
    );
    assert_eq!(
        go(b"up", libc::RESOLVE_NO_SYMLINKS),
        Err(Errno::ELOOP.into())
    );
    assert_eq!(go(b"in", libc::RESOLVE_NO_XDEV), Err(Errno::EXDEV.into()));
    // An absolute link starts on the host, wherever it leads.
    assert_eq!(go(b"host", libc::RESOLVE_NO_XDEV), Err(Errno::EXDEV.into()));
    assert_eq!(go(b"abs", libc::RESOLVE_NO_XDEV), Err(Errno::EXDEV.into()));
    assert_eq!(
        go(b"/usr", libc::RESOLVE_NO_XDEV).as_deref(),
        Ok("/usr"),
        "an absolute path may start elsewhere"
    );
}

/// `.` and `..` are looked up, too: a directory that may not be searched does not even lead to itself.
#[test]
fn dots_need_search_permission() {
    let mounts = mounts();
    let mount = Arc::clone(mounts.at(b"/goanna-test").unwrap());
    let top = Place {
        node: mount.fs.root(),
        mount,
    };
    ops::mkdir(&root(), &top, b"private", 0o700).unwrap();
    let other = Caller {
        uid: 65534,
        gid: 65534,
        caps: 0,
        ..root()
    };
    for (path, for_root) in [
        ("private", "/goanna-test/private"),
        ("private/.", "/goanna-test/private"),
        ("private/..", "/goanna-test"),
    ] {
        let go = |caller: &Caller| {
            let path = format!("/goanna-test/{path}");
            Walk::new(&mounts, caller, &NoProcess)
                .object(Pos::root(), path.as_bytes(), true)
                .map(|pos| path_of(&pos))
        };
        assert_eq!(go(&root()).as_deref(), Ok(for_root), "{path}");
        let denied = path != "private";
        assert_eq!(
            go(&other).is_err_and(|e| e == Errno::EACCES),
            denied,
            "{path}"
        );
    }
    let parent = Walk::new(&mounts, &other, &NoProcess)
        .parent(Pos::root(), b"/goanna-test/private/.")
        .map(drop);
    assert_eq!(parent, Err(Errno::EACCES.into()));
}

#[test]
fn only_walks_that_stay_on_the_host_are_the_kernels() {
    let (mounts, caller) = (mounts(), root());
    let left = |path: &[u8]| {
        let mut walk = Walk::new(&mounts, &caller, &NoProcess);
        walk.object(Pos::root(), path, true).unwrap();
        walk.left_host()
    };
    assert!(!left(b"/usr/bin"));
    assert!(left(b"/goanna-test"));
    assert!(
        left(b"/goanna-test/a/host"),
        "the kernel cannot follow a link it does not see"
    );
    assert!(left(b"/goanna-test/../usr"));
}

#[test]
fn bad_mount_points_are_refused() {
    let mut mounts = mounts();
    let mut add = |target: &str| {
        let fs: Arc<dyn FileSystem> = Arc::new(MemFs::default());
        mounts.add(
            &root(),
            target.as_bytes(),
            fs,
            MountFlags::empty(),
            "test".into(),
        )
    };
    assert_eq!(add("relative"), Err(MountError::NotAbsolute));
    assert_eq!(add("/"), Err(MountError::Root));
    assert_eq!(add("/a/../b"), Err(MountError::BadPath));
    assert_eq!(add("/goanna-test"), Err(MountError::Busy));
    assert_eq!(add("/etc/passwd"), Err(MountError::NotDirectory));
    assert_eq!(
        add("/goanna-deep/x"),
        Ok(()),
        "a mount may cover a directory that only leads somewhere"
    );
}

#[test]
fn mounts_are_listed_in_the_order_in_which_they_were_mounted() {
    let host: Arc<dyn FileSystem> = Arc::new(MemFs::default());
    let mut mounts = Mounts::new(host);
    let targets: Vec<String> = (0..20)
        .map(|n| format!("/goanna-top/m{}", n * 7 % 20))
        .collect();
    for target in &targets {
        let fs: Arc<dyn FileSystem> = Arc::new(MemFs::default());
        let flags = MountFlags::empty();
        mounts
            .add(&root(), target.as_bytes(), fs, flags, "test".into())
            .unwrap();
    }
    let name = |target: &[u8]| String::from_utf8(target.to_vec()).unwrap();
    let listed: Vec<String> = mounts.iter().map(|mount| name(&mount.target)).collect();
    assert_eq!(listed[0], "/goanna-top", "the directory that leads to them");
    assert_eq!(listed[1..], targets);
    let children = mounts.children(b"/goanna-top");
    let children: Vec<String> = children.map(|(_, mount)| name(&mount.target)).collect();
    assert_eq!(children, targets);
}
