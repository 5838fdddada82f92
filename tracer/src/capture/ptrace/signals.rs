//! Signals sent to the tracer while it follows programs.
//!
//! They are blocked in all its threads, so they must be held before the first thread is started. If the tracer died, the traced command could
//! not continue: without a tracer, the kernel fails the calls that the filter would stop.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use goanna_sys::interrupt::Waiter;
use goanna_sys::{limits, pidfd};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::AsFd;

const HELD: [Signal; 4] = [
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGHUP,
];

/// The kernel sends it with EFBIG at the limit on file sizes. It stays blocked.
const AT_LIMIT: Signal = Signal::SIGXFSZ;

/// Signals that would end the tracer, held until the process ends.
#[derive(Debug, Clone, Copy)]
pub struct Signals {
    before: SigSet,
    held: SigSet,
}

impl Signals {
    /// Holds these signals in this thread and in all threads that it starts.
    pub fn hold() -> io::Result<Self> {
        let held: SigSet = HELD.into_iter().collect();
        let before = SigSet::thread_get_mask()?;
        held.thread_block()?;
        limits::block_xfsz();
        Ok(Self { before, held })
    }

    /// The signals that must not be blocked in the command.
    pub(super) fn of_command(&self) -> Vec<i32> {
        let ours = |signal: &Signal| !self.before.contains(*signal);
        let ours = HELD.into_iter().chain([AT_LIMIT]).filter(ours);
        ours.map(|signal| signal as i32).collect()
    }

    /// Sends the signals that ask for an end on to process `pid`. A terminal sends its signals to that process itself.
    pub(super) fn forward_to(&self, pid: i32) -> io::Result<()> {
        let process = pidfd::open_process(pid)?;
        self.on_each(move |signal| {
            if matches!(signal, Signal::SIGTERM | Signal::SIGHUP) {
                // It may have ended.
                let _ = pidfd::send_signal(process.as_fd(), signal as i32);
            }
        })
    }

    /// Sets `ends` at the first signal, and ends the wait of the tracing thread.
    pub(super) fn end_at_first(&self, ends: Arc<AtomicBool>, tracer: Waiter) -> io::Result<()> {
        self.on_each(move |_| {
            ends.store(true, Ordering::Release);
            // A wake-up signal that arrives before the wait is lost.
            while Arc::strong_count(&ends) > 1 && tracer.poke().is_ok() {
                thread::sleep(Duration::from_millis(10));
            }
        })
    }

    fn on_each(&self, mut act: impl FnMut(Signal) + Send + 'static) -> io::Result<()> {
        let arrived = SignalFd::with_flags(&self.held, SfdFlags::SFD_CLOEXEC)?;
        let run = move || {
            loop {
                match arrived.read_signal() {
                    Ok(Some(info)) => {
                        let signal = i32::try_from(info.ssi_signo).map(Signal::try_from);
                        if let Ok(Ok(signal)) = signal {
                            act(signal);
                        }
                    }
                    Ok(None) | Err(Errno::EINTR) => {}
                    Err(_) => return,
                }
            }
        };
        let thread = thread::Builder::new().name("signals".into());
        thread.spawn(run).map(drop)
    }
}
