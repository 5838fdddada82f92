//! Signatures: the arguments and results of system calls. `table/` lists the calls.

use bitflags::bitflags;

use crate::{Operation, Symbols};

/// One system call.
#[derive(Debug)]
pub struct Signature {
    /// Call number.
    pub nr: u32,
    /// Name, as in the kernel's table.
    pub name: &'static str,
    /// What it does, as far as its number tells; [`DecodedCall::operation`](crate::DecodedCall::operation) looks at the arguments, too.
    pub operation: Operation,
    /// What it concerns.
    pub class: Class,
    /// Its arguments, in their order; at most six.
    pub params: &'static [Param],
    /// What a result that is not an errno means.
    pub returns: Returns,
}

bitflags! {
    /// What a call concerns.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Class: u16 {
        /// Takes a path.
        const PATH = 1;
        /// Takes or makes a file descriptor.
        const DESCRIPTOR = 1 << 1;
        /// Reads file content.
        const READ = 1 << 2;
        /// Writes file content.
        const WRITE = 1 << 3;
        /// Changes a name, an attribute or the existence of a file.
        const METADATA = 1 << 4;
        /// Changes mappings of memory.
        const MEMORY = 1 << 5;
        /// Shows or changes the working directory, or changes the root directory or the file mode creation mask.
        const DIRECTORY = 1 << 6;
        /// Makes, replaces or ends a process or thread.
        const PROCESS = 1 << 7;
        /// Concerns sockets.
        const NETWORK = 1 << 8;
    }
}

/// One argument.
#[derive(Debug)]
pub struct Param {
    /// Name, as in the call's man page.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// How many low bits of the register the kernel looks at: 16, 32 or 64.
    pub bits: u8,
}

/// What an argument is.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A signed number.
    Signed,
    /// An unsigned number.
    Unsigned,
    /// An address that is not followed.
    Address,
    /// A file descriptor.
    Descriptor,
    /// A file descriptor, or `AT_FDCWD`, that the next path is relative to.
    Directory,
    /// A NUL-terminated path, relative to the [`Kind::Directory`] just before it, else to the working directory.
    Path(LastLink),
    /// A NUL-terminated string that names no file: an extended attribute, a symbolic link's target.
    Text,
    /// A NULL-terminated array of addresses of strings: `argv`. Environments are not followed: they hold passwords and tokens, and a trace is made to be
    /// passed on.
    Texts,
    /// A set of bits.
    Flags(&'static Symbols),
    /// One of several values.
    Choice(&'static Symbols),
    /// Permission bits, and the type of a file that mknod(2) makes.
    Mode,
    /// A device number, as mknod(2) takes it.
    Device,
    /// An offset in a file, in bytes.
    Offset,
    /// The address of an offset in a file, which the kernel may change; may be NULL. The value is the offset before the call.
    OffsetPointer,
    /// A number of bytes.
    Size,
    /// A number of things that are not bytes.
    Count,
    /// A user id.
    Uid,
    /// A group id.
    Gid,
    /// The id of a process or thread.
    Pid,
    /// The number of a signal.
    Signal,
    /// Bytes that the program hands to the kernel.
    Input(Extent),
    /// Bytes that the kernel hands to the program, known once the call has returned.
    Output(Extent),
    /// A string that the kernel hands to the program, of at most as many bytes as the given argument says; the result is its length.
    OutputText(u8),
    /// A structure that the program hands to the kernel. Where its length is an argument, that one's index is given.
    InputStructure(&'static Structure, Option<u8>),
    /// A structure that the kernel hands to the program, known once the call has returned.
    OutputStructure(&'static Structure),
    /// An array of `struct iovec` that the program hands to the kernel; the number is in the given argument.
    InputVector(u8),
    /// An array of `struct iovec` that the kernel fills; the number is in the given argument.
    OutputVector(u8),
    /// A `struct msghdr` whose buffers the program hands to the kernel.
    InputMessage,
    /// A `struct msghdr` whose buffers the kernel fills.
    OutputMessage,
    /// An array of `struct mmsghdr` whose buffers the program hands to the kernel; the number is in the given argument.
    InputMessages(u8),
    /// An array of `struct mmsghdr` whose buffers the kernel fills; the number is in the given argument, that of the filled ones is the result.
    OutputMessages(u8),
    /// A socket address that the program hands to the kernel; its length is the given argument.
    InputSocketAddress(u8),
    /// A socket address that the kernel hands to the program; the given argument is the address of its length.
    OutputSocketAddress(u8),
    /// An array of this many times, which the program hands to the kernel; may be NULL.
    Times(TimeFormat, u8),
    /// A time that the kernel hands to the program, known once the call has returned.
    OutputTime(TimeFormat),
    /// Two file descriptors that the kernel hands to the program.
    DescriptorPair,
    /// The third argument of fcntl(2): what it is depends on the second.
    FcntlArgument,
    /// The second argument of prctl(2): what it is depends on the first.
    PrctlArgument,
    /// The third argument of ioctl(2): what it is depends on the second.
    IoctlArgument,
    /// Bytes that the kernel copies from file to file. This is not an argument of the call, and has no register.
    Copied {
        /// Where they are read.
        source: Place,
        /// Where they are written.
        target: Place,
    },
}

/// A place in a file that arguments name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of the descriptor.
    pub descriptor: u8,
    /// Index of the [`Kind::OffsetPointer`]. If there is none, or it is NULL, the file's own offset counts.
    pub offset: Option<u8>,
}

impl Kind {
    /// Whether the value is known only once the call has returned.
    pub const fn is_output(&self) -> bool {
        matches!(
            self,
            Self::Output(_)
                | Self::OutputText(_)
                | Self::OutputStructure(_)
                | Self::OutputVector(_)
                | Self::OutputMessage
                | Self::OutputMessages(_)
                | Self::OutputSocketAddress(_)
                | Self::OutputTime(_)
                | Self::DescriptorPair
        )
    }
}

/// Whether a call follows a symbolic link that is the last component of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastLink {
    /// It does.
    Followed,
    /// It does not.
    Kept,
    /// It does, unless the given argument has `AT_SYMLINK_NOFOLLOW`.
    FollowedUnlessAt(u8),
    /// It does not, unless the given argument has `AT_SYMLINK_FOLLOW`.
    KeptUnlessAt(u8),
    /// It does, unless the given argument has `O_NOFOLLOW`, or both `O_CREAT` and `O_EXCL`.
    ByOpenFlags(u8),
    /// As [`LastLink::ByOpenFlags`], with the flags of the `struct open_how` that is the given argument.
    ByOpenHow(u8),
}

/// How many bytes an argument points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The given argument is the length. For output it is the maximum, and the result is the length.
    Argument(u8),
    /// As many as the number at the address in the given argument says, after the call.
    Pointed(u8),
    /// This many.
    Bytes(u32),
    /// Elements of `size` bytes, as many as argument `count` says.
    Items {
        /// Index of the argument.
        count: u8,
        /// Bytes of an element.
        size: u32,
    },
    /// Elements of this many bytes, as many as the result says.
    ResultItems(u32),
}

/// How times are laid out in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeFormat {
    /// `struct timespec`: seconds and nanoseconds.
    Timespec,
    /// `struct timeval`: seconds and microseconds.
    Timeval,
    /// `time_t`: seconds.
    Seconds,
}

/// The layout of a structure in a program's memory.
#[derive(Debug)]
pub struct Structure {
    /// Name, without `struct`.
    pub name: &'static str,
    /// Bytes of the whole.
    pub size: u32,
    /// What can be named of it; there may be more.
    pub fields: &'static [Field],
}

/// A field of a structure. All fields are numbers.
#[derive(Debug)]
pub struct Field {
    /// Name, as in the man page.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Where it begins, in bytes.
    pub offset: u32,
    /// How many bits it has: 8, 16, 32 or 64.
    pub bits: u8,
}

impl Structure {
    /// The value of a field in `data`, the structure's bytes; `None` where they end before it, or no field has this name.
    pub fn field(&self, data: &[u8], name: &str) -> Option<u64> {
        let field = self.fields.iter().find(|field| field.name == name)?;
        field.value(data)
    }
}

impl Field {
    /// Its value in `data`, the structure's bytes; `None` where they end before it.
    pub fn value(&self, data: &[u8]) -> Option<u64> {
        let start = usize::try_from(self.offset).ok()?;
        let len = usize::from(self.bits / 8);
        let bytes = data.get(start..start.checked_add(len)?)?;
        let mut whole = [0; 8];
        whole.get_mut(..len)?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(whole))
    }
}

/// What a result that is not an errno means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returns {
    /// Always 0.
    Zero,
    /// A number of bytes.
    Size,
    /// A new file descriptor.
    Descriptor,
    /// An offset in a file, in bytes.
    Offset,
    /// An address.
    Address,
    /// The id of a process or thread.
    Pid,
    /// Any other number.
    Number,
    /// It does not return when it succeeds.
    Never,
}
