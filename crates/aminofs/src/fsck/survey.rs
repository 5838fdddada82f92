//! The survey: the content of a store, as far as the constraints need it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Bound, ControlFlow};

use amino_schema::{
    DataRecord, DecodeError, FileKind, Meta, OrphanRecord, ParsedKey, PathRecord, Super, record,
};
use amino_txn::Records;
use bytes::Bytes;

use super::{Constraint, Finding};
use crate::Error;

/// How many records are read between two calls of the progress function.
const PROGRESS_EVERY: u64 = 10_000;

/// A name: the directory's inode number and the name's bytes.
pub(super) type Name = (u64, Vec<u8>);

/// What is known of one inode number.
#[derive(Default)]
pub struct File {
    /// Names that refer to it, with whether the metadata is stored there.
    pub(super) names: Vec<(Name, FileKind, bool)>,
    /// Entries of the link index.
    pub(super) links: BTreeSet<Name>,
    /// Copies of its metadata: at most one is right.
    pub(super) metas: u32,
    pub(super) nlink: u32,
    pub(super) size: u64,
    pub(super) mode: u32,
    pub(super) inline_len: Option<usize>,
    /// There is a data record.
    pub(super) data: bool,
    /// There is an orphan record.
    pub(super) orphan: bool,
}

impl File {
    pub(super) fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }

    pub(super) fn is_dir(&self) -> bool {
        self.metas > 0 && self.kind() == Some(FileKind::Directory)
    }

    pub(super) fn content_len(&self) -> u64 {
        match self.kind() {
            Some(FileKind::Regular) => self.size,
            _ => 0,
        }
    }

    fn meta(&mut self, meta: &Meta) {
        self.metas += 1;
        self.nlink = meta.nlink;
        self.size = meta.size;
        self.mode = meta.mode;
        self.inline_len = meta.inline.as_ref().map(Bytes::len);
    }
}

/// The pages of one inode number.
#[derive(Default)]
pub(super) struct Pages {
    pub(super) count: u64,
    pub(super) last: u64,
    pub(super) last_len: u64,
}

/// The content of a store.
#[derive(Default)]
pub struct Survey {
    pub(super) records: u64,
    pub(super) page_size: u64,
    pub(super) next_ino: u64,
    pub(super) files: BTreeMap<u64, File>,
    pub(super) pages: BTreeMap<u64, Pages>,
    /// Inode numbers with extended attributes, and one attribute of each.
    pub(super) xattrs: BTreeMap<u64, Vec<u8>>,
    /// Entries and subdirectories of each directory.
    pub(super) counts: HashMap<u64, (u64, u32)>,
    pub(super) undecodable: Vec<Finding>,
}

impl Survey {
    /// Reads all records.
    pub fn read(records: &dyn Records, progress: &mut dyn FnMut(u64)) -> Result<Self, Error> {
        let mut survey = Self {
            page_size: u64::from(amino_schema::PAGE_SIZE),
            ..Self::default()
        };
        records.scan(Bound::Unbounded, b"", &mut |raw, value| {
            survey.records += 1;
            if survey.records.is_multiple_of(PROGRESS_EVERY) {
                progress(survey.records);
            }
            if let Err(error) = survey.take(raw, value) {
                let finding = Finding {
                    constraint: Constraint::Records,
                    key: raw.to_vec(),
                    ino: None,
                    path: None,
                    what: error.to_string(),
                };
                survey.undecodable.push(finding);
            }
            ControlFlow::Continue(())
        })?;
        progress(survey.records);
        Ok(survey)
    }

    fn take(&mut self, raw: &[u8], value: &Bytes) -> Result<(), DecodeError> {
        match ParsedKey::parse(raw)? {
            ParsedKey::Path { parent, name } => self.take_path(parent, name, value)?,
            ParsedKey::Data { ino } => {
                let record = DataRecord::decode(value)?;
                let file = self.files.entry(ino).or_default();
                file.data = true;
                file.meta(&record.meta);
            }
            ParsedKey::Orphan { ino } => {
                let record = OrphanRecord::decode(value)?;
                let file = self.files.entry(ino).or_default();
                file.orphan = true;
                file.meta(&record.meta);
            }
            ParsedKey::Link { ino, parent, name } => {
                let file = self.files.entry(ino).or_default();
                file.links.insert((parent, name.to_vec()));
            }
            ParsedKey::Page { ino, index } => {
                let content = record::decode_page(value, self.page_size as u32)?;
                let pages = self.pages.entry(ino).or_default();
                // Pages come in ascending order.
                pages.count += 1;
                pages.last = index;
                pages.last_len = content.len() as u64;
            }
            ParsedKey::Xattr { ino, name } => {
                record::decode_xattr(value)?;
                self.xattrs.insert(ino, name.to_vec());
            }
            ParsedKey::Super => self.next_ino = Super::decode(value)?.next_ino,
        }
        Ok(())
    }

    fn take_path(&mut self, parent: u64, name: &[u8], value: &Bytes) -> Result<(), DecodeError> {
        let record = PathRecord::decode(value)?;
        let (entries, subdirs) = self.counts.entry(parent).or_default();
        *entries += 1;
        *subdirs += u32::from(record.kind == FileKind::Directory);
        let file = self.files.entry(record.ino).or_default();
        if let Some(meta) = &record.meta {
            file.meta(meta);
        }
        let name = (parent, name.to_vec());
        file.names.push((name, record.kind, record.meta.is_some()));
        Ok(())
    }

    /// A path of the inode; `None` when it has no name or its names lead nowhere.
    pub(super) fn path(&self, ino: u64) -> Option<Vec<u8>> {
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut at = ino;
        while at != amino_schema::ROOT_INO {
            let ((parent, name), _, _) = self.files.get(&at)?.names.first()?;
            // More steps than files: a cycle.
            if parts.len() > self.files.len() {
                return None;
            }
            parts.push(name);
            at = *parent;
        }
        parts.reverse();
        Some(parts.join(&b'/'))
    }
}
