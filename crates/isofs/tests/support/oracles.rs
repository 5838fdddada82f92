//! Other readers of images (oracles): their results in a form that can be compared with ours.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufReader, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use goanna_isofs::{Iso, Namespace, Visit};
use goanna_vfs::FileKind;
use hadris_iso::sync::directory::DirectoryRef;
use hadris_iso::sync::read::IsoImage;

use super::tools::run;

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

static ZEROS: [u8; PIECE] = [0; PIECE];

/// The compared property.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// We have the name, the other has not.
    Lacks,
    /// The other has the name, we have not.
    Adds,
    Kind,
    Mode,
    Owner,
    Links,
    Size,
    Time,
    Target,
    Content,
}

/// A reader of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Oracle {
    /// libarchive: `bsdtar -xpf`.
    Bsdtar,
    /// libisofs: `xorriso -osirrox on -extract`.
    Xorriso,
    /// `isoinfo -l`, which has the days of times only, and no content.
    Isoinfo,
    /// The crate hadris-iso, whose names are UTF-8.
    Hadris,
}

/// The metadata of a name. `None` for fields that the reader does not report, or not reliably.
#[derive(Clone, PartialEq, Eq)]
pub struct Item {
    pub kind: FileKind,
    pub mode: Option<u32>,
    pub owner: Option<(u32, u32)>,
    pub links: Option<u64>,
    pub size: Option<u64>,
    pub time: Option<i64>,
    pub target: Option<Vec<u8>>,
    /// A hash.
    pub content: Option<u64>,
}

/// All names but the root's, by path.
pub type Tree = BTreeMap<Vec<u8>, Item>;

/// The differences between two trees.
pub type Differences = BTreeSet<(Field, Vec<u8>)>;

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:o} ", self.kind, self.mode.unwrap_or(0))?;
        write!(f, "owner {:?} links {:?} ", self.owner, self.links)?;
        write!(f, "size {:?} time {:?} ", self.size, self.time)?;
        let target = self.target.as_deref().map(<[u8]>::escape_ascii);
        write!(
            f,
            "-> {:?} {:x?}",
            target.map(|t| t.to_string()),
            self.content
        )
    }
}

pub fn differences(ours: &Tree, others: &Tree) -> Differences {
    let mut found = Differences::new();
    for (path, our) in ours {
        let Some(other) = others.get(path) else {
            found.insert((Field::Lacks, path.clone()));
            continue;
        };
        let mut differ = |field, differs: bool| {
            if differs {
                found.insert((field, path.clone()));
            }
        };
        fn both<T: PartialEq>(a: Option<&T>, b: Option<&T>) -> bool {
            a.zip(b).is_some_and(|(a, b)| a != b)
        }
        differ(Field::Kind, our.kind != other.kind);
        differ(Field::Mode, both(our.mode.as_ref(), other.mode.as_ref()));
        differ(Field::Owner, both(our.owner.as_ref(), other.owner.as_ref()));
        differ(Field::Links, both(our.links.as_ref(), other.links.as_ref()));
        differ(Field::Size, both(our.size.as_ref(), other.size.as_ref()));
        differ(Field::Time, both(our.time.as_ref(), other.time.as_ref()));
        differ(
            Field::Target,
            both(our.target.as_ref(), other.target.as_ref()),
        );
        differ(
            Field::Content,
            both(our.content.as_ref(), other.content.as_ref()),
        );
    }
    for path in others.keys().filter(|path| !ours.contains_key(*path)) {
        found.insert((Field::Adds, path.clone()));
    }
    found
}

/// The hash of the bytes that `read` returns, until it returns none. Long zeros only cost the time of reading.
pub fn hash(mut read: impl FnMut(u64, &mut [u8]) -> usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut piece = [0; PIECE];
    let mut at = 0;
    loop {
        let mut len = 0;
        while len < PIECE {
            match read(at + len as u64, &mut piece[len..]) {
                0 => break,
                got => len += got,
            }
        }
        if piece[..len] != ZEROS[..len] {
            (at, &piece[..len]).hash(&mut hasher);
        }
        at += len as u64;
        if len < PIECE {
            at.hash(&mut hasher);
            return hasher.finish();
        }
    }
}

/// The tree that our reader reads.
pub fn ours(iso: &Iso) -> Tree {
    let mut tree = Tree::new();
    iso.walk(iso.root(), &mut |visit| {
        let entry = match visit {
            Visit::Entry(entry) => entry,
            Visit::Unreadable(entry, error) => panic!("{:?}: {error}", entry.path()),
        };
        if entry.parent().is_none() {
            return ControlFlow::Continue(());
        }
        let is_file = entry.kind == FileKind::Regular;
        let content = is_file.then(|| {
            iso.check_content(entry).unwrap();
            hash(|at, piece| iso.read_at(entry, at, piece).unwrap())
        });
        let is_link = entry.kind == FileKind::Symlink;
        let item = Item {
            kind: entry.kind,
            mode: Some(entry.mode & 0o7777),
            owner: Some((entry.uid, entry.gid)),
            links: (entry.kind != FileKind::Directory).then_some(entry.nlink.into()),
            size: is_file.then_some(entry.size),
            time: Some(entry.mtime.sec),
            target: is_link.then(|| iso.readlink(entry).unwrap()),
            content,
        };
        assert!(tree.insert(entry.path(), item).is_none(), "{entry:?} twice");
        ControlFlow::Continue(())
    });
    tree
}

impl Oracle {
    /// The tree that this reader reads in `image`, in the name space that we chose. If the session can be selected, it
    /// is the one that begins at sector `start`. `scratch` is a directory that does not exist yet.
    pub fn read(self, image: &Path, namespace: Namespace, start: u64, scratch: &Path) -> Tree {
        match self {
            Self::Bsdtar => bsdtar(image, namespace, scratch),
            Self::Xorriso => xorriso(image, namespace, start, scratch),
            Self::Isoinfo => isoinfo(image, namespace, start),
            Self::Hadris => hadris(image, namespace),
        }
    }
}

fn args<'a>(words: &'a str, more: &[&'a OsStr]) -> Vec<&'a OsStr> {
    let words = words.split_whitespace().map(OsStr::new);
    words.chain(more.iter().copied()).collect()
}

fn bsdtar(image: &Path, namespace: Namespace, scratch: &Path) -> Tree {
    fs::create_dir(scratch).unwrap();
    let options = match namespace {
        Namespace::RockRidge => "iso9660:!joliet",
        Namespace::Joliet => "iso9660:!rockridge",
        Namespace::Plain => "iso9660:!rockridge,iso9660:!joliet",
    };
    let options = format!("-x -p -S --options {options} -f");
    run(
        "bsdtar",
        &args(
            &options,
            &[image.as_os_str(), "-C".as_ref(), scratch.as_os_str()],
        ),
    );
    let tree = extracted(scratch, namespace);
    match namespace {
        Namespace::Plain => lower(tree),
        _ => tree,
    }
}

fn xorriso(image: &Path, namespace: Namespace, start: u64, scratch: &Path) -> Tree {
    let fs = match namespace {
        Namespace::RockRidge => "any",
        // Without Joliet these are the plain ones.
        Namespace::Joliet | Namespace::Plain => "norock",
    };
    let before = format!(
        "-abort_on FAILURE -report_about FATAL -read_fs {fs} -osirrox on:auto_chmod_off:sparse=64k \
         -load sbsector {start} -indev"
    );
    let all = [
        image.as_os_str(),
        "-extract".as_ref(),
        "/".as_ref(),
        scratch.as_os_str(),
    ];
    run("xorriso", &args(&before, &all));
    let mut tree = extracted(scratch, namespace);
    for item in tree.values_mut() {
        // It unpacks each link as a file of its own, and leaves the times of symbolic links.
        item.links = None;
        item.time = item.time.filter(|_| item.kind != FileKind::Symlink);
    }
    match namespace {
        Namespace::Plain => lower(tree),
        _ => tree,
    }
}

/// Plain names as Linux shows them.
fn lower(tree: Tree) -> Tree {
    let names = tree.into_iter();
    names.map(|(path, item)| (plain(&path), item)).collect()
}

/// A tree that was unpacked.
fn extracted(top: &Path, namespace: Namespace) -> Tree {
    let mut tree = Tree::new();
    let mut left = vec![(top.to_path_buf(), Vec::new())];
    let posix = namespace == Namespace::RockRidge;
    let is_root = nix::unistd::geteuid().is_root();
    while let Some((dir, prefix)) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().as_bytes();
            let shown = if prefix.is_empty() {
                name.to_vec()
            } else {
                [&prefix, name].join(&b'/')
            };
            let meta = fs::symlink_metadata(&path).unwrap();
            let kind = FileKind::from_mode(meta.mode()).unwrap();
            let is_file = kind == FileKind::Regular;
            let item = Item {
                kind,
                // Without Rock Ridge there is no mode to unpack, and Linux has none for links.
                mode: (posix && kind != FileKind::Symlink).then_some(meta.mode() & 0o7777),
                owner: (posix && is_root).then_some((meta.uid(), meta.gid())),
                links: (posix && kind != FileKind::Directory).then_some(meta.nlink()),
                size: is_file.then_some(meta.size()),
                time: Some(meta.mtime()),
                target: (kind == FileKind::Symlink).then(|| {
                    fs::read_link(&path)
                        .unwrap()
                        .as_os_str()
                        .as_bytes()
                        .to_vec()
                }),
                content: is_file.then(|| {
                    let file = File::open(&path).unwrap();
                    hash(|at, piece| file.read_at(piece, at).unwrap())
                }),
            };
            if kind == FileKind::Directory {
                left.push((path, shown.clone()));
            }
            tree.insert(shown, item);
        }
    }
    tree
}

/// Lines such as `-rw-r--r--   1    0    0        6 Nov 21 2026 [     26 00]  name -> target `.
fn isoinfo(image: &Path, namespace: Namespace, start: u64) -> Tree {
    let names = match namespace {
        Namespace::RockRidge => "-R",
        Namespace::Joliet => "-J",
        Namespace::Plain => "",
    };
    let listing = run(
        "isoinfo",
        &args(&format!("{names} -T {start} -l -i"), &[image.as_os_str()]),
    );
    let posix = namespace == Namespace::RockRidge;
    let mut tree = Tree::new();
    let mut dir = Vec::new();
    for line in listing.split(|byte| *byte == b'\n') {
        if let Some(path) = line.strip_prefix(b"Directory listing of /") {
            dir = path.to_vec();
            continue;
        }
        let Some(at) = line.windows(3).position(|three| three == b"]  ") else {
            continue;
        };
        let (before, name) = (&line[..at], &line[at + 3..]);
        // Mode, links, owner, group, size, month, day, year.
        let columns = String::from_utf8_lossy(before).into_owned();
        let columns = columns.split_once('[').unwrap().0;
        let words: Vec<&str> = columns.split_whitespace().collect();
        let name = name.strip_suffix(b" ").unwrap_or(name);
        let kind = match before[0] {
            b'd' => FileKind::Directory,
            b'l' => FileKind::Symlink,
            // By file(1)'s letters perhaps; `ls` uses p.
            b'f' | b'p' => FileKind::Fifo,
            b'b' => FileKind::BlockDevice,
            b'c' => FileKind::CharDevice,
            b's' => FileKind::Socket,
            _ => FileKind::Regular,
        };
        let arrow = name.windows(4).position(|four| four == b" -> ");
        let (name, target) = match arrow.filter(|_| kind == FileKind::Symlink) {
            Some(at) => (&name[..at], Some(name[at + 4..].to_vec())),
            None => (name, None),
        };
        if matches!(name, b"." | b"..") {
            continue;
        }
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        // In octal, and run together when they are large.
        let octal = |at: usize| u32::from_str_radix(words[at], 8).unwrap();
        let item = Item {
            kind,
            mode: posix.then(|| symbolic(words[0])),
            owner: (posix && words.len() == 8).then(|| (octal(2), octal(3))),
            links: (posix && kind != FileKind::Directory).then(|| number(1)),
            size: (kind == FileKind::Regular).then(|| number(words.len() - 4)),
            time: None,
            target,
            content: None,
        };
        let name = match namespace {
            Namespace::Plain => plain(name),
            _ => name.to_vec(),
        };
        tree.insert([&dir[..], &name].concat(), item);
    }
    match namespace {
        // The directories in paths, too.
        Namespace::Plain => lower(tree),
        _ => tree,
    }
}

/// A recorded plain name as Linux shows it.
pub fn plain(name: &[u8]) -> Vec<u8> {
    let name = name.strip_suffix(b";1").unwrap_or(name);
    let name = name.strip_suffix(b".").unwrap_or(name);
    name.to_ascii_lowercase()
}

/// `rwxr-sr-t` as a number.
fn symbolic(text: &str) -> u32 {
    let mut mode = 0;
    for (at, letter) in text.bytes().skip(1).take(9).enumerate() {
        let bit = 0o400 >> at;
        let special = 0o4000 >> (at / 3);
        mode |= match letter {
            b'-' => 0,
            b's' | b't' => bit | special,
            b'S' | b'T' => special,
            _ => bit,
        };
    }
    mode
}

fn hadris(image: &Path, namespace: Namespace) -> Tree {
    let file = BufReader::new(File::open(image).unwrap());
    let iso = IsoImage::open(file).unwrap();
    let wanted = |ty: &hadris_iso::file::EntryType| match namespace {
        Namespace::Joliet => matches!(ty, hadris_iso::file::EntryType::Joliet { .. }),
        _ => !matches!(ty, hadris_iso::file::EntryType::Joliet { .. }),
    };
    let root = iso
        .root_dirs()
        .iter()
        .find(|root| wanted(&root.entry_type()));
    let mut tree = Tree::new();
    hadris_dir(&iso, root.unwrap().dir_ref(), &[], namespace, &mut tree);
    tree
}

fn hadris_dir(
    iso: &IsoImage<BufReader<File>>,
    dir: DirectoryRef,
    prefix: &[u8],
    namespace: Namespace,
    tree: &mut Tree,
) {
    let posix = namespace == Namespace::RockRidge;
    for entry in iso.open_dir(dir).entries() {
        let entry = entry.unwrap();
        let rock = entry.rrip.clone().filter(|_| posix);
        if entry.is_special() || rock.as_ref().is_some_and(|rock| rock.is_relocated) {
            continue;
        }
        let name = match namespace {
            Namespace::RockRidge => entry.display_name().as_bytes().to_vec(),
            Namespace::Plain => plain(entry.name()),
            Namespace::Joliet => {
                let units = entry.name().chunks_exact(2);
                let units = units.map(|unit| u16::from_be_bytes([unit[0], unit[1]]));
                let name = String::from_utf16(&units.collect::<Vec<_>>()).unwrap();
                name.strip_suffix(";1").unwrap_or(&name).as_bytes().to_vec()
            }
        };
        let path = [prefix, &name].concat();
        let px = rock.as_ref().and_then(|rock| rock.posix_attributes);
        let mode = px.map(|px| px.file_mode.read());
        let kind = match mode.and_then(FileKind::from_mode) {
            Some(kind) if !entry.is_directory() => kind,
            _ if entry.is_directory() => FileKind::Directory,
            _ => FileKind::Regular,
        };
        let is_file = kind == FileKind::Regular;
        let is_dir = kind == FileKind::Directory;
        let content = is_file.then(|| iso.read_file(&entry).unwrap());
        let item = Item {
            kind,
            // Only the record of a relocated directory itself has its mode.
            mode: mode.filter(|_| !is_dir).map(|mode| mode & 0o7777),
            owner: px.map(|px| (px.file_uid.read(), px.file_gid.read())),
            links: px.filter(|_| !is_dir).map(|px| px.file_links.read().into()),
            size: is_file.then(|| entry.total_size()),
            time: None,
            target: rock
                .and_then(|rock| rock.symlink_target)
                .filter(|_| kind == FileKind::Symlink)
                .map(String::into_bytes),
            content: content
                .map(|bytes| hash(|at, mut piece| piece.write(&bytes[at as usize..]).unwrap())),
        };
        if is_dir {
            let below = [&path[..], b"/"].concat();
            let dir = entry.as_dir_ref(iso).unwrap();
            hadris_dir(iso, dir, &below, namespace, tree);
        }
        tree.insert(path, item);
    }
}
