//! An entry: the content of one name's records, and the path by which it was reached.

use std::ops::Deref;
use std::sync::Arc;

use goanna_vfs::{FileKind, Stamp};

use crate::format::attributes::{Attributes, Place, Protection};
use crate::format::record::Section;
use crate::format::zisofs::Zisofs;

/// One name of a directory, with everything that its records contain.
#[derive(Debug, Clone)]
pub struct Meta {
    /// The name in the name space in use; empty for the root.
    pub name: Box<[u8]>,
    /// A number that stays the same as long as the image does: the place of the record in bytes, for a directory that of
    /// its extent. Hard links share one: 2^48 and the serial number that Rock Ridge gives them, else the place of the
    /// content.
    pub ino: u64,
    /// Offset of the (first) directory record, in bytes.
    pub offset: u64,
    /// Its kind.
    pub kind: FileKind,
    /// Type and permission bits. Without Rock Ridge those of an extended attribute record, else 0555: programs of such an
    /// image can be executed, as under Linux.
    pub mode: u32,
    /// Number of links, as recorded; 1 where it is not recorded.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as `makedev(3)` encodes it.
    pub rdev: u64,
    /// Bytes of content; of a compressed file those it decompresses to, of a link those of its target.
    pub size: u64,
    /// Last change of the content.
    pub mtime: Stamp,
    /// Last access.
    pub atime: Stamp,
    /// Last change of the attributes.
    pub ctime: Stamp,
    /// Creation.
    pub btime: Option<Stamp>,
    /// Marked as hidden. It is shown nevertheless, as under Linux.
    pub hidden: bool,
    pub(crate) sections: Sections,
    /// An extended attribute record that counts, read when the name is looked up.
    pub(crate) attributes: Option<Place>,
    pub(crate) zisofs: Option<Zisofs>,
    /// The reason why the content cannot be read.
    pub(crate) refusal: Option<&'static str>,
    /// Only the name and the fields of the directory record itself are known.
    pub(crate) is_damaged: bool,
}

impl Meta {
    /// Replaces the default attributes by those of an extended attribute record.
    pub(crate) fn apply(&mut self, attributes: Attributes) {
        if let Some(Protection { uid, gid, mode }) = attributes.protection {
            self.uid = uid.into();
            self.gid = gid.into();
            self.mode = self.kind.mode_bits() | mode;
        }
        self.btime = attributes.created;
        if let Some(modified) = attributes.modified {
            self.mtime = modified;
            self.atime = modified;
        }
    }
}

/// The pieces of a file, nearly always one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Sections {
    None,
    One(Section),
    Many(Vec<Section>),
}

impl Sections {
    pub fn as_slice(&self) -> &[Section] {
        match self {
            Self::None => &[],
            Self::One(section) => std::slice::from_ref(section),
            Self::Many(sections) => sections,
        }
    }

    pub fn push(&mut self, section: Section) {
        *self = match std::mem::replace(self, Self::None) {
            Self::None => Self::One(section),
            Self::One(first) => Self::Many(vec![first, section]),
            Self::Many(mut sections) => {
                sections.push(section);
                Self::Many(sections)
            }
        };
    }

    /// Bytes in all.
    pub fn len(&self) -> u64 {
        let lens = self.as_slice().iter().map(|section| u64::from(section.len));
        lens.fold(0, u64::saturating_add)
    }
}

impl Meta {
    /// The start of the content, or of the directory; `None` when there is none.
    pub(crate) fn start(&self, block_size: u32) -> Option<u64> {
        let section = self.sections.as_slice().first()?;
        Some(section.start(block_size))
    }

    /// Bytes this occupies in a cache.
    pub(crate) fn cost(&self) -> usize {
        let sections = match &self.sections {
            Sections::Many(sections) => sections.capacity() * size_of::<Section>(),
            _ => 0,
        };
        // The counts of its Arc, its place in two vectors, and the overhead of allocators.
        size_of::<Self>() + self.name.len() + sections + 64
    }

    /// Whether the content is stored compressed (zisofs).
    pub fn is_compressed(&self) -> bool {
        self.zisofs.is_some()
    }
}

/// A name and the directories through which it was reached.
#[derive(Debug)]
pub struct Entry {
    meta: Arc<Meta>,
    parent: Option<Arc<Entry>>,
    depth: usize,
}

impl Deref for Entry {
    type Target = Meta;

    fn deref(&self) -> &Meta {
        &self.meta
    }
}

impl Entry {
    pub(crate) fn root(meta: Arc<Meta>) -> Arc<Self> {
        Arc::new(Self {
            meta,
            parent: None,
            depth: 0,
        })
    }

    pub(crate) fn child(parent: &Arc<Self>, meta: Arc<Meta>) -> Arc<Self> {
        Arc::new(Self {
            meta,
            parent: Some(Arc::clone(parent)),
            depth: parent.depth + 1,
        })
    }

    /// The directory it was reached from; `None` for the root.
    pub fn parent(&self) -> Option<&Arc<Self>> {
        self.parent.as_ref()
    }

    /// Directories above it.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// The directories above it, the nearest first.
    pub(crate) fn ancestors(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(self.parent.as_deref(), |entry| entry.parent.as_deref())
    }

    /// Its path from the root, without a leading slash; empty for the root.
    pub fn path(&self) -> Vec<u8> {
        let mut names: Vec<&[u8]> = self.ancestors().map(|entry| &*entry.name).collect();
        // The root has no name of its own.
        names.pop();
        names.reverse();
        if self.parent.is_some() {
            names.push(&self.name);
        }
        names.join(&b'/')
    }
}
