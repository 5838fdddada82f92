//! A record in the ring.

const HEAD: usize = 80;
const ITEM_HEAD: usize = 16;
/// The number of what fills the end of the ring, where no record fits.
const NONE: u32 = u32::MAX;

/// A call as the recorder has recorded it.
#[derive(Debug, Clone, Copy)]
pub struct Record<'d> {
    /// Its number.
    pub nr: u32,
    /// Its arguments.
    pub args: [u64; 6],
    /// Its result register.
    pub result: i64,
    /// When it began and ended, in nanoseconds of `CLOCK_MONOTONIC`.
    pub entered_ns: u64,
    /// See `entered_ns`.
    pub left_ns: u64,
    items: &'d [u8],
}

/// What a record says of the call's memory and files. As in `recorder.c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'d> {
    /// The memory at an address.
    Memory(u64, &'d [u8]),
    /// Where the kernel's link to a descriptor leads; `AT_FDCWD` is the working directory.
    Link(i32, &'d [u8]),
    /// Where the call's path leads, if something is there.
    PathLink(&'d [u8]),
    /// Where the directory of its last component is, if nothing is there.
    ParentLink(&'d [u8]),
    /// The call's path leads where it says itself: it is absolute, and meets no symbolic link.
    PathWithoutLinks,
    /// The same, up to its last component; nothing has that name.
    ParentWithoutLinks,
    /// The `struct stat` of a descriptor's file.
    FileStat(i32, &'d [u8]),
    /// The `struct stat` of what the path leads to.
    PathStat(&'d [u8]),
}

fn word(data: &[u8], at: usize) -> Option<u64> {
    data.get(at..)?
        .first_chunk()
        .map(|bytes| u64::from_le_bytes(*bytes))
}

fn half(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..)?
        .first_chunk()
        .map(|bytes| u32::from_le_bytes(*bytes))
}

impl<'d> Record<'d> {
    /// Takes the first record off `data`: `Some(None)` is filling. `None`: there is no record.
    pub fn take(data: &mut &'d [u8]) -> Option<Option<Self>> {
        let size = usize::try_from(half(data, 0)?).ok()?;
        let nr = half(data, 4)?;
        let (record, rest) = data.split_at_checked(size)?;
        if size < 8 || (nr != NONE && size < HEAD) {
            return None;
        }
        *data = rest;
        if nr == NONE {
            return Some(None);
        }
        let mut args = [0; 6];
        for (index, arg) in args.iter_mut().enumerate() {
            *arg = word(record, 8 + 8 * index)?;
        }
        Some(Some(Self {
            nr,
            args,
            result: word(record, 56)?.cast_signed(),
            entered_ns: word(record, 64)?,
            left_ns: word(record, 72)?,
            items: record.get(HEAD..)?,
        }))
    }

    /// Its items, up to the first that is none.
    pub fn items(&self) -> impl Iterator<Item = Item<'d>> + use<'d> {
        let mut rest = self.items;
        std::iter::from_fn(move || {
            let (kind, size) = (half(rest, 0)?, usize::try_from(half(rest, 4)?).ok()?);
            let key = word(rest, 8)?;
            let content = rest.get(ITEM_HEAD..)?.get(..size)?;
            rest = rest.get(ITEM_HEAD + size.next_multiple_of(8)..)?;
            let number = key as i32;
            Some(match kind {
                1 => Item::Memory(key, content),
                2 => Item::Link(number, content),
                3 => Item::PathLink(content),
                4 => Item::ParentLink(content),
                5 => Item::FileStat(number, content),
                6 => Item::PathStat(content),
                7 if number == 3 => Item::PathWithoutLinks,
                7 => Item::ParentWithoutLinks,
                _ => return None,
            })
        })
    }
}
