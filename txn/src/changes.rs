//! A set of changes that is applied as a whole, and the bytes of log that it takes.

use std::collections::BTreeMap;
use std::ops::Bound;

use amino_schema::log::change_len_max;
use bytes::Bytes;

/// A set of changes that is applied as a whole: each key's new value, or its deletion. Ordered by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    map: BTreeMap<Bytes, Option<Bytes>>,
    bytes: usize,
}

/// Maximum number of bytes of log for a change with a key and a value of these lengths. Pass it to
/// [`crate::Store::reserve`] for a change that a [`crate::DirtySource`] will hand over later.
pub const fn change_cost(key_len: usize, value_len: usize) -> usize {
    change_len_max(key_len, value_len)
}

fn cost(key: &[u8], value: Option<&Bytes>) -> usize {
    change_cost(key.len(), value.map_or(0, Bytes::len))
}

impl Changes {
    /// No changes.
    pub const fn new() -> Self {
        Self {
            map: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Sets `key` to `value`.
    pub fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.set(key.into(), Some(value.into()));
    }

    /// Deletes `key`; a key that does not exist is not an error.
    pub fn delete(&mut self, key: impl Into<Bytes>) {
        self.set(key.into(), None);
    }

    /// Sets (`Some`) or deletes (`None`) `key`.
    pub fn set(&mut self, key: Bytes, value: Option<Bytes>) {
        let (key_len, added) = (key.len(), cost(&key, value.as_ref()));
        if let Some(old) = self.map.insert(key, value) {
            self.bytes -= change_cost(key_len, old.map_or(0, |old| old.len()));
        }
        self.bytes += added;
    }

    /// The change to `key`: none, its deletion (`Some(None)`), or its value.
    pub fn get(&self, key: &[u8]) -> Option<Option<&Bytes>> {
        self.map.get(key).map(Option::as_ref)
    }

    /// Adds `newer`, which wins where both change a key.
    pub fn merge(&mut self, newer: Self) {
        if self.map.is_empty() {
            *self = newer;
            return;
        }
        for (key, value) in newer.map {
            self.set(key, value);
        }
    }

    /// The changes in key order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&Bytes, Option<&Bytes>)> {
        self.map.iter().map(|(key, value)| (key, value.as_ref()))
    }

    /// The changes to keys within the bounds, in key order. An empty or inverted range gives nothing.
    pub fn range<'a>(
        &'a self,
        from: Bound<&'a [u8]>,
        to: Bound<&'a [u8]>,
    ) -> impl Iterator<Item = (&'a Bytes, Option<&'a Bytes>)> {
        let bounds = (!is_empty_range(from, to)).then_some((from, to));
        bounds
            .into_iter()
            .flat_map(|bounds| self.map.range::<[u8], _>(bounds))
            .map(|(key, value)| (key, value.as_ref()))
    }

    /// Number of keys changed.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Upper bound of the bytes that these changes take in the log; also the measure of pending
    /// changes.
    pub const fn byte_size(&self) -> usize {
        self.bytes
    }
}

/// Whether no key can lie within the bounds; `BTreeMap::range` panics for some of these.
pub(crate) fn is_empty_range(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (
            Bound::Included(from) | Bound::Excluded(from),
            Bound::Included(to) | Bound::Excluded(to),
        ) => from >= to,
    }
}

impl FromIterator<(Bytes, Option<Bytes>)> for Changes {
    fn from_iter<I: IntoIterator<Item = (Bytes, Option<Bytes>)>>(changes: I) -> Self {
        let mut all = Self::new();
        for (key, value) in changes {
            all.set(key, value);
        }
        all
    }
}
