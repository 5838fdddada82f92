//! What `docs/add-a-backend.md` promises: a back end is short, and nothing else knows it.

/// 200 lines are a back end that somebody writes in an afternoon.
#[test]
fn the_back_end_has_at_most_200_lines_of_code() {
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
    let lines = include_str!("../src/lib.rs").lines().filter(is_code);
    assert!(lines.count() <= 200);
}

#[test]
fn one_line_outside_of_its_directory_names_it() {
    let manifest = include_str!("../../../Cargo.toml").lines();
    let lines: Vec<_> = manifest.filter(|line| line.contains("tarfs")).collect();
    assert_eq!(lines, ["    \"examples/tarfs\","]);
}
