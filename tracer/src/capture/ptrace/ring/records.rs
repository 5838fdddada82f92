//! Takes records from rings, and sends them and other events to be reported.

use goanna_sys::clock::monotonic_ns;
use goanna_sys::recorder::Record;
use goanna_syscalls::Subject;

use super::process::{self, Process};
use super::reporter::Message;
use crate::Event;
use crate::capture::ptrace::follow::Follower;

/// Events are sent after this time at the latest while programs make calls that stop, or when there are so many bytes of records.
const SEND_NS: u64 = 1_000_000;
const SEND_BYTES: usize = 1 << 20;

impl Follower<'_> {
    /// Takes the records of a process whose thread has stopped.
    pub(in crate::capture::ptrace) fn take_records(&mut self, subject: &Subject) {
        let Some(rings) = &mut self.rings else { return };
        let Some(recorder) = rings.recorder(subject.pid) else {
            return;
        };
        let mut records = Vec::new();
        let taken = recorder.ring.take(&mut records);
        let is_whole = taken.is_ok() && has_only_records(&records);
        if !records.is_empty() {
            rings.unsent_bytes += records.len();
            rings
                .unsent
                .push(Message::Records(subject.clone(), records));
        }
        if !is_whole {
            self.stop_recording(subject.pid);
            self.send(Event::Lost {
                events: 0,
                reason: format!(
                    "process {} ({}) has written into the memory in which its calls are recorded",
                    subject.pid, subject.comm
                )
                .into(),
                at_ns: monotonic_ns(),
            });
        }
    }

    /// Lets all calls of a process stop, for good.
    pub(in crate::capture::ptrace) fn stop_recording(&mut self, pid: i32) {
        let Some(rings) = &mut self.rings else { return };
        let before = rings.processes.insert(pid, Process::Never);
        if matches!(before, Some(Process::Recording(_))) {
            process::turn_off(pid, rings.base);
        }
    }

    /// Thread `tid` may have a copy of a recorder, and its parent was killed before the tracer knew of it: all its calls stop.
    pub(in crate::capture::ptrace) fn recorder_is_unknown(&mut self, tid: i32) {
        if let (Some(subject), Some(rings)) = (self.subject_of(tid), &mut self.rings) {
            process::turn_off(tid, rings.base);
            rings.processes.insert(subject.pid, Process::Never);
        }
    }

    /// As [`Follower::stop_recording`], of all processes.
    pub(in crate::capture::ptrace) fn stop_all_recording(&mut self) {
        let threads = self.threads.values();
        let pids: Vec<i32> = threads.map(|thread| thread.subject.pid).collect();
        for pid in pids {
            self.stop_recording(pid);
        }
    }

    /// A process has executed a program, or ended: its memory is gone.
    pub(in crate::capture::ptrace) fn recorder_is_gone(&mut self, subject: &Subject) {
        self.take_records(subject);
        let Some(rings) = &mut self.rings else { return };
        if let Some(Process::Recording(recorder)) = rings.processes.remove(&subject.pid)
            && let Some(record) = recorder.ring.unfinished()
        {
            let message = Message::Unfinished(subject.clone(), record);
            rings.unsent.push(message);
        }
    }

    /// Sends events from time to time, with all records that are in rings: then no earlier event can follow.
    pub(in crate::capture::ptrace) fn send_in_order(&mut self, now: u64) {
        let Some(rings) = &self.rings else { return };
        let is_due = now.saturating_sub(rings.sent_ns) >= SEND_NS;
        if rings.reporter.is_none() || (!is_due && rings.unsent_bytes < SEND_BYTES) {
            return;
        }
        let leaders = self.threads.iter().filter(|(tid, thread)| {
            thread.subject.pid == **tid && rings.is_recording(thread.subject.pid)
        });
        let subjects: Vec<Subject> = leaders.map(|(_, thread)| thread.subject.clone()).collect();
        for subject in subjects {
            self.take_records(&subject);
        }
        if let Some(rings) = &mut self.rings {
            rings.unsent.push(Message::Until(now));
            rings.sent_ns = now;
            rings.unsent_bytes = 0;
            let batch = std::mem::take(&mut rings.unsent);
            if let Some(reporter) = &rings.reporter {
                reporter.send(batch);
            }
        }
    }

    /// Reports an event, after those before it.
    pub(in crate::capture::ptrace) fn send(&mut self, event: Event) {
        match &mut self.rings {
            Some(rings) if rings.reporter.is_some() => rings.unsent.push(Message::Event(event)),
            _ => self.pass_on(&event),
        }
    }

    /// Reports what is not reported yet, and ends the recording.
    pub(in crate::capture::ptrace) fn finish_reports(&mut self) {
        let Some(mut rings) = self.rings.take() else {
            return;
        };
        let Some(reporter) = rings.reporter.take() else {
            return;
        };
        reporter.send(rings.unsent);
        let failure = reporter.finish();
        self.failure = self.failure.take().or(failure);
    }
}

/// Whether all of it can be read as records.
fn has_only_records(mut records: &[u8]) -> bool {
    while Record::take(&mut records).is_some() {}
    records.is_empty()
}
