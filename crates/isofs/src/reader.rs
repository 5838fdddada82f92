//! Directory records made into names with attributes, in the chosen name space.

use std::sync::Arc;

use goanna_vfs::{Errno, FileKind};

use crate::entry::{Meta, Sections};
use crate::format::attributes::Place;
use crate::format::fields::Fields;
use crate::format::names;
use crate::format::record::{DirRecord, Section, flags};
use crate::format::rockridge::Rock;
use crate::format::susp::{Continuations, Protocol};
use crate::format::volume::Volume;
use crate::source::Image;
use crate::{Error, Namespace, Record, Result};

/// Longest directory, in bytes of the image: some 700,000 names with Rock Ridge.
const MAX_DIRECTORY: u64 = 128 << 20;

/// Maximum memory, in bytes, that the names of one directory may need.
const MAX_LISTING: usize = 512 << 20;

/// Sections of one file: at nearly 4 GiB each, 64 TiB.
const MAX_SECTIONS: usize = 1 << 14;

/// Longest directory record.
const RECORD: u64 = 255;

/// The set-up for reading one tree of an image.
pub(crate) struct Reader {
    pub image: Image,
    pub volume: Volume,
    pub namespace: Namespace,
    /// For Rock Ridge.
    pub protocol: Protocol,
}

/// A directory's names, in the order of their records.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub names: Vec<Arc<Meta>>,
    /// Indices into `names`, sorted by name.
    by_name: Vec<u32>,
    /// Bytes of memory.
    pub cost: usize,
}

impl Listing {
    pub fn get(&self, name: &[u8]) -> Option<&Arc<Meta>> {
        let key = |index: &u32| self.names.get(*index as usize).map(|meta| &*meta.name);
        let at = self
            .by_name
            .binary_search_by(|index| key(index).cmp(&Some(name)))
            .ok()?;
        self.names.get(*self.by_name.get(at)? as usize)
    }

    /// Sorts the names, and keeps only one of equal ones: the first sound one, otherwise the first. Equal names are versions
    /// of a plain name, or damage.
    fn finish(mut self) -> Self {
        let order = |names: &[Arc<Meta>]| {
            let mut order: Vec<u32> = (0..names.len() as u32).collect();
            order.sort_by(|a, b| {
                let key = |index: &u32| {
                    let meta = names.get(*index as usize)?;
                    Some((&meta.name, meta.is_damaged))
                };
                key(a).cmp(&key(b))
            });
            order
        };
        let sorted = order(&self.names);
        let name = |index: &u32| self.names.get(*index as usize).map(|meta| &meta.name);
        let mut extra: Vec<u32> = sorted
            .windows(2)
            .filter_map(|pair| match pair {
                [a, b] if name(a) == name(b) => Some(*b),
                _ => None,
            })
            .collect();
        self.by_name = sorted;
        if !extra.is_empty() {
            extra.sort_unstable();
            let mut index = 0;
            self.names.retain(|_| {
                index += 1;
                extra.binary_search(&(index - 1)).is_err()
            });
            self.by_name = order(&self.names);
        }
        self
    }
}

/// A record with the fields of its System Use area.
struct Parsed<'a> {
    record: DirRecord<'a>,
    rock: Rock,
}

/// Whether the tree of `volume` has Rock Ridge attributes: how its fields are found, and the extension's identifier.
pub(crate) fn detect_rock_ridge(
    image: &Image,
    volume: &Volume,
) -> Result<Option<(Protocol, String)>> {
    let bytes = dot_bytes(image, volume.root_start())?;
    let dot = DirRecord::parse(bytes.fields())?;
    let area = dot.system_use();
    let Some(protocol) = Protocol::detect(area)? else {
        return Ok(None);
    };
    let mut rock = Rock::default();
    // The root's own area is not subject to the skipping it asks for, but XA data may come before SP.
    let at = if area.bytes.starts_with(b"SP") { 0 } else { 14 };
    let area = Fields {
        bytes: area.bytes.get(at..).unwrap_or_default(),
        offset: area.offset + at as u64,
        ..area
    };
    Continuations::new(image, volume.block_size, 0).fields(area, &mut |field| rock.add(field))?;
    let extension = rock.extension.unwrap_or_default();
    Ok((rock.seen || !extension.is_empty()).then_some((protocol, extension)))
}

/// The bytes of a directory record, and perhaps more.
struct RecordBytes {
    bytes: Vec<u8>,
    offset: u64,
}

impl RecordBytes {
    fn fields(&self) -> Fields<'_> {
        Fields::new(Record::DirectoryRecord, self.offset, &self.bytes)
    }
}

/// The start of a directory's extent.
fn dot_bytes(image: &Image, offset: u64) -> Result<RecordBytes> {
    let len = RECORD.min(image.size().saturating_sub(offset)).max(34);
    let bytes = image.read(Record::Directory, offset, len)?;
    let dot = RecordBytes { bytes, offset };
    if !DirRecord::parse(dot.fields())?.is_dot() {
        let why = "it does not begin with its own record";
        return Err(Error::damaged(Record::Directory, offset, why));
    }
    Ok(dot)
}

impl Reader {
    fn block_size(&self) -> u32 {
        self.volume.block_size
    }

    fn continuations(&self, len: u64) -> Continuations<'_> {
        Continuations::new(&self.image, self.block_size(), len)
    }

    /// The root directory.
    pub fn root(&self) -> Result<Meta> {
        self.directory(self.volume.root_start(), &mut self.continuations(0))
    }

    /// A directory whose attributes are in its own first record, at `offset`.
    fn directory(&self, offset: u64, continuations: &mut Continuations<'_>) -> Result<Meta> {
        let bytes = dot_bytes(&self.image, offset)?;
        let record = DirRecord::parse(bytes.fields())?;
        let mut rock = Rock::default();
        self.rock(&record, continuations, &mut rock)?;
        let mut meta = self.meta(&Parsed { record, rock })?;
        if meta.kind != FileKind::Directory {
            return Err(record
                .fields
                .damaged("its own record is not that of a directory"));
        }
        // The caller knows its position; the record may be a copy.
        meta.ino = offset;
        meta.sections = Sections::One(Section {
            block: u32::try_from(offset / u64::from(self.block_size())).unwrap_or(u32::MAX),
            attributes: 0,
            len: record.section.len,
        });
        Ok(meta)
    }

    /// Adds the fields of the record to `rock`, up to the first damaged one.
    fn rock(
        &self,
        record: &DirRecord<'_>,
        continuations: &mut Continuations<'_>,
        rock: &mut Rock,
    ) -> Result<()> {
        if self.namespace == Namespace::RockRidge {
            let area = record.system_use();
            let skip = if area.bytes.starts_with(b"SP\x07\x01") {
                0
            } else {
                self.protocol.skip
            };
            let area = Fields {
                bytes: area.bytes.get(skip..).unwrap_or_default(),
                offset: area.offset + skip as u64,
                ..area
            };
            continuations.fields(area, &mut |field| rock.add(field))?;
        }
        Ok(())
    }

    /// All names of the directory `dir`.
    pub fn list(&self, dir: &Meta) -> Result<Listing> {
        if dir.kind != FileKind::Directory {
            return Err(Error::Kind(Errno::ENOTDIR));
        }
        let start = dir.start(self.block_size()).unwrap_or_default();
        let len = dir.sections.len();
        if len > MAX_DIRECTORY {
            let why = format!("{len} bytes long; at most {MAX_DIRECTORY} are read");
            return Err(Error::damaged(Record::Directory, start, why));
        }
        let mut builder = Builder {
            reader: self,
            continuations: self.continuations(len),
            listing: Listing::default(),
            open: None,
            first: true,
        };
        for section in dir.sections.as_slice() {
            let offset = section.start(self.block_size());
            let bytes = self
                .image
                .read(Record::Directory, offset, section.len.into())?;
            builder.extent(offset, &bytes)?;
        }
        if let Some((open, _)) = builder.open {
            let why = "a further record of this file was announced, and there is none";
            return Err(Error::damaged(Record::DirectoryRecord, open.offset, why));
        }
        Ok(builder.listing.finish())
    }

    fn record_at(&self, offset: u64) -> Result<RecordBytes> {
        let len = RECORD.min(self.image.size().saturating_sub(offset));
        let bytes = self.image.read(Record::DirectoryRecord, offset, len)?;
        Ok(RecordBytes { bytes, offset })
    }

    /// The error in the record of `meta`, computed again.
    pub fn damage(&self, meta: &Meta) -> Error {
        let describe = || {
            let bytes = self.record_at(meta.offset)?;
            let record = DirRecord::parse(bytes.fields())?;
            let mut rock = Rock::default();
            let mut continuations = self.continuations(0);
            self.rock(&record, &mut continuations, &mut rock)?;
            self.describe(&Parsed { record, rock }, &mut continuations)
        };
        match describe() {
            Err(error) => error,
            Ok(_) => {
                let why = "it was damaged when its directory was read";
                Error::damaged(Record::DirectoryRecord, meta.offset, why)
            }
        }
    }

    /// A link's target.
    pub fn readlink(&self, meta: &Meta) -> Result<Vec<u8>> {
        if meta.kind != FileKind::Symlink {
            return Err(Error::Kind(Errno::EINVAL));
        }
        let bytes = self.record_at(meta.offset)?;
        let record = DirRecord::parse(bytes.fields())?;
        let mut rock = Rock::default();
        self.rock(&record, &mut self.continuations(0), &mut rock)?;
        let link = rock.link.unwrap_or_default();
        if let Some(error) = link.damage {
            return Err(error);
        }
        if let Some(what) = link.refusal {
            return Err(Error::Unsupported {
                record: Record::SystemUse(*b"SL"),
                offset: meta.offset,
                what,
            });
        }
        if link.target.is_empty() || link.target.contains(&0) {
            return Err(record
                .fields
                .damaged("a symbolic link with an empty target or a NUL in it"));
        }
        Ok(link.target)
    }

    fn name(&self, parsed: &mut Parsed<'_>) -> Result<Vec<u8>> {
        let Parsed { record, rock } = parsed;
        match self.namespace {
            Namespace::Joliet => names::joliet(record.fields, record.identifier),
            Namespace::RockRidge => match rock.name.take() {
                Some(name) => names::rock_ridge(record.fields, name),
                None => names::plain(record.fields, record.identifier),
            },
            Namespace::Plain => names::plain(record.fields, record.identifier),
        }
    }

    /// The metadata of a record, without its name.
    fn describe(&self, parsed: &Parsed<'_>, continuations: &mut Continuations<'_>) -> Result<Meta> {
        match parsed.rock.child {
            Some(block) => {
                let start = u64::from(block) * u64::from(self.block_size());
                self.directory(start, continuations)
            }
            None => self.meta(parsed),
        }
    }

    fn meta(&self, parsed: &Parsed<'_>) -> Result<Meta> {
        let Parsed { record, rock } = parsed;
        let kind = kind(record, rock)?;
        let perm = rock.posix.map_or(0o555, |posix| posix.mode & 0o7777);
        let mut sections = Sections::None;
        let has_content = matches!(kind, FileKind::Regular | FileKind::Directory);
        if has_content && (record.section.len > 0 || kind == FileKind::Directory) {
            sections.push(record.section);
        }
        let is_device = matches!(kind, FileKind::BlockDevice | FileKind::CharDevice);
        let zisofs = rock.zisofs.filter(|_| kind == FileKind::Regular);
        let mtime = rock.times.modified.or(record.time).unwrap_or_default();
        let posix = rock.posix.as_ref();
        let mut meta = Meta {
            name: Box::default(),
            ino: record.fields.offset,
            offset: record.fields.offset,
            kind,
            mode: kind.mode_bits() | perm,
            nlink: posix.map_or(1, |posix| posix.links),
            uid: posix.map_or(0, |posix| posix.uid),
            gid: posix.map_or(0, |posix| posix.gid),
            rdev: rock.device.filter(|_| is_device).unwrap_or(0),
            size: match kind {
                FileKind::Symlink => rock
                    .link
                    .as_ref()
                    .map_or(0, |link| link.target.len() as u64),
                _ => zisofs.map_or(sections.len(), |zisofs| zisofs.size),
            },
            mtime,
            atime: rock.times.accessed.unwrap_or(mtime),
            ctime: rock.times.changed.unwrap_or(mtime),
            btime: rock.times.created,
            hidden: record.has(flags::HIDDEN),
            sections,
            attributes: self.attributes(record),
            zisofs,
            refusal: self.refusal(record, rock),
            is_damaged: false,
        };
        meta.ino = self.ino(&meta, rock);
        Ok(meta)
    }

    fn ino(&self, meta: &Meta, rock: &Rock) -> u64 {
        let start = meta.start(self.block_size());
        if meta.kind == FileKind::Directory {
            return start.unwrap_or(meta.offset);
        }
        if meta.nlink < 2 {
            return meta.offset;
        }
        match rock.posix.and_then(|posix| posix.serial) {
            Some(serial) => 1 << 48 | u64::from(serial),
            None => start.unwrap_or(meta.offset),
        }
    }

    fn refusal(&self, record: &DirRecord<'_>, rock: &Rock) -> Option<&'static str> {
        if rock.refusal.is_some() {
            return rock.refusal;
        }
        if record.interleave != (0, 0) {
            return Some("an interleaved file");
        }
        let elsewhere = self.is_elsewhere(record);
        elsewhere.then_some("a file on another volume of the set")
    }

    fn is_elsewhere(&self, record: &DirRecord<'_>) -> bool {
        self.volume.set_size > 1 && record.volume != self.volume.sequence
    }

    /// The extended attribute record that counts for the file of `record`.
    fn attributes(&self, record: &DirRecord<'_>) -> Option<Place> {
        let counts = self.namespace != Namespace::RockRidge && !self.is_elsewhere(record);
        Place::of(record).filter(|_| counts)
    }

    /// `meta` with the attributes of its extended attribute record.
    pub fn complete(&self, meta: &Arc<Meta>) -> Arc<Meta> {
        let read = |place: Place| place.read(&self.image, self.block_size());
        match meta.attributes.and_then(read) {
            None => Arc::clone(meta),
            Some(attributes) => {
                let mut meta = Meta::clone(meta);
                meta.apply(attributes);
                Arc::new(meta)
            }
        }
    }
}

fn kind(record: &DirRecord<'_>, rock: &Rock) -> Result<FileKind> {
    let is_dir = record.has(flags::DIRECTORY);
    let recorded = if is_dir {
        FileKind::Directory
    } else {
        FileKind::Regular
    };
    let Some(posix) = rock.posix.filter(|posix| posix.mode & libc::S_IFMT != 0) else {
        return Ok(if rock.link.is_some() && !is_dir {
            FileKind::Symlink
        } else {
            recorded
        });
    };
    match FileKind::from_mode(posix.mode) {
        Some(kind) if (kind == FileKind::Directory) == is_dir => Ok(kind),
        _ => {
            let why = format!("a {recorded:?} of mode {:o}", posix.mode);
            Err(record.fields.damaged(why))
        }
    }
}

struct Builder<'a> {
    reader: &'a Reader,
    continuations: Continuations<'a>,
    listing: Listing,
    /// A file that needs a further record, and the name of that record.
    open: Option<(Meta, Vec<u8>)>,
    first: bool,
}

impl Builder<'_> {
    fn extent(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let block = self.reader.block_size() as usize;
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            if rest.first() == Some(&0) {
                // A record does not cross into another sector: zeros fill up.
                at = (at + 1).next_multiple_of(block);
                continue;
            }
            let place = offset + at as u64;
            let record = DirRecord::parse(Fields::new(Record::DirectoryRecord, place, rest))?;
            at += record.fields.bytes.len();
            if std::mem::take(&mut self.first) && !record.is_dot() {
                let why = "it does not begin with its own record";
                return Err(Error::damaged(Record::Directory, offset, why));
            }
            if !record.is_dot() && !record.is_dot_dot() {
                self.record(record)?;
            }
        }
        Ok(())
    }

    fn record(&mut self, record: DirRecord<'_>) -> Result<()> {
        if record.has(flags::ASSOCIATED) {
            return Ok(());
        }
        if let Some((mut meta, identifier)) = self.open.take() {
            if identifier != record.identifier {
                let why = "another file's record was to follow here";
                return Err(record.fields.damaged(why));
            }
            if meta.sections.as_slice().len() >= MAX_SECTIONS {
                let why = format!("a file of more than {MAX_SECTIONS} sections");
                return Err(record.fields.damaged(why));
            }
            meta.sections.push(record.section);
            if meta.zisofs.is_none() {
                meta.size = meta.size.saturating_add(record.section.len.into());
            }
            if record.interleave != (0, 0) {
                meta.refusal = Some("an interleaved file");
            }
            // Each section may have one; the last section's is the file's, and when it has none, none is (6.4.6).
            meta.attributes = self.reader.attributes(&record);
            return self.add(meta, &record);
        }
        let mut rock = Rock::default();
        let read = self
            .reader
            .rock(&record, &mut self.continuations, &mut rock);
        if rock.relocated {
            return Ok(());
        }
        let mut parsed = Parsed { record, rock };
        let name = self.reader.name(&mut parsed)?.into_boxed_slice();
        let described = read.and_then(|()| self.reader.describe(&parsed, &mut self.continuations));
        let mut meta = match described {
            Ok(meta) => meta,
            Err(error) => self.damaged(record, error)?,
        };
        meta.name = name;
        self.add(meta, &record)
    }

    /// A name with an invalid record: it is listed with the valid ones, and any other use of it is an error. Damage that
    /// concerns more than one record is an error of the directory.
    fn damaged(&self, record: DirRecord<'_>, error: Error) -> Result<Meta> {
        if !matches!(error, Error::Damaged { .. }) || self.continuations.is_exhausted {
            return Err(error);
        }
        let rock = Rock::default();
        let mut meta = self.reader.meta(&Parsed { record, rock })?;
        meta.is_damaged = true;
        Ok(meta)
    }

    fn add(&mut self, meta: Meta, record: &DirRecord<'_>) -> Result<()> {
        if record.has(flags::MORE) {
            self.open = Some((meta, record.identifier.to_vec()));
            return Ok(());
        }
        self.listing.cost += meta.cost();
        if self.listing.cost > MAX_LISTING {
            let why = format!("the names up to this one need {MAX_LISTING} bytes of memory");
            return Err(record.fields.damaged(why));
        }
        self.listing.names.push(Arc::new(meta));
        Ok(())
    }
}
