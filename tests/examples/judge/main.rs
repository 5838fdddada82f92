//! `cargo xtask judge`: external test suites, natively and in every back end. Prints what differs.
//!
//! `suite` gets the suites, `run` runs them, `outcome` reads what they print, `compare` finds the differences and explains those that
//! `tests/known-suites.txt` knows, `table` writes docs/compatibility.md.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for developers"
)]

mod compare;
mod outcome;
mod run;
mod suite;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use goanna_tests::{Intercept, Place, User, may_become_another_user};

use compare::{Difference, Known, Reference};
use run::{BACKENDS, INTERCEPTS};
use suite::{SUITES, Suite};

/// How often a suite runs natively: a case whose outcome changes from run to run is not a difference.
const NATIVE_RUNS: usize = 2;

/// Run external test suites natively and in every back end, and print the differences
///
/// Each suite runs in every back end, under both interceptions, as the user that calls and, by root, as user 65534. A difference is an outcome of a case that
/// none of two native runs had. tests/known-suites.txt explains differences. Exit status 0: every difference is explained;
/// 1: one is not, or a suite could not run.
///
/// Suites are got once, into goanna-judge in the directory for temporary files. Progress goes to stderr.
#[derive(Parser)]
#[command(name = "cargo xtask judge", bin_name = "cargo xtask judge")]
struct Arguments {
    /// The suites to run [default: all]
    #[arg(value_name = "SUITE", value_parser = SUITES.iter().map(|suite| suite.name).collect::<Vec<_>>())]
    suites: Vec<String>,
    /// Only these back ends
    #[arg(long, value_name = "NAME", value_parser = BACKENDS.map(|(name, _)| name))]
    backend: Vec<String>,
    /// Only this way of interception
    #[arg(long, value_name = "HOW", value_parser = INTERCEPTS.map(|(name, _)| name))]
    intercept: Option<String>,
    /// Only as the user that calls
    #[arg(long)]
    own_user: bool,
    /// Only cases that begin with this
    #[arg(long, value_name = "TEXT", default_value = "")]
    case: String,
    /// Print a JSON object for each suite and place, a line each
    #[arg(long)]
    json: bool,
    /// Write the results into the table of docs/compatibility.md
    #[arg(long)]
    write_table: bool,
    /// List the suites and end
    #[arg(long)]
    list: bool,
}

/// What came of a suite in a place.
pub struct Judged {
    /// The suite's name.
    suite: &'static str,
    /// The back end's name.
    backend: &'static str,
    /// The way of interception.
    intercept: &'static str,
    /// `root` or `user`.
    rights: &'static str,
    /// The outcomes natively, in words.
    natively: String,
    differences: Vec<Difference>,
}

impl Judged {
    fn unexplained(&self) -> usize {
        let differences = self.differences.iter();
        differences.filter(|found| found.why.is_none()).count()
    }

    fn print(&self, json: bool) {
        if json {
            let differences = self.differences.iter().map(|found| {
                serde_json::json!({
                    "case": found.case, "natively": found.native, "here": found.here, "why": found.why,
                })
            });
            let object = serde_json::json!({
                "suite": self.suite, "backend": self.backend, "intercept": self.intercept, "user": self.rights,
                "natively": self.natively, "differences": differences.collect::<Vec<_>>(),
            });
            println!("{object}");
            return;
        }
        for found in &self.differences {
            let why = found
                .why
                .as_ref()
                .map_or(String::new(), |why| format!(" ({why})"));
            println!(
                "{} {} {} {}: {}: natively {}, here {}{why}",
                self.suite,
                self.backend,
                self.intercept,
                self.rights,
                found.case,
                found.native,
                found.here
            );
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        for suite in SUITES {
            println!("{:10} {}", suite.name, suite.about);
        }
        return ExitCode::SUCCESS;
    }
    match judge(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("judge: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The top of the workspace.
fn workspace() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Whether all suites could run, and every difference is explained.
fn judge(arguments: &Arguments) -> Result<bool, String> {
    let list = workspace().join("tests/known-suites.txt");
    let text =
        std::fs::read_to_string(&list).map_err(|error| format!("{}: {error}", list.display()))?;
    let known =
        Known::parse(&text).map_err(|line| format!("{}: no reason: {line}", list.display()))?;
    let is_wanted = |suite: &&Suite| {
        arguments.suites.is_empty() || arguments.suites.iter().any(|name| name == suite.name)
    };
    let mut users = vec![User::Own];
    if !arguments.own_user && may_become_another_user() {
        users.push(User::Nobody);
    }
    let mut is_clean = true;
    let mut results = Vec::new();
    for suite in SUITES.iter().filter(is_wanted) {
        for &user in &users {
            match judge_suite(arguments, suite, user, &known) {
                Ok(judged) => results.extend(judged),
                Err(message) => {
                    eprintln!("judge: {} as {}: {message}", suite.name, run::rights(user));
                    is_clean = false;
                }
            }
        }
    }
    if arguments.write_table {
        table::write(&workspace().join("docs/compatibility.md"), &results)?;
    }
    Ok(is_clean && results.iter().all(|judged| judged.unexplained() == 0))
}

fn judge_suite(
    arguments: &Arguments,
    suite: &'static Suite,
    user: User,
    known: &Known,
) -> Result<Vec<Judged>, String> {
    let dir = suite.get()?;
    let rights = run::rights(user);
    let selected = |mut outcomes: outcome::Outcomes| {
        outcomes.retain(|case, _| case.starts_with(&arguments.case));
        outcomes
    };
    let mut runs = Vec::new();
    for number in 1..=NATIVE_RUNS {
        eprintln!(
            "judge: {} as {rights}: natively, {number} of {NATIVE_RUNS}",
            suite.name
        );
        runs.push(selected(run::natively(suite, &dir, user)?));
    }
    let reference = Reference::new(&runs);
    eprintln!(
        "judge: {} as {rights}: {} cases: {}",
        suite.name,
        reference.len(),
        reference.summary()
    );
    for case in reference.unsteady() {
        eprintln!(
            "judge: {} as {rights}: {case} changes from run to run",
            suite.name
        );
    }
    let mut results = Vec::new();
    for (backend, intercept) in places(arguments) {
        eprintln!(
            "judge: {} as {rights}: {} {}",
            suite.name, backend.0, intercept.0
        );
        let place = Place::new(backend.1, intercept.1, user);
        let outcomes = run::within(suite, &dir, &place)
            .map_err(|message| format!("{} {}: {message}", backend.0, intercept.0))?;
        let mut differences = reference.differences(&selected(outcomes));
        let engine = if backend.0.starts_with("amino") {
            "store"
        } else {
            ""
        };
        known.explain(
            suite.name,
            &[backend.0, engine, intercept.0, rights],
            &mut differences,
        );
        let judged = Judged {
            suite: suite.name,
            backend: backend.0,
            intercept: intercept.0,
            rights,
            natively: reference.summary(),
            differences,
        };
        judged.print(arguments.json);
        results.push(judged);
    }
    Ok(results)
}

type Named<T> = (&'static str, T);

fn places(arguments: &Arguments) -> Vec<(Named<goanna_tests::Backend>, Named<Intercept>)> {
    let is_wanted = |name: &str| {
        arguments.backend.is_empty() || arguments.backend.iter().any(|wanted| wanted == name)
    };
    let mut places = Vec::new();
    for backend in BACKENDS.into_iter().filter(|(name, _)| is_wanted(name)) {
        for intercept in INTERCEPTS {
            if arguments
                .intercept
                .as_deref()
                .is_none_or(|wanted| wanted == intercept.0)
            {
                places.push((backend, intercept));
            }
        }
    }
    places
}
