//! The file behind a descriptor that a call writes through, and how much the limit of file sizes lets in.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use goanna_sys::{limits, signals};
use goanna_vfs::{Errno, OpenFile, Place, Result, WritePosition};
use nix::unistd::{Whence, lseek};

use crate::Monitor;
use crate::call::{Call, Descriptor};
use crate::shadow::Shadow;
use crate::watches::report::{self, Touch};

/// The virtual file behind a descriptor that a call wants to write through.
pub struct Output {
    /// The file.
    pub place: Place,
    /// The tracee's open file description.
    pub ofd: OwnedFd,
    /// Its status flags.
    pub flags: i32,
    /// See [`Shadow::File`].
    pub volume: Arc<AtomicU64>,
}

impl Output {
    /// `None`: the kernel performs the call (on a host file, or on the real fifo or device that a virtual one stands for).
    /// EBADF for what cannot be written.
    pub fn of(call: &Call<'_>, fd: i32) -> Result<Option<Self>> {
        let Descriptor::Shadow(shadow, ofd) = call.descriptor(fd)? else {
            return Ok(None);
        };
        match &*shadow {
            Shadow::File { place, volume, .. } => {
                let (writable, flags) = Monitor::writable(&ofd)?;
                if !writable {
                    return Err(Errno::EBADF.into());
                }
                Ok(Some(Self {
                    place: place.clone(),
                    ofd,
                    flags,
                    volume: Arc::clone(volume),
                }))
            }
            Shadow::Special { .. } => Ok(None),
            Shadow::Dir { .. } | Shadow::Snapshot { .. } | Shadow::Reference { .. } => {
                Err(Errno::EBADF.into())
            }
        }
    }

    /// Writes `data` as one operation.
    pub fn write(&self, call: &Call<'_>, position: WritePosition, data: &[u8]) -> Result<usize> {
        let data = self.within_limit(call, position, data)?;
        let file = OpenFile {
            node: &self.place.node,
            ofd: self.ofd.as_fd(),
            flags: self.flags,
        };
        let fs = &self.place.mount.fs;
        let written = fs.write(&*call.caller()?, file, position, data)?;
        if written > 0 {
            report::touched(call, &self.place, Touch::Modify);
        }
        Ok(written)
    }

    /// As much of `data` as RLIMIT_FSIZE lets in.
    fn within_limit<'d>(
        &self,
        call: &Call<'_>,
        position: WritePosition,
        data: &'d [u8],
    ) -> Result<&'d [u8]> {
        if data.is_empty() {
            return Ok(data);
        }
        let available = usize::try_from(self.available(call, position)?).unwrap_or(usize::MAX);
        Ok(data.get(..available).unwrap_or(data))
    }

    /// How many bytes RLIMIT_FSIZE lets in at `position`. EFBIG with SIGXFSZ for none.
    pub fn available(&self, call: &Call<'_>, position: WritePosition) -> Result<u64> {
        within_limit(call, |limit| {
            let start = match position {
                WritePosition::At(offset) if self.flags & libc::O_APPEND == 0 => offset,
                WritePosition::Cursor if self.flags & libc::O_APPEND == 0 => {
                    lseek(&self.ofd, 0, Whence::SeekCur)? as u64
                }
                _ => {
                    self.place
                        .mount
                        .fs
                        .getattr(&*call.caller()?, &self.place.node)?
                        .size
                }
            };
            Ok(limit.saturating_sub(start))
        })
    }
}

/// The number of bytes that a call may write under the tracee's RLIMIT_FSIZE, which `available` computes from the limit; `u64::MAX` without a limit.
/// EFBIG, and SIGXFSZ for the tracee, if that is zero.
pub fn within_limit(call: &Call<'_>, available: impl FnOnce(u64) -> Result<u64>) -> Result<u64> {
    let limit = limits::prlimit_fsize(call.task.tid)?;
    if limit == libc::RLIM_INFINITY {
        return Ok(u64::MAX);
    }
    let available = available(limit)?;
    if available == 0 {
        signals::send_for_call(call.task.tid, libc::SIGXFSZ);
        return Err(Errno::EFBIG.into());
    }
    Ok(available)
}
