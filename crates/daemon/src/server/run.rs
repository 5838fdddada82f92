//! A run that a client requests: `aminod` makes the mounts, follows the command, and makes its changes durable.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use goanna_monitor::{Command, Killer, Outcome, Reporter};
use goanna_session::{Environment, Error, RunResult, TraceFile, perform};
use goanna_vfs::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::clients::Client;
use crate::protocol::Link;
use crate::protocol::message::{Answer, Run, Started};

/// The interval in milliseconds at which the processes of a run that must end are killed again.
const STEP_MS: u8 = 10;

/// Follows the run that `client` requests, and answers with its result or failure. `trace` is the file for a trace of it.
pub fn follow(client: &Client, run: Run, trace: Option<OwnedFd>) {
    let answer = match perform_run(client, run, trace) {
        Ok(Some(result)) => Answer::Ended(result),
        // The launcher has disconnected.
        Ok(None) => return,
        Err(error) => client.registry.failed(error),
    };
    // The launcher may have disconnected by now.
    let _ = client.link.send(&answer, None);
}

/// The result of the run; `None` if the launcher has disconnected before the command began.
fn perform_run(
    client: &Client,
    run: Run,
    trace: Option<OwnedFd>,
) -> Result<Option<RunResult>, Error> {
    let Run {
        plan,
        argv,
        search,
        directory,
    } = run;
    let caller = goanna_monitor::credentials(client.pid);
    let caller = caller.map_err(goanna_monitor::Error::Trace)?;
    let command = Command {
        argv,
        search,
        directory: PathBuf::from(directory),
        caller: caller.clone(),
    };
    let trace = plan.trace.clone().zip(trace).map(|(name, file)| TraceFile {
        name,
        file: file.into(),
        argv: command.argv.clone(),
        directory: command.directory.clone(),
    });
    let environment = Environment {
        types: client.registry.program.types,
        owned: Some(&client.registry.store),
        caller: &caller,
        note: sender(&client.link, Answer::Note),
        fail: sender(&client.link, Answer::Failure),
        observers: Vec::new(),
        trace,
        describe: {
            let describe = client.registry.program.describe;
            Box::new(move |error| describe(&error.into()))
        },
    };
    let mut launcher_left = false;
    let result = perform(&plan, environment, |run| {
        let program = run.find(&command)?;
        let found = Answer::Found {
            file: program.file.into_bytes(),
            shadow_files: program.shadow_files,
            key: program.key,
        };
        let started = client.link.send(&found, None).ok();
        let started = started.and_then(|()| client.link.receive::<Started>().ok().flatten());
        let Some((Started { pid }, listener)) = started else {
            launcher_left = true;
            return Err(goanna_monitor::Error::Trace(Errno::EPIPE).into());
        };
        client.set_run(pid, &command.argv, run.delegate());
        let killer = run.killer();
        watched(&client.link, killer, || {
            let open = || {
                let sent = client.link.send(&Answer::Followed, None);
                sent.map_err(|_| Errno::EPIPE)
            };
            run.follow(pid, listener, open).map_err(Error::from)
        })
    });
    match result {
        Err(_) if launcher_left => Ok(None),
        result => result.map(Some),
    }
}

/// Sends lines to the launcher.
fn sender(link: &Arc<Link>, answer: impl Fn(String) -> Answer + Send + Sync + 'static) -> Reporter {
    let link = Arc::clone(link);
    Reporter::new(move |text| {
        let _ = link.send(&answer(text.to_owned()), None);
    })
}

/// Calls `follow`, which follows a run. Kills the run when the launcher disconnects.
fn watched(
    link: &Link,
    killer: Killer,
    follow: impl FnOnce() -> Result<Outcome, Error>,
) -> Result<Outcome, Error> {
    let pair = UnixStream::pair();
    let (ours, its) = pair.map_err(|why| Error::Monitor(goanna_monitor::Error::Thread(why)))?;
    thread::scope(|scope| {
        let watch = || {
            let ended = |timeout_ms| closed(&its, timeout_ms);
            if launcher_leaves(link, &its) {
                while !ended(STEP_MS) {
                    killer.kill();
                }
            }
        };
        let builder = thread::Builder::new().name("watcher".into());
        let failed = |why| Error::Monitor(goanna_monitor::Error::Thread(why));
        builder.spawn_scoped(scope, watch).map_err(failed)?;
        let outcome = follow();
        // Ends the watcher.
        drop(ours);
        outcome
    })
}

/// Waits until the launcher has disconnected (true), or the run has ended, which closes the other end of `run` (false).
fn launcher_leaves(link: &Link, run: &UnixStream) -> bool {
    loop {
        let mut fds = [link.as_fd(), run.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            // A launcher that cannot be watched may have disconnected.
            Err(_) => return true,
            Ok(_) => {}
        }
        let [launcher, run] = fds.map(|fd| fd.any().unwrap_or(false));
        if run || launcher {
            return !run;
        }
    }
}

/// Whether the other end of `stream` is closed within `timeout_ms`.
fn closed(stream: &UnixStream, timeout_ms: u8) -> bool {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(timeout_ms)).is_ok_and(|ready| ready > 0)
}
