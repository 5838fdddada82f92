//! Path walk: component by component, with symbolic links, `..`, mount crossings and search permission.
//!
//! The host's part of the tree is walked by canonical path strings, because most calls end there and are
//! then passed on to the kernel, which walks again: the walk only has to determine whether the path leaves the host.
//! Mounted parts are walked by [`crate::Node`]s.

mod crossing;
mod host;
mod root;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::{
    Attr, Caller, Errno, FileKind, FsError, Mount, Mounts, NAME_MAX, Node, Place, Result, ops,
    paths,
};
use std::sync::Arc;

pub use host::is_magic_link;
use host::{free_of_links, is_directory, is_link};
pub use root::Root;

/// Linux follows at most this many symbolic links in one walk (`MAXSYMLINKS`), then ELOOP.
const MAX_LINKS: u32 = 40;

/// The position of a walk.
#[derive(Debug, Clone)]
pub enum Pos {
    /// On the host: an absolute path whose directories were free of symbolic links when walked; empty for
    /// the root.
    Host(Vec<u8>),
    /// In a mounted back end.
    Mounted(Place),
}

impl Pos {
    /// The root of the tree a process sees.
    pub fn root() -> Self {
        Self::Host(Vec::new())
    }

    /// The root directory of `mount`.
    pub fn mount_root(mount: &Arc<Mount>) -> Self {
        Self::Mounted(Place {
            node: mount.fs.root(),
            mount: Arc::clone(mount),
        })
    }

    /// The canonical absolute path, and whether that name has been removed.
    pub fn path(&self, caller: &Caller) -> Result<(Vec<u8>, bool)> {
        match self {
            Self::Host(path) if path.is_empty() => Ok((b"/".to_vec(), false)),
            Self::Host(path) => Ok((path.clone(), false)),
            Self::Mounted(place) => {
                let (relative, deleted) = place.mount.fs.path(caller, &place.node)?;
                Ok((place.mount.absolute(&relative), deleted))
            }
        }
    }
}

/// The last component of a path, for calls that make or remove a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Last {
    /// A name to look up in the directory found.
    Name(Vec<u8>),
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// The path was all slashes.
    Root,
}

/// The directory and last component a path names.
#[derive(Debug, Clone)]
pub struct Parent {
    /// The directory.
    pub dir: Pos,
    /// The last component, not looked up.
    pub last: Last,
    /// Slashes follow the last component, so it must be (or become) a directory.
    pub must_be_dir: bool,
}

/// The process-specific part of a walk: links in /proc, and the caller's ids.
pub trait ProcessView {
    /// The object behind a magic link of /proc whose canonical path is `path` (`/proc/PID/cwd`, `root`,
    /// `exe`, `fd/N`), when a back end holds it. `None`: the host's kernel resolves the link.
    fn magic_link(&self, path: &[u8]) -> Option<Pos>;
    /// Process and thread id of the caller as its /proc shows them.
    fn self_ids(&self) -> (i32, i32);
}

/// The view for walks outside any traced process.
#[derive(Debug, Clone, Copy)]
pub struct NoProcess;

impl ProcessView for NoProcess {
    fn magic_link(&self, _: &[u8]) -> Option<Pos> {
        None
    }

    fn self_ids(&self) -> (i32, i32) {
        let id = std::process::id() as i32;
        (id, id)
    }
}

/// One walk: the limits on links are counted over its whole life.
pub struct Walk<'a> {
    mounts: &'a Mounts,
    caller: &'a Caller,
    process_view: &'a dyn ProcessView,
    resolve: u64,
    /// Where absolute paths start, unless that is the root directory of the run.
    root: Option<Root>,
    /// The path by which the kernel's root directory of the process is reached, where canonical paths begin with that.
    kernel_root: Vec<u8>,
    /// A mount point of procfs below `root`, once the walk has crossed it. The walk goes on in the host's /proc, where links depend on the caller.
    proc_at: Option<Pos>,
    links: u32,
    /// Where the walk started, for `RESOLVE_BENEATH` and `RESOLVE_IN_ROOT`.
    anchor: Option<Pos>,
    depth: i32,
    left_host: bool,
    /// The walk, or the last absolute link in it, started at the root.
    from_root: bool,
    /// Host paths that the walk left by `..` without a check whether they are directories.
    unseen: Vec<Vec<u8>>,
}

/// The end of a walk to an object of which only the metadata is needed.
#[derive(Debug)]
pub enum Seen {
    /// The metadata of something else than the root of this mount.
    Attributes(Arc<Mount>, Attr),
    /// The object.
    Object(Pos),
}

/// What a walk is to find.
enum Goal {
    Object { follow: bool },
    Attributes { follow: bool },
    Parent,
}

impl Goal {
    /// Whether a symbolic link in the last place is followed, unless slashes or further names come behind it.
    fn follows(&self) -> bool {
        match *self {
            Self::Object { follow } | Self::Attributes { follow } => follow,
            Self::Parent => true,
        }
    }
}

enum Found {
    Object(Pos),
    Attributes(Arc<Mount>, Attr),
    Parent(Parent),
}

impl<'a> Walk<'a> {
    /// A walk for `caller` through `mounts`.
    pub fn new(mounts: &'a Mounts, caller: &'a Caller, process_view: &'a dyn ProcessView) -> Self {
        Self {
            mounts,
            caller,
            process_view,
            resolve: 0,
            root: None,
            kernel_root: Vec::new(),
            proc_at: None,
            links: 0,
            anchor: None,
            depth: 0,
            left_host: false,
            from_root: false,
            unseen: Vec::new(),
        }
    }

    /// Applies the `RESOLVE_*` flags of openat2(2).
    pub fn with_resolve(mut self, resolve: u64) -> Self {
        self.resolve = resolve;
        self
    }

    /// The object `path` names, from `start`; `follow` says whether a final symbolic link is followed.
    ///
    /// An object on the host need not exist: the kernel, to which such calls are passed on, says so itself.
    /// ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG, and under `RESOLVE_*` EXDEV, as path_resolution(7).
    pub fn object(&mut self, start: Pos, path: &[u8], follow: bool) -> Result<Pos> {
        match self.find(start, path, &Goal::Object { follow })? {
            Found::Object(pos) => Ok(pos),
            Found::Attributes(..) | Found::Parent(_) => Err(Errno::EINVAL.into()),
        }
    }

    /// As [`Walk::object`]; back ends that can tell metadata by a name do so ([`crate::FileSystem::getattr_at`]).
    pub fn attributes(&mut self, start: Pos, path: &[u8], follow: bool) -> Result<Seen> {
        match self.find(start, path, &Goal::Attributes { follow })? {
            Found::Attributes(mount, attr) => Ok(Seen::Attributes(mount, attr)),
            Found::Object(pos) => Ok(Seen::Object(pos)),
            Found::Parent(_) => Err(Errno::EINVAL.into()),
        }
    }

    /// The directory in which `path` names its last component.
    pub fn parent(&mut self, start: Pos, path: &[u8]) -> Result<Parent> {
        match self.find(start, path, &Goal::Parent)? {
            Found::Parent(parent) => Ok(parent),
            Found::Object(_) | Found::Attributes(..) => Err(Errno::EINVAL.into()),
        }
    }

    /// The object called `name` in `dir`. With `through`, the walk is to follow the object if it is a link: the target of a
    /// symbolic link is read (which sets its access time) and returned, too, and a magic link of /proc is followed.
    pub fn step(
        &mut self,
        dir: &Pos,
        name: &[u8],
        through: bool,
    ) -> Result<(Pos, Option<Vec<u8>>)> {
        let inside = self.inside_procfs(dir, name)?;
        let (next, link) = match inside.as_ref().unwrap_or(dir) {
            Pos::Host(path) => self.step_host(path, name, through)?,
            Pos::Mounted(place) => self.step_mounted(place, name, through)?,
        };
        if matches!(next, Pos::Mounted(_)) {
            self.leave_host()?;
        }
        if name == b"proc"
            && self.root.is_some()
            && link.is_none()
            && matches!(next, Pos::Mounted(_))
        {
            return Ok((self.in_procfs(next)?, None));
        }
        Ok((next, link))
    }

    /// From here on the kernel cannot repeat the walk. So it cannot report errors in the host's part either: check that part
    /// now.
    fn leave_host(&mut self) -> Result<()> {
        self.left_host = true;
        self.unseen
            .drain(..)
            .try_for_each(|path| is_directory(&path))
    }

    /// Whether any part of the walk was in a mount, so that the kernel could not repeat it.
    pub fn left_host(&self) -> bool {
        self.left_host
    }

    /// Whether the last component, the link `link` found in `dir`, may be followed
    /// (`fs.protected_symlinks`): EACCES. The kernel judges the host's itself.
    pub fn may_follow(&self, dir: &Pos, link: &Pos) -> Result<()> {
        let (Pos::Mounted(dir), Pos::Mounted(link)) = (dir, link) else {
            return Ok(());
        };
        let fs = &dir.mount.fs;
        let dir = fs.getattr(self.caller, &dir.node)?;
        Ok(ops::may_follow(
            self.caller,
            &dir,
            &fs.getattr(self.caller, &link.node)?,
        )?)
    }

    /// Counts one followed link: ELOOP beyond Linux's limit or where links are forbidden.
    pub fn count_link(&mut self) -> Result<()> {
        self.links += 1;
        let forbidden = self.resolve & libc::RESOLVE_NO_SYMLINKS != 0;
        if forbidden || self.links > MAX_LINKS {
            Err(Errno::ELOOP.into())
        } else {
            Ok(())
        }
    }

    /// Runs the walk. If it fails after a `..` that followed a component of the host which is not a directory, the error is that of this
    /// component: the kernel would have failed there.
    fn find(&mut self, start: Pos, path: &[u8], goal: &Goal) -> Result<Found> {
        let found = self.run(start, path, goal);
        match found {
            Err(FsError::Errno(errno)) => {
                let mut unseen = self.unseen.drain(..);
                Err(unseen
                    .find_map(|path| is_directory(&path).err())
                    .unwrap_or(errno.into()))
            }
            found => found,
        }
    }

    fn run(&mut self, start: Pos, path: &[u8], goal: &Goal) -> Result<Found> {
        if path.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        if let Some(found) = self.walk_on_host(&start, path, goal) {
            return Ok(found);
        }
        if self.anchor.is_none() {
            self.anchor = Some(start.clone());
        }
        self.left_host |= matches!(start, Pos::Mounted(_));
        self.from_root = false;
        let mut at = start;
        let mut rest = path.to_vec();
        if rest.first() == Some(&b'/') {
            at = self.absolute_start()?;
        }
        let mut cursor = 0;
        loop {
            while rest.get(cursor) == Some(&b'/') {
                cursor += 1;
            }
            if cursor == rest.len() {
                return Ok(match goal {
                    Goal::Parent => parent(at, Last::Root, true),
                    _ => Found::Object(at),
                });
            }
            let tail = rest.get(cursor..).unwrap_or_default();
            let length = tail.iter().position(|&b| b == b'/').unwrap_or(tail.len());
            let (name, after) = tail.split_at(length);
            let is_last = after.iter().all(|&b| b == b'/');
            let must_be_dir = !after.is_empty();
            if is_last && matches!(goal, Goal::Parent) {
                return self.last_component(at, name, must_be_dir);
            }
            let is_end = is_last && !must_be_dir;
            if let Some(found) = self.entry_attributes(is_end, &at, name, goal)? {
                return Ok(found);
            }
            let follow = !is_last || must_be_dir || goal.follows();
            let (next, link) = self.component(&at, name, follow)?;
            match link {
                Some(target) => {
                    if is_last {
                        self.may_follow(&at, &next)?;
                    }
                    self.count_link()?;
                    self.depth -= 1;
                    if target.first() == Some(&b'/') {
                        at = self.link_start(&at)?;
                    }
                    rest = [target.as_slice(), after].concat();
                    cursor = 0;
                }
                None => {
                    cursor += length;
                    if must_be_dir {
                        self.must_be_directory(&next)?;
                    }
                    at = next;
                }
            }
        }
    }

    /// The result of a walk to a parent, `at`, with the last component `name`.
    fn last_component(&self, at: Pos, name: &[u8], must_be_dir: bool) -> Result<Found> {
        let last = match name {
            b"." => Last::Dot,
            b".." => Last::DotDot,
            name => Last::Name(name.to_vec()),
        };
        match (&last, &at) {
            (Last::Name(_), Pos::Mounted(place)) => ops::may_search(self.caller, place)?,
            _ => self.may_pass(&at)?,
        }
        Ok(parent(at, last, must_be_dir))
    }

    /// Where the component `name` of a path leads from `at`, and the target if that is a symbolic link to `follow`.
    fn component(&mut self, at: &Pos, name: &[u8], follow: bool) -> Result<(Pos, Option<Vec<u8>>)> {
        match name {
            b"." => {
                self.may_pass(at)?;
                Ok((at.clone(), None))
            }
            b".." => Ok((self.up(at)?, None)),
            name => {
                self.depth += 1;
                self.step(at, name, follow)
            }
        }
    }

    /// The metadata of the entry `name` of `at` if that is the goal; `None` where the entry must be looked up.
    fn entry_attributes(
        &self,
        is_end: bool,
        at: &Pos,
        name: &[u8],
        goal: &Goal,
    ) -> Result<Option<Found>> {
        let (Goal::Attributes { follow }, Pos::Mounted(dir), true) = (goal, at, is_end) else {
            return Ok(None);
        };
        let fs = &dir.mount.fs;
        let is_name = !matches!(name, b"." | b"..");
        if !is_name || self.mounts.nested() || dir.mount.is_host() || !fs.checks_access() {
            return Ok(None);
        }
        let attr = fs.getattr_at(self.caller, &dir.node, name)?;
        let is_link = |attr: &Attr| attr.mode & libc::S_IFMT == libc::S_IFLNK;
        let attr = attr.filter(|attr| !(*follow && is_link(attr)));
        Ok(attr.map(|attr| Found::Attributes(Arc::clone(&dir.mount), attr)))
    }

    /// The result of a walk that stays on the host and meets no symbolic link, as most walks do. It takes at most two system
    /// calls, where a walk takes one for each component. `None`: walk component by component.
    fn walk_on_host(&self, start: &Pos, path: &[u8], goal: &Goal) -> Option<Found> {
        let Pos::Host(base) = start else { return None };
        if self.resolve != 0 {
            return None;
        }
        let absolute = path.first() == Some(&b'/');
        if absolute && self.root.is_some() {
            return None;
        }
        let mut full = if absolute { Vec::new() } else { base.clone() };
        let mut last_at = full.len();
        let mut last = None;
        for name in path.split(|&b| b == b'/') {
            match name {
                b"" => {}
                b"." | b".." => return None,
                name => {
                    last_at = full.len();
                    full.push(b'/');
                    full.extend_from_slice(name);
                    last = Some(name);
                }
            }
        }
        let last = last?;
        if full.starts_with(b"/proc/") || self.mounts.leads_into(&full) {
            return None;
        }
        let must_be_dir = path.last() == Some(&b'/');
        let follows = !matches!(goal, Goal::Parent) && (goal.follows() || must_be_dir);
        let dir = full.get(..last_at)?;
        // The kernel knows the starting directory by its canonical path.
        let known = dir.is_empty() || !absolute && dir.len() == base.len();
        if !known {
            let straight = self.mounts.link_free().holds(dir, || free_of_links(dir));
            straight.then_some(())?;
        }
        if follows && is_link(&full) {
            return None;
        }
        Some(match goal {
            Goal::Object { .. } | Goal::Attributes { .. } => Found::Object(Pos::Host(full)),
            Goal::Parent => Found::Parent(Parent {
                last: Last::Name(last.to_vec()),
                dir: Pos::Host(dir.to_vec()),
                must_be_dir,
            }),
        })
    }

    /// Checks only mounted places: the kernel checks the host's.
    fn must_be_directory(&self, at: &Pos) -> Result<()> {
        match at {
            Pos::Mounted(place) if !place.node.is_dir() => Err(Errno::ENOTDIR.into()),
            _ => Ok(()),
        }
    }

    /// ENOTDIR unless `at` is a directory, EACCES without search permission, which Linux requires for `.` and `..`, too. As
    /// [`Walk::must_be_directory`], it checks only mounted places.
    fn may_pass(&self, at: &Pos) -> Result<()> {
        match at {
            Pos::Mounted(place) => ops::may_pass(self.caller, place),
            Pos::Host(_) => Ok(()),
        }
    }

    fn up(&mut self, at: &Pos) -> Result<Pos> {
        self.may_pass(at)?;
        self.depth -= 1;
        if self.depth < 0 {
            if self.resolve & libc::RESOLVE_BENEATH != 0 {
                return Err(Errno::EXDEV.into());
            }
            if self.resolve & libc::RESOLVE_IN_ROOT != 0 {
                self.depth = 0;
                return Ok(at.clone());
            }
        }
        let covered = self.covered_by_procfs(at)?;
        let at = covered.as_ref().unwrap_or(at);
        if self.stays_at_root(at)? {
            return Ok(at.clone());
        }
        if let Pos::Host(path) = at
            && let Some(covered) = self.mounts.covered_by(path)
        {
            self.crosses()?;
            self.leave_host()?;
            return self.locate_canonical(paths::parent(&covered));
        }
        match at {
            Pos::Host(path) => {
                // The walk's start and what is above it are directories, the start even when it has been removed.
                let known =
                    matches!(&self.anchor, Some(Pos::Host(start)) if start.starts_with(path));
                match (known, self.left_host) {
                    (true, _) => {}
                    (false, true) => is_directory(path)?,
                    (false, false) => self.unseen.push(path.clone()),
                }
                self.enter_mount_at(paths::parent(path))
            }
            Pos::Mounted(place) => {
                ops::may_search(self.caller, place)?;
                let fs = &place.mount.fs;
                if place.node.ino() != fs.root().ino() {
                    let node = fs.parent(self.caller, &place.node)?;
                    return Ok(Pos::Mounted(Place {
                        node,
                        mount: Arc::clone(&place.mount),
                    }));
                }
                // A mount that is nowhere has nothing above it.
                if self.mounts.by_number(place.mount.number).is_none() {
                    return Ok(at.clone());
                }
                self.crosses()?;
                self.locate_canonical(paths::parent(&place.mount.target))
            }
        }
    }

    fn step_mounted(
        &mut self,
        place: &Place,
        name: &[u8],
        through: bool,
    ) -> Result<(Pos, Option<Vec<u8>>)> {
        if !place.node.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        if name.len() > NAME_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        if self.mounts.nested() {
            let (mut path, _) = Pos::Mounted(place.clone()).path(self.caller)?;
            path.push(b'/');
            path.extend_from_slice(name);
            if let Some(mounted) = self.mounted_at(&path)? {
                ops::may_pass(self.caller, place)?;
                return Ok((mounted, None));
            }
        }
        let node = ops::lookup(self.caller, place, name)?;
        let link = match node.kind() {
            FileKind::Symlink if through => Some(self.link_text(place, &node)?),
            _ => None,
        };
        Ok((
            Pos::Mounted(Place {
                node,
                mount: Arc::clone(&place.mount),
            }),
            link,
        ))
    }

    /// The target of a symbolic link in the directory `place`. ELOOP where the host's file system is mounted with `nosymfollow`.
    fn link_text(&self, place: &Place, link: &Node) -> Result<Vec<u8>> {
        const NOSYMFOLLOW: u64 = 0x2000;
        let fs = &place.mount.fs;
        if fs.opens_host_files() && fs.statfs(self.caller, link)?.flags & NOSYMFOLLOW != 0 {
            return Err(Errno::ELOOP.into());
        }
        fs.readlink(self.caller, link)
    }

    /// A component that is missing or unreadable counts as one that is not a link. The kernel reports the error, or
    /// [`is_directory`] does where the walk goes up from it and enters a mount.
    fn step_host(
        &mut self,
        dir: &[u8],
        name: &[u8],
        through: bool,
    ) -> Result<(Pos, Option<Vec<u8>>)> {
        let mut path = dir.to_vec();
        path.push(b'/');
        if dir == b"/proc" && (name == b"self" || name == b"thread-self") {
            if through && self.resolve & libc::RESOLVE_NO_SYMLINKS != 0 {
                return Err(Errno::ELOOP.into());
            }
            let (pid, tid) = self.process_view.self_ids();
            path.extend_from_slice(pid.to_string().as_bytes());
            if name == b"thread-self" {
                path.extend_from_slice(format!("/task/{tid}").as_bytes());
            }
            return Ok((Pos::Host(path), None));
        }
        path.extend_from_slice(name);
        if let Some(mounted) = self.mounted_at(&path)? {
            // For a relative path the kernel would not check the directories above the start.
            if self.from_root {
                self.mounts.may_reach(self.caller, &path)?;
            }
            return Ok((mounted, None));
        }
        if is_magic_link(&path) {
            if through
                && self.resolve & (libc::RESOLVE_NO_MAGICLINKS | libc::RESOLVE_NO_SYMLINKS) != 0
            {
                return Err(Errno::ELOOP.into());
            }
            let behind = if through {
                self.process_view.magic_link(&path)
            } else {
                None
            };
            let at = match behind {
                Some(behind) => behind,
                None if through && self.left_host => self.behind_magic_link(&path)?,
                None => Pos::Host(path),
            };
            return Ok((at, None));
        }
        if !through {
            return Ok((Pos::Host(path), None));
        }
        let link = nix::fcntl::readlink(OsStr::from_bytes(&path)).ok();
        let link = link.map(|target| target.into_encoded_bytes());
        Ok((Pos::Host(path), link))
    }
}

fn parent(dir: Pos, last: Last, must_be_dir: bool) -> Found {
    Found::Parent(Parent {
        dir,
        last,
        must_be_dir,
    })
}

fn same_mount(one: &Pos, other: &Pos) -> bool {
    match (one, other) {
        (Pos::Host(_), Pos::Host(_)) => true,
        (Pos::Mounted(one), Pos::Mounted(other)) => one.mount.number == other.mount.number,
        _ => false,
    }
}

/// Resolves an absolute path outside any process: its canonical form and what is there.
pub fn resolve_absolute(
    mounts: &Mounts,
    caller: &Caller,
    path: &[u8],
) -> Result<(Vec<u8>, FileKind)> {
    let pos = Walk::new(mounts, caller, &NoProcess).object(Pos::root(), path, true)?;
    let kind = match &pos {
        Pos::Mounted(place) => place.node.kind(),
        Pos::Host(path) => {
            let path: &[u8] = if path.is_empty() { b"/" } else { path };
            let stat = nix::sys::stat::lstat(OsStr::from_bytes(path))?;
            FileKind::from_mode(stat.st_mode).unwrap_or(FileKind::Regular)
        }
    };
    Ok((pos.path(caller)?.0, kind))
}

/// Resolves an absolute path outside any process: its place in a mount, and `None` for one on the host.
pub fn resolve_mounted(mounts: &Mounts, caller: &Caller, path: &[u8]) -> Result<Option<Place>> {
    let pos = Walk::new(mounts, caller, &NoProcess).object(Pos::root(), path, true)?;
    Ok(match pos {
        Pos::Mounted(place) => Some(place),
        Pos::Host(_) => None,
    })
}
