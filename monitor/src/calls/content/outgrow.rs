//! A file that grows too large for memory while it is being written.
//!
//! Its back end moves the content to a host file, and the monitor replaces the writer's descriptor by one of that file, while
//! the writer waits for the answer to its write. That is safe when no other thread can use the old object: the writer has one
//! thread and one descriptor of the file, no mapping and no lock, and no other tracee holds it or is about to open it. Large files are nearly always
//! written so (cp, dd, tar, ld); others stay in memory until they are closed. A descriptor that is on its way through a
//! socket at this moment is not seen.

use std::collections::HashMap;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use goanna_sys::{procfs, stat};
use goanna_vfs::{Errno, Native, Result};
use nix::unistd::{Whence, lseek};
use parking_lot::Mutex;

use super::output::Output;
use crate::call::Call;
use crate::shadow::{Identity, Shadow};
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
    let alone = exclusive(call, fd, identity).unwrap_or(false);
    let exchange = || exchange(call, fd, output).unwrap_or(false);
    let exchanged = alone && call.while_in_call(exchange).unwrap_or(false);
    if exchanged {
        retry_at.remove(&identity);
    } else {
        retry_at.insert(identity, size.saturating_mul(2));
    }
    exchanged
}

/// Whether only descriptor `fd` of the caller, which has one thread, refers to the object.
fn exclusive(call: &Call<'_>, fd: i32, identity: Identity) -> Result<bool> {
    let pid = call.caller()?.pid;
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    let inode = identity.1;
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let locked = locks
        .split_ascii_whitespace()
        .any(|word| word.ends_with(&format!(":{inode}")));
    let shadow = call.monitor.shadows.find(identity);
    let claimed = shadow.is_some_and(
        |shadow| matches!(&*shadow, Shadow::File { handle, .. } if handle.is_claimed()),
    );
    if threads != 1 || locked || claimed {
        return Ok(false);
    }
    // All threads, including those that have made no call yet.
    let all = call.monitor.alive.all();
    let elsewhere = |&tid: &i32| may_map(tid, inode) || holds(tid, identity, (pid, fd));
    Ok(!all.iter().any(elsewhere))
}

/// Whether the thread may have a mapping of the object.
fn may_map(tid: i32, inode: u64) -> bool {
    match procfs::mapped_inodes(tid, &[inode]) {
        Ok(mapped) => !mapped.is_empty(),
        // It has ended.
        Err(Errno::ESRCH) => false,
        Err(_) => true,
    }
}

/// Whether the thread has a descriptor of the object other than `known`, a thread and its descriptor.
fn holds(tid: i32, identity: Identity, known: (i32, i32)) -> bool {
    let is_object = |number: &i32| {
        fs::metadata(format!("/proc/{tid}/fd/{number}"))
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == identity)
    };
    let numbers = procfs::fds(tid).unwrap_or_default();
    numbers
        .iter()
        .any(|number| (tid, *number) != known && is_object(number))
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
        return Ok(true);
    };
    let Some(opened) = content.relocate(&caller, &place.node, output.flags)? else {
        return Ok(true);
    };
    let object = opened.description.into_fd()?;
    lseek(
        &object,
        lseek(&output.ofd, 0, Whence::SeekCur)?,
        Whence::SeekSet,
    )?;
    if let Native::Reads { handle } = opened.native {
        report::relocated(call, &output.ofd, &object, &handle);
        call.monitor.shadows.register_file(place, handle)?;
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
