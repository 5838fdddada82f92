//! The credentials of this process, for what it does on a file system itself.

use std::sync::Arc;

use goanna_vfs::Caller;

/// This process's own credentials, capabilities and umask.
pub fn current() -> Caller {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str, radix| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|value| u64::from_str_radix(value.trim(), radix).ok())
    };
    let uid = nix::unistd::geteuid().as_raw();
    let mut groups: Vec<u32> = nix::unistd::getgroups()
        .map(|groups| groups.into_iter().map(|gid| gid.as_raw()).collect())
        .unwrap_or_default();
    groups.sort_unstable();
    let pid = std::process::id() as i32;
    Caller {
        tid: pid,
        pid,
        uid,
        gid: nix::unistd::getegid().as_raw(),
        real_uid: nix::unistd::getuid().as_raw(),
        real_gid: nix::unistd::getgid().as_raw(),
        groups: Arc::from(groups),
        caps: field("CapEff:", 16).unwrap_or(if uid == 0 { u64::MAX } else { 0 }),
        umask: field("Umask:", 8).map_or(0o022, |mask| mask as u32 & 0o777),
        real_caps: field("CapPrm:", 16)
            .filter(|_| nix::unistd::getuid().is_root())
            .unwrap_or(0),
        user_ns: None,
        txn: None,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn credentials_are_those_of_the_process() {
        let caller = super::current();
        assert_eq!(caller.uid, nix::unistd::geteuid().as_raw());
        assert!(caller.groups.is_sorted());
        let mask = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o027));
        let changed = super::current().umask;
        nix::sys::stat::umask(mask);
        assert_eq!(changed, 0o027);
    }
}
