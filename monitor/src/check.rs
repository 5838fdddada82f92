//! `goanna check`: tries the kernel facilities that the monitor uses, and describes the effect of missing ones.

use std::ffi::CString;
use std::os::fd::AsFd;

use goanna_sys::launch::{Launch, LaunchError, Launched, launch};
use goanna_sys::notify::Listener;
use goanna_sys::{cred, memfile, procfs, ptrace};
use goanna_syscalls::SysnoSet;

use crate::shadow::run_directory::RunDir;
use crate::table::filter::{Delivery, Purpose, compile};

/// One facility.
#[derive(Debug, Clone)]
pub struct Facility {
    /// Its name.
    pub name: &'static str,
    /// Whether it works here.
    pub present: bool,
    /// Whether it is required: nothing runs without it.
    pub required: bool,
    /// Its purpose.
    pub purpose: &'static str,
    /// The result, or the reason why it does not work.
    pub detail: String,
}

/// A process that waits at its gate, with a filter that delivers calls in one of two ways.
type Probe = Result<Launched, LaunchError>;

fn probe(delivery: Delivery) -> Probe {
    launch(&Launch {
        path: CString::from(c"/proc/self/exe"),
        argv: vec![CString::from(c"probe")],
        env: Vec::new(),
        filter: compile(Purpose {
            delivery,
            shadow_files: true,
            inherited: None,
            key: None,
            interest: SysnoSet::EMPTY,
        }),
        filter_behind_gate: false,
        privileges: false,
        listener: delivery == Delivery::Notify,
        unblock: Vec::new(),
        tracer: None,
    })
}

/// Tries every facility the monitor uses, as the user it runs as.
pub fn check() -> Vec<Facility> {
    let notify = probe(Delivery::Notify);
    let stopped = notify.is_err().then(|| probe(Delivery::Stop));
    let launched = stopped.as_ref().unwrap_or(&notify);
    vec![
        facility(
            "seccomp notification",
            false,
            "answers a call in one round trip; without it every call is a ptrace stop",
            notification(&notify),
        ),
        facility(
            "synchronous wake-up",
            false,
            "makes an answer about five times faster (Linux 6.6)",
            wake_up(&notify),
        ),
        facility(
            "seccomp filters",
            true,
            "select the calls that concern the monitor",
            match &stopped {
                Some(Err(error)) => Err(error.to_string()),
                _ => Ok("in use".into()),
            },
        ),
        facility(
            "ptrace",
            true,
            "follows the process tree and executes programs from mounts",
            seizing(launched),
        ),
        facility(
            "calls in the process",
            false,
            "answer calls that concern no mount about ten times faster",
            stubs(launched),
        ),
        facility(
            "other users",
            false,
            "serves programs that root starts and that become another user",
            may_serve_others(),
        ),
        facility(
            "umasks of threads",
            false,
            "let calls that create files run at the same time; without them they take turns",
            umasks(),
        ),
        facility(
            "memfd and write leases",
            true,
            "hold files in use and notice their last close",
            leases(),
        ),
        facility(
            "run-time directory",
            true,
            "holds backing directories, and copies of programs that are executed from mounts",
            run_directory().map(|dir| dir.path().display().to_string()),
        ),
        facility(
            "yama",
            false,
            "restricts which processes may trace others; 0 and 1 are fine, 2 needs root, 3 forbids it",
            yama(),
        ),
    ]
}

/// `result`: how it is used, or why it is not there.
fn facility(
    name: &'static str,
    required: bool,
    purpose: &'static str,
    result: Result<String, String>,
) -> Facility {
    let present = result.is_ok();
    Facility {
        name,
        present,
        required,
        purpose,
        detail: result.unwrap_or_else(|why| why),
    }
}

fn notification(notify: &Probe) -> Result<String, String> {
    match notify {
        Ok(_) => Ok("in use".into()),
        Err(error @ LaunchError::TakeListener(_)) => {
            Err(to_allow(&error.to_string(), "pidfd_getfd"))
        }
        Err(error) => Err(error.to_string()),
    }
}

fn wake_up(notify: &Probe) -> Result<String, String> {
    let listener = notify.as_ref().ok();
    let listener = listener.and_then(|launched| {
        let listener = launched.listener.as_ref()?;
        listener.as_fd().try_clone_to_owned().ok()
    });
    let listener = listener.ok_or("needs seccomp notification")?;
    match Listener::from_fd(listener).set_sync_wake_up(true) {
        Ok(()) => Ok("in use".into()),
        Err(errno) => Err(errno.desc().into()),
    }
}

fn seizing(launched: &Probe) -> Result<String, String> {
    let Ok(launched) = launched else {
        // The line for filters has the reason.
        return Ok("PTRACE_SEIZE works".into());
    };
    match ptrace::seize(launched.pid, ptrace::Options::MONITOR) {
        Ok(()) => Ok("PTRACE_SEIZE works".into()),
        Err(errno) => Err(to_allow(errno.desc(), "ptrace")),
    }
}

fn stubs(launched: &Probe) -> Result<String, String> {
    let launched = launched.as_ref().map_err(|_| "needs ptrace")?;
    crate::inprocess::check(run_directory()?.path(), launched.pid)
}

fn umasks() -> Result<String, String> {
    let thread = std::thread::Builder::new().spawn(cred::thread_owns_fs);
    let outcome = thread.ok().and_then(|thread| thread.join().ok());
    match outcome.unwrap_or(Err(nix::errno::Errno::EAGAIN)) {
        Ok(()) => Ok("in use".into()),
        Err(errno) => Err(format!("unshare: {}", errno.desc())),
    }
}

fn run_directory() -> Result<RunDir, String> {
    RunDir::create().map_err(|error| error.to_string())
}

/// The user's remedy for a failure of `call`, with the reason `why`.
fn to_allow(why: &str, call: &str) -> String {
    let filtered = procfs::status(std::process::id().cast_signed())
        .is_ok_and(|status| status.seccomp == 2 && !crate::inside());
    if !filtered {
        return why.into();
    }
    format!(
        "{why}; this container's seccomp profile may refuse {call}: start it with --cap-add SYS_PTRACE, or with \
         --security-opt seccomp=FILE and a profile that allows {call}"
    )
}

fn may_serve_others() -> Result<String, String> {
    const SYS_PTRACE: u64 = 1 << 19;
    if !nix::unistd::geteuid().is_root() {
        return Ok("not for an ordinary user, who cannot become another one".into());
    }
    if cred::own_ids().cap_eff & SYS_PTRACE != 0 {
        return Ok("CAP_SYS_PTRACE".into());
    }
    Err("needs CAP_SYS_PTRACE; start a container with --cap-add SYS_PTRACE".into())
}

fn leases() -> Result<String, String> {
    let why = |errno: nix::errno::Errno| errno.desc().to_owned();
    let made = memfile::create(c"check").map_err(why)?;
    let handle = memfile::reopen(made.as_fd(), libc::O_RDONLY).map_err(why)?;
    let other = memfile::reopen(made.as_fd(), libc::O_RDWR).map_err(why)?;
    let is_distinct = !memfile::sole_opener(handle.as_fd());
    drop((made, other));
    if is_distinct && memfile::sole_opener(handle.as_fd()) {
        Ok("in use".into())
    } else {
        Err("a write lease does not tell whether a file is open elsewhere".into())
    }
}

fn yama() -> Result<String, String> {
    match std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
        Err(_) => Ok("not in this kernel".into()),
        Ok(scope) => match scope.trim() {
            scope @ ("0" | "1") => Ok(format!("ptrace_scope {scope}")),
            scope if nix::unistd::geteuid().is_root() && scope == "2" => {
                Ok("ptrace_scope 2, as root".into())
            }
            scope => Err(format!("ptrace_scope {scope}")),
        },
    }
}
