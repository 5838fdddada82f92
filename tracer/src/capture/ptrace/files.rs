//! Determines which files the descriptors and paths of a thread name.
//!
//! Paths are those of the tracer. For a program under a chroot or in another mount namespace they differ from the program's own.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::fs;
use std::io::Seek;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use goanna_sys::{pidfd, procfs};
use goanna_syscalls::{DecodedCall, Kind, Memory, Names, OpenFiles, Operation, Returns, Value};
use rustix::fs::{Mode, OFlags, ResolveFlags, Stat};

use super::thread::{Recorded, Thread};
use crate::capture::Details;
use crate::event::File;

/// A tracee's memory and files.
pub struct Remote(pub i32);

impl Memory for Remote {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        goanna_sys::tracee::read(self.0, address, into).unwrap_or(0)
    }
}

impl OpenFiles for Remote {
    fn regular(&self, number: i32) -> Option<(fs::File, u64)> {
        let thread = pidfd::open(self.0).ok()?;
        let mut same = fs::File::from(pidfd::getfd(thread.as_fd(), number).ok()?);
        if !same.metadata().ok()?.is_file() {
            return None;
        }
        let offset = same.stream_position().ok()?;
        let can_read = rustix::fs::fcntl_getfl(&same).ok()? & OFlags::ACCMODE != OFlags::WRONLY;
        if can_read {
            return Some((same, offset));
        }
        // Must not wait for a lease.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let path = format!("/proc/self/fd/{}", same.as_raw_fd());
        let own = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        Some((own.into(), offset))
    }
}

/// The properties of the tracer on which the names of files depend.
#[derive(Debug)]
pub struct Tracer {
    root: Option<Root>,
    /// Its directory in /proc.
    own: String,
}

impl Tracer {
    /// Describes this process.
    pub fn this() -> Self {
        Self {
            root: Root::of("self"),
            own: format!("/proc/{}", std::process::id()),
        }
    }
}

/// Identifies a task's root directory and its mount namespace.
#[derive(Debug, PartialEq, Eq)]
struct Root {
    directory: (u64, u64),
    namespace: (u64, u64),
}

impl Root {
    fn of(task: impl std::fmt::Display) -> Option<Self> {
        let identity = |link: &str| {
            let stat = rustix::fs::stat(format!("/proc/{task}/{link}")).ok()?;
            Some((stat.st_dev, stat.st_ino))
        };
        Some(Self {
            directory: identity("root")?,
            namespace: identity("ns/mnt")?,
        })
    }
}

/// Resolves the paths and descriptors of a stopped thread.
pub struct ThreadNames<'a> {
    tracer: &'a Tracer,
    tid: i32,
    pid: i32,
    has_our_root: &'a Cell<Option<bool>>,
    details: Details,
    /// The files of the resolved paths, in order.
    paths: RefCell<Vec<Option<OwnedFd>>>,
}

const DELETED: &[u8] = b" (deleted)";

impl<'a> ThreadNames<'a> {
    /// The names of `thread`, as far as `details` are wanted.
    pub fn new(tracer: &'a Tracer, thread: &'a Thread, details: Details) -> Self {
        Self {
            tracer,
            tid: thread.subject.tid,
            pid: thread.subject.pid,
            has_our_root: &thread.has_our_root,
            details,
            paths: RefCell::default(),
        }
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
        let path = self.of_this_process(path, follow);
        if let Some(file) = self.open(directory, &path, follow) {
            return (self.path_of(&file), Some(file));
        }
        // The last component does not exist, or is a link that leads nowhere.
        let (parent, _) = split(&path);
        let parent = if parent.is_empty() { b"." } else { parent };
        let parent = self.open(directory, parent, true);
        let parent = parent.and_then(|parent| self.path_of(&parent));
        (
            parent.and_then(|parent| with_last_component(&parent, &path)),
            None,
        )
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
            // One path walk, through the kernel's link to the directory, unless that makes the path too long.
            let start = self.start(directory);
            if start.len() + path.len() + 1 < libc::PATH_MAX as usize {
                let whole = [start.as_bytes(), b"/", path.as_bytes()].concat();
                return rustix::fs::open(whole, flags, Mode::empty()).ok();
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
        // With RESOLVE_IN_ROOT the directory in which a path starts is its root, so the path must start in the root.
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
    pub fn has_our_root(&self) -> bool {
        self.has_our_root.get().unwrap_or_else(|| {
            let theirs = Root::of(self.tid);
            let has_ours = theirs.is_some() && theirs == self.tracer.root;
            self.has_our_root.set(Some(has_ours));
            has_ours
        })
    }

    /// Replaces the parts of a path that depend on the process: `/proc/self`, and `/dev/fd`, which leads there. These are links themselves: where the last component
    /// is not followed, the path may be that of the link.
    fn of_this_process<'p>(&self, path: &'p [u8], follow: bool) -> Cow<'p, [u8]> {
        if !path.starts_with(b"/proc/") && !path.starts_with(b"/dev/") {
            return path.into();
        }
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
                && (rest.first() == Some(&b'/') || (rest.is_empty() && follow))
            {
                return [own.as_bytes(), rest].concat().into();
            }
        }
        path.into()
    }

    /// The path of a file that the tracer has open. `None` where it lies below the tracer's own directory in /proc: the program meant its own
    /// directory.
    fn path_of(&self, file: &OwnedFd) -> Option<Box<[u8]>> {
        let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        let path = link.into_os_string().into_vec();
        let is_own = path.strip_prefix(self.tracer.own.as_bytes());
        let is_own = is_own.is_some_and(|rest| matches!(rest.first(), None | Some(b'/')));
        (!is_own).then(|| path.into())
    }
}

impl Names for ThreadNames<'_> {
    fn descriptor(&self, number: i32) -> Option<Box<[u8]>> {
        if !self.details.paths {
            return None;
        }
        let link = if number == libc::AT_FDCWD {
            procfs::cwd(self.tid)
        } else {
            procfs::fd_link(self.tid, number)
        };
        let link = link.ok()?;
        let is_removed =
            || rustix::fs::stat(self.start(number)).is_ok_and(|stat| stat.st_nlink == 0);
        Some(without_suffix(&link, is_removed).into())
    }

    fn path(&self, directory: i32, path: &[u8], follow: bool) -> Option<Box<[u8]>> {
        let (resolved, file) = self.resolve(directory, path, follow);
        if self.details.files {
            self.paths.borrow_mut().push(file);
        }
        resolved
    }
}

/// What the kernel's link to a file says, without the suffix that it has if the file's name is removed.
pub fn without_suffix(link: &[u8], is_removed: impl FnOnce() -> bool) -> &[u8] {
    match link.strip_suffix(DELETED) {
        Some(path) if is_removed() => path,
        _ => link,
    }
}

/// Where an absolute path leads that meets no symbolic link.
pub fn normal(path: &[u8]) -> Box<[u8]> {
    let mut components: Vec<&[u8]> = Vec::new();
    for component in path.split(|&byte| byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => drop(components.pop()),
            name => components.push(name),
        }
    }
    let mut normal = Vec::with_capacity(path.len());
    for component in &components {
        normal.push(b'/');
        normal.extend_from_slice(component);
    }
    if components.is_empty() {
        normal.push(b'/');
    }
    normal.into()
}

/// What is before the last component of a path, and that component.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let is_slash = |byte: &u8| *byte == b'/';
    let end = path.iter().rposition(|byte| !is_slash(byte));
    let trimmed = path.get(..end.map_or(0, |at| at + 1)).unwrap_or_default();
    let start = trimmed.iter().rposition(is_slash).map_or(0, |at| at + 1);
    trimmed.split_at_checked(start).unwrap_or_default()
}

/// The last component of `path` in its directory `parent`. `None` where it is no name.
pub fn with_last_component(parent: &[u8], path: &[u8]) -> Option<Box<[u8]>> {
    let (_, name) = split(path);
    let slash: &[u8] = if parent == b"/" { b"" } else { b"/" };
    let is_name = !matches!(name, b"" | b"." | b"..");
    is_name.then(|| [parent, slash, name].concat().into())
}

/// Resolves the paths of a call that has opened a file. The new descriptor shows the file to which the path has led.
struct Opened<'a> {
    names: &'a ThreadNames<'a>,
    path: Option<Box<[u8]>>,
}

impl Names for Opened<'_> {
    fn descriptor(&self, number: i32) -> Option<Box<[u8]>> {
        self.names.descriptor(number)
    }

    fn path(&self, _: i32, _: &[u8], _: bool) -> Option<Box<[u8]>> {
        self.path.clone()
    }
}

impl ThreadNames<'_> {
    /// The file of descriptor `number`, whose path is known already.
    pub fn of_descriptor(&self, number: i32, path: Option<Box<[u8]>>) -> Option<File> {
        let stat = rustix::fs::stat(format!("/proc/{}/fd/{number}", self.tid)).ok()?;
        Some(file(&stat, path))
    }

    fn of_descriptors(&self, call: &DecodedCall) -> Vec<(u8, File)> {
        let found = descriptors(call);
        found
            .filter_map(|(index, number, path)| Some((index, self.of_descriptor(number, path)?)))
            .collect()
    }

    fn are_wanted(&self) -> bool {
        self.details.paths || self.details.files
    }
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

/// Whether a file is a regular one.
pub fn is_regular(file: &File) -> bool {
    file.mode & libc::S_IFMT == libc::S_IFREG
}

/// The descriptors among a call's arguments.
pub fn descriptors(call: &DecodedCall) -> impl Iterator<Item = (u8, i32, Option<Box<[u8]>>)> {
    let values = (0..).zip(&call.args);
    values.filter_map(|(index, value)| match value {
        Value::Descriptor { number, file } if *number >= 0 => Some((index, *number, file.clone())),
        _ => None,
    })
}

/// The index that stands for the result.
pub const RESULT: u8 = 6;

/// At the entry of a call: determines what its arguments name, and the files of descriptors that it closes.
pub fn before(names: &ThreadNames<'_>, recorded: &mut Recorded) {
    if names.are_wanted() && !opens(&recorded.call) {
        recorded.call.name(names);
        recorded.paths = names.paths.take();
    }
    if names.details.files && recorded.call.operation() == Some(Operation::Close) {
        recorded.closing = names.of_descriptors(&recorded.call);
    }
}

/// Whether a call opens the file that its path names. The file is then determined at the exit, from the new descriptor. A call that fails
/// has not changed the file that its path leads to.
pub fn opens(call: &DecodedCall) -> bool {
    let is_open = matches!(
        i64::from(call.nr),
        libc::SYS_open | libc::SYS_openat | libc::SYS_openat2 | libc::SYS_creat
    );
    // The path of an O_TMPFILE is that of a directory.
    let is_nameless = call
        .open_flags()
        .is_some_and(|flags| flags & libc::O_TMPFILE as u64 == libc::O_TMPFILE as u64);
    is_open && !is_nameless
}

/// At the exit of a call: the files that its arguments and its result name.
pub fn after(names: &ThreadNames<'_>, recorded: &mut Recorded, result: i64) -> Vec<(u8, File)> {
    if !names.are_wanted() {
        return Vec::new();
    }
    let returned = returned_descriptor(&recorded.call, result);
    let path = returned.and_then(|number| names.descriptor(number));
    if opens(&recorded.call) {
        match &path {
            Some(_) => recorded.call.name(&Opened {
                names,
                path: path.clone(),
            }),
            None => recorded.call.name(names),
        }
        recorded.paths = names.paths.take();
    }
    let returned = returned.and_then(|number| names.of_descriptor(number, path));
    if !names.details.files {
        return returned.map(|file| (RESULT, file)).into_iter().collect();
    }
    let mut files = std::mem::take(&mut recorded.closing);
    if files.is_empty() {
        files = names.of_descriptors(&recorded.call);
    }
    match &returned {
        Some(file) if opens(&recorded.call) => {
            let path = paths(&recorded.call).next();
            files.extend(path.map(|(index, ..)| (index, file.clone())));
        }
        _ => files.extend(of_paths(recorded, result)),
    }
    files.extend(returned.map(|file| (RESULT, file)));
    files
}

/// The descriptor that a call has returned.
pub fn returned_descriptor(call: &DecodedCall, result: i64) -> Option<i32> {
    let returns = call.signature?.returns;
    let number = i32::try_from(result).ok()?;
    (returns == Returns::Descriptor && number >= 0).then_some(number)
}

/// The paths among a call's arguments, as given, with where they lead.
pub fn paths(call: &DecodedCall) -> impl Iterator<Item = (u8, &[u8], &Option<Box<[u8]>>)> {
    let values = (0..).zip(&call.args);
    values.filter_map(|(index, value)| match value {
        Value::Path { given, resolved } => Some((index, &**given, resolved)),
        _ => None,
    })
}

/// The files of a call's paths.
fn of_paths(recorded: &mut Recorded, result: i64) -> Vec<(u8, File)> {
    let mut files = Vec::new();
    let call = &recorded.call;
    let mut opened = recorded.paths.drain(..);
    let makes_name = result >= 0 && makes_name(call);
    for (index, _, resolved) in paths(call) {
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
