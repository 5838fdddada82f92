//! Nested transactions, and operations outside of them, against copies of a tree.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, VecDeque};

use amino_fs::EngineKind;
use common::user::{Runs, User, runs};
use common::{Handle, close_and_check, open_with, options};
use goanna_vfs::{Errno, FileSystem, FsError, Result, Transactions, TxnId};
use proptest::prelude::*;

/// The reference: names to directories or files, files by number.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    names: BTreeMap<String, Option<usize>>,
    files: BTreeMap<usize, Vec<u8>>,
    next: usize,
}

impl Model {
    fn kind(&self, path: &str) -> Option<Option<usize>> {
        self.names.get(path).copied()
    }

    /// What a walk to the parent of `path` says.
    fn parent(&self, path: &str) -> Result<()> {
        let mut at = 0;
        while let Some(slash) = path[at..].find('/') {
            match self.kind(&path[..at + slash]) {
                None => return Err(Errno::ENOENT.into()),
                Some(Some(_)) => return Err(Errno::ENOTDIR.into()),
                Some(None) => at += slash + 1,
            }
        }
        Ok(())
    }

    fn walk(&self, path: &str) -> Result<Option<usize>> {
        self.parent(path)?;
        self.kind(path).ok_or(Errno::ENOENT.into())
    }

    fn file(&mut self, path: &str) -> Result<&mut Vec<u8>> {
        let id = self.walk(path)?.ok_or(Errno::EISDIR)?;
        Ok(self.files.get_mut(&id).unwrap())
    }

    fn is_empty(&self, dir: &str) -> bool {
        let below = format!("{dir}/");
        !self.names.keys().any(|name| name.starts_with(&below))
    }

    fn apply(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Put(path, data) => {
                let data = bytes(data);
                self.parent(path)?;
                match self.kind(path) {
                    Some(None) => return Err(Errno::EISDIR.into()),
                    Some(Some(id)) => *self.files.get_mut(&id).unwrap() = data,
                    None => {
                        self.files.insert(self.next, data);
                        self.names.insert(path.clone(), Some(self.next));
                        self.next += 1;
                    }
                }
            }
            Step::PutAt(path, offset, data) => {
                let data = bytes(data);
                let file = self.file(path)?;
                if data.is_empty() {
                    // Writing nothing makes no file longer.
                    return Ok(());
                }
                let end = offset + data.len();
                file.resize(file.len().max(end), 0);
                file[*offset..end].copy_from_slice(&data);
            }
            Step::Truncate(path, size) => self.file(path)?.resize(*size, 0),
            Step::Mkdir(path) => {
                self.parent(path)?;
                if self.kind(path).is_some() {
                    return Err(Errno::EEXIST.into());
                }
                self.names.insert(path.clone(), None);
            }
            Step::Unlink(path) => {
                if self.walk(path)?.is_none() {
                    return Err(Errno::EISDIR.into());
                }
                self.names.remove(path);
            }
            Step::Rmdir(path) => {
                if self.walk(path)?.is_some() {
                    return Err(Errno::ENOTDIR.into());
                }
                if !self.is_empty(path) {
                    return Err(Errno::ENOTEMPTY.into());
                }
                self.names.remove(path);
            }
            Step::Link(from, to) => {
                let id = self.walk(from)?;
                self.parent(to)?;
                let id = id.ok_or(Errno::EPERM)?;
                if self.kind(to).is_some() {
                    return Err(Errno::EEXIST.into());
                }
                self.names.insert(to.clone(), Some(id));
            }
            Step::Rename(from, to) => return self.rename(from, to),
        }
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        self.parent(from)?;
        self.parent(to)?;
        let source = self.kind(from).ok_or(Errno::ENOENT)?;
        let target = self.kind(to);
        if source.is_none() && (to == from || to.starts_with(&format!("{from}/"))) {
            return if to == from {
                Ok(())
            } else {
                Err(Errno::EINVAL.into())
            };
        }
        if target == Some(None) && from.starts_with(&format!("{to}/")) {
            return Err(Errno::ENOTEMPTY.into());
        }
        match (source, target) {
            (Some(a), Some(Some(b))) if a == b => return Ok(()),
            (None, Some(Some(_))) => return Err(Errno::ENOTDIR.into()),
            (Some(_), Some(None)) => return Err(Errno::EISDIR.into()),
            (None, Some(None)) if !self.is_empty(to) => return Err(Errno::ENOTEMPTY.into()),
            _ => {}
        }
        let below = format!("{from}/");
        let moved: Vec<_> = self
            .names
            .iter()
            .filter(|(name, _)| *name == from || name.starts_with(&below))
            .map(|(name, id)| (name.clone(), *id))
            .collect();
        self.names.remove(to);
        for (name, id) in moved {
            self.names.remove(&name);
            self.names
                .insert(format!("{to}{}", &name[from.len()..]), id);
        }
        Ok(())
    }

    fn tree(&self) -> BTreeMap<String, (Option<Runs>, u32)> {
        let links = |id: usize| {
            self.names
                .values()
                .filter(|other| **other == Some(id))
                .count()
        };
        let mut out = BTreeMap::new();
        for (name, id) in &self.names {
            let shown = match id {
                Some(id) => (Some(runs(&self.files[id])), links(*id) as u32),
                None => (None, self.links(name)),
            };
            out.insert(format!("/{name}"), shown);
        }
        out
    }

    /// Of a directory.
    fn links(&self, name: &str) -> u32 {
        let below = format!("{name}/");
        let is_subdir =
            |other: &&String| other.starts_with(&below) && !other[below.len()..].contains('/');
        let dirs = self.names.iter().filter(|(_, id)| id.is_none());
        2 + dirs.map(|(name, _)| name).filter(is_subdir).count() as u32
    }
}

/// Content: a byte, and how many of it.
type Fill = (u8, usize);

fn bytes(fill: &Fill) -> Vec<u8> {
    vec![fill.0; fill.1]
}

#[derive(Debug, Clone)]
enum Step {
    Put(String, Fill),
    PutAt(String, usize, Fill),
    Truncate(String, usize),
    Mkdir(String),
    Unlink(String),
    Rmdir(String),
    Link(String, String),
    Rename(String, String),
}

#[derive(Debug, Clone)]
enum Act {
    Inside(Step),
    /// Of a directory, inside; see [`Model::links`].
    Stat(String),
    Outside(Step),
    Begin,
    Commit,
    Abort,
}

fn perform(user: &User<'_>, step: &Step) -> Result<()> {
    match step {
        Step::Put(path, data) => user.put(path, &bytes(data)),
        Step::PutAt(path, offset, data) => {
            if user.walk(path)?.is_dir() {
                return Err(Errno::EISDIR.into());
            }
            user.put_at(path, *offset as u64, &bytes(data))
        }
        Step::Truncate(path, size) => user.truncate(path, *size as u64),
        Step::Mkdir(path) => user.mkdir(path).map(drop),
        Step::Unlink(path) => user.unlink(path),
        Step::Rmdir(path) => user.rmdir(path),
        Step::Link(from, to) => user.link(from, to),
        Step::Rename(from, to) => user.rename(from, to),
    }
}

fn path() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "b", "c"]);
    prop::collection::vec(name, 1..4).prop_map(|parts| parts.join("/"))
}

fn size() -> impl Strategy<Value = usize> {
    // About what is stored inline, a page, and what is kept without an object at most.
    prop_oneof![
        10 => 0_usize..40,
        2 => 500_usize..530,
        6 => 4000_usize..4200,
        1 => 16_380_usize..16_390,
        1 => 65_530_usize..65_540,
    ]
}

fn data() -> impl Strategy<Value = Fill> {
    (1_u8..100, size())
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (path(), data()).prop_map(|(p, d)| Step::Put(p, d)),
        2 => (path(), size(), data()).prop_map(|(p, o, d)| Step::PutAt(p, o, d)),
        2 => (path(), size()).prop_map(|(p, s)| Step::Truncate(p, s)),
        4 => path().prop_map(Step::Mkdir),
        2 => path().prop_map(Step::Unlink),
        1 => path().prop_map(Step::Rmdir),
        2 => (path(), path()).prop_map(|(a, b)| Step::Link(a, b)),
        4 => (path(), path()).prop_map(|(a, b)| Step::Rename(a, b)),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        10 => step().prop_map(Act::Inside),
        3 => path().prop_map(Act::Stat),
        3 => step().prop_map(Act::Outside),
        2 => Just(Act::Begin),
        1 => Just(Act::Commit),
        1 => Just(Act::Abort),
    ]
}

fn tree_of(user: &User<'_>) -> BTreeMap<String, (Option<Runs>, u32)> {
    let mut tree = BTreeMap::new();
    user.tree("", &mut tree);
    tree
}

/// An open transaction: what it sees, and what it has done.
struct Open {
    id: TxnId,
    seen: Model,
    steps: Vec<Step>,
}

impl Open {
    /// It has committed; `stack` are those around it.
    fn merge(self, stack: &mut [Self], committed: &mut Model) {
        match stack.last_mut() {
            Some(around) => {
                around.seen = self.seen;
                around.steps.extend(self.steps);
            }
            None => *committed = self.seen,
        }
    }
}

/// What the open transactions see when something was committed before all that they did.
fn replay(stack: &mut [Open], committed: &Model) {
    let mut below = committed.clone();
    for open in stack {
        open.seen = below;
        for step in &open.steps {
            let _ = open.seen.apply(step);
        }
        below = open.seen.clone();
    }
}

/// Descriptors that programs of a run transaction have open.
#[derive(Default)]
struct Held(VecDeque<Handle>);

impl Held {
    fn open(&mut self, user: &User<'_>, step: &Step) {
        let (Step::Put(path, _) | Step::PutAt(path, ..) | Step::Truncate(path, _)) = step else {
            return;
        };
        self.0.extend(user.open(path, libc::O_RDWR));
        if self.0.len() > 4
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.close(user.fs);
        }
    }

    /// What they show is what the run sees, whatever is open inside it.
    fn check(&self, run: &User<'_>) {
        for handle in &self.0 {
            match run.get_node(&handle.node) {
                // Changed by one that is open inside; made by one that was aborted.
                Err(FsError::Blocked(_) | FsError::Errno(Errno::ESTALE)) => {}
                seen => {
                    let mut shown = vec![0; 200_000];
                    let got = nix::sys::uio::pread(&handle.fd, &mut shown, 0).unwrap();
                    assert_eq!(runs(&shown[..got]), runs(&seen.unwrap()));
                }
            }
        }
    }

    fn close(&mut self, user: &User<'_>) {
        for handle in self.0.drain(..) {
            handle.close(user.fs);
        }
    }
}

/// Compares the kind of file that `path` names, and a directory's links.
fn stat(user: &User<'_>, seen: &Model, path: &str, at: usize) {
    let links = user.walk(path).map(|node| {
        let attr = user.fs.getattr(&user.caller, &node).unwrap();
        node.is_dir().then_some(attr.nlink)
    });
    let expected = seen.walk(path).map(|file| match file {
        Some(_) => None,
        None => Some(seen.links(path)),
    });
    assert_eq!(links, expected, "{at}: stat {path}");
}

/// A step outside of the open transactions: it waits for what they have touched, and else happens before all of them.
fn perform_outside(
    outside: &User<'_>,
    step: &Step,
    committed: &mut Model,
    stack: &mut [Open],
    at: usize,
) {
    let result = perform(outside, step);
    let mut expected = committed.clone();
    let theirs = expected.apply(step);
    if !matches!(result, Err(FsError::Blocked(_))) {
        assert_eq!(result, theirs, "{at}: outside {step:?}");
        *committed = expected;
        replay(stack, committed);
    }
}

/// Begins a transaction inside those of `stack`; an outermost one is that of a whole run with `as_run`.
fn begin(inside: &mut User<'_>, stack: &mut Vec<Open>, committed: &Model, as_run: bool) {
    let seen = stack.last().map_or(committed, |open| &open.seen).clone();
    let id = if as_run && stack.is_empty() {
        let id = inside.fs.begin_run().unwrap();
        inside.caller.txn = Some(id);
        id
    } else {
        inside.begin()
    };
    let steps = Vec::new();
    stack.push(Open { id, seen, steps });
}

/// `as_run`: the outermost transactions are of whole runs.
fn play(engine: EngineKind, acts: &[Act], as_run: bool) {
    let dir = tempfile::tempdir().unwrap();
    let fs = open_with(dir.path(), &options(engine));
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    let mut committed = Model::default();
    // The open transactions, outermost first.
    let mut stack: Vec<Open> = Vec::new();
    let mut held = Held::default();
    for (at, act) in acts.iter().enumerate() {
        match act {
            Act::Begin => begin(&mut inside, &mut stack, &committed, as_run),
            Act::Commit | Act::Abort => {
                let Some(open) = stack.pop() else {
                    continue;
                };
                let outer = stack.last().map(|open| open.id);
                if outer.is_none() {
                    held.close(&inside);
                }
                if matches!(act, Act::Abort) {
                    inside.abort(outer);
                } else {
                    inside.commit(outer).unwrap();
                    open.merge(&mut stack, &mut committed);
                }
            }
            Act::Inside(step) => {
                let seen = match stack.last_mut() {
                    Some(open) => {
                        open.steps.push(step.clone());
                        &mut open.seen
                    }
                    None => &mut committed,
                };
                assert_eq!(perform(&inside, step), seen.apply(step), "{at}: {step:?}");
                if as_run && !stack.is_empty() {
                    held.open(&inside, step);
                }
            }
            Act::Stat(path) => {
                let seen = stack.last().map_or(&committed, |open| &open.seen);
                stat(&inside, seen, path, at);
            }
            Act::Outside(step) => perform_outside(&outside, step, &mut committed, &mut stack, at),
        }
        if let Some(outermost) = stack.first() {
            let mut run = User::new(&fs, 3);
            run.caller.txn = Some(outermost.id);
            held.check(&run);
        }
        if at % 4 == 0 || matches!(act, Act::Commit | Act::Abort) {
            assert_eq!(
                tree_of(&outside),
                committed.tree(),
                "{at}: outside after {act:?}"
            );
        }
    }
    let seen = stack.last().map_or(&committed, |open| &open.seen);
    assert_eq!(tree_of(&inside), seen.tree(), "inside at the end");
    held.close(&inside);
    while let Some(open) = stack.pop() {
        inside.commit(stack.last().map(|open| open.id)).unwrap();
        open.merge(&mut stack, &mut committed);
    }
    assert_eq!(tree_of(&outside), committed.tree(), "at the end");
    close_and_check(fs, dir.path());
    if engine != EngineKind::Memory {
        let fs = open_with(dir.path(), &options(engine));
        let opened_again = tree_of(&User::new(&fs, 3));
        assert_eq!(opened_again, committed.tree(), "opened again");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn nested_transactions_behave_like_copies_of_the_tree(acts in prop::collection::vec(act(), 1..60)) {
        play(EngineKind::Memory, &acts, false);
    }

    #[test]
    fn run_transactions_behave_like_copies_of_the_tree(acts in prop::collection::vec(act(), 1..60)) {
        play(EngineKind::Memory, &acts, true);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_was_committed_is_there_after_opening_again(acts in prop::collection::vec(act(), 1..60)) {
        play(EngineKind::Fjall, &acts, false);
    }

    #[test]
    fn what_runs_have_committed_is_there_after_opening_again(acts in prop::collection::vec(act(), 1..60)) {
        play(EngineKind::Fjall, &acts, true);
    }
}

/// What an inner transaction removes may be an entry that only an outer one has added.
#[test]
fn an_inner_transaction_may_remove_all_that_the_outer_one_has_added() {
    use Step::{Mkdir, Put, Rename, Rmdir};
    let inside = |step: Step| Act::Inside(step);
    let path = |name: &str| name.to_owned();
    let mut acts = vec![inside(Mkdir(path("c"))), Act::Begin];
    acts.extend(["c/a", "c/b", "c/a/a"].map(|name| inside(Mkdir(path(name)))));
    acts.extend([inside(Put(path("a"), (1, 9))), Act::Begin]);
    acts.extend(["c/a/a", "c/a"].map(|name| inside(Rmdir(path(name)))));
    acts.extend([
        Act::Stat(path("c")),
        inside(Rename(path("c/b"), path("b"))),
        Act::Stat(path("c")),
        inside(Rmdir(path("c"))),
        Act::Commit,
        Act::Commit,
    ]);
    for engine in [EngineKind::Memory, EngineKind::Fjall] {
        play(engine, &acts, false);
        play(engine, &acts, true);
    }
}
