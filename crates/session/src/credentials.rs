//! The credentials of this process, for its own operations on a file system.

use goanna_vfs::Caller;

/// This process's own credentials, capabilities and umask; without `/proc`, with a umask of 022.
pub fn current() -> Caller {
    let pid = std::process::id() as i32;
    goanna_monitor::credentials(pid).unwrap_or_else(|_| Caller::own())
}

#[cfg(test)]
mod tests {
    #[test]
    fn credentials_are_those_of_the_process() {
        let caller = super::current();
        let without = goanna_vfs::Caller::own();
        assert_eq!((caller.uid, &caller.groups), (without.uid, &without.groups));
        assert_eq!(caller.caps, without.caps);
        assert_eq!(caller.uid, nix::unistd::geteuid().as_raw());
        assert!(caller.groups.is_sorted());
        let mask = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o027));
        let changed = super::current().umask;
        nix::sys::stat::umask(mask);
        assert_eq!(changed, 0o027);
    }
}
