//! Tests of the sizes in CONTRIBUTING.md: lines of a file, and files of a directory. Clippy checks the lines of a function
//! (`too-many-lines-threshold` in `clippy.toml`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::ci::workspace;

const LINES_PER_FILE: usize = 700;

const FILES_PER_DIRECTORY: usize = 12;

/// The sources below `directory`, in Rust, C and assembly, without those that cargo has built.
fn sources_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources_below(&path, found);
        } else if path.extension().is_some_and(|extension| {
            let languages = ["rs", "c", "h", "S"];
            languages.iter().any(|language| extension == *language)
        }) {
            found.push(path);
        }
    }
}

/// The sources of the workspace, relative to it.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    sources_below(&workspace(), &mut found);
    assert!(found.len() > 500, "{}", found.len());
    let relative = |file: PathBuf| file.strip_prefix(workspace()).unwrap().to_owned();
    found.into_iter().map(relative).collect()
}

#[test]
fn files_can_be_read_in_one_sitting() {
    let lines = |file: &Path| {
        let text = fs::read_to_string(workspace().join(file)).unwrap();
        text.lines().count()
    };
    let counted = sources().into_iter().map(|file| (lines(&file), file));
    let long: Vec<_> = counted
        .filter(|(lines, _)| *lines > LINES_PER_FILE)
        .collect();
    assert!(long.is_empty(), "{long:#?}");
}

/// The files of directories `tests` and `programs` are not counted: each is a program of its own.
#[test]
fn directories_show_at_most_a_dozen_files() {
    let mut directories = BTreeMap::<PathBuf, usize>::new();
    for file in sources() {
        let directory = file.parent().unwrap();
        if !directory.ends_with("tests") && !directory.ends_with("programs") {
            *directories.entry(directory.to_owned()).or_default() += 1;
        }
    }
    let is_large = |files: &usize| *files > FILES_PER_DIRECTORY;
    let large = directories.iter().filter(|(_, files)| is_large(files));
    let large: Vec<_> = large.map(|(directory, _)| directory.as_path()).collect();
    assert!(large.is_empty(), "{large:#?}");
}
