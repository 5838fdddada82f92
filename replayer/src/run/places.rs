//! Handles of directories below the root. A path is resolved once, with `RESOLVE_IN_ROOT`, so that the handle is always of a directory
//! below the root, whatever the path and the links in it are. Calls then take a handle and one name, and follow no link.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use goanna_sys::Errno;
use goanna_sys::replay::{self as sys, PLAIN, WITHIN};

use crate::source::{PLACEHOLDER, PLACEHOLDER_FILE, note};

/// The handles of a lane. Lanes share no handles, so that no lane closes one while another lane uses it.
#[derive(Debug)]
pub struct Places {
    root: i32,
    handles: HashMap<u32, (i32, u64)>,
    most: usize,
    uses: u64,
    /// A tracer sees the calls: they are announced, and a call whose directory is missing is made nevertheless.
    is_watched: bool,
    /// The directory for calls whose own directory is missing, or is another kind of file.
    empty: Option<i32>,
    file: Option<OwnedFd>,
}

impl Places {
    /// Handles below `root`, at most `most` at a time.
    pub fn new(root: i32, most: usize, is_watched: bool) -> Self {
        Self {
            is_watched,
            empty: None,
            file: None,
            root,
            handles: HashMap::new(),
            most: most.max(1),
            uses: 0,
        }
    }

    /// Announces the lane's next call as the replayer's own.
    pub fn announce(&self) {
        self.note(0, note::OWN);
    }

    /// Announces that the `O_NONBLOCK` of the lane's next open is the replayer's own.
    pub fn announce_at_once(&self) {
        self.note(0, note::AT_ONCE);
    }

    fn note(&self, offset: i64, what: u64) {
        if self.is_watched {
            // Only readers of a trace of the replay use the result.
            let _ = sys::advise(
                self.root,
                offset,
                what as usize,
                Some(libc::POSIX_FADV_NORMAL),
            );
        }
    }

    /// Announces that the calls of thread `tid` follow.
    pub fn announce_thread(&self, tid: u64) {
        self.note(tid.cast_signed(), note::THREAD);
    }

    /// The handle of directory `number`, whose path is `path`.
    pub fn handle(&mut self, number: u32, path: &[u8]) -> Result<i32, Errno> {
        if path.is_empty() {
            return Ok(self.root);
        }
        self.uses += 1;
        if let Some((handle, used)) = self.handles.get_mut(&number) {
            *used = self.uses;
            return Ok(*handle);
        }
        if self.handles.len() >= self.most {
            self.forget_oldest();
        }
        let path = CString::new(path).map_err(|_| Errno::EINVAL)?;
        let flags = (libc::O_PATH | libc::O_DIRECTORY) as u64;
        self.announce();
        let handle = match sys::open(self.root, &path, flags, 0, WITHIN) {
            Ok(handle) => handle as i32,
            Err(why) => return self.placeholder(why),
        };
        self.handles.insert(number, (handle, self.uses));
        Ok(handle)
    }

    /// A directory in which a call fails with `why`: it replaces a directory that could not be opened. Without a tracer the call is not
    /// needed, and the error is the result.
    pub fn placeholder(&mut self, why: Errno) -> Result<i32, Errno> {
        if !self.is_watched {
            return Err(why);
        }
        let handle = match why {
            Errno::ENOENT => self.empty()?,
            Errno::ENOTDIR => self.file()?,
            why => return Err(why),
        };
        self.note(0, note::PLACEHOLDER);
        Ok(handle)
    }

    /// A directory that is removed: nothing can be in it.
    fn empty(&mut self) -> Result<i32, Errno> {
        if let Some(handle) = self.empty {
            return Ok(handle);
        }
        let name = CString::new(PLACEHOLDER).map_err(|_| Errno::EINVAL)?;
        self.announce();
        let made = sys::mkdir(self.root, &name, 0o700);
        self.announce();
        let flags = (libc::O_PATH | libc::O_DIRECTORY) as u64;
        let handle = sys::open(self.root, &name, flags, 0, PLAIN)? as i32;
        if made.is_ok() {
            self.announce();
            sys::unlink(self.root, &name, true)?;
        }
        self.empty = Some(handle);
        Ok(handle)
    }

    fn file(&mut self) -> Result<i32, Errno> {
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                let name = CString::new(PLACEHOLDER_FILE).map_err(|_| Errno::EINVAL)?;
                goanna_sys::memfile::create(&name)?
            }
        };
        let number = file.as_raw_fd();
        self.file = Some(file);
        Ok(number)
    }

    fn forget_oldest(&mut self) {
        let oldest = self.handles.iter().min_by_key(|(_, (_, used))| *used);
        if let Some(number) = oldest.map(|(number, _)| *number) {
            self.forget(number);
        }
    }

    fn forget(&mut self, number: u32) {
        if let Some((handle, _)) = self.handles.remove(&number) {
            self.close(handle);
        }
    }

    /// Closes a descriptor of the replayer's own.
    pub fn close(&self, handle: i32) {
        self.announce();
        // Nothing was written through it.
        let _ = sys::close(handle);
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let numbers: Vec<u32> = self.handles.keys().copied().collect();
        for number in numbers {
            self.forget(number);
        }
    }
}
