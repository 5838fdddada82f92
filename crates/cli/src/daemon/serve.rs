//! `aminod`: the process that owns a store while somebody uses it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use goanna_monitor::Delegate;
use goanna_vfs::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode, umask};
use parking_lot::Mutex;

use super::link::Link;
use super::message::{Answer, Followed, Hello, Request, Run, Status, Told, VERSION};
use super::{follow, room, socket};
use crate::args::Level;
use crate::error::Error;
use crate::mounts::OpenStore;
use crate::store::{self, Create, Opening};

/// Its name: what it is started under, and what the list of processes shows.
pub const NAME: &str = "aminod";

/// How often to look whether the last client has left.
const STEP: Duration = Duration::from_millis(10);

/// Who has the store open, and who uses it.
struct Owner {
    store: OpenStore,
    begun: Instant,
    state: Mutex<State>,
    /// Wakes the main thread.
    wake: UnixStream,
}

#[derive(Default)]
struct State {
    clients: BTreeMap<u64, Served>,
    /// Connections of clients that have left.
    left: Vec<Arc<Link>>,
    next: u64,
    /// No new clients.
    leaving: bool,
}

/// A client as others know it.
struct Served {
    link: Arc<Link>,
    run: Option<(Followed, Instant, Delegate)>,
}

/// A client as its thread knows it.
pub struct Client {
    pub link: Arc<Link>,
    /// Process id.
    pub pid: i32,
    id: u64,
    owner: Arc<Owner>,
}

impl Client {
    /// Notes that it runs the command `argv`, process `pid`; `delegate` works for the processes of that run.
    pub fn runs(&self, pid: i32, argv: &[OsString], delegate: Delegate) {
        let run = Followed {
            launcher: self.pid,
            pid,
            argv: argv.to_vec(),
            seconds: 0,
        };
        if let Some(served) = self.owner.state.lock().clients.get_mut(&self.id) {
            served.run = Some((run, Instant::now(), delegate));
        }
    }

    /// What works for this client, where the client is a process of a run that is followed here.
    pub fn delegate(&self) -> Option<Delegate> {
        let state = self.owner.state.lock();
        let mut runs = state.clients.values().filter_map(|it| it.run.as_ref());
        let found = runs.find(|(.., delegate)| delegate.follows(self.pid));
        found.map(|(.., delegate)| delegate.clone())
    }

    /// Serves requests until the client has had its run, or leaves.
    fn serve(&self, mut first: Option<Run>) {
        loop {
            let request = match first.take() {
                Some(run) => Request::Run(Box::new(run)),
                None => match self.link.receive() {
                    Ok(Some((request, _))) => request,
                    _ => return,
                },
            };
            let answer = match request {
                Request::Run(run) => return follow::run(self, &self.owner.store, *run),
                Request::Attach { engine } => {
                    return room::serve(self, &self.owner.store, engine);
                }
                Request::Check => room::check(self, &self.owner.store),
                Request::Facts => room::facts(&self.owner.store, self.owner.status().runs.len()),
                Request::Status => Answer::Status(self.owner.status()),
                Request::Stop { force } => self.owner.stop(force),
            };
            let leaves = matches!(answer, Answer::Leaving);
            if self.link.send(&answer, None).is_err() || leaves {
                return;
            }
        }
    }
}

impl Owner {
    fn status(&self) -> Status {
        let state = self.state.lock();
        let runs = state.clients.values().filter_map(|client| {
            let (run, begun, _) = client.run.as_ref()?;
            Some(Followed {
                seconds: begun.elapsed().as_secs(),
                ..run.clone()
            })
        });
        Status {
            pid: std::process::id() as i32,
            seconds: self.begun.elapsed().as_secs(),
            runs: runs.collect(),
        }
    }

    fn stop(&self, force: bool) -> Answer {
        // But for who asks.
        let others = self.state.lock().clients.len().saturating_sub(1);
        if others > 0 && !force {
            let error = Error::OwnerBusy(self.store.0.clone(), others);
            return Answer::Failed(Told::from(&error));
        }
        self.leave();
        Answer::Leaving
    }

    /// Takes no new clients, and is over with those there are: what they run is killed.
    fn leave(&self) {
        let mut state = self.state.lock();
        state.leaving = true;
        for client in state.clients.values() {
            client.link.hear_no_more();
        }
        drop(state);
        self.wake();
    }

    fn wake(&self) {
        // When it is full the main thread is awake.
        let _ = (&self.wake).write(&[0]);
    }

    /// Serves a client on a thread of its own.
    fn take(self: &Arc<Self>, link: Link, pid: i32, first: Option<Run>) -> io::Result<()> {
        let link = Arc::new(link);
        let mut state = self.state.lock();
        if state.leaving {
            return Ok(());
        }
        let id = state.next;
        state.next += 1;
        let served = Served {
            link: Arc::clone(&link),
            run: None,
        };
        state.clients.insert(id, served);
        drop(state);
        let owner = Arc::clone(self);
        let leaving = Leaving(Client {
            link,
            pid,
            id,
            owner,
        });
        let serve = move || leaving.0.serve(first);
        let spawned = thread::Builder::new().name("client".into()).spawn(serve);
        spawned.map(drop)
    }
}

/// The client leaves when its thread ends, be it by a defect of ours.
struct Leaving(Client);

impl Drop for Leaving {
    fn drop(&mut self) {
        let owner = &self.0.owner;
        let mut state = owner.state.lock();
        state.clients.remove(&self.0.id);
        state.left.push(Arc::clone(&self.0.link));
        drop(state);
        owner.wake();
    }
}

/// Whether this process was started as `aminod`.
pub fn is_meant(arg0: Option<&OsStr>) -> bool {
    arg0.map(Path::new).and_then(Path::file_name) == Some(OsStr::new(NAME))
}

/// `aminod DIR`, with the first client's connection as standard input.
pub fn serve(dir: Option<OsString>) -> Result<u8, Error> {
    goanna_monitor::close_inherited().map_err(|why| Error::OwnerNotStarted(why.into()))?;
    let (Some(dir), Ok(first)) = (dir, first_client()) else {
        return Err(Error::OwnerByHand);
    };
    let dir = PathBuf::from(dir);
    detach().map_err(Error::OwnerNotStarted)?;
    log_panics(&dir);
    let signals = signals().map_err(|why| Error::Signals(why.into()))?;
    let (link, pid) = greet(first).map_err(Error::OwnerNotStarted)?;
    let Ok(Some((Request::Run(run), _))) = link.receive() else {
        return Ok(0);
    };
    let (store, listener) = match open(&dir, &run, &link) {
        Ok(Some(opened)) => opened,
        Ok(None) => {
            let _ = link.send(&Answer::Again, None);
            return Ok(0);
        }
        Err(error) => {
            let _ = link.send(&Answer::Failed(Told::from(&error)), None);
            return Ok(0);
        }
    };
    let fail = |why| Error::host(&dir, why);
    let (wake, woken) = UnixStream::pair().map_err(fail)?;
    wake.set_nonblocking(true).map_err(fail)?;
    let owner = Arc::new(Owner {
        store,
        begun: Instant::now(),
        state: Mutex::default(),
        wake,
    });
    owner.take(link, pid, Some(*run)).map_err(fail)?;
    accept(&owner, &listener, &signals, &woken);
    let _ = socket::remove(&dir);
    drop(listener);
    while !owner.state.lock().clients.is_empty() {
        sleep(STEP);
    }
    let (dir, fs) = &owner.store;
    // What clients did was brought to the disk before they were told of their end.
    store::close(dir, fs)?;
    Ok(0)
}

/// The connection that was handed over as standard input, whose place a file takes that says nothing.
fn first_client() -> io::Result<UnixStream> {
    let connection = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::net::sockopt::socket_peercred(&connection)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(UnixStream::from(connection))
}

/// Leaves the terminal, the working directory, and the limits of who started this process.
fn detach() -> io::Result<()> {
    goanna_monitor::raise_limits();
    nix::unistd::setsid()?;
    nix::unistd::chdir("/")?;
    umask(Mode::from_bits_truncate(0o077));
    nix::sys::prctl::set_name(c"aminod")?;
    Ok(())
}

/// A defect of ours is kept where somebody may look for it: there is no terminal to tell it on.
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

/// Those that ask this process to end; other signals that would end it are held.
fn signals() -> Result<SignalFd, Errno> {
    goanna_monitor::prepare().map_err(|_| Errno::EINVAL)?;
    let asked: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    SignalFd::with_flags(&asked, SfdFlags::SFD_CLOEXEC)
}

/// Says hello to whoever is at the other end; its process id. `PermissionDenied` for another user's, and for one that sees
/// other files or processes than we do.
fn greet(stream: UnixStream) -> io::Result<(Link, i32)> {
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
    if !socket::same_world(pid) {
        let told = Told::from(&Error::OwnerElsewhere(std::process::id() as i32));
        link.send(&Answer::Failed(told), None)?;
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok((link, pid))
}

/// Opens the store for the run `first`, which makes it if need be, and listens; `None` where another `aminod` has it.
fn open(dir: &Path, first: &Run, link: &Link) -> Result<Option<(OpenStore, UnixListener)>, Error> {
    let opening = Opening {
        engine: first.plan.engine,
        durability: Level::Commit,
        create: if first.plan.default_store {
            Create::WithParents
        } else {
            first.plan.create()
        },
    };
    let made = |text: &str| {
        let _ = link.send(&Answer::Note(text.to_owned()), None);
    };
    let caller = crate::caller::current();
    let fs = match store::open_or_make(dir, opening, &caller, made) {
        Err(error) if store::holder(&error).is_some_and(|name| name == NAME) => return Ok(None),
        fs => fs?,
    };
    let listener = socket::listen(dir).map_err(|why| Error::host(dir, why))?;
    Ok(Some(((dir.to_owned(), fs), listener)))
}

/// Takes clients until the last has left, or the owner is to leave.
fn accept(owner: &Arc<Owner>, listener: &UnixListener, signals: &SignalFd, mut woken: &UnixStream) {
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
            owner.leave();
        }
        if arrived && let Ok((stream, _)) = listener.accept() {
            // One that cannot be served sees its connection closed, and tries again.
            let taken = greet(stream).and_then(|(link, pid)| owner.take(link, pid, None));
            drop(taken);
        }
        if woke {
            let _ = woken.read(&mut [0; 64]);
        }
        let mut state = owner.state.lock();
        if state.leaving || state.clients.is_empty() {
            state.leaving = true;
            return;
        }
        // Somebody else uses the store: they need not wait until it is closed.
        state.left.clear();
    }
}
