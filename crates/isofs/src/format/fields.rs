//! Numbers, texts and times as the standard encodes them.

use goanna_vfs::Stamp;

use crate::{Error, Record, Result};

/// The bytes of one record and its position, which every error names.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    pub bytes: &'a [u8],
    /// In bytes from the start of the image.
    pub offset: u64,
    pub record: Record,
}

impl<'a> Fields<'a> {
    pub fn new(record: Record, offset: u64, bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            offset,
            record,
        }
    }

    pub fn damaged(&self, why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
        Error::damaged(self.record, self.offset, why)
    }

    pub fn slice(&self, at: usize, len: usize) -> Result<&'a [u8]> {
        let end = at.checked_add(len);
        end.and_then(|end| self.bytes.get(at..end)).ok_or_else(|| {
            let why = format!(
                "{} bytes long, too short for {len} at {at}",
                self.bytes.len()
            );
            self.damaged(why)
        })
    }

    pub fn array<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.slice(at, N)?);
        Ok(array)
    }

    pub fn u8(&self, at: usize) -> Result<u8> {
        self.array(at).map(u8::from_le_bytes)
    }

    /// A 16-bit number. Of one recorded in both byte orders (7.2.3) the little-endian half, as in Linux: there are images
    /// with a wrong big-endian half.
    pub fn u16(&self, at: usize) -> Result<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    /// A 32-bit number, read as [`Self::u16`] (7.3.3).
    pub fn u32(&self, at: usize) -> Result<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub fn u64(&self, at: usize) -> Result<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// A date and time of 7 bytes (9.1.5).
    pub fn short_time(&self, at: usize) -> Result<Option<Stamp>> {
        let [year, month, day, hour, minute, second, zone] = self.array(at)?;
        Ok(stamp(
            1900 + i64::from(year),
            [month, day, hour, minute, second],
            0,
            zone,
        ))
    }

    /// A date and time of 16 digits and a zone (8.4.26.1).
    pub fn long_time(&self, at: usize) -> Result<Option<Stamp>> {
        let raw: [u8; 17] = self.array(at)?;
        let number = |from: usize, len: usize| {
            let digits = raw.get(from..from + len)?;
            digits.iter().try_fold(0_u16, |sum, digit| {
                let digit = digit.is_ascii_digit().then(|| digit - b'0')?;
                Some(sum * 10 + u16::from(digit))
            })
        };
        let parts = || {
            let year = number(0, 4)?;
            let mut parts = [0; 5];
            for (part, at) in parts.iter_mut().zip([4, 6, 8, 10, 12]) {
                *part = number(at, 2)? as u8;
            }
            Some((year, parts, number(14, 2)?))
        };
        Ok(parts().and_then(|(year, parts, hundredths)| {
            let nsec = u32::from(hundredths) * 10_000_000;
            stamp(i64::from(year), parts, nsec, raw[16])
        }))
    }
}

/// `None` where the fields are not a date: all zero means "not given". `zone` is in quarters of an hour east of
/// Greenwich; as in Linux, an impossible zone counts as 0.
fn stamp(year: i64, parts: [u8; 5], nsec: u32, zone: u8) -> Option<Stamp> {
    let [month, day, hour, minute, second] = parts.map(i64::from);
    let valid = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    if !valid {
        return None;
    }
    let zone = i64::from(zone.cast_signed());
    let zone = if (-52..=52).contains(&zone) { zone } else { 0 };
    // Days since 1970-01-01 of the proleptic Gregorian calendar, in years that begin with March.
    let (year, month) = match month {
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
        - 1
        - 719_468;
    let sec = days * 86_400 + hour * 3_600 + minute * 60 + second - zone * 900;
    Some(Stamp { sec, nsec })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(bytes: [u8; 7]) -> Option<i64> {
        let fields = Fields::new(Record::DirectoryRecord, 0, &bytes);
        fields.short_time(0).unwrap().map(|stamp| stamp.sec)
    }

    fn long(text: &[u8; 16], zone: i8) -> Option<Stamp> {
        let mut bytes = text.to_vec();
        bytes.push(zone.cast_unsigned());
        let fields = Fields::new(Record::VolumeDescriptor, 0, &bytes);
        fields.long_time(0).unwrap()
    }

    #[test]
    fn short_times() {
        assert_eq!(short([70, 1, 1, 0, 0, 0, 0]), Some(0));
        assert_eq!(short([0, 1, 1, 0, 0, 0, 0]), Some(-2_208_988_800));
        assert_eq!(short([100, 2, 29, 12, 34, 56, 0]), Some(951_827_696));
        // Berlin in summer, and Newfoundland, half an hour off.
        assert_eq!(short([124, 7, 1, 2, 0, 0, 8]), Some(1_719_792_000));
        let west = (-14_i8).cast_unsigned();
        assert_eq!(
            short([124, 7, 1, 0, 0, 0, west]),
            Some(1_719_792_000 + 12_600)
        );
        assert_eq!(short([70, 1, 1, 0, 0, 0, 100]), Some(0), "no such zone");
        assert_eq!(short([0; 7]), None);
        assert_eq!(short([100, 13, 1, 0, 0, 0, 0]), None);
        assert_eq!(short([255, 12, 31, 23, 59, 60, 0]), Some(5_869_583_999 + 1));
    }

    #[test]
    fn long_times() {
        let at = |sec, nsec| Some(Stamp { sec, nsec });
        assert_eq!(long(b"1970010100000099", 0), at(0, 990_000_000));
        assert_eq!(long(b"2024070102000000", 8), at(1_719_792_000, 0));
        assert_eq!(long(b"0000000000000000", 0), None);
        assert_eq!(long(b"2024 70102000000", 0), None);
        assert_eq!(long(&[0; 16], 0), None);
    }

    #[test]
    fn what_is_too_short_is_said_with_its_place() {
        let fields = Fields::new(Record::SystemUse(*b"PX"), 77, &[1, 2, 3]);
        let text = fields.u32(0).unwrap_err().to_string();
        assert_eq!(
            text,
            "System Use field PX at byte 77: 3 bytes long, too short for 4 at 0"
        );
        assert!(fields.slice(usize::MAX, 2).is_err());
    }
}
