//! Where absolute paths start if not at the root directory of the run, and /proc below such a directory.

use std::sync::Arc;

use super::host::{has_processes, is_procfs};
use super::{Pos, Walk, same_mount};
use crate::{Errno, Place, Result, paths};

/// Where the host has its processes.
const PROC: &[u8] = b"/proc";

/// The root directory of a process, if it is not that of the run.
#[derive(Debug, Clone)]
pub struct Root {
    /// The directory.
    pub at: Pos,
    /// Whether it is the kernel's root directory of the process, too. If not, the kernel cannot repeat a walk that comes there.
    pub is_in_kernel: bool,
}

impl Walk<'_> {
    /// Lets absolute paths and absolute links start at `root`, as after chroot(2).
    #[must_use]
    pub fn with_root(mut self, root: Option<Root>) -> Self {
        self.root = root;
        self
    }

    /// The walk has come to the root directory, or to a /proc that is found by its place below that.
    fn meet_root(&mut self) -> Result<()> {
        match &self.root {
            Some(root) if !root.is_in_kernel => self.leave_host(),
            _ => Ok(()),
        }
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
                    self.meet_root()?;
                    Ok(root.at)
                }
                None => {
                    self.from_root = true;
                    Ok(Pos::root())
                }
            },
        }
    }

    /// Lets canonical paths start at `path`, by which the monitor reaches the root directory that the process has in the kernel, in a mount namespace of its own.
    #[must_use]
    pub fn with_kernel_root(mut self, path: Option<&[u8]>) -> Self {
        self.kernel_root = path.unwrap_or_default().to_vec();
        self
    }

    /// The start of a walk to the canonical `path`, and the rest of `path` from there.
    pub(super) fn kernel_start<'p>(&mut self, path: &'p [u8]) -> Result<(Pos, &'p [u8])> {
        let Some(rest) = path.strip_prefix(&self.kernel_root[..]) else {
            return Ok((Pos::root(), path));
        };
        let root = self.kernel_root.clone();
        Ok((self.enter_mount_at(&root)?, rest))
    }

    /// Whether `..` leads nowhere from `at`, since it is the root directory.
    pub(super) fn stays_at_root(&mut self, at: &Pos) -> Result<bool> {
        let is_root = match (self.root.as_ref().map(|root| &root.at), at) {
            (Some(Pos::Host(root)), Pos::Host(path)) => root == path,
            (Some(Pos::Mounted(root)), Pos::Mounted(place)) => root.key() == place.key(),
            _ => false,
        };
        if is_root {
            self.meet_root()?;
        }
        Ok(is_root)
    }

    /// The start of a walk along the absolute target of a link found in `dir`; EXDEV where that is not allowed.
    pub fn link_start(&mut self, dir: &Pos) -> Result<Pos> {
        let start = self.absolute_start()?;
        if self.resolve & libc::RESOLVE_NO_XDEV != 0 && !same_mount(dir, &start) {
            return Err(Errno::EXDEV.into());
        }
        Ok(start)
    }

    /// The host's /proc if `dir` is a procfs below a root directory of the process's own, and `name` is that of a process there. A link to the caller's own directory
    /// leads to that in any procfs.
    pub(super) fn inside_procfs(&mut self, dir: &Pos, name: &[u8]) -> Result<Option<Pos>> {
        let Pos::Host(path) = dir else {
            return Ok(None);
        };
        let is_own = matches!(name, b"self" | b"thread-self");
        let is_process = is_own || name.iter().all(u8::is_ascii_digit);
        if self.root.is_none() || path == PROC || !is_process {
            return Ok(None);
        }
        let is_found = if is_own {
            has_processes(path)
        } else {
            let covered = self.mounts.covered_by(path);
            covered.as_ref().unwrap_or(path).ends_with(PROC) && is_procfs(path)
        };
        if !is_found {
            return Ok(None);
        }
        self.meet_root()?;
        self.proc_at = Some(dir.clone());
        Ok(Some(Pos::Host(PROC.to_vec())))
    }

    /// The host's /proc where `at` is one below a root directory of the process's own, else `at`.
    pub(super) fn in_procfs(&mut self, at: Pos) -> Result<Pos> {
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
        self.meet_root()?;
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
        self.meet_root()?;
        if self.proc_at.is_none() {
            let (at, _) = self.step(&root.at, b"proc", false)?;
            // This is where it is noted.
            self.in_procfs(at)?;
        }
        Ok(Some(self.proc_at.clone().unwrap_or(root.at)))
    }

    /// The host's object behind the magic link `path` of /proc, for a walk that the kernel cannot repeat.
    pub(super) fn behind_magic_link(&self, path: &[u8]) -> Result<Pos> {
        let host = self.mounts.host();
        let dir = self.mounts.host_place(self.caller, paths::parent(path))?;
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
