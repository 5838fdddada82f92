//! Messages on stderr. Each line begins with the program's name and is written by one write(2), so that lines of several
//! processes do not mix. Control characters are escaped, so that names cannot control the terminal.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use goanna_vfs::{escape, escape_message, escape_path};

use crate::args::Verbosity;
use crate::error::Error;

static PROGRAM: OnceLock<&'static str> = OnceLock::new();

/// Sets the name that lines begin with.
pub fn set_program_name(program: &'static str) {
    // A test of this process may have set it already.
    let _ = PROGRAM.set(program);
}

/// Writes a line, also with --quiet.
pub fn line(text: &str) {
    show_report(&prefixed(text));
}

/// Writes a note, unless --quiet is given.
pub fn note(text: &str, verbosity: Verbosity) {
    if !verbosity.quiet {
        line(text);
    }
}

/// Writes a failure that does not end the command.
pub fn show_failure(text: &str) {
    line(text);
}

/// Reports damage in a volume, once for each path.
pub fn damage(volume: &Path, path: &[u8], damage: goanna_aesfs::Damage) {
    /// Maximum number of paths that are remembered.
    const MOST: usize = 1000;
    static SEEN: Mutex<BTreeSet<Vec<u8>>> = Mutex::new(BTreeSet::new());
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if seen.len() < MOST && seen.insert(path.to_vec()) {
        let (volume, path) = (escape_path(volume), escape(path));
        line(&format!("{volume}: /{path}: {damage}"));
    }
}

/// Writes an error and its hint.
pub fn show_error(error: &Error) {
    show_failure(&error.to_string());
    if let Some(text) = error.hint() {
        show_hint(&text);
    }
}

/// Writes the hint of the failure before.
pub fn show_hint(text: &str) {
    line(&format!("hint: {text}"));
}

/// Writes a report that is not a message, such as figures that were asked for: lines that end in a newline.
pub fn show_report(text: &str) {
    // If stderr is closed, the error cannot be reported anywhere.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn prefixed(text: &str) -> String {
    let program = PROGRAM.get().copied().unwrap_or("amino");
    format!("{program}: {}\n", escape_message(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_prefix_and_stays_one() {
        assert_eq!(prefixed("a\nb\x1b[0m"), "amino: a\\nb\\x1b[0m\n");
    }
}
