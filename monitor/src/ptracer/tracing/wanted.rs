//! The arguments and the results of wait4(2) and waitid(2).

use goanna_sys::signals;
use goanna_vfs::Errno;
use nix::unistd::{Pid, getpgid};

use crate::call::Call;

/// What a wait is for.
pub(super) struct Wanted {
    pub(super) which: Which,
    /// Only for ends, or for ends, too.
    pub(super) ends: bool,
    /// The state change can be waited for again (WNOWAIT).
    pub(super) keeps: bool,
    pub(super) is_waitid: bool,
}

pub(super) enum Which {
    Any,
    Thread(i32),
    Group(i32),
}

impl Wanted {
    /// What call `nr` of thread `tid` with these arguments waits for. `None`: another call, or waitid(2) with P_PIDFD.
    pub(super) fn of((nr, args): (u32, [u64; 6]), tid: i32) -> Option<Self> {
        let group = |id: i32| {
            let of = (id == 0).then(|| Pid::from_raw(tid));
            let own = of.and_then(|tid| getpgid(Some(tid)).ok());
            Which::Group(own.map_or(id, Pid::as_raw))
        };
        let id = args[1] as i32;
        match i64::from(nr) {
            libc::SYS_wait4 => Some(Self {
                which: match args[0] as i32 {
                    -1 => Which::Any,
                    thread @ 1.. => Which::Thread(thread),
                    negative => group(negative.wrapping_neg()),
                },
                ends: true,
                keeps: false,
                is_waitid: false,
            }),
            libc::SYS_waitid => Some(Self {
                which: match args[0] as u32 {
                    libc::P_ALL => Which::Any,
                    libc::P_PID => Which::Thread(id),
                    libc::P_PGID => group(id),
                    _ => return None,
                },
                ends: args[3] as i32 & libc::WEXITED != 0,
                keeps: args[3] as i32 & libc::WNOWAIT != 0,
                is_waitid: true,
            }),
            _ => None,
        }
    }

    /// Whether it waits for thread `tid`, too.
    pub(super) fn is(&self, tid: i32) -> bool {
        match self.which {
            Which::Any => true,
            Which::Thread(wanted) => wanted == tid,
            Which::Group(group) => {
                getpgid(Some(Pid::from_raw(tid))).is_ok_and(|it| it.as_raw() == group)
            }
        }
    }
}

/// The number of the argument of wait4(2) or waitid(2) that has the options.
pub(super) fn options_of(nr: u32) -> usize {
    if i64::from(nr) == libc::SYS_wait4 {
        2
    } else {
        3
    }
}

/// Writes what a wait reports about thread `tid` with the status `raw`, and returns its result.
pub(super) fn put_status(
    call: &Call<'_>,
    wanted: &Wanted,
    (tid, raw): (i32, i32),
) -> Result<i64, Errno> {
    let usage = call.arg(if wanted.is_waitid { 4 } else { 3 });
    if usage != 0 {
        call.put(usage, &[0; size_of::<libc::rusage>()])?;
    }
    if !wanted.is_waitid {
        if call.arg(1) != 0 {
            call.put(call.arg(1), &raw.to_ne_bytes())?;
        }
        return Ok(tid.into());
    }
    if call.arg(2) != 0 {
        call.put(call.arg(2), &signals::of_child(tid, raw))?;
    }
    Ok(0)
}
