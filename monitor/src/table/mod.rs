//! The system-call table: how every call of the running kernel is treated, and why.
//!
//! It is the single source of the seccomp filter, of the dispatch of notifications, and of the output of `goanna syscalls`.

pub mod conditions;
pub mod filter;
mod rows;

use goanna_syscalls::numbers::SystemCall;
use nix::errno::Errno;

use crate::call::{Answer, Call};
use crate::calls::ioctl;
pub use conditions::*;
pub use rows::ROWS;

/// Answers a notified call.
pub type Handler = fn(&mut Call<'_>) -> goanna_vfs::Result<Answer>;

/// ioctl(2) with a request that no file system has.
pub const DEVICE_REQUEST: AnyOf = AnyOf {
    arg: 1,
    mask: ioctl::TYPE_BITS,
    values: ioctl::DEVICE_TYPES,
};

/// How a call is treated.
#[derive(Clone, Copy)]
pub enum Rule {
    /// Allowed: it runs in the kernel without the monitor.
    Allow,
    /// Allowed, and stopped before: threads that stop often are kept on the supervisor's CPU, and all must have their own CPUs while one asks for them or
    /// sets some ([`goanna_affinity::KeptThreads`]).
    Affinity,
    /// Comes to the monitor, which answers it or passes it on.
    Notify(Handler),
    /// As [`Rule::Notify`]; where all conditions hold, stopped by ptrace and answered there, so that the tracee opens an object itself.
    NotifyOrStop(&'static [Condition], Handler),
    /// As [`Rule::Notify`] when the condition holds, else allowed.
    NotifyIf(Condition, Handler),
    /// As [`Rule::NotifyIf`]; when it does not and all of the others hold, as [`Rule::Trace`].
    NotifyOrTrace(Condition, Handler, &'static [Condition]),
    /// As [`Rule::Notify`] unless the argument has one of these values; then allowed.
    NotifyUnless(AnyOf, Handler),
    /// As [`Rule::Notify`], but allowed in a run in which all mounts give programs host files: it changes the content behind a
    /// descriptor, for which the monitor is not needed then.
    Data(Handler),
    /// mmap(2). In participants of transactions each mapping of a file is stopped by ptrace; elsewhere shared ones are treated as
    /// [`Rule::Data`].
    MapFile(Handler),
    /// Allowed; in participants of transactions stopped by ptrace and answered.
    Read(Handler),
    /// As [`Rule::Read`]; where all conditions hold as [`Rule::Data`].
    ReadIf(&'static [Condition], Handler),
    /// Allowed; in programs whose transactions end with the last close of a file stopped by ptrace.
    Close,
    /// Stopped by ptrace; the event message shows whether the program has the filter of participants.
    Transaction,
    /// Stopped by ptrace, because registers must change.
    Trace,
    /// As [`Rule::Trace`] when all conditions hold, else allowed.
    TraceIf(&'static [Condition]),
    /// Allowed in programs that can have no Unix socket; in others stopped by ptrace. So only these programs pay for the names of
    /// sockets, and not all connections and messages of the network.
    TraceSockets,
    /// Allowed in programs that have never made a Unix datagram socket; in others stopped by ptrace when the condition holds.
    TraceDatagrams(Condition),
    /// Fails with this errno.
    Refuse(Errno),
}

/// One call.
pub struct Entry {
    /// Call number.
    pub nr: u32,
    /// Name, as in the kernel's table.
    pub name: &'static str,
    /// Treatment.
    pub rule: Rule,
    /// The reason, or a remark.
    pub note: &'static str,
}

const fn row(call: SystemCall, rule: Rule, note: &'static str) -> Entry {
    Entry {
        nr: call.nr,
        name: call.name,
        rule,
        note,
    }
}

impl Entry {
    /// The treatment in words: `allowed`, `answered`, `stopped`, `refused`, with the errno where there is one.
    pub fn treatment(&self) -> String {
        match self.rule {
            Rule::Allow => "allowed".into(),
            Rule::Notify(_) | Rule::NotifyOrStop(..) => "answered".into(),
            Rule::NotifyIf(..) | Rule::NotifyUnless(..) | Rule::NotifyOrTrace(..) => {
                "answered in part".into()
            }
            Rule::Data(_) => "answered for virtual files".into(),
            Rule::MapFile(_) => "answered in part for virtual files".into(),
            Rule::Read(_) => "allowed; answered in transactions".into(),
            Rule::ReadIf(..) => "allowed; answered in part, and in transactions".into(),
            Rule::Close => "allowed; stopped under profiles".into(),
            Rule::Affinity | Rule::Trace | Rule::Transaction => "stopped".into(),
            Rule::TraceIf(_) => "stopped in part".into(),
            Rule::TraceSockets => "stopped in programs with Unix sockets".into(),
            Rule::TraceDatagrams(_) => "stopped in programs with Unix datagrams".into(),
            Rule::Refuse(errno) => format!("refused {errno:?}"),
        }
    }
}

impl Rule {
    /// Whether a call with these arguments comes to the monitor as a notification, in a run with `shadow_files` or without.
    pub fn notifies(&self, args: &[u64; 6], shadow_files: bool) -> bool {
        match self {
            Self::Notify(_) => true,
            Self::NotifyOrStop(all, _) => !all.iter().all(|one| one.is_met(args)),
            Self::NotifyIf(condition, _) | Self::NotifyOrTrace(condition, ..) => {
                condition.is_met(args)
            }
            Self::NotifyUnless(any, _) => !any.is_met(args),
            Self::Data(_) => shadow_files,
            Self::MapFile(_) => shadow_files && MAP_SHARED_FILE.is_met(args),
            Self::ReadIf(all, _) => shadow_files && all.iter().all(|one| one.is_met(args)),
            _ => false,
        }
    }

    /// The handler of a call that came to the monitor.
    pub fn handler(&self) -> Option<Handler> {
        match self {
            Self::Notify(handler)
            | Self::NotifyOrStop(_, handler)
            | Self::NotifyIf(_, handler)
            | Self::NotifyOrTrace(_, handler, _)
            | Self::Data(handler)
            | Self::NotifyUnless(_, handler)
            | Self::MapFile(handler)
            | Self::Read(handler)
            | Self::ReadIf(_, handler) => Some(*handler),
            _ => None,
        }
    }
}

/// The row of call `nr`.
pub fn entry(nr: u32) -> Option<&'static Entry> {
    ROWS.binary_search_by_key(&nr, |entry| entry.nr)
        .ok()
        .and_then(|index| ROWS.get(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_without_repeats() {
        assert!(ROWS.windows(2).all(|pair| pair[0].nr < pair[1].nr));
    }

    #[test]
    fn numbers_match_the_kernel_headers() {
        for (nr, name) in [
            (libc::SYS_openat, "openat"),
            (libc::SYS_statx, "statx"),
            (libc::SYS_renameat2, "renameat2"),
            (libc::SYS_mseal, "mseal"),
        ] {
            assert_eq!(entry(nr as u32).map(|e| e.name), Some(name));
        }
    }
}
