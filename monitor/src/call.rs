//! One call of a tracee: its arguments, and the objects that they name.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use goanna_sys::notify::Listener;
use goanna_sys::{interrupt, procfs, tracee};
use goanna_syscalls::{Named, signature};
use goanna_vfs::walk::{Last, Parent, Pos, ProcessView, Root, Seen, Walk};
use goanna_vfs::{Caller, Errno, FileKind, FsError, Mounts, PATH_MAX, Place, Result, caps};

use crate::Monitor;
pub use crate::answer::{Answer, Work};
use crate::intercept::waiting;
use crate::process::memory::ArgumentMemory;
use crate::process::namespaces::Elsewhere;
use crate::process::task::{Cwd, Task};
use crate::shadow::{Identity, Shadow, names_only};

/// The object that a descriptor of the tracee refers to.
pub enum Descriptor {
    /// Not a virtual object.
    Native,
    /// A shadow object, and the tracee's own open file description of it.
    Shadow(Arc<Shadow>, OwnedFd),
}

/// The result of resolving a path.
pub enum Target {
    /// An object on the host. The kernel resolves the path in the same way.
    PassOn,
    /// This place. It is on the host's own mount when the kernel cannot use the path unchanged.
    At(Place),
}

impl Target {
    /// The place; `None` where the kernel resolves the path in the same way.
    pub fn place(self) -> Option<Place> {
        match self {
            Self::PassOn => None,
            Self::At(place) => Some(place),
        }
    }
}

/// A directory and the name a call makes or removes in it.
pub struct Entry {
    /// The directory.
    pub dir: Place,
    /// The last component.
    pub last: Last,
    /// The path ends with slashes.
    pub must_be_dir: bool,
    /// What is mounted there, if the name is a mount point: it exists, and cannot be removed (EBUSY).
    pub covered: Option<FileKind>,
}

impl Entry {
    /// The name. `errno` if the last component is `.`, `..` or missing.
    pub fn name(&self, errno: Errno) -> Result<&[u8], Errno> {
        match &self.last {
            Last::Name(name) => Ok(name),
            _ => Err(errno),
        }
    }
}

/// The result of a walk, from which the caller decides whether the kernel or the monitor performs the call.
#[derive(Clone)]
pub struct Resolved<T> {
    /// The result of the walk.
    pub at: T,
    /// Whether the kernel would resolve the path in the same way.
    pub native: bool,
}

/// A call that is being answered.
pub struct Call<'m> {
    /// The monitor.
    pub monitor: &'m Monitor,
    /// The mounts at the start of the call.
    pub mounts: Arc<Mounts>,
    /// The thread that calls.
    pub task: Arc<Task>,
    /// Call number.
    pub nr: u32,
    /// The memory that the arguments point to.
    pub memory: ArgumentMemory,
    /// The notification, by which descriptors can be installed while the call waits; none at a ptrace stop.
    pub notification: Option<(Arc<Listener>, u64)>,
    /// Whether the call is answered on a thread that may wait: a signal for the caller ends such a wait with EINTR.
    pub may_wait: bool,
    /// Whether the thread opens descriptors of the monitor itself ([`Answer::OpenItself`]).
    pub opens_itself: bool,
    args: [u64; 6],
    caller: OnceCell<Arc<Caller>>,
    /// A directory descriptor of the call, and the device and inode number of what it refers to.
    dirfd: OnceCell<(i32, Identity)>,
    /// How the thread sees `mounts` in a mount namespace of its own, if it is in one.
    elsewhere: Option<Elsewhere>,
    root: OnceCell<Option<Root>>,
}

/// The words of a structure.
pub fn words<const COUNT: usize>(structure: &[u8]) -> [u64; COUNT] {
    let (words, _) = structure.as_chunks::<8>();
    std::array::from_fn(|index| words.get(index).map_or(0, |word| u64::from_ne_bytes(*word)))
}

impl<'m> Call<'m> {
    /// A call of `task`.
    pub fn new(monitor: &'m Monitor, task: Arc<Task>, nr: u32, args: [u64; 6]) -> Self {
        let (mounts, elsewhere) = monitor.mounts_of(task.tid);
        Self {
            memory: ArgumentMemory::of(task.tid),
            mounts,
            monitor,
            task,
            nr,
            notification: None,
            may_wait: false,
            opens_itself: false,
            args,
            caller: OnceCell::new(),
            dirfd: OnceCell::new(),
            elsewhere,
            root: OnceCell::new(),
        }
    }

    /// Whether a signal for the caller is pending, so that the work for the call must end.
    pub fn is_interrupted(&self) -> bool {
        if self.may_wait {
            waiting::is_interrupted()
        } else {
            interrupt::is_interrupted(self.task.tid).unwrap_or(true)
        }
    }

    /// Runs `f` while the caller stays in the call; `None` if it has left the call.
    pub fn while_in_call<T>(&self, f: impl FnOnce() -> T) -> Option<T> {
        if self.may_wait {
            waiting::while_in_call(f)
        } else {
            Some(f())
        }
    }

    /// The argument that names the file that the call opens.
    pub fn opened(&self) -> Option<Named> {
        signature(self.nr)?.opened(&self.args, |how| self.read_u64(how).ok())
    }

    /// The argument that names the file that the call changes if it succeeds.
    pub fn changed(&self) -> Option<Named> {
        signature(self.nr)?.changed(&self.args, |how| self.read_u64(how).ok())
    }

    /// The six argument registers.
    pub fn args(&self) -> [u64; 6] {
        self.args
    }

    /// Argument `index` as a 64-bit register.
    pub fn arg(&self, index: usize) -> u64 {
        self.args.get(index).copied().unwrap_or(0)
    }

    /// Argument `index` as the kernel takes an `int`.
    pub fn int(&self, index: usize) -> i32 {
        self.arg(index) as i32
    }

    /// Argument `index` as the kernel takes an `unsigned int`.
    pub fn uint(&self, index: usize) -> u32 {
        self.arg(index) as u32
    }

    /// The tracee's credentials.
    pub fn caller(&self) -> Result<Arc<Caller>, Errno> {
        if let Some(caller) = self.caller.get() {
            return Ok(Arc::clone(caller));
        }
        let caller = self.monitor.caller_of(&self.task)?;
        Ok(Arc::clone(self.caller.get_or_init(|| caller)))
    }

    /// Forgets the credentials, because the thread's current transaction has changed since [`Call::caller`] read
    /// them.
    pub fn forget_caller(&mut self) {
        self.caller.take();
    }

    /// The path at argument `index`. EFAULT, ENAMETOOLONG.
    pub fn path(&self, index: usize) -> Result<Vec<u8>, Errno> {
        self.memory.read_string(self.arg(index), PATH_MAX)
    }

    /// `len` bytes at `address`. EFAULT.
    pub fn read(&self, address: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; len];
        self.memory.read_exact(address, &mut bytes)?;
        Ok(bytes)
    }

    /// Writes `bytes` at `address`. EFAULT.
    pub fn put(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        tracee::write_all(self.task.tid, address, bytes)
    }

    /// A `u64` at `address`. EFAULT.
    pub fn read_u64(&self, address: u64) -> Result<u64, Errno> {
        self.read_array(address).map(u64::from_ne_bytes)
    }

    /// A `u32` at `address`. EFAULT.
    pub fn read_u32(&self, address: u64) -> Result<u32, Errno> {
        self.read_array(address).map(u32::from_ne_bytes)
    }

    /// `LEN` bytes at `address`. EFAULT.
    pub fn read_array<const LEN: usize>(&self, address: u64) -> Result<[u8; LEN], Errno> {
        let mut bytes = [0; LEN];
        self.memory.read_exact(address, &mut bytes)?;
        Ok(bytes)
    }

    /// The first `LEN` bytes of a structure of `size` bytes at `address`, which later versions of Linux make longer. EINVAL if it is shorter; E2BIG beyond a page, and for a value in
    /// the rest (`copy_struct_from_user` in the kernel); EFAULT.
    pub fn read_structure<const LEN: usize>(
        &self,
        address: u64,
        size: u64,
    ) -> Result<[u8; LEN], Errno> {
        const PAGE: usize = 4096;
        let size = size as usize;
        if size < LEN {
            return Err(Errno::EINVAL);
        }
        if size > PAGE {
            return Err(Errno::E2BIG);
        }
        let given = self.read(address, size)?;
        let (known, later) = given.split_first_chunk().ok_or(Errno::EINVAL)?;
        if later.iter().any(|&byte| byte != 0) {
            return Err(Errno::E2BIG);
        }
        Ok(*known)
    }

    /// The tracee's open file description behind descriptor `fd`, and the virtual object that it stands for. EBADF.
    pub fn descriptor_of_any(&self, fd: i32) -> Result<(Option<Arc<Shadow>>, OwnedFd)> {
        let ofd = self.task.descriptor(fd)?;
        Ok((self.monitor.shadows.of_descriptor(&ofd)?, ofd))
    }

    /// The object that descriptor `fd` refers to. EBADF.
    pub fn descriptor(&self, fd: i32) -> Result<Descriptor> {
        Ok(match self.descriptor_of_any(fd) {
            // The thread need not send us a descriptor of the host.
            Err(FsError::Errno(Errno::EPERM)) if self.shadow(fd)?.is_none() => {
                self.task.wanted();
                Descriptor::Native
            }
            found => match found? {
                (Some(shadow), ofd) => Descriptor::Shadow(shadow, ofd),
                (None, _) => Descriptor::Native,
            },
        })
    }

    /// The virtual object behind descriptor `fd`; `None` for the host's. EBADF.
    pub fn shadow(&self, fd: i32) -> Result<Option<Arc<Shadow>>> {
        let identity = self.task.identity(fd)?;
        self.shadow_of(fd, identity)
    }

    fn shadow_of(&self, fd: i32, identity: Identity) -> Result<Option<Arc<Shadow>>> {
        let link = || format!("/proc/{}/fd/{fd}", self.task.tid);
        self.monitor.shadows.of_link(identity, link)
    }

    /// As [`Call::shadow`], for a call that Linux does not perform on an O_PATH descriptor (EBADF).
    pub fn open_shadow(&self, fd: i32) -> Result<Option<Arc<Shadow>>> {
        let shadow = self.shadow(fd)?;
        let names_only = match shadow.as_deref() {
            Some(Shadow::Reference { .. }) => true,
            Some(Shadow::Dir { .. }) => names_only(&self.task.descriptor(fd)?)?,
            _ => false,
        };
        if names_only {
            return Err(Errno::EBADF.into());
        }
        Ok(shadow)
    }

    /// The virtual object of a descriptor or working directory of the caller, in a mount that the caller sees, if it sees one that has it.
    pub fn place_of(&self, shadow: &Shadow) -> Result<Place, Errno> {
        self.seen(shadow.place())
    }

    /// The same, of something else that is known by its place.
    pub fn seen(&self, place: &Place) -> Result<Place, Errno> {
        Ok(match self.monitor.roots.may_have_left(self.task.tid) {
            true => self.mounts.seen(&*self.caller()?, place),
            false => place.clone(),
        })
    }

    /// The canonical path of `place`, and whether that name has been removed.
    pub fn path_of(&self, place: &Place) -> Result<(Vec<u8>, bool)> {
        let (path, is_removed) = Pos::Mounted(place.clone()).path(&*self.caller()?)?;
        if !place.mount.is_host() {
            return Ok((path, is_removed));
        }
        let path = match self.below_own_root(&path) {
            Some(inside) => self.mounts.path_in_run(&inside).unwrap_or(inside),
            None => path,
        };
        Ok((path, is_removed))
    }

    /// The canonical path in the run of the host object behind `link` in /proc, if it is in a mount of the kernel on something in a mount.
    pub fn path_in_run(&self, link: &[u8]) -> Option<Vec<u8>> {
        if self.mounts.in_kernel().is_empty() {
            return None;
        }
        let shown = nix::fcntl::readlink(OsStr::from_bytes(link)).ok()?;
        let link = str::from_utf8(link).ok()?;
        match self.host_pos(shown.into_encoded_bytes(), link) {
            Pos::Host(path) => self.mounts.path_in_run(&path),
            Pos::Mounted(_) => None,
        }
    }

    /// The working directory, and whether it is the host's.
    pub fn cwd(&self) -> Result<Cwd> {
        let tid = self.task.tid;
        let find = || {
            let identity = procfs::cwd_identity(tid)?;
            let link = || format!("/proc/{tid}/cwd");
            if let Some(shadow) = self.monitor.shadows.of_link(identity, link)? {
                return Ok((Pos::Mounted(self.place_of(&shadow)?), false));
            }
            // Deeper than the longest path: the link in /proc is used instead.
            let path = procfs::cwd(tid).unwrap_or_else(|_| format!("/proc/{tid}/cwd").into_bytes());
            Ok((self.host_pos(path, &link()), true))
        };
        // pivot_root(2) changes that of other processes, too.
        if self.monitor.roots.may_have_left(tid) {
            return find();
        }
        self.task.cwd(find)
    }

    /// The device and inode number of the object where a relative path from `dirfd` starts, as when the call first asked.
    pub fn start_identity(&self, dirfd: i32) -> Result<Identity, Errno> {
        if let Some((known, identity)) = self.dirfd.get()
            && *known == dirfd
        {
            return Ok(*identity);
        }
        let identity = if dirfd == libc::AT_FDCWD {
            procfs::cwd_identity(self.task.tid)?
        } else {
            self.task.identity(dirfd)?
        };
        let _ = self.dirfd.set((dirfd, identity));
        Ok(identity)
    }

    fn start(&self, dirfd: i32, path: &[u8]) -> Result<(Pos, bool)> {
        match path.first() {
            None => return Err(Errno::ENOENT.into()),
            Some(b'/') => {
                let root = self.root();
                let is_native = root.is_none_or(|root| root.is_in_kernel);
                let at = root.map_or_else(Pos::root, |root| root.at.clone());
                return Ok((at, is_native));
            }
            Some(_) => {}
        }
        if dirfd == libc::AT_FDCWD {
            return self.cwd();
        }
        let identity = self.start_identity(dirfd)?;
        if let Some(shadow) = self.shadow_of(dirfd, identity)? {
            return Ok((Pos::Mounted(self.place_of(&shadow)?), false));
        }
        let path = procfs::fd_link(self.task.tid, dirfd)?;
        let link = format!("/proc/{}/fd/{dirfd}", self.task.tid);
        Ok((self.host_pos(path, &link), true))
    }

    /// The root directory of the caller, as when the call first asked; `None`: that of the run.
    pub fn root(&self) -> Option<&Root> {
        let kept = || {
            let root = self.monitor.roots.kept(self.task.tid)?;
            Some(match root.at {
                Pos::Mounted(place) => Root {
                    at: Pos::Mounted(self.seen(&place).unwrap_or(place)),
                    ..root
                },
                Pos::Host(_) => root,
            })
        };
        let root = self
            .root
            .get_or_init(|| kept().or_else(|| Some(self.elsewhere.as_ref()?.root.clone())));
        root.as_ref()
    }

    /// The rest of the canonical path of a host object behind the link to the caller's root directory, if it begins with that.
    fn below_root<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        path.strip_prefix(&self.elsewhere.as_ref()?.kernel_root[..])
    }

    /// Whether the caller finds the host object with the canonical path `path` below the root directory that it has in a mount namespace of its own.
    pub fn is_below_root(&self, path: &[u8]) -> bool {
        self.below_root(path).is_some()
    }

    /// The canonical path of a host object as the kernel finds it for the caller.
    pub fn path_in_kernel(&self, path: Vec<u8>) -> Vec<u8> {
        match self.below_root(&path).unwrap_or(&path) {
            b"" => b"/".to_vec(),
            below => below.to_vec(),
        }
    }

    /// The position of the host object behind `link` in /proc, for which the kernel showed `path`. It is found from the root directory that this task has in the kernel, unless
    /// it is in the mount namespace of the run.
    fn host_pos(&self, path: Vec<u8>, link: &str) -> Pos {
        let without_slash = |path: Vec<u8>| if path == b"/" { Vec::new() } else { path };
        let path = without_slash(path);
        match self.below_own_root(&path) {
            Some(inside)
                if leads_to(&inside, link.as_bytes()) || !leads_to(&path, link.as_bytes()) =>
            {
                Pos::Host(inside)
            }
            _ => Pos::Host(path),
        }
    }

    /// The path by which the monitor reaches what the kernel shows as `path`, below the root directory of the caller in its own mount namespace.
    fn below_own_root(&self, path: &[u8]) -> Option<Vec<u8>> {
        let dir = &self.elsewhere.as_ref()?.kernel_root[..];
        let shown = procfs::root(self.task.tid).ok()?;
        let shown: &[u8] = if shown == b"/" { b"" } else { &shown };
        let rest = path.strip_prefix(shown)?;
        matches!(rest.first(), None | Some(b'/')).then(|| [dir, rest].concat())
    }

    /// Walks `path` from `dirfd` to the object it names.
    pub fn resolve(&self, dirfd: i32, path: &[u8], follow: bool) -> Result<Resolved<Pos>> {
        self.walk(dirfd, path, |walk, start| walk.object(start, path, follow))
    }

    /// As [`Call::resolve`], where only the metadata of the object is needed.
    pub fn resolve_attributes(
        &self,
        dirfd: i32,
        path: &[u8],
        follow: bool,
    ) -> Result<Resolved<Seen>> {
        self.walk(dirfd, path, |walk, start| {
            walk.attributes(start, path, follow)
        })
    }

    /// Walks `path` from `dirfd` to the directory of its last component.
    pub fn resolve_parent(&self, dirfd: i32, path: &[u8]) -> Result<Resolved<Parent>> {
        self.walk(dirfd, path, |walk, start| walk.parent(start, path))
    }

    /// Runs `find`, which walks `path`, from the position where the path starts.
    fn walk<T>(
        &self,
        dirfd: i32,
        path: &[u8],
        find: impl FnOnce(&mut Walk<'_>, Pos) -> Result<T>,
    ) -> Result<Resolved<T>> {
        let (start, native_start) = self.start(dirfd, path)?;
        let caller = self.caller()?;
        let process_view = self.process_view()?;
        let mut walk = self.new_walk(&caller, &process_view);
        let at = find(&mut walk, start)?;
        Ok(Resolved {
            at,
            native: native_start && !walk.left_host(),
        })
    }

    /// A walk by this task.
    pub fn new_walk<'a>(&'a self, caller: &'a Caller, view: &'a TaskView<'_>) -> Walk<'a> {
        let kernel_root = self.elsewhere.as_ref().map(|seen| &seen.kernel_root[..]);
        Walk::new(&self.mounts, caller, view)
            .with_root(self.root().cloned())
            .with_kernel_root(kernel_root)
    }

    /// The part of a walk that depends on this task: links in its /proc, and its ids.
    pub fn process_view(&self) -> Result<TaskView<'m>, Errno> {
        let pid = self.caller()?.pid;
        Ok(TaskView {
            monitor: self.monitor,
            pid,
            tid: self.task.tid,
        })
    }

    /// The start of a walk for open(2), in which [`crate::calls::open`] follows links itself.
    pub fn walk_start(&self, dirfd: i32, path: &[u8]) -> Result<Resolved<Pos>> {
        let (at, native) = self.start(dirfd, path)?;
        Ok(Resolved { at, native })
    }

    /// The result of a walk as the target of an operation.
    pub fn target(&self, resolved: Resolved<Pos>) -> Result<Target> {
        match resolved.at {
            Pos::Host(_) if resolved.native => Ok(Target::PassOn),
            at => Ok(Target::At(self.place(at)?)),
        }
    }

    /// The object at `pos`, in a mount or on the host. ENOENT on the host.
    pub fn place(&self, pos: Pos) -> Result<Place> {
        match pos {
            Pos::Mounted(place) => Ok(place),
            Pos::Host(path) => self.mounts.host_place(&*self.caller()?, &path),
        }
    }

    /// The object `path` names from `dirfd`.
    pub fn object(&self, dirfd: i32, path: &[u8], follow: bool) -> Result<Target> {
        let resolved = self.resolve(dirfd, path, follow)?;
        self.target(resolved)
    }

    /// As [`Call::object`], or `dirfd` itself for an empty path under `AT_EMPTY_PATH` in `flags`;
    /// `AT_SYMLINK_NOFOLLOW` is honoured.
    pub fn object_at(&self, dirfd: i32, path: &[u8], flags: i32) -> Result<Target> {
        if path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
            if dirfd == libc::AT_FDCWD {
                let (at, native) = self.cwd()?;
                return self.target(Resolved { at, native });
            }
            return Ok(match self.shadow(dirfd)? {
                Some(shadow) => Target::At(self.place_of(&shadow)?),
                None => Target::PassOn,
            });
        }
        self.object(dirfd, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0)
    }

    /// The name `path` gives from `dirfd`; `None` when the kernel can do the call.
    pub fn entry(&self, dirfd: i32, path: &[u8]) -> Result<Option<Entry>> {
        let resolved = self.resolve_parent(dirfd, path)?;
        self.entry_of(resolved)
    }

    /// The result of a walk to a parent as the entry of an operation.
    pub fn entry_of(&self, resolved: Resolved<Parent>) -> Result<Option<Entry>> {
        let Parent {
            dir,
            last,
            must_be_dir,
        } = resolved.at;
        let covered = self.covers(&dir, &last)?;
        if matches!(dir, Pos::Host(_)) && resolved.native && covered.is_none() {
            return Ok(None);
        }
        Ok(Some(Entry {
            dir: self.place(dir)?,
            last,
            must_be_dir,
            covered,
        }))
    }

    /// What is mounted on the entry `last` of `dir`, if that is a mount point.
    pub fn covers(&self, dir: &Pos, last: &Last) -> Result<Option<FileKind>> {
        let Last::Name(name) = last else {
            return Ok(None);
        };
        if matches!(dir, Pos::Mounted(_)) && !self.mounts.nested() {
            return Ok(None);
        }
        let mut path = match dir.path(&*self.caller()?) {
            Ok((path, _)) => path,
            Err(blocked @ FsError::Blocked(_)) => return Err(blocked),
            // A directory without a path has no mount points in it.
            Err(_) => return Ok(None),
        };
        if path != b"/" {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        if let Some(mount) = self.mounts.kernel_mount_at(&path) {
            let mode = nix::sys::stat::lstat(OsStr::from_bytes(&mount.path))?.st_mode;
            return Ok(FileKind::from_mode(mode));
        }
        let mount = self.mounts.at(&path);
        Ok(mount.map(|mount| mount.fs.root().kind()))
    }
}

/// /proc as one task sees it, for walks.
pub struct TaskView<'m> {
    monitor: &'m Monitor,
    pid: i32,
    tid: i32,
}

impl ProcessView for TaskView<'_> {
    fn magic_link(&self, path: &[u8]) -> Option<Pos> {
        if path.ends_with(b"/root") {
            // For the kernel, tracees have the monitor's root, unless they have called pivot_root(2) or chroot(2) in a mount namespace of their own.
            let of = thread_of(path);
            let is_own = of == Some(self.pid) || of == Some(self.tid);
            return match of
                .and_then(|tid| self.monitor.root_of(if is_own { self.tid } else { tid }))
            {
                Some(root) if root.is_in_kernel && !is_own => None,
                Some(root) => Some(root.at),
                None => Some(Pos::root()),
            };
        }
        if is_mapping(path) && !self.may_open_mappings() {
            return None;
        }
        let place = self.monitor.behind_magic_link(path)?;
        Some(Pos::Mounted(self.seen(place)))
    }

    fn self_ids(&self) -> (i32, i32) {
        (self.pid, self.tid)
    }
}

impl TaskView<'_> {
    /// What a tracee has open, in a mount that the caller sees.
    fn seen(&self, place: Place) -> Place {
        if !self.monitor.roots.may_have_left(self.tid) {
            return place;
        }
        let (mounts, _) = self.monitor.mounts_of(self.tid);
        let task = self.monitor.tasks.get(self.tid);
        match task.and_then(|task| task.caller()) {
            Ok(caller) => mounts.seen(&caller, &place),
            Err(_) => place,
        }
    }

    /// As the kernel's `proc_map_files_get_link`.
    fn may_open_mappings(&self) -> bool {
        let task = self.monitor.tasks.get(self.tid);
        let caller = task.and_then(|task| task.caller());
        caller.is_ok_and(|caller| {
            caller.capable(caps::SYS_ADMIN) || caller.capable(caps::CHECKPOINT_RESTORE)
        })
    }
}

/// Whether two paths, which may be links in /proc, lead to the same object in the same mount.
fn leads_to(path: &[u8], link: &[u8]) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let identity = |path: &[u8]| {
        let path: &[u8] = if path.is_empty() { b"/" } else { path };
        let found = statx(
            CWD,
            path,
            AtFlags::empty(),
            StatxFlags::INO | StatxFlags::MNT_ID,
        );
        found.map(|found| (found.stx_mnt_id, found.stx_ino))
    };
    matches!((identity(path), identity(link)), (Ok(one), Ok(other)) if one == other)
}

/// The thread or process of the directory of /proc in which the canonical `path` lies.
pub fn thread_of(path: &[u8]) -> Option<i32> {
    let mut parts = path.split(|&byte| byte == b'/').skip(2);
    let (process, task, thread) = (parts.next()?, parts.next(), parts.next());
    let id = if task == Some(b"task") {
        thread?
    } else {
        process
    };
    std::str::from_utf8(id).ok()?.parse().ok()
}

/// Whether the magic link is of a mapped file.
fn is_mapping(path: &[u8]) -> bool {
    let mut parts = path.rsplit(|&byte| byte == b'/').skip(1);
    parts.next() == Some(b"map_files")
}

impl Monitor {
    /// The virtual object that a magic link of /proc leads to: a tracee's working directory, descriptor or program.
    pub fn behind_magic_link(&self, path: &[u8]) -> Option<Place> {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        use std::os::unix::fs::MetadataExt;
        let meta = std::fs::metadata(OsStr::from_bytes(path)).ok()?;
        let identity = (meta.dev(), meta.ino());
        if path.ends_with(b"/exe") {
            return self.programs.behind(identity);
        }
        self.shadows
            .find(identity)
            .map(|shadow| shadow.place().clone())
    }

    /// `F_GETFL` of an open file description, and whether it can be written through.
    pub fn writable(ofd: &OwnedFd) -> Result<(bool, i32), Errno> {
        use nix::fcntl::{FcntlArg, fcntl};
        let flags = fcntl(ofd.as_fd(), FcntlArg::F_GETFL)?;
        Ok((flags & libc::O_ACCMODE != libc::O_RDONLY, flags))
    }

    /// `O_RDONLY`, `O_WRONLY` or `O_RDWR` of an open file description.
    pub fn access_mode(ofd: &OwnedFd) -> Result<i32, Errno> {
        Ok(Self::writable(ofd)?.1 & libc::O_ACCMODE)
    }
}
