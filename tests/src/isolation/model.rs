//! The reference: a file system that does one thing after the other.

use std::collections::BTreeMap;

use goanna_vfs::{Errno, Result};

use super::Layout;
use super::op::{Calls, Kind, Op, Stat, perform};

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
}

impl Model {
    /// What there is before a history begins.
    pub fn new(layout: &Layout) -> Self {
        let top = Inode::dir((TOP, String::new()));
        let mut model = Self {
            inodes: BTreeMap::from([(TOP, top)]),
            held: Vec::new(),
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

    fn inode(&mut self, node: u32) -> &mut Inode {
        self.inodes.get_mut(&node).unwrap()
    }

    /// A directory's entries. ENOENT for a removed one.
    fn names(&mut self, dir: u32) -> Result<&mut BTreeMap<String, u32>> {
        match &mut self.inode(dir).what {
            What::Dir { removed: true, .. } => Err(Errno::ENOENT),
            What::Dir { names, .. } => Ok(names),
            What::File(_) => Err(Errno::ENOTDIR),
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
            return Err(Errno::EEXIST);
        }
        let number = self.inodes.keys().next_back().map_or(0, |last| last + 1);
        if inode.kind() == Kind::Dir {
            self.inode(dir).nlink += 1;
        }
        self.inodes.insert(number, inode);
        self.names(dir)?.insert(name.to_owned(), number);
        Ok(number)
    }

    /// Takes the name out of its directory.
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

    /// An inode has lost a name.
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
            Err(Errno::ENOTEMPTY)
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
        self.find(*dir, name)?.ok_or(Errno::ENOENT)
    }

    fn parent(&mut self, dir: &u32) -> Result<u32> {
        match &self.inode(*dir).what {
            What::Dir { up, .. } => Ok(up.0),
            What::File(_) => Err(Errno::ENOTDIR),
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
            return Err(Errno::EISDIR);
        }
        self.detach(*dir, name);
        self.drop_name(node);
        Ok(())
    }

    fn rmdir(&mut self, dir: &u32, name: &str) -> Result<()> {
        let node = self.lookup(dir, name)?;
        if self.kind(&node) == Kind::File {
            return Err(Errno::ENOTDIR);
        }
        self.check_empty(node)?;
        self.detach(*dir, name);
        self.drop_name(node);
        Ok(())
    }

    fn link(&mut self, file: &u32, dir: &u32, name: &str) -> Result<()> {
        if self.kind(file) == Kind::Dir {
            return Err(Errno::EPERM);
        }
        if self.find(*dir, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        if self.inode(*file).nlink == 0 {
            return Err(Errno::ENOENT);
        }
        self.inode(*file).nlink += 1;
        self.attach(*dir, name, *file);
        Ok(())
    }

    fn rename(&mut self, from: (&u32, &str), to: (&u32, &str), swap: bool) -> Result<()> {
        let source = self.lookup(from.0, from.1)?;
        let target = self.find(*to.0, to.1)?;
        if swap && target.is_none() {
            return Err(Errno::ENOENT);
        }
        if self.kind(&source) == Kind::Dir && self.is_below(*to.0, source) {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = target {
            if self.kind(&target) == Kind::Dir && self.is_below(*from.0, target) {
                return Err(if swap {
                    Errno::EINVAL
                } else {
                    Errno::ENOTEMPTY
                });
            }
            if target == source {
                return Ok(());
            }
            if !swap {
                match (self.kind(&source), self.kind(&target)) {
                    (Kind::Dir, Kind::File) => return Err(Errno::ENOTDIR),
                    (Kind::File, Kind::Dir) => return Err(Errno::EISDIR),
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

/// What an operation shows in a state of the model, and the state after it.
pub fn apply(model: &Model, op: &Op) -> (super::Outcome, Model) {
    let mut after = model.clone();
    let outcome = perform(&mut after, op);
    (outcome, after)
}
