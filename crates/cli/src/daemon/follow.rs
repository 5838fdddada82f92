//! What `aminod` does in a run: it mounts, follows the command, and brings to the disk what it did.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use goanna_monitor::{Command, Killer, Outcome, Tell};
use goanna_vfs::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::link::Link;
use super::message::{Answer, Run, Started, Told};
use super::serve::Client;
use crate::error::Error;
use crate::mounts::OpenStore;
use crate::run::{Done, perform};

/// How often a run that is to end is killed, milliseconds.
const STEP_MS: u8 = 10;

/// Follows the run that `client` asks for. A failure is told to it.
pub fn run(client: &Client, store: &OpenStore, run: Run) {
    let answer = match followed(client, store, run) {
        Ok(Some(done)) => Answer::Ended(done),
        // The launcher has gone.
        Ok(None) => return,
        Err(error) => Answer::Failed(Told::from(&error)),
    };
    // It may have gone by now.
    let _ = client.link.send(&answer, None);
}

fn followed(client: &Client, store: &OpenStore, run: Run) -> Result<Option<Done>, Error> {
    let Run {
        plan,
        argv,
        search,
        directory,
    } = run;
    let who = goanna_monitor::credentials(client.pid);
    let who = who.map_err(goanna_monitor::Error::Trace)?;
    let command = Command {
        argv,
        search,
        directory: PathBuf::from(directory),
        caller: who.clone(),
    };
    let note = told(&client.link, Answer::Note);
    let fail = told(&client.link, Answer::Complaint);
    let mut gone = false;
    let done = perform(&plan, Some(store), &who, note, fail, |run| {
        let program = run.find(&command)?;
        let found = Answer::Found {
            file: program.file.into_bytes(),
            shadow_files: program.shadow_files,
        };
        let started = client.link.send(&found, None).ok();
        let started = started.and_then(|()| client.link.receive::<Started>().ok().flatten());
        let Some((Started { pid }, listener)) = started else {
            gone = true;
            return Err(Error::OwnerGone(client.pid));
        };
        client.runs(pid, &command.argv, run.delegate());
        let killer = run.killer();
        watched(&client.link, killer, || {
            let open = || {
                let told = client.link.send(&Answer::Followed, None);
                told.map_err(|_| Errno::EPIPE)
            };
            run.follow(pid, listener, open).map_err(Error::from)
        })
    });
    match done {
        Err(_) if gone => Ok(None),
        done => done.map(Some),
    }
}

fn told(link: &Arc<Link>, answer: impl Fn(String) -> Answer + Send + Sync + 'static) -> Tell {
    let link = Arc::clone(link);
    Tell::new(move |text| {
        let _ = link.send(&answer(text.to_owned()), None);
    })
}

/// Has `follow` follow a run; kills that when the launcher goes.
fn watched(
    link: &Link,
    killer: Killer,
    follow: impl FnOnce() -> Result<Outcome, Error>,
) -> Result<Outcome, Error> {
    let pair = UnixStream::pair();
    let (ours, its) = pair.map_err(|why| Error::Monitor(goanna_monitor::Error::Thread(why)))?;
    thread::scope(|scope| {
        let watch = || {
            let ended = |within| closed(&its, within);
            if launcher_goes(link, &its) {
                while !ended(STEP_MS) {
                    killer.kill();
                }
            }
        };
        let builder = thread::Builder::new().name("watcher".into());
        let failed = |why| Error::Monitor(goanna_monitor::Error::Thread(why));
        builder.spawn_scoped(scope, watch).map_err(failed)?;
        let outcome = follow();
        // The watcher sees it closed.
        drop(ours);
        outcome
    })
}

/// Returns when the launcher has gone (true) or the run has ended, which closes the other end of `run`.
fn launcher_goes(link: &Link, run: &UnixStream) -> bool {
    loop {
        let mut fds = [link.as_fd(), run.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            // A launcher that cannot be watched is one that may have gone.
            Err(_) => return true,
            Ok(_) => {}
        }
        let [launcher, run] = fds.map(|fd| fd.any().unwrap_or(false));
        if run || launcher {
            return !run;
        }
    }
}

/// Whether the other end of `stream` is closed within so many milliseconds.
fn closed(stream: &UnixStream, within: u8) -> bool {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(within)).is_ok_and(|ready| ready > 0)
}
