//! Directories: names of inodes, parents, entries.

use std::os::fd::AsFd;

use goanna_vfs::{Caller, DirEntry, Errno, FileKind, Node};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, StatxFlags};

use crate::PassFs;
use crate::Result;
use crate::credentials::CONTENT;
use crate::node::{Pin, os, stat};

/// Bytes of directory entries fetched at a time.
const BUFFER_BYTES: usize = 32 * 1024;
/// The suffix that the kernel appends to the path of a removed name.
const DELETED: &[u8] = b" (deleted)";
/// Host positions from here on are stored with two bits less, to keep cookies below 2^62.
const LARGE: u64 = 1 << 61;

/// A directory position of the host as a cookie. ext4's positions are 63-bit hashes of names; the lowest two bits
/// are dropped. Two entries with the same other 61 bits could be listed twice. Positions that are plain counters are
/// far smaller and stay as they are.
fn to_cookie(position: u64) -> u64 {
    if position < LARGE {
        position
    } else {
        // No file system uses 2^63 and above: lseek(2) could not seek there.
        LARGE | ((position >> 2) & (LARGE - 1))
    }
}

fn from_cookie(cookie: u64) -> u64 {
    if cookie < LARGE {
        cookie
    } else {
        (cookie & (LARGE - 1)) << 2
    }
}

fn kind_of(file_type: FileType) -> Option<FileKind> {
    Some(match file_type {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return None,
    })
}

/// `path` relative to `root`, both absolute.
pub(crate) fn below<'a>(path: &'a [u8], root: &[u8]) -> Option<&'a [u8]> {
    let root = if root == b"/" { b"" } else { root };
    match path.strip_prefix(root)? {
        [] => Some(b""),
        [b'/', rest @ ..] => Some(rest),
        _ => None,
    }
}

impl PassFs {
    pub(crate) fn root_path(&self) -> Result<Vec<u8>> {
        if self.is_host {
            return Ok(b"/".to_vec());
        }
        Pin::of(&self.root_node())?.proc().readlink()
    }

    pub(crate) fn is_root(&self, pin: &Pin) -> bool {
        (pin.dev, pin.ino) == self.root_id
    }

    /// Whether the kernel finds the node by the path that it shows for it. In another mount namespace that path can lead elsewhere.
    pub fn leads_here(&self, path: &[u8], node: &Node) -> bool {
        const ASKED: StatxFlags = StatxFlags::INO.union(StatxFlags::MNT_ID);
        if !self.is_host {
            return true;
        }
        let there = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW, ASKED);
        let here = Pin::of(node).and_then(|pin| stat(pin.fd.as_fd(), ASKED));
        match (there, here) {
            (Ok(there), Ok(here)) => {
                (there.stx_mnt_id, there.stx_ino) == (here.stx_mnt_id, here.stx_ino)
            }
            _ => false,
        }
    }

    /// The absolute path of `node` on the host, and whether that name was removed.
    pub fn absolute_path(&self, node: &Node) -> Result<(Vec<u8>, bool)> {
        let pin = Pin::of(node)?;
        let mut path = pin.proc().readlink()?;
        if !path.ends_with(DELETED) {
            return Ok((path, false));
        }
        // An existing file may have such a name. An inode with other names may have lost this one.
        let live = stat(pin.fd.as_fd(), StatxFlags::NLINK)?.stx_nlink > 0
            && rustix::fs::statx(
                rustix::fs::CWD,
                path.as_slice(),
                AtFlags::SYMLINK_NOFOLLOW,
                StatxFlags::INO,
            )
            .is_ok_and(|found| {
                let dev = crate::node::device(found.stx_dev_major, found.stx_dev_minor);
                (dev, found.stx_ino) == (pin.dev, pin.ino)
            });
        if !live {
            path.truncate(path.len() - DELETED.len());
        }
        Ok((path, !live))
    }

    pub(crate) fn relative_path(&self, node: &Node) -> Result<(Vec<u8>, bool)> {
        if self.is_root(Pin::of(node)?) {
            return Ok((Vec::new(), false));
        }
        let (path, deleted) = self.absolute_path(node)?;
        let relative = below(&path, &self.root_path()?).ok_or(Errno::ENOENT)?;
        Ok((relative.to_vec(), deleted))
    }

    /// `..`, which works from a removed directory as on Linux. ENOENT from a directory that another process has moved out
    /// of the tree, as in a bind mount: its parent is outside.
    pub(crate) fn parent_of(&self, caller: &Caller, dir: &Node) -> Result<Node> {
        if self.is_root(Pin::of(dir)?) {
            return Ok(dir.clone());
        }
        let parent = self.lookup_path(caller, dir, b"..")?;
        if !self.is_host {
            match Pin::of(&parent)?.proc().readlink() {
                Ok(path) if below(&path, &self.root_path()?).is_none() => {
                    return Err(Errno::ENOENT);
                }
                Ok(_) => {}
                Err(Errno::ENAMETOOLONG) => self.climb(caller, parent.clone())?,
                Err(errno) => return Err(errno),
            }
        }
        Ok(parent)
    }

    /// Checks by following `..` that `dir`, which is too deep for a path, is below the root: ENOENT if not.
    fn climb(&self, caller: &Caller, mut dir: Node) -> Result<()> {
        while !self.is_root(Pin::of(&dir)?) {
            let up = self.lookup_path(caller, &dir, b"..")?;
            if up.ino() == dir.ino() {
                return Err(Errno::ENOENT);
            }
            dir = up;
        }
        Ok(())
    }

    pub(crate) fn list(
        &self,
        caller: &Caller,
        dir: &Node,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let pin = Pin::of(dir)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if !dir.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        // By descriptor and not by ".", which would also need search permission.
        let fd = self.as_caller(caller, &[(dir, CONTENT)], || {
            rustix::fs::open(pin.proc().as_c_str(), flags, Mode::empty()).map_err(os)
        })?;
        if cookie != 0 {
            match rustix::fs::seek(&fd, SeekFrom::Start(from_cookie(cookie))) {
                // A directory of ext4 has lost its positions with its last block.
                Err(rustix::io::Errno::INVAL)
                    if stat(fd.as_fd(), StatxFlags::NLINK)?.stx_nlink == 0 =>
                {
                    return Err(Errno::ENOENT);
                }
                sought => sought.map_err(os)?,
            };
        }
        let mut buffer = Vec::with_capacity(BUFFER_BYTES);
        let mut entries = RawDir::new(&fd, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(os)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = match kind_of(entry.file_type()) {
                Some(kind) => kind,
                // Some file systems do not report the type. A name that was removed meanwhile is left out.
                None => match rustix::fs::statx(
                    &fd,
                    entry.file_name(),
                    AtFlags::SYMLINK_NOFOLLOW,
                    StatxFlags::TYPE,
                ) {
                    Ok(found) => {
                        FileKind::from_mode(u32::from(found.stx_mode)).ok_or(Errno::EIO)?
                    }
                    Err(rustix::io::Errno::NOENT) => continue,
                    Err(errno) => return Err(os(errno)),
                },
            };
            let entry = DirEntry {
                name,
                ino: entry.ino(),
                kind,
                cookie: to_cookie(entry.next_entry_cookie()),
            };
            if !sink(entry) {
                break;
            }
        }
        Ok(())
    }

    /// A symbolic link's text. `/proc/self` and `/proc/thread-self` name the caller.
    pub(crate) fn link_text(&self, caller: &Caller, node: &Node) -> Result<Vec<u8>> {
        if node.kind() != FileKind::Symlink {
            return Err(Errno::EINVAL);
        }
        let pin = Pin::of(node)?;
        let text = self.as_caller(caller, &[], || {
            rustix::fs::readlinkat(&pin.fd, c"", Vec::new()).map_err(os)
        })?;
        let text = text.into_bytes();
        let own = std::process::id().to_string();
        let Some(rest) = text.strip_prefix(own.as_bytes()) else {
            return Ok(text);
        };
        const PROC_SUPER_MAGIC: i64 = 0x9fa0;
        if rustix::fs::fstatfs(&pin.fd).map_err(os)?.f_type != PROC_SUPER_MAGIC {
            return Ok(text);
        }
        if rest.is_empty() {
            Ok(caller.pid.to_string().into_bytes())
        } else if rest.starts_with(b"/task/") {
            Ok(format!("{}/task/{}", caller.pid, caller.tid).into_bytes())
        } else {
            Ok(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_keep_small_positions_and_stay_below_the_limit() {
        for position in [1, 2, 1 << 32, LARGE - 1] {
            assert_eq!(from_cookie(to_cookie(position)), position);
        }
        for position in [LARGE, LARGE + 5, i64::MAX as u64, 0x3abc_def0_1234_5678] {
            let cookie = to_cookie(position);
            assert!((1..1 << 62).contains(&cookie));
            assert_eq!(from_cookie(cookie), position & !3);
        }
    }

    #[test]
    fn a_path_is_below_a_root_by_whole_components() {
        assert_eq!(below(b"/a/b", b"/"), Some(&b"a/b"[..]));
        assert_eq!(below(b"/a/b", b"/a"), Some(&b"b"[..]));
        assert_eq!(below(b"/a", b"/a"), Some(&b""[..]));
        assert_eq!(below(b"/", b"/"), Some(&b""[..]));
        assert_eq!(below(b"/ab", b"/a"), None);
    }
}
