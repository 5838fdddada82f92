//! Empty cache objects in memory that a thread makes ahead: to make one takes longer than all else that creating a file needs.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use goanna_sys::{memfile, object_handle};
use parking_lot::{Condvar, Mutex};

use crate::{CacheObject, Result};

/// Maximum number of objects that are kept ready. Each takes two descriptors.
const READY_MAX: usize = 64;

/// One of this many descriptors that the process may have for objects can be that of an object that is ready.
const DESCRIPTORS_EACH: u64 = 64;

/// Objects that are made ahead. Until many have been taken, and where the limit on descriptors is low, each is made when it is taken.
#[derive(Debug)]
pub struct SpareObjects {
    shared: Arc<Shared>,
    capacity: usize,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ready: Vec<(CacheObject, OwnedFd)>,
    /// Objects taken since the thread was last asked for more.
    taken: usize,
    asked: bool,
    stop: bool,
}

impl SpareObjects {
    /// Starts the thread, which makes the first objects after half as many as it keeps ready have been taken. The objects belong to
    /// the user that the calling thread acts as.
    pub fn start() -> Self {
        let descriptors = object_handle::descriptors().unwrap_or(0) / DESCRIPTORS_EACH;
        let mut capacity =
            usize::try_from(descriptors).map_or(READY_MAX, |most| most.min(READY_MAX));
        let shared = Arc::new(Shared::default());
        if capacity > 1 {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name("spare-objects".to_owned());
            if thread.spawn(move || shared.keep_ready(capacity)).is_err() {
                capacity = 0;
            }
        }
        Self { shared, capacity }
    }

    /// An object of `size` zeros, and a writable descriptor of it, as from [`CacheObject::create`].
    pub fn take(&self, size: u64) -> Result<(CacheObject, OwnedFd)> {
        let Some((object, writer)) = self.take_ready() else {
            return CacheObject::create(size, None);
        };
        if size > 0 {
            memfile::set_len(writer.as_fd(), size)?;
        }
        Ok((object, writer))
    }

    /// An object that is ready. `None` also while the thread has the lock: it may be preempted then, for longer than it takes to make an object.
    fn take_ready(&self) -> Option<(CacheObject, OwnedFd)> {
        let mut state = self.shared.state.try_lock()?;
        state.taken += 1;
        let asks = state.taken == self.capacity / 2;
        if asks {
            (state.taken, state.asked) = (0, true);
        }
        let ready = state.ready.pop();
        drop(state);
        if asks {
            self.shared.wake.notify_one();
        }
        ready
    }
}

impl Drop for SpareObjects {
    fn drop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.wake.notify_one();
    }
}

impl Shared {
    /// Whenever it is asked, makes objects until `capacity` are ready. An error, such as EMFILE, reaches those that take objects
    /// themselves, when they make one.
    fn keep_ready(&self, capacity: usize) {
        let mut state = self.state.lock();
        while !state.stop {
            if !std::mem::take(&mut state.asked) {
                self.wake.wait(&mut state);
                continue;
            }
            while !state.stop && state.ready.len() < capacity {
                drop(state);
                let made = CacheObject::create(0, None);
                state = self.state.lock();
                match made {
                    Ok(object) => state.ready.push(object),
                    Err(_) => break,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::HashSet;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::SpareObjects;
    use crate::write_all_at;

    fn wait_for(condition: impl Fn() -> bool) {
        let begin = Instant::now();
        while !condition() {
            assert!(begin.elapsed() < Duration::from_secs(30), "waited too long");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn each_object_is_taken_once_and_empty() {
        let spares = SpareObjects::start();
        assert!(
            spares.capacity > 1,
            "the limit on descriptors is too low here"
        );
        let mut taken = HashSet::new();
        let mut kept = Vec::new();
        for size in 0..4 * spares.capacity as u64 {
            if size.is_multiple_of(spares.capacity as u64) && size > 0 {
                wait_for(|| spares.shared.state.lock().ready.len() == spares.capacity);
            }
            let (object, writer) = spares.take(size).unwrap();
            let mut content = vec![1; 300];
            assert_eq!(
                object.read_at(0, &mut content).unwrap() as u64,
                size.min(300)
            );
            assert!(content.iter().take(size as usize).all(|byte| *byte == 0));
            write_all_at(&writer, 0, &[2; 300]).unwrap();
            assert!(taken.insert(object.handle().identity()));
            kept.push(object);
        }
    }

    #[test]
    fn few_objects_wake_no_thread_and_the_thread_ends() {
        let spares = SpareObjects::start();
        for _ in 1..spares.capacity / 2 {
            drop(spares.take(0).unwrap());
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(spares.shared.state.lock().ready.is_empty());
        let shared = Arc::downgrade(&spares.shared);
        drop(spares);
        wait_for(|| shared.upgrade().is_none());
    }
}
