//! Receiver slots: they decide which thread of the pool receives the next notification.
//!
//! Every thread that waits for a notification is woken by each, on the CPU of the tracee that calls: measured 20 us a call
//! with four waiting threads, 14 with two, 11 with one. So there is one slot for a receiver, and a standby takes it when
//! the receiver's call takes long (a sync, a full store).
//!
//! One receiver also draws all tracees to one CPU: it receives the call of a second tracee while it is still on the CPU of
//! the first, and wakes the second one there. So when tracees call at the same time there is a second slot, and tracees
//! are woken on idle CPUs: two tracees that do nothing but call need 13 us a call each instead of 22.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// A call that takes longer than this no longer keeps others waiting.
const SLOW_AFTER: Duration = Duration::from_millis(3);
/// Number of checks without a call in progress after which a standby stops checking.
const IDLE_LOOKS: u32 = 32;
/// Calls of two tracees that follow each other closer than this are made at the same time: between parent and child lie
/// a fork or an exit, which take longer.
const CLOSE: Duration = Duration::from_micros(250);
/// Each such change of tracees adds this to the score, and every call subtracts 1: one change in 16 calls keeps the score.
const CHANGE: u32 = 16;
/// From this score on, tracees count as calling at the same time.
const CONTENDED: u32 = 32;
const SCORE_MAX: u32 = 16 * CONTENDED;
const SLOTS_MAX: usize = 2;

/// The slots of the threads that receive notifications.
#[derive(Debug, Default)]
pub struct ReceiverSlots {
    state: Mutex<State>,
    free: Condvar,
}

/// Shows that a thread has taken a slot; another thread may have taken the slot over since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

#[derive(Debug)]
struct Slot {
    ticket: Ticket,
    /// When the holder began to answer its call; `None` while it waits for one.
    answering: Option<Instant>,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    slots: Vec<Slot>,
    /// A standby checks for slow holders; one is enough.
    watched: bool,
    /// No standby checks for slow holders until the next call.
    resting: bool,
    /// Threads that wait for a slot.
    standbys: usize,
    /// No further call will come.
    closed: bool,
    /// The last call: its thread and time.
    called: Option<(i32, Instant)>,
    score: u32,
}

impl State {
    fn contended(&self) -> bool {
        self.score >= CONTENDED
    }

    fn is_idle(&self) -> bool {
        self.slots.iter().all(|slot| slot.answering.is_none())
    }

    fn slots_wanted(&self) -> usize {
        if self.contended() { SLOTS_MAX } else { 1 }
    }

    fn slot(&mut self, ticket: Ticket) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.ticket == ticket)
    }

    fn note_call(&mut self, tid: i32, now: Instant) {
        self.score = self.score.saturating_sub(1);
        if let Some((last, at)) = self.called.replace((tid, now))
            && last != tid
            && now.duration_since(at) < CLOSE
        {
            self.score = (self.score + CHANGE).min(SCORE_MAX);
        }
    }
}

impl ReceiverSlots {
    /// Waits until a slot is free or a holder slow; `None` after [`ReceiverSlots::close`].
    pub fn take(&self) -> Option<Ticket> {
        let mut state = self.state.lock();
        let mut watching = false;
        let mut idle_looks = 0;
        state.standbys += 1;
        while !state.closed {
            let slow = |slot: &Slot| slot.answering.is_some_and(|at| at.elapsed() >= SLOW_AFTER);
            if let Some(slow) = state.slots.iter().position(slow) {
                state.slots.swap_remove(slow);
            }
            if state.slots.len() < state.slots_wanted() {
                break;
            }
            if (watching || !state.watched) && !state.resting {
                state.watched = true;
                watching = true;
                self.free.wait_for(&mut state, SLOW_AFTER);
                idle_looks = if state.is_idle() { idle_looks + 1 } else { 0 };
                if idle_looks == IDLE_LOOKS {
                    (watching, state.watched, state.resting) = (false, false, true);
                    idle_looks = 0;
                }
            } else {
                self.free.wait(&mut state);
            }
        }
        state.standbys -= 1;
        if state.closed {
            return None;
        }
        if watching {
            state.watched = false;
            // Another thread watches from now on.
            self.free.notify_one();
        }
        state.last += 1;
        let ticket = Ticket(state.last);
        state.slots.push(Slot {
            ticket,
            answering: None,
        });
        Some(ticket)
    }

    /// Threads that wait for a slot now.
    pub fn standbys(&self) -> usize {
        self.state.lock().standbys
    }

    /// Ends the wait of every thread, because no further call will come.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.free.notify_all();
    }

    /// Records that the holder answers a call of `tid`. Returns whether other tracees call at the same time.
    pub fn begin(&self, ticket: Ticket, tid: i32) -> bool {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.note_call(tid, now);
        if let Some(slot) = state.slot(ticket) {
            slot.answering = Some(now);
        }
        let is_resting = std::mem::take(&mut state.resting);
        if is_resting || state.slots.len() < state.slots_wanted() {
            self.free.notify_one();
        }
        state.contended()
    }

    /// Records that the call is answered. Returns whether the holder still has the slot.
    pub fn end(&self, ticket: Ticket) -> bool {
        let mut state = self.state.lock();
        if state.slots.len() > state.slots_wanted() {
            state.slots.retain(|slot| slot.ticket != ticket);
        }
        state
            .slot(ticket)
            .map(|slot| slot.answering = None)
            .is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn a_closed_receiver_slot_releases_all_threads() {
        let slot = Arc::new(ReceiverSlots::default());
        let held = slot.take();
        let other = Arc::clone(&slot);
        let taker = thread::spawn(move || other.take());
        slot.close();
        assert!(held.is_some());
        assert_eq!(taker.join().unwrap(), None);
        assert_eq!(slot.standbys(), 0);
    }

    #[test]
    fn a_slow_holder_loses_it_and_a_waiting_one_does_not() {
        let slot = Arc::new(ReceiverSlots::default());
        let first = slot.take().unwrap();
        let (done, taken) = channel();
        for _ in 0..2 {
            let (other, done) = (Arc::clone(&slot), done.clone());
            thread::spawn(move || {
                let ticket = other.take().unwrap();
                done.send(ticket).unwrap();
                // This holder is slow, too, so that the second standby takes its slot.
                other.begin(ticket, 1);
            });
        }
        assert!(
            taken.recv_timeout(SLOW_AFTER * 10).is_err(),
            "taken from a thread that only waits"
        );
        slot.begin(first, 1);
        let long = Duration::from_secs(10);
        let second = taken.recv_timeout(long).unwrap();
        assert!(!slot.end(first));
        let third = taken.recv_timeout(long).unwrap();
        assert_ne!(second, third);
    }

    #[test]
    fn a_standby_rests_while_there_are_no_calls_and_sees_a_slow_one_afterwards() {
        let slot = Arc::new(ReceiverSlots::default());
        let first = slot.take().unwrap();
        let other = Arc::clone(&slot);
        let taker = thread::spawn(move || other.take());
        let end = Instant::now() + Duration::from_secs(60);
        while !slot.state.lock().resting {
            assert!(Instant::now() < end, "it looks for ever");
            thread::sleep(SLOW_AFTER);
        }
        slot.begin(first, 1);
        assert!(taker.join().unwrap().is_some());
        assert!(!slot.end(first));
    }

    #[test]
    fn tracees_that_call_at_the_same_time_get_a_second_receiver_until_one_is_left() {
        let mut state = State::default();
        let mut now = Instant::now();
        let step = CLOSE / 4;
        for call in 0..20 {
            now += step;
            state.note_call(call % 2, now);
        }
        assert_eq!(state.slots_wanted(), 2);
        for _ in 0..SCORE_MAX {
            now += step;
            state.note_call(0, now);
        }
        assert_eq!(state.slots_wanted(), 1);
        for call in 0..100 {
            now += 2 * CLOSE;
            state.note_call(call % 2, now);
        }
        assert_eq!(state.slots_wanted(), 1, "parent and child take turns");
    }

    #[test]
    fn the_second_receiver_leaves_when_calls_become_rare() {
        let slot = ReceiverSlots::default();
        slot.state.lock().score = SCORE_MAX;
        let (first, second) = (slot.take().unwrap(), slot.take().unwrap());
        assert!(slot.begin(first, 1));
        assert!(slot.end(first) && slot.end(second));
        slot.state.lock().score = 0;
        assert!(!slot.begin(first, 1));
        assert!(!slot.end(first));
        assert!(slot.end(second));
    }
}
