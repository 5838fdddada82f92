//! The monitor's own descriptors of cache objects. Their number is not bound by the limit on descriptors.
//!
//! The limit (RLIMIT_NOFILE) holds for each descriptor table. Where half of this process's own is used up, further objects go
//! to a shelf: a thread that has a table to itself, in which it keeps an `O_PATH` descriptor of each object. Every thread can
//! open the object again by `/proc/self/task/TID/fd/N`.
#![allow(unsafe_code, reason = "close_range(2) and gettid(2)")]

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fstat};

use crate::{limits, memfile, stat};

/// The monitor's own handle of a cache object. It keeps the object, and determines whether another process has it open.
#[derive(Debug)]
pub struct ObjectHandle {
    kept: Kept,
    identity: (u64, u64),
    claims: AtomicU64,
}

/// While this exists, the object counts as open elsewhere: a process opens it soon, or may do so at any time.
#[derive(Debug)]
pub struct Claim {
    handle: Arc<ObjectHandle>,
    /// [`PENDING`] or [`SHARED`].
    unit: u64,
}

// The word of claims: bits 0 to 19 count opens that are under way, bits 20 to 39 the claims of objects that processes may open at any time. From bit 40 on it has the
// number of all claims so far.
const PENDING: u64 = 1;
const SHARED: u64 = 1 << 20;
const EVER: u64 = 1 << 40;

impl Claim {
    /// A claim to the object for an open that is under way. The caller keeps the object from being dropped meanwhile.
    pub fn of(handle: &Arc<ObjectHandle>) -> Self {
        Self::with_unit(handle, PENDING)
    }

    /// As [`Claim::of`], for opens that are not reported.
    pub fn shared(handle: &Arc<ObjectHandle>) -> Self {
        Self::with_unit(handle, SHARED)
    }

    fn with_unit(handle: &Arc<ObjectHandle>, unit: u64) -> Self {
        handle.claims.fetch_add(EVER + unit, Ordering::SeqCst);
        Self {
            handle: Arc::clone(handle),
            unit,
        }
    }

    /// The object.
    pub fn handle(&self) -> &Arc<ObjectHandle> {
        &self.handle
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.handle.claims.fetch_sub(self.unit, Ordering::SeqCst);
    }
}

#[derive(Debug)]
enum Kept {
    /// A read-only description of the object.
    Here(OwnedFd),
    Shelved(Shelved),
}

/// How many objects this process's own descriptor table can have: half of the limit.
pub fn descriptors() -> Result<u64, Errno> {
    // The process changes its limit only when it starts, before it has handles.
    static LIMIT: OnceLock<u64> = OnceLock::new();
    let limit = match LIMIT.get() {
        Some(limit) => *limit,
        None => {
            let limit = limits::nofile()?;
            *LIMIT.get_or_init(|| limit)
        }
    };
    Ok(limit / 2)
}

impl ObjectHandle {
    /// Makes a handle of the object that `fd` refers to, with a read-only description of its own ([`memfile::reopen`]).
    pub fn new(fd: OwnedFd) -> Result<Self, Errno> {
        Self::keep(fd, descriptors()?)
    }

    /// Descriptors from number `shelved_from` on go to a shelf.
    fn keep(fd: OwnedFd, shelved_from: u64) -> Result<Self, Errno> {
        let (dev, ino, _) = stat::identity(fd.as_fd())?;
        let is_high = u64::try_from(fd.as_raw_fd()).is_ok_and(|number| number >= shelved_from);
        let shelved = if is_high {
            shelve(fd.as_fd()).ok()
        } else {
            None
        };
        Ok(Self {
            kept: shelved.map_or(Kept::Here(fd), Kept::Shelved),
            identity: (dev, ino),
            claims: AtomicU64::new(0),
        })
    }

    /// `(st_dev, st_ino)` of the object.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// A new open file description of the object, with `flags` as for open(2); close-on-exec is added.
    pub fn open(&self, flags: i32) -> Result<OwnedFd, Errno> {
        match &self.kept {
            Kept::Here(fd) => memfile::reopen(fd.as_fd(), flags),
            Kept::Shelved(shelved) => shelved.open(flags),
        }
    }

    /// Allocated units of 512 bytes.
    pub fn blocks(&self) -> Option<u64> {
        let stat = self.with(|fd| fstat(fd)).ok()?;
        u64::try_from(stat.st_blocks).ok()
    }

    /// The number of the handle's descriptor. `None` for an object on a shelf.
    pub fn number(&self) -> Option<RawFd> {
        match &self.kept {
            Kept::Here(fd) => Some(fd.as_raw_fd()),
            Kept::Shelved(_) => None,
        }
    }

    /// Runs `f` with a read-only descriptor of the object. Its offset means nothing.
    pub fn with<R>(&self, f: impl FnOnce(BorrowedFd<'_>) -> Result<R, Errno>) -> Result<R, Errno> {
        match &self.kept {
            Kept::Here(fd) => f(fd.as_fd()),
            Kept::Shelved(shelved) => f(shelved.open(libc::O_RDONLY | libc::O_NONBLOCK)?.as_fd()),
        }
    }

    /// Sets the size of the object in bytes, without a writable descriptor. ETXTBSY while it is executed.
    pub fn resize(&self, size: u64) -> Result<(), Errno> {
        let path = match &self.kept {
            Kept::Here(fd) => format!("/proc/self/fd/{}", fd.as_raw_fd()),
            Kept::Shelved(shelved) => shelved.path(),
        };
        let size = i64::try_from(size).map_err(|_| Errno::EFBIG)?;
        loop {
            match nix::unistd::truncate(path.as_str(), size) {
                Err(Errno::EINTR) => {}
                other => return other,
            }
        }
    }

    /// Whether [`ObjectHandle::sole_opener`] and [`ObjectHandle::open_for_write_elsewhere`] work without opening the object:
    /// inotify(7) would report the open.
    pub fn asks_silently(&self) -> bool {
        matches!(self.kept, Kept::Here(_))
    }

    /// Whether no other process has the object open or mapped, or is about to open it. `false` when this cannot be determined.
    pub fn sole_opener(&self) -> bool {
        self.has_no_other(EVER - 1)
    }

    /// As [`ObjectHandle::sole_opener`], without the processes that may open the object at any time.
    pub fn sole_known_opener(&self) -> bool {
        self.has_no_other(SHARED - 1)
    }

    /// Whether there are none of these claims, and no other descriptions of the object.
    fn has_no_other(&self, claimed: u64) -> bool {
        let claims = self.claims.load(Ordering::SeqCst);
        // A process that has opened the object has no claim any more: claims are looked at again when the descriptions have been.
        claims & claimed == 0
            && self.is_sole_description()
            && self.claims.load(Ordering::SeqCst) == claims
    }

    /// Whether a process is about to open the object, or may do so at any time.
    pub fn is_claimed(&self) -> bool {
        self.claims.load(Ordering::SeqCst) & (EVER - 1) != 0
    }

    fn is_sole_description(&self) -> bool {
        // An O_PATH descriptor on a shelf does not count, so only one description of ours does: the one that gets the lease.
        self.with(|fd| Ok(memfile::sole_reader(fd))) == Ok(true)
    }

    /// Whether another process has the object open for writing, or mapped from such a description. `true` when this cannot be
    /// determined.
    pub fn open_for_write_elsewhere(&self) -> bool {
        self.with(|fd| Ok(memfile::has_other_writer(fd))) != Ok(false)
    }
}

/// An object's place on a shelf. Dropping it frees the place.
#[derive(Debug)]
struct Shelved {
    tid: i32,
    number: RawFd,
    shelf: Sender<Request>,
    is_full: Arc<AtomicBool>,
}

impl Shelved {
    fn path(&self) -> String {
        format!("/proc/self/task/{}/fd/{}", self.tid, self.number)
    }

    fn open(&self, flags: i32) -> Result<OwnedFd, Errno> {
        let path = self.path();
        let flags = OFlag::from_bits_retain(flags) | OFlag::O_CLOEXEC;
        loop {
            match nix::fcntl::open(path.as_str(), flags, Mode::empty()) {
                Err(Errno::EINTR) => {}
                other => return other,
            }
        }
    }
}

impl Drop for Shelved {
    fn drop(&mut self) {
        // The thread has its receiver until all senders are gone.
        let _ = self.shelf.send(Request::Drop(self.number));
        self.is_full.store(false, Ordering::Relaxed);
    }
}

enum Request {
    /// Keep the object behind this descriptor of the process; reply with the shelf's own descriptor number.
    Keep(RawFd, Sender<Result<RawFd, Errno>>),
    /// Close this one.
    Drop(RawFd),
}

/// A thread with a descriptor table of its own.
struct Shelf {
    tid: i32,
    requests: Sender<Request>,
    is_full: Arc<AtomicBool>,
}

static SHELVES: Mutex<Vec<Shelf>> = Mutex::new(Vec::new());

/// A shelf has space for as many descriptors as the process may have.
const SHELVES_MAX: usize = 1024;

/// `EMFILE`: the shelves are full.
fn shelve(fd: BorrowedFd<'_>) -> Result<Shelved, Errno> {
    let mut shelves = SHELVES.lock().unwrap_or_else(PoisonError::into_inner);
    for shelf in shelves.iter().rev() {
        match shelf.keep(fd) {
            Err(Errno::EMFILE) => {}
            other => return other,
        }
    }
    if shelves.len() >= SHELVES_MAX {
        return Err(Errno::EMFILE);
    }
    let shelf = Shelf::start()?;
    let shelved = shelf.keep(fd);
    shelves.push(shelf);
    shelved
}

impl Shelf {
    fn start() -> Result<Self, Errno> {
        let (requests, received) = channel();
        let (started, tid) = channel();
        std::thread::Builder::new()
            .name("shelf".into())
            .spawn(move || {
                let own_table = own_table();
                let _ = started.send(own_table);
                if own_table.is_ok() {
                    serve(&received);
                }
            })
            .map_err(|_| Errno::EAGAIN)?;
        Ok(Self {
            tid: tid.recv().map_err(|_| Errno::EIO)??,
            requests,
            is_full: Arc::default(),
        })
    }

    fn keep(&self, fd: BorrowedFd<'_>) -> Result<Shelved, Errno> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(Errno::EMFILE);
        }
        let (answer, answered) = channel();
        let request = Request::Keep(fd.as_raw_fd(), answer);
        self.requests.send(request).map_err(|_| Errno::EIO)?;
        let kept = answered.recv().map_err(|_| Errno::EIO)?;
        if kept == Err(Errno::EMFILE) {
            self.is_full.store(true, Ordering::Relaxed);
        }
        Ok(Shelved {
            tid: self.tid,
            number: kept?,
            shelf: self.requests.clone(),
            is_full: Arc::clone(&self.is_full),
        })
    }
}

/// Gives this thread an empty descriptor table of its own; returns the thread's id.
fn own_table() -> Result<i32, Errno> {
    // SAFETY: integers only. The thread uses no descriptor that it had before: the others keep theirs.
    unsafe {
        Errno::result(libc::syscall(
            libc::SYS_close_range,
            0,
            u32::MAX,
            libc::CLOSE_RANGE_UNSHARE,
        ))?;
        Ok(libc::gettid())
    }
}

fn serve(requests: &Receiver<Request>) {
    let mut kept = HashMap::new();
    while let Ok(request) = requests.recv() {
        match request {
            Request::Keep(number, answer) => {
                // The process's table, not this thread's.
                let path = format!("/proc/self/fd/{number}");
                let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
                let opened = nix::fcntl::open(path.as_str(), flags, Mode::empty());
                let _ = answer.send(opened.map(|fd| {
                    let number = fd.as_raw_fd();
                    kept.insert(number, fd);
                    number
                }));
            }
            Request::Drop(number) => {
                kept.remove(&number);
            }
        }
    }
}

/// Held by tests that start a child, and by tests that check which objects are open: until its execve a child has copies of
/// all descriptors.
#[cfg(test)]
pub(crate) static DESCRIPTORS: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> (OwnedFd, OwnedFd) {
        let first = memfile::create(c"test").unwrap();
        let fd = memfile::reopen(first.as_fd(), libc::O_RDONLY).unwrap();
        (first, fd)
    }

    #[test]
    fn an_object_on_a_shelf_is_as_one_here() {
        let _alone = DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner);
        for shelved_from in [u64::MAX, 0] {
            let (first, fd) = made();
            let handle = ObjectHandle::keep(fd, shelved_from).unwrap();
            assert_eq!(matches!(handle.kept, Kept::Shelved(_)), shelved_from == 0);
            drop(first);
            assert!(handle.sole_opener());
            let writer = handle.open(libc::O_RDWR).unwrap();
            assert_eq!(memfile::pwrite(writer.as_fd(), b"text", 0), Ok(4));
            assert!(!handle.sole_opener());
            assert!(handle.open_for_write_elsewhere());
            drop(writer);
            let reader = handle.open(libc::O_RDONLY).unwrap();
            assert!(!handle.sole_opener());
            assert!(!handle.open_for_write_elsewhere());
            let (dev, ino, _) = stat::identity(reader.as_fd()).unwrap();
            assert_eq!(handle.identity(), (dev, ino));
            drop(reader);
            assert!(handle.sole_opener());
            let handle = Arc::new(handle);
            let claim = Claim::of(&handle);
            assert!(!handle.sole_opener() && !handle.sole_known_opener());
            assert_eq!(claim.handle().number().is_none(), shelved_from == 0);
            let shared = Claim::shared(&handle);
            drop(claim);
            assert!(!handle.sole_opener() && handle.sole_known_opener());
            assert!(handle.is_claimed());
            drop(shared);
            assert!(handle.sole_opener() && !handle.is_claimed());
            let mut bytes = [0; 4];
            let read = handle.with(|fd| memfile::pread(fd, &mut bytes, 0));
            assert_eq!((read, &bytes), (Ok(4), b"text"));
        }
    }

    /// In a process of its own, whose limit is low enough to be reached.
    #[test]
    fn shelves_follow_when_one_is_full() {
        const INSIDE: &str = "GOANNA_SYS_FEW_DESCRIPTORS";
        if std::env::var_os(INSIDE).is_none() {
            let (_crate, module) = module_path!().split_once("::").unwrap();
            let name = format!("{module}::shelves_follow_when_one_is_full");
            let _alone = DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner);
            let output = std::process::Command::new("/bin/sh")
                .args(["-c", "ulimit -n 500 && exec \"$0\" --exact \"$1\""])
                .arg(std::env::current_exe().unwrap())
                .arg(name)
                .env(INSIDE, "1")
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.contains("1 passed"), "{text}");
            return;
        }
        let many = usize::try_from(limits::nofile().unwrap()).unwrap() + 100;
        let (_first, fd) = made();
        let shelved: Vec<_> = (0..many).map(|_| shelve(fd.as_fd()).unwrap()).collect();
        let shelves = shelved.iter().map(|shelved| shelved.tid);
        let shelves: std::collections::HashSet<i32> = shelves.collect();
        assert!(shelves.len() > 1);
        let (dev, ino, _) = stat::identity(fd.as_fd()).unwrap();
        for shelved in [&shelved[0], &shelved[many - 1]] {
            let opened = shelved.open(libc::O_RDONLY).unwrap();
            let found = stat::identity(opened.as_fd()).unwrap();
            assert_eq!((found.0, found.1), (dev, ino));
        }
    }
}
