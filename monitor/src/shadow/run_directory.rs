//! The run-time directory: the host objects that stand for virtual ones while a run lasts.
//!
//! ```text
//! goanna-XXXXXX/        0700; 0711 from when a tracee of another user must pass through
//!   lock                flock'ed while the run lasts; without a holder the directory is stale
//!   d/N                 backing directory of a virtual directory
//!   s/RANDOM            backing object of a virtual fifo, socket or device
//!   w/N                 mirror of a watched file or directory (0700)
//!   m/RANDOM            backing object of something in a mount that a program has bound elsewhere, or on which it has mounted something
//!   x/RANDOM/NAME       host copy of a program that is executed from a mount, or a link to the host file of one
//! ```
//!
//! Every user may create files in the parent of this directory, so nothing found there is trusted: objects of another owner are
//! not opened, waited for or removed. Names of objects that other users must not reach are random.

use std::ffi::CStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use goanna_sys::{cred, memfile};
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, umount2};
use nix::sys::statvfs::{FsFlags, statvfs};
use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, StatxFlags};

const PREFIX: &str = "goanna-";
/// The directory below which file systems are mounted.
const MOUNTS: &str = "m";
/// Digits of a random number in a name.
const DIGITS: usize = 16;

/// The run-time directory of one run; removed when dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    next: AtomicU64,
    /// Whether other users may pass through.
    open: AtomicBool,
    _lock: Flock<File>,
}

impl RunDir {
    /// Makes a run-time directory, in memory if programs can be executed from there, and removes those that killed monitors of
    /// this user have left behind.
    pub fn create() -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        let candidates = [
            PathBuf::from("/dev/shm"),
            std::env::temp_dir(),
            PathBuf::from("/var/tmp"),
        ];
        for base in candidates {
            if statvfs(&base).is_ok_and(|s| s.flags().contains(FsFlags::ST_NOEXEC)) {
                continue;
            }
            // Files that cannot be removed do no harm.
            let _ = remove_stale(&base);
            match Self::create_in(&base) {
                Ok(dir) => return Ok(dir),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn create_in(base: &Path) -> io::Result<Self> {
        let name = format!("{PREFIX}{}", random_name()?);
        let path = base.join(&name);
        // Until it is locked it would look stale, so it has another name.
        let new = base.join(format!(".{name}"));
        DirBuilder::new().mode(0o700).create(&new)?;
        let open = || {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(new.join("lock"))
        };
        let lock = open().and_then(|file| {
            Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
        })?;
        fs::rename(&new, &path)?;
        for name in ["d", "m", "s", "x"] {
            make_search_only_dir(&path.join(name))?;
        }
        Ok(Self {
            path,
            next: AtomicU64::new(1),
            open: AtomicBool::new(false),
            _lock: lock,
        })
    }

    /// A path for a new backing directory.
    pub fn backing_dir(&self) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.path.join("d").join(number.to_string())
    }

    /// A path for a new object of class `class` (`s` or `x`), which other users cannot guess.
    pub fn unguessable(&self, class: &str) -> io::Result<PathBuf> {
        Ok(self.path.join(class).join(random_name()?))
    }

    /// The directory of the objects that [`RunDir::mount_point`] makes.
    pub fn mount_points(&self) -> PathBuf {
        self.path.join(MOUNTS)
    }

    /// Makes a directory on which the kernel mounts a file system.
    pub fn mount_point(&self) -> io::Result<PathBuf> {
        let path = self.unguessable(MOUNTS)?;
        DirBuilder::new().mode(0o755).create(&path)?;
        Ok(path)
    }

    /// Lets `uid` pass through the directory, because a thread with this file-system user id is about to use a path in it.
    pub fn allow_traversal(&self, uid: u32) -> io::Result<()> {
        if uid == cred::own_ids().uid || self.open.load(Ordering::Acquire) {
            return Ok(());
        }
        fs::set_permissions(&self.path, Permissions::from_mode(0o711))?;
        self.open.store(true, Ordering::Release);
        Ok(())
    }

    /// The path by which thread `tid` can use `path`, which is in this directory. A process in a mount namespace of its own may have covered the directory: then
    /// the path is relative to the thread's working directory, if that is a backing directory, else `None`.
    pub fn path_for(&self, tid: i32, path: PathBuf) -> Option<PathBuf> {
        let identity = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
        let own = identity(&self.path).ok()?;
        let leads_here = |path: &Path| identity(path).is_ok_and(|found| found == own);
        let of_thread = PathBuf::from(format!("/proc/{tid}"));
        let absolute = self.path.strip_prefix("/").unwrap_or(&self.path);
        if leads_here(&of_thread.join("root").join(absolute)) {
            return Some(path);
        }
        let rest = path.strip_prefix(&self.path).ok()?;
        leads_here(&of_thread.join("cwd/../..")).then(|| Path::new("../..").join(rest))
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // The next run removes the files that cannot be removed now.
        if unmount_all(&self.path.join(MOUNTS)).is_ok() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Makes a directory that other users may pass through, if they know a name in it, and may not list.
pub fn make_search_only_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o711).create(path)?;
    // The umask may have removed some bits.
    fs::set_permissions(path, Permissions::from_mode(0o711))
}

/// A name that nobody can guess.
pub fn random_name() -> io::Result<String> {
    Ok(format!("{:0DIGITS$x}", getrandom::u64()?))
}

/// Removes the run-time directories in `base` whose monitors have ended.
fn remove_stale(base: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let base = rustix::fs::openat(CWD, base, flags, Mode::empty())?;
    let mode = rustix::fs::fstat(&base)?.st_mode;
    if mode & 0o022 != 0 && mode & libc::S_ISVTX == 0 {
        // Between a check of a name and its removal, other users could put another object under the name.
        return Ok(());
    }
    for entry in Dir::read_from(&base)? {
        let entry = entry?;
        let name = entry.file_name();
        let digits = name.to_bytes().strip_prefix(PREFIX.as_bytes());
        if digits.is_some_and(|digits| digits.len() == DIGITS) {
            // The directory of a running monitor is locked; another user's directory is not opened.
            let _ = remove_if_stale(base.as_fd(), name);
        }
    }
    Ok(())
}

fn remove_if_stale(base: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let dir = open_own(base, name, FileType::Directory)?;
    let lock = open_own(dir.as_fd(), c"lock", FileType::RegularFile)?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    unmount_all(&Path::new("/proc/self/fd").join(format!("{}/{MOUNTS}", dir.as_raw_fd())))?;
    remove_content(&dir)?;
    Ok(rustix::fs::unlinkat(base, name, AtFlags::REMOVEDIR)?)
}

/// Unmounts what is mounted on the objects in `dir`, so that a removal of the directories does not remove what is in the file systems, and removes them. EBUSY where
/// something is left: mounts can also come from other namespaces.
fn unmount_all(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        // Several can be mounted on each other. EINVAL, and EPERM for an ordinary user: none is left.
        while umount2(&path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW).is_ok() {}
        if !fs::symlink_metadata(&path)?.is_dir() {
            fs::remove_file(&path)?;
            continue;
        }
        if mount_of(&path)? != mount_of(dir)? {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        unmount_all(&path)?;
        fs::remove_dir(&path)?;
    }
    Ok(())
}

/// The ID of the mount that a path leads into.
fn mount_of(path: &Path) -> io::Result<u64> {
    let found = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)?;
    Ok(found.stx_mnt_id)
}

/// Opens `name` in `dir` for reading, if it is of this type and belongs to this user: EPERM if not. A symbolic
/// link is not followed, and the open never waits: an `O_PATH` descriptor shows the type before the file is opened.
fn open_own(dir: BorrowedFd<'_>, name: &CStr, file_type: FileType) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&found)?;
    let is_own = stat.st_uid == cred::own_ids().uid;
    if !is_own || FileType::from_raw_mode(stat.st_mode) != file_type {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(memfile::reopen(found.as_fd(), libc::O_RDONLY)?)
}

/// Removes the content of a directory that the monitor has made: it is a few levels deep.
fn remove_content(dir: &OwnedFd) -> io::Result<()> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Err(rustix::io::Errno::ISDIR) => {
                remove_content(&open_own(dir.as_fd(), name, FileType::Directory)?)?;
                rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?;
            }
            other => other?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use nix::sys::stat::Mode as NixMode;

    use super::*;

    /// A directory as a run would have made it; the caller adds the rest.
    fn looks_like_a_run(base: &Path, name: &str) -> PathBuf {
        let dir = base.join(name);
        fs::create_dir(&dir).unwrap();
        dir
    }

    #[test]
    fn vanishes_when_dropped_and_stale_ones_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let dir = RunDir::create_in(base.path()).unwrap();
        let path = dir.path().to_owned();
        assert!(path.join("d").is_dir());
        remove_stale(base.path()).unwrap();
        assert!(path.exists(), "a live run's directory was removed");
        drop(dir);
        assert!(!path.exists());

        let stale = looks_like_a_run(base.path(), "goanna-0123456789abcdef");
        fs::write(stale.join("lock"), "").unwrap();
        fs::create_dir_all(stale.join("x/0123/deep")).unwrap();
        fs::write(stale.join("x/0123/deep/prog"), "").unwrap();
        symlink("/", stale.join("x/link")).unwrap();
        fs::create_dir_all(stale.join("m/0123/4567")).unwrap();
        fs::write(stale.join("m/0123/89ab"), "").unwrap();
        symlink("/", stale.join("m/0123/4567/link")).unwrap();
        remove_stale(base.path()).unwrap();
        assert!(!stale.exists());
    }

    /// A removal must not reach into file systems of others.
    #[test]
    fn what_is_mounted_there_is_unmounted_and_not_removed() {
        let base = tempfile::tempdir().unwrap();
        let (shown, kept) = (base.path().join("shown"), base.path().join("shown/file"));
        fs::create_dir(&shown).unwrap();
        fs::write(&kept, "").unwrap();
        let bind = |at: &Path| {
            let flags = nix::mount::MsFlags::MS_BIND;
            nix::mount::mount(Some(&shown), at, None::<&str>, flags, None::<&str>)
        };
        let dir = RunDir::create_in(base.path()).unwrap();
        let point = dir.mount_point().unwrap();
        if bind(&point).is_err() {
            goanna_skip::skip(goanna_skip::Facility::Mounts, "nothing can be mounted");
            return;
        }
        // Another one over it.
        bind(&point).unwrap();
        let inside = dir.mount_point().unwrap().join("0123");
        fs::create_dir(&inside).unwrap();
        bind(&inside).unwrap();
        let path = dir.path().to_owned();
        drop(dir);
        assert!(kept.exists() && !path.exists());

        let stale = looks_like_a_run(base.path(), "goanna-0123456789abcdef");
        fs::write(stale.join("lock"), "").unwrap();
        let point = stale.join("m/0123");
        fs::create_dir_all(&point).unwrap();
        bind(&point).unwrap();
        remove_stale(base.path()).unwrap();
        assert!(kept.exists() && !stale.exists());
    }

    #[test]
    fn nothing_is_waited_for_or_followed() {
        let base = tempfile::tempdir().unwrap();
        let aside = base.path().join("aside");
        fs::create_dir(&aside).unwrap();
        fs::write(aside.join("lock"), "").unwrap();
        let fifo = looks_like_a_run(base.path(), "goanna-aaaaaaaaaaaaaaaa");
        nix::unistd::mkfifo(&fifo.join("lock"), NixMode::S_IRWXU).unwrap();
        symlink(&aside, base.path().join("goanna-bbbbbbbbbbbbbbbb")).unwrap();
        let linked = looks_like_a_run(base.path(), "goanna-cccccccccccccccc");
        symlink(aside.join("lock"), linked.join("lock")).unwrap();
        remove_stale(base.path()).unwrap();
        for kept in [aside.join("lock"), fifo.join("lock"), linked.join("lock")] {
            assert!(
                fs::symlink_metadata(&kept).is_ok(),
                "{} is gone",
                kept.display()
            );
        }
    }

    #[test]
    fn what_belongs_to_another_user_stays() {
        if !nix::unistd::geteuid().is_root() {
            goanna_skip::skip(goanna_skip::Facility::Root, "only root can give files away");
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let foreign = looks_like_a_run(base.path(), "goanna-aaaaaaaaaaaaaaaa");
        fs::write(foreign.join("lock"), "").unwrap();
        chown(&foreign, Some(65534), None).unwrap();
        let lock = looks_like_a_run(base.path(), "goanna-bbbbbbbbbbbbbbbb").join("lock");
        fs::write(&lock, "").unwrap();
        chown(&lock, Some(65534), None).unwrap();
        remove_stale(base.path()).unwrap();
        assert!(foreign.join("lock").exists());
        assert!(lock.exists());
    }

    #[test]
    fn only_another_user_opens_the_way() {
        let base = tempfile::tempdir().unwrap();
        let dir = RunDir::create_in(base.path()).unwrap();
        let mode = || fs::metadata(dir.path()).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o700);
        dir.allow_traversal(cred::own_ids().uid).unwrap();
        assert_eq!(mode(), 0o700);
        dir.allow_traversal(cred::own_ids().uid + 1).unwrap();
        assert_eq!(mode(), 0o711);
    }
}
