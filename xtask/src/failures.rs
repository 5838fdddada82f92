//! Keeps the output of failed tests, and shows it again after the run: otherwise it is hidden in the output of thousands of tests.

/// Lines kept of a test; its message stands at the beginning.
const LINES_MAX: usize = 60;
/// The line before the frames of a panic, which are not kept.
const FRAMES: &str = "stack backtrace:";

/// The output of the tests that failed.
#[derive(Debug, Default)]
pub struct Failures {
    tests: Vec<Failed>,
    /// Whether the next lines belong to the last test.
    is_open: bool,
}

#[derive(Debug)]
struct Failed {
    name: String,
    lines: Vec<String>,
}

impl Failures {
    /// Adds a line of a test runner's output. A test's output follows `---- NAME stdout ----` and ends with the next test's or with the list of
    /// names.
    pub fn add_line(&mut self, line: &str) {
        let line = line.trim_end();
        let name = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(name) = name {
            self.tests.push(Failed {
                name: name.to_owned(),
                lines: Vec::new(),
            });
            self.is_open = true;
            return;
        }
        if line == "failures:" || line == FRAMES {
            self.is_open = false;
        }
        if let Some(last) = self.tests.last_mut().filter(|_| self.is_open)
            && (last.lines.len() < LINES_MAX && !line.is_empty())
        {
            last.lines.push(line.to_owned());
        }
    }

    /// The names and the kept lines; empty without failed tests.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for test in &self.tests {
            lines.push(format!("failed: {}", test.name));
            lines.extend(test.lines.iter().map(|line| format!("    {line}")));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_tests_print_is_kept_without_frames() {
        let mut failures = Failures::default();
        let output = "test a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\n\nthread 'b' panicked at x.rs:1:2:\n- 1\n+ 2\n\
            stack backtrace:\n   0: rust_begin_unwind\nnote: some\n\n---- c stdout ----\nfirst\n\nfailures:\n    b\n    c\n\ntest result: FAILED. 1 passed";
        output.lines().for_each(|line| failures.add_line(line));
        let expected = [
            "failed: b",
            "    thread 'b' panicked at x.rs:1:2:",
            "    - 1",
            "    + 2",
            "failed: c",
            "    first",
        ];
        assert_eq!(failures.lines(), expected);
    }

    #[test]
    fn a_long_output_is_cut() {
        let mut failures = Failures::default();
        failures.add_line("---- b stdout ----");
        (0..1000).for_each(|number| failures.add_line(&number.to_string()));
        assert_eq!(failures.lines().len(), 1 + LINES_MAX);
    }
}
