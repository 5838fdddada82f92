//! Bounded reading and writing of little-endian fields.

use bytes::Bytes;

use crate::DecodeError;

/// Reads fields in order, and keeps the offset for errors.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    record: &'static str,
    raw: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(record: &'static str, raw: &'a [u8]) -> Self {
        Self { record, raw, at: 0 }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn error(&self, offset: usize, why: &'static str) -> DecodeError {
        DecodeError {
            record: self.record,
            offset,
            why,
        }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let rest = self.raw.get(self.at..).unwrap_or_default();
        let Some(field) = rest.get(..len) else {
            return Err(self.error(self.raw.len(), "the bytes end early"));
        };
        self.at += len;
        Ok(field)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut field = [0; N];
        field.copy_from_slice(self.take(N)?);
        Ok(field)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64, DecodeError> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        self.array()
    }

    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        // Most numbers are small.
        if let Some(byte) = self.raw.get(self.at).filter(|byte| **byte < 0x80) {
            self.at += 1;
            return Ok((*byte).into());
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<u64, DecodeError> {
        let rest = self.raw.get(self.at..).unwrap_or_default();
        let mut value = 0u64;
        for (byte, shift) in rest.iter().zip((0..64).step_by(7)) {
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(self.error(self.at, "a number does not fit 64 bits"));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                self.at += shift / 7 + 1;
                return Ok(value);
            }
        }
        match rest.len() {
            0..10 => Err(self.error(self.raw.len(), "the bytes end early")),
            _ => Err(self.error(self.at, "a number does not fit 64 bits")),
        }
    }

    pub(crate) fn version(&mut self, newest: u8) -> Result<u8, DecodeError> {
        match self.u8()? {
            0 => Err(self.error(0, "version 0 does not exist")),
            found if found > newest => Err(self.error(0, "its version is newer than this program")),
            found => Ok(found),
        }
    }

    pub(crate) fn flag(&mut self) -> Result<bool, DecodeError> {
        let start = self.at;
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.error(start, "a flag is neither 0 nor 1")),
        }
    }

    pub(crate) fn end(&self) -> Result<(), DecodeError> {
        if self.at == self.raw.len() {
            Ok(())
        } else {
            Err(self.error(self.at, "bytes follow its end"))
        }
    }
}

/// Appends `value` as LEB128.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the checksum that [`unseal`] expects.
pub(crate) fn seal(out: &mut Vec<u8>) {
    let sum = crc32c::crc32c(out);
    out.extend_from_slice(&sum.to_le_bytes());
}

/// Checks and removes the trailing checksum of a small record.
pub(crate) fn unseal<'a>(record: &'static str, raw: &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let Some((body, sum)) = raw.split_last_chunk::<4>() else {
        return Err(DecodeError {
            record,
            offset: raw.len(),
            why: "the bytes end early",
        });
    };
    if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
        return Err(DecodeError {
            record,
            offset: body.len(),
            why: "its checksum does not match",
        });
    }
    Ok(body)
}

/// The part of `raw` that `field`, a slice of it, covers; shares memory.
pub(crate) fn share(raw: &Bytes, field: &[u8]) -> Bytes {
    if field.is_empty() {
        Bytes::new()
    } else {
        raw.slice_ref(field)
    }
}
