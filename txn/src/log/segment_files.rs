//! The names of the log's segments in its directory.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;

/// The suffix of the names of segments that the log needs.
pub(super) const SUFFIX: &str = ".seg";

/// The name of segment `number`: 16 hexadecimal digits and the suffix.
pub(super) fn segment_name(number: u64) -> String {
    format!("{number:016x}{SUFFIX}")
}

/// The segments in `dir` whose names end with `suffix`, with their numbers, in ascending order.
pub(super) fn segments(dir: &Path, suffix: &str) -> Result<Vec<(u64, PathBuf)>, Error> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::io("list", dir))? {
        let entry = entry.map_err(Error::io("list", dir))?;
        if let Some(number) = entry
            .file_name()
            .to_str()
            .and_then(|name| segment_number(name, suffix))
        {
            found.push((number, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn segment_number(name: &str, suffix: &str) -> Option<u64> {
    let digits = name
        .strip_suffix(suffix)
        .filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}
