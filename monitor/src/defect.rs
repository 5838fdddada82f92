//! Panics, which are defects of the monitor. They must not end the run: the user is notified, the call that was being answered fails with
//! EIO, and the tracee continues.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use goanna_vfs::{Errno, Result};

use crate::Monitor;
use crate::table::entry;

/// Reports a panic to the user; `what` describes the work that has panicked.
pub fn report(monitor: &Monitor, what: &str, panic: &(dyn Any + Send)) {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("no reason given");
    monitor.fail.line(&format!(
        "a defect in the monitor, at {what}: {text}; the run goes on, please report it"
    ));
}

/// Describes call `nr` of thread `tid`, for [`report`].
pub fn of_call(nr: u32, tid: i32) -> String {
    match entry(nr) {
        Some(entry) => format!("{} of thread {tid}, which fails with EIO", entry.name),
        None => format!("call {nr} of thread {tid}, which fails with EIO"),
    }
}

/// Runs `f`, which answers call `nr` of thread `tid` or a part of it. EIO if it panics.
pub fn guarded<T>(
    monitor: &Monitor,
    (nr, tid): (u32, i32),
    f: impl FnOnce() -> Result<T>,
) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        report(monitor, &of_call(nr, tid), &*panic);
        Err(Errno::EIO.into())
    })
}

/// Runs `f`, which answers no call; `what` describes its work.
pub fn contained(monitor: &Monitor, what: &str, f: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(f)) {
        report(monitor, what, &*panic);
    }
}

/// Panics at the calls that `GOANNA_TEST_PANIC` names, for tests of debug builds.
#[allow(clippy::panic, reason = "the point of it; not in release builds")]
pub fn panic_if_asked(nr: u32) {
    if !cfg!(debug_assertions) {
        return;
    }
    let asked = std::env::var("GOANNA_TEST_PANIC").unwrap_or_default();
    if entry(nr).is_some_and(|entry| entry.name == asked) {
        std::panic::panic_any("asked for");
    }
}
