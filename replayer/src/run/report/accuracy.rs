//! The accuracy of issue times: how much later than due calls were issued.

use serde_json::{Value, json};

/// Errors of issue times, in nanoseconds: a histogram, and figures of each second.
#[derive(Debug, Clone, Default)]
pub struct Accuracy {
    /// By size: each power of two in 8 steps.
    buckets: Vec<u64>,
    total: Second,
    /// By second of the replay.
    seconds: Vec<Second>,
}

/// A second of the replay.
#[derive(Debug, Clone, Copy, Default)]
pub struct Second {
    /// Calls that were issued in it.
    pub calls: u64,
    /// Calls that were due in it.
    pub due: u64,
    /// Sum of their errors, in nanoseconds.
    pub sum_ns: u64,
    /// The largest one.
    pub max_ns: u64,
}

/// Steps of a power of two in the histogram.
const STEPS: u32 = 8;
/// Maximum number of seconds that are kept apart.
const MAX_SECONDS: usize = 1 << 20;

impl Second {
    fn add(&mut self, error_ns: u64) {
        self.calls += 1;
        self.sum_ns = self.sum_ns.saturating_add(error_ns);
        self.max_ns = self.max_ns.max(error_ns);
    }

    fn merge(&mut self, other: &Self) {
        self.calls += other.calls;
        self.due += other.due;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Their mean error, in nanoseconds.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.calls).unwrap_or(0)
    }

    /// How far the number of calls that were issued is from the number of those that were due, as a share of these.
    pub fn deviation(&self) -> f64 {
        self.calls.abs_diff(self.due) as f64 / self.due.max(1) as f64
    }
}

fn bucket(error_ns: u64) -> usize {
    let error_ns = error_ns.max(u64::from(STEPS));
    let power = error_ns.ilog2();
    let step = (error_ns >> (power - 3)) as u32 - STEPS;
    (power * STEPS + step) as usize
}

/// The largest error of a bucket.
fn limit(bucket: usize) -> u64 {
    let bucket = bucket as u32;
    let (power, step) = (bucket / STEPS, bucket % STEPS);
    (u64::from(STEPS + step + 1) << power.saturating_sub(3)).saturating_sub(1)
}

impl Accuracy {
    /// Adds a call that was issued `error_ns` after it was due, `at_ns` after the start of the replay.
    pub fn add(&mut self, at_ns: u64, error_ns: u64) {
        let bucket = bucket(error_ns);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        if let Some(count) = self.buckets.get_mut(bucket) {
            *count += 1;
        }
        self.total.add(error_ns);
        self.total.due += 1;
        self.second(at_ns).add(error_ns);
        self.second(at_ns.saturating_sub(error_ns)).due += 1;
    }

    fn second(&mut self, at_ns: u64) -> &mut Second {
        let second = ((at_ns / 1_000_000_000) as usize).min(MAX_SECONDS - 1);
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, Second::default());
        }
        &mut self.seconds[second]
    }

    /// Adds the figures of another lane.
    pub fn merge(&mut self, other: &Self) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (count, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *count += more;
        }
        self.total.merge(&other.total);
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize(other.seconds.len(), Second::default());
        }
        for (second, more) in self.seconds.iter_mut().zip(&other.seconds) {
            second.merge(more);
        }
    }

    /// Calls that were counted.
    pub fn calls(&self) -> u64 {
        self.total.calls
    }

    /// How many calls had errors up to a size, in nanoseconds, and above the size before.
    pub fn distribution(&self) -> impl Iterator<Item = (u64, u64)> {
        let buckets = self.buckets.iter().enumerate();
        let used = buckets.filter(|(_, count)| **count > 0);
        used.map(|(bucket, count)| (limit(bucket), *count))
    }

    /// Figures of each second of the replay.
    pub fn seconds(&self) -> &[Second] {
        &self.seconds
    }

    /// The error that this share of the calls does not exceed, in nanoseconds, to an eighth.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let wanted = (self.total.calls as f64 * share).ceil() as u64;
        let mut sum = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            sum += count;
            if sum >= wanted {
                return limit(bucket).min(self.total.max_ns);
            }
        }
        self.total.max_ns
    }

    /// The second in which the number of issued calls differs most from the number of calls that were due.
    pub fn furthest(&self) -> Option<(usize, &Second)> {
        let seconds = self.seconds.iter().enumerate();
        seconds.max_by(|(_, one), (_, other)| one.deviation().total_cmp(&other.deviation()))
    }

    /// The figures as text, of several lines.
    pub fn text(&self) -> String {
        let micros = |ns: u64| ns as f64 / 1e3;
        let mut text = format!(
            "issue error: mean {:.1} us, p50 {:.1} us, p99 {:.1} us, largest {:.1} us",
            micros(self.total.mean_ns()),
            micros(self.quantile_ns(0.5)),
            micros(self.quantile_ns(0.99)),
            micros(self.total.max_ns)
        );
        text += "\ncalls issued in each second: ";
        text += &match self.furthest() {
            Some((number, second)) if second.calls != second.due => format!(
                "at most {:.2}% from those due in it (second {number}: {} issued, {} due)",
                second.deviation() * 100.0,
                second.calls,
                second.due
            ),
            _ => "as many as were due in it".into(),
        };
        text
    }

    /// The figures as JSON.
    pub fn json(&self) -> Value {
        let second = |second: &Second| {
            json!({
                "calls": second.calls,
                "due": second.due,
                "mean_ns": second.mean_ns(),
                "max_ns": second.max_ns,
            })
        };
        let buckets: Vec<_> = self
            .distribution()
            .map(|(to_ns, calls)| json!({ "to_ns": to_ns, "calls": calls }))
            .collect();
        json!({
            "total": second(&self.total),
            "p50_ns": self.quantile_ns(0.5),
            "p90_ns": self.quantile_ns(0.9),
            "p99_ns": self.quantile_ns(0.99),
            "p999_ns": self.quantile_ns(0.999),
            "seconds": self.seconds.iter().map(second).collect::<Vec<_>>(),
            "distribution": buckets,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_to_an_eighth() {
        let mut accuracy = Accuracy::default();
        for error_ns in 1..=1000u64 {
            accuracy.add(error_ns * 5_000_000, error_ns * 100);
        }
        for (share, exact) in [(0.5, 50_000.0), (0.99, 99_000.0), (1.0, 100_000.0)] {
            let found = accuracy.quantile_ns(share) as f64;
            assert!((exact..exact * 1.13).contains(&found), "{share}: {found}");
        }
        assert_eq!(accuracy.seconds.len(), 6);
    }

    #[test]
    fn a_late_call_counts_in_the_second_where_it_was_due() {
        let (mut accuracy, mut other) = (Accuracy::default(), Accuracy::default());
        for call in 0..20u64 {
            accuracy.add(call * 100_000_000, 0);
        }
        other.add(1_100_000_000, 200_000_000);
        accuracy.merge(&other);
        let seconds: Vec<_> = accuracy
            .seconds()
            .iter()
            .map(|s| (s.calls, s.due))
            .collect();
        assert_eq!(seconds, [(10, 11), (11, 10)]);
        let (number, second) = accuracy.furthest().unwrap();
        assert_eq!((number, second.deviation()), (1, 0.1));
    }

    #[test]
    fn each_error_is_within_its_bucket() {
        for error_ns in [0, 1, 7, 8, 9, 15, 16, 100, 12345, u64::MAX / 2] {
            let bucket = bucket(error_ns);
            assert!(error_ns.max(8) <= limit(bucket), "{error_ns}");
            assert!(error_ns <= 8 || error_ns > limit(bucket - 1), "{error_ns}");
        }
    }
}
