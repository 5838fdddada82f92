//! The area for writes of a process ([ADR 0121](../../../../docs/decisions/0121-writes-by-grants.md)).

use std::sync::Arc;

use goanna_sys::stub;
use goanna_sys::stub::writes::{Moment, WriteArea};

use super::Space;
use super::memory::Map;
use crate::inprocess::area::Constants;

/// The area for writes of a process (docs/decisions/0121).
#[derive(Debug, Clone)]
pub(super) enum Writes {
    /// There is none. This many writes have come to the monitor from patched sites.
    Missed(u32),
    /// It was asked for.
    Never,
    /// The area, and its address.
    At(Arc<OwnArea>, u64),
}

impl Default for Writes {
    fn default() -> Self {
        Self::Missed(0)
    }
}

/// An area, as long as its process has it mapped.
#[derive(Debug)]
pub(super) struct OwnArea(Arc<WriteArea>);

impl Drop for OwnArea {
    fn drop(&mut self) {
        self.0.set_ended();
    }
}

/// Whether a process can get grants.
#[derive(Debug)]
pub enum WriteAccess {
    /// It can, by this area.
    By(Arc<WriteArea>),
    /// It is to get an area.
    Due,
    /// It cannot.
    No,
}

impl Space {
    /// How thread `tid`, which waits in its call, can get a grant for a file of a store. Counts its writes.
    pub fn write_access(&self, constants: &Constants, tid: i32, moment: Moment) -> WriteAccess {
        let mut state = self.state.lock();
        let has_map = matches!(state.map, Map::At(_));
        if !has_map || state.is_off || state.has_threads || tid != self.owner {
            return WriteAccess::No;
        }
        match &mut state.writes {
            Writes::At(area, _) => WriteAccess::By(Arc::clone(&area.0)),
            Writes::Missed(calls) if moment == Moment::Write => {
                *calls = calls.saturating_add(1);
                if *calls > constants.writes_after {
                    WriteAccess::Due
                } else {
                    WriteAccess::No
                }
            }
            Writes::Missed(_) | Writes::Never => WriteAccess::No,
        }
    }

    /// The address at which the process of `tid`, which waits in a call, maps its area for writes, and the flag of mmap(2) for that. `None` if the process is to get
    /// none; a process is asked to map an area once.
    pub fn takes_area(&self, constants: &Constants, tid: i32) -> Option<(u64, i32)> {
        let mut state = self.state.lock();
        let Map::At([map, ..]) = state.map else {
            return None;
        };
        let Writes::Missed(calls) = state.writes else {
            return None;
        };
        let is_alone = tid == self.owner && !state.has_threads;
        if calls <= constants.writes_after || state.is_off || !is_alone {
            return None;
        }
        state.writes = Writes::Never;
        let firmly = if state.is_open_behind_map {
            // The program may have something there by now.
            libc::MAP_FIXED_NOREPLACE
        } else {
            libc::MAP_FIXED
        };
        Some((map + stub::map::LEN as u64, firmly))
    }

    /// Thread `tid`, which is stopped and alone in this memory, has mapped `area` at `address`.
    pub fn has_area(&self, constants: &Constants, tid: i32, area: Arc<WriteArea>, address: u64) {
        let mut state = self.state.lock();
        state.writes = Writes::At(Arc::new(OwnArea(area)), address);
        state.set_map_words(constants, tid, self.owner);
    }

    /// Ends a write whose thread the supervisor takes out of the code of the map. `lost` is the inode number of the object, if the offset of the write is not
    /// known.
    pub fn leaves_write(&self, lost: Option<u64>) {
        if let Writes::At(area, _) = &self.state.lock().writes {
            if let Some(ino) = lost {
                area.0.set_somewhere(ino);
            }
            area.0.set_idle();
        }
    }

    /// Thread `tid` has ended. Whether it was killed in a write.
    pub fn ended_in_write(&self, tid: i32) -> bool {
        let state = self.state.lock();
        let Writes::At(area, _) = &state.writes else {
            return false;
        };
        let is_in_write = tid == self.owner && area.0.is_busy();
        if is_in_write {
            area.0.set_ended();
        }
        is_in_write
    }
}
