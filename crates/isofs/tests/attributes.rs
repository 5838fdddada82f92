//! Extended attribute records: they count in images without Rock Ridge, and an error in one of them is ignored.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says so by failing"
)]

mod support;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use goanna_isofs::{Entry, Iso, IsoFs, Namespace, Options, ReadAt};
use goanna_vfs::{Errno, FileSystem, Mount, MountFlags, Place, ops};
use support::{FREE, Image, ROOT, Rec, SECTOR, attributes, caller, content, directory, find, px};

/// Owner, group and permissions are specified.
const PROTECTED: u8 = 0x10;

/// The first and the second of January 2001.
const CREATED: i64 = 978_307_200;
const MODIFIED: i64 = CREATED + 86_400;

/// The time in every directory record of [`Rec`].
const RECORDED: i64 = 1_719_835_200;

/// A file at `block` with one block of attributes, then five bytes of content.
fn file(name: &[u8], block: u32) -> Rec {
    Rec {
        attributes: 1,
        ..Rec::file(name, block, 5).flags(PROTECTED)
    }
}

fn owner(entry: &Entry) -> (u32, u32, u32) {
    (entry.mode & 0o7777, entry.uid, entry.gid)
}

fn times(entry: &Entry) -> (i64, Option<i64>) {
    (entry.mtime.sec, entry.btime.map(|time| time.sec))
}

/// Checks that a file has the attributes of a file without such a record.
fn assert_plain(iso: &Iso, path: &str) {
    let entry = find(iso, path);
    assert_eq!(owner(&entry), (0o555, 0, 0), "{path}");
    assert_eq!(times(&entry), (RECORDED, None), "{path}");
    if entry.kind == goanna_vfs::FileKind::Regular {
        assert_eq!(content(iso, path).unwrap(), b"hello", "{path}");
    }
}

/// An image with one file, whose record of attributes is `bytes`.
fn one(bytes: &[u8]) -> Image {
    let mut image = Image::new(30);
    image.plain(&[file(b"A", FREE)]);
    image.put_block(FREE, bytes).put_block(FREE + 1, b"hello");
    image
}

#[test]
fn each_combination_of_permissions() {
    let bits = [4, 6, 8, 10, 12, 14];
    let modes = [0o400, 0o100, 0o40, 0o10, 0o4, 0o1];
    let mut image = Image::new(160);
    let mut records = Vec::new();
    for n in 0..64_u32 {
        let block = FREE + 2 * n;
        records.push(file(format!("F{n:02}").as_bytes(), block));
        let denied = |(at, bit): (usize, &u16)| (n >> at & 1 == 0).then_some(1 << bit);
        let odd = 0xaaaa;
        let permissions = bits
            .iter()
            .enumerate()
            .filter_map(denied)
            .fold(odd, |a, b| a | b);
        image.put_block(block, &attributes(permissions));
        image.put_block(block + 1, b"hello");
    }
    // More than a sector of records.
    let (first, rest) = records.split_at(40);
    image.plain(&[first, &[Rec::dir(b"MORE", ROOT + 1)]].concat());
    image.put_block(ROOT + 1, &directory(ROOT + 1, ROOT, &[], rest));
    let iso = image.open().unwrap();
    for n in 0..64_u32 {
        let path = format!("{}f{n:02}", if n < 40 { "" } else { "more/" });
        let entry = find(&iso, &path);
        let granted = |(at, mode): (usize, &u32)| if n >> at & 1 == 1 { *mode } else { 0 };
        let mode: u32 = modes.iter().enumerate().map(granted).sum();
        assert_eq!(owner(&entry), (mode, 7, 9), "{path}");
        assert_eq!(times(&entry), (MODIFIED, Some(CREATED)), "{path}");
        assert_eq!((entry.atime.sec, entry.ctime.sec), (MODIFIED, RECORDED));
        assert_eq!(content(&iso, &path).unwrap(), b"hello", "{path}");
        // Listed as looked up.
        let dir = entry.parent().unwrap();
        let listed = iso.list(dir).unwrap();
        let listed = listed
            .iter()
            .find(|other| other.name == entry.name)
            .unwrap();
        assert_eq!(owner(listed), owner(&entry));
    }
}

#[test]
fn where_it_is_not_protected_only_the_times_count() {
    let mut image = one(&attributes(0xffff));
    image.plain(&[file(b"A", FREE).flags(0)]);
    let iso = image.open().unwrap();
    assert_eq!(owner(&find(&iso, "a")), (0o555, 0, 0));
    assert_eq!(times(&find(&iso, "a")), (MODIFIED, Some(CREATED)));
    assert_eq!(content(&iso, "a").unwrap(), b"hello");
}

/// The number 0 means that no owner is specified: root, as without a record.
#[test]
fn no_owner() {
    let mut bytes = attributes(0xafff);
    bytes[..8].fill(0);
    let iso = one(&bytes).open().unwrap();
    assert_eq!(owner(&find(&iso, "a")), (0o5, 0, 0));
}

#[test]
fn what_is_wrong_with_one_is_no_harm() {
    for version in [0, 2, 0xff] {
        let mut bytes = attributes(0xffff);
        bytes[180] = version;
        assert_plain(&one(&bytes).open().unwrap(), "a");
    }
    let mut bytes = attributes(0xbfff);
    bytes[27..43].copy_from_slice(b"20010102 0000000");
    bytes[10..26].copy_from_slice(b"2001130100000000");
    let iso = one(&bytes).open().unwrap();
    assert_eq!(owner(&find(&iso, "a")), (0o1, 7, 9));
    assert_eq!(times(&find(&iso, "a")), (RECORDED, None));

    // The attribute record is beyond the image, or a half of it is; the position of empty content cannot be
    // wrong.
    let mut image = one(&attributes(0xffff));
    let empty = |name, block| Rec {
        len: 0,
        ..file(name, block)
    };
    let records = [
        empty(b"FAR", u32::MAX),
        empty(b"END", 29),
        empty(b"E", FREE),
    ];
    image.plain(&records);
    image.bytes.truncate(29 * SECTOR + 180);
    let iso = image.open().unwrap();
    for path in ["far", "end"] {
        let entry = find(&iso, path);
        assert_eq!(owner(&entry), (0o555, 0, 0), "{path}");
        assert_eq!(content(&iso, path).unwrap(), b"", "{path}");
    }
    assert_eq!(owner(&find(&iso, "e")), (0, 7, 9), "an empty file's counts");
}

/// 6.4.6: the record of the last section counts for the whole file; if that section has none, the file has none.
#[test]
fn sections() {
    let with = |name, block, permissions, image: &mut Image| {
        image.put_block(block, &attributes(permissions));
        file(name, block)
    };
    let mut image = Image::new(40);
    let records = [
        with(b"A", 24, 0xffff, &mut image).flags(PROTECTED | 0x80),
        with(b"A", 26, 0xefff, &mut image),
        with(b"B", 28, 0xffff, &mut image).flags(PROTECTED | 0x80),
        Rec::file(b"B", 30, 5),
        Rec::file(b"C", 31, 2048).flags(0x80),
        with(b"C", 32, 0xbfff, &mut image),
    ];
    image.plain(&records);
    for (block, text) in [
        (25, b"first"),
        (27, b"secnd"),
        (29, b"first"),
        (30, b"secnd"),
    ] {
        image.put_block(block, text);
    }
    let iso = image.open().unwrap();
    assert_eq!(owner(&find(&iso, "a")), (0o4, 7, 9));
    assert_eq!(owner(&find(&iso, "b")), (0o555, 0, 0));
    assert_eq!(owner(&find(&iso, "c")), (0o1, 7, 9));
    for path in ["a", "b"] {
        assert_eq!(content(&iso, path).unwrap(), b"firstsecnd");
    }
}

#[test]
fn directories() {
    let mut image = Image::new(40);
    let mut sub = Rec::dir(b"D", 26).flags(2 | PROTECTED);
    sub.attributes = 1;
    let mut root = Rec::dir(&[0], ROOT).flags(2 | PROTECTED);
    root.attributes = 1;
    let blocks = [root.bytes(), Rec::dir(&[1], ROOT).bytes(), sub.bytes()].concat();
    image.put(16 * SECTOR + 156, &root.bytes());
    image.put_block(ROOT, &attributes(0x0fff));
    image.put_block(ROOT + 1, &blocks);
    image.put_block(26, &attributes(0xffef));
    image.put_block(27, &directory(26, ROOT, &[], &[file(b"A", FREE)]));
    image
        .put_block(FREE, &attributes(0))
        .put_block(FREE + 1, b"hello");
    let iso = image.open().unwrap();
    assert_eq!(owner(iso.root()), (0o5, 7, 9));
    assert_eq!(times(iso.root()), (MODIFIED, Some(CREATED)));
    assert_eq!(owner(&find(&iso, "d")), (0o400, 7, 9));
    assert_eq!(content(&iso, "d/a").unwrap(), b"hello");
}

#[test]
fn joliet_but_not_rock_ridge() {
    let mut image = one(&attributes(0xffff));
    image.joliet(&[file(b"\0a", FREE)]);
    let iso = image.open_as(Namespace::Joliet).unwrap();
    assert_eq!(owner(&find(&iso, "a")), (0, 7, 9));
    let mut image = one(&attributes(0xffff));
    image.rock(&[
        file(b"A", FREE).with(&[px(0o100_644, 1, None)]),
        file(b"NONE", FREE),
    ]);
    let iso = image.open().unwrap();
    assert_eq!(owner(&find(&iso, "a")), (0o644, 1000, 100));
    assert_plain(&iso, "none");
}

/// The blocks of a file on another volume of the set belong to other files here.
#[test]
fn on_another_volume() {
    let mut image = one(&attributes(0xffff));
    let elsewhere = Rec {
        volume: 2,
        ..file(b"A", FREE)
    };
    image.plain(&[elsewhere]);
    image.put(16 * SECTOR + 120, &[2, 0, 0, 2]);
    let iso = image.open().unwrap();
    assert_eq!(owner(&find(&iso, "a")), (0o555, 0, 0));
}

/// Counts reads, and fails those from `bad` on.
struct Counting {
    bytes: Vec<u8>,
    reads: Arc<AtomicU64>,
    bad: u64,
}

impl ReadAt for Counting {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if offset >= self.bad {
            return Err(Errno::EIO.into());
        }
        self.bytes.read_at(offset, buf)
    }

    fn size(&self) -> io::Result<u64> {
        self.bytes.size()
    }
}

fn counting(image: &Image, bad: u64) -> (Iso, Arc<AtomicU64>) {
    let reads = Arc::default();
    let source = Counting {
        bytes: image.bytes.clone(),
        reads: Arc::clone(&reads),
        bad,
    };
    (Iso::open(source, &Options::default()).unwrap(), reads)
}

/// Listing names needs no reads; each file that is looked up needs one.
#[test]
fn read_when_looked_up() {
    let mut image = one(&attributes(0xffff));
    let records: Vec<_> = (0..40)
        .map(|n| match n % 2 {
            0 => file(format!("F{n}").as_bytes(), FREE),
            _ => Rec::file(format!("F{n}").as_bytes(), FREE + 1, 5),
        })
        .collect();
    image.plain(&records);
    let (iso, reads) = counting(&image, u64::MAX);
    let fs = IsoFs::new(iso);
    let since = |start: u64| reads.load(Ordering::Relaxed) - start;
    let start = since(0);
    let mut names = 0;
    let root = fs.root();
    fs.readdir(&caller(0, 0), &root, 0, &mut |_| {
        names += 1;
        true
    })
    .unwrap();
    assert_eq!((names, since(start)), (40, 1), "the directory's extent");
    let start = since(0);
    fs.lookup(&caller(0, 0), &root, b"f1").unwrap();
    assert_eq!(since(start), 0, "there is none");
    let node = fs.lookup(&caller(0, 0), &root, b"f2").unwrap();
    assert_eq!(since(start), 1);
    assert_eq!(fs.getattr(&caller(0, 0), &node).unwrap().uid, 7);
    assert_eq!(since(start), 1);
    fs.iso().list(fs.iso().root()).unwrap();
    assert_eq!(since(start), 1 + 20);
}

/// An unreadable sector with only attributes is ignored.
#[test]
fn on_a_bad_sector() {
    let mut image = Image::new(30);
    let mut record = file(b"A", 28);
    record.len = 0;
    image.plain(&[record, Rec::file(b"B", FREE, 5)]);
    image.put_block(FREE, b"hello");
    let (iso, _) = counting(&image, 28 * SECTOR as u64);
    assert_eq!(owner(&find(&iso, "a")), (0o555, 0, 0));
    assert_eq!(content(&iso, "b").unwrap(), b"hello");
}

/// Permission checks use them.
#[test]
fn users_that_may_open_a_file() {
    let mut image = Image::new(40);
    let cases = [
        (&b"OWN"[..], 0xafef_u16, [true, false, true]),
        (b"GROUP", 0xfeff, [false, true, false]),
        (b"OTHER", 0xefff, [false, false, true]),
        (b"NONE", 0xffff, [false, false, false]),
        (b"ALL", 0xaaaa, [true, true, true]),
    ];
    let mut records = Vec::new();
    for ((name, permissions, _), block) in cases.iter().zip((FREE..).step_by(2)) {
        records.push(file(name, block));
        image.put_block(block, &attributes(*permissions));
        image.put_block(block + 1, b"hello");
    }
    image.plain(&records);
    let fs = Arc::new(IsoFs::new(image.open().unwrap()));
    for (name, _, expected) in cases {
        for ((uid, gid), allowed) in [(7, 1), (1, 9), (1, 1)].into_iter().zip(expected) {
            let caller = caller(uid, gid);
            let name = name.to_ascii_lowercase();
            let place = Place {
                node: fs.lookup(&caller, &fs.root(), &name).unwrap(),
                mount: Arc::new(Mount::new(
                    Arc::clone(&fs) as Arc<dyn FileSystem>,
                    b"/cd".to_vec(),
                    MountFlags::READ_ONLY,
                    "i.iso".into(),
                    0,
                )),
            };
            let opened = ops::open_existing(&caller, &place, libc::O_RDONLY).map(|_| ());
            let expected = if allowed {
                Ok(())
            } else {
                Err(Errno::EACCES.into())
            };
            assert_eq!(opened, expected, "{} {uid} {gid}", name.escape_ascii());
        }
    }
}
