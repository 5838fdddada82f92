//! Expressions of input filters.

use goanna_tracer::select::Filter;

/// Compiles the expression.
pub fn read(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    match Filter::parse(text) {
        Ok(filter) => {
            let _ = (filter.calls(), filter.traced_calls(), filter.tests());
            let _ = (filter.asks_for_names(), filter.asks_for_process());
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

/// Expressions with every kind of predicate.
pub fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        r#"uid == 1000 and (op in {open, read} or not path ~ "/etc/**")"#,
        r#"call in {openat, close} and ret < 0 or ret == ENOENT"#,
        r#"size >= 4096 and size <= 65536 and comm != "make""#,
        r#"name ~ "*.[ch]" or ext in {"rs", "toml"} or not (pid == 1 and sid == 2)"#,
        r#"gid in {0, 5, 10} and path !~ "/proc/*/fd/?""#,
        "",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}
