//! The launcher's part in a run: it finds or starts the owner of the store, starts the command, and waits.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use goanna_monitor::{End, ExecReport, Launched, Program, Signals, Start};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::link::Link;
use super::message::{Answer, Hello, Request, Run, Started, VERSION};
use super::serve::NAME;
use super::socket;
use crate::args::{Intercept, Loudness};
use crate::error::Error;
use crate::run::{Done, Plan, complain, interception, note};

/// Longest time to wait for an owner that is leaving or arriving.
const PATIENCE: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(5);
const REAP_TRIES: u32 = 5;
const FAILURES_MAX: u32 = 5;

/// A connection to the owner of a store.
pub struct Owner {
    pub link: Arc<Link>,
    pub pid: i32,
    /// It, if this process has started it.
    child: Option<Child>,
}

impl Owner {
    /// To the one that owns the store `dir` now; `None` where nobody does.
    pub fn present(dir: &Path) -> Result<Option<Self>, Error> {
        let fail = |why: io::Error| Error::host(dir, why);
        match socket::connect(dir).map_err(fail)? {
            Some(stream) => Self::greeted(dir, stream, None),
            None => Ok(None),
        }
    }

    /// To the one that owns the store `dir`, or a new one, which does not have the store yet.
    fn any(dir: &Path) -> Result<Self, Error> {
        loop {
            if let Some(owner) = Self::present(dir)? {
                return Ok(owner);
            }
            let (stream, child) = start(dir).map_err(Error::OwnerNotStarted)?;
            if let Some(owner) = Self::greeted(dir, stream, Some(child))? {
                return Ok(owner);
            }
        }
    }

    /// `None` for one that leaves before it has said anything.
    fn greeted(
        dir: &Path,
        stream: UnixStream,
        child: Option<Child>,
    ) -> Result<Option<Self>, Error> {
        let fail = |why: io::Error| Error::host(dir, why);
        let (_, uid) = socket::peer(&stream).map_err(fail)?;
        // It could do with our command as it likes.
        if uid != nix::unistd::geteuid().as_raw() {
            return Err(Error::OwnerForeign(dir.to_owned(), uid));
        }
        let link = Arc::new(Link::new(stream));
        match link.receive::<Hello>() {
            Ok(Some((Hello { version, pid }, _))) if version == VERSION => {
                Ok(Some(Self { link, pid, child }))
            }
            Ok(Some((hello, _))) => Err(Error::OwnerVersion(dir.to_owned(), hello.pid)),
            Ok(None) => Ok(None),
            Err(why) => Err(fail(why)),
        }
    }

    /// The next answer.
    pub fn answer(&self) -> Result<Answer, Error> {
        match self.link.receive() {
            Ok(Some((answer, _))) => Ok(answer),
            _ => Err(Error::OwnerGone(self.pid)),
        }
    }

    /// Asks for something.
    pub fn ask(&self, request: &Request) -> Result<(), Error> {
        let sent = self.link.send(request, None);
        sent.map_err(|_| Error::OwnerGone(self.pid))
    }

    /// Returns when it has closed the connection: if we were the last, it has closed the store before.
    pub fn wait_for_end(mut self) {
        while let Ok(Some(_)) = self.link.receive::<Answer>() {}
        // Its connections are closed a moment before it can be reaped. It serves others when it cannot be then; who takes
        // over the orphans of this process reaps it.
        for _ in 0..REAP_TRIES {
            match self.child.as_mut().map(Child::try_wait) {
                Some(Ok(None)) => sleep(Duration::from_millis(1)),
                _ => return,
            }
        }
    }
}

/// Starts an owner of the store `dir`; the connection to it.
fn start(dir: &Path) -> io::Result<(UnixStream, Child)> {
    let (ours, its) = UnixStream::pair()?;
    let program = std::env::current_exe()?;
    let child = Command::new(program)
        .arg0(NAME)
        .arg(std::path::absolute(dir)?)
        .stdin(OwnedFd::from(its))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok((ours, child))
}

/// Runs the command `argv` by `plan`, whose first mount is the store in `dir`.
pub fn run(
    dir: &Path,
    mut plan: Plan,
    argv: Vec<OsString>,
    intercept: Intercept,
    loud: Loudness,
) -> Result<Done, Error> {
    let signals = goanna_monitor::hold_signals().map_err(Error::Signals)?;
    for spec in &mut plan.specs {
        let source = spec.source.dir_mut();
        *source = std::path::absolute(&*source).map_err(|why| Error::host(source, why))?;
    }
    let whole = plan.whole;
    let command = goanna_monitor::Command::here(argv)?;
    let request = Request::Run(Box::new(Run {
        plan,
        argv: command.argv.clone(),
        search: command.search,
        directory: command.directory.into_os_string(),
    }));
    let (owner, program) = find(dir, &request, loud)?;
    let how = Start {
        interception: interception(intercept),
        unblock: signals.of_command(),
        tracer: Some(owner.pid),
    };
    let mut launched = goanna_monitor::start(&program, &command.argv, &how)?;
    let pid = Pid::from_raw(launched.pid);
    let listener = launched.listener.take();
    let started = Started { pid: launched.pid };
    let fd = listener.as_ref().map(|fd| fd.as_fd());
    let sent = owner.link.send(&started, fd);
    sent.map_err(|_| Error::OwnerGone(owner.pid))?;
    drop(listener);
    let link = Arc::clone(&owner.link);
    // The owner kills the run of a launcher that has gone, and aborts its transaction.
    let end: Option<End> = whole.then(|| -> End { Box::new(move || link.say_no_more()) });
    let (done, report) = follow(&owner, launched, &signals, end, loud)?;
    // Its end was reported to who traced it before it is to us.
    waitpid(pid, None).map_err(Error::Child)?;
    owner.wait_for_end();
    match report.and_then(|report| goanna_monitor::not_executed(&report, &command.argv)) {
        Some(error) => Err(error.into()),
        None => Ok(done),
    }
}

/// An owner that has the store open, and the program to start.
fn find(dir: &Path, request: &Request, loud: Loudness) -> Result<(Owner, Program), Error> {
    let begun = Instant::now();
    let mut failures = 0;
    loop {
        let owner = Owner::any(dir)?;
        let asked = owner.ask(request);
        let answer = asked.and_then(|()| answer_after_notes(&owner, loud));
        match answer {
            Ok(Answer::Found { file, shadow_files }) => {
                let file = CString::new(file).map_err(|_| Error::OwnerGone(owner.pid))?;
                return Ok((owner, Program { file, shadow_files }));
            }
            Ok(Answer::Failed(told)) => {
                owner.wait_for_end();
                return Err(Error::Told(told));
            }
            Ok(Answer::Again) if begun.elapsed() < PATIENCE => sleep(STEP),
            Ok(_) => return Err(Error::OwnerGone(owner.pid)),
            // It was about to leave.
            Err(_) if failures < FAILURES_MAX => failures += 1,
            Err(error) => return Err(error),
        }
    }
}

/// The next answer that is no note.
fn answer_after_notes(owner: &Owner, loud: Loudness) -> Result<Answer, Error> {
    loop {
        match owner.answer()? {
            Answer::Note(text) => note(&text, loud),
            answer => return Ok(answer),
        }
    }
}

/// Lets the command go when it is followed, and waits for its end.
fn follow(
    owner: &Owner,
    launched: Launched,
    signals: &Signals,
    mut end: Option<End>,
    loud: Loudness,
) -> Result<(Done, Option<ExecReport>), Error> {
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
                    // Killed by now: its end is reported like any other.
                    report = launched.go().ok();
                }
            }
            Answer::Note(text) => note(&text, loud),
            Answer::Complaint(text) => complain(&text),
            Answer::Ended(done) => return Ok((done, report)),
            Answer::Failed(told) => return Err(Error::Told(told)),
            _ => return Err(Error::OwnerGone(owner.pid)),
        }
    }
}
