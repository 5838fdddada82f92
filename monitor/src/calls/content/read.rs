//! Reads by participants of transactions. All others read natively, on the cache object, which has the committed content; a transaction
//! that has changed the file must get its own content.
//!
//! These calls come at ptrace stops, under the second filter of participants ([`crate::table::filter::compile_participant`]).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use goanna_sys::tracee;
use goanna_vfs::{Caller, Errno, Place, Result};
use nix::unistd::{self, Whence};

use super::buffers::{many, one, verify_range};
use crate::Monitor;
use crate::call::{Answer, Call, Descriptor};
use crate::shadow::Shadow;
use crate::table::conditions::{FAR, HINTS};

/// Number of bytes that are read and then written to the tracee in one step.
const PIECE: usize = 4 << 20;

/// A file whose content in the caller's transaction may differ from that of the cache object.
pub struct Content {
    place: Place,
    ofd: OwnedFd,
    caller: Arc<Caller>,
}

impl Content {
    /// `None` where the kernel's answer is right. This takes a shared lock on the file for the transaction.
    pub fn of(call: &Call<'_>, fd: i32) -> Result<Option<Self>> {
        let Some(content) = Self::in_transaction(call, fd)? else {
            return Ok(None);
        };
        let place = &content.place;
        let is_own = match place.mount.fs.content() {
            Some(cached) => cached.has_own_content(&content.caller, &place.node)?,
            None => false,
        };
        Ok(is_own.then_some(content))
    }

    /// A readable file of a store, whose content the caller's transaction may have changed.
    fn in_transaction(call: &Call<'_>, fd: i32) -> Result<Option<Self>> {
        if call.caller()?.txn.is_none() {
            return Ok(None);
        }
        Self::readable(call, fd)
    }

    /// A readable file of a store.
    fn readable(call: &Call<'_>, fd: i32) -> Result<Option<Self>> {
        let caller = call.caller()?;
        // The kernel reports a bad descriptor.
        let Ok(Descriptor::Shadow(shadow, ofd)) = call.descriptor(fd) else {
            return Ok(None);
        };
        let Shadow::File { place, .. } = &*shadow else {
            return Ok(None);
        };
        if Monitor::access_mode(&ofd)? == libc::O_WRONLY {
            return Ok(None);
        }
        let place = place.clone();
        Ok(Some(Self { place, ofd, caller }))
    }

    /// Up to `len` bytes at `offset`, and fewer only at the end; `None` where the kernel's answer is right.
    fn own_at(&self, offset: u64, len: usize) -> Result<Option<Vec<u8>>> {
        let Some(cached) = self.place.mount.fs.content() else {
            return Ok(None);
        };
        cached.read_own(&self.caller, &self.place.node, offset, len)
    }

    /// Up to `len` bytes at `offset`.
    pub fn at(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let fs = &self.place.mount.fs;
        let mut data = vec![0; len];
        let mut done = 0;
        while let Some(rest) = data.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match fs.read_at(&self.caller, &self.place.node, offset + done as u64, rest)? {
                0 => break,
                got => done += got,
            }
        }
        data.truncate(done);
        Ok(data)
    }

    /// Its size in bytes.
    pub fn size(&self) -> Result<u64> {
        let fs = &self.place.mount.fs;
        Ok(fs.getattr(&self.caller, &self.place.node)?.size)
    }

    /// The descriptor's offset.
    pub fn offset(&self) -> Result<u64> {
        Ok(unistd::lseek(self.ofd.as_fd(), 0, Whence::SeekCur)? as u64)
    }

    /// Sets the descriptor's offset.
    pub fn seek(&self, offset: u64) -> Result<()> {
        let offset = i64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        unistd::lseek(self.ofd.as_fd(), offset, Whence::SeekSet)?;
        Ok(())
    }
}

/// Fills the segments with content that the caller's transaction has changed; otherwise passes the call on.
fn read_segments(
    call: &Call<'_>,
    segments: impl FnOnce() -> Result<Vec<(u64, usize)>>,
    offset: Option<u64>,
) -> Result<Answer> {
    let Some(content) = Content::in_transaction(call, call.int(0))? else {
        return Ok(Answer::PassOn);
    };
    fill_segments(call, &content, segments, offset, |at, len| {
        content.own_at(at, len)
    })
}

/// Fills the tracee's `segments` with bytes of `content`, which `data` returns, from `offset`, or from the descriptor's own offset,
/// which then advances.
fn fill_segments(
    call: &Call<'_>,
    content: &Content,
    segments: impl FnOnce() -> Result<Vec<(u64, usize)>>,
    offset: Option<u64>,
    data: impl Fn(u64, usize) -> Result<Option<Vec<u8>>>,
) -> Result<Answer> {
    let start = offset.map_or_else(|| content.offset(), Ok)?;
    let segments = segments()?;
    if let Some(offset) = offset {
        verify_range(offset, &segments)?;
    }
    let first = segments.iter().map(|&(_, len)| len).find(|&len| len > 0);
    // Most reads are this one operation of the back end.
    let mut first = data(start, first.unwrap_or(0).min(PIECE))?;
    if first.is_none() {
        return Ok(Answer::PassOn);
    }
    let mut done = 0_u64;
    'segments: for (address, len) in segments {
        let mut filled = 0;
        while filled < len {
            let wanted = (len - filled).min(PIECE);
            let piece = match first.take() {
                Some(piece) => piece,
                None => data(start.saturating_add(done), wanted)?.unwrap_or_default(),
            };
            let put = match tracee::write(call.task.tid, address + filled as u64, &piece) {
                Ok(put) => put,
                Err(errno) if done == 0 && !piece.is_empty() => return Err(errno.into()),
                Err(_) => 0,
            };
            done += put as u64;
            filled += put;
            if put == 0 || put < piece.len() || piece.len() < wanted {
                break 'segments;
            }
        }
    }
    if offset.is_none() {
        content.seek(start + done)?;
    }
    Ok(Answer::Value(done as i64))
}

fn offset(value: u64) -> Result<Option<u64>> {
    i64::try_from(value).map_err(|_| Errno::EINVAL)?;
    Ok(Some(value))
}

/// read(2)
pub fn read(call: &mut Call<'_>) -> Result<Answer> {
    read_segments(call, || one(call), None)
}

/// pread64(2)
pub fn pread64(call: &mut Call<'_>) -> Result<Answer> {
    read_segments(call, || one(call), offset(call.arg(3))?)
}

/// readv(2)
pub fn readv(call: &mut Call<'_>) -> Result<Answer> {
    read_segments(call, || many(call), None)
}

/// preadv(2)
pub fn preadv(call: &mut Call<'_>) -> Result<Answer> {
    read_segments(call, || many(call), offset(call.arg(3))?)
}

/// preadv2(2) into `segments` that the monitor performs; `None` for a file of the host.
pub fn of_mounted(
    call: &Call<'_>,
    segments: impl FnOnce() -> Result<Vec<(u64, usize)>>,
    offset: Option<u64>,
) -> Result<Option<Answer>> {
    let Some(content) = Content::readable(call, call.int(0))? else {
        return Ok(None);
    };
    let data = |at, len| content.at(at, len).map(Some);
    fill_segments(call, &content, segments, offset, data).map(Some)
}

/// preadv2(2): its flags are hints here; the kernel refuses a flag that it does not know. For a cache object it also refuses two valid
/// flags, so the monitor reads instead.
pub fn preadv2(call: &mut Call<'_>) -> Result<Answer> {
    // All but RWF_ATOMIC, which is for direct writes.
    const KNOWN: i32 = 0x1bf;
    if call.int(5) & !KNOWN != 0 {
        return Ok(Answer::PassOn);
    }
    let at = match call.arg(3) {
        u64::MAX => None,
        value => offset(value)?,
    };
    let is_refused = HINTS
        .iter()
        .all(|hint| hint.is_met(&[0, 0, 0, 0, 0, call.arg(5)]));
    if is_refused && let Some(answer) = of_mounted(call, || many(call), at)? {
        return Ok(answer);
    }
    read_segments(call, || many(call), at)
}

/// lseek(2): EINVAL beyond the largest file, which comes as a notification; in transactions from the end, and for holes: a changed
/// content counts as one without holes.
pub fn lseek(call: &mut Call<'_>) -> Result<Answer> {
    let (by, whence) = (call.arg(1) as i64, call.int(2));
    if whence == libc::SEEK_SET && is_beyond(call, by)? {
        return Err(Errno::EINVAL.into());
    }
    if !matches!(whence, libc::SEEK_END | libc::SEEK_DATA | libc::SEEK_HOLE) {
        return Ok(Answer::PassOn);
    }
    let Some(content) = Content::of(call, call.int(0))? else {
        return Ok(Answer::PassOn);
    };
    let size = content.size()?;
    let beyond = u64::try_from(by).map_or(true, |by| by >= size);
    let to = match whence {
        libc::SEEK_END => size.checked_add_signed(by).ok_or(Errno::EINVAL)?,
        _ if beyond => return Err(Errno::ENXIO.into()),
        libc::SEEK_DATA => by.unsigned_abs(),
        _ => size,
    };
    content.seek(to)?;
    Ok(Answer::Value(to as i64))
}

/// Whether `offset` is beyond the largest file that the file system of the call's descriptor can have. The kernel knows
/// only what the file system of the cache object can have.
fn is_beyond(call: &Call<'_>, offset: i64) -> Result<bool> {
    let Ok(offset) = u64::try_from(offset) else {
        return Ok(false);
    };
    if FAR
        .iter()
        .any(|condition| !condition.is_met(&[0, offset, 0, 0, 0, 0]))
    {
        return Ok(false);
    }
    Ok(match call.shadow(call.int(0))?.as_deref() {
        Some(Shadow::File { place, .. }) => offset > place.mount.fs.largest_file(),
        _ => false,
    })
}
