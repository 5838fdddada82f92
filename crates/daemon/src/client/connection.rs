//! The connection to the owner of a store, which is started where there is none.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use goanna_session::Error as SessionError;
use nix::poll::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::Error;
use crate::protocol::message::{Answer, Hello, NAME, Request, VERSION};
use crate::protocol::{Link, socket};

/// How long a client waits for the end of an owner after it has closed the connection, in milliseconds.
const REAP_LIMIT: u8 = 5;

/// A connection to the owner of a store.
pub struct Connection {
    /// The connection itself.
    pub(crate) link: Arc<Link>,
    /// The owner's process id.
    pub pid: i32,
    /// The owner, if this process has started it.
    child: Option<Child>,
}

impl Connection {
    /// Connects to the owner of the store `dir`; `None` where it has none.
    pub fn present(dir: &Path) -> Result<Option<Self>, Error> {
        let fail = |why: io::Error| SessionError::host(dir, why);
        match socket::connect(dir).map_err(fail)? {
            Some(stream) => Self::accept_hello(dir, stream, None),
            None => Ok(None),
        }
    }

    /// Connects to the owner of the store `dir`, or starts one, which has not opened the store yet.
    pub(crate) fn present_or_new(dir: &Path) -> Result<Self, Error> {
        loop {
            if let Some(owner) = Self::present(dir)? {
                return Ok(owner);
            }
            let (stream, child) = start(dir).map_err(Error::NotStarted)?;
            if let Some(owner) = Self::accept_hello(dir, stream, Some(child))? {
                return Ok(owner);
            }
        }
    }

    /// Receives the owner's first message; `None` where it ends before.
    fn accept_hello(
        dir: &Path,
        stream: UnixStream,
        child: Option<Child>,
    ) -> Result<Option<Self>, Error> {
        let fail = |why: io::Error| SessionError::host(dir, why);
        let (_, uid) = socket::peer(&stream).map_err(fail)?;
        // Another user's process must not get control over the command.
        if uid != nix::unistd::geteuid().as_raw() {
            return Err(Error::OtherUser(dir.to_owned(), uid));
        }
        let link = Arc::new(Link::new(stream));
        match link.receive::<Hello>() {
            Ok(Some((Hello { version, pid }, _))) if version == VERSION => {
                Ok(Some(Self { link, pid, child }))
            }
            Ok(Some((hello, _))) => Err(Error::OtherVersion(dir.to_owned(), hello.pid)),
            Ok(None) => Ok(None),
            Err(why) => Err(fail(why).into()),
        }
    }

    /// Receives the next answer.
    pub(crate) fn answer(&self) -> Result<Answer, Error> {
        match self.link.receive() {
            Ok(Some((answer, _))) => Ok(answer),
            _ => Err(Error::OwnerEnded(self.pid)),
        }
    }

    /// Sends a request.
    pub(crate) fn ask(&self, request: &Request) -> Result<(), Error> {
        self.ask_with(request, None)
    }

    /// Sends a request with a descriptor.
    pub(crate) fn ask_with(
        &self,
        request: &Request,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(), Error> {
        let sent = self.link.send(request, fd);
        sent.map_err(|_| Error::OwnerEnded(self.pid))
    }

    /// Waits until the owner has closed the connection. If this was its last client, it has closed the store before.
    pub(crate) fn wait_for_end(mut self) {
        while let Ok(Some(_)) = self.link.receive::<Answer>() {}
        // The kernel closes its connections a moment before it can be reaped. If it cannot be reaped then, it serves other
        // clients, and the reaper of orphans gets it later.
        let Some(child) = &mut self.child else { return };
        let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
        if let Ok(process) = process {
            let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut ended, REAP_LIMIT);
        }
        let _ = child.try_wait();
    }
}

/// Starts an owner of the store `dir`. Returns the connection to it.
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
