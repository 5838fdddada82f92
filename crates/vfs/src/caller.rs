//! The caller of an operation: the credentials with which a path walk and a back end check permissions.

use std::sync::Arc;

use goanna_sys::cred;

use crate::{Attr, TxnId, UserNamespace};

/// Capability bit numbers (capabilities(7)).
pub mod caps {
    /// Change owners.
    pub const CHOWN: u32 = 0;
    /// Bypass read, write and execute permission checks.
    pub const DAC_OVERRIDE: u32 = 1;
    /// Bypass read checks and directory search checks.
    pub const DAC_READ_SEARCH: u32 = 2;
    /// Bypass checks that the caller owns the file.
    pub const FOWNER: u32 = 3;
    /// Keep set-id bits on changes.
    pub const FSETID: u32 = 4;
    /// Set the immutable and append-only flags.
    pub const LINUX_IMMUTABLE: u32 = 9;
    /// Change the root directory.
    pub const SYS_CHROOT: u32 = 18;
    /// Trace other processes.
    pub const SYS_PTRACE: u32 = 19;
    /// Trusted extended attributes, among much else.
    pub const SYS_ADMIN: u32 = 21;
    /// Make device nodes.
    pub const MKNOD: u32 = 27;
    /// Give files capabilities.
    pub const SETFCAP: u32 = 31;
    /// Leases on files of others.
    pub const LEASE: u32 = 28;
    /// Open mapped files by `/proc/PID/map_files`, among more.
    pub const CHECKPOINT_RESTORE: u32 = 40;
}

/// The credentials of the thread that made a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Thread id in the monitor's pid namespace.
    pub tid: i32,
    /// Process (thread group) id.
    pub pid: i32,
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Real user id, which access(2) uses.
    pub real_uid: u32,
    /// Real group id.
    pub real_gid: u32,
    /// Supplementary groups, sorted.
    pub groups: Arc<[u32]>,
    /// Effective capabilities, one bit each: in the caller's own user namespace. [`Caller::capable`] and
    /// [`Caller::capable_over`] determine whether they apply to the mounts or to an inode.
    pub caps: u64,
    /// The capabilities that access(2) uses.
    pub real_caps: u64,
    /// The caller's user namespace; `None`: the monitor's, which owns all mounts.
    pub user_ns: Option<Arc<UserNamespace>>,
    /// File mode creation mask.
    pub umask: u32,
    /// The transaction that the thread's operations belong to.
    pub txn: Option<TxnId>,
}

impl Caller {
    /// This process, as it was started, with a umask of 022.
    pub fn own() -> Self {
        let own = cred::own_ids();
        let pid = std::process::id() as i32;
        Self {
            tid: pid,
            pid,
            groups: own.groups.as_slice().into(),
            caps: own.cap_eff,
            real_caps: own.cap_eff,
            ..Self::with_ids(own.uid, own.gid)
        }
    }

    /// Process 1 with these ids, no further group and a umask of 022. User 0 has all capabilities, any other user none. A
    /// base for callers that differ in a few fields.
    pub fn with_ids(uid: u32, gid: u32) -> Self {
        let caps = if uid == 0 { u64::MAX } else { 0 };
        Self {
            tid: 1,
            pid: 1,
            uid,
            gid,
            real_uid: uid,
            real_gid: gid,
            groups: Arc::default(),
            caps,
            real_caps: caps,
            user_ns: None,
            umask: 0o022,
            txn: None,
        }
    }

    /// Whether the caller has capability `cap` (a number of [`caps`]) over the mounts: in the monitor's user namespace
    /// (the kernel's `capable`).
    pub fn capable(&self, cap: u32) -> bool {
        self.user_ns.is_none() && self.has(cap)
    }

    /// Whether the caller has capability `cap` over an inode: in the monitor's user namespace, or in one of its own that
    /// has the inode's owner and group (the kernel's `capable_wrt_inode_uidgid`).
    pub fn capable_over(&self, cap: u32, attr: &Attr) -> bool {
        let over = |ns: &Arc<UserNamespace>| ns.has(attr.uid, attr.gid);
        self.has(cap) && self.user_ns.as_ref().is_none_or(over)
    }

    /// Whether the caller may act as the owner of an inode (the kernel's `inode_owner_or_capable`): it is the owner, or has
    /// `CAP_FOWNER` in a user namespace that has the owner.
    pub fn owns(&self, attr: &Attr) -> bool {
        let over = |ns: &Arc<UserNamespace>| ns.uids.inside(attr.uid).is_some();
        attr.uid == self.uid || self.has(caps::FOWNER) && self.user_ns.as_ref().is_none_or(over)
    }

    /// Whether a change that leaves the inode in group `gid` may leave its set-group-id bit alone, too (the kernel's
    /// `in_group_or_capable`).
    pub fn in_group_or_capable(&self, attr: &Attr, gid: u32) -> bool {
        self.in_group(gid) || self.capable_over(caps::FSETID, attr)
    }

    /// Whether the caller has capability `cap` in its own user namespace.
    pub fn has(&self, cap: u32) -> bool {
        self.caps & (1 << cap) != 0
    }

    /// The monitor's user id for the caller's `uid`, as an argument of a call; `None` for one that the caller's namespace
    /// does not have (EINVAL).
    pub fn outside_uid(&self, uid: u32) -> Option<u32> {
        match &self.user_ns {
            None => Some(uid),
            Some(ns) => ns.uids.outside(uid),
        }
    }

    /// The monitor's group id for the caller's `gid`, like [`Caller::outside_uid`].
    pub fn outside_gid(&self, gid: u32) -> Option<u32> {
        match &self.user_ns {
            None => Some(gid),
            Some(ns) => ns.gids.outside(gid),
        }
    }

    /// `attr` as stat(2) shows it to the caller.
    pub fn shown(&self, attr: Attr) -> Attr {
        match &self.user_ns {
            None => attr,
            Some(ns) => ns.shown(attr),
        }
    }

    /// Whether the caller is in `gid` by its file-system group or a supplementary one.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.binary_search(&gid).is_ok()
    }

    /// The caller as access(2) sees it: real ids and their capabilities.
    pub fn real(&self) -> Self {
        Self {
            uid: self.real_uid,
            gid: self.real_gid,
            caps: self.real_caps,
            ..self.clone()
        }
    }
}
