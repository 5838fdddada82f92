//! Grants, by which a process writes to files of a store without the monitor
//! ([ADR 0121](../../../../docs/decisions/0121-writes-by-grants.md)), and the area through which it learns of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use goanna_sys::notify::Listener;
use goanna_sys::stub;
use goanna_sys::stub::writes::{Moment, WriteArea};
use goanna_vfs::{GRANTED_GROWTH, Place, WritePosition};
use nix::unistd::{Whence, lseek};

use super::install;
use crate::Monitor;
use crate::call::Call;
use crate::calls::output::Output;
use crate::inprocess::space::{Space, WriteAccess};
use crate::inprocess::{InProcess, run_map};
use crate::ptracer::inject::map;
use crate::shadow::Shadow;

impl InProcess {
    /// Grants the tracee its next writes through `output`, after `done` bytes were written at `position`.
    pub fn grant_after_write(
        &self,
        call: &Call<'_>,
        output: &Output,
        position: WritePosition,
        done: u64,
    ) {
        let end = || match position {
            WritePosition::At(offset) => offset.checked_add(done),
            WritePosition::End => None,
            WritePosition::Cursor => {
                u64::try_from(lseek(&output.ofd, 0, Whence::SeekCur).ok()?).ok()
            }
        };
        let file = (&output.place, output.flags);
        if self.grant_writes(call, file, Moment::Write, end) {
            // The file may grow by as much until its size is checked again.
            output.volume.fetch_add(GRANTED_GROWTH, Ordering::Relaxed);
        }
    }

    /// Grants the tracee its first writes to a file that it opens with these flags.
    pub fn grant_at_open(&self, call: &Call<'_>, file: (&Place, i32), shadow: &Shadow) {
        if self.grant_writes(call, file, Moment::Open, || Some(0))
            && let Shadow::File { volume, .. } = shadow
        {
            volume.fetch_add(GRANTED_GROWTH, Ordering::Relaxed);
        }
    }

    /// Asks the back end to grant the calling thread writes to the file at `place`, which has been opened with these flags, around `offset`, or around its end. Returns
    /// whether there is a grant. Not while programs watch files of the run: such writes cause no events.
    fn grant_writes(
        &self,
        call: &Call<'_>,
        (place, flags): (&Place, i32),
        moment: Moment,
        offset: impl FnOnce() -> Option<u64>,
    ) -> bool {
        let (Some(constants), Some(Some(shared))) = (&self.constants, self.shared.get()) else {
            return false;
        };
        if flags & libc::O_DSYNC != 0
            || call.monitor.watches.in_use()
            || !shared.has(&place.mount)
            || shared.is_on_host()
        {
            return false;
        }
        let tid = call.task.tid;
        let Some(space) = self.space(tid) else {
            return false;
        };
        let area = match space.write_access(constants, tid, moment) {
            WriteAccess::By(area) => area,
            WriteAccess::Due => {
                self.area_is_due.store(true, Ordering::Relaxed);
                return false;
            }
            WriteAccess::No => return false,
        };
        let is_likely = match moment {
            Moment::Open => area.is_likely_to_write_next(),
            Moment::Write => area.is_likely_to_write_more(place.node.ino()),
        };
        if !is_likely {
            return false;
        }
        let offset = if flags & libc::O_APPEND == 0 {
            offset()
        } else {
            None
        };
        let Ok(caller) = call.caller() else {
            return false;
        };
        run_map::attributes(&place.mount).is_some_and(|attributes| {
            attributes.grant_writes(&caller, &place.node, moment, offset, &area)
        })
    }

    /// Thread `tid` has ended, and its parent does not know that yet. If it was killed in a write, the back end takes the write over, or undoes it, before the thread is reaped:
    /// programs read the cache object without an operation that would do that.
    pub fn settle_write(&self, monitor: &Arc<Monitor>, tid: i32) {
        let is_killed = self.constants.is_some()
            && self
                .space(tid)
                .is_some_and(|space| space.ended_in_write(tid));
        if !is_killed {
            return;
        }
        let number = monitor.in_flight.begin(tid);
        let shared = Arc::clone(monitor);
        let settle = Box::new(move || {
            let _in_flight = shared.in_flight.guard(number);
            for mount in shared.mounts.current().iter() {
                if let Some(attributes) = run_map::attributes(mount) {
                    attributes.end_writes();
                }
            }
        });
        if monitor.executor.run(settle).is_err() {
            drop(monitor.in_flight.guard(number));
        }
    }

    /// Gives the process of `tid`, which waits in call `id`, an area for writes if it is to get one.
    pub(in crate::inprocess) fn offer_area(
        &self,
        monitor: &Arc<Monitor>,
        listener: &Listener,
        tid: i32,
        id: u64,
    ) {
        let Some(constants) = &self.constants else {
            return;
        };
        self.area_is_due.store(false, Ordering::Relaxed);
        let takes = |space: Arc<Space>| space.takes_area(constants, tid);
        let Some(at) = self.space(tid).and_then(takes) else {
            return;
        };
        let Ok(area) = WriteArea::new().map(Arc::new) else {
            return;
        };
        let (of, own) = (Arc::clone(monitor), Arc::clone(&area));
        let mapped = Box::new(move |tid, address| {
            let inside = &of.in_process;
            if let (Some(constants), Some(space)) = (&inside.constants, inside.space(tid)) {
                space.has_area(constants, tid, own, address);
            }
        });
        let memory = map::Memory {
            len: stub::writes::LEN,
            access: libc::PROT_READ | libc::PROT_WRITE,
            at: Some(at),
            is_private: true,
        };
        install(monitor, (listener, tid, id), (area.file(), memory), mapped);
    }
}
