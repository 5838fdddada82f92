//! Copies a host directory into a tree: `amino import`.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use goanna_vfs::{Acl, Caller, Errno, FileKind, Place, TimeSet, caps, escape, look_up_again, ops};
use rustix::fs::Stat;

use super::content::ContentWriter;
use super::error::CopyError;
use super::host::{self, At};
use super::progress::{CopyObserver, Progress, Summary, Total};
use crate::{Error, Tree, absolute, join};

/// A copy into a tree.
pub struct Import<'a> {
    tree: &'a Tree,
    writer: &'a dyn ContentWriter,
    force: bool,
    /// Device and inode number of the directory that is left out: the store itself.
    leave_out: Option<(u64, u64)>,
    /// Copies of files with several names, by the originals' device and inode number.
    copies: HashMap<(u64, u64), Place>,
    /// A directory that was there before has a default access control list, so what the copy makes may have inherited lists.
    inherits: bool,
    progress: Progress<'a>,
}

/// A directory that is being copied.
struct Level {
    host: OwnedFd,
    names: std::vec::IntoIter<CString>,
    dir: Place,
    stat: Stat,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    path: Vec<u8>,
}

/// Counts the names below a directory, for a progress bar. The content of unreadable directories is not counted.
pub fn total(top: &Path) -> Total {
    let mut total = Total::default();
    let Ok(fd) = host::open_top(top) else {
        return total;
    };
    let names = host::list(&fd).unwrap_or_default().into_iter();
    let mut stack = vec![(fd, names)];
    while let Some((fd, names)) = stack.last_mut() {
        let Some(name) = names.next() else {
            stack.pop();
            continue;
        };
        total.files += 1;
        let at = At {
            dir: fd.as_fd(),
            name: &name,
        };
        let Ok(stat) = at.stat() else { continue };
        match host::kind(&stat) {
            Some(FileKind::Regular) => total.bytes += stat.st_size.unsigned_abs(),
            Some(FileKind::Directory) => {
                if let Ok(fd) = at.open_dir() {
                    let names = host::list(&fd).unwrap_or_default().into_iter();
                    stack.push((fd, names));
                }
            }
            _ => {}
        }
    }
    total
}

impl<'a> Import<'a> {
    /// A copy into `tree` that makes files by `writer` and leaves out the host directory `leave_out`, which holds `tree`.
    /// With `force` it replaces files that are in the way.
    pub fn new(
        tree: &'a Tree,
        writer: &'a dyn ContentWriter,
        leave_out: &Path,
        force: bool,
        observer: &'a dyn CopyObserver,
    ) -> Self {
        let leave_out = rustix::fs::stat(leave_out).ok();
        Self {
            tree,
            writer,
            force,
            leave_out: leave_out.map(|stat| (stat.st_dev, stat.st_ino)),
            copies: HashMap::new(),
            inherits: false,
            progress: Progress::new(observer),
        }
    }

    /// Copies the content of the host directory `from` into the directory `to` of the tree.
    pub fn run(mut self, from: &Path, to: &[u8]) -> Result<Summary, Error> {
        let host_error = |errno: rustix::io::Errno| Error::host(from, errno);
        let fd = host::open_top(from).map_err(host_error)?;
        let stat = rustix::fs::fstat(&fd).map_err(host_error)?;
        let xattrs = At {
            dir: fd.as_fd(),
            name: c".",
        }
        .xattrs();
        let dir = self.make_path(to)?;
        self.inherits = self.has_default_list(&dir);
        let names = host::list(&fd).map_err(host_error)?.into_iter();
        self.progress.counts().directories += 1;
        let mut stack = vec![Level {
            host: fd,
            names,
            dir,
            stat,
            xattrs: xattrs.map_err(host_error)?,
            path: from.as_os_str().as_bytes().to_vec(),
        }];
        while let Some(level) = stack.last_mut() {
            match level.names.next() {
                Some(name) => {
                    let path = join(&level.path, name.to_bytes());
                    self.progress.begin(&path);
                    match self.entry(level, &name, &path) {
                        Ok(Some(below)) => stack.push(below),
                        Ok(None) => {}
                        Err(error) => self.progress.skip(&path, error),
                    }
                }
                None => {
                    let done = stack.pop();
                    if let Some(level) = done {
                        self.finish_dir(&level);
                    }
                }
            }
        }
        let sync = || self.tree.fs().sync(None);
        self.tree
            .retry_while_locked(sync)
            .map_err(|errno| self.tree.error(b"/", errno))?;
        Ok(self.progress.summary)
    }

    fn caller(&self) -> &'a Caller {
        &self.tree.caller
    }

    /// The directory `path` of the tree; makes it and those above it where they are missing.
    fn make_path(&self, path: &[u8]) -> Result<Place, Error> {
        let path = absolute(path);
        let mut made: Vec<u8> = b"/".to_vec();
        let mut at = self
            .tree
            .resolve(&made, true)
            .map_err(|errno| self.tree.error(&made, errno))?;
        for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            let dir = at;
            made = join(&made, name);
            let fail = |errno| self.tree.error(&made, errno);
            at = match self.tree.resolve(&made, true) {
                Err(Errno::ENOENT) if !matches!(name, b"." | b"..") => {
                    let mkdir = || ops::mkdir(self.caller(), &dir, name, 0o755);
                    let node = self.tree.retry_while_locked(mkdir).map_err(fail)?;
                    self.tree.place(node)
                }
                place => place.map_err(fail)?,
            };
            if !at.node.is_dir() {
                return Err(fail(Errno::ENOTDIR));
            }
        }
        Ok(at)
    }

    fn entry(
        &mut self,
        level: &Level,
        name: &CString,
        path: &[u8],
    ) -> Result<Option<Level>, CopyError> {
        let at = At {
            dir: level.host.as_fd(),
            name,
        };
        let stat = at.stat()?;
        let kind = host::kind(&stat).ok_or(CopyError::text("no kind of file that is known"))?;
        if kind == FileKind::Directory {
            return self.directory(level, at, path);
        }
        let identity = (stat.st_dev, stat.st_ino);
        if let Some(first) = self.copies.get(&identity).cloned() {
            self.clear_name(&level.dir, name.to_bytes())?;
            let link = || ops::link(self.caller(), &first, &level.dir, name.to_bytes());
            self.tree.retry_while_locked(link)?;
            self.progress.counts().hard_links += 1;
            return Ok(None);
        }
        let place = match kind {
            // Another process may replace a file of a mount before its content is read; then no copy is left.
            FileKind::Regular => look_up_again(|| self.regular(level, at, path))?,
            FileKind::Symlink => self.symlink(level, at, &stat, path)?,
            _ => self.special(level, at, &stat, path)?,
        };
        if stat.st_nlink > 1 {
            self.copies.insert(identity, place);
        }
        Ok(None)
    }

    fn directory(
        &mut self,
        level: &Level,
        at: At<'_>,
        path: &[u8],
    ) -> Result<Option<Level>, CopyError> {
        let fd = at.open_dir()?;
        let stat = rustix::fs::fstat(&fd)?;
        if self.leave_out == Some((stat.st_dev, stat.st_ino)) {
            self.progress
                .notice(path, "left out, because it is the store itself");
            return Ok(None);
        }
        let xattrs = at.xattrs()?;
        let names = host::list(&fd)?.into_iter();
        let name = at.name.to_bytes();
        let mkdir = || ops::mkdir(self.caller(), &level.dir, name, 0o700);
        let dir = match self.tree.retry_while_locked(mkdir) {
            Ok(node) => self.tree.place(node),
            Err(Errno::EEXIST) => {
                let place = self.tree.lookup(&level.dir, name)?;
                if !place.node.is_dir() && self.force {
                    self.unlink(&level.dir, name)?;
                    self.tree.place(self.tree.retry_while_locked(mkdir)?)
                } else if place.node.is_dir() {
                    self.inherits |= self.has_default_list(&place);
                    place
                } else {
                    return Err(CopyError::text(IN_THE_WAY));
                }
            }
            Err(errno) => return Err(errno.into()),
        };
        self.progress.counts().directories += 1;
        Ok(Some(Level {
            host: fd,
            names,
            dir,
            stat,
            xattrs,
            path: path.to_vec(),
        }))
    }

    fn has_default_list(&self, dir: &Place) -> bool {
        let get = || ops::getxattr(self.caller(), dir, Acl::DEFAULT);
        self.tree.retry_while_locked(get).is_ok()
    }

    fn unlink(&self, dir: &Place, name: &[u8]) -> Result<(), Errno> {
        let unlink = || ops::unlink(self.caller(), dir, name);
        self.tree.retry_while_locked(unlink)
    }

    /// Makes sure that `name` is free: with `force` it removes a file that has it.
    fn clear_name(&self, dir: &Place, name: &[u8]) -> Result<(), CopyError> {
        match self.tree.lookup(dir, name) {
            Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
            Ok(place) if place.node.is_dir() => {
                Err(CopyError::text("a directory of the store is in the way"))
            }
            Ok(_) if self.force => Ok(self.unlink(dir, name)?),
            Ok(_) => Err(CopyError::text(IN_THE_WAY)),
        }
    }

    fn regular(&mut self, level: &Level, at: At<'_>, path: &[u8]) -> Result<Place, CopyError> {
        let from = at.open_file()?;
        let stat = rustix::fs::fstat(&from)?;
        if host::kind(&stat) != Some(FileKind::Regular) {
            return Err(CopyError::text("was exchanged while it was read"));
        }
        let xattrs = at.xattrs()?;
        let name = at.name.to_bytes();
        self.clear_name(&level.dir, name)?;
        let progress = &mut self.progress;
        let mut copied = |part| progress.copied(part);
        let place = self
            .writer
            .write(self.tree, &level.dir, name, from, &mut copied)?;
        self.attributes(path, &place, &stat, &xattrs)?;
        self.progress.counts().files += 1;
        Ok(place)
    }

    fn symlink(
        &mut self,
        level: &Level,
        at: At<'_>,
        stat: &Stat,
        path: &[u8],
    ) -> Result<Place, CopyError> {
        let target = at.target()?;
        let name = at.name.to_bytes();
        self.clear_name(&level.dir, name)?;
        let symlink = || ops::symlink(self.caller(), &level.dir, name, target.to_bytes());
        let node = self.tree.retry_while_locked(symlink)?;
        let place = self.tree.place(node);
        self.attributes(path, &place, stat, &at.xattrs()?)?;
        self.progress.counts().symlinks += 1;
        Ok(place)
    }

    fn special(
        &mut self,
        level: &Level,
        at: At<'_>,
        stat: &Stat,
        path: &[u8],
    ) -> Result<Place, CopyError> {
        let name = at.name.to_bytes();
        self.clear_name(&level.dir, name)?;
        let mode = stat.st_mode & nix::libc::S_IFMT | 0o600;
        let mknod = || ops::mknod(self.caller(), &level.dir, name, mode, stat.st_rdev);
        let node = self.tree.retry_while_locked(mknod)?;
        let place = self.tree.place(node);
        self.attributes(path, &place, stat, &at.xattrs()?)?;
        self.progress.counts().special += 1;
        Ok(place)
    }

    fn finish_dir(&mut self, level: &Level) {
        if let Err(error) = self.attributes(&level.path, &level.dir, &level.stat, &level.xattrs) {
            self.progress.skip(&level.path, error);
        }
    }

    /// Gives a file that was just made its attributes. It needs none when another process has removed or replaced it since.
    fn attributes(
        &self,
        path: &[u8],
        place: &Place,
        stat: &Stat,
        xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<(), CopyError> {
        match self.set_attributes(path, place, stat, xattrs) {
            Err(error) if error == Errno::ESTALE => Ok(()),
            done => done,
        }
    }

    /// Owner first, because a change of owner takes set-id bits and capabilities away; times last, because
    /// everything else changes them.
    fn set_attributes(
        &self,
        path: &[u8],
        place: &Place,
        stat: &Stat,
        xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<(), CopyError> {
        let (tree, caller) = (self.tree, self.caller());
        if caller.capable(caps::CHOWN) {
            let chown = || ops::chown(caller, place, Some(stat.st_uid), Some(stat.st_gid));
            tree.retry_while_locked(chown)?;
        }
        if self.inherits && place.node.kind() != FileKind::Symlink {
            for list in [Acl::ACCESS, Acl::DEFAULT] {
                if !xattrs.iter().any(|(name, _)| name == list) {
                    tree.retry_while_locked(|| ops::removexattr(caller, place, list))?;
                }
            }
        }
        for (name, value) in xattrs {
            let set = || ops::setxattr(caller, place, name, value, 0);
            match tree.retry_while_locked(set) {
                Err(Errno::EOPNOTSUPP | Errno::EPERM) if !name.starts_with(b"user.") => self
                    .progress
                    .notice(path, &format!("{} not kept: not supported", escape(name))),
                result => result?,
            }
        }
        let (atime, mtime) = host::times(stat);
        if place.node.kind() != FileKind::Symlink {
            let chmod = || ops::chmod(caller, place, stat.st_mode & 0o7777);
            tree.retry_while_locked(chmod)?;
        }
        let (atime, mtime) = (Some(TimeSet::At(atime)), Some(TimeSet::At(mtime)));
        let utimens = || ops::utimens(caller, place, atime, mtime);
        Ok(tree.retry_while_locked(utimens)?)
    }
}

const IN_THE_WAY: &str = "the store has a file of that name; --force replaces it";
