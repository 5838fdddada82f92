//! Volume descriptors (ECMA-119 section 8), which are at the start of a session.

use goanna_vfs::Stamp;

use crate::format::fields::Fields;
use crate::format::names;
use crate::format::record::Section;
use crate::source::Image;
use crate::{Error, Record, Result};

/// Bytes of a logical sector: descriptors are at multiples of it, whatever the logical block.
pub(crate) const SECTOR: u64 = 2048;

/// Sectors before the first descriptor of a session.
pub(crate) const SYSTEM_AREA: u64 = 16;

/// Maximum number of descriptors that are read in one session. Real images have two to six.
const MAX_DESCRIPTORS: u64 = 64;

/// The content of a primary or supplementary volume descriptor.
#[derive(Debug, Clone)]
pub struct Volume {
    /// Offset of the descriptor, in bytes.
    pub offset: u64,
    /// The system that can use the first 16 sectors.
    pub system_id: String,
    /// The volume's name.
    pub volume_id: String,
    /// The name of the set of volumes.
    pub set_id: String,
    /// The publisher; as the next two, perhaps the name of a file in the root, after an underscore.
    pub publisher: String,
    /// The preparer of the data.
    pub preparer: String,
    /// How the data are recorded; mostly the program that made the image.
    pub application: String,
    /// A file in the root with a copyright statement.
    pub copyright_file: String,
    /// A file in the root with an abstract.
    pub abstract_file: String,
    /// A file in the root with bibliographic records.
    pub bibliographic_file: String,
    /// When the volume was made.
    pub created: Option<Stamp>,
    /// When it was last changed.
    pub modified: Option<Stamp>,
    /// When it becomes obsolete.
    pub expires: Option<Stamp>,
    /// From when on it may be used.
    pub effective: Option<Stamp>,
    /// Size of the volume in logical blocks. Blocks beyond it do not belong to the volume. In a session other than
    /// the first, writers count from the start of the session or of the image.
    pub blocks: u32,
    /// Bytes of a logical block: 512, 1024 or 2048.
    pub block_size: u32,
    /// Volumes in the set.
    pub set_size: u16,
    /// Which of them this is, from 1.
    pub sequence: u16,
    /// Where the root directory is.
    pub(crate) root: Section,
}

impl Volume {
    /// `text` decodes an identifier, which is padded with spaces.
    fn parse(fields: Fields<'_>, text: fn(&[u8]) -> String) -> Result<Self> {
        let text = |at, len| fields.slice(at, len).map(text);
        let block_size = fields.u16(128)?;
        if !matches!(block_size, 512 | 1024 | 2048) {
            let why = format!("a logical block of {block_size} bytes");
            return Err(fields.damaged(why));
        }
        Ok(Self {
            offset: fields.offset,
            system_id: text(8, 32)?,
            volume_id: text(40, 32)?,
            set_id: text(190, 128)?,
            publisher: text(318, 128)?,
            preparer: text(446, 128)?,
            application: text(574, 128)?,
            copyright_file: text(702, 37)?,
            abstract_file: text(739, 37)?,
            bibliographic_file: text(776, 37)?,
            created: fields.long_time(813)?,
            modified: fields.long_time(830)?,
            expires: fields.long_time(847)?,
            effective: fields.long_time(864)?,
            blocks: fields.u32(80)?,
            block_size: block_size.into(),
            set_size: fields.u16(120)?,
            sequence: fields.u16(124)?,
            // The record's lengths are fixed by the standard. Some writers record others, and no reader checks them.
            root: Section::parse(fields, 156)?,
        })
    }

    /// Where the root directory begins, in bytes.
    pub(crate) fn root_start(&self) -> u64 {
        self.root.start(self.block_size)
    }
}

/// The descriptors of one session that matter here.
#[derive(Debug, Clone)]
pub(crate) struct Descriptors {
    pub primary: Volume,
    /// The Joliet volume and its level, 1 to 3.
    pub joliet: Option<(u8, Volume)>,
    /// There is an enhanced volume descriptor (ISO 9660:1999).
    pub enhanced: bool,
    /// Blocks of El Torito boot catalogues.
    pub boot_catalogues: Vec<u32>,
    /// The sector after the last descriptor.
    pub end_sector: u64,
}

/// Reads the descriptors of the session that begins at sector `start`. The first primary counts, and the highest
/// Joliet level.
pub(crate) fn read(image: &Image, start: u64) -> Result<Descriptors> {
    let first = (start + SYSTEM_AREA) * SECTOR;
    let mut found = Found::default();
    let mut sector = start + SYSTEM_AREA;
    loop {
        let offset = sector * SECTOR;
        // A truncated image may end within the set: the descriptors before are used, if they suffice.
        let in_image = image.check(Record::VolumeDescriptor, offset, SECTOR);
        if in_image.is_err() && found.primary.is_some() {
            break;
        }
        if in_image.is_err() {
            return Err(Error::NotIso { offset: first });
        }
        let bytes = image.read(Record::VolumeDescriptor, offset, SECTOR)?;
        let fields = Fields::new(Record::VolumeDescriptor, offset, &bytes);
        if fields.slice(1, 5)? != b"CD001" {
            break;
        }
        sector += 1;
        if fields.u8(0)? == 255 {
            break;
        }
        if sector > start + SYSTEM_AREA + MAX_DESCRIPTORS {
            let why = format!("no terminator within {MAX_DESCRIPTORS} descriptors");
            return Err(fields.damaged(why));
        }
        found.add(fields)?;
    }
    Ok(Descriptors {
        primary: found.primary.ok_or(Error::NotIso { offset: first })?,
        joliet: found.joliet,
        enhanced: found.enhanced,
        boot_catalogues: found.boot_catalogues,
        end_sector: sector,
    })
}

#[derive(Default)]
struct Found {
    primary: Option<Volume>,
    joliet: Option<(u8, Volume)>,
    enhanced: bool,
    boot_catalogues: Vec<u32>,
}

impl Found {
    fn add(&mut self, fields: Fields<'_>) -> Result<()> {
        match (fields.u8(0)?, fields.u8(6)?) {
            (0, _) if fields.slice(7, 32)?.starts_with(b"EL TORITO SPECIFICATION") => {
                self.boot_catalogues.push(fields.u32(71)?);
            }
            (1, 1) if self.primary.is_none() => {
                self.primary = Some(Volume::parse(fields, names::plain_text)?);
            }
            (2, 2) => self.enhanced = true,
            (2, 1) => {
                let level = match fields.slice(88, 3)? {
                    b"%/@" => 1,
                    b"%/C" => 2,
                    b"%/E" => 3,
                    _ => return Ok(()),
                };
                if self.joliet.as_ref().is_none_or(|(best, _)| *best < level) {
                    self.joliet = Some((level, Volume::parse(fields, names::joliet_text)?));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Whether a UDF volume recognition sequence follows the descriptors: such an image can be read either way.
pub(crate) fn has_udf(image: &Image, descriptors: &Descriptors) -> bool {
    (descriptors.end_sector..descriptors.end_sector + 16)
        .map_while(|sector| {
            let mut head = [0; 6];
            let offset = sector * SECTOR;
            image
                .fill(Record::VolumeDescriptor, offset, &mut head)
                .ok()?;
            Some(head)
        })
        .any(|[_, id @ ..]| matches!(&id, b"NSR02" | b"NSR03"))
}
