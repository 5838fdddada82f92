//! The delegated opens of a thread: it performs the last part of them itself (`delegate`).
//!
//! The monitor keeps the object that the thread is to open until the thread's next notification, because nothing reports that it has opened it. The sweeper
//! ends this earlier for a thread that sleeps in another call.
//!
//! A signal may take the thread out of the stub before it has opened the object. Then the thread makes the call again at its site. Where it could not open the
//! object, it makes the call again from another place in the map's code. Such a call *resumes* the open: it creates and truncates nothing a second time. An open of
//! a host file, which has had no effect yet, starts again instead.
//!
//! A file that a process has opened twice is opened without a notification (`shared_files`).
//!
//! The lock is a leaf. What is kept may be the last reference to an inode, and dropping that calls the back end; so it is dropped without the lock.

mod delegate;
pub(super) mod shared_files;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use goanna_sys::notify::Notification;
use goanna_sys::procfs;
use goanna_vfs::{Description, Node, Place};
use parking_lot::Mutex;

use crate::process::deliveries::Delivery;

/// Most opens of a thread that are kept. Those that handlers have interrupted are kept until they are resumed, or the stack is unwound.
const PENDING_MAX: usize = 8;
/// Time after which a thread that makes a call must be asleep in it.
const FALLS_ASLEEP_WITHIN: Duration = Duration::from_millis(500);

/// What a thread opens itself to complete an open: the monitor has done the rest.
#[derive(Debug, Clone)]
pub enum Source {
    /// The cache object of a file.
    Object {
        /// The file.
        place: Place,
        /// A claim to the object.
        claim: Arc<Description>,
    },
    /// The object of a description for reading.
    Description(Arc<Description>),
}

/// What is left to a thread.
#[derive(Debug)]
pub(super) enum Remainder {
    /// To open this.
    Source(Source),
    /// The whole open of a host file: if the thread does not perform it, the call begins anew.
    All {
        /// Keeps the descriptor of the file, or that of the directory in which it is created.
        _file: Node,
    },
}

/// An open that the monitor has answered. The thread may not have its descriptor yet.
#[derive(Debug)]
struct PendingOpen {
    /// The ID of its notification.
    id: u64,
    args: [u64; 6],
    left: Remainder,
    _delivery: Option<Delivery>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Answered,
    /// The thread was taken out of the stub before it had opened the object, with this stack pointer.
    Interrupted(u64),
    /// The notification with this ID resumes it.
    Resumed(u64),
}

/// The opens that a thread completes.
#[derive(Debug, Default)]
pub(super) struct Opens(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// At most one that is not interrupted.
    pending: Vec<PendingOpen>,
    /// The process cannot open descriptors of the monitor: it may not, or sees another `/proc`.
    is_refused: bool,
    /// The ID of the notification by which the thread makes an open again that it could not perform. Perhaps the monitor cannot either.
    restarted: Option<u64>,
}

impl Opens {
    /// The thread is taken out of the stub, with stack pointer `sp`. It has not opened the object.
    pub fn interrupt(&self, sp: u64) {
        let mut state = self.0.lock();
        let is_resumed_later = |open: &&mut PendingOpen| {
            open.stage == Stage::Answered && matches!(open.left, Remainder::Source(_))
        };
        if let Some(open) = state.pending.iter_mut().find(is_resumed_later) {
            open.stage = Stage::Interrupted(sp);
        }
    }

    /// The thread makes `call`: it resumes an open, or others have ended.
    pub fn settle(&self, call: &Notification, from: impl FnOnce() -> From) {
        let is_interrupted = |open: &PendingOpen| matches!(open.stage, Stage::Interrupted(_));
        let has_interrupted = {
            let state = self.0.lock();
            if state.pending.is_empty() {
                return;
            }
            state.pending.iter().any(is_interrupted)
        };
        let from = from();
        // Without the lock, because the thread may have to fall asleep first.
        let sp = has_interrupted.then(|| stack_pointer(call.tid)).flatten();
        let is_same = |open: &PendingOpen| {
            is_open(call) && call.args.first_chunk::<4>() == open.args.first_chunk()
        };
        let mut state = self.0.lock();
        let (mut has_failed, mut restarted) = (false, None);
        let ends = |open: &mut PendingOpen| {
            let comes_again = match open.stage {
                Stage::Answered => from == From::Failure && is_same(open),
                Stage::Interrupted(at) => sp == Some(at) && from == From::Site && is_same(open),
                Stage::Resumed(_) => false,
            };
            let is_resumed = comes_again && matches!(open.left, Remainder::Source(_));
            has_failed |= is_resumed && open.stage == Stage::Answered;
            if comes_again && !is_resumed {
                restarted = Some(call.id);
            }
            // A handler runs below the call that it has interrupted.
            let is_below = |at: u64| sp.is_none_or(|sp| sp < at);
            let is_kept = matches!(open.stage, Stage::Interrupted(at) if is_below(at));
            if is_resumed {
                open.stage = Stage::Resumed(call.id);
            }
            !is_resumed && !is_kept
        };
        let ended: Vec<_> = state.pending.extract_if(.., ends).collect();
        state.is_refused |= has_failed;
        state.restarted = restarted;
        drop(state);
        drop(ended);
    }

    /// The thread gets an answer to `call`, by which it performs what is left of the open.
    pub fn begin(&self, call: &Notification, left: Remainder, delivery: Option<Delivery>) {
        self.0.lock().pending.push(PendingOpen {
            id: call.id,
            args: call.args,
            left,
            _delivery: delivery,
            stage: Stage::Answered,
        });
    }

    /// No open can be delegated.
    pub fn are_refused(&self) -> bool {
        let state = self.0.lock();
        state.is_refused || state.pending.len() >= PENDING_MAX
    }

    /// The object of the open that the notification with this ID resumes.
    pub fn resumed_by(&self, id: u64) -> Option<Source> {
        let state = self.0.lock();
        let mut pending = state.pending.iter();
        let open = pending.find(|open| open.stage == Stage::Resumed(id))?;
        match &open.left {
            Remainder::Source(source) => Some(source.clone()),
            Remainder::All { .. } => None,
        }
    }

    /// The monitor has performed the open of the notification with this ID. A thread that could not perform it cannot open the monitor's descriptors.
    pub fn performed(&self, id: u64) {
        let mut state = self.0.lock();
        state.is_refused |= state.restarted == Some(id);
    }

    /// The ID of an open that the thread may not have completed yet.
    pub fn pending(&self) -> Option<u64> {
        let state = self.0.lock();
        let mut pending = state.pending.iter();
        let open = pending.find(|open| open.stage == Stage::Answered)?;
        Some(open.id)
    }

    /// The thread has opened the object of the open with this ID.
    pub fn end(&self, id: u64) {
        let mut state = self.0.lock();
        let ends = |open: &mut PendingOpen| open.id == id && open.stage == Stage::Answered;
        let ended: Vec<_> = state.pending.extract_if(.., ends).collect();
        drop(state);
        drop(ended);
    }
}

/// From where a thread makes a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    /// The code of the map, behind an open of a descriptor of the monitor that has failed.
    Failure,
    /// Elsewhere in that code.
    Map,
    Site,
}

/// The stack pointer of a thread after its call has come to the monitor. The thread may not be asleep yet.
fn stack_pointer(tid: i32) -> Option<u64> {
    let limit = Instant::now() + FALLS_ASLEEP_WITHIN;
    loop {
        match procfs::sleeping_call(tid) {
            Ok(Some(call)) if call.number >= 0 => return Some(call.stack_pointer),
            Ok(_) if Instant::now() < limit => thread::yield_now(),
            _ => return None,
        }
    }
}

pub(super) fn is_open(call: &Notification) -> bool {
    i64::from(call.nr) == libc::SYS_openat
}
