//! Layouts of the structures whose fields have a meaning for files and processes.

use crate::signature::{Field, Kind, Structure};
use crate::symbols::{Symbols, files, other, process};

const fn field(name: &'static str, kind: Kind, offset: u32, bits: u8) -> Field {
    Field {
        name,
        kind,
        offset,
        bits,
    }
}

const fn set(symbols: &'static Symbols) -> Kind {
    Kind::Flags(symbols)
}

/// `struct open_how`.
pub static OPEN_HOW: Structure = Structure {
    name: "open_how",
    size: size_of::<libc::open_how>() as u32,
    fields: &[
        field("flags", set(&files::OPEN_FLAGS), 0, 64),
        field("mode", Kind::Mode, 8, 64),
        field("resolve", set(&files::RESOLVE_FLAGS), 16, 64),
    ],
};

/// `struct clone_args`.
pub static CLONE_ARGS: Structure = Structure {
    name: "clone_args",
    size: size_of::<libc::clone_args>() as u32,
    fields: &[
        field("flags", set(&process::CLONE_FLAGS), 0, 64),
        field("pidfd", Kind::Address, 8, 64),
        field("child_tid", Kind::Address, 16, 64),
        field("parent_tid", Kind::Address, 24, 64),
        field("exit_signal", Kind::Signal, 32, 64),
        field("stack", Kind::Address, 40, 64),
        field("stack_size", Kind::Size, 48, 64),
        field("tls", Kind::Address, 56, 64),
        field("set_tid", Kind::Address, 64, 64),
        field("set_tid_size", Kind::Count, 72, 64),
        field("cgroup", Kind::Descriptor, 80, 64),
    ],
};

/// `struct stat`.
pub static STAT: Structure = Structure {
    name: "stat",
    size: size_of::<libc::stat>() as u32,
    fields: &[
        field("st_dev", Kind::Device, 0, 64),
        field("st_ino", Kind::Unsigned, 8, 64),
        field("st_nlink", Kind::Count, 16, 64),
        field("st_mode", Kind::Mode, 24, 32),
        field("st_uid", Kind::Uid, 28, 32),
        field("st_gid", Kind::Gid, 32, 32),
        field("st_rdev", Kind::Device, 40, 64),
        field("st_size", Kind::Size, 48, 64),
        field("st_blksize", Kind::Size, 56, 64),
        field("st_blocks", Kind::Count, 64, 64),
        field("st_atime", Kind::Signed, 72, 64),
        field("st_atime_nsec", Kind::Unsigned, 80, 64),
        field("st_mtime", Kind::Signed, 88, 64),
        field("st_mtime_nsec", Kind::Unsigned, 96, 64),
        field("st_ctime", Kind::Signed, 104, 64),
        field("st_ctime_nsec", Kind::Unsigned, 112, 64),
    ],
};

/// `struct statx`.
pub static STATX: Structure = Structure {
    name: "statx",
    size: size_of::<libc::statx>() as u32,
    fields: &[
        field("stx_mask", set(&files::STATX_MASK), 0, 32),
        field("stx_blksize", Kind::Size, 4, 32),
        field("stx_attributes", Kind::Unsigned, 8, 64),
        field("stx_nlink", Kind::Count, 16, 32),
        field("stx_uid", Kind::Uid, 20, 32),
        field("stx_gid", Kind::Gid, 24, 32),
        field("stx_mode", Kind::Mode, 28, 16),
        field("stx_ino", Kind::Unsigned, 32, 64),
        field("stx_size", Kind::Size, 40, 64),
        field("stx_blocks", Kind::Count, 48, 64),
        field("stx_atime", Kind::Signed, 64, 64),
        field("stx_atime_nsec", Kind::Unsigned, 72, 32),
        field("stx_btime", Kind::Signed, 80, 64),
        field("stx_btime_nsec", Kind::Unsigned, 88, 32),
        field("stx_ctime", Kind::Signed, 96, 64),
        field("stx_ctime_nsec", Kind::Unsigned, 104, 32),
        field("stx_mtime", Kind::Signed, 112, 64),
        field("stx_mtime_nsec", Kind::Unsigned, 120, 32),
        field("stx_rdev_major", Kind::Unsigned, 128, 32),
        field("stx_rdev_minor", Kind::Unsigned, 132, 32),
        field("stx_dev_major", Kind::Unsigned, 136, 32),
        field("stx_dev_minor", Kind::Unsigned, 140, 32),
        field("stx_mnt_id", Kind::Unsigned, 144, 64),
    ],
};

/// `struct statfs`.
pub static STATFS: Structure = Structure {
    name: "statfs",
    size: size_of::<libc::statfs>() as u32,
    fields: &[
        field("f_type", Kind::Unsigned, 0, 64),
        field("f_bsize", Kind::Size, 8, 64),
        field("f_blocks", Kind::Count, 16, 64),
        field("f_bfree", Kind::Count, 24, 64),
        field("f_bavail", Kind::Count, 32, 64),
        field("f_files", Kind::Count, 40, 64),
        field("f_ffree", Kind::Count, 48, 64),
        field("f_fsid", Kind::Unsigned, 56, 64),
        field("f_namelen", Kind::Size, 64, 64),
        field("f_frsize", Kind::Size, 72, 64),
        field("f_flags", Kind::Unsigned, 80, 64),
    ],
};

/// `struct flock`, for record locks.
pub static FLOCK: Structure = Structure {
    name: "flock",
    size: size_of::<libc::flock>() as u32,
    fields: &[
        field("l_type", Kind::Choice(&files::LOCK_TYPES), 0, 16),
        field("l_whence", Kind::Choice(&files::SEEK_WHENCE), 2, 16),
        field("l_start", Kind::Offset, 8, 64),
        field("l_len", Kind::Offset, 16, 64),
        field("l_pid", Kind::Pid, 24, 32),
    ],
};

/// `struct rlimit`.
pub static RLIMIT: Structure = Structure {
    name: "rlimit",
    size: size_of::<libc::rlimit>() as u32,
    fields: &[
        field("rlim_cur", Kind::Unsigned, 0, 64),
        field("rlim_max", Kind::Unsigned, 8, 64),
    ],
};

/// `struct epoll_event`.
pub static EPOLL_EVENT: Structure = Structure {
    name: "epoll_event",
    size: size_of::<libc::epoll_event>() as u32,
    fields: &[
        field("events", set(&other::EPOLL_EVENTS), 0, 32),
        field("data", Kind::Unsigned, 4, 64),
    ],
};

/// `struct file_clone_range`, for `FICLONERANGE`.
pub static FILE_CLONE_RANGE: Structure = Structure {
    name: "file_clone_range",
    size: 32,
    fields: &[
        field("src_fd", Kind::Descriptor, 0, 64),
        field("src_offset", Kind::Offset, 8, 64),
        field("src_length", Kind::Size, 16, 64),
        field("dest_offset", Kind::Offset, 24, 64),
    ],
};

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_lie_where_c_has_them() {
        let at = |structure: &Structure, name: &str| {
            let field = structure.fields.iter().find(|field| field.name == name);
            field.map(|field| field.offset as usize)
        };
        assert_eq!(at(&STAT, "st_mode"), Some(offset_of!(libc::stat, st_mode)));
        assert_eq!(at(&STAT, "st_size"), Some(offset_of!(libc::stat, st_size)));
        assert_eq!(
            at(&STAT, "st_ctime"),
            Some(offset_of!(libc::stat, st_ctime))
        );
        assert_eq!(
            at(&STATX, "stx_size"),
            Some(offset_of!(libc::statx, stx_size))
        );
        assert_eq!(
            at(&STATX, "stx_mtime"),
            Some(offset_of!(libc::statx, stx_mtime))
        );
        assert_eq!(
            at(&STATX, "stx_dev_minor"),
            Some(offset_of!(libc::statx, stx_dev_minor))
        );
        assert_eq!(
            at(&STATX, "stx_mnt_id"),
            Some(offset_of!(libc::statx, stx_mnt_id))
        );
        assert_eq!(
            at(&STATFS, "f_frsize"),
            Some(offset_of!(libc::statfs, f_frsize))
        );
        assert_eq!(at(&FLOCK, "l_pid"), Some(offset_of!(libc::flock, l_pid)));
        assert_eq!(
            at(&CLONE_ARGS, "cgroup"),
            Some(offset_of!(libc::clone_args, cgroup))
        );
        assert_eq!(
            at(&OPEN_HOW, "resolve"),
            Some(offset_of!(libc::open_how, resolve))
        );
        assert_eq!(EPOLL_EVENT.size, 12);
    }

    #[test]
    fn fields_end_within_their_structure() {
        let all = [
            &OPEN_HOW,
            &CLONE_ARGS,
            &STAT,
            &STATX,
            &STATFS,
            &FLOCK,
            &RLIMIT,
            &EPOLL_EVENT,
            &FILE_CLONE_RANGE,
        ];
        for structure in all {
            for field in structure.fields {
                assert!(
                    field.offset + u32::from(field.bits / 8) <= structure.size,
                    "{}",
                    field.name
                );
            }
        }
    }

    #[test]
    fn a_field_beyond_the_bytes_has_no_value() {
        let mut bytes = [0; 24];
        bytes[0] = 0x41;
        bytes[16] = 8;
        assert_eq!(OPEN_HOW.field(&bytes, "flags"), Some(0x41));
        assert_eq!(OPEN_HOW.field(&bytes, "resolve"), Some(8));
        assert_eq!(OPEN_HOW.field(&bytes[..20], "resolve"), None);
        assert_eq!(OPEN_HOW.field(&bytes, "nothing"), None);
    }
}
