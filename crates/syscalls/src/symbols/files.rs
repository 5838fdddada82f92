//! Names of what calls on files and descriptors take.

use super::{symbols, value};

symbols!(
    /// Flags of open(2), and of other calls that make a descriptor.
    OPEN_FLAGS, "open_flags", 3,
    [O_RDONLY, O_WRONLY, O_RDWR, O_TMPFILE, O_SYNC, O_DSYNC, O_CREAT, O_EXCL, O_NOCTTY, O_TRUNC, O_APPEND, O_NONBLOCK, O_ASYNC,
     O_DIRECT, O_DIRECTORY, O_NOFOLLOW, O_NOATIME, O_CLOEXEC, O_PATH] and [O_LARGEFILE = 0o100_000]
);
symbols!(
    /// Flags of calls that take a path and a directory's descriptor.
    AT_FLAGS, "at_flags", 0,
    [AT_SYMLINK_NOFOLLOW, AT_SYMLINK_FOLLOW, AT_NO_AUTOMOUNT, AT_EMPTY_PATH, AT_STATX_FORCE_SYNC, AT_STATX_DONT_SYNC, AT_RECURSIVE]
);
symbols!(
    /// Flags of unlinkat(2).
    UNLINK_FLAGS, "unlink_flags", 0, [AT_REMOVEDIR]
);
symbols!(
    /// Flags of faccessat2(2).
    ACCESS_FLAGS, "access_flags", 0, [AT_EACCESS, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH]
);
symbols!(
    /// Flags of name_to_handle_at(2).
    HANDLE_FLAGS, "handle_flags", 0,
    [AT_HANDLE_FID, AT_HANDLE_MNT_ID_UNIQUE, AT_HANDLE_CONNECTABLE, AT_SYMLINK_FOLLOW, AT_EMPTY_PATH]
);
symbols!(
    /// What access(2) asks for.
    ACCESS_MODES, "access_modes", 0, [F_OK, R_OK, W_OK, X_OK]
);
symbols!(
    /// Where lseek(2) counts from.
    SEEK_WHENCE, "seek_whence", 0, [SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA, SEEK_HOLE]
);
symbols!(
    /// Flags of renameat2(2).
    RENAME_FLAGS, "rename_flags", 0, [RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT]
);
symbols!(
    /// Modes of fallocate(2).
    FALLOCATE_MODES, "fallocate_modes", 0,
    [FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_ZERO_RANGE, FALLOC_FL_INSERT_RANGE,
     FALLOC_FL_UNSHARE_RANGE]
);
symbols!(
    /// What statx(2) asks for.
    STATX_MASK, "statx_mask", 0,
    [STATX_BASIC_STATS, STATX_TYPE, STATX_MODE, STATX_NLINK, STATX_UID, STATX_GID, STATX_ATIME, STATX_MTIME, STATX_CTIME, STATX_INO,
     STATX_SIZE, STATX_BLOCKS, STATX_BTIME, STATX_MNT_ID, STATX_DIOALIGN, STATX_MNT_ID_UNIQUE, STATX_SUBVOL, STATX_WRITE_ATOMIC,
     STATX_DIO_READ_ALIGN]
);
symbols!(
    /// How openat2(2) resolves the path.
    RESOLVE_FLAGS, "resolve_flags", 0,
    [RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH, RESOLVE_IN_ROOT, RESOLVE_CACHED]
);
symbols!(
    /// Commands of fcntl(2).
    FCNTL_COMMANDS, "fcntl_commands", 0,
    [F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_SETLK, F_SETLKW, F_SETOWN, F_GETOWN, F_OFD_GETLK, F_OFD_SETLK,
     F_OFD_SETLKW, F_SETLEASE, F_GETLEASE, F_NOTIFY, F_CANCELLK, F_DUPFD_CLOEXEC, F_SETPIPE_SZ, F_GETPIPE_SZ, F_ADD_SEALS, F_GET_SEALS]
    and [F_SETSIG = 10, F_GETSIG = 11, F_SETOWN_EX = 15, F_GETOWN_EX = 16, F_GETOWNER_UIDS = 17, F_DUPFD_QUERY = 1027,
     F_CREATED_QUERY = 1028, F_GET_RW_HINT = 1035, F_SET_RW_HINT = 1036, F_GET_FILE_RW_HINT = 1037, F_SET_FILE_RW_HINT = 1038]
);
symbols!(
    /// Flags of a descriptor, for `F_SETFD`.
    DESCRIPTOR_FLAGS, "descriptor_flags", 0, [FD_CLOEXEC]
);
symbols!(
    /// Types of record locks.
    LOCK_TYPES, "lock_types", 0, [F_RDLCK, F_WRLCK, F_UNLCK]
);
symbols!(
    /// Operations of flock(2).
    FLOCK_OPERATIONS, "flock_operations", 0, [LOCK_SH, LOCK_EX, LOCK_UN, LOCK_NB]
);
symbols!(
    /// Requests of ioctl(2) that concern files, descriptors and terminals.
    IOCTL_REQUESTS, "ioctl_requests", 0,
    [FICLONE, FICLONERANGE, FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_GETVERSION, FS_IOC_SETVERSION, FIOCLEX, FIONCLEX, FIONBIO,
     FIONREAD, FIOASYNC, TCGETS, TCSETS, TCSETSW, TCSETSF, TIOCGWINSZ, TIOCSWINSZ, TIOCGPGRP, TIOCSPGRP, TIOCSCTTY, TIOCNOTTY]
    and [FIDEDUPERANGE = request(0x94, 54, 24, 3), FS_IOC_FIEMAP = request(b'f', 11, 32, 3), FS_IOC_FSGETXATTR = request(b'X', 31, 28, 2),
     FS_IOC_FSSETXATTR = request(b'X', 32, 28, 1), FS_IOC_ENABLE_VERITY = request(b'f', 133, 128, 1), FIFREEZE = request(b'X', 119, 4, 3),
     FITHAW = request(b'X', 120, 4, 3), FITRIM = request(b'X', 121, 24, 3), FIGETBSZ = 2, FIBMAP = 1]
);
symbols!(
    /// Flags of setxattr(2).
    XATTR_FLAGS, "xattr_flags", 0, [XATTR_CREATE, XATTR_REPLACE]
);
symbols!(
    /// Flags of close_range(2).
    CLOSE_RANGE_FLAGS, "close_range_flags", 0, [CLOSE_RANGE_UNSHARE, CLOSE_RANGE_CLOEXEC]
);
symbols!(
    /// Flags of preadv2(2) and pwritev2(2).
    READ_WRITE_FLAGS, "rwf_flags", 0,
    [RWF_HIPRI, RWF_DSYNC, RWF_SYNC, RWF_NOWAIT, RWF_APPEND, RWF_NOAPPEND, RWF_ATOMIC, RWF_DONTCACHE]
);
symbols!(
    /// Flags of splice(2), tee(2), vmsplice(2).
    SPLICE_FLAGS, "splice_flags", 0, [SPLICE_F_MOVE, SPLICE_F_NONBLOCK, SPLICE_F_MORE, SPLICE_F_GIFT]
);
symbols!(
    /// Flags of sync_file_range(2).
    SYNC_FILE_RANGE_FLAGS, "sync_file_range_flags", 0,
    [SYNC_FILE_RANGE_WAIT_BEFORE, SYNC_FILE_RANGE_WRITE, SYNC_FILE_RANGE_WAIT_AFTER]
);
symbols!(
    /// Advice of posix_fadvise(2).
    FADVISE_ADVICE, "fadvise_advice", 0,
    [POSIX_FADV_NORMAL, POSIX_FADV_RANDOM, POSIX_FADV_SEQUENTIAL, POSIX_FADV_WILLNEED, POSIX_FADV_DONTNEED, POSIX_FADV_NOREUSE]
);
symbols!(
    /// Flags of memfd_create(2).
    MEMFD_FLAGS, "memfd_flags", 0, [MFD_CLOEXEC, MFD_ALLOW_SEALING, MFD_HUGETLB, MFD_NOEXEC_SEAL, MFD_EXEC]
);
symbols!(
    /// Flags of mount(2).
    MOUNT_FLAGS, "mount_flags", 0,
    [MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_SYNCHRONOUS, MS_REMOUNT, MS_MANDLOCK, MS_DIRSYNC, MS_NOATIME, MS_NODIRATIME, MS_BIND,
     MS_MOVE, MS_REC, MS_SILENT, MS_UNBINDABLE, MS_PRIVATE, MS_SLAVE, MS_SHARED, MS_RELATIME, MS_STRICTATIME, MS_LAZYTIME]
);
symbols!(
    /// Flags of umount2(2).
    UMOUNT_FLAGS, "umount_flags", 0, [MNT_FORCE, MNT_DETACH, MNT_EXPIRE, UMOUNT_NOFOLLOW]
);
symbols!(
    /// Flags of open_tree(2).
    OPEN_TREE_FLAGS, "open_tree_flags", 0,
    [OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC, AT_SYMLINK_NOFOLLOW, AT_NO_AUTOMOUNT, AT_EMPTY_PATH, AT_RECURSIVE]
);
symbols!(
    /// Flags of move_mount(2).
    MOVE_MOUNT_FLAGS, "move_mount_flags", 0,
    [MOVE_MOUNT_F_SYMLINKS, MOVE_MOUNT_F_AUTOMOUNTS, MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_SYMLINKS, MOVE_MOUNT_T_AUTOMOUNTS,
     MOVE_MOUNT_T_EMPTY_PATH, MOVE_MOUNT_SET_GROUP, MOVE_MOUNT_BENEATH]
);
symbols!(
    /// Flags of fsopen(2).
    FSOPEN_FLAGS, "fsopen_flags", 0, [FSOPEN_CLOEXEC]
);
symbols!(
    /// Flags of fspick(2).
    FSPICK_FLAGS, "fspick_flags", 0, [FSPICK_CLOEXEC, FSPICK_SYMLINK_NOFOLLOW, FSPICK_NO_AUTOMOUNT, FSPICK_EMPTY_PATH]
);
symbols!(
    /// What inotify_add_watch(2) waits for.
    INOTIFY_MASK, "inotify_mask", 0,
    [IN_ACCESS, IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE, IN_CLOSE_NOWRITE, IN_OPEN, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE,
     IN_DELETE_SELF, IN_MOVE_SELF, IN_ONLYDIR, IN_DONT_FOLLOW, IN_EXCL_UNLINK, IN_MASK_CREATE, IN_MASK_ADD, IN_ONESHOT]
);
symbols!(
    /// Flags of inotify_init1(2).
    INOTIFY_INIT_FLAGS, "inotify_init_flags", 0, [IN_NONBLOCK, IN_CLOEXEC]
);
symbols!(
    /// Flags of fanotify_init(2).
    FANOTIFY_INIT_FLAGS, "fanotify_init_flags", 0,
    [FAN_CLASS_CONTENT, FAN_CLASS_PRE_CONTENT, FAN_CLOEXEC, FAN_NONBLOCK, FAN_UNLIMITED_QUEUE, FAN_UNLIMITED_MARKS, FAN_REPORT_TID,
     FAN_REPORT_FID, FAN_REPORT_DIR_FID, FAN_REPORT_NAME]
);
symbols!(
    /// Flags of fanotify_mark(2).
    FANOTIFY_MARK_FLAGS, "fanotify_mark_flags", 0,
    [FAN_MARK_ADD, FAN_MARK_REMOVE, FAN_MARK_DONT_FOLLOW, FAN_MARK_ONLYDIR, FAN_MARK_MOUNT, FAN_MARK_IGNORED_MASK,
     FAN_MARK_IGNORED_SURV_MODIFY, FAN_MARK_FLUSH, FAN_MARK_FILESYSTEM]
);
symbols!(
    /// What fanotify_mark(2) waits for.
    FANOTIFY_MASK, "fanotify_mask", 0,
    [FAN_ACCESS, FAN_MODIFY, FAN_CLOSE_WRITE, FAN_CLOSE_NOWRITE, FAN_OPEN, FAN_OPEN_EXEC, FAN_OPEN_PERM, FAN_ACCESS_PERM,
     FAN_OPEN_EXEC_PERM, FAN_EVENT_ON_CHILD, FAN_ONDIR]
);

/// The number of an ioctl(2) request: type, number, size of its argument, and whether it is written (1), read (2), or both (3).
const fn request(kind: u8, number: u8, size: u64, direction: u64) -> u64 {
    direction << 30 | size << 16 | (kind as u64) << 8 | number as u64
}
