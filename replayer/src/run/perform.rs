//! Performs commands: each becomes the system call that it stands for, on a descriptor of the resource table, or on a name in a directory
//! below the root.

use std::ffi::{CStr, CString};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use amino_schema::replay::{Call, Command, Content, Place, Target};
use goanna_sys::Errno;
use goanna_sys::clock::monotonic_ns;
use goanna_sys::replay::{self as sys, Attribute, Mapping, PLAIN, Returned, Sync};

use super::cached::Cached;
use super::options::{Reads, Verify};
use super::places::Places;
use super::shared::{LONG_READS, Shared};
use crate::Error;

/// The outcome of a command.
#[derive(Debug)]
pub enum Outcome {
    /// The result of the call.
    Result(Returned),
    /// A read that was left out.
    SkippedRead,
    /// A change of ownership that was left out.
    SkippedOwner,
}

/// Performs the commands of a lane.
#[derive(Debug)]
pub struct Performer {
    pub shared: Arc<Shared>,
    places: Places,
    cached: Cached,
    /// The destination of reads.
    pub buffer: Vec<u8>,
    /// Bytes of it that come from [`Shared::spare`].
    extra: usize,
}

/// Bytes of a lane's buffer. A longer read gets more while it lasts, if its content is compared; otherwise it uses the same bytes
/// repeatedly.
const BUFFER: usize = 1 << 20;
/// Bytes of the smallest buffer.
const FIRST_BUFFER: usize = 64 << 10;
/// Bytes from which a read costs less without a copy: on Linux 6.18, 1 KiB take 270 ns with a copy and 375 without, 8 KiB 420 and 375,
/// 64 KiB 2500 and 660.
const WITHOUT_COPY: usize = 16 << 10;
/// How long a command waits for a lock.
const PATIENCE_NS: u64 = 5_000_000_000;
/// Pauses between attempts to get a lock.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LAST_PAUSE: Duration = Duration::from_millis(20);
/// Longest read or write of the kernel (`MAX_RW_COUNT`).
const MAX_LENGTH: u64 = 0x7fff_f000;

impl Performer {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self {
            places: Places::new(shared.root, shared.handles, shared.is_watched),
            shared,
            cached: Cached::new(),
            buffer: vec![0; FIRST_BUFFER],
            extra: 0,
        }
    }

    /// Performs a command. An error means that the compiled file is wrong; an error of the kernel is an outcome.
    pub fn perform(&mut self, command: &Command) -> Result<Outcome, Error> {
        if let Call::Write | Call::Pwrite | Call::Setxattr = command.call {
            return self.writing(command).map(Outcome::Result);
        }
        if let Call::Read | Call::Pread = command.call {
            return Ok(self.reading(command));
        }
        self.cached.forget();
        let outcome = match command.call {
            Call::Begin => self.begin(command),
            Call::Chown if !self.shared.may_chown => return Ok(Outcome::SkippedOwner),
            Call::Map | Call::Unmap | Call::Drop | Call::Touch | Call::Msync => {
                self.memory(command)
            }
            Call::Open | Call::Restore => self.open(command),
            Call::Close | Call::Release => self.close(command),
            Call::Dup | Call::Inherit => self.duplicate(command),
            _ => match command.targets.as_slice() {
                [Target::Slot(slot)] => self.on_descriptor(command, *slot),
                [Target::Place(place)] => self.on_place(command, place),
                [from, to] => self.on_two(command, from, to),
                _ => Err(Errno::EINVAL),
            },
        };
        Ok(Outcome::Result(outcome))
    }

    fn begin(&mut self, command: &Command) -> Returned {
        self.places.announce_thread(number(command, 0));
        Ok(0)
    }

    fn descriptor(&self, target: &Target) -> i32 {
        match target {
            Target::Slot(slot) => self.shared.descriptor(*slot),
            Target::Place(_) => -1,
        }
    }

    fn first(&self, command: &Command) -> i32 {
        let target = command.targets.first();
        target.map_or(-1, |target| self.descriptor(target))
    }

    /// The handle of a place's directory.
    fn directory(&mut self, place: &Place) -> Result<i32, Errno> {
        let path = self
            .shared
            .stored
            .index
            .directories
            .get(place.directory as usize);
        let path = path.ok_or(Errno::ENOENT)?;
        self.places.handle(place.directory, path)
    }

    fn open(&mut self, command: &Command) -> Returned {
        let Some(Target::Place(place)) = command.targets.first() else {
            return Err(Errno::EINVAL);
        };
        let directory = self.directory(place)?;
        let name = c_string(&place.name)?;
        let (mut flags, second) = (number(command, 0), number(command, 1));
        let making = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u64;
        let is_restore = command.call == Call::Restore;
        // openat2(2) refuses what open(2) ignores: a mode without O_CREAT, and unknown flags.
        let mode = if flags & making == 0 || is_restore {
            0
        } else {
            second & 0o7777
        };
        flags &= KNOWN_FLAGS;
        if is_restore {
            flags &= !((libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC) as u64);
            self.places.announce();
        }
        let descriptor = self.open_at_once(directory, &name, flags, mode)?;
        if is_restore && second > 0 {
            self.places.announce();
            // A file that cannot be positioned has no offset.
            let _ = sys::seek(descriptor, second.cast_signed(), libc::SEEK_SET);
        }
        let Some(slot) = command.result else {
            self.places.close(descriptor);
            return Ok(descriptor.into());
        };
        self.replace(slot, descriptor);
        if let Some(name) = self.shared.names.get(slot as usize) {
            *name.lock() = Some(place.clone());
        }
        Ok(descriptor.into())
    }

    /// Opens a file without waiting: the other end of a FIFO may never be opened. The descriptor stays non-blocking, which means nothing for
    /// files and directories; asking whether it is a FIFO would be a further call for each open.
    fn open_at_once(
        &self,
        directory: i32,
        name: &CStr,
        flags: u64,
        mode: u64,
    ) -> Result<i32, Errno> {
        let asked = (libc::O_NONBLOCK | libc::O_PATH) as u64;
        if flags & asked != 0 {
            return Ok(sys::open(directory, name, flags, mode, PLAIN)? as i32);
        }
        self.places.announce_at_once();
        let at_once = flags | libc::O_NONBLOCK as u64;
        Ok(sys::open(directory, name, at_once, mode, PLAIN)? as i32)
    }

    fn is_fifo(&self, descriptor: i32) -> bool {
        self.places.announce();
        let attributes = sys::stat(descriptor, c"");
        attributes.is_ok_and(|it| it.mode & libc::S_IFMT == libc::S_IFIFO)
    }

    /// F_GETFD and the like. F_SETFL does not make a FIFO blocking.
    fn descriptor_flags(&self, fd: i32, command: i32, argument: i32) -> Returned {
        let blocks = command == libc::F_SETFL && argument & libc::O_NONBLOCK == 0;
        let argument = match blocks && self.is_fifo(fd) {
            true => argument | libc::O_NONBLOCK,
            false => argument,
        };
        sys::flags(fd, command, argument)
    }

    /// Tries for a lock until `act` has it, or fails for another reason, or the time is over. Locks that processes outside of the replay
    /// hold, or that a hostile trace takes twice, do not hang the replay.
    fn retry_until_locked(&self, act: impl Fn() -> Returned) -> Result<(), Errno> {
        let end = monotonic_ns().saturating_add(PATIENCE_NS);
        let mut pause = FIRST_PAUSE;
        loop {
            self.places.announce();
            match act() {
                Err(Errno::EAGAIN | Errno::EACCES) => {}
                other => return other.map(|_| ()),
            }
            if monotonic_ns() >= end || self.shared.is_stopped() {
                return Err(Errno::ETIMEDOUT);
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(LAST_PAUSE);
        }
    }

    fn flock(&self, fd: i32, operation: i32) -> Returned {
        if operation & (libc::LOCK_NB | libc::LOCK_UN) == 0 {
            self.retry_until_locked(|| sys::flock(fd, operation | libc::LOCK_NB))?;
        }
        // The lock is held already: this is the call of the trace, which does not wait.
        sys::flock(fd, operation)
    }

    fn lock(&self, fd: i32, command: i32, range: (i16, i16, i64, i64)) -> Returned {
        let at_once = match command {
            libc::F_SETLKW => Some(libc::F_SETLK),
            libc::F_OFD_SETLKW => Some(libc::F_OFD_SETLK),
            libc::F_SETLK | libc::F_GETLK | libc::F_OFD_SETLK | libc::F_OFD_GETLK => None,
            _ => return Err(Errno::EINVAL),
        };
        if let Some(at_once) = at_once {
            self.retry_until_locked(|| sys::lock(fd, at_once, range))?;
        }
        sys::lock(fd, command, range)
    }

    /// Puts a descriptor into a slot. Closes the old one, which remains if a call had another result in the trace.
    fn replace(&self, slot: u32, descriptor: i32) {
        let before = self.shared.hold(slot, descriptor);
        if before >= 0 && before != descriptor {
            self.places.close(before);
        }
    }

    fn close(&mut self, command: &Command) -> Returned {
        let Some(Target::Slot(slot)) = command.targets.first() else {
            return Err(Errno::EINVAL);
        };
        let descriptor = self.shared.hold(*slot, -1);
        if command.call == Call::Release {
            if descriptor >= 0 {
                self.places.close(descriptor);
            }
            return Ok(0);
        }
        sys::close(descriptor)
    }

    fn duplicate(&mut self, command: &Command) -> Returned {
        let descriptor = self.first(command);
        let Some(slot) = command.result else {
            // dup2(2) of a descriptor onto itself, or one that failed.
            return sys::flags(descriptor, libc::F_GETFD, 0);
        };
        if command.call == Call::Inherit {
            self.places.announce();
        }
        let before = self.shared.descriptor(slot);
        let onto = Some(before).filter(|before| *before >= 0);
        let copy = sys::duplicate(descriptor, onto)? as i32;
        self.shared.hold(slot, copy);
        if let (Some(Target::Slot(from)), Some(name)) = (
            command.targets.first(),
            self.shared.names.get(slot as usize),
        ) {
            let from = self.shared.names.get(*from as usize);
            let place = from.and_then(|from| from.lock().clone());
            *name.lock() = place;
        }
        Ok(copy.into())
    }

    fn reading(&mut self, command: &Command) -> Outcome {
        let descriptor = self.first(command);
        let asked = command.data.as_ref().map_or(0, |data| data.length);
        let offset = (command.call == Call::Pread).then(|| number(command, 0).cast_signed());
        if self.is_left_out(command, descriptor, asked, offset) {
            let moved = command.expected.filter(|it| *it > 0);
            if let (None, Some(moved)) = (offset, moved) {
                let _ = sys::seek(descriptor, moved, libc::SEEK_CUR);
            }
            return Outcome::SkippedRead;
        }
        if asked > i64::MAX as u64 {
            return Outcome::Result(Err(Errno::EINVAL));
        }
        let length = asked.min(MAX_LENGTH) as usize;
        if let Some(returned) = self.read_without_copy(command, descriptor, length, offset) {
            return Outcome::Result(returned);
        }
        self.reserve(length);
        if self.is_compared(command) {
            self.extend(length);
        }
        Outcome::Result(sys::read(descriptor, &mut self.buffer, length, offset))
    }

    /// Performs a long read whose content is not compared: sendfile(2) uses the same pages of the page cache, without a copy. `None` if the
    /// kernel refuses, or if a copy costs less.
    fn read_without_copy(
        &self,
        command: &Command,
        descriptor: i32,
        length: usize,
        offset: Option<i64>,
    ) -> Option<Returned> {
        if length < WITHOUT_COPY || self.is_compared(command) {
            return None;
        }
        let sink = self.shared.sink.as_ref()?;
        // An error may be that of sendfile(2): a read shows its own.
        let sent = sys::send(descriptor, offset, sink.as_raw_fd(), length);
        sent.ok().map(Ok)
    }

    /// Whether the content that a read returns is compared with the trace.
    pub fn is_compared(&self, command: &Command) -> bool {
        let content = command.data.as_ref().map(|data| &data.content);
        self.shared.options.verify != Verify::Off
            && !matches!(content, None | Some(Content::Unknown))
    }

    /// Makes the buffer long enough for a long read, as far as the other lanes leave memory.
    fn extend(&mut self, length: usize) {
        let length = length.min(LONG_READS);
        if length <= self.buffer.len() {
            return;
        }
        let take = |spare: usize| spare.checked_sub(length);
        let taken = self.shared.spare.fetch_update(Relaxed, Relaxed, take);
        if taken.is_ok() {
            self.extra = length;
            // New memory takes pages only where the read fills it.
            self.buffer = vec![0; length];
        }
    }

    /// Returns the memory of a long read.
    pub fn shorten(&mut self) {
        if self.extra > 0 {
            self.buffer = vec![0; FIRST_BUFFER];
            self.shared.spare.fetch_add(self.extra, Relaxed);
            self.extra = 0;
        }
    }

    fn reserve(&mut self, length: usize) {
        if self.buffer.len() < length {
            let capacity = length.next_power_of_two().min(BUFFER);
            self.buffer.resize(capacity.max(self.buffer.len()), 0);
        }
    }

    fn is_left_out(
        &mut self,
        command: &Command,
        descriptor: i32,
        asked: u64,
        offset: Option<i64>,
    ) -> bool {
        match self.shared.options.reads {
            Reads::Now => false,
            Reads::None => true,
            Reads::Uncached => {
                let moved = command.expected.filter(|it| *it >= 0).unwrap_or(0);
                let offset = offset.or_else(|| sys::seek(descriptor, 0, libc::SEEK_CUR).ok());
                let length = asked.min(moved.unsigned_abs());
                offset.is_some_and(|offset| {
                    length == 0 || self.cached.has(descriptor, offset.unsigned_abs(), length)
                })
            }
        }
    }

    fn writing(&mut self, command: &Command) -> Result<Returned, Error> {
        let shared = &self.shared;
        let Some(data) = &command.data else {
            return Ok(Err(Errno::EFAULT));
        };
        if data.length > i64::MAX as u64 {
            return Ok(Err(Errno::EINVAL));
        }
        let mut left = data.length.min(MAX_LENGTH) as usize;
        let mut pieces: Vec<&[u8]> = Vec::new();
        if let Content::Buffers(buffers) = &data.content {
            for buffer in buffers {
                let bytes = shared.buffer(*buffer)?;
                let bytes = bytes.get(..left).unwrap_or(bytes);
                left -= bytes.len();
                pieces.push(bytes);
            }
        }
        while left > 0 && pieces.len() < sys::MAX_VECTORS {
            let bytes = shared.generated.get(..left).unwrap_or(&shared.generated);
            left -= bytes.len();
            pieces.push(bytes);
        }
        if command.call == Call::Setxattr {
            let value = pieces.concat();
            return Ok(self.set_attribute(command, &value));
        }
        if pieces.is_empty() {
            pieces.push(&[]);
        }
        let offset = (command.call == Call::Pwrite).then(|| number(command, 0).cast_signed());
        Ok(sys::write(self.first(command), &pieces, offset))
    }

    fn set_attribute(&mut self, command: &Command, value: &[u8]) -> Returned {
        let name = c_string(command.text.as_deref().unwrap_or_default())?;
        let flags = number(command, 0) as i32;
        self.with_path(command, |path| {
            sys::attribute(path, Attribute::Set(&name, value, flags))
        })
    }

    /// Performs a call on a path that leads only to the command's file: the path of a descriptor in /proc.
    fn with_path(&mut self, command: &Command, act: impl FnOnce(&CStr) -> Returned) -> Returned {
        let target = command.targets.first().ok_or(Errno::EINVAL)?;
        let (descriptor, is_own) = match target {
            Target::Slot(slot) => (self.shared.descriptor(*slot), false),
            Target::Place(place) => match self.examine(place) {
                Ok(handle) => (handle, true),
                Err(why) => {
                    let handle = self.places.placeholder(why)?;
                    let path = format!("/proc/self/fd/{handle}/missing");
                    return act(&c_string(path.as_bytes())?);
                }
            },
        };
        let path = CString::new(format!("/proc/self/fd/{descriptor}")).map_err(|_| Errno::EINVAL);
        let result = match descriptor {
            0.. => path.and_then(|path| act(&path)),
            _ => Err(Errno::EBADF),
        };
        if is_own {
            self.places.close(descriptor);
        }
        result
    }

    /// A handle of the file at a place, which the caller closes. No link is followed.
    fn examine(&mut self, place: &Place) -> Result<i32, Errno> {
        let directory = self.directory(place)?;
        let (name, is_directory) = match place.name.strip_suffix(b"/") {
            Some(name) => (name, libc::O_DIRECTORY),
            None => (place.name.as_slice(), 0),
        };
        let name = c_string(name)?;
        let flags = libc::O_PATH | libc::O_NOFOLLOW | is_directory;
        self.places.announce();
        Ok(sys::open(directory, &name, flags as u64, 0, PLAIN)? as i32)
    }

    fn on_descriptor(&mut self, command: &Command, slot: u32) -> Returned {
        let fd = self.shared.descriptor(slot);
        let (first, second, third) = (number(command, 0), number(command, 1), number(command, 2));
        match command.call {
            Call::Seek => sys::seek(fd, first.cast_signed(), second as i32),
            Call::Truncate => sys::truncate(fd, first.cast_signed()),
            Call::Allocate => {
                let (offset, length) = (second.cast_signed(), third.cast_signed());
                sys::allocate(fd, first as i32, offset, length)
            }
            Call::Sync => sys::sync(fd, synchronising(command)),
            Call::Advise => {
                let advice = (third != u64::MAX).then_some(third as i32);
                sys::advise(fd, first.cast_signed(), second as usize, advice)
            }
            Call::Readdir => {
                let capacity = (first as usize).min(BUFFER);
                self.reserve(capacity);
                let into = self.buffer.get_mut(..capacity).unwrap_or_default();
                sys::entries(fd, into)
            }
            Call::Flock => self.flock(fd, first as i32),
            Call::Lock => {
                let number = |index| number(command, index);
                let (start, length) = (number(3).cast_signed(), number(4).cast_signed());
                let range = (number(1) as i16, number(2) as i16, start, length);
                self.lock(fd, first as i32, range)
            }
            Call::Fcntl => self.descriptor_flags(fd, first as i32, second as i32),
            Call::Statfs => sys::statfs(fd),
            Call::Chdir => sys::chdir(fd),
            _ => self.on_file(command, fd, c""),
        }
    }

    fn on_place(&mut self, command: &Command, place: &Place) -> Returned {
        let first = number(command, 0);
        match command.call {
            Call::Statfs => return self.with_path(command, sys::statfs_path),
            Call::Chdir => return self.with_path(command, sys::chdir_path),
            Call::Truncate => {
                return self.with_path(command, |path| {
                    sys::truncate_path(path, first.cast_signed())
                });
            }
            _ => {}
        }
        let makes = matches!(
            command.call,
            Call::Unlink | Call::Rmdir | Call::Mkdir | Call::Mknod | Call::Symlink
        );
        if !makes && place.name.ends_with(b"/") {
            // With a slash behind its name, the kernel would follow a link.
            let handle = self.examine(place)?;
            let result = self.on_file(command, handle, c"");
            self.places.close(handle);
            return result;
        }
        let directory = self.directory(place)?;
        let name = c_string(&place.name)?;
        match command.call {
            Call::Unlink => sys::unlink(directory, &name, false),
            Call::Rmdir => sys::unlink(directory, &name, true),
            Call::Mkdir => sys::mkdir(directory, &name, first as u32 & 0o7777),
            Call::Mknod => sys::mknod(directory, &name, first as u32),
            Call::Symlink => {
                let target = c_string(command.text.as_deref().unwrap_or_default())?;
                sys::symlink(&target, directory, &name)
            }
            _ => self.on_file(command, directory, &name),
        }
    }

    /// Calls on a name in a directory, or on a descriptor where the name is empty. They follow no link.
    fn on_file(&mut self, command: &Command, fd: i32, name: &CStr) -> Returned {
        let (first, second) = (number(command, 0), number(command, 1));
        match command.call {
            Call::Stat => sys::stat(fd, name).map(|_| 0),
            Call::Access => sys::access(fd, name, first as i32, second as i32 & libc::AT_EACCESS),
            Call::Readlink => {
                let capacity = (first as usize).min(libc::PATH_MAX as usize);
                let into = self.buffer.get_mut(..capacity).unwrap_or_default();
                sys::readlink(fd, name, into)
            }
            Call::Chmod => sys::chmod(fd, name, first as u32 & 0o7777),
            Call::Chown => sys::chown(fd, name, first as u32, second as u32),
            Call::Utimes => sys::utimes(fd, name, times(command)),
            Call::Getxattr | Call::Listxattr | Call::Removexattr => self.attribute(command),
            _ => Err(Errno::EINVAL),
        }
    }

    fn attribute(&mut self, command: &Command) -> Returned {
        let name = c_string(command.text.as_deref().unwrap_or_default())?;
        let capacity = (number(command, 0) as usize).min(BUFFER);
        self.reserve(capacity);
        let mut buffer = std::mem::take(&mut self.buffer);
        let into = buffer.get_mut(..capacity).unwrap_or_default();
        let result = self.with_path(command, |path| {
            let what = match command.call {
                Call::Getxattr => Attribute::Get(&name, into),
                Call::Listxattr => Attribute::List(into),
                _ => Attribute::Remove(&name),
            };
            sys::attribute(path, what)
        });
        self.buffer = buffer;
        result
    }

    fn on_two(&mut self, command: &Command, from: &Target, to: &Target) -> Returned {
        let number = |index| number(command, index);
        match (command.call, from, to) {
            (Call::Rename, Target::Place(from), Target::Place(to)) => {
                let (one, other) = (self.directory(from)?, self.directory(to)?);
                let names = (c_string(&from.name)?, c_string(&to.name)?);
                sys::rename((one, &names.0), (other, &names.1), number(0) as u32)
            }
            (Call::Link, from, Target::Place(to)) => {
                let directory = self.directory(to)?;
                let name = c_string(&to.name)?;
                match from {
                    Target::Slot(slot) => {
                        sys::link((self.shared.descriptor(*slot), c""), (directory, &name))
                    }
                    Target::Place(from) => {
                        let start = self.directory(from)?;
                        let old = from.name.strip_suffix(b"/").unwrap_or(&from.name);
                        sys::link((start, &c_string(old)?), (directory, &name))
                    }
                }
            }
            (Call::Copy, Target::Slot(from), Target::Slot(to)) => {
                let (from, to) = (self.shared.descriptor(*from), self.shared.descriptor(*to));
                let at = |index| Some(number(index).cast_signed()).filter(|it| *it != -1);
                let length = number(2) as usize;
                match number(3) {
                    0 => sys::copy(from, at(0), to, at(1), length),
                    _ => sys::send(from, at(0), to, length),
                }
            }
            (Call::Clone, Target::Slot(from), Target::Slot(to)) => {
                let (from, to) = (self.shared.descriptor(*from), self.shared.descriptor(*to));
                let range = (number(3) != 0).then(|| (number(0), number(1), number(2)));
                sys::clone(from, to, range)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn memory(&mut self, command: &Command) -> Returned {
        let number = |index| number(command, index);
        if command.call == Call::Map {
            let fd = self.first(command);
            let (prot, flags) = (number(1) as i32, number(2) as i32);
            let mapping = Mapping::new(fd, number(0), prot, flags, number(3).cast_signed())?;
            let slot = number(4)
                .checked_sub(1)
                .and_then(|it| usize::try_from(it).ok());
            if let Some(slot) = slot.and_then(|slot| self.shared.mappings.get(slot)) {
                *slot.write() = Some(mapping);
            }
            return Ok(0);
        }
        let slot = usize::try_from(number(0)).unwrap_or(usize::MAX);
        let slot = self.shared.mappings.get(slot).ok_or(Errno::EINVAL)?;
        if let Call::Unmap | Call::Drop = command.call {
            if command.call == Call::Drop {
                self.places.announce();
            }
            let before = slot.write().take();
            return before.map(|_| 0).ok_or(Errno::EINVAL);
        }
        let mapping = slot.read();
        let mapping = mapping.as_ref().ok_or(Errno::EINVAL)?;
        let done = match command.call {
            Call::Touch => mapping.touch(number(1), number(2), number(3) != 0),
            _ => mapping.sync(number(1), number(2), number(3) as i32),
        };
        done.map(|()| 0)
    }
}

/// The flags that openat2(2) takes.
const KNOWN_FLAGS: u64 = (libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_NOCTTY
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_DSYNC
    | libc::O_SYNC
    | libc::O_DIRECT
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_NOATIME
    | libc::O_PATH
    | libc::O_TMPFILE) as u64;

fn number(command: &Command, index: usize) -> u64 {
    command.numbers.get(index).copied().unwrap_or(0)
}

fn c_string(bytes: &[u8]) -> Result<CString, Errno> {
    CString::new(bytes).map_err(|_| Errno::EINVAL)
}

fn synchronising(command: &Command) -> Sync {
    let number = |index| number(command, index);
    match number(0) {
        0 => Sync::All,
        1 => Sync::Data,
        2 => {
            let (offset, bytes) = (number(1).cast_signed(), number(2).cast_signed());
            Sync::Range(offset, bytes, number(3) as u32)
        }
        _ => Sync::FileSystem,
    }
}

fn times(command: &Command) -> Option<[(i64, i64); 2]> {
    match command.numbers.as_slice() {
        [first, second, third, fourth] => Some([
            (first.cast_signed(), second.cast_signed()),
            (third.cast_signed(), fourth.cast_signed()),
        ]),
        _ => None,
    }
}
