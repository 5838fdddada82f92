//! Steps of a walk into and out of mounts.

use super::{Pos, Walk};
use crate::{Errno, Result};

impl Walk<'_> {
    /// The canonical directory `path`, which lies above a mount point: on the host or in an outer mount.
    pub(super) fn locate_canonical(&mut self, path: &[u8]) -> Result<Pos> {
        if !self.mounts.nested() {
            return self.enter_mount_at(path);
        }
        let (mut at, path) = self.kernel_start(path)?;
        for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            at = self.step(&at, name, true)?.0;
        }
        Ok(at)
    }

    /// The host directory `path`, or what is mounted on it.
    pub(super) fn enter_mount_at(&mut self, path: &[u8]) -> Result<Pos> {
        match self.mounted_at(path)? {
            Some(mounted) => Ok(mounted),
            None => Ok(Pos::Host(path.to_vec())),
        }
    }

    /// What is mounted at the canonical path `path`, if it is a mount point of the run. EXDEV where the walk may not go there.
    pub(super) fn mounted_at(&mut self, path: &[u8]) -> Result<Option<Pos>> {
        let mounted = match self.mounts.kernel_mount_at(path) {
            Some(mount) => Pos::Host(mount.path.clone()),
            None => match self.mounts.at(path) {
                Some(mount) => Pos::mount_root(mount),
                None => return Ok(None),
            },
        };
        self.leave_host()?;
        self.crosses()?;
        Ok(Some(mounted))
    }

    /// The walk goes into or out of a mount; EXDEV where that is not allowed.
    pub(super) fn crosses(&self) -> Result<()> {
        if self.resolve & libc::RESOLVE_NO_XDEV != 0 {
            return Err(Errno::EXDEV.into());
        }
        Ok(())
    }
}
