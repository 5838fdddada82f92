//! Comparison: what is otherwise in a place than natively, and which of it is explained.

use std::collections::{BTreeMap, BTreeSet};

use super::outcome::{KINDS, Outcomes};

/// The outcome of a case that a suite does not report.
const MISSING: &str = "did not run";

/// The native outcomes of each case, over several runs. A case that is not the same in each run has several.
#[derive(Debug, Default)]
pub struct Reference {
    cases: BTreeMap<String, BTreeSet<String>>,
}

/// A case that has another outcome in a place than natively.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The case's name.
    pub case: String,
    /// The outcome natively, or several with `or` between them.
    pub native: String,
    /// The outcome in the place.
    pub here: String,
    /// Why that is so, if the list of explained differences says so.
    pub why: Option<String>,
}

impl Reference {
    /// The reference that these native runs of a suite make.
    pub fn new(runs: &[Outcomes]) -> Self {
        let mut cases: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for case in runs.iter().flat_map(BTreeMap::keys) {
            let outcome = |run: &Outcomes| run.get(case).map_or(MISSING, String::as_str).to_owned();
            cases
                .entry(case.clone())
                .or_insert_with(|| runs.iter().map(outcome).collect());
        }
        Self { cases }
    }

    /// Number of cases.
    pub fn len(&self) -> usize {
        self.cases.len()
    }

    /// The cases whose native outcomes differ from run to run.
    pub fn unsteady(&self) -> impl Iterator<Item = &str> {
        let cases = self.cases.iter().filter(|(_, outcomes)| outcomes.len() > 1);
        cases.map(|(case, _)| case.as_str())
    }

    /// How many cases pass, are skipped and fail natively, in words. Unsteady cases count by their best outcome.
    pub fn summary(&self) -> String {
        let count = |kind: &str| {
            let best = |outcomes: &BTreeSet<String>| {
                KINDS
                    .into_iter()
                    .find(|kind| outcomes.iter().any(|outcome| outcome.starts_with(kind)))
            };
            self.cases
                .values()
                .filter(|outcomes| best(outcomes) == Some(kind))
                .count()
        };
        let counts = KINDS.map(|kind| (count(kind), kind));
        let words = counts.iter().filter(|(count, _)| *count > 0);
        words
            .map(|(count, kind)| format!("{count} {kind}"))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// The cases with an outcome in `here` that no native run had.
    pub fn differences(&self, here: &Outcomes) -> Vec<Difference> {
        let names: BTreeSet<&String> = self.cases.keys().chain(here.keys()).collect();
        let missing = BTreeSet::from([MISSING.to_owned()]);
        let mut differences = Vec::new();
        for case in names {
            let native = self.cases.get(case).unwrap_or(&missing);
            let outcome = here.get(case).map_or(MISSING, String::as_str);
            if !native.contains(outcome) {
                let native: Vec<&str> = native.iter().map(String::as_str).collect();
                differences.push(Difference {
                    case: case.clone(),
                    native: native.join(" or "),
                    here: outcome.to_owned(),
                    why: None,
                });
            }
        }
        differences
    }
}

/// The list of explained differences, `tests/known-suites.txt`.
#[derive(Debug, Default)]
pub struct Known {
    entries: Vec<Entry>,
}

/// A line of the list.
#[derive(Debug)]
struct Entry {
    suite: String,
    /// Words for places, all of which must hold; `*` holds everywhere.
    places: Vec<String>,
    /// A case's name, or the beginning of some before a `*`.
    case: String,
    why: String,
}

impl Known {
    /// Reads `SUITE PLACES CASE REASON`, one a line; lines that begin with `#` are comments.
    ///
    /// # Errors
    ///
    /// The first line that has another form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let entry = |line: &str| {
            let mut words = line
                .splitn(4, ' ')
                .filter(|word| !word.is_empty())
                .map(str::to_owned);
            Some(Entry {
                suite: words.next()?,
                places: words.next()?.split(',').map(str::to_owned).collect(),
                case: words.next()?,
                why: words.next()?,
            })
        };
        let entries = lines.map(|line| entry(line).ok_or_else(|| line.to_owned()));
        Ok(Self {
            entries: entries.collect::<Result<_, _>>()?,
        })
    }

    /// Explains those of `differences` that the list has, for a place that `words` describe.
    pub fn explain(&self, suite: &str, words: &[&str], differences: &mut [Difference]) {
        for difference in differences {
            let entry = self.entries.iter().find(|entry| {
                entry.suite == suite && entry.is_for(words) && entry.is_of(&difference.case)
            });
            difference.why = entry.map(|entry| entry.why.clone());
        }
    }
}

impl Entry {
    fn is_for(&self, words: &[&str]) -> bool {
        self.places
            .iter()
            .all(|place| place == "*" || words.contains(&place.as_str()))
    }

    fn is_of(&self, case: &str) -> bool {
        match self.case.strip_suffix('*') {
            Some(beginning) => case.starts_with(beginning),
            None => case == self.case,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(cases: &[(&str, &str)]) -> Outcomes {
        let cases = cases.iter();
        cases
            .map(|(case, outcome)| ((*case).to_owned(), (*outcome).to_owned()))
            .collect()
    }

    #[test]
    fn only_what_no_native_run_had_differs() {
        let first = outcomes(&[("a", "pass"), ("b", "pass"), ("c", "skip"), ("d", "pass")]);
        let second = outcomes(&[("a", "pass"), ("b", "fail"), ("c", "skip"), ("d", "pass")]);
        let reference = Reference::new(&[first, second]);
        assert_eq!(reference.len(), 4);
        assert_eq!(reference.unsteady().collect::<Vec<_>>(), ["b"]);
        assert_eq!(reference.summary(), "3 pass, 1 skip");
        let here = outcomes(&[("a", "fail"), ("b", "fail"), ("c", "skip"), ("e", "pass")]);
        let found: Vec<String> = reference
            .differences(&here)
            .into_iter()
            .map(|found| format!("{}: {}; {}", found.case, found.native, found.here))
            .collect();
        assert_eq!(
            found,
            [
                "a: pass; fail",
                "d: pass; did not run",
                "e: did not run; pass"
            ]
        );
    }

    #[test]
    fn a_case_that_only_one_native_run_has_may_be_missing() {
        let reference = Reference::new(&[outcomes(&[("a", "pass")]), outcomes(&[])]);
        assert_eq!(reference.differences(&outcomes(&[])), []);
    }

    #[test]
    fn explanations_are_for_suite_place_and_case() {
        let known = Known::parse(
            "# a comment\n\ns pass,notify a it is so\ns * dir/* names that begin so\n",
        )
        .unwrap();
        let explained = |suite: &str, words: &[&str], case: &str| {
            let mut differences = Reference::default().differences(&outcomes(&[(case, "fail")]));
            known.explain(suite, words, &mut differences);
            differences[0].why.clone().unwrap_or_default()
        };
        assert_eq!(explained("s", &["pass", "notify", "root"], "a"), "it is so");
        assert_eq!(explained("s", &["pass", "ptrace", "root"], "a"), "");
        assert_eq!(explained("t", &["pass", "notify", "root"], "a"), "");
        assert_eq!(explained("s", &["pass", "notify", "root"], "ab"), "");
        assert_eq!(explained("s", &["aes"], "dir/x"), "names that begin so");
    }

    #[test]
    fn a_difference_without_a_reason_is_refused() {
        assert_eq!(Known::parse("s * a\n").unwrap_err(), "s * a");
    }
}
