//! Assigns threads to lanes. A thread that starts after another one has ended takes over its lane.

use std::collections::HashMap;

use amino_schema::replay::{MAX_LANES, Wait};

/// A thread that has a lane, or will have one with its first operation.
#[derive(Debug, Clone, Default)]
pub struct Thread {
    pub lane: Option<u32>,
    /// The commands that its next command waits for.
    pub waits: Vec<Wait>,
    /// The thread's last command, or that of its process before the thread began.
    pub last: Option<Wait>,
}

/// Threads and lanes.
#[derive(Debug, Default)]
pub struct Lanes {
    pub threads: HashMap<i32, Thread>,
    free: Vec<u32>,
    count: u32,
    /// Last commands of processes that have ended.
    ended: HashMap<i32, Wait>,
}

/// Maximum number of ended processes that wait(2) is expected for.
const MAX_ENDED: usize = 1 << 16;

impl Lanes {
    /// The lane of a thread, and whether it was assigned just now.
    pub fn of(&mut self, tid: i32) -> Option<(u32, bool)> {
        if let Some(lane) = self.threads.get(&tid).and_then(|thread| thread.lane) {
            return Some((lane, false));
        }
        let lane = self.free.pop().or_else(|| {
            (self.count < MAX_LANES).then(|| {
                self.count += 1;
                self.count - 1
            })
        })?;
        self.threads.entry(tid).or_default().lane = Some(lane);
        Some((lane, true))
    }

    pub fn end(&mut self, tid: i32) {
        let Some(thread) = self.threads.remove(&tid) else {
            return;
        };
        self.free.extend(thread.lane);
        if let Some(last) = thread.last {
            if self.ended.len() >= MAX_ENDED {
                self.ended.clear();
            }
            self.ended.insert(tid, last);
        }
    }

    /// Records that a thread has waited for the end of a process.
    pub fn waited(&mut self, tid: i32, child: i32) {
        if let Some(last) = self.ended.remove(&child) {
            self.threads.entry(tid).or_default().waits.push(last);
        }
    }

    /// How many lanes there are.
    pub fn count(&self) -> u32 {
        self.count
    }
}
