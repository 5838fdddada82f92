//! Comparison of outputs and of trees.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Lines that only one of two outputs has; empty when they agree.
///
/// The order does not count, because processes that run at the same time print at the same time; how often a line
/// occurs does.
pub fn differences(expected: &str, got: &str) -> String {
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    for line in expected.lines() {
        *counts.entry(line).or_default() += 1;
    }
    for line in got.lines() {
        *counts.entry(line).or_default() -= 1;
    }
    let mut text = String::new();
    let surplus = |from: &str, sign: char, wanted: i64| {
        let mut left = counts.clone();
        let mut lines: Vec<(usize, String)> = Vec::new();
        for line in from.lines() {
            let count = left.entry(line).or_default();
            if *count * wanted > 0 {
                *count -= wanted;
                lines.push((line_number(line), format!("{sign} {line}")));
            }
        }
        lines
    };
    let mut lines = surplus(expected, '-', 1);
    lines.extend(surplus(got, '+', -1));
    // By the line of the program, so that the expected result is next to the actual one.
    lines.sort_by_key(|(number, _)| *number);
    for (_, line) in lines {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// The number a step's line begins with, or a large one.
fn line_number(line: &str) -> usize {
    line.split_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(usize::MAX)
}

/// A description of everything below `top`, one line an entry: type, mode, links, owners, size, mtime, content.
///
/// # Panics
///
/// When it cannot be read.
pub fn tree(top: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut entries = BTreeMap::new();
    describe(top, &[], &mut entries);
    entries
}

fn describe(path: &Path, name: &[u8], entries: &mut BTreeMap<Vec<u8>, String>) {
    let meta = fs::symlink_metadata(path).unwrap();
    let kind = meta.file_type();
    let detail = if kind.is_file() {
        let mut hasher = DefaultHasher::new();
        fs::read(path).unwrap().hash(&mut hasher);
        format!(
            "file {} links {} hash {:x}",
            meta.len(),
            meta.nlink(),
            hasher.finish()
        )
    } else if kind.is_symlink() {
        format!(
            "link {:?}",
            fs::read_link(path).unwrap().into_os_string().into_vec()
        )
    } else if kind.is_dir() {
        "directory".to_owned()
    } else if kind.is_fifo() {
        "fifo".to_owned()
    } else if kind.is_socket() {
        "socket".to_owned()
    } else {
        format!("device {}", meta.rdev())
    };
    let line = format!(
        "{detail} mode {:o} owner {}:{} mtime {}.{:09}",
        meta.mode(),
        meta.uid(),
        meta.gid(),
        meta.mtime(),
        meta.mtime_nsec()
    );
    entries.insert(name.to_vec(), line);
    if kind.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            let entry = entry.unwrap();
            let mut below = name.to_vec();
            below.push(b'/');
            below.extend_from_slice(entry.file_name().as_bytes());
            describe(&entry.path(), &below, entries);
        }
    }
}

/// Fails the test unless both trees hold the same.
///
/// # Panics
///
/// If they differ; the message has the lines that only one of them has.
#[track_caller]
pub fn same_tree(expected: &BTreeMap<Vec<u8>, String>, got: &BTreeMap<Vec<u8>, String>) {
    let lines = |tree: &BTreeMap<Vec<u8>, String>| {
        let mut text = String::new();
        for (name, line) in tree {
            let _ = writeln!(text, "{}: {line}", name.escape_ascii());
        }
        text
    };
    let wrong = differences(&lines(expected), &lines(got));
    assert!(
        wrong.is_empty(),
        "the trees differ (- expected, + got):\n{wrong}"
    );
}
