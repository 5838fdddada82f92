//! `aminod`: the process that owns a store while commands use it. One thread serves each client.

mod clients;
mod reports;
mod run;
mod tree;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::Duration;

use goanna_offline::check::check_open;
use goanna_offline::dump::{self, DumpError};
use goanna_offline::facts::Facts;
use goanna_session::store::{self, Create, Opening};
use goanna_session::{Durability, Error as SessionError, OpenStore, credentials};
use goanna_vfs::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode, umask};

use self::clients::{Client, Registry};
use crate::protocol::message::{Answer, Hello, NAME, Request, Run, VERSION};
use crate::protocol::{Link, socket};
use crate::{Error, Program};

/// The interval of checks whether the last client has disconnected.
const STEP: Duration = Duration::from_millis(10);

/// Whether this process was started as `aminod`.
pub fn started_as_daemon(arg0: Option<&OsStr>) -> bool {
    arg0.map(Path::new).and_then(Path::file_name) == Some(OsStr::new(NAME))
}

/// `aminod DIR`, with the first client's connection as standard input. `program` makes the reports that clients get, and has
/// the types of mounts.
pub fn serve(dir: Option<OsString>, program: Program) -> Result<(), Error> {
    goanna_monitor::close_inherited().map_err(|why| Error::NotStarted(why.into()))?;
    let (Some(dir), Ok(first)) = (dir, first_client()) else {
        return Err(Error::StartedByHand);
    };
    let dir = PathBuf::from(dir);
    detach().map_err(Error::NotStarted)?;
    log_panics(&dir);
    let signals = signals().map_err(|why| Error::Signals(why.into()))?;
    let (link, pid) = greet(first, program).map_err(Error::NotStarted)?;
    let Ok(Some((Request::Run(run), trace))) = link.receive() else {
        return Ok(());
    };
    let (store, listener) = match open(&dir, &run, &link) {
        Ok(Some(opened)) => opened,
        Ok(None) => {
            let _ = link.send(&Answer::Retry, None);
            return Ok(());
        }
        Err(error) => {
            let _ = link.send(&Answer::Failed((program.describe)(&error.into())), None);
            return Ok(());
        }
    };
    let fail = |why| SessionError::host(&dir, why);
    let (wake, woken) = UnixStream::pair().map_err(fail)?;
    wake.set_nonblocking(true).map_err(fail)?;
    let registry = Arc::new(Registry::new(store, wake, program));
    take_client(&registry, link, pid, Some((*run, trace))).map_err(fail)?;
    accept(&registry, &listener, &signals, &woken);
    let _ = socket::remove(&dir);
    drop(listener);
    while registry.has_clients() {
        sleep(STEP);
    }
    let (dir, fs) = &registry.store;
    // The changes of each run were on the disk before its client received the end.
    store::close(dir, fs)?;
    // The last clients wait until the registry is dropped.
    fs.leak_caches();
    Ok(())
}

/// Takes the connection that this process has got as standard input, and replaces it by /dev/null.
fn first_client() -> io::Result<UnixStream> {
    let connection = io::stdin().as_fd().try_clone_to_owned()?;
    socket::peer(&connection)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(UnixStream::from(connection))
}

/// Leaves the terminal, the working directory, and the limits of the process that started this one.
fn detach() -> io::Result<()> {
    goanna_monitor::raise_limits();
    nix::unistd::setsid()?;
    nix::unistd::chdir("/")?;
    umask(Mode::from_bits_truncate(0o077));
    nix::sys::prctl::set_name(c"aminod")?;
    Ok(())
}

/// Writes panics to a log in the store, because this process has no terminal.
#[expect(clippy::disallowed_methods, reason = "before the store is opened")]
fn log_panics(dir: &Path) {
    let log = dir.join("aminod.log");
    std::panic::set_hook(Box::new(move |panic| {
        let file = File::options().append(true).create(true).open(&log);
        if let Ok(mut file) = file {
            let thread = thread::current();
            let name = thread.name().unwrap_or("?").to_owned();
            let _ = writeln!(file, "{} {name}: {panic}", jiff::Zoned::now());
        }
    }));
}

/// Receives the signals that request this process's end; blocks other signals that would end it.
fn signals() -> Result<SignalFd, Errno> {
    goanna_monitor::prepare().map_err(|_| Errno::EINVAL)?;
    let asked: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    SignalFd::with_flags(&asked, SfdFlags::SFD_CLOEXEC)
}

/// Sends the first message to a client; returns its process id. `PermissionDenied` for another user's process, and for a
/// process with other namespaces or another root.
fn greet(stream: UnixStream, program: Program) -> io::Result<(Link, i32)> {
    let (pid, uid) = socket::peer(&stream)?;
    if uid != nix::unistd::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let link = Link::new(stream);
    let hello = Hello {
        version: VERSION,
        pid: std::process::id() as i32,
    };
    link.send(&hello, None)?;
    if !socket::shares_namespaces(pid) {
        let report = (program.describe)(&Error::OtherNamespaces(std::process::id() as i32));
        link.send(&Answer::Failed(report), None)?;
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok((link, pid))
}

/// Opens or makes the store for the run `first`, and listens. `None` where another `aminod` has the store.
fn open(
    dir: &Path,
    first: &Run,
    link: &Link,
) -> Result<Option<(OpenStore, UnixListener)>, SessionError> {
    let opening = Opening {
        engine: first.plan.engine,
        durability: Durability::Commit,
        create: if first.plan.default_store {
            Create::WithParents
        } else {
            first.plan.create()
        },
    };
    let made = |text: &str| {
        let _ = link.send(&Answer::Note(text.to_owned()), None);
    };
    let caller = credentials::current();
    let fs = match store::open_or_make(dir, opening, &caller, made) {
        Err(error) if store::is_owned_by(&error, NAME, dir) => return Ok(None),
        fs => fs?,
    };
    let listener = socket::listen(dir).map_err(|why| SessionError::host(dir, why))?;
    Ok(Some(((dir.to_owned(), fs), listener)))
}

/// Accepts clients until the last one has disconnected, or this process must end.
fn accept(
    registry: &Arc<Registry>,
    listener: &UnixListener,
    signals: &SignalFd,
    mut woken: &UnixStream,
) {
    loop {
        let fds = [listener.as_fd(), signals.as_fd(), woken.as_fd()];
        let mut fds = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            Err(_) => return,
            Ok(_) => {}
        }
        let [arrived, asked, woke] = fds.map(|fd| fd.any().unwrap_or(false));
        if asked {
            registry.end();
        }
        if arrived && let Ok((stream, _)) = listener.accept() {
            // A client that cannot be served sees its connection closed, and retries.
            let greeted = greet(stream, registry.program);
            let taken = greeted.and_then(|(link, pid)| take_client(registry, link, pid, None));
            drop(taken);
        }
        if woke {
            let _ = woken.read(&mut [0; 64]);
        }
        if registry.end_if_unused() {
            return;
        }
    }
}

/// Serves a client on a thread of its own, unless this process is about to end.
fn take_client(
    registry: &Arc<Registry>,
    link: Link,
    pid: i32,
    first: Option<(Run, Option<OwnedFd>)>,
) -> io::Result<()> {
    let Some(client) = registry.add(link, pid) else {
        return Ok(());
    };
    let serve = move || serve_client(&client, first);
    let spawned = thread::Builder::new().name("client".into()).spawn(serve);
    spawned.map(drop)
}

/// Serves requests of `client` until its run has ended, or it disconnects. `first` is its first request.
fn serve_client(client: &Client, mut first: Option<(Run, Option<OwnedFd>)>) {
    let registry = &client.registry;
    loop {
        let (request, fd) = match first.take() {
            Some((run, trace)) => (Request::Run(Box::new(run)), trace),
            None => match client.link.receive() {
                Ok(Some(received)) => received,
                _ => return,
            },
        };
        let answer = match request {
            Request::Run(run) => return run::follow(client, *run, fd),
            Request::Attach { engine, access } => return tree::serve(client, engine, access),
            Request::Check => check(client),
            Request::Compact => compact(registry),
            Request::Dump => dump(registry, fd),
            Request::Facts => facts(registry),
            Request::Status => Answer::Status(registry.status()),
            Request::Stop { force } => registry.stop(force),
        };
        let ends = matches!(answer, Answer::Closing);
        if client.link.send(&answer, None).is_err() || ends {
            return;
        }
    }
}

/// Checks the present state of the store, while other clients may change it.
fn check(client: &Client) -> Answer {
    let (dir, fs) = &client.registry.store;
    let progress = &mut |records| {
        // If the client has disconnected, the next answer fails.
        let _ = client.link.send(&Answer::Progress(records), None);
    };
    match check_open(fs.store(), progress) {
        Ok(report) => Answer::Checked(report),
        Err(why) => client.registry.failed(SessionError::unchecked(dir, why)),
    }
}

/// Frees the disk space of deleted data, while other clients use the store.
fn compact(registry: &Registry) -> Answer {
    let (dir, fs) = &registry.store;
    match store::compact(dir, fs) {
        Ok(()) => Answer::Compacted,
        Err(why) => registry.failed(why),
    }
}

/// Writes the present state of the store to `pipe`. A client that disconnects closes the other end.
fn dump(registry: &Registry, pipe: Option<OwnedFd>) -> Answer {
    let (dir, fs) = &registry.store;
    let dumped = match pipe {
        Some(pipe) => dump::dump(fs.store(), &mut File::from(pipe), &mut |_| {}),
        None => Err(DumpError::Write(io::ErrorKind::InvalidInput.into())),
    };
    match dumped {
        Ok(totals) => Answer::Dumped(totals.records, totals.bytes),
        Err(why) => registry.failed(Error::Dump(dir.clone(), why)),
    }
}

/// The facts about the store, and the number of commands that this process follows.
fn facts(registry: &Registry) -> Answer {
    let (dir, fs) = &registry.store;
    match Facts::of(fs.store()) {
        Ok(facts) => Answer::Facts(facts, registry.status().runs.len()),
        Err(why) => registry.failed(SessionError::store(dir, why)),
    }
}
