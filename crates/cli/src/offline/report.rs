//! What a copy did: counts, what was skipped, and the progress bar.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};

use crate::args::Loudness;
use crate::error::Error;
use crate::messages;
use crate::names;
use crate::output::Output;

/// Counts of what was copied.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Regular files.
    pub files: u64,
    /// Directories, the top one included.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files that were copied already.
    pub hard_links: u64,
    /// Fifos, sockets' names, device nodes.
    pub special: u64,
    /// Bytes of data, without holes.
    pub bytes: u64,
}

/// A copy under way.
pub struct Report {
    /// What is done.
    pub done: Counts,
    skipped: Vec<(Vec<u8>, String)>,
    bar: ProgressBar,
    loud: Loudness,
}

/// What there is to copy, for the progress bar.
#[derive(Debug, Default, Clone, Copy)]
pub struct Total {
    /// Names.
    pub files: u64,
    /// Bytes of regular files.
    pub bytes: u64,
}

/// Whether progress bars are shown at all.
pub fn shows_progress(loud: Loudness) -> bool {
    !loud.quiet && std::io::stderr().is_terminal()
}

impl Report {
    /// A copy of `total`, when that is known and to be shown.
    pub fn new(total: Option<Total>, loud: Loudness) -> Self {
        let bar = match total {
            Some(total) => {
                let bar = ProgressBar::new(total.bytes.max(1));
                let style = ProgressStyle::with_template(&format!(
                    "{{msg}} of {} files  {{bytes}} of {{total_bytes}}  {{wide_bar}} {{bytes_per_sec}}",
                    total.files
                ));
                if let Ok(style) = style {
                    bar.set_style(style);
                }
                bar
            }
            None => ProgressBar::hidden(),
        };
        Self {
            done: Counts::default(),
            skipped: Vec::new(),
            bar,
            loud,
        }
    }

    /// Counts data that was copied.
    pub fn wrote(&mut self, bytes: u64) {
        self.done.bytes += bytes;
        self.bar.inc(bytes);
    }

    /// A hole was kept.
    pub fn passed_hole(&mut self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Something is about to be copied.
    pub fn begin(&mut self, path: &[u8]) {
        let done = &self.done;
        let names = done.files + done.directories + done.symlinks + done.hard_links + done.special;
        if !self.bar.is_hidden() {
            self.bar.set_message(names.to_string());
        }
        if self.loud.verbose > 0 {
            self.say(&names::escape(path));
        }
    }

    /// Something was not copied: told at once, and the exit status becomes 1.
    pub fn skip(&mut self, path: &[u8], why: impl std::fmt::Display) {
        let why = why.to_string();
        self.say(&format!("{}: {why}", names::escape(path)));
        self.skipped.push((path.to_vec(), why));
    }

    /// Something worth knowing.
    pub fn notice(&self, path: &[u8], what: &str) {
        if !self.loud.quiet {
            self.say(&format!("{}: {what}", names::escape(path)));
        }
    }

    fn say(&self, line: &str) {
        self.bar.suspend(|| messages::line(line));
    }

    /// Ends the copy; prints its figures and returns the exit status.
    pub fn finish(self, json: bool) -> Result<u8, Error> {
        self.bar.finish_and_clear();
        let status = u8::from(!self.skipped.is_empty());
        if json {
            Output::new().json(&self.to_json())?;
        } else if shows_progress(self.loud) || self.loud.verbose > 0 {
            let done = &self.done;
            self.say(&format!(
                "{} files, {} directories, {} symbolic links, {} hard links, {} special files; {} bytes of data",
                done.files, done.directories, done.symlinks, done.hard_links, done.special, done.bytes
            ));
        }
        Ok(status)
    }

    fn to_json(&self) -> Value {
        let skipped = self.skipped.iter().map(|(path, why)| {
            let mut map = Map::new();
            names::put(&mut map, "path", path);
            map.insert("why".into(), why.as_str().into());
            Value::Object(map)
        });
        let mut value = serde_json::to_value(self.done).unwrap_or_default();
        if let Value::Object(map) = &mut value {
            map.insert("skipped".into(), skipped.collect());
        }
        value
    }
}
