//! The requests of io_submit(2): they are checked as the kernel checks them, and performed at once.
//!
//! A request to write is the pwritev2(2) that it stands for, and so on: the handlers of these calls perform it for a file in a mount. What they would pass on to the
//! kernel is done here (`host.rs`), because the program has not made that call.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use goanna_sys::memfile::reopen;
use goanna_sys::{procfs, signals, tracee};
use goanna_vfs::{Errno, FsError, Result};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::stat::fstat;
use nix::unistd::{fdatasync, fsync};

use super::host;
use crate::Monitor;
use crate::call::{Answer, Call};
use crate::calls::content::buffers::{checked, many};
use crate::calls::{read, sync, write};

/// Size of a `struct iocb`.
const SIZE: usize = 64;
/// Offset of `aio_key` in it.
const KEY: u64 = 8;
/// Offset of `aio_buf` in it. With `aio_nbytes`, which follows, it is a `struct iovec`.
const BUFFER: u64 = 24;

const PREAD: u16 = 0;
const PWRITE: u16 = 1;
const FSYNC: u16 = 2;
const FDSYNC: u16 = 3;
const PREADV: u16 = 7;
const PWRITEV: u16 = 8;
/// `IOCB_FLAG_RESFD`
const NOTIFIES: u32 = 1;
/// The flags that preadv2(2) and pwritev2(2) know.
const RW_FLAGS: u32 = 0x1ff;
/// `RWF_NOWAIT`
const NOWAIT: u32 = libc::RWF_NOWAIT as u32;

/// A `struct iocb`.
pub struct Request {
    /// Its address.
    pub address: u64,
    /// `aio_data`
    pub data: u64,
    key: u32,
    opcode: u16,
    rw_flags: u32,
    fd: i32,
    buffer: u64,
    len: u64,
    offset: u64,
    reserved: u64,
    flags: u32,
    result_fd: i32,
}

/// The requests to which the array at `list` points: as many of the `count` as can be read.
pub fn read(tid: i32, list: u64, count: i64) -> Vec<Request> {
    let mut pointers = vec![0; count as usize * 8];
    let got = tracee::read(tid, list, &mut pointers).unwrap_or(0);
    let pointers = pointers.get(..got).unwrap_or_default().as_chunks().0.iter();
    let addresses: Vec<u64> = pointers.map(|bytes| u64::from_ne_bytes(*bytes)).collect();
    let vector: Vec<_> = addresses.iter().map(|address| (*address, SIZE)).collect();
    let mut raw = Vec::new();
    // EFAULT where not even the first one can be read.
    let _ = tracee::read_vec(tid, &vector, &mut raw, usize::MAX);
    let raw = raw.as_chunks().0.iter().zip(addresses);
    raw.map(|(raw, address)| Request::new(address, raw))
        .collect()
}

/// What became of a request.
pub enum Performed {
    /// It is done. Its event shows the result of the operation, or the negative errno.
    Done(i64),
    /// It can be performed when this descriptor is readable.
    Waits(OwnedFd),
}

/// A descriptor of a request.
struct Opened {
    fd: i32,
    ofd: OwnedFd,
    /// Its status flags, and the type of what it refers to.
    flags: i32,
    kind: u32,
}

impl Opened {
    /// Another description of the FIFO, which never waits. EPIPE for writing where nobody reads.
    fn without_waiting(&self) -> Result<OwnedFd> {
        let flags = self.flags & libc::O_ACCMODE | libc::O_NONBLOCK;
        match reopen(self.ofd.as_fd(), flags) {
            Err(Errno::ENXIO) => Err(Errno::EPIPE.into()),
            opened => Ok(opened?),
        }
    }
}

/// The descriptors of the requests that come together.
#[derive(Default)]
pub struct Files(Vec<Opened>);

impl Files {
    fn get(&mut self, call: &Call<'_>, fd: i32) -> Result<&Opened, Errno> {
        let known = self.0.iter().position(|opened| opened.fd == fd);
        let index = match known {
            Some(index) => index,
            None => {
                let ofd = call.task.descriptor(fd)?;
                let flags = Monitor::writable(&ofd)?.1;
                let kind = fstat(&ofd)?.st_mode & libc::S_IFMT;
                self.0.push(Opened {
                    fd,
                    ofd,
                    flags,
                    kind,
                });
                self.0.len() - 1
            }
        };
        self.0.get(index).ok_or(Errno::EBADF)
    }
}

impl Request {
    fn new(address: u64, raw: &[u8; SIZE]) -> Self {
        let word = |at: usize| {
            let bytes = raw.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
        let half = |at: usize| {
            let bytes = raw.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
        };
        Self {
            address,
            data: word(0),
            key: half(8),
            rw_flags: half(12),
            opcode: half(16) as u16,
            fd: half(20).cast_signed(),
            buffer: word(24),
            len: word(32),
            offset: word(40),
            reserved: word(48),
            flags: half(56),
            result_fd: half(60).cast_signed(),
        }
    }

    /// EINVAL for values that no operation takes.
    pub fn check(&self) -> Result<(), Errno> {
        if self.reserved != 0 || self.len > i64::MAX as u64 {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// The eventfd that is to be notified of the end of the request. EBADF, EINVAL.
    pub fn listener(&self, call: &Call<'_>) -> Result<Option<OwnedFd>, Errno> {
        if self.flags & NOTIFIES == 0 {
            return Ok(None);
        }
        let ofd = call.task.descriptor(self.result_fd)?;
        let link = procfs::fd_link(call.task.tid, self.result_fd)?;
        if link != b"anon_inode:[eventfd]" {
            return Err(Errno::EINVAL);
        }
        Ok(Some(ofd))
    }

    /// Performs the request. An error: it is not accepted.
    pub fn perform(&self, call: &Call<'_>, files: &mut Files) -> Result<Performed> {
        let opened = files.get(call, self.fd)?;
        let Opened {
            ofd, flags, kind, ..
        } = opened;
        if flags & libc::O_PATH != 0 {
            return Err(Errno::EBADF.into());
        }
        if self.key != 0 {
            call.put(self.address + KEY, &0_u32.to_ne_bytes())?;
        }
        let has_offsets = matches!(*kind, libc::S_IFREG | libc::S_IFBLK);
        let is_stream = matches!(*kind, libc::S_IFIFO | libc::S_IFSOCK | libc::S_IFCHR);
        let access = flags & libc::O_ACCMODE;
        match self.opcode {
            PREAD | PREADV if access == libc::O_WRONLY => Err(Errno::EBADF.into()),
            PWRITE | PWRITEV if access == libc::O_RDONLY => Err(Errno::EBADF.into()),
            PREAD | PREADV | PWRITE | PWRITEV if has_offsets => self.file(call, ofd),
            PREAD | PREADV | PWRITE | PWRITEV if is_stream => self.stream(call, opened),
            FSYNC | FDSYNC if has_offsets || *kind == libc::S_IFDIR => self.sync(call, ofd),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn writes(&self) -> bool {
        matches!(self.opcode, PWRITE | PWRITEV)
    }

    /// The pwritev2(2) or preadv2(2) that the request stands for, and its buffers.
    fn transfer<'m>(&self, call: &Call<'m>) -> Result<(Call<'m>, Vec<(u64, usize)>)> {
        if self.offset > i64::MAX as u64 {
            return Err(Errno::EINVAL.into());
        }
        if self.rw_flags & !RW_FLAGS != 0 {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let (buffers, count) = match self.opcode {
            PREADV | PWRITEV => (self.buffer, self.len),
            _ => (self.address + BUFFER, 1),
        };
        let number = if self.writes() {
            libc::SYS_pwritev2
        } else {
            libc::SYS_preadv2
        };
        let (fd, flags) = (self.fd as u64, self.rw_flags);
        let args = [fd, buffers, count, self.offset, 0, flags.into()];
        let transfer = stands_for(call, number, args);
        let segments = match self.opcode {
            PREADV | PWRITEV => many(&transfer)?,
            _ => vec![checked(self.buffer, self.len)?],
        };
        Ok((transfer, segments))
    }

    /// A read or write of a file, or of a block device.
    fn file(&self, call: &Call<'_>, ofd: &OwnedFd) -> Result<Performed> {
        let (mut transfer, segments) = self.transfer(call)?;
        let outcome = if self.writes() {
            write::pwritev2(&mut transfer)
        } else {
            let read = read::of_mounted(&transfer, || Ok(segments.clone()), Some(self.offset));
            read.map(|read| read.unwrap_or(Answer::PassOn))
        };
        result(outcome, || {
            let on_host = host::Transfer {
                call: &transfer,
                ofd,
                segments: &segments,
                offset: Some(self.offset),
                flags: self.rw_flags,
            };
            on_host.perform(self.writes())
        })
    }

    /// A read or write of what has no offsets: a pipe, a socket or a character device. EINVAL for devices without RWF_NOWAIT (tty(4)).
    fn stream(&self, call: &Call<'_>, opened: &Opened) -> Result<Performed> {
        let (transfer, segments) = self.transfer(call)?;
        let try_with = |ofd: &OwnedFd, flags| {
            let on_host = host::Transfer {
                call: &transfer,
                ofd,
                segments: &segments,
                offset: None,
                flags,
            };
            on_host.perform(self.writes())
        };
        let asks = self.rw_flags & NOWAIT != 0;
        let outcome = match try_with(&opened.ofd, self.rw_flags | NOWAIT) {
            Err(FsError::Errno(Errno::EOPNOTSUPP)) if asks => Err(Errno::EOPNOTSUPP)?,
            // A FIFO has no RWF_NOWAIT, but other descriptions.
            Err(FsError::Errno(Errno::EOPNOTSUPP)) if opened.kind == libc::S_IFIFO => {
                let other = opened.without_waiting();
                other.and_then(|other| try_with(&other, self.rw_flags))
            }
            Err(FsError::Errno(Errno::EOPNOTSUPP)) => Err(Errno::EINVAL)?,
            outcome => outcome,
        };
        match outcome {
            Err(FsError::Errno(Errno::EAGAIN)) if !asks && opened.flags & libc::O_NONBLOCK == 0 => {
                Ok(Performed::Waits(self.readiness(&opened.ofd)?))
            }
            outcome => {
                if matches!(outcome, Err(FsError::Errno(Errno::EPIPE))) {
                    signals::send_for_call(call.task.tid, libc::SIGPIPE);
                }
                result(outcome.map(Answer::Value), || Ok(0))
            }
        }
    }

    /// A descriptor that is readable when the request can be performed on `ofd`.
    fn readiness(&self, ofd: &OwnedFd) -> Result<OwnedFd, Errno> {
        let condition = if self.writes() {
            EpollFlags::EPOLLOUT
        } else {
            EpollFlags::EPOLLIN
        };
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(ofd, EpollEvent::new(condition, 0))?;
        Ok(epoll.0)
    }

    fn sync(&self, call: &Call<'_>, ofd: &OwnedFd) -> Result<Performed> {
        if [self.buffer, self.len, self.offset, self.rw_flags.into()] != [0; 4] {
            return Err(Errno::EINVAL.into());
        }
        let is_data = self.opcode == FDSYNC;
        let number = if is_data {
            libc::SYS_fdatasync
        } else {
            libc::SYS_fsync
        };
        let mut call = stands_for(call, number, [self.fd as u64, 0, 0, 0, 0, 0]);
        result(sync::fsync(&mut call), || {
            let done = if is_data {
                fdatasync(ofd.as_fd())
            } else {
                fsync(ofd.as_fd())
            };
            Ok(done.map(|()| 0)?)
        })
    }
}

/// The call that a request stands for.
fn stands_for<'m>(call: &Call<'m>, number: i64, args: [u64; 6]) -> Call<'m> {
    let mut other = Call::new(call.monitor, Arc::clone(&call.task), number as u32, args);
    other.notification.clone_from(&call.notification);
    other.may_wait = call.may_wait;
    other
}

/// The outcome of a request, by the outcome of its call. `pass_on` performs a call that the kernel would perform. An error: the call has to wait for a lock.
fn result(outcome: Result<Answer>, pass_on: impl FnOnce() -> Result<i64>) -> Result<Performed> {
    let outcome = match outcome {
        Ok(Answer::PassOn) => pass_on(),
        Ok(Answer::Value(value)) => Ok(value),
        // Reads, writes and syncs have no other answer.
        Ok(_) => Err(Errno::EIO.into()),
        Err(errno) => Err(errno),
    };
    match outcome {
        Err(FsError::Errno(errno)) => Ok(Performed::Done(-i64::from(errno as i32))),
        other => other.map(Performed::Done),
    }
}
