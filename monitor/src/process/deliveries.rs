//! Threads that are about to get a descriptor of a file's object. A commit that changes the object in place stops them, too.

use std::sync::Arc;

use parking_lot::Mutex;

/// The threads that are about to get a descriptor, each once for every pending descriptor.
#[derive(Debug, Default)]
pub struct Deliveries(Arc<Mutex<Vec<i32>>>);

/// While this exists, a thread may be about to get a descriptor of a file's object: a commit stops the thread as if it had
/// the descriptor already.
#[derive(Debug)]
pub struct Delivery {
    all: Arc<Mutex<Vec<i32>>>,
    tid: i32,
}

impl Deliveries {
    /// Records that thread `tid` is about to get a descriptor.
    pub fn begin(&self, tid: i32) -> Delivery {
        self.0.lock().push(tid);
        let all = Arc::clone(&self.0);
        Delivery { all, tid }
    }

    /// The threads that are about to get a descriptor now.
    pub fn threads(&self) -> Vec<i32> {
        self.0.lock().clone()
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(index) = all.iter().position(|tid| *tid == self.tid) {
            all.swap_remove(index);
        }
    }
}
