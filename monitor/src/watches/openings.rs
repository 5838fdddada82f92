//! Opens of watched files: `IN_OPEN`, `IN_ACCESS` and `IN_CLOSE_*`.
//!
//! Programs read and close the cache object (or backing directory) without a call to the monitor. So for each open of a watched file the
//! monitor opens the file's mirrors with the same access mode, and keeps these descriptors. Its own inotify watches the object: when
//! a program has closed it, the monitor closes the mirrors.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use goanna_sys::object_handle::ObjectHandle;
use goanna_vfs::PlaceKey;
use nix::errno::Errno;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{CWD, Mode, OFlags};

use super::mirrors::{MirrorId, Touch};
use crate::errno::from_rustix;

/// The limit on open descriptors of mirrors. Further opens raise no events.
const HELD_MAX: usize = 2048;

/// Time between two looks at a file whose close is in doubt.
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The open mirrors of one open of a file.
#[derive(Debug)]
struct Held {
    reads: bool,
    writes: bool,
    files: Vec<(MirrorId, OwnedFd)>,
}

/// One object that programs have open.
#[derive(Debug)]
struct Opening {
    place: PlaceKey,
    held: Vec<Held>,
    /// The object that the monitor watches.
    mask: WatchFlags,
    /// Determines whether a program has it open; none for a directory.
    handle: Option<Arc<ObjectHandle>>,
    /// Number of descriptors that the monitor is about to close: for reading, for writing.
    own: [usize; 2],
    /// Whether a close was reported of which the lease test did not know: for reading, for writing.
    in_doubt: [bool; 2],
}

impl Opening {
    /// The number of reported opens, or of those for writing.
    fn known_opens(&self, for_writing: bool) -> usize {
        let known = self.held.iter().filter(|held| !for_writing || held.writes);
        known.count()
    }

    /// What the lease test asks.
    fn asked(&self) -> Option<&ObjectHandle> {
        let handle = self.handle.as_deref();
        handle.filter(|handle| handle.asks_silently())
    }

    /// Whether the one known open still exists. The back end opens and closes the object for its own purposes, too. The kernel reports a close
    /// shortly before the lease test knows of it (`__fput` in fs/file_table.c). Opens that are not reported do not count: there are none any more.
    fn is_still_open(&self, for_writing: bool) -> bool {
        let Some(handle) = self.asked() else {
            return false;
        };
        self.known_opens(for_writing) == 1
            && if for_writing {
                handle.open_for_write_elsewhere()
            } else {
                !handle.sole_known_opener()
            }
    }
}

/// The handle of the object by which programs have a file open.
pub(super) type IsOpen<'a> = dyn Fn(&PlaceKey) -> Option<Arc<ObjectHandle>> + 'a;

/// An open of a file that the mirrors must repeat.
pub(super) struct Open<'a> {
    pub place: PlaceKey,
    /// The tracee's open file description.
    pub fd: BorrowedFd<'a>,
    pub handle: Option<Arc<ObjectHandle>>,
    /// `O_RDONLY`, `O_WRONLY` or `O_RDWR`.
    pub access: i32,
    /// Whether the tracee opens the object again, so that the monitor closes one more description of it.
    pub twice: bool,
    /// Whether reads are watched.
    pub reads: bool,
}

impl Open<'_> {
    fn writes(&self) -> bool {
        self.access != libc::O_RDONLY
    }
}

/// The opens of watched files that are repeated on mirrors.
#[derive(Debug)]
pub(super) struct Openings {
    inotify: OwnedFd,
    /// A timer that expires while a close is in doubt.
    doubt: TimerFd,
    by_watch: HashMap<i32, Opening>,
    /// Mirrors of removed files that a program still has open.
    dying: Vec<(Arc<ObjectHandle>, OwnedFd)>,
}

impl Openings {
    /// EMFILE, ENFILE: the user has no inotify instance left.
    pub fn new() -> Result<Self, Errno> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC);
        Ok(Self {
            inotify: inotify.map_err(from_rustix)?,
            doubt: TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC)?,
            by_watch: HashMap::new(),
            dying: Vec::new(),
        })
    }

    /// One of them becomes readable when [`Openings::repeat`] has something to do.
    pub fn sources(&self) -> [BorrowedFd<'_>; 2] {
        [self.inotify.as_fd(), self.doubt.as_fd()]
    }

    /// `IN_OPEN` for the mirrors at `paths`.
    pub fn open(&mut self, open: Open<'_>, paths: &[(MirrorId, impl AsRef<Path>)]) {
        let held: usize = self
            .by_watch
            .values()
            .map(|opening| opening.held.len())
            .sum();
        if held >= HELD_MAX {
            return;
        }
        let access = if open.writes() {
            OFlags::WRONLY
        } else {
            OFlags::RDONLY
        };
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mirror = |(id, path): &(MirrorId, _)| {
            let path: &Path = AsRef::as_ref(path);
            Some((
                *id,
                rustix::fs::openat(CWD, path, flags, Mode::empty()).ok()?,
            ))
        };
        let files: Vec<_> = paths.iter().filter_map(mirror).collect();
        let object = format!("/proc/self/fd/{}", open.fd.as_raw_fd());
        let mut mask = WatchFlags::CLOSE_WRITE | WatchFlags::CLOSE_NOWRITE | WatchFlags::MASK_ADD;
        mask.set(WatchFlags::ACCESS, open.reads);
        let Ok(watch) = inotify::add_watch(&self.inotify, object.as_str(), mask) else {
            return;
        };
        let writes = open.writes();
        let opening = self.by_watch.entry(watch).or_insert_with(|| Opening {
            place: open.place,
            mask,
            held: Vec::new(),
            handle: open.handle,
            own: [0, 0],
            in_doubt: [false; 2],
        });
        opening.in_doubt = [false; 2];
        opening.own[usize::from(writes)] += usize::from(open.twice);
        opening.held.push(Held {
            reads: open.access != libc::O_WRONLY,
            writes,
            files,
        });
    }

    /// From now on the content of a file is in another object. The program that has the file open gets that object.
    pub fn relocate(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        handle: Arc<ObjectHandle>,
    ) {
        let object = |fd: BorrowedFd<'_>| format!("/proc/self/fd/{}", fd.as_raw_fd());
        let mask = WatchFlags::CLOSE_WRITE | WatchFlags::MASK_ADD;
        let Ok(former) = inotify::add_watch(&self.inotify, object(from), mask) else {
            return;
        };
        let opening = self.by_watch.remove(&former);
        let _ = inotify::remove_watch(&self.inotify, former);
        if let Some(opening) = opening
            && let Ok(watch) = inotify::add_watch(&self.inotify, object(to), opening.mask)
        {
            let handle = Some(handle);
            self.by_watch.insert(watch, Opening { handle, ..opening });
        }
    }

    /// Whether a program has opened the file since the watch was added.
    pub fn is_open(&self, place: &PlaceKey) -> bool {
        self.by_watch
            .values()
            .any(|opening| opening.place == *place)
    }

    /// The open mirrors of a file.
    pub fn of(&self, place: &PlaceKey) -> &[(MirrorId, OwnedFd)] {
        let mut all = self.by_watch.values();
        let opening = all.find(|opening| opening.place == *place);
        let held = opening.and_then(|opening| opening.held.last());
        held.map_or(&[], |held| &held.files)
    }

    /// Keeps the mirror of a removed file until no program has the file open.
    pub fn keep(&mut self, handle: Arc<ObjectHandle>, mirror: OwnedFd) {
        self.dying.push((handle, mirror));
    }

    /// Repeats the accesses and closes of programs since the last call.
    pub fn repeat(&mut self) {
        self.settle();
        let mut own = self.repeat_events();
        while let Some((watch, writes)) = own.pop() {
            if self.is_closed_behind_own(watch, writes) {
                // Reads before that close have been reported by now.
                own.extend(self.repeat_events());
                if self.is_closed_behind_own(watch, writes) {
                    self.close(watch, writes);
                }
            }
        }
        self.set_timer();
    }

    /// Repeats what the kernel has reported. Returns the closes of the monitor's own.
    fn repeat_events(&mut self) -> Vec<(i32, bool)> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Vec::new();
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        while let Ok(event) = reader.next() {
            events.push((event.wd(), event.events()));
        }
        let mut own = Vec::new();
        for (watch, events) in events {
            own.extend(self.repeat_one(watch, events));
        }
        own
    }

    /// Any thread may have found a close that is in doubt, and the one that waits for the timer looks at it again.
    fn set_timer(&self) {
        let is_in_doubt = |opening: &Opening| opening.in_doubt != [false; 2];
        // Without the timer, the close is reported by the next sweep.
        let _ = if self.by_watch.values().any(is_in_doubt) {
            let once = Expiration::OneShot(CLOSE_POLL_INTERVAL.into());
            self.doubt.set(once, TimerSetTimeFlags::empty())
        } else {
            self.doubt.unset()
        };
    }

    /// Repeats an event. Returns the watch, and whether the close was one for writing, if it is the monitor's own close.
    fn repeat_one(&mut self, watch: i32, events: ReadFlags) -> Option<(i32, bool)> {
        if events.contains(ReadFlags::IGNORED) {
            self.by_watch.remove(&watch);
            return None;
        }
        let opening = self.by_watch.get_mut(&watch)?;
        // The back end reads the object, too, to find writes of programs.
        let mut readers = opening.held.iter().filter(|held| held.reads);
        if events.contains(ReadFlags::ACCESS)
            && let Some(held) = readers.next_back()
        {
            for (_, file) in &held.files {
                Touch::Access.of(file);
            }
        }
        let writes = events.contains(ReadFlags::CLOSE_WRITE);
        if !writes && !events.contains(ReadFlags::CLOSE_NOWRITE) {
            return None;
        }
        let own = &mut opening.own[usize::from(writes)];
        if *own > 0 {
            *own -= 1;
            return Some((watch, writes));
        }
        let is_open = opening.is_still_open(writes);
        opening.in_doubt[usize::from(writes)] = is_open;
        if !is_open {
            self.close(watch, writes);
        }
        None
    }

    /// The monitor has closed the object itself. The kernel merges a program's close with that if it follows at once; then the lease test shows it.
    fn is_closed_behind_own(&self, watch: i32, writes: bool) -> bool {
        self.by_watch.get(&watch).is_some_and(|opening| {
            opening.known_opens(writes) == 1
                && opening.asked().is_some()
                && !opening.is_still_open(writes)
        })
    }

    /// Repeats the closes that were in doubt and of which the lease test knows now.
    fn settle(&mut self) {
        for writes in [false, true] {
            let is_closed = |opening: &Opening| {
                opening.in_doubt[usize::from(writes)] && !opening.is_still_open(writes)
            };
            let openings = self.by_watch.iter();
            let closed: Vec<i32> = openings
                .filter(|(_, opening)| is_closed(opening))
                .map(|(watch, _)| *watch)
                .collect();
            for watch in closed {
                self.close(watch, writes);
            }
        }
    }

    /// Closes the mirrors of one open.
    fn close(&mut self, watch: i32, writes: bool) {
        let Some(opening) = self.by_watch.get_mut(&watch) else {
            return;
        };
        opening.in_doubt[usize::from(writes)] = false;
        if let Some(at) = opening.held.iter().position(|held| held.writes == writes) {
            opening.held.remove(at);
        }
        if opening.held.is_empty() {
            self.forget(watch);
        }
    }

    fn forget(&mut self, watch: i32) {
        self.by_watch.remove(&watch);
        let _ = inotify::remove_watch(&self.inotify, watch);
    }

    /// Closes the mirrors of files that no program has open any more. This is needed because the kernel merges equal events, and drops
    /// events when the queue is full.
    pub fn sweep(&mut self) {
        self.repeat();
        let is_closed = |handle: &Option<Arc<ObjectHandle>>| {
            handle
                .as_ref()
                .is_some_and(|handle| handle.sole_known_opener())
        };
        let closed = self
            .by_watch
            .iter()
            .filter(|(_, opening)| is_closed(&opening.handle));
        let closed: Vec<i32> = closed.map(|(watch, _)| *watch).collect();
        if !closed.is_empty() {
            // Reads before these closes have been reported by now.
            self.repeat();
        }
        for watch in closed {
            self.forget(watch);
        }
        for opening in self.by_watch.values_mut() {
            opening.in_doubt = [false; 2];
        }
        self.dying.retain(|(handle, _)| !handle.sole_known_opener());
    }
}
