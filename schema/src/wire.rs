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

    #[inline]
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

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let rest = self.raw.get(self.at..).unwrap_or_default();
        let Some(field) = rest.get(..len) else {
            return Err(self.error(self.raw.len(), "the bytes end early"));
        };
        self.at += len;
        Ok(field)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut field = [0; N];
        field.copy_from_slice(self.take(N)?);
        Ok(field)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    #[inline]
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

    /// Reads an LEB128 number. Nearly all numbers end within eight bytes: so the next eight bytes are read as one word, without a
    /// loop.
    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        let rest = self.raw.get(self.at..).unwrap_or_default();
        let word = rest
            .first_chunk()
            .map_or(u64::MAX, |raw| u64::from_le_bytes(*raw));
        let ends = !word & 0x8080_8080_8080_8080;
        if ends == 0 {
            return self.long_varint();
        }
        self.at += (ends.trailing_zeros() / 8 + 1) as usize;
        // The bits up to the end of the first byte that ends a number.
        Ok(without_top_bits(word & (ends ^ (ends - 1))))
    }

    /// The same for any length, and at the end of the bytes.
    #[cold]
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

/// The seven lower bits of each byte, one after the other.
#[inline]
fn without_top_bits(word: u64) -> u64 {
    let by_byte = word & 0x7f7f_7f7f_7f7f_7f7f;
    let by_two = by_byte & 0x007f_007f_007f_007f | (by_byte & 0x7f00_7f00_7f00_7f00) >> 1;
    let by_four = by_two & 0x0000_3fff_0000_3fff | (by_two & 0x3fff_0000_3fff_0000) >> 2;
    by_four & 0x0fff_ffff | (by_four & 0x0fff_ffff_0000_0000) >> 4
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// A number near the end of the bytes, or a long one, is not read as a word. The loop that reads it must give the same
    /// result.
    #[test]
    fn a_number_of_any_length_is_read_at_any_distance_from_the_end() {
        let of_bits = |bits: u32| {
            let ones = u64::MAX >> (64 - bits);
            [ones, 1 << (bits - 1), ones & 0x5555_5555_5555_5555]
        };
        for number in (1..=64).flat_map(of_bits).chain([0]) {
            for further in 0..12 {
                let mut raw = Vec::new();
                put_varint(&mut raw, number);
                let length = raw.len();
                raw.resize(length + further, 0xff);
                let mut reader = Reader::new("test", &raw);
                assert_eq!(reader.varint().unwrap(), number);
                assert_eq!(reader.at(), length, "{number:x}");
                let cut_short = &raw[..length - 1];
                assert!(Reader::new("test", cut_short).varint().is_err());
            }
        }
    }
}
