//! Tests that compare `docs/` with the workspace: the arrows of the architecture's drawing, and the files that pages name.
//!
//! The drawing has an arrow for each dependency between crates, except for those that follow from other arrows. It leaves out what is
//! not part of the product: tests, benches, examples and this crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::ci::workspace;

/// Directories whose crates are not part of the product.
const NOT_DRAWN: [&str; 4] = ["benches", "examples", "tests", "xtask"];

/// Pages outside of `docs/` that name files.
const PAGES: [&str; 3] = ["CONTRIBUTING.md", "README.md", "SECURITY.md"];

/// First parts of the paths that pages name.
const TOP: [&str; 11] = [
    "crates/",
    "monitor/",
    "txn/",
    "tracer/",
    "replayer/",
    "schema/",
    "tests/",
    "benches/",
    "examples/",
    "profiles/",
    "xtask/",
];

/// The crates that each crate depends on.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The dependencies between the crates of the product, by the names of their directories.
fn dependencies() -> Graph {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]);
    let output = cargo.current_dir(workspace()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let directory = |package: &Value| {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let directory = manifest.parent().unwrap();
        directory.strip_prefix(workspace()).unwrap().to_owned()
    };
    let packages = metadata["packages"].as_array().unwrap();
    let product = packages.iter().filter(|package| {
        let directory = directory(package);
        !NOT_DRAWN.iter().any(|top| directory.starts_with(top))
    });
    let name = |directory: &Path| directory.file_name().unwrap().to_str().unwrap().to_owned();
    let mut graph = Graph::new();
    for package in product {
        let on = package["dependencies"].as_array().unwrap().iter();
        let normal = on.filter(|it| it["kind"].is_null() && it["path"].is_string());
        let on = normal.map(|it| name(Path::new(it["path"].as_str().unwrap())));
        graph.insert(name(&directory(package)), on.collect());
    }
    graph
}

/// Whether `graph` leads from `from` to `to` in one step or more.
fn leads(graph: &Graph, from: &str, to: &str) -> bool {
    let next = graph.get(from).into_iter().flatten();
    next.into_iter().any(|it| it == to || leads(graph, it, to))
}

/// `graph` without the arrows that follow from others.
fn reduced(graph: &Graph) -> Graph {
    let reduce = |(from, all): (&String, &BTreeSet<String>)| {
        let follows = |to: &String| all.iter().any(|by| by != to && leads(graph, by, to));
        let direct = all.iter().filter(|to| !follows(to)).cloned();
        (from.clone(), direct.collect())
    };
    graph.iter().map(reduce).collect()
}

/// The nodes and arrows of the Mermaid drawing in `page`.
fn drawn(page: &str) -> Graph {
    let (_, drawing) = page.split_once("```mermaid\n").unwrap();
    let (drawing, _) = drawing.split_once("```").unwrap();
    let mut graph = Graph::new();
    for line in drawing.lines().map(str::trim) {
        if let Some((from, to)) = line.split_once(" --> ") {
            graph.entry(from.into()).or_default().insert(to.into());
        } else if let Some((node, _)) = line.split_once('[') {
            graph.entry(node.into()).or_default();
        }
    }
    graph
}

#[test]
fn the_drawing_of_the_architecture_has_the_arrows_of_the_crates() {
    let page = fs::read_to_string(workspace().join("docs/architecture.md")).unwrap();
    let (drawn, real) = (drawn(&page), reduced(&dependencies()));
    let crates = |graph: &Graph| graph.keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        crates(&drawn),
        crates(&real),
        "crates that are drawn, and crates that exist"
    );
    let arrows = |graph: &Graph| -> BTreeSet<String> {
        let of = |(from, to): (&String, &BTreeSet<String>)| {
            let arrow = |to| format!("{from} --> {to}");
            to.iter().map(arrow).collect::<Vec<_>>()
        };
        graph.iter().flat_map(of).collect()
    };
    let (drawn, real) = (arrows(&drawn), arrows(&real));
    let missing: Vec<_> = real.difference(&drawn).collect();
    let wrong: Vec<_> = drawn.difference(&real).collect();
    assert!(
        missing.is_empty() && wrong.is_empty(),
        "missing in the drawing: {missing:#?}; to be removed from it: {wrong:#?}"
    );
}

#[test]
fn the_monitor_knows_no_back_end_and_no_store() {
    let graph = dependencies();
    for other in ["passfs", "isofs", "aminofs", "txn", "schema", "session"] {
        assert!(graph.contains_key(other), "{other}");
        assert!(!leads(&graph, "monitor", other), "{other}");
    }
}

/// The paths that `page` names in backquotes.
fn named_paths(page: &str) -> Vec<&str> {
    let quoted = page.split('`').skip(1).step_by(2);
    quoted
        .filter(|text| TOP.iter().any(|top| text.starts_with(top)))
        .filter(|text| !text.contains([' ', '*', '{', '<', '\n']))
        .collect()
}

/// The pages in `docs/`, and [`PAGES`].
fn pages() -> Vec<PathBuf> {
    let docs = fs::read_dir(workspace().join("docs")).unwrap();
    let docs = docs.map(|entry| entry.unwrap().path());
    let pages = PAGES.map(|page| workspace().join(page));
    let is_text = |page: &PathBuf| page.extension().is_some() && page.exists();
    docs.chain(pages).filter(is_text).collect()
}

/// The pages that have paths which do not exist, with these paths. `paths` finds the paths in a page's text, and joins them to
/// the page's directory or to the workspace.
fn missing(paths: impl Fn(&str, &Path) -> Vec<PathBuf>) -> Vec<String> {
    let mut missing = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let absent = paths(&text, page.parent().unwrap()).into_iter();
        let absent = absent.filter(|path| !path.exists());
        missing.extend(absent.map(|path| format!("{}: {}", page.display(), path.display())));
    }
    missing
}

#[test]
fn files_that_pages_name_exist() {
    let missing = missing(|text, _| {
        let named = named_paths(text).into_iter();
        // Without the line or item that some pages add.
        let paths = named.map(|path| path.split(':').next().unwrap_or_default());
        paths.map(|path| workspace().join(path)).collect()
    });
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn links_of_pages_lead_to_files() {
    let missing = missing(|text, directory| {
        let links = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split_once(')'));
        let paths = links.map(|(target, _)| target.split('#').next().unwrap_or_default());
        let local = paths.filter(|path| !path.is_empty() && !path.contains("://"));
        local.map(|path| directory.join(path)).collect()
    });
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn arrows_that_follow_from_others_are_left_out() {
    let graph = drawn("```mermaid\na[\"a\"]\na --> b\nb --> c\na --> c\nb[x]\nc[y]\n```");
    assert!(leads(&graph, "a", "c"));
    let graph = reduced(&graph);
    assert_eq!(graph["a"].iter().collect::<Vec<_>>(), ["b"]);
    assert_eq!(graph["b"].iter().collect::<Vec<_>>(), ["c"]);
}
