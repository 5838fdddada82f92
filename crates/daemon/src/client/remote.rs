//! The tree of a store that another process owns, as a file system.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::thread;

use goanna_offline::Tree;
use goanna_offline::copy::{ContentWriter, Copied, CopyError};
use goanna_session::Engine;
use goanna_vfs::{
    Attr, Caller, Change, DirEntry, Errno, FileId, FileSystem, Identity, Node, Opened, Place,
    Result, SetAttr, Subscriber,
};
use parking_lot::Mutex;
use serde_bytes::ByteBuf;

use super::Connection;
use super::requests::{first, leave};
use crate::Error;
use crate::protocol::Link;
use crate::protocol::message::{Access, Answer, Request};
use crate::protocol::operation::{
    Acknowledged, Handle, NodeId, Operation, PIECE_MAX, TreeAnswer, TreeRequest,
};

/// The tree of a store that another process owns. The owner checks permissions, with the credentials that the kernel reports
/// of this process.
///
/// It has the methods that the offline commands need. They fail with EIO when the owner has ended.
pub struct RemoteFs {
    owner: Connection,
    root: Node,
    /// Held from a request to its last answer.
    exchange: Mutex<()>,
    dropped: Arc<Mutex<Vec<Handle>>>,
    owner_ended: AtomicBool,
}

/// A node that the owner keeps while this value exists. The next request lists the dropped nodes.
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

fn handle(node: &Node) -> Result<Handle, Errno> {
    let pin = node.pin::<Pin>().ok_or(Errno::ESTALE)?;
    Ok(pin.handle)
}

fn name(name: &[u8]) -> ByteBuf {
    ByteBuf::from(name)
}

impl RemoteFs {
    /// The tree of the store that `owner` has open; `None` where the owner has ended. Fails if the store was made with another
    /// engine than `engine`. With [`Access::Read`] it is a snapshot of this moment, unless this process is in a transaction of
    /// the store.
    pub fn attach(
        owner: Connection,
        engine: Option<Engine>,
        access: Access,
    ) -> std::result::Result<Option<Arc<Self>>, Error> {
        let dropped = Arc::default();
        match first(&owner, &Request::Attach { engine, access })? {
            Some(Answer::Attached(root)) => Ok(Some(Arc::new(Self {
                root: node(&dropped, root),
                owner,
                exchange: Mutex::default(),
                dropped,
                owner_ended: AtomicBool::new(false),
            }))),
            Some(_) => Err(Error::OwnerEnded(owner.pid)),
            None => Ok(None),
        }
    }

    /// Ends the use of the store. Fails when the owner has ended meanwhile.
    pub fn close(self) -> std::result::Result<(), Error> {
        if self.owner_ended.load(SeqCst) {
            return Err(Error::OwnerEnded(self.owner.pid));
        }
        leave(self.owner);
        Ok(())
    }

    /// Makes the file `name` in `dir` with the content of `from`, which the owner reads.
    fn fill(
        &self,
        dir: &Node,
        name: &[u8],
        from: BorrowedFd<'_>,
        copied: &mut dyn FnMut(Copied),
    ) -> std::result::Result<Node, CopyError> {
        let _exchange = self.exchange.lock();
        self.send(
            Operation::Fill(handle(dir)?, ByteBuf::from(name)),
            Some(from),
        )?;
        loop {
            match self.receive()? {
                TreeAnswer::Copied(data, holes) => copied(Copied { data, holes }),
                TreeAnswer::Node(id) => return Ok(node(&self.dropped, id)),
                TreeAnswer::NotCopied(reason) => return Err(reason.into()),
                _ => return Err(self.lost().into()),
            }
        }
    }

    fn ask(&self, operation: Operation) -> Result<TreeAnswer, Errno> {
        self.ask_with(operation, None)
    }

    /// Sends a request with a descriptor, and receives the answer.
    fn ask_with(
        &self,
        operation: Operation,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<TreeAnswer, Errno> {
        let _exchange = self.exchange.lock();
        self.send(operation, fd)?;
        self.receive()
    }

    fn send(&self, operation: Operation, fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let forget = std::mem::take(&mut *self.dropped.lock());
        let request = TreeRequest { forget, operation };
        let sent = self.owner.link.send(&request, fd);
        sent.map_err(|_| self.lost())
    }

    fn receive(&self) -> Result<TreeAnswer, Errno> {
        match self.owner.link.receive() {
            Ok(Some((TreeAnswer::Failed(code), _))) => Err(Errno::from_raw(code)),
            Ok(Some((answer, _))) => Ok(answer),
            _ => Err(self.lost()),
        }
    }

    /// The error when the owner has ended, or has sent an unexpected answer.
    fn lost(&self) -> Errno {
        self.owner_ended.store(true, SeqCst);
        Errno::EIO
    }

    fn read(&self, file: Handle, offset: u64, piece: &mut [u8]) -> Result<usize, Errno> {
        let _exchange = self.exchange.lock();
        self.send(Operation::Read(file, offset, piece.len() as u64), None)?;
        let TreeAnswer::Data(count) = self.receive()? else {
            return Err(self.lost());
        };
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let data = piece.get_mut(..count).ok_or_else(|| self.lost())?;
        let received = self.owner.link.receive_data(data);
        received.map_err(|_| self.lost())?;
        Ok(count)
    }

    fn done(&self, operation: Operation) -> Result<(), Errno> {
        match self.ask(operation)? {
            TreeAnswer::Done => Ok(()),
            _ => Err(self.lost()),
        }
    }

    fn node(&self, operation: Operation) -> Result<Node, Errno> {
        match self.ask(operation)? {
            TreeAnswer::Node(id) => Ok(node(&self.dropped, id)),
            _ => Err(self.lost()),
        }
    }

    fn attr(&self, operation: Operation) -> Result<Attr, Errno> {
        match self.ask(operation)? {
            TreeAnswer::Attr(attr) => Ok(attr),
            _ => Err(self.lost()),
        }
    }

    fn bytes(&self, operation: Operation) -> Result<Vec<u8>, Errno> {
        match self.ask(operation)? {
            TreeAnswer::Bytes(bytes) => Ok(bytes.into_vec()),
            _ => Err(self.lost()),
        }
    }
}

/// Makes files with the content of host files, through the owner of the store.
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
        Ok(self.node(Operation::Lookup(handle(dir)?, name(entry)))?)
    }

    fn identity(&self) -> Option<&dyn Identity> {
        Some(self)
    }

    fn parent(&self, _: &Caller, dir: &Node) -> Result<Node> {
        Ok(self.node(Operation::Parent(handle(dir)?))?)
    }

    fn path(&self, _: &Caller, node: &Node) -> Result<(Vec<u8>, bool)> {
        match self.ask(Operation::Path(handle(node)?))? {
            TreeAnswer::Path(path, removed) => Ok((path.into_vec(), removed)),
            _ => Err(self.lost().into()),
        }
    }

    fn getattr(&self, _: &Caller, node: &Node) -> Result<Attr> {
        Ok(self.attr(Operation::Attr(handle(node)?))?)
    }

    fn readlink(&self, _: &Caller, node: &Node) -> Result<Vec<u8>> {
        Ok(self.bytes(Operation::Target(handle(node)?))?)
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
            let TreeAnswer::Entries(entries, more) = self.ask(Operation::Entries(dir, after))?
            else {
                return Err(self.lost().into());
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

    /// EOPNOTSUPP: copies read with [`FileSystem::read_at`] and write with [`RemoteWriter`].
    fn open(&self, _: &Caller, _: &Node, _: i32) -> Result<Opened> {
        Err(Errno::EOPNOTSUPP.into())
    }

    fn read_at(&self, _: &Caller, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let file = handle(node)?;
        let mut count = 0;
        for piece in buf.chunks_mut(PIECE_MAX) {
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
        Ok(self.node(Operation::MakeNode(handle(dir)?, name(entry), mode, rdev))?)
    }

    fn mkdir(&self, _: &Caller, dir: &Node, entry: &[u8], mode: u32) -> Result<Node> {
        Ok(self.node(Operation::MakeDir(handle(dir)?, name(entry), mode))?)
    }

    fn symlink(&self, _: &Caller, dir: &Node, entry: &[u8], target: &[u8]) -> Result<Node> {
        Ok(self.node(Operation::MakeSymlink(
            handle(dir)?,
            name(entry),
            name(target),
        ))?)
    }

    fn link(&self, _: &Caller, node: &Node, dir: &Node, entry: &[u8]) -> Result<()> {
        Ok(self.done(Operation::Link(handle(node)?, handle(dir)?, name(entry)))?)
    }

    fn unlink(&self, _: &Caller, dir: &Node, entry: &[u8]) -> Result<()> {
        Ok(self.done(Operation::Unlink(handle(dir)?, name(entry)))?)
    }

    fn rmdir(&self, _: &Caller, dir: &Node, entry: &[u8]) -> Result<()> {
        Ok(self.done(Operation::RemoveDir(handle(dir)?, name(entry)))?)
    }

    fn sync(&self, _: Option<&Node>) -> Result<()> {
        Ok(self.done(Operation::Sync)?)
    }

    fn setattr(&self, _: &Caller, node: &Node, set: &SetAttr) -> Result<()> {
        Ok(self.done(Operation::Set(handle(node)?, set.clone()))?)
    }

    fn getxattr(&self, _: &Caller, node: &Node, attribute: &[u8]) -> Result<Vec<u8>> {
        Ok(self.bytes(Operation::Xattr(handle(node)?, name(attribute)))?)
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
        Ok(self.done(Operation::SetXattr(
            node,
            name(attribute),
            name(value),
            flags,
        ))?)
    }

    fn listxattr(&self, _: &Caller, node: &Node) -> Result<Vec<Vec<u8>>> {
        match self.ask(Operation::Xattrs(handle(node)?))? {
            TreeAnswer::Names(names) => Ok(names.into_iter().map(ByteBuf::into_vec).collect()),
            _ => Err(self.lost().into()),
        }
    }
}

/// A subscription: the owner reports changes while this value exists. It waits two seconds for a subscriber; after that the
/// subscription is lost.
///
/// A subscriber must not use this value, which may be held by a change that waits for the subscriber. It may use another one of
/// the same owner.
impl Identity for RemoteFs {
    fn file_id(&self, _: &Caller, node: &Node) -> Result<FileId> {
        match self.ask(Operation::FileId(handle(node)?))? {
            TreeAnswer::FileId(id) => Ok(id),
            _ => Err(self.lost().into()),
        }
    }

    fn subscribe(&self, subscriber: Weak<dyn Subscriber>) -> Result<()> {
        let errno = |why: io::Error| Errno::from_raw(why.raw_os_error().unwrap_or(nix::libc::EIO));
        let (ours, its) = UnixStream::pair().map_err(errno)?;
        let reports = Link::new(ours);
        let receiver = thread::Builder::new().name("reports".into());
        receiver
            .spawn(move || receive_reports(&reports, &subscriber))
            .map_err(errno)?;
        match self.ask_with(Operation::Subscribe, Some(its.as_fd()))? {
            TreeAnswer::Done => Ok(()),
            _ => Err(self.lost().into()),
        }
    }
}

/// Hands reports to `subscriber`, and acknowledges each once it has returned, until the owner closes the connection or the
/// subscriber is gone.
fn receive_reports(reports: &Link, subscriber: &Weak<dyn Subscriber>) {
    while let Ok(Some((changes, _))) = reports.receive::<Vec<Change>>() {
        let Some(subscriber) = subscriber.upgrade() else {
            return;
        };
        subscriber.changed(&changes);
        if reports.send(&Acknowledged, None).is_err() {
            break;
        }
    }
    if let Some(subscriber) = subscriber.upgrade() {
        subscriber.lost();
    }
}
