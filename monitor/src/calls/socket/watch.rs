//! The filter for programs that may have Unix sockets ([`compile_watch`]). No register shows whether a connect(2) or a sendmsg(2)
//! is on a Unix socket, so all of them are stopped, but only in these programs.
//!
//! A program gets the filter before it makes its first Unix socket. What it inherits from outside of the run is looked at when
//! the run starts.

use goanna_sys::ptrace::Stopped;
use goanna_sys::{inherited, procfs};
use goanna_vfs::Result;

use crate::call::Call;
use crate::ptracer::rewrite::Rewrite;
use crate::table::filter::{Watch, compile_watch};

/// socket(2) and other calls that may bring a Unix socket, or a filter: what the program must install first.
///
/// The filters of a program itself may kill the thread that makes another call than they expect. So ours comes before the program's
/// first, and one that has filters of its own all the same gets none. `ours` is how many it has that are not its own, without those
/// of this module.
pub fn install(call: &Call<'_>, stopped: &Stopped, ours: u32) -> Result<Option<Rewrite>> {
    let has = Watch::of_message(stopped.event_message()?.cast_unsigned());
    let wanted = wanted(call);
    if has >= Some(wanted) {
        return Ok(None);
    }
    if procfs::status(stopped.tid())?.seccomp_filters > ours + u32::from(has.is_some()) {
        return Ok(None);
    }
    Ok(Some(Rewrite::Filter(compile_watch(wanted))))
}

fn wanted(call: &Call<'_>) -> Watch {
    const TYPE: i32 = 0xf;
    match i64::from(call.nr) {
        libc::SYS_socket | libc::SYS_socketpair => of_type(call.int(1) & TYPE),
        // pidfd_getfd may bring any; and later there may be no way to install more.
        _ => Watch::Datagrams,
    }
}

/// SOCK_RAW is the same as SOCK_DGRAM for Unix sockets.
fn of_type(kind: i32) -> Watch {
    if matches!(kind, libc::SOCK_STREAM | libc::SOCK_SEQPACKET) {
        Watch::Sockets
    } else {
        Watch::Datagrams
    }
}

/// What a program that this process executes inherits from it.
pub fn inherited() -> Option<Watch> {
    let types = inherited::unix_socket_types().into_iter();
    types.map(of_type).max()
}
