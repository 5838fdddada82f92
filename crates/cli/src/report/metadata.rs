//! Formats metadata as text and as JSON.

use goanna_vfs::{Attr, FileKind, Stamp};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use nix::unistd::{Gid, Group, Uid, User};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

use super::names;

/// The ten characters of `ls -l`.
pub fn mode_text(mode: u32) -> String {
    let kind = match FileKind::from_mode(mode) {
        Some(FileKind::Directory) => 'd',
        Some(FileKind::Symlink) => 'l',
        Some(FileKind::Fifo) => 'p',
        Some(FileKind::Socket) => 's',
        Some(FileKind::CharDevice) => 'c',
        Some(FileKind::BlockDevice) => 'b',
        Some(FileKind::Regular) => '-',
        None => '?',
    };
    let mut text = String::from(kind);
    let classes = [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')];
    for (shift, special, letter) in classes {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// The type of an inode, in words.
pub fn kind_text(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

/// The type of an inode, as one word for JSON.
fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "char_device",
        FileKind::BlockDevice => "block_device",
    }
}

/// Major and minor number, as makedev(3) packs them.
pub fn device(rdev: u64) -> (u64, u64) {
    (nix::sys::stat::major(rdev), nix::sys::stat::minor(rdev))
}

/// Local time as strftime(3) formats it; the bare seconds where the calendar ends.
pub fn time_text(stamp: Stamp, format: &str) -> String {
    let nsec = i32::try_from(stamp.nsec).unwrap_or(0);
    match Timestamp::new(stamp.sec, nsec) {
        Ok(time) => time
            .to_zoned(TimeZone::system())
            .strftime(format)
            .to_string(),
        Err(_) => format!("{}.{:09}", stamp.sec, stamp.nsec),
    }
}

/// Names of users and groups. Each is looked up once.
#[derive(Default)]
pub struct Owners {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Owners {
    /// The user's name, else the number.
    pub fn user(&mut self, uid: u32) -> &str {
        self.users.entry(uid).or_insert_with(|| {
            let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
            user.map_or_else(|| uid.to_string(), |user| user.name)
        })
    }

    /// The group's name, else the number.
    pub fn group(&mut self, gid: u32) -> &str {
        self.groups.entry(gid).or_insert_with(|| {
            let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten();
            group.map_or_else(|| gid.to_string(), |group| group.name)
        })
    }
}

/// One file's metadata as a JSON object.
pub fn json(path: &[u8], attr: &Attr, target: Option<&[u8]>) -> Map<String, Value> {
    let stamp = |stamp: Stamp| json!({"sec": stamp.sec, "nsec": stamp.nsec});
    let mut map = Map::new();
    let name = path.rsplit(|&b| b == b'/').find(|name| !name.is_empty());
    names::put(&mut map, "name", name.unwrap_or(b"/"));
    names::put(&mut map, "path", path);
    if let Some(target) = target {
        names::put(&mut map, "target", target);
    }
    let (major, minor) = device(attr.rdev);
    let fields = [
        ("ino", json!(attr.ino)),
        ("kind", json!(kind_word(attr.kind()))),
        ("mode", json!(format!("{:04o}", attr.perm()))),
        ("nlink", json!(attr.nlink)),
        ("uid", json!(attr.uid)),
        ("gid", json!(attr.gid)),
        ("rdev", json!({"major": major, "minor": minor})),
        ("size", json!(attr.size)),
        ("blksize", json!(attr.blksize)),
        ("blocks", json!(attr.blocks)),
        ("atime", stamp(attr.atime)),
        ("mtime", stamp(attr.mtime)),
        ("ctime", stamp(attr.ctime)),
        ("btime", attr.btime.map_or(Value::Null, stamp)),
    ];
    map.extend(fields.map(|(key, value)| (key.to_owned(), value)));
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_as_ls_shows_them() {
        let cases = [
            (0o100_644, "-rw-r--r--"),
            (0o040_755, "drwxr-xr-x"),
            (0o041_777, "drwxrwxrwt"),
            (0o041_776, "drwxrwxrwT"),
            (0o104_755, "-rwsr-xr-x"),
            (0o104_644, "-rwSr--r--"),
            (0o102_755, "-rwxr-sr-x"),
            (0o102_745, "-rwxr-Sr-x"),
            (0o120_777, "lrwxrwxrwx"),
            (0o010_600, "prw-------"),
            (0o020_666, "crw-rw-rw-"),
            (0o060_660, "brw-rw----"),
            (0o140_000, "s---------"),
        ];
        for (mode, text) in cases {
            assert_eq!(mode_text(mode), text);
        }
    }

    #[test]
    fn times_without_a_calendar_are_numbers() {
        let stamp = Stamp {
            sec: i64::MAX,
            nsec: 7,
        };
        assert_eq!(time_text(stamp, "%Y"), "9223372036854775807.000000007");
        let stamp = Stamp {
            sec: -86_400 * 365,
            nsec: 0,
        };
        assert!(time_text(stamp, "%Y").starts_with("196"));
    }
}
