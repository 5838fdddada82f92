//! A store that another process, `aminod`, owns, as the offline commands see it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::sleep;
use std::time::{Duration, Instant};

use amino_fs::fsck::Report;
use goanna_offline::Tree;
use goanna_offline::copy::{ContentWriter, Copied, CopyError};
use goanna_offline::facts::Facts;
use goanna_vfs::{Attr, Caller, DirEntry, Errno, FileSystem, Node, Opened, Place, Result, SetAttr};
use parking_lot::Mutex;
use serde_bytes::ByteBuf;

use super::launch::Owner;
use super::message::{Answer, Request};
use super::operation::{Handle, NodeId, Operation, Outcome, PIECE, Step};
use super::serve::NAME;
use crate::args::Engine;
use crate::error::Error;
use crate::store;

/// Longest time to wait for an owner that is leaving or arriving.
const PATIENCE: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(5);

/// Reaches the store `dir`: `through` its owner where there is one, else by `open`, for this process alone. `through` answers
/// `None` where the owner has left before it answered.
pub fn reach<T>(
    dir: &Path,
    through: impl Fn(Owner) -> std::result::Result<Option<T>, Error>,
    open: impl Fn() -> std::result::Result<T, Error>,
) -> std::result::Result<T, Error> {
    let begun = Instant::now();
    loop {
        let reached = match present(dir)? {
            Some(owner) => through(owner)?,
            None => match store::patiently(&open) {
                // It has come just now, or is about to leave.
                Err(error)
                    if store::holder(&error).is_some_and(|name| name == NAME)
                        && begun.elapsed() < PATIENCE =>
                {
                    None
                }
                opened => Some(opened?),
            },
        };
        match reached {
            Some(reached) => return Ok(reached),
            None if begun.elapsed() < PATIENCE => sleep(STEP),
            None => return open(),
        }
    }
}

/// The owner of the store `dir`. Where this user may not even look, opening the store tells why.
fn present(dir: &Path) -> std::result::Result<Option<Owner>, Error> {
    match Owner::present(dir) {
        Err(Error::Host { why, .. }) if why.kind() == std::io::ErrorKind::PermissionDenied => {
            Ok(None)
        }
        present => present,
    }
}

/// What `owner` answers to `request`, which it is asked for first; `None` where it has left.
fn first(owner: &Owner, request: &Request) -> std::result::Result<Option<Answer>, Error> {
    if owner.ask(request).is_err() {
        return Ok(None);
    }
    match owner.answer() {
        Ok(Answer::Failed(told)) => Err(Error::Told(told)),
        Ok(answer) => Ok(Some(answer)),
        Err(_) => Ok(None),
    }
}

/// Leaves: returns when the owner has noticed, and, if nobody else uses the store, has closed it.
fn leave(owner: Owner) {
    owner.link.say_no_more();
    owner.wait_for_end();
}

/// Has `owner` check the store; `progress` is told the number of records read, now and then.
pub fn check(owner: Owner, progress: &dyn Fn(u64)) -> std::result::Result<Option<Report>, Error> {
    let mut answer = match first(&owner, &Request::Check)? {
        Some(answer) => answer,
        None => return Ok(None),
    };
    loop {
        match answer {
            Answer::Progress(records) => progress(records),
            Answer::Checked(report) => {
                leave(owner);
                return Ok(Some(report));
            }
            Answer::Failed(told) => return Err(Error::Told(told)),
            _ => return Err(Error::OwnerGone(owner.pid)),
        }
        answer = owner.answer()?;
    }
}

/// What the store of `owner` is and holds, the process id of `owner`, and the number of commands that it follows.
pub fn facts(owner: Owner) -> std::result::Result<Option<(Facts, i32, usize)>, Error> {
    let pid = owner.pid;
    match first(&owner, &Request::Facts)? {
        Some(Answer::Facts(facts, runs)) => {
            leave(owner);
            Ok(Some((facts, pid, runs)))
        }
        Some(_) => Err(Error::OwnerGone(pid)),
        None => Ok(None),
    }
}

/// The tree of a store that another process owns. That process judges permissions, by what the kernel says of this one.
///
/// The methods that the offline commands need are there. EIO when the owner has gone.
pub struct RemoteFs {
    owner: Owner,
    root: Node,
    /// One conversation at a time.
    talking: Mutex<()>,
    dropped: Arc<Mutex<Vec<Handle>>>,
    gone: AtomicBool,
}

/// Keeps a node at the owner. Of those that are dropped it is told with the next request.
struct Pin {
    handle: Handle,
    dropped: Arc<Mutex<Vec<Handle>>>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.dropped.lock().push(self.handle);
    }
}

fn node(dropped: &Arc<Mutex<Vec<Handle>>>, id: NodeId) -> Node {
    let pin = Pin {
        handle: id.handle,
        dropped: Arc::clone(dropped),
    };
    Node::new(id.ino, id.kind, Arc::new(pin))
}

fn handle(node: &Node) -> Result<Handle> {
    let pin = node.pin::<Pin>().ok_or(Errno::ESTALE)?;
    Ok(pin.handle)
}

fn name(name: &[u8]) -> ByteBuf {
    ByteBuf::from(name)
}

impl RemoteFs {
    /// The tree of the store that `owner` has open, which is to have been made with `engine`; `None` where it has left.
    pub fn attach(
        owner: Owner,
        engine: Option<Engine>,
    ) -> std::result::Result<Option<Arc<Self>>, Error> {
        let dropped = Arc::default();
        match first(&owner, &Request::Attach { engine })? {
            Some(Answer::Attached(root)) => Ok(Some(Arc::new(Self {
                root: node(&dropped, root),
                owner,
                talking: Mutex::default(),
                dropped,
                gone: AtomicBool::new(false),
            }))),
            Some(_) => Err(Error::OwnerGone(owner.pid)),
            None => Ok(None),
        }
    }

    /// Ends the use of the store. An error when the owner has gone meanwhile.
    pub fn close(self) -> std::result::Result<(), Error> {
        if self.gone.load(SeqCst) {
            return Err(Error::OwnerGone(self.owner.pid));
        }
        leave(self.owner);
        Ok(())
    }

    /// Makes the file `name` in `dir` with the content of `from`, which the owner reads.
    pub fn fill(
        &self,
        dir: &Node,
        name: &[u8],
        from: BorrowedFd<'_>,
        copied: &mut dyn FnMut(Copied),
    ) -> std::result::Result<Node, CopyError> {
        let _talking = self.talking.lock();
        self.say(
            Operation::Fill(handle(dir)?, ByteBuf::from(name)),
            Some(from),
        )?;
        loop {
            match self.hear()? {
                Outcome::Copied(data, holes) => copied(Copied { data, holes }),
                Outcome::Node(id) => return Ok(node(&self.dropped, id)),
                Outcome::NotCopied(reason) => return Err(reason.into()),
                _ => return Err(self.lost().into()),
            }
        }
    }

    fn ask(&self, operation: Operation) -> Result<Outcome> {
        let _talking = self.talking.lock();
        self.say(operation, None)?;
        self.hear()
    }

    fn say(&self, operation: Operation, fd: Option<BorrowedFd<'_>>) -> Result<()> {
        let forget = std::mem::take(&mut *self.dropped.lock());
        let step = Step { forget, operation };
        let said = self.owner.link.send(&step, fd);
        said.map_err(|_| self.lost())
    }

    fn hear(&self) -> Result<Outcome> {
        match self.owner.link.receive() {
            Ok(Some((Outcome::Failed(code), _))) => Err(Errno::from_raw(code)),
            Ok(Some((outcome, _))) => Ok(outcome),
            _ => Err(self.lost()),
        }
    }

    /// The owner has gone, or says what makes no sense.
    fn lost(&self) -> Errno {
        self.gone.store(true, SeqCst);
        Errno::EIO
    }

    fn read(&self, file: Handle, offset: u64, piece: &mut [u8]) -> Result<usize> {
        let _talking = self.talking.lock();
        self.say(Operation::Read(file, offset, piece.len() as u64), None)?;
        let Outcome::Data(count) = self.hear()? else {
            return Err(self.lost());
        };
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let data = piece.get_mut(..count).ok_or_else(|| self.lost())?;
        let received = self.owner.link.receive_data(data);
        received.map_err(|_| self.lost())?;
        Ok(count)
    }

    fn done(&self, operation: Operation) -> Result<()> {
        match self.ask(operation)? {
            Outcome::Done => Ok(()),
            _ => Err(self.lost()),
        }
    }

    fn node(&self, operation: Operation) -> Result<Node> {
        match self.ask(operation)? {
            Outcome::Node(id) => Ok(node(&self.dropped, id)),
            _ => Err(self.lost()),
        }
    }

    fn attr(&self, operation: Operation) -> Result<Attr> {
        match self.ask(operation)? {
            Outcome::Attr(attr) => Ok(attr),
            _ => Err(self.lost()),
        }
    }

    fn bytes(&self, operation: Operation) -> Result<Vec<u8>> {
        match self.ask(operation)? {
            Outcome::Bytes(bytes) => Ok(bytes.into_vec()),
            _ => Err(self.lost()),
        }
    }
}

/// Has the owner of the store make files with the content of host files.
pub struct RemoteWriter(pub Arc<RemoteFs>);

impl ContentWriter for RemoteWriter {
    fn write(
        &self,
        tree: &Tree,
        dir: &Place,
        name: &[u8],
        from: OwnedFd,
        copied: &mut dyn FnMut(Copied),
    ) -> std::result::Result<Place, CopyError> {
        let node = self.0.fill(&dir.node, name, from.as_fd(), copied)?;
        Ok(tree.place(node))
    }
}

impl FileSystem for RemoteFs {
    fn kind(&self) -> &'static str {
        "amino"
    }

    fn root(&self) -> Node {
        self.root.clone()
    }

    fn checks_access(&self) -> bool {
        true
    }

    fn lookup(&self, _: &Caller, dir: &Node, entry: &[u8]) -> Result<Node> {
        self.node(Operation::Lookup(handle(dir)?, name(entry)))
    }

    fn parent(&self, _: &Caller, dir: &Node) -> Result<Node> {
        self.node(Operation::Parent(handle(dir)?))
    }

    fn path(&self, _: &Caller, node: &Node) -> Result<(Vec<u8>, bool)> {
        match self.ask(Operation::Path(handle(node)?))? {
            Outcome::Path(path, removed) => Ok((path.into_vec(), removed)),
            _ => Err(self.lost()),
        }
    }

    fn getattr(&self, _: &Caller, node: &Node) -> Result<Attr> {
        self.attr(Operation::Attr(handle(node)?))
    }

    fn readlink(&self, _: &Caller, node: &Node) -> Result<Vec<u8>> {
        self.bytes(Operation::Target(handle(node)?))
    }

    fn readdir(
        &self,
        _: &Caller,
        dir: &Node,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let (dir, mut after) = (handle(dir)?, cookie);
        loop {
            let Outcome::Entries(entries, more) = self.ask(Operation::Entries(dir, after))? else {
                return Err(self.lost());
            };
            for entry in &entries {
                after = entry.cookie;
                let entry = DirEntry {
                    name: &entry.name,
                    ino: entry.ino,
                    kind: entry.kind,
                    cookie: entry.cookie,
                };
                if !sink(entry) {
                    return Ok(());
                }
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// EOPNOTSUPP: who copies reads with [`FileSystem::read_at`] and writes with [`RemoteFs::fill`].
    fn open(&self, _: &Caller, _: &Node, _: i32) -> Result<Opened> {
        Err(Errno::EOPNOTSUPP)
    }

    fn read_at(&self, _: &Caller, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let file = handle(node)?;
        let mut count = 0;
        for piece in buf.chunks_mut(PIECE) {
            let wanted = piece.len();
            let read = self.read(file, offset + count as u64, piece)?;
            count += read;
            if read < wanted {
                break;
            }
        }
        Ok(count)
    }

    fn mknod(&self, _: &Caller, dir: &Node, entry: &[u8], mode: u32, rdev: u64) -> Result<Node> {
        self.node(Operation::MakeNode(handle(dir)?, name(entry), mode, rdev))
    }

    fn mkdir(&self, _: &Caller, dir: &Node, entry: &[u8], mode: u32) -> Result<Node> {
        self.node(Operation::MakeDir(handle(dir)?, name(entry), mode))
    }

    fn symlink(&self, _: &Caller, dir: &Node, entry: &[u8], target: &[u8]) -> Result<Node> {
        self.node(Operation::MakeSymlink(
            handle(dir)?,
            name(entry),
            name(target),
        ))
    }

    fn link(&self, _: &Caller, node: &Node, dir: &Node, entry: &[u8]) -> Result<()> {
        self.done(Operation::Link(handle(node)?, handle(dir)?, name(entry)))
    }

    fn unlink(&self, _: &Caller, dir: &Node, entry: &[u8]) -> Result<()> {
        self.done(Operation::Unlink(handle(dir)?, name(entry)))
    }

    fn rmdir(&self, _: &Caller, dir: &Node, entry: &[u8]) -> Result<()> {
        self.done(Operation::RemoveDir(handle(dir)?, name(entry)))
    }

    fn sync(&self, _: Option<&Node>) -> Result<()> {
        self.done(Operation::Sync)
    }

    fn setattr(&self, _: &Caller, node: &Node, set: &SetAttr) -> Result<()> {
        self.done(Operation::Set(handle(node)?, set.clone()))
    }

    fn getxattr(&self, _: &Caller, node: &Node, attribute: &[u8]) -> Result<Vec<u8>> {
        self.bytes(Operation::Xattr(handle(node)?, name(attribute)))
    }

    fn setxattr(
        &self,
        _: &Caller,
        node: &Node,
        attribute: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        let node = handle(node)?;
        self.done(Operation::SetXattr(
            node,
            name(attribute),
            name(value),
            flags,
        ))
    }

    fn listxattr(&self, _: &Caller, node: &Node) -> Result<Vec<Vec<u8>>> {
        match self.ask(Operation::Xattrs(handle(node)?))? {
            Outcome::Names(names) => Ok(names.into_iter().map(ByteBuf::into_vec).collect()),
            _ => Err(self.lost()),
        }
    }
}
