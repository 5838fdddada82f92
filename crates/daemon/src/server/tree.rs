//! Serves a client that works on the tree of the store: an offline command.
//!
//! The server checks permissions, by the same rules as for programs ([`ops`]), with the client's credentials as the kernel
//! reports them. The client's user owns the directory of the store, so the client could read and change all of it without this
//! server. The check matters for processes that have dropped rights and kept the user: root without `CAP_DAC_OVERRIDE` gets
//! the same EACCES here as when it opens the store itself. Only the umask is not the client's, because copies have the modes
//! of their originals.
//!
//! A client that runs inside `amino run` on this store works in its transaction, as its system calls below the mount point do
//! ([`goanna_monitor::Delegate`]). Any other client sees the committed state: a client that only reads sees a snapshot of the
//! moment of its first request; a client that changes something sees the present state, and waits for locks.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};

use amino_fs::AminoFs;
use goanna_monitor::Delegate;
use goanna_offline::Tree;
use goanna_offline::copy::{ContentSource, Copied, write_content};
use goanna_session::{Engine, Error as SessionError, store};
use goanna_vfs::{Errno, Identity, Node, Place, Result, SetAttr, Subscriber, ops, wait_for_locks};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_bytes::ByteBuf;

use super::clients::Client;
use super::reports::Reports;
use crate::protocol::Link;
use crate::protocol::message::{Access, Answer};
use crate::protocol::operation::{
    Entry, Handle, NodeId, Operation, PIECE_MAX, TreeAnswer, TreeRequest,
};

/// Maximum number of entries in one answer.
const ENTRIES_MAX: usize = 1000;
/// Number of bytes that are copied between two answers that report the progress.
const REPORT_EVERY: u64 = 8 << 20;
/// Maximum number of subscriptions of one client.
const SUBSCRIPTIONS_MAX: usize = 16;

/// The server's state for one client.
struct TreeSession<'a> {
    link: &'a Link,
    /// The file system that `tree` shows: the store or a snapshot of it.
    fs: Arc<AminoFs>,
    tree: Tree,
    nodes: HashMap<Handle, Node>,
    next: Handle,
    buffer: Vec<u8>,
    /// Performs operations in transactions of the run that the client belongs to.
    delegate: Option<Delegate>,
    subscriptions: Vec<Reports>,
}

/// Serves `client` until it disconnects.
pub fn serve(client: &Client, engine: Option<Engine>, access: Access) {
    let (dir, fs) = &client.registry.store;
    let link = &client.link;
    if let Err(error) = store::check_engine(dir, fs, engine) {
        let _ = link.send(&client.registry.failed(error), None);
        return;
    }
    let delegate = client.delegate();
    let fs = match tree_for(client, delegate.as_ref(), access) {
        Ok(fs) => fs,
        Err(why) => {
            let error = SessionError::store(dir, why);
            let _ = link.send(&client.registry.failed(error), None);
            return;
        }
    };
    // The client has died.
    let Ok(mut caller) = goanna_monitor::credentials(client.pid) else {
        return;
    };
    caller.umask = 0;
    let waiting = Arc::clone(link);
    let mut session = TreeSession {
        link,
        tree: Tree::new(fs.clone(), caller).wait_while(move || is_waiting(&waiting)),
        fs,
        nodes: HashMap::new(),
        next: 0,
        buffer: vec![0; PIECE_MAX],
        delegate,
        subscriptions: Vec::new(),
    };
    let root = session.tree.fs().root();
    let root = session.keep(root);
    if link.send(&Answer::Attached(root), None).is_err() {
        return;
    }
    while let Ok(Some((TreeRequest { forget, operation }, fd))) = link.receive() {
        for handle in forget {
            session.nodes.remove(&handle);
        }
        let mut data = std::mem::take(&mut session.buffer);
        let done = match session.delegate.clone() {
            Some(delegate) => delegate.perform(client.pid, |txn| {
                session.tree.caller.txn = txn;
                session.answer(operation, fd, &mut data)
            }),
            None => session.answer(operation, fd, &mut data),
        };
        let answer = done.unwrap_or_else(|errno| TreeAnswer::Failed(errno as i32));
        let count = match answer {
            TreeAnswer::Data(count) => usize::try_from(count).unwrap_or(0),
            _ => 0,
        };
        let sent = link.send_data(&answer, data.get(..count).unwrap_or_default());
        if sent.is_err() {
            return;
        }
        session.buffer = data;
    }
}

/// The file system that `client` works on. In a transaction it is the store itself: locks keep the read data unchanged.
fn tree_for(
    client: &Client,
    delegate: Option<&Delegate>,
    access: Access,
) -> std::result::Result<Arc<AminoFs>, amino_fs::Error> {
    let (_, fs) = &client.registry.store;
    let in_transaction = delegate.is_some_and(|delegate| {
        let transaction = delegate.perform(client.pid, Ok);
        transaction.is_ok_and(|txn| txn.is_some())
    });
    match access {
        Access::Read if !in_transaction => fs.snapshot(),
        _ => Ok(Arc::clone(fs)),
    }
}

/// Whether the client still waits for its answer: it neither sends nor closes the connection meanwhile.
fn is_waiting(link: &Link) -> bool {
    let mut fds = [PollFd::new(link.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO) == Ok(0)
}

impl TreeSession<'_> {
    fn keep(&mut self, node: Node) -> NodeId {
        let id = NodeId {
            handle: self.next,
            ino: node.ino(),
            kind: node.kind(),
        };
        self.next += 1;
        self.nodes.insert(id.handle, node);
        id
    }

    fn place(&self, handle: Handle) -> Result<Place, Errno> {
        let node = self.nodes.get(&handle).ok_or(Errno::ESTALE)?;
        Ok(self.tree.place(node.clone()))
    }

    /// Performs `operation`; data that it reads goes to `buffer`.
    fn answer(
        &mut self,
        operation: Operation,
        fd: Option<OwnedFd>,
        buffer: &mut [u8],
    ) -> Result<TreeAnswer, Errno> {
        match operation {
            Operation::Fill(dir, name) => {
                let source = fd.map(|fd| self.source(fd)).transpose()?;
                Ok(self.fill(dir, &name, source))
            }
            Operation::Subscribe => self.subscribe(fd.ok_or(Errno::EBADF)?),
            Operation::Read(file, offset, length) => self.read(file, offset, length, buffer),
            operation => self.perform(&operation),
        }
    }

    /// Reports all changes from now on to the client, by the socket `fd`.
    fn subscribe(&mut self, fd: OwnedFd) -> Result<TreeAnswer, Errno> {
        self.subscriptions.retain(|reports| !reports.is_lost());
        if self.subscriptions.len() >= SUBSCRIPTIONS_MAX {
            return Err(Errno::ENOSPC);
        }
        let reports = Reports::to(Link::new(UnixStream::from(fd)));
        let reports = reports
            .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO)))?;
        let subscriber: Weak<dyn Subscriber> = Arc::downgrade(&reports.subscriber());
        self.tree
            .retry_while_locked(|| self.fs.subscribe(subscriber.clone()))?;
        self.subscriptions.push(reports);
        Ok(TreeAnswer::Done)
    }

    /// Performs `operation`, and retries it while another transaction holds a lock that it needs.
    fn perform(&mut self, operation: &Operation) -> Result<TreeAnswer, Errno> {
        let made = self.tree.retry_while_locked(|| self.attempt(operation))?;
        Ok(match made {
            Performed::Node(node) => TreeAnswer::Node(self.keep(node)),
            Performed::Answer(answer) => answer,
        })
    }

    fn attempt(&self, operation: &Operation) -> Result<Performed> {
        let (caller, fs) = (&self.tree.caller, self.tree.fs());
        let answer = match operation {
            Operation::Lookup(dir, name) => {
                return ops::lookup(caller, &self.place(*dir)?, checked(name)?)
                    .map(Performed::Node);
            }
            Operation::Parent(dir) => {
                let dir = self.place(*dir)?;
                ops::may_search(caller, &dir)?;
                return fs.parent(caller, &dir.node).map(Performed::Node);
            }
            Operation::Path(node) => {
                let (path, removed) = fs.path(caller, &self.place(*node)?.node)?;
                TreeAnswer::Path(ByteBuf::from(path), removed)
            }
            Operation::Attr(node) => {
                TreeAnswer::Attr(fs.getattr(caller, &self.place(*node)?.node)?)
            }
            Operation::Target(node) => {
                TreeAnswer::Bytes(fs.readlink(caller, &self.place(*node)?.node)?.into())
            }
            Operation::Entries(dir, after) => self.entries(*dir, *after)?,
            Operation::FileId(node) => {
                TreeAnswer::FileId(self.fs.file_id(caller, &self.place(*node)?.node)?)
            }
            Operation::Xattr(node, name) => {
                TreeAnswer::Bytes(ops::getxattr(caller, &self.place(*node)?, name)?.into())
            }
            Operation::Xattrs(node) => {
                let names = ops::listxattr(caller, &self.place(*node)?)?;
                TreeAnswer::Names(names.into_iter().map(ByteBuf::from).collect())
            }
            operation => return self.change(operation),
        };
        Ok(Performed::Answer(answer))
    }

    /// Performs an operation that changes something.
    fn change(&self, operation: &Operation) -> Result<Performed> {
        let caller = &self.tree.caller;
        let dir_and_name = |dir: &Handle, name| Ok::<_, Errno>((self.place(*dir)?, checked(name)?));
        match operation {
            Operation::MakeNode(dir, name, mode, rdev) => {
                let (dir, name) = dir_and_name(dir, name)?;
                return ops::mknod(caller, &dir, name, *mode, *rdev).map(Performed::Node);
            }
            Operation::MakeDir(dir, name, mode) => {
                let (dir, name) = dir_and_name(dir, name)?;
                return ops::mkdir(caller, &dir, name, *mode).map(Performed::Node);
            }
            Operation::MakeSymlink(dir, name, target) => {
                let (dir, name) = dir_and_name(dir, name)?;
                return ops::symlink(caller, &dir, name, target).map(Performed::Node);
            }
            Operation::Link(node, dir, name) => {
                let (dir, name) = dir_and_name(dir, name)?;
                ops::link(caller, &self.place(*node)?, &dir, name)?;
            }
            Operation::Unlink(dir, name) => {
                let (dir, name) = dir_and_name(dir, name)?;
                ops::unlink(caller, &dir, name)?;
            }
            Operation::RemoveDir(dir, name) => {
                let (dir, name) = dir_and_name(dir, name)?;
                ops::rmdir(caller, &dir, name)?;
            }
            Operation::Set(node, set) => self.set(&self.place(*node)?, set)?,
            Operation::SetXattr(node, name, value, flags) => {
                ops::setxattr(caller, &self.place(*node)?, name, value, *flags)?;
            }
            // The changes of a transaction reach the disk with its commit.
            Operation::Sync if caller.txn.is_some() => {}
            Operation::Sync => self.tree.fs().sync(None)?,
            _ => return Err(Errno::ENOSYS.into()),
        }
        Ok(Performed::Answer(TreeAnswer::Done))
    }

    /// Performs the system calls that `set` stands for, each of which has its own rules.
    fn set(&self, place: &Place, set: &SetAttr) -> Result<()> {
        let caller = &self.tree.caller;
        if set.uid.is_some() || set.gid.is_some() {
            ops::chown(caller, place, set.uid, set.gid)?;
        }
        if let Some(mode) = set.mode {
            ops::chmod(caller, place, mode)?;
        }
        ops::utimens(caller, place, set.atime, set.mtime)
    }

    /// Reads into `buffer`.
    fn read(
        &self,
        file: Handle,
        offset: u64,
        length: u64,
        buffer: &mut [u8],
    ) -> Result<TreeAnswer, Errno> {
        let file = self.place(file)?;
        let length = usize::try_from(length)
            .unwrap_or(PIECE_MAX)
            .min(buffer.len());
        let buffer = buffer.get_mut(..length).unwrap_or_default();
        let caller = &self.tree.caller;
        let count = self.tree.retry_while_locked(|| {
            ops::access(caller, &file, nix::libc::R_OK)?;
            self.tree.fs().read_at(caller, &file.node, offset, buffer)
        })?;
        Ok(TreeAnswer::Data(count as u64))
    }

    fn entries(&self, dir: Handle, after: u64) -> Result<TreeAnswer> {
        let dir = self.place(dir)?;
        let caller = &self.tree.caller;
        ops::readdir_check(caller, &dir)?;
        let mut entries = Vec::new();
        let fs = self.tree.fs();
        fs.readdir(caller, &dir.node, after, &mut |entry| {
            entries.push(Entry {
                name: ByteBuf::from(entry.name),
                ino: entry.ino,
                kind: entry.kind,
                cookie: entry.cookie,
            });
            entries.len() < ENTRIES_MAX
        })?;
        let more = entries.len() == ENTRIES_MAX;
        Ok(TreeAnswer::Entries(entries, more))
    }

    /// The content that the client sees behind its descriptor `fd`.
    fn source(&self, fd: OwnedFd) -> Result<ContentSource, Errno> {
        let within = self.tree.caller.txn.and(self.delegate.as_ref());
        let mounted = within
            .map(|delegate| wait_for_locks(|| delegate.mounted(&fd)))
            .transpose()?;
        Ok(mounted
            .flatten()
            .map_or(ContentSource::Host(fd), ContentSource::Mounted))
    }

    /// Copies the content of `from` into a new file, and reports the progress to the client.
    fn fill(&mut self, dir: Handle, name: &[u8], from: Option<ContentSource>) -> TreeAnswer {
        let link = self.link;
        let mut since = Copied::default();
        let mut report = |copied: Copied| {
            since.data += copied.data;
            since.holes += copied.holes;
            if since.data + since.holes >= REPORT_EVERY {
                let Copied { data, holes } = std::mem::take(&mut since);
                // If the client has disconnected, the last answer fails.
                let _ = link.send(&TreeAnswer::Copied(data, holes), None);
            }
        };
        // The store's import commits at once, so it is not for transactions.
        let store = self.tree.caller.txn.is_none().then(|| Arc::clone(&self.fs));
        let place = self.place(dir).and_then(|dir| Ok((dir, checked(name)?)));
        let filled = match (place, from) {
            (Ok((dir, name)), Some(from)) => {
                write_content(&self.tree, store.as_deref(), &dir, name, from, &mut report)
            }
            (Err(errno), _) => Err(errno.into()),
            (_, None) => Err(Errno::EBADF.into()),
        };
        match filled {
            Ok(place) => {
                let _ = link.send(&TreeAnswer::Copied(since.data, since.holes), None);
                TreeAnswer::Node(self.keep(place.node))
            }
            Err(error) => TreeAnswer::NotCopied(error.into()),
        }
    }
}

/// The result of an operation.
enum Performed {
    Node(Node),
    Answer(TreeAnswer),
}

/// `name`, if it is a single component, as [`ops`] requires.
fn checked(name: &[u8]) -> Result<&[u8], Errno> {
    let is_path = name.contains(&b'/') || name.contains(&0);
    if is_path || matches!(name, b"" | b"." | b"..") {
        return Err(Errno::EINVAL);
    }
    Ok(name)
}
