//! Where `aminod` serves those who work on the tree of its store: the offline commands.
//!
//! Who may do what is judged here, by the same rules as for programs ([`ops`]) and by the credentials that the kernel tells
//! of the client; what a client says of itself is not asked for. It is of the same user, whose directory the store is, so
//! it could read and change all of it without us; the judgement is for those who gave up rights and kept the user: root
//! without `CAP_DAC_OVERRIDE` meets the same EACCES here as when it opens the store itself. The one thing that is not the
//! client's own is the umask: copies have the modes of their originals.
//!
//! A client that runs inside `amino run` on this store works in its transaction, as with system calls below the mount point
//! ([`goanna_monitor::Delegate`]). Any other client sees what is committed, and waits for locks where it changes something.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use amino_fs::AminoFs;
use goanna_monitor::Delegate;
use goanna_offline::Tree;
use goanna_offline::copy::{ContentSource, Copied, write_content};
use goanna_offline::facts::Facts;
use goanna_vfs::{Errno, Node, Place, Result, SetAttr, ops};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_bytes::ByteBuf;

use super::link::Link;
use super::message::{Answer, Told};
use super::operation::{Entry, Handle, NodeId, Operation, Outcome, PIECE, Step};
use super::serve::Client;
use crate::args::Engine;
use crate::error::Error;
use crate::mounts::OpenStore;
use crate::store;

/// Entries answered at once.
const ENTRIES: usize = 1000;
/// How much of a file is copied between two answers that tell of it, bytes.
const TOLD_EVERY: u64 = 8 << 20;

/// A client's part of the tree.
struct Room<'a> {
    link: &'a Link,
    fs: &'a Arc<AminoFs>,
    tree: Tree,
    nodes: HashMap<Handle, Node>,
    next: Handle,
    buffer: Vec<u8>,
    /// Works for the run that the client belongs to.
    delegate: Option<Delegate>,
}

/// Serves `client`, which wants to work on the tree, until it leaves.
pub fn serve(client: &Client, (dir, fs): &OpenStore, engine: Option<Engine>) {
    let link = &client.link;
    if let Err(error) = store::check_engine(dir, fs, engine) {
        let _ = link.send(&Answer::Failed(Told::from(&error)), None);
        return;
    }
    // It has died.
    let Ok(mut caller) = goanna_monitor::credentials(client.pid) else {
        return;
    };
    caller.umask = 0;
    let waits = Arc::clone(link);
    let mut room = Room {
        link,
        fs,
        tree: Tree::new(fs.clone(), caller).wait_while(move || is_quiet(&waits)),
        nodes: HashMap::new(),
        next: 0,
        buffer: vec![0; PIECE],
        delegate: client.delegate(),
    };
    let root = room.tree.fs().root();
    let root = room.keep(root);
    if link.send(&Answer::Attached(root), None).is_err() {
        return;
    }
    while let Ok(Some((Step { forget, operation }, fd))) = link.receive() {
        for handle in forget {
            room.nodes.remove(&handle);
        }
        let mut data = std::mem::take(&mut room.buffer);
        let done = match room.delegate.clone() {
            Some(delegate) => delegate.perform(client.pid, |txn| {
                room.tree.caller.txn = txn;
                room.answer(operation, fd, &mut data)
            }),
            None => room.answer(operation, fd, &mut data),
        };
        let outcome = done.unwrap_or_else(|errno| Outcome::Failed(errno as i32));
        let count = match outcome {
            Outcome::Data(count) => usize::try_from(count).unwrap_or(0),
            _ => 0,
        };
        let sent = link.send_data(&outcome, data.get(..count).unwrap_or_default());
        if sent.is_err() {
            return;
        }
        room.buffer = data;
    }
}

/// Whether the client still waits for its answer: it says nothing meanwhile, and is there.
fn is_quiet(link: &Link) -> bool {
    let mut fds = [PollFd::new(link.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO) == Ok(0)
}

impl Room<'_> {
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

    fn place(&self, handle: Handle) -> Result<Place> {
        let node = self.nodes.get(&handle).ok_or(Errno::ESTALE)?;
        Ok(self.tree.place(node.clone()))
    }

    /// Performs `operation`; data that it reads goes to `buffer`.
    fn answer(
        &mut self,
        operation: Operation,
        fd: Option<OwnedFd>,
        buffer: &mut [u8],
    ) -> Result<Outcome> {
        match operation {
            Operation::Fill(dir, name) => {
                let source = fd.map(|fd| self.source(fd)).transpose()?;
                Ok(self.fill(dir, &name, source))
            }
            Operation::Read(file, offset, length) => self.read(file, offset, length, buffer),
            operation => self.perform(&operation),
        }
    }

    /// Makes `operation`, again when it has met a lock.
    fn perform(&mut self, operation: &Operation) -> Result<Outcome> {
        let made = self.tree.retry_while_locked(|| self.attempt(operation))?;
        Ok(match made {
            Made::Node(node) => Outcome::Node(self.keep(node)),
            Made::Outcome(outcome) => outcome,
        })
    }

    fn attempt(&self, operation: &Operation) -> Result<Made> {
        let (caller, fs) = (&self.tree.caller, self.tree.fs());
        let outcome = match operation {
            Operation::Lookup(dir, name) => {
                return ops::lookup(caller, &self.place(*dir)?, checked(name)?).map(Made::Node);
            }
            Operation::Parent(dir) => {
                let dir = self.place(*dir)?;
                ops::may_search(caller, &dir)?;
                return fs.parent(caller, &dir.node).map(Made::Node);
            }
            Operation::Path(node) => {
                let (path, removed) = fs.path(caller, &self.place(*node)?.node)?;
                Outcome::Path(ByteBuf::from(path), removed)
            }
            Operation::Attr(node) => Outcome::Attr(fs.getattr(caller, &self.place(*node)?.node)?),
            Operation::Target(node) => {
                Outcome::Bytes(fs.readlink(caller, &self.place(*node)?.node)?.into())
            }
            Operation::Entries(dir, after) => self.entries(*dir, *after)?,
            Operation::Xattr(node, name) => {
                Outcome::Bytes(ops::getxattr(caller, &self.place(*node)?, name)?.into())
            }
            Operation::Xattrs(node) => {
                let names = ops::listxattr(caller, &self.place(*node)?)?;
                Outcome::Names(names.into_iter().map(ByteBuf::from).collect())
            }
            operation => return self.change(operation),
        };
        Ok(Made::Outcome(outcome))
    }

    /// Operations that change something.
    fn change(&self, operation: &Operation) -> Result<Made> {
        let caller = &self.tree.caller;
        let dir_and_name = |dir: &Handle, name| Ok((self.place(*dir)?, checked(name)?));
        match operation {
            Operation::MakeNode(dir, name, mode, rdev) => {
                let (dir, name) = dir_and_name(dir, name)?;
                return ops::mknod(caller, &dir, name, *mode, *rdev).map(Made::Node);
            }
            Operation::MakeDir(dir, name, mode) => {
                let (dir, name) = dir_and_name(dir, name)?;
                return ops::mkdir(caller, &dir, name, *mode).map(Made::Node);
            }
            Operation::MakeSymlink(dir, name, target) => {
                let (dir, name) = dir_and_name(dir, name)?;
                return ops::symlink(caller, &dir, name, target).map(Made::Node);
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
            // What a transaction has made reaches the disk with its commit.
            Operation::Sync if caller.txn.is_some() => {}
            Operation::Sync => self.tree.fs().sync(None)?,
            _ => return Err(Errno::ENOSYS),
        }
        Ok(Made::Outcome(Outcome::Done))
    }

    /// The system calls that `set` comes from, which have rules of their own.
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
    fn read(&self, file: Handle, offset: u64, length: u64, buffer: &mut [u8]) -> Result<Outcome> {
        let file = self.place(file)?;
        let length = usize::try_from(length).unwrap_or(PIECE).min(buffer.len());
        let buffer = buffer.get_mut(..length).unwrap_or_default();
        let caller = &self.tree.caller;
        let count = self.tree.retry_while_locked(|| {
            ops::access(caller, &file, nix::libc::R_OK)?;
            self.tree.fs().read_at(caller, &file.node, offset, buffer)
        })?;
        Ok(Outcome::Data(count as u64))
    }

    fn entries(&self, dir: Handle, after: u64) -> Result<Outcome> {
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
            entries.len() < ENTRIES
        })?;
        let more = entries.len() == ENTRIES;
        Ok(Outcome::Entries(entries, more))
    }

    /// What the client's descriptor `fd` shows it.
    fn source(&self, fd: OwnedFd) -> Result<ContentSource> {
        let within = self.tree.caller.txn.and(self.delegate.as_ref());
        let mounted = within.map(|delegate| delegate.mounted(&fd)).transpose()?;
        Ok(mounted
            .flatten()
            .map_or(ContentSource::Host(fd), ContentSource::Mounted))
    }

    /// Copies the content of `from` into a new file; tells of it now and then.
    fn fill(&mut self, dir: Handle, name: &[u8], from: Option<ContentSource>) -> Outcome {
        let link = self.link;
        let mut since = Copied::default();
        let mut tell = |copied: Copied| {
            since.data += copied.data;
            since.holes += copied.holes;
            if since.data + since.holes >= TOLD_EVERY {
                let Copied { data, holes } = std::mem::take(&mut since);
                // A client that has gone is noticed when it is answered.
                let _ = link.send(&Outcome::Copied(data, holes), None);
            }
        };
        // The store's own entrance makes changes that are committed at once.
        let store = self.tree.caller.txn.is_none().then_some(&**self.fs);
        let place = self.place(dir).and_then(|dir| Ok((dir, checked(name)?)));
        let filled = match (place, from) {
            (Ok((dir, name)), Some(from)) => {
                write_content(&self.tree, store, &dir, name, from, &mut tell)
            }
            (Err(errno), _) => Err(errno.into()),
            (_, None) => Err(Errno::EBADF.into()),
        };
        match filled {
            Ok(place) => {
                let _ = link.send(&Outcome::Copied(since.data, since.holes), None);
                Outcome::Node(self.keep(place.node))
            }
            Err(trouble) => Outcome::NotCopied(trouble.into()),
        }
    }
}

/// What an operation has made.
enum Made {
    Node(Node),
    Outcome(Outcome),
}

/// A name that is a single component: what the switch takes for granted.
fn checked(name: &[u8]) -> Result<&[u8]> {
    let is_path = name.contains(&b'/') || name.contains(&0);
    if is_path || matches!(name, b"" | b"." | b"..") {
        return Err(Errno::EINVAL);
    }
    Ok(name)
}

/// Checks the store as it is now, while others go on.
pub fn check(client: &Client, (dir, fs): &OpenStore) -> Answer {
    let tell = &mut |records| {
        // A client that has gone is noticed when it is answered.
        let _ = client.link.send(&Answer::Progress(records), None);
    };
    match amino_fs::fsck::check(fs.store(), tell) {
        Ok(report) => Answer::Checked(report),
        Err(why) => {
            let dir = dir.clone();
            Answer::Failed(Told::from(&Error::Unchecked { dir, why }))
        }
    }
}

/// What the store is and holds, with the number of commands that `aminod` follows.
pub fn facts((dir, fs): &OpenStore, runs: usize) -> Answer {
    match Facts::of(fs.store()) {
        Ok(facts) => Answer::Facts(facts, runs),
        Err(why) => Answer::Failed(Told::from(&Error::store(dir, why))),
    }
}
