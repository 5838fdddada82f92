//! The table of a block's strings.

use super::{MAX_STRING, MAX_STRING_BYTES, MAX_STRINGS};

/// The position of a string in the table's bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Span {
    start: u32,
    len: u32,
}

/// Strings in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct Strings {
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

impl Strings {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether a string of this length may still be appended.
    pub(super) fn fits(&self, len: usize) -> bool {
        len <= MAX_STRING
            && self.spans.len() < MAX_STRINGS
            && self.bytes.len() + len <= MAX_STRING_BYTES
    }

    pub(super) fn get(&self, span: Span) -> &[u8] {
        let start = span.start as usize;
        let bytes = self.bytes.get(start..start + span.len as usize);
        bytes.unwrap_or_default()
    }

    pub(super) fn span(&self, index: usize) -> Option<Span> {
        self.spans.get(index).copied()
    }

    /// Appends the first `shared` bytes of `of`, then `rest`. The caller has checked [`Self::fits`].
    pub(super) fn push(&mut self, of: Span, shared: usize, rest: &[u8]) -> Span {
        let start = self.bytes.len();
        let from = of.start as usize;
        let shared = shared.min(of.len as usize);
        self.bytes.extend_from_within(from..from + shared);
        self.bytes.extend_from_slice(rest);
        self.end(start)
    }

    /// Appends the first `shared` bytes of `of`, then the whole of `last`. The caller has checked
    /// [`Self::fits`].
    pub(super) fn join(&mut self, of: Span, shared: usize, last: Span) -> Span {
        let start = self.bytes.len();
        for (from, len) in [(of, shared.min(of.len())), (last, last.len())] {
            let from = from.start as usize;
            self.bytes.extend_from_within(from..from + len);
        }
        self.end(start)
    }

    /// Adds the string that starts at this offset and ends with the last byte.
    fn end(&mut self, start: usize) -> Span {
        let span = Span {
            start: start as u32,
            len: (self.bytes.len() - start) as u32,
        };
        self.spans.push(span);
        span
    }
}

impl Span {
    pub(super) fn len(self) -> usize {
        self.len as usize
    }
}
