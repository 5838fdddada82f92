//! Which argument of a call names the file that the call changes, without decoding the call.

use crate::{Kind, LastLink, Operation, Signature};

/// What names the file that a call opens or changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// A path.
    Path {
        /// The argument with the directory that it starts from; `None`: the working directory.
        dirfd: Option<usize>,
        /// The argument with its address.
        path: usize,
        /// Whether the call follows a symbolic link that is the path's last component.
        follows: bool,
    },
    /// The descriptor in this argument.
    Descriptor(usize),
}

/// The flags with which a call opens, where its arguments are registers `args`; `how` reads those of the `struct open_how` at an address.
fn open_flags(
    signature: &Signature,
    args: &[u64; 6],
    how: impl Fn(u64) -> Option<u64>,
) -> Option<u64> {
    if signature.operation == Operation::Create {
        return Some((libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC) as u64);
    }
    let argument = |name| {
        signature
            .index_of(name)
            .and_then(|at| args.get(at))
            .copied()
    };
    match argument("how") {
        Some(address) => how(address),
        None => argument("flags"),
    }
}

impl Signature {
    /// What names the file that the call opens; `None` for a call that opens no file by its path. `args` and `how`: as for
    /// [`Signature::changed`].
    pub fn opened(&self, args: &[u64; 6], how: impl Fn(u64) -> Option<u64>) -> Option<Named> {
        let opens = matches!(self.operation, Operation::Open | Operation::Create);
        opens.then(|| self.path_at(args, &how, false)).flatten()
    }

    /// What names the file that the call changes if it succeeds: of a rename the old name, of a new link the new one. `None` for a call that
    /// changes none. `args` are the registers, `how` reads the flags of the `struct open_how` at an address.
    pub fn changed(&self, args: &[u64; 6], how: impl Fn(u64) -> Option<u64>) -> Option<Named> {
        use Operation::*;
        match self.operation {
            Open | Create => {
                let flags = open_flags(self, args, &how)? as i32;
                let reads = flags & libc::O_ACCMODE == libc::O_RDONLY;
                if reads && flags & (libc::O_CREAT | libc::O_TRUNC) == 0 {
                    return None;
                }
                self.path_at(args, &how, false)
            }
            Link | Symlink => self.path_at(args, &how, true),
            Copy => {
                let names = ["out_fd", "fd_out"];
                let out = names.into_iter().find_map(|name| self.index_of(name));
                out.map(Named::Descriptor)
            }
            Truncate | Allocate | Write | Unlink | Rmdir | Mkdir | Mknod | Rename | Chmod
            | Chown | Utimes | SetXattr | RemoveXattr => self
                .path_at(args, &how, false)
                .or_else(|| self.first_descriptor().map(Named::Descriptor)),
            _ => None,
        }
    }

    /// The first path, or the last one. A path that is NULL names nothing.
    fn path_at(
        &self,
        args: &[u64; 6],
        how: &impl Fn(u64) -> Option<u64>,
        is_last: bool,
    ) -> Option<Named> {
        let mut paths = self
            .params
            .iter()
            .enumerate()
            .filter_map(|(at, param)| match param.kind {
                Kind::Path(last) => Some((at, last)),
                _ => None,
            });
        let (path, last) = if is_last {
            paths.next_back()
        } else {
            paths.next()
        }?;
        if args.get(path) == Some(&0) {
            return None;
        }
        let before = path
            .checked_sub(1)
            .and_then(|at| Some((at, self.params.get(at)?)));
        let dirfd = before.filter(|(_, param)| matches!(param.kind, Kind::Directory));
        Some(Named::Path {
            dirfd: dirfd.map(|(at, _)| at),
            path,
            follows: last.follows(args, how),
        })
    }

    fn first_descriptor(&self) -> Option<usize> {
        let is_descriptor = |kind| matches!(kind, Kind::Descriptor | Kind::Directory);
        self.params
            .iter()
            .position(|param| is_descriptor(param.kind))
    }
}

impl LastLink {
    /// Whether a call with the registers `args` follows the link; `how` reads the flags of the `struct open_how` at an address.
    pub fn follows(self, args: &[u64; 6], how: impl Fn(u64) -> Option<u64>) -> bool {
        let flags = |index: u8| args.get(usize::from(index)).copied().unwrap_or(0);
        let opens = |flags: u64| {
            let exclusive = libc::O_CREAT | libc::O_EXCL;
            flags as i32 & libc::O_NOFOLLOW == 0 && flags as i32 & exclusive != exclusive
        };
        match self {
            Self::Followed => true,
            Self::Kept => false,
            Self::FollowedUnlessAt(index) => flags(index) as i32 & libc::AT_SYMLINK_NOFOLLOW == 0,
            Self::KeptUnlessAt(index) => flags(index) as i32 & libc::AT_SYMLINK_FOLLOW != 0,
            Self::ByOpenFlags(index) => opens(flags(index)),
            Self::ByOpenHow(index) => how(flags(index)).is_none_or(opens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::by_name;

    const WRITES: i32 = libc::O_WRONLY;

    fn changed(name: &str, args: [u64; 6]) -> Option<Named> {
        by_name(name).unwrap().changed(&args, Some)
    }

    fn path(dirfd: Option<usize>, path: usize, follows: bool) -> Option<Named> {
        Some(Named::Path {
            dirfd,
            path,
            follows,
        })
    }

    #[test]
    fn every_call_that_changes_a_file_says_which_argument_names_it() {
        let args = [1, 1, 1, 1, 0, 0];
        for (names, target) in [
            (
                "creat truncate chmod chown utime utimes setxattr removexattr",
                path(None, 0, true),
            ),
            (
                "mkdir mknod rmdir unlink rename lchown lsetxattr lremovexattr",
                path(None, 0, false),
            ),
            ("link symlink", path(None, 1, false)),
            ("fchmodat futimesat fchownat", path(Some(0), 1, true)),
            (
                "mkdirat mknodat unlinkat renameat renameat2",
                path(Some(0), 1, false),
            ),
            ("symlinkat", path(Some(1), 2, false)),
            ("linkat", path(Some(2), 3, false)),
            (
                "write pwrite64 writev pwritev pwritev2 ftruncate fallocate fchmod fchown fsetxattr fremovexattr sendfile",
                Some(Named::Descriptor(0)),
            ),
            ("splice copy_file_range", Some(Named::Descriptor(2))),
            (
                "read stat lseek memfd_create memfd_secret open_by_handle_at vmsplice futex",
                None,
            ),
        ] {
            for name in names.split(' ') {
                assert_eq!(changed(name, args), target, "{name}");
            }
        }
    }

    #[test]
    fn opens_change_by_their_flags() {
        let open = |flags: i32| changed("open", [1, flags as u64, 0, 0, 0, 0]);
        assert_eq!(open(libc::O_RDONLY), None);
        assert_eq!(open(libc::O_TRUNC), path(None, 0, true));
        assert_eq!(open(WRITES | libc::O_NOFOLLOW), path(None, 0, false));
        assert_eq!(open(libc::O_CREAT | libc::O_EXCL), path(None, 0, false));
        let openat = |flags: i32| changed("openat", [1, 1, flags as u64, 0, 0, 0]);
        assert_eq!(openat(WRITES), path(Some(0), 1, true));
        let openat2 = |flags: i32| changed("openat2", [1, 1, flags as u64, 24, 0, 0]);
        assert_eq!(openat2(WRITES | libc::O_NOFOLLOW), path(Some(0), 1, false));
        assert_eq!(openat2(libc::O_RDONLY), None);
        let opened = by_name("open")
            .unwrap()
            .opened(&[1, 0, 0, 0, 0, 0], |_| None);
        assert_eq!(opened, path(None, 0, true));
    }

    #[test]
    fn flags_of_a_call_decide_whether_it_follows_the_last_link() {
        let flag = libc::AT_SYMLINK_NOFOLLOW as u64;
        for (name, at) in [("fchownat", 4), ("fchmodat2", 3), ("utimensat", 3)] {
            let mut args = [1, 1, 1, 0, 0, 0];
            assert_eq!(changed(name, args), path(Some(0), 1, true), "{name}");
            args[at] = flag;
            assert_eq!(changed(name, args), path(Some(0), 1, false), "{name}");
        }
        // futimens(3): no path.
        let descriptor = Some(Named::Descriptor(0));
        assert_eq!(changed("utimensat", [1, 0, 1, 0, 0, 0]), descriptor);
    }
}
