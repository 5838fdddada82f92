//! Checks a whole volume: every name, every block, every link and attribute, and whether the files of the format belong to
//! something.

use std::collections::HashSet;
use std::ops::Range;

use goanna_vfs::{Caller, Errno, FileKind, Node};

use super::lower::LowerFile;
use super::removed::TEMPORARY;
use super::state::{PAGE, encrypted_blocks, plain_size, read_id};
use super::{AesFs, decrypt_read};
use crate::error::{Damage, Failure};
use crate::format::content::FileId;
use crate::format::names::{LONG_SUFFIX, LowerName};

/// An error that was found in a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The plain path from the volume's root; names that do not decrypt appear as they are stored.
    pub path: Vec<u8>,
    /// The kind of the error.
    pub problem: Problem,
}

/// The kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A part cannot be decrypted.
    #[error("{0}")]
    Damaged(#[from] Damage),
    /// The host refuses to read it.
    #[error("cannot be read: {}", .0.desc())]
    Unreadable(Errno),
    /// A file with a long name, without an entry of that name.
    #[error("a long name without an entry, left over; it can be removed")]
    NameWithoutEntry,
    /// The remains of an interrupted operation.
    #[error("left over from an interrupted operation; it can be removed")]
    LeftOver,
}

/// Counts of the parts that were checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checked {
    /// Directories, with the root.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Symbolic links.
    pub links: u64,
    /// Other entries.
    pub special: u64,
    /// Plain bytes of the files.
    pub bytes: u64,
    /// Number of errors found.
    pub findings: u64,
}

struct Check<'a> {
    fs: &'a AesFs,
    caller: Caller,
    found: &'a mut dyn FnMut(Finding),
    checked: Checked,
    /// Files with several names that were checked.
    seen: HashSet<u64>,
}

impl AesFs {
    /// Checks everything that `caller` can read. Passes each finding to `found`.
    pub fn check(&self, caller: &Caller, found: &mut dyn FnMut(Finding)) -> Checked {
        let mut check = Check {
            fs: self,
            caller: caller.clone(),
            found,
            checked: Checked::default(),
            seen: HashSet::new(),
        };
        let mut pending = vec![(self.root.clone(), Vec::new())];
        while let Some((dir, path)) = pending.pop() {
            check.checked.directories += 1;
            if let Err(failure) = check.directory(&dir, &path, &mut pending) {
                check.report(path, failure);
            }
        }
        check.checked
    }
}

impl Check<'_> {
    fn report(&mut self, path: Vec<u8>, failure: Failure) {
        let problem = match failure {
            Failure::Fs(error) => Problem::Unreadable(error.errno().unwrap_or(Errno::EAGAIN)),
            Failure::Damage(damage) => Problem::Damaged(damage),
        };
        self.problem(path, problem);
    }

    fn problem(&mut self, path: Vec<u8>, problem: Problem) {
        self.checked.findings += 1;
        (self.found)(Finding { path, problem });
    }

    fn directory(
        &mut self,
        dir: &Node,
        path: &[u8],
        pending: &mut Vec<(Node, Vec<u8>)>,
    ) -> Result<(), Failure> {
        let fs = self.fs;
        let iv = fs.dirs.iv(&self.caller, dir);
        let mut entries = Vec::new();
        fs.lower.readdir(&self.caller, dir, 0, &mut |entry| {
            entries.push(entry.name.to_vec());
            true
        })?;
        self.attributes(dir, path);
        iv?;
        let all: HashSet<&[u8]> = entries.iter().map(Vec::as_slice).collect();
        let at_root = dir.ino() == fs.root.ino();
        for entry in &entries {
            let stored = join(path, entry);
            if entry.starts_with(TEMPORARY) && fs.dirs.cipher().kind().has_dir_iv() {
                self.problem(stored, Problem::LeftOver);
                continue;
            }
            if fs.dirs.cipher().classify(entry, at_root) == LowerName::Internal {
                if let Some(long) = entry.strip_suffix(LONG_SUFFIX)
                    && !all.contains(long)
                {
                    self.problem(stored, Problem::NameWithoutEntry);
                }
                continue;
            }
            let name = match fs.dirs.decrypt(&self.caller, dir, entry) {
                Ok(Some(name)) => join(path, &name),
                Ok(None) => continue,
                Err(failure) => {
                    self.report(stored, failure);
                    continue;
                }
            };
            match fs.lower.lookup(&self.caller, dir, entry) {
                Ok(node) if node.is_dir() => pending.push((node, name)),
                Ok(node) => self.entry(&node, name),
                Err(errno) => self.report(name, errno.into()),
            }
        }
        Ok(())
    }

    fn entry(&mut self, node: &Node, path: Vec<u8>) {
        let attr = match self.fs.lower.getattr(&self.caller, node) {
            Ok(attr) => attr,
            Err(errno) => return self.report(path, errno.into()),
        };
        match node.kind() {
            FileKind::Regular => self.checked.files += 1,
            FileKind::Symlink => self.checked.links += 1,
            _ => self.checked.special += 1,
        }
        if attr.nlink > 1 && !self.seen.insert(node.ino()) {
            return;
        }
        self.attributes(node, &path);
        match node.kind() {
            FileKind::Regular => self.content(node, &path, attr.size),
            FileKind::Symlink => {
                let text = self.fs.lower.readlink(&self.caller, node);
                let checked = text.map_err(Failure::Fs).and_then(|text| {
                    let cipher = self.fs.files.cipher();
                    Ok(self.fs.dirs.cipher().decrypt_link(&text, cipher)?)
                });
                if let Err(failure) = checked {
                    self.report(path, failure);
                }
            }
            _ => {}
        }
    }

    /// Every block of a file; damaged ones do not end the check.
    fn content(&mut self, node: &Node, path: &[u8], encrypted: u64) {
        let cipher = self.fs.files.cipher();
        if encrypted == 0 {
            return;
        }
        let opened = LowerFile::open(&self.fs.lower, &self.caller, node, libc::O_RDONLY);
        let opened = opened.map_err(Failure::Fs).and_then(|lower| {
            let id = read_id(&lower)?;
            Ok((lower, id))
        });
        let (lower, id) = match opened {
            Ok(opened) => opened,
            Err(failure) => return self.report(path.to_vec(), failure),
        };
        let size = cipher.cipher().plain_size(encrypted);
        if let Err(failure) = plain_size(cipher.cipher(), encrypted) {
            self.report(path.to_vec(), failure);
        }
        self.checked.bytes += size;
        let end = size.div_ceil(PAGE);
        let all = |_| vec![(0, encrypted)];
        let mut next = 0;
        for (start, len) in lower.data_segments(encrypted).unwrap_or_else(all) {
            let blocks = encrypted_blocks(cipher.cipher(), start, start + len);
            self.blocks(
                &lower,
                &id,
                size,
                blocks.start.max(next)..blocks.end.min(end),
                path,
            );
            next = next.max(blocks.end);
        }
        if !size.is_multiple_of(PAGE) && next < end {
            // Only a whole block can be a hole, so this one is refused.
            self.blocks(&lower, &id, size, end - 1..end, path);
        }
    }

    /// Blocks of a file of `size` plain bytes.
    fn blocks(
        &mut self,
        lower: &LowerFile,
        id: &FileId,
        size: u64,
        blocks: Range<u64>,
        path: &[u8],
    ) {
        let cipher = self.fs.files.cipher();
        let read = |offset, buf: &mut [u8]| lower.read_at(offset, buf);
        let mut first = blocks.start;
        while first < blocks.end {
            let end = blocks.end.min(first + 64);
            if decrypt_read(cipher, id, size, first..end, read).is_err() {
                for block in first..end {
                    let checked = decrypt_read(cipher, id, size, block..block + 1, read);
                    if let Err(failure) = checked {
                        self.report(path.to_vec(), failure);
                    }
                }
            }
            first = end;
        }
    }

    fn attributes(&mut self, node: &Node, path: &[u8]) {
        let fs = self.fs;
        let names = fs.lower.listxattr(&self.caller, node).unwrap_or_default();
        for lower in names {
            let checked = match fs.dirs.cipher().decrypt_xattr(&lower) {
                None => continue,
                Some(Err(damage)) => Err(damage),
                // Access control lists are not encrypted.
                Some(Ok(name)) if name == lower => continue,
                Some(Ok(_)) => match fs.lower.getxattr(&self.caller, node, &lower) {
                    Ok(value) => self.fs.decrypt_value(&value).map(drop),
                    Err(_) => continue,
                },
            };
            if let Err(damage) = checked {
                self.report(path.to_vec(), damage.into());
            }
        }
    }
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        return name.to_vec();
    }
    [path, b"/", name].concat()
}
