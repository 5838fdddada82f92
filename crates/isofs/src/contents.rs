//! Open files: each has a descriptor of an object that holds its whole content, so that reads and mappings run in the
//! kernel without us.
//!
//! Up to [`LARGE`] bytes the object is a memfd, sealed against changes, beyond that a nameless file in a directory for
//! temporary files, which the kernel can write back and evict; see docs/decisions/0016. Objects nobody has open any more
//! are kept for the next open, within [`LIMITS`].

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use goanna_sys::memfile;
use goanna_sys::witness::Witness;
use goanna_vfs::{Errno, Native, Opened, Result};
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode;
use parking_lot::{Mutex, MutexGuard};

use crate::entry::{Meta, Sections};
use crate::given::Given;
use crate::iso::Iso;
use crate::zisofs::Zisofs;

/// Bytes up to which a content is kept in memory.
const LARGE: u64 = 64 << 20;

/// Bytes of memory, and number of objects, above which those are dropped that nobody has open.
const LIMITS: Held = Held {
    bytes: 128 << 20,
    objects: 1024,
};

/// Bytes up to which reading and writing them is the quicker way.
const SMALL: u64 = 64 << 10;

/// Bytes copied at once.
const PIECE: usize = 256 << 10;

/// Status flags of open(2) that mean the same on the object.
const KEPT_FLAGS: i32 = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_NOATIME;

/// What makes two contents the same: inode and place. An inode number alone will not do, since a damaged image can give
/// one to several files.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    ino: u64,
    sections: Sections,
    zisofs: Option<Zisofs>,
}

impl Key {
    fn of(meta: &Meta) -> Self {
        Self {
            ino: meta.ino,
            sections: meta.sections.clone(),
            zisofs: meta.zisofs,
        }
    }
}

/// An object with a file's content.
struct Content {
    /// Our own hold on it (see [`Native::Reads`]).
    witness: Arc<Witness>,
    /// Bytes of memory; 0 for one on disk.
    bytes: u64,
}

#[derive(Default)]
struct Slot {
    content: Mutex<Option<Content>>,
    used: AtomicU64,
}

/// How much there is.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    bytes: u64,
    objects: usize,
}

#[derive(Default)]
struct State {
    slots: HashMap<Key, Arc<Slot>>,
    bytes: u64,
    clock: u64,
    given: Given,
    /// What programs had open when last looked at; looking again is worth while when there is a good deal more.
    busy: Held,
}

/// The contents in use. Lock order: a slot, then the state; the state's holder only tries slots.
#[derive(Default)]
pub(crate) struct Contents {
    state: Mutex<State>,
}

impl Contents {
    /// A new open file description of the content of `meta`, with `flags` as for open(2).
    pub fn open(&self, iso: &Iso, meta: &Meta, flags: i32) -> Result<Opened> {
        let result = self.try_open(iso, meta, flags);
        if !matches!(result, Err(Errno::EMFILE)) {
            return result;
        }
        self.state.lock().shrink(Held::default());
        self.try_open(iso, meta, flags)
    }

    fn try_open(&self, iso: &Iso, meta: &Meta, flags: i32) -> Result<Opened> {
        let slot = {
            let mut state = self.state.lock();
            state.clock += 1;
            let slot = Arc::clone(state.slots.entry(Key::of(meta)).or_default());
            slot.used.store(state.clock, Ordering::Relaxed);
            slot
        };
        let mut content = slot.content.lock();
        if content.is_none() {
            self.wait_for_descriptors();
            let made = Content::make(iso, meta)?;
            let mut state = self.state.lock();
            state.bytes += made.bytes;
            state.given.add(&made.witness);
            *content = Some(made);
            state.keep_within_limits();
        }
        let Some(Content { witness, .. }) = &*content else {
            return Err(Errno::EIO);
        };
        Ok(Opened {
            fd: witness.open(flags & KEPT_FLAGS)?,
            native: Native::Reads {
                witness: Arc::clone(witness),
            },
        })
    }

    /// Waits until others have let go of old descriptors, if there are too many, but no longer than two sweeps of the
    /// monitor take.
    fn wait_for_descriptors(&self) {
        let mut state = self.state.lock();
        for _ in 0..50 {
            if !state.given.are_too_many() {
                return;
            }
            state.shrink(Held::default());
            MutexGuard::unlocked(&mut state, || std::thread::sleep(Duration::from_millis(20)));
        }
        state.given.give_up();
    }

    /// Nobody has the content of `meta` open any more: one on disk goes at once.
    pub fn released(&self, meta: &Meta) {
        let key = Key::of(meta);
        let mut state = self.state.lock();
        let Some(slot) = state.slots.get(&key).map(Arc::clone) else {
            return;
        };
        let Some(mut content) = slot.content.try_lock() else {
            return;
        };
        let is_on_disk = content.as_ref().is_some_and(|content| content.bytes == 0);
        if is_on_disk && content.as_ref().is_some_and(Content::is_unused) {
            *content = None;
        }
        // The map's reference and ours: nobody has come for it meanwhile.
        if content.is_none() && Arc::strong_count(&slot) == 2 {
            state.slots.remove(&key);
        }
    }
}

impl State {
    fn keep_within_limits(&mut self) {
        let over = |now: Held, limit: Held| now.bytes > limit.bytes || now.objects > limit.objects;
        let now = Held {
            bytes: self.bytes,
            objects: self.slots.len(),
        };
        let noted = Held {
            bytes: self.busy.bytes + self.busy.bytes / 4,
            objects: self.busy.objects + self.busy.objects / 4,
        };
        let limit = Held {
            bytes: LIMITS.bytes.max(noted.bytes),
            objects: LIMITS.objects.max(noted.objects),
        };
        if over(now, limit) {
            self.shrink(Held {
                bytes: LIMITS.bytes / 2,
                objects: LIMITS.objects / 2,
            });
        }
    }

    /// Drops what nobody has open, the least recently used first, until no more than `target` is left.
    fn shrink(&mut self, target: Held) {
        let age = |slot: &Slot| slot.used.load(Ordering::Relaxed);
        let mut by_age: Vec<_> = self
            .slots
            .iter()
            .map(|(key, slot)| (age(slot), key.clone()))
            .collect();
        by_age.sort_unstable_by_key(|(used, _)| *used);
        for (_, key) in by_age {
            if self.bytes <= target.bytes && self.slots.len() <= target.objects {
                break;
            }
            let Some(slot) = self.slots.get(&key) else {
                continue;
            };
            // Two references: somebody has come for it and not got it yet.
            if Arc::strong_count(slot) > 1 {
                continue;
            }
            let Some(mut content) = slot.content.try_lock() else {
                continue;
            };
            if content.as_ref().is_some_and(|content| !content.is_unused()) {
                continue;
            }
            let freed = content.take().map_or(0, Content::free);
            drop(content);
            self.slots.remove(&key);
            self.bytes -= freed;
        }
        self.busy = Held {
            bytes: self.bytes,
            objects: self.slots.len(),
        };
    }
}

impl Content {
    fn make(iso: &Iso, meta: &Meta) -> Result<Self> {
        iso.check_content(meta).map_err(|error| error.errno())?;
        let on_disk = if meta.size > LARGE {
            temporary_file()
        } else {
            None
        };
        let bytes = if on_disk.is_some() { 0 } else { meta.size };
        let (object, is_memory) = match on_disk {
            Some(file) => (file, false),
            None => (memory_file()?, true),
        };
        fill(iso, meta, &object, is_memory)?;
        if is_memory {
            // Not against shrinking: that is how memory is given back at once.
            let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW;
            fcntl(&object, FcntlArg::F_ADD_SEALS(seals))?;
        }
        let witness = Arc::new(Witness::new(memfile::reopen(
            object.as_fd(),
            libc::O_RDONLY,
        )?)?);
        Ok(Self { witness, bytes })
    }

    fn is_unused(&self) -> bool {
        self.witness.sole_opener()
    }

    /// Gives the memory back, of an object that is unused: others may still hold the witness for a while. Its bytes.
    fn free(self) -> u64 {
        if self.bytes > 0
            && let Ok(writer) = self.witness.open(libc::O_RDWR)
        {
            // Failing, the memory goes with the last holder of the witness.
            let _ = memfile::set_len(writer.as_fd(), 0);
        }
        self.bytes
    }
}

/// As [`memfile::create`], but one that can be sealed.
fn memory_file() -> Result<OwnedFd> {
    /// Programs in it can be executed (Linux 6.3); not in every version of the bindings.
    const MFD_EXEC: libc::c_uint = 0x10;
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    match memfd_create("iso", flags | MFdFlags::from_bits_retain(MFD_EXEC)) {
        // Before that version; or executable ones are forbidden here.
        Err(Errno::EINVAL | Errno::EACCES) => memfd_create("iso", flags),
        other => other,
    }
}

/// A file without a name where large temporary files belong; `None` where none can be made.
fn temporary_file() -> Option<OwnedFd> {
    let chosen = std::env::var_os("TMPDIR").map(PathBuf::from);
    let places = chosen.into_iter().chain(["/var/tmp".into(), "/tmp".into()]);
    let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
    let mut files =
        places.map(|dir| nix::fcntl::open(&dir, flags, Mode::from_bits_truncate(0o555)));
    files.find_map(std::result::Result::ok)
}

/// Writes the content of `meta` to an empty object.
fn fill(iso: &Iso, meta: &Meta, object: &OwnedFd, is_memory: bool) -> Result<()> {
    memfile::set_len(object.as_fd(), meta.size)?;
    let mut at = in_kernel(iso, meta, object, is_memory);
    let mut piece = vec![0; PIECE.min(usize::try_from(meta.size).unwrap_or(PIECE))];
    // Zeros of a compressed file stay holes.
    while let Some(data) = iso.next_data(meta, at).map_err(|error| error.errno())? {
        let len = iso
            .read_at(meta, data, &mut piece)
            .map_err(|error| error.errno())?;
        let bytes = piece.get(..len).unwrap_or_default();
        if memfile::pwrite(object.as_fd(), bytes, data)? < len || len == 0 {
            return Err(Errno::ENOSPC);
        }
        at = data + len as u64;
    }
    Ok(())
}

/// Lets the kernel copy what it can: by sendfile(2) into memory, without a detour through ours; on disk by
/// copy_file_range(2), which shares blocks where a file system can. How many bytes are done.
fn in_kernel(iso: &Iso, meta: &Meta, object: &OwnedFd, is_memory: bool) -> u64 {
    let Some((file, mut from)) = iso.in_one_piece(meta).filter(|_| meta.size > SMALL) else {
        return 0;
    };
    let mut done = 0;
    while done < meta.size {
        let len = usize::try_from(meta.size - done).unwrap_or(usize::MAX);
        let copied = if is_memory {
            rustix::fs::sendfile(object, file, Some(&mut from), len)
        } else {
            let mut to = done;
            rustix::fs::copy_file_range(file, Some(&mut from), object, Some(&mut to), len)
        };
        match copied {
            Ok(0) | Err(_) => break,
            Ok(n) => done += n as u64,
        }
    }
    done
}
