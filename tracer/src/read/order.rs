//! Compares sequence numbers: which blocks are missing, repeated, or out of order.

use amino_schema::trace::{BlockHeader, Kind};
use rangemap::RangeSet;

use super::Problem;

/// The order of the blocks so far.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The next sequence number, and the records before that block.
    next: Option<(u64, u64)>,
    /// The first block of the file, if it was not number 0, until a context block says where the file begins.
    unexplained: Option<(u64, u64)>,
    /// Ranges of sequence numbers that were missing, in which a block that comes later is out of order.
    missing: RangeSet<u64>,
}

/// Maximum number of ranges that are remembered. Later ones count as repeated.
const MAX_MISSING: usize = 4096;

impl Order {
    /// Enters a block, and returns whether its content is new. `start` is the beginning of the file, as a context block records it.
    pub(super) fn arrive(
        &mut self,
        header: &BlockHeader,
        start: Option<u64>,
        mut find: impl FnMut(Problem),
    ) -> bool {
        let sequence = header.sequence;
        let after = (
            sequence.saturating_add(1),
            header.records_before.saturating_add(header.records.into()),
        );
        let Some((next, records)) = self.next else {
            self.next = Some(after);
            if sequence > 0 {
                self.unexplained = Some((sequence, header.records_before));
                self.explain(header, start, &mut find);
            }
            return true;
        };
        self.explain(header, start, &mut find);
        if sequence < next {
            if !self.missing.contains(&sequence) {
                find(Problem::Repeated { sequence });
                return false;
            }
            // Below `next`, so its successor is a number, too.
            self.missing.remove(sequence..sequence + 1);
            find(Problem::OutOfOrder { sequence });
            return true;
        }
        if sequence > next {
            self.gap(
                next,
                sequence,
                header.records_before.saturating_sub(records),
                &mut find,
            );
        }
        self.next = Some(after);
        true
    }

    /// Handles a block whose header is intact, and whose content cannot be read. Its numbers count only if it is the next block: nothing else
    /// confirms them.
    pub(super) fn skip(&mut self, header: &BlockHeader) {
        if let Some((next, records)) = self.next
            && header.sequence == next
        {
            let after = records.saturating_add(header.records.into());
            self.next = Some((next.saturating_add(1), after));
        } else if self.next.is_none() && header.sequence == 0 {
            self.next = Some((1, header.records.into()));
        }
    }

    fn gap(&mut self, first: u64, end: u64, records: u64, find: &mut impl FnMut(Problem)) {
        let last = end - 1;
        if self.missing.len() < MAX_MISSING {
            self.missing.insert(first..end);
        }
        find(Problem::Missing {
            first,
            last,
            records,
        });
    }

    /// Handles a file that does not begin with block 0: it is a segment, or has lost its beginning.
    fn explain(
        &mut self,
        header: &BlockHeader,
        start: Option<u64>,
        find: &mut impl FnMut(Problem),
    ) {
        let Some((first, records)) = self.unexplained else {
            return;
        };
        match start {
            Some(start) if start <= first => {
                self.unexplained = None;
                if start < first {
                    self.gap(start, first, 0, find);
                }
            }
            _ if header.kind == Kind::Schema => {}
            _ => {
                self.unexplained = None;
                self.gap(0, first, records, find);
            }
        }
    }

    /// Handles the end of the input.
    pub(super) fn finish(&mut self, mut find: impl FnMut(Problem)) {
        if let Some((first, records)) = self.unexplained.take() {
            self.gap(0, first, records, &mut find);
        }
    }
}
