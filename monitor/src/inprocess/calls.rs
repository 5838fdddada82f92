//! Which calls a stub can answer in the process, and what it must look at for each.

use goanna_sys::stub::{KINDS_MAX, kind};

/// The calls that have stubs, and the kind of stub for each: calls without a path, and calls that read what a path names. Calls that
/// change names have none, nor do opens that create, truncate or write.
const KINDS: &[(i64, u32)] = &[
    (libc::SYS_write, kind::DESCRIPTOR | kind::WRITE),
    (libc::SYS_stat, 0),
    (libc::SYS_fstat, kind::STAT_RSI),
    (libc::SYS_lstat, kind::NO_FOLLOW),
    (libc::SYS_ioctl, kind::REQUEST),
    (libc::SYS_pwrite64, kind::DESCRIPTOR | kind::WRITE),
    (libc::SYS_writev, kind::DESCRIPTOR),
    (libc::SYS_access, kind::ACCESS),
    (libc::SYS_fsync, kind::DESCRIPTOR),
    (libc::SYS_fdatasync, kind::DESCRIPTOR),
    (libc::SYS_ftruncate, kind::DESCRIPTOR),
    (libc::SYS_getcwd, kind::CWD),
    (libc::SYS_readlink, kind::NO_FOLLOW | kind::LINK),
    (libc::SYS_fchmod, kind::DESCRIPTOR),
    (libc::SYS_fchown, kind::DESCRIPTOR),
    (libc::SYS_statfs, 0),
    (libc::SYS_fstatfs, kind::DESCRIPTOR),
    (libc::SYS_fsetxattr, kind::DESCRIPTOR),
    (libc::SYS_getxattr, 0),
    (libc::SYS_lgetxattr, kind::NO_FOLLOW),
    (libc::SYS_fgetxattr, kind::DESCRIPTOR),
    (libc::SYS_listxattr, 0),
    (libc::SYS_llistxattr, kind::NO_FOLLOW),
    (libc::SYS_flistxattr, kind::DESCRIPTOR),
    (libc::SYS_fremovexattr, kind::DESCRIPTOR),
    (libc::SYS_getdents64, kind::LIST),
    (libc::SYS_openat, kind::IN_RSI | kind::OPEN),
    (
        libc::SYS_newfstatat,
        kind::IN_RSI | kind::FLAGS_R10 | kind::STAT_RDX,
    ),
    (
        libc::SYS_readlinkat,
        kind::IN_RSI | kind::NO_FOLLOW | kind::LINK,
    ),
    (libc::SYS_faccessat, kind::IN_RSI | kind::ACCESS),
    (libc::SYS_utimensat, kind::DESCRIPTOR | kind::NO_PATH),
    (libc::SYS_fallocate, kind::DESCRIPTOR),
    (libc::SYS_pwritev, kind::DESCRIPTOR),
    (libc::SYS_copy_file_range, kind::COPY),
    (
        libc::SYS_statx,
        kind::IN_RSI | kind::FLAGS_RDX | kind::STATX,
    ),
    (
        libc::SYS_faccessat2,
        kind::IN_RSI | kind::FLAGS_R10 | kind::ACCESS,
    ),
];

/// The calls that have stubs, of those that are `wanted`: in each word the number and, in its upper half, the kind. Behind the last one is another number.
pub fn kinds(wanted: impl Fn(u32) -> bool) -> Vec<u64> {
    let kinds = KINDS.iter().filter(|(nr, _)| wanted(*nr as u32));
    let kinds = kinds.take(KINDS_MAX - 1);
    let kinds = kinds.map(|(nr, kind)| u64::from(*kind) << 32 | *nr as u64);
    kinds.chain([u64::MAX]).collect()
}

/// The calls that programs make most, if they make many: those first for whose answers they wait longest.
pub const LIKELY: [i64; 15] = [
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_getdents64,
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_getcwd,
    libc::SYS_fstat,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_write,
    libc::SYS_writev,
];

/// What a stub must look at for call `nr`; `None` for a call that has none.
pub fn kind_of(nr: u32) -> Option<u32> {
    let found = KINDS
        .binary_search_by_key(&i64::from(nr), |(nr, _)| *nr)
        .ok()?;
    KINDS.get(found).map(|(_, kind)| *kind)
}

/// Whether call `nr` changes attributes of the file of a descriptor.
pub fn changes_attributes(nr: u32) -> bool {
    const CHANGES: [i64; 5] = [
        libc::SYS_fchmod,
        libc::SYS_fchown,
        libc::SYS_fsetxattr,
        libc::SYS_fremovexattr,
        libc::SYS_utimensat,
    ];
    CHANGES.contains(&i64::from(nr))
}

/// Whether stubs make call `nr` natively: those they answer, and openat2(2), by which they look for symbolic links. They never make
/// copy_file_range(2), whose sixth argument is in the cookie's register.
pub fn admits_cookie(nr: u32) -> bool {
    i64::from(nr) == libc::SYS_openat2 || kind_of(nr).is_some_and(|kind| kind != kind::COPY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_sorted_by_number() {
        assert!(KINDS.is_sorted_by(|one, other| one.0 < other.0));
        assert!(KINDS.len() < KINDS_MAX, "{}", KINDS.len());
        assert_eq!(kind_of(libc::SYS_unlink as u32), None);
    }
}
