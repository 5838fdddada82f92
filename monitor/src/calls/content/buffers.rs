//! The buffers of reads and writes in the caller's memory.

use goanna_vfs::{Errno, Result};

use crate::call::Call;

/// Linux transfers at most this much in one call (`MAX_RW_COUNT`).
const MAX_COUNT: u64 = 0x7fff_f000;

/// The buffer of read(2), write(2) and their like. EFAULT for one that does not end in the lower half of the address space, which
/// is all that a program has.
pub fn one(call: &Call<'_>) -> Result<Vec<(u64, usize)>> {
    Ok(vec![checked(call.arg(1), call.arg(2))?])
}

/// The buffer of `count` bytes at `address`, as [`one`].
pub fn checked(address: u64, count: u64) -> Result<(u64, usize), Errno> {
    let end = address.checked_add(count).ok_or(Errno::EFAULT)?;
    i64::try_from(end).map_err(|_| Errno::EFAULT)?;
    Ok((address, count.min(MAX_COUNT) as usize))
}

/// The buffers of readv(2), writev(2) and their like. EFAULT, EINVAL.
pub fn many(call: &Call<'_>) -> Result<Vec<(u64, usize)>> {
    Ok(call.memory.read_iovecs(call.arg(1), call.arg(2) as usize)?)
}

/// EINVAL if the bytes of `segments` from `offset` on end behind the largest offset. The kernel checks this even where O_APPEND
/// or RWF_APPEND makes the offset irrelevant (`rw_verify_area`).
pub fn verify_range(offset: u64, segments: &[(u64, usize)]) -> Result<()> {
    let len: usize = segments.iter().map(|(_, len)| len).sum();
    let end = offset.checked_add(len as u64).ok_or(Errno::EINVAL)?;
    i64::try_from(end).map_err(|_| Errno::EINVAL)?;
    Ok(())
}
