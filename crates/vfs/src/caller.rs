//! Who calls: the credentials a path walk and a back end judge by.

use std::sync::Arc;

use crate::TxnId;

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
    /// Make device nodes.
    pub const MKNOD: u32 = 27;
    /// Open mapped files by `/proc/PID/map_files`, among more.
    pub const CHECKPOINT_RESTORE: u32 = 40;
    /// Trusted extended attributes, among much else.
    pub const SYS_ADMIN: u32 = 21;
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
    /// Real user id: what access(2) judges by.
    pub real_uid: u32,
    /// Real group id.
    pub real_gid: u32,
    /// Supplementary groups, sorted.
    pub groups: Arc<[u32]>,
    /// Effective capabilities, one bit each.
    pub caps: u64,
    /// File mode creation mask.
    pub umask: u32,
    /// The transaction that what the thread does belongs to.
    pub txn: Option<TxnId>,
}

impl Caller {
    /// Whether the effective set holds capability `cap` (a number of [`caps`]).
    pub fn capable(&self, cap: u32) -> bool {
        self.caps & (1 << cap) != 0
    }

    /// Whether the caller is in `gid` by its file-system group or a supplementary one.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.binary_search(&gid).is_ok()
    }

    /// The caller as access(2) sees it: real ids, and capabilities only for a real root.
    pub fn real(&self) -> Self {
        let caps = if self.real_uid == 0 { self.caps } else { 0 };
        Self {
            uid: self.real_uid,
            gid: self.real_gid,
            caps,
            ..self.clone()
        }
    }
}
