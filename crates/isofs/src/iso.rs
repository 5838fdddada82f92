//! An open image: the session and the name space in use; lookup, listing, walk, content. Read `reader.rs` next.

use std::collections::HashSet;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use goanna_vfs::{Errno, FileKind};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::cache::Listings;
use crate::entry::{Entry, Meta};
use crate::format::boot::{self, BootImage};
use crate::format::session::{self, Session};
use crate::format::susp::Protocol;
use crate::format::volume::{self, SECTOR, Volume};
use crate::format::zisofs::{Compressed, Zisofs};
use crate::reader::{self, Listing, Reader};
use crate::source::{Image, ReadAt};
use crate::{Error, Namespace, Record, Result};

/// Directories above one that is still read; more do not fit into a path.
const MAX_DEPTH: usize = 2048;

/// The options for reading an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// The kind of names. By default Rock Ridge; if it is missing, Joliet; otherwise plain.
    pub namespace: Option<Namespace>,
    /// The session, from 1; by default the last.
    pub session: Option<u32>,
}

/// The kinds of names that an image has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// The identifier of the Rock Ridge extension, `RRIP_1991A` or one of its successors; empty when it is used without
    /// being named.
    pub rock_ridge: Option<String>,
    /// The Joliet level, 1 to 3.
    pub joliet: Option<u8>,
    /// An enhanced volume descriptor (ISO 9660:1999); its tree is not read, being the plain one with longer names.
    pub enhanced: bool,
    /// The image can also be read as UDF. We read the ISO side.
    pub udf: bool,
}

/// A session of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its number, from 1.
    pub number: u32,
    /// Its first sector of 2048 bytes.
    pub start: u64,
    /// Logical blocks of its volume, as recorded.
    pub blocks: u32,
    /// The volume's name.
    pub volume_id: String,
}

/// The properties of an image.
#[derive(Debug, Clone)]
pub struct Info {
    /// The session in use, from 1.
    pub session: u32,
    /// All sessions.
    pub sessions: Vec<SessionInfo>,
    /// The names in use.
    pub namespace: Namespace,
    /// The kinds of names that the session in use has.
    pub namespaces: Namespaces,
    /// Its primary volume descriptor.
    pub primary: Volume,
    /// Its Joliet volume descriptor.
    pub joliet: Option<Volume>,
    /// What machines can boot from it. A damaged catalogue is an error of [`Iso::boot_images`], and empty here.
    pub boot: Vec<BootImage>,
    /// Bytes of the image.
    pub size: u64,
}

/// A step of a walk.
#[derive(Debug)]
pub enum Visit<'a> {
    /// A name.
    Entry(&'a Arc<Entry>),
    /// A directory whose names cannot be read, which was visited before; or a name whose record is damaged (see
    /// [`Iso::check_record`]), which was not.
    Unreadable(&'a Arc<Entry>, Error),
}

/// The content of one compressed block, and its key: the place of the file's record, and the block's number.
type Unpacked = ((u64, u64), Arc<Vec<u8>>);

/// An open image. All methods can be called by several threads at once.
pub struct Iso {
    reader: Reader,
    session: Session,
    /// 1 for the first.
    number: u32,
    sessions: Vec<SessionInfo>,
    root: Arc<Entry>,
    listings: Listings,
    unpacked: Mutex<Option<Unpacked>>,
}

impl std::fmt::Debug for Iso {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Iso")
            .field("session", &self.number)
            .field("namespace", &self.reader.namespace)
            .finish_non_exhaustive()
    }
}

impl Iso {
    /// Opens the image in `source`: reads its descriptors and the first record of its root directory, nothing else.
    pub fn open(source: impl ReadAt + 'static, options: &Options) -> Result<Self> {
        let image = Image::new(Box::new(source))?;
        let sessions = session::find(&image)?;
        let infos = sessions
            .iter()
            .zip(1..)
            .map(|(session, number)| SessionInfo {
                number,
                start: session.start,
                blocks: session.descriptors.primary.blocks,
                volume_id: session.descriptors.primary.volume_id.clone(),
            });
        let infos: Vec<_> = infos.collect();
        let number = options.session.unwrap_or(infos.len() as u32);
        let session = session::choose(sessions, options.session)?;
        let (namespace, protocol) = choose_names(&image, &session, options.namespace)?;
        let descriptors = &session.descriptors;
        let volume = match (namespace, &descriptors.joliet) {
            (Namespace::Joliet, Some((_, joliet))) => joliet.clone(),
            _ => descriptors.primary.clone(),
        };
        let reader = Reader {
            image,
            volume,
            namespace,
            protocol,
        };
        let root = Entry::root(reader.complete(&Arc::new(reader.root()?)));
        Ok(Self {
            reader,
            session,
            number,
            sessions: infos,
            root,
            listings: Listings::default(),
            unpacked: Mutex::new(None),
        })
    }

    /// Opens the image in the file, or on the block device, at `path`.
    pub fn open_file(path: &Path, options: &Options) -> Result<Self> {
        let failed = |source| Error::Read { offset: 0, source };
        let kind = std::fs::metadata(path).map_err(failed)?.file_type();
        if kind.is_dir() {
            return Err(failed(Errno::EISDIR.into()));
        }
        // An open would wait for a writer.
        if kind.is_fifo() {
            return Err(failed(Errno::ESPIPE.into()));
        }
        Self::open(File::open(path).map_err(failed)?, options)
    }

    /// The properties of the image.
    pub fn info(&self) -> Info {
        let descriptors = &self.session.descriptors;
        let image = &self.reader.image;
        let rock_ridge = reader::detect_rock_ridge(image, &descriptors.primary);
        Info {
            session: self.number,
            sessions: self.sessions.clone(),
            namespace: self.reader.namespace,
            namespaces: Namespaces {
                rock_ridge: rock_ridge.ok().flatten().map(|(_, extension)| extension),
                joliet: descriptors.joliet.as_ref().map(|(level, _)| *level),
                enhanced: descriptors.enhanced,
                udf: volume::has_udf(image, descriptors),
            },
            primary: descriptors.primary.clone(),
            joliet: descriptors
                .joliet
                .as_ref()
                .map(|(_, volume)| volume.clone()),
            boot: self.boot_images().unwrap_or_default(),
            size: image.size(),
        }
    }

    /// The entries of the boot catalogue; none when there is no catalogue.
    pub fn boot_images(&self) -> Result<Vec<BootImage>> {
        let descriptors = &self.session.descriptors;
        let mut images = Vec::new();
        for block in &descriptors.boot_catalogues {
            let block_size = descriptors.primary.block_size;
            images.extend(boot::read(&self.reader.image, *block, block_size)?);
        }
        Ok(images)
    }

    /// Bytes of a logical block.
    pub fn block_size(&self) -> u32 {
        self.reader.volume.block_size
    }

    /// Logical blocks up to the end of the volume.
    pub fn blocks(&self) -> u64 {
        let block_size = u64::from(self.block_size());
        let before = self.session.start * SECTOR / block_size;
        let in_image = self.reader.image.size() / block_size;
        let recorded = u64::from(self.reader.volume.blocks);
        (before + recorded).min(in_image.max(recorded))
    }

    /// The names in use.
    pub fn namespace(&self) -> Namespace {
        self.reader.namespace
    }

    /// The root directory.
    pub fn root(&self) -> &Arc<Entry> {
        &self.root
    }

    /// The names of `dir`, in the order of the image.
    pub(crate) fn listing(&self, dir: &Entry) -> Result<Arc<Listing>> {
        if dir.kind != FileKind::Directory {
            return Err(Error::Kind(Errno::ENOTDIR));
        }
        self.check_record(dir)?;
        // Checked for each path, not for the directory: a cached directory may have been reached by another path.
        let fail = |why| Err(Error::damaged(Record::Directory, dir.ino, why));
        if dir.ancestors().any(|above| above.ino == dir.ino) {
            return fail("it lies within itself");
        }
        if dir.depth() > MAX_DEPTH {
            return fail("too many directories above it");
        }
        let key = (dir.ino, dir.size);
        if let Some(listing) = self.listings.get(key) {
            return Ok(listing);
        }
        let listing = Arc::new(self.reader.list(dir)?);
        self.listings.put(key, &listing);
        Ok(listing)
    }

    /// The names of `dir` with their entries, in the order of the image. They include those that [`Iso::check_record`] reports
    /// as damaged. ENOTDIR.
    pub fn list(&self, dir: &Arc<Entry>) -> Result<Vec<Arc<Entry>>> {
        let listing = self.listing(dir)?;
        let entries = listing.names.iter().map(|meta| self.entry(dir, meta));
        Ok(entries.collect())
    }

    /// Checks that the record of `entry` is sound. A name whose Rock Ridge fields are damaged is listed, as far as its name can
    /// be read, so that the other names stay accessible. Its attributes are defaults, and reading its content, target or
    /// names fails with the same error.
    pub fn check_record(&self, entry: &Meta) -> Result<()> {
        if entry.is_damaged {
            return Err(self.reader.damage(entry));
        }
        Ok(())
    }

    /// The entry `name` of `dir`. ENOTDIR.
    pub fn lookup(&self, dir: &Arc<Entry>, name: &[u8]) -> Result<Option<Arc<Entry>>> {
        let listing = self.listing(dir)?;
        Ok(listing.get(name).map(|meta| self.entry(dir, meta)))
    }

    fn entry(&self, dir: &Arc<Entry>, meta: &Arc<Meta>) -> Arc<Entry> {
        Entry::child(dir, self.reader.complete(meta))
    }

    /// The entry at `path`, from the root; `.` and `..` have their usual meaning, symbolic links are not followed.
    pub fn resolve(&self, path: &[u8]) -> Result<Option<Arc<Entry>>> {
        let mut at = Arc::clone(&self.root);
        for name in path.split(|byte| *byte == b'/') {
            let next = match name {
                b"" | b"." => continue,
                b".." => Some(at.parent().map_or_else(|| Arc::clone(&at), Arc::clone)),
                name => self.lookup(&at, name)?,
            };
            let Some(next) = next else { return Ok(None) };
            at = next;
        }
        Ok(Some(at))
    }

    /// Calls `visit` for `top` and all below it, a directory before its entries, in the order of the image. After a
    /// directory that cannot be read the walk continues, unless `visit` returns `Break`. A directory that appears
    /// a second time is an error, so that the walk ends.
    pub fn walk(&self, top: &Arc<Entry>, visit: &mut dyn FnMut(Visit<'_>) -> ControlFlow<()>) {
        let mut seen = HashSet::new();
        let mut left = vec![Arc::clone(top)];
        while let Some(entry) = left.pop() {
            let visited = match self.check_record(&entry) {
                Ok(()) => Visit::Entry(&entry),
                Err(error) => Visit::Unreadable(&entry, error),
            };
            if visit(visited).is_break() {
                return;
            }
            if entry.kind != FileKind::Directory || entry.is_damaged {
                continue;
            }
            let listed = if seen.insert(entry.ino) {
                self.list(&entry)
            } else {
                let why = "it appears in two places";
                Err(Error::damaged(Record::Directory, entry.ino, why))
            };
            match listed {
                Ok(entries) => left.extend(entries.into_iter().rev()),
                Err(error) => {
                    if visit(Visit::Unreadable(&entry, error)).is_break() {
                        return;
                    }
                }
            }
        }
    }

    /// A symbolic link's target. EINVAL for anything else.
    pub fn readlink(&self, link: &Meta) -> Result<Vec<u8>> {
        self.check_record(link)?;
        self.reader.readlink(link)
    }

    /// Reads content of a regular file. The result is short only at the end of the file. EISDIR, EINVAL for other kinds.
    pub fn read_at(&self, file: &Meta, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.check_readable(file)?;
        let len = file.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let Some(buf) = buf.get_mut(..len).filter(|buf| !buf.is_empty()) else {
            return Ok(0);
        };
        match file.zisofs {
            None => self.read_stored(file, Record::FileData, offset, buf)?,
            Some(zisofs) => self.read_packed(file, zisofs, offset, buf)?,
        }
        Ok(len)
    }

    fn check_readable(&self, file: &Meta) -> Result<()> {
        self.check_record(file)?;
        match (file.kind, file.refusal) {
            (FileKind::Regular, None) => Ok(()),
            (FileKind::Regular, Some(what)) => Err(Error::Unsupported {
                record: Record::DirectoryRecord,
                offset: file.offset,
                what,
            }),
            (FileKind::Directory, _) => Err(Error::Kind(Errno::EISDIR)),
            _ => Err(Error::Kind(Errno::EINVAL)),
        }
    }

    /// Checks that all of the content lies within the image: otherwise the file is rejected before any of its content is
    /// returned. Pieces may overlap other files', but one file has no more bytes than the image.
    pub fn check_content(&self, file: &Meta) -> Result<()> {
        self.check_readable(file)?;
        let block_size = self.block_size();
        for section in file.sections.as_slice() {
            let start = section.start(block_size);
            self.reader
                .image
                .check(Record::FileData, start, section.len.into())?;
        }
        if file.sections.len() > self.reader.image.size() {
            let why = "the pieces of the file have more bytes than the image";
            return Err(Error::damaged(Record::DirectoryRecord, file.offset, why));
        }
        Ok(())
    }

    /// The first offset at or after `offset` where content may be other than zeros: of a compressed file without
    /// unpacking, of others `offset` itself. `None` when only zeros follow.
    pub(crate) fn next_data(&self, file: &Meta, offset: u64) -> Result<Option<u64>> {
        if offset >= file.size {
            return Ok(None);
        }
        let Some(zisofs) = file.zisofs else {
            return Ok(Some(offset));
        };
        self.packed(file, zisofs, |packed| {
            let block = packed.next_data(offset / zisofs.block_size())?;
            Ok(block.map(|block| offset.max(block * zisofs.block_size())))
        })
    }

    /// The image's file on the host, if it is one.
    pub(crate) fn file(&self) -> Option<&File> {
        self.reader.image.file()
    }

    /// The host file and the offset in it where the whole content is contiguous.
    pub(crate) fn in_one_piece(&self, file: &Meta) -> Option<(&File, u64)> {
        match (file.sections.as_slice(), file.zisofs) {
            ([section], None) => {
                Some((self.reader.image.file()?, section.start(self.block_size())))
            }
            _ => None,
        }
    }

    /// Fills `buf` with stored bytes of the file.
    fn read_stored(&self, file: &Meta, record: Record, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut skip = offset;
        let mut done = 0;
        for section in file.sections.as_slice() {
            let len = u64::from(section.len);
            if skip >= len {
                skip -= len;
                continue;
            }
            let rest = buf.get_mut(done..).unwrap_or_default();
            let want = (len - skip).min(rest.len() as u64) as usize;
            if let Some(rest) = rest.get_mut(..want) {
                let start = section.start(self.block_size());
                self.reader.image.fill(record, start + skip, rest)?;
            }
            skip = 0;
            done += want;
            if done == buf.len() {
                return Ok(());
            }
        }
        let why = "the file ends within it";
        Err(Error::damaged(
            record,
            file.start(self.block_size()).unwrap_or(file.offset),
            why,
        ))
    }

    fn packed<T>(
        &self,
        file: &Meta,
        zisofs: Zisofs,
        run: impl FnOnce(&Compressed<'_>) -> Result<T>,
    ) -> Result<T> {
        let stored = file.sections.len();
        let start = file.start(self.block_size()).unwrap_or(file.offset);
        let read = |record, at: u64, len: u64| {
            let fits = at.checked_add(len).is_some_and(|end| end <= stored);
            if !fits || len > self.reader.image.size() {
                let why = format!("{len} bytes at {at} of {stored}");
                return Err(Error::damaged(record, start, why));
            }
            let mut buf = vec![0; len as usize];
            self.read_stored(file, record, at, &mut buf)?;
            Ok(buf)
        };
        run(&Compressed::open(zisofs, stored, start, &read)?)
    }

    fn read_packed(&self, file: &Meta, zisofs: Zisofs, offset: u64, buf: &mut [u8]) -> Result<()> {
        let block_size = zisofs.block_size();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let block = self.unpack(file, zisofs, at / block_size)?;
            let rest = block.get((at % block_size) as usize..).unwrap_or_default();
            let to = buf.get_mut(done..).unwrap_or_default();
            let len = rest.len().min(to.len());
            if len == 0 {
                break;
            }
            if let (Some(to), Some(from)) = (to.get_mut(..len), rest.get(..len)) {
                to.copy_from_slice(from);
            }
            done += len;
        }
        Ok(())
    }

    /// The content of a block; the last one is kept for reads that continue in small pieces.
    fn unpack(&self, file: &Meta, zisofs: Zisofs, block: u64) -> Result<Arc<Vec<u8>>> {
        let key = (file.offset, block);
        if let Some((held, content)) = &*self.unpacked.lock()
            && *held == key
        {
            return Ok(Arc::clone(content));
        }
        let content = Arc::new(self.packed(file, zisofs, |packed| packed.block(block))?);
        *self.unpacked.lock() = Some((key, Arc::clone(&content)));
        Ok(content)
    }
}

/// The names to use, and the protocol for Rock Ridge.
fn choose_names(
    image: &Image,
    session: &Session,
    asked: Option<Namespace>,
) -> Result<(Namespace, Protocol)> {
    let has_joliet = session.descriptors.joliet.is_some();
    if matches!(asked, None | Some(Namespace::RockRidge)) {
        let found = reader::detect_rock_ridge(image, &session.descriptors.primary)?;
        if let Some((protocol, _)) = found {
            return Ok((Namespace::RockRidge, protocol));
        }
    }
    let namespace = match asked {
        Some(Namespace::RockRidge) => return Err(Error::NoNamespace(Namespace::RockRidge)),
        Some(Namespace::Joliet) if !has_joliet => {
            return Err(Error::NoNamespace(Namespace::Joliet));
        }
        Some(namespace) => namespace,
        None if has_joliet => Namespace::Joliet,
        None => Namespace::Plain,
    };
    Ok((namespace, Protocol::default()))
}

/// Bytes of a sector, for callers that print where sessions begin.
pub const SECTOR_BYTES: u64 = SECTOR;
