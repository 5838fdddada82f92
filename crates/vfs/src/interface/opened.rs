//! Open files: what an open returns, and how later calls name the file.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use goanna_sys::object_handle::ObjectHandle;

use crate::Node;

/// Which calls on a descriptor run in the kernel without the monitor.
#[derive(Debug, Clone)]
pub enum Native {
    /// All of them: the descriptor is the file itself (passfs).
    All,
    /// Everything that reads: the descriptor is a filled cache object (memfd) that always holds the file's
    /// whole content. Calls that change or describe the file come to the back end. `handle` is the back
    /// end's own handle of that object; with it the back end learns whether another process has the object
    /// open.
    Reads {
        /// The back end's own handle of the object.
        handle: Arc<ObjectHandle>,
    },
}

/// A fresh open file description for the tracee.
#[derive(Debug)]
pub struct Opened {
    /// Installed in the tracee; carries the access mode and status flags the program asked for.
    pub fd: OwnedFd,
    /// The calls that the kernel performs on it without the monitor.
    pub native: Native,
}

/// An open file of a [`Native::Reads`] back end, as a data call gets it.
#[derive(Debug, Clone, Copy)]
pub struct OpenFile<'a> {
    /// The inode.
    pub node: &'a Node,
    /// The tracee's own open file description (shared by pidfd_getfd): offset and flags live there.
    pub ofd: BorrowedFd<'a>,
    /// `F_GETFL` of `ofd`; its access mode was checked to allow writing.
    pub flags: i32,
}

/// The position of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WritePosition {
    /// At the open file description's offset, which advances; at the end under `O_APPEND`.
    Cursor,
    /// At this offset, the description's own unchanged (pwrite(2)). Linux appends all the same under
    /// `O_APPEND`.
    At(u64),
    /// At the end of the file (`RWF_APPEND`).
    End,
}
