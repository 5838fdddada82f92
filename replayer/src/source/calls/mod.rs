//! Translates calls: the step that each call makes, and its effect on the descriptors of its process.

mod attributes;
mod content;
mod descriptors;
mod memory;
mod names;

use amino_schema::replay::{Call, MAX_SLOTS};
use goanna_syscalls::{Returns, by_name};

use super::fields::Fields;
use super::process::{Entry, Process, Slots, absolute, below};
use super::step::{Info, Name, Payload, Step, Subject};
use super::{own, subject};

/// The reason why a call makes no step.
type Skip = &'static str;

pub const OUTSIDE: Skip = "outside of the directory";
pub const NOT_REPLAYED: Skip = "calls that are not replayed";
const UNFINISHED: Skip = "calls that did not end";
const ASYNCHRONOUS: Skip =
    "requests of Linux AIO or io_uring, whose reads and writes the trace does not show";
const SPECIAL: Skip = "devices, FIFOs and sockets";

/// Name of the empty directory that replaces a missing one.
pub const PLACEHOLDER: &str = ".replayer-stand-in";
/// Name of the file that replaces a path component which is not a directory.
pub const PLACEHOLDER_FILE: &str = "replayer-stand-in";

/// Whether a path is that of such a replacement.
fn is_stand_in(path: &[u8]) -> bool {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    path.ends_with(PLACEHOLDER_FILE.as_bytes())
}

/// A call, and the state that it may change.
pub struct Look<'a, 'f> {
    pub name: &'a str,
    pub fields: &'a Fields<'f>,
    pub tid: i32,
    pub process: &'a mut Process,
    pub slots: &'a mut Slots,
    pub mappings: &'a mut Slots,
    pub directory: &'a [u8],
    pub steps: Vec<Step>,
    pub note: Option<(u64, u64)>,
    pub waited: Option<i32>,
    /// In the trace of a replay: path of the directory that was replaced.
    pub placeholder: Option<Vec<u8>>,
    /// In the trace of a replay: the descriptor that the thread has opened for its next call, and the path that it gave.
    pub examined: Option<(i32, Vec<u8>)>,
}

impl Look<'_, '_> {
    /// Makes the call's steps.
    pub fn call(&mut self) -> Result<(), Skip> {
        if self.result().is_none() {
            return Err(UNFINISHED);
        }
        match self.name {
            "open" | "openat" | "openat2" | "creat" => self.open(),
            "close" => self.close(),
            "close_range" => self.close_range(),
            "dup" | "dup2" | "dup3" => self.dup(),
            "fcntl" => self.fcntl(),
            "read" | "readv" | "pread64" | "preadv" | "preadv2" => self.read(),
            "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2" => self.write(),
            "lseek" => self.on_descriptor(Call::Seek, &["offset", "whence"]),
            "truncate" => self.on_path(Call::Truncate, None, "path", &["length"]),
            "ftruncate" => self.on_descriptor(Call::Truncate, &["length"]),
            "fallocate" => self.on_descriptor(Call::Allocate, &["mode", "offset", "size"]),
            "copy_file_range" | "sendfile" | "splice" => self.copy(),
            "ioctl" => self.ioctl(),
            "fsync" | "fdatasync" | "sync_file_range" | "syncfs" => self.sync(),
            "fadvise64" | "readahead" => self.advise(),
            "getdents" | "getdents64" => self.on_descriptor(Call::Readdir, &["count"]),
            "flock" => self.on_descriptor(Call::Flock, &["op"]),
            "umask" => self.umask(),
            "chdir" | "fchdir" => self.chdir(),
            "mmap" => self.map(),
            "munmap" => self.unmap(),
            "msync" => self.msync(),
            "touched" => self.touched(),
            "wait4" | "waitid" => self.wait(),
            name => self.by_path(name),
        }
    }

    /// Handles calls on paths, and calls that make descriptors of other objects.
    fn by_path(&mut self, name: &str) -> Result<(), Skip> {
        match name {
            "stat" | "lstat" | "newfstatat" | "statx" | "fstat" => self.stat(),
            "access" | "faccessat" | "faccessat2" => self.access(),
            "statfs" => self.on_path(Call::Statfs, None, "path", &[]),
            "fstatfs" => self.on_descriptor(Call::Statfs, &[]),
            "readlink" | "readlinkat" => self.readlink(),
            "unlink" | "unlinkat" | "rmdir" => self.unlink(),
            "mkdir" | "mkdirat" => self.mkdir(),
            "mknod" | "mknodat" => self.mknod(),
            "rename" | "renameat" | "renameat2" => self.rename(),
            "link" | "linkat" => self.link(),
            "symlink" | "symlinkat" => self.symlink(),
            "chmod" | "fchmod" | "fchmodat" | "fchmodat2" => self.chmod(),
            "chown" | "lchown" | "fchown" | "fchownat" => self.chown(),
            "utimensat" | "utime" | "utimes" | "futimesat" => self.utimes(),
            "getxattr" | "lgetxattr" | "fgetxattr" => self.xattr(Call::Getxattr),
            "setxattr" | "lsetxattr" | "fsetxattr" => self.xattr(Call::Setxattr),
            "listxattr" | "llistxattr" | "flistxattr" => self.xattr(Call::Listxattr),
            "removexattr" | "lremovexattr" | "fremovexattr" => self.xattr(Call::Removexattr),
            "io_submit" | "io_uring_enter" => Err(ASYNCHRONOUS),
            name => {
                let makes = by_name(name).map(|signature| signature.returns);
                if makes == Some(Returns::Descriptor) {
                    self.foreign();
                }
                Err(NOT_REPLAYED)
            }
        }
    }

    pub fn result(&self) -> Option<i64> {
        self.fields
            .number("result")
            .map(|it| it as i64)
            .or_else(|| {
                // An event, which has no result.
                (self.name == "touched").then_some(0)
            })
    }

    pub fn failed(&self) -> bool {
        self.result().is_some_and(|it| (-4095..0).contains(&it))
    }

    pub fn number(&self, name: &str) -> u64 {
        self.fields.number(name).unwrap_or(0)
    }

    /// When the call ended.
    pub fn ended_ns(&self) -> u64 {
        self.number("time").saturating_add(self.number("duration"))
    }

    pub fn step(&self, call: Call) -> Step {
        let entered_ns = self.number("time");
        Step {
            entered_ns,
            left_ns: entered_ns.saturating_add(self.number("duration")),
            result: self.result(),
            ..own(self.tid, entered_ns, call)
        }
    }

    /// A descriptor below the directory.
    pub fn slot(&self, name: &str) -> Result<Subject, Skip> {
        let number = self.fields.number(name).ok_or(OUTSIDE)? as i32;
        let entry = self.process.descriptors.get(&number).ok_or(OUTSIDE)?;
        let info = self.fields.info(name);
        Ok(Subject {
            info,
            ..subject(Name::Slot(entry.slot))
        })
    }

    /// A path below the directory; `start` is the descriptor that it is relative to.
    pub fn path(&mut self, start: Option<&str>, name: &str) -> Result<Subject, Skip> {
        let given = self.fields.bytes(name).ok_or(OUTSIDE)?;
        let start_path = self.start(start);
        if let Some(path) = self.placeholder.clone()
            && given.starts_with(b"/proc/self/fd/")
        {
            let slash = false;
            return Ok(subject(Name::Path { path, slash }));
        }
        if let (Some(path), Some(from)) = (&self.placeholder, &start_path)
            && is_stand_in(from)
        {
            let name = given.strip_suffix(b"/").unwrap_or(given);
            let path = [path, b"/".as_slice(), name].concat();
            let slash = name.len() < given.len();
            return Ok(subject(Name::Path { path, slash }));
        }
        if let Some((number, path)) = &self.examined
            && given.strip_prefix(b"/proc/self/fd/") == Some(number.to_string().as_bytes())
        {
            // A file with several names may be resolved to another one.
            let path = path.clone();
            let slash = false;
            return Ok(Subject {
                name: Name::Path { path, slash },
                info: self.fields.info(name),
            });
        }
        let path = match self.fields.text(name, "resolved") {
            Some(resolved) if resolved.first() == Some(&b'/') => absolute(b"/", resolved),
            _ => absolute(&start_path.ok_or(OUTSIDE)?, given),
        };
        let path = below(self.directory, &path).ok_or(OUTSIDE)?.to_vec();
        let slash = given.last() == Some(&b'/') && !path.is_empty();
        Ok(Subject {
            name: Name::Path { path, slash },
            info: self.fields.info(name),
        })
    }

    /// Where a relative path starts.
    fn start(&mut self, start: Option<&str>) -> Option<Vec<u8>> {
        let start = start.filter(|start| self.fields.has(start));
        let known = start.and_then(|start| self.fields.text(start, "path"));
        let number = start.and_then(|start| self.fields.number(start));
        let is_cwd = number.is_none_or(|it| it as i32 == libc::AT_FDCWD);
        match known {
            Some(path) => {
                if is_cwd {
                    self.process.cwd = Some(path.to_vec());
                }
                Some(path.to_vec())
            }
            None if is_cwd => self.process.cwd.clone(),
            None => None,
        }
    }

    /// A descriptor where the path is empty or NULL, else a path.
    pub fn either(&mut self, start: &str, name: &str) -> Result<Subject, Skip> {
        let is_empty = self.fields.bytes(name).is_some_and(<[u8]>::is_empty);
        if !is_empty && !self.fields.is_null(name) {
            return self.path(Some(start), name);
        }
        if self.fields.number(start).map(|it| it as i32) == Some(libc::AT_FDCWD) {
            let cwd = self.start(Some(start)).ok_or(OUTSIDE)?;
            let path = below(self.directory, &cwd).ok_or(OUTSIDE)?.to_vec();
            let slash = false;
            return Ok(subject(Name::Path { path, slash }));
        }
        let info = self.fields.info(name);
        let found = self.slot(start)?;
        let info = info.or(found.info);
        Ok(Subject { info, ..found })
    }

    pub fn on_descriptor(&mut self, call: Call, numbers: &[&str]) -> Result<(), Skip> {
        let mut step = self.step(call);
        step.targets = vec![self.slot("fd")?];
        step.numbers = numbers.iter().map(|name| self.number(name)).collect();
        self.steps.push(step);
        Ok(())
    }

    pub fn on_path(
        &mut self,
        call: Call,
        start: Option<&str>,
        name: &str,
        numbers: &[&str],
    ) -> Result<(), Skip> {
        let mut step = self.step(call);
        step.targets = vec![self.path(start, name)?];
        step.numbers = numbers.iter().map(|name| self.number(name)).collect();
        self.steps.push(step);
        Ok(())
    }

    /// Records that the call's result, a descriptor, names no file below the directory.
    pub fn foreign(&mut self) {
        if let Some(number) = self.result().filter(|it| *it >= 0) {
            self.reuse(number as i32);
        }
    }

    /// Records that the kernel has assigned `number`, so that it was free: if it had a file, the record of its close comes later.
    pub fn reuse(&mut self, number: i32) {
        if let Some(entry) = self.process.descriptors.remove(&number) {
            self.process.closing.entry(number).or_default().push(entry);
        }
    }

    /// The descriptor that a close(2) of `number` closes.
    pub fn closed(&mut self, number: i32) -> Option<Entry> {
        let entered_ns = self.number("time");
        let current = self.process.descriptors.get(&number);
        if current.is_some_and(|entry| entry.since_ns <= entered_ns) {
            return self.process.descriptors.remove(&number);
        }
        let waiting = self.process.closing.get_mut(&number);
        let earlier = waiting.and_then(Vec::pop);
        earlier.or_else(|| self.process.descriptors.remove(&number))
    }

    /// Records that descriptor `number` names another file from now on, or none, although no step does that.
    pub fn forget(&mut self, number: i32) {
        if let Some(entry) = self.process.descriptors.remove(&number) {
            let mut step = self.step(Call::Release);
            step.result = None;
            step.targets = vec![subject(Name::Slot(entry.slot))];
            self.slots.give(self.tid, entry.slot);
            self.steps.push(step);
        }
    }

    /// A slot for descriptor `number`.
    pub fn hold(&mut self, number: i32, cloexec: bool) -> Option<u32> {
        let slot = self.slots.take(self.tid, MAX_SLOTS)?;
        let entry = Entry {
            slot,
            cloexec,
            since_ns: self.ended_ns(),
        };
        self.process.descriptors.insert(number, entry);
        Some(slot)
    }

    pub fn payload(&self, name: &str, length: u64) -> Payload {
        self.fields.payload(name, length)
    }

    fn wait(&mut self) -> Result<(), Skip> {
        let result = self.result().unwrap_or(0);
        if self.name == "wait4" && result > 0 {
            self.waited = Some(result as i32);
        }
        Err(NOT_REPLAYED)
    }

    /// The mask is part of the modes that later calls get: see [`Self::mode`].
    fn umask(&mut self) -> Result<(), Skip> {
        self.process.umask = self.number("mask") as u32 & 0o777;
        Err(NOT_REPLAYED)
    }

    /// The permission bits with which a call makes a file: the recorded ones, else the requested ones without those of the mask.
    pub fn mode(&self, asked: u64, made: Option<Info>) -> u64 {
        match made.filter(|_| !self.failed()) {
            Some(info) => u64::from(info.mode & 0o7777),
            None => asked & !u64::from(self.process.umask),
        }
    }

    fn chdir(&mut self) -> Result<(), Skip> {
        let subject = match self.name {
            "fchdir" => self.slot("fd"),
            _ => self.path(None, "path"),
        };
        if !self.failed() {
            let whole = self.fields.text("fd", "path").map(<[u8]>::to_vec);
            let whole = whole.or_else(|| {
                let resolved = self.fields.text("path", "resolved").map(<[u8]>::to_vec);
                let given = self.fields.bytes("path")?;
                resolved.or_else(|| Some(absolute(self.process.cwd.as_deref()?, given)))
            });
            self.process.cwd = whole;
        }
        let mut step = self.step(Call::Chdir);
        step.targets = vec![subject?];
        self.steps.push(step);
        Ok(())
    }
}
