//! The table of suites in docs/compatibility.md.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::Judged;
use super::run::BACKENDS;

const BEGIN: &str = "<!-- cargo xtask judge --write-table -->\n";
const END: &str = "<!-- end -->\n";

/// Puts the rows of `results` between the two marks of the file. Rows of other suites stay.
///
/// # Errors
///
/// A file that cannot be read or written, or has no marks.
pub fn write(path: &Path, results: &[Judged]) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let text = fs::read_to_string(path).map_err(failed)?;
    let changed = replaced(&text, results)
        .ok_or_else(|| format!("{}: the marks of the table are missing", path.display()))?;
    fs::write(path, changed).map_err(failed)
}

fn replaced(text: &str, results: &[Judged]) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (table, after) = rest.split_once(END)?;
    let mut rows: Vec<(String, String)> = table
        .lines()
        .skip(2)
        .map(|row| (key(row), row.to_owned()))
        .collect();
    for (suite, rights) in suites(results) {
        let row = row(results, suite, rights);
        let key = key(&row);
        match rows.iter_mut().find(|(known, _)| *known == key) {
            Some(known) => known.1 = row,
            None => rows.push((key, row)),
        }
    }
    let names = BACKENDS.map(|(name, _)| name).join(" | ");
    let mut made = format!("{before}{BEGIN}| suite | natively | {names} |\n");
    made += &"|---".repeat(2 + BACKENDS.len());
    made += "|\n";
    for (_, row) in rows {
        made += &format!("{row}\n");
    }
    Some(made + END + after)
}

/// The first cell.
fn key(row: &str) -> String {
    row.split('|').nth(1).unwrap_or_default().trim().to_owned()
}

fn suites(results: &[Judged]) -> Vec<(&'static str, &'static str)> {
    let mut all: Vec<_> = results
        .iter()
        .map(|judged| (judged.suite, judged.rights))
        .collect();
    all.dedup();
    all
}

fn row(results: &[Judged], suite: &str, rights: &str) -> String {
    let of_suite = |judged: &&Judged| judged.suite == suite && judged.rights == rights;
    let natively = results
        .iter()
        .find(of_suite)
        .map_or("", |judged| &judged.natively);
    let mut row = format!("| `{suite}` as {rights} | {natively} |");
    for (backend, _) in BACKENDS {
        let here: Vec<_> = results
            .iter()
            .filter(of_suite)
            .filter(|judged| judged.backend == backend)
            .collect();
        let cases: BTreeSet<_> = here
            .iter()
            .flat_map(|judged| &judged.differences)
            .map(|found| match found.why {
                Some(_) => format!("`{}`", found.case),
                None => format!("`{}` (not explained)", found.case),
            })
            .collect();
        let cell = if here.is_empty() {
            "not run".to_owned()
        } else if cases.is_empty() {
            "as natively".to_owned()
        } else {
            format!(
                "except for {}",
                cases.into_iter().collect::<Vec<_>>().join(", ")
            )
        };
        row += &format!(" {cell} |");
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Difference;

    fn judged(suite: &'static str, backend: &'static str, why: Option<&str>) -> Judged {
        Judged {
            suite,
            backend,
            intercept: "notify",
            rights: "root",
            natively: "2 pass".to_owned(),
            differences: vec![Difference {
                case: "a".to_owned(),
                native: "pass".to_owned(),
                here: "fail".to_owned(),
                why: why.map(str::to_owned),
            }],
        }
    }

    #[test]
    fn rows_of_other_suites_stay() {
        let text = format!(
            "before\n{BEGIN}| suite |\n|---|\n| `s` as root | old |\n| `t` as root | kept |\n{END}after\n"
        );
        let results = [judged("s", "pass", Some("so")), judged("s", "aes", None)];
        assert_eq!(
            replaced(&text, &results).unwrap(),
            format!(
                "before\n{BEGIN}| suite | natively | pass | aes | amino | amino-sled |\n|---|---|---|---|---|---|\n\
                 | `s` as root | 2 pass | except for `a` | except for `a` (not explained) | not run | not run |\n\
                 | `t` as root | kept |\n{END}after\n"
            )
        );
        assert_eq!(replaced("no marks", &results), None);
    }
}
