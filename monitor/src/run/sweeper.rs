//! The thread that cleans up and reports, twice a second.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::Monitor;

const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// Notices, twice a second, which files no tracee holds any more, which named transactions have expired, and which
/// processes outlive the command.
pub(super) struct Sweeper {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: thread::JoinHandle<()>,
}

impl Sweeper {
    pub(super) fn start(monitor: &Arc<Monitor>) -> io::Result<Self> {
        let monitor = Arc::clone(monitor);
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("sweeper".into())
            .spawn(move || {
                let (flag, wake) = &*stopped;
                let mut stop = flag.lock();
                while !*stop {
                    wake.wait_for(&mut stop, SWEEP_INTERVAL);
                    if *stop {
                        return;
                    }
                    drop(stop);
                    monitor.participants.expire();
                    monitor.participants.note_refused();
                    monitor.shadows.sweep(|| monitor.alive.all());
                    monitor.watches.sweep(|| monitor.alive.all());
                    monitor
                        .ending
                        .report_left_processes(&monitor.alive, &monitor.note);
                    stop = flag.lock();
                }
            })?;
        Ok(Self { stop, thread })
    }

    pub(super) fn stop(self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        let _ = self.thread.join();
    }
}
