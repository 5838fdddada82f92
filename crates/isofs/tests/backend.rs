//! The image as the switch sees it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says so by failing"
)]

mod support;

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use goanna_isofs::{Iso, IsoFs, Options};
use goanna_sys::memfile;
use goanna_sys::object_handle::ObjectHandle;
use goanna_vfs::{Caller, Errno, FileSystem, Mount, MountFlags, Native, Node, Opened, Place, ops};
use support::tools::{Work, bytes, genisoimage, open, xorriso};
use support::{FREE, Image, Rec};

fn root() -> Caller {
    Caller::with_ids(0, 0)
}

struct Mounted {
    fs: Arc<IsoFs>,
    top: Place,
}

impl Mounted {
    fn new(iso: Iso) -> Self {
        let fs = Arc::new(IsoFs::new(iso));
        let top = Place {
            node: fs.root(),
            mount: Arc::new(Mount::new(
                Arc::clone(&fs) as Arc<dyn FileSystem>,
                b"/cd".to_vec(),
                MountFlags::READ_ONLY,
                "i.iso".into(),
                0,
            )),
        };
        Self { fs, top }
    }

    fn at(&self, path: &str) -> Place {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.fold(self.top.clone(), |place, name| Place {
            node: ops::lookup(&root(), &place, name.as_bytes()).unwrap(),
            mount: place.mount,
        })
    }

    fn open(&self, path: &str) -> goanna_vfs::Result<Opened> {
        ops::open_existing(&root(), &self.at(path), libc::O_RDONLY)
    }
}

fn all_of(opened: &Opened) -> Vec<u8> {
    let mut content = Vec::new();
    let file = File::from(opened.fd().unwrap().as_fd().try_clone_to_owned().unwrap());
    (&file).read_to_end(&mut content).unwrap();
    content
}

fn handle(opened: &Opened) -> &Arc<ObjectHandle> {
    match &opened.native {
        Native::Reads { handle } => handle,
        Native::All => panic!("not the file itself"),
    }
}

fn identity(opened: &Opened) -> u64 {
    let file = File::from(opened.fd().unwrap().as_fd().try_clone_to_owned().unwrap());
    file.metadata().unwrap().ino()
}

fn full() -> (Work, Mounted) {
    let work = Work::full();
    let image = work.path("i.iso");
    genisoimage("-R", &image, &work.tree);
    let mounted = Mounted::new(open(&image, Options::default()));
    (work, mounted)
}

#[test]
fn attributes_names_and_links() {
    let (work, cd) = full();
    for path in [
        "readme.txt",
        "dir",
        "prog",
        "fifo",
        "1/2/3/4/5/6/7/8/9/10/bottom",
    ] {
        let host = fs::symlink_metadata(work.tree.join(path)).unwrap();
        let place = cd.at(path);
        let attr = cd.fs.getattr(&root(), &place.node).unwrap();
        assert_eq!(attr.mode, host.mode(), "{path}");
        assert_eq!(attr.mtime.sec, host.mtime(), "{path}");
        assert_eq!(attr.ino, place.node.ino());
        assert_eq!(
            cd.fs.path(&root(), &place.node).unwrap(),
            (path.as_bytes().to_vec(), false)
        );
    }
    let link = cd.fs.readlink(&root(), &cd.at("link").node).unwrap();
    assert_eq!(link, b"readme.txt");
    assert_eq!(
        cd.fs.readlink(&root(), &cd.at("prog").node),
        Err(Errno::EINVAL.into())
    );
    let ten = cd.at("1/2/3/4/5/6/7/8/9/10");
    let nine = cd.fs.parent(&root(), &ten.node).unwrap();
    assert_eq!(nine.ino(), cd.at("1/2/3/4/5/6/7/8/9").node.ino());
    let top = cd.fs.parent(&root(), &cd.fs.root()).unwrap();
    assert_eq!(top.ino(), cd.fs.root().ino());
    let lookup = |name: &[u8]| ops::lookup(&root(), &cd.top, name).map(|node: Node| node.ino());
    assert_eq!(lookup(b"missing"), Err(Errno::ENOENT.into()));
    assert_eq!(lookup(&[b'n'; 256]), Err(Errno::ENAMETOOLONG.into()));
    let file = cd.at("readme.txt").node;
    assert_eq!(
        cd.fs.lookup(&root(), &file, b"x").map(|_| ()),
        Err(Errno::ENOTDIR.into())
    );
    let figures = ops::statfs(&root(), &cd.top).unwrap();
    assert_eq!(
        (figures.magic, figures.block_size, figures.blocks_free),
        (0x9660, 2048, 0)
    );
    let size = fs::metadata(work.path("i.iso")).unwrap().len();
    assert_eq!(figures.blocks * 2048, size);
    assert!(figures.flags & libc::ST_RDONLY != 0);
}

/// In steps of any size, each name once; a returned position stays valid.
#[test]
fn listings_in_steps() {
    let (_work, cd) = full();
    let many = cd.at("many").node;
    let list = |from: u64, count: usize| {
        let mut found = Vec::new();
        let mut sink = |entry: goanna_vfs::DirEntry<'_>| {
            found.push((entry.name.to_vec(), entry.cookie, entry.ino));
            found.len() < count
        };
        cd.fs.readdir(&root(), &many, from, &mut sink).unwrap();
        found
    };
    let whole = list(0, usize::MAX);
    assert_eq!(whole.len(), 120);
    for step in [1, 7, 119, 120, 121] {
        let mut pieces = Vec::new();
        loop {
            let from = pieces.last().map_or(0, |(_, cookie, _)| *cookie);
            let piece = list(from, step);
            if piece.is_empty() {
                break;
            }
            pieces.extend(piece);
        }
        assert_eq!(pieces, whole, "in steps of {step}");
    }
    for (name, _, ino) in &whole {
        let found = cd.fs.lookup(&root(), &many, name).unwrap();
        assert_eq!(found.ino(), *ino);
    }
    assert_eq!(list(u64::MAX, 9), []);
    let file = cd.at("readme.txt").node;
    let listed = cd.fs.readdir(&root(), &file, 0, &mut |_| true);
    assert_eq!(listed, Err(Errno::ENOTDIR.into()));
}

#[test]
fn open_files_hold_the_content_and_nothing_else() {
    let (work, cd) = full();
    for path in ["readme.txt", "large.bin", "empty", "zeros", "prog"] {
        let opened = cd.open(path).unwrap();
        let expected = fs::read(work.tree.join(path)).unwrap();
        assert!(all_of(&opened) == expected, "{path}");
        // Not even a program with a writable descriptor can change the content that others read.
        let writable = memfile::reopen(opened.fd().unwrap().as_fd(), libc::O_RDWR).unwrap();
        let writable = File::from(writable);
        assert!(writable.write_at(b"x", 0).is_err(), "{path}");
        assert!(
            writable.write_at(b"x", expected.len() as u64).is_err(),
            "{path}"
        );
    }
    let (one, two) = (cd.open("readme.txt").unwrap(), cd.open("dir/hard").unwrap());
    assert_eq!(identity(&one), identity(&two), "hard links are one file");
    assert_eq!(all_of(&one), all_of(&two), "each with its own offset");
    assert_ne!(identity(&one), identity(&cd.open("prog").unwrap()));
    let write = |flags| {
        let place = cd.at("readme.txt");
        cd.fs.open(&root(), &place.node, flags).map(|_| ())
    };
    for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_TRUNC] {
        assert_eq!(write(flags), Err(Errno::EROFS.into()));
        let place = cd.at("readme.txt");
        assert_eq!(
            ops::open_existing(&root(), &place, flags).map(|_| ()),
            Err(Errno::EROFS.into())
        );
    }
    assert_eq!(
        ops::unlink(&root(), &cd.top, b"readme.txt"),
        Err(Errno::EROFS.into())
    );
    assert_eq!(
        ops::mkdir(&root(), &cd.top, b"new", 0o755).map(|_| ()),
        Err(Errno::EROFS.into())
    );
}

/// The content of closed files is dropped when it exceeds the limit, and its memory is freed at once; that of open files is kept.
#[test]
fn memory_is_given_back() {
    const SIZE: usize = 8 << 20;
    const FILES: usize = 40;
    let work = Work::new();
    for n in 0..FILES {
        fs::write(work.tree.join(format!("f{n}")), vec![n as u8 + 1; SIZE]).unwrap();
    }
    let image = work.path("i.iso");
    genisoimage("-R", &image, &work.tree);
    let cd = Mounted::new(open(&image, Options::default()));
    let held = cd.open("f0").unwrap();
    let blocks = |opened: &Arc<ObjectHandle>| {
        let file = File::from(opened.open(libc::O_RDONLY).unwrap());
        file.metadata().unwrap().blocks() * 512
    };
    let mut handles = Vec::new();
    for n in 1..FILES {
        let opened = cd.open(&format!("f{n}")).unwrap();
        let mut first = [0];
        File::from(opened.fd().unwrap().as_fd().try_clone_to_owned().unwrap())
            .read_exact(&mut first)
            .unwrap();
        assert_eq!(usize::from(first[0]), n + 1);
        // The monitor keeps this longer than the program its descriptor.
        handles.push(Arc::clone(handle(&opened)));
    }
    let kept: u64 = handles.iter().map(blocks).sum();
    assert!(kept <= 136 << 20, "{kept} bytes of {}", FILES * SIZE);
    assert_eq!(blocks(handle(&held)), SIZE as u64);
    assert_eq!(all_of(&held), vec![1; SIZE]);
    // Dropped content is loaded again on demand.
    assert_eq!(all_of(&cd.open("f1").unwrap()), vec![2; SIZE]);
}

/// Large files go to a file on disk, which is removed when no process has it open any more.
#[test]
fn large_files() {
    const SIZE: usize = (64 << 20) + 12_345;
    let work = Work::new();
    let content = bytes(SIZE, 3);
    fs::write(work.tree.join("large"), &content).unwrap();
    let image = work.path("i.iso");
    genisoimage("-R", &image, &work.tree);
    let cd = Mounted::new(open(&image, Options::default()));
    let opened = cd.open("large").unwrap();
    assert!(all_of(&opened) == content);
    let first = identity(&opened);
    let place = cd.at("large");
    cd.fs.content().unwrap().released(&place.node);
    assert_eq!(identity(&cd.open("large").unwrap()), first, "still open");
    drop(opened);
    cd.fs.content().unwrap().released(&place.node);
    assert!(all_of(&cd.open("large").unwrap()) == content);
}

/// Zeros of a compressed file are holes, however many there are.
#[test]
fn compressed_zeros_cost_nothing() {
    let work = Work::new();
    let file = File::create(work.tree.join("zeros")).unwrap();
    file.set_len(60 << 20).unwrap();
    file.write_all_at(b"end", (60 << 20) - 3).unwrap();
    let image = work.path("i.iso");
    xorriso("", &image, &work.tree, "-set_filter_r --zisofs / --");
    let cd = Mounted::new(open(&image, Options::default()));
    let opened = cd.open("zeros").unwrap();
    let meta = File::from(opened.fd().unwrap().as_fd().try_clone_to_owned().unwrap())
        .metadata()
        .unwrap();
    assert_eq!(meta.len(), 60 << 20);
    assert!(meta.blocks() * 512 < 1 << 20, "{}", meta.blocks());
    assert!(all_of(&opened).ends_with(b"\0\0end"));
}

#[test]
fn damage_is_an_errno() {
    let mut image = Image::new(30);
    let interleaved = Rec {
        interleave: (1, 1),
        ..Rec::file(b"I", FREE, 5)
    };
    image.rock(&[
        Rec::file(b"FAR", 1 << 30, 5),
        interleaved,
        Rec::dir(b"D", 1 << 30),
    ]);
    let cd = Mounted::new(image.open().unwrap());
    assert_eq!(cd.open("far").map(|_| ()), Err(Errno::EUCLEAN.into()));
    assert_eq!(cd.open("i").map(|_| ()), Err(Errno::EOPNOTSUPP.into()));
    let dir = cd.at("d").node;
    let listed = cd.fs.readdir(&root(), &dir, 0, &mut |_| true);
    assert_eq!(listed, Err(Errno::EUCLEAN.into()));
    assert_eq!(
        cd.open("far").map(|_| ()),
        Err(Errno::EUCLEAN.into()),
        "again"
    );
    let mut buf = [0; 9];
    let read = cd.fs.read_at(&root(), &cd.at("far").node, 0, &mut buf);
    assert_eq!(read, Err(Errno::EUCLEAN.into()));
}

/// Many threads, one file: one object, whole for each of them.
#[test]
fn opened_by_many_at_once() {
    let (work, cd) = full();
    let expected = fs::read(work.tree.join("large.bin")).unwrap();
    let identities: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let opened = cd.open("large.bin").unwrap();
                    assert!(all_of(&opened) == expected);
                    (identity(&opened), opened)
                })
            })
            .collect();
        let opened: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        opened.iter().map(|(identity, _)| *identity).collect()
    });
    assert!(
        identities.iter().all(|identity| *identity == identities[0]),
        "{identities:?}"
    );
}

/// An image that is opened twice has the same files; one that was written again has others.
#[test]
fn files_of_an_image_have_ids_that_last() {
    let mut image = Image::new(30);
    image.rock(&[Rec::file(b"F", FREE, 5)]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("i.iso");
    let id = || {
        let iso = Iso::open_file(&path, &Options::default()).unwrap();
        let fs = IsoFs::new(iso);
        let entries = fs.iso().list(fs.iso().root()).unwrap();
        let node = fs.lookup(&root(), &fs.root(), &entries[0].name).unwrap();
        fs.identity().unwrap().file_id(&root(), &node).unwrap()
    };
    fs::write(&path, &image.bytes).unwrap();
    let first = id();
    assert_eq!(id(), first);
    let modified = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(modified)
        .unwrap();
    assert_ne!(id(), first);
}
