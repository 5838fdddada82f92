//! The result of a copy, and the observer that receives its events.

use super::content::Copied;

/// Counts of what was copied.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Regular files.
    pub files: u64,
    /// Directories, the top one included.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files that were copied already.
    pub hard_links: u64,
    /// Fifos, sockets' names, device nodes.
    pub special: u64,
    /// Bytes of data, without holes.
    pub bytes: u64,
}

impl Counts {
    /// How many names were copied.
    pub fn names(&self) -> u64 {
        self.files + self.directories + self.symlinks + self.hard_links + self.special
    }
}

/// The amount to copy, for a progress bar.
#[derive(Debug, Default, Clone, Copy)]
pub struct Total {
    /// Names.
    pub files: u64,
    /// Bytes of regular files.
    pub bytes: u64,
}

/// A name that was not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Its path at the source of the copy.
    pub path: Vec<u8>,
    /// Why.
    pub why: String,
}

/// The result of a copy.
#[derive(Debug, Default)]
pub struct Summary {
    /// Counts of what was copied.
    pub counts: Counts,
    /// The names that were not copied.
    pub skipped: Vec<Skipped>,
}

impl Summary {
    /// Records that `path` was not copied, and notifies `observer`.
    pub fn skip(&mut self, path: Vec<u8>, why: String, observer: &dyn CopyObserver) {
        observer.skip(&path, &why);
        self.skipped.push(Skipped { path, why });
    }
}

/// Receives the events of a copy while it runs.
pub trait CopyObserver {
    /// The copy of `path` begins, after `counts`.
    fn begin(&self, path: &[u8], counts: &Counts);
    /// Part of a file was copied.
    fn copied(&self, part: Copied);
    /// `path` was not copied.
    fn skip(&self, path: &[u8], why: &str);
    /// `path` was copied, but not as it is.
    fn notice(&self, path: &[u8], what: &str);
}

/// Ignores all events.
impl CopyObserver for () {
    fn begin(&self, _: &[u8], _: &Counts) {}
    fn copied(&self, _: Copied) {}
    fn skip(&self, _: &[u8], _: &str) {}
    fn notice(&self, _: &[u8], _: &str) {}
}

/// A copy in progress: its summary so far, and its observer.
pub(super) struct Progress<'a> {
    pub summary: Summary,
    pub observer: &'a dyn CopyObserver,
}

impl<'a> Progress<'a> {
    pub fn new(observer: &'a dyn CopyObserver) -> Self {
        Self {
            summary: Summary::default(),
            observer,
        }
    }

    /// The counts, to be raised.
    pub fn counts(&mut self) -> &mut Counts {
        &mut self.summary.counts
    }

    pub fn begin(&self, path: &[u8]) {
        self.observer.begin(path, &self.summary.counts);
    }

    pub fn copied(&mut self, part: Copied) {
        self.summary.counts.bytes += part.data;
        self.observer.copied(part);
    }

    pub fn skip(&mut self, path: &[u8], why: impl std::fmt::Display) {
        self.summary
            .skip(path.to_vec(), why.to_string(), self.observer);
    }

    pub fn notice(&self, path: &[u8], what: &str) {
        self.observer.notice(path, what);
    }
}
