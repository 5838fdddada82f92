//! The threads that waiting calls share. They run jobs at once, at an instant, or when a descriptor can be read, and may block.
//!
//! A wait itself takes no thread. One thread, the clock, sleeps until the next instant or descriptor, and only hands jobs on. The others run
//! jobs; each may block in the kernel, so a job that finds no idle thread starts another one.
//!
//! The two mutexes in here are leaves in the lock order, and no job is run or dropped while one is held.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use goanna_sys::cred;
use goanna_vfs::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::SigSet;
use parking_lot::{Condvar, Mutex};

/// A piece of work.
pub type Job = Box<dyn FnOnce() + Send>;

/// Identifies a job that is not due yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(u64);

/// Threads without a job that are kept for the next one.
const IDLE_MAX: usize = 2;
/// The time after which the clock tries again to start a thread.
const RETRY: Duration = Duration::from_millis(10);
/// Maximum time that the clock sleeps.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// The number that the clock's epoll reports for the clock's own descriptor. No job has it.
const WAKE: u64 = 0;

/// Runs jobs on threads that may block. Clones share their threads, which end after the last clone and the last job.
#[derive(Clone, Default)]
pub struct Executor(Arc<Owner>);

#[derive(Default)]
struct Owner(Arc<Shared>);

#[derive(Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    added: Condvar,
    clock: Mutex<Option<Arc<Clock>>>,
}

#[derive(Default)]
struct Jobs {
    queue: VecDeque<Job>,
    idle: usize,
    /// Threads that were started and have not taken a job yet.
    starting: usize,
    is_closed: bool,
}

struct Clock {
    epoll: Epoll,
    wake: EventFd,
    alarms: Mutex<Alarms>,
}

#[derive(Default)]
struct Alarms {
    last: u64,
    timers: BTreeMap<(Instant, Id), Job>,
    readable: HashMap<Id, (OwnedFd, Job)>,
}

thread_local! {
    static IS_RETIRING: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread of an executor takes no other job: a signal of ours may still arrive at it.
pub fn retire_this_thread() {
    IS_RETIRING.set(true);
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Executor")
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.jobs.lock().is_closed = true;
        self.0.added.notify_all();
        if let Some(clock) = &*self.0.clock.lock() {
            clock.wake();
        }
    }
}

impl Executor {
    /// Runs `job` on a thread that may block. EAGAIN where none can be started; then the job does not run.
    pub fn run(&self, job: Job) -> Result<(), Errno> {
        let shared = &self.0.0;
        let mut jobs = shared.jobs.lock();
        if !shared.start_threads(&mut jobs, 1) {
            return Err(Errno::EAGAIN);
        }
        jobs.queue.push_back(job);
        shared.added.notify_one();
        Ok(())
    }

    /// Runs `job` on a thread that may block, as soon as there is one. Does not block.
    pub fn run_later(&self, job: Job) {
        self.0.0.run_later(job);
    }

    /// Runs `job` at an instant. EAGAIN, EMFILE where the clock cannot be started.
    pub fn at(&self, instant: Instant, job: Job) -> Result<Id, Errno> {
        let clock = self.0.0.clock()?;
        let mut alarms = clock.alarms.lock();
        let id = alarms.next();
        let is_first = alarms
            .timers
            .keys()
            .next()
            .is_none_or(|first| instant < first.0);
        alarms.timers.insert((instant, id), job);
        drop(alarms);
        if is_first {
            clock.wake();
        }
        Ok(id)
    }

    /// Runs `job` when a read of `fd` would not wait. EPERM for a descriptor that cannot be waited for; EAGAIN, EMFILE, ENOSPC.
    pub fn when_readable(&self, fd: OwnedFd, job: Job) -> Result<Id, Errno> {
        let clock = self.0.0.clock()?;
        let mut alarms = clock.alarms.lock();
        let id = alarms.next();
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT, id.0);
        clock.epoll.add(&fd, event)?;
        alarms.readable.insert(id, (fd, job));
        Ok(id)
    }

    /// Cancels a job that is not due yet.
    pub fn withdraw(&self, id: Id) -> Option<Job> {
        let clock = self.0.0.clock.lock().clone()?;
        let mut alarms = clock.alarms.lock();
        if let Some(job) = clock.take_readable(&mut alarms, id) {
            return Some(job);
        }
        let at = alarms
            .timers
            .keys()
            .find(|(_, timer)| *timer == id)
            .copied()?;
        alarms.timers.remove(&at)
    }
}

impl Alarms {
    fn next(&mut self) -> Id {
        self.last += 1;
        Id(self.last)
    }
}

impl Shared {
    fn run_later(self: &Arc<Self>, job: Job) {
        let mut jobs = self.jobs.lock();
        jobs.queue.push_back(job);
        let has_threads = self.start_threads(&mut jobs, 0);
        drop(jobs);
        self.added.notify_one();
        if !has_threads && let Ok(clock) = self.clock() {
            // The clock tries again.
            clock.wake();
        }
    }

    /// Makes sure that there is a thread for each job, and for `more` of them; false where one could not be started.
    fn start_threads(self: &Arc<Self>, jobs: &mut Jobs, more: usize) -> bool {
        if jobs.queue.len() + more <= jobs.idle + jobs.starting {
            return true;
        }
        let shared = Arc::clone(self);
        let thread = thread::Builder::new().name("waiting".into());
        let is_started = thread.spawn(move || shared.work()).is_ok();
        jobs.starting += usize::from(is_started);
        is_started
    }

    fn work(&self) {
        goanna_affinity::leave_one_cpu();
        let _ = SigSet::all().thread_block();
        let _ = cred::thread_owns_fs();
        self.jobs.lock().starting -= 1;
        while let Some(job) = self.next_job() {
            job();
            if IS_RETIRING.get() {
                return;
            }
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        loop {
            if let Some(job) = jobs.queue.pop_front() {
                return Some(job);
            }
            if jobs.is_closed || jobs.idle >= IDLE_MAX {
                return None;
            }
            jobs.idle += 1;
            self.added.wait(&mut jobs);
            jobs.idle -= 1;
        }
    }

    /// The clock. Its thread is started at the first use.
    fn clock(self: &Arc<Self>) -> Result<Arc<Clock>, Errno> {
        let mut clock = self.clock.lock();
        if let Some(clock) = &*clock {
            return Ok(Arc::clone(clock));
        }
        let made = Arc::new(Clock::new()?);
        let (shared, ticking) = (Arc::clone(self), Arc::clone(&made));
        let thread = thread::Builder::new().name("clock".into());
        let spawned = thread.spawn(move || ticking.run(&shared));
        spawned.map_err(|_| Errno::EAGAIN)?;
        *clock = Some(Arc::clone(&made));
        Ok(made)
    }
}

impl Clock {
    fn new() -> Result<Self, Errno> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        epoll.add(&wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
        let alarms = Mutex::default();
        Ok(Self {
            epoll,
            wake,
            alarms,
        })
    }

    fn wake(&self) {
        // The write fails only if the clock has many wake-ups pending.
        let _ = self.wake.write(1);
    }

    fn run(&self, shared: &Arc<Shared>) {
        goanna_affinity::leave_one_cpu();
        let _ = SigSet::all().thread_block();
        let mut events = [EpollEvent::empty(); 16];
        loop {
            let (due, next) = self.take_due(Instant::now());
            due.into_iter().for_each(|job| shared.run_later(job));
            let mut jobs = shared.jobs.lock();
            if jobs.is_closed {
                return;
            }
            let has_threads = shared.start_threads(&mut jobs, 0);
            drop(jobs);
            let next = if has_threads { next } else { next.min(RETRY) };
            let ready = self.epoll.wait(&mut events, timeout(next)).unwrap_or(0);
            for event in events.iter().take(ready) {
                if event.data() == WAKE {
                    let _ = self.wake.read();
                    continue;
                }
                let job = self.take_readable(&mut self.alarms.lock(), Id(event.data()));
                if let Some(job) = job {
                    shared.run_later(job);
                }
            }
        }
    }

    /// Removes and returns the jobs that are due, and the time until the next one.
    fn take_due(&self, now: Instant) -> (Vec<Job>, Duration) {
        let mut alarms = self.alarms.lock();
        let mut due = Vec::new();
        while let Some(first) = alarms.timers.first_entry() {
            if first.key().0 > now {
                return (due, first.key().0 - now);
            }
            due.push(first.remove());
        }
        (due, SLEEP_MAX)
    }

    /// The descriptor is removed explicitly: the program has other descriptors of the same open file description, which would keep it in the
    /// set.
    fn take_readable(&self, alarms: &mut Alarms, id: Id) -> Option<Job> {
        let (fd, job) = alarms.readable.remove(&id)?;
        let _ = self.epoll.delete(fd.as_fd());
        Some(job)
    }
}

/// In milliseconds, rounded up, so that the clock does not wake too early.
fn timeout(duration: Duration) -> EpollTimeout {
    let milliseconds = duration.min(SLEEP_MAX).as_micros().div_ceil(1000);
    u16::try_from(milliseconds).unwrap_or(u16::MAX).into()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use nix::unistd::{pipe, write};

    use super::*;

    #[test]
    fn jobs_that_are_not_due_take_one_thread_together() {
        let executor = Executor::default();
        let (sender, done) = channel();
        let mut writers = Vec::new();
        for number in 0..20 {
            let (reader, writer) = pipe().unwrap();
            let sender = sender.clone();
            let job = Box::new(move || sender.send(number).unwrap());
            executor.when_readable(reader, job).unwrap();
            writers.push(writer);
        }
        // The executor's own reference, and one for each thread.
        assert_eq!(Arc::strong_count(&executor.0.0), 2);
        for (number, writer) in writers.iter().enumerate() {
            write(writer, b"x").unwrap();
            assert_eq!(done.recv(), Ok(number));
        }
    }

    #[test]
    fn jobs_run_at_their_instants_in_order_and_not_after_they_are_withdrawn() {
        let executor = Executor::default();
        let (sender, done) = channel();
        let now = Instant::now();
        let mut ids = Vec::new();
        for after in [60_u64, 20, 40] {
            let sender = sender.clone();
            let job = Box::new(move || sender.send((after, Instant::now())).unwrap());
            ids.push(
                executor
                    .at(now + Duration::from_millis(after), job)
                    .unwrap(),
            );
        }
        let withdrawn = executor.at(now + Duration::from_millis(10), Box::new(|| panic!()));
        assert!(executor.withdraw(withdrawn.unwrap()).is_some());
        for after in [20, 40, 60] {
            let (which, at) = done.recv().unwrap();
            assert_eq!(which, after);
            assert!(at >= now + Duration::from_millis(after));
        }
        assert!(executor.withdraw(ids[0]).is_none());
    }

    #[test]
    fn a_job_that_blocks_keeps_no_other_one_waiting() {
        let executor = Executor::default();
        let (sender, done) = channel();
        let mut ends = Vec::new();
        for number in 0..6 {
            let (end, blocks) = channel::<()>();
            let sender = sender.clone();
            let job = Box::new(move || {
                sender.send(number).unwrap();
                let _ = blocks.recv();
            });
            executor.run(job).unwrap();
            ends.push(end);
        }
        let mut begun: Vec<_> = (0..6).map(|_| done.recv().unwrap()).collect();
        begun.sort_unstable();
        assert_eq!(begun, [0, 1, 2, 3, 4, 5]);
    }
}
