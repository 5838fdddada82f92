//! A test of `docs/decisions/`: each page has a state, and the index has the same one.

use std::collections::BTreeMap;
use std::fs;

use crate::ci::workspace;

/// The first word of a state, such as `superseded`.
fn first_word(state: &str) -> String {
    let is_letter = |c: &char| c.is_ascii_lowercase();
    state.trim().chars().take_while(is_letter).collect()
}

/// The states in the index, by the names of the pages.
fn index(text: &str) -> BTreeMap<String, String> {
    let rows = text.lines().filter_map(|line| {
        let (_, rest) = line.strip_prefix("| [")?.split_once("](")?;
        let (page, rest) = rest.split_once(')')?;
        let state = rest.trim_end_matches([' ', '|']).rsplit('|').next()?;
        Some((page.to_owned(), first_word(state)))
    });
    rows.collect()
}

/// The states that the pages give, by their names.
fn pages() -> BTreeMap<String, String> {
    let entries = fs::read_dir(workspace().join("docs/decisions")).unwrap();
    let pages = entries.filter_map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name()?.to_str()?.to_owned();
        let text = fs::read_to_string(&path).unwrap();
        let state = text.lines().find_map(|line| line.strip_prefix("State:"));
        (name != "README.md").then(|| (name, first_word(state.unwrap_or_default())))
    });
    pages.collect()
}

#[test]
fn the_index_has_each_decision_with_its_state() {
    let text = fs::read_to_string(workspace().join("docs/decisions/README.md")).unwrap();
    let pages = pages();
    assert!(pages.len() > 80, "{}", pages.len());
    let known = ["accepted", "superseded", "rejected"];
    for (page, state) in &pages {
        assert!(known.contains(&&**state), "{page}: {state:?}");
    }
    assert_eq!(index(&text), pages);
}
