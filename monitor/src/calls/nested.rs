//! The requests by which a process begins and ends a run inside of the run.

use std::sync::Arc;

use goanna_vfs::{Errno, Mount, Mounts, Result};
use nix::mount::MntFlags;
use nix::unistd::gettid;
use parking_lot::MutexGuard;

use crate::Monitor;
use crate::calls::mounting::hosted::is_open;
use crate::inprocess::mount_points::shares_mounts;
use crate::process::nested_runs::NestedRun;
use crate::process::task::credentials;

/// Begins the nested run that `request` asks for: thread `tid` is in it from now on. Returns the answer for it.
pub fn enter(monitor: &Arc<Monitor>, tid: i32, request: &[u8]) -> Result<Vec<u8>> {
    let nesting = monitor.nested.nesting.as_ref().ok_or(Errno::EOPNOTSUPP)?;
    may_enter(monitor, tid)?;
    let caller = monitor.tasks.get(tid)?.caller()?;
    let _changing = monitor.nested.changing.lock();
    let (outer, _) = monitor.mounts_of(tid);
    let reused: Vec<_> = own_mounts(monitor).collect();
    let (answer, mounts) = nesting.begin(request, &outer, &reused, &caller);
    let Some(mounts) = mounts else {
        return Ok(answer);
    };
    let is_known = |mount: &Mount| {
        let known = outer.iter().chain(&reused);
        known.into_iter().any(|other| other.number == mount.number)
    };
    let new = mounts.iter().filter(|mount| !is_known(mount));
    let new: Vec<_> = new.map(|mount| (Arc::clone(mount), false)).collect();
    let entered = begin(monitor, tid, mounts, &new);
    if entered.is_err() {
        nesting.end(&new);
    }
    Ok(entered.map(|()| answer)?)
}

/// Lets thread `tid` see `mounts`, of which those in `new` are new ones. EOPNOTSUPP; ESRCH if the thread has ended.
fn begin(
    monitor: &Arc<Monitor>,
    tid: i32,
    mounts: Mounts,
    new: &[(Arc<Mount>, bool)],
) -> Result<(), Errno> {
    if mounts.any_caches_content() && !monitor.mounts.current().any_caches_content() {
        // The filter of the run's programs lets writes and the like pass.
        return Err(Errno::EOPNOTSUPP);
    }
    monitor.attach(new.iter().map(|(mount, _)| mount));
    monitor.in_process.sees(tid, &mounts);
    let is_alive = || monitor.alive.contains(tid);
    match monitor.nested.enter(tid, mounts, is_alive) {
        true => Ok(()),
        false => Err(Errno::ESRCH),
    }
}

/// EPERM unless thread `tid` may do itself what the monitor does for it; EOPNOTSUPP if paths lead elsewhere for it.
fn may_enter(monitor: &Monitor, tid: i32) -> Result<()> {
    let own = credentials(gettid().as_raw())?;
    let its = credentials(tid)?;
    let is_equal = its.user_ns.is_none()
        && (its.uid, its.gid, &its.groups) == (own.uid, own.gid, &own.groups)
        && its.caps & own.caps == own.caps;
    if !is_equal || !monitor.outside.allows_all() {
        return Err(Errno::EPERM.into());
    }
    if !shares_mounts(tid) || monitor.root_of(tid).is_some() {
        return Err(Errno::EOPNOTSUPP.into());
    }
    Ok(())
}

/// Whether thread `tid` is in a nested run with a store of its own.
pub fn has_other_store(monitor: &Monitor, tid: i32) -> bool {
    let Some(run) = monitor.nested.of(tid) else {
        return false;
    };
    let mut runs = run.and_around();
    runs.any(|run| {
        let own = run.own_mounts(&monitor.mounts);
        own.iter().any(|mount| mount.fs.transactions().is_some())
    })
}

/// Thread `tid` leaves the nested run that it is in. Returns the answer for it when the changes in the mounts are on the disk. ENODATA.
pub fn leave(monitor: &Monitor, tid: i32) -> Result<Vec<u8>> {
    // First, so that of several runs with the same store only the last one closes it.
    let changing = monitor.nested.changing.lock();
    let left = monitor.nested.leave(tid).ok_or(Errno::ENODATA)?;
    Ok(end(monitor, &changing, left))
}

/// Ends the mounts of nested runs whose last process has ended.
pub fn end_all(monitor: &Monitor) {
    let ended = monitor.nested.take_ended();
    if ended.is_empty() {
        return;
    }
    let changing = monitor.nested.changing.lock();
    for run in ended {
        end(monitor, &changing, run);
    }
}

/// Brings the changes in the mounts of `run` to the disk, and ends those that nothing uses any more.
fn end(monitor: &Monitor, _: &MutexGuard<'_, ()>, run: Arc<NestedRun>) -> Vec<u8> {
    let Some(nesting) = &monitor.nested.nesting else {
        return Vec::new();
    };
    let is_over = !monitor.nested.has_processes(&run);
    let own = run.own_mounts(&monitor.mounts);
    if is_over {
        for mount in own.iter().filter(|mount| mount.is_made()) {
            // What fails here is tried again at the end of the whole run.
            let _ = monitor.hosted.remove(monitor, mount, MntFlags::MNT_DETACH);
        }
    }
    let of_others: Vec<_> = own_mounts(monitor).collect();
    let mut is_held = false;
    let marked = own.into_iter().filter(|mount| !mount.is_made());
    let marked: Vec<_> = marked
        .map(|mount| {
            let is_same = |other: &Arc<Mount>| other.number == mount.number;
            let is_shared = of_others.iter().any(is_same);
            let is_used = is_shared || !is_over || {
                let is_open = is_open(monitor, &mount);
                is_held |= is_open;
                is_open
            };
            if !is_used {
                monitor.shadows.forget(&mount);
            }
            (mount, is_used)
        })
        .collect();
    let answer = nesting.end(&marked);
    if is_held {
        monitor.nested.add_ended(run);
    }
    answer
}

/// The mounts of all nested runs.
fn own_mounts(monitor: &Monitor) -> impl Iterator<Item = Arc<Mount>> {
    let runs = monitor.nested.all().into_iter();
    runs.flat_map(|run| run.own_mounts(&monitor.mounts))
}
