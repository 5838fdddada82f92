//! The example of docs/add-a-backend.md works as described.
#![allow(clippy::unwrap_used, reason = "a test says so by failing")]

#[path = "../examples/hello_fs.rs"]
mod hello_fs;

#[test]
fn the_example_runs() {
    hello_fs::main().unwrap();
}

#[test]
fn the_document_quotes_the_example_as_it_is() {
    let root = env!("CARGO_MANIFEST_DIR");
    let read = |path: &str| std::fs::read_to_string(format!("{root}/{path}")).unwrap();
    let (document, example) = (
        read("../../docs/add-a-backend.md"),
        read("examples/hello_fs.rs"),
    );
    let quotes: Vec<&str> = document
        .split("```rust\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert!(quotes.len() >= 4);
    for quote in quotes {
        assert!(example.contains(quote), "not in hello_fs.rs:\n{quote}");
    }
}
