//! The functions of `amino.h`. Each checks its pointers, copies what they lead to, and calls `amino_client`.
#![allow(
    unsafe_code,
    reason = "exported C symbols, and pointers that C callers hand over; see docs/decisions/0011"
)]

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::slice;

use amino_client::{Errno, Error, Id, Target};

use crate::text;

fn code(outcome: Result<(), Error>) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(error) => failure(error.errno()),
    }
}

fn failure(errno: Errno) -> c_int {
    -(errno as c_int)
}

/// Writes `id` with a NUL to `out`.
///
/// # Safety
///
/// `out` has space for 33 bytes.
unsafe fn write_id(id: &Id, out: *mut c_char) {
    let text = id.as_str();
    // SAFETY: an identifier has 32 bytes, and the caller vouches for 33; the two do not overlap, as `id` is ours.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len());
        out.add(text.len()).write(0);
    }
}

/// The identifier in a C string.
///
/// # Safety
///
/// `text` is NULL or a string that ends in a NUL.
unsafe fn read_id(text: *const c_char) -> Result<Id, Error> {
    if text.is_null() {
        return Err(Error::BadBuffer);
    }
    // SAFETY: not NULL, and the caller vouches for the NUL at its end.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Error::BadId)?.parse()
}

/// See `amino.h`.
///
/// # Safety
///
/// `id` is NULL or has space for 33 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amino_begin(id: *mut c_char) -> c_int {
    code(Target::Me.begin().map(|begun| {
        if !id.is_null() {
            // SAFETY: the caller vouches for the space.
            unsafe { write_id(&begun, id) };
        }
    }))
}

/// See `amino.h`.
#[unsafe(no_mangle)]
pub extern "C" fn amino_commit() -> c_int {
    code(Target::Me.commit())
}

/// See `amino.h`.
#[unsafe(no_mangle)]
pub extern "C" fn amino_abort() -> c_int {
    code(Target::Me.abort())
}

/// See `amino.h`.
///
/// # Safety
///
/// `buf` has space for `len` bytes; it may be NULL when `len` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amino_status(buf: *mut c_char, len: usize) -> c_int {
    if len == 0 {
        return length(Target::Me.status_into(&mut []));
    }
    if buf.is_null() {
        return failure(Errno::EFAULT);
    }
    // SAFETY: not NULL, and the caller vouches for `len` bytes, which may be uninitialised and so are zeroed first.
    let buf = unsafe {
        ptr::write_bytes(buf, 0, len);
        slice::from_raw_parts_mut(buf.cast::<u8>(), len)
    };
    // The last byte stays the NUL.
    let capacity = buf.len().saturating_sub(1);
    length(Target::Me.status_into(buf.get_mut(..capacity).unwrap_or_default()))
}

fn length(outcome: Result<usize, Error>) -> c_int {
    match outcome.map(c_int::try_from) {
        Ok(Ok(length)) => length,
        Ok(Err(_)) => failure(Errno::EOVERFLOW),
        Err(error) => failure(error.errno()),
    }
}

/// See `amino.h`.
///
/// # Safety
///
/// `id` is NULL or has space for 33 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amino_suspend(id: *mut c_char) -> c_int {
    // Read before the call: without the identifier no program could resume the transaction.
    if id.is_null() {
        return failure(Errno::EFAULT);
    }
    // SAFETY: not NULL, and the caller vouches for the space.
    code(
        Target::Me
            .suspend()
            .map(|suspended| unsafe { write_id(&suspended, id) }),
    )
}

/// See `amino.h`.
///
/// # Safety
///
/// `id` is NULL or a string that ends in a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amino_resume(id: *const c_char) -> c_int {
    // SAFETY: as the caller vouches.
    code(unsafe { read_id(id) }.and_then(|id| Target::Me.resume(&id)))
}

/// See `amino.h`.
///
/// # Safety
///
/// `id` is NULL or a string that ends in a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amino_attach(id: *const c_char) -> c_int {
    // SAFETY: as the caller vouches.
    code(unsafe { read_id(id) }.and_then(|id| Target::Me.attach(&id)))
}

/// See `amino.h`.
#[unsafe(no_mangle)]
pub extern "C" fn amino_detach() -> c_int {
    code(Target::Me.detach())
}

/// See `amino.h`.
#[unsafe(no_mangle)]
pub extern "C" fn amino_strerror(code: c_int) -> *const c_char {
    text::of(code).as_ptr()
}
