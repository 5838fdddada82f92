//! Names and directories: translates plain names to entries of the lower file system.
//!
//! An operation that takes several steps in the lower file system is ordered so that a crash between two of them leaves at most a
//! file of the format that belongs to no entry, or an empty directory under a temporary name. `goanna aes fsck` finds both.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use goanna_vfs::{
    Caller, DirEntry, Errno, FileKind, FileSystem, FsError, Node, SetAttr, file_flags,
};
use parking_lot::Mutex;

use super::removed::{RemovedDirs, TEMPORARY};
use crate::error::{Damage, Failure};
use crate::format::keys;
use crate::format::names::{
    DIR_IV_FILE, DirIv, ENCRYPTED_NAME_MAX, EncryptedName, LowerName, NameCipher, name_file,
};

/// Directories whose IVs are kept. Each keeps its lower node, mostly a descriptor.
const KEPT_IVS: usize = 256;

/// Entries of the lower directory that are read at once.
const ENTRIES: usize = 128;

/// The permissions of the files that the format adds.
const INTERNAL_MODE: u32 = 0o444;

pub(super) type Result<T> = std::result::Result<T, Failure>;

/// The entries of the lower file system under their plain names. All nodes are the lower file system's.
pub(crate) struct Dirs {
    lower: Arc<dyn FileSystem>,
    cipher: NameCipher,
    /// The volume's top directory.
    root: Node,
    /// This process, for the files of the format: a program need not have the right to read them.
    own: Caller,
    ivs: Mutex<HashMap<u64, (Node, DirIv)>>,
    /// Held while an entry with a long name is made or removed, so that its two files agree.
    long_names: Mutex<()>,
    temporary: AtomicU64,
    pub(super) removed: RemovedDirs,
}

impl Dirs {
    pub fn new(lower: Arc<dyn FileSystem>, root: Node, cipher: NameCipher) -> Self {
        Self {
            lower,
            cipher,
            root,
            // The operation belongs to the caller's transaction.
            own: Caller::own(),
            ivs: Mutex::default(),
            removed: RemovedDirs::default(),
            long_names: Mutex::default(),
            temporary: AtomicU64::new(0),
        }
    }

    pub fn lower(&self) -> &Arc<dyn FileSystem> {
        &self.lower
    }

    pub fn root(&self) -> &Node {
        &self.root
    }

    pub fn cipher(&self) -> &NameCipher {
        &self.cipher
    }

    /// This process, in the transaction of `caller`.
    pub fn own(&self, caller: &Caller) -> Caller {
        Caller {
            tid: caller.tid,
            pid: caller.pid,
            txn: caller.txn,
            ..self.own.clone()
        }
    }

    /// The IV of a directory.
    pub fn iv(&self, caller: &Caller, dir: &Node) -> Result<DirIv> {
        if !self.cipher.kind().has_dir_iv() {
            return Ok([0; 16]);
        }
        if let Some((_, iv)) = self.ivs.lock().get(&dir.ino()) {
            return Ok(*iv);
        }
        if !dir.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        let own = self.own(caller);
        let iv = match self.read_internal(&own, dir, DIR_IV_FILE) {
            Ok(bytes) => DirIv::try_from(&bytes[..]).ok().filter(|iv| *iv != [0; 16]),
            // The directory was removed; it has no entries any more.
            Err(FsError::Errno(Errno::ENOENT)) if self.lower.getattr(&own, dir)?.nlink == 0 => {
                return Err(Errno::ENOENT.into());
            }
            Err(FsError::Errno(Errno::ENOENT)) => None,
            Err(error) => return Err(error.into()),
        };
        let iv = iv.ok_or(Damage::DirIv)?;
        self.keep_iv(dir, iv);
        Ok(iv)
    }

    fn keep_iv(&self, dir: &Node, iv: DirIv) {
        let mut ivs = self.ivs.lock();
        if ivs.len() >= KEPT_IVS {
            ivs.clear();
        }
        ivs.insert(dir.ino(), (dir.clone(), iv));
    }

    /// A file of the format, which is short.
    fn read_internal(&self, own: &Caller, dir: &Node, name: &[u8]) -> goanna_vfs::Result<Vec<u8>> {
        let file = self.lower.lookup(own, dir, name)?;
        if file.kind() != FileKind::Regular {
            return Err(Errno::ENOENT.into());
        }
        let mut bytes = vec![0; ENCRYPTED_NAME_MAX + 1];
        let len = self.lower.read_at(own, &file, 0, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    fn write_internal(&self, own: &Caller, dir: &Node, name: &[u8], bytes: &[u8]) -> Result<()> {
        let creator = Caller {
            umask: 0,
            ..own.clone()
        };
        let (node, opened) = self
            .lower
            .create(&creator, dir, name, INTERNAL_MODE, libc::O_RDWR)?;
        let file = super::lower::LowerFile::of(&self.lower, own, &node, opened, libc::O_RDWR);
        file.write_at(0, bytes).map_err(|errno| {
            let _ = self.lower.unlink(own, dir, name);
            errno.into()
        })
    }

    /// The encrypted name of `name` in `dir`. ENAMETOOLONG for a name that has none.
    pub fn encrypt(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<EncryptedName> {
        let iv = self.iv(caller, dir)?;
        let name = self.cipher.encrypt(name, &iv).ok_or(Errno::ENAMETOOLONG)?;
        let is_taken = self.is_internal(dir, name.entry());
        // In a volume with plain names, a file of the format.
        (!is_taken).then_some(name).ok_or(Errno::EPERM.into())
    }

    fn is_internal(&self, dir: &Node, entry: &[u8]) -> bool {
        let at_root = dir.ino() == self.root.ino();
        self.cipher.classify(entry, at_root) == LowerName::Internal
    }

    pub fn lookup(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<Node> {
        let iv = self.iv(caller, dir)?;
        let name = self.cipher.encrypt(name, &iv).ok_or(Errno::ENAMETOOLONG)?;
        if self.is_internal(dir, name.entry()) {
            return Err(Errno::ENOENT.into());
        }
        Ok(self.lower.lookup(caller, dir, name.entry())?)
    }

    /// The plain name of an entry. `None` for files of the format.
    pub fn decrypt(&self, caller: &Caller, dir: &Node, entry: &[u8]) -> Result<Option<Vec<u8>>> {
        if entry.starts_with(TEMPORARY) && self.cipher.kind().has_dir_iv() {
            return Ok(None);
        }
        let at_root = dir.ino() == self.root.ino();
        match self.cipher.classify(entry, at_root) {
            LowerName::Internal => Ok(None),
            LowerName::Entry(text) => {
                let iv = self.iv(caller, dir)?;
                Ok(Some(self.cipher.decrypt(text, &iv)?.into_owned()))
            }
            LowerName::Long => {
                let iv = self.iv(caller, dir)?;
                let own = self.own(caller);
                let content = self
                    .read_internal(&own, dir, &name_file(entry))
                    .map_err(|_| Damage::LongName)?;
                Ok(Some(self.cipher.decrypt_long(entry, &content, &iv)?))
            }
        }
    }

    /// The entries of `dir` after `cookie`. Those with damaged names are passed to `damaged` and not listed.
    pub fn readdir(
        &self,
        caller: &Caller,
        dir: &Node,
        mut cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
        damaged: &dyn Fn(&[u8], Damage),
    ) -> Result<()> {
        if dir.is_dir() {
            self.iv(caller, dir)?;
        }
        loop {
            // A long name is in a file of its own, which cannot be read while the lower directory is being listed.
            let mut entries = Vec::new();
            self.lower.readdir(caller, dir, cookie, &mut |entry| {
                cookie = entry.cookie;
                entries.push((entry.name.to_vec(), entry.ino, entry.kind, entry.cookie));
                entries.len() < ENTRIES
            })?;
            let is_end = entries.len() < ENTRIES;
            for (entry, ino, kind, cookie) in entries {
                let name = match self.decrypt(caller, dir, &entry) {
                    Ok(Some(name)) => name,
                    Ok(None) => continue,
                    Err(Failure::Damage(damage)) => {
                        damaged(&entry, damage);
                        continue;
                    }
                    Err(failure) => return Err(failure),
                };
                let is_wanted = sink(DirEntry {
                    name: &name,
                    ino,
                    kind,
                    cookie,
                });
                if !is_wanted {
                    return Ok(());
                }
            }
            if is_end {
                return Ok(());
            }
        }
    }

    /// Decrypts the name of a file in a removed directory that had the IV `iv`. Without the IV, the name stays encrypted; so does a long name, because the
    /// file that contains it was removed with the directory.
    pub(super) fn decrypt_removed(&self, iv: Option<&DirIv>, entry: &[u8]) -> Vec<u8> {
        let plain = match self.cipher.classify(entry, false) {
            LowerName::Entry(text) => iv.and_then(|iv| self.cipher.decrypt(text, iv).ok()),
            LowerName::Long | LowerName::Internal => None,
        };
        plain.map_or_else(|| entry.to_vec(), |plain| plain.into_owned())
    }

    /// Makes an entry by `make`, which gets the entry's name, and before it the file of a long name.
    pub fn make<T>(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        make: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let (entry, content) = match self.encrypt(caller, dir, name)? {
            EncryptedName::Short(entry) => return make(&entry),
            EncryptedName::Long { entry, content } => (entry, content),
        };
        let _guard = self.long_names.lock();
        let own = self.own(caller);
        let is_new = match self.write_internal(&own, dir, &name_file(&entry), &content) {
            Ok(()) => true,
            Err(failure) if failure.errno() == Some(Errno::EEXIST) => {
                // The file belongs to an existing entry, or remains of an entry that was not made.
                let is_taken = self.lower.lookup(&own, dir, &entry).is_ok();
                if !is_taken {
                    self.lower.unlink(&own, dir, &name_file(&entry))?;
                    self.write_internal(&own, dir, &name_file(&entry), &content)?;
                }
                !is_taken
            }
            Err(failure) => return Err(failure),
        };
        let made = make(&entry);
        if made.is_err() && is_new {
            let _ = self.lower.unlink(&own, dir, &name_file(&entry));
        }
        made
    }

    /// Removes an entry by `remove`, and after it the file of a long name.
    fn remove(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        remove: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        match self.encrypt(caller, dir, name)? {
            EncryptedName::Short(entry) => remove(&entry),
            EncryptedName::Long { entry, .. } => {
                let _guard = self.long_names.lock();
                remove(&entry)?;
                let _ = self
                    .lower
                    .unlink(&self.own(caller), dir, &name_file(&entry));
                Ok(())
            }
        }
    }

    pub fn unlink(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
        self.remove(caller, dir, name, |entry| {
            Ok(self.lower.unlink(caller, dir, entry)?)
        })
    }

    /// Makes a directory under a temporary name, gives it an IV, and renames it: no other process sees it without its IV.
    pub fn mkdir(&self, caller: &Caller, dir: &Node, name: &[u8], mode: u32) -> Result<Node> {
        self.make(caller, dir, name, |entry| {
            if !self.cipher.kind().has_dir_iv() {
                return Ok(self.lower.mkdir(caller, dir, entry, mode)?);
            }
            // The IV is written into it by its owner, or by root.
            let writable = Caller {
                umask: caller.umask & 0o077,
                ..caller.clone()
            };
            if self.is_append_only(caller, dir)? {
                // Nothing can be renamed in it.
                let node = self.lower.mkdir(&writable, dir, entry, mode | 0o700)?;
                self.equip(caller, &node, mode)?;
                return Ok(node);
            }
            let temporary = self.temporary_name()?;
            let made = self.lower.mkdir(&writable, dir, &temporary, mode | 0o700);
            let node = match made {
                Ok(node) => node,
                // As the kernel, which checks the name before the directory's permissions.
                Err(_) if self.lower.lookup(caller, dir, entry).is_ok() => {
                    return Err(Errno::EEXIST.into());
                }
                Err(error) => return Err(error.into()),
            };
            let made = self.finish_mkdir(caller, dir, (&node, mode), &temporary, entry);
            if made.is_err() {
                let own = self.own(caller);
                // The directory may have its mode already, which can forbid its owner to change it.
                let _ = self.make_accessible(&own, &node);
                let _ = self.lower.unlink(&own, &node, DIR_IV_FILE);
                let _ = self.lower.rmdir(&own, dir, &temporary);
            }
            made?;
            Ok(node)
        })
    }

    fn finish_mkdir(
        &self,
        caller: &Caller,
        dir: &Node,
        (node, mode): (&Node, u32),
        temporary: &[u8],
        entry: &[u8],
    ) -> Result<()> {
        let iv = self.equip(caller, node, mode)?;
        self.lower
            .rename(caller, dir, temporary, dir, entry, libc::RENAME_NOREPLACE)?;
        self.keep_iv(node, iv);
        Ok(())
    }

    /// Gives a new directory its IV, and takes back the permissions that `mode` does not have.
    fn equip(&self, caller: &Caller, node: &Node, mode: u32) -> Result<DirIv> {
        let iv = self.write_iv(caller, node)?;
        let missing = 0o700 & !(mode & !caller.umask);
        if missing != 0 {
            let attr = self.lower.getattr(caller, node)?;
            let set = SetAttr {
                mode: Some(attr.perm() & !missing),
                ..SetAttr::default()
            };
            self.lower.setattr(caller, node, &set)?;
        }
        Ok(iv)
    }

    /// Gives a directory a random IV.
    pub fn write_iv(&self, caller: &Caller, dir: &Node) -> Result<DirIv> {
        let mut iv = DirIv::default();
        keys::random(&mut iv)?;
        self.write_internal(&self.own(caller), dir, DIR_IV_FILE, &iv)?;
        Ok(iv)
    }

    fn temporary_name(&self) -> Result<Vec<u8>> {
        let mut bytes = [0; 8];
        keys::random(&mut bytes)?;
        let count = self.temporary.fetch_add(1, Ordering::Relaxed);
        let name = format!("{:016x}{count:x}", u64::from_le_bytes(bytes));
        Ok([TEMPORARY, name.as_bytes()].concat())
    }

    /// Whether nothing in a directory can be renamed or removed (`chattr +a`).
    fn is_append_only(&self, caller: &Caller, dir: &Node) -> Result<bool> {
        Ok(self.lower.getattr(caller, dir)?.flags & file_flags::APPEND_ONLY != 0)
    }

    /// Whether a directory has no visible entries. A caller may have the right to remove it without the right to list it.
    fn is_empty(&self, caller: &Caller, dir: &Node) -> Result<bool> {
        let mut is_empty = true;
        self.lower
            .readdir(&self.own(caller), dir, 0, &mut |entry| {
                is_empty = entry.name == DIR_IV_FILE;
                is_empty
            })?;
        Ok(is_empty)
    }

    pub fn rmdir(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
        self.remove(caller, dir, name, |entry| {
            if !self.cipher.kind().has_dir_iv() {
                return Ok(self.lower.rmdir(caller, dir, entry)?);
            }
            self.rmdir_with_iv(caller, dir, (entry, name))
        })
    }

    /// Removes a directory that contains only an IV. It is first renamed to a temporary name: after a crash either the directory is unchanged,
    /// or only the temporary name exists, but never an entry without an IV. `name` is the plain name.
    fn rmdir_with_iv(
        &self,
        caller: &Caller,
        dir: &Node,
        (entry, name): (&[u8], &[u8]),
    ) -> Result<()> {
        let own = self.own(caller);
        let node = self.lower.lookup(caller, dir, entry)?;
        if !node.is_dir() || self.is_append_only(caller, dir)? {
            // ENOTDIR, EPERM, or an error that the kernel checks for earlier.
            return Ok(self.lower.rmdir(caller, dir, entry)?);
        }
        let mode = self.make_accessible(&own, &node)?;
        let removed = self.is_empty(caller, &node).and_then(|is_empty| {
            let temporary = self.temporary_name()?;
            let flags = libc::RENAME_NOREPLACE;
            let moved = match is_empty {
                true => {
                    let iv = self.ivs.lock().get(&node.ino()).map(|(_, iv)| *iv);
                    self.removed.add(&temporary, name, iv);
                    self.lower
                        .rename(caller, dir, entry, dir, &temporary, flags)
                }
                false => Err(Errno::ENOTEMPTY.into()),
            };
            if moved.is_err() {
                self.removed.forget(&temporary);
                // ENOTEMPTY, or an error that the kernel checks for earlier.
                return Ok(self.lower.rmdir(caller, dir, entry)?);
            }
            let removed = self.rmdir_moved(caller, dir, &temporary, &node);
            if removed.is_err() {
                let _ = self.lower.rename(&own, dir, &temporary, dir, entry, flags);
                self.removed.forget(&temporary);
            }
            removed
        });
        if removed.is_err()
            && let Some(mode) = mode
        {
            let set = SetAttr {
                mode: Some(mode),
                ..SetAttr::default()
            };
            let _ = self.lower.setattr(&own, &node, &set);
        }
        removed
    }

    /// Moves the IV out of the directory `name`, removes the directory, and moves the IV back if that fails.
    fn rmdir_moved(&self, caller: &Caller, dir: &Node, name: &[u8], node: &Node) -> Result<()> {
        let own = self.own(caller);
        let iv = self.temporary_name()?;
        let flags = libc::RENAME_NOREPLACE;
        let moved = self.lower.rename(&own, node, DIR_IV_FILE, dir, &iv, flags);
        match moved {
            Ok(()) | Err(FsError::Errno(Errno::ENOENT)) => {}
            Err(ref error) => return Err(error.clone().into()),
        }
        match self.lower.rmdir(caller, dir, name) {
            Ok(()) => {
                let _ = self.lower.unlink(&own, dir, &iv);
                self.ivs.lock().remove(&node.ino());
                Ok(())
            }
            Err(errno) => {
                if moved.is_ok() {
                    let _ = self.lower.rename(&own, dir, &iv, node, DIR_IV_FILE, 0);
                }
                Err(errno.into())
            }
        }
    }

    /// Lets this process change the entries of a directory that it removes. Returns the former mode if it was changed.
    fn make_accessible(&self, own: &Caller, dir: &Node) -> Result<Option<u32>> {
        if own.capable(goanna_vfs::caps::DAC_OVERRIDE) {
            return Ok(None);
        }
        let mode = self.lower.getattr(own, dir)?.perm();
        if mode & 0o700 == 0o700 {
            return Ok(None);
        }
        let set = SetAttr {
            mode: Some(mode | 0o700),
            ..SetAttr::default()
        };
        // The directory has another owner: the kernel decides about the operation.
        Ok(self.lower.setattr(own, dir, &set).is_ok().then_some(mode))
    }

    pub fn rename(
        &self,
        caller: &Caller,
        (from_dir, from): (&Node, &[u8]),
        (to_dir, to): (&Node, &[u8]),
        flags: u32,
    ) -> Result<()> {
        let old = self.encrypt(caller, from_dir, from)?;
        let rename = |entry: &[u8]| {
            let renamed = self
                .lower
                .rename(caller, from_dir, old.entry(), to_dir, entry, flags);
            match renamed {
                Err(FsError::Errno(Errno::ENOTEMPTY | Errno::EEXIST))
                    if flags == 0 && self.cipher.kind().has_dir_iv() =>
                {
                    self.replace_empty(caller, (from_dir, old.entry()), (to_dir, entry, to))
                }
                other => Ok(other?),
            }
        };
        self.make(caller, to_dir, to, rename)?;
        if matches!(old, EncryptedName::Long { .. }) {
            let _guard = self.long_names.lock();
            let own = self.own(caller);
            // The file stays if the two names were exchanged, or were names of the same file.
            let left = self.lower.lookup(&own, from_dir, old.entry());
            if matches!(left, Err(FsError::Errno(Errno::ENOENT))) {
                let _ = self.lower.unlink(&own, from_dir, &name_file(old.entry()));
            }
        }
        Ok(())
    }

    /// Renames a directory over one that contains only an IV: the two are exchanged, and the empty one is removed.
    fn replace_empty(
        &self,
        caller: &Caller,
        (from_dir, from): (&Node, &[u8]),
        (to_dir, to, name): (&Node, &[u8], &[u8]),
    ) -> Result<()> {
        let target = self.lower.lookup(caller, to_dir, to)?;
        if !target.is_dir() || !self.is_empty(caller, &target)? {
            return Err(Errno::ENOTEMPTY.into());
        }
        let exchange = || {
            let flags = libc::RENAME_EXCHANGE;
            self.lower.rename(caller, from_dir, from, to_dir, to, flags)
        };
        exchange()?;
        let removed = self.rmdir_with_iv(caller, from_dir, (from, name));
        if removed.is_err() {
            let _ = exchange();
        }
        removed
    }
}
