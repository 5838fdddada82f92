//! Entries of an engine's files with changes above them that are not in the files yet.

use std::iter::Peekable;

use bytes::Bytes;

use super::Entry;

/// Merges entries and changes, each in key order. Where both have a key, the change counts.
pub(super) struct Overlaid<E: Iterator, C: Iterator> {
    entries: Peekable<E>,
    changes: Peekable<C>,
}

impl<'a, E, C> Overlaid<E, C>
where
    E: Iterator<Item = Entry>,
    C: Iterator<Item = (&'a Bytes, Option<&'a Bytes>)>,
{
    pub(super) fn new(entries: E, changes: C) -> Self {
        Self {
            entries: entries.peekable(),
            changes: changes.peekable(),
        }
    }
}

impl<'a, E, C> Iterator for Overlaid<E, C>
where
    E: Iterator<Item = Entry>,
    C: Iterator<Item = (&'a Bytes, Option<&'a Bytes>)>,
{
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        loop {
            let Some((changed, _)) = self.changes.peek() else {
                return self.entries.next();
            };
            match self.entries.peek() {
                Some(Err(_)) => return self.entries.next(),
                Some(Ok((key, _))) if key < *changed => return self.entries.next(),
                Some(Ok((key, _))) if key == *changed => drop(self.entries.next()),
                _ => {}
            }
            if let Some((key, Some(value))) = self.changes.next() {
                return Some(Ok((key.clone(), value.clone())));
            }
        }
    }
}
