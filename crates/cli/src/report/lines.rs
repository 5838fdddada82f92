//! Prints facts as lines of text or as JSON.

use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Map, Value};

use super::names;
use super::output::Output;
use crate::error::Error;

/// The output of a command that reports facts.
#[derive(Default)]
pub struct Lines {
    lines: Vec<(&'static str, String)>,
    json: Map<String, Value>,
}

impl Lines {
    /// Adds a fact, as text and as JSON.
    pub fn put(
        &mut self,
        label: &'static str,
        key: &str,
        text: impl Display,
        value: impl Into<Value>,
    ) {
        self.put_text(label, text);
        self.put_json(key, value);
    }

    /// Adds a path of the host.
    pub fn put_path(&mut self, label: &'static str, key: &str, path: &Path) {
        self.put_text(label, names::escape_path(path));
        names::put(&mut self.json, key, path.as_os_str().as_bytes());
    }

    /// Adds a fact, as text only.
    pub fn put_text(&mut self, label: &'static str, text: impl Display) {
        self.lines.push((label, text.to_string()));
    }

    /// Adds a fact, as JSON only.
    pub fn put_json(&mut self, key: &str, value: impl Into<Value>) {
        self.json.insert(key.to_owned(), value.into());
    }

    /// Prints the JSON, or the text.
    pub fn print(self, json: bool) -> Result<(), Error> {
        let mut out = Output::new();
        if json {
            return out.json(&Value::Object(self.json));
        }
        let width = self.lines.iter().map(|(label, _)| label.len()).max();
        let width = width.unwrap_or(0);
        for (label, text) in &self.lines {
            out.line(&format!("{label:width$}  {text}"))?;
        }
        out.finish()
    }
}
