//! Files whose content no program uses. Their content is kept for the next open, and dropped in the order in which
//! it became unused.

use std::collections::{BTreeMap, HashMap};

/// A list of files by inode number, in the order in which they were added, and the memory that their contents take.
#[derive(Debug)]
pub struct IdleList<T> {
    files: HashMap<u64, Idle<T>>,
    /// Inode numbers by the number of the addition.
    order: BTreeMap<u64, u64>,
    puts: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Idle<T> {
    file: T,
    bytes: u64,
    put: u64,
}

impl<T> Default for IdleList<T> {
    fn default() -> Self {
        Self {
            files: HashMap::new(),
            order: BTreeMap::new(),
            puts: 0,
            bytes: 0,
        }
    }
}

impl<T> IdleList<T> {
    /// How many files are in the list.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether the list has no files.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Bytes of the contents.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a file with a content of `bytes`. A file that is in the list already keeps its place.
    pub fn put(&mut self, ino: u64, file: T, bytes: u64) {
        self.bytes += bytes;
        let put = match self.files.get(&ino) {
            Some(before) => {
                self.bytes -= before.bytes;
                before.put
            }
            None => {
                self.puts += 1;
                self.order.insert(self.puts, ino);
                self.puts
            }
        };
        self.files.insert(ino, Idle { file, bytes, put });
    }

    /// Removes a file.
    pub fn remove(&mut self, ino: u64) -> Option<T> {
        let idle = self.files.remove(&ino)?;
        self.order.remove(&idle.put);
        self.bytes -= idle.bytes;
        Some(idle.file)
    }

    /// Removes the file that has been in the list for the longest time.
    pub fn take_oldest(&mut self) -> Option<T> {
        let (_, &ino) = self.order.first_key_value()?;
        self.remove(ino)
    }
}

#[cfg(test)]
mod tests {
    use super::IdleList;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_oldest_goes_first(steps in prop::collection::vec((0_u8..3, 0_u64..6, 0_u64..9), 1..200)) {
            let (mut list, mut model) = (IdleList::default(), Vec::<(u64, u64)>::new());
            for (what, ino, bytes) in steps {
                let known = model.iter().position(|(other, _)| *other == ino);
                match (what, known) {
                    (0, Some(at)) => {
                        list.put(ino, ino, bytes);
                        model[at].1 = bytes;
                    }
                    (0, None) => {
                        list.put(ino, ino, bytes);
                        model.push((ino, bytes));
                    }
                    (1, known) => prop_assert_eq!(list.remove(ino), known.map(|at| model.remove(at).0)),
                    _ => {
                        let oldest = (!model.is_empty()).then(|| model.remove(0).0);
                        prop_assert_eq!(list.take_oldest(), oldest);
                    }
                }
                prop_assert_eq!(list.len(), model.len());
                prop_assert_eq!(list.bytes(), model.iter().map(|(_, bytes)| bytes).sum::<u64>());
            }
        }
    }
}
