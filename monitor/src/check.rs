//! Which of the kernel's facilities are there, and what their absence means.

use std::ffi::CString;

use goanna_sys::launch::Launch;
use goanna_sys::launch::{LaunchError, launch};
use goanna_sys::notify::Listener;
use goanna_sys::{cred, memfile, procfs, ptrace};
use goanna_syscalls::SysnoSet;
use std::os::fd::AsFd;

use crate::shadow::run_directory::RunDir;
use crate::table::filter::{Delivery, Purpose, compile};

/// One facility.
#[derive(Debug, Clone)]
pub struct Facility {
    /// Its name.
    pub name: &'static str,
    /// Whether it works here.
    pub present: bool,
    /// Whether nothing runs without it.
    pub required: bool,
    /// What it is for.
    pub purpose: &'static str,
    /// What was found, or why it does not work.
    pub detail: String,
}

fn probe(delivery: Delivery) -> Result<goanna_sys::launch::Launched, LaunchError> {
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
    let mut found = Vec::new();
    let mut add = |name, required, purpose, result: Result<String, String>| {
        let present = result.is_ok();
        let detail = result.unwrap_or_else(|why| why);
        found.push(Facility {
            name,
            present,
            required,
            purpose,
            detail,
        });
    };
    let notify = probe(Delivery::Notify);
    let wake = notify.as_ref().ok().and_then(|launched| {
        let fd = launched
            .listener
            .as_ref()?
            .as_fd()
            .try_clone_to_owned()
            .ok()?;
        Some(Listener::from_fd(fd).set_sync_wake_up(true))
    });
    add(
        "seccomp notification",
        false,
        "answers a call in one round trip; without it every call is a ptrace stop",
        notify
            .as_ref()
            .map(|_| "in use".into())
            .map_err(|error| match error {
                LaunchError::TakeListener(_) => to_allow(&error.to_string(), "pidfd_getfd"),
                error => error.to_string(),
            }),
    );
    add(
        "synchronous wake-up",
        false,
        "makes an answer about five times faster (Linux 6.6)",
        match wake {
            Some(Ok(())) => Ok("in use".into()),
            Some(Err(errno)) => Err(errno.desc().into()),
            None => Err("needs seccomp notification".into()),
        },
    );
    let stopped = match &notify {
        Ok(_) => None,
        Err(_) => Some(probe(Delivery::Stop)),
    };
    add(
        "seccomp filters",
        true,
        "select the calls that concern the monitor",
        match &stopped {
            Some(Err(error)) => Err(error.to_string()),
            _ => Ok("in use".into()),
        },
    );
    let launched = stopped.as_ref().unwrap_or(&notify);
    let seized = launched.as_ref().ok().map(|launched| {
        ptrace::seize(launched.pid, ptrace::Options::MONITOR)
            .map_err(|errno| to_allow(errno.desc(), "ptrace"))
    });
    add(
        "ptrace",
        true,
        "follows the process tree and executes programs from mounts",
        seized
            .unwrap_or(Ok(()))
            .map(|()| "PTRACE_SEIZE works".into()),
    );
    let waits = launched.as_ref().ok().map(|launched| launched.pid);
    add(
        "calls in the process",
        false,
        "answer calls that concern no mount about ten times faster",
        match (waits, RunDir::create()) {
            (Some(pid), Ok(dir)) => crate::inprocess::check(dir.path(), pid),
            (None, _) => Err("needs ptrace".into()),
            (_, Err(error)) => Err(error.to_string()),
        },
    );
    add(
        "other users",
        false,
        "serves programs that root starts and that become another user",
        may_serve_others(),
    );
    add(
        "umasks of threads",
        false,
        "let calls that create files run at the same time; without them they take turns",
        std::thread::Builder::new()
            .spawn(cred::thread_owns_fs)
            .ok()
            .and_then(|thread| thread.join().ok())
            .unwrap_or(Err(nix::errno::Errno::EAGAIN))
            .map(|()| "in use".into())
            .map_err(|errno| format!("unshare: {}", errno.desc())),
    );
    add(
        "memfd and write leases",
        true,
        "hold files in use and notice their last close",
        leases(),
    );
    add(
        "run-time directory",
        true,
        "holds backing directories, and copies of programs that are executed from mounts",
        RunDir::create()
            .map(|dir| dir.path().display().to_string())
            .map_err(|error| error.to_string()),
    );
    add(
        "yama",
        false,
        "restricts who may trace; 0 and 1 are fine, 2 needs root, 3 forbids it",
        yama(),
    );
    found
}

/// What to do where `call` has failed, for which `why` is the reason.
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
    let told_apart = !memfile::sole_opener(handle.as_fd());
    drop((made, other));
    if told_apart && memfile::sole_opener(handle.as_fd()) {
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
