//! The operations of commands.

macro_rules! calls {
    ($($variant:ident $byte:literal $name:literal $doc:literal)*) => {
        /// What a command does. The documentation of each names its operands: targets, numbers, text, data.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Call {
            $(#[doc = $doc] $variant,)*
        }

        impl Call {
            /// All of them, in the order of their discriminants.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            pub(super) const fn byte(self) -> u8 {
                match self {
                    $(Self::$variant => $byte,)*
                }
            }

            pub(super) const fn from_byte(byte: u8) -> Option<Self> {
                match byte {
                    $($byte => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

calls! {
    Begin 1 "begin" "The lane goes on with another thread of the trace. Number: thread id."
    Inherit 2 "inherit" "A child gets its parent's descriptor. Target: slot; result slot."
    Release 3 "release" "A descriptor is closed by no call of its own: at an exec or an exit. Target: slot."
    Restore 4 "restore" "A file that was open when the capture began is opened. Target: place; numbers: flags, offset; result slot."
    Drop 5 "drop" "A mapping is removed by no call of its own. Number: slot of the mapping."
    Open 10 "open" "open(2). Target: place; numbers: flags, mode without the bits that the umask removed; result slot."
    Close 11 "close" "close(2). Target: slot."
    Dup 12 "dup" "dup(2), dup2(2), dup3(2), F_DUPFD. Target: slot; number: FD_CLOEXEC or 0; result slot, which may have been open before."
    Read 20 "read" "read(2), readv(2). Target: slot; data: what was asked for."
    Pread 21 "pread" "pread(2), preadv(2). Target: slot; number: offset; data."
    Write 22 "write" "write(2), writev(2). Target: slot; data."
    Pwrite 23 "pwrite" "pwrite(2), pwritev(2). Target: slot; number: offset; data."
    Seek 24 "seek" "lseek(2). Target: slot; numbers: offset, whence."
    Truncate 25 "truncate" "truncate(2), ftruncate(2). Target; number: length."
    Allocate 26 "fallocate" "fallocate(2). Target: slot; numbers: mode, offset, length."
    Copy 27 "copy" "copy_file_range(2), sendfile(2). Targets: slots of source and destination; numbers: offsets or u64::MAX, length, 1 for sendfile."
    Clone 28 "clone" "FICLONE, FICLONERANGE. Targets: slots of source and destination; numbers: source offset, length, destination offset, 1 for a range."
    Sync 29 "sync" "fsync(2), fdatasync(2), sync_file_range(2), syncfs(2). Target: slot; number: 0, 1, 2, 3 in this order; then those of sync_file_range."
    Advise 30 "advise" "posix_fadvise(2), readahead(2). Target: slot; numbers: offset, length, advice or u64::MAX for readahead."
    Stat 40 "stat" "stat(2) and the like. Target."
    Access 41 "access" "access(2). Target; numbers: mode, flags."
    Statfs 42 "statfs" "statfs(2). Target."
    Readdir 43 "readdir" "getdents(2). Target: slot; number: bytes."
    Readlink 44 "readlink" "readlink(2). Target; number: bytes."
    Unlink 50 "unlink" "unlink(2). Target: place."
    Rmdir 51 "rmdir" "rmdir(2). Target: place."
    Mkdir 52 "mkdir" "mkdir(2). Target: place; number: mode."
    Mknod 53 "mknod" "mknod(2) of a file, a FIFO or a socket. Target: place; number: mode."
    Rename 54 "rename" "rename(2). Targets: places; number: flags."
    Link 55 "link" "link(2). Targets: place or slot, then place."
    Symlink 56 "symlink" "symlink(2). Target: place; text: what the link says."
    Chmod 60 "chmod" "chmod(2). Target; number: mode."
    Chown 61 "chown" "chown(2). Target; numbers: owner, group."
    Utimes 62 "utimes" "utimensat(2). Target; numbers: seconds and nanoseconds of access and of change, or none for now."
    Getxattr 63 "getxattr" "getxattr(2). Target; text: name; number: bytes."
    Setxattr 64 "setxattr" "setxattr(2). Target; text: name; number: flags; data."
    Listxattr 65 "listxattr" "listxattr(2). Target; number: bytes."
    Removexattr 66 "removexattr" "removexattr(2). Target; text: name."
    Flock 70 "flock" "flock(2). Target: slot; number: operation."
    Lock 71 "lock" "fcntl(2) locks. Target: slot; numbers: command, type, whence, start, length."
    Fcntl 72 "fcntl" "F_GETFD, F_SETFD, F_GETFL, F_SETFL. Target: slot; numbers: command, argument."
    Chdir 73 "chdir" "chdir(2), fchdir(2). Target."
    Map 80 "mmap" "mmap(2) of a file. Target: slot; numbers: length, protection, flags, offset, slot of the mapping + 1."
    Unmap 81 "munmap" "munmap(2) of a whole mapping. Number: slot of the mapping."
    Touch 82 "touch" "Pages read or written through a mapping. Numbers: slot of the mapping, offset in it, bytes, 1 if they were written."
    Msync 83 "msync" "msync(2). Numbers: slot of the mapping, offset in it, bytes, flags."
}

impl Call {
    /// Whether the command is the replayer's own, and stands for no call of the trace.
    pub fn is_own(self) -> bool {
        matches!(
            self,
            Self::Begin | Self::Inherit | Self::Release | Self::Restore | Self::Drop
        )
    }

    /// Whether it reads content of a file.
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Pread)
    }

    /// Whether it writes content that the command names.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Pwrite | Self::Setxattr)
    }
}
