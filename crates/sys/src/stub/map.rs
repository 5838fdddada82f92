//! A map of attributes in shared memory, from which stubs answer stat(2), statx(2) and access(2) in the process (`map.S`, docs/decisions/0098).
//!
//! The memory is a sealed memfd: this process alone can write to it. It begins with the code that reads it, which also has the parts of writes
//! ([`super::writes`]) and opens ([`super::opens`]) for which there is no space behind a library's code. Behind that are four
//! tables, in which a key's hash gives the few entries that it can have, so a new entry may replace another one.
//!
//! * *Slots* have the attributes of inodes, of some files the descriptor of this process by which they can be opened, and of some directories the path of the backing directory
//!   and the position behind all entries. A slot's content is valid while the
//!   slot has the same *id*. An id is given once.
//! * *Objects* map the object behind a descriptor to a slot, or to a path that has one.
//! * *Paths* map a path to a slot, and have the slots of all directories on the way. A path leads there while they and their target
//!   have the ids that they had when the entry was made.
//! * *Lists* have all entries of small directories, for the slots of these while they have their ids.
//!
//! Where files are those of the host, or are made from them, nobody can tell when they change. The entry of such a path has a path of the host instead, and the slot a `struct stat`:
//! the attributes in the slot are the answer while newfstatat(2) of that path returns just this (docs/decisions/0132).
//!
//! So the owner of an inode calls [`AttributeMap::invalidate`] before somebody can see a change of its attributes or, of a directory, of its
//! entries; every path through it is invalid from then on. A reader compares ids before and after it has read, and never waits.

mod directories;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::opens;
use super::words::SharedWords;
use crate::{memfile, table_holder};

/// Size of the memory, bytes.
pub const LEN: usize = LISTS_AT + LISTS * LIST_SIZE;
/// Longest path that has an entry, bytes.
pub const PATH_MAX: usize = PATH_SIZE - PATH_BYTES;
/// Longest path on the host that an entry can have, or both of a missing name with the zero between them, bytes.
const HOST_PATHS_MAX: usize = PATH_SIZE - 1;
/// Most directories on the way of a path that has an entry.
pub const DIRS_MAX: usize = 12;
/// Size of a `struct stat`, bytes.
pub const STAT_SIZE: usize = 144;
/// Size of what a `struct statx` has before the mount's ID and of the ID itself, rounded up, bytes. Behind that are zeros for the masks that are answered.
pub const STATX_SIZE: usize = 160;

// The layout, as in `map.S`. Offsets and sizes in bytes.
/// Size of the code at the start of the memory, with what is unused behind it, bytes.
pub const CODE_SIZE: usize = 4096;
const CLOSED_AT: usize = CODE_SIZE;
/// The start of the paths of this process's descriptors.
const PREFIX_AT: usize = CLOSED_AT + 8;
/// Whether opens do not look into the map.
const NO_FILES_AT: usize = PREFIX_AT + opens::PREFIX;
const OBJECTS_AT: usize = 8192;
const OBJECT_SIZE: usize = 64;
const SLOTS_AT: usize = OBJECTS_AT + ENTRIES * OBJECT_SIZE;
const SLOT_SIZE: usize = 512;
const SLOT_RUN: usize = 16;
const SLOT_OBJECT: usize = 24;
const SLOT_STAT: usize = 32;
const SLOT_STATX: usize = SLOT_STAT + STAT_SIZE;
const SLOT_HOST: usize = SLOT_STATX + STATX_SIZE;
const SLOT_INO: usize = SLOT_STAT + 8;
const SLOT_MODE: usize = SLOT_STAT + 24;
const PATHS_AT: usize = SLOTS_AT + ENTRIES * SLOT_SIZE;
const PATH_SIZE: usize = 512;
const PATH_DIRS: usize = 56;
const PATH_BYTES: usize = 248;
/// In the place of the number of directories: the path leads to its target while the host's object is as it was.
const ON_HOST: u64 = u64::MAX;
/// In the place of a path's start: it is none of a program.
const NO_START: u64 = 0;
/// The paths on the host, in the order of the entries.
const HOST_PATHS_AT: usize = PATHS_AT + ENTRIES * PATH_SIZE;
/// The entries of directories, in the order of the slots.
const LISTS_AT: usize = HOST_PATHS_AT + ENTRIES * PATH_SIZE;
const LISTS: usize = 16384;
const LIST_SIZE: usize = 2048;
/// Entries of each table, except for that of lists.
const ENTRIES: usize = 32768;
/// Slots that an inode may have, and entries that an object or a path may have.
const WAYS: usize = 4;
/// 2^64 divided by the golden ratio: neighbouring keys get distant indices.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
const READABLE: u64 = 1;
/// The file is the host's object that confirms the attributes.
const OWN: u64 = 2;
const NUMBER_SHIFT: u32 = 32;
const _: () = assert!(PREFIX_AT == 4104 && NO_FILES_AT == 4128 && NO_FILES_AT < OBJECTS_AT);
const _: () = assert!(SLOTS_AT == 2_105_344 && SLOT_STATX == 176 && PATHS_AT == 18_882_560);
const _: () = assert!(SLOT_HOST == 336 && SLOT_HOST + STAT_SIZE <= SLOT_SIZE);
const _: () = assert!(HOST_PATHS_AT - PATHS_AT == 16_777_216);
const _: () = assert!(PATH_DIRS + 16 * DIRS_MAX == PATH_BYTES);
const _: () = assert!(LISTS_AT == 52_436_992 && LISTS * LIST_SIZE == 33_554_432);
const _: () =
    assert!(u64::BITS - ENTRIES.ilog2() == 49 && WAYS == 4 && SPREAD == 0x9e37_79b9_7f4a_7c15);

/// A map of attributes. This process alone can write to it.
#[derive(Debug)]
pub struct AttributeMap {
    file: OwnedFd,
    words: SharedWords,
    next_id: AtomicU64,
    /// How many shared descriptors have left the map.
    left: AtomicU64,
    /// Held while an entry is written.
    writer: std::sync::Mutex<()>,
}

/// The attributes of an inode as programs get them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// A `struct stat`.
    pub stat: [u8; STAT_SIZE],
    /// The start of a `struct statx`. Its mask says that there is an ID of the mount, which is not here: it is another one in each run.
    pub statx: [u8; STATX_SIZE],
}

/// Attributes in the map: valid while the slot has the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// In bytes from the start of the map.
    offset: u64,
    id: u64,
}

impl Slot {
    /// The id, which no other entry of the map has or will have.
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl AttributeMap {
    /// An empty map, which is closed. EINVAL, EACCES: the system has no such memfds, or does not let programs map them with code.
    pub fn new() -> Result<Self, Errno> {
        /// Programs in it can be executed (Linux 6.3); not in every version of the bindings.
        const MFD_EXEC: libc::c_uint = 0x10;
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let with_code = flags | MFdFlags::from_bits_retain(MFD_EXEC);
        let made = match memfd_create("attributes", with_code) {
            Err(Errno::EINVAL) => memfd_create("attributes", flags)?,
            made => made?,
        };
        memfile::pwrite(made.as_fd(), super::map_code(), 0)?;
        let prefix = opens::prefix(table_holder::pid());
        memfile::pwrite(made.as_fd(), &prefix, PREFIX_AT as u64)?;
        memfile::set_len(made.as_fd(), LEN as u64)?;
        let words = SharedWords::map(made.as_fd(), LEN)?;
        let mut map = Self {
            words,
            next_id: AtomicU64::new(1),
            left: AtomicU64::new(0),
            writer: std::sync::Mutex::default(),
            file: made,
        };
        // This mapping stays the only one that can be written.
        let seals = SealFlag::F_SEAL_SHRINK
            | SealFlag::F_SEAL_GROW
            | SealFlag::from_bits_retain(libc::F_SEAL_FUTURE_WRITE)
            | SealFlag::F_SEAL_SEAL;
        fcntl(&map.file, FcntlArg::F_ADD_SEALS(seals))?;
        map.file = memfile::reopen(map.file.as_fd(), libc::O_RDONLY)?;
        map.set_closed(true);
        Ok(map)
    }

    /// A descriptor to map the memory by, with `PROT_READ | PROT_EXEC` and `MAP_SHARED`.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        self.words.at(at)
    }

    /// While the map is closed no answer is taken from it. It can be written all the same.
    pub fn set_closed(&self, closed: bool) {
        self.word(CLOSED_AT).store(closed.into(), SeqCst);
    }

    /// Whether opens look into the map: for files with a descriptor, and for the host's own ones.
    pub fn set_has_files(&self, has_files: bool) {
        self.word(NO_FILES_AT).store((!has_files).into(), SeqCst);
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.word(CLOSED_AT).load(Acquire) != 0
    }

    /// A number that is not an id of an entry, and that no other call returns.
    pub fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Relaxed)
    }

    /// Rewrites the entry at `at`, which begins with its id: there is none while `write` writes the words behind it. The caller has the lock.
    fn write_entry(&self, at: usize, id: u64, write: impl FnOnce(&dyn Fn(usize, u64))) {
        let own = self.word(at);
        own.store(0, Relaxed);
        fence(Release);
        write(&|offset, value| self.word(at + offset).store(value, Relaxed));
        own.store(id, Release);
    }

    /// The slots that inode `ino` may have: a few, since all paths through a directory end with its slot.
    fn slots_of(ino: u64) -> impl Iterator<Item = usize> + Clone {
        let first = first_of_ways(ino);
        (first..first + WAYS).map(|slot| SLOTS_AT + slot * SLOT_SIZE)
    }

    /// The slot that was given to inode `ino` last.
    fn slot_with(&self, ino: u64) -> Option<usize> {
        Self::slots_of(ino).find(|at| self.word(at + SLOT_INO).load(Relaxed) == ino)
    }

    /// A slot for inode `ino`: its own one, a free one, that of another file, or that of a directory.
    fn slot_for(&self, ino: u64, id: u64) -> usize {
        let is_free = |at: &usize| self.word(*at).load(Relaxed) == 0;
        let is_file = |at: &usize| {
            self.word(at + SLOT_MODE).load(Relaxed) as u32 & libc::S_IFMT != libc::S_IFDIR
        };
        let turn = id as usize % WAYS;
        let in_turn = || Self::slots_of(ino).cycle().skip(turn).take(WAYS);
        let own = self.slot_with(ino).or_else(|| in_turn().find(is_free));
        let others = own.or_else(|| in_turn().find(is_file));
        others.or_else(|| in_turn().next()).unwrap_or(SLOTS_AT)
    }

    /// Puts the attributes of inode `ino` into its slot. `readable`: every user may read the file. The caller keeps them from
    /// changing meanwhile.
    pub fn put(&self, ino: u64, attributes: &Attributes, readable: bool) -> Slot {
        let _alone = self.writer.lock();
        let marks = if readable { READABLE } else { 0 };
        self.put_alone(ino, attributes, marks, &[0; STAT_SIZE])
    }

    /// Puts the attributes of inode `ino` into its slot, which follow from `host`, the `struct stat` of an object of the host.
    /// `is_own`: the file itself is that object.
    pub fn put_with_host(
        &self,
        ino: u64,
        attributes: &Attributes,
        (host, is_own): (&[u8; STAT_SIZE], bool),
    ) -> Slot {
        let _alone = self.writer.lock();
        // Other paths to the same inode keep their target.
        let known = self.slot_with(ino).filter(|at| {
            let same = |from: usize, bytes: &[u8]| {
                let mut words = bytes
                    .as_chunks::<8>()
                    .0
                    .iter()
                    .zip((at + from..).step_by(8));
                words.all(|(bytes, at)| self.word(at).load(Relaxed).to_ne_bytes() == *bytes)
            };
            same(SLOT_HOST, host)
                && same(SLOT_STAT, &attributes.stat)
                && same(SLOT_STATX, &attributes.statx)
        });
        let id = known.map_or(0, |at| self.word(at).load(Relaxed));
        match known {
            Some(at) if id != 0 => Slot {
                offset: at as u64,
                id,
            },
            _ => self.put_alone(ino, attributes, if is_own { OWN } else { 0 }, host),
        }
    }

    /// As [`AttributeMap::put`], by the holder of the lock.
    fn put_alone(
        &self,
        ino: u64,
        attributes: &Attributes,
        marks: u64,
        host: &[u8; STAT_SIZE],
    ) -> Slot {
        let id = self.new_id();
        let at = self.slot_for(ino, id);
        let had_descriptor = self.shares_any(at);
        self.write_entry(at, id, |word| {
            word(8, marks);
            word(SLOT_RUN, 0);
            word(SLOT_OBJECT, 0);
            let stat = attributes.stat.as_chunks::<8>().0;
            let statx = attributes.statx.as_chunks::<8>().0;
            let words = stat.iter().chain(statx).chain(host.as_chunks::<8>().0);
            for (bytes, offset) in words.zip((SLOT_STAT..).step_by(8)) {
                word(offset, u64::from_ne_bytes(*bytes));
            }
        });
        self.count_left(had_descriptor);
        let offset = at as u64;
        Slot { offset, id }
    }

    /// Lets the processes of `run` open the file in `slot` for reading while the slot has its id, as descriptor `number` of this process. `object` is the inode
    /// number of the object that this descriptor refers to. The file is readable for every user.
    pub fn share_descriptor(&self, slot: Slot, run: u64, (number, object): (RawFd, u64)) {
        let _alone = self.writer.lock();
        let (Some(at), Ok(number)) = (self.valid(slot), u64::try_from(number)) else {
            return;
        };
        self.word(at + 8)
            .store(READABLE | number << NUMBER_SHIFT, Relaxed);
        self.word(at + SLOT_OBJECT).store(object, Relaxed);
        self.word(at + SLOT_RUN).store(run, Release);
    }

    /// Where the slot is, if it has its id. The caller has the lock.
    fn valid(&self, slot: Slot) -> Option<usize> {
        let at = usize::try_from(slot.offset).ok()?;
        (self.word(at).load(Relaxed) == slot.id).then_some(at)
    }

    /// Takes the slot at `at` out of the map. The caller has the lock.
    fn end_slot(&self, at: usize) {
        let had_descriptor = self.shares_any(at);
        self.word(at).store(0, SeqCst);
        self.count_left(had_descriptor);
    }

    /// Whether the slot at `at` has a descriptor, of whatever run.
    fn shares_any(&self, at: usize) -> bool {
        self.word(at).load(Relaxed) != 0 && self.word(at + SLOT_RUN).load(Relaxed) != 0
    }

    /// Whether processes of some run may open the file in `slot` themselves.
    pub fn has_descriptor(&self, slot: Slot) -> bool {
        let Ok(at) = usize::try_from(slot.offset) else {
            return false;
        };
        self.shares_any(at) && self.word(at).load(Acquire) == slot.id
    }

    /// Counts a descriptor that has left the map: afterwards, so that whoever sees the number sees the slot without it.
    fn count_left(&self, had_descriptor: bool) {
        self.left.fetch_add(had_descriptor.into(), Release);
    }

    /// How many descriptors have left the map since it was made. While the number stays the same, all of them are still in it.
    pub fn descriptors_left(&self) -> u64 {
        self.left.load(Acquire)
    }

    /// Whether they may.
    pub fn shares_descriptor(&self, slot: Slot, run: u64) -> bool {
        let Ok(at) = usize::try_from(slot.offset) else {
            return false;
        };
        let is_of_run = self.word(at + SLOT_RUN).load(Relaxed) == run;
        is_of_run && self.word(at).load(Acquire) == slot.id
    }

    /// Ends that, and takes the attributes out of the map.
    pub fn withdraw(&self, slot: Slot, run: u64) {
        let _alone = self.writer.lock();
        let is_of_run = |at: &usize| self.word(at + SLOT_RUN).load(Relaxed) == run;
        if let Some(at) = self.valid(slot).filter(is_of_run) {
            self.end_slot(at);
        }
    }

    /// The attributes of inode `ino` are about to change, or the names of the directory that it is.
    pub fn invalidate(&self, ino: u64) {
        let _alone = self.writer.lock();
        if let Some(at) = self.slot_with(ino) {
            self.end_slot(at);
        }
    }

    /// The slot with the attributes of inode `ino`, if they are in the map. The caller keeps them from changing meanwhile.
    pub fn slot_of(&self, ino: u64) -> Option<Slot> {
        let _alone = self.writer.lock();
        let at = self.slot_with(ino)?;
        let id = self.word(at).load(Relaxed);
        let offset = at as u64;
        (id != 0).then_some(Slot { offset, id })
    }

    /// The entries that an object may have.
    fn objects_at(space: u64, ino: u64) -> impl Iterator<Item = usize> + Clone {
        let first = first_of_ways(space.wrapping_add(ino));
        (first..first + WAYS).map(|entry| OBJECTS_AT + entry * OBJECT_SIZE)
    }

    /// The entry that an object has or had. The caller has the lock.
    fn object_with(&self, space: u64, ino: u64) -> Option<usize> {
        let word = |at: usize| self.word(at).load(Relaxed);
        Self::objects_at(space, ino).find(|&at| (word(at + 8), word(at + 16)) == (space, ino))
    }

    /// An entry for an object: its own one, a free one, one that leads to nothing, or another one. The caller has the lock.
    fn object_for(&self, space: u64, ino: u64, id: u64) -> usize {
        let word = |at: usize| self.word(at).load(Relaxed);
        let is_free = |at: &usize| word(*at) == 0;
        let leads_nowhere = |at: &usize| {
            let target = usize::try_from(word(at + 24)).ok();
            target.is_none_or(|target| word(target) != word(at + 32))
        };
        let turn = id as usize % WAYS;
        let in_turn = || {
            let all = Self::objects_at(space, ino);
            all.cycle().skip(turn).take(WAYS)
        };
        let own = self.object_with(space, ino);
        let unused = own.or_else(|| in_turn().find(is_free));
        let others = unused.or_else(|| in_turn().find(leads_nowhere));
        others.or_else(|| in_turn().next()).unwrap_or(OBJECTS_AT)
    }

    /// The object with inode number `ino` stands for `slot`, or an entry of a path: a memfd in space 0, a backing directory in that of its run, which is a
    /// number from [`AttributeMap::new_id`].
    pub fn put_object(&self, space: u64, ino: u64, slot: Slot) {
        let _alone = self.writer.lock();
        let id = self.new_id();
        self.write_entry(self.object_for(space, ino, id), id, |word| {
            word(8, space);
            word(16, ino);
            word(24, slot.offset);
            word(32, slot.id);
        });
    }

    /// The memfd with inode number `ino` stands for `target`, from [`AttributeMap::put_with_host`], while the object at `host` is as it was then. If that path is too long, it
    /// gets no entry.
    pub fn put_object_on_host(&self, ino: u64, host: &[u8], target: Slot) {
        let target = (target.offset, target.id);
        let entry = self.write_path_on_host(NO_START, &ino.to_ne_bytes(), &[host], target, &[]);
        if let Some(entry) = entry {
            self.put_object(0, ino, entry);
        }
    }

    /// That object stands for something else from now on.
    pub fn forget_object(&self, space: u64, ino: u64) {
        let _alone = self.writer.lock();
        if let Some(at) = self.object_with(space, ino) {
            self.word(at).store(0, SeqCst);
        }
    }

    /// The key of the path in the entry at `at`: its start, its hash, and its length in bytes.
    fn key_of_path(&self, at: usize) -> (u64, u64, u64) {
        let word = |offset: usize| self.word(at + offset).load(Acquire);
        (word(8), word(16), word(24))
    }

    /// Whether the entry at `at` says where a path leads.
    fn is_valid_path(&self, at: usize) -> bool {
        let word = |offset: usize| self.word(at + offset).load(Relaxed);
        let is_slot = |(slot, id): (u64, u64)| {
            usize::try_from(slot).is_ok_and(|slot| self.word(slot).load(Relaxed) == id)
        };
        let target = (word(40), word(48));
        let dirs = (PATH_DIRS..).step_by(16).take(dirs_of(word(32)));
        word(0) != 0
            && (target.1 == 0 || is_slot(target))
            && dirs.map(|dir| (word(dir), word(dir + 8))).all(is_slot)
    }

    /// An entry for a path: its own one, one that is not valid, or another one. The caller has the lock.
    fn path_for(&self, key: (u64, u64, u64), id: u64) -> usize {
        let own = paths_at(key.1).find(|&at| self.key_of_path(at) == key);
        let unused = own.or_else(|| paths_at(key.1).find(|&at| !self.is_valid_path(at)));
        let mut in_turn = paths_at(key.1).cycle().skip(id as usize % WAYS);
        unused.or_else(|| in_turn.next()).unwrap_or(PATHS_AT)
    }

    /// `path` leads from `start` to `target`; `None`: to nothing (ENOENT). `start` is the id of a directory's slot, or of a run where the path begins with
    /// a slash. `dirs` are all directories in which the walk looked for a name, which every user may search. No link is on the way.
    /// Paths that are too long, or have too many directories, get no entry.
    pub fn put_path(&self, start: u64, path: &[u8], dirs: &[Slot], target: Option<Slot>) {
        if dirs.len() > DIRS_MAX {
            return;
        }
        let target = target.map_or((SLOTS_AT as u64, 0), |slot| (slot.offset, slot.id));
        self.write_path(start, path, dirs.len() as u64, target, |word| {
            for (slot, offset) in dirs.iter().zip((PATH_DIRS..).step_by(16)) {
                word(offset, slot.offset);
                word(offset + 8, slot.id);
            }
        });
    }

    /// `path` leads from `start` to `target`, from [`AttributeMap::put_with_host`], while the object at `host` is as it was then. `start` is any
    /// number from [`AttributeMap::new_id`] that stands for a directory. Paths that are too long get no entry.
    pub fn put_path_on_host(&self, start: u64, path: &[u8], host: &[u8], target: Slot) {
        self.write_path_on_host(start, path, &[host], (target.offset, target.id), &[]);
    }

    /// `path` leads from `start` to nothing (ENOENT) while there is no `name` in the directory at `host`, and that is the one with this device and inode number. As
    /// [`AttributeMap::put_path_on_host`].
    pub fn put_missing_on_host(
        &self,
        start: u64,
        path: &[u8],
        (host, name): (&[u8], &[u8]),
        (dev, ino): (u64, u64),
    ) {
        let whole = [host, name].join(&b'/');
        let words = [dev, ino, host.len() as u64 + 1];
        self.write_path_on_host(start, path, &[host, &whole], (SLOTS_AT as u64, 0), &words);
    }

    /// Writes the entry of a path that the host confirms, with these paths of the host, and `words` in the place of directories.
    fn write_path_on_host(
        &self,
        start: u64,
        path: &[u8],
        host: &[&[u8]],
        target: (u64, u64),
        words: &[u64],
    ) -> Option<Slot> {
        let host = host.join(&0);
        let terminators = host.iter().filter(|&&byte| byte == 0).count();
        if host.len() > HOST_PATHS_MAX || terminators != usize::from(!words.is_empty()) {
            return None;
        }
        let mut terminated = [0; PATH_SIZE];
        let (text, _) = terminated.split_at_mut(host.len());
        text.copy_from_slice(&host);
        self.write_path(start, path, ON_HOST, target, |word| {
            for (value, offset) in words.iter().zip((PATH_DIRS..).step_by(8)) {
                word(offset, *value);
            }
            let texts = terminated.as_chunks::<8>().0.iter();
            for (bytes, offset) in texts.zip((HOST_PATHS_AT - PATHS_AT..).step_by(8)) {
                word(offset, u64::from_ne_bytes(*bytes));
            }
        })
    }

    /// Writes the entry of a path, and by `more` what depends on `kind`, the number of directories or [`ON_HOST`]. `target` is the offset and the id of a slot. Returns
    /// those of the entry.
    fn write_path(
        &self,
        start: u64,
        path: &[u8],
        kind: u64,
        target: (u64, u64),
        more: impl FnOnce(&dyn Fn(usize, u64)),
    ) -> Option<Slot> {
        if path.is_empty() || path.len() > PATH_MAX {
            return None;
        }
        let hash = hash(start, path);
        let key = (start, hash, path.len() as u64);
        let _alone = self.writer.lock();
        let id = self.new_id();
        let at = self.path_for(key, id);
        self.write_entry(at, id, |word| {
            word(8, start);
            word(16, hash);
            word(24, path.len() as u64);
            word(32, kind);
            word(40, target.0);
            word(48, target.1);
            more(word);
            for (bytes, offset) in path.chunks(8).zip((PATH_BYTES..).step_by(8)) {
                let mut whole = [0; 8];
                let (part, _) = whole.split_at_mut(bytes.len());
                part.copy_from_slice(bytes);
                word(offset, u64::from_ne_bytes(whole));
            }
        });
        let offset = at as u64;
        Some(Slot { offset, id })
    }

    /// The start of relative paths in a directory of the host. `ino` is the inode number of its backing directory in `space`.
    pub fn start_on_host(&self, space: u64, ino: u64) -> u64 {
        if let Some(known) = self.object(space, ino) {
            return known.id;
        }
        // A slot never has this id, so the directory itself has no attributes in the map.
        let (offset, id) = (SLOTS_AT as u64, self.new_id());
        self.put_object(space, ino, Slot { offset, id });
        id
    }
}

/// Reads as `map.S` does, for tests.
impl AttributeMap {
    /// The attributes in a slot, while they are valid.
    pub fn read(&self, slot: Slot) -> Option<Attributes> {
        let at = usize::try_from(slot.offset).ok()?;
        if self.word(at).load(Acquire) != slot.id {
            return None;
        }
        let (mut stat, mut statx) = ([0; STAT_SIZE], [0; STATX_SIZE]);
        let offsets = (at + SLOT_STAT..).step_by(8);
        let words = stat.as_chunks_mut::<8>().0.iter_mut();
        let words = words.chain(statx.as_chunks_mut::<8>().0.iter_mut());
        for (bytes, offset) in words.zip(offsets) {
            *bytes = self.word(offset).load(Relaxed).to_ne_bytes();
        }
        fence(Acquire);
        (self.word(at).load(Relaxed) == slot.id).then_some(Attributes { stat, statx })
    }

    /// Where a path leads: to a slot, or nowhere. `None` where the map does not say, or is closed.
    pub fn find(&self, start: u64, path: &[u8]) -> Option<Option<Slot>> {
        let hash = hash(start, path);
        let key = (start, hash, path.len() as u64);
        let (at, id) = paths_at(hash)
            .map(|at| (at, self.word(at).load(Acquire)))
            .find(|&(at, _)| self.key_of_path(at) == key)?;
        if self.is_closed() || id == 0 {
            return None;
        }
        let word = |offset: usize| self.word(at + offset).load(Acquire);
        for (bytes, offset) in path.chunks(8).zip((PATH_BYTES..).step_by(8)) {
            if !word(offset).to_ne_bytes().starts_with(bytes) {
                return None;
            }
        }
        for dir in (PATH_DIRS..).step_by(16).take(dirs_of(word(32))) {
            let slot = usize::try_from(word(dir)).ok()?;
            if self.word(slot).load(Acquire) != word(dir + 8) {
                return None;
            }
        }
        let (offset, target) = (word(40), word(48));
        let found = (target != 0).then_some(Slot { offset, id: target });
        (word(0) == id).then_some(found)
    }

    /// The slot that an object stands for.
    pub fn object(&self, space: u64, ino: u64) -> Option<Slot> {
        let at = self.object_with(space, ino)?;
        let word = |offset: usize| self.word(at + offset).load(Acquire);
        let id = word(0);
        let is_it = id != 0 && (word(8), word(16)) == (space, ino);
        let (offset, slot) = (word(24), word(32));
        (is_it && word(0) == id).then_some(Slot { offset, id: slot })
    }
}

/// An index into a table of `ENTRIES`: the upper bits of the product, which depend on all bits of the key.
fn spread(key: u64) -> usize {
    (key.wrapping_mul(SPREAD) >> (u64::BITS - ENTRIES.ilog2())) as usize
}

/// The first of the `WAYS` indices that a key may have.
fn first_of_ways(key: u64) -> usize {
    spread(key) / WAYS * WAYS
}

/// The entries that a path may have: several, as paths that programs use in turn would displace each other.
fn paths_at(hash: u64) -> impl Iterator<Item = usize> + Clone {
    let first = first_of_ways(hash);
    (first..first + WAYS).map(|entry| PATHS_AT + entry * PATH_SIZE)
}

/// The number of directories in an entry. `kind` is the entry's word for it, which can be [`ON_HOST`].
fn dirs_of(kind: u64) -> usize {
    usize::try_from(kind).map_or(0, |count| {
        if kind == ON_HOST {
            0
        } else {
            count.min(DIRS_MAX)
        }
    })
}

fn hash(start: u64, path: &[u8]) -> u64 {
    let add = |hash: u64, &byte: &u8| hash.rotate_left(7) ^ u64::from(byte);
    path.iter().fold(start, add)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
