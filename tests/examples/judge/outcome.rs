//! Outcomes: what the output of a suite says of each of its cases.

use std::collections::BTreeMap;

/// The outcome of each case, by the case's name. An outcome begins with the word `pass`, `skip` or `fail`.
pub type Outcomes = BTreeMap<String, String>;

/// How a suite's output names its cases and their outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `==> CASE OUTCOME`, as the functions of `suites/common.sh` print it.
    Lines,
    /// `CASE ok`, `CASE FAILED` or `CASE skipped`.
    Pjdfstest,
    /// `--- PASS: CASE (0.00s)`. A line `=== PACKAGE NAME` begins the cases of another package.
    Go,
    /// `PASS: CASE`, as automake's test driver prints it.
    Automake,
    /// JUnit's XML, one element `testcase` for each case.
    Junit,
}

impl Format {
    /// The outcomes that `output` reports. Other lines are left out. Of a case that is reported twice, the worse outcome counts.
    pub fn outcomes(self, output: &str) -> Outcomes {
        let mut outcomes = Outcomes::new();
        let cases: Vec<(String, String)> = match self {
            Self::Lines => output.lines().filter_map(marked).collect(),
            Self::Pjdfstest => output.lines().filter_map(pjdfstest).collect(),
            Self::Go => go(output),
            Self::Automake => output.lines().filter_map(automake).collect(),
            Self::Junit => output
                .split("<testcase ")
                .skip(1)
                .filter_map(junit)
                .collect(),
        };
        for (case, outcome) in cases {
            let kept = outcomes.entry(case).or_insert_with(|| outcome.clone());
            if rank(&outcome) > rank(kept) {
                *kept = outcome;
            }
        }
        outcomes
    }
}

/// The kinds of outcomes, from good to bad.
pub const KINDS: [&str; 3] = ["pass", "skip", "fail"];

/// The position in [`KINDS`].
fn rank(outcome: &str) -> usize {
    KINDS
        .iter()
        .position(|kind| outcome.starts_with(kind))
        .unwrap_or(KINDS.len())
}

fn pair(case: &str, outcome: &str) -> Option<(String, String)> {
    (!case.is_empty()).then(|| (case.to_owned(), outcome.to_owned()))
}

fn marked(line: &str) -> Option<(String, String)> {
    let (case, outcome) = line.strip_prefix("==> ")?.split_once(' ')?;
    pair(case, outcome)
}

fn pjdfstest(line: &str) -> Option<(String, String)> {
    let mut words = line.split_ascii_whitespace();
    let (case, word) = (words.next()?, words.next()?);
    // Details of a failure are indented.
    if words.next().is_some() || line.starts_with(char::is_whitespace) {
        return None;
    }
    let outcome = match word {
        "ok" => "pass",
        "skipped" => "skip",
        "FAILED" => "fail",
        _ => return None,
    };
    pair(case, outcome)
}

fn go(output: &str) -> Vec<(String, String)> {
    let mut package = String::new();
    let mut cases = Vec::new();
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("=== PACKAGE ") {
            package = format!("{name}.");
        }
        let Some((word, rest)) = line
            .trim_start()
            .strip_prefix("--- ")
            .and_then(|rest| rest.split_once(": "))
        else {
            continue;
        };
        let outcome = match word {
            "PASS" => "pass",
            "SKIP" => "skip",
            "FAIL" => "fail",
            _ => continue,
        };
        if let Some(case) = rest.split_ascii_whitespace().next() {
            cases.push((format!("{package}{case}"), outcome.to_owned()));
        }
    }
    cases
}

fn automake(line: &str) -> Option<(String, String)> {
    let (word, case) = line.split_once(": ")?;
    let outcome = match word {
        "PASS" | "XFAIL" => "pass",
        "SKIP" => "skip",
        "FAIL" | "XPASS" | "ERROR" => "fail",
        _ => return None,
    };
    // The sums at the end of a run have the same form: `PASS: 300`, and after a `# ` in other versions.
    let is_sum = case.trim().bytes().all(|byte| byte.is_ascii_digit());
    let case = case.split_ascii_whitespace().next()?;
    // The lists of cases that were skipped or failed leave the suffix out.
    let name = case.strip_suffix(".sh").or(case.strip_suffix(".pl"));
    (!is_sum).then(|| pair(name.unwrap_or(case), outcome))?
}

/// Of the text from an element's attributes to the next element of its kind.
fn junit(text: &str) -> Option<(String, String)> {
    let (attributes, rest) = text.split_once('>')?;
    let (_, name) = attributes.split_once("name=\"")?;
    let (name, _) = name.split_once('"')?;
    let body = match attributes.ends_with('/') {
        true => "",
        false => rest.split("</testcase>").next()?,
    };
    let outcome = if body.contains("<failure") || body.contains("<error") {
        "fail"
    } else if body.contains("<skipped") || attributes.contains("result=\"skipped\"") {
        "skip"
    } else {
        "pass"
    };
    // Subtests have their parameters in their names.
    pair(&name.replace(char::is_whitespace, "_"), outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(format: Format, output: &str) -> Vec<String> {
        let outcomes = format.outcomes(output).into_iter();
        outcomes
            .map(|(case, outcome)| format!("{case} {outcome}"))
            .collect()
    }

    #[test]
    fn lines_of_scripts() {
        let output = "noise\n==> seed-1 pass\n==> seed-2 fail (status 2)\n==>\n";
        assert_eq!(
            outcomes(Format::Lines, output),
            ["seed-1 pass", "seed-2 fail (status 2)"]
        );
    }

    #[test]
    fn lines_of_pjdfstest() {
        let output = "chmod::ctime          ok\nrmdir::ebusy     FAILED\n\tassertion failed\n\tchown FAILED\n\
                      link::max     skipped\n\trequires features: x\n\nSummary: 1 failed, 1 skipped, 1 passed, 3 total\n";
        assert_eq!(
            outcomes(Format::Pjdfstest, output),
            ["chmod::ctime pass", "link::max skip", "rmdir::ebusy fail"]
        );
    }

    #[test]
    fn lines_of_go() {
        let output = "=== RUN   TestA\n--- PASS: TestA (0.00s)\n=== PACKAGE os\n--- FAIL: TestB (0.10s)\n    b_test.go:1: no\n    \
                      --- FAIL: TestB/sub (0.00s)\n    --- SKIP: TestB/other (0.00s)\n";
        assert_eq!(
            outcomes(Format::Go, output),
            [
                "TestA pass",
                "os.TestB fail",
                "os.TestB/other skip",
                "os.TestB/sub fail"
            ]
        );
    }

    #[test]
    fn lines_of_automake() {
        let output = "PASS: tests/cp/a.sh\nXFAIL: tests/b.sh\nERROR: tests/c.pl\nSKIP: tests/d.sh\nSKIP: tests/d\n# PASS:  2\nFAIL: 0\nmake: x: y\n";
        assert_eq!(
            outcomes(Format::Automake, output),
            [
                "tests/b pass",
                "tests/c fail",
                "tests/cp/a pass",
                "tests/d skip"
            ]
        );
    }

    #[test]
    fn elements_of_junit() {
        let output = "<testsuites tests=\"4\"><testsuite><testcase name=\"m.C.a\" status=\"run\" result=\"completed\" />\
                      <testcase name=\"m.C.b\" result=\"completed\"><system-out>x</system-out></testcase>\n\
                      <testcase name=\"m.C.c (i=1)\"><failure type=\"E\">no</failure></testcase>\
                      <testcase name=\"m.C.d\" result=\"skipped\"><skipped>why</skipped></testcase></testsuite>";
        assert_eq!(
            outcomes(Format::Junit, output),
            ["m.C.a pass", "m.C.b pass", "m.C.c_(i=1) fail", "m.C.d skip"]
        );
    }

    #[test]
    fn the_worse_outcome_of_a_case_counts() {
        let output = "==> a fail\n==> a pass\n==> b pass\n==> b skip\n";
        assert_eq!(outcomes(Format::Lines, output), ["a fail", "b skip"]);
    }
}
