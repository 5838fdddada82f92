//! Standard output: buffered, with names escaped on terminals, and silent when the reader has left.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use serde_json::{Map, Value};

use super::names;
use crate::error::Error;

/// Standard output of one command.
pub struct Output {
    out: BufWriter<StdoutLock<'static>>,
    terminal: bool,
}

impl Output {
    /// Takes standard output.
    pub fn new() -> Self {
        let stdout = io::stdout().lock();
        let terminal = stdout.is_terminal();
        Self {
            out: BufWriter::with_capacity(64 << 10, stdout),
            terminal,
        }
    }

    /// Writes bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.out.write_all(bytes).map_err(Error::Output)
    }

    /// Writes text.
    pub fn text(&mut self, text: &str) -> Result<(), Error> {
        self.raw(text.as_bytes())
    }

    /// Writes a line of text.
    pub fn line(&mut self, text: &str) -> Result<(), Error> {
        self.text(text)?;
        self.raw(b"\n")
    }

    /// Writes a name: escaped on a terminal, else unchanged.
    pub fn name(&mut self, name: &[u8]) -> Result<(), Error> {
        if self.terminal {
            self.text(&names::escape(name))
        } else {
            self.raw(name)
        }
    }

    /// Writes one JSON value, spread over lines, and ends the command's output.
    pub fn json(mut self, value: &Value) -> Result<(), Error> {
        serde_json::to_writer_pretty(&mut self.out, value)
            .map_err(|error| Error::Output(error.into()))?;
        self.raw(b"\n")?;
        self.finish()
    }

    /// Writes the buffered output.
    pub fn finish(mut self) -> Result<(), Error> {
        self.out.flush().map_err(Error::Output)
    }
}

/// A JSON array of objects, written one object a line as they come, so that its length does not matter.
pub struct JsonArray {
    out: Output,
    empty: bool,
}

impl JsonArray {
    /// Opens the array.
    pub fn new(mut out: Output) -> Result<Self, Error> {
        out.raw(b"[")?;
        Ok(Self { out, empty: true })
    }

    /// Appends an object.
    pub fn push(&mut self, object: Map<String, Value>) -> Result<(), Error> {
        self.out.raw(if self.empty { b"\n" } else { b",\n" })?;
        self.empty = false;
        serde_json::to_writer(&mut self.out.out, &Value::Object(object))
            .map_err(|error| Error::Output(error.into()))
    }

    /// Closes the array.
    pub fn finish(mut self) -> Result<(), Error> {
        self.out.raw(if self.empty { b"]\n" } else { b"\n]\n" })?;
        self.out.finish()
    }
}
