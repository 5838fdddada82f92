//! The files that programs have open: finds the [`State`] of each, and drops it when no program needs it.
//!
//! Lock order: a state, then the table, then the idle list. The lower file system is called with a state locked.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use goanna_cache::{IdleList, OpenHandles};
use goanna_sys::object_handle::ObjectHandle;
use goanna_vfs::{Attr, Caller, Errno, FileSystem, FsError, Node, Opened};
use parking_lot::{Mutex, MutexGuard};

use super::lower::{LowerFile, Version};
use super::memory::{Memory, Share};
use super::state::{Content, State, read_id};
use crate::error::Failure;
use crate::format::content::ContentCipher;

/// Maximum bytes of decrypted contents that are kept although no program has the files open.
const IDLE_BYTES: u64 = 128 << 20;

/// Maximum number of such contents. Each takes at least a page, and an inode of the kernel.
const IDLE_FILES: usize = 4096;

/// Each content takes this many descriptors: of the object, of the encrypted file, and of its inode.
const HANDLE_DESCRIPTORS: u64 = 3;

/// The limit on memory from which on programs open contents without a call: the monitor keeps up to 256 MiB of these.
const KEPT_FROM: u64 = 1 << 30;

/// The interval at which changes through shared mappings are searched and stored; longer if that takes long.
const STORE_MAPPED: Duration = Duration::from_secs(1);

/// The search may take at most one in this many parts of a processor's time.
const STORE_SHARE: u32 = 20;

type Result<T> = std::result::Result<T, Failure>;

/// The source of a caller's right to change a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// The file's present permissions.
    Permissions,
    /// A descriptor that is open for writing. Without one, the permissions count.
    Descriptor,
}

/// A file in the table.
pub(crate) struct File {
    state: Mutex<State>,
}

/// All files that are open, and those whose decrypted content is kept for the next open.
pub(crate) struct Files {
    lower: Arc<dyn FileSystem>,
    cipher: Arc<ContentCipher>,
    table: Mutex<HashMap<u64, Arc<File>>>,
    idle: Mutex<IdleList<(u64, Arc<File>)>>,
    /// Those of contents that programs have open, or had open before the monitor's last sweep, or that are kept.
    handles: OpenHandles,
    /// The limit on contents that programs have open.
    memory: Arc<Memory>,
    /// Whether the thread that stores writes through mappings is running.
    has_storer: AtomicBool,
}

impl Files {
    pub fn new(
        lower: Arc<dyn FileSystem>,
        cipher: Arc<ContentCipher>,
        memory: Option<u64>,
    ) -> Self {
        Self {
            lower,
            cipher,
            table: Mutex::default(),
            idle: Mutex::default(),
            handles: OpenHandles::new(HANDLE_DESCRIPTORS),
            memory: Arc::new(Memory::new(memory)),
            has_storer: AtomicBool::new(false),
        }
    }

    pub fn cipher(&self) -> &ContentCipher {
        &self.cipher
    }

    /// Runs `op` on the state of the file, which is made if it is not in the table.
    fn with_state<T>(&self, node: &Node, op: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        loop {
            let new = || {
                let state = Mutex::new(State::new(Share::new(&self.memory)));
                Arc::new(File { state })
            };
            let file = Arc::clone(self.table.lock().entry(node.ino()).or_insert_with(new));
            let mut state = file.state.lock();
            if state.is_removed {
                continue;
            }
            let result = op(&mut state);
            if state.content.is_none() {
                state.share.set(0);
            }
            if state.lower.is_none() && state.content.is_none() {
                self.remove(node.ino(), &mut state);
            }
            return result;
        }
    }

    /// Runs `op` on the state of a file that is open; `None` for other files.
    fn with_open<T>(&self, ino: u64, op: impl FnOnce(&mut State) -> T) -> Option<T> {
        let file = self.table.lock().get(&ino).map(Arc::clone)?;
        let mut state = file.state.lock();
        (!state.is_removed && state.lower.is_some()).then(|| op(&mut state))
    }

    /// Bytes of contents that no program has open.
    fn idle_bytes(&self) -> u64 {
        IDLE_BYTES.min(self.memory.limit() / 4)
    }

    fn remove(&self, ino: u64, state: &mut State) {
        state.is_removed = true;
        self.table.lock().remove(&ino);
        self.idle.lock().remove(ino);
    }

    /// Opens a file for a program. The lower file system checks the caller's permission.
    pub fn open(&self, caller: &Caller, node: &Node, flags: i32) -> Result<Opened> {
        self.with_descriptors(|| {
            self.with_state(node, |state| self.open_in(state, caller, node, flags))
        })
    }

    /// Waits while the monitor keeps too many contents of closed files.
    fn wait_for_descriptors(&self) {
        self.handles.wait(|| self.shrink_idle(0, 0));
    }

    /// Runs `op`. If the process has no descriptors left, drops all unused contents and runs it again.
    fn with_descriptors<T>(&self, op: impl Fn() -> Result<T>) -> Result<T> {
        self.wait_for_descriptors();
        match op() {
            Err(failure) if failure.errno() == Some(Errno::EMFILE) => {
                self.shrink_idle(0, 0);
                op()
            }
            other => other,
        }
    }

    fn open_in(
        &self,
        state: &mut State,
        caller: &Caller,
        node: &Node,
        flags: i32,
    ) -> Result<Opened> {
        let truncates = flags & libc::O_TRUNC != 0;
        let lower = self.open_lower(caller, node, flags, truncates || state.content.is_some())?;
        self.open_with(state, lower, node, flags, truncates)
    }

    fn open_with(
        &self,
        state: &mut State,
        lower: LowerFile,
        node: &Node,
        flags: i32,
        truncates: bool,
    ) -> Result<Opened> {
        let was_open = state.lower.is_some();
        self.exchange_lower(state, lower);
        self.idle.lock().remove(node.ino());
        let is_new = state.content.is_none();
        let loaded = self.load(state, truncates);
        let opened = loaded.and_then(|()| {
            let content = state.content_mut()?;
            if is_new {
                self.handles.add(content.handle());
            }
            Ok(content.open(flags))
        });
        if opened.is_err() && !was_open {
            state.close_lower();
            state.content = None;
        }
        opened
    }

    /// Opens the encrypted file as far as the caller may. To write a part of a block, its old content must be read, so a file that is opened for
    /// writing is opened for both. If the caller may only write, only writes that need no old content work.
    fn open_lower(
        &self,
        caller: &Caller,
        node: &Node,
        flags: i32,
        is_readable: bool,
    ) -> Result<LowerFile> {
        let (access, no_atime) = (flags & libc::O_ACCMODE, flags & libc::O_NOATIME);
        let open = |access| LowerFile::open(&self.lower, caller, node, access | no_atime);
        if access == libc::O_RDONLY && flags & libc::O_TRUNC == 0 {
            return Ok(open(libc::O_RDONLY)?);
        }
        match open(libc::O_RDWR) {
            Err(FsError::Errno(Errno::EACCES)) if access == libc::O_WRONLY && is_readable => {
                Ok(open(libc::O_WRONLY)?)
            }
            other => Ok(other?),
        }
    }

    /// Keeps the descriptor that allows more, and the other one, too, if only that one is readable.
    fn exchange_lower(&self, state: &mut State, lower: LowerFile) {
        let worth =
            |lower: &LowerFile| 2 * u8::from(lower.can_write()) + u8::from(lower.can_read());
        let is_better = state
            .lower
            .as_ref()
            .is_none_or(|old| worth(&lower) > worth(old) || lower.caller().txn != old.caller().txn);
        let other = if is_better {
            state.lower.replace(lower)
        } else {
            Some(lower)
        };
        let Some(kept) = &state.lower else { return };
        let is_of_use = |reader: &LowerFile| {
            !kept.can_read() && reader.can_read() && reader.caller().txn == kept.caller().txn
        };
        let readers = [state.reader.take(), other];
        state.reader = readers.into_iter().flatten().find(is_of_use);
    }

    /// Fills the cache object with the file's content, or empties it if the open truncates the file.
    fn load(&self, state: &mut State, truncates: bool) -> Result<()> {
        if truncates {
            state.clear()?;
            match &state.content {
                Some(content) => content.resize(0)?,
                None => state.content = Some(Content::create(0, None)?.0),
            }
            state.count_memory();
            return Ok(());
        }
        if state.content.is_some() && !Self::has_changed(state)? {
            let content = state.content()?;
            if !content.is_in_use() {
                // The content was kept, and did not count while no program had it open.
                let blocks = content.blocks().unwrap_or(0);
                state.share.reserve(blocks.saturating_mul(512))?;
            }
            return Ok(());
        }
        // If it fails, the version stays the old one, so that the next open tries again.
        let version = state.fill(&self.cipher)?;
        state.version = Some(version);
        Ok(())
    }

    /// Whether another process has changed the encrypted file since its content was decrypted. Not checked while programs of this run map it.
    fn has_changed(state: &mut State) -> Result<bool> {
        let content = state.content()?;
        let Some(version) = state.version.filter(|_| !content.is_mapped()) else {
            return Ok(false);
        };
        let lower = state.lower()?;
        let now = lower.version()?;
        if state.is_outdated(&now) || !content.is_in_use() && now != version {
            return Ok(true);
        }
        // Times have a granularity; another file with the same number has another id.
        let is_same = version.size == 0 || !lower.can_read() || state.id == Some(read_id(lower)?);
        if is_same {
            state.version = Some(now);
        }
        Ok(!is_same)
    }

    /// A description of a file that was just created in the lower file system, where it is `created`. Another thread may have found the
    /// new name before this call, opened the file and written to it.
    pub fn create(
        &self,
        caller: &Caller,
        node: &Node,
        created: Opened,
        flags: i32,
    ) -> Result<Opened> {
        self.wait_for_descriptors();
        let lower = LowerFile::of(&self.lower, caller, node, created, libc::O_RDWR);
        self.with_state(node, |state| {
            self.open_with(state, lower, node, flags, false)
        })
    }

    /// Runs `change` on the content of a file that a program has open.
    pub fn change_open<T>(
        &self,
        node: &Node,
        change: impl FnOnce(&mut State) -> Result<T>,
    ) -> Result<T> {
        self.with_open(node.ino(), |state| state.change(&self.cipher, change))
            .unwrap_or(Err(Errno::EBADF.into()))
    }

    /// Runs `change` on a file, which programs may have open or not. `is_loaded`: its whole content is needed.
    pub fn change(
        &self,
        caller: &Caller,
        node: &Node,
        right: Right,
        is_loaded: bool,
        change: impl FnOnce(&mut State) -> Result<()>,
    ) -> Result<()> {
        self.with_writable(caller, node, right, false, |state| {
            if is_loaded || state.content.is_some() {
                self.load(state, false)?;
            }
            state.change(&self.cipher, change)
        })
    }

    /// Truncates a file to size 0. This needs only the right to write.
    pub fn clear(&self, caller: &Caller, node: &Node, right: Right) -> Result<()> {
        self.with_writable(caller, node, right, true, |state| self.load(state, true))
    }

    /// Runs `change`, which sets times of the file.
    pub fn set_times<T>(
        &self,
        node: &Node,
        change: impl FnOnce() -> goanna_vfs::Result<T>,
    ) -> goanna_vfs::Result<T> {
        let Some(file) = self.table.lock().get(&node.ino()).map(Arc::clone) else {
            return change();
        };
        let mut state = file.state.lock();
        let now = state.lower.as_ref().and_then(|lower| lower.version().ok());
        let before = now.and_then(|now| state.version.filter(|_| !state.is_outdated(&now)));
        let result = change();
        if before.is_some() {
            state.follow_own_change(before, result.is_ok());
        }
        result
    }

    /// Runs `op` on a file that is open for writing at least until `op` has ended.
    fn with_writable(
        &self,
        caller: &Caller,
        node: &Node,
        right: Right,
        truncates: bool,
        op: impl FnOnce(&mut State) -> Result<()>,
    ) -> Result<()> {
        self.with_state(node, |state| {
            let was_open = state.lower.is_some();
            let is_writable = state.lower.as_ref().is_some_and(LowerFile::can_write);
            if right == Right::Permissions || !is_writable {
                let is_readable = truncates || state.content.is_some();
                let lower = self.open_lower(caller, node, libc::O_WRONLY, is_readable)?;
                self.exchange_lower(state, lower);
            }
            let result = op(state);
            if !was_open {
                state.close_lower();
                state.content = None;
            }
            result
        })
    }

    /// Reads the content as programs that have the file open see it. `None`: no program has it open.
    pub fn read_open(&self, node: &Node, offset: u64, buf: &mut [u8]) -> Option<Result<usize>> {
        self.with_open(node.ino(), |state| {
            Ok(state.content()?.read_at(offset, buf)?)
        })
    }

    /// Runs `remove`, which removes the file's `security.capability`, unless the file is known to have none.
    pub fn without_capability(&self, node: &Node, remove: impl FnOnce()) {
        let is_needed = |state: &mut State| !std::mem::replace(&mut state.has_no_capability, true);
        if self.with_open(node.ino(), is_needed).unwrap_or(true) {
            remove();
        }
    }

    /// Records that the file may have a `security.capability`.
    pub fn may_have_capability(&self, node: &Node) {
        let Some(file) = self.table.lock().get(&node.ino()).map(Arc::clone) else {
            return;
        };
        file.state.lock().has_no_capability = false;
    }

    /// Whether `object` has the content of the file whose encrypted one has this version, and no program maps it to write. If so, the monitor may keep it for
    /// opens without a call. Then it counts as if no program had it open.
    pub fn may_be_opened(&self, node: &Node, object: &ObjectHandle, version: Version) -> bool {
        let may_be = |state: &mut State| {
            let content = state.content.as_ref().filter(|it| !it.is_mapped());
            let identity = content.map(|content| content.handle().identity());
            let is_it = identity == Some(object.identity()) && state.version == Some(version);
            if is_it {
                state.share.set(0);
            }
            is_it
        };
        self.memory.limit() >= KEPT_FROM && self.with_open(node.ino(), may_be).unwrap_or(false)
    }

    /// Whether a program has the file open for writing.
    pub fn is_open_for_writing(&self, node: &Node) -> bool {
        let is_open = |state: &mut State| {
            let content = state.content.as_ref();
            content.is_some_and(|content| content.is_open_for_writing())
        };
        self.with_open(node.ino(), is_open).unwrap_or(false)
    }

    /// Handles the last close of a file. Its content is kept for the next open if it is small.
    pub fn released(&self, node: &Node) -> Result<()> {
        let result = self.with_open(node.ino(), |state| self.release(state, node));
        self.shrink_idle(IDLE_FILES, self.idle_bytes());
        result.unwrap_or(Ok(()))
    }

    fn release(&self, state: &mut State, node: &Node) -> Result<()> {
        if !state.content()?.is_unused() {
            return Ok(());
        }
        let stored = self.store_all_mapped(state);
        let caller = state.lower()?.caller().clone();
        let attr = self.lower.getattr(&caller, node);
        state.close_lower();
        let keeps = |attr: &Attr| {
            let is_small = state.size <= self.idle_bytes() / 4;
            let is_current = state
                .version
                .is_some_and(|version| version.has_content_of(&Version::of(attr)));
            attr.nlink > 0 && stored.is_ok() && is_small && is_current && caller.txn.is_none()
        };
        match attr {
            Ok(attr) if keeps(&attr) => {
                // The next open compares the change time, too.
                state.version = Some(Version::of(&attr));
                let size = state.size;
                state.content_mut()?.release();
                state.share.set(0);
                if let Some(file) = self.table.lock().get(&node.ino()) {
                    let entry = (node.ino(), Arc::clone(file));
                    self.idle.lock().put(node.ino(), entry, size);
                }
            }
            _ => {
                // The monitor may hold the object for a while, so its memory is freed now.
                if let Some(content) = state.content.take() {
                    let _ = content.resize(0);
                }
                state.share.set(0);
                self.remove(node.ino(), state);
            }
        }
        stored
    }

    /// Drops idle contents until at most this many are left.
    fn shrink_idle(&self, max_files: usize, max_bytes: u64) {
        loop {
            let file = {
                let mut idle = self.idle.lock();
                if idle.len() <= max_files && idle.bytes() <= max_bytes {
                    return;
                }
                idle.take_oldest()
            };
            let Some((ino, file)) = file else { return };
            let mut state = file.state.lock();
            // A program has opened the file again meanwhile.
            if state.lower.is_some() || state.is_removed {
                continue;
            }
            state.content = None;
            state.is_removed = true;
            self.table.lock().remove(&ino);
        }
    }

    /// Records that a program maps the file shared and writable.
    pub fn map_shared(self: &Arc<Self>, node: &Node) -> Result<()> {
        let mapped = self.with_open(node.ino(), |state| -> Result<()> {
            state.content_mut()?.map_shared();
            Ok(())
        });
        mapped.unwrap_or(Err(Errno::EBADF.into()))?;
        if !self.has_storer.swap(true, Ordering::Relaxed) {
            let files = Arc::downgrade(self);
            let storer = std::thread::Builder::new().name("aes-mapped".into());
            storer
                .spawn(move || {
                    goanna_affinity::leave_one_cpu();
                    store_regularly(&files);
                })
                .map_err(|_| Errno::EAGAIN)?;
        }
        Ok(())
    }

    /// Stores writes through mappings to the bytes `range`.
    pub fn store_mapped(&self, node: &Node, range: Range<u64>) -> Result<()> {
        self.with_open(node.ino(), |state| self.store_mapped_in(state, range))
            .unwrap_or(Ok(()))
    }

    /// Stores writes through mappings, and makes the file durable.
    pub fn sync(&self, node: &Node) -> Result<()> {
        let stored = self.with_open(node.ino(), |state| {
            self.store_all_mapped(state)?;
            if let Some(errno) = state.failed.take() {
                return Err(errno.into());
            }
            state.lower()?.sync()?;
            Ok(())
        });
        stored.unwrap_or_else(|| Ok(self.lower.sync(Some(node))?))
    }

    fn store_mapped_in(&self, state: &mut State, range: Range<u64>) -> Result<()> {
        if !state.content()?.is_mapped() {
            return Ok(());
        }
        state.change(&self.cipher, |state| {
            state.store_mapped(&self.cipher, range)
        })
    }

    fn store_all_mapped(&self, state: &mut State) -> Result<()> {
        let result = self.store_mapped_in(state, 0..u64::MAX);
        if state.content()?.is_mapped() {
            state.count_memory();
        }
        match &result {
            // A call that waits for a lock is made again.
            Ok(()) | Err(Failure::Fs(FsError::Blocked(_))) => {}
            Err(failure) => state.failed = Some(failure.errno().unwrap_or(Errno::EIO)),
        }
        result
    }

    /// Stores writes through mappings of all files. If that fails for a file, the next fsync(2) of the file also reports the error.
    pub fn store_everything(&self) -> Result<()> {
        let files: Vec<_> = self.table.lock().values().map(Arc::clone).collect();
        let mut result = Ok(());
        for file in files {
            let mut state: MutexGuard<'_, State> = file.state.lock();
            if !state.is_removed && state.lower.is_some() {
                result = result.and(self.store_all_mapped(&mut state));
            }
        }
        result
    }
}

/// Periodically stores writes through mappings, until the file system is dropped.
fn store_regularly(files: &Weak<Files>) {
    let mut pause = STORE_MAPPED;
    loop {
        std::thread::sleep(pause);
        let Some(files) = files.upgrade() else { return };
        let start = Instant::now();
        let _ = files.store_everything();
        pause = STORE_MAPPED.max(start.elapsed() * STORE_SHARE);
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = self.store_everything();
    }
}
