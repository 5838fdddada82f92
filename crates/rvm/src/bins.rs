//! Free blocks are in lists by size: one for each size up to 1 KiB, beyond that four for each power of two.

/// Words of the bitmap of lists.
pub(crate) const BITMAP_WORDS: usize = 4;

/// Number of lists; the last one takes all larger blocks.
pub(crate) const COUNT: usize = 64 * BITMAP_WORDS;

const EXACT_LOG: usize = 10;
const EXACT: usize = 64;

/// The list for blocks of `size` bytes. A block of a later list is larger.
pub(crate) fn bin_of(size: usize) -> usize {
    if size < 1 << EXACT_LOG {
        return size / 16;
    }
    let log = size.ilog2() as usize;
    let quarter = (size >> (log - 2)) & 3;
    (EXACT + (log - EXACT_LOG) * 4 + quarter).min(COUNT - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_grow_with_size() {
        let sizes = (2..200_000_usize).map(|n| n * 16);
        let bins: Vec<usize> = sizes.map(bin_of).collect();
        assert!(bins.windows(2).all(|w| w[0] <= w[1] && w[1] - w[0] <= 1));
        assert_eq!(bin_of(1008), 63);
        assert_eq!(bin_of(1024), 64);
        assert_eq!(bin_of(1279), 64);
        assert_eq!(bin_of(1280), 65);
        assert_eq!(bin_of(usize::MAX), COUNT - 1);
    }
}
