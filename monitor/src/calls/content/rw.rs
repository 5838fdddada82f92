//! Writes. Reads of shadow files run in the kernel, on the cache object, but for participants of transactions ([`super::read`]).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use goanna_sys::tracee;
use goanna_vfs::{Errno, OpenFile, Place, Result, WritePosition};

use super::size::within_limit;
use super::sync::with_commit;
use crate::Monitor;
use crate::call::{Answer, Call, Descriptor};
use crate::shadow::Shadow;

/// Bytes that one operation of a back end writes at most: as many as a transaction may change. A longer write is several
/// operations.
const OPERATION: usize = 1 << 30;

/// The shadow file behind a descriptor that a call wants to write through.
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
    /// `None`: the kernel's business (nothing of ours, or a fifo or device of ours, which is the real one).
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
            Shadow::Dir { .. } | Shadow::Reference { .. } => Err(Errno::EBADF.into()),
        }
    }

    /// Writes `data` as one operation.
    pub fn write(&self, call: &Call<'_>, spot: WritePosition, data: &[u8]) -> Result<usize> {
        let data = self.within_limit(call, spot, data)?;
        let file = OpenFile {
            node: &self.place.node,
            ofd: self.ofd.as_fd(),
            flags: self.flags,
        };
        self.place
            .mount
            .fs
            .write(&*call.caller()?, file, spot, data)
    }

    /// As much of `data` as RLIMIT_FSIZE lets in.
    fn within_limit<'d>(
        &self,
        call: &Call<'_>,
        spot: WritePosition,
        data: &'d [u8],
    ) -> Result<&'d [u8]> {
        if data.is_empty() {
            return Ok(data);
        }
        let room = usize::try_from(self.room(call, spot)?).unwrap_or(usize::MAX);
        Ok(data.get(..room).unwrap_or(data))
    }

    /// How many bytes RLIMIT_FSIZE lets in at `spot`. EFBIG with SIGXFSZ for none.
    pub fn room(&self, call: &Call<'_>, spot: WritePosition) -> Result<u64> {
        within_limit(call, |limit| {
            let start = match spot {
                WritePosition::At(offset) if self.flags & libc::O_APPEND == 0 => offset,
                WritePosition::Cursor if self.flags & libc::O_APPEND == 0 => {
                    nix::unistd::lseek(&self.ofd, 0, nix::unistd::Whence::SeekCur)? as u64
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

/// Writes the tracee's `segments` to descriptor `fd`.
fn write_segments(
    call: &Call<'_>,
    fd: i32,
    segments: impl FnOnce() -> Result<Vec<(u64, usize)>>,
    spot: WritePosition,
) -> Result<Answer> {
    let Some(output) = Output::of(call, fd)? else {
        return Ok(Answer::PassOn);
    };
    let segments = segments()?;
    let total: usize = segments.iter().map(|(_, len)| len).sum();
    let mut done = 0;
    while done < total {
        let outcome = read_segments(call, &segments, done).and_then(|data| {
            let spot = match spot {
                WritePosition::At(offset) => {
                    WritePosition::At(offset.checked_add(done as u64).ok_or(Errno::EFBIG)?)
                }
                spot => spot,
            };
            Ok((output.write(call, spot, &data)?, data.len()))
        });
        match outcome {
            Ok((written, len)) => {
                done += written;
                if written < len {
                    break;
                }
            }
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    super::outgrow::after_growth(call, fd, &output, done as u64);
    Ok(Answer::Value(done as i64))
}

/// What the tracee's `segments` hold after their first `done` bytes: as much as one operation writes, up to what cannot be
/// read. EFAULT when that is nothing; ENOMEM.
fn read_segments(call: &Call<'_>, segments: &[(u64, usize)], done: usize) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    tracee::read_vec(call.task.tid, &skip(segments, done), &mut data, OPERATION)?;
    if data.is_empty() {
        return Err(Errno::EFAULT.into());
    }
    Ok(data)
}

/// What is left of `segments` after their first `done` bytes.
fn skip(segments: &[(u64, usize)], mut done: usize) -> Vec<(u64, usize)> {
    let mut rest = Vec::with_capacity(segments.len());
    for &(address, len) in segments {
        let skipped = done.min(len);
        done -= skipped;
        if skipped < len {
            rest.push((address + skipped as u64, len - skipped));
        }
    }
    rest
}

/// Linux transfers at most this much in one call (`MAX_RW_COUNT`).
const MAX_COUNT: u64 = 0x7fff_f000;

/// The buffer of read(2), write(2) and their like. EFAULT for one that does not end in the lower half of the address space, which
/// is all that a program has.
pub fn one(call: &Call<'_>) -> Result<Vec<(u64, usize)>> {
    let (address, count) = (call.arg(1), call.arg(2));
    let end = address.checked_add(count).ok_or(Errno::EFAULT)?;
    i64::try_from(end).map_err(|_| Errno::EFAULT)?;
    Ok(vec![(address, count.min(MAX_COUNT) as usize)])
}

/// The buffers of readv(2), writev(2) and their like. EFAULT, EINVAL.
pub fn many(call: &Call<'_>) -> Result<Vec<(u64, usize)>> {
    Ok(tracee::read_iovecs(
        call.task.tid,
        call.arg(1),
        call.arg(2) as usize,
    )?)
}

fn offset(value: u64) -> Result<WritePosition> {
    if (value as i64) < 0 {
        Err(Errno::EINVAL.into())
    } else {
        Ok(WritePosition::At(value))
    }
}

/// write(2)
pub fn write(call: &mut Call<'_>) -> Result<Answer> {
    write_segments(call, call.int(0), || one(call), WritePosition::Cursor)
}

/// pwrite64(2)
pub fn pwrite64(call: &mut Call<'_>) -> Result<Answer> {
    let spot = offset(call.arg(3))?;
    write_segments(call, call.int(0), || one(call), spot)
}

/// writev(2)
pub fn writev(call: &mut Call<'_>) -> Result<Answer> {
    write_segments(call, call.int(0), || many(call), WritePosition::Cursor)
}

/// pwritev(2)
pub fn pwritev(call: &mut Call<'_>) -> Result<Answer> {
    let spot = offset(call.arg(3))?;
    write_segments(call, call.int(0), || many(call), spot)
}

/// pwritev2(2): offset -1 means the description's own; RWF_APPEND, RWF_SYNC and RWF_DSYNC are honoured,
/// RWF_HIPRI and RWF_NOWAIT are hints here.
pub fn pwritev2(call: &mut Call<'_>) -> Result<Answer> {
    let flags = call.int(5);
    let known =
        libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_NOWAIT | libc::RWF_APPEND;
    let spot = match call.arg(3) {
        _ if flags & libc::RWF_APPEND != 0 => WritePosition::End,
        u64::MAX => WritePosition::Cursor,
        value => offset(value)?,
    };
    if flags & !known != 0 {
        return match Output::of(call, call.int(0))? {
            None => Ok(Answer::PassOn),
            Some(_) => Err(Errno::EOPNOTSUPP.into()),
        };
    }
    let answer = write_segments(call, call.int(0), || many(call), spot)?;
    if flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0 && matches!(answer, Answer::Value(1..)) {
        let shadow: Option<Arc<Shadow>> = call.shadow(call.int(0))?;
        if let Some(shadow) = shadow
            && !with_commit(call, shadow.place())?
        {
            shadow.place().mount.fs.sync(Some(&shadow.place().node))?;
        }
    }
    Ok(answer)
}
