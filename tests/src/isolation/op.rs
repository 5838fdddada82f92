//! The operations of histories, their outcomes, and the calls that each consists of.
//!
//! The file system and the model both have [`Calls`], and [`perform`] is the same for both: they can differ in the effect of a call,
//! but not in the path walk of an operation.

use std::fmt;

use goanna_vfs::{Errno, Result};

/// Names separated by `/`, from the top directory of the history, or, as `@1/a`, from the object with that number that
/// was opened before it began.
pub type Path = &'static str;

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are named after what they do")]
pub enum Op {
    Look(Path),
    Read(Path),
    Stat(Path),
    List(Path),
    /// getcwd(3) of a process in that directory.
    Where(Path),
    /// The entries of a directory's parent.
    ListParent(Path),
    GetMark(Path),
    /// A file with one byte; EEXIST when the name is taken.
    Create(Path, u8),
    /// One byte at an offset.
    Write(Path, u64, u8),
    Append(Path, u8),
    Truncate(Path, u64),
    Chmod(Path, u32),
    /// Sets an extended attribute.
    Mark(Path, u8),
    Mkdir(Path),
    Unlink(Path),
    Rmdir(Path),
    Link(Path, Path),
    Rename(Path, Path),
    /// renameat2(2) with `RENAME_EXCHANGE`.
    Swap(Path, Path),
    /// The whole tree.
    Tree,
}

/// The result of an operation that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Only success.
    Done,
    /// The kind of file that a name stands for.
    Kind(Kind),
    /// A file's content, or an attribute's.
    Content(Vec<u8>),
    /// Metadata.
    Stat(Stat),
    /// A directory's entries, sorted.
    Names(Vec<(String, Kind)>),
    /// A path below the top, and whether it was removed.
    Where(String, bool),
    /// The whole tree, as lines.
    Tree(Vec<String>),
}

/// File or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "they say it")]
pub enum Kind {
    File,
    Dir,
}

/// Metadata that does not depend on when and where a history runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "as in stat(2)")]
pub struct Stat {
    pub kind: Kind,
    pub perm: u32,
    pub nlink: u32,
    /// Bytes; 0 for directories.
    pub size: u64,
}

/// The outcome of an operation of a history.
pub type Outcome = Result<Seen>;

/// The calls of which operations consist. Each is atomic.
#[allow(
    missing_docs,
    reason = "as the methods of goanna_vfs::FileSystem that have the same names"
)]
pub trait Calls {
    /// A file or directory.
    type Node: Clone;

    /// The top directory, or an object that was opened before.
    fn start(&self, held: Option<usize>) -> Self::Node;
    fn held(&self) -> usize;
    fn kind(&self, node: &Self::Node) -> Kind;
    fn lookup(&mut self, dir: &Self::Node, name: &str) -> Result<Self::Node>;
    fn parent(&mut self, dir: &Self::Node) -> Result<Self::Node>;
    fn path(&mut self, dir: &Self::Node) -> Result<(String, bool)>;
    fn read(&mut self, file: &Self::Node) -> Result<Vec<u8>>;
    fn stat(&mut self, node: &Self::Node) -> Result<Stat>;
    fn list(&mut self, dir: &Self::Node) -> Result<Vec<(String, Kind)>>;
    fn get_mark(&mut self, node: &Self::Node) -> Result<Vec<u8>>;
    fn create(&mut self, dir: &Self::Node, name: &str) -> Result<Self::Node>;
    /// At the end when there is no offset.
    fn write(&mut self, file: &Self::Node, at: Option<u64>, byte: u8) -> Result<()>;
    fn truncate(&mut self, file: &Self::Node, size: u64) -> Result<()>;
    fn chmod(&mut self, node: &Self::Node, perm: u32) -> Result<()>;
    fn mark(&mut self, node: &Self::Node, byte: u8) -> Result<()>;
    fn mkdir(&mut self, dir: &Self::Node, name: &str) -> Result<()>;
    fn unlink(&mut self, dir: &Self::Node, name: &str) -> Result<()>;
    fn rmdir(&mut self, dir: &Self::Node, name: &str) -> Result<()>;
    fn link(&mut self, file: &Self::Node, dir: &Self::Node, name: &str) -> Result<()>;
    fn rename(
        &mut self,
        from: (&Self::Node, &str),
        to: (&Self::Node, &str),
        swap: bool,
    ) -> Result<()>;
}

/// Where a path starts, and its names.
fn split(path: Path) -> (Option<usize>, impl DoubleEndedIterator<Item = &'static str>) {
    let (held, names) = match path.strip_prefix('@') {
        Some(rest) => {
            let (number, names) = rest.split_once('/').unwrap_or((rest, ""));
            (Some(number.parse().unwrap()), names)
        }
        None => (None, path),
    };
    (held, names.split('/').filter(|name| !name.is_empty()))
}

fn step<C: Calls>(calls: &mut C, dir: &C::Node, name: &str) -> Result<C::Node> {
    match calls.kind(dir) {
        Kind::Dir => calls.lookup(dir, name),
        Kind::File => Err(Errno::ENOTDIR.into()),
    }
}

pub(super) fn walk<C: Calls>(calls: &mut C, path: Path) -> Result<C::Node> {
    let (held, mut names) = split(path);
    let start = calls.start(held);
    names.try_fold(start, |dir, name| step(calls, &dir, name))
}

/// The directory of a path's last name, and that name.
fn parent<C: Calls>(calls: &mut C, path: Path) -> Result<(C::Node, &'static str)> {
    let (held, mut names) = split(path);
    let last = names.next_back().ok_or(Errno::EINVAL)?;
    let start = calls.start(held);
    let dir = names.try_fold(start, |dir, name| step(calls, &dir, name))?;
    match calls.kind(&dir) {
        Kind::Dir => Ok((dir, last)),
        Kind::File => Err(Errno::ENOTDIR.into()),
    }
}

fn directory<C: Calls>(calls: &mut C, path: Path) -> Result<C::Node> {
    let node = walk(calls, path)?;
    match calls.kind(&node) {
        Kind::Dir => Ok(node),
        Kind::File => Err(Errno::ENOTDIR.into()),
    }
}

fn file<C: Calls>(calls: &mut C, path: Path) -> Result<C::Node> {
    let node = walk(calls, path)?;
    match calls.kind(&node) {
        Kind::File => Ok(node),
        Kind::Dir => Err(Errno::EISDIR.into()),
    }
}

/// Performs an operation.
pub fn perform<C: Calls>(calls: &mut C, op: &Op) -> Outcome {
    match *op {
        Op::Look(path) => {
            let node = walk(calls, path)?;
            Ok(Seen::Kind(calls.kind(&node)))
        }
        Op::Read(path) => {
            let node = file(calls, path)?;
            calls.read(&node).map(Seen::Content)
        }
        Op::Stat(path) => {
            let node = walk(calls, path)?;
            calls.stat(&node).map(Seen::Stat)
        }
        Op::List(path) => {
            let dir = directory(calls, path)?;
            calls.list(&dir).map(Seen::Names)
        }
        Op::Where(path) => {
            let dir = directory(calls, path)?;
            let (path, deleted) = calls.path(&dir)?;
            Ok(Seen::Where(path, deleted))
        }
        Op::ListParent(path) => {
            let dir = directory(calls, path)?;
            let parent = calls.parent(&dir)?;
            calls.list(&parent).map(Seen::Names)
        }
        Op::GetMark(path) => {
            let node = walk(calls, path)?;
            calls.get_mark(&node).map(Seen::Content)
        }
        Op::Tree => tree(calls).map(Seen::Tree),
        _ => change(calls, op).map(|()| Seen::Done),
    }
}

fn change<C: Calls>(calls: &mut C, op: &Op) -> Result<()> {
    match *op {
        Op::Create(path, byte) => {
            let (dir, name) = parent(calls, path)?;
            let file = calls.create(&dir, name)?;
            calls.write(&file, Some(0), byte)
        }
        Op::Write(path, at, byte) => {
            let file = file(calls, path)?;
            calls.write(&file, Some(at), byte)
        }
        Op::Append(path, byte) => {
            let file = file(calls, path)?;
            calls.write(&file, None, byte)
        }
        Op::Truncate(path, size) => {
            let file = file(calls, path)?;
            calls.truncate(&file, size)
        }
        Op::Chmod(path, perm) => {
            let node = walk(calls, path)?;
            calls.chmod(&node, perm)
        }
        Op::Mark(path, byte) => {
            let node = walk(calls, path)?;
            calls.mark(&node, byte)
        }
        Op::Mkdir(path) => {
            let (dir, name) = parent(calls, path)?;
            calls.mkdir(&dir, name)
        }
        Op::Unlink(path) => {
            let (dir, name) = parent(calls, path)?;
            calls.unlink(&dir, name)
        }
        Op::Rmdir(path) => {
            let (dir, name) = parent(calls, path)?;
            calls.rmdir(&dir, name)
        }
        Op::Link(from, to) => {
            let node = walk(calls, from)?;
            let (dir, name) = parent(calls, to)?;
            calls.link(&node, &dir, name)
        }
        Op::Rename(from, to) | Op::Swap(from, to) => {
            let (from_dir, from) = parent(calls, from)?;
            let (to_dir, to) = parent(calls, to)?;
            let swap = matches!(op, Op::Swap(..));
            calls.rename((&from_dir, from), (&to_dir, to), swap)
        }
        _ => unreachable!("the others only look"),
    }
}

fn tree<C: Calls>(calls: &mut C) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let top = calls.start(None);
    branch(calls, &top, "top", &mut lines)?;
    for number in 0..calls.held() {
        let node = calls.start(Some(number));
        lines.push(leaf(calls, &node, &format!("@{number}"))?);
    }
    Ok(lines)
}

fn leaf<C: Calls>(calls: &mut C, node: &C::Node, name: &str) -> Result<String> {
    let Stat { perm, nlink, .. } = calls.stat(node)?;
    let mark = match calls.get_mark(node) {
        Ok(mark) => format!(" mark {}", text(&mark)),
        Err(_) => String::new(),
    };
    Ok(match calls.kind(node) {
        Kind::File => {
            let content = calls.read(node)?;
            format!("{name} {perm:o} x{nlink}{mark} = {}", text(&content))
        }
        Kind::Dir => format!("{name} {perm:o} x{nlink}{mark}"),
    })
}

fn branch<C: Calls>(
    calls: &mut C,
    node: &C::Node,
    name: &str,
    lines: &mut Vec<String>,
) -> Result<()> {
    lines.push(leaf(calls, node, name)?);
    if calls.kind(node) == Kind::Dir {
        for (entry, _) in calls.list(node)? {
            let inner = calls.lookup(node, &entry)?;
            branch(calls, &inner, &format!("{name}/{entry}"), lines)?;
        }
    }
    Ok(())
}

impl Op {
    /// Whether it is one call, so that it is atomic although no transaction is around it.
    pub fn is_one_call(&self) -> bool {
        let names = |path| split(path).1.count();
        match *self {
            Self::Look(path) | Self::Mkdir(path) | Self::Unlink(path) | Self::Rmdir(path) => {
                names(path) == 1
            }
            Self::Rename(from, to) | Self::Swap(from, to) => names(from) == 1 && names(to) == 1,
            Self::Link(from, to) => names(from) == 0 && names(to) == 1,
            Self::Create(..) | Self::ListParent(_) | Self::Tree => false,
            Self::Read(path)
            | Self::Stat(path)
            | Self::List(path)
            | Self::Where(path)
            | Self::GetMark(path)
            | Self::Write(path, ..)
            | Self::Append(path, _)
            | Self::Truncate(path, _)
            | Self::Chmod(path, _)
            | Self::Mark(path, _) => names(path) == 0,
        }
    }
}

/// Content as text.
fn text(content: &[u8]) -> String {
    format!("\"{}\"", content.escape_ascii())
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = format!("{self:?}").to_lowercase();
        match self {
            Self::Create(path, byte) | Self::Append(path, byte) | Self::Mark(path, byte) => {
                let word = said.split('(').next().unwrap_or_default();
                write!(f, "{word} {path} {}", text(&[*byte]))
            }
            Self::Write(path, at, byte) => write!(f, "write {path} at {at} {}", text(&[*byte])),
            Self::Chmod(path, perm) => write!(f, "chmod {path} {perm:o}"),
            _ => f.write_str(&said.replace(['(', ','], " ").replace(['"', ')'], "")),
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Kind(kind) => write!(f, "{kind:?}"),
            Self::Content(content) => f.write_str(&text(content)),
            Self::Stat(stat) => write!(
                f,
                "{:?} {:o} x{} {} bytes",
                stat.kind, stat.perm, stat.nlink, stat.size
            ),
            Self::Names(names) => {
                let names: Vec<_> = names
                    .iter()
                    .map(|(name, kind)| match kind {
                        Kind::File => name.clone(),
                        Kind::Dir => format!("{name}/"),
                    })
                    .collect();
                write!(f, "[{}]", names.join(" "))
            }
            Self::Where(path, deleted) => {
                let note = if *deleted { " (deleted)" } else { "" };
                write!(f, "{path}{note}")
            }
            Self::Tree(lines) => write!(f, "\n        {}", lines.join("\n        ")),
        }
    }
}

/// An outcome as text.
pub fn told(outcome: &Outcome) -> String {
    match outcome {
        Ok(seen) => seen.to_string(),
        Err(errno) => format!("{errno:?}"),
    }
}
