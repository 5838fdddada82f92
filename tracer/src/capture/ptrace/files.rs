//! Which files the descriptors and paths of a thread name.
//!
//! Paths are as the tracer sees them: under a chroot, or in another mount namespace, they are not what the program calls its files.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use goanna_sys::procfs;
use goanna_syscalls::{DecodedCall, Kind, Memory, Names, Operation, Returns, Value};
use rustix::fs::{Mode, OFlags, ResolveFlags, Stat};

use super::thread::Recorded;
use crate::event::File;

/// A tracee's memory.
pub struct Remote(pub i32);

impl Memory for Remote {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        goanna_sys::tracee::read(self.0, address, into).unwrap_or(0)
    }
}

/// The names of a stopped thread.
pub struct ThreadNames {
    tid: i32,
    pid: i32,
    /// The files of the paths asked for, in order.
    paths: RefCell<Vec<Option<OwnedFd>>>,
}

const DELETED: &[u8] = b" (deleted)";

impl ThreadNames {
    /// Of thread `tid` of process `pid`.
    pub fn new(tid: i32, pid: i32) -> Self {
        Self {
            tid,
            pid,
            paths: RefCell::default(),
        }
    }

    /// The files of the paths asked for, in order.
    pub fn into_paths(self) -> Vec<Option<OwnedFd>> {
        self.paths.into_inner()
    }

    fn resolve(
        &self,
        directory: i32,
        path: &[u8],
        follow: bool,
    ) -> (Option<Box<[u8]>>, Option<OwnedFd>) {
        if path.is_empty() {
            let file = rustix::fs::open(
                self.start(directory),
                OFlags::PATH | OFlags::CLOEXEC,
                Mode::empty(),
            );
            return (self.descriptor(directory), file.ok());
        }
        let path = self.of_this_process(path);
        if let Some(file) = self.open(directory, &path, follow) {
            return (self.path_of(&file), Some(file));
        }
        // The last component does not exist, or is a link that leads nowhere.
        let end = path
            .iter()
            .rposition(|&byte| byte != b'/')
            .map_or(0, |at| at + 1);
        let trimmed = path.get(..end).unwrap_or_default();
        let (parent, name) = match trimmed.iter().rposition(|&byte| byte == b'/') {
            Some(at) => trimmed.split_at(at + 1),
            None => (b".".as_slice(), trimmed),
        };
        let resolved = self.open(directory, parent, true).and_then(|parent| {
            let mut resolved = self.path_of(&parent)?.into_vec();
            if resolved != b"/" {
                resolved.push(b'/');
            }
            resolved.extend_from_slice(name);
            Some(resolved.into())
        });
        let is_plain = !matches!(name, b"" | b"." | b"..");
        (resolved.filter(|_| is_plain), None)
    }

    /// Opens a path without any effect on the file.
    fn open(&self, directory: i32, path: &[u8], follow: bool) -> Option<OwnedFd> {
        let mut flags = OFlags::PATH | OFlags::CLOEXEC;
        flags.set(OFlags::NOFOLLOW, !follow);
        let path = OsStr::from_bytes(path);
        let is_absolute = path.as_bytes().first() == Some(&b'/');
        if self.has_our_root() {
            if is_absolute {
                return rustix::fs::open(path, flags, Mode::empty()).ok();
            }
            let start = self.open_start(directory)?;
            return rustix::fs::openat(start, path, flags, Mode::empty()).ok();
        }
        let root = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let root =
            rustix::fs::open(format!("/proc/{}/root", self.tid), root, Mode::empty()).ok()?;
        let in_root = |path: &OsStr| {
            rustix::fs::openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()
        };
        if is_absolute {
            return in_root(path);
        }
        // RESOLVE_IN_ROOT takes the directory that a path starts in for the root, so the path has to start in the root.
        let root_path = self.path_of(&root)?;
        let start = self.path_of(&self.open_start(directory)?)?;
        let start = start.strip_prefix(&*root_path).unwrap_or(&start);
        let full = [start, b"/", path.as_bytes()].concat();
        in_root(OsStr::from_bytes(&full))
    }

    fn open_start(&self, directory: i32) -> Option<OwnedFd> {
        rustix::fs::open(
            self.start(directory),
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .ok()
    }

    /// Where paths relative to `directory` start.
    fn start(&self, directory: i32) -> String {
        if directory == libc::AT_FDCWD {
            format!("/proc/{}/cwd", self.tid)
        } else {
            format!("/proc/{}/fd/{directory}", self.tid)
        }
    }

    /// Whether the thread has the same root directory as the tracer, in the same mount namespace.
    fn has_our_root(&self) -> bool {
        let same = |theirs: String, ours: &str| {
            let theirs = rustix::fs::stat(theirs);
            let ours = rustix::fs::stat(ours);
            matches!((theirs, ours), (Ok(theirs), Ok(ours))
                if theirs.st_dev == ours.st_dev && theirs.st_ino == ours.st_ino)
        };
        same(format!("/proc/{}/root", self.tid), "/")
            && same(format!("/proc/{}/ns/mnt", self.tid), "/proc/self/ns/mnt")
    }

    /// The path with what means another thing to each process replaced: `/proc/self`, and `/dev/fd`, which leads there.
    fn of_this_process(&self, path: &[u8]) -> Vec<u8> {
        let Self { tid, pid, .. } = self;
        let fixed: [(&[u8], String); 6] = [
            (b"/proc/self", format!("/proc/{pid}")),
            (b"/proc/thread-self", format!("/proc/{pid}/task/{tid}")),
            (b"/dev/fd", format!("/proc/{pid}/fd")),
            (b"/dev/stdin", format!("/proc/{pid}/fd/0")),
            (b"/dev/stdout", format!("/proc/{pid}/fd/1")),
            (b"/dev/stderr", format!("/proc/{pid}/fd/2")),
        ];
        for (prefix, own) in &fixed {
            if let Some(rest) = path.strip_prefix(*prefix)
                && matches!(rest.first(), None | Some(b'/'))
            {
                return [own.as_bytes(), rest].concat();
            }
        }
        path.to_vec()
    }

    /// The path of a file that the tracer has open. `None` where it lies below the tracer's own directory in /proc: the program meant its own.
    fn path_of(&self, file: &OwnedFd) -> Option<Box<[u8]>> {
        let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        let path = link.into_os_string().into_vec();
        let own = format!("/proc/{}", std::process::id());
        let is_own = path.strip_prefix(own.as_bytes());
        let is_own = is_own.is_some_and(|rest| matches!(rest.first(), None | Some(b'/')));
        (!is_own).then(|| path.into())
    }
}

impl Names for ThreadNames {
    fn descriptor(&self, number: i32) -> Option<Box<[u8]>> {
        let link = if number == libc::AT_FDCWD {
            procfs::cwd(self.tid)
        } else {
            procfs::fd_link(self.tid, number)
        };
        let link = link.ok()?;
        if let Some(path) = link.strip_suffix(DELETED)
            && rustix::fs::stat(self.start(number)).is_ok_and(|stat| stat.st_nlink == 0)
        {
            return Some(path.into());
        }
        Some(link.into())
    }

    fn path(&self, directory: i32, path: &[u8], follow: bool) -> Option<Box<[u8]>> {
        let (resolved, file) = self.resolve(directory, path, follow);
        self.paths.borrow_mut().push(file);
        resolved
    }
}

/// The file of descriptor `number`, whose path is known already.
fn of_descriptor(tid: i32, number: i32, path: Option<Box<[u8]>>) -> Option<File> {
    let stat = rustix::fs::stat(format!("/proc/{tid}/fd/{number}")).ok()?;
    Some(file(&stat, path))
}

/// A file's identity and state.
pub fn file(stat: &Stat, path: Option<Box<[u8]>>) -> File {
    File {
        device: stat.st_dev,
        inode: stat.st_ino,
        mode: stat.st_mode,
        links: stat.st_nlink,
        size: stat.st_size.unsigned_abs(),
        path,
    }
}

/// The files of descriptors that a call is about to close.
pub fn closing(tid: i32, call: &DecodedCall) -> Vec<(u8, File)> {
    if call.operation() != Some(Operation::Close) {
        return Vec::new();
    }
    descriptors(call)
        .filter_map(|(index, number, path)| Some((index, of_descriptor(tid, number, path)?)))
        .collect()
}

/// The descriptors among a call's arguments.
fn descriptors(call: &DecodedCall) -> impl Iterator<Item = (u8, i32, Option<Box<[u8]>>)> {
    let values = (0..).zip(&call.args);
    values.filter_map(|(index, value)| match value {
        Value::Descriptor { number, file } if *number >= 0 => Some((index, *number, file.clone())),
        _ => None,
    })
}

/// The index that stands for the result.
const RESULT: u8 = 6;

/// The files that the arguments and the result of a call name, after the call.
pub fn after(tid: i32, pid: i32, recorded: &mut Recorded, result: i64) -> Vec<(u8, File)> {
    let call = &recorded.call;
    let mut files = std::mem::take(&mut recorded.closing);
    let is_closed = !files.is_empty();
    if !is_closed {
        files.extend(
            descriptors(call).filter_map(|(index, number, path)| {
                Some((index, of_descriptor(tid, number, path)?))
            }),
        );
    }
    let mut opened = recorded.paths.drain(..);
    let paths = (0..)
        .zip(&call.args)
        .filter_map(|(index, value)| match value {
            Value::Path { resolved, .. } => Some((index, resolved)),
            _ => None,
        });
    let makes_name = result >= 0 && makes_name(call);
    for (index, resolved) in paths {
        let at_entry = opened.next().flatten();
        let stat = match (at_entry, resolved) {
            (Some(file), _) if !(makes_name && is_last_path(call, index)) => {
                rustix::fs::fstat(file).ok()
            }
            (_, Some(path)) if makes_name => rustix::fs::lstat(OsStr::from_bytes(path)).ok(),
            _ => None,
        };
        files.extend(stat.map(|stat| (index, file(&stat, resolved.clone()))));
    }
    let returns = call.signature.map(|signature| signature.returns);
    if returns == Some(Returns::Descriptor)
        && let Ok(number) = i32::try_from(result)
        && number >= 0
    {
        let path = ThreadNames::new(tid, pid).descriptor(number);
        files.extend(of_descriptor(tid, number, path).map(|file| (RESULT, file)));
    }
    files
}

/// Whether a call that succeeds has made a name, or given one to another file.
fn makes_name(call: &DecodedCall) -> bool {
    matches!(
        call.operation(),
        Some(
            Operation::Create
                | Operation::Mkdir
                | Operation::Mknod
                | Operation::Symlink
                | Operation::Link
                | Operation::Rename
        )
    )
}

fn is_last_path(call: &DecodedCall, index: u8) -> bool {
    let kinds = call.signature.map_or(&[][..], |signature| signature.params);
    let later = kinds.iter().skip(usize::from(index) + 1);
    !later
        .into_iter()
        .any(|param| matches!(param.kind, Kind::Path(_)))
}
