//! Names and paths are bytes: writes them to JSON without loss.

use std::fmt::Write as _;

use serde_json::{Map, Value};

pub use goanna_vfs::{escape, escape_invalid as lossy, escape_path};

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

#[cfg(test)]
mod tests {
    use super::*;

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
