//! Where absolute paths start, and /proc below another root directory.

use std::sync::Arc;

use super::host::{is_procfs, parent_of};
use super::{Pos, Walk, same_mount};
use crate::{Errno, Place, Result};

impl Walk<'_> {
    /// Lets absolute paths and absolute links start at `root`, as after chroot(2). The kernel knows nothing of it, so it cannot repeat a walk that comes there.
    #[must_use]
    pub fn with_root(mut self, root: Option<Pos>) -> Self {
        self.root = root;
        self
    }

    pub(super) fn absolute_start(&mut self) -> Result<Pos> {
        if self.resolve & libc::RESOLVE_BENEATH != 0 {
            return Err(Errno::EXDEV.into());
        }
        match &self.anchor {
            Some(anchor) if self.resolve & libc::RESOLVE_IN_ROOT != 0 => {
                self.depth = 0;
                Ok(anchor.clone())
            }
            _ => match self.root.clone() {
                Some(root) => {
                    self.leave_host()?;
                    Ok(root)
                }
                None => {
                    self.from_root = true;
                    Ok(Pos::root())
                }
            },
        }
    }

    pub(super) fn is_root(&self, at: &Pos) -> bool {
        match (&self.root, at) {
            (Some(Pos::Host(root)), Pos::Host(path)) => root == path,
            (Some(Pos::Mounted(root)), Pos::Mounted(place)) => root.key() == place.key(),
            _ => false,
        }
    }

    /// The start of a walk along the absolute target of a link found in `dir`; EXDEV where that is not allowed.
    pub fn link_start(&mut self, dir: &Pos) -> Result<Pos> {
        let start = self.absolute_start()?;
        if self.resolve & libc::RESOLVE_NO_XDEV != 0 && !same_mount(dir, &start) {
            return Err(Errno::EXDEV.into());
        }
        Ok(start)
    }

    /// The host's /proc where `at` is one below a root directory of the process's own, else `at`.
    pub(super) fn in_procfs(&mut self, at: Pos) -> Result<Pos> {
        const PROC: &[u8] = b"/proc";
        let path = match &at {
            Pos::Host(path) => Some(path.clone()),
            Pos::Mounted(place) => {
                let path = place.mount.fs.host_path(&place.node);
                path.map(|path| path.into_os_string().into_encoded_bytes())
            }
        };
        if !path.is_some_and(|path| path != PROC && is_procfs(&path)) {
            return Ok(at);
        }
        self.leave_host()?;
        self.proc_at = Some(at);
        Ok(Pos::Host(PROC.to_vec()))
    }

    /// The directory on which the /proc is mounted, if the walk of a process with a root directory of its own is there. A walk that began in /proc knows it by the
    /// usual name.
    pub(super) fn covered_by_procfs(&mut self, at: &Pos) -> Result<Option<Pos>> {
        let Some(root) = self.root.clone() else {
            return Ok(None);
        };
        if !matches!(at, Pos::Host(path) if path == b"/proc") {
            return Ok(None);
        }
        self.leave_host()?;
        if self.proc_at.is_none() {
            // This is where it is noted.
            self.step(&root, b"proc", false)?;
        }
        Ok(Some(self.proc_at.clone().unwrap_or(root)))
    }

    /// The host's object behind the magic link `path` of /proc, for a walk that the kernel cannot repeat.
    pub(super) fn behind_magic_link(&self, path: &[u8]) -> Result<Pos> {
        let host = self.mounts.host();
        let dir = self.mounts.host_place(self.caller, parent_of(path))?;
        let name = path.rsplit(|&byte| byte == b'/').next();
        let name = name.unwrap_or_default();
        let node = host.fs.behind_link(self.caller, &dir.node, name)?;
        if node.is_dir() {
            // By its path, in which mount points are found.
            let path = host.fs.path(self.caller, &node)?;
            if let (path, false) = path {
                return Ok(Pos::Host(if path.is_empty() {
                    path
                } else {
                    [b"/", &path[..]].concat()
                }));
            }
        }
        Ok(Pos::Mounted(Place {
            mount: Arc::clone(host),
            node,
        }))
    }
}
