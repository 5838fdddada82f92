//! The El Torito boot catalogue.

use crate::format::fields::Fields;
use crate::source::Image;
use crate::{Record, Result};

/// Bytes of the catalogue that are read: one sector, as firmware reads it; 64 entries.
const CATALOGUE: u64 = 2048;
const ENTRY: usize = 32;

/// An image that a machine can boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootImage {
    /// The platform: 0 x86 (BIOS), 1 PowerPC, 2 Mac, 0xef EFI.
    pub platform: u8,
    /// Whether it is marked as bootable.
    pub bootable: bool,
    /// 0 none, 1 to 3 floppies of 1.2, 1.44 and 2.88 MB, 4 hard disk.
    pub emulation: u8,
    /// Where it is loaded, as a segment; 0 means 0x7c0.
    pub load_segment: u16,
    /// Partition type of a hard disk image.
    pub system_type: u8,
    /// Units of 512 bytes loaded.
    pub load_sectors: u16,
    /// Where it begins, in logical blocks.
    pub block: u32,
    /// The section's name, for entries after the first.
    pub section_id: String,
}

/// Reads the catalogue at `block`. Ends at the first invalid entry, so it cannot loop.
pub(crate) fn read(image: &Image, block: u32, block_size: u32) -> Result<Vec<BootImage>> {
    let offset = u64::from(block) * u64::from(block_size);
    let bytes = image.read(Record::BootCatalogue, offset, CATALOGUE)?;
    let mut entries = bytes
        .chunks_exact(ENTRY)
        .zip(0_u64..)
        .map(|(entry, index)| {
            let offset = offset + index * ENTRY as u64;
            Fields::new(Record::BootCatalogue, offset, entry)
        });
    let Some(validation) = entries.next() else {
        return Ok(Vec::new());
    };
    validate(validation)?;
    let mut platform = validation.u8(1)?;
    let mut section_id = String::new();
    let mut left = 1_u16;
    let mut last_section = false;
    let mut images = Vec::new();
    for entry in entries {
        match entry.u8(0)? {
            // An entry of the extension kind belongs to the one before it.
            0x44 => {}
            0x90 | 0x91 if left == 0 => {
                last_section = entry.u8(0)? == 0x91;
                platform = entry.u8(1)?;
                left = entry.u16(2)?;
                section_id = crate::format::names::plain_text(entry.slice(4, 28)?);
            }
            indicator @ (0 | 0x88) if left > 0 => {
                left -= 1;
                images.push(BootImage {
                    platform,
                    bootable: indicator == 0x88,
                    emulation: entry.u8(1)? & 0xf,
                    load_segment: entry.u16(2)?,
                    system_type: entry.u8(4)?,
                    load_sectors: entry.u16(6)?,
                    block: entry.u32(8)?,
                    section_id: section_id.clone(),
                });
            }
            0 => break,
            other => {
                return Err(entry.damaged(format!("an entry of the unknown kind {other:#x}")));
            }
        }
        if left == 0 && last_section {
            break;
        }
    }
    Ok(images)
}

fn validate(entry: Fields<'_>) -> Result<()> {
    if entry.u8(0)? != 1 || entry.slice(30, 2)? != [0x55, 0xaa] {
        return Err(entry.damaged("no validation entry"));
    }
    let sum = entry.bytes.chunks_exact(2).fold(0_u16, |sum, pair| {
        let word = pair
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u16::from(*byte));
        sum.wrapping_add(word)
    });
    if sum != 0 {
        return Err(entry.damaged("the checksum of the validation entry is wrong"));
    }
    Ok(())
}
