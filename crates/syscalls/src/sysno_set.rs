//! Sets of call numbers.

use std::fmt;

use crate::SIGNATURES;

/// Call numbers up to 511; there are no others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SysnoSet([u64; 8]);

impl SysnoSet {
    /// None.
    pub const EMPTY: Self = Self([0; 8]);

    /// All calls whose signature `selects`.
    pub fn of(selects: impl Fn(&crate::Signature) -> bool) -> Self {
        let mut set = Self::EMPTY;
        for signature in SIGNATURES.iter().filter(|one| selects(one)) {
            set.insert(signature.nr);
        }
        set
    }

    /// Adds a number.
    pub fn insert(&mut self, nr: u32) {
        if let Some(word) = self.0.get_mut(nr as usize / 64) {
            *word |= 1 << (nr % 64);
        }
    }

    /// Whether a number is in it.
    pub fn contains(&self, nr: u32) -> bool {
        let word = self.0.get(nr as usize / 64);
        word.is_some_and(|word| word & 1 << (nr % 64) != 0)
    }

    /// The numbers of both.
    #[must_use]
    pub fn union(mut self, other: Self) -> Self {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
        self
    }

    /// The numbers that both have.
    #[must_use]
    pub fn intersection(mut self, other: Self) -> Self {
        for (word, others) in self.0.iter_mut().zip(other.0) {
            *word &= others;
        }
        self
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// The numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let set = *self;
        (0..512).filter(move |&nr| set.contains(nr))
    }
}

impl fmt::Debug for SysnoSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_the_last_are_in_no_set() {
        let mut set = SysnoSet::EMPTY;
        set.insert(511);
        set.insert(512);
        set.insert(u32::MAX);
        assert_eq!(set.iter().collect::<Vec<_>>(), [511]);
        assert!(!set.contains(512) && !set.contains(u32::MAX));
        assert_eq!(set.union(SysnoSet::EMPTY), set);
        assert_eq!(SysnoSet::of(|_| true).iter().count(), SIGNATURES.len());
    }
}
