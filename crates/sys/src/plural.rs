//! Numbers of things, for people.

/// `1 file`, `2 files`: `number` and `what`, with an `s` unless there is one.
///
/// ```
/// use goanna_sys::plural::counted;
/// assert_eq!(counted(1, "file"), "1 file");
/// assert_eq!(counted(0, "symbolic link"), "0 symbolic links");
/// ```
pub fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// `1 directory`, `2 directories`: for words whose plural has more than an `s`.
pub fn counted_as(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
