//! Follows the steps: derives from them the state before the trace, and the changes of descriptors.

use amino_schema::replay::{Call, What};

use super::Compiler;
use super::depend::Range;
use super::held::Description;
use super::uses::{file_key, parent};
use crate::source::{Name, Step, Subject};

/// Bytes of content that a hash covers.
const CHUNK: u64 = 64 << 10;

impl Compiler<'_> {
    /// Follows a step.
    pub(super) fn observe(&mut self, step: &Step) {
        for target in &step.targets {
            if let Name::Path { path, .. } = &target.name {
                self.observe_path(step, target, path);
            }
        }
        self.observe_attributes(step);
        self.observe_names(step);
        self.observe_content(step);
        self.observe_descriptors(step);
    }

    /// Records whether a path of a call existed, as the call's result shows.
    fn observe_path(&mut self, step: &Step, target: &Subject, path: &[u8]) {
        let is_last = step
            .targets
            .last()
            .is_some_and(|last| std::ptr::eq(last, target));
        let makes = match step.call {
            Call::Open => step.number(0) & libc::O_CREAT as u64 != 0,
            Call::Mkdir | Call::Mknod | Call::Symlink => true,
            Call::Link | Call::Rename => is_last,
            _ => false,
        };
        let directory = match step.call {
            Call::Rmdir | Call::Chdir => What::Directory,
            Call::Open if step.number(0) & libc::O_DIRECTORY as u64 != 0 => What::Directory,
            _ => What::Regular,
        };
        match step.errno() {
            None if step.call == Call::Readlink => {
                let text = step.text.clone().unwrap_or_default();
                self.state.symlink(path, target.info, &text);
            }
            None if makes => {}
            None => {
                self.state.present(path, target.info, directory);
            }
            Some(libc::ENOENT) => self.missing(path, makes),
            Some(libc::ENOTEMPTY) if step.call == Call::Rmdir || is_last => {
                self.state.filled(path);
            }
            Some(libc::ENOTDIR) if target.info.is_none() => {
                self.state.present(parent(path), None, What::Regular);
            }
            Some(libc::EEXIST) if makes => {
                self.state.present(path, target.info, What::Regular);
            }
            Some(libc::EISDIR) => {
                self.state.present(path, target.info, What::Directory);
            }
            Some(_) if target.info.is_some() => {
                self.state.present(path, target.info, directory);
            }
            Some(_) => {}
        }
    }

    fn missing(&mut self, path: &[u8], makes: bool) {
        // A call that failed to make a name shows that a directory above it is missing, unless that is known to exist.
        if !makes {
            self.state.absent(path);
        } else if self.state.is_present(parent(path)).is_none() {
            self.state.absent(parent(path));
        }
    }

    /// Records the attributes that a call shows or changes.
    fn observe_attributes(&mut self, step: &Step) {
        let target = step.targets.first();
        let file = match target.map(|target| &target.name) {
            Some(Name::Path { path, .. }) => self.state.file_of(path),
            Some(Name::Slot(_)) => self.file_of_slot(step, 0),
            None => None,
        };
        let Some(file) = file else {
            return;
        };
        let name = step.text.as_deref().unwrap_or_default();
        let result = step.result.unwrap_or(0);
        match (step.call, step.errno()) {
            (Call::Stat, None) => {
                if let Some(info) = target.and_then(|target| target.info) {
                    self.state.showed(file, info);
                }
            }
            (Call::Chmod, None) => self.state.changed_mode(file),
            (Call::Chown, None) => self.state.changed_owner(file),
            (Call::Getxattr, None) => {
                // A call without a buffer for the value returns only the value's length.
                let has_value = step.number(0) > 0;
                let hashes = step.data.as_ref().map(|data| data.hashes.as_slice());
                let buffer = match hashes {
                    Some([hash]) if has_value => self.output.find(hash),
                    _ => None,
                };
                let length = result.max(0).unsigned_abs();
                self.state.has_attribute(file, name, length, buffer);
            }
            (Call::Getxattr, Some(libc::ERANGE)) => {
                let length = step.number(0).saturating_add(1);
                self.state.has_attribute(file, name, length, None);
            }
            (Call::Setxattr, None) => {
                if step.number(0) & libc::XATTR_REPLACE as u64 != 0 {
                    self.state.has_attribute(file, name, 0, None);
                }
                self.state.changed_attribute(file, name);
            }
            (Call::Setxattr, Some(libc::EEXIST)) => {
                self.state.has_attribute(file, name, 0, None);
            }
            (Call::Removexattr, None) => {
                self.state.has_attribute(file, name, 0, None);
                self.state.changed_attribute(file, name);
            }
            _ => {}
        }
    }

    /// Records the names that a call makes, moves and removes.
    fn observe_names(&mut self, step: &Step) {
        if step.failed() {
            return;
        }
        let path = |index: usize| match step.targets.get(index).map(|target| &target.name) {
            Some(Name::Path { path, .. }) => Some(path.clone()),
            _ => None,
        };
        match (step.call, path(0), path(1)) {
            (Call::Open, Some(path), _) => self.opened(step, &path),
            (Call::Mkdir | Call::Mknod | Call::Symlink, Some(path), _) => {
                self.state.made(&path);
            }
            (Call::Unlink, Some(path), _) => self.state.removed(&path),
            (Call::Rmdir, Some(path), _) => {
                self.state.removed(&path);
                self.forget_directories(&path);
            }
            (Call::Link, from, Some(to)) => {
                let file = match from {
                    Some(from) => self.state.file_of(&from),
                    None => self.file_of_slot(step, 0),
                };
                self.state.linked(file, &to);
            }
            (Call::Rename, Some(from), Some(to)) => {
                if step.number(0) & u64::from(libc::RENAME_EXCHANGE) == 0 {
                    self.state.renamed(&from, &to);
                } else {
                    self.state.exchanged(&from, &to);
                }
                self.forget_directories(&from);
                self.forget_directories(&to);
            }
            _ => {}
        }
    }

    fn opened(&mut self, step: &Step, path: &[u8]) {
        let flags = step.number(0);
        let has = |flag: i32| flags & flag as u64 == flag as u64;
        let info = step.targets.first().and_then(|target| target.info);
        let file = if has(libc::O_TMPFILE) {
            self.state.present(path, None, What::Directory);
            None
        } else if has(libc::O_CREAT) {
            // A file that existed and is empty now is equivalent to a new one.
            let was_there = info.is_some_and(|info| info.size > 0) && !has(libc::O_EXCL);
            match self.state.is_present(path) {
                Some(true) => self.state.file_of(path),
                None if was_there => self.state.present(path, info, What::Regular),
                _ => Some(self.state.made(path)),
            }
        } else {
            self.state.file_of(path)
        };
        if let Some(file) = file.filter(|_| has(libc::O_TRUNC)) {
            self.state.written(file, Range::ALL);
        }
        let Some(slot) = step.opened else {
            return;
        };
        let description = Description {
            key: file_key(info, path),
            file,
            offset: Some(0),
            appends: has(libc::O_APPEND),
            ..Description::default()
        };
        self.slots.open(slot, path, description);
    }

    fn file_of_slot(&self, step: &Step, index: usize) -> Option<u64> {
        match step.targets.get(index)?.name {
            Name::Slot(slot) => self.slots.get(slot)?.1.file,
            Name::Path { .. } => None,
        }
    }

    /// Records the content that was read and the ranges that were written.
    fn observe_content(&mut self, step: &Step) {
        let Some(Name::Slot(slot)) = step.targets.first().map(|target| &target.name) else {
            return;
        };
        let moved = step
            .result
            .filter(|it| *it >= 0)
            .unwrap_or(0)
            .unsigned_abs();
        let Some(description) = self.slots.description_mut(*slot) else {
            return;
        };
        let file = description.file;
        let start = match step.call {
            Call::Pread | Call::Pwrite => Some(step.number(0)),
            _ => description.offset,
        };
        match step.call {
            Call::Read => description.offset = start.map(|start| start.saturating_add(moved)),
            Call::Write if description.appends => description.offset = None,
            Call::Write => description.offset = start.map(|start| start.saturating_add(moved)),
            Call::Seek if !step.failed() => description.offset = Some(moved),
            Call::Copy => description.offset = None,
            Call::Fcntl if step.number(0) == libc::F_SETFL as u64 => {
                description.appends = step.number(1) & libc::O_APPEND as u64 != 0;
            }
            _ => {}
        }
        let Some(file) = file else {
            return;
        };
        match step.call {
            Call::Read | Call::Pread => {
                let hashes = step.data.iter().flat_map(|data| &data.hashes);
                for (number, hash) in (0..).zip(hashes) {
                    if let (Some(start), Some(buffer)) = (start, self.output.find(hash)) {
                        self.state
                            .saw(file, start.saturating_add(number * CHUNK), buffer);
                    }
                }
            }
            Call::Write | Call::Pwrite => {
                let range = start.filter(|_| moved > 0);
                let range = range.map_or(Range::ALL, |start| Range::new(start, moved));
                self.state.written(file, range);
            }
            Call::Truncate | Call::Allocate => self.state.written(file, Range::ALL),
            _ => {}
        }
        if matches!(step.call, Call::Copy | Call::Clone)
            && let Some(file) = self.file_of_slot(step, 1)
        {
            self.state.written(file, Range::ALL);
        }
    }

    /// Records the descriptors and mappings that begin and end.
    fn observe_descriptors(&mut self, step: &Step) {
        let slot = step.targets.first().and_then(|target| match target.name {
            Name::Slot(slot) => Some(slot),
            Name::Path { .. } => None,
        });
        match step.call {
            Call::Close | Call::Release => {
                if let Some(slot) = slot {
                    self.slots.close(slot);
                }
            }
            Call::Dup | Call::Inherit => {
                if let (Some(from), Some(to)) = (slot, step.opened) {
                    self.slots.copy(from, to);
                }
            }
            Call::Restore => self.restored(step),
            Call::Map => {
                let file = slot.and_then(|slot| Some(self.slots.get(slot)?.1.key));
                if let (Some(mapping), Some(file)) = (step.number(4).checked_sub(1), file) {
                    self.mapped.insert(mapping as u32, file);
                }
            }
            Call::Unmap | Call::Drop => {
                self.mapped.remove(&(step.number(0) as u32));
            }
            _ => {}
        }
    }

    fn restored(&mut self, step: &Step) {
        let (Some(slot), Some(target)) = (step.opened, step.targets.first()) else {
            return;
        };
        let Name::Path { path, .. } = &target.name else {
            return;
        };
        let description = Description {
            key: file_key(target.info, path),
            file: self.state.file_of(path),
            offset: Some(step.number(1)),
            appends: step.number(0) & libc::O_APPEND as u64 != 0,
            ..Description::default()
        };
        self.slots.open(slot, path, description);
    }
}
