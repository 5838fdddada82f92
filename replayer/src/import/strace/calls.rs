//! Reads calls from strace's text. A call has one line, or two: one that ends with `<unfinished ...>`, and one that begins with `<... resumed>`.

use std::collections::HashMap;
use std::path::Path;

use super::line::{Line, LineError};
use crate::Error;
use crate::import::lines::Lines;

/// Longest line, in bytes.
const MAX_LINE: u64 = 64 << 20;
/// The thread of a trace that does not name threads.
const ONLY: i32 = 1;

/// The content of a line.
#[derive(Debug)]
pub struct Item {
    pub tid: i32,
    pub at_ns: u64,
    pub what: What,
}

/// The content of a line about its thread.
#[derive(Debug)]
pub enum What {
    /// A call that has ended.
    Call(Text),
    /// The thread has ended; the text is strace's description of its end.
    Ended(Vec<u8>),
    /// Nothing that an importer needs, except that the thread exists.
    Nothing,
}

/// The text of a call.
#[derive(Debug, Default)]
pub struct Text {
    pub text: Vec<u8>,
    /// When the call began.
    pub entered_ns: u64,
    /// The origins of the parts of the text: offset in the text, number of the line, offset in the line.
    pieces: Vec<(usize, u64, usize)>,
}

/// Reads a file of strace's text.
pub struct Calls {
    lines: Lines,
    line: Vec<u8>,
    pending: HashMap<i32, Text>,
}

impl Calls {
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self {
            lines: Lines::open(path, MAX_LINE)?,
            line: Vec::new(),
            pending: HashMap::new(),
        })
    }

    /// Bytes that were read.
    pub fn read(&self) -> u64 {
        self.lines.read
    }

    /// The content of the next line; `None` at the end of the file.
    pub fn next(&mut self) -> Result<Option<Item>, Error> {
        while self.lines.next(&mut self.line)? {
            let line = std::mem::take(&mut self.line);
            let item = self.item(&line);
            self.line = line;
            if let Some(item) = item? {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    fn item(&mut self, raw: &[u8]) -> Result<Option<Item>, Error> {
        let line = Line::split(raw).map_err(|wrong| self.lines.wrong(wrong.at, wrong.why))?;
        let Some(line) = line else {
            return Ok(None);
        };
        let tid = if line.tid == 0 { ONLY } else { line.tid };
        let what = if let Some(text) = line.ended() {
            What::Ended(text.to_vec())
        } else if line.is_other() {
            What::Nothing
        } else if let Some((skipped, rest)) = line.resumed() {
            // The beginning of a call may lie before that of the trace.
            match self.pending.remove(&tid) {
                Some(mut text) => {
                    let piece = (text.text.len(), self.lines.number, line.start + skipped);
                    text.pieces.push(piece);
                    text.text.extend_from_slice(rest);
                    What::Call(text)
                }
                None => What::Nothing,
            }
        } else {
            let text = |text: &[u8]| Text {
                text: text.to_vec(),
                entered_ns: line.at_ns,
                pieces: vec![(0, self.lines.number, line.start)],
            };
            match line.unfinished() {
                Some(beginning) => {
                    let text = text(beginning);
                    self.pending.insert(tid, text);
                    What::Nothing
                }
                None => What::Call(text(line.rest)),
            }
        };
        let at_ns = line.at_ns;
        Ok(Some(Item { tid, at_ns, what }))
    }

    /// Converts an error in a call's text to one with line and column.
    pub fn wrong_in(&self, text: &Text, wrong: LineError) -> Error {
        let mut pieces = text.pieces.iter().rev();
        let piece = pieces.find(|(from, ..)| *from <= wrong.at);
        let (from, line, start) = piece.copied().unwrap_or_default();
        let at = start + wrong.at - from;
        self.lines.wrong_in(line, at, wrong.why)
    }
}
