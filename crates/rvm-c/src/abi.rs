//! The functions of `amino_rvm.h`: one recoverable memory for the process, with one heap.
#![allow(
    unsafe_code,
    reason = "exported C symbols, and results by pointer; see docs/decisions/0011"
)]

use std::alloc::Layout;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use amino_rvm::{AminoFiles, Errno, Error, Heap, NoFiles, Rvm};

/// `RVM_MEMORY_ONLY` of the header.
const MEMORY_ONLY: c_int = 1;

struct State {
    rvm: Rvm,
    heap: Option<Heap>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// Runs `body` on the process's memory. ENXIO before `rvm_init`.
fn with(body: impl FnOnce(&mut State) -> Result<c_int, Error>) -> c_int {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    match state.as_mut() {
        Some(state) => body(state).unwrap_or_else(|error| failure(error.errno())),
        None => failure(Errno::ENXIO),
    }
}

fn failure(errno: Errno) -> c_int {
    -(errno as c_int)
}

/// Makes the process's recoverable memory, with a heap of `heap_len` bytes unless that is 0.
#[unsafe(no_mangle)]
pub extern "C" fn rvm_init(flags: c_int, heap_len: usize) -> c_int {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if flags & !MEMORY_ONLY != 0 {
        return failure(Errno::EINVAL);
    }
    if state.is_some() {
        return failure(Errno::EALREADY);
    }
    match make(flags, heap_len) {
        Ok(made) => {
            *state = Some(made);
            0
        }
        Err(error) => failure(error.errno()),
    }
}

fn make(flags: c_int, heap_len: usize) -> Result<State, Error> {
    let mut rvm = if flags & MEMORY_ONLY == 0 {
        Rvm::new(AminoFiles::connect()?)?
    } else {
        Rvm::new(NoFiles)?
    };
    let heap = match heap_len {
        0 => None,
        len => Some(Heap::new(&mut rvm, len)?),
    };
    Ok(State { rvm, heap })
}

/// Begins a transaction; the depth.
#[unsafe(no_mangle)]
pub extern "C" fn rvm_begin() -> c_int {
    // At most DEPTH_MAX.
    with(|state| state.rvm.begin().map(|depth| depth as c_int))
}

/// Commits the current transaction.
#[unsafe(no_mangle)]
pub extern "C" fn rvm_commit() -> c_int {
    with(|state| state.rvm.commit().map(|()| 0))
}

/// Aborts the current transaction.
#[unsafe(no_mangle)]
pub extern "C" fn rvm_abort() -> c_int {
    with(|state| state.rvm.abort().map(|()| 0))
}

/// The number of open transactions.
#[unsafe(no_mangle)]
pub extern "C" fn rvm_depth() -> c_int {
    with(|state| Ok(state.rvm.depth() as c_int))
}

/// Maps a region, whose start it stores.
///
/// # Safety
///
/// `start` is NULL or points to space for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rvm_map(len: usize, start: *mut *mut c_void) -> c_int {
    if start.is_null() {
        return failure(Errno::EFAULT);
    }
    with(|state| {
        let region = state.rvm.map(len)?;
        let at = state.rvm.start(region)?;
        // SAFETY: not NULL, and the caller vouches for the space.
        unsafe { start.write(at.as_ptr().cast()) };
        Ok(0)
    })
}

/// Unmaps the region that starts there.
#[unsafe(no_mangle)]
pub extern "C" fn rvm_unmap(start: *mut c_void) -> c_int {
    with(|state| {
        let region = NonNull::new(start.cast())
            .and_then(|start| state.rvm.starting_at(start))
            .filter(|region| state.heap.is_none_or(|heap| heap.region() != *region));
        state.rvm.unmap(region.ok_or(Error::NoRegion)?)?;
        Ok(0)
    })
}

/// Allocates from the heap; stores the address.
///
/// # Safety
///
/// `block` is NULL or points to space for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rvm_alloc(size: usize, align: usize, block: *mut *mut c_void) -> c_int {
    if block.is_null() {
        return failure(Errno::EFAULT);
    }
    with(|state| {
        let heap = state.heap.ok_or(Error::Full)?;
        let layout = Layout::from_size_align(size, align).map_err(|_| Error::Alignment)?;
        let at = heap.alloc(&mut state.rvm, layout)?;
        // SAFETY: not NULL, and the caller vouches for the space.
        unsafe { block.write(at.as_ptr().cast()) };
        Ok(0)
    })
}

/// Frees what `rvm_alloc` gave; nothing for a null pointer.
#[unsafe(no_mangle)]
pub extern "C" fn rvm_free(block: *mut c_void) -> c_int {
    with(|state| {
        if let Some(block) = NonNull::new(block.cast()) {
            let heap = state.heap.ok_or(Error::NotAllocated)?;
            heap.free(&mut state.rvm, block)?;
        }
        Ok(0)
    })
}
