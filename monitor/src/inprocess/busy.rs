//! The programs of a run whose processes make many calls. A later process of such a program gets stubs after few calls.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use parking_lot::Mutex;

use crate::shadow::Identity;

/// Most programs that are remembered.
const PROGRAMS_MAX: usize = 256;

/// Programs, by the identity of their files.
#[derive(Debug, Default)]
pub struct BusyPrograms(Mutex<HashSet<Identity>>);

impl BusyPrograms {
    /// A process of the program of thread `tid` has made many calls.
    pub fn add(&self, tid: i32) {
        if let Some(program) = program(tid) {
            let mut all = self.0.lock();
            if all.len() < PROGRAMS_MAX {
                all.insert(program);
            }
        }
    }

    /// Whether the program of thread `tid` is one of them.
    pub fn have(&self, tid: i32) -> bool {
        let is_known = |program| self.0.lock().contains(&program);
        !self.0.lock().is_empty() && program(tid).is_some_and(is_known)
    }
}

fn program(tid: i32) -> Option<Identity> {
    let meta = fs::metadata(format!("/proc/{tid}/exe")).ok()?;
    Some((meta.dev(), meta.ino()))
}
