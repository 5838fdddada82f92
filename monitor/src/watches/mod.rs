//! inotify(7) in mounts: the watches of tracees, and how the monitor raises their events.
//!
//! A tracee's inotify descriptor is the kernel's own. In a mount it watches a *mirror*: a host object that stands for the virtual one
//! (`mirrors`). A handler that has changed a watched file reports that (`report`), and the monitor repeats the change on the mirrors
//! (`events`), so the kernel makes the events, merges them and counts their overflow. No handler sees reads and closes; `openings` repeats
//! them. The back end reports changes by other runs and commands (`foreign`). For a back end with host files nothing of this is needed: the
//! watch is on the host file itself.
//!
//! In a run without watches a handler only tests a flag. See ADR 0086.
//!
//! Lock order: `names`, then the locks of the back end; `state` is a leaf except for the registry of the participants, and the lock of `notifications` is
//! one.

mod events;
mod foreign;
mod mirrors;
pub mod notifications;
mod openings;
pub mod report;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;

use goanna_sys::procfs;
use goanna_vfs::{Caller, Errno, Place, Result, Subscriber, TxnId};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rustix::fs::inotify::{self, WatchFlags};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::errno::{errno, from_rustix};
use crate::participants::end_observer::{Ended, Ends};
use events::{Event, Repeater};
use foreign::Foreign;
use mirrors::{Entry, Listing, MirrorId, Mirrors, View};
use notifications::Notifications;
use openings::{IsOpen, Openings};

/// The limit on changes of a transaction that are kept for watches outside of it. Beyond it the monitor finds the changes in directories by
/// comparing them with their mirrors.
const PENDING_MAX: usize = 1 << 16;
/// Number of sweeps between two searches for mirrors that no program watches any more.
const SWEEPS_BETWEEN_LOOKS: u64 = 20;

/// The changes of a transaction that watches outside of it do not see yet.
#[derive(Debug, Default)]
struct Pending {
    events: Vec<Event>,
    is_cut: bool,
}

#[derive(Debug, Default)]
struct State {
    mirrors: Mirrors,
    openings: Option<Openings>,
    pending: HashMap<TxnId, Pending>,
    /// One for each mount with a watch.
    foreign: HashMap<u64, Option<Arc<Foreign>>>,
    /// Dropping it ends the thread that repeats reads and closes.
    _stop: Option<OwnedFd>,
}

/// All watches of a run in its mounts.
#[derive(Debug, Default)]
pub struct Watches {
    in_use: AtomicBool,
    /// Held for reading from before a name changes until that is reported, for writing while a directory's names are listed for a new
    /// mirror.
    names: RwLock<()>,
    state: Mutex<State>,
    /// Directory notifications, if a program has ever asked for one.
    notifications: OnceLock<Notifications>,
    sweeps: AtomicU64,
}

thread_local! {
    /// The run whose call this thread answers, as the address of its [`Watches`]: the handler reports its changes itself.
    static ANSWERING: Cell<usize> = const { Cell::new(0) };
}

/// While this exists, the back end's reports of the thread's changes are ignored: the handler reports them itself.
#[derive(Debug)]
pub struct Answering(usize);

impl Drop for Answering {
    fn drop(&mut self) {
        ANSWERING.set(self.0);
    }
}

/// A watch that is to be added.
pub struct Request<'a> {
    /// The inode.
    pub place: &'a Place,
    /// The transaction whose changes it reports before they are committed.
    pub view: Option<TxnId>,
    /// The tracee's inotify descriptor.
    pub inotify: BorrowedFd<'a>,
    /// The mask argument of inotify_add_watch(2).
    pub mask: u32,
    /// The directory for mirrors.
    pub base: &'a Path,
}

impl Watches {
    /// Whether anything in a mount is watched.
    pub fn in_use(&self) -> bool {
        self.in_use.load(Ordering::Relaxed)
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// From now on the thread reports its changes itself.
    pub fn answering(&self) -> Option<Answering> {
        self.in_use()
            .then(|| Answering(ANSWERING.replace(self.address())))
    }

    /// Returns a lock that a caller holds while a name changes, until the change is reported.
    fn hold_names(&self) -> RwLockReadGuard<'_, ()> {
        self.names.read()
    }

    /// Adds a watch and returns its number. ENOSPC, EEXIST and EINVAL as inotify_add_watch(2).
    pub fn add(self: &Arc<Self>, caller: &Caller, request: &Request<'_>) -> Result<i32> {
        let place = request.place;
        self.watch_foreign(place);
        let _alone = self.names.write();
        self.in_use.store(true, Ordering::Relaxed);
        let known = self.state.lock().mirrors.find(&place.key(), request.view);
        let id = match known {
            Some(id) => id,
            None => {
                let names = list(caller, place)?;
                let mut state = self.state.lock();
                self.start(&mut state, request.base)?;
                state.mirrors.make(place, request.view, names)?
            }
        };
        let mut state = self.state.lock();
        let mirror = state.mirrors.get_mut(id).ok_or(Errno::ENOENT)?;
        let flags = WatchFlags::from_bits_retain(request.mask);
        let added = inotify::add_watch(request.inotify, &mirror.path, flags);
        let watch = added.map_err(from_rustix)?;
        mirror.mask |= request.mask;
        Ok(watch)
    }

    /// Starts the thread that repeats reads and closes, once.
    fn start(self: &Arc<Self>, state: &mut State, base: &Path) -> Result<(), Errno> {
        state.mirrors.set_base(base)?;
        if state.openings.is_some() {
            return Ok(());
        }
        let openings = Openings::new()?;
        let [inotify, doubt] = openings.sources().map(|fd| fd.try_clone_to_owned());
        let sources = [inotify.map_err(errno)?, doubt.map_err(errno)?];
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| errno(error.into()))?;
        let watches = Arc::downgrade(self);
        thread::Builder::new()
            .name("watches".into())
            .spawn(move || repeat_openings(&watches, &sources, &stopped))
            .map_err(errno)?;
        state.openings = Some(openings);
        state._stop = Some(stop);
        Ok(())
    }

    /// Subscribes to the back end's reports of changes that this run's calls have not made.
    fn watch_foreign(self: &Arc<Self>, place: &Place) {
        let whole = place.mount.whole();
        let mount = whole.number;
        if self.state.lock().foreign.contains_key(&mount) {
            return;
        }
        let foreign = Arc::new(Foreign::new(self, whole));
        let subscriber: Arc<dyn Subscriber> = Arc::<Foreign>::clone(&foreign);
        let reports = place
            .mount
            .fs
            .identity()
            .is_some_and(|identity| identity.subscribe(Arc::downgrade(&subscriber)).is_ok());
        let foreign = reports.then_some(foreign);
        self.state.lock().foreign.entry(mount).or_insert(foreign);
    }

    /// Repeats `events` in the mirrors that `sees` accepts.
    fn repeat(
        &self,
        state: &mut State,
        events: &[Event],
        sees: &dyn Fn(View) -> bool,
        is_open: &IsOpen<'_>,
    ) {
        if let Some(openings) = &mut state.openings {
            openings.repeat();
        }
        let mut repeater = Repeater {
            mirrors: &mut state.mirrors,
            openings: state.openings.as_mut(),
            sees,
            is_open,
        };
        for event in events {
            repeater.repeat(event);
        }
    }

    /// Sends the signals of directory notifications for what the call has changed. Called after each handler.
    pub fn raise_notifications(&self) {
        if let Some(notifications) = self.notifications.get() {
            notifications.raise();
        }
    }

    /// Changes the notifications of a directory. `watch` adds a watch of it to the given inotify instance.
    pub fn notify(
        self: &Arc<Self>,
        request: notifications::Request,
        watch: impl FnOnce(BorrowedFd<'_>) -> Result<i32>,
    ) -> Result<()> {
        let notifications = match self.notifications.get() {
            Some(notifications) => notifications,
            None if request.is_end() => return Ok(()),
            None => self.start_notifications()?,
        };
        if request.is_end() {
            notifications.end(request.by);
            return Ok(());
        }
        let watch = watch(notifications.inotify())?;
        notifications.add(watch, request);
        Ok(())
    }

    /// Starts the thread that sends the signals for what no handler sees.
    fn start_notifications(self: &Arc<Self>) -> Result<&Notifications, Errno> {
        let new = Notifications::new()?;
        let readable = new.inotify().try_clone_to_owned().map_err(errno)?;
        if self.notifications.set(new).is_ok() {
            let watches = Arc::downgrade(self);
            thread::Builder::new()
                .name("notifications".into())
                .spawn(move || repeat_notifications(&watches, &readable))
                .map_err(errno)?;
        }
        self.notifications.get().ok_or(Errno::EAGAIN)
    }

    /// Removes mirrors that no process of `threads` watches, and forgets files that none of them has open.
    pub fn sweep(&self, threads: impl FnOnce() -> Vec<i32>) {
        if let Some(notifications) = self.notifications.get() {
            notifications.sweep();
        }
        if !self.in_use() {
            return;
        }
        if let Some(openings) = &mut self.state.lock().openings {
            openings.sweep();
        }
        let sweep = self.sweeps.fetch_add(1, Ordering::Relaxed);
        if !(sweep + 1).is_multiple_of(SWEEPS_BETWEEN_LOOKS) {
            return;
        }
        let _alone = self.names.write();
        let mut watched = watched_by(threads());
        if let Some(notifications) = self.notifications.get() {
            let own = std::process::id().cast_signed();
            watched.extend(watched_by_descriptor(
                own,
                notifications.inotify().as_raw_fd(),
            ));
        }
        let mut state = self.state.lock();
        for id in state.mirrors.ids() {
            let is_watched = |mirror: &mirrors::Mirror| watched.contains(&mirror.ino);
            if !state.mirrors.get(id).is_some_and(is_watched) {
                state.mirrors.remove(id);
            }
        }
        if state.mirrors.len() == 0 {
            state.pending.clear();
            self.in_use.store(false, Ordering::Relaxed);
        }
    }
}

impl Ends for Watches {
    fn during(&self, end: &mut dyn FnMut()) {
        let _answering = self.answering();
        end();
    }

    fn ended(&self, ended: &Ended<'_>) {
        if !self.in_use() {
            return;
        }
        let mut state = self.state.lock();
        let mut pending = state.pending.remove(&ended.id).unwrap_or_default();
        let nobody = |_: &_| None;
        let mut stale = Vec::new();
        if ended.is_committed {
            let sees = |view: View| (ended.is_around)(view) && !(ended.is_inside)(view);
            self.repeat(&mut state, &pending.events, &sees, &nobody);
            if pending.is_cut {
                stale = state.mirrors.ids();
            }
            if let Some(around) = ended.around {
                state.pending.entry(around).or_default().add(pending);
            }
        } else {
            // The transactions inside it have ended, too.
            let inside = state
                .pending
                .extract_if(|id, _| (ended.is_inside)(Some(*id)));
            for (_, inner) in inside.collect::<Vec<_>>() {
                pending.add(inner);
            }
            // To undo a change is one more change.
            let is_touch = |event: &&Event| matches!(event, Event::Touched { .. });
            let touched: Vec<_> = pending.events.iter().filter(is_touch).cloned().collect();
            self.repeat(
                &mut state,
                &touched,
                &|view| (ended.is_inside)(view),
                &nobody,
            );
            let changed: HashSet<_> = pending.events.iter().flat_map(Event::directories).collect();
            let is_stale = |id: &MirrorId| {
                let mirror = state.mirrors.get(*id);
                mirror.is_some_and(|mirror| {
                    (ended.is_inside)(mirror.view)
                        && (pending.is_cut || changed.contains(&mirror.place.key()))
                })
            };
            stale = state.mirrors.ids().into_iter().filter(is_stale).collect();
        }
        for mirror in state.mirrors.iter_mut() {
            if (ended.is_inside)(mirror.view) {
                mirror.view = ended.around;
            }
        }
        drop(state);
        self.compare(&stale);
    }
}

impl Pending {
    fn add(&mut self, other: Self) {
        self.is_cut |= other.is_cut;
        for event in other.events {
            self.push(event);
        }
    }

    fn push(&mut self, event: Event) {
        if self.events.len() < PENDING_MAX {
            self.events.push(event);
        } else {
            self.is_cut = true;
        }
    }
}

/// The names in a directory; none of anything else.
fn list(caller: &Caller, place: &Place) -> Result<Listing> {
    let mut names = Vec::new();
    if place.node.is_dir() {
        let mount = place.key().0;
        place
            .mount
            .fs
            .readdir(caller, &place.node, 0, &mut |entry| {
                let is_dir = entry.kind == goanna_vfs::FileKind::Directory;
                let node = (mount, entry.ino);
                names.push((entry.name.to_vec(), Entry { node, is_dir }));
                true
            })?;
    }
    Ok(names)
}

/// Repeats reads and closes as they happen, until the run's watches are dropped.
fn repeat_openings(watches: &Weak<Watches>, sources: &[OwnedFd; 2], stopped: &OwnedFd) {
    let [inotify, doubt] = sources;
    loop {
        let mut fds =
            [inotify, doubt, stopped].map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN));
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return,
        }
        let Some(watches) = watches.upgrade() else {
            return;
        };
        if let Some(openings) = &mut watches.state.lock().openings {
            openings.repeat();
        }
    }
}

/// Sends the signals of directory notifications, until the run's watches are dropped.
fn repeat_notifications(watches: &Weak<Watches>, readable: &OwnedFd) {
    const LOOK: u16 = 1000;
    loop {
        let mut fds = [PollFd::new(readable.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, LOOK);
        let Some(watches) = watches.upgrade() else {
            return;
        };
        watches.raise_notifications();
    }
}

/// Inode numbers of all objects that these threads watch.
fn watched_by(threads: Vec<i32>) -> HashSet<u64> {
    let mut watched = HashSet::new();
    for tid in threads {
        for fd in procfs::fds(tid).unwrap_or_default() {
            if is_inotify(tid, fd) {
                watched.extend(watched_by_descriptor(tid, fd));
            }
        }
    }
    watched
}

/// Inode numbers of the objects that an inotify descriptor of a thread watches.
fn watched_by_descriptor(tid: i32, fd: i32) -> Vec<u64> {
    let info = fs::read_to_string(format!("/proc/{tid}/fdinfo/{fd}"));
    info.iter().flat_map(|info| inodes(info)).collect()
}

/// The inode numbers in the fdinfo of an inotify descriptor.
fn inodes(info: &str) -> impl Iterator<Item = u64> {
    let words = info.split_ascii_whitespace();
    let numbers = words.filter_map(|word| word.strip_prefix("ino:"));
    numbers.filter_map(|number| u64::from_str_radix(number, 16).ok())
}

/// Whether descriptor `fd` of a thread is an inotify instance.
pub fn is_inotify(tid: i32, fd: i32) -> bool {
    let link = nix::fcntl::readlink(format!("/proc/{tid}/fd/{fd}").as_str());
    link.is_ok_and(|name| name == "anon_inode:inotify")
}
