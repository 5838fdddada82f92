//! `cargo xtask isolation-mutants`: breaks the isolation of transactions in a copy of the workspace, in one way after the other, and
//! checks that the tests of isolation fail.

mod table;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ci::{Error, cargo, workspace};
use table::{Edit, MUTANTS, Mutant};

const STEP: &str = "isolation-mutants";

/// Histories for each mutant: if one lock is missing, one history in a few hundred has no serial order.
const HISTORIES: &str = "6000";

/// Directories that are not copied.
const LEFT_OUT: [&str; 2] = [".git", "target"];

/// The result of the tests for one mutant.
#[derive(Default)]
struct Verdicts {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
    /// The failed tests that have seen an anomaly. The other failed tests have seen that no transaction waited, or another result.
    anomalies: BTreeSet<String>,
}

/// Runs the tests with the mutants whose names contain `only`, and prints which of them failed.
///
/// # Errors
///
/// The tests fail without a mutant; a mutant does not fit the source; or a test that must fail has passed.
pub fn run(only: &str) -> Result<(), Error> {
    let tree = workspace().join("target").join(STEP);
    copy(&workspace(), &tree)?;
    let sound = test(&tree)?;
    if let Some(test) = sound.failed.first() {
        return Err(undetected("nothing", &format!("{test} failed")));
    }
    let mut idle = sound.passed;
    let mut missed = Vec::new();
    for mutant in MUTANTS.iter().filter(|mutant| mutant.name.contains(only)) {
        let verdicts = test_mutant(&tree, mutant)?;
        report(mutant, &verdicts);
        for test in mutant.fails {
            if !verdicts.failed.contains(*test) {
                missed.push(undetected(mutant.name, &format!("{test} passed")));
            }
        }
        idle.retain(|test| !verdicts.failed.contains(test));
    }
    if only.is_empty() {
        missed.extend(
            idle.iter()
                .map(|test| undetected("anything", &format!("{test} passed"))),
        );
    }
    missed.into_iter().next().map_or(Ok(()), Err)
}

fn report(mutant: &Mutant, verdicts: &Verdicts) {
    println!("{}:", mutant.name);
    for test in &verdicts.failed {
        let what = if verdicts.anomalies.contains(test) {
            "anomaly"
        } else {
            "no wait, or another answer"
        };
        println!("    {test}: {what}");
    }
    for test in mutant.fails {
        if !verdicts.failed.contains(*test) {
            println!("    {test}: PASSED, AND SHOULD NOT");
        }
    }
}

fn undetected(mutant: &str, why: &str) -> Error {
    Error::Mutant {
        step: STEP.to_owned(),
        mutant: mutant.to_owned(),
        why: why.to_owned(),
    }
}

fn test_mutant(tree: &Path, mutant: &Mutant) -> Result<Verdicts, Error> {
    let mut originals = Vec::new();
    for Edit {
        file,
        find,
        replace,
    } in mutant.edits
    {
        let path = tree.join(file);
        let text = fs::read_to_string(&path).map_err(at(&path))?;
        if text.matches(find).count() != 1 {
            let why = format!("{file} does not have this once: {find}");
            return Err(undetected(mutant.name, &why));
        }
        fs::write(&path, text.replace(find, replace)).map_err(at(&path))?;
        originals.push((path, text));
    }
    let verdicts = test(tree);
    for (path, text) in originals.into_iter().rev() {
        fs::write(&path, text).map_err(at(&path))?;
    }
    let verdicts = verdicts?;
    if verdicts.failed.is_empty() {
        return Err(undetected(mutant.name, "no test failed"));
    }
    Ok(verdicts)
}

/// Runs the tests in `tree`. An end that no test has caused, such as an error of the compiler, is an error.
fn test(tree: &Path) -> Result<Verdicts, Error> {
    let mut verdicts = Verdicts::default();
    for arguments in [
        &["--test", "anomalies"][..],
        &["--test", "isolation", "random_histories_are_serialisable"],
    ] {
        let mut command = cargo(&["test", "--package", "goanna-tests"]);
        command
            .args(arguments)
            .current_dir(tree)
            .env("CARGO_TARGET_DIR", tree.join("target"))
            .env("ISOLATION_HISTORIES", HISTORIES)
            .env("RUST_BACKTRACE", "0");
        read_verdicts(&mut command, &mut verdicts)?;
    }
    Ok(verdicts)
}

fn read_verdicts(command: &mut Command, verdicts: &mut Verdicts) -> Result<(), Error> {
    let output = command.output().map_err(at(Path::new("cargo")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let before = verdicts.failed.len();
    let mut current = String::new();
    for line in text.lines() {
        match line
            .strip_prefix("test ")
            .and_then(|line| line.split_once(" ... "))
        {
            Some((test, "ok")) => verdicts.passed.insert(test.to_owned()),
            Some((test, "FAILED")) => verdicts.failed.insert(test.to_owned()),
            _ => false,
        };
        let section = line.strip_prefix("---- ");
        if let Some(test) = section.and_then(|line| line.strip_suffix(" stdout ----")) {
            test.clone_into(&mut current);
        }
        if line.contains("no serial order") || line.contains("fsck: ") {
            verdicts.anomalies.insert(current.clone());
        }
    }
    if !output.status.success() && verdicts.failed.len() == before {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        return Err(Error::Failed {
            step: STEP.to_owned(),
            command: crate::ci::typed(command),
            status: output.status,
        });
    }
    Ok(())
}

/// Copies a directory. Files that exist with the same content stay unchanged, so that they are not compiled again.
fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    fs::create_dir_all(to).map_err(at(to))?;
    for entry in fs::read_dir(from).map_err(at(from))? {
        let entry = entry.map_err(at(from))?;
        let (path, name) = (entry.path(), entry.file_name());
        if LEFT_OUT.iter().any(|left_out| name == **left_out) {
            continue;
        }
        let target = to.join(&name);
        let kind = entry.file_type().map_err(at(&path))?;
        if kind.is_dir() {
            copy(&path, &target)?;
            continue;
        }
        if kind.is_symlink() {
            // Data of tests, which may lead nowhere.
            let link = fs::read_link(&path).map_err(at(&path))?;
            if fs::read_link(&target).ok().as_ref() != Some(&link) {
                symlink(link, &target).map_err(at(&target))?;
            }
            continue;
        }
        let content = fs::read(&path).map_err(at(&path))?;
        if fs::read(&target).ok().as_ref() != Some(&content) {
            fs::write(&target, content).map_err(at(&target))?;
        }
    }
    Ok(())
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path: PathBuf = path.to_owned();
    move |source| Error::Io {
        step: STEP.to_owned(),
        command: path.display().to_string(),
        source,
    }
}

/// The mutants named files that had been moved, and text that had been renamed, so that the task itself failed.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_lead_nowhere_are_copied() {
        let scratch = tempfile::tempdir().unwrap();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        fs::create_dir_all(from.join("d")).unwrap();
        symlink("nowhere", from.join("d/link")).unwrap();
        fs::write(from.join("d/file"), "text").unwrap();
        for _ in 0..2 {
            copy(&from, &to).unwrap();
            assert_eq!(
                fs::read_link(to.join("d/link")).unwrap(),
                Path::new("nowhere")
            );
            assert_eq!(fs::read(to.join("d/file")).unwrap(), b"text");
        }
    }

    #[test]
    fn each_edit_of_a_mutant_fits_the_sources_once() {
        let edits = MUTANTS.iter().flat_map(|mutant| mutant.edits);
        let misfits: Vec<_> = edits
            .map(|edit| {
                let source = fs::read_to_string(workspace().join(edit.file)).unwrap_or_default();
                (source.matches(edit.find).count(), edit.file, edit.find)
            })
            .filter(|&(places, ..)| places != 1)
            .collect();
        assert!(misfits.is_empty(), "{misfits:#?}");
    }
}
