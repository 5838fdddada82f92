//! A short-lived cache of host directories whose paths are free of symbolic links.
//!
//! Compilers ask about thousands of files in a few dozen directories; asking the kernel about the directory each time
//! takes a fifth of the time of such a call. The cache only decides whether the kernel or the monitor walks a path. An outdated
//! entry matters only where a link leads into a mount: a link that a process outside the run makes takes effect up to [`FRESH`]
//! late. Links made inside the run take effect at once: the monitor reports each call that could make one, and the cache stays
//! empty while the kernel may be performing that call.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long an entry is valid.
const FRESH: Duration = Duration::from_millis(50);
/// Maximum number of directories that are kept. One more empties the cache.
const MAX: usize = 4096;

/// The cache of directories whose paths are free of symbolic links.
#[derive(Debug, Default)]
pub struct LinkFree(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// When each directory was checked.
    dirs: HashMap<Box<[u8]>, Instant>,
    /// The end of the time in which a call that changes names may be running: until then no directory is added.
    unsettled_until: Option<Instant>,
}

impl LinkFree {
    /// Whether the absolute path `dir` is free of links, from the cache or by `ask`.
    pub fn holds(&self, dir: &[u8], ask: impl FnOnce() -> bool) -> bool {
        let now = Instant::now();
        {
            let known = self.0.lock();
            let fresh = |asked: &Instant| now.duration_since(*asked) < FRESH;
            if known.dirs.get(dir).is_some_and(fresh) {
                return true;
            }
        }
        if !ask() {
            return false;
        }
        let mut known = self.0.lock();
        // A call that changes names may have run since `ask` was called: then its answer may be outdated.
        if known.unsettled_until.is_none_or(|until| until <= now) {
            if known.dirs.len() >= MAX {
                known.dirs.clear();
            }
            known.dirs.insert(dir.into(), now);
        }
        true
    }

    /// A process of the run is about to make, move or remove names that may be links.
    pub fn forget(&self) {
        let mut known = self.0.lock();
        known.dirs.clear();
        known.unsettled_until = Some(Instant::now() + FRESH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_once_until_names_change_or_time_passes() {
        let known = LinkFree::default();
        assert!(
            !known.holds(b"/a", || false),
            "what has links is asked for each time"
        );
        assert!(known.holds(b"/a", || true));
        assert!(known.holds(b"/a", || panic!("known")));
        known.forget();
        assert!(!known.holds(b"/a", || false));
        assert!(known.holds(b"/a", || true));
        assert!(
            !known.holds(b"/a", || false),
            "nothing is kept while names may be changing"
        );
        std::thread::sleep(2 * FRESH);
        assert!(known.holds(b"/a", || true));
        assert!(known.holds(b"/a", || panic!("settled")));
        std::thread::sleep(2 * FRESH);
        assert!(!known.holds(b"/a", || false), "forgotten");
    }
}
