//! Which files an address range of a process maps (/proc/PID/maps), and which threads have the same addresses.
#![allow(unsafe_code, reason = "ioctl(2) with PROCMAP_QUERY")]

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

use crate::descriptor_tables::are_equal;

/// `KCMP_VM` of kcmp(2).
const VM: libc::c_int = 1;

/// Whether two threads have one address space. EPERM without the right to trace them, ENOSYS for a kernel without kcmp(2), ESRCH.
pub fn share_memory(one: i32, other: i32) -> Result<bool, Errno> {
    are_equal(VM, (one, 0), (other, 0))
}

/// A mapping of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// The file's offset at `start`, bytes.
    pub offset: u64,
    /// The device number of the file system in /proc; on btrfs it differs from that of stat(2).
    pub dev: u64,
    /// The file's inode number.
    pub ino: u64,
}

/// `struct procmap_query`
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    ino: u64,
    dev_major: u32,
    dev_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// `PROCMAP_QUERY`, of Linux 6.11.
const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
/// Find the mapping of a file at the address, or the next one.
const NEXT_FILE: u64 = 0x10 | 0x20;

/// The mappings of files by thread `tid` that have an address in `start..end`, in order. ESRCH, EACCES.
pub fn of_range(tid: i32, start: u64, end: u64) -> Result<Vec<Mapping>, Errno> {
    let path = format!("/proc/{tid}/maps");
    let maps = File::open(path).map_err(errno)?;
    match queried(&maps, start, end) {
        Err(Errno::ENOTTY) => {
            let mut found = all(tid)?;
            found.retain(|mapping| mapping.ino != 0 && mapping.start < end && mapping.end > start);
            Ok(found)
        }
        other => other,
    }
}

/// All mappings of thread `tid`, in order; where they have no file, the inode number is 0. ESRCH, EACCES.
pub fn all(tid: i32) -> Result<Vec<Mapping>, Errno> {
    let text = text(tid)?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().filter_map(parsed).collect())
}

fn text(tid: i32) -> Result<Vec<u8>, Errno> {
    let text = std::fs::read(format!("/proc/{tid}/maps"));
    text.map_err(errno)
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

/// The path of the file that thread `tid` maps at `address`, as /proc shows it. ENOENT.
pub fn path_at(tid: i32, address: u64) -> Result<Vec<u8>, Errno> {
    let text = text(tid)?;
    for line in text.split(|&byte| byte == b'\n') {
        let mapping = std::str::from_utf8(line).ok().and_then(parsed);
        let is_there =
            mapping.is_some_and(|mapping| (mapping.start..mapping.end).contains(&address));
        if let (true, Some(path)) = (is_there, line.iter().position(|&byte| byte == b'/')) {
            return Ok(line.get(path..).unwrap_or_default().to_vec());
        }
    }
    Err(Errno::ENOENT)
}

fn queried(maps: &File, start: u64, end: u64) -> Result<Vec<Mapping>, Errno> {
    let mut found = Vec::new();
    let mut address = start;
    while address < end {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            flags: NEXT_FILE,
            address,
            ..Query::default()
        };
        // SAFETY: the kernel reads and writes `query`, which holds its size, and writes no name or build id, since their
        // sizes are zero.
        let result = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
        match Errno::result(result) {
            Ok(_) => {}
            Err(Errno::ENOENT) => break,
            Err(errno) => return Err(errno),
        }
        if query.start >= end {
            break;
        }
        found.push(Mapping {
            start: query.start,
            end: query.end,
            offset: query.offset,
            dev: libc::makedev(query.dev_major, query.dev_minor),
            ino: query.ino,
        });
        // The mapping never ends before `address`, but this loop must end whatever the kernel reports.
        address = query.end.max(address.saturating_add(1));
    }
    Ok(found)
}

/// One line of /proc/PID/maps: `start-end rights offset major:minor inode path`.
fn parsed(line: &str) -> Option<Mapping> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let offset = words.nth(1)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let ino = words.next()?.parse().ok()?;
    let number = |text| hex(text).and_then(|number| u32::try_from(number).ok());
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(offset)?,
        dev: libc::makedev(number(major)?, number(minor)?),
        ino,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_ioctl_and_the_text_agree() {
        let pid = std::process::id().cast_signed();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let own = std::fs::metadata("/proc/self/exe").unwrap();
        let program: Vec<_> = maps
            .lines()
            .filter_map(parsed)
            .filter(|mapping| mapping.ino == own.ino())
            .collect();
        let (first, last) = (program.first().unwrap(), program.last().unwrap());
        assert_eq!(of_range(pid, first.start, last.end).unwrap(), program);
        assert_eq!(
            of_range(pid, first.start + 1, first.start + 2).unwrap(),
            program[..1]
        );
        assert_eq!(of_range(pid, 0, 1).unwrap(), []);
    }
}
