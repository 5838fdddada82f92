//! Names as users see them.
//!
//! * **Rock Ridge**: the bytes that are recorded, whatever they are.
//! * **Joliet**: UTF-16 to UTF-8; a surrogate without its other half becomes the three bytes that UTF-8 would give it,
//!   so that different names stay different. A version is dropped.
//! * **Plain**: as Linux's `map=normal`: letters A to Z in lower case, the version `;1` and then a trailing dot dropped,
//!   a slash (broken Acorn discs) shown as a dot. A higher version stays: `readme.txt;2`.
//!
//! A name longer than 255 bytes, which Joliet can have, is cut and gets `~` and the place of its record, in hexadecimal.
//! A name that no directory can show (empty, `.`, `..`, with NUL or slash) is damage.

use crate::format::fields::Fields;
use crate::{Error, Record, Result};
use goanna_vfs::NAME_MAX;

/// An identifier of a primary descriptor, without its padding. The bytes are mostly ASCII; others are shown as Latin-1.
pub(crate) fn plain_text(raw: &[u8]) -> String {
    let text: String = raw.iter().map(|byte| char::from(*byte)).collect();
    text.trim_end_matches([' ', '\0']).to_owned()
}

/// An identifier of a Joliet descriptor. An odd last byte, which fields of 37 bytes have, is padding.
pub(crate) fn joliet_text(raw: &[u8]) -> String {
    let text = String::from_utf16_lossy(&units(raw));
    text.trim_end_matches([' ', '\0']).to_owned()
}

fn units(raw: &[u8]) -> Vec<u16> {
    let pairs = raw.chunks_exact(2);
    pairs
        .map(|pair| {
            pair.iter()
                .fold(0, |unit, byte| unit << 8 | u16::from(*byte))
        })
        .collect()
}

/// The name of a record in the plain name space.
pub(crate) fn plain(record: Fields<'_>, identifier: &[u8]) -> Result<Vec<u8>> {
    let mut name = identifier.strip_suffix(b";1").unwrap_or(identifier);
    name = name.strip_suffix(b".").unwrap_or(name);
    if name.is_empty() {
        name = identifier;
    }
    let shown = |byte: &u8| match byte {
        b'/' => b'.',
        byte => byte.to_ascii_lowercase(),
    };
    check(record, name.iter().map(shown).collect())
}

/// The name of a record in the Joliet name space.
pub(crate) fn joliet(record: Fields<'_>, identifier: &[u8]) -> Result<Vec<u8>> {
    if !identifier.len().is_multiple_of(2) {
        let why = format!("a Joliet name of {} bytes, an odd number", identifier.len());
        return Err(record.damaged(why));
    }
    let mut units = units(identifier);
    if let Some(at) = units.iter().rposition(|unit| *unit == u16::from(b';')) {
        let is_version = |units: &[u16]| {
            let digit = |unit: &u16| (0x30..=0x39).contains(unit);
            !units.is_empty() && units.iter().all(digit)
        };
        if at > 0 && units.get(at + 1..).is_some_and(is_version) {
            units.truncate(at);
        }
    }
    let mut name = Vec::with_capacity(units.len() * 3);
    for decoded in char::decode_utf16(units) {
        match decoded {
            Ok(c) => name.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            Err(half) => {
                let unit = half.unpaired_surrogate();
                name.extend([
                    0xe0 | (unit >> 12) as u8,
                    0x80 | (unit >> 6 & 0x3f) as u8,
                    0x80 | (unit & 0x3f) as u8,
                ]);
            }
        }
    }
    check(record, name)
}

/// The name of a record in the Rock Ridge name space.
pub(crate) fn rock_ridge(record: Fields<'_>, name: Vec<u8>) -> Result<Vec<u8>> {
    check(record, name)
}

fn check(record: Fields<'_>, name: Vec<u8>) -> Result<Vec<u8>> {
    let fail = |what: &str| {
        let why = format!("the name \"{}\" {what}", name.escape_ascii());
        Err(Error::damaged(Record::DirectoryRecord, record.offset, why))
    };
    match name.as_slice() {
        b"" => fail("is empty"),
        b"." | b".." => fail("is reserved"),
        name if name.contains(&0) => fail("holds a NUL"),
        name if name.contains(&b'/') => fail("holds a slash"),
        _ => Ok(shorten(record, name)),
    }
}

fn shorten(record: Fields<'_>, mut name: Vec<u8>) -> Vec<u8> {
    if name.len() > NAME_MAX {
        let suffix = format!("~{:x}", record.offset);
        let mut len = NAME_MAX - suffix.len();
        // Not within a character of UTF-8.
        while len > 0 && name.get(len).is_some_and(|byte| byte & 0xc0 == 0x80) {
            len -= 1;
        }
        name.truncate(len);
        name.extend_from_slice(suffix.as_bytes());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: Fields<'static> = Fields {
        bytes: &[],
        offset: 0xabc,
        record: Record::DirectoryRecord,
    };

    fn ucs2(text: &str) -> Vec<u8> {
        text.encode_utf16().flat_map(u16::to_be_bytes).collect()
    }

    #[test]
    fn plain_names() {
        let cases: [(&[u8], &[u8]); 8] = [
            (b"README.TXT;1", b"readme.txt"),
            (b"README.;1", b"readme"),
            (b"README", b"readme"),
            (b"README.TXT;2", b"readme.txt;2"),
            (b"A/B;1", b"a.b"),
            (b"DIR", b"dir"),
            (b";1", b";1"),
            (b"\xc4X.;1", b"\xc4x"),
        ];
        for (raw, name) in cases {
            assert_eq!(plain(RECORD, raw).unwrap(), name, "{}", raw.escape_ascii());
        }
    }

    #[test]
    fn joliet_names() {
        let name = |text: &str| joliet(RECORD, &ucs2(text));
        assert_eq!(name("Grüße.txt;1").unwrap(), "Grüße.txt".as_bytes());
        assert_eq!(name("日本").unwrap(), "日本".as_bytes());
        assert_eq!(name("a;b").unwrap(), b"a;b");
        assert_eq!(name("😀").unwrap(), "😀".as_bytes());
        let halves = [0xd8, 0x3d, 0, b'x', 0xde, 0];
        assert_eq!(
            joliet(RECORD, &halves).unwrap(),
            b"\xed\xa0\xbdx\xed\xb8\x80"
        );
        let odd = joliet(RECORD, b"\0a\0").unwrap_err().to_string();
        assert_eq!(
            odd,
            "directory record at byte 2748: a Joliet name of 3 bytes, an odd number"
        );
    }

    #[test]
    fn names_that_cannot_be() {
        for raw in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            let error = rock_ridge(RECORD, raw.to_vec()).unwrap_err();
            assert!(error.to_string().contains("at byte 2748"), "{error}");
        }
        assert!(plain(RECORD, b"A\0B").is_err());
        assert!(joliet(RECORD, &ucs2("a/b")).is_err());
    }

    #[test]
    fn long_names_are_cut_and_stay_different() {
        let name = joliet(RECORD, &ucs2(&"語".repeat(103))).unwrap();
        assert!(name.len() <= NAME_MAX && name.len() > NAME_MAX - 4);
        let text = String::from_utf8(name).unwrap();
        assert!(text.ends_with("語~abc"), "{text}");
        assert_eq!(rock_ridge(RECORD, vec![b'n'; 255]).unwrap(), [b'n'; 255]);
        assert_eq!(rock_ridge(RECORD, vec![0xff; 300]).unwrap().len(), 255);
    }
}
