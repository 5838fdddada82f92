//! The mount table (Goanna paper, section 3.4): which back end answers for which canonical path.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bitflags::bitflags;

use crate::{Caller, Errno, FileSystem, FsError, LinkFree, Node, Subtree, caps, paths};

bitflags! {
    /// What the switch knows of a mount. The options of mount(2) have the values that they have there (`MS_*`), in statvfs(3) (`ST_*`) and in mount_setattr(2)
    /// (`MOUNT_ATTR_*`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct MountFlags: u32 {
        /// Every change answers EROFS.
        const READ_ONLY = 1;
        /// No effect, as set-user-ID has none in a run.
        const NO_SUID = 2;
        /// Devices cannot be opened (EACCES).
        const NO_DEV = 4;
        /// Programs may not be executed from here (EACCES).
        const NO_EXEC = 8;
        /// All options.
        const OPTIONS = 15;
        /// Directories leading to a mount point that does not exist on the host.
        const SYNTHETIC = 1 << 16;
        /// A mount of the host that a program of the run has made.
        const HOSTED = 1 << 17;
    }
}

impl MountFlags {
    /// The options in `bits`, of `MS_*`, `ST_*` or `MOUNT_ATTR_*`.
    pub fn of_options(bits: u64) -> Self {
        Self::from_bits_truncate(bits as u32) & Self::OPTIONS
    }
}

/// One mounted back end.
pub struct Mount {
    /// The back end.
    pub fs: Arc<dyn FileSystem>,
    /// Canonical absolute path of the mount point, without trailing slash; empty for the host's root.
    pub target: Vec<u8>,
    /// Options.
    pub flags: MountFlags,
    /// What was mounted, for listings.
    pub source: String,
    /// Its number in the table, which no other mount of the run has or will have.
    pub number: u64,
    /// The mount of which it shows a directory or a file ([`Subtree`](crate::Subtree)), if it does. The files are the same in both.
    pub base: Option<Arc<Mount>>,
    /// The mount that the kernel has in the place of this one, if it has one.
    pub in_kernel: Option<InKernel>,
}

/// A mount of the kernel in the place of one of the run.
#[derive(Debug, Clone)]
pub struct InKernel {
    /// Its mount ID.
    pub id: u64,
    /// The canonical path of its mount point on the host.
    pub path: Vec<u8>,
}

/// A mount of the kernel that covers a directory or file in a mount of the run.
#[derive(Debug, Clone)]
pub struct KernelMount {
    /// Canonical path of what it covers.
    pub target: Vec<u8>,
    /// The canonical path of its mount point on the host.
    pub path: Vec<u8>,
}

impl Mount {
    /// A mount of `fs` at `target`, with `number`.
    pub fn new(
        fs: Arc<dyn FileSystem>,
        target: Vec<u8>,
        flags: MountFlags,
        source: String,
        number: u64,
    ) -> Self {
        Self {
            fs,
            target,
            flags,
            source,
            number,
            base: None,
            in_kernel: None,
        }
    }

    /// A mount at `target` of what is at `place`, a directory or file in another mount, with its restrictions and `flags`.
    pub fn of_part(place: &Place, target: Vec<u8>, flags: MountFlags, number: u64) -> Self {
        let base = Arc::clone(place.mount.whole());
        let part = Subtree::new(Arc::clone(&base.fs), place.node.clone());
        let flags = flags | place.mount.restrictions();
        let mut mount = Self::new(Arc::new(part), target, flags, base.source.clone(), number);
        mount.base = Some(base);
        mount
    }

    /// The same mount at another place, or with other flags.
    #[must_use]
    pub fn changed(&self, target: Vec<u8>, flags: MountFlags) -> Self {
        let (fs, source) = (Arc::clone(&self.fs), self.source.clone());
        let mut mount = Self::new(fs, target, flags, source, self.number);
        mount.base.clone_from(&self.base);
        mount
    }

    /// The flags that every mount of a part of it has.
    pub fn restrictions(&self) -> MountFlags {
        self.flags & MountFlags::OPTIONS
    }

    /// The mount that has all files of its file system: itself, or the one of which it shows a part.
    pub fn whole(self: &Arc<Self>) -> &Arc<Self> {
        self.base.as_ref().unwrap_or(self)
    }

    /// The number of the mount that has all files.
    fn whole_number(&self) -> u64 {
        self.base.as_ref().map_or(self.number, |base| base.number)
    }

    /// Whether it shows what `other` shows: it is the same mount, or a copy for which the kernel has a mount of its own.
    pub fn shows_same(&self, other: &Self) -> bool {
        let is_copy = self.in_kernel.is_some() && Arc::ptr_eq(&self.fs, &other.fs);
        self.number == other.number || is_copy
    }

    /// True for the host's own tree.
    pub fn is_host(&self) -> bool {
        self.target.is_empty()
    }

    /// True for a directory that leads to a mount point and does not exist on the host.
    pub fn is_synthetic(&self) -> bool {
        self.flags.contains(MountFlags::SYNTHETIC)
    }

    /// True for a mount of the host that a program of the run has made.
    pub fn is_hosted(&self) -> bool {
        self.flags.contains(MountFlags::HOSTED)
    }

    /// True for a mount that a program of the run has made.
    pub fn is_made(&self) -> bool {
        self.is_hosted() || self.base.is_some()
    }

    /// The absolute path of a path relative to the mount's root.
    pub fn absolute(&self, relative: &[u8]) -> Vec<u8> {
        let mut path = self.target.clone();
        if !relative.is_empty() {
            path.push(b'/');
            path.extend_from_slice(relative);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        path
    }
}

impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = String::from_utf8_lossy(&self.target);
        write!(f, "{}={}:{}", self.fs.kind(), self.source, target)
    }
}

/// Mount IDs of a run's mounts begin here. The kernel gives its own the lowest free numbers.
const FIRST_ID: u64 = 1 << 30;
/// IDs of mounts of the host, as seen in a mount that shows the directory they are in, begin here: behind those of the run's mounts.
const SEEN_AGAIN: u64 = 3 << 29;
/// Added to a mount ID, gives its unique ID (`STATX_MNT_ID_UNIQUE`), which is never used again. The kernel's own unique IDs
/// begin at 2^31.
const UNIQUE: u64 = 1 << 62;
/// The major number of device numbers that the switch assigns; stores use the preceding number. No real device has it.
const MAJOR: u32 = 0xa31;

/// The number of the host's own tree.
const HOST: u64 = u64::MAX;

/// All mounts that one process of a run sees. Those that the run begins with stay; programs can add mounts of the host
/// ([`MountTable`](crate::MountTable)). A run inside of the run has further ones ([`Mounts::branch`]).
#[derive(Debug, Clone)]
pub struct Mounts {
    host: Arc<Mount>,
    /// All mounts but the host's, in the order in which they were mounted.
    in_order: Vec<Arc<Mount>>,
    /// The same, to find the last one that was mounted on a mount point; nothing depends on the order of this map.
    by_target: HashMap<Vec<u8>, Arc<Mount>>,
    /// What the kernel has mounted inside of them, in a mount namespace of a process's own.
    in_kernel: Vec<KernelMount>,
    nested: bool,
    /// The number of the next mount of the run, in whichever table.
    next: Arc<AtomicU64>,
    /// Mounts with lower numbers are those of the table that this one was branched from.
    branched_at: u64,
    link_free: Arc<LinkFree>,
    /// Mount points that callers could recently reach on the host.
    reached: Arc<LinkFree>,
}

impl Mounts {
    /// A table with the host's tree alone. `host` serves those calls on it that cannot be passed on to the kernel.
    pub fn new(host: Arc<dyn FileSystem>) -> Self {
        let flags = MountFlags::empty();
        let host = Arc::new(Mount::new(host, Vec::new(), flags, "/".into(), HOST));
        Self {
            host,
            in_order: Vec::new(),
            by_target: HashMap::new(),
            in_kernel: Vec::new(),
            nested: false,
            next: Arc::default(),
            branched_at: 0,
            link_free: Arc::default(),
            reached: Arc::default(),
        }
    }

    /// A copy for processes that get further mounts, which may cover those of the copy. The mounts in it are the same ones.
    #[must_use]
    pub fn branch(&self) -> Self {
        Self {
            branched_at: self.next_number(),
            link_free: Arc::default(),
            reached: Arc::default(),
            ..self.clone()
        }
    }

    /// A table for processes in another mount namespace than that of the run: of `mounts`, which may be those of this table at other places, and of what the kernel
    /// has mounted inside of them.
    #[must_use]
    pub fn of_namespace(&self, mounts: Vec<Arc<Mount>>, in_kernel: Vec<KernelMount>) -> Self {
        let mut table = self.branch();
        table.in_order = mounts;
        table.in_kernel = in_kernel;
        table.index();
        table
    }

    /// The mounts of the kernel that cover something in these mounts.
    pub fn in_kernel(&self) -> &[KernelMount] {
        &self.in_kernel
    }

    /// The mount of the kernel on the canonical path `path` in a mount.
    pub fn kernel_mount_at(&self, path: &[u8]) -> Option<&KernelMount> {
        self.in_kernel.iter().rfind(|mount| mount.target == path)
    }

    /// The canonical path of the object that the kernel has at `path`, if that is in a mount of the kernel on something in a mount.
    pub fn path_in_run(&self, path: &[u8]) -> Option<Vec<u8>> {
        let inside = |mount: &&KernelMount| is_at_or_below(path, &mount.path);
        let mount = self.in_kernel.iter().rfind(inside)?;
        let rest = path.get(mount.path.len()..).unwrap_or_default();
        Some([&mount.target, rest].concat())
    }

    /// The canonical path that a mount of the kernel with its mount point at `path` covers.
    pub(crate) fn covered_by(&self, path: &[u8]) -> Option<Vec<u8>> {
        let mount = self.in_kernel.iter().rfind(|mount| mount.path == path);
        mount.map(|mount| mount.target.clone())
    }

    /// `place`, which a process of the run has open, in a mount of this table, if there is one that shows it: what was opened in one mount namespace is seen in
    /// another one where that shows it.
    pub fn seen(&self, caller: &Caller, place: &Place) -> Place {
        let mount = &place.mount;
        let here = |mount: &Arc<Mount>| Place {
            mount: Arc::clone(mount),
            node: place.node.clone(),
        };
        let copy = || self.in_order.iter().rfind(|other| other.shows_same(mount));
        if let Some(same) = self.by_number(mount.number).or_else(copy) {
            return here(same);
        }
        if place.node.is_dir() {
            return place.clone();
        }
        let parts = || {
            let parts = self.iter().filter(|other| other.base.is_some());
            parts.filter(|other| other.whole_number() == mount.whole_number())
        };
        // A name outside of all of them is one of several.
        let has_name = |part: &&Arc<Mount>| part.fs.path(caller, &place.node).is_ok();
        let part = parts().find(has_name).or_else(|| parts().next());
        part.map_or_else(|| place.clone(), here)
    }

    /// The mount with this number that is on top.
    pub fn by_number(&self, number: u64) -> Option<&Arc<Mount>> {
        if number == HOST {
            return Some(&self.host);
        }
        self.in_order.iter().rfind(|mount| mount.number == number)
    }

    /// Whether `mount` was made in this table, and not in the one that it was branched from.
    pub fn is_own(&self, mount: &Mount) -> bool {
        mount.number >= self.branched_at
    }

    /// Takes out the mounts at and below `target` that are not this table's own: a mount at `target` hides them.
    pub(crate) fn hide(&mut self, target: &[u8]) {
        let branched_at = self.branched_at;
        self.in_order
            .retain(|other| other.number >= branched_at || !is_at_or_below(&other.target, target));
        self.index();
    }

    /// The cache of host directories whose paths walks have found free of links.
    pub fn link_free(&self) -> &LinkFree {
        &self.link_free
    }

    /// Takes a mount into the table, instead of the synthetic directory that is at its place, if there is one.
    pub(crate) fn insert(
        &mut self,
        fs: Arc<dyn FileSystem>,
        target: Vec<u8>,
        flags: MountFlags,
        source: String,
    ) -> Arc<Mount> {
        let number = self.take_number();
        let mount = Arc::new(Mount::new(fs, target, flags, source, number));
        self.attach(Arc::clone(&mount));
        mount
    }

    /// A number for a mount, which no other one of the run gets.
    pub fn take_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The number of the next mount.
    pub(crate) fn next_number(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Puts `mount` over what is at its place.
    pub fn attach(&mut self, mount: Arc<Mount>) {
        self.in_order
            .retain(|other| !other.is_synthetic() || other.target != mount.target);
        self.in_order.push(mount);
        self.index();
    }

    /// Takes a mount of another table of the run into this one, over what is at its place.
    pub fn share(&mut self, mount: Arc<Mount>) {
        self.hide(&mount.target);
        self.attach(mount);
    }

    /// Mounts `fs`, which shows a mount of the host, at the canonical path `target` of a directory in a mount, over what is mounted there.
    pub fn cover(
        &mut self,
        target: Vec<u8>,
        fs: Arc<dyn FileSystem>,
        source: String,
    ) -> Arc<Mount> {
        self.insert(fs, target, MountFlags::HOSTED, source)
    }

    /// Puts `mount` in the place of the one with its number, if the table has that. At another mount point it is over what is there.
    pub fn replace(&mut self, mount: &Arc<Mount>) {
        let is_it = |other: &&mut Arc<Mount>| other.number == mount.number;
        match self.in_order.iter_mut().find(is_it) {
            Some(former) if former.target == mount.target => {
                *former = Arc::clone(mount);
                self.index();
            }
            Some(_) => {
                self.remove(mount);
                self.attach(Arc::clone(mount));
            }
            None => {}
        }
    }

    /// Takes `mount` out of the table. What it covered appears again.
    pub fn remove(&mut self, mount: &Mount) {
        self.in_order.retain(|other| other.number != mount.number);
        self.index();
    }

    /// Brings what is derived from the list of mounts up to date.
    fn index(&mut self) {
        let by_target = self
            .in_order
            .iter()
            .map(|mount| (mount.target.clone(), Arc::clone(mount)));
        self.by_target = by_target.collect();
        let inside = |inner: &[u8], outer: &[u8]| inner != outer && is_at_or_below(inner, outer);
        let targets: Vec<&[u8]> = self.iter().map(|mount| mount.target.as_slice()).collect();
        let inside_of_one = targets
            .iter()
            .any(|inner| targets.iter().any(|outer| inside(inner, outer)));
        self.nested = inside_of_one || !self.in_kernel.is_empty();
    }

    /// The host's tree.
    pub fn host(&self) -> &Arc<Mount> {
        &self.host
    }

    /// The host object at the canonical absolute `path`, for operations performed on a tracee's behalf.
    pub fn host_place(&self, caller: &Caller, path: &[u8]) -> crate::Result<Place> {
        let fs = &self.host.fs;
        let mut node = fs.root();
        let mut names = path.split(|&b| b == b'/').filter(|name| !name.is_empty());
        if let Some([process, root]) = root_of_process(path) {
            let proc = fs.lookup(caller, &node, b"proc")?;
            let process = fs.lookup(caller, &proc, process)?;
            node = fs.behind_link(caller, &process, root)?;
            names.nth(2);
        }
        for name in names {
            node = fs.lookup(caller, &node, name)?;
        }
        Ok(Place {
            mount: Arc::clone(&self.host),
            node,
        })
    }

    /// EACCES unless `caller` may search the host's directories above the mount point `target`. A change of their permissions is
    /// seen some milliseconds late.
    pub fn may_reach(&self, caller: &Caller, target: &[u8]) -> crate::Result<(), Errno> {
        if caller.capable(caps::DAC_OVERRIDE) || caller.capable(caps::DAC_READ_SEARCH) {
            return Ok(());
        }
        let mut key = target.to_vec();
        key.push(0);
        for id in [caller.uid, caller.gid].iter().chain(&*caller.groups) {
            key.extend(id.to_ne_bytes());
        }
        // Other errors do not matter: a directory that is missing on the host appears in the run.
        let refused =
            || self.host_place(caller, target).err() == Some(FsError::Errno(Errno::EACCES));
        if self.reached.holds(&key, || !refused()) {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    /// The mount whose mount point is exactly `path` (canonical, absolute).
    pub fn at(&self, path: &[u8]) -> Option<&Arc<Mount>> {
        self.by_target.get(path)
    }

    /// The innermost mount that the canonical absolute `path` leads into, if any.
    pub fn innermost(&self, path: &[u8]) -> Option<&Arc<Mount>> {
        let holds = |mount: &&Arc<Mount>| is_at_or_below(path, &mount.target);
        let mounts = self.iter().filter(holds);
        mounts.max_by_key(|mount| mount.target.len())
    }

    /// Whether the canonical absolute `path` is a mount point or lies below one.
    pub fn leads_into(&self, path: &[u8]) -> bool {
        self.iter().any(|mount| is_at_or_below(path, &mount.target))
    }

    /// The mount's ID, as statx(2) and mountinfo show it.
    pub fn id(&self, mount: &Mount) -> u64 {
        let in_kernel = mount.in_kernel.as_ref();
        in_kernel.map_or(FIRST_ID + mount.number, |mount| mount.id)
    }

    /// The ID of a mount inside of one that shows a directory of the host, where it has the ID `id`.
    pub fn id_inside(id: u64) -> u64 {
        SEEN_AGAIN + id
    }

    /// As [`id_inside`](Self::id_inside), for IDs that are never used again.
    pub fn unique_id_inside(id: u64) -> u64 {
        UNIQUE + id
    }

    /// The mount's ID that is never used again (`STATX_MNT_ID_UNIQUE`).
    pub fn unique_id(&self, mount: &Mount) -> u64 {
        UNIQUE + FIRST_ID + mount.number
    }

    /// The device number of files in `mount` whose attributes have `dev`.
    pub fn device(&self, mount: &Mount, dev: u64) -> u64 {
        match dev {
            0 => libc::makedev(MAJOR, mount.whole_number() as u32),
            dev => dev,
        }
    }

    /// The directory that shows a synthetic mount: the canonical path of a host directory (empty for the root), or the mount
    /// that the directory is in. A synthetic directory appears to be on the same file system.
    pub fn parent_of(&self, synthetic: &Mount) -> MountParent<'_> {
        let mut path = synthetic.target.as_slice();
        while let Some((dir, _)) = paths::split(path) {
            path = dir;
            if self.at(path).is_none_or(|mount| !mount.is_synthetic()) {
                break;
            }
        }
        match self.innermost(path) {
            Some(mount) => MountParent::Mount(mount),
            None => MountParent::Host(path.to_vec()),
        }
    }

    /// Whether any mount gives programs descriptors of cache objects, and not of host files.
    pub fn any_caches_content(&self) -> bool {
        self.iter().any(|mount| !mount.fs.opens_host_files())
    }

    /// Whether a mount point lies inside another mount, so that every step must look for one.
    pub fn nested(&self) -> bool {
        self.nested
    }

    /// All mounts but the host's, in the order in which they were mounted.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Mount>> {
        self.in_order.iter()
    }

    /// Names of mount points directly inside the directory `path`, in the order in which they were mounted.
    pub fn children<'a>(
        &'a self,
        path: &'a [u8],
    ) -> impl Iterator<Item = (&'a [u8], &'a Arc<Mount>)> {
        let path = if path == b"/" { b"" } else { path };
        self.iter().filter_map(move |mount| {
            let name = mount.target.strip_prefix(path)?.strip_prefix(b"/")?;
            (!name.contains(&b'/')).then_some((name, mount))
        })
    }

    /// The mounts whose mount points lie in a directory of the host, each with that directory's canonical path (empty for
    /// the root) and its name there, in the order in which they were mounted.
    pub fn on_host(&self) -> impl Iterator<Item = (&[u8], &[u8], &Arc<Mount>)> {
        self.iter().filter_map(|mount| {
            let (dir, name) = paths::split(&mount.target)?;
            (!self.leads_into(dir)).then_some((dir, name, mount))
        })
    }
}

/// The names below `/proc` in `path` if that begins with the root directory of a process (`/proc/PID/root`).
fn root_of_process(path: &[u8]) -> Option<[&[u8]; 2]> {
    let mut names = path.strip_prefix(b"/proc/")?.split(|&b| b == b'/');
    let (process, root) = (names.next()?, names.next()?);
    let is_process = !process.is_empty() && process.iter().all(u8::is_ascii_digit);
    (is_process && root == b"root").then_some([process, root])
}

/// Whether the canonical absolute `path` is `dir`, or lies below it.
fn is_at_or_below(path: &[u8], dir: &[u8]) -> bool {
    let rest = path.strip_prefix(dir);
    rest.is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
}

/// The directory that shows a synthetic mount; see [`Mounts::parent_of`].
#[derive(Debug)]
pub enum MountParent<'m> {
    /// On the host.
    Host(Vec<u8>),
    /// In a mount.
    Mount(&'m Arc<Mount>),
}

/// A place in the tree the traced program sees: an inode and where it is mounted.
#[derive(Debug, Clone)]
pub struct Place {
    /// The mount.
    pub mount: Arc<Mount>,
    /// The inode.
    pub node: Node,
}

/// Identifies one inode of one mount while the run lasts: the mount's number, the inode number.
pub type PlaceKey = (u64, u64);

impl Place {
    /// The key of the inode: all handles of the same inode have the same key, in whichever mount of its file system.
    pub fn key(&self) -> PlaceKey {
        (self.mount.whole_number(), self.node.ino())
    }

    /// The key of what a process finds there: a directory in two mounts is two, which have other parents.
    pub fn key_in_mount(&self) -> PlaceKey {
        match self.node.is_dir() {
            true => (self.mount.number, self.node.ino()),
            false => self.key(),
        }
    }

    /// The same inode in the mount that has all files of its file system.
    #[must_use]
    pub fn in_whole(&self) -> Self {
        Self {
            mount: Arc::clone(self.mount.whole()),
            node: self.node.clone(),
        }
    }
}
