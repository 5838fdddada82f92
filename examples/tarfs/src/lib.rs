//! A read-only back end over a tar archive, as docs/add-a-backend.md describes one.
//!
//! The archive is read once for an index; content is read when a file is opened. Of two entries with one name the later one
//! counts, as for tar(1). Refused: names with `..`, sparse files (GNU), and compressed archives.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use goanna_cache::{FileCache, FileSource};
use goanna_vfs::{
    Attr, CachedContent, Caller, DirEntry, Errno, FileSystem, Node, Opened, Result, Stamp,
};
use tar::EntryType;

const ROOT: u64 = 1;

struct Inode {
    attr: Attr,
    /// The directory and the name of the first entry.
    entry: (u64, Vec<u8>),
    target: Vec<u8>,
    /// Offset of the content in the archive.
    offset: u64,
}

struct Archive {
    file: File,
    /// Inode `n` is at `n - 1`.
    inodes: Vec<Inode>,
    /// By directory and name. The root has the empty name.
    entries: BTreeMap<(u64, Vec<u8>), u64>,
}

impl Archive {
    fn open(file: File) -> io::Result<Self> {
        let input = file.try_clone()?;
        #[rustfmt::skip]
        let mut archive = Self { file, inodes: Vec::new(), entries: BTreeMap::new() };
        archive.add_directory((ROOT, Vec::new()));
        for entry in tar::Archive::new(input).entries()? {
            let entry = entry?;
            let path = entry.path_bytes().into_owned();
            let why =
                "it is of a type that is not supported, below a file, or has '..' in its name";
            let bad = || io::Error::other(format!("{}: {why}", path.escape_ascii()));
            archive.index(&entry, &path)?.ok_or_else(bad)?;
        }
        Ok(archive)
    }

    fn index(&mut self, from: &tar::Entry<'_, File>, path: &[u8]) -> io::Result<Option<()>> {
        let (header, kind) = (from.header(), from.header().entry_type());
        let target = from.link_name_bytes().unwrap_or_default().into_owned();
        let Some(entry) = self.entry(path) else {
            return Ok(None);
        };
        let known = self.entries.get(&entry).copied();
        let is_dir = kind == EntryType::Directory;
        if let Some(former) = known.filter(|_| !is_dir) {
            self.inodes[former as usize - 1].attr.nlink -= 1;
        }
        let mode = match kind {
            EntryType::Regular | EntryType::Continuous => libc::S_IFREG,
            EntryType::Directory => libc::S_IFDIR,
            EntryType::Symlink => libc::S_IFLNK,
            EntryType::Fifo => libc::S_IFIFO,
            EntryType::Char => libc::S_IFCHR,
            EntryType::Block => libc::S_IFBLK,
            EntryType::XGlobalHeader => return Ok(Some(())),
            EntryType::Link => {
                let linked = self.entry(&target);
                let ino = linked.and_then(|entry| self.entries.get(&entry).copied());
                let ino = ino.filter(|&ino| !self.node(ino).is_dir());
                return Ok(ino.map(|ino| {
                    self.inodes[ino as usize - 1].attr.nlink += 1;
                    self.entries.insert(entry, ino);
                }));
            }
            _ => return Ok(None),
        };
        let known = known.filter(|_| is_dir);
        let ino = known.unwrap_or_else(|| self.add_directory(entry));
        let size = target.len() as u64 + from.size();
        let (sec, nsec) = (header.mtime()? as i64, 0);
        let mode = mode | header.mode()? & 0o7777;
        let mut attr = Attr::new(ino, mode, size, Stamp { sec, nsec });
        (attr.uid, attr.gid) = (header.uid()? as u32, header.gid()? as u32);
        let number = |number: io::Result<Option<u32>>| number.ok().flatten().unwrap_or(0);
        attr.rdev = libc::makedev(number(header.device_major()), number(header.device_minor()));
        let inode = &mut self.inodes[ino as usize - 1];
        (inode.attr, inode.target, inode.offset) = (attr, target, from.raw_file_position());
        Ok(Some(()))
    }

    /// A directory that the archive names later, or leaves out.
    fn add_directory(&mut self, entry: (u64, Vec<u8>)) -> u64 {
        let ino = self.inodes.len() as u64 + 1;
        self.entries.insert(entry.clone(), ino);
        self.inodes.push(Inode {
            attr: Attr::new(ino, libc::S_IFDIR | 0o755, 0, Stamp::default()),
            entry,
            target: Vec::new(),
            offset: 0,
        });
        ino
    }

    /// The directory and the name of a path. `None` for one with `..`, and for one below a file.
    fn entry(&mut self, path: &[u8]) -> Option<(u64, Vec<u8>)> {
        let mut entry = (ROOT, Vec::new());
        for name in path.split(|&byte| byte == b'/') {
            match name {
                b"" | b"." => continue,
                b".." => return None,
                _ if entry.1.is_empty() => {}
                _ => {
                    let known = self.entries.get(&entry).copied();
                    entry.0 = known.unwrap_or_else(|| self.add_directory(entry.clone()));
                }
            }
            entry.1 = Some(name.to_vec()).filter(|_| self.node(entry.0).is_dir())?;
        }
        Some(entry)
    }

    fn inode(&self, node: &Node) -> &Inode {
        &self.inodes[node.ino() as usize - 1]
    }

    fn node(&self, ino: u64) -> Node {
        Node::bare(ino, self.inodes[ino as usize - 1].attr.kind())
    }
}

impl FileSource for Archive {
    type Key = u64;

    fn key(&self, file: &Node) -> Result<u64, Errno> {
        Ok(file.ino())
    }

    fn size(&self, file: &Node) -> Result<u64, Errno> {
        Ok(self.inode(file).attr.size)
    }

    fn read_at(&self, file: &Node, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let inode = self.inode(file);
        let left = inode.attr.size.saturating_sub(offset).min(buf.len() as u64);
        let read = self
            .file
            .read_exact_at(&mut buf[..left as usize], inode.offset + offset);
        read.map(|()| left as usize).map_err(|_| Errno::EIO)
    }

    fn in_host_file(&self, file: &Node) -> Option<(&File, u64)> {
        Some((&self.file, self.inode(file).offset))
    }
}

/// A tar archive as a file system.
pub struct TarFs(FileCache<Archive>);

impl TarFs {
    /// Reads the index of the archive `file`.
    pub fn new(file: File) -> io::Result<Self> {
        Archive::open(file).map(FileCache::new).map(Self)
    }
}

impl FileSystem for TarFs {
    fn kind(&self) -> &'static str {
        "tar"
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn root(&self) -> Node {
        self.0.source().node(ROOT)
    }

    fn lookup(&self, _: &Caller, dir: &Node, name: &[u8]) -> Result<Node> {
        if !dir.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        let found = self.0.source().entries.get(&(dir.ino(), name.to_vec()));
        found
            .map(|&ino| self.0.source().node(ino))
            .ok_or(Errno::ENOENT.into())
    }

    fn parent(&self, _: &Caller, dir: &Node) -> Result<Node> {
        Ok(self.0.source().node(self.0.source().inode(dir).entry.0))
    }

    fn path(&self, caller: &Caller, node: &Node) -> Result<(Vec<u8>, bool)> {
        if node.ino() == ROOT {
            return Ok((Vec::new(), false));
        }
        let (mut path, _) = self.path(caller, &self.parent(caller, node)?)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&self.0.source().inode(node).entry.1);
        Ok((path, false))
    }

    fn getattr(&self, _: &Caller, node: &Node) -> Result<Attr> {
        Ok(self.0.source().inode(node).attr.clone())
    }

    fn readlink(&self, _: &Caller, node: &Node) -> Result<Vec<u8>> {
        Ok(self.0.source().inode(node).target.clone())
    }

    /// A cookie is the number of entries before the next one: they never change.
    #[rustfmt::skip]
    fn readdir(&self, _: &Caller, dir: &Node, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let archive = self.0.source();
        let entries = archive.entries.range((dir.ino(), vec![0])..(dir.ino() + 1, Vec::new()));
        for (((_, name), &ino), cookie) in entries.zip(1..).skip(cookie as usize) {
            if !sink(DirEntry { name, ino, kind: archive.node(ino).kind(), cookie }) {
                break;
            }
        }
        Ok(())
    }

    fn open(&self, _: &Caller, file: &Node, flags: i32) -> Result<Opened> {
        Ok(self.0.open(file, flags)?)
    }

    fn content(&self) -> Option<&dyn CachedContent> {
        Some(&self.0)
    }

    fn read_at(&self, _: &Caller, file: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.0.source().read_at(file, offset, buf)?)
    }
}
