//! Lists directories and reads files, for `ls`, `cat`, `stat` and `tree`.
//!
//! The functions pass their results to a closure, piece by piece, so that the memory they use depends neither on the number
//! of files nor on their sizes. They also pass on errors of single files, and continue.

use std::collections::HashSet;

use goanna_vfs::{Attr, Errno, FileKind, Place, look_up_again};

use crate::{Error, Tree, absolute, join};

/// Number of bytes of a file that are read at once.
const CHUNK: usize = 1 << 20;

/// A file with its metadata.
#[derive(Debug)]
pub struct FileInfo {
    /// Its name in the directory, or the requested path.
    pub name: Vec<u8>,
    /// Its path in the tree.
    pub path: Vec<u8>,
    /// Its inode.
    pub place: Place,
    /// Metadata.
    pub attr: Attr,
    /// The target, of a symbolic link.
    pub target: Option<Vec<u8>>,
}

impl FileInfo {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.attr.kind() == FileKind::Directory
    }

    fn of(tree: &Tree, name: Vec<u8>, path: Vec<u8>, place: Place) -> Result<Self, Error> {
        let fail = |errno| tree.error(&path, errno);
        let attr = tree.attr(&place).map_err(fail)?;
        let target = tree.target(&place).map_err(fail)?;
        Ok(Self {
            name,
            path,
            place,
            attr,
            target,
        })
    }
}

/// The options of [`list`].
#[derive(Debug, Clone, Copy)]
pub struct ListOptions {
    /// Follow symbolic links among the requested paths.
    pub follow: bool,
    /// Also names that begin with a dot.
    pub hidden: bool,
    /// Also all directories below.
    pub recursive: bool,
}

/// One step of [`list`].
#[derive(Debug)]
pub enum Listed {
    /// The requested paths that are not directories. This step comes once, before all directories.
    Files(Vec<FileInfo>),
    /// A directory.
    Directory {
        /// Its path.
        path: Vec<u8>,
        /// Its entries.
        entries: Vec<FileInfo>,
    },
    /// A requested path could not be listed.
    PathFailed(Error),
    /// An entry below a requested path could not be listed.
    EntryFailed(Error),
}

/// Lists `paths` as ls(1) does. Ends early only with an error of `visit`.
pub fn list<'a, E>(
    tree: &Tree,
    paths: impl IntoIterator<Item = &'a [u8]>,
    options: ListOptions,
    visit: &mut dyn FnMut(Listed) -> Result<(), E>,
) -> Result<(), E> {
    let mut files = Vec::new();
    let mut dirs = Vec::new();
    for path in paths {
        let path = absolute(path);
        let place = match resolve(tree, &path, options.follow) {
            Ok(place) if place.node.is_dir() => {
                dirs.push((path, place));
                continue;
            }
            place => place,
        };
        match place.and_then(|place| FileInfo::of(tree, path.clone(), path, place)) {
            Ok(file) => files.push(file),
            Err(error) => visit(Listed::PathFailed(error))?,
        }
    }
    visit(Listed::Files(files))?;
    for top in dirs {
        list_below(tree, top, options, visit)?;
    }
    Ok(())
}

/// As in ls(1), follows a link that was named on the command line, but shows a dangling link itself.
fn resolve(tree: &Tree, path: &[u8], follow: bool) -> Result<Place, Error> {
    let place = match tree.resolve(path, follow) {
        Err(Errno::ENOENT) => tree.resolve(path, false),
        place => place,
    };
    place.map_err(|errno| tree.error(path, errno))
}

/// Lists the directory `top`, and on request all directories below it.
fn list_below<E>(
    tree: &Tree,
    top: (Vec<u8>, Place),
    options: ListOptions,
    visit: &mut dyn FnMut(Listed) -> Result<(), E>,
) -> Result<(), E> {
    let mut seen = HashSet::from([top.1.node.ino()]);
    let mut left = vec![top];
    while let Some((path, dir)) = left.pop() {
        let mut failed = |error| visit(Listed::EntryFailed(error));
        let entries = match entries(tree, &path, &dir, options.hidden, &mut failed)? {
            Ok(entries) => entries,
            Err(error) => {
                visit(Listed::EntryFailed(error))?;
                continue;
            }
        };
        let below: Vec<(u64, Vec<u8>, Place)> = entries
            .iter()
            .rev()
            .filter(|file| options.recursive && file.is_dir())
            .map(|file| (file.attr.ino, file.path.clone(), file.place.clone()))
            .collect();
        visit(Listed::Directory { path, entries })?;
        for (ino, path, place) in below {
            // In a damaged image the number of ways to a directory may be unbounded.
            if seen.insert(ino) {
                left.push((path, place));
            } else {
                visit(Listed::EntryFailed(Error::TwoPlaces(path)))?;
            }
        }
    }
    Ok(())
}

/// The entries of a directory. Entries with unreadable metadata go to `failed` and are left out.
fn entries<E>(
    tree: &Tree,
    path: &[u8],
    dir: &Place,
    hidden: bool,
    failed: &mut dyn FnMut(Error) -> Result<(), E>,
) -> Result<Result<Vec<FileInfo>, Error>, E> {
    let list = match tree.list(dir) {
        Ok(list) => list,
        Err(errno) => return Ok(Err(tree.error(path, errno))),
    };
    let mut files = Vec::with_capacity(list.len());
    for entry in list {
        if !hidden && entry.name.first() == Some(&b'.') {
            continue;
        }
        let path = join(path, &entry.name);
        match FileInfo::of(tree, entry.name, path, entry.place) {
            Ok(file) => files.push(file),
            Err(error) => failed(error)?,
        }
    }
    Ok(Ok(files))
}

/// Passes the content of the regular file `path` to `visit`, in pieces. Symbolic links are followed.
pub fn read<E: From<Error>>(
    tree: &Tree,
    path: &[u8],
    visit: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let fail = |errno| E::from(tree.error(path, errno));
    let mut buffer = vec![0; CHUNK];
    // Another process may replace the file before the first piece is read.
    let opened = look_up_again(|| {
        let place = tree.resolve(&absolute(path), true)?;
        match place.node.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::ENXIO),
        }
        tree.may_read(&place)?;
        let count = tree.read(&place, 0, &mut buffer)?;
        Ok((place, count))
    });
    let (place, mut count) = opened.map_err(fail)?;
    let mut offset = 0;
    loop {
        visit(buffer.get(..count).unwrap_or_default())?;
        // A read is short only at the end of the file.
        if count < buffer.len() {
            return Ok(());
        }
        offset += count as u64;
        count = tree.read(&place, offset, &mut buffer).map_err(fail)?;
    }
}

/// Extended attributes, by name.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// All metadata of the file `path`. With `follow`, a symbolic link is followed.
pub fn stat(tree: &Tree, path: &[u8], follow: bool) -> Result<(FileInfo, Xattrs), Error> {
    let path = absolute(path);
    let fail = |errno| tree.error(&path, errno);
    let place = tree.resolve(&path, follow).map_err(fail)?;
    let xattrs = tree.xattrs(&place).map_err(fail)?;
    Ok((FileInfo::of(tree, path.clone(), path, place)?, xattrs))
}

/// The options of [`walk`].
#[derive(Debug, Clone, Copy)]
pub struct WalkOptions {
    /// Also names that begin with a dot.
    pub hidden: bool,
    /// Number of levels to descend; `None`: all.
    pub levels: Option<u32>,
}

/// One step of [`walk`].
#[derive(Debug)]
pub enum Walked<'a> {
    /// A file, after the directory that it is in.
    File {
        /// The file.
        file: &'a FileInfo,
        /// For each level from the top, whether the entry on the way to this file is the last of its directory.
        is_last: &'a [bool],
    },
    /// An entry could not be listed.
    Failed(Error),
}

/// The entries of a directory that are yet to be visited.
type Level = std::iter::Peekable<std::vec::IntoIter<FileInfo>>;

/// Visits the directory `path` and all below it, parents first, in the order of names.
pub fn walk<E: From<Error>>(
    tree: &Tree,
    path: &[u8],
    options: WalkOptions,
    visit: &mut dyn FnMut(Walked<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let path = absolute(path);
    let fail = |errno| tree.error(&path, errno);
    let root = tree.resolve(&path, true).map_err(fail)?;
    if !root.node.is_dir() {
        return Err(fail(Errno::ENOTDIR).into());
    }
    let top = FileInfo::of(tree, path.clone(), path.clone(), root)?;
    visit(Walked::File {
        file: &top,
        is_last: &[],
    })?;
    let mut stack = vec![level(tree, &top, options.hidden, visit)??];
    while let Some(directory) = stack.last_mut() {
        let Some(file) = directory.next() else {
            stack.pop();
            continue;
        };
        let is_last: Vec<bool> = stack.iter_mut().map(|l| l.peek().is_none()).collect();
        visit(Walked::File {
            file: &file,
            is_last: &is_last,
        })?;
        let descends = |limit| (stack.len() as u64) < u64::from(limit);
        if !file.is_dir() || !options.levels.is_none_or(descends) {
            continue;
        }
        match level(tree, &file, options.hidden, visit)? {
            Ok(level) => stack.push(level),
            Err(error) => visit(Walked::Failed(error))?,
        }
    }
    Ok(())
}

fn level<E>(
    tree: &Tree,
    dir: &FileInfo,
    hidden: bool,
    visit: &mut dyn FnMut(Walked<'_>) -> Result<(), E>,
) -> Result<Result<Level, Error>, E> {
    let mut failed = |error| visit(Walked::Failed(error));
    let entries = entries(tree, &dir.path, &dir.place, hidden, &mut failed)?;
    Ok(entries.map(|entries| entries.into_iter().peekable()))
}
