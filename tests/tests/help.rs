//! The help of every command of all four programs fits into 80 columns, also where stdout is not a terminal: in a pipe, a file, a bug report.
//! Clap's default there is 100, and the limits of the programs were 100 and 110.

use std::process::Command;

use goanna_tests::{binary, finish};

const COLUMNS: usize = 80;

/// What `program WORDS... --help` prints.
fn help(program: &str, words: &[String], option: &str) -> String {
    let mut command = Command::new(binary(program));
    command.args(words).arg(option).env_remove("COLUMNS");
    finish(&mut command).expect(0).text()
}

/// The subcommands that a help text lists, without `help`.
fn subcommands(help: &str) -> Vec<String> {
    let listed = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| line.starts_with(' '));
    // The lines that continue a description are indented deeper.
    let names = listed
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// Adds the lines of this command and of those below it that are too long to `wide`. Returns the number of commands.
fn check(program: &str, words: &mut Vec<String>, wide: &mut Vec<String>) -> usize {
    let mut commands = 1;
    let full = help(program, words, "--help");
    for (option, text) in [("-h", &help(program, words, "-h")), ("--help", &full)] {
        let long = text.lines().filter(|line| line.chars().count() > COLUMNS);
        wide.extend(long.map(|line| format!("{program} {} {option}: {line}", words.join(" "))));
    }
    for name in subcommands(&full) {
        words.push(name);
        commands += check(program, words, wide);
        words.pop();
    }
    commands
}

#[test]
fn help_fits_into_80_columns() {
    for (program, at_least) in [
        ("amino", 28),
        ("goanna", 14),
        ("goanna-trace", 13),
        ("replayer", 6),
    ] {
        let mut wide = Vec::new();
        let commands = check(program, &mut Vec::new(), &mut wide);
        assert!(
            commands >= at_least,
            "{program}: only {commands} commands were found"
        );
        assert!(wide.is_empty(), "{}", wide.join("\n"));
    }
}
