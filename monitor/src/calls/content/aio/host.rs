//! Reads and writes of host files that the monitor makes for a program.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};

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

/// preadv2(2) of the file at `offset` into the tracee's `segments`.
pub fn read(
    call: &Call<'_>,
    ofd: &OwnedFd,
    segments: &[(u64, usize)],
    offset: u64,
    flags: u32,
) -> Result<i64> {
    let (mut buffer, skipped) = aligned();
    buffer.resize(skipped + PIECE, 0);
    let mut piece = |done: usize, wanted: usize| {
        let into = buffer.get_mut(skipped..skipped + wanted);
        let into = into.ok_or(Errno::EIO)?;
        let at = offset + done as u64;
        let flags = ReadWriteFlags::from_bits_retain(flags);
        let got = preadv2(ofd.as_fd(), &mut [IoSliceMut::new(into)], at, flags);
        let got = got.map_err(from_rustix)?;
        let got = into.get(..got).unwrap_or(into);
        if got.is_empty() {
            return Ok(0);
        }
        tracee::write_vec(call.task.tid, &skip(segments, done), got)
    };
    in_pieces(segments, &mut piece)
}

/// pwritev2(2) of the tracee's `segments` to the file at `offset`.
pub fn write(
    call: &Call<'_>,
    ofd: &OwnedFd,
    segments: &[(u64, usize)],
    offset: u64,
    flags: u32,
) -> Result<i64> {
    let caller = call.caller()?;
    let available = within_limit(call, |limit| Ok(limit.saturating_sub(offset)))?;
    let available = usize::try_from(available).unwrap_or(usize::MAX);
    let (mut buffer, skipped) = aligned();
    let mut piece = |done: usize, wanted: usize| {
        buffer.truncate(skipped);
        let wanted = wanted.min(available - done);
        let rest = skip(segments, done);
        call.memory.read_buffers(&rest, &mut buffer, wanted)?;
        let data = buffer.get(skipped..).unwrap_or_default();
        if data.is_empty() {
            return Ok(0);
        }
        let at = offset + done as u64;
        let flags = ReadWriteFlags::from_bits_retain(flags);
        acting_as(&caller, None, || {
            pwritev2(ofd.as_fd(), &[IoSlice::new(data)], at, flags).map_err(from_rustix)
        })
    };
    in_pieces(segments, &mut piece)
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
