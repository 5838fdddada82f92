//! `amino import`: a host directory into the store.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use amino_fs::AminoFs;
use goanna_vfs::{Caller, Errno, FileKind, Place, TimeSet, caps, ops};
use rustix::fs::Stat;

use super::content::{self, Copied, Source};
use super::host::{self, At};
use super::report::{Report, Total};
use super::tree::{Tree, absolute, join};
use super::trouble::Trouble;
use crate::daemon::RemoteFs;
use crate::error::Error;
use crate::names;

/// Where the content of files goes in.
#[derive(Clone, Copy)]
pub enum Entrance<'a> {
    /// As that of any file system's.
    #[cfg(test)]
    Switch,
    /// The store itself, which takes files without holes faster than the switch can.
    Store(&'a AminoFs),
    /// The process that has it open.
    Owner(&'a RemoteFs),
}

/// A copy into a store.
pub struct Import<'a> {
    tree: &'a Tree,
    entrance: Entrance<'a>,
    force: bool,
    /// Identity of directories that are left out: the store itself.
    leave_out: Option<(u64, u64)>,
    /// Files with several names, by device and inode.
    seen: HashMap<(u64, u64), Place>,
    report: Report,
}

/// A directory in work.
struct Level {
    host: OwnedFd,
    names: std::vec::IntoIter<CString>,
    dir: Place,
    stat: Stat,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    path: Vec<u8>,
}

/// Counts what is below a directory, for the progress bar; what cannot be read counts as nothing.
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
    /// A copy into `tree`, whose `store` is in the host directory `leave_out`.
    pub fn new(
        tree: &'a Tree,
        entrance: Entrance<'a>,
        leave_out: &Path,
        force: bool,
        report: Report,
    ) -> Self {
        let leave_out = rustix::fs::stat(leave_out).ok();
        Self {
            tree,
            entrance,
            force,
            leave_out: leave_out.map(|stat| (stat.st_dev, stat.st_ino)),
            seen: HashMap::new(),
            report,
        }
    }

    /// Copies what is in the host directory `from` into the directory `to` of the store.
    pub fn run(mut self, from: &Path, to: &[u8]) -> Result<Report, Error> {
        let host_error = |errno: rustix::io::Errno| Error::host(from, errno);
        let fd = host::open_top(from).map_err(host_error)?;
        let stat = rustix::fs::fstat(&fd).map_err(host_error)?;
        let xattrs = At {
            dir: fd.as_fd(),
            name: c".",
        }
        .xattrs();
        let dir = self.make_path(to)?;
        let names = host::list(&fd).map_err(host_error)?.into_iter();
        self.report.done.directories += 1;
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
                    self.report.begin(&path);
                    match self.entry(level, &name, &path) {
                        Ok(Some(below)) => stack.push(below),
                        Ok(None) => {}
                        Err(trouble) => self.report.skip(&path, trouble),
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
        self.tree
            .fs()
            .sync(None)
            .map_err(|errno| Error::in_store(b"/", errno))?;
        Ok(self.report)
    }

    fn caller(&self) -> &'a Caller {
        &self.tree.caller
    }

    /// The directory `path` of the store; missing ones are made.
    fn make_path(&self, path: &[u8]) -> Result<Place, Error> {
        let path = absolute(path);
        let mut made: Vec<u8> = b"/".to_vec();
        let mut at = self
            .tree
            .resolve(&made, true)
            .map_err(|errno| Error::in_store(&made, errno))?;
        for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            let dir = at;
            made = join(&made, name);
            let fail = |errno| Error::in_store(&made, errno);
            at = match self.tree.resolve(&made, true) {
                Err(Errno::ENOENT) if !matches!(name, b"." | b"..") => {
                    let node = ops::mkdir(self.caller(), &dir, name, 0o755).map_err(fail)?;
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
    ) -> Result<Option<Level>, Trouble> {
        let at = At {
            dir: level.host.as_fd(),
            name,
        };
        let stat = at.stat()?;
        let kind = host::kind(&stat).ok_or(Trouble::text("no kind of file that is known"))?;
        if kind == FileKind::Directory {
            return self.directory(level, at, path);
        }
        let identity = (stat.st_dev, stat.st_ino);
        if let Some(first) = self.seen.get(&identity).cloned() {
            self.make_way(&level.dir, name.to_bytes())?;
            ops::link(self.caller(), &first, &level.dir, name.to_bytes())?;
            self.report.done.hard_links += 1;
            return Ok(None);
        }
        let place = match kind {
            FileKind::Regular => self.regular(level, at, path)?,
            FileKind::Symlink => self.symlink(level, at, &stat, path)?,
            _ => self.special(level, at, &stat, path)?,
        };
        if stat.st_nlink > 1 {
            self.seen.insert(identity, place);
        }
        Ok(None)
    }

    fn directory(
        &mut self,
        level: &Level,
        at: At<'_>,
        path: &[u8],
    ) -> Result<Option<Level>, Trouble> {
        let fd = at.open_dir()?;
        let stat = rustix::fs::fstat(&fd)?;
        if self.leave_out == Some((stat.st_dev, stat.st_ino)) {
            self.report
                .notice(path, "left out, because it is the store itself");
            return Ok(None);
        }
        let xattrs = at.xattrs()?;
        let names = host::list(&fd)?.into_iter();
        let name = at.name.to_bytes();
        let dir = match ops::mkdir(self.caller(), &level.dir, name, 0o700) {
            Ok(node) => self.tree.place(node),
            Err(Errno::EEXIST) => {
                let node = ops::lookup(self.caller(), &level.dir, name)?;
                if !node.is_dir() && self.force {
                    ops::unlink(self.caller(), &level.dir, name)?;
                    self.tree
                        .place(ops::mkdir(self.caller(), &level.dir, name, 0o700)?)
                } else if node.is_dir() {
                    self.tree.place(node)
                } else {
                    return Err(Trouble::text(IN_THE_WAY));
                }
            }
            Err(errno) => return Err(errno.into()),
        };
        self.report.done.directories += 1;
        Ok(Some(Level {
            host: fd,
            names,
            dir,
            stat,
            xattrs,
            path: path.to_vec(),
        }))
    }

    /// Sees to it that `name` is free; with `--force` by removing what is no directory.
    fn make_way(&self, dir: &Place, name: &[u8]) -> Result<(), Trouble> {
        match ops::lookup(self.caller(), dir, name) {
            Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
            Ok(node) if node.is_dir() => {
                Err(Trouble::text("a directory of the store is in the way"))
            }
            Ok(_) if self.force => Ok(ops::unlink(self.caller(), dir, name)?),
            Ok(_) => Err(Trouble::text(IN_THE_WAY)),
        }
    }

    fn regular(&mut self, level: &Level, at: At<'_>, path: &[u8]) -> Result<Place, Trouble> {
        let from = at.open_file()?;
        let stat = rustix::fs::fstat(&from)?;
        if host::kind(&stat) != Some(FileKind::Regular) {
            return Err(Trouble::text("was exchanged while it was read"));
        }
        let xattrs = at.xattrs()?;
        let name = at.name.to_bytes();
        self.make_way(&level.dir, name)?;
        let place = self.fill(&level.dir, name, from)?;
        self.attributes(path, &place, &stat, &xattrs)?;
        self.report.done.files += 1;
        Ok(place)
    }

    fn fill(&mut self, dir: &Place, name: &[u8], from: OwnedFd) -> Result<Place, Trouble> {
        let report = &mut self.report;
        let mut copied = |copied: Copied| {
            report.wrote(copied.data);
            report.passed_hole(copied.holes);
        };
        let store = match self.entrance {
            #[cfg(test)]
            Entrance::Switch => None,
            Entrance::Store(store) => Some(store),
            Entrance::Owner(remote) => {
                let made = remote.fill(&dir.node, name, from.as_fd(), &mut copied)?;
                return Ok(self.tree.place(made));
            }
        };
        let from = Source::Host(from);
        content::fill(self.tree, store, dir, name, from, &mut copied)
    }

    fn symlink(
        &mut self,
        level: &Level,
        at: At<'_>,
        stat: &Stat,
        path: &[u8],
    ) -> Result<Place, Trouble> {
        let target = at.target()?;
        let name = at.name.to_bytes();
        self.make_way(&level.dir, name)?;
        let node = ops::symlink(self.caller(), &level.dir, name, target.to_bytes())?;
        let place = self.tree.place(node);
        self.attributes(path, &place, stat, &at.xattrs()?)?;
        self.report.done.symlinks += 1;
        Ok(place)
    }

    fn special(
        &mut self,
        level: &Level,
        at: At<'_>,
        stat: &Stat,
        path: &[u8],
    ) -> Result<Place, Trouble> {
        let name = at.name.to_bytes();
        self.make_way(&level.dir, name)?;
        let mode = stat.st_mode & nix::libc::S_IFMT | 0o600;
        let node = ops::mknod(self.caller(), &level.dir, name, mode, stat.st_rdev)?;
        let place = self.tree.place(node);
        self.attributes(path, &place, stat, &at.xattrs()?)?;
        self.report.done.special += 1;
        Ok(place)
    }

    fn finish_dir(&mut self, level: &Level) {
        if let Err(trouble) = self.attributes(&level.path, &level.dir, &level.stat, &level.xattrs) {
            self.report.skip(&level.path, trouble);
        }
    }

    /// Owner first, because a change of owner takes set-id bits and capabilities away; times last, because
    /// everything else changes them.
    fn attributes(
        &self,
        path: &[u8],
        place: &Place,
        stat: &Stat,
        xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<(), Trouble> {
        let caller = self.caller();
        if caller.capable(caps::CHOWN) {
            ops::chown(caller, place, Some(stat.st_uid), Some(stat.st_gid))?;
        }
        for (name, value) in xattrs {
            match ops::setxattr(caller, place, name, value, 0) {
                Err(Errno::EOPNOTSUPP | Errno::EPERM) if !name.starts_with(b"user.") => {
                    self.report.notice(
                        path,
                        &format!("{} not kept: not supported", names::escape(name)),
                    )
                }
                result => result?,
            }
        }
        let (atime, mtime) = host::times(stat);
        if place.node.kind() != FileKind::Symlink {
            ops::chmod(caller, place, stat.st_mode & 0o7777)?;
        }
        Ok(ops::utimens(
            caller,
            place,
            Some(TimeSet::At(atime)),
            Some(TimeSet::At(mtime)),
        )?)
    }
}

const IN_THE_WAY: &str = "the store has a file of that name; --force replaces it";
