//! Issues calls at their times.

use goanna_sys::clock::monotonic_ns;
use goanna_sys::replay::sleep_until;

use super::options::Speed;

/// How long before a call is due its thread wakes up and spins: a sleep ends late by some tens of microseconds.
const SPIN_NS: u64 = 120_000;

/// The times of a lane's calls.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    start_ns: u64,
    factor: Option<f64>,
}

impl Pace {
    /// `start_ns` is when the first call is due.
    pub fn new(speed: Speed, start_ns: u64) -> Self {
        let factor = match speed {
            Speed::Fast => None,
            Speed::Factor(factor) => Some(factor),
        };
        Self { start_ns, factor }
    }

    /// When a call is due that began `after_ns` after the trace; `None` when that does not matter.
    pub fn due(&self, after_ns: u64) -> Option<u64> {
        let after = after_ns as f64 / self.factor?;
        Some(self.start_ns.saturating_add(after as u64))
    }

    /// Sleeps until shortly before `due_ns`, does `useful` meanwhile, then spins.
    pub fn wait(due_ns: u64, useful: impl FnOnce()) {
        let now = monotonic_ns();
        if now >= due_ns {
            return;
        }
        if due_ns - now > SPIN_NS {
            sleep_until(due_ns - SPIN_NS);
        }
        useful();
        while monotonic_ns() < due_ns {
            std::hint::spin_loop();
        }
    }
}
