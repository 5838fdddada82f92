//! Acting as the caller.

use goanna_sys::cred::{self, Ids};
use goanna_vfs::{Caller, Result, caps};

use crate::PassFs;

/// Capabilities that decide about files (those `setfsuid` drops, and those extended attributes ask for).
const FILE_CAPS: u64 = 1 << caps::CHOWN
    | 1 << caps::DAC_OVERRIDE
    | 1 << caps::DAC_READ_SEARCH
    | 1 << caps::FOWNER
    | 1 << caps::FSETID
    | 1 << 9 // CAP_LINUX_IMMUTABLE
    | 1 << caps::SYS_ADMIN
    | 1 << caps::MKNOD
    | 1 << 31; // CAP_SETFCAP

impl PassFs {
    /// Runs `f`, which makes host calls that create nothing, with the file-system credentials of `caller`.
    ///
    /// Capabilities are all or nothing: a caller with none that concern files acts without any, one with some
    /// of them acts with the monitor's. EPERM, without running `f`, when the credentials differ from the
    /// monitor's and it may not change its own.
    pub fn act<R>(&self, caller: &Caller, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let own = cred::own_ids();
        let same = caller.uid == own.uid
            && caller.gid == own.gid
            && caller.groups[..] == own.groups[..]
            && !drops_caps(caller);
        if same {
            return f();
        }
        self.act_creating(caller, f)
    }

    /// [`PassFs::act`], with the caller's umask too.
    pub fn act_creating<R>(&self, caller: &Caller, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let ids = Ids {
            uid: caller.uid,
            gid: caller.gid,
            groups: &caller.groups,
        };
        cred::as_user(&ids, caller.umask, drops_caps(caller), f)
    }
}

fn drops_caps(caller: &Caller) -> bool {
    cred::own_ids().cap_eff & FILE_CAPS != 0 && caller.caps & FILE_CAPS == 0
}
