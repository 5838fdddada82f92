//! `amino export`: a directory of the store to the host.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use goanna_vfs::{Attr, FileKind, Place, caps};
use rustix::fs::{AtFlags, OFlags};

use super::host::{self, At};
use super::report::{Report, Total};
use super::tree::{Entry, Tree, absolute, join};
use super::trouble::Trouble;
use crate::error::Error;
use crate::names;

const CHUNK: usize = 1 << 20;
/// Zeros of this length and alignment become holes: what was a hole in the store cannot be told from zeros.
const PAGE: usize = 4096;

/// A copy out of a store.
pub struct Export<'a> {
    tree: &'a Tree,
    force: bool,
    owners: bool,
    top: OwnedFd,
    /// Where the first name of a file with several was written: components below `top`.
    seen: HashMap<u64, Vec<CString>>,
    report: Report,
    buffer: Vec<u8>,
}

/// A directory in work.
struct Level {
    host: OwnedFd,
    entries: std::vec::IntoIter<Entry>,
    place: Place,
    /// Its name in the directory above; `None` for the top.
    name: Option<CString>,
    /// Whether its metadata is the store's to set.
    ours: bool,
    path: Vec<u8>,
}

/// Counts what is below a directory of the store, for the progress bar.
pub fn total(tree: &Tree, dir: &Place) -> Total {
    let mut total = Total::default();
    let mut stack = tree.list(dir).unwrap_or_default();
    while let Some(entry) = stack.pop() {
        total.files += 1;
        match entry.place.node.kind() {
            FileKind::Directory => stack.extend(tree.list(&entry.place).unwrap_or_default()),
            FileKind::Regular => total.bytes += tree.attr(&entry.place).map_or(0, |attr| attr.size),
            _ => {}
        }
    }
    total
}

/// Opens HOSTDIR, which is made when it does not exist; whether it was empty.
pub fn open_target(path: &Path, force: bool) -> Result<(OwnedFd, bool), Error> {
    let fail = |errno: rustix::io::Errno| Error::host(path, errno);
    match rustix::fs::mkdir(path, rustix::fs::Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(errno) => return Err(fail(errno)),
    }
    let fd = host::open_top(path).map_err(fail)?;
    let empty = host::list(&fd).map_err(fail)?.is_empty();
    if !empty && !force {
        return Err(Error::NotEmpty(path.to_owned()));
    }
    Ok((fd, empty))
}

impl<'a> Export<'a> {
    /// A copy from `tree` into the open directory `top`.
    pub fn new(tree: &'a Tree, force: bool, top: OwnedFd, report: Report) -> Self {
        Self {
            tree,
            force,
            owners: tree.caller.capable(caps::CHOWN),
            top,
            seen: HashMap::new(),
            report,
            buffer: vec![0; CHUNK],
        }
    }

    /// Copies what is in the directory `place`, called `path`. `ours`: the top directory gets its metadata.
    pub fn run(mut self, place: Place, path: &[u8], ours: bool) -> Result<Report, Error> {
        let path = absolute(path);
        let entries = self
            .tree
            .list(&place)
            .map_err(|errno| Error::in_store(&path, errno))?
            .into_iter();
        let host = rustix::io::fcntl_dupfd_cloexec(&self.top, 0)
            .map_err(|errno| Error::host(Path::new("."), errno))?;
        self.report.done.directories += 1;
        let mut stack = vec![Level {
            host,
            entries,
            place,
            name: None,
            ours,
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
            self.report.begin(&path);
            match self.entry(&mut stack, entry, &path) {
                Ok(Some(below)) => stack.push(below),
                Ok(None) => {}
                Err(trouble) => self.report.skip(&path, trouble),
            }
        }
        Ok(self.report)
    }

    fn entry(
        &mut self,
        stack: &mut [Level],
        entry: Entry,
        path: &[u8],
    ) -> Result<Option<Level>, Trouble> {
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
            return self.directory(at, entry.place, path);
        }
        if let Some(first) = self.seen.get(&attr.ino) {
            let (dir, first) = self.descend(first)?;
            self.make_way(at)?;
            rustix::fs::linkat(&dir, &first, at.dir, at.name, AtFlags::empty())?;
            self.report.done.hard_links += 1;
            return Ok(None);
        }
        self.make_way(at)?;
        match attr.kind() {
            FileKind::Regular => {
                self.regular(at, &entry.place)?;
                self.report.done.files += 1;
            }
            FileKind::Symlink => {
                let target = self.tree.target(&entry.place)?.unwrap_or_default();
                rustix::fs::symlinkat(&target[..], at.dir, at.name)?;
                self.report.done.symlinks += 1;
            }
            FileKind::CharDevice | FileKind::BlockDevice
                if !self.tree.caller.capable(caps::MKNOD) =>
            {
                return Err(Trouble::text("only root can make device nodes"));
            }
            _ => {
                at.make_node(&attr)?;
                self.report.done.special += 1;
            }
        }
        if attr.nlink > 1 {
            let above = stack.iter().filter_map(|level| level.name.clone());
            let components = above.chain([name.clone()]).collect();
            self.seen.insert(attr.ino, components);
        }
        self.attributes(at, &entry.place, &attr, path)?;
        Ok(None)
    }

    /// The directory and name of a file written before. Every component is opened without following links,
    /// so that nobody can lead us elsewhere meanwhile.
    fn descend(&self, components: &[CString]) -> Result<(OwnedFd, CString), Trouble> {
        let (name, above) = components
            .split_last()
            .ok_or(Trouble::text("its first name is lost"))?;
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
    ) -> Result<Option<Level>, Trouble> {
        let entries = self.tree.list(&place)?.into_iter();
        if self.force
            && at
                .stat()
                .is_ok_and(|stat| host::kind(&stat) != Some(FileKind::Directory))
        {
            rustix::fs::unlinkat(at.dir, at.name, AtFlags::empty())?;
        }
        let (host, ours) = at.make_dir(self.force)?;
        self.report.done.directories += 1;
        Ok(Some(Level {
            host,
            entries,
            place,
            name: Some(at.name.to_owned()),
            ours,
            path: path.to_vec(),
        }))
    }

    /// With `--force`, removes what is in the way and no directory.
    fn make_way(&self, at: At<'_>) -> Result<(), Trouble> {
        match at.stat() {
            Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
            Ok(stat) if host::kind(&stat) == Some(FileKind::Directory) => {
                Err(Trouble::text("a host directory of that name is in the way"))
            }
            Ok(_) if self.force => Ok(rustix::fs::unlinkat(at.dir, at.name, AtFlags::empty())?),
            Ok(_) => Err(Trouble::text(
                "a host file of that name is in the way; --force replaces it",
            )),
        }
    }

    fn regular(&mut self, at: At<'_>, place: &Place) -> Result<(), Trouble> {
        self.tree.may_read(place)?;
        let file = at.create_file()?;
        let copied = self.data(&file, place);
        if copied.is_err() {
            // Half a file under its full name would be taken for the whole.
            rustix::fs::unlinkat(at.dir, at.name, AtFlags::empty())?;
        }
        copied
    }

    fn data(&mut self, file: &OwnedFd, place: &Place) -> Result<(), Trouble> {
        let mut offset = 0;
        loop {
            let count = self.tree.read(place, offset, &mut self.buffer)?;
            let chunk = self.buffer.get(..count).unwrap_or_default();
            let mut at = 0;
            while let Some(rest) = chunk.get(at..).filter(|rest| !rest.is_empty()) {
                let (zeros, length) = run_of(rest);
                let piece = rest.get(..length).unwrap_or_default();
                if zeros {
                    self.report.passed_hole(length as u64);
                } else {
                    write_all(file, piece, offset + at as u64)?;
                    self.report.wrote(length as u64);
                }
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
        if !level.ours {
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
            .map_err(Trouble::from)
            .and_then(|attr| self.attributes(at, &level.place, &attr, &level.path));
        if let Err(trouble) = done {
            self.report.skip(&level.path, trouble);
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
    ) -> Result<(), Trouble> {
        let mut mode = attr.perm();
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
        for (name, value) in self.tree.xattrs(place)? {
            match at.set_xattr(&name, &value) {
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::PERM) => {
                    let what = format!("{} not kept: the host refuses it", names::escape(&name));
                    self.report.notice(path, &what);
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

/// A name of the store as a single component of a host path: whatever a damaged store holds, it cannot lead out
/// of its directory.
fn host_name(name: &[u8]) -> Result<CString, Trouble> {
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') {
        return Err(Trouble::text("its name is not valid; see amino fsck"));
    }
    CString::new(name).map_err(|_| Trouble::text("its name is not valid; see amino fsck"))
}

/// The length of the pages at the start of `data` that are all zero, or all not, and which.
fn run_of(data: &[u8]) -> (bool, usize) {
    let zero = |page: &&[u8]| page.iter().all(|&byte| byte == 0);
    let first = data.chunks(PAGE).next().is_some_and(|page| zero(&page));
    let run = data.chunks(PAGE).take_while(|page| zero(page) == first);
    (first, run.map(<[u8]>::len).sum())
}

fn write_all(file: &OwnedFd, mut data: &[u8], mut offset: u64) -> Result<(), Trouble> {
    while !data.is_empty() {
        let count = rustix::io::pwrite(file, data, offset)?;
        data = data.get(count..).unwrap_or_default();
        offset += count as u64;
    }
    Ok(())
}
