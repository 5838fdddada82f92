//! The operations of `FileSystem` on an encrypted directory, each of which calls the function that does the work.

use std::ops::Range;
use std::sync::Arc;

use goanna_cache::Transfer;
use goanna_sys::memfile;
use goanna_sys::object_handle::ObjectHandle;
use goanna_vfs::{
    Acl, Attr, CachedContent, Caller, DirEntry, Errno, FileKind, FileSystem, FsError, NAME_MAX,
    Node, OnHost, OpenFile, Opened, Result, SetAttr, StatFs, WritePosition, caps, file_flags,
    forward,
};
use nix::unistd::{Whence, lseek};

use super::files::Right;
use super::lower::Version;
use super::state::State;
use super::{AesFs, PAGE};
use crate::error::{Damage, Failure};
use crate::format::names::NameKind;

/// The extended attribute with the capabilities that a program file gives (capabilities(7)).
const CAPABILITY: &[u8] = b"security.capability";

/// The longest name of a volume without long names: encrypted and in base64 it has 255 bytes.
const SHORT_NAME_MAX: u64 = 175;

impl FileSystem for AesFs {
    forward! {
        lower: lower;
        forward: checks_access is_read_only transactions;
        own: kind identity shared_attributes root opens_host_files largest_file content lookup parent path getattr getattr_at readlink readdir
            open read_at create tmpfile mknod mkdir symlink link link_open unlink rmdir rename write write_at truncate
            fallocate sync behind_link host_path on_host host_file host_dir setattr flags statfs getxattr setxattr listxattr removexattr;
    }

    fn kind(&self) -> &'static str {
        "aes"
    }

    fn root(&self) -> Node {
        self.outer(self.root.clone())
    }

    fn largest_file(&self) -> u64 {
        let cipher = self.files.cipher().cipher();
        cipher.plain_size(self.lower.largest_file())
    }

    fn content(&self) -> Option<&dyn CachedContent> {
        Some(self)
    }

    fn lookup(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<Node> {
        let found = self.dirs.lookup(caller, self.inner_for(caller, dir)?, name);
        Ok(self.outer(self.in_dir(caller, dir, name, found)?))
    }

    fn parent(&self, caller: &Caller, dir: &Node) -> Result<Node> {
        Ok(self.outer(self.lower.parent(caller, self.inner_for(caller, dir)?)?))
    }

    fn path(&self, caller: &Caller, node: &Node) -> Result<(Vec<u8>, bool)> {
        let (path, is_deleted) = self.lower_path(caller, self.inner_for(caller, node)?)?;
        match self.dirs.decrypt_path(caller, &path) {
            Ok(path) => Ok((path, is_deleted)),
            // The directory of a name that is gone may be gone, too.
            Err(Failure::Damage(_)) if is_deleted => Err(Errno::ENOENT.into()),
            Err(failure) => Err(failure.unreported()),
        }
    }

    fn getattr(&self, caller: &Caller, node: &Node) -> Result<Attr> {
        let inner = self.inner_for(caller, node)?;
        let mut attr = self.lower.getattr(caller, inner)?;
        match node.kind() {
            FileKind::Regular => attr.size = self.files.cipher().cipher().plain_size(attr.size),
            FileKind::Symlink if self.dirs.cipher().link_len_is_exact() => {
                let cipher = self.files.cipher();
                attr.size = self.dirs.cipher().link_len(attr.size, cipher);
            }
            FileKind::Symlink => attr.size = self.readlink(caller, node)?.len() as u64,
            _ => {}
        }
        // The inode numbers are those of the encrypted files, which are others.
        attr.dev = 0;
        Ok(attr)
    }

    fn on_host(&self, node: &Node) -> Option<OnHost> {
        // The length of a link may depend on its text.
        let is_known = node.kind() != FileKind::Symlink || self.dirs.cipher().link_len_is_exact();
        self.lower
            .on_host(self.inner(node).ok().filter(|_| is_known)?)
    }

    fn readlink(&self, caller: &Caller, node: &Node) -> Result<Vec<u8>> {
        let inner = self.inner_for(caller, node)?;
        let encrypted = self.lower.readlink(caller, inner)?;
        let text = self
            .dirs
            .cipher()
            .decrypt_link(&encrypted, self.files.cipher());
        self.on(caller, inner, text.map_err(Failure::Damage))
    }

    fn readdir(
        &self,
        caller: &Caller,
        dir: &Node,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let inner = self.inner_for(caller, dir)?;
        let damaged = |entry: &[u8], damage: Damage| {
            self.error(caller, inner, Some(entry), Failure::Damage(damage));
        };
        let listed = self.dirs.readdir(caller, inner, cookie, sink, &damaged);
        self.on(caller, inner, listed)
    }

    fn open(&self, caller: &Caller, node: &Node, flags: i32) -> Result<Opened> {
        let inner = self.inner_for(caller, node)?;
        Self::regular(inner, Errno::ENXIO)?;
        let opened = self.on(caller, inner, self.files.open(caller, inner, flags))?;
        if flags & libc::O_TRUNC != 0 {
            self.drop_privileges(caller, inner)?;
        }
        Ok(opened)
    }

    fn read_at(&self, caller: &Caller, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inner = self.inner_for(caller, node)?;
        Self::regular(inner, Errno::EINVAL)?;
        let read = match self.files.read_open(inner, offset, buf) {
            Some(read) => read,
            None => self.read_closed(caller, inner, offset, buf),
        };
        self.on(caller, inner, read)
    }

    fn create(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Node, Opened)> {
        let inner = self.inner_for(caller, dir)?;
        let created = self.dirs.make(caller, inner, name, |entry| {
            let (node, opened) = self
                .lower
                .create(caller, inner, entry, mode, libc::O_RDWR)?;
            let opened = self.files.create(caller, &node, opened, flags)?;
            Ok((node, opened))
        });
        let (node, opened) = self.in_dir(caller, dir, name, created)?;
        Ok((self.outer(node), opened))
    }

    fn tmpfile(
        &self,
        caller: &Caller,
        dir: &Node,
        mode: u32,
        flags: i32,
    ) -> Result<(Node, Opened)> {
        let inner = self.inner_for(caller, dir)?;
        // Without O_EXCL, with which the file could never get a name.
        let lower_flags = libc::O_RDWR | flags & libc::O_EXCL;
        let (node, opened) = self.lower.tmpfile(caller, inner, mode, lower_flags)?;
        let opened = self.files.create(caller, &node, opened, flags);
        let opened = self.on(caller, inner, opened)?;
        Ok((self.outer(node), opened))
    }

    fn mknod(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        rdev: u64,
    ) -> Result<Node> {
        let inner = self.inner_for(caller, dir)?;
        let made = self.dirs.make(caller, inner, name, |entry| {
            Ok(self.lower.mknod(caller, inner, entry, mode, rdev)?)
        });
        Ok(self.outer(self.in_dir(caller, dir, name, made)?))
    }

    fn mkdir(&self, caller: &Caller, dir: &Node, name: &[u8], mode: u32) -> Result<Node> {
        let made = self
            .dirs
            .mkdir(caller, self.inner_for(caller, dir)?, name, mode);
        Ok(self.outer(self.in_dir(caller, dir, name, made)?))
    }

    fn symlink(&self, caller: &Caller, dir: &Node, name: &[u8], target: &[u8]) -> Result<Node> {
        let inner = self.inner_for(caller, dir)?;
        let made = self.dirs.make(caller, inner, name, |entry| {
            let cipher = self.files.cipher();
            let text = self.dirs.cipher().encrypt_link(target, cipher)?;
            Ok(self.lower.symlink(caller, inner, entry, &text)?)
        });
        Ok(self.outer(self.in_dir(caller, dir, name, made)?))
    }

    fn link(&self, caller: &Caller, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        let (inner, node) = (self.inner_for(caller, dir)?, self.inner_for(caller, node)?);
        let made = self.dirs.make(caller, inner, name, |entry| {
            Ok(self.lower.link(caller, node, inner, entry)?)
        });
        self.in_dir(caller, dir, name, made)
    }

    fn unlink(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
        let removed = self.dirs.unlink(caller, self.inner_for(caller, dir)?, name);
        self.in_dir(caller, dir, name, removed)
    }

    fn rmdir(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
        let removed = self.dirs.rmdir(caller, self.inner_for(caller, dir)?, name);
        self.in_dir(caller, dir, name, removed)
    }

    fn rename(
        &self,
        caller: &Caller,
        from_dir: &Node,
        from: &[u8],
        to_dir: &Node,
        to: &[u8],
        flags: u32,
    ) -> Result<()> {
        let (old, new) = (
            self.inner_for(caller, from_dir)?,
            self.inner_for(caller, to_dir)?,
        );
        let renamed = self.dirs.rename(caller, (old, from), (new, to), flags);
        self.in_dir(caller, from_dir, from, renamed)
    }

    fn write(
        &self,
        caller: &Caller,
        file: OpenFile<'_>,
        position: WritePosition,
        data: &[u8],
    ) -> Result<usize> {
        let inner = self.inner_for(caller, file.node)?;
        if data.is_empty() {
            return Ok(0);
        }
        let written = self
            .files
            .change_open(inner, |state| self.write_in(state, file, position, data));
        let written = self.on(caller, inner, written)?;
        self.drop_privileges(caller, inner)?;
        // O_SYNC contains O_DSYNC's bit.
        if file.flags & libc::O_DSYNC != 0 {
            self.on(caller, inner, self.files.sync(inner))?;
        }
        Ok(written)
    }

    fn truncate(&self, caller: &Caller, node: &Node, size: u64) -> Result<()> {
        self.truncate_by(caller, node, size, Right::Permissions)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        node: &Node,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let inner = self.inner_for(caller, node)?;
        Self::regular(inner, Errno::ENODEV)?;
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        if len == 0 || i64::try_from(offset).is_err() {
            return Err(Errno::EINVAL.into());
        }
        if end > self.largest_file() {
            return Err(Errno::EFBIG.into());
        }
        let is_loaded = mode & !libc::FALLOC_FL_KEEP_SIZE != 0;
        self.unless_flagged(caller, inner, file_flags::against_fallocate(mode))?;
        let allocate = |state: &mut State| self.allocate_in(state, mode, offset..end);
        // fallocate(2) has a descriptor.
        let changed = self
            .files
            .change(caller, inner, Right::Descriptor, is_loaded, allocate);
        self.on(caller, inner, changed)?;
        self.drop_privileges(caller, inner)
    }

    fn sync(&self, node: Option<&Node>) -> Result<()> {
        let Some(node) = node else {
            let stored = self.files.store_everything();
            self.lower.sync(None)?;
            return stored.map_err(Failure::unreported);
        };
        let inner = self.inner(node)?;
        self.files.sync(inner).map_err(Failure::unreported)
    }

    fn setattr(&self, caller: &Caller, node: &Node, set: &SetAttr) -> Result<()> {
        let inner = self.inner_for(caller, node)?;
        let set_all = || self.lower.setattr(caller, inner, set);
        if set.mtime.is_some() && inner.kind() == FileKind::Regular {
            // Stored later, it would change the time again.
            let stored = self.files.store_mapped(inner, 0..u64::MAX);
            self.on(caller, inner, stored)?;
            self.files.set_times(inner, set_all)?;
        } else {
            set_all()?;
        }
        if (set.uid.is_some() || set.gid.is_some()) && !inner.is_dir() {
            self.drop_capability(caller, inner);
        }
        Ok(())
    }

    fn flags(&self, caller: &Caller, node: &Node) -> Result<u32> {
        self.lower.flags(caller, self.inner_for(caller, node)?)
    }

    fn statfs(&self, caller: &Caller, node: &Node) -> Result<StatFs> {
        let lower = self.lower.statfs(caller, self.inner_for(caller, node)?)?;
        let name_max = match self.dirs.cipher().kind() {
            NameKind::Encrypted {
                has_long_names: false,
                ..
            } => SHORT_NAME_MAX,
            _ => NAME_MAX as u64,
        };
        Ok(StatFs {
            name_max,
            fsid: 0,
            ..lower
        })
    }

    fn getxattr(&self, caller: &Caller, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        let inner = self.inner_for(caller, node)?;
        if is_privileged(name) == Some(true) && !caller.capable(caps::SYS_ADMIN) {
            return Err(Errno::ENODATA.into());
        }
        let lower = self.xattr_name(name)?;
        let value = self.lower.getxattr(caller, inner, &lower)?;
        if lower == name {
            return Ok(value);
        }
        let plain = self.decrypt_value(&value);
        self.on(caller, inner, plain.map_err(Failure::Damage))
    }

    fn setxattr(
        &self,
        caller: &Caller,
        node: &Node,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        let inner = self.inner_for(caller, node)?;
        may_change_xattr(caller, name)?;
        let lower = self.xattr_name(name)?;
        if lower == name {
            return self.lower.setxattr(caller, inner, name, value, flags);
        }
        let mut block = Vec::new();
        let encrypted = self.files.cipher().encrypt(value, 0, None, &mut block);
        self.on(caller, inner, encrypted.map_err(Failure::from))?;
        let set = self.lower.setxattr(caller, inner, &lower, &block, flags);
        if name == CAPABILITY {
            self.files.may_have_capability(inner);
        }
        set
    }

    fn listxattr(&self, caller: &Caller, node: &Node) -> Result<Vec<Vec<u8>>> {
        let inner = self.inner_for(caller, node)?;
        let mut names = Vec::new();
        for lower in self.lower.listxattr(caller, inner)? {
            match self.dirs.cipher().decrypt_xattr(&lower) {
                Some(Ok(name)) => {
                    let is_hidden = is_privileged(&name) == Some(true);
                    if !is_hidden || caller.capable(caps::SYS_ADMIN) {
                        names.push(name);
                    }
                }
                Some(Err(damage)) => {
                    self.error(caller, inner, None, Failure::Damage(damage));
                }
                None => {}
            }
        }
        Ok(names)
    }

    fn removexattr(&self, caller: &Caller, node: &Node, name: &[u8]) -> Result<()> {
        let inner = self.inner_for(caller, node)?;
        may_change_xattr(caller, name)?;
        let lower = self.xattr_name(name)?;
        self.lower.removexattr(caller, inner, &lower)
    }
}

impl AesFs {
    fn truncate_by(&self, caller: &Caller, node: &Node, size: u64, right: Right) -> Result<()> {
        let inner = self.inner_for(caller, node)?;
        Self::regular(inner, Errno::EINVAL)?;
        let changed = if size == 0 {
            self.files.clear(caller, inner, right)
        } else {
            let cipher = self.files.cipher();
            let resize = |state: &mut State| state.resize(cipher, size);
            self.files.change(caller, inner, right, false, resize)
        };
        self.on(caller, inner, changed)?;
        self.drop_privileges(caller, inner)
    }

    /// EPERM for a file with one of these [`file_flags`]. Writes to the lower file by a descriptor that is older than the flag would
    /// not meet it.
    fn unless_flagged(&self, caller: &Caller, inner: &Node, flags: u32) -> Result<()> {
        Ok(self.lower.getattr(caller, inner)?.unless_flagged(flags)?)
    }

    /// The result of an operation on the entry `name` of `dir`.
    fn in_dir<T>(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        result: std::result::Result<T, Failure>,
    ) -> Result<T> {
        result.map_err(|failure| match self.inner(dir) {
            // The IV is the directory's own.
            Ok(inner) if failure == Failure::Damage(Damage::DirIv) => {
                self.error(caller, inner, None, failure)
            }
            Ok(inner) => self.error(caller, inner, Some(name), failure),
            Err(error) => error,
        })
    }

    /// Removes the capabilities of a file whose content or owner has changed, as the kernel does (`cap_inode_killpriv`). A run gives programs no
    /// capabilities by the attribute, so a host that refuses to remove it, from a file that its owner may not write, is not an error.
    fn drop_capability(&self, caller: &Caller, node: &Node) {
        self.files.without_capability(node, || {
            if let Ok(name) = self.xattr_name(CAPABILITY) {
                let _ = self.lower.removexattr(&self.dirs.own(caller), node, &name);
            }
        });
    }

    /// Clears the set-id bits and the capabilities of a file whose content `caller` has changed, as the kernel does (`file_remove_privs`). The
    /// kernel sees this process change it, which may be root where the caller is not.
    fn drop_privileges(&self, caller: &Caller, node: &Node) -> Result<()> {
        self.drop_capability(caller, node);
        let own = self.dirs.own(caller);
        let is_judged = self.lower.checks_access();
        if !is_judged || caller.capable(caps::FSETID) || !own.capable(caps::FSETID) {
            return Ok(());
        }
        let before = self.lower.getattr(caller, node)?.perm();
        let mut mode = before & !libc::S_ISUID;
        if mode & libc::S_IXGRP != 0 {
            mode &= !libc::S_ISGID;
        }
        if mode == before {
            return Ok(());
        }
        let set = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        self.lower.setattr(&own, node, &set)
    }

    fn xattr_name(&self, name: &[u8]) -> Result<Vec<u8>> {
        let spaces: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system.posix_acl_"];
        if !spaces.iter().any(|space| name.starts_with(space)) {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if spaces.contains(&name) {
            return Err(Errno::EINVAL.into());
        }
        let lower = self.dirs.cipher().encrypt_xattr(name);
        Ok(lower.ok_or(Errno::ERANGE)?)
    }

    fn write_in(
        &self,
        state: &mut State,
        file: OpenFile<'_>,
        position: WritePosition,
        data: &[u8],
    ) -> std::result::Result<usize, Failure> {
        let cipher = self.files.cipher();
        let appends = file.flags & libc::O_APPEND != 0;
        let start = match position {
            _ if appends => state.size,
            WritePosition::End => state.size,
            WritePosition::Cursor => lseek(file.ofd, 0, Whence::SeekCur)? as u64,
            WritePosition::At(at) => at,
        };
        // As Linux: EINVAL if the end is beyond the largest offset. Otherwise what fits is written; EFBIG if nothing fits.
        if i64::MAX.unsigned_abs().saturating_sub(start) < data.len() as u64 {
            return Err(Errno::EINVAL.into());
        }
        let len = self.largest_file().saturating_sub(start);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let data = data.get(..len).unwrap_or(data);
        if data.is_empty() {
            return Err(Errno::EFBIG.into());
        }
        state.reserve(start, data.len() as u64)?;
        if start > state.size {
            state.resize(cipher, start)?;
        }
        let written = state.write(cipher, start, data, |_, piece, at| {
            Ok(memfile::pwrite_at(file.ofd, piece, at)?)
        })?;
        if position == WritePosition::Cursor {
            advance(file, appends, start, written)?;
        }
        Ok(written)
    }

    /// fallocate(2) of the bytes `range`.
    fn allocate_in(
        &self,
        state: &mut State,
        mode: i32,
        range: Range<u64>,
    ) -> std::result::Result<(), Failure> {
        let cipher = self.files.cipher();
        let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let size = state.size;
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => {}
            libc::FALLOC_FL_PUNCH_HOLE if keeps_size => return state.punch(cipher, range),
            libc::FALLOC_FL_ZERO_RANGE => state.punch(cipher, range.clone())?,
            shift @ (libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE)
                if !keeps_size =>
            {
                return self.shift_in(state, shift, range);
            }
            _ => return Err(Errno::EOPNOTSUPP.into()),
        }
        if !keeps_size && range.end > size {
            state.resize(cipher, range.end)?;
        }
        let kind = cipher.cipher();
        let (start, end) = (
            kind.offset(range.start / PAGE),
            kind.offset(range.end.div_ceil(PAGE)),
        );
        match state.lower()?.allocate(start, end - start) {
            // Space is allocated by the write.
            Err(FsError::Errno(Errno::EOPNOTSUPP)) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Removes the bytes `range` from the file, or inserts a hole there: the content after them is encrypted again.
    fn shift_in(
        &self,
        state: &mut State,
        shift: i32,
        range: Range<u64>,
    ) -> std::result::Result<(), Failure> {
        let cipher = self.files.cipher();
        let (size, len) = (state.size, range.end - range.start);
        if !range.start.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL.into());
        }
        let inserts = shift == libc::FALLOC_FL_INSERT_RANGE;
        let fits = if inserts {
            range.start < size
        } else {
            range.end < size
        };
        if !fits {
            return Err(Errno::EINVAL.into());
        }
        if inserts && len > self.largest_file() - size {
            return Err(Errno::EFBIG.into());
        }
        if inserts {
            state.resize(cipher, size + len)?;
        }
        let transfer = Transfer::within(state.content()?)?;
        if inserts {
            transfer.shift(range.start, range.end, size - range.start)?;
            transfer.punch(range.start, len)?;
        } else {
            transfer.shift(range.end, range.start, size - range.end)?;
        }
        let end = if inserts { size + len } else { size - len };
        state.store_range(cipher, range.start / PAGE..end.div_ceil(PAGE))?;
        if inserts {
            return Ok(());
        }
        state.resize(cipher, end)
    }
}

/// Moves the description's offset behind what was written at `start`. Another thread of the program may have moved it
/// since, by an lseek(2) that the kernel answered: then it stays there, as if the lseek had come after the write.
fn advance(file: OpenFile<'_>, appends: bool, start: u64, written: usize) -> Result<()> {
    let at = i64::try_from(start).map_err(|_| Errno::EINVAL)?;
    if appends || lseek(file.ofd, 0, Whence::SeekCur)? == at {
        let end = at.saturating_add_unsigned(written as u64);
        lseek(file.ofd, end, Whence::SeekSet)?;
    }
    Ok(())
}

/// Whether an extended attribute is for privileged programs only: `Some(true)` where others do not see it either.
fn is_privileged(name: &[u8]) -> Option<bool> {
    if name.starts_with(b"trusted.") {
        Some(true)
    } else {
        name.starts_with(b"security.").then_some(false)
    }
}

/// The rules of xattr(7) about the name, which the lower file system cannot know: there all attributes are the user's.
fn may_change_xattr(caller: &Caller, name: &[u8]) -> Result<()> {
    let cap = if name == CAPABILITY {
        caps::SETFCAP
    } else {
        caps::SYS_ADMIN
    };
    if is_privileged(name).is_some() && !caller.capable(cap) {
        return Err(Errno::EPERM.into());
    }
    Ok(())
}

impl CachedContent for AesFs {
    fn released(&self, node: &Node) {
        if let Ok(inner) = self.inner(node) {
            // No descriptor is left that a kept error could be reported to: no program has the file open.
            let _ = self.files.released(inner);
        }
    }

    fn map_shared(&self, caller: &Caller, node: &Node) -> Result<()> {
        let inner = self.inner_for(caller, node)?;
        self.on(caller, inner, Arc::clone(&self.files).map_shared(inner))
    }

    fn sync_mapped(&self, node: &Node, range: Range<u64>, durable: bool) -> Result<()> {
        let inner = self.inner(node)?;
        let stored = if durable {
            self.files.sync(inner)
        } else {
            self.files.store_mapped(inner, range)
        };
        stored.map_err(Failure::unreported)
    }

    fn truncate_open(&self, caller: &Caller, node: &Node, size: u64) -> Option<Result<()>> {
        let permitted = self
            .inner_for(caller, node)
            .and_then(|inner| self.unless_flagged(caller, inner, file_flags::PROTECTED));
        Some(permitted.and_then(|()| self.truncate_by(caller, node, size, Right::Descriptor)))
    }

    fn may_be_opened(&self, node: &Node, object: &ObjectHandle, on_host: &Attr) -> bool {
        const ALL_READ: u32 = 0o444;
        let Ok(inner) = self.inner(node) else {
            return false;
        };
        let acl = || self.lower.getxattr(&Caller::own(), inner, Acl::ACCESS);
        on_host.perm() & ALL_READ == ALL_READ
            && matches!(
                acl(),
                Err(FsError::Errno(Errno::ENODATA | Errno::EOPNOTSUPP))
            )
            && self
                .files
                .may_be_opened(inner, object, Version::of(on_host))
    }

    fn open_for_writing(&self, _: &Caller, node: &Node) -> bool {
        self.inner(node)
            .is_ok_and(|inner| self.files.is_open_for_writing(inner))
    }
}
