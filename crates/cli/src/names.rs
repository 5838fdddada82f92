//! Names and paths are bytes: how they are shown to people and written to JSON without loss.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Map, Value};

/// `bytes` as text that is safe on a terminal: whatever is no printable UTF-8 becomes `\n`, `\t` or `\xNN`,
/// and a backslash `\\`, so that two different names never look alike.
pub fn escape(bytes: &[u8]) -> String {
    render(bytes, |c| {
        c.is_control() || c == '\\' || reorders(c) || matches!(c, '\u{2028}' | '\u{2029}')
    })
}

/// [`escape`] for a host path.
pub fn escape_path(path: &Path) -> String {
    escape(path.as_os_str().as_bytes())
}

/// `bytes` as text in which only what is no UTF-8 is written `\xNN`.
pub fn lossy(bytes: &[u8]) -> String {
    render(bytes, |_| false)
}

/// Puts `bytes` into a JSON object under `key`, and in hexadecimal under `key_bytes` when they are not UTF-8.
pub fn put(map: &mut Map<String, Value>, key: &str, bytes: &[u8]) {
    map.insert(key.to_owned(), lossy(bytes).into());
    if std::str::from_utf8(bytes).is_err() {
        map.insert(format!("{key}_bytes"), hex(bytes).into());
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Marks that make a terminal show text in another order than it is.
fn reorders(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn render(bytes: &[u8], special: impl Fn(char) -> bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                c if !special(c) => text.push(c),
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\\' => text.push_str("\\\\"),
                c => {
                    let mut buffer = [0; 4];
                    push_bytes(&mut text, c.encode_utf8(&mut buffer).as_bytes());
                }
            }
        }
        push_bytes(&mut text, chunk.invalid());
    }
    text
}

fn push_bytes(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(text, "\\x{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_names_are_harmless_and_distinct() {
        let cases: &[(&[u8], &str)] = &[
            (b"plain", "plain"),
            ("gr\u{fc}n".as_bytes(), "gr\u{fc}n"),
            (b"a\nb\tc", "a\\nb\\tc"),
            (b"a\\nb", "a\\\\nb"),
            (b"\x1b[31m", "\\x1b[31m"),
            (b"\xff\xfeok", "\\xff\\xfeok"),
            ("\u{202e}gpj.exe".as_bytes(), "\\xe2\\x80\\xaegpj.exe"),
            (b"", ""),
        ];
        for (bytes, shown) in cases {
            assert_eq!(escape(bytes), *shown);
        }
    }

    #[test]
    fn json_keeps_every_byte() {
        let mut map = Map::new();
        put(&mut map, "name", b"a\xffb\\");
        put(&mut map, "path", b"/a\\b\n");
        assert_eq!(map["name"], "a\\xffb\\");
        assert_eq!(map["name_bytes"], "61ff625c");
        assert_eq!(map["path"], "/a\\b\n");
        assert!(!map.contains_key("path_bytes"));
    }
}
