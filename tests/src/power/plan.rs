//! Random file operations, and the states that a crash may leave of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A file's content, or a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Directory,
    /// A regular file.
    File(Arc<Vec<u8>>),
}

/// All paths of a store, relative to its root.
pub type State = BTreeMap<String, Node>;

/// One operation: a line for `tests/programs/puppet.c`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the calls of the same names")]
pub enum Op {
    Create(String),
    Write {
        name: String,
        offset: usize,
        length: usize,
        byte: u8,
    },
    Truncate(String, usize),
    Rename(String, String),
    Unlink(String),
    Mkdir(String),
    Rmdir(String),
    Fsync(String),
    Begin,
    Commit,
    Abort,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(name) => write!(f, "create {name}"),
            Self::Write {
                name,
                offset,
                length,
                byte,
            } => write!(f, "write {name} {offset} {length} {byte}"),
            Self::Truncate(name, length) => write!(f, "truncate {name} {length}"),
            Self::Rename(from, to) => write!(f, "rename {from} {to}"),
            Self::Unlink(name) => write!(f, "unlink {name}"),
            Self::Mkdir(name) => write!(f, "mkdir {name}"),
            Self::Rmdir(name) => write!(f, "rmdir {name}"),
            Self::Fsync(name) => write!(f, "fsync {name}"),
            Self::Begin => f.write_str("begin"),
            Self::Commit => f.write_str("commit"),
            Self::Abort => f.write_str("abort"),
        }
    }
}

/// A sequence of operations and the committed state after each of them.
#[derive(Debug)]
pub struct Plan {
    rng: fastrand::Rng,
    committed: State,
    /// The state inside of the open transaction.
    inside: Option<State>,
    operations_inside: usize,
    counter: usize,
}

/// Entries that a state has at most, so that operations often meet the same ones.
const ENTRIES: usize = 24;
/// The largest size of a file, in bytes.
const SIZE_MAX: usize = 1 << 20;

impl Plan {
    /// An empty store, and operations by `rng`.
    pub fn new(rng: fastrand::Rng) -> Self {
        Self {
            rng,
            committed: State::new(),
            inside: None,
            operations_inside: 0,
            counter: 0,
        }
    }

    /// The committed state.
    pub fn state(&self) -> &State {
        &self.committed
    }

    /// Whether a transaction is open.
    pub fn is_inside(&self) -> bool {
        self.inside.is_some()
    }

    /// The next operation, which succeeds; the state is the one after it.
    pub fn advance(&mut self) -> Op {
        let op = self.choose();
        self.apply(&op);
        op
    }

    /// A further operation of the caller's choice.
    pub fn perform(&mut self, op: Op) -> Op {
        self.apply(&op);
        op
    }

    fn choose(&mut self) -> Op {
        if self.inside.is_some() {
            self.operations_inside += 1;
            if self.rng.usize(..8) < self.operations_inside {
                return if self.rng.usize(..4) == 0 {
                    Op::Abort
                } else {
                    Op::Commit
                };
            }
        } else if self.rng.usize(..8) == 0 {
            return Op::Begin;
        }
        let (files, directories) = self.names();
        let full = files.len() + directories.len() >= ENTRIES;
        let file = self.rng.choice(files);
        match (self.rng.usize(..16), file) {
            (0..3, _) if !full => Op::Create(self.fresh("f")),
            (3, _) if !full => Op::Mkdir(self.fresh("d")),
            (4..8, Some(name)) => self.write(name),
            (8, Some(name)) => Op::Truncate(name, self.size()),
            (9, Some(name)) => Op::Rename(name, self.fresh("f")),
            (10, Some(name)) => Op::Unlink(name),
            (11..16, Some(name)) => Op::Fsync(name),
            (4, None) => self.empty_directory(&directories),
            _ if full => self.empty_directory(&directories),
            _ => Op::Create(self.fresh("f")),
        }
    }

    fn working(&self) -> &State {
        self.inside.as_ref().unwrap_or(&self.committed)
    }

    /// The names of files, and those of directories.
    fn names(&self) -> (Vec<String>, Vec<String>) {
        let names = |wanted: bool| {
            let nodes = self.working().iter();
            let found = nodes.filter(|(_, node)| matches!(node, Node::File(_)) == wanted);
            found.map(|(name, _)| name.clone()).collect()
        };
        (names(true), names(false))
    }

    /// A name that was never used, in the root or in a directory.
    fn fresh(&mut self, prefix: &str) -> String {
        self.counter += 1;
        let name = format!("{prefix}{}", self.counter);
        let (_, directories) = self.names();
        match self.rng.choice(directories) {
            Some(directory) if self.rng.bool() => format!("{directory}/{name}"),
            _ => name,
        }
    }

    fn size(&mut self) -> usize {
        [0, 7, 600, 4096, 20_000, 70_000, 300_000][self.rng.usize(..7)] + self.rng.usize(..100)
    }

    fn write(&mut self, name: String) -> Op {
        let length = self.size() + 1;
        let now = match self.working().get(&name) {
            Some(Node::File(content)) => content.len(),
            _ => 0,
        };
        let at_end = self.rng.bool();
        let offset = if at_end { now } else { self.rng.usize(..=now) };
        Op::Write {
            name,
            offset: offset.min(SIZE_MAX),
            length,
            byte: self.rng.u8(1..),
        }
    }

    fn empty_directory(&mut self, directories: &[String]) -> Op {
        let inside = |directory: &String| {
            let prefix = format!("{directory}/");
            self.working().keys().any(|name| name.starts_with(&prefix))
        };
        match directories.iter().find(|directory| !inside(directory)) {
            Some(directory) => Op::Rmdir(directory.clone()),
            None => match self.names().0.first() {
                Some(name) => Op::Unlink(name.clone()),
                None => Op::Mkdir(self.fresh("d")),
            },
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Begin => {
                self.inside = Some(self.committed.clone());
                self.operations_inside = 0;
            }
            Op::Commit => self.committed = self.inside.take().expect("an open transaction"),
            Op::Abort => self.inside = None,
            op => change(self.inside.as_mut().unwrap_or(&mut self.committed), op),
        }
    }
}

fn change(state: &mut State, op: &Op) {
    let content = |state: &State, name: &String| match state.get(name) {
        Some(Node::File(content)) => content.to_vec(),
        other => panic!("{name} is no file: {other:?}"),
    };
    match op {
        Op::Create(name) => drop(state.insert(name.clone(), Node::File(Arc::default()))),
        Op::Write {
            name,
            offset,
            length,
            byte,
        } => {
            let mut content = content(state, name);
            content.resize(content.len().max(offset + length), 0);
            content[*offset..offset + length].fill(*byte);
            state.insert(name.clone(), Node::File(Arc::new(content)));
        }
        Op::Truncate(name, length) => {
            let mut content = content(state, name);
            content.resize(*length, 0);
            state.insert(name.clone(), Node::File(Arc::new(content)));
        }
        Op::Rename(from, to) => {
            let node = state.remove(from).expect("the old name");
            state.insert(to.clone(), node);
        }
        Op::Unlink(name) | Op::Rmdir(name) => drop(state.remove(name)),
        Op::Mkdir(name) => drop(state.insert(name.clone(), Node::Directory)),
        Op::Fsync(_) | Op::Begin | Op::Commit | Op::Abort => {}
    }
}

/// The differences between two states, a line each.
pub fn differences(found: &State, expected: &State) -> Vec<String> {
    let describe = |node: Option<&Node>| match node {
        None => "missing".to_owned(),
        Some(Node::Directory) => "a directory".to_owned(),
        Some(Node::File(content)) => {
            let sum: u64 = content.iter().map(|&byte| u64::from(byte)).sum();
            format!("{} bytes with the sum {sum}", content.len())
        }
    };
    let names: std::collections::BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    let differ = names
        .into_iter()
        .filter(|name| found.get(*name) != expected.get(*name));
    differ
        .map(|name| {
            let (found, expected) = (describe(found.get(name)), describe(expected.get(name)));
            format!("{name}: {found}, expected {expected}")
        })
        .collect()
}
