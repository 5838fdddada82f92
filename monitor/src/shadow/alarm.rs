//! Wakes the sweeper before its time.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
struct State {
    rang: bool,
    stopped: bool,
}

/// The alarm on which the sweeper waits.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    state: Mutex<State>,
    wake: Condvar,
}

/// Why a wait has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alarmed {
    Stopped,
    /// There are many new files.
    Rang,
    TimedOut,
}

impl Alarm {
    /// Many files were opened.
    pub fn ring(&self) {
        self.state.lock().rang = true;
        self.wake.notify_all();
    }

    /// The run has ended.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.wake.notify_all();
    }

    /// Waits for one of these until `due_at`.
    pub fn wait_until(&self, due_at: Instant) -> Alarmed {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return Alarmed::Stopped;
            }
            // Checked before the alarm: a program that opens files all the time must not delay a whole
            // sweep.
            if Instant::now() >= due_at {
                return Alarmed::TimedOut;
            }
            if std::mem::take(&mut state.rang) {
                return Alarmed::Rang;
            }
            self.wake.wait_until(&mut state, due_at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_alarm_ends_one_wait_and_a_stop_all() {
        let alarm = Alarm::default();
        let later = Instant::now() + Duration::from_secs(3600);
        alarm.ring();
        assert_eq!(alarm.wait_until(later), Alarmed::Rang);
        let now = Instant::now();
        alarm.ring();
        assert_eq!(alarm.wait_until(now), Alarmed::TimedOut);
        alarm.stop();
        assert_eq!(alarm.wait_until(later), Alarmed::Stopped);
        assert_eq!(alarm.wait_until(now), Alarmed::Stopped);
    }
}
