//! Takes records from rings, and reports them in order.

use goanna_sys::clock::monotonic_ns;
use goanna_sys::recorder::Record;
use goanna_syscalls::Subject;

use super::call;
use super::process::{self, Process};
use crate::Event;
use crate::capture::ptrace::follow::Follower;

/// Events are in order, and reported, after this time at the latest while programs make calls that stop.
const SYNC_NS: u64 = 1_000_000;

impl Follower<'_> {
    /// Takes the records of a process whose thread has stopped.
    pub(in crate::capture::ptrace) fn take_records(&mut self, subject: &Subject) {
        let wanted = self.wanted;
        let Some(rings) = &mut self.rings else { return };
        let mut records = std::mem::take(&mut rings.records);
        records.clear();
        let Some(recorder) = rings.recorder(subject.pid) else {
            rings.records = records;
            return;
        };
        let taken = recorder.ring.take(&mut records);
        let mut rest = records.as_slice();
        while let Some(record) = Record::take(&mut rest) {
            let call = record.and_then(|record| call::event(&record, subject, wanted, true));
            if let Some(call) = call {
                rings.held.push(Event::Call(Box::new(call)));
            }
        }
        if taken.is_err() || !rest.is_empty() {
            rings.held.push(Event::Lost {
                events: 0,
                reason: format!(
                    "process {} ({}) has written into the memory in which its calls are recorded",
                    subject.pid, subject.comm
                )
                .into(),
                at_ns: monotonic_ns(),
            });
            self.stop_recording(subject.pid);
        }
        if let Some(rings) = &mut self.rings {
            rings.records = records;
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

    /// As [`Follower::stop_recording`], of all processes.
    pub(in crate::capture::ptrace) fn stop_all_recording(&mut self) {
        let pids: Vec<i32> = self
            .threads
            .values()
            .map(|thread| thread.subject.pid)
            .collect();
        for pid in pids {
            self.stop_recording(pid);
        }
    }

    /// A process has executed a program, or ended: its memory is gone.
    pub(in crate::capture::ptrace) fn recorder_is_gone(&mut self, subject: &Subject) {
        self.take_records(subject);
        let wanted = self.wanted;
        let Some(rings) = &mut self.rings else { return };
        if let Some(Process::Recording(recorder)) = rings.processes.remove(&subject.pid)
            && let Some(record) = recorder.ring.unfinished()
            && let Some(Some(record)) = Record::take(&mut record.as_slice())
            && let Some(call) = call::event(&record, subject, wanted, false)
        {
            rings.held.push(Event::Call(Box::new(call)));
        }
    }

    /// Reports events: in any case if nothing is recorded, and else those before which no other can come any more, from time to time.
    pub(in crate::capture::ptrace) fn report_in_order(&mut self, now: u64) {
        let Some(rings) = &self.rings else { return };
        let is_in_use = rings.is_in_use();
        if is_in_use && now.saturating_sub(rings.synced_ns) < SYNC_NS {
            return;
        }
        if is_in_use {
            let leaders = self.threads.iter().filter(|(tid, thread)| {
                thread.subject.pid == **tid && rings.is_recording(thread.subject.pid)
            });
            let subjects: Vec<Subject> =
                leaders.map(|(_, thread)| thread.subject.clone()).collect();
            for subject in subjects {
                self.take_records(&subject);
            }
        }
        let until = if is_in_use { now } else { u64::MAX };
        loop {
            let rings = self.rings.as_mut();
            let Some(event) = rings.and_then(|rings| rings.held.take(until)) else {
                break;
            };
            self.pass_on(&event);
        }
        if let Some(rings) = &mut self.rings {
            rings.synced_ns = now;
        }
    }

    /// Sends an event, after those before it.
    pub(in crate::capture::ptrace) fn send(&mut self, event: Event) {
        match &mut self.rings {
            Some(rings) if rings.is_in_use() || !rings.held.is_empty() => rings.held.push(event),
            _ => self.pass_on(&event),
        }
    }
}
