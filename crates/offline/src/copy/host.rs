//! The host's side of a copy: directories are held open and names are looked up in them one at a time, so that no
//! symbolic link is followed and paths may be longer than PATH_MAX.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use goanna_vfs::{Acl, Attr, FileKind, Stamp};
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::{Errno, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Longest extended attribute value and name list Linux allows, in bytes.
const XATTR_MAX: usize = 64 << 10;

/// One name in an open directory.
#[derive(Clone, Copy)]
pub struct At<'a> {
    /// The directory.
    pub dir: BorrowedFd<'a>,
    /// The name: a single component.
    pub name: &'a CStr,
}

/// Raises this process's limit of descriptors as far as it may: a copy needs one for each level of the tree.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let _ = setrlimit(Resource::Nofile, raised);
}

/// Opens the directory that a user has named. Follows symbolic links in that path, because the user chose it.
pub fn open_top(path: &std::path::Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fs::open(path, flags, Mode::empty())
}

/// The names in a directory, sorted.
pub fn list(dir: &OwnedFd) -> Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Whether new entries of a directory inherit access control lists.
pub fn has_default_list(dir: &OwnedFd) -> bool {
    fs::fgetxattr(dir, Acl::DEFAULT, &mut [0_u8; 0]).is_ok()
}

/// The kind of file that `st_mode` names.
pub fn kind(stat: &Stat) -> Option<FileKind> {
    FileKind::from_mode(stat.st_mode)
}

/// Access and modification time of a status.
pub fn times(stat: &Stat) -> (Stamp, Stamp) {
    let stamp = |sec, nsec| Stamp {
        sec,
        nsec: u32::try_from(nsec).unwrap_or(0),
    };
    (
        stamp(stat.st_atime, stat.st_atime_nsec),
        stamp(stat.st_mtime, stat.st_mtime_nsec),
    )
}

impl At<'_> {
    /// Its status, without following a symbolic link.
    pub fn stat(self) -> Result<Stat> {
        fs::statat(self.dir, self.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Opens it if it is a directory; a symbolic link to one is refused.
    pub fn open_dir(self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::openat(self.dir, self.name, flags, Mode::empty())
    }

    /// Opens a regular file for reading. It does not wait if a fifo has replaced the file.
    pub fn open_file(self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        fs::openat(self.dir, self.name, flags, Mode::empty())
    }

    /// Creates a regular file that must not exist.
    pub fn create_file(self) -> Result<OwnedFd> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::openat(self.dir, self.name, flags, Mode::RUSR | Mode::WUSR)
    }

    /// Makes a directory with mode 0700 and opens it. Also returns whether it was made. With `merge` it may exist already.
    pub fn make_dir(self, merge: bool) -> Result<(OwnedFd, bool)> {
        let made = match fs::mkdirat(self.dir, self.name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) if merge => false,
            Err(errno) => return Err(errno),
        };
        Ok((self.open_dir()?, made))
    }

    /// Makes a fifo, socket name or device node.
    pub fn make_node(self, attr: &Attr) -> Result<()> {
        let kind = FileType::from_raw_mode(attr.mode);
        fs::mknodat(
            self.dir,
            self.name,
            kind,
            Mode::RUSR | Mode::WUSR,
            attr.rdev,
        )
    }

    /// A symbolic link's target.
    pub fn target(self) -> Result<CString> {
        fs::readlinkat(self.dir, self.name, Vec::new())
    }

    /// A path that leads to the name itself, for calls without an `*at` form. It begins at our descriptor, so that no
    /// other process can exchange a directory on the way.
    fn path(self) -> Vec<u8> {
        let mut path = format!("/proc/self/fd/{}/", self.dir.as_raw_fd()).into_bytes();
        path.extend_from_slice(self.name.to_bytes());
        path
    }

    /// All extended attributes that can be read. Files without support have none.
    pub fn xattrs(self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let path = self.path();
        let mut names = vec![0; XATTR_MAX];
        let length = match fs::llistxattr(&path[..], &mut names[..]) {
            Err(Errno::OPNOTSUPP) => 0,
            length => length?,
        };
        names.truncate(length);
        let mut value = vec![0; if length == 0 { 0 } else { XATTR_MAX }];
        let mut list = Vec::new();
        for name in names.split(|&b| b == 0).filter(|name| !name.is_empty()) {
            match fs::lgetxattr(&path[..], name, &mut value[..]) {
                Ok(length) => list.push((
                    name.to_vec(),
                    value.get(..length).unwrap_or_default().to_vec(),
                )),
                // Removed meanwhile, or not readable by this user.
                Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(list)
    }

    /// Sets an extended attribute of the name itself.
    pub fn set_xattr(self, name: &[u8], value: &[u8]) -> Result<()> {
        fs::lsetxattr(&self.path()[..], name, value, fs::XattrFlags::empty())
    }

    /// Removes an extended attribute of the name itself.
    pub fn remove_xattr(self, name: &[u8]) -> Result<()> {
        fs::lremovexattr(&self.path()[..], name)
    }

    /// Sets owner and group.
    pub fn set_owner(self, uid: u32, gid: u32) -> Result<()> {
        let uid = fs::Uid::from_raw(uid);
        let gid = fs::Gid::from_raw(gid);
        fs::chownat(
            self.dir,
            self.name,
            Some(uid),
            Some(gid),
            AtFlags::SYMLINK_NOFOLLOW,
        )
    }

    /// Sets permission bits of anything but a symbolic link.
    pub fn set_mode(self, mode: u32) -> Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(self.dir, self.name, flags, Mode::empty())?;
        if FileType::from_raw_mode(fs::fstat(&fd)?.st_mode) == FileType::Symlink {
            return Err(Errno::LOOP);
        }
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        fs::chmod(path, Mode::from_raw_mode(mode))
    }

    /// Sets access and modification time.
    pub fn set_times(self, atime: Stamp, mtime: Stamp) -> Result<()> {
        let spec = |stamp: Stamp| Timespec {
            tv_sec: stamp.sec,
            tv_nsec: stamp.nsec.into(),
        };
        let times = Timestamps {
            last_access: spec(atime),
            last_modification: spec(mtime),
        };
        fs::utimensat(self.dir, self.name, &times, AtFlags::SYMLINK_NOFOLLOW)
    }
}
