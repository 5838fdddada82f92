//! Each method on its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::*;

use amino_fs::{AminoFs, EngineKind, Options};
use goanna_vfs::{
    Acl, Caller, Errno, FileKind, FileSystem, SetAttr, Stamp, TimeSet, WritePosition, file_flags,
};

fn fresh() -> (tempfile::TempDir, std::sync::Arc<AminoFs>) {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(&dir.path().join("store"));
    (dir, fs)
}

fn reopen(dir: &tempfile::TempDir, fs: std::sync::Arc<AminoFs>) -> std::sync::Arc<AminoFs> {
    let path = dir.path().join("store");
    close_and_check(fs, &path);
    open(&path)
}

#[test]
fn content_of_all_sizes_survives() {
    let (dir, fs) = fresh();
    let sizes = [
        0, 1, 511, 512, 513, 4096, 16383, 16384, 16385, 100_000, 1_000_000,
    ];
    let data: Vec<u8> = (0..1_000_000_u32).map(|i| (i * 7 % 251) as u8).collect();
    for size in sizes {
        write_file(&fs, &format!("f{size}"), &data[..size]).unwrap();
    }
    let fs = reopen(&dir, fs);
    for size in sizes {
        let name = format!("f{size}");
        let node = walk(&fs, &name).unwrap();
        assert_eq!(read_direct(&fs, &node).unwrap(), &data[..size]);
        assert_eq!(read_file(&fs, &name).unwrap(), &data[..size]);
        assert_eq!(fs.getattr(&caller(), &node).unwrap().size, size as u64);
    }
    close_and_check(fs, &dir.path().join("store"));
}

#[test]
fn a_write_needs_no_description_of_a_program() {
    let (dir, fs) = fresh();
    write_file(&fs, "f", b"content").unwrap();
    let node = walk(&fs, "f").unwrap();
    let held = open_file(&fs, "f", libc::O_RDONLY).unwrap();
    assert_eq!(fs.write_at(&caller(), &node, 3, b"TENTS"), Ok(5));
    assert_eq!(read_direct(&fs, &node).unwrap(), b"conTENTS");
    drop(held);
    let fs = reopen(&dir, fs);
    assert_eq!(read_file(&fs, "f").unwrap(), b"conTENTS");
    let root = fs.root();
    assert_eq!(
        fs.write_at(&caller(), &root, 0, b"x"),
        fs.open(&caller(), &root, libc::O_WRONLY).map(|_| 0)
    );
}

#[test]
fn offsets_and_append_follow_the_description() {
    let (_dir, fs) = fresh();
    let file = create(&fs, "f").unwrap();
    assert_eq!(file.write(&fs, WritePosition::Cursor, b"abc"), Ok(3));
    assert_eq!(file.write(&fs, WritePosition::Cursor, b"def"), Ok(3));
    assert_eq!(file.write(&fs, WritePosition::At(1), b"X"), Ok(1));
    assert_eq!(file.write(&fs, WritePosition::End, b"end"), Ok(3));
    assert_eq!(file.write(&fs, WritePosition::Cursor, b"!"), Ok(1));
    assert_eq!(read_file(&fs, "f").unwrap(), b"aXcdef!nd");
    let appender = open_file(&fs, "f", libc::O_WRONLY | libc::O_APPEND).unwrap();
    assert_eq!(appender.write(&fs, WritePosition::At(0), b"+"), Ok(1));
    assert_eq!(appender.write(&fs, WritePosition::Cursor, b"-"), Ok(1));
    assert_eq!(read_file(&fs, "f").unwrap(), b"aXcdef!nd+-");
    assert_eq!(
        file.write(&fs, WritePosition::At(u64::MAX), b"x"),
        Err(Errno::EINVAL.into())
    );
    assert_eq!(
        file.write(&fs, WritePosition::At(i64::MAX as u64), b"x"),
        Err(Errno::EINVAL.into())
    );
    let reader = open_file(&fs, "f", libc::O_RDONLY).unwrap();
    assert_eq!(
        reader.write(&fs, WritePosition::Cursor, b"x"),
        Err(Errno::EBADF.into())
    );
}

#[test]
fn truncate_cuts_and_grows() {
    let (dir, fs) = fresh();
    let data: Vec<u8> = (0..50_000_u32).map(|i| (i % 255) as u8 + 1).collect();
    write_file(&fs, "f", &data).unwrap();
    fs.sync(None).unwrap();
    let fs = reopen(&dir, fs);
    let node = walk(&fs, "f").unwrap();
    fs.truncate(&caller(), &node, 20_000).unwrap();
    fs.truncate(&caller(), &node, 40_000).unwrap();
    drop(node);
    let fs = reopen(&dir, fs);
    let mut expected = data[..20_000].to_vec();
    expected.resize(40_000, 0);
    assert_eq!(read_file(&fs, "f").unwrap(), expected);
    let node = walk(&fs, "f").unwrap();
    fs.truncate(&caller(), &node, 100).unwrap();
    drop(node);
    let fs = reopen(&dir, fs);
    assert_eq!(read_file(&fs, "f").unwrap(), &data[..100]);
    let node = walk(&fs, "f").unwrap();
    fs.truncate(&caller(), &node, 1 << 40).unwrap();
    drop(node);
    let fs = reopen(&dir, fs);
    let node = walk(&fs, "f").unwrap();
    let mut tail = [1; 10];
    assert_eq!(
        fs.read_at(&caller(), &node, (1 << 40) - 5, &mut tail),
        Ok(5)
    );
    assert_eq!(tail, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
    let mut head = [0; 100];
    assert_eq!(fs.read_at(&caller(), &node, 0, &mut head), Ok(100));
    assert_eq!(head, data[..100]);
    assert_eq!(
        fs.truncate(&caller(), &node, u64::MAX),
        Err(Errno::EFBIG.into())
    );
    assert_eq!(
        fs.truncate(&caller(), &fs.root(), 0),
        Err(Errno::EISDIR.into())
    );
    // O_TRUNC, without anybody having the content in memory.
    drop(open_file(&fs, "f", libc::O_WRONLY | libc::O_TRUNC).unwrap());
    let fs = reopen(&dir, fs);
    assert_eq!(read_file(&fs, "f").unwrap(), b"");
}

#[test]
fn fallocate_modes() {
    let (dir, fs) = fresh();
    let data = vec![7; 70_000];
    write_file(&fs, "f", &data).unwrap();
    fs.sync(None).unwrap();
    let node = walk(&fs, "f").unwrap();
    let fallocate = |mode, offset, len| fs.fallocate(&caller(), &node, mode, offset, len);
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    assert_eq!(fallocate(punch, 10_000, 40_000), Ok(()));
    assert_eq!(fallocate(libc::FALLOC_FL_ZERO_RANGE, 69_000, 2_000), Ok(()));
    assert_eq!(fallocate(libc::FALLOC_FL_KEEP_SIZE, 0, 1 << 20), Ok(()));
    assert_eq!(fs.getattr(&caller(), &node).unwrap().size, 71_000);
    assert_eq!(fallocate(0, 0, 72_000), Ok(()));
    assert_eq!(
        fallocate(libc::FALLOC_FL_PUNCH_HOLE, 0, 1),
        Err(Errno::EOPNOTSUPP.into())
    );
    assert_eq!(
        fallocate(libc::FALLOC_FL_UNSHARE_RANGE, 0, 4096),
        Err(Errno::EOPNOTSUPP.into())
    );
    assert_eq!(fallocate(0, 0, 0), Err(Errno::EINVAL.into()));
    assert_eq!(fallocate(0, i64::MAX as u64, 1), Err(Errno::EFBIG.into()));
    let mut expected = data;
    expected[10_000..50_000].fill(0);
    expected.truncate(69_000);
    expected.resize(72_000, 0);
    drop(node);
    let fs = reopen(&dir, fs);
    assert_eq!(read_file(&fs, "f").unwrap(), expected);
}

/// As on ext4, where they share a block of 4 KiB.
#[test]
fn attributes_take_up_to_a_block() {
    let (_dir, fs) = fresh();
    write_file(&fs, "f", b"x").unwrap();
    let node = walk(&fs, "f").unwrap();
    let set = |name: &[u8], len| fs.setxattr(&caller(), &node, name, &vec![9; len], 0);
    assert_eq!(set(b"user.a", 4041), Err(Errno::ENOSPC.into()));
    assert_eq!(set(b"user.a", 4040), Ok(()));
    assert_eq!(set(b"user.b", 0), Err(Errno::ENOSPC.into()));
    assert_eq!(set(b"user.a", 2000), Ok(()));
    assert_eq!(set(b"user.b", 2000), Ok(()));
    assert_eq!(set(b"user.c", 2000), Err(Errno::ENOSPC.into()));
    fs.removexattr(&caller(), &node, b"user.a").unwrap();
    assert_eq!(set(b"user.c", 2000), Ok(()));
}

#[test]
fn access_control_lists_set_the_mode_and_follow_it() {
    let (_dir, fs) = fresh();
    write_file(&fs, "f", b"x").unwrap();
    let node = walk(&fs, "f").unwrap();
    let entry = |tag: u8, bits: u8| [tag, 0, bits, 0, 255, 255, 255, 255];
    let ann = [2, 0, 6, 0, 0xd1, 7, 0, 0];
    let least = [&[2, 0, 0, 0][..], &entry(1, 6), &entry(4, 0), &entry(32, 1)].concat();
    let masked = |mask| {
        [
            &least[..12],
            &ann,
            &entry(4, 4),
            &entry(16, mask),
            &entry(32, 1),
        ]
        .concat()
    };
    let get = |name: &[u8]| fs.getxattr(&caller(), &node, name);
    let mode = || fs.getattr(&caller(), &node).unwrap().mode & 0o7777;
    let stranger = Caller { uid: 7, ..caller() };
    for name in [Acl::ACCESS, Acl::DEFAULT] {
        assert_eq!(get(name), Err(Errno::ENODATA.into()));
        assert_eq!(fs.removexattr(&caller(), &node, name), Ok(()));
    }
    let set = |caller: &Caller, value: &[u8]| fs.setxattr(caller, &node, Acl::ACCESS, value, 0);
    assert_eq!(set(&caller(), b"x"), Err(Errno::EINVAL.into()));
    assert_eq!(set(&stranger, &masked(7)), Err(Errno::EPERM.into()));
    let default = fs.setxattr(&caller(), &node, Acl::DEFAULT, &masked(7), 0);
    assert_eq!(default, Err(Errno::EACCES.into()));
    assert_eq!(set(&caller(), &masked(7)), Ok(()));
    assert_eq!((mode(), get(Acl::ACCESS)), (0o671, Ok(masked(7))));
    let bits = SetAttr {
        mode: Some(0o6641),
        ..SetAttr::default()
    };
    fs.setattr(&caller(), &node, &bits).unwrap();
    assert_eq!((mode(), get(Acl::ACCESS)), (0o6641, Ok(masked(4))));
    assert_eq!(
        fs.listxattr(&caller(), &node),
        Ok(vec![Acl::ACCESS.to_vec()])
    );
    let outside_of_the_group = Caller {
        gid: caller().gid + 1,
        groups: std::sync::Arc::from([]),
        caps: 0,
        ..caller()
    };
    assert_eq!(set(&outside_of_the_group, &least), Ok(()));
    assert_eq!(
        (mode(), get(Acl::ACCESS)),
        (0o4601, Err(Errno::ENODATA.into()))
    );
    assert_eq!(fs.listxattr(&caller(), &node), Ok(Vec::new()));
}

#[test]
fn ranges_are_cut_out_and_inserted() {
    let (dir, fs) = fresh();
    let mut expected: Vec<u8> = (0..3_000_017_u32).map(|i| (i % 251) as u8).collect();
    expected[200_000..1_500_000].fill(0);
    write_file(&fs, "f", &expected).unwrap();
    write_file(&fs, "small", b"tiny").unwrap();
    fs.sync(None).unwrap();
    let (node, small) = (walk(&fs, "f").unwrap(), walk(&fs, "small").unwrap());
    let (collapse, insert) = (libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE);
    let fallocate = |mode, offset, len| fs.fallocate(&caller(), &node, mode, offset, len);
    assert_eq!(fallocate(collapse, 100, 4096), Err(Errno::EINVAL.into()));
    assert_eq!(fallocate(insert, 4096, 100), Err(Errno::EINVAL.into()));
    let end = expected.len() as u64;
    assert_eq!(
        fallocate(collapse, 4096, end / 4096 * 4096),
        Err(Errno::EINVAL.into())
    );
    assert_eq!(
        fallocate(insert, end.next_multiple_of(4096), 4096),
        Err(Errno::EINVAL.into())
    );
    assert_eq!(fallocate(insert, 0, 1 << 44), Err(Errno::EFBIG.into()));
    let keep_size = collapse | libc::FALLOC_FL_KEEP_SIZE;
    assert_eq!(fallocate(keep_size, 0, 4096), Err(Errno::EOPNOTSUPP.into()));
    for (mode, offset, len) in [
        (collapse, 4096, 40_960),
        (insert, 8192, 1_200_128),
        (collapse, 0, 12_288),
        (insert, 0, 4096),
    ] {
        assert_eq!(fallocate(mode, offset, len), Ok(()));
        let (offset, len) = (offset as usize, len as usize);
        if mode == collapse {
            expected.drain(offset..offset + len);
        } else {
            expected.splice(offset..offset, std::iter::repeat_n(0, len));
        }
        assert!(read_file(&fs, "f").unwrap() == expected);
    }
    assert_eq!(fs.fallocate(&caller(), &small, insert, 0, 4096), Ok(()));
    drop((node, small));
    let fs = reopen(&dir, fs);
    assert!(read_file(&fs, "f").unwrap() == expected);
    let small = read_file(&fs, "small").unwrap();
    assert_eq!((small.len(), &small[4096..]), (4100, &b"tiny"[..]));
}

#[test]
fn cutting_and_inserting_in_a_sparse_file_costs_what_its_data_cost() {
    const TIB: u64 = 1 << 40;
    let (dir, fs) = fresh();
    write_file(&fs, "f", b"first").unwrap();
    let node = walk(&fs, "f").unwrap();
    fs.truncate(&caller(), &node, 8 * TIB).unwrap();
    fs.write_at(&caller(), &node, 4 * TIB, b"middle").unwrap();
    fs.write_at(&caller(), &node, 8 * TIB - 4, b"last").unwrap();
    fs.sync(None).unwrap();
    let fallocate = |mode, offset, len| fs.fallocate(&caller(), &node, mode, offset, len);
    assert_eq!(
        fallocate(libc::FALLOC_FL_INSERT_RANGE, TIB, 2 * TIB),
        Ok(())
    );
    assert_eq!(fallocate(libc::FALLOC_FL_COLLAPSE_RANGE, 4096, TIB), Ok(()));
    fs.sync(None).unwrap();
    drop(node);
    let fs = reopen(&dir, fs);
    let node = walk(&fs, "f").unwrap();
    assert_eq!(fs.getattr(&caller(), &node).unwrap().size, 9 * TIB);
    let read = |offset, len| {
        let mut buf = vec![1; len];
        let read = fs.read_at(&caller(), &node, offset, &mut buf).unwrap();
        buf.truncate(read);
        buf
    };
    assert_eq!(read(0, 8), b"first\0\0\0");
    assert_eq!(read(5 * TIB - 2, 10), b"\0\0middle\0\0");
    assert_eq!(read(9 * TIB - 6, 10), b"\0\0last");
    // Where the data were before, there is nothing.
    assert_eq!(read(4 * TIB, 6), [0; 6]);
    assert_eq!(read(8 * TIB - 4, 4), [0; 4]);
}

#[test]
fn holes_are_not_stored() {
    let (dir, fs) = fresh();
    let file = create(&fs, "f").unwrap();
    file.write(&fs, WritePosition::At(1 << 30), b"end").unwrap();
    file.write(&fs, WritePosition::At(1 << 29), &[0; 100_000])
        .unwrap();
    file.close(&fs);
    let path = dir.path().join("store");
    close_and_check(fs, &path);
    let report = amino_fs::fsck::fsck(&path, &mut |_| {}).unwrap();
    assert_eq!(report.pages, 1);
    let fs = open(&path);
    let file = open_file(&fs, "f", libc::O_RDONLY).unwrap();
    let at = nix::unistd::lseek(&file.fd, 0, nix::unistd::Whence::SeekData).unwrap();
    assert!(at >= (1 << 30) - 16384, "{at}");
}

#[test]
fn metadata_as_given() {
    let (dir, fs) = fresh();
    let user = caller();
    write_file(&fs, "f", b"x").unwrap();
    let node = walk(&fs, "f").unwrap();
    let at = |sec| TimeSet::At(Stamp { sec, nsec: 5 });
    let set = SetAttr {
        mode: Some(0o4711),
        uid: Some(7),
        gid: Some(8),
        atime: Some(at(-3)),
        mtime: Some(at(1 << 33)),
        flags: Some(file_flags::NO_ATIME | file_flags::NO_DUMP),
    };
    fs.setattr(&user, &node, &set).unwrap();
    drop(node);
    let fs = reopen(&dir, fs);
    let node = walk(&fs, "f").unwrap();
    let attr = fs.getattr(&user, &node).unwrap();
    assert_eq!(
        (attr.mode, attr.uid, attr.gid),
        (libc::S_IFREG | 0o4711, 7, 8)
    );
    assert_eq!(attr.flags, file_flags::NO_ATIME | file_flags::NO_DUMP);
    assert_eq!(attr.atime, Stamp { sec: -3, nsec: 5 });
    assert_eq!(
        attr.mtime,
        Stamp {
            sec: 1 << 33,
            nsec: 5
        }
    );
    assert_eq!(attr.dev, fs.device());
    // Writing without CAP_FSETID clears set-user-id.
    let file = open_file(&fs, "f", libc::O_WRONLY).unwrap();
    file.write(&fs, WritePosition::Cursor, b"y").unwrap();
    assert_eq!(fs.getattr(&user, &node).unwrap().perm(), 0o711);
}

#[test]
fn set_gid_directories_hand_down() {
    let (_dir, fs) = fresh();
    let user = caller();
    let dir = fs.mkdir(&user, &fs.root(), b"d", 0o777).unwrap();
    let set = SetAttr {
        mode: Some(0o2777),
        gid: Some(55),
        ..SetAttr::default()
    };
    fs.setattr(&user, &dir, &set).unwrap();
    let sub = fs.mkdir(&user, &dir, b"sub", 0o7777).unwrap();
    let attr = fs.getattr(&user, &sub).unwrap();
    assert_eq!((attr.perm(), attr.gid), (0o3755, 55));
    let file = fs.mknod(&root(), &dir, b"g", 0o2777, 0).unwrap();
    assert_eq!(fs.getattr(&user, &file).unwrap().perm(), 0o2755);
}

#[test]
fn kinds_and_links() {
    let (dir, fs) = fresh();
    let user = caller();
    let top = fs.root();
    fs.symlink(&user, &top, b"s", b"some/where").unwrap();
    let long = vec![b'x'; 4095];
    fs.symlink(&user, &top, b"long", &long).unwrap();
    assert_eq!(
        fs.symlink(&user, &top, b"too", &[b'x'; 4096]).unwrap_err(),
        Errno::ENAMETOOLONG
    );
    fs.mknod(&root(), &top, b"dev", libc::S_IFCHR | 0o600, 0x105)
        .unwrap();
    fs.mknod(&user, &top, b"fifo", libc::S_IFIFO | 0o600, 9)
        .unwrap();
    fs.mknod(&user, &top, b"sock", libc::S_IFSOCK | 0o600, 9)
        .unwrap();
    let name = vec![b'n'; 255];
    fs.mkdir(&user, &top, &name, 0o700).unwrap();
    assert_eq!(
        fs.mkdir(&user, &top, &[b'n'; 256], 0o700).unwrap_err(),
        Errno::ENAMETOOLONG
    );
    assert_eq!(
        fs.lookup(&user, &top, &[b'n'; 256]).unwrap_err(),
        Errno::ENAMETOOLONG
    );
    let fs = reopen(&dir, fs);
    let node = walk(&fs, "s").unwrap();
    assert_eq!(fs.readlink(&user, &node).unwrap(), b"some/where");
    let attr = fs.getattr(&user, &node).unwrap();
    assert_eq!((attr.mode, attr.size), (libc::S_IFLNK | 0o777, 10));
    assert_eq!(
        fs.readlink(&user, &walk(&fs, "long").unwrap()).unwrap(),
        long
    );
    assert_eq!(fs.readlink(&user, &fs.root()).unwrap_err(), Errno::EINVAL);
    let dev = fs.getattr(&user, &walk(&fs, "dev").unwrap()).unwrap();
    assert_eq!((dev.kind(), dev.rdev), (FileKind::CharDevice, 0x105));
    assert_eq!(
        fs.getattr(&user, &walk(&fs, "fifo").unwrap()).unwrap().rdev,
        0
    );
    assert_eq!(
        fs.open(&user, &walk(&fs, "sock").unwrap(), 0).unwrap_err(),
        Errno::ENXIO
    );
}

#[test]
fn extended_attributes() {
    let (dir, fs) = fresh();
    let user = caller();
    write_file(&fs, "f", b"x").unwrap();
    fs.symlink(&user, &fs.root(), b"s", b"f").unwrap();
    let node = walk(&fs, "f").unwrap();
    let link = walk(&fs, "s").unwrap();
    let set = |name: &[u8], value: &[u8], flags| fs.setxattr(&user, &node, name, value, flags);
    assert_eq!(
        fs.getxattr(&user, &node, b"user.a"),
        Err(Errno::ENODATA.into())
    );
    assert_eq!(
        set(b"user.a", b"1", libc::XATTR_REPLACE),
        Err(Errno::ENODATA.into())
    );
    assert_eq!(set(b"user.a", b"1", libc::XATTR_CREATE), Ok(()));
    assert_eq!(
        set(b"user.a", b"2", libc::XATTR_CREATE),
        Err(Errno::EEXIST.into())
    );
    assert_eq!(set(b"user.a", b"3", 0), Ok(()));
    assert_eq!(set(b"user.b", &[9; 65536], 0), Err(Errno::ENOSPC.into()));
    assert_eq!(set(b"user.b", &[9; 3000], 0), Ok(()));
    assert_eq!(set(b"user.c", &[9; 65537], 0), Err(Errno::E2BIG.into()));
    assert_eq!(set(b"user.", b"", 0), Err(Errno::EINVAL.into()));
    assert_eq!(set(b"system.other", b"", 0), Err(Errno::EOPNOTSUPP.into()));
    assert_eq!(set(&[b'x'; 256], b"", 0), Err(Errno::ERANGE.into()));
    assert_eq!(
        fs.setxattr(&user, &link, b"user.a", b"", 0),
        Err(Errno::EPERM.into())
    );
    assert_eq!(
        fs.getxattr(&user, &link, b"user.a"),
        Err(Errno::ENODATA.into())
    );
    fs.setxattr(&root(), &node, b"trusted.t", b"T", 0).unwrap();
    fs.setxattr(&root(), &link, b"trusted.t", b"T", 0).unwrap();
    drop((node, link));
    let fs = reopen(&dir, fs);
    let node = walk(&fs, "f").unwrap();
    assert_eq!(fs.getxattr(&user, &node, b"user.a").unwrap(), b"3");
    assert_eq!(fs.getxattr(&user, &node, b"user.b").unwrap(), [9; 3000]);
    assert_eq!(fs.getxattr(&root(), &node, b"trusted.t").unwrap(), b"T");
    assert_eq!(fs.listxattr(&root(), &node).unwrap().len(), 3);
    assert_eq!(fs.removexattr(&user, &node, b"user.b"), Ok(()));
    assert_eq!(
        fs.removexattr(&user, &node, b"user.b"),
        Err(Errno::ENODATA.into())
    );
    drop(node);
    // They go with the file.
    fs.unlink(&user, &fs.root(), b"f").unwrap();
    fs.unlink(&user, &fs.root(), b"s").unwrap();
    close_and_check(fs, &dir.path().join("store"));
}

#[test]
fn paths_and_parents() {
    let (_dir, fs) = fresh();
    let user = caller();
    let top = fs.root();
    let a = fs.mkdir(&user, &top, b"a", 0o755).unwrap();
    let b = fs.mkdir(&user, &a, b"b", 0o755).unwrap();
    let f = fs.mknod(&user, &b, b"f", 0o644, 0).unwrap();
    assert_eq!(fs.path(&root(), &top).unwrap(), (b"".to_vec(), false));
    assert_eq!(fs.path(&root(), &f).unwrap(), (b"a/b/f".to_vec(), false));
    fs.rename(&user, &a, b"b", &top, b"c", 0).unwrap();
    assert_eq!(fs.path(&root(), &f).unwrap(), (b"c/f".to_vec(), false));
    assert_eq!(fs.parent(&user, &b).unwrap().ino(), top.ino());
    assert_eq!(fs.parent(&user, &top).unwrap().ino(), top.ino());
    fs.unlink(&user, &b, b"f").unwrap();
    assert_eq!(fs.path(&root(), &f).unwrap(), (b"c/f".to_vec(), true));
    fs.rmdir(&user, &top, b"c").unwrap();
    // A process whose working directory it is can still go up, as on Linux.
    assert_eq!(fs.parent(&user, &b).unwrap().ino(), top.ino());
    assert_eq!(fs.path(&root(), &b).unwrap(), (b"c".to_vec(), true));
    assert_eq!(fs.mkdir(&user, &b, b"x", 0o755).unwrap_err(), Errno::ENOENT);
    assert_eq!(fs.lookup(&user, &b, b"x").unwrap_err(), Errno::ENOENT);
    assert_eq!(
        fs.rename(&user, &top, b"a", &b, b"x", 0),
        Err(Errno::ENOENT.into())
    );
    assert_eq!(fs.getattr(&user, &b).unwrap().nlink, 0);
    assert_eq!(fs.lookup(&user, &f, b"x").unwrap_err(), Errno::ENOTDIR);
}

#[test]
fn large_files_are_kept_on_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let small = || Options {
        large_file_bytes: 50_000,
        ..options(EngineKind::Fjall)
    };
    let fs = AminoFs::open(&path, small()).unwrap();
    let data: Vec<u8> = (0..300_000_u32).map(|i| (i % 253) as u8).collect();
    write_file(&fs, "f", &data).unwrap();
    close_and_check(fs, &path);
    let fs = AminoFs::open(&path, small()).unwrap();
    let file = open_file(&fs, "f", libc::O_RDWR).unwrap();
    let host = nix::sys::stat::fstat(&file.fd).unwrap().st_dev;
    assert_eq!(host, nix::sys::stat::stat(&path).unwrap().st_dev);
    file.write(&fs, WritePosition::At(100_000), b"changed")
        .unwrap();
    file.close(&fs);
    let mut expected = data;
    expected[100_000..100_007].copy_from_slice(b"changed");
    assert_eq!(read_file(&fs, "f").unwrap(), expected);
    close_and_check(fs, &path);
    let fs = AminoFs::open(&path, small()).unwrap();
    assert_eq!(
        read_direct(&fs, &walk(&fs, "f").unwrap()).unwrap(),
        expected
    );
}

#[test]
fn imports_stream() {
    let (dir, fs) = fresh();
    let data: Vec<u8> = (0..3_000_001_u32).map(|i| (i % 241) as u8).collect();
    for size in [0, 300, 513, 1 << 20, 3_000_001] {
        let mut told = 0;
        let name = format!("i{size}");
        let mut source = &data[..size];
        let user = caller();
        let file = fs
            .import_new(&user, &fs.root(), name.as_bytes(), 0o600)
            .unwrap();
        fs.import(&user, &file, &mut source, &mut |n| told += n)
            .unwrap();
        assert_eq!(told, size as u64);
    }
    let fs = reopen(&dir, fs);
    for size in [0, 300, 513, 1 << 20, 3_000_001] {
        assert_eq!(read_file(&fs, &format!("i{size}")).unwrap(), &data[..size]);
    }
}

#[test]
fn statfs_and_reopening_needs_a_store() {
    let (dir, fs) = fresh();
    let figures = fs.statfs(&caller(), &fs.root()).unwrap();
    assert_eq!(figures.magic, 0x414d_4e4f);
    assert!(figures.blocks > 0 && figures.name_max == 255);
    let nothing = dir.path().join("nothing");
    assert!(AminoFs::open(&nothing, Options::default()).is_err());
    assert!(
        AminoFs::open(&dir.path().join("store"), Options::default()).is_err(),
        "held"
    );
}

/// The in-memory engine's log is never shortened, so it fills up for good.
#[test]
fn a_full_store_refuses_and_keeps_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let small = Options {
        log_limit_bytes: 40 << 20,
        ..options(EngineKind::Memory)
    };
    let fs = AminoFs::open(&path, small).unwrap();
    let file = create(&fs, "f").unwrap();
    let data = vec![1; 100_000];
    let mut size = 0;
    loop {
        match file.write(&fs, WritePosition::Cursor, &data) {
            Ok(n) => size += n as u64,
            Err(errno) => {
                assert_eq!(errno, Errno::ENOSPC);
                break;
            }
        }
        assert!(size < 100 << 20, "the limit is not kept");
    }
    assert!(size > 10 << 20);
    assert_eq!(fs.getattr(&caller(), &file.node).unwrap().size, size);
    assert_eq!(
        nix::unistd::lseek(&file.fd, 0, nix::unistd::Whence::SeekCur),
        Ok(size as i64)
    );
    // Metadata operations fail as well, before they change anything.
    let mut made = 0;
    let failed = loop {
        match fs.mkdir(&caller(), &fs.root(), format!("d{made}").as_bytes(), 0o755) {
            Ok(_) => made += 1,
            Err(errno) => break errno,
        }
    };
    assert_eq!(failed, Errno::ENOSPC);
    assert_eq!(names(&fs, "").len(), made + 1);
    // What was reserved for the next flush point and not needed is given back there: removing waits for it.
    assert_eq!(fs.rmdir(&caller(), &fs.root(), b"d0"), Ok(()));
    file.close(&fs);
    close_and_check(fs, &path);
    let fs = open(&path);
    assert_eq!(names(&fs, "").len(), made);
    let node = walk(&fs, "f").unwrap();
    assert_eq!(fs.getattr(&caller(), &node).unwrap().size, size);
    let mut tail = vec![0; 100_000];
    assert_eq!(
        fs.read_at(&caller(), &node, size - 100_000, &mut tail),
        Ok(100_000)
    );
    assert_eq!(tail, data);
}
