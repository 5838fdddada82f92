//! Directory notifications (`F_NOTIFY` of fcntl(2), Documentation/filesystems/dnotify.rst of Linux).
//!
//! The monitor watches the directory itself, as a program would by inotify(7), and sends the signals. A handler that has repeated a change on the mirrors does that before its call returns, as
//! the kernel. No handler sees that the descriptor is closed, which ends the notifications: it is looked at before each signal.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use goanna_sys::descriptor_tables::{OfThread, have_common_description};
use goanna_sys::lease::Owner;
use goanna_vfs::Errno;
use parking_lot::Mutex;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader};

use crate::errno::from_rustix;

/// The events of `F_NOTIFY`, with those of inotify that they stand for; linux/fcntl.h.
const EVENTS: [(u32, u32); 5] = [
    (1, libc::IN_ACCESS),
    (2, libc::IN_MODIFY),
    (4, libc::IN_CREATE | libc::IN_MOVED_TO),
    (8, libc::IN_DELETE | libc::IN_MOVED_FROM),
    (0x20, libc::IN_ATTRIB),
];
/// A rename within the directory, which inotify reports as two moves.
const DN_RENAME: u32 = 0x10;
const DN_MULTISHOT: u32 = 0x8000_0000;

/// The time within which the kernel reports both halves of a rename.
const RENAME_WAIT: Duration = Duration::from_millis(1);

/// An event of inotify(7): the watch, what happened, and the cookie of a rename.
type Event = (i32, ReadFlags, u32);

/// What a program asks for.
#[derive(Debug)]
pub struct Request {
    /// The descriptor of the directory: process ID and number.
    pub by: OfThread,
    /// The argument of fcntl(2).
    pub events: u32,
    /// The monitor's copy of it: another description may get its number.
    pub copy: OwnedFd,
}

impl Request {
    /// Whether it ends notifications, and begins none.
    pub fn is_end(&self) -> bool {
        self.events & !DN_MULTISHOT == 0
    }

    /// The events of inotify(7) that raise a signal.
    pub fn mask(&self) -> u32 {
        let renames = (DN_RENAME, libc::IN_MOVE);
        let all = EVENTS.iter().chain([&renames]);
        let wanted = all.filter(|(event, _)| self.events & event != 0);
        wanted.fold(0, |mask, (_, of_inotify)| mask | of_inotify)
    }

    /// Whether one of these events, of `F_NOTIFY`, is wanted.
    fn wants(&self, events: u32) -> bool {
        self.events & events & !DN_MULTISHOT != 0
    }

    fn is_open(&self) -> bool {
        self.is_of(self.by)
    }

    /// Whether a descriptor is the one by which it was made, or a copy of it in the same process.
    fn is_of(&self, descriptor: OfThread) -> bool {
        let own = (std::process::id().cast_signed(), self.copy.as_raw_fd());
        self.by.0 == descriptor.0 && have_common_description(own, descriptor) == Ok(true)
    }
}

/// The notifications of a run.
#[derive(Debug)]
pub struct Notifications {
    inotify: OwnedFd,
    by_watch: Mutex<HashMap<i32, Vec<Request>>>,
}

impl Notifications {
    /// EMFILE, ENFILE: the user has no inotify instance left.
    pub fn new() -> Result<Self, Errno> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC);
        Ok(Self {
            inotify: inotify.map_err(from_rustix)?,
            by_watch: Mutex::default(),
        })
    }

    /// The inotify instance to add watches to. It becomes readable when [`Notifications::raise`] has something to do.
    pub fn inotify(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// Notifies as `request` asks, in addition to what the same descriptor has asked for before. `watch` is the directory's.
    pub fn add(&self, watch: i32, request: Request) {
        let mut by_watch = self.by_watch.lock();
        let requests = by_watch.entry(watch).or_default();
        requests.retain(Request::is_open);
        let mut known = requests.iter_mut();
        match known.find(|known| known.is_of(request.by)) {
            Some(known) => (known.by, known.events) = (request.by, known.events | request.events),
            None => requests.push(request),
        }
    }

    /// Ends the notifications of the descriptor.
    pub fn end(&self, by: OfThread) {
        self.retain(|request| !request.is_of(by));
    }

    /// Ends those whose descriptors are closed.
    pub fn sweep(&self) {
        self.retain(Request::is_open);
    }

    fn retain(&self, is_kept: impl Fn(&Request) -> bool) {
        let mut by_watch = self.by_watch.lock();
        for requests in by_watch.values_mut() {
            requests.retain(&is_kept);
        }
        self.remove_unused(&mut by_watch);
    }

    /// Removes the watches that no request needs any more.
    fn remove_unused(&self, by_watch: &mut HashMap<i32, Vec<Request>>) {
        let unused = by_watch.extract_if(|_, requests| requests.is_empty());
        for (watch, _) in unused {
            let _ = inotify::remove_watch(&self.inotify, watch);
        }
    }

    fn read(&self) -> Vec<Event> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        let mut events = Vec::new();
        while let Ok(event) = reader.next() {
            events.push((event.wd(), event.events(), event.cookie()));
        }
        events
    }

    /// Sends the signals for what has happened.
    pub fn raise(&self) {
        let mut by_watch = self.by_watch.lock();
        let mut events = self.read();
        let is_half = |last: &Event| last.1.contains(ReadFlags::MOVED_FROM);
        if events.last().is_some_and(is_half) {
            // The kernel may be about to report the other half of a rename.
            std::thread::sleep(RENAME_WAIT);
            events.extend(self.read());
        }
        for (at, (watch, event, cookie)) in events.iter().enumerate() {
            let Some(requests) = by_watch.get_mut(watch) else {
                continue;
            };
            if event.contains(ReadFlags::IGNORED) {
                by_watch.remove(watch);
                continue;
            }
            let is_other_half = |other: &Event| {
                (other.0, other.2) == (*watch, *cookie) && other.1.contains(ReadFlags::MOVED_TO)
            };
            let is_from = event.contains(ReadFlags::MOVED_FROM);
            if is_from && events.iter().skip(at).any(is_other_half) {
                signal(requests, DN_RENAME);
            }
            let of_inotify = event.bits();
            let these = EVENTS.iter().filter(|(_, mask)| mask & of_inotify != 0);
            signal(requests, these.fold(0, |events, (event, _)| events | event));
        }
        self.remove_unused(&mut by_watch);
    }
}

/// Sends the signals of the requests for one of these events. Those without DN_MULTISHOT end.
fn signal(requests: &mut Vec<Request>, events: u32) {
    requests.retain(|request| {
        if !request.is_open() {
            return false;
        }
        if !request.wants(events) {
            return true;
        }
        if let Ok(Some(owner)) = Owner::of(request.copy.as_fd()) {
            // A process that has ended gets no signal, nor does one that belongs to another user.
            let _ = owner.signal(request.by.1);
        }
        request.events & DN_MULTISHOT != 0
    });
}
