//! Reports of tracees that wait for their turn.
//!
//! waitid(2) reports on the youngest tracee first (`ptrace_do_wait` in `kernel/exit.c`). A tracer that handles each report and waits
//! again would never see an older tracee while two younger ones stop again as fast as it continues them. So a tracer takes all reports
//! that are available, and waits again when it has handled them.

use std::collections::VecDeque;

use nix::errno::Errno;

use super::ptrace::{self, Event};

/// The queue of reports that the tracer has taken and not handled yet.
#[derive(Debug, Default)]
pub struct Reports(VecDeque<Event>);

impl Reports {
    /// Adds a report. An older stop of the same thread is forgotten: the thread has left it, or was killed in it.
    pub fn push(&mut self, report: Event) {
        self.0
            .retain(|older| older.tid() != report.tid() || older.status().is_end());
        self.0.push_back(report);
    }

    /// The oldest report. Leaves out a stop whose thread was killed in it: the kernel reports the thread's end.
    pub fn take(&mut self) -> Option<Event> {
        while let Some(report) = self.0.pop_front() {
            if report.status().is_end() || !ptrace::has_report(report.tid()) {
                return Some(report);
            }
        }
        None
    }

    /// Adds `first` and then all reports that the kernel has now, and returns the oldest report. `next_end` takes an end, if there is
    /// one and it may be taken, as [`ptrace::wait_leaving`] with `WEXITED | WNOHANG` does.
    pub fn gather(
        &mut self,
        first: Event,
        mut next_end: impl FnMut() -> Result<Option<Event>, Errno>,
    ) -> Option<Event> {
        self.0.push_back(first);
        let before = self.0.len();
        while let Ok(Some(stop)) = ptrace::wait_stopped(libc::WNOHANG) {
            self.push(stop);
        }
        while let Ok(Some(end)) = next_end() {
            self.push(end);
        }
        match self.0.len() == before {
            // No later report can have replaced it.
            true => self.0.pop_front(),
            false => self.take(),
        }
    }
}
