//! Operations: what calls do, independent of their form. `open`, `openat` and `openat2` are one operation.

macro_rules! operations {
    ($($variant:ident $name:literal $doc:literal)*) => {
        /// What a call does. Counters are kept by operation, and filters select by it (`op == read`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Operation {
            $(#[doc = $doc] $variant,)*
        }

        impl Operation {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name in filters and reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

operations! {
    Open "open" "Opens a file that exists, or makes a file without a name."
    Create "create" "Opens a file, which it makes where there is none: creat(2), and open(2) with `O_CREAT`."
    Close "close" "Closes descriptors."
    Read "read" "Reads from a descriptor."
    Write "write" "Writes to a descriptor."
    Seek "seek" "Moves or asks for an offset."
    Copy "copy" "Copies from one descriptor to another within the kernel."
    Truncate "truncate" "Sets the size of a file."
    Allocate "allocate" "Allocates, releases or moves blocks of a file."
    Sync "sync" "Waits until changes are on disk."
    Stat "stat" "Asks for a file's attributes."
    Setattr "setattr" "Sets a file's flags."
    Access "access" "Asks for the caller's rights."
    Statfs "statfs" "Asks for attributes of a file system."
    Readdir "readdir" "Lists a directory."
    Readlink "readlink" "Reads a symbolic link."
    Unlink "unlink" "Removes a name of a file."
    Rmdir "rmdir" "Removes a directory."
    Mkdir "mkdir" "Makes a directory."
    Mknod "mknod" "Makes a device, a FIFO, a socket or an empty file."
    Rename "rename" "Renames."
    Link "link" "Makes a hard link."
    Symlink "symlink" "Makes a symbolic link."
    Chmod "chmod" "Sets permission bits."
    Chown "chown" "Sets owner and group."
    Utimes "utimes" "Sets times."
    GetXattr "getxattr" "Reads an extended attribute."
    SetXattr "setxattr" "Sets an extended attribute."
    ListXattr "listxattr" "Lists extended attributes."
    RemoveXattr "removexattr" "Removes an extended attribute."
    Lock "lock" "Locks a file or a range of it, or releases such a lock."
    Advise "advise" "Announces how content or memory will be used."
    Dup "dup" "Duplicates a descriptor."
    Fcntl "fcntl" "Asks for or changes something of a descriptor."
    Ioctl "ioctl" "Asks for or changes something of a device or a file."
    Pipe "pipe" "Makes a pipe."
    Poll "poll" "Waits for events of descriptors."
    Watch "watch" "Makes or changes a descriptor of events: inotify, fanotify, eventfd, signalfd, timerfd."
    Handle "handle" "Makes a handle of a file, or a descriptor of a process."
    Map "map" "Maps a file or memory."
    Unmap "unmap" "Removes a mapping."
    Protect "protect" "Sets the protection of a mapping."
    Memory "memory" "Asks for or changes something else of memory."
    Chdir "chdir" "Changes the working directory, or the root directory."
    Getcwd "getcwd" "Asks for the working directory."
    Mount "mount" "Changes mounts."
    Umask "umask" "Sets the file mode creation mask."
    Fork "fork" "Makes a process or thread."
    Exec "exec" "Replaces the program."
    Exit "exit" "Ends the thread or process."
    Wait "wait" "Waits for a process or a signal."
    Kill "kill" "Sends a signal."
    ProcessGroup "process_group" "Changes a session or process group."
    Trace "trace" "Looks into other processes."
    Credentials "credentials" "Changes user, group or capabilities."
    Namespace "namespace" "Changes namespaces."
    Identity "identity" "Asks who or what the caller is."
    Limit "limit" "Asks for or sets limits and usage of resources."
    Schedule "schedule" "Asks for or changes scheduling."
    Signal "signal" "Changes the treatment of signals."
    Socket "socket" "Makes sockets."
    Connect "connect" "Connects a socket."
    Bind "bind" "Gives a socket a name."
    Listen "listen" "Makes a socket accept connections."
    Accept "accept" "Accepts a connection."
    Send "send" "Sends a message."
    Receive "receive" "Receives a message."
    Shutdown "shutdown" "Ends a connection, or one direction of it."
    SocketOption "socket_option" "Asks for or changes something of a socket."
    Aio "aio" "Submits or waits for asynchronous reads and writes."
    Uring "uring" "Uses io_uring, whose operations no system-call tracer sees."
    Ipc "ipc" "Uses message queues, semaphores or shared memory of System V or POSIX."
    Futex "futex" "Waits for or wakes threads."
    Time "time" "Asks for or sets clocks and timers, or sleeps."
    System "system" "Anything else."
}

impl Operation {
    /// The operation with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.name() == name)
    }
}
