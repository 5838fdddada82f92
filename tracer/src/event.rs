//! The events that sources report.

use std::sync::Arc;

pub use goanna_syscalls::File;
use goanna_syscalls::{DecodedCall, Outcome, Subject, Value};

/// An event that a source observed.
#[derive(Debug, Clone)]
pub enum Event {
    /// A system call, once it has ended, or has been given up because the thread died in it.
    Call(Box<Call>),
    /// A thread or process began; also reported for threads and processes that exist when the capture begins.
    Began {
        /// The new thread.
        subject: Subject,
        /// The process that made it; 0 when the source did not see that.
        parent: i32,
        /// Its file mode creation mask. `None`: the same as its parent's, or not known.
        umask: Option<u32>,
        /// When, in nanoseconds of `CLOCK_MONOTONIC`.
        at_ns: u64,
    },
    /// A process replaced its program.
    Executed {
        /// The process, with its new name.
        subject: Subject,
        /// The program's absolute path.
        program: Box<[u8]>,
        /// When.
        at_ns: u64,
    },
    /// A thread or process ended.
    Ended {
        /// The thread.
        subject: Subject,
        /// The status, as waitpid(2) gives it.
        status: i32,
        /// When.
        at_ns: u64,
    },
    /// A descriptor that a process had when the capture began.
    Descriptor {
        /// The process.
        subject: Subject,
        /// Its number; `AT_FDCWD` for the working directory.
        number: i32,
        /// The file.
        file: File,
        /// Access mode and status flags, as F_GETFL gives them.
        flags: u32,
        /// Its offset, in bytes.
        offset: u64,
    },
    /// A mapping that a process had when the capture began.
    Mapping {
        /// The process.
        subject: Subject,
        /// First address.
        start: u64,
        /// Length in bytes.
        length: u64,
        /// `PROT_*` bits; `MAP_SHARED` or `MAP_PRIVATE` is in `flags`.
        protection: u32,
        /// `MAP_*` bits.
        flags: u32,
        /// Offset in the file, in bytes.
        offset: u64,
        /// The file.
        file: File,
    },
    /// Pages of a file that a process read or wrote through a mapping since the last such event.
    Touched {
        /// The process.
        subject: Subject,
        /// The file.
        file: File,
        /// Offset of the first page in the file, in bytes.
        offset: u64,
        /// Number of pages.
        pages: u64,
        /// Whether they were written; else they were read.
        written: bool,
        /// When it was seen.
        at_ns: u64,
    },
    /// Events that are missing here, and why.
    Lost {
        /// How many; 0 when not known.
        events: u64,
        /// Why.
        reason: Arc<str>,
        /// When it was noticed.
        at_ns: u64,
    },
}

impl Event {
    /// The thread or process that the event concerns.
    pub fn subject(&self) -> Option<&Subject> {
        match self {
            Self::Call(call) => Some(&call.subject),
            Self::Began { subject, .. }
            | Self::Executed { subject, .. }
            | Self::Ended { subject, .. }
            | Self::Descriptor { subject, .. }
            | Self::Mapping { subject, .. }
            | Self::Touched { subject, .. } => Some(subject),
            Self::Lost { .. } => None,
        }
    }

    /// The name of the call, if the event is a call that has succeeded.
    pub fn succeeded(&self) -> Option<&'static str> {
        match self {
            Self::Call(call) if !(-4095..0).contains(&call.outcome?.result) => {
                Some(call.call.signature?.name)
            }
            _ => None,
        }
    }
}

/// A system call that has ended.
#[derive(Debug, Clone)]
pub struct Call {
    /// The thread.
    pub subject: Subject,
    /// The call and its arguments.
    pub call: DecodedCall,
    /// When it was seen to begin, in nanoseconds of `CLOCK_MONOTONIC`.
    pub entered_ns: u64,
    /// How it ended; `None` when the thread died in it, or the capture ended first.
    pub outcome: Option<Outcome>,
    /// The files that arguments (by index) or the result (index 6) name, after the call.
    pub files: Vec<(u8, File)>,
}

impl Call {
    /// The path of the file that the call concerns: that of its first path, else of its first descriptor, else of its
    /// result.
    pub fn path(&self) -> Option<&[u8]> {
        let arguments = || self.call.args.iter();
        let files = || {
            self.files
                .iter()
                .filter_map(|(_, file)| file.path.as_deref())
        };
        let path = arguments().find_map(|value| match value {
            Value::Path { given, resolved } => Some(resolved.as_deref().unwrap_or(given)),
            _ => None,
        });
        let descriptor = || {
            arguments().find_map(|value| match value {
                Value::Descriptor { file, .. } => file.as_deref(),
                _ => None,
            })
        };
        path.or_else(descriptor).or_else(|| files().next())
    }
}
