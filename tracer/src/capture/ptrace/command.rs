//! Starts a command under the tracer.

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use goanna_affinity::KeptThreads;
use goanna_sys::launch::{ExecReport, Launch, LaunchError, launch};
use goanna_sys::ptrace::{self, Options};
use goanna_sys::{Errno, cred};
use rustix::fs::{Access, access};

use super::Recorded;
use super::follow::Follower;
use super::mapping::Pages;
use super::ring::Rings;
use super::ring::reporter::Reporter;
use super::signals::Signals;
use super::thread::{Mode, Thread, subject};
use crate::Sink;
use crate::capture::{CaptureEnd, CaptureError, Wanted, filter};

/// Runs a command until it and its descendants have ended. Uses a seccomp filter unless `recorded` is `None`, where the kernel allows it.
pub fn run(
    command: &[OsString],
    recorded: Option<Recorded>,
    signals: Option<&Signals>,
    wanted: &Wanted,
    sink: &dyn Sink,
) -> Result<CaptureEnd, CaptureError> {
    let Some(name) = command.first() else {
        return Err(CaptureError::NotFound(OsString::new()));
    };
    let path = find(name)?;
    refuse_32_bit(name, &path)?;
    let mut launch = prepare(&path, command)?;
    launch.unblock = signals.map(Signals::of_command).unwrap_or_default();
    let is_root = cred::own_ids().uid == 0;
    // Without the no_new_privs flag, installing a filter needs a capability that even root may lack.
    let attempts = [
        (true, true, recorded.is_some() && is_root),
        (true, false, recorded.is_some()),
        (false, true, true),
    ];
    let mut refused = None;
    for (with_filter, privileges, is_tried) in attempts {
        if !is_tried {
            continue;
        }
        launch.filter_behind_gate = with_filter;
        launch.privileges = privileges;
        let recorded = recorded.filter(|_| with_filter);
        let end = std::thread::scope(|scope| {
            let mut follower = Follower::new(wanted, sink, Arc::new(AtomicBool::new(false)));
            follower.kept_threads = KeptThreads::new();
            let reporter = Box::new(move || Reporter::start(scope, wanted, sink));
            follower.rings = recorded.and_then(|recorded| Rings::new(wanted, recorded, reporter));
            let recorder = follower.rings.as_ref().map(Rings::code);
            launch.filter = match with_filter {
                true => filter::compile(&follower.stopped_calls, recorder),
                false => Vec::new(),
            };
            let report = start(&launch, with_filter, signals, &mut follower)?;
            let is_complete = follower.run()?;
            match report.filter_error() {
                Some(error) => Ok(Err(error)),
                None => end(follower, &report, name, is_complete).map(Ok),
            }
        });
        match end {
            Ok(Err(error)) => refused = Some(error),
            Ok(Ok(end)) => return Ok(end),
            Err(error) => return Err(error),
        }
    }
    Err(refused.unwrap_or(LaunchError::FilterUnsupported).into())
}

/// Starts the command and seizes it.
fn start(
    launched: &Launch,
    with_filter: bool,
    signals: Option<&Signals>,
    follower: &mut Follower<'_>,
) -> Result<ExecReport, CaptureError> {
    let launched = launch(launched)?;
    let pid = launched.pid;
    // Without a tracer, the calls that the filter stops would fail with ENOSYS.
    ptrace::seize(pid, follower.options() | Options::EXITKILL)?;
    let mode = if with_filter {
        Mode::Filtered
    } else {
        Mode::EachCall
    };
    let mut thread = Thread::new(subject(pid)?, mode);
    thread.is_starting = true;
    if mode == Mode::EachCall {
        thread.is_interrupted = ptrace::interrupt(pid).is_ok();
    }
    follower.threads.insert(pid, thread);
    if follower.wanted.wants_pages() {
        follower.pages = Some(Pages::new(with_filter));
    }
    follower.command = Some((pid, None));
    if let Some(signals) = signals {
        signals
            .forward_to(pid)
            .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?;
    }
    Ok(launched.go()?)
}

fn end(
    mut follower: Follower<'_>,
    report: &ExecReport,
    name: &OsStr,
    is_complete: bool,
) -> Result<CaptureEnd, CaptureError> {
    if !is_complete {
        // The kernel kills the tracees when the tracing thread or its process ends. Kill them here, so that the sink's error is
        // returned before.
        follower.kill_all();
    }
    follower.finish_reports();
    if let Some(error) = follower.failure {
        return Err(error.into());
    }
    match report.exec_errno() {
        Some(Errno::ENOENT) => Err(CaptureError::NotFound(name.into())),
        Some(errno) => Err(cannot_execute(name, errno.desc())),
        None => {
            let status = follower.command.and_then(|(_, status)| status);
            Ok(CaptureEnd::Ended(status.unwrap_or(0)))
        }
    }
}

fn cannot_execute(command: &OsStr, why: &str) -> CaptureError {
    CaptureError::CannotExecute {
        command: command.into(),
        why: why.into(),
    }
}

/// The file that a shell would execute for `name`.
fn find(name: &OsStr) -> Result<PathBuf, CaptureError> {
    if name.as_bytes().contains(&b'/') {
        return Ok(name.into());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut refused = None;
    for directory in env::split_paths(&path).filter(|_| !name.is_empty()) {
        let file = directory.join(name);
        if !file.is_file() {
            continue;
        }
        match access(&file, Access::EXEC_OK) {
            Ok(()) => return Ok(file),
            Err(errno) => refused = Some(Errno::from_raw(errno.raw_os_error())),
        }
    }
    Err(match refused {
        Some(errno) => cannot_execute(name, errno.desc()),
        None => CaptureError::NotFound(name.into()),
    })
}

/// Refuses a 32-bit program: its calls have other numbers and arguments.
fn refuse_32_bit(name: &OsStr, path: &Path) -> Result<(), CaptureError> {
    let mut beginning = [0; 5];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut beginning));
    if read.is_ok() && beginning == *b"\x7fELF\x01" {
        let why = "32-bit programs cannot be traced";
        return Err(cannot_execute(name, why));
    }
    Ok(())
}

fn prepare(path: &Path, command: &[OsString]) -> Result<Launch, CaptureError> {
    let c_string = |bytes: Vec<u8>| {
        CString::new(bytes)
            .map_err(|_| cannot_execute(path.as_os_str(), "a NUL byte in an argument"))
    };
    let argv = command.iter().map(|arg| c_string(arg.as_bytes().to_vec()));
    let env = env::vars_os()
        .map(|(name, value)| c_string([name.as_bytes(), b"=", value.as_bytes()].concat()));
    Ok(Launch {
        path: c_string(path.as_os_str().to_os_string().into_vec())?,
        argv: argv.collect::<Result<_, _>>()?,
        env: env.collect::<Result<_, _>>()?,
        filter: Vec::new(),
        filter_behind_gate: true,
        privileges: false,
        listener: false,
        unblock: Vec::new(),
        tracer: None,
    })
}
