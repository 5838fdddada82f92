//! Directories of a store in the map, which processes open and read themselves (docs/decisions/0139).

use std::sync::atomic::Ordering::{Relaxed, Release};

use super::{
    AttributeMap, LIST_SIZE, LISTS, LISTS_AT, PATHS_AT, SLOT_HOST, SLOT_SIZE, SLOTS_AT, STAT_SIZE,
    Slot,
};

// The layout, as in `map.S`. Such a slot has no `struct stat` of the host.
const SLOT_DIR_RUN: usize = SLOT_HOST;
const SLOT_DIR_INO: usize = SLOT_HOST + 8;
const SLOT_DIR_END: usize = SLOT_HOST + 16;
const SLOT_DIR_PATH: usize = SLOT_HOST + 24;
/// Longest path of a backing directory, with its zero, bytes.
const DIR_PATH_SIZE: usize = STAT_SIZE - 24;
const LIST_LENGTH: usize = 8;
const LIST_BYTES: usize = 16;

impl AttributeMap {
    /// The directory in `slot` has this backing directory in `run`: its processes may open that, while the slot has its id and if every user may read the directory. A path that is too
    /// long for the slot is not shared.
    ///
    /// One slot has one path, so that a process never reads a path in part: a directory that has another backing directory now leaves the map, and one that
    /// another run shares stays with that.
    pub fn put_directory(&self, slot: Slot, run: u64, (ino, path): (u64, &[u8])) {
        let _alone = self.writer.lock();
        let Some(at) = self.valid(slot).filter(|_| path.len() < DIR_PATH_SIZE) else {
            return;
        };
        let known = self.word(at + SLOT_DIR_RUN).load(Relaxed);
        if known != 0 {
            if known == run && self.word(at + SLOT_DIR_INO).load(Relaxed) != ino {
                self.end_slot(at);
            }
            return;
        }
        let mut terminated = [0; DIR_PATH_SIZE];
        let (text, _) = terminated.split_at_mut(path.len());
        text.copy_from_slice(path);
        let words = terminated.as_chunks::<8>().0.iter();
        for (bytes, at) in words.zip((at + SLOT_DIR_PATH..).step_by(8)) {
            self.word(at).store(u64::from_ne_bytes(*bytes), Relaxed);
        }
        self.word(at + SLOT_DIR_INO).store(ino, Relaxed);
        self.word(at + SLOT_DIR_RUN).store(run, Release);
    }

    /// The directory in `slot`, with a backing directory of `run`, has no entries from `position` of that on, while the slot has its id; and these ones, as getdents64(2)
    /// returns them, before, if they are given and not too long.
    pub fn put_list(&self, slot: Slot, run: u64, position: u64, entries: Option<&[u8]>) {
        let _alone = self.writer.lock();
        let is_of_run = |at: &usize| self.word(at + SLOT_DIR_RUN).load(Relaxed) == run;
        let Some(at) = self.valid(slot).filter(is_of_run) else {
            return;
        };
        self.word(at + SLOT_DIR_END).store(position, Release);
        let Some(entries) = entries.filter(|entries| entries.len() <= LIST_SIZE - LIST_BYTES)
        else {
            return;
        };
        let list = LISTS_AT + (at - SLOTS_AT) / SLOT_SIZE % LISTS * LIST_SIZE;
        self.write_entry(list, slot.id, |word| {
            word(LIST_LENGTH, entries.len() as u64);
            // The records of getdents64(2) have whole words.
            for (bytes, offset) in entries
                .as_chunks::<8>()
                .0
                .iter()
                .zip((LIST_BYTES..).step_by(8))
            {
                word(offset, u64::from_ne_bytes(*bytes));
            }
        });
    }

    /// Takes all directories with a backing directory of `run` out of the map.
    pub fn forget_directories(&self, run: u64) {
        let _alone = self.writer.lock();
        for at in (SLOTS_AT..PATHS_AT).step_by(SLOT_SIZE) {
            if self.word(at).load(Relaxed) != 0 && self.word(at + SLOT_DIR_RUN).load(Relaxed) == run
            {
                self.end_slot(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Attributes;
    use super::*;
    use crate::stub::map::STATX_SIZE;

    /// The run, the path, the position behind the entries, and the entries of the directory in `slot`.
    fn directory(map: &AttributeMap, slot: Slot) -> Option<(u64, String, u64, Option<Vec<u8>>)> {
        let at = map.valid(slot)?;
        let word = |at: usize| map.word(at).load(Relaxed);
        let bytes = |from: usize, len: usize| -> Vec<u8> {
            let words = (from..from + len).step_by(8);
            words.flat_map(|at| word(at).to_ne_bytes()).collect()
        };
        let path = bytes(at + SLOT_DIR_PATH, DIR_PATH_SIZE);
        let path = String::from_utf8(path).unwrap();
        let list = LISTS_AT + (at - SLOTS_AT) / SLOT_SIZE % LISTS * LIST_SIZE;
        let entries = (word(list) == slot.id)
            .then(|| bytes(list + LIST_BYTES, word(list + LIST_LENGTH) as usize));
        let path = path.trim_end_matches('\0').to_owned();
        let run = word(at + SLOT_DIR_RUN);
        Some((run, path, word(at + SLOT_DIR_END), entries))
    }

    fn put(map: &AttributeMap, ino: u64) -> Slot {
        let mut attributes = Attributes {
            stat: [0; STAT_SIZE],
            statx: [0; STATX_SIZE],
        };
        attributes.stat[8..16].copy_from_slice(&ino.to_ne_bytes());
        map.put(ino, &attributes, true)
    }

    #[test]
    fn a_directory_has_one_path_as_long_as_it_has_its_id() {
        let map = AttributeMap::new().unwrap();
        let (run, other) = (map.new_id(), map.new_id());
        let slot = put(&map, 1);
        let shown = |path: &str| Some((run, path.to_owned(), 0, None));
        map.put_directory(slot, run, (7, &[b'/'; DIR_PATH_SIZE]));
        assert_eq!(directory(&map, slot), Some((0, String::new(), 0, None)));
        map.put_directory(slot, run, (7, b"/run/d/7"));
        assert_eq!(directory(&map, slot), shown("/run/d/7"));
        map.put_directory(slot, other, (7, b"/other/d/7"));
        assert_eq!(directory(&map, slot), shown("/run/d/7"));
        map.put_directory(slot, run, (8, b"/run/d/8"));
        assert_eq!(directory(&map, slot), None, "it leaves the map");
        let slot = put(&map, 1);
        map.put_directory(slot, run, (8, b"/run/d/8"));
        assert_eq!(directory(&map, slot), shown("/run/d/8"));
        map.forget_directories(other);
        assert_eq!(directory(&map, slot), shown("/run/d/8"));
        map.forget_directories(run);
        assert_eq!(directory(&map, slot), None);
    }

    #[test]
    fn a_list_is_that_of_a_slot_with_its_id() {
        let map = AttributeMap::new().unwrap();
        let run = map.new_id();
        let slot = put(&map, 1);
        let entries = [3; 80];
        map.put_list(slot, run, 9, Some(&entries));
        assert_eq!(directory(&map, slot).unwrap().2, 0, "no directory of it");
        map.put_directory(slot, run, (7, b"/run/d/7"));
        map.put_list(slot, run, 9, None);
        let shown = |entries| Some((run, "/run/d/7".to_owned(), 9, entries));
        assert_eq!(directory(&map, slot), shown(None));
        map.put_list(slot, run, 9, Some(&[3; LIST_SIZE]));
        assert_eq!(directory(&map, slot), shown(None), "too long");
        map.put_list(slot, run, 9, Some(&entries));
        assert_eq!(directory(&map, slot), shown(Some(entries.to_vec())));
        map.invalidate(1);
        let again = put(&map, 1);
        map.put_list(slot, run, 10, Some(&entries));
        assert_eq!(
            directory(&map, again),
            Some((0, String::new(), 0, None)),
            "a read before the change"
        );
    }
}
