//! One call of a tracee: its arguments, and the objects that they name.

mod elsewhere;
mod through_mount;
mod view;

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use goanna_sys::notify::Listener;
use goanna_sys::{interrupt, procfs, tracee};
use goanna_syscalls::{Named, signature};
use goanna_vfs::walk::{Last, Parent, Pos, Root, Seen, Walk};
use goanna_vfs::{Caller, Errno, FileKind, FsError, Mounts, PATH_MAX, Place, Result};

use crate::Monitor;
pub use crate::answer::{Answer, Work};
use crate::intercept::waiting;
use crate::process::memory::ArgumentMemory;
use crate::process::namespaces::Elsewhere;
use crate::process::task::{Cwd, Task};
use crate::shadow::{Identity, Shadow, names_only};
pub use through_mount::{mount_showing, shows_host_read_only};
pub use view::{TaskView, thread_of};

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
    /// A directory descriptor of the call, and device, inode number and mode of what it refers to.
    dirfd: OnceCell<(i32, (u64, u64, u32))>,
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
        let shadow = self.monitor.shadows.of_link(identity, link)?;
        Ok(shadow.or_else(|| self.detached(identity)))
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
            Ok((self.host_pos(path, link), true))
        };
        // pivot_root(2) changes that of other processes, too.
        if self.monitor.roots.may_have_left(tid) {
            return find();
        }
        let (at, is_host) = self.task.cwd(find)?;
        Ok(match at {
            Pos::Mounted(place) => (Pos::Mounted(self.seen(&place)?), is_host),
            at => (at, is_host),
        })
    }

    /// The device and inode number of the object where a relative path from `dirfd` starts, as when the call first asked.
    pub fn start_identity(&self, dirfd: i32) -> Result<Identity, Errno> {
        self.start_object(dirfd).map(|(dev, ino, _)| (dev, ino))
    }

    /// The same with its mode.
    fn start_object(&self, dirfd: i32) -> Result<(u64, u64, u32), Errno> {
        if let Some((known, object)) = self.dirfd.get()
            && *known == dirfd
        {
            return Ok(*object);
        }
        let object = if dirfd == libc::AT_FDCWD {
            let (dev, ino) = procfs::cwd_identity(self.task.tid)?;
            (dev, ino, libc::S_IFDIR)
        } else {
            self.task.object(dirfd)?
        };
        let _ = self.dirfd.set((dirfd, object));
        Ok(object)
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
        let (dev, ino, mode) = self.start_object(dirfd)?;
        if let Some(shadow) = self.shadow_of(dirfd, (dev, ino))? {
            return Ok((Pos::Mounted(self.place_of(&shadow)?), false));
        }
        if mode & libc::S_IFMT != libc::S_IFDIR {
            return Err(Errno::ENOTDIR.into());
        }
        let path = procfs::fd_link(self.task.tid, dirfd)?;
        let link = || format!("/proc/{}/fd/{dirfd}", self.task.tid);
        Ok((self.host_pos(path, link), true))
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
                None => self.host_file(dirfd),
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
