//! Rounds: one sample of every setting, one after the other, so that the machine's load affects all alike.

use std::time::Duration;

use crate::{Error, Operation, Row, Setting};

const MOST_ITERATIONS: u64 = 200_000;

/// The rounds of one operation. A round is made when one of its samples is requested.
///
/// A noisy machine changes its speed by the second. Settings measured one after the other would be compared across such
/// changes; in a round they are milliseconds apart, and each round begins with another one.
#[derive(Debug)]
pub struct Lockstep {
    operation: Operation,
    /// Iterations of a sample; 0 for a setting that cannot do the operation.
    iterations: Vec<u64>,
    /// Nanoseconds per iteration, by round and setting.
    rounds: Vec<Vec<Option<f64>>>,
}

impl Lockstep {
    /// Finds for each setting how many iterations take about `sample`.
    ///
    /// # Errors
    ///
    /// A setting failed.
    pub fn new(
        operation: Operation,
        settings: &mut [Setting],
        sample: Duration,
    ) -> Result<Self, Error> {
        let iterations = settings
            .iter_mut()
            .map(|setting| calibrate(operation, setting, sample))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            operation,
            iterations,
            rounds: Vec::new(),
        })
    }

    /// Nanoseconds per iteration of `setting` (an index of `settings`) in `round`; `None` when it cannot do the
    /// operation.
    ///
    /// # Errors
    ///
    /// A setting failed.
    pub fn sample(
        &mut self,
        settings: &mut [Setting],
        setting: usize,
        round: usize,
    ) -> Result<Option<f64>, Error> {
        while self.rounds.len() <= round {
            self.round(settings)?;
        }
        let sample = self.rounds.get(round).and_then(|round| round.get(setting));
        Ok(sample.copied().flatten())
    }

    /// The measurements, as a row of the page.
    pub fn into_row(self) -> Row {
        Row {
            label: self.operation.label().to_owned(),
            rounds: self.rounds,
        }
    }

    fn round(&mut self, settings: &mut [Setting]) -> Result<(), Error> {
        let mut round = vec![None; settings.len()];
        for step in 0..settings.len() {
            let at = (self.rounds.len() + step) % settings.len();
            if let (Some(setting), Some(&iterations), Some(sample)) = (
                settings.get_mut(at),
                self.iterations.get(at),
                round.get_mut(at),
            ) && iterations > 0
            {
                let elapsed = setting.measure(self.operation, iterations)?;
                *sample = Some(elapsed.as_nanos() as f64 / iterations as f64);
            }
        }
        self.rounds.push(round);
        Ok(())
    }
}

fn calibrate(operation: Operation, setting: &mut Setting, sample: Duration) -> Result<u64, Error> {
    if !setting.is_able(operation) {
        return Ok(0);
    }
    let mut iterations = 1;
    loop {
        let mut elapsed = setting.measure(operation, iterations)?;
        let is_enough = |elapsed: Duration| elapsed * 4 >= sample || iterations >= MOST_ITERATIONS;
        // A stall of the disk would make a call seem slow, so that its samples would have only a few iterations.
        for _ in 0..2 {
            if is_enough(elapsed) {
                elapsed = elapsed.min(setting.measure(operation, iterations)?);
            }
        }
        if is_enough(elapsed) {
            let per_iteration = elapsed.as_secs_f64() / iterations as f64;
            // A float that is too large for an integer becomes the largest one.
            let fitting = (sample.as_secs_f64() / per_iteration) as u64;
            return Ok(fitting.clamp(1, MOST_ITERATIONS));
        }
        iterations *= 2;
    }
}
