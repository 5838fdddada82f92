//! The report of a copy: its progress bar, its messages, and its figures.

use std::io::IsTerminal;

use goanna_offline::copy::{Copied, CopyObserver, Counts, Summary, Total};
use goanna_sys::plural::{counted, counted_as};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};

use super::messages;
use super::names;
use super::output::Output;
use crate::args::Verbosity;
use crate::error::Error;

/// Reports a copy to the user.
pub struct CopyReport {
    bar: ProgressBar,
    verbosity: Verbosity,
}

/// Whether progress bars are shown at all.
pub fn shows_progress(verbosity: Verbosity) -> bool {
    !verbosity.quiet && std::io::stderr().is_terminal()
}

/// A progress indicator for work whose length is not known.
pub fn spinner(verbosity: Verbosity) -> ProgressBar {
    if shows_progress(verbosity) {
        ProgressBar::new_spinner()
    } else {
        ProgressBar::hidden()
    }
}

/// Shows the amount of work done on such an indicator.
pub fn show_count(bar: &ProgressBar, number: u64, of: &str) {
    bar.set_message(format!("{number} {of}"));
    bar.tick();
}

impl CopyObserver for CopyReport {
    fn begin(&self, path: &[u8], counts: &Counts) {
        if !self.bar.is_hidden() {
            self.bar.set_message(counts.names().to_string());
        }
        if self.verbosity.verbose > 0 {
            self.line(&names::escape(path));
        }
    }

    fn copied(&self, part: Copied) {
        self.bar.inc(part.data + part.holes);
    }

    fn skip(&self, path: &[u8], why: &str) {
        self.line(&format!("{}: {why}", names::escape(path)));
    }

    fn notice(&self, path: &[u8], what: &str) {
        if !self.verbosity.quiet {
            self.line(&format!("{}: {what}", names::escape(path)));
        }
    }
}

impl CopyReport {
    /// The report of a copy. `total` is called only if a progress bar is shown.
    pub fn new(total: impl FnOnce() -> Total, verbosity: Verbosity) -> Self {
        let bar = if shows_progress(verbosity) {
            progress_bar(total())
        } else {
            ProgressBar::hidden()
        };
        Self { bar, verbosity }
    }

    fn line(&self, text: &str) {
        self.bar.suspend(|| messages::line(text));
    }

    /// Ends the copy: prints its figures. Returns the exit status, 1 when something was not copied.
    pub fn finish(self, summary: &Summary, json: bool) -> Result<u8, Error> {
        self.bar.finish_and_clear();
        if json {
            Output::new().json(&to_json(summary))?;
        } else if shows_progress(self.verbosity) || self.verbosity.verbose > 0 {
            let done = &summary.counts;
            self.line(&format!(
                "{}, {}, {}, {}, {}; {} of data",
                counted(done.files, "file"),
                directories(done.directories),
                counted(done.symlinks, "symbolic link"),
                counted(done.hard_links, "hard link"),
                counted(done.special, "special file"),
                counted(done.bytes, "byte")
            ));
        }
        Ok(u8::from(!summary.skipped.is_empty()))
    }
}

fn directories(number: u64) -> String {
    counted_as(number, "directory", "directories")
}

fn progress_bar(total: Total) -> ProgressBar {
    let bar = ProgressBar::new(total.bytes.max(1));
    let style = ProgressStyle::with_template(&format!(
        "{{msg}} of {}  {{bytes}} of {{total_bytes}}  {{wide_bar}} {{bytes_per_sec}}",
        counted(total.files, "file")
    ));
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}

fn to_json(summary: &Summary) -> Value {
    let skipped = summary.skipped.iter().map(|skipped| {
        let mut map = Map::new();
        names::put(&mut map, "path", &skipped.path);
        map.insert("why".into(), skipped.why.as_str().into());
        Value::Object(map)
    });
    let mut value = serde_json::to_value(summary.counts).unwrap_or_default();
    if let Value::Object(map) = &mut value {
        map.insert("skipped".into(), skipped.collect());
    }
    value
}
