//! Counts tests from the closing lines of libtest, and those that `goanna-skip` has left out.

use std::collections::BTreeSet;
use std::fmt;

/// Sum over all test binaries of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    passed: u64,
    failed: u64,
    ignored: u64,
    skipped: BTreeSet<String>,
}

impl Tally {
    /// Adds a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; ...`.
    ///
    /// Ignores any other line.
    pub fn add_line(&mut self, line: &str) {
        let Some(rest) = line.trim().strip_prefix("test result: ") else {
            return;
        };
        let Some((_, counts)) = rest.split_once(". ") else {
            return;
        };
        for count in counts.split(';') {
            let mut words = count.split_whitespace();
            let (Some(number), Some(what)) = (words.next(), words.next()) else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }

    /// Adds the lines of `goanna-skip`: a test's name, a colon, and the reason for which it was skipped.
    ///
    /// libtest has counted these tests as passed.
    pub fn add_skipped(&mut self, lines: &str) {
        let name = |line: &str| line.split(": ").next().map(str::to_owned);
        self.skipped.extend(lines.lines().filter_map(name));
    }

    /// Tests that were executed, whatever their result.
    pub fn ran(&self) -> u64 {
        self.passed + self.failed
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let skipped = self.skipped.len() as u64;
        write!(
            formatter,
            "{} passed, {} failed, {} skipped",
            self.passed.saturating_sub(skipped),
            self.failed,
            self.ignored + skipped
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_add_up() {
        let mut tally = Tally::default();
        tally.add_line(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 5 filtered out; finished in 0.12s\n",
        );
        tally.add_line(
            "test result: FAILED. 20 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!(tally.to_string(), "23 passed, 2 failed, 1 skipped");
        assert_eq!(tally.ran(), 25);
    }

    #[test]
    fn a_test_that_was_left_out_has_not_passed() {
        let mut tally = Tally::default();
        tally.add_line("test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured");
        tally.add_skipped(
            "run::a: only root can (root)\nrun::a: and again (root)\nrun::b: no (fuse)\n",
        );
        assert_eq!(tally.to_string(), "3 passed, 0 failed, 2 skipped");
        assert_eq!(tally.ran(), 5);
    }

    #[test]
    fn other_lines_do_not_count() {
        let mut tally = Tally::default();
        tally.add_line("test rw::tests::writes ... ok");
        tally.add_line("running 7 tests");
        tally.add_line("7 passed; 0 failed");
        tally.add_line("test result: unheard of");
        assert_eq!(tally, Tally::default());
    }
}
