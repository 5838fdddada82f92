//! Answers to opens from the code of the map (`opens.S`, docs/decisions/0122).
//!
//! The answer may be the number of a descriptor of the monitor, with the flags for opening it. The thread then opens `/proc/PID/fd/N` itself, where PID is the
//! monitor's process ID: the kernel does what it would do for the monitor, but the monitor need not wait until the thread has woken. Or the descriptor is of a
//! directory, in which the thread creates a file with the last component of its path.

use std::os::fd::RawFd;

/// Marks an answer that is not a descriptor of the program.
const OWN: i64 = 1 << 62;
/// Where the flags begin.
const FLAGS_SHIFT: u32 = 32;
const FLAGS_MAX: i64 = 0x1fff_ffff;
/// Where the offset of the name in the path begins; it counts from 1.
const NAME_SHIFT: u32 = 20;
const NUMBER_MAX: i64 = 0xf_ffff;
const NAME_AT_MAX: usize = 0xffe;
/// The longest name of a file that a thread creates itself, bytes: a longer one does not fit its frame.
const NAME_MAX: usize = 102;

/// The thread makes its call again, at its site.
pub const AT_SITE: i64 = OWN | 1 << 61;

/// The thread opens descriptor `number` of the monitor with `flags`. `None` if they do not fit.
pub fn of_monitor(number: RawFd, flags: i32) -> Option<i64> {
    let (number, flags) = (i64::from(number), i64::from(flags));
    let fits = (0..=NUMBER_MAX).contains(&number) && (0..=FLAGS_MAX).contains(&flags);
    fits.then_some(OWN | flags << FLAGS_SHIFT | number)
}

/// The thread creates the file `name`, which its `path` ends with, in the directory with descriptor `number` of the monitor. `None` if that does not fit.
pub fn in_directory_of_monitor(
    number: RawFd,
    (path, name): (&[u8], &[u8]),
    flags: i32,
) -> Option<i64> {
    let at = path.strip_suffix(name)?.len();
    if name.len() > NAME_MAX || at > NAME_AT_MAX {
        return None;
    }
    Some(of_monitor(number, flags)? | (at as i64 + 1) << NAME_SHIFT)
}

/// Whether `answer` is one of these.
pub fn is_of_monitor(answer: i64) -> bool {
    answer >= 0 && answer & OWN != 0
}

/// Length of the start of the path, bytes.
pub(super) const PREFIX: usize = 24;

/// The directory of the descriptors of process `pid`, with slashes before it.
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
        assert_eq!(of_monitor(1 << NAME_SHIFT, 0), None);
        let name = (&b"a/name"[..], &b"name"[..]);
        let created = in_directory_of_monitor(7, name, libc::O_CREAT);
        assert_eq!(
            created.map(|answer| answer as u32),
            Some(3 << NAME_SHIFT | 7)
        );
        assert_eq!(in_directory_of_monitor(7, (b"link", b"name"), 0), None);
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
