//! The thread that cleans up and reports, twice a second.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::calls::{lease, nested};
use crate::shadow::Alarmed;
use crate::{Monitor, defect};

const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// Notices, twice a second, which files no tracee holds any more, which named transactions have expired, and which
/// processes outlive the command. After many opens it looks for unused files at once.
pub(super) struct Sweeper {
    monitor: Arc<Monitor>,
    thread: thread::JoinHandle<()>,
}

impl Sweeper {
    pub(super) fn start(monitor: &Arc<Monitor>) -> io::Result<Self> {
        let swept = Arc::clone(monitor);
        let thread = thread::Builder::new()
            .name("sweeper".into())
            .spawn(move || sweep_until_stopped(&swept))?;
        let monitor = Arc::clone(monitor);
        Ok(Self { monitor, thread })
    }

    pub(super) fn stop(self) {
        self.monitor.shadows.alarm.stop();
        let _ = self.thread.join();
    }
}

fn sweep_until_stopped(monitor: &Monitor) {
    let mut due_at = Instant::now() + SWEEP_INTERVAL;
    loop {
        match monitor.shadows.alarm.wait_until(due_at) {
            Alarmed::Stopped => return,
            Alarmed::Rang => {
                defect::contained(monitor, "the sweep of files", || {
                    monitor.shadows.sweep_files();
                });
            }
            Alarmed::TimedOut => {
                defect::contained(monitor, "the sweep", || sweep(monitor));
                due_at = Instant::now() + SWEEP_INTERVAL;
            }
        }
    }
}

fn sweep(monitor: &Monitor) {
    monitor.participants.expire();
    monitor.participants.note_refused();
    monitor.in_process.sweep_opens();
    lease::sweep();
    monitor.shadows.sweep(|| monitor.alive.all());
    monitor.watches.sweep(|| monitor.alive.all());
    nested::end_all(monitor);
    monitor
        .run_end
        .report_left_processes(&monitor.alive, &monitor.note);
}
