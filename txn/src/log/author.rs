//! The author of a frame of the log: the process that made its first change.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use amino_schema::log::{Author, PROGRAM_LEN};
use parking_lot::Mutex;

/// The user and the process that make a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Actor {
    /// File-system user id.
    pub uid: u32,
    /// Process id; not 0.
    pub pid: u32,
}

impl Actor {
    /// This process.
    pub(crate) fn own() -> Self {
        Self {
            uid: nix::unistd::getuid().as_raw(),
            pid: std::process::id(),
        }
    }

    /// Adds the name of the process's program, if the process still exists.
    pub(crate) fn author(self) -> Author {
        let Self { uid, pid } = self;
        let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name = comm.strip_suffix(b"\n").unwrap_or(&comm);
        let mut program = [0; PROGRAM_LEN];
        for (to, from) in program.iter_mut().zip(name) {
            *to = *from;
        }
        Author { uid, pid, program }
    }

    const fn packed(self) -> u64 {
        (self.uid as u64) << 32 | self.pid as u64
    }
}

/// Collects the processes whose changes belong to one frame. Costs nothing while one process makes all of them.
#[derive(Debug, Default)]
pub struct Authors {
    /// The process that made the first change; 0: none yet.
    first: AtomicU64,
    others: AtomicBool,
    author: Mutex<Option<Author>>,
}

impl Authors {
    /// Records that `actor` makes a change.
    pub fn note(&self, actor: Actor) {
        let me = actor.packed();
        match self.first.load(SeqCst) {
            0 => {
                let mut author = self.author.lock();
                match *author {
                    None => *author = Some(actor.author()),
                    Some(Author { uid, pid, .. }) if (Actor { uid, pid }) == actor => {}
                    Some(_) => self.others.store(true, SeqCst),
                }
                let _ = self.first.compare_exchange(0, me, SeqCst, SeqCst);
            }
            first if first == me => {}
            _ => self.others.store(true, SeqCst),
        }
    }

    /// Adds the processes of a nested transaction, whose changes come later.
    pub fn add(&self, (author, others): (Author, bool)) {
        let Author { uid, pid, .. } = author;
        let mut own = self.author.lock();
        match *own {
            None => {
                *own = Some(author);
                self.first.store(Actor { uid, pid }.packed(), SeqCst);
                self.others.store(others, SeqCst);
            }
            Some(own) if own == author && !others => {}
            Some(_) => self.others.store(true, SeqCst),
        }
    }

    /// The author, and whether there are others; forgets them.
    pub fn take(&self) -> Option<(Author, bool)> {
        let author = self.author.lock().take();
        self.first.store(0, SeqCst);
        let others = self.others.swap(false, SeqCst);
        author.map(|author| (author, others))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_process_is_the_author() {
        let authors = Authors::default();
        assert_eq!(authors.take(), None);
        let me = Actor::own();
        authors.note(me);
        authors.note(me);
        let (author, others) = authors.take().unwrap();
        assert_eq!((author.uid, author.pid, others), (me.uid, me.pid, false));
        let comm = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(author.program(), comm.trim_end().as_bytes());

        authors.note(Actor { uid: 7, pid: 1 });
        authors.note(me);
        let (author, others) = authors.take().unwrap();
        assert_eq!((author.uid, author.pid, others), (7, 1, true));
        assert_eq!(authors.take(), None);
    }

    #[test]
    fn a_nested_transaction_adds_its_authors() {
        let (outer, inner) = (Authors::default(), Authors::default());
        inner.note(Actor { uid: 7, pid: 1 });
        let nested = inner.take().unwrap();
        outer.add(nested);
        outer.note(Actor { uid: 7, pid: 1 });
        assert_eq!(outer.take().unwrap(), (nested.0, false));
        outer.note(Actor::own());
        outer.add(nested);
        let (author, others) = outer.take().unwrap();
        assert_eq!((author.pid, others), (std::process::id(), true));
    }
}
