//! Reports the descriptors and mappings of a process when the tracer attaches to it.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use goanna_sys::procfs;
use goanna_syscalls::{Names, Subject};

use super::files::{ThreadNames, Tracer, file};
use super::thread::Thread;
use crate::Event;
use crate::capture::Details;
use crate::event::File;

/// The descriptors of a process, the lowest first, after its working directory as `AT_FDCWD`.
pub fn descriptors(tracer: &Tracer, thread: &Thread) -> Vec<Event> {
    let subject = &thread.subject;
    let tid = subject.tid;
    let names = ThreadNames::new(tracer, thread, Details::default());
    let numbers = procfs::fds(tid).unwrap_or_default();
    let all = std::iter::once(libc::AT_FDCWD).chain(numbers);
    let event = |number: i32| {
        let is_directory = number == libc::AT_FDCWD;
        let at = match is_directory {
            true => format!("/proc/{tid}/cwd"),
            false => format!("/proc/{tid}/fd/{number}"),
        };
        // A running thread may have closed it meanwhile.
        let stat = rustix::fs::stat(at).ok()?;
        let (flags, offset) = match is_directory {
            true => (libc::O_PATH as u32, 0),
            false => description(tid, number)?,
        };
        Some(Event::Descriptor {
            subject: subject.clone(),
            number,
            file: file(&stat, names.descriptor(number)),
            flags,
            offset,
        })
    };
    all.filter_map(event).collect()
}

/// Flags and offset of an open file description, from fdinfo.
fn description(tid: i32, number: i32) -> Option<(u32, u64)> {
    let text = fs::read_to_string(format!("/proc/{tid}/fdinfo/{number}")).ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim())
    };
    let flags = u32::from_str_radix(field("flags:")?, 8).ok()?;
    // Close-on-exec belongs to the descriptor, not to F_GETFL's flags.
    let flags = flags & !(libc::O_CLOEXEC as u32);
    Some((flags, field("pos:")?.parse().ok()?))
}

/// The mappings of files of a process, in the order of their addresses.
pub fn mappings(subject: &Subject) -> Vec<Event> {
    let maps = fs::read(format!("/proc/{}/maps", subject.tid)).unwrap_or_default();
    let lines = maps.split(|&byte| byte == b'\n');
    lines.filter_map(|line| mapping(subject, line)).collect()
}

/// A line of maps: addresses, rights, offset, device, inode, path.
fn mapping(subject: &Subject, line: &[u8]) -> Option<Event> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut field = || std::str::from_utf8(fields.next()?).ok();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = field()?.split_once('-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    let rights = field()?.as_bytes();
    let offset = hex(field()?)?;
    let (major, minor) = field()?.split_once(':')?;
    let device = libc::makedev(hex(major)? as u32, hex(minor)? as u32);
    let inode: u64 = field()?.parse().ok()?;
    if inode == 0 {
        return None;
    }
    let path = fields.next().unwrap_or_default().trim_ascii_start();
    let has = |right| rights.contains(&right);
    let mut protection = 0;
    for (right, bit) in [
        (b'r', libc::PROT_READ),
        (b'w', libc::PROT_WRITE),
        (b'x', libc::PROT_EXEC),
    ] {
        if has(right) {
            protection |= bit as u32;
        }
    }
    let sharing = if has(b's') {
        libc::MAP_SHARED
    } else {
        libc::MAP_PRIVATE
    };
    let mut mapped = File {
        device,
        inode,
        mode: 0,
        links: 0,
        size: 0,
        path: Some(path.into()),
    };
    // The device of maps is not always that of stat(2).
    let found = rustix::fs::stat(Path::new(std::ffi::OsStr::from_bytes(path)));
    if let Ok(stat) = found
        && stat.st_ino == inode
    {
        mapped = file(&stat, mapped.path);
    }
    Some(Event::Mapping {
        subject: subject.clone(),
        start,
        length: end.checked_sub(start)?,
        protection,
        flags: sharing as u32,
        offset,
        file: mapped,
    })
}
