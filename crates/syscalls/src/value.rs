//! The values of arguments, and the outcome of a call.

use std::sync::Arc;

/// The value of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A signed number.
    Signed(i64),
    /// An unsigned number, an address, bits.
    Unsigned(u64),
    /// A path: as given, and absolute without symbolic links where that was found out.
    Path {
        /// As the program gave it.
        given: Box<[u8]>,
        /// Where it leads.
        resolved: Option<Box<[u8]>>,
    },
    /// A string that is not a path, without its NUL.
    Text(Box<[u8]>),
    /// A file descriptor, with the path of its file where that is known.
    Descriptor {
        /// Its number; `AT_FDCWD` stays as it is.
        number: i32,
        /// What it names.
        file: Option<Box<[u8]>>,
    },
    /// The buffers of messages, as many of their bytes as were asked for, and the descriptors that they pass (`SCM_RIGHTS`).
    Message {
        /// Bytes of all buffers together.
        len: u64,
        /// Those that were copied; empty when nobody asked for data.
        data: Box<[u8]>,
        /// Numbers of the descriptors: of the sender's for a message sent, of the receiver's for one received.
        descriptors: Box<[i32]>,
    },
    /// Bytes handed over, a structure, an address of a socket; or as many of them as were asked for, with the whole length.
    Bytes {
        /// Bytes of the whole argument.
        len: u64,
        /// Those that were copied; empty when nobody asked for data.
        data: Box<[u8]>,
    },
    /// Strings, without their NULs: `argv`. They are cut at [`Limits`](crate::Limits).
    Texts(Box<[Box<[u8]>]>),
    /// Times.
    Times(Box<[Time]>),
    /// Two new descriptors.
    DescriptorPair([i32; 2]),
    /// A NULL pointer.
    Null,
    /// The call does not look at this argument: the mode of an open(2) that makes no file.
    Absent,
    /// The address could not be read (EFAULT), or the value is known only once the call has returned and it has not.
    Unread(u64),
}

/// A point in time or a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds, or `UTIME_NOW`, `UTIME_OMIT`. Where the call takes microseconds, those times 1000.
    pub nanoseconds: i64,
}

/// The thread that makes a call, as it is at that moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Process id.
    pub pid: i32,
    /// Thread id.
    pub tid: i32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Session id.
    pub sid: i32,
    /// Name of the process, as in `/proc/PID/comm`.
    pub comm: Arc<str>,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The result register: a number from -4095 to -1 is an errno.
    pub result: i64,
    /// When it was seen to end, in nanoseconds of `CLOCK_MONOTONIC`.
    pub left_ns: u64,
    /// Where it was performed.
    pub treatment: Treatment,
}

/// Where a call was performed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// In the kernel.
    Kernel,
    /// In the monitor.
    Monitor,
    /// In the program itself, by code that the monitor put there.
    Process,
}

/// A file's identity, and what is recorded of its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of hard links.
    pub links: u64,
    /// Size in bytes.
    pub size: u64,
    /// Path, where it is known.
    pub path: Option<Box<[u8]>>,
}
