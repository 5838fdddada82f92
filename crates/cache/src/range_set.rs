//! Sets of page indexes, kept as disjoint ranges: a file written from start to end is one range, not 65,536 entries.

/// A set of page indexes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: rangemap::RangeSet<u64>,
}

impl RangeSet {
    /// The pages `0..end`.
    pub fn up_to(end: u64) -> Self {
        let mut set = Self::default();
        set.insert(0, end);
        set
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many pages are in the set.
    pub fn len(&self) -> u64 {
        self.ranges().map(|(start, end)| end - start).sum()
    }

    /// Whether the set has this page.
    pub fn contains(&self, page: u64) -> bool {
        self.ranges.contains(&page)
    }

    /// The parts of the set that lie in `start..end`.
    pub fn intersect(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges
            .overlapping(start..end)
            .map(move |range| (range.start.max(start), range.end.min(end)))
            .filter(|(start, end)| start < end)
    }

    /// How many pages of `start..end` are not in the set.
    pub fn missing(&self, start: u64, end: u64) -> u64 {
        let had: u64 = self.intersect(start, end).map(|(s, e)| e - s).sum();
        end.saturating_sub(start) - had
    }

    /// The ranges of the set, ascending; they neither touch nor overlap.
    pub fn ranges(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|range| (range.start, range.end))
    }

    /// Adds `start..end`; returns how many pages were new.
    pub fn insert(&mut self, start: u64, end: u64) -> u64 {
        // An empty range would panic.
        if start >= end {
            return 0;
        }
        let new = self.missing(start, end);
        self.ranges.insert(start..end);
        new
    }

    /// Removes `start..end`.
    pub fn remove(&mut self, start: u64, end: u64) {
        if start < end {
            self.ranges.remove(start..end);
        }
    }

    /// The first of the last `limit` pages of the set; 0 when it has fewer.
    pub fn start_of_last(&self, limit: u64) -> u64 {
        let mut left = limit;
        for (start, end) in self.ranges().rev() {
            if end - start >= left {
                return end - left;
            }
            left -= end - start;
        }
        0
    }

    /// The pages of the set, ascending.
    pub fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.ranges().flat_map(|(start, end)| start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::RangeSet;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_set_of_numbers(steps in prop::collection::vec((0_u8..3, 0_u64..40, 0_u64..12), 1..60)) {
            let (mut ranges, mut model) = (RangeSet::default(), BTreeSet::new());
            for (what, start, len) in steps {
                match what {
                    0 => {
                        prop_assert_eq!(ranges.missing(start, start + len), (start..start + len).filter(|p| !model.contains(p)).count() as u64);
                        let new = (start..start + len).filter(|p| model.insert(*p)).count() as u64;
                        prop_assert_eq!(ranges.insert(start, start + len), new);
                    }
                    1 => {
                        ranges.remove(start, start + len);
                        model.retain(|p| !(start..start + len).contains(p));
                    }
                    _ => {
                        let from = ranges.start_of_last(len);
                        let last = model.iter().rev().nth(len.saturating_sub(1) as usize);
                        prop_assert!(len == 0 || from == last.copied().unwrap_or(0));
                    }
                }
                prop_assert_eq!(ranges.pages().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(ranges.len(), model.len() as u64);
                for page in 0..60 {
                    prop_assert_eq!(ranges.contains(page), model.contains(&page));
                }
                // Ranges that touch were merged.
                prop_assert!(ranges.ranges().zip(ranges.ranges().skip(1)).all(|(a, b)| a.1 < b.0));
            }
        }
    }
}
