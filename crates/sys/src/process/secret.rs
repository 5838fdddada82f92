//! Memory for keys: locked against swapping, left out of core dumps and of forked children, and wiped when it is freed.
#![allow(
    unsafe_code,
    reason = "mmap(2), mlock(2), madvise(2) and prctl(2); a value lives in the mapping"
)]

use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, compiler_fence};

use nix::errno::Errno;

/// A value in memory of its own.
///
/// The memory is never written to swap (mlock(2)), is not in core dumps (`MADV_DONTDUMP`) and not in forked children
/// (`MADV_DONTFORK`). Dropping it drops the value, overwrites the memory with zeros and unmaps it.
#[derive(Debug)]
pub struct Locked<T> {
    value: NonNull<T>,
    len: usize,
}

// SAFETY: the value is reached only through the owner, as in a `Box`.
unsafe impl<T: Send> Send for Locked<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Locked<T> {}

impl<T> Locked<T> {
    /// Moves the result of `make` into locked memory, and overwrites the part of the stack that `make` has used, where the value was before.
    /// ENOMEM, EPERM or EAGAIN when the kernel does not lock the memory, because `RLIMIT_MEMLOCK` is too low.
    pub fn new(make: impl FnOnce() -> T) -> Result<Self, Errno> {
        const {
            assert!(align_of::<T>() <= 4096, "a mapping is aligned to pages");
        }
        let len = size_of::<T>().max(1).next_multiple_of(4096);
        // SAFETY: a new private mapping; nothing else refers to it.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        // SAFETY: the mapping was just made and has this length.
        let locked = unsafe {
            libc::mlock(start, len) == 0
                && libc::madvise(start, len, libc::MADV_DONTDUMP) == 0
                && libc::madvise(start, len, libc::MADV_DONTFORK) == 0
        };
        let value = NonNull::new(start.cast::<T>());
        match value {
            Some(value) if locked => {
                put(value, make);
                overwrite_stack();
                Ok(Self { value, len })
            }
            _ => {
                let errno = Errno::last();
                // SAFETY: as above; no value is in it.
                unsafe { libc::munmap(start, len) };
                Err(errno)
            }
        }
    }
}

/// Writes the result of `make` to `place`. A function of its own, so that its remains on the stack are below its caller's frame.
#[inline(never)]
fn put<T>(place: NonNull<T>, make: impl FnOnce() -> T) {
    // SAFETY: the only caller passes a mapping that is writable, aligned and large enough for a `T`.
    unsafe { place.as_ptr().write(make()) };
}

/// Overwrites the stack below the caller's frame, as deep as the derivation of a key goes.
#[inline(never)]
fn overwrite_stack() {
    std::hint::black_box(&mut [0_u8; 64 << 10]);
}

impl<T> Deref for Locked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the value was written by `new` and lives until `drop`.
        unsafe { self.value.as_ref() }
    }
}

impl<T> DerefMut for Locked<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`, and `self` is borrowed mutably.
        unsafe { self.value.as_mut() }
    }
}

impl<T> Drop for Locked<T> {
    fn drop(&mut self) {
        let start = self.value.as_ptr().cast::<u8>();
        // SAFETY: the value is valid, and nobody can use it after this; the mapping has `len` bytes.
        unsafe {
            ptr::drop_in_place(self.value.as_ptr());
            for at in 0..self.len {
                start.add(at).write_volatile(0);
            }
            compiler_fence(Ordering::SeqCst);
            libc::munmap(start.cast(), self.len);
        }
    }
}

/// Makes this process unreadable for other processes of its user: no ptrace(2), no `/proc/PID/mem`, no core dump. Only a
/// process with `CAP_SYS_PTRACE` may still read it.
pub fn forbid_reading() -> Result<(), Errno> {
    // SAFETY: takes numbers only.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }).map(drop)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// The lines of `/proc/self/smaps` about the mapping at `address`.
    fn flags_of(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = maps.find(&format!("{address:x}-")).unwrap();
        let rest = &maps[start..];
        let flags = rest.find("VmFlags:").unwrap();
        rest[flags..].lines().next().unwrap().to_owned()
    }

    #[test]
    fn the_memory_is_locked_and_in_no_dump_and_no_child() {
        let key = Locked::new(|| [7_u8; 32]).unwrap();
        assert_eq!(*key, [7; 32]);
        let flags = flags_of(key.value.as_ptr() as usize);
        for flag in ["lo", "dc", "dd"] {
            assert!(flags.split_whitespace().any(|it| it == flag), "{flags}");
        }
    }

    #[test]
    fn the_value_is_dropped_and_the_memory_unmapped() {
        struct SetsOnDrop<'a>(&'a std::cell::Cell<bool>);
        impl Drop for SetsOnDrop<'_> {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let dropped = std::cell::Cell::new(false);
        let locked = Locked::new(|| SetsOnDrop(&dropped)).unwrap();
        drop(locked);
        assert!(dropped.get());
    }
}
