//! What the page cache has of the file that a lane reads.

use goanna_sys::clock::monotonic_ns;
use goanna_sys::replay as sys;

/// Bytes of a window. On Linux 6.18, cachestat(2) takes 450 ns for a page, as a read of 1 KiB does, and 7.4 us for a window.
const WINDOW: u64 = 1 << 20;
/// How long an answer on a window holds, in nanoseconds: pages that are evicted meanwhile count as cached.
const PERIOD_NS: u64 = 1_000_000;

/// The window that the last read was in. The second read in a window asks about all of it, so that further ones need no call.
#[derive(Debug)]
pub struct Cached {
    descriptor: i32,
    from: u64,
    /// The page cache has all of the window that the file has.
    is_whole: bool,
    until_ns: u64,
}

impl Cached {
    /// Knows nothing.
    pub fn new() -> Self {
        Self {
            descriptor: -1,
            from: 0,
            is_whole: false,
            until_ns: 0,
        }
    }

    /// Whether the page cache has these bytes of a file.
    pub fn has(&mut self, descriptor: i32, offset: u64, length: u64) -> bool {
        let from = offset - offset % WINDOW;
        let is_within = offset - from + length <= WINDOW;
        if (self.descriptor, self.from) != (descriptor, from) {
            *self = Self {
                descriptor,
                from,
                ..Self::new()
            };
        } else if is_within {
            self.ask();
        }
        (self.is_whole && is_within) || sys::is_cached(descriptor, offset, length) == Some(true)
    }

    fn ask(&mut self) {
        let now = monotonic_ns();
        if now < self.until_ns {
            return;
        }
        let size = sys::stat(self.descriptor, c"").map_or(0, |it| it.size);
        let length = size.saturating_sub(self.from).min(WINDOW);
        self.is_whole =
            length > 0 && sys::is_cached(self.descriptor, self.from, length) == Some(true);
        self.until_ns = now + PERIOD_NS;
    }

    /// Forgets the window, as its descriptor may become that of another file.
    pub fn forget(&mut self) {
        self.descriptor = -1;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;

    use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

    use super::*;

    #[test]
    fn windows_say_of_each_page_what_the_kernel_says() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let pages = 3 * WINDOW / 4096 - 5;
        fs::write(&path, vec![1; (pages * 4096) as usize]).unwrap();
        let file = fs::File::open(&path).unwrap();
        file.sync_all().unwrap();
        let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
        posix_fadvise(&file, WINDOW as i64, 65536, advice).unwrap();
        let descriptor = file.as_raw_fd();
        let mut cached = Cached::new();
        for page in 0..pages + 2 {
            let kernel = sys::is_cached(descriptor, page * 4096, 4096);
            let answer = cached.has(descriptor, page * 4096, 4096);
            assert!(answer == (kernel == Some(true)) || page >= pages, "{page}");
        }
        // The answer on a window lasts a period.
        cached.has(descriptor, 0, 1);
        assert!(cached.has(descriptor, 4096, 1));
        posix_fadvise(&file, 0, 0, advice).unwrap();
        std::thread::sleep(std::time::Duration::from_nanos(2 * PERIOD_NS));
        let kernel = sys::is_cached(descriptor, 4096, 1);
        assert_eq!(Some(cached.has(descriptor, 4096, 1)), kernel);
    }
}
