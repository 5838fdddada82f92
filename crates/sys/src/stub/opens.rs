//! Answers to opens from the code of the map (`map.S`, docs/decisions/0122).
//!
//! The answer may be the number of a descriptor of the monitor, with the flags for opening it. The thread then opens `/proc/PID/fd/N` itself, where PID is the
//! monitor's process ID: the kernel does what it would do for the monitor, but the monitor need not wait until the thread has woken.

use std::os::fd::RawFd;

/// Marks an answer that is no descriptor of the program.
const OWN: i64 = 1 << 62;
/// Where the flags begin.
const FLAGS_SHIFT: u32 = 32;
const FLAGS_MAX: i64 = 0x1fff_ffff;

/// The thread makes its call again, at its site.
pub const AT_SITE: i64 = OWN | 1 << 61;

/// The thread opens descriptor `number` of the monitor with `flags`. `None` if they do not fit.
pub fn of_monitor(number: RawFd, flags: i32) -> Option<i64> {
    let (number, flags) = (i64::from(number), i64::from(flags));
    let fits = number >= 0 && (0..=FLAGS_MAX).contains(&flags);
    fits.then_some(OWN | flags << FLAGS_SHIFT | number)
}

/// Whether `answer` is one of these.
pub fn is_of_monitor(answer: i64) -> bool {
    answer >= 0 && answer & OWN != 0
}

/// Length of the start of the path, bytes.
pub(super) const PREFIX: usize = 24;

/// The path of the descriptors of process `pid`, with slashes before it.
pub(super) fn prefix(pid: u32) -> [u8; PREFIX] {
    let path = format!("{:/>PREFIX$}", format!("/proc/{pid}/fd/"));
    path.as_bytes().first_chunk().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_no_descriptors_and_no_errors() {
        let answer = of_monitor(1234, libc::O_RDWR | libc::O_CLOEXEC);
        assert!(answer.is_some_and(is_of_monitor) && is_of_monitor(AT_SITE));
        assert_eq!(answer.map(|answer| answer as i32), Some(1234));
        assert_eq!((of_monitor(-1, 0), of_monitor(1, -1)), (None, None));
        for other in [0, 5, i64::from(i32::MAX), -2, -4095] {
            assert!(!is_of_monitor(other));
        }
    }

    #[test]
    fn the_prefix_is_a_path_of_the_process() {
        assert_eq!(&prefix(77), b"/////////////proc/77/fd/");
        assert_eq!(&prefix(4_194_303), b"////////proc/4194303/fd/");
    }
}
