//! The entries of a directory in the order in which they are listed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use goanna_vfs::FileKind;

/// One entry.
pub(crate) struct Entry {
    pub name: Arc<[u8]>,
    pub ino: u64,
    pub kind: FileKind,
}

/// The entries of a directory by cookie.
#[derive(Default)]
pub(crate) struct DirOrder {
    pub entries: BTreeMap<u64, Entry>,
    cookies: HashMap<Arc<[u8]>, u64>,
    pub last: u64,
    looked_up: ReadAhead,
    opened: ReadAhead,
}

/// What programs do with the entries of a directory one after the other.
#[derive(Clone, Copy)]
pub(crate) enum Use {
    /// They ask for attributes.
    LookUp,
    /// They open them.
    Open,
}

/// How far they have got.
#[derive(Default, Clone, Copy)]
struct ReadAhead {
    /// The cookie at which a program that goes on asks next.
    next: u64,
    /// Number of entries that were read ahead last.
    window: usize,
}

/// Number of entries that a program may skip and still count as sequential.
const SKIP_MAX: u64 = 16;
const WINDOW_MIN: usize = 8;
const WINDOW_MAX: usize = 64;

impl DirOrder {
    pub fn has(&self, name: &[u8]) -> bool {
        self.cookies.contains_key(name)
    }

    /// Adds an entry. An existing name keeps its place and stands for the new inode.
    pub fn set(&mut self, name: &Arc<[u8]>, ino: u64, kind: FileKind) {
        let cookie = match self.cookies.get(&**name) {
            Some(&cookie) => cookie,
            None => {
                self.last += 1;
                self.cookies.insert(Arc::clone(name), self.last);
                self.last
            }
        };
        let name = Arc::clone(name);
        self.entries.insert(cookie, Entry { name, ino, kind });
    }

    /// Returns the names to read ahead when a program looks `name` up, or opens it: none at first, then a window that doubles each time the program passes its end.
    pub fn read_ahead(&mut self, name: &[u8], by: Use) -> Vec<Arc<[u8]>> {
        let Some(&cookie) = self.cookies.get(name) else {
            return Vec::new();
        };
        let position = match by {
            Use::LookUp => &mut self.looked_up,
            Use::Open => &mut self.opened,
        };
        let ReadAhead { next, window } = *position;
        let goes_on = next > 0 && (next..=next.saturating_add(SKIP_MAX)).contains(&cookie);
        let window = if goes_on {
            (2 * window).clamp(WINDOW_MIN, WINDOW_MAX)
        } else {
            0
        };
        let following = self.entries.range(cookie.saturating_add(1)..).take(window);
        let following: Vec<_> = following
            .map(|(&cookie, entry)| (cookie, Arc::clone(&entry.name)))
            .collect();
        let last = following.last().map_or(cookie, |&(cookie, _)| cookie);
        let next = last.saturating_add(1);
        *position = ReadAhead { next, window };
        following.into_iter().map(|(_, name)| name).collect()
    }

    pub fn remove(&mut self, name: &[u8]) {
        if let Some(cookie) = self.cookies.remove(name) {
            self.entries.remove(&cookie);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(names: Vec<Arc<[u8]>>) -> Vec<u64> {
        let number = |name: &Arc<[u8]>| String::from_utf8_lossy(name).parse().expect("a number");
        names.iter().map(number).collect()
    }

    #[test]
    fn entries_are_read_ahead_of_programs_that_ask_in_order() {
        let mut order = DirOrder::default();
        let name = |number: u64| -> Arc<[u8]> { Arc::from(number.to_string().as_bytes()) };
        for number in 1..=100 {
            order.set(&name(number), number, FileKind::Regular);
        }
        let mut ask = |number| numbers(order.read_ahead(&name(number), Use::LookUp));
        assert_eq!(ask(5), [0; 0], "the first");
        assert_eq!(ask(6), (7..15).collect::<Vec<_>>());
        assert_eq!(ask(17), (18..34).collect::<Vec<_>>(), "two were left out");
        assert_eq!(ask(34), (35..67).collect::<Vec<_>>());
        assert_eq!(ask(67), (68..=100).collect::<Vec<_>>(), "up to the end");
        assert_eq!(ask(3), [0; 0], "elsewhere");
        assert_eq!(ask(2), [0; 0], "backwards");
        assert_eq!(ask(1000), [0; 0], "missing");
        assert_eq!(ask(3), (4..12).collect::<Vec<_>>(), "again");
        let mut open = |number| numbers(order.read_ahead(&name(number), Use::Open));
        assert_eq!(open(12), [0; 0], "opens have a position of their own");
        assert_eq!(open(13), (14..22).collect::<Vec<_>>());
    }
}
