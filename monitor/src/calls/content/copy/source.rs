//! Sources of copying calls. Data that the destination does not accept stay in the source.

use std::os::fd::{AsFd, OwnedFd};

use goanna_sys::{memfile, stat};
use goanna_vfs::{Errno, PlaceKey, Result};
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice, tee};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Whence, lseek, pipe2, read};

use crate::Monitor;
use crate::call::Call;
use crate::calls::read::Content;
use crate::errno::errno;
use crate::shadow::Shadow;

/// Bytes that are read and written at once.
pub const PIECE: usize = 4 << 20;
/// To allocate a buffer of this size costs less than to find out how much there is to read.
const SMALL: usize = 16 << 10;

/// A source. Where the program gave no offset, the description's own advances.
pub struct Source {
    kind: Kind,
    /// The offset that the program gave.
    pub offset: Option<u64>,
    /// The virtual file, if it is one.
    pub file: Option<PlaceKey>,
}

enum Kind {
    /// A file whose reads do not wait: a cache object, or an ordinary file of the host.
    File(OwnedFd),
    /// A file that the caller's transaction has changed.
    Changed(Content),
    /// Any other source. The kernel copies its data into `scratch`, or fails with the errno for the program.
    Other { ofd: OwnedFd, scratch: OwnedFd },
    /// The read end of a pipe, and a pipe of ours. Data of the first one are duplicated into ours, and removed from the first only
    /// when they are written. A process that reads the pipe by a call which the monitor does not answer can see the same bytes in
    /// between.
    Pipe {
        ofd: OwnedFd,
        ours: (OwnedFd, OwnedFd),
        size: usize,
    },
}

impl Source {
    /// Descriptor `fd` of the caller. EBADF for one that is not open for reading.
    pub fn of(call: &Call<'_>, fd: i32) -> Result<Self> {
        let (shadow, ofd) = call.descriptor_of_any(fd)?;
        let shadow = shadow.as_deref();
        let flags = Monitor::writable(&ofd)?.1;
        let is_reference = matches!(shadow, Some(Shadow::Reference { .. }));
        if flags & libc::O_ACCMODE == libc::O_WRONLY || flags & libc::O_PATH != 0 || is_reference {
            return Err(Errno::EBADF.into());
        }
        let file = match shadow {
            Some(Shadow::File { place, .. }) => Some(place.key()),
            _ => None,
        };
        let kind = if let Some(content) = Content::of(call, fd)? {
            Kind::Changed(content)
        } else if file.is_some() || is_ordinary(&ofd, flags)? {
            Kind::File(ofd)
        } else {
            let scratch = memfile::create(c"copy")?;
            Kind::Other { ofd, scratch }
        };
        Ok(Self {
            kind,
            offset: None,
            file,
        })
    }

    /// The pipe that is descriptor `fd` of the caller. EBADF for its other end, EINVAL for anything but a pipe.
    pub fn pipe(call: &Call<'_>, fd: i32) -> Result<Self, Errno> {
        let ofd = call.task.descriptor(fd)?;
        let flags = Monitor::writable(&ofd)?.1;
        if flags & libc::O_ACCMODE == libc::O_WRONLY || flags & libc::O_PATH != 0 {
            return Err(Errno::EBADF);
        }
        if stat::fstat(ofd.as_fd())?.st_mode & libc::S_IFMT != libc::S_IFIFO {
            return Err(Errno::EINVAL);
        }
        let ours = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let size = fcntl(ofd.as_fd(), FcntlArg::F_GETPIPE_SZ)?;
        // A pipe of ours that is smaller duplicates less at a time.
        let _ = fcntl(ours.1.as_fd(), FcntlArg::F_SETPIPE_SZ(size));
        let size = usize::try_from(size).unwrap_or(0);
        Ok(Self {
            kind: Kind::Pipe { ofd, ours, size },
            offset: None,
            file: None,
        })
    }

    /// EISDIR for a directory, EINVAL for all other kinds but regular files. EXDEV for a file whose size is not that of its
    /// content: programs then read and write.
    pub fn must_be_file(&self) -> Result<(), Errno> {
        match &self.kind {
            Kind::File(_) | Kind::Changed(_) => Ok(()),
            Kind::Other { ofd, .. } | Kind::Pipe { ofd, .. } => {
                match stat::fstat(ofd.as_fd())?.st_mode & libc::S_IFMT {
                    libc::S_IFREG => Err(Errno::EXDEV),
                    libc::S_IFDIR => Err(Errno::EISDIR),
                    _ => Err(Errno::EINVAL),
                }
            }
        }
    }

    /// Whether this is a pipe, which gives each byte to one of its readers.
    pub fn is_pipe(&self) -> bool {
        matches!(self.kind, Kind::Pipe { .. })
    }

    /// Whether a read can wait for anything but a disk.
    pub fn may_wait(&self) -> bool {
        matches!(self.kind, Kind::Other { .. })
    }

    /// The number of bytes from the current offset to the end, by the file's size.
    pub fn left(&self) -> Result<u64> {
        self.left_from(self.position()?)
    }

    /// The number of bytes from `position` to the end, by the file's size.
    pub fn left_from(&self, position: u64) -> Result<u64> {
        let size = match &self.kind {
            Kind::File(ofd) | Kind::Other { ofd, .. } | Kind::Pipe { ofd, .. } => {
                stat::fstat(ofd.as_fd())?.st_size.cast_unsigned()
            }
            Kind::Changed(content) => content.size()?,
        };
        Ok(size.saturating_sub(position))
    }

    /// The position of the next read, of a source that has offsets.
    pub fn position(&self) -> Result<u64> {
        match (&self.kind, self.offset) {
            (_, Some(offset)) => Ok(offset),
            (Kind::Changed(content), None) => content.offset(),
            (Kind::File(ofd) | Kind::Other { ofd, .. } | Kind::Pipe { ofd, .. }, None) => {
                Ok(lseek(ofd, 0, Whence::SeekCur)?.cast_unsigned())
            }
        }
    }

    /// Puts up to `len` bytes into `data`; none at the end. EAGAIN for a pipe that has none now.
    pub fn read(&self, len: usize, data: &mut Vec<u8>) -> Result<()> {
        data.clear();
        let len = match self.kind {
            Kind::File(_) | Kind::Changed(_) if len > SMALL => {
                len.min(usize::try_from(self.left()?).unwrap_or(usize::MAX))
            }
            _ => len,
        };
        if len == 0 {
            return Ok(());
        }
        match &self.kind {
            Kind::File(ofd) => {
                data.resize(len, 0);
                let got = match self.offset {
                    Some(offset) => memfile::pread(ofd.as_fd(), data, offset)?,
                    None => read(ofd, data)?,
                };
                data.truncate(got);
            }
            Kind::Changed(content) => *data = content.at(self.position()?, len)?,
            Kind::Other { ofd, scratch } => {
                memfile::set_len(scratch.as_fd(), 0)?;
                lseek(scratch, 0, Whence::SeekSet)?;
                let mut offset = self.offset.map(u64::cast_signed);
                let got = nix::sys::sendfile::sendfile(scratch, ofd, offset.as_mut(), len)?;
                data.resize(got, 0);
                memfile::pread(scratch.as_fd(), data, 0)?;
            }
            Kind::Pipe { ofd, ours, size } => {
                let len = len.min(*size);
                let got = tee(ofd, &ours.1, len, SpliceFFlags::SPLICE_F_NONBLOCK)?;
                // tee(2) also returns 0 where another reader emptied the pipe during the call.
                if got == 0 && !has_hung_up(ofd)? {
                    return Err(Errno::EAGAIN.into());
                }
                data.resize(got, 0);
                if got > 0 {
                    let got = read(&ours.0, data)?;
                    data.truncate(got);
                }
            }
        }
        Ok(())
    }

    /// Records that `used` of the `got` bytes of the last read were written: the next read begins behind these.
    pub fn advance(&mut self, got: usize, used: usize) -> Result<()> {
        if let Some(offset) = &mut self.offset {
            *offset += used as u64;
            return Ok(());
        }
        match &self.kind {
            Kind::File(ofd) | Kind::Other { ofd, .. } if used < got => {
                lseek(ofd, -((got - used) as i64), Whence::SeekCur)?;
            }
            Kind::File(_) | Kind::Other { .. } => {}
            Kind::Changed(content) => content.seek(content.offset()? + used as u64)?,
            Kind::Pipe { ofd, ours, .. } => take_out(ofd, ours, used)?,
        }
        Ok(())
    }

    /// The pipe, which is readable when it has data or no writer.
    pub fn to_wait_for(&self) -> Result<OwnedFd, Errno> {
        match &self.kind {
            Kind::Pipe { ofd, .. } => ofd.try_clone().map_err(errno),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Whether the description has `O_NONBLOCK`.
    pub fn is_nonblocking(&self) -> Result<bool, Errno> {
        match &self.kind {
            Kind::Pipe { ofd, .. } => Ok(Monitor::writable(ofd)?.1 & libc::O_NONBLOCK != 0),
            _ => Ok(false),
        }
    }
}

/// Whether a pipe is empty and has no writer.
fn has_hung_up(pipe: &OwnedFd) -> Result<bool, Errno> {
    let mut polled = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO)?;
    Ok(polled[0].revents() == Some(PollFlags::POLLHUP))
}

/// Removes `len` bytes, which were duplicated before, from a pipe. It does not wait: another reader may have taken them.
fn take_out(pipe: &OwnedFd, ours: &(OwnedFd, OwnedFd), mut len: usize) -> Result<(), Errno> {
    let mut block = [0; 16384];
    while len > 0 {
        match splice(
            pipe,
            None,
            &ours.1,
            None,
            len,
            SpliceFFlags::SPLICE_F_NONBLOCK,
        ) {
            Ok(taken @ 1..) => len = len.saturating_sub(taken),
            Ok(_) | Err(Errno::EAGAIN) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        while matches!(read(&ours.0, &mut block), Ok(1..)) {}
    }
    Ok(())
}

/// Whether this is a regular file that answers at once. Files that a program or the kernel makes up as they are read have no
/// size and no device.
fn is_ordinary(ofd: &OwnedFd, flags: i32) -> Result<bool, Errno> {
    let stat = stat::fstat(ofd.as_fd())?;
    Ok(stat.st_mode & libc::S_IFMT == libc::S_IFREG
        && (stat.st_size > 0 || libc::major(stat.st_dev) != 0)
        && flags & libc::O_DIRECT == 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// cp(1) gives a length of nearly 2^63.
    #[test]
    fn a_read_with_a_huge_length_takes_memory_for_what_is_there_only() {
        let file = memfile::create(c"file").unwrap();
        assert_eq!(nix::unistd::write(&file, b"hello").unwrap(), 5);
        for (offset, expected) in [(Some(0), &b"hello"[..]), (Some(3), b"lo"), (None, b"")] {
            let source = Source {
                kind: Kind::File(file.try_clone().unwrap()),
                offset,
                file: None,
            };
            let mut data = Vec::new();
            source.read(PIECE, &mut data).unwrap();
            assert_eq!(data, expected);
            assert!(data.capacity() < 100, "{} bytes", data.capacity());
        }
    }
}
