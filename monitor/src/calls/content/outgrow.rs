//! A file that grows too large for memory while it is being written.
//!
//! Its back end moves the content to a host file, and the monitor replaces the writer's descriptor by one of that file, while
//! the writer waits for the answer to its write. That is safe when no other thread can use the old object: the writer has one
//! thread, no mapping and no lock of the file, its descriptor is the only one that processes of any run have, and none is about to open the
//! file. Large files are nearly always written so (cp, dd, tar, ld); others stay in memory until they are closed. A descriptor that is on
//! its way through a socket at this moment is not seen: writes through it fail with EIO.

use std::collections::HashMap;
use std::fs;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use goanna_sys::{procfs, stat};
use goanna_vfs::{Native, Result};
use nix::unistd::{Whence, lseek};
use parking_lot::Mutex;

use super::output::Output;
use crate::Monitor;
use crate::call::Call;
use crate::shadow::Identity;
use crate::watches::report;

/// Files whose descriptor could not be replaced, with the offset at which the monitor tries again.
#[derive(Debug, Default)]
pub struct RelocationRetries {
    retry_at: Mutex<HashMap<Identity, u64>>,
}

/// Bytes written to a file between two checks whether it has outgrown memory. The check takes a lock that other writers of
/// the file hold for long; and a file with little data takes little memory, whatever its size.
const VOLUME_TO_ASK: u64 = 256 << 10;

/// Moves a file that has outgrown memory, after a call through descriptor `fd` that may have added up to `volume` bytes of
/// content. An error leaves the file in memory, and does not change the answer to the call. Returns whether the descriptor
/// was replaced.
pub fn after_growth(call: &Call<'_>, fd: i32, output: &Output, volume: u64) -> bool {
    let before = output.volume.fetch_add(volume, Ordering::Relaxed);
    if before.saturating_add(volume) < VOLUME_TO_ASK {
        return false;
    }
    output.volume.store(0, Ordering::Relaxed);
    let place = &output.place;
    let Ok(caller) = call.caller() else {
        return false;
    };
    let content = place.mount.fs.content();
    if !content.is_some_and(|content| content.outgrown(&caller, &place.node)) {
        return false;
    }
    let Ok((dev, ino, _)) = stat::identity(output.ofd.as_fd()) else {
        return false;
    };
    let Ok(size) = lseek(&output.ofd, 0, Whence::SeekCur).map(i64::cast_unsigned) else {
        return false;
    };
    let identity = (dev, ino);
    let mut retry_at = call.monitor.relocation_retries.retry_at.lock();
    if retry_at.get(&identity).is_some_and(|&at| size < at) {
        return false;
    }
    let alone = is_single(call, ino).unwrap_or(false);
    let exchange = || exchange(call, fd, output).unwrap_or(false);
    let exchanged = alone && call.while_in_call(exchange).unwrap_or(false);
    if exchanged {
        retry_at.remove(&identity);
    } else {
        retry_at.insert(identity, size.saturating_mul(2));
    }
    exchanged
}

/// Whether the caller has one thread, which alone can use its descriptor of the object, and there is no lock of it.
fn is_single(call: &Call<'_>, inode: u64) -> Result<bool> {
    let threads = procfs::threads(call.caller()?.pid)?;
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let locked = locks
        .split_ascii_whitespace()
        .any(|word| word.ends_with(&format!(":{inode}")));
    Ok(threads.len() == 1 && !locked)
}

fn exchange(call: &Call<'_>, fd: i32, output: &Output) -> Result<bool> {
    let Some(notification) = &call.notification else {
        return Ok(false);
    };
    let _delivery = call.monitor.pause.deliveries.begin(call.task.tid);
    let cloexec = close_on_exec(call.caller()?.pid, fd);
    let place = &output.place;
    let caller = call.caller()?;
    let Some(content) = place.mount.fs.content() else {
        return Ok(false);
    };
    // Those of the call may differ.
    let flags = Monitor::writable(&output.ofd)?.1;
    let Some(opened) = content.relocate(&caller, &place.node, flags)? else {
        return Ok(false);
    };
    let object = opened.description.into_fd()?;
    lseek(
        &object,
        lseek(&output.ofd, 0, Whence::SeekCur)?,
        Whence::SeekSet,
    )?;
    if let Native::Reads { handle } = opened.native {
        report::relocated(call, &output.ofd, &object, &handle);
        call.monitor.shadows.register_file(place, handle);
    }
    let (listener, id) = notification;
    listener.install_keep(*id, object.as_fd(), cloexec, Some(fd))?;
    Ok(true)
}

fn close_on_exec(pid: i32, fd: i32) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    flags
        .and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok())
        .is_some_and(|flags| flags & libc::O_CLOEXEC != 0)
}
