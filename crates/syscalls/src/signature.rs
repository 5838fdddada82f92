//! What a call takes and returns.

use bitflags::bitflags;

/// One system call.
#[derive(Debug)]
pub struct Signature {
    /// Call number.
    pub nr: u32,
    /// Name, as in the kernel's table.
    pub name: &'static str,
    /// What it concerns.
    pub class: Class,
    /// Its arguments, in their order.
    pub params: &'static [Param],
    /// What a result that is no errno means.
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
        /// Changes the working directory or the root directory.
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
    /// A NUL-terminated path, relative to the [`Kind::Directory`] before it, else to the working directory.
    Path,
    /// A NUL-terminated string that names no file: an extended attribute, a symbolic link's target.
    Text,
    /// A set of bits.
    Flags(&'static Symbols),
    /// One of several values.
    Choice(&'static Symbols),
    /// Permission bits, and the type of a file that mknod(2) makes.
    Mode,
    /// An offset in a file, in bytes.
    Offset,
    /// A number of bytes.
    Size,
    /// A number of things that are no bytes.
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
    /// An array of `struct iovec` that the program hands to the kernel; the number is in the given argument.
    InputVector(u8),
    /// An array of `struct iovec` that the kernel fills; the number is in the given argument.
    OutputVector(u8),
    /// An array of `struct timespec`, or of `struct timeval` where the call has them, of this many elements; may be NULL.
    Times(u8),
    /// Two file descriptors that the kernel hands to the program.
    DescriptorPair,
}

/// How many bytes an argument points to.
#[derive(Debug, Clone, Copy)]
pub enum Extent {
    /// As many as the given argument says (for output: at most so many; the result says how many).
    Argument(u8),
    /// As many as the structure has.
    Bytes(u32),
}

/// Names of values.
#[derive(Debug)]
pub struct Symbols {
    /// What they are, as in the man page: `open_flags`, `at_flags`.
    pub name: &'static str,
    /// Each value with its name. Of a set of bits, those of several bits come before those of one.
    pub values: &'static [(u64, &'static str)],
}

/// What a result that is no errno means.
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
