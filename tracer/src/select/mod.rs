//! Input filters: which events a tracer records.
//!
//! A filter is a boolean expression over a call, the thread that makes it and the files that it names, such as
//! `(uid == 0 && name == "foo") || (gid == 4 && op == open)`. `parse.rs` reads the text, `graph.rs` makes of the expression a directed acyclic
//! graph of tests, as the Berkeley Packet Filter has them: each test leads to another test, to "yes" or to "no", so that evaluation is one
//! loop. [`names`] caches which files have had a name for which the filter tests. Read [`Filter`] first.
//!
//! ```text
//! expression  = all { ("or" | "||") all }                 all   = unary { ("and" | "&&") unary }
//! unary       = ("not" | "!") unary | "(" expression ")" | predicate
//! predicate   = field ("==" | "!=" | "<" | "<=" | ">" | ">=" | "~" | "!~") value
//!             | field ["not"] "in" ("{" value { "," value } "}" | "(" value { "," value } ")")
//! ```
//!
//! | field | what it is | values |
//! |---|---|---|
//! | `uid`, `gid` | effective user and group id of the thread | numbers |
//! | `pid`, `tid`, `sid` | process, thread and session id | numbers |
//! | `comm` | name of the process | strings; patterns with `~` |
//! | `name`, `ext` | last component of a file's path; what follows its last full stop | strings; patterns with `~` |
//! | `path` | absolute path of a file | strings; patterns with `~` |
//! | `call` | the system call | names of calls |
//! | `op` | what the call does; see [`Operation`](goanna_syscalls::Operation) | `open`, `create`, `close`, `read`, ... |
//! | `ret` | the result | numbers; names of errors, as `ENOENT` |
//! | `size` | the bytes that a data call asks for | numbers, with K, M or G |
//!
//! A call names several files when it has several paths or descriptors: a test of a file holds when it holds for one of them. A test of a
//! field that a call does not have (a `size` of `close`, a `path` of `getpid`) does not hold.

pub mod facts;
mod glob;
mod graph;
pub mod names;
pub mod operation;
mod parse;
mod predicate;

use goanna_syscalls::Subject;

pub use facts::Facts;
pub use names::NameCache;
pub use operation::CallSet;
pub use parse::FilterError;

use graph::Graph;

/// Whether a filter selects a call, as far as that is known at the call's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is selected, whatever happens.
    Selected,
    /// It is not selected, whatever happens.
    Rejected,
    /// That depends on the files or on the result.
    Undecided,
}

/// A compiled filter.
#[derive(Debug)]
pub struct Filter {
    text: Box<str>,
    graph: Graph,
}

impl Filter {
    /// Compiles an expression; an empty one selects everything.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let expression = parse::parse(text)?;
        Ok(Self {
            text: text.into(),
            graph: Graph::compile(expression),
        })
    }

    /// The filter that selects everything.
    pub fn everything() -> Self {
        Self {
            text: "".into(),
            graph: Graph::compile(parse::Parsed::everything()),
        }
    }

    /// The expression as it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The calls that the filter can select. A call that is not in the set need not be seen at all.
    pub fn calls(&self) -> CallSet {
        self.graph.calls()
    }

    /// The calls that a tracer with this filter records: those that it [can select](Self::calls) and that concern files or are named in
    /// it.
    pub fn traced_calls(&self) -> CallSet {
        let mut wanted = operation::concerning_files();
        wanted.add(&self.graph.named_calls());
        wanted.keep(&self.calls());
        wanted
    }

    /// Whether the filter asks for names of files, and so needs a [`NameCache`].
    pub fn asks_for_names(&self) -> bool {
        self.graph.file_predicates() > 0
    }

    /// Whether the filter asks for `uid`, `gid`, `pid`, `sid` or `comm`.
    pub fn asks_for_process(&self) -> bool {
        self.graph.asks_for_process()
    }

    /// The cache that [`selects`](Self::selects) needs.
    pub fn name_cache(&self) -> NameCache {
        NameCache::new(self.graph.file_predicates())
    }

    /// Whether the filter selects call `nr` of `subject`, as far as that is known at its entry.
    pub fn at_entry(&self, nr: u32, subject: &Subject) -> Verdict {
        self.graph.at_entry(Some(nr), subject)
    }

    /// Whether an event of `subject` that is not a call may be kept: whether a call of it could be selected.
    pub fn selects_subject(&self, subject: &Subject) -> bool {
        self.graph.at_entry(None, subject) != Verdict::Rejected
    }

    /// Whether the filter selects a call. Allocates nothing and does not recurse. `cache` comes from [`name_cache`](Self::name_cache) of this
    /// filter.
    pub fn selects(&self, facts: &Facts<'_>, cache: &mut NameCache) -> bool {
        self.graph.selects(facts, cache)
    }

    /// Number of tests in the graph.
    pub fn tests(&self) -> usize {
        self.graph.len()
    }
}

#[cfg(test)]
mod tests;
