//! Performs host calls with the credentials of the caller.

use goanna_sys::cred::{self, Credentials};
use goanna_vfs::{Caller, Node, UserNamespace, caps};
use rustix::fs::StatxFlags;
use std::os::fd::AsFd;

use crate::PassFs;
use crate::Result;
use crate::node::{Pin, stat};

/// Bypasses permission checks.
pub(crate) const DAC: u64 = 1 << caps::DAC_OVERRIDE | 1 << caps::DAC_READ_SEARCH;
/// Acts as the owner: to remove names from a sticky directory, for example.
const OWNER: u64 = 1 << caps::FOWNER;
/// Capabilities that matter when a directory's entries are looked up, made and removed.
pub(crate) const ENTRIES: u64 = DAC | 1 << caps::FSETID;
/// Capabilities that matter when an inode's content and extended attributes are read and changed.
pub(crate) const CONTENT: u64 = DAC | OWNER;
/// Capabilities that matter when an inode's owner, mode and times are changed.
pub(crate) const METADATA: u64 = CONTENT | 1 << caps::CHOWN | 1 << caps::FSETID;

/// The inodes of a call, and the capabilities that the kernel checks for each.
pub(crate) type Concerned<'a> = &'a [(&'a Node, u64)];

impl PassFs {
    /// Runs `f`, which makes host calls that create nothing, with the file-system credentials and the effective
    /// capabilities of `caller`, so that the host's kernel checks permissions as for the caller.
    ///
    /// `concerned` are the inodes of the operation. A caller in another user namespace has its capabilities only over inodes whose owner and
    /// group are mapped there, so `f` has those that hold over each of the inodes. EPERM, without running `f`,
    /// when the credentials differ from the monitor's and it may not change its own.
    pub(crate) fn as_caller<R>(
        &self,
        caller: &Caller,
        concerned: Concerned<'_>,
        f: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let own = cred::own_ids();
        let same = caller.uid == own.uid
            && caller.gid == own.gid
            && caller.groups[..] == own.groups[..]
            && caller.user_ns.is_none()
            && own.cap_eff & !caller.caps == 0;
        if same {
            return f();
        }
        self.with_credentials(caller, None, concerned, f)
    }

    /// Runs `f` as [`PassFs::as_caller`] does, and with the caller's umask.
    pub(crate) fn as_caller_creating<R>(
        &self,
        caller: &Caller,
        concerned: Concerned<'_>,
        f: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.with_credentials(caller, Some(caller.umask), concerned, f)
    }

    fn with_credentials<R>(
        &self,
        caller: &Caller,
        umask: Option<u32>,
        concerned: Concerned<'_>,
        f: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let caps = match &caller.user_ns {
            None => caller.caps,
            Some(ns) => caller.caps & held_over(ns, concerned)?,
        };
        let credentials = Credentials {
            uid: caller.uid,
            gid: caller.gid,
            groups: &caller.groups,
            caps,
        };
        cred::acting_as(&credentials, umask, f)
    }

    /// The inode that loses the name `name` in `dir`, for [`Concerned`]; `dir` and no capability where there is none, or where
    /// it does not matter.
    pub(crate) fn victim(&self, caller: &Caller, dir: &Node, name: &[u8]) -> (Node, u64) {
        let found = match &caller.user_ns {
            None => None,
            Some(_) => self.lookup_path(caller, dir, name).ok(),
        };
        found.map_or_else(|| (dir.clone(), 0), |victim| (victim, OWNER))
    }
}

/// The capabilities in `ns` that hold over all inodes for which the kernel checks them.
fn held_over(ns: &UserNamespace, concerned: Concerned<'_>) -> Result<u64> {
    let mut held = concerned.iter().fold(0, |held, (_, caps)| held | caps);
    for (node, caps) in concerned {
        let stat = stat(Pin::of(node)?.fd.as_fd(), StatxFlags::UID | StatxFlags::GID)?;
        if ns.uids.inside(stat.stx_uid).is_none() {
            held &= !caps;
        } else if ns.gids.inside(stat.stx_gid).is_none() {
            held &= !(caps & !OWNER);
        }
    }
    Ok(held)
}
