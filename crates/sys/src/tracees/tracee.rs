//! A tracee's memory: process_vm_readv(2) and process_vm_writev(2), or /proc/TID/mem where those are refused.
//!
//! Addresses and lengths come from the tracee and are never trusted: an address that is not mapped gives `EFAULT`, and no
//! length makes the monitor allocate more than the caller allows. Copy once, then check the copy: the tracee's other threads
//! may change their memory at any time.
#![allow(unsafe_code, reason = "process_vm_readv(2) and process_vm_writev(2)")]

use std::fs;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;

/// Maximum number of bytes that one read or write moves (`MAX_RW_COUNT`).
pub const MAX_RW_COUNT: usize = 0x7fff_f000;
/// Maximum number of elements of an I/O vector (`UIO_MAXIOV`).
pub const IOV_MAX: usize = 1024;
/// Bytes of a `struct iovec`.
pub const IOVEC_SIZE: usize = 16;

const PAGE_SIZE: usize = 4096;
/// Elements passed to the kernel at once, on the stack.
const BATCH: usize = 32;
/// Most paths are shorter; the rest of the page is read only if this much has no NUL.
const SHORT_STRING: usize = 256;

/// The direction of a transfer.
#[derive(Clone, Copy)]
enum Direction {
    FromTracee,
    ToTracee,
}

/// Reads from `addr` until `buf` is full or memory ends; returns the count. `EFAULT`: not one byte is readable. `ESRCH`: no
/// such task.
pub fn read(tid: i32, addr: u64, buf: &mut [u8]) -> Result<usize, Errno> {
    let remote = [(addr, buf.len())];
    // SAFETY: `buf` is live and exclusively ours for its whole length.
    unsafe {
        transfer(
            Direction::FromTracee,
            tid,
            &remote,
            buf.as_mut_ptr(),
            buf.len(),
        )
    }
}

/// Fills `buf` from `addr`, or `EFAULT`.
pub fn read_exact(tid: i32, addr: u64, buf: &mut [u8]) -> Result<(), Errno> {
    if read(tid, addr, buf)? == buf.len() {
        Ok(())
    } else {
        Err(Errno::EFAULT)
    }
}

/// The word at `addr`, or `EFAULT`.
pub fn read_word(tid: i32, addr: u64) -> Result<u64, Errno> {
    let mut word = [0; size_of::<u64>()];
    read_exact(tid, addr, &mut word)?;
    Ok(u64::from_ne_bytes(word))
}

/// Reads the string at `addr`, without its NUL. `max` counts the NUL, as PATH_MAX does: `ENAMETOOLONG` when the
/// first `max` bytes have none. `EFAULT` when memory ends first.
pub fn read_cstr(tid: i32, addr: u64, max: usize) -> Result<Vec<u8>, Errno> {
    let mut string = Vec::new();
    let mut page = [0u8; PAGE_SIZE];
    let mut want = SHORT_STRING;
    while string.len() < max {
        let at = addr.checked_add(string.len() as u64).ok_or(Errno::EFAULT)?;
        // Never across a page boundary: the next page need not be mapped.
        let in_page = PAGE_SIZE - (at as usize & (PAGE_SIZE - 1));
        let len = in_page.min(want).min(max - string.len());
        let chunk = &mut page[..len];
        read_exact(tid, at, chunk)?;
        if let Some(nul) = chunk.iter().position(|&byte| byte == 0) {
            string.extend_from_slice(&chunk[..nul]);
            return Ok(string);
        }
        string.extend_from_slice(chunk);
        want = PAGE_SIZE;
    }
    Err(Errno::ENAMETOOLONG)
}

/// Writes `data` at `addr` until memory ends; returns the count. `EFAULT`: not one byte is writable.
pub fn write(tid: i32, addr: u64, data: &[u8]) -> Result<usize, Errno> {
    write_vec(tid, &[(addr, data.len())], data)
}

/// Writes all of `data` at `addr` whatever the protection of the memory there, as a debugger does: private mappings
/// only. The caller must be the tracee's ptracer. EFAULT, EIO.
pub fn write_forced(tid: i32, addr: u64, data: &[u8]) -> Result<(), Errno> {
    write_all_forced(tid, &[(addr, data)])
}

/// Writes several pieces in this order, each as [`write_forced`] does.
pub fn write_all_forced(tid: i32, pieces: &[(u64, &[u8])]) -> Result<(), Errno> {
    let errno = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
    let memory = std::fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/{tid}/mem"))
        .map_err(errno)?;
    let mut pieces = pieces.iter();
    pieces.try_for_each(|(addr, data)| memory.write_all_at(data, *addr).map_err(errno))
}

/// Writes all of `data` at `addr`, or `EFAULT` (a part may then have been written, as the kernel's own copies do).
pub fn write_all(tid: i32, addr: u64, data: &[u8]) -> Result<(), Errno> {
    if write(tid, addr, data)? == data.len() {
        Ok(())
    } else {
        Err(Errno::EFAULT)
    }
}

/// Addresses and lengths of the elements of a `struct iovec` array, as the kernel takes them for readv and writev: `EINVAL` for
/// more than 1024 or a length above `isize::MAX`; `EFAULT` for an address no user memory can have; lengths are cut so that
/// their sum is at most [`MAX_RW_COUNT`].
pub fn parse_iovecs(raw: &[u8]) -> Result<Vec<(u64, usize)>, Errno> {
    let count = raw.len() / IOVEC_SIZE;
    if count > IOV_MAX {
        return Err(Errno::EINVAL);
    }
    let mut vector = Vec::with_capacity(count);
    let mut total = 0;
    for element in raw.chunks_exact(IOVEC_SIZE) {
        let (base, len) = element.split_at(IOVEC_SIZE / 2);
        let base = u64::from_le_bytes(base.try_into().map_err(|_| Errno::EFAULT)?);
        let len = u64::from_le_bytes(len.try_into().map_err(|_| Errno::EFAULT)?);
        let len = isize::try_from(len)
            .map_err(|_| Errno::EINVAL)?
            .cast_unsigned();
        // The upper half of the address space is the kernel's.
        if base
            .checked_add(len as u64)
            .is_none_or(|end| end > i64::MAX as u64)
        {
            return Err(Errno::EFAULT);
        }
        let len = len.min(MAX_RW_COUNT - total);
        total += len;
        vector.push((base, len));
    }
    Ok(vector)
}

/// Appends the memory of `vector` to `out`, at most `limit` bytes, until memory ends; returns the count. `EFAULT`: not one
/// byte is readable. `ENOMEM`: the monitor has too little memory.
pub fn read_vec(
    tid: i32,
    vector: &[(u64, usize)],
    out: &mut Vec<u8>,
    limit: usize,
) -> Result<usize, Errno> {
    let total = vector
        .iter()
        .fold(0usize, |sum, &(_, len)| sum.saturating_add(len))
        .min(limit)
        .min(MAX_RW_COUNT);
    out.try_reserve(total).map_err(|_| Errno::ENOMEM)?;
    let spare = out.spare_capacity_mut();
    // SAFETY: at least `total` bytes of spare capacity were reserved and are exclusively ours.
    let n = unsafe {
        transfer(
            Direction::FromTracee,
            tid,
            vector,
            spare.as_mut_ptr().cast(),
            total,
        )?
    };
    // SAFETY: the kernel has written the first `n` bytes after the old length.
    unsafe { out.set_len(out.len() + n) };
    Ok(n)
}

/// Scatters `data` over `vector` until either ends or memory does; returns the count. `EFAULT`: not one byte is writable.
pub fn write_vec(tid: i32, vector: &[(u64, usize)], data: &[u8]) -> Result<usize, Errno> {
    // SAFETY: `data` is live for its length, and this way it is only read.
    unsafe {
        transfer(
            Direction::ToTracee,
            tid,
            vector,
            data.as_ptr().cast_mut(),
            data.len(),
        )
    }
}

/// Moves up to `len` bytes between `local` and the tracee's `vector`.
///
/// # Safety
/// `local` is valid for `len` bytes: for writes when they come from the tracee, for reads otherwise.
unsafe fn transfer(
    way: Direction,
    tid: i32,
    vector: &[(u64, usize)],
    local: *mut u8,
    len: usize,
) -> Result<usize, Errno> {
    let mut done = 0;
    for batch in vector.chunks(BATCH) {
        let mut remote = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; BATCH];
        let mut wanted = 0;
        for (slot, &(addr, part)) in remote.iter_mut().zip(batch) {
            let part = part.min(len - done - wanted);
            slot.iov_base = std::ptr::without_provenance_mut(addr as usize);
            slot.iov_len = part;
            wanted += part;
        }
        if wanted == 0 {
            continue;
        }
        // SAFETY: `done + wanted <= len`, so this part of `local` is as valid as the caller promised.
        let moved =
            unsafe { move_batch(way, tid, &remote[..batch.len()], local.add(done), wanted) };
        match moved {
            Ok(n) => {
                done += n;
                if n < wanted {
                    break;
                }
            }
            Err(Errno::EFAULT) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// # Safety
/// As for [`transfer`], with `len` the sum of `remote`'s lengths.
unsafe fn move_batch(
    way: Direction,
    tid: i32,
    remote: &[libc::iovec],
    local: *mut u8,
    len: usize,
) -> Result<usize, Errno> {
    let here = libc::iovec {
        iov_base: local.cast(),
        iov_len: len,
    };
    let count = remote.len() as libc::c_ulong;
    // SAFETY: `here` is valid as the caller promised; `remote` holds the tracee's addresses, which the kernel checks.
    let r = unsafe {
        match way {
            Direction::FromTracee => {
                libc::process_vm_readv(tid, &raw const here, 1, remote.as_ptr(), count, 0)
            }
            Direction::ToTracee => {
                libc::process_vm_writev(tid, &raw const here, 1, remote.as_ptr(), count, 0)
            }
        }
    };
    match Errno::result(r) {
        Ok(n) => Ok(n.cast_unsigned()),
        // A container's own filter may refuse these calls to everybody.
        Err(Errno::ENOSYS | Errno::EPERM) => {
            // SAFETY: as the caller promised.
            unsafe { move_by_file(way, tid, remote, local, len) }
        }
        Err(e) => Err(e),
    }
}

/// The same through /proc/TID/mem. It writes to read-only private mappings too, where the kernel's own copies would
/// give EFAULT.
///
/// # Safety
/// As for [`move_batch`].
unsafe fn move_by_file(
    way: Direction,
    tid: i32,
    remote: &[libc::iovec],
    local: *mut u8,
    len: usize,
) -> Result<usize, Errno> {
    let io = |error: std::io::Error| match error.raw_os_error() {
        Some(libc::ENOENT) => Errno::ESRCH,
        // An address that is not mapped: EIO. Addresses above i64::MAX do not fit an offset: EINVAL.
        Some(libc::EIO | libc::EINVAL | libc::EOVERFLOW) => Errno::EFAULT,
        Some(errno) => Errno::from_raw(errno),
        None => Errno::EFAULT,
    };
    let memory = fs::OpenOptions::new()
        .read(matches!(way, Direction::FromTracee))
        .write(matches!(way, Direction::ToTracee))
        .open(format!("/proc/{tid}/mem"))
        .map_err(io)?;
    let mut done = 0;
    for part in remote {
        let mut in_part = 0;
        while in_part < part.iov_len && done < len {
            let chunk = (part.iov_len - in_part).min(len - done);
            let at = (part.iov_base.addr() as u64)
                .checked_add(in_part as u64)
                .ok_or(Errno::EFAULT)?;
            let moved = match way {
                Direction::FromTracee => {
                    // Through a buffer of our own, since `local` need not be initialised.
                    let mut page = [0u8; PAGE_SIZE];
                    let chunk = chunk.min(PAGE_SIZE);
                    let result = memory.read_at(&mut page[..chunk], at);
                    if let Ok(n) = result {
                        // SAFETY: `done + n <= len`, and `page` has `n` bytes.
                        unsafe { local.add(done).copy_from_nonoverlapping(page.as_ptr(), n) };
                    }
                    result
                }
                Direction::ToTracee => {
                    // SAFETY: `done + chunk <= len`, and this way `local` is valid for reads.
                    let data = unsafe { std::slice::from_raw_parts(local.add(done), chunk) };
                    memory.write_at(data, at)
                }
            };
            match moved {
                // End of an address space that is being torn down.
                Ok(0) => {
                    return if done > 0 {
                        Ok(done)
                    } else {
                        Err(Errno::ESRCH)
                    };
                }
                Ok(n) => {
                    done += n;
                    in_part += n;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(io(error)),
            }
        }
    }
    Ok(done)
}
