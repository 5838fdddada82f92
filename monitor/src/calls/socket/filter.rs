//! The filter for programs that may have Unix sockets ([`compile_socket_filter`]). No register shows whether a connect(2) or a sendmsg(2)
//! is on a Unix socket, so all of them are stopped, but only in these programs.
//!
//! A program gets the filter before it makes its first Unix socket. The sockets that it inherits from outside of the run are
//! checked when the run starts.

use goanna_sys::ptrace::Stopped;
use goanna_sys::{inherited, procfs};
use goanna_vfs::Result;

use crate::call::Call;
use crate::ptracer::rewrite::Rewrite;
use crate::table::filter::{SocketFilter, compile_socket_filter};

/// The filter that the program must install before socket(2) or another call that may bring a Unix socket, or a filter.
///
/// A program's own filters may kill a thread that makes a call which they do not expect. So the program gets ours before it
/// installs its first one, and none if it already has filters of its own. `ours` is the number of filters that the monitor has
/// installed, without those of this module.
pub fn install(call: &Call<'_>, stopped: &Stopped, ours: u32) -> Result<Option<Rewrite>> {
    let has = SocketFilter::of_message(stopped.event_message()?.cast_unsigned());
    let wanted = wanted(call);
    if has >= Some(wanted) {
        return Ok(None);
    }
    if procfs::status(stopped.tid())?.seccomp_filters > ours + u32::from(has.is_some()) {
        return Ok(None);
    }
    Ok(Some(Rewrite::Filter(compile_socket_filter(wanted))))
}

fn wanted(call: &Call<'_>) -> SocketFilter {
    const TYPE: i32 = 0xf;
    match i64::from(call.nr) {
        libc::SYS_socket | libc::SYS_socketpair => of_type(call.int(1) & TYPE),
        // pidfd_getfd may bring any socket; and after a filter of the program, ours cannot be installed.
        _ => SocketFilter::Datagrams,
    }
}

/// SOCK_RAW is the same as SOCK_DGRAM for Unix sockets.
fn of_type(kind: i32) -> SocketFilter {
    if matches!(kind, libc::SOCK_STREAM | libc::SOCK_SEQPACKET) {
        SocketFilter::Sockets
    } else {
        SocketFilter::Datagrams
    }
}

/// The kinds of sockets that a program executed by this process inherits.
pub fn inherited() -> Option<SocketFilter> {
    let types = inherited::unix_socket_types().into_iter();
    types.map(of_type).max()
}
