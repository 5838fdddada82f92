//! The initial state: the files that must exist before the replay starts, with the content that the trace's reads returned.
//!
//! The first operation on a name shows whether the name existed. From then on the name's state follows from the operations.

use std::collections::{BTreeMap, HashMap, HashSet};

use amino_schema::replay::{Attribute, Extent, Initial, MAX_NAME, MAX_VALUE, What};

use super::depend::Range;
use crate::prepare::FILLER;
use crate::source::Info;

/// Number of a file: one of the initial state, or one that the trace has made.
pub type FileId = u64;

/// A file that operations have named.
#[derive(Debug, Default)]
struct File {
    /// Its first name, if it is part of the initial state.
    initial: Option<Vec<u8>>,
    /// The ranges that were written: reads of them do not return the initial content.
    written: Vec<Range>,
    /// Whether operations have changed its permission bits, and its owner or group.
    has_new_mode: bool,
    has_new_owner: bool,
    /// Extended attributes that operations have changed.
    new_attributes: HashSet<Vec<u8>>,
}

/// The initial state, as far as it is known.
#[derive(Debug, Default)]
pub struct State {
    /// Whether names exist at this point of the trace, and as which file.
    names: BTreeMap<Vec<u8>, Option<FileId>>,
    files: HashMap<FileId, File>,
    initial: BTreeMap<Vec<u8>, Initial>,
    /// Initial files with several names.
    inodes: HashMap<(u64, u64), Vec<u8>>,
    /// The further names of these files, each with the first name.
    links: BTreeMap<Vec<u8>, Vec<u8>>,
    next: FileId,
}

/// Maximum number of ranges of a file that are kept; with more of them, the whole file counts as written.
const MAX_WRITTEN: usize = 256;
/// Maximum number of extended attributes of a file that are kept.
const MAX_ATTRIBUTES: usize = 1024;

impl State {
    fn make(&mut self, initial: Option<Vec<u8>>) -> FileId {
        self.next += 1;
        let file = File {
            initial,
            ..File::default()
        };
        self.files.insert(self.next, file);
        self.next
    }

    /// Records that the directories above `path` exist.
    fn parents(&mut self, path: &[u8]) {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let ends: Vec<usize> = slashes.map(|(at, _)| at).collect();
        for end in ends {
            let above = path.get(..end).unwrap_or_default();
            if !self.names.contains_key(above) {
                self.add(above, What::Directory, None);
            }
        }
    }

    fn add(&mut self, path: &[u8], what: What, info: Option<Info>) -> FileId {
        let entry = Initial {
            path: path.to_vec(),
            size: match what {
                What::Regular | What::Symlink(_) => info.map_or(0, |info| info.size),
                _ => 0,
            },
            what,
            mode: info.map(|info| info.mode & 0o7777),
            owner: info.and_then(|info| info.owner),
            extents: Vec::new(),
            attributes: Vec::new(),
        };
        self.initial.insert(path.to_vec(), entry);
        let file = self.make(Some(path.to_vec()));
        self.names.insert(path.to_vec(), Some(file));
        file
    }

    /// Records that `path` exists. `what` is its type where the trace does not have it.
    pub fn present(&mut self, path: &[u8], info: Option<Info>, what: What) -> Option<FileId> {
        if path.is_empty() {
            return None;
        }
        match self.names.get(path) {
            Some(Some(file)) => return Some(*file),
            Some(None) => {
                // A process that was not traced has created the file.
                let file = self.make(None);
                self.names.insert(path.to_vec(), Some(file));
                return Some(file);
            }
            None => {}
        }
        let what = match info.map(|info| info.kind()) {
            None => what,
            Some(libc::S_IFREG) => What::Regular,
            Some(libc::S_IFDIR) => What::Directory,
            Some(libc::S_IFLNK) => match what {
                What::Symlink(target) => What::Symlink(target),
                _ => What::Symlink(Vec::new()),
            },
            Some(libc::S_IFIFO) => What::Fifo,
            Some(_) => return None,
        };
        self.parents(path);
        if let Some(info) = info.filter(|info| info.links > 1 && what == What::Regular) {
            let key = (info.device, info.inode);
            if let Some(first) = self.inodes.get(&key).cloned() {
                let file = self.names.get(&first).copied().flatten();
                self.links.insert(path.to_vec(), first);
                self.names.insert(path.to_vec(), file);
                return file;
            }
            self.inodes.insert(key, path.to_vec());
        }
        Some(self.add(path, what, info))
    }

    /// Records that `path` is a symbolic link with this target.
    pub fn symlink(&mut self, path: &[u8], info: Option<Info>, target: &[u8]) {
        self.present(path, info, What::Symlink(target.to_vec()));
        if let Some(entry) = self.initial.get_mut(path)
            && matches!(&entry.what, What::Symlink(known) if known.is_empty())
        {
            entry.what = What::Symlink(target.to_vec());
        }
    }

    /// Records that `path` does not exist.
    pub fn absent(&mut self, path: &[u8]) {
        if !path.is_empty() && !self.names.contains_key(path) {
            self.names.insert(path.to_vec(), None);
        }
    }

    /// Whether `path` exists; `None` if that is not known.
    pub fn is_present(&self, path: &[u8]) -> Option<bool> {
        self.names.get(path).map(Option::is_some)
    }

    /// Records that a directory is not empty.
    pub fn filled(&mut self, path: &[u8]) {
        self.present(path, None, What::Directory);
        let below = [path, b"/"].concat();
        let within = self.names.range(below.clone()..);
        let mut within = within.take_while(|(name, _)| name.starts_with(&below));
        let has_entry = within.any(|(_, file)| file.is_some());
        if !has_entry && self.initial.contains_key(path) {
            self.present(&[&below, FILLER].concat(), None, What::Regular);
        }
    }

    /// Records that the trace makes `path`.
    pub fn made(&mut self, path: &[u8]) -> FileId {
        self.parents(path);
        let file = self.make(None);
        self.names.insert(path.to_vec(), Some(file));
        file
    }

    /// Records that the trace makes another name of a file.
    pub fn linked(&mut self, from: Option<FileId>, path: &[u8]) {
        self.parents(path);
        let file = from.unwrap_or_else(|| self.make(None));
        self.names.insert(path.to_vec(), Some(file));
    }

    /// Records that the trace removes `path`.
    pub fn removed(&mut self, path: &[u8]) {
        self.parents(path);
        self.names.insert(path.to_vec(), None);
    }

    /// Records that the trace renames `from`, with everything below it.
    pub fn renamed(&mut self, from: &[u8], to: &[u8]) {
        self.parents(to);
        let below = [from, b"/"].concat();
        let within = self.names.range(below.clone()..);
        let within = within.take_while(|(name, _)| name.starts_with(&below));
        let moved: Vec<_> = within.map(|(name, file)| (name.clone(), *file)).collect();
        for (name, file) in moved {
            self.names.insert(name.clone(), None);
            let rest = name.get(from.len()..).unwrap_or_default();
            self.names.insert([to, rest].concat(), file);
        }
        let file = self.names.insert(from.to_vec(), None).flatten();
        self.names.insert(to.to_vec(), file);
    }

    /// Records that the trace exchanges two names.
    pub fn exchanged(&mut self, one: &[u8], other: &[u8]) {
        let (first, second) = (
            self.names.get(one).copied().flatten(),
            self.names.get(other).copied().flatten(),
        );
        self.names.insert(one.to_vec(), second);
        self.names.insert(other.to_vec(), first);
    }

    /// Records that bytes of a file were changed, so that they are not the initial ones.
    pub fn written(&mut self, file: FileId, range: Range) {
        let Some(file) = self
            .files
            .get_mut(&file)
            .filter(|file| file.initial.is_some())
        else {
            return;
        };
        if let Some(last) = file.written.last_mut()
            && last.end == range.start
        {
            last.end = range.end;
            return;
        }
        if file.written.len() >= MAX_WRITTEN {
            file.written = vec![Range::ALL];
        } else {
            file.written.push(range);
        }
    }

    /// Records that a read returned this content. It is part of the initial state where nothing was written before.
    pub fn saw(&mut self, file: FileId, at: u64, buffer: (u64, u32, u32)) {
        let range = Range::new(at, buffer.1.into());
        let known = self.files.get(&file);
        let Some(path) = known.and_then(|file| {
            let is_old = !file.written.iter().any(|it| it.overlaps(range));
            file.initial.as_ref().filter(|_| is_old)
        }) else {
            return;
        };
        if let Some(entry) = self.initial.get_mut(path) {
            let is_new = !entry
                .extents
                .iter()
                .any(|extent| extent.at == at && extent.buffer.1 >= buffer.1);
            if is_new {
                entry.extents.push(Extent { at, buffer });
                entry.size = entry.size.max(range.end);
            }
        }
    }

    /// The entry of an initial file.
    fn entry(&mut self, file: FileId) -> Option<(&mut File, &mut Initial)> {
        let file = self.files.get_mut(&file)?;
        let entry = self.initial.get_mut(file.initial.as_ref()?)?;
        Some((file, entry))
    }

    /// Records that a call has shown these attributes of a file.
    pub fn showed(&mut self, file: FileId, info: Info) {
        let Some((file, entry)) = self.entry(file) else {
            return;
        };
        if !file.has_new_mode && !matches!(entry.what, What::Symlink(_)) {
            entry.mode.get_or_insert(info.mode & 0o7777);
        }
        if !file.has_new_owner && entry.owner.is_none() {
            entry.owner = info.owner;
        }
    }

    /// Records that the trace changes permission bits.
    pub fn changed_mode(&mut self, file: FileId) {
        if let Some(file) = self.files.get_mut(&file) {
            file.has_new_mode = true;
        }
    }

    /// Records that the trace changes owner or group, which changes the permission bits, too.
    pub fn changed_owner(&mut self, file: FileId) {
        if let Some(file) = self.files.get_mut(&file) {
            file.has_new_owner = true;
            file.has_new_mode = true;
        }
    }

    /// Records that a file has an extended attribute of `length` bytes, with this value where it is known. The attribute is part of the
    /// initial state unless the trace has changed it before.
    pub fn has_attribute(
        &mut self,
        file: FileId,
        name: &[u8],
        length: u64,
        buffer: Option<(u64, u32, u32)>,
    ) {
        let is_sound = (1..=MAX_NAME).contains(&name.len()) && !name.contains(&0);
        let Some((file, entry)) = self.entry(file).filter(|_| is_sound) else {
            return;
        };
        if file.new_attributes.contains(name) {
            return;
        }
        let attribute = Attribute {
            name: name.to_vec(),
            length: length.min(MAX_VALUE.into()) as u32,
            buffer: buffer.filter(|buffer| buffer.1 <= MAX_VALUE),
        };
        match entry.attributes.iter_mut().find(|it| it.name == name) {
            Some(known) if known.buffer.is_none() => *known = attribute,
            Some(_) => {}
            None => {
                if entry.attributes.len() < MAX_ATTRIBUTES {
                    entry.attributes.push(attribute);
                }
            }
        }
    }

    /// Records that the trace sets or removes an extended attribute.
    pub fn changed_attribute(&mut self, file: FileId, name: &[u8]) {
        if let Some(file) = self.files.get_mut(&file)
            && file.new_attributes.len() < MAX_ATTRIBUTES
        {
            file.new_attributes.insert(name.to_vec());
        }
    }

    /// The file that `path` names.
    pub fn file_of(&self, path: &[u8]) -> Option<FileId> {
        self.names.get(path).copied().flatten()
    }

    /// The initial files, parents before what is in them, and further names of files at the end.
    pub fn finish(self) -> Vec<Initial> {
        let mut files: Vec<Initial> = self.initial.into_values().collect();
        let sorted = files.len();
        for (path, first) in self.links {
            let sorted = files.get(..sorted).unwrap_or_default();
            let Ok(number) = sorted.binary_search_by(|it| it.path.cmp(&first)) else {
                continue;
            };
            files.push(Initial {
                path,
                what: What::Link(number as u32),
                mode: None,
                owner: None,
                size: 0,
                extents: Vec::new(),
                attributes: Vec::new(),
            });
        }
        files
    }
}
