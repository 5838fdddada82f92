//! Messages to the supervisor, from the threads that answer calls: the supervisor alone may use ptrace.
//!
//! The supervisor waits in waitid(2), and a signal of ours ends that wait. A signal that arrives just before the wait begins
//! is lost, so the sender repeats it until the supervisor has read the message. No thread polls while there is no message.
//!
//! The mutex in here is a leaf in the lock order. A thread that posts a message holds nothing that the supervisor waits for, in
//! particular no guard of [`crate::intercept::in_flight`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use goanna_sys::arch::Registers;
use goanna_sys::interrupt::Waiter;
use goanna_vfs::{Errno, Result};
use parking_lot::{Condvar, Mutex};

use crate::answer::Answer;
use crate::intercept::waiting::Waiting;
use crate::ptracer::inject::map::MapMemory;

/// The answer to a call at a ptrace stop, which took long.
pub struct LateAnswer {
    /// The thread that called.
    pub tid: i32,
    /// Which answer of the supervisor's it is: the thread's number may be another one's by now.
    pub number: u64,
    /// The thread's registers at the stop.
    pub regs: Registers,
    /// The answer.
    pub answer: Result<Answer>,
}

/// A thread whose call waits.
pub struct Park {
    /// The call.
    pub waiting: Arc<Waiting>,
    /// Where the thread is at the call's ptrace stop: number, as in [`LateAnswer`], and registers. Otherwise it is about to leave
    /// its call with a result that makes the kernel restart it.
    pub at_stop: Option<(u64, Registers)>,
}

/// A request to map memory that the monitor shares into a process.
pub struct MapRequest {
    /// The thread, which waits in a call.
    pub tid: i32,
    /// What it is to do.
    pub script: MapMemory,
    /// Set where it will be done.
    pub accepted: Arc<AtomicBool>,
}

/// A request to the supervisor.
pub enum Message {
    /// To let the caller continue with its answer.
    LateAnswer(Box<LateAnswer>),
    /// To park a thread whose call waits.
    Park(Box<Park>),
    /// To let the thread continue, whose call has waited: the answer is there.
    Ready(i32),
    /// To end a restarted wait of the thread, which has this number: its deadline has passed.
    Due(i32, u64),
    /// To send PTRACE_INTERRUPT to the thread.
    Interrupt(i32),
    /// To have the thread map memory before it returns from its call.
    MapMemory(Box<MapRequest>),
    /// To see the result of the call that the thread is in, which is about to change the path.
    ReportResult(i32, Vec<u8>),
    /// To let the thread exit, whose core files are where they belong.
    CoreMoved(i32),
    /// To look for threads that have ended, while others cannot be reaped yet.
    CheckDying,
}

/// The messages that wait for the supervisor.
#[derive(Default)]
pub struct Mailbox {
    state: Mutex<State>,
    /// Whether there are messages; without one the supervisor does not take the mutex.
    filled: AtomicBool,
    read: Condvar,
}

#[derive(Default)]
struct State {
    messages: Vec<Message>,
    posted: u64,
    /// Number of messages that have been handled.
    done: u64,
    supervisor: Option<Waiter>,
    /// The supervisor has ended.
    closed: bool,
}

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mailbox")
    }
}

/// How long a sender waits at first until it repeats the signal, and at most.
const REPEAT: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(50));

impl Mailbox {
    /// Makes the calling thread the supervisor.
    pub fn open(&self) -> Result<(), Errno> {
        let supervisor = Waiter::with_own_mask()?;
        self.state.lock().supervisor = Some(supervisor);
        Ok(())
    }

    /// The supervisor ends: messages are not read any more.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.read.notify_all();
    }

    /// Posts that the answer of `tid`, whose call has waited, is there.
    pub fn post_ready(&self, tid: i32) {
        self.post(Message::Ready(tid));
    }

    /// Posts a message; returns when the supervisor has dealt with it, or has ended.
    pub fn post(&self, message: Message) {
        let mut state = self.state.lock();
        state.messages.push(message);
        state.posted += 1;
        let number = state.posted;
        self.filled.store(true, Ordering::Release);
        let (mut pause, longest) = REPEAT;
        while state.done < number && !state.closed {
            if let Some(supervisor) = &state.supervisor {
                // It may have ended.
                let _ = supervisor.poke();
            }
            self.read.wait_for(&mut state, pause);
            pause = (pause * 2).min(longest);
        }
    }

    /// Handles the present messages by `deal`. Called by the supervisor.
    pub fn read(&self, mut deal: impl FnMut(Message)) {
        if !self.filled.swap(false, Ordering::Acquire) {
            return;
        }
        let (messages, posted) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.messages), state.posted)
        };
        messages.into_iter().for_each(&mut deal);
        self.state.lock().done = posted;
        self.read.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn a_message_ends_the_supervisors_wait() {
        let mailbox = Arc::new(Mailbox::default());
        let (sender, seen) = channel();
        let reading = Arc::clone(&mailbox);
        let supervisor = thread::spawn(move || {
            reading.open().unwrap();
            let mut read = 0;
            while read < 100 {
                // As waitid(2), a wait that a signal ends.
                let _ = nix::poll::poll(&mut [], nix::poll::PollTimeout::NONE);
                reading.read(|message| {
                    if let Message::Interrupt(tid) = message {
                        sender.send(tid).unwrap();
                        read += 1;
                    }
                });
            }
            reading.close();
        });
        for tid in 0..100 {
            mailbox.post(Message::Interrupt(tid));
            assert_eq!(seen.try_recv(), Ok(tid), "it is dealt with by then");
        }
        supervisor.join().unwrap();
        // The reader is gone.
        mailbox.post(Message::Interrupt(0));
    }
}
