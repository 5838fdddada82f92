//! The content cache of files that do not change while they are mounted, within limits of memory and descriptors ([`Limits`]).
//!
//! Up to [`Limits::large_file_bytes`] an object is a sealed memfd. Beyond that it is a nameless file in a directory for
//! temporary files, which the kernel can write back and evict; see docs/decisions/0016. Objects that no program has open
//! are kept for the next open, within the limits.

use std::collections::HashMap;
use std::fs::File;
use std::hash::Hash;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use goanna_vfs::{CachedContent, Errno, FileKind, Node, Opened};
use nix::fcntl::copy_file_range;
use nix::sys::sendfile::sendfile;
use parking_lot::Mutex;

use crate::Result;
use crate::handles::OpenHandles;
use crate::object::{CacheObject, write_all_at};

/// Size limit in bytes below which read and write are quicker than a copy by the kernel.
const SMALL: u64 = 64 << 10;

/// Bytes read at once.
const PIECE: usize = 256 << 10;

/// Reads the files of a back end: the interface that [`FileCache`] needs to give descriptors of them.
#[allow(
    unused_variables,
    reason = "defaults answer without looking at their arguments"
)]
pub trait FileSource: Send + Sync + 'static {
    /// Two files with the same key have the same content.
    type Key: Clone + Eq + Hash + Send + Sync;

    /// The key of a regular file: mostly its inode number, and more where damage can give one number to two files.
    fn key(&self, file: &Node) -> Result<Self::Key>;

    /// The file's size, bytes. An error where its content is known to be unreadable: the open then fails before anything
    /// of the content is read.
    fn size(&self, file: &Node) -> Result<u64>;

    /// Reads content. The result is short only at the end of the file.
    fn read_at(&self, file: &Node, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// The first offset at or after `offset` where the content may be other than zeros. `None` when only zeros follow:
    /// they become a hole.
    fn next_data(&self, file: &Node, offset: u64) -> Result<Option<u64>> {
        Ok(Some(offset))
    }

    /// A host file that has the whole content contiguously, and its offset: the kernel then copies
    /// it.
    fn in_host_file(&self, file: &Node) -> Option<(&File, u64)> {
        None
    }
}

/// The limits of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Files of more bytes than this are kept in a host file, not in memory.
    pub large_file_bytes: u64,
    /// Bytes of memory above which objects that no program has open are dropped.
    pub bytes: u64,
    /// Number of objects above which objects that no program has open are dropped.
    pub objects: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            large_file_bytes: 64 << 20,
            bytes: 128 << 20,
            objects: 1024,
        }
    }
}

/// Gives programs descriptors of the files of a [`FileSource`]. See the crate's documentation for an example.
pub struct FileCache<S: FileSource> {
    source: S,
    limits: Limits,
    handles: OpenHandles,
    state: Mutex<State<S::Key>>,
}

/// An object that is there, or is being made by the thread that has the lock.
#[derive(Default)]
struct Slot {
    object: Mutex<Option<Filled>>,
    last_use: AtomicU64,
}

struct Filled {
    object: CacheObject,
    /// Bytes of memory; 0 for one on disk.
    bytes: u64,
}

#[derive(Clone, Copy, Default)]
struct Usage {
    bytes: u64,
    objects: usize,
}

struct State<K> {
    slots: HashMap<K, Arc<Slot>>,
    bytes: u64,
    /// Counts opens.
    clock: u64,
    /// The size after the last eviction. The next one starts when it has grown by a quarter.
    left: Usage,
}

impl<S: FileSource> FileCache<S> {
    /// A cache of the source's files with the default limits.
    pub fn new(source: S) -> Self {
        Self::with_limits(source, Limits::default())
    }

    /// A cache of the source's files.
    pub fn with_limits(source: S, limits: Limits) -> Self {
        let state = State {
            slots: HashMap::new(),
            bytes: 0,
            clock: 0,
            left: Usage::default(),
        };
        Self {
            source,
            limits,
            state: Mutex::new(state),
            // Each object has a writer, too, while it is filled.
            handles: OpenHandles::new(2),
        }
    }

    /// Where the content comes from.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// A new open file description of a file, with `flags` as for open(2). The first open of a file reads all of it.
    /// EROFS for an open that could change the file, ENXIO unless the file is regular.
    pub fn open(&self, file: &Node, flags: i32) -> Result<Opened> {
        if flags & (libc::O_ACCMODE | libc::O_TRUNC) != libc::O_RDONLY {
            return Err(Errno::EROFS);
        }
        if file.kind() != FileKind::Regular {
            return Err(Errno::ENXIO);
        }
        match self.try_open(file, flags) {
            Err(Errno::EMFILE) => {
                self.state.lock().evict(Usage::default());
                self.try_open(file, flags)
            }
            other => other,
        }
    }

    fn try_open(&self, file: &Node, flags: i32) -> Result<Opened> {
        let key = self.source.key(file)?;
        let slot = {
            let mut state = self.state.lock();
            state.clock += 1;
            let slot = Arc::clone(state.slots.entry(key).or_default());
            slot.last_use.store(state.clock, Ordering::Relaxed);
            slot
        };
        let mut object = slot.object.lock();
        if object.is_none() {
            self.handles
                .wait(|| self.state.lock().evict(Usage::default()));
            let filled = self.fill(file)?;
            let mut state = self.state.lock();
            state.bytes += filled.bytes;
            self.handles.add(filled.object.handle());
            *object = Some(filled);
            state.keep_within(self.limits);
        }
        let filled = object.as_ref().ok_or(Errno::EIO)?;
        Ok(filled.object.open(flags))
    }

    fn fill(&self, file: &Node) -> Result<Filled> {
        let size = self.source.size(file)?;
        let large_dirs = if size > self.limits.large_file_bytes {
            temporary_dirs()
        } else {
            Vec::new()
        };
        let object = CacheObject::create_fixed(size, &large_dirs, |writer, on_disk| {
            let at = self.copy_in_kernel(file, size, writer, on_disk);
            self.read_rest(file, at, size, writer)
        })?;
        let bytes = if object.is_on_disk() { 0 } else { size };
        Ok(Filled { object, bytes })
    }

    /// Reads the file from `at` to its end into an object. Zeros that the source knows of stay holes.
    fn read_rest(&self, file: &Node, mut at: u64, size: u64, writer: BorrowedFd<'_>) -> Result<()> {
        let mut piece = vec![0; PIECE.min(usize::try_from(size).unwrap_or(PIECE))];
        while at < size {
            let next = self.source.next_data(file, at)?;
            let Some(data) = next.filter(|data| *data < size) else {
                break;
            };
            let len = self.source.read_at(file, data, &mut piece)?;
            let bytes = piece.get(..len).unwrap_or_default();
            if bytes.is_empty() {
                // The file is shorter than the source reported.
                return Err(Errno::EIO);
            }
            write_all_at(writer, data, bytes)?;
            at = data + len as u64;
        }
        Ok(())
    }

    /// Lets the kernel copy as much as it can: into memory by sendfile(2), without a detour through the monitor's; on disk by
    /// copy_file_range(2), which shares blocks where a file system can. Returns the number of bytes copied.
    fn copy_in_kernel(&self, file: &Node, size: u64, writer: BorrowedFd<'_>, on_disk: bool) -> u64 {
        let source = self.source.in_host_file(file).filter(|_| size > SMALL);
        let Some((source, from)) = source else {
            return 0;
        };
        let Ok(mut from) = i64::try_from(from) else {
            return 0;
        };
        let mut done: u64 = 0;
        while done < size {
            let len = usize::try_from(size - done).unwrap_or(usize::MAX);
            let Ok(mut to) = i64::try_from(done) else {
                break;
            };
            let copied = if on_disk {
                copy_file_range(source, Some(&mut from), writer, Some(&mut to), len)
            } else {
                sendfile(writer, source, Some(&mut from), len)
            };
            match copied {
                Ok(0) | Err(_) => break,
                Ok(n) => done += n as u64,
            }
        }
        done
    }
}

impl<S: FileSource> CachedContent for FileCache<S> {
    /// An object in memory is kept for the next open; an object on disk is dropped at once.
    fn released(&self, file: &Node) {
        let Ok(key) = self.source.key(file) else {
            return;
        };
        let mut state = self.state.lock();
        let Some(slot) = state.slots.get(&key).map(Arc::clone) else {
            return;
        };
        let Some(mut object) = slot.object.try_lock() else {
            return;
        };
        let is_done = |filled: &Filled| filled.object.is_on_disk() && filled.object.is_unused();
        if object.as_ref().is_some_and(is_done) {
            *object = None;
        }
        // The map's reference and this one: no thread is about to open the file.
        if object.is_none() && Arc::strong_count(&slot) == 2 {
            state.slots.remove(&key);
        }
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn keep_within(&mut self, limits: Limits) {
        let bytes = limits.bytes.max(self.left.bytes + self.left.bytes / 4);
        let objects = limits
            .objects
            .max(self.left.objects + self.left.objects / 4);
        if self.bytes > bytes || self.slots.len() > objects {
            self.evict(Usage {
                bytes: limits.bytes / 2,
                objects: limits.objects / 2,
            });
        }
    }

    /// Drops objects that no program has open, the least recently used first, until they take no more than `target`.
    fn evict(&mut self, target: Usage) {
        let last_use = |slot: &Slot| slot.last_use.load(Ordering::Relaxed);
        let mut by_age: Vec<_> = self
            .slots
            .iter()
            .map(|(key, slot)| (last_use(slot), key.clone()))
            .collect();
        by_age.sort_unstable_by_key(|(used, _)| *used);
        for (_, key) in by_age {
            if self.bytes <= target.bytes && self.slots.len() <= target.objects {
                break;
            }
            let Some(slot) = self.slots.get(&key) else {
                continue;
            };
            // Two references: a thread is about to open the file.
            if Arc::strong_count(slot) > 1 {
                continue;
            }
            let Some(mut object) = slot.object.try_lock() else {
                continue;
            };
            if object
                .as_ref()
                .is_some_and(|filled| !filled.object.is_unused())
            {
                continue;
            }
            let evicted = object.take();
            drop(object);
            self.slots.remove(&key);
            if let Some(Filled { object, bytes }) = evicted {
                object.free();
                self.bytes -= bytes;
            }
        }
        self.left = Usage {
            bytes: self.bytes,
            objects: self.slots.len(),
        };
    }
}

/// The directories for large temporary files, the best first.
fn temporary_dirs() -> Vec<PathBuf> {
    let chosen = std::env::var_os("TMPDIR").map(PathBuf::from);
    let usual = ["/var/tmp".into(), "/tmp".into()];
    chosen.into_iter().chain(usual).collect()
}
