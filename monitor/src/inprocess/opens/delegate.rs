//! Leaves the last part of an open to the thread itself ([ADR 0122](../../../../docs/decisions/0122-delegated-opens.md)).
//!
//! An open that comes from the code of the map (`opens.S`) may be answered with the number of a descriptor of the monitor. The thread opens that by its path in
//! `/proc`, and the monitor need not wait until the thread has woken. `opens` keeps the object meanwhile.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use goanna_sys::notify::Notification;
use goanna_sys::procfs::{self, Activity};
use goanna_sys::stub;
use goanna_vfs::{Description, Errno, FsError, Place, Result};

use super::{From, Remainder, Source, is_open};
use crate::Monitor;
use crate::answer::{self, Answer};
use crate::call::Call;
use crate::inprocess::{InProcess, Thread};
use crate::shadow::Shadow;

impl InProcess {
    /// To be called for each notification, before it is answered.
    pub fn settle_opens(&self, call: &Notification) {
        if self.constants.is_none() {
            return;
        }
        if let Some(thread) = self.thread(call.tid) {
            let from = || match thread.space.offset_in_map(call.ip) {
                Some(offset) if offset == stub::open_layout().failed => From::Failure,
                Some(_) => From::Map,
                None => From::Site,
            };
            thread.opens.settle(call, from);
        }
    }

    /// Thread `tid` makes another call, at a ptrace stop: it has completed the open that was left to it.
    pub fn end_opens(&self, tid: i32) {
        let Some(thread) = self.thread(tid) else {
            return;
        };
        if let Some(id) = thread.opens.pending() {
            thread.opens.end(id);
        }
    }

    /// What the caller was about to open when it was interrupted, if this call resumes that.
    pub fn resumed(&self, call: &Call<'_>) -> Option<Source> {
        let (_, id) = call.notification.as_ref()?;
        self.thread(call.task.tid)?.opens.resumed_by(*id)
    }

    /// The caller, if it understands more answers than a descriptor.
    fn asks_from_map(&self, call: &Notification) -> Option<Arc<Thread>> {
        if self.constants.is_none() || !is_open(call) {
            return None;
        }
        let thread = self.thread(call.tid)?;
        let is_asked = thread.space.offset_in_map(call.ip) == Some(stub::open_layout().asked);
        is_asked.then_some(thread)
    }

    /// As [`InProcess::asks_from_map`], where the caller may be left a part of the open.
    fn takes_delegation(&self, call: &Notification) -> Option<Arc<Thread>> {
        let may = |thread: &Arc<Thread>| !thread.is_guest && !thread.opens.are_refused();
        self.asks_from_map(call).filter(may)
    }

    /// Whether the caller can open a host file itself instead of getting a descriptor.
    pub fn opens_itself(&self, call: &Notification) -> bool {
        self.takes_delegation(call).is_some()
    }

    /// Whether a call with this outcome has to be made at the site: it waits there, where signals end the wait as they should.
    pub fn must_restart_at_site(&self, call: &Notification, outcome: &Result<Answer>) -> bool {
        let is_over = matches!(
            outcome,
            Ok(Answer::Value(_)
                | Answer::PassOn
                | Answer::Watched(_)
                | Answer::Install { .. }
                | Answer::OpenItself { .. })
                | Err(FsError::Errno(_))
        );
        !is_over && self.asks_from_map(call).is_some()
    }

    /// Leaves the last part of an open to the thread where that is possible.
    pub fn delegate_open(
        &self,
        monitor: &Monitor,
        call: &Notification,
        outcome: Result<Answer>,
    ) -> Result<Answer> {
        match outcome {
            Ok(Answer::OpenItself { node, value }) => {
                let thread = self.thread(call.tid).ok_or(Errno::ESRCH)?;
                let left = Remainder::All { _file: node };
                thread.opens.begin(call, left, None);
                Ok(Answer::Value(value))
            }
            Ok(Answer::Install {
                description,
                cloexec,
                counts,
                delivery,
            }) => {
                let offered = self
                    .takes_delegation(call)
                    .filter(|_| !counts)
                    .and_then(|thread| Some((thread, offer(monitor, &description, cloexec)?)));
                let Some((thread, (place, answer))) = offered else {
                    self.performed(call);
                    return Ok(Answer::Install {
                        description,
                        cloexec,
                        counts,
                        delivery,
                    });
                };
                let description = Arc::new(description);
                let source = match place {
                    Some(place) => Source::Object {
                        place,
                        claim: description,
                    },
                    None => Source::Description(description),
                };
                thread
                    .opens
                    .begin(call, Remainder::Source(source), delivery);
                Ok(Answer::Value(answer))
            }
            outcome => outcome,
        }
    }

    /// The monitor itself performs an open.
    fn performed(&self, call: &Notification) {
        if let Some(thread) = self.thread(call.tid) {
            thread.opens.performed(call.id);
        }
    }

    /// Ends what is kept for threads that sleep in another call, and for files that processes do not open themselves any more.
    pub fn sweep_opens(&self) {
        if let Some(Some(map)) = self.shared.get() {
            self.shared_files.sweep(map);
        }
        for (tid, thread) in self.all_threads() {
            // Read before the thread is looked at, which may begin another open meanwhile.
            let Some(id) = thread.opens.pending() else {
                continue;
            };
            let sleeps = procfs::activity(tid) == Ok(Activity::Sleeping);
            let call = || procfs::sleeping_call(tid).ok().flatten();
            let is_other = |number| number >= 0 && number != libc::SYS_openat;
            if sleeps && call().is_some_and(|call| is_other(call.number)) {
                thread.opens.end(id);
            }
        }
    }
}

/// The answer by which a thread opens the object of `description` itself, and the file, if that is a cache object. `None` where the result would differ.
fn offer(
    monitor: &Monitor,
    description: &Description,
    cloexec: bool,
) -> Option<(Option<Place>, i64)> {
    let by_number = |number: RawFd, flags| {
        stub::opens::of_monitor(number, answer::reopen_flags(flags, cloexec))
    };
    if let Some((claim, flags)) = description.claim() {
        let shadow = monitor.shadows.find(claim.handle().identity())?;
        let Shadow::File { place, .. } = &*shadow else {
            return None;
        };
        let answer = by_number(claim.handle().number()?, flags)?;
        return Some((Some(place.clone()), answer));
    }
    let fd = description.fd().ok()?;
    let status = answer::status(fd).ok()?;
    let reads = status & libc::O_ACCMODE == libc::O_RDONLY;
    if !reads || !answer::reopens_alike(status) {
        return None;
    }
    // The monitor's description counts until it is closed.
    let shadow = monitor.shadows.of_descriptor(fd).ok()?;
    let is_counted = matches!(
        shadow.as_deref(),
        Some(Shadow::File { .. } | Shadow::Special { .. } | Shadow::Reference { .. })
    );
    (!is_counted).then_some((None, by_number(fd.as_raw_fd(), status)?))
}
