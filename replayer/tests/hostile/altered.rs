//! Bytes of compiled replays that were altered, with checksums that are right.

use std::fs;

use amino_schema::replay::{Block, Call, HEAD_LEN, Head, Index, Initial, Target, What};
use goanna_replayer::stored::Stored;
use proptest::prelude::*;

use crate::scene::{command, index, write};

proptest! {
    /// A block with a correct checksum and any content is refused, or gives commands within its bounds.
    #[test]
    fn any_block_gives_commands_within_bounds_or_an_error(
        payload in prop::collection::vec(any::<u8>(), 0..300),
        count in 0u32..20,
        lane in 0u32..3,
    ) {
        let mut raw = count.to_le_bytes().to_vec();
        raw.extend(crc32c::crc32c(&payload).to_le_bytes());
        raw.extend(7u64.to_le_bytes());
        raw.extend(&payload);
        let mut commands = Block::commands(&raw, lane, 7).unwrap();
        let mut last = 7;
        while let Ok(Some(command)) = commands.next() {
            prop_assert!(command.order > last);
            last = command.order;
            for wait in &command.waits {
                prop_assert!(wait.order < command.order && wait.lane != lane);
            }
            for target in &command.targets {
                if let Target::Place(place) = target {
                    let name = place.name.strip_suffix(b"/").unwrap_or(&place.name);
                    prop_assert!(!name.is_empty() && name != b".." && !name.contains(&b'/'));
                }
            }
        }
    }

    /// A compiled replay with altered bytes, and with checksums that are right again, is read without harm.
    #[test]
    fn an_altered_index_is_refused_or_read(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("compiled");
        let initial = vec![Initial {
            path: b"a/b".to_vec(),
            what: What::Regular,
            mode: Some(0o600),
            owner: Some((1, 2)),
            size: 10,
            extents: Vec::new(),
            attributes: Vec::new(),
        }];
        write(&path, Index { initial, ..index(&["", "a"]) }, &[vec![command(1, Call::Begin)]]);
        let mut raw = fs::read(&path).unwrap();
        let head = Head::decode(&raw).unwrap();
        let at = head.index_at as usize;
        for (place, byte) in changes {
            let length = raw.len() - at;
            raw[at + place.index(length)] = byte;
        }
        let index_sum = crc32c::crc32c(&raw[at..]);
        raw[..HEAD_LEN].copy_from_slice(&Head { index_sum, ..head }.encode());
        fs::write(&path, raw).unwrap();
        if let Ok(stored) = Stored::open(&path) {
            for directory in &stored.index.directories {
                prop_assert!(!directory.starts_with(b"/"));
            }
            for file in &stored.index.initial {
                prop_assert!(!file.path.split(|byte| *byte == b'/').any(|part| part == b".."));
            }
        }
    }
}
