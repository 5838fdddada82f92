//! `amino import`: a host directory into the store.

use std::collections::HashMap;
use std::ffi::CString;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use amino_fs::AminoFs;
use goanna_vfs::{
    Caller, Errno, FileKind, Native, OpenFile, Opened, Place, Spot, TimeSet, caps, ops,
};
use rustix::fs::{SeekFrom, Stat};

use super::host::{self, At};
use super::report::{Report, Total};
use super::tree::{Tree, absolute, join};
use super::trouble::Trouble;
use crate::error::Error;
use crate::names;

/// How much is written at once: large enough to make calls cheap, small enough to keep memory flat.
const CHUNK: usize = 1 << 20;

/// A copy into a store.
pub struct Import<'a> {
    tree: &'a Tree,
    /// The store itself, which takes files without holes faster than the switch can.
    store: Option<&'a AminoFs>,
    force: bool,
    /// Identity of directories that are left out: the store itself.
    leave_out: Option<(u64, u64)>,
    /// Files with several names, by device and inode.
    seen: HashMap<(u64, u64), Place>,
    report: Report,
    buffer: Vec<u8>,
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
        store: Option<&'a AminoFs>,
        leave_out: &Path,
        force: bool,
        report: Report,
    ) -> Self {
        let leave_out = rustix::fs::stat(leave_out).ok();
        Self {
            tree,
            store,
            force,
            leave_out: leave_out.map(|stat| (stat.st_dev, stat.st_ino)),
            seen: HashMap::new(),
            report,
            buffer: vec![0; CHUNK],
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
        let has_holes = stat.st_blocks.unsigned_abs() * 512 < stat.st_size.unsigned_abs();
        let result = match self.store {
            Some(store) if !has_holes => self.pour(store, level, name, from, &stat),
            _ => self.write(level, name, &from, &stat),
        };
        let place = match result {
            Ok(place) => place,
            Err(trouble) => {
                // Half a file under its full name would be taken for the whole.
                let _ = ops::unlink(self.caller(), &level.dir, name);
                return Err(trouble);
            }
        };
        self.attributes(path, &place, &stat, &xattrs)?;
        self.report.done.files += 1;
        Ok(place)
    }

    /// Makes the file `name` through the store's own entrance.
    fn pour(
        &mut self,
        store: &AminoFs,
        level: &Level,
        name: &[u8],
        from: OwnedFd,
        stat: &Stat,
    ) -> Result<Place, Trouble> {
        ops::access(self.caller(), &level.dir, nix::libc::W_OK | nix::libc::X_OK)?;
        let size = stat.st_size.unsigned_abs();
        let mut reader = std::fs::File::from(from).take(size);
        let mut copied = 0;
        let caller = self.caller();
        let node = store
            .import_file(
                caller,
                &level.dir.node,
                name,
                0o600,
                &mut reader,
                &mut |bytes| {
                    copied += bytes;
                    self.report.wrote(bytes);
                },
            )
            .map_err(|error| match error {
                amino_fs::Error::Operation { errno, .. } => Trouble::Store(errno),
                error => Trouble::Other(error.to_string().into()),
            })?;
        if copied < size {
            return Err(Trouble::text(SHORTER));
        }
        Ok(self.tree.place(node))
    }

    /// Makes the file `name` through the switch, with its holes.
    fn write(
        &mut self,
        level: &Level,
        name: &[u8],
        from: &OwnedFd,
        stat: &Stat,
    ) -> Result<Place, Trouble> {
        let flags = nix::libc::O_RDWR | nix::libc::O_CREAT | nix::libc::O_EXCL;
        let (node, opened) = ops::create(self.caller(), &level.dir, name, 0o600, flags)?;
        let place = self.tree.place(node);
        let copied = self.data(from, stat, &place, &opened);
        let cached = matches!(opened.native, Native::Reads { .. });
        drop(opened);
        if cached {
            self.tree.fs().released(&place.node);
        }
        copied?;
        Ok(place)
    }

    /// Copies data, and leaves holes where the host has them.
    fn data(
        &mut self,
        from: &OwnedFd,
        stat: &Stat,
        to: &Place,
        opened: &Opened,
    ) -> Result<(), Trouble> {
        let size = stat.st_size.unsigned_abs();
        let mut at = 0;
        while at < size {
            let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
                Ok(start) => start,
                // No data up to the end.
                Err(rustix::io::Errno::NXIO) => size,
                // No notion of holes: all is data.
                Err(rustix::io::Errno::INVAL) => at,
                Err(errno) => return Err(errno.into()),
            };
            self.report.passed_hole(start.min(size) - at);
            if start >= size {
                break;
            }
            let end = rustix::fs::seek(from, SeekFrom::Hole(start))
                .unwrap_or(size)
                .min(size);
            at = start;
            while at < end {
                let length = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
                let buffer = self.buffer.get_mut(..length).unwrap_or_default();
                let count = rustix::io::pread(from, &mut *buffer, at)?;
                if count == 0 {
                    return Err(Trouble::text(SHORTER));
                }
                write_all(
                    self.tree,
                    to,
                    opened,
                    at,
                    buffer.get(..count).unwrap_or_default(),
                )?;
                at += count as u64;
                self.report.wrote(count as u64);
            }
        }
        let now = self.tree.attr(to)?.size;
        if now < size {
            match opened.native {
                Native::All => rustix::fs::ftruncate(&opened.fd, size)?,
                Native::Reads { .. } => self.tree.fs().truncate(self.caller(), &to.node, size)?,
            }
        }
        Ok(())
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

const SHORTER: &str = "became shorter while it was read";
const IN_THE_WAY: &str = "the store has a file of that name; --force replaces it";

fn write_all(
    tree: &Tree,
    to: &Place,
    opened: &Opened,
    mut offset: u64,
    mut data: &[u8],
) -> Result<(), Trouble> {
    while !data.is_empty() {
        let count = match opened.native {
            Native::All => rustix::io::pwrite(&opened.fd, data, offset)?,
            Native::Reads { .. } => {
                let file = OpenFile {
                    node: &to.node,
                    ofd: opened.fd.as_fd(),
                    flags: nix::libc::O_RDWR,
                };
                tree.fs()
                    .write(&tree.caller, file, Spot::At(offset), data)?
            }
        };
        if count == 0 {
            return Err(Trouble::Store(Errno::EIO));
        }
        data = data.get(count..).unwrap_or_default();
        offset += count as u64;
    }
    Ok(())
}
