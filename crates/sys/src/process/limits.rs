//! Resource limits.
#![allow(unsafe_code, reason = "prlimit(2)")]

use std::fs;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};

/// The limit on descriptors before [`raise_nofile`]. Programs that we launch get it, because some of them allocate tables of
/// that size, and `select` cannot handle descriptors above 1023.
static INHERITED_NOFILE: OnceLock<libc::rlimit64> = OnceLock::new();

/// Raises the limit on open descriptors: to the system's (`fs.nr_open`) with CAP_SYS_RESOURCE, else the soft limit to the hard
/// one. Returns it. Launched programs get both limits as they were.
pub fn raise_nofile() -> Result<u64, Errno> {
    let now = get(0, libc::RLIMIT_NOFILE)?;
    let most = nr_open().unwrap_or(0).max(now.rlim_max);
    let raised = raise(libc::RLIMIT_NOFILE, &now, most);
    if raised != now.rlim_cur {
        INHERITED_NOFILE.get_or_init(|| now);
    }
    Ok(raised)
}

/// Raises both limits from `now` to `most`, or else the soft one to the hard one. Returns the soft limit.
fn raise(resource: libc::__rlimit_resource_t, now: &libc::rlimit64, most: u64) -> u64 {
    for limit in [most, now.rlim_max] {
        if now.rlim_cur == limit {
            break;
        }
        let raised = libc::rlimit64 {
            rlim_cur: limit,
            rlim_max: limit,
        };
        // SAFETY: `raised` is live; no old limit is asked for.
        let r = unsafe { libc::prlimit64(0, resource, &raw const raised, std::ptr::null_mut()) };
        if r == 0 {
            return limit;
        }
    }
    now.rlim_cur
}

/// The largest limit on descriptors that any process can have.
fn nr_open() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/sys/fs/nr_open").ok()?;
    text.trim().parse().ok()
}

/// The soft limit on open descriptors.
pub fn nofile() -> Result<u64, Errno> {
    get(0, libc::RLIMIT_NOFILE).map(|limit| limit.rlim_cur)
}

/// The limit on descriptors of this process, if it is reached.
pub fn exhausted_nofile() -> Option<u64> {
    // SAFETY: a copy of standard input is made and closed; nothing else knows its number.
    let copied = unsafe {
        let fd = libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 0);
        if fd >= 0 {
            libc::close(fd);
        }
        Errno::result(fd)
    };
    (copied == Err(Errno::EMFILE)).then(|| nofile().unwrap_or(0))
}

/// The other limits on what this process does for programs, and the options of ulimit(1) that set them.
const OTHERS: [(libc::__rlimit_resource_t, &str); 4] = [
    (libc::RLIMIT_FSIZE, "-f"),
    (libc::RLIMIT_AS, "-v"),
    (libc::RLIMIT_DATA, "-d"),
    (libc::RLIMIT_CPU, "-t"),
];

/// Raises the limits on file sizes, address space, data and processor time, in a process that does not only work for the process that started it: removes
/// them with CAP_SYS_RESOURCE, else raises the soft limits to the hard ones. Call this before the first thread is started.
pub fn raise_others() {
    for (resource, _) in OTHERS {
        if let Ok(now) = get(0, resource) {
            raise(resource, &now, libc::RLIM64_INFINITY);
        }
    }
    let is_limited = get(0, libc::RLIMIT_AS).is_ok_and(|now| now.rlim_cur != libc::RLIM64_INFINITY);
    if is_limited {
        // Each further arena reserves 64 MiB of addresses, whatever it uses of them.
        // SAFETY: integers only, and this process has one thread.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// Makes writes beyond the limit on file sizes errors (EFBIG) in this thread and in those that it starts from now on: blocks SIGXFSZ.
pub fn block_xfsz() {
    // It fails for wrong arguments only.
    let _ = SigSet::from(Signal::SIGXFSZ).thread_block();
}

/// The options of ulimit(1) for those limits that a process of an ordinary user, started by this one, could not remove by [`raise_others`].
pub fn hard_others() -> Vec<&'static str> {
    let is_hard =
        |resource| get(0, resource).is_ok_and(|now| now.rlim_max != libc::RLIM64_INFINITY);
    OTHERS
        .into_iter()
        .filter(|(resource, _)| is_hard(*resource))
        .map(|(_, option)| option)
        .collect()
}

/// Size of the descriptor table that [`widen_descriptor_table`] allocates, in entries: 128 KiB.
const TABLE_ENTRIES: libc::c_int = 16 << 10;

/// Makes the descriptor table large while it belongs to one thread. When a table that threads share grows, the kernel
/// waits until no CPU can be looking at the old one (`synchronize_rcu`), 5 to 20 ms each of the ten times it doubles.
/// A limit below that size is not an error: then the process needs no larger table.
pub fn widen_descriptor_table() {
    // SAFETY: a copy of standard input is made and closed; nothing else knows its number.
    unsafe {
        let fd = libc::fcntl(0, libc::F_DUPFD_CLOEXEC, TABLE_ENTRIES - 1);
        if fd >= 0 {
            libc::close(fd);
        }
    }
}

pub(crate) fn inherited_nofile() -> Option<libc::rlimit64> {
    INHERITED_NOFILE.get().copied()
}

/// The soft limit on file sizes of `tid`'s process, in bytes; `u64::MAX` means no limit. ESRCH.
pub fn prlimit_fsize(tid: i32) -> Result<u64, Errno> {
    soft(tid, libc::RLIMIT_FSIZE, "Max file size")
}

/// The soft limit on descriptor numbers of `tid`'s process. ESRCH.
pub fn prlimit_nofile(tid: i32) -> Result<u64, Errno> {
    soft(tid, libc::RLIMIT_NOFILE, "Max open files")
}

fn soft(tid: i32, resource: libc::__rlimit_resource_t, name: &str) -> Result<u64, Errno> {
    match get(tid, resource) {
        // Its user ids are not ours and we lack CAP_SYS_RESOURCE.
        Err(Errno::EPERM) => {
            let text =
                fs::read_to_string(format!("/proc/{tid}/limits")).map_err(|_| Errno::ESRCH)?;
            parse(&text, name).ok_or(Errno::EIO)
        }
        limit => limit.map(|limit| limit.rlim_cur),
    }
}

/// The soft limit `name` in the text of /proc/PID/limits.
fn parse(text: &str, name: &str) -> Option<u64> {
    let values = text.lines().find_map(|line| line.strip_prefix(name))?;
    match values.split_ascii_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        value => value.parse().ok(),
    }
}

fn get(tid: i32, resource: libc::__rlimit_resource_t) -> Result<libc::rlimit64, Errno> {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a live rlimit64; no new limit is given.
    let r = unsafe { libc::prlimit64(tid, resource, std::ptr::null(), &raw mut limit) };
    Errno::result(r).map(|_| limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_from_proc() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max file size             5000                 unlimited            bytes     \n\
                    Max open files            unlimited            unlimited            files     \n";
        assert_eq!(parse(text, "Max file size"), Some(5000));
        assert_eq!(parse(text, "Max open files"), Some(u64::MAX));
        assert_eq!(parse(text, "Max locked memory"), None);
        let own = fs::read_to_string("/proc/self/limits").unwrap();
        assert_eq!(
            parse(&own, "Max open files").ok_or(Errno::EIO),
            prlimit_nofile(0)
        );
    }
}
