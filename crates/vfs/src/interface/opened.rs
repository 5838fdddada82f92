//! Open files: what an open returns, and how later calls name the file.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use goanna_sys::object_handle::{Claim, ObjectHandle};

use crate::{Errno, Node};

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

/// A fresh open file description. That of a cache object is made when it is first needed; while this exists, a claim makes the object count as open.
#[derive(Debug)]
pub struct Description {
    made: OnceLock<OwnedFd>,
    object: Option<(Claim, i32)>,
}

impl Description {
    /// A description of the object of `handle`, with `flags` as for open(2); close-on-exec is added. The caller keeps the object from being
    /// dropped meanwhile.
    pub fn of_object(handle: &Arc<ObjectHandle>, flags: i32) -> Self {
        Self {
            made: OnceLock::new(),
            object: Some((Claim::of(handle), flags)),
        }
    }

    /// A descriptor of it.
    pub fn fd(&self) -> Result<&OwnedFd, Errno> {
        if let (None, Some((claim, flags))) = (self.made.get(), &self.object) {
            let _ = self.made.set(claim.handle().open(*flags)?);
        }
        self.made.get().ok_or(Errno::EBADF)
    }

    /// The descriptor, which the caller owns from now on. The claim ends: a program that gets the descriptor must have it before.
    pub fn into_fd(self) -> Result<OwnedFd, Errno> {
        self.fd()?;
        self.made.into_inner().ok_or(Errno::EBADF)
    }

    /// The claim, and the flags, of a description of a cache object that has not been made.
    pub fn claim(&self) -> Option<(&Claim, i32)> {
        let (claim, flags) = self.object.as_ref()?;
        self.made.get().is_none().then_some((claim, *flags))
    }
}

impl From<OwnedFd> for Description {
    fn from(fd: OwnedFd) -> Self {
        Self {
            made: OnceLock::from(fd),
            object: None,
        }
    }
}

/// What a program gets that opens a file.
#[derive(Debug)]
pub struct Opened {
    /// Installed in the tracee; carries the access mode and status flags the program asked for.
    pub description: Description,
    /// The calls that the kernel performs on it without the monitor.
    pub native: Native,
}

impl Opened {
    /// A descriptor of the description.
    pub fn fd(&self) -> Result<&OwnedFd, Errno> {
        self.description.fd()
    }

    /// The descriptor, which the caller owns from now on.
    pub fn into_fd(self) -> Result<OwnedFd, Errno> {
        self.description.into_fd()
    }
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
