//! Stops programs that could read a file while a commit changes it.
//!
//! A program reads a file in a store without the monitor, from an object that a commit may have to change in place because the program
//! has it open. During that change, every thread that could see incomplete content is stopped. The committing thread sends each of
//! them a SIGSTOP of our own ([`goanna_sys::pause`]), and waits until none is in its program or in a call that reads: a thread that
//! sleeps in another call stops before it returns, so it needs no wait. The supervisor gets the reports of these stops. It continues
//! the threads when the commit is done, and starts no new ones before that ([`Pause::wait_until_over`]).
//!
//! Nothing here waits for another thread of the monitor, because it may be waiting for the commit.
//!
//! Not stopped are processes outside of the run that have taken a descriptor out of it, and a process that takes a
//! descriptor out of a socket in that very instant. A SIGCONT that comes in that instant ends the stop early.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use goanna_sys::descriptor_tables::with_own_tables;
use goanna_sys::procfs::{self, Activity, SleepingCall};
use goanna_sys::signals;
use goanna_vfs::{Errno, Holder, Readers};
use parking_lot::{Condvar, Mutex};

use crate::Monitor;
use crate::process::deliveries::Deliveries;
use crate::shadow::Identity;

/// A thread that does not stop within this time hangs in the kernel. The commit, which is in the log by then, stops waiting for it.
const LIMIT: Duration = Duration::from_secs(2);

/// The interval at which threads that have not stopped yet are checked.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Commits that have stopped threads of a run.
#[derive(Debug, Default)]
pub struct Pause {
    under_way: Mutex<usize>,
    over: Condvar,
    /// Threads that are about to get a descriptor of an object.
    pub deliveries: Deliveries,
}

impl Pause {
    fn begin(&self) {
        *self.under_way.lock() += 1;
    }

    fn end(&self) {
        let mut under_way = self.under_way.lock();
        *under_way = under_way.saturating_sub(1);
        if *under_way == 0 {
            self.over.notify_all();
        }
    }

    /// Waits until no commit needs the threads of the run stopped.
    pub fn wait_until_over(&self) {
        let mut under_way = self.under_way.lock();
        while *under_way > 0 {
            self.over.wait(&mut under_way);
        }
    }
}

impl Readers for Monitor {
    fn pause(&self, objects: &[Identity]) -> Vec<Holder> {
        self.pause.begin();
        let limit = Instant::now() + LIMIT;
        let mut holders = Vec::new();
        let mut stopped = HashSet::new();
        // A process that was not stopped yet may have passed a descriptor to another one, or started it. So repeat until no more are
        // found.
        loop {
            let before = stopped.len();
            // Read before the descriptors: a thread that is not among these already has its descriptor.
            let deliveries = self.pause.deliveries.threads();
            let are_shared = self.in_process.may_open(objects);
            let may_open =
                |tid: &i32| deliveries.contains(tid) || are_shared && self.in_process.has_map(*tid);
            let mut left: HashSet<i32> = self.alive.all().into_iter().collect();
            while let Some(tid) = left.iter().next().copied() {
                let threads = procfs::threads(tid).unwrap_or_default();
                left.remove(&tid);
                for thread in &threads {
                    left.remove(thread);
                }
                if threads.iter().any(|thread| stopped.contains(thread)) {
                    continue;
                }
                let held = held_objects(&threads, objects);
                if held.is_empty() && !threads.iter().any(may_open) {
                    continue;
                }
                stopped.extend(self.halt(tid, limit));
                for thread in threads {
                    let txn = self.participants.current(thread);
                    holders.extend(held.iter().map(|&object| Holder { object, txn }));
                }
            }
            if stopped.len() == before {
                return holders;
            }
        }
    }

    fn resume(&self) {
        self.pause.end();
    }

    fn users(&self, object: Identity) -> usize {
        let mut users = 0;
        let mut counted = HashSet::new();
        loop {
            // A process that was not there yet may have inherited a descriptor that the other one has closed since.
            let all = self.alive.all();
            let new: Vec<i32> = all
                .into_iter()
                .filter(|tid| !counted.contains(tid))
                .collect();
            if new.is_empty() {
                return users;
            }
            for tid in new {
                if counted.insert(tid) {
                    let threads = procfs::threads(tid).unwrap_or_default();
                    users += users_in(&threads, object);
                    counted.extend(threads);
                }
            }
        }
    }
}

impl Monitor {
    /// Stops all threads of the process of thread `tid`, and returns them.
    fn halt(&self, tid: i32, limit: Instant) -> HashSet<i32> {
        let mut sent = HashSet::new();
        let Ok(pid) = procfs::status(tid).map(|status| status.tgid) else {
            return sent;
        };
        loop {
            let threads = procfs::threads(pid).unwrap_or_default();
            let new: Vec<i32> = threads
                .into_iter()
                .filter(|thread| sent.insert(*thread))
                .collect();
            for thread in &new {
                // The thread may have ended.
                let _ = signals::pause(pid, *thread);
            }
            let all_stand = sent.iter().all(|thread| self.stands_still(*thread));
            if all_stand && new.is_empty() || Instant::now() > limit {
                return sent;
            }
            if !all_stand {
                thread::sleep(POLL_INTERVAL);
            }
        }
    }

    /// Whether a thread that was sent our SIGSTOP can no longer read in its program or in the kernel before it stops.
    fn stands_still(&self, tid: i32) -> bool {
        match procfs::activity(tid) {
            Ok(Activity::Running) => false,
            Ok(Activity::Sleeping) => match procfs::sleeping_call(tid) {
                // The thread runs again, or waits for a page.
                Ok(None | Some(SleepingCall { number: -1, .. })) => false,
                Ok(Some(call)) if reads_content(call.number) => self.in_flight.has(tid),
                _ => true,
            },
            Ok(Activity::Stopped | Activity::Ended) | Err(_) => true,
        }
    }
}

/// The objects of the descriptors of the process that these threads belong to, one for each descriptor.
fn open_objects(threads: &[i32]) -> impl Iterator<Item = Identity> {
    with_own_tables(threads).into_iter().flat_map(|tid| {
        let fds = procfs::fds(tid).unwrap_or_default().into_iter();
        fds.filter_map(move |fd| procfs::fd_identity(tid, fd).ok())
    })
}

/// Number of descriptors and mappings of the object that the process of these threads has.
fn users_in(threads: &[i32], object: Identity) -> usize {
    let descriptors = open_objects(threads).filter(|open| *open == object).count();
    let maps = threads
        .iter()
        .any(|tid| match procfs::mapped_inodes(*tid, &[object.1]) {
            Ok(mapped) => !mapped.is_empty(),
            // It has ended.
            Err(Errno::ESRCH) => false,
            Err(_) => true,
        });
    descriptors + usize::from(maps)
}

/// Those of `objects` that the process of these threads has open or mapped.
fn held_objects(threads: &[i32], objects: &[Identity]) -> Vec<Identity> {
    let mut held = Vec::new();
    let mut add = |object: Identity| {
        if objects.contains(&object) && !held.contains(&object) {
            held.push(object);
        }
    };
    open_objects(threads).for_each(&mut add);
    let inodes: Vec<u64> = objects.iter().map(|object| object.1).collect();
    let maps = |tid: &i32| procfs::mapped_inodes(*tid, &inodes).ok();
    let mapped = threads.iter().find_map(maps).unwrap_or_default();
    for object in objects {
        if mapped.contains(&object.1) {
            add(*object);
        }
    }
    held
}

/// Calls that read the content of a file in the kernel, and can sleep while they do.
fn reads_content(nr: i64) -> bool {
    matches!(
        nr,
        libc::SYS_read
            | libc::SYS_pread64
            | libc::SYS_readv
            | libc::SYS_preadv
            | libc::SYS_preadv2
            | libc::SYS_sendfile
            | libc::SYS_splice
            | libc::SYS_copy_file_range
    )
}
