//! Reads and writes of host files, pipes, sockets and devices that the monitor makes for a program.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use goanna_sys::tracee;
use goanna_vfs::{Errno, Result};
use rustix::io::{ReadWriteFlags, preadv2, pwritev2};

use crate::call::Call;
use crate::calls::content::output::within_limit;
use crate::calls::content::write::skip;
use crate::errno::from_rustix;
use crate::process::task::acting_as;

/// Bytes that are read or written at once.
const PIECE: usize = 1 << 20;
/// The alignment of a buffer that every file with O_DIRECT takes.
const ALIGNMENT: usize = 4096;

/// An empty buffer, and the length of what is to be skipped in it so that the rest is aligned.
fn aligned() -> (Vec<u8>, usize) {
    let mut buffer: Vec<u8> = Vec::with_capacity(PIECE + ALIGNMENT);
    let skipped = buffer.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    buffer.resize(skipped, 0);
    (buffer, skipped)
}

/// A read or write.
pub struct Transfer<'a, 'm> {
    /// preadv2(2) or pwritev2(2).
    pub call: &'a Call<'m>,
    /// The file.
    pub ofd: &'a OwnedFd,
    /// The buffers of the tracee.
    pub segments: &'a [(u64, usize)],
    /// The position in the file; `None` for what has no positions.
    pub offset: Option<u64>,
    /// `RWF_` flags.
    pub flags: u32,
}

impl Transfer<'_, '_> {
    fn flags(&self) -> ReadWriteFlags {
        ReadWriteFlags::from_bits_retain(self.flags)
    }

    /// Where the transfer continues after `done` bytes.
    fn position(&self, done: usize) -> u64 {
        // preadv2(2) takes -1 for the position of the description.
        self.offset.map_or(u64::MAX, |offset| offset + done as u64)
    }

    /// Writes the buffers, or reads into them.
    pub fn perform(&self, writes: bool) -> Result<i64> {
        if writes { self.write() } else { self.read() }
    }

    fn read(&self) -> Result<i64> {
        let (mut buffer, skipped) = aligned();
        buffer.resize(skipped + PIECE, 0);
        let mut piece = |done: usize, wanted: usize| {
            let into = buffer.get_mut(skipped..skipped + wanted);
            let into = into.ok_or(Errno::EIO)?;
            let at = self.position(done);
            let got = preadv2(self.ofd, &mut [IoSliceMut::new(into)], at, self.flags());
            let got = got.map_err(from_rustix)?;
            let got = into.get(..got).unwrap_or(into);
            if got.is_empty() {
                return Ok(0);
            }
            tracee::write_vec(self.call.task.tid, &skip(self.segments, done), got)
        };
        in_pieces(self.segments, &mut piece)
    }

    /// Writes with the caller's credentials and up to its limit of sizes.
    fn write(&self) -> Result<i64> {
        let caller = self.call.caller()?;
        let available = match self.offset {
            Some(offset) => within_limit(self.call, |limit| Ok(limit.saturating_sub(offset)))?,
            None => u64::MAX,
        };
        let available = usize::try_from(available).unwrap_or(usize::MAX);
        let (mut buffer, skipped) = aligned();
        let mut piece = |done: usize, wanted: usize| {
            buffer.truncate(skipped);
            let wanted = wanted.min(available - done);
            let rest = skip(self.segments, done);
            self.call.memory.read_buffers(&rest, &mut buffer, wanted)?;
            let data = buffer.get(skipped..).unwrap_or_default();
            if data.is_empty() {
                return Ok(0);
            }
            let at = self.position(done);
            acting_as(&caller, None, || {
                pwritev2(self.ofd, &[IoSlice::new(data)], at, self.flags()).map_err(from_rustix)
            })
        };
        in_pieces(self.segments, &mut piece)
    }
}

/// Transfers the segments by `piece`, which gets the count so far and that which is wanted next, and returns how many bytes it has transferred. An error after some
/// bytes is not reported, as by Linux.
fn in_pieces(
    segments: &[(u64, usize)],
    piece: &mut dyn FnMut(usize, usize) -> Result<usize, Errno>,
) -> Result<i64> {
    let total: usize = segments.iter().map(|(_, len)| len).sum();
    let mut done = 0;
    while done < total {
        let wanted = (total - done).min(PIECE);
        match piece(done, wanted) {
            Ok(moved) => {
                done += moved;
                if moved < wanted {
                    break;
                }
            }
            Err(errno) if done == 0 => return Err(errno.into()),
            Err(_) => break,
        }
    }
    Ok(done as i64)
}
