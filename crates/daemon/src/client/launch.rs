//! The launcher's part in a run: it finds or starts the owner of the store, starts the command, and waits.

use std::ffi::{CString, OsString};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Instant;

use goanna_monitor::observe;
use goanna_monitor::{End, ExecReport, Interception, Launched, Program, Signals, Start};
use goanna_session::trace::{self, TraceFile};
use goanna_session::{Error as SessionError, Plan, RunResult};
use goanna_syscalls::SysnoSet;
use nix::errno::Errno;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::Connection;
use super::reach::{OWNER_WAIT_MAX, STEP};
use crate::Error;
use crate::protocol::message::{Answer, Request, Run, Started};

/// Maximum number of owners that may end before they have answered.
const FAILURES_MAX: u32 = 5;

/// Shows the user the reports of a run.
#[derive(Clone, Copy)]
pub struct Messages<'a> {
    /// Shows a note.
    pub note: &'a dyn Fn(&str),
    /// Shows a failure that does not end the run.
    pub failure: &'a dyn Fn(&str),
}

/// Runs the command `argv` by `plan`, whose first mount is the store in `dir`. `trace` gets a trace of the run.
pub fn run(
    dir: &Path,
    mut plan: Plan,
    argv: Vec<OsString>,
    interception: Interception,
    messages: Messages<'_>,
    trace: Option<TraceFile>,
) -> Result<RunResult, Error> {
    let signals = goanna_monitor::block_signals().map_err(Error::Signals)?;
    for spec in &mut plan.specs {
        let source = spec.source.path_mut();
        *source = std::path::absolute(&*source).map_err(|why| SessionError::host(source, why))?;
    }
    plan.trace = trace.as_ref().map(|trace| trace.name.clone());
    let one_transaction = plan.one_transaction;
    let command = goanna_monitor::Command::here(argv)?;
    let request = Request::Run(Box::new(Run {
        plan,
        argv: command.argv.clone(),
        search: command.search,
        directory: command.directory.into_os_string(),
    }));
    let (owner, program) = find(dir, &request, trace.as_ref(), messages)?;
    let how = Start {
        interception,
        unblock: signals.of_command(),
        tracer: Some(owner.pid),
        interest: if trace.is_some() {
            observe::interest(trace::interest())
        } else {
            SysnoSet::EMPTY
        },
    };
    let mut launched = goanna_monitor::start(&program, &command.argv, &how)?;
    let pid = Pid::from_raw(launched.pid);
    let listener = launched.listener.take();
    let started = Started { pid: launched.pid };
    let fd = listener.as_ref().map(|fd| fd.as_fd());
    let sent = owner.link.send(&started, fd);
    sent.map_err(|_| Error::OwnerEnded(owner.pid))?;
    drop(listener);
    let link = Arc::clone(&owner.link);
    // The owner kills the run of a launcher that has left, and aborts its transaction.
    let end: Option<End> =
        one_transaction.then(|| -> End { Box::new(move || link.shutdown_write()) });
    let (result, report) = follow(&owner, launched, &signals, end, messages)?;
    // The kernel has reported the command's end to the tracer before, so this does not wait.
    match waitpid(pid, None) {
        // SIGCHLD is ignored here.
        Ok(_) | Err(Errno::ECHILD) => {}
        Err(errno) => return Err(SessionError::Subprocess(errno).into()),
    }
    owner.wait_for_end();
    match report.and_then(|report| goanna_monitor::not_executed(&report, &command.argv)) {
        Some(error) => Err(error.into()),
        None => Ok(result),
    }
}

/// Finds an owner that has the store open, and the program to start.
fn find(
    dir: &Path,
    request: &Request,
    trace: Option<&TraceFile>,
    messages: Messages<'_>,
) -> Result<(Connection, Program), Error> {
    let begun = Instant::now();
    let mut failures = 0;
    loop {
        let owner = Connection::present_or_new(dir)?;
        let asked = owner.ask_with(request, trace.map(|trace| trace.file.as_fd()));
        let answer = asked.and_then(|()| answer_after_notes(&owner, messages));
        match answer {
            Ok(Answer::Found {
                file,
                shadow_files,
                key,
            }) => {
                let file = CString::new(file).map_err(|_| Error::OwnerEnded(owner.pid))?;
                let program = Program {
                    file,
                    shadow_files,
                    key,
                };
                return Ok((owner, program));
            }
            Ok(Answer::Failed(report)) => {
                owner.wait_for_end();
                return Err(Error::Reported(report));
            }
            Ok(Answer::Retry) if begun.elapsed() < OWNER_WAIT_MAX => sleep(STEP),
            Ok(_) => return Err(Error::OwnerEnded(owner.pid)),
            // The owner was about to end.
            Err(_) if failures < FAILURES_MAX => failures += 1,
            Err(error) => return Err(error),
        }
    }
}

/// The next answer other than a note; shows the notes before it.
fn answer_after_notes(owner: &Connection, messages: Messages<'_>) -> Result<Answer, Error> {
    loop {
        match owner.answer()? {
            Answer::Note(text) => (messages.note)(&text),
            answer => return Ok(answer),
        }
    }
}

/// Opens the command's gate when the owner follows it, and waits for its end.
fn follow(
    owner: &Connection,
    launched: Launched,
    signals: &Signals,
    mut end: Option<End>,
    messages: Messages<'_>,
) -> Result<(RunResult, Option<ExecReport>), Error> {
    let pid = launched.pid;
    let mut waiting = Some(launched);
    let mut report = None;
    loop {
        match owner.answer()? {
            Answer::Followed => {
                signals
                    .forward_to(pid, end.take())
                    .map_err(Error::Signals)?;
                if let Some(launched) = waiting.take() {
                    // An error means that the command was killed, which the owner reports as its end.
                    report = launched.go().ok();
                }
            }
            Answer::Note(text) => (messages.note)(&text),
            Answer::Failure(text) => (messages.failure)(&text),
            Answer::Ended(result) => return Ok((result, report)),
            Answer::Failed(report) => return Err(Error::Reported(report)),
            _ => return Err(Error::OwnerEnded(owner.pid)),
        }
    }
}
