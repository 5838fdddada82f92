//! What a client that works on the tree says to `aminod`, and what it is answered.
//!
//! One message for each method of [`goanna_vfs::FileSystem`] that the offline commands need, and one for a whole file's
//! content, whose descriptor comes with it. A node is known by a handle until the client forgets it.

use goanna_offline::copy::CopyError;
use goanna_vfs::{Attr, Errno, FileKind, SetAttr};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Most bytes of data in one message.
pub const PIECE: usize = 256 << 10;

/// A node that `aminod` keeps for the client.
pub type Handle = u64;

/// What a client asks for at once.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Nodes that the client has no more use for.
    pub forget: Vec<Handle>,
    /// What is to be done.
    pub operation: Operation,
}

/// See [`goanna_vfs::FileSystem`] for what they do and how they fail.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Operation {
    /// `lookup`.
    Lookup(Handle, ByteBuf),
    /// `parent`.
    Parent(Handle),
    /// `path`.
    Path(Handle),
    /// `getattr`.
    Attr(Handle),
    /// `readlink`.
    Target(Handle),
    /// `readdir` after this cookie, as far as it is answered at once.
    Entries(Handle, u64),
    /// `read_at` this offset, so many bytes; at most [`PIECE`] are answered.
    Read(Handle, u64, u64),
    /// `mknod`: mode and device number.
    MakeNode(Handle, ByteBuf, u32, u64),
    /// `mkdir`.
    MakeDir(Handle, ByteBuf, u32),
    /// `symlink`: the name, and the target.
    MakeSymlink(Handle, ByteBuf, ByteBuf),
    /// `link`: the file, and its new directory and name.
    Link(Handle, Handle, ByteBuf),
    /// `unlink`.
    Unlink(Handle, ByteBuf),
    /// `rmdir`.
    RemoveDir(Handle, ByteBuf),
    /// `setattr`.
    Set(Handle, SetAttr),
    /// `getxattr`.
    Xattr(Handle, ByteBuf),
    /// `setxattr`: name, value, flags.
    SetXattr(Handle, ByteBuf, ByteBuf, i32),
    /// `listxattr`.
    Xattrs(Handle),
    /// `sync` of everything.
    Sync,
    /// A new file of this name and of the content, holes included, of the regular file whose descriptor comes along.
    Fill(Handle, ByteBuf),
}

/// What it is answered with.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// Number of the error.
    Failed(i32),
    /// Nothing to tell.
    Done,
    /// A node, kept from now on.
    Node(NodeId),
    /// Metadata.
    Attr(Attr),
    /// A value, a target.
    Bytes(ByteBuf),
    /// So many bytes of data, which follow the message.
    Data(u64),
    /// A path, and whether it was removed.
    Path(ByteBuf, bool),
    /// Names of attributes.
    Names(Vec<ByteBuf>),
    /// Entries, and whether there may be more of them.
    Entries(Vec<Entry>, bool),
    /// Bytes of data and of holes that were copied since the last such answer; another follows.
    Copied(u64, u64),
    /// Why a file's content could not be copied.
    NotCopied(Reason),
}

/// A node.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NodeId {
    /// For as long as it is kept.
    pub handle: Handle,
    /// Inode number.
    pub ino: u64,
    /// What it is.
    pub kind: FileKind,
}

/// A directory's entry.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub name: ByteBuf,
    /// Inode number.
    pub ino: u64,
    /// What it names.
    pub kind: FileKind,
    /// Where to go on.
    pub cookie: u64,
}

/// [`CopyError`], with the numbers of errors.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Reason {
    /// The host refused something.
    Host(i32),
    /// The store refused something.
    Store(i32),
    /// In words.
    Other(String),
}

impl From<CopyError> for Reason {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Host(errno) => Self::Host(errno.raw_os_error()),
            CopyError::Tree(errno) => Self::Store(errno as i32),
            CopyError::Other(text) => Self::Other(text.into_owned()),
        }
    }
}

impl From<Reason> for CopyError {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Host(code) => Self::Host(rustix::io::Errno::from_raw_os_error(code)),
            Reason::Store(code) => Self::Tree(Errno::from_raw(code)),
            Reason::Other(text) => Self::Other(text.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use goanna_vfs::{Stamp, TimeSet};

    fn same<T>(value: T)
    where
        T: Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
    {
        let bytes = postcard::to_allocvec(&value).unwrap();
        assert_eq!(postcard::from_bytes::<T>(&bytes).unwrap(), value);
    }

    fn bytes(text: &[u8]) -> ByteBuf {
        ByteBuf::from(text)
    }

    #[test]
    fn every_operation_arrives_as_it_was_said() {
        let odd = || bytes(b"\xff\xfe \n");
        let set = SetAttr {
            mode: Some(0o4755),
            uid: Some(u32::MAX),
            gid: None,
            atime: Some(TimeSet::Now),
            mtime: Some(TimeSet::At(Stamp {
                sec: i64::MIN,
                nsec: 999_999_999,
            })),
        };
        let operations = vec![
            Operation::Lookup(1, odd()),
            Operation::Parent(u64::MAX),
            Operation::Path(2),
            Operation::Attr(3),
            Operation::Target(4),
            Operation::Entries(5, u64::MAX),
            Operation::Read(6, 1 << 60, PIECE as u64),
            Operation::MakeNode(7, odd(), 0o020_666, u64::MAX),
            Operation::MakeDir(8, odd(), 0o1777),
            Operation::MakeSymlink(9, odd(), bytes(b"")),
            Operation::Link(10, 11, odd()),
            Operation::Unlink(12, odd()),
            Operation::RemoveDir(13, odd()),
            Operation::Set(14, set),
            Operation::Set(14, SetAttr::default()),
            Operation::Xattr(15, odd()),
            Operation::SetXattr(16, odd(), bytes(&[0; 65536]), -1),
            Operation::Xattrs(17),
            Operation::Sync,
            Operation::Fill(18, odd()),
        ];
        for operation in operations {
            same(Step {
                forget: vec![0, u64::MAX],
                operation,
            });
        }
    }

    #[test]
    fn every_outcome_arrives_as_it_was_said() {
        let node = NodeId {
            handle: 7,
            ino: u64::MAX,
            kind: FileKind::Socket,
        };
        let stamp = Stamp { sec: -1, nsec: 5 };
        let attr = Attr {
            dev: 1,
            ino: 2,
            mode: 0o104_755,
            nlink: 3,
            uid: 4,
            gid: 5,
            rdev: 6,
            size: u64::MAX,
            blksize: 7,
            blocks: 8,
            atime: stamp,
            mtime: stamp,
            ctime: stamp,
            btime: None,
        };
        let entry = Entry {
            name: bytes(b"\xff"),
            ino: 1,
            kind: FileKind::Directory,
            cookie: 1 << 61,
        };
        let outcomes = vec![
            Outcome::Failed(Errno::ENOENT as i32),
            Outcome::Done,
            Outcome::Node(node),
            Outcome::Attr(attr.clone()),
            Outcome::Attr(Attr {
                btime: Some(stamp),
                ..attr
            }),
            Outcome::Bytes(ByteBuf::from(vec![9; PIECE])),
            Outcome::Data(PIECE as u64),
            Outcome::Path(bytes(b"a/b"), true),
            Outcome::Names(vec![bytes(b"user.a"), bytes(b"")]),
            Outcome::Entries(vec![entry], true),
            Outcome::Copied(1 << 40, 0),
            Outcome::NotCopied(Reason::Other("é".into())),
        ];
        outcomes.into_iter().for_each(same);
    }

    #[test]
    fn bytes_take_no_more_than_their_length() {
        let bytes = Outcome::Bytes(ByteBuf::from(vec![0xff; 65536]));
        assert!(postcard::to_allocvec(&bytes).unwrap().len() < 65536 + 16);
    }

    #[test]
    fn reasons_keep_their_text() {
        let all = [
            CopyError::Host(rustix::io::Errno::NOSPC),
            CopyError::Tree(Errno::EDQUOT),
            CopyError::text("in words"),
        ];
        for error in all {
            let text = error.to_string();
            assert_eq!(CopyError::from(Reason::from(error)).to_string(), text);
        }
    }
}
