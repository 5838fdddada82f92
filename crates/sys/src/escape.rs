//! Escapes names, paths and messages, so that they are safe on a terminal.

use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::Errno;

/// Escapes a name or a path for a terminal: bytes that are not printable UTF-8 become `\n`, `\t` or `\xNN`, and a backslash becomes `\\`, so that
/// two different names never look alike.
pub fn escape(bytes: &[u8]) -> String {
    render(bytes, |c| c == '\\' || is_unsafe(c))
}

/// [`escape`] for a host path.
pub fn escape_path(path: &Path) -> String {
    escape(path.as_os_str().as_bytes())
}

/// The system's description of `error`, without the number that [`io::Error`] adds.
pub fn io_error_text(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => Errno::from_raw(code).desc().to_owned(),
        None => error.to_string(),
    }
}

/// Escapes the rest of a message in which names are escaped already: all that is not safe on a terminal, or would end the line.
pub fn escape_message(text: &str) -> String {
    render(text.as_bytes(), is_unsafe)
}

/// `bytes` as text in which only invalid UTF-8 is written as `\xNN`.
pub fn escape_invalid(bytes: &[u8]) -> String {
    render(bytes, |_| false)
}

/// Whether the character controls a terminal, ends a line, or changes the order in which text is shown.
fn is_unsafe(c: char) -> bool {
    let reorders =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || reorders || matches!(c, '\u{2028}' | '\u{2029}')
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
    fn names_are_harmless_and_distinct() {
        let cases: &[(&[u8], &str)] = &[
            (b"plain", "plain"),
            ("gr\u{fc}n".as_bytes(), "gr\u{fc}n"),
            (b"a\nb\tc", "a\\nb\\tc"),
            (b"a\\nb", "a\\\\nb"),
            (b"\x1b[31m", "\\x1b[31m"),
            (b"\xff\xfeok", "\\xff\\xfeok"),
            ("\u{9b}31m".as_bytes(), "\\xc2\\x9b31m"),
            ("\u{202e}gpj.exe".as_bytes(), "\\xe2\\x80\\xaegpj.exe"),
            (b"", ""),
        ];
        for (bytes, shown) in cases {
            assert_eq!(escape(bytes), *shown);
        }
    }

    #[test]
    fn messages_keep_what_is_escaped_and_stay_one_line() {
        let text = format!("{}: failed\n\x1b[2J", escape(b"a\\b\n"));
        assert_eq!(escape_message(&text), "a\\\\b\\n: failed\\n\\x1b[2J");
    }
}
