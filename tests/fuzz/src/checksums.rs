//! Corrects the checksums of altered bytes, so that a reader does not stop there.

use amino_schema::replay::{Head, Index};
use amino_schema::trace::{BlockHeader, FILE_HEADER_LEN, SYNC};
use crc32c::crc32c;

/// The offset of the payload's length in the header of a block, before the checksums of payload and header.
const STORED_LEN: usize = 88;

/// The number of four bytes at `at`.
fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// Writes the checksum of `from..to` to `at`.
fn sum(bytes: &mut [u8], (from, to): (usize, usize), at: usize) {
    let Some(sum) = bytes.get(from..to).map(crc32c) else {
        return;
    };
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
}

/// A trace with correct checksums. Blocks follow each other, as long as there is a mark of one.
pub fn of_trace(input: &[u8]) -> Vec<u8> {
    let mut trace = input.to_vec();
    sum(&mut trace, (0, FILE_HEADER_LEN - 4), FILE_HEADER_LEN - 4);
    let mut at = FILE_HEADER_LEN;
    while trace.get(at..).is_some_and(|rest| rest.starts_with(&SYNC)) {
        let start = at + BlockHeader::LEN;
        // A length that leads beyond the input is one of the cases.
        let Some(len) = number_at(&trace, at + STORED_LEN) else {
            break;
        };
        let end = start + len as usize;
        sum(&mut trace, (start, end), start - 8);
        sum(&mut trace, (at + SYNC.len(), start - 4), start - 4);
        at = end;
    }
    trace
}

/// A compiled replay with correct checksums of its head, its index, and the blocks and buffers that the index lists.
pub fn of_replay(input: &[u8]) -> Vec<u8> {
    let mut replay = input.to_vec();
    let Some(head) = head(&replay) else {
        return replay;
    };
    let Some(index) = replay.get(head.index_at as usize..) else {
        return replay;
    };
    let head = Head {
        index_len: index.len() as u64,
        index_sum: crc32c(index),
        ..head
    };
    let blocks = Index::decode(index, head.index_at).map(|index| index.lanes);
    let blocks = blocks.into_iter().flatten().flat_map(|lane| lane.blocks);
    for block in blocks.collect::<Vec<_>>() {
        let start = block.offset as usize;
        sum(
            &mut replay,
            (start + 16, start + block.length as usize),
            start + 4,
        );
    }
    let encoded = head.encode();
    if let Some(place) = replay.get_mut(..encoded.len()) {
        place.copy_from_slice(&encoded);
    }
    replay
}

/// The head, whatever its checksum.
fn head(replay: &[u8]) -> Option<Head> {
    let at = replay.get(16..)?.first_chunk()?;
    Some(Head {
        index_at: u64::from_le_bytes(*at),
        index_len: 0,
        index_sum: 0,
    })
}
