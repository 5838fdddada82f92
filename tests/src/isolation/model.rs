//! The model: a file system in memory that performs one operation after the other.

use std::collections::{BTreeMap, BTreeSet};

use goanna_vfs::{Errno, Result};

use super::Layout;
use super::op::{Calls, Kind, Op, Seen, Stat, perform, walk};

/// Permission bits of files and directories that operations make.
pub const FILE_PERM: u32 = 0o644;
/// See [`FILE_PERM`].
pub const DIR_PERM: u32 = 0o755;

/// Number of the top directory.
const TOP: u32 = 0;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Inode {
    perm: u32,
    nlink: u32,
    mark: Option<u8>,
    what: What,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum What {
    File(Vec<u8>),
    Dir {
        names: BTreeMap<String, u32>,
        /// Its directory, and its name there, the last ones for a removed directory.
        up: (u32, String),
        removed: bool,
    },
}

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Model {
    inodes: BTreeMap<u32, Inode>,
    held: Vec<u32>,
    /// The level outside of all transactions, then those of the open transactions, the innermost last.
    levels: Vec<Level>,
}

/// The data about links of directories, which transactions read without a lock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Level {
    /// The changes of links, in order.
    changes: Vec<LinksChange>,
    /// When inner transactions have last read the links of each directory.
    looks: BTreeMap<u32, u64>,
}

/// A change of a directory's number of links, by a transaction or an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LinksChange {
    dir: u32,
    by: i64,
    when: Window,
}

/// An interval, both ends included: an effect happened at one instant in it.
pub type Window = (u64, u64);

impl Model {
    /// The state before a history begins.
    pub fn new(layout: &Layout) -> Self {
        let top = Inode::dir((TOP, String::new()));
        let mut model = Self {
            inodes: BTreeMap::from([(TOP, top)]),
            held: Vec::new(),
            levels: vec![Level::default()],
        };
        for op in layout.make {
            perform(&mut model, op).unwrap();
        }
        for path in layout.held {
            let node = path.split('/').fold(TOP, |dir, name| {
                model.lookup(&dir, name).expect("the layout makes it")
            });
            model.held.push(node);
        }
        model
    }

    /// This state as a transaction finds it that begins now.
    pub fn begun(&self) -> Self {
        let mut inside = self.clone();
        inside.levels.push(Level::default());
        inside
    }

    /// The state after the end of the innermost transaction; `before` is the state at its begin.
    pub fn ended(&self, before: &Self, committed: bool) -> Self {
        let mut after = if committed { self } else { before }.clone();
        // The transaction and the outside: it is the outermost one.
        if committed && self.levels.len() == 2 {
            after.withhold(before);
        }
        // The abort does not undo what the transaction has observed.
        after.levels.clone_from(&self.levels);
        after.levels.pop();
        after
    }

    /// A file that the transaction has removed shows the content of `before` to programs that still have it open.
    fn withhold(&mut self, before: &Self) {
        for (number, inode) in &mut self.inodes {
            let Some(old) = before.inodes.get(number) else {
                continue;
            };
            if inode.nlink == 0 && old.nlink > 0 && matches!(old.what, What::File(_)) {
                inode.what = old.what.clone();
            }
        }
    }

    fn level(&mut self) -> &mut Level {
        self.levels.last_mut().expect("there is an outside")
    }

    /// Notes how the links of directories differ from those in `before`. False when a transaction has looked afterwards that comes
    /// before in this order, and so has not seen it.
    ///
    /// Directories that are made or removed do not count: locks protect their existence.
    pub fn note_links(&mut self, before: &Self, when: Window) -> bool {
        let mut noted = Vec::new();
        for (&dir, inode) in &self.inodes {
            let old = before.inodes.get(&dir).map_or(inode.nlink, |old| old.nlink);
            let by = i64::from(inode.nlink) - i64::from(old);
            if by != 0 && inode.has_entries() {
                noted.push(LinksChange { dir, by, when });
            }
        }
        let level = self.level();
        let missed = |change: &LinksChange| level.looks.get(&change.dir) > Some(&change.when.1);
        let in_order = !noted.iter().any(missed);
        level.changes.extend(noted);
        in_order
    }

    /// The numbers of links that a look at directory `dir` can show within the innermost transaction: with its own, those that each
    /// level around it had in some instant of the look.
    fn look(&mut self, dir: u32, when: Window) -> BTreeSet<i64> {
        let inode = &self.inodes[&dir];
        let mut shown = BTreeSet::from([i64::from(inode.nlink)]);
        if !inode.has_entries() {
            return shown;
        }
        let (_, around) = self.levels.split_last_mut().expect("there is an outside");
        for level in around {
            let last = level.looks.entry(dir).or_default();
            *last = when.0.max(*last);
            let of_dir = |change: &&LinksChange| change.dir == dir;
            let changes: Vec<_> = level.changes.iter().filter(of_dir).collect();
            // The last ones may have come after the look, though they come before in this order.
            let mut later = 0;
            let mut possible = Vec::new();
            for done in (0..=changes.len()).rev() {
                let (before, after) = changes.split_at(done);
                let had_come = before.last().is_none_or(|last| last.when.0 <= when.1);
                let was_to_come = after.first().is_none_or(|next| next.when.1 >= when.0);
                if had_come && was_to_come {
                    possible.push(later);
                }
                later += before.last().map_or(0, |last| last.by);
            }
            let less = |links: i64| possible.iter().map(move |later| links - later);
            shown = shown.into_iter().flat_map(less).collect();
        }
        shown
    }

    fn inode(&mut self, node: u32) -> &mut Inode {
        self.inodes.get_mut(&node).unwrap()
    }

    /// A directory's entries. ENOENT for a removed one.
    fn names(&mut self, dir: u32) -> Result<&mut BTreeMap<String, u32>> {
        match &mut self.inode(dir).what {
            What::Dir { removed: true, .. } => Err(Errno::ENOENT.into()),
            What::Dir { names, .. } => Ok(names),
            What::File(_) => Err(Errno::ENOTDIR.into()),
        }
    }

    fn find(&mut self, dir: u32, name: &str) -> Result<Option<u32>> {
        Ok(self.names(dir)?.get(name).copied())
    }

    fn content(&mut self, file: u32) -> &mut Vec<u8> {
        match &mut self.inode(file).what {
            What::File(content) => content,
            What::Dir { .. } => unreachable!("operations ask for the kind"),
        }
    }

    fn make(&mut self, dir: u32, name: &str, inode: Inode) -> Result<u32> {
        if self.find(dir, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let number = self.inodes.keys().next_back().map_or(0, |last| last + 1);
        if inode.kind() == Kind::Dir {
            self.inode(dir).nlink += 1;
        }
        self.inodes.insert(number, inode);
        self.names(dir)?.insert(name.to_owned(), number);
        Ok(number)
    }

    /// Removes the name from its directory.
    fn detach(&mut self, dir: u32, name: &str) {
        let node = self.names(dir).unwrap().remove(name).unwrap();
        if self.inode(node).kind() == Kind::Dir {
            self.inode(dir).nlink -= 1;
        }
    }

    /// Gives the name to an inode.
    fn attach(&mut self, dir: u32, name: &str, node: u32) {
        self.names(dir).unwrap().insert(name.to_owned(), node);
        if let What::Dir { up, .. } = &mut self.inode(node).what {
            *up = (dir, name.to_owned());
            self.inode(dir).nlink += 1;
        }
    }

    /// Records that an inode has lost a name.
    fn drop_name(&mut self, node: u32) {
        let inode = self.inode(node);
        match &mut inode.what {
            What::File(_) => inode.nlink -= 1,
            What::Dir { removed, .. } => {
                *removed = true;
                inode.nlink = 0;
            }
        }
    }

    fn is_below(&mut self, dir: u32, ancestor: u32) -> bool {
        let mut at = dir;
        while at != ancestor {
            match &self.inode(at).what {
                What::Dir { up, .. } if at != TOP => at = up.0,
                _ => return false,
            }
        }
        true
    }

    fn check_empty(&mut self, dir: u32) -> Result<()> {
        if self.names(dir)?.is_empty() {
            Ok(())
        } else {
            Err(Errno::ENOTEMPTY.into())
        }
    }
}

impl Inode {
    fn dir(up: (u32, String)) -> Self {
        Self {
            perm: DIR_PERM,
            nlink: 2,
            mark: None,
            what: What::Dir {
                names: BTreeMap::new(),
                up,
                removed: false,
            },
        }
    }

    fn file() -> Self {
        Self {
            perm: FILE_PERM,
            nlink: 1,
            mark: None,
            what: What::File(Vec::new()),
        }
    }

    /// Whether it is a directory that is not removed.
    fn has_entries(&self) -> bool {
        matches!(self.what, What::Dir { removed: false, .. })
    }

    fn kind(&self) -> Kind {
        match self.what {
            What::File(_) => Kind::File,
            What::Dir { .. } => Kind::Dir,
        }
    }
}

impl Calls for Model {
    type Node = u32;

    fn start(&self, held: Option<usize>) -> u32 {
        held.map_or(TOP, |number| self.held[number])
    }

    fn held(&self) -> usize {
        self.held.len()
    }

    fn kind(&self, node: &u32) -> Kind {
        self.inodes[node].kind()
    }

    fn lookup(&mut self, dir: &u32, name: &str) -> Result<u32> {
        self.find(*dir, name)?.ok_or(Errno::ENOENT.into())
    }

    fn parent(&mut self, dir: &u32) -> Result<u32> {
        match &self.inode(*dir).what {
            What::Dir { up, .. } => Ok(up.0),
            What::File(_) => Err(Errno::ENOTDIR.into()),
        }
    }

    fn path(&mut self, dir: &u32) -> Result<(String, bool)> {
        let (mut at, mut parts) = (*dir, Vec::new());
        let mut deleted = false;
        while at != TOP
            && let What::Dir { up, removed, .. } = &self.inode(at).what
        {
            deleted |= *removed;
            parts.push(up.1.clone());
            at = up.0;
        }
        parts.reverse();
        Ok((parts.join("/"), deleted))
    }

    fn read(&mut self, file: &u32) -> Result<Vec<u8>> {
        Ok(self.content(*file).clone())
    }

    fn stat(&mut self, node: &u32) -> Result<Stat> {
        let inode = self.inode(*node);
        let size = match &inode.what {
            What::File(content) => content.len() as u64,
            What::Dir { .. } => 0,
        };
        Ok(Stat {
            kind: inode.kind(),
            perm: inode.perm,
            nlink: inode.nlink,
            size,
        })
    }

    fn list(&mut self, dir: &u32) -> Result<Vec<(String, Kind)>> {
        let names = self.names(*dir)?.clone();
        let kinds = names.into_iter();
        Ok(kinds
            .map(|(name, node)| (name, self.inode(node).kind()))
            .collect())
    }

    fn get_mark(&mut self, node: &u32) -> Result<Vec<u8>> {
        let mark = self.inode(*node).mark.ok_or(Errno::ENODATA)?;
        Ok(vec![mark])
    }

    fn create(&mut self, dir: &u32, name: &str) -> Result<u32> {
        self.make(*dir, name, Inode::file())
    }

    fn write(&mut self, file: &u32, at: Option<u64>, byte: u8) -> Result<()> {
        let content = self.content(*file);
        let at = at.map_or(content.len(), |at| at as usize);
        content.resize(content.len().max(at + 1), 0);
        content[at] = byte;
        Ok(())
    }

    fn truncate(&mut self, file: &u32, size: u64) -> Result<()> {
        self.content(*file).resize(size as usize, 0);
        Ok(())
    }

    fn chmod(&mut self, node: &u32, perm: u32) -> Result<()> {
        self.inode(*node).perm = perm;
        Ok(())
    }

    fn mark(&mut self, node: &u32, byte: u8) -> Result<()> {
        self.inode(*node).mark = Some(byte);
        Ok(())
    }

    fn mkdir(&mut self, dir: &u32, name: &str) -> Result<()> {
        let up = (*dir, name.to_owned());
        self.make(*dir, name, Inode::dir(up)).map(drop)
    }

    fn unlink(&mut self, dir: &u32, name: &str) -> Result<()> {
        let node = self.lookup(dir, name)?;
        if self.kind(&node) == Kind::Dir {
            return Err(Errno::EISDIR.into());
        }
        self.detach(*dir, name);
        self.drop_name(node);
        Ok(())
    }

    fn rmdir(&mut self, dir: &u32, name: &str) -> Result<()> {
        let node = self.lookup(dir, name)?;
        if self.kind(&node) == Kind::File {
            return Err(Errno::ENOTDIR.into());
        }
        self.check_empty(node)?;
        self.detach(*dir, name);
        self.drop_name(node);
        Ok(())
    }

    fn link(&mut self, file: &u32, dir: &u32, name: &str) -> Result<()> {
        if self.kind(file) == Kind::Dir {
            return Err(Errno::EPERM.into());
        }
        if self.find(*dir, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if self.inode(*file).nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        self.inode(*file).nlink += 1;
        self.attach(*dir, name, *file);
        Ok(())
    }

    fn rename(&mut self, from: (&u32, &str), to: (&u32, &str), swap: bool) -> Result<()> {
        let source = self.lookup(from.0, from.1)?;
        let target = self.find(*to.0, to.1)?;
        if swap && target.is_none() {
            return Err(Errno::ENOENT.into());
        }
        if self.kind(&source) == Kind::Dir && self.is_below(*to.0, source) {
            return Err(Errno::EINVAL.into());
        }
        if let Some(target) = target {
            if self.kind(&target) == Kind::Dir && self.is_below(*from.0, target) {
                return Err(if swap {
                    Errno::EINVAL.into()
                } else {
                    Errno::ENOTEMPTY.into()
                });
            }
            if target == source {
                return Ok(());
            }
            if !swap {
                match (self.kind(&source), self.kind(&target)) {
                    (Kind::Dir, Kind::File) => return Err(Errno::ENOTDIR.into()),
                    (Kind::File, Kind::Dir) => return Err(Errno::EISDIR.into()),
                    (Kind::Dir, Kind::Dir) => self.check_empty(target)?,
                    _ => {}
                }
            }
        }
        self.detach(*from.0, from.1);
        if let Some(target) = target {
            self.detach(*to.0, to.1);
            if swap {
                self.attach(*from.0, from.1, target);
            } else {
                self.drop_name(target);
            }
        }
        self.attach(*to.0, to.1, source);
        Ok(())
    }
}

/// The state after an operation, if it can show `outcome` in a state of the model.
///
/// In a transaction a stat of a directory reads its links without a lock, so these are not what they are in the order that is
/// looked for, but what was committed in the instant of the stat, with the transaction's own changes. Everything else is exact.
pub fn apply(model: &Model, op: &Op, outcome: &super::Outcome, when: Window) -> Option<Model> {
    let mut after = model.clone();
    let mut answer = perform(&mut after, op);
    if let (Op::Stat(path), Ok(Seen::Stat(exact)), Ok(Seen::Stat(seen))) =
        (op, &mut answer, outcome)
        && exact.kind == Kind::Dir
    {
        let dir = walk(&mut after, path).ok()?;
        if !after.look(dir, when).contains(&seen.nlink.into()) {
            return None;
        }
        exact.nlink = seen.nlink;
    }
    (answer == *outcome).then_some(after)
}
