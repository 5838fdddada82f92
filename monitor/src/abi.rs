//! Kernel structures as x86-64 programs expect them in memory.

use goanna_vfs::{Attr, DirEntry, StatFs};

/// The fields of statx(2) that are not in the attributes.
#[derive(Debug)]
pub struct StatxMore {
    /// The root of a mount.
    pub is_mount_root: bool,
    /// The mount's ID, and the bit of the mask that shows the kind of ID.
    pub mount_id: Option<(u32, u64)>,
    /// The alignment in bytes that reads and writes under O_DIRECT need, if the program asks for it and no host object answers.
    pub direct_alignment: Option<u32>,
    /// A `struct statx` of the host's object, from which the remaining fields are taken.
    pub host: Option<[u8; 256]>,
}

/// `STATX_MNT_ID_UNIQUE`
pub const STATX_MNT_ID_UNIQUE: u32 = 0x4000;
/// `STATX_DIOALIGN`
pub const STATX_DIOALIGN: u32 = 0x2000;
/// `STATX_DIOALIGN`, `STATX_SUBVOL`, `STATX_WRITE_ATOMIC` and `STATX_DIO_READ_ALIGN`: the fields behind the mount's ID.
pub const STATX_BEHIND_MOUNT_ID: u32 = STATX_DIOALIGN | 0x8000 | 0x1_0000 | 0x2_0000;

/// The mount's ID in a `struct statx`, and its bit of the mask.
pub fn mount_id(statx: &[u8; 256]) -> Option<(u32, u64)> {
    let mask = u32::from_ne_bytes(*statx.first_chunk()?);
    let id = u64::from_ne_bytes(*statx.get(MOUNT_ID..)?.first_chunk()?);
    let bit = mask & (libc::STATX_MNT_ID | STATX_MNT_ID_UNIQUE);
    (bit != 0).then_some((bit, id))
}

const MOUNT_ID: usize = 144;
const ATTRIBUTES: usize = 8;

/// Whether a `struct statx` is that of the root of a mount.
pub fn is_mount_root(statx: &[u8; 256]) -> bool {
    let attributes = statx.get(ATTRIBUTES..).and_then(|rest| rest.first_chunk());
    attributes
        .is_some_and(|bits| u64::from_ne_bytes(*bits) & libc::STATX_ATTR_MOUNT_ROOT as u64 != 0)
}

/// `struct statx`: the basic fields, the creation time where known, and `more`. Like Linux since 6.13, it claims the change
/// times only when `mask` asks for one of them.
pub fn statx(attr: &Attr, mask: u32, more: &StatxMore) -> [u8; 256] {
    let whole = attr.to_statx(more.is_mount_root);
    let known = whole
        .first_chunk()
        .map_or(0, |mask| u32::from_ne_bytes(*mask));
    let mut out = Layout(whole);
    let times = libc::STATX_CTIME | libc::STATX_MTIME;
    let unasked = if mask & times == 0 { times } else { 0 };
    let mut further = 0;
    if let Some(host) = &more.host {
        out.bytes(MOUNT_ID + 8, host.get(MOUNT_ID + 8..).unwrap_or_default());
        let host_mask = host
            .first_chunk()
            .map_or(0, |mask| u32::from_ne_bytes(*mask));
        further |= host_mask & STATX_BEHIND_MOUNT_ID;
    }
    if let Some(alignment) = more.direct_alignment {
        out.u32(MOUNT_ID + 8, alignment);
        out.u32(MOUNT_ID + 12, alignment);
        further |= STATX_DIOALIGN;
    }
    if let Some((bit, id)) = more.mount_id {
        out.u64(MOUNT_ID, id);
        further |= bit;
    }
    out.u32(0, (known & !unasked) | further);
    out.0
}

/// The flags of a `struct statfs` are meant.
const ST_VALID: u64 = 0x20;

/// `struct statfs`.
pub fn statfs(fs: &StatFs, fsid: u64) -> [u8; 120] {
    let mut out = Layout([0; 120]);
    let fields = [
        (0, fs.magic),
        (8, fs.block_size),
        (16, fs.blocks),
        (24, fs.blocks_free),
        (32, fs.blocks_available),
        (40, fs.files),
        (48, fs.files_free),
        (56, fsid),
        (64, fs.name_max),
        (72, fs.block_size),
        (80, fs.flags | ST_VALID),
    ];
    for (at, value) in fields {
        out.u64(at, value);
    }
    out.0
}

/// A zeroed structure that is filled field by field; offsets are the literals above.
struct Layout<const N: usize>([u8; N]);

impl<const N: usize> Layout<N> {
    fn bytes(&mut self, at: usize, bytes: &[u8]) {
        if let Some(field) = self.0.get_mut(at..at + bytes.len()) {
            field.copy_from_slice(bytes);
        }
    }

    fn u32(&mut self, at: usize, value: u32) {
        self.bytes(at, &value.to_ne_bytes());
    }

    fn u64(&mut self, at: usize, value: u64) {
        self.bytes(at, &value.to_ne_bytes());
    }
}

/// The layout of directory entries that a call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirentLayout {
    /// getdents(2): the type is the record's last byte.
    Old,
    /// getdents64(2).
    New,
}

/// A getdents buffer of bounded size.
#[derive(Debug)]
pub struct Dirents {
    layout: DirentLayout,
    capacity: usize,
    /// The records so far.
    pub bytes: Vec<u8>,
    /// Position after the last record.
    pub position: u64,
    /// A record did not fit.
    pub full: bool,
}

impl Dirents {
    /// An empty buffer of `capacity` bytes, for a directory read from `position`.
    pub fn new(layout: DirentLayout, capacity: usize, position: u64) -> Self {
        Self {
            layout,
            capacity,
            bytes: Vec::with_capacity(capacity.min(64 << 10)),
            position,
            full: false,
        }
    }

    /// Shortens the content to the records that lie in the first `len` bytes as a whole.
    pub fn truncate(&mut self, len: usize) {
        let mut end = 0;
        // Each record has its cookie at 8 and its length at 16.
        while let Some(record) = self.bytes.get(end..len) {
            let cookie = record.get(8..).and_then(<[u8]>::first_chunk::<8>);
            let length = record.get(16..).and_then(<[u8]>::first_chunk::<2>);
            let (Some(&cookie), Some(&length)) = (cookie, length) else {
                break;
            };
            let length = usize::from(u16::from_ne_bytes(length));
            if length == 0 || length > record.len() {
                break;
            }
            self.position = u64::from_ne_bytes(cookie);
            end += length;
        }
        self.bytes.truncate(end);
    }

    /// Appends an entry, whose cookie is a position in the open directory. Returns false when it does not fit.
    pub fn push(&mut self, entry: DirEntry<'_>) -> bool {
        let header = if self.layout == DirentLayout::New {
            19
        } else {
            18
        };
        let tail = if self.layout == DirentLayout::New {
            1
        } else {
            2
        };
        let length = (header + entry.name.len() + tail).next_multiple_of(8);
        if self.full || self.bytes.len() + length > self.capacity {
            self.full = true;
            return false;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&entry.ino.to_ne_bytes());
        self.bytes.extend_from_slice(&entry.cookie.to_ne_bytes());
        self.bytes.extend_from_slice(&(length as u16).to_ne_bytes());
        if self.layout == DirentLayout::New {
            self.bytes.push(entry.kind.dirent_type());
        }
        self.bytes.extend_from_slice(entry.name);
        self.bytes.resize(start + length, 0);
        if self.layout == DirentLayout::Old
            && let Some(last) = self.bytes.last_mut()
        {
            *last = entry.kind.dirent_type();
        }
        self.position = entry.cookie;
        true
    }
}
