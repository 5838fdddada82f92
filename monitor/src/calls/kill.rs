//! Calls by which processes of a run send each other signals. The kernel performs them. Before that, the monitor records since when the
//! receiver sleeps, because a signal without effect interrupts that sleep (`ptracer::undisturbed`). A SIGKILL is recorded for the end of the
//! run's transaction, which distinguishes it from kills by processes outside (`participants::run_end`).

use std::fs;

use goanna_sys::procfs;
use goanna_vfs::Result;
use nix::unistd::{Pid, getpgid};

use crate::call::{Answer, Call};

/// kill(2), tkill(2), tgkill(2) and similar calls.
pub fn send(call: &mut Call<'_>) -> Result<Answer> {
    let monitor = call.monitor;
    if signal(call) == libc::SIGKILL {
        if monitor.participants.is_run() {
            monitor.run_end.note_sigkill(targets(call));
        }
    } else {
        // The kernel wakes the first thread of a process, unless that thread blocks the signal.
        let of_run = |pid: &i32| monitor.alive.contains(*pid);
        let targets = targets(call).into_iter().filter(of_run);
        targets.for_each(|pid| monitor.sleeps.note(pid));
    }
    Ok(Answer::PassOn)
}

fn signal(call: &Call<'_>) -> i32 {
    match i64::from(call.nr) {
        libc::SYS_tgkill | libc::SYS_rt_tgsigqueueinfo => call.int(2),
        _ => call.int(1),
    }
}

/// prctl(2) with PR_SET_DUMPABLE, which has no effect where it would make the process unreadable for the monitor, or
/// PR_SET_PDEATHSIG.
pub fn prctl(call: &mut Call<'_>) -> Result<Answer> {
    match call.int(0) {
        libc::PR_SET_DUMPABLE if call.arg(1) == 0 => Ok(Answer::DONE),
        libc::PR_SET_PDEATHSIG if call.int(1) == libc::SIGKILL => {
            let pid = call.caller()?.pid;
            call.monitor.run_end.note_sigkill([pid]);
            Ok(Answer::PassOn)
        }
        _ => Ok(Answer::PassOn),
    }
}

/// The processes of the run that the call sends its signal to.
fn targets(call: &Call<'_>) -> Vec<i32> {
    /// pidfd_send_signal(2): to the group of the process.
    const PROCESS_GROUP: u32 = 4;
    let first = call.int(0);
    let group = |pid| getpgid(Some(Pid::from_raw(pid))).ok();
    let in_group = |wanted: Option<Pid>| {
        let mut members = call.monitor.alive.all();
        members.retain(|pid| wanted.is_some() && group(*pid) == wanted);
        members
    };
    // A thread id means its process.
    let process = |tid| procfs::status(tid).map_or(Vec::new(), |status| vec![status.tgid]);
    match (i64::from(call.nr), first) {
        (libc::SYS_kill, -1) => call.monitor.alive.all(),
        (libc::SYS_kill, 0) => in_group(group(call.task.tid)),
        (libc::SYS_kill, ..0) => in_group(first.checked_neg().map(Pid::from_raw)),
        (libc::SYS_pidfd_send_signal, _) => match behind_pidfd(call.task.tid, first) {
            Some(pid) if call.uint(3) & PROCESS_GROUP != 0 => in_group(group(pid)),
            Some(pid) => process(pid),
            None => Vec::new(),
        },
        _ => process(first),
    }
}

fn behind_pidfd(tid: i32, fd: i32) -> Option<i32> {
    let info = fs::read_to_string(format!("/proc/{tid}/fdinfo/{fd}")).ok()?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    pid.trim().parse().ok()
}
