//! The steps that consumers of a trace receive: operations on descriptors and paths below one directory.

use amino_schema::replay::Call;

/// A step of a trace.
#[derive(Debug)]
pub enum Seen<'a> {
    /// A thread began, with copies of its parent's descriptors if it is the first of a process: theirs and its own.
    Began {
        /// The thread.
        tid: i32,
        /// The process that made it; 0 when not known.
        parent: i32,
        /// Slots of the parent, and the child's slots for the same files.
        inherited: Vec<(u32, u32)>,
        /// When.
        at_ns: u64,
    },
    /// A thread ended. Steps before this one have released the descriptors that it alone held.
    Ended {
        /// The thread.
        tid: i32,
    },
    /// A process has waited for another one's end.
    Waited {
        /// The thread that waited.
        tid: i32,
        /// The process that ended.
        child: i32,
    },
    /// Content, before the step that names it.
    Blob {
        /// First half of the SHA-256 sum.
        hash: [u8; 16],
        /// The content.
        data: &'a [u8],
    },
    /// An operation.
    Step(Box<Step>),
    /// A call or event that is not replayed, and why.
    Skipped {
        /// The reason, as in the counts of a compiled replay.
        why: &'static str,
    },
}

/// An operation on files below the directory.
#[derive(Debug, Clone)]
pub struct Step {
    /// The thread.
    pub tid: i32,
    /// The trace is one of a replay, and this is a call of the trace that was replayed.
    pub is_replayed: bool,
    /// When the call began, in nanoseconds.
    pub entered_ns: u64,
    /// When it ended.
    pub left_ns: u64,
    /// The result register.
    pub result: Option<i64>,
    /// The operation.
    pub call: Call,
    /// The files on which it operates.
    pub targets: Vec<Subject>,
    /// Further operands, as [`Call`] lists them.
    pub numbers: Vec<u64>,
    /// A string that names no file.
    pub text: Option<Vec<u8>>,
    /// The data that was read or written.
    pub data: Option<Payload>,
    /// The slot of the new descriptor.
    pub opened: Option<u32>,
}

/// A file on which a step operates.
#[derive(Debug, Clone)]
pub struct Subject {
    /// How the call names it.
    pub name: Name,
    /// The recorded state of the file after the call.
    pub info: Option<Info>,
}

/// How a call names a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// A descriptor.
    Slot(u32),
    /// A path relative to the directory, without links but perhaps the last component. Empty for the directory itself.
    Path {
        /// The path, in its shortest form.
        path: Vec<u8>,
        /// Whether the call gave it a slash at its end.
        slash: bool,
    },
}

/// The state of a file, as a trace records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Info {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names.
    pub links: u64,
    /// Bytes.
    pub size: u64,
    /// Owner and group, which only stat(2) and similar calls show.
    pub owner: Option<(u32, u32)>,
}

impl Info {
    /// The type, as in `S_IFMT`.
    pub fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }
}

/// Data of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Payload {
    /// Bytes asked for.
    pub length: u64,
    /// Hashes of each 64 KiB of the transferred data, as far as they were recorded.
    pub hashes: Vec<[u8; 16]>,
}

impl Step {
    /// Whether the call failed.
    pub fn failed(&self) -> bool {
        self.errno().is_some()
    }

    /// The error number.
    pub fn errno(&self) -> Option<i32> {
        let result = self.result.filter(|it| (-4095..0).contains(it))?;
        Some(-result as i32)
    }

    /// A number, or 0.
    pub fn number(&self, index: usize) -> u64 {
        self.numbers.get(index).copied().unwrap_or(0)
    }
}
