//! A complete back end: one directory with one file. See docs/add-a-backend.md.

use std::sync::Arc;

use goanna_cache::{FileCache, FileSource};
use goanna_vfs::{
    Attr, CachedContent, Caller, DirEntry, Errno, FileKind, FileSystem, FsError, Node, Opened,
    Result, Stamp,
};

const TEXT: &[u8] = b"Hello, world\n";
const ROOT: u64 = 1;
const FILE: u64 = 2;

/// How the content is read.
struct Text;

impl FileSource for Text {
    type Key = u64;

    fn key(&self, file: &Node) -> Result<u64, Errno> {
        Ok(file.ino())
    }

    fn size(&self, _: &Node) -> Result<u64, Errno> {
        Ok(TEXT.len() as u64)
    }

    fn read_at(&self, file: &Node, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        if file.ino() != FILE {
            return Err(Errno::EISDIR);
        }
        let start = usize::try_from(offset)
            .unwrap_or(TEXT.len())
            .min(TEXT.len());
        let rest = &TEXT[start..];
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
}

/// `/hello`, read-only.
pub struct HelloFs {
    cache: FileCache<Text>,
    made: Stamp,
}

impl Default for HelloFs {
    fn default() -> Self {
        Self {
            cache: FileCache::new(Text),
            made: Stamp::now(),
        }
    }
}

impl FileSystem for HelloFs {
    fn kind(&self) -> &'static str {
        "hello"
    }

    fn root(&self) -> Node {
        Node::bare(ROOT, FileKind::Directory)
    }

    fn lookup(&self, _: &Caller, dir: &Node, name: &[u8]) -> Result<Node> {
        match (dir.ino(), name) {
            (ROOT, b"hello") => Ok(Node::bare(FILE, FileKind::Regular)),
            (ROOT, _) => Err(Errno::ENOENT.into()),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    fn parent(&self, _: &Caller, _: &Node) -> Result<Node> {
        Ok(self.root())
    }

    fn path(&self, _: &Caller, node: &Node) -> Result<(Vec<u8>, bool)> {
        let path: &[u8] = if node.ino() == ROOT { b"" } else { b"hello" };
        Ok((path.to_vec(), false))
    }

    fn getattr(&self, _: &Caller, node: &Node) -> Result<Attr> {
        let (perm, nlink, size) = match node.ino() {
            ROOT => (0o555, 2, 0),
            _ => (0o444, 1, TEXT.len() as u64),
        };
        Ok(Attr {
            dev: 0,
            ino: node.ino(),
            mode: node.kind().mode_bits() | perm,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blksize: 4096,
            blocks: size.div_ceil(512),
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
            btime: Some(self.made),
            flags: 0,
            of_statx: None,
            may_have_acl: false,
            version: 0,
        })
    }

    fn readlink(&self, _: &Caller, _: &Node) -> Result<Vec<u8>> {
        Err(Errno::EINVAL.into())
    }

    fn readdir(
        &self,
        _: &Caller,
        dir: &Node,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if dir.ino() != ROOT {
            return Err(Errno::ENOTDIR.into());
        }
        if cookie < 1 {
            sink(DirEntry {
                name: b"hello",
                ino: FILE,
                kind: FileKind::Regular,
                cookie: 1,
            });
        }
        Ok(())
    }

    fn open(&self, _: &Caller, file: &Node, flags: i32) -> Result<Opened> {
        Ok(self.cache.open(file, flags)?)
    }

    fn content(&self) -> Option<&dyn CachedContent> {
        Some(&self.cache)
    }

    fn read_at(&self, _: &Caller, file: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.cache.source().read_at(file, offset, buf)?)
    }
}

/// Looks at the file the way a `cat /hello` does: walk, permission, open, read.
pub fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    use goanna_vfs::{Mount, MountFlags, Place, ops};

    let caller = Caller::with_ids(1000, 1000);
    let fs: Arc<dyn FileSystem> = Arc::new(HelloFs::default());
    let root = Place {
        node: fs.root(),
        mount: Arc::new(Mount::new(
            fs,
            b"/mnt".to_vec(),
            MountFlags::READ_ONLY,
            "hello".into(),
            0,
        )),
    };
    let hello = Place {
        mount: Arc::clone(&root.mount),
        node: ops::lookup(&caller, &root, b"hello")?,
    };
    let opened = ops::open_existing(&caller, &hello, libc::O_RDONLY)?;
    let text = std::io::read_to_string(std::fs::File::from(opened.into_fd()?))?;
    print!("{text}");
    let refused = ops::unlink(&caller, &root, b"hello");
    if text.as_bytes() != TEXT || refused != Err(FsError::Errno(Errno::EROFS)) {
        return Err("not what was mounted".into());
    }
    Ok(())
}
