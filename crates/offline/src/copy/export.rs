//! Copies a directory of a tree to the host: `amino export` and `goanna iso extract`.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use goanna_vfs::{Acl, Attr, FileKind, Place, caps, escape, look_up_again};
use rustix::fs::{AtFlags, OFlags};

use super::content::Copied;
use super::error::CopyError;
use super::host::{self, At};
use super::progress::{CopyObserver, Progress, Summary, Total};
use crate::error::TWO_PLACES;
use crate::{Entry, Error, Tree, absolute, join};

/// How much of a file is read at once, bytes.
const CHUNK: usize = 1 << 20;
/// Zeros of this length and alignment, in bytes, become holes: the tree does not report where its files have holes.
const PAGE: usize = 4096;

/// Which paths are copied: those that were asked for, what is below them, and the directories on the way there.
#[derive(Debug, Default)]
pub struct Selection(Vec<Vec<u8>>);

impl Selection {
    /// Adds a path from the root, as [`goanna_vfs::FileSystem::path`] gives it.
    pub fn add(&mut self, path: Vec<u8>) {
        self.0.push(path);
    }

    /// Whether nothing was asked for: then all is copied.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `path` is selected; every path is where nothing was asked for.
    fn contains(&self, path: &[u8]) -> bool {
        let above = |above: &[u8], path: &[u8]| match path.strip_prefix(above) {
            Some(rest) => matches!(rest.first(), None | Some(b'/')) || above == b"/",
            None => false,
        };
        let mut asked = self.0.iter();
        self.is_empty() || asked.any(|asked| above(asked, path) || above(path, asked))
    }
}

/// Which owners and modes the copies get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Modes {
    /// Those that the tree records.
    Recorded,
    /// Those of any new file, with this umask: the tree records none.
    New(u32),
}

/// A copy out of a tree.
pub struct Export<'a> {
    tree: &'a Tree,
    force: bool,
    /// Directories that exist are copied into, too.
    merge: bool,
    owners: bool,
    modes: Modes,
    selection: Selection,
    /// Directories met, by inode number.
    entered: HashSet<u64>,
    top: OwnedFd,
    /// The first name of each file with several names: components below `top`.
    first_names: HashMap<u64, Vec<CString>>,
    /// A directory that was there before has a default access control list, so what the copy makes may have inherited lists.
    inherits: bool,
    progress: Progress<'a>,
    buffer: Vec<u8>,
}

/// A directory that is being copied.
struct Level {
    host: OwnedFd,
    entries: std::vec::IntoIter<Entry>,
    place: Place,
    /// Its name in the directory above; `None` for the top.
    name: Option<CString>,
    /// Whether the copy made it, and so sets its metadata.
    made: bool,
    path: Vec<u8>,
}

/// Counts what is selected below the directory `dir`, whose path is `path`, for a progress bar.
pub fn total(tree: &Tree, dir: &Place, path: &[u8], selection: &Selection) -> Total {
    let mut total = Total::default();
    let mut seen = HashSet::new();
    let mut left = vec![(path.to_vec(), dir.clone())];
    while let Some((path, dir)) = left.pop() {
        if !seen.insert(dir.node.ino()) {
            continue;
        }
        for entry in tree.list(&dir).unwrap_or_default() {
            let path = join(&path, &entry.name);
            if !selection.contains(&path) {
                continue;
            }
            total.files += 1;
            match entry.place.node.kind() {
                FileKind::Directory => left.push((path, entry.place)),
                FileKind::Regular => {
                    let size = tree.attr(&entry.place).map_or(0, |attr| attr.size);
                    total.bytes = total.bytes.saturating_add(size);
                }
                _ => {}
            }
        }
    }
    total
}

/// Opens the directory to copy to, and makes it if it does not exist. Returns also whether it was made.
pub fn make_target(path: &Path) -> Result<(OwnedFd, bool), Error> {
    let fail = |errno: rustix::io::Errno| Error::host(path, errno);
    let made = match rustix::fs::mkdir(path, rustix::fs::Mode::RWXU) {
        Ok(()) => true,
        Err(rustix::io::Errno::EXIST) => false,
        Err(errno) => return Err(fail(errno)),
    };
    Ok((host::open_top(path).map_err(fail)?, made))
}

/// As [`make_target`], for a directory that must be empty unless `force` is set. Returns also whether it was empty.
pub fn open_target(path: &Path, force: bool) -> Result<(OwnedFd, bool), Error> {
    let fail = |errno: rustix::io::Errno| Error::host(path, errno);
    let (fd, _) = make_target(path)?;
    let empty = host::list(&fd).map_err(fail)?.is_empty();
    if !empty && !force {
        return Err(Error::NotEmpty(path.to_owned()));
    }
    Ok((fd, empty))
}

impl<'a> Export<'a> {
    /// A copy from `tree` into the open directory `top`. With `force` it replaces files that are in the way.
    pub fn new(tree: &'a Tree, force: bool, top: OwnedFd, observer: &'a dyn CopyObserver) -> Self {
        Self {
            tree,
            force,
            merge: force,
            owners: tree.caller.capable(caps::CHOWN),
            modes: Modes::Recorded,
            selection: Selection::default(),
            entered: HashSet::new(),
            top,
            first_names: HashMap::new(),
            inherits: false,
            progress: Progress::new(observer),
            buffer: vec![0; CHUNK],
        }
    }

    /// Copies into directories that exist even without `force`.
    pub fn merging(mut self) -> Self {
        self.merge = true;
        self
    }

    /// Gives the copies these owners and modes.
    pub fn with_modes(mut self, modes: Modes) -> Self {
        self.modes = modes;
        self.owners &= modes == Modes::Recorded;
        self
    }

    /// Copies only what is selected.
    pub fn only(mut self, selection: Selection) -> Self {
        self.selection = selection;
        self
    }

    /// Copies the content of the directory `place`, whose path is `path`. With `made` the top directory of the copy gets
    /// the metadata of `place`.
    pub fn run(mut self, place: Place, path: &[u8], made: bool) -> Result<Summary, Error> {
        let path = absolute(path);
        let entries = match self.tree.list(&place) {
            Ok(entries) => entries.into_iter(),
            Err(errno) => {
                self.skip(&path, errno.into());
                return Ok(self.progress.summary);
            }
        };
        self.entered.insert(place.node.ino());
        let host = rustix::io::fcntl_dupfd_cloexec(&self.top, 0)
            .map_err(|errno| Error::host(Path::new("."), errno))?;
        self.inherits = host::has_default_list(&host);
        self.progress.counts().directories += 1;
        let mut stack = vec![Level {
            host,
            entries,
            place,
            name: None,
            made,
            path,
        }];
        while let Some(level) = stack.last_mut() {
            let Some(entry) = level.entries.next() else {
                if let Some(level) = stack.pop() {
                    let above = stack.last().map(|above| &above.host);
                    self.finish_dir(&level, above);
                }
                continue;
            };
            let path = join(&level.path, &entry.name);
            if !self.selection.contains(&path) {
                continue;
            }
            self.progress.begin(&path);
            let (dir, name) = (level.place.clone(), entry.name.clone());
            let mut listed = Some(entry);
            // Another process may replace the file before its content is read; then nothing was copied.
            let copied = look_up_again(|| {
                let entry = match listed.take() {
                    Some(entry) => entry,
                    None => Entry {
                        name: name.clone(),
                        place: self.tree.lookup(&dir, &name)?,
                    },
                };
                self.entry(&mut stack, entry, &path)
            });
            match copied {
                Ok(Some(below)) => stack.push(below),
                Ok(None) => {}
                Err(error) => self.skip(&path, error),
            }
        }
        Ok(self.progress.summary)
    }

    fn skip(&mut self, path: &[u8], error: CopyError) {
        match error {
            CopyError::Tree(errno) => {
                let why = self.tree.why(errno);
                let why = format!("in the {}: {why}", self.tree.source);
                self.progress.skip(path, why);
            }
            other => self.progress.skip(path, other),
        }
    }

    fn entry(
        &mut self,
        stack: &mut [Level],
        entry: Entry,
        path: &[u8],
    ) -> Result<Option<Level>, CopyError> {
        let Some(level) = stack.last() else {
            return Ok(None);
        };
        let name = host_name(&entry.name)?;
        let at = At {
            dir: level.host.as_fd(),
            name: &name,
        };
        let attr = self.tree.attr(&entry.place)?;
        if attr.kind() == FileKind::Directory {
            // In a damaged image the number of ways to a directory may be unbounded.
            if !self.entered.insert(attr.ino) {
                return Err(CopyError::text(TWO_PLACES));
            }
            return self.directory(at, entry.place, path);
        }
        if let Some(first) = self.first_names.get(&attr.ino) {
            let (dir, first) = self.descend(first)?;
            self.clear_name(at)?;
            rustix::fs::linkat(&dir, &first, at.dir, at.name, AtFlags::empty())?;
            self.progress.counts().hard_links += 1;
            return Ok(None);
        }
        self.clear_name(at)?;
        match attr.kind() {
            FileKind::Regular => {
                self.regular(at, &entry.place)?;
                self.progress.counts().files += 1;
            }
            FileKind::Symlink => {
                let target = self.tree.target(&entry.place)?.unwrap_or_default();
                rustix::fs::symlinkat(&target[..], at.dir, at.name)?;
                self.progress.counts().symlinks += 1;
            }
            kind if kind.is_device() && !self.tree.caller.capable(caps::MKNOD) => {
                return Err(CopyError::text("only root can make device nodes"));
            }
            _ => {
                at.make_node(&attr)?;
                self.progress.counts().special += 1;
            }
        }
        if attr.nlink > 1 {
            let above = stack.iter().filter_map(|level| level.name.clone());
            let components = above.chain([name.clone()]).collect();
            self.first_names.insert(attr.ino, components);
        }
        self.attributes(at, &entry.place, &attr, path)?;
        Ok(None)
    }

    /// The directory and name of a file that was copied before. No component is followed as a link, so that no other
    /// process can lead the copy elsewhere meanwhile.
    fn descend(&self, components: &[CString]) -> Result<(OwnedFd, CString), CopyError> {
        let (name, above) = components
            .split_last()
            .ok_or(CopyError::text("its first name is lost"))?;
        let mut dir = rustix::io::fcntl_dupfd_cloexec(&self.top, 0)?;
        for name in above {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            dir = rustix::fs::openat(&dir, name, flags, rustix::fs::Mode::empty())?;
        }
        Ok((dir, name.clone()))
    }

    fn directory(
        &mut self,
        at: At<'_>,
        place: Place,
        path: &[u8],
    ) -> Result<Option<Level>, CopyError> {
        let entries = self.tree.list(&place)?.into_iter();
        if self.force
            && at
                .stat()
                .is_ok_and(|stat| host::kind(&stat) != Some(FileKind::Directory))
        {
            rustix::fs::unlinkat(at.dir, at.name, AtFlags::empty())?;
        }
        let (host, made) = at.make_dir(self.merge)?;
        self.inherits |= !made && host::has_default_list(&host);
        self.progress.counts().directories += 1;
        Ok(Some(Level {
            host,
            entries,
            place,
            name: Some(at.name.to_owned()),
            made,
            path: path.to_vec(),
        }))
    }

    /// Makes sure that the name is free: with `force` it removes a file that has it.
    fn clear_name(&self, at: At<'_>) -> Result<(), CopyError> {
        match at.stat() {
            Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
            Ok(stat) if host::kind(&stat) == Some(FileKind::Directory) => Err(CopyError::text(
                "a host directory of that name is in the way",
            )),
            Ok(_) if self.force => Ok(rustix::fs::unlinkat(at.dir, at.name, AtFlags::empty())?),
            Ok(_) => Err(CopyError::text(
                "a host file of that name is in the way; --force replaces it",
            )),
        }
    }

    fn regular(&mut self, at: At<'_>, place: &Place) -> Result<(), CopyError> {
        self.tree.may_read(place)?;
        let file = at.create_file()?;
        let copied = self.copy_data(&file, place);
        if copied.is_err() {
            // A reader could take a partial copy for the whole file.
            rustix::fs::unlinkat(at.dir, at.name, AtFlags::empty())?;
        }
        copied
    }

    fn copy_data(&mut self, file: &OwnedFd, place: &Place) -> Result<(), CopyError> {
        let mut offset = 0;
        loop {
            let count = self.tree.read(place, offset, &mut self.buffer)?;
            let chunk = self.buffer.get(..count).unwrap_or_default();
            let mut at = 0;
            while let Some(rest) = chunk.get(at..).filter(|rest| !rest.is_empty()) {
                let (zeros, length) = run_of(rest);
                let piece = rest.get(..length).unwrap_or_default();
                let mut copied = Copied::default();
                if zeros {
                    copied.holes = length as u64;
                } else {
                    write_all(file, piece, offset + at as u64)?;
                    copied.data = length as u64;
                }
                self.progress.copied(copied);
                at += length;
            }
            offset += count as u64;
            // Short only at the end.
            if count < self.buffer.len() {
                break;
            }
        }
        Ok(rustix::fs::ftruncate(file, offset)?)
    }

    fn finish_dir(&mut self, level: &Level, above: Option<&OwnedFd>) {
        if !level.made {
            return;
        }
        let at = match (&level.name, above) {
            (Some(name), Some(above)) => At {
                dir: above.as_fd(),
                name,
            },
            _ => At {
                dir: level.host.as_fd(),
                name: c".",
            },
        };
        let done = self
            .tree
            .attr(&level.place)
            .map_err(CopyError::from)
            .and_then(|attr| self.attributes(at, &level.place, &attr, &level.path));
        if let Err(error) = done {
            self.skip(&level.path, error);
        }
    }

    /// Owner first, because a change of owner takes set-id bits and capabilities away; times last, because
    /// everything else changes them.
    fn attributes(
        &self,
        at: At<'_>,
        place: &Place,
        attr: &Attr,
        path: &[u8],
    ) -> Result<(), CopyError> {
        let mut mode = match (self.modes, attr.kind()) {
            (Modes::Recorded, _) => attr.perm(),
            (Modes::New(umask), FileKind::Directory) => 0o777 & !umask,
            (Modes::New(umask), _) => 0o666 & !umask,
        };
        if self.owners {
            at.set_owner(attr.uid, attr.gid)?;
        } else {
            // A set-id bit would now mean another owner than it did.
            let made = at.stat()?;
            if made.st_uid != attr.uid {
                mode &= !nix::libc::S_ISUID;
            }
            if made.st_gid != attr.gid && attr.kind() != FileKind::Directory {
                mode &= !nix::libc::S_ISGID;
            }
        }
        let xattrs = self.tree.xattrs(place)?;
        if self.inherits && self.modes == Modes::Recorded && attr.kind() != FileKind::Symlink {
            for list in [Acl::ACCESS, Acl::DEFAULT] {
                if !xattrs.iter().any(|(name, _)| name == list) {
                    at.remove_xattr(list)?;
                }
            }
        }
        for (name, value) in xattrs {
            match at.set_xattr(&name, &value) {
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::PERM) => {
                    let what = format!("{} not kept: the host refuses it", escape(&name));
                    self.progress.notice(path, &what);
                }
                result => result?,
            }
        }
        if attr.kind() != FileKind::Symlink {
            at.set_mode(mode)?;
        }
        Ok(at.set_times(attr.atime, attr.mtime)?)
    }
}

/// A name as a single component of a host path, so that a damaged store or image cannot lead the copy out of its
/// directory.
fn host_name(name: &[u8]) -> Result<CString, CopyError> {
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') {
        return Err(CopyError::text(BAD_NAME));
    }
    CString::new(name).map_err(|_| CopyError::text(BAD_NAME))
}

const BAD_NAME: &str = "no directory can hold its name";

/// The length of the pages at the start of `data` that are all zero, or all not, and which.
fn run_of(data: &[u8]) -> (bool, usize) {
    let zero = |page: &&[u8]| page.iter().all(|&byte| byte == 0);
    let first = data.chunks(PAGE).next().is_some_and(|page| zero(&page));
    let run = data.chunks(PAGE).take_while(|page| zero(page) == first);
    (first, run.map(<[u8]>::len).sum())
}

fn write_all(file: &OwnedFd, mut data: &[u8], mut offset: u64) -> Result<(), CopyError> {
    while !data.is_empty() {
        let count = rustix::io::pwrite(file, data, offset)?;
        data = data.get(count..).unwrap_or_default();
        offset += count as u64;
    }
    Ok(())
}
