//! Mounting: the check of a mount point, and the directories that lead to it.

use std::fmt;
use std::sync::Arc;

use crate::{
    Caller, Errno, FileKind, FileSystem, FsError, Mount, MountFlags, Mounts, NAME_MAX, SynthFs,
    walk,
};

/// Inode numbers of synthetic directories, which have the device number of the directory they are shown in, begin here.
const SYNTHETIC_INODES: u64 = 1 << 62;

/// Why a mount point was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountError {
    /// The mount point is not an absolute path.
    NotAbsolute,
    /// The mount point is `/`, which the host keeps.
    Root,
    /// A component is `..`, longer than NAME_MAX, or the path holds a NUL.
    BadPath,
    /// Something is mounted there already.
    Busy,
    /// The mount point, or a component of its path, exists and is not a directory.
    NotDirectory,
    /// A component of the mount point's path could not be read.
    Lookup(FsError),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAbsolute => f.write_str("the mount point must be an absolute path"),
            Self::Root => f.write_str("the mount point must not be /"),
            Self::BadPath => f.write_str(
                "the mount point contains \"..\", a NUL byte, or a name that is too long",
            ),
            Self::Busy => f.write_str("something is mounted there already"),
            Self::NotDirectory => {
                f.write_str("the mount point, or a part of it, is not a directory")
            }
            Self::Lookup(FsError::Errno(errno)) => {
                write!(f, "the mount point cannot be looked up: {}", errno.desc())
            }
            Self::Lookup(blocked) => {
                write!(f, "the mount point cannot be looked up: {blocked}")
            }
        }
    }
}

impl std::error::Error for MountError {}

impl Mounts {
    /// Mounts `fs` at `target`. Symbolic links in `target` are resolved through the mounts made so far;
    /// directories that lead to it and do not exist appear as read-only ones. It may cover the mounts that a table was branched with.
    pub fn add(
        &mut self,
        caller: &Caller,
        target: &[u8],
        fs: Arc<dyn FileSystem>,
        flags: MountFlags,
        source: String,
    ) -> Result<(), MountError> {
        let target = self.canonical(caller, target)?;
        let is_in_the_way = |mount: &Arc<Mount>| !mount.is_synthetic() && self.is_own(mount);
        if self.at(&target).is_some_and(is_in_the_way) {
            return Err(MountError::Busy);
        }
        self.hide(&target);
        self.insert(fs, target, flags, source);
        Ok(())
    }

    fn canonical(&mut self, caller: &Caller, target: &[u8]) -> Result<Vec<u8>, MountError> {
        if target.first() != Some(&b'/') {
            return Err(MountError::NotAbsolute);
        }
        let names: Vec<&[u8]> = target
            .split(|&b| b == b'/')
            .filter(|n| !n.is_empty() && *n != b".")
            .collect();
        if names.is_empty() {
            return Err(MountError::Root);
        }
        if names
            .iter()
            .any(|n| *n == b".." || n.len() > NAME_MAX || n.contains(&0))
        {
            return Err(MountError::BadPath);
        }
        let mut path: Vec<u8> = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let mut next = path.clone();
            next.push(b'/');
            next.extend_from_slice(name);
            match walk::resolve_absolute(self, caller, &next) {
                Ok((found, FileKind::Directory)) => path = found,
                Ok(_) => return Err(MountError::NotDirectory),
                Err(FsError::Errno(Errno::ENOENT)) => {
                    self.synthesize(&path, &names[index..]);
                    for name in &names[index..] {
                        path.push(b'/');
                        path.extend_from_slice(name);
                    }
                    return Ok(path);
                }
                Err(error) => return Err(MountError::Lookup(error)),
            }
        }
        Ok(path)
    }

    /// Makes the missing directories between `existing` and a mount point appear. The mount point itself is
    /// about to be covered, so only those above it need one.
    fn synthesize(&mut self, existing: &[u8], missing: &[&[u8]]) {
        let mut path = existing.to_vec();
        for name in missing.split_last().map_or(&[][..], |(_, above)| above) {
            path.push(b'/');
            path.extend_from_slice(name);
            let number = SYNTHETIC_INODES + self.next_number();
            let fs: Arc<dyn FileSystem> = Arc::new(SynthFs::new(number));
            let flags = MountFlags::READ_ONLY.union(MountFlags::SYNTHETIC);
            self.insert(fs, path.clone(), flags, "none".into());
        }
    }
}
