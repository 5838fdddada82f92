//! The credentials of this process, for what it does on a file system itself.

use std::sync::Arc;

use goanna_vfs::Caller;

/// This process's own credentials, capabilities and umask; without `/proc`, as root with all capabilities, else with none.
pub fn current() -> Caller {
    let pid = std::process::id() as i32;
    goanna_monitor::credentials(pid).unwrap_or_else(|_| without_proc(pid))
}

fn without_proc(pid: i32) -> Caller {
    let uid = nix::unistd::geteuid().as_raw();
    let groups = nix::unistd::getgroups().unwrap_or_default();
    let mut groups: Vec<u32> = groups.into_iter().map(|gid| gid.as_raw()).collect();
    groups.sort_unstable();
    Caller {
        tid: pid,
        pid,
        uid,
        gid: nix::unistd::getegid().as_raw(),
        real_uid: nix::unistd::getuid().as_raw(),
        real_gid: nix::unistd::getgid().as_raw(),
        groups: Arc::from(groups),
        caps: if uid == 0 { u64::MAX } else { 0 },
        umask: 0o022,
        real_caps: 0,
        user_ns: None,
        txn: None,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn credentials_are_those_of_the_process() {
        let caller = super::current();
        let without = super::without_proc(std::process::id() as i32);
        assert_eq!((caller.uid, &caller.groups), (without.uid, &without.groups));
        assert_eq!(caller.uid, nix::unistd::geteuid().as_raw());
        assert!(caller.groups.is_sorted());
        let mask = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o027));
        let changed = super::current().umask;
        nix::sys::stat::umask(mask);
        assert_eq!(changed, 0o027);
    }
}
