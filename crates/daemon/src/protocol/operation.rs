//! Requests of a client that works on the tree, and their answers.
//!
//! There is one operation for each method of [`goanna_vfs::FileSystem`] that the offline commands need, and one for the content
//! of a whole file, whose descriptor comes with it. The server keeps each node under a handle until the client forgets it.

use goanna_offline::copy::CopyError;
use goanna_vfs::{Attr, Errno, FileId, FileKind, SetAttr};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Maximum number of bytes of data in one message.
pub const PIECE_MAX: usize = 256 << 10;

/// A node that the server keeps for the client.
pub type Handle = u64;

/// One request.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct TreeRequest {
    /// Nodes that the client does not need any more.
    pub forget: Vec<Handle>,
    /// The operation.
    pub operation: Operation,
}

/// An operation. [`goanna_vfs::FileSystem`] says what each does and how it fails.
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
    /// `readdir` after this cookie; one answer may hold a part of the entries only.
    Entries(Handle, u64),
    /// `read_at`: offset and length in bytes; at most [`PIECE_MAX`] come back.
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
    /// `file_id`.
    FileId(Handle),
    /// `subscribe`. A socket comes along: messages from it are lists of [`goanna_vfs::Change`], each of which the client
    /// answers by [`Acknowledged`] once it has received the report.
    Subscribe,
    /// A new file of this name and of the content, holes included, of the regular file whose descriptor comes along.
    Fill(Handle, ByteBuf),
}

/// The client's subscriber has received a report.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Acknowledged;

/// The answer to an operation.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum TreeAnswer {
    /// Number of the error.
    Failed(i32),
    /// It is done.
    Done,
    /// A node, which the server keeps from now on.
    Node(NodeId),
    /// Metadata.
    Attr(Attr),
    /// A value, a target.
    Bytes(ByteBuf),
    /// The number of bytes of data, which follow the message.
    Data(u64),
    /// A path, and whether it was removed.
    Path(ByteBuf, bool),
    /// Names of attributes.
    Names(Vec<ByteBuf>),
    /// The id of a file.
    FileId(FileId),
    /// Entries, and whether there may be more of them.
    Entries(Vec<Entry>, bool),
    /// Bytes of data and of holes that were copied since the last such answer. Another answer follows.
    Copied(u64, u64),
    /// The error of copying a file's content.
    NotCopied(Reason),
}

/// A node.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NodeId {
    /// Its handle, until the client forgets it.
    pub handle: Handle,
    /// Inode number.
    pub ino: u64,
    /// Its kind.
    pub kind: FileKind,
}

/// A directory's entry.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub name: ByteBuf,
    /// Inode number.
    pub ino: u64,
    /// The kind of the file.
    pub kind: FileKind,
    /// The position at which the next `readdir` begins.
    pub cookie: u64,
}

/// A [`CopyError`] whose errnos are numbers.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Reason {
    /// An operation on the host failed.
    Host(i32),
    /// An operation on the store failed.
    Store(i32),
    /// A reason without an errno.
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

    fn assert_survives<T>(value: T)
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
    fn every_operation_survives_serialisation() {
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
            flags: Some(0x10),
        };
        let operations = vec![
            Operation::Lookup(1, odd()),
            Operation::Parent(u64::MAX),
            Operation::Path(2),
            Operation::Attr(3),
            Operation::Target(4),
            Operation::Entries(5, u64::MAX),
            Operation::Read(6, 1 << 60, PIECE_MAX as u64),
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
            Operation::FileId(18),
            Operation::Subscribe,
            Operation::Fill(19, odd()),
        ];
        for operation in operations {
            assert_survives(TreeRequest {
                forget: vec![0, u64::MAX],
                operation,
            });
        }
    }

    #[test]
    fn every_answer_survives_serialisation() {
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
            flags: 0,
            of_statx: None,
            may_have_acl: true,
            version: u64::MAX,
        };
        let entry = Entry {
            name: bytes(b"\xff"),
            ino: 1,
            kind: FileKind::Directory,
            cookie: 1 << 61,
        };
        let answers = vec![
            TreeAnswer::Failed(Errno::ENOENT as i32),
            TreeAnswer::Done,
            TreeAnswer::Node(node),
            TreeAnswer::Attr(attr.clone()),
            TreeAnswer::Attr(Attr {
                btime: Some(stamp),
                ..attr
            }),
            TreeAnswer::Bytes(ByteBuf::from(vec![9; PIECE_MAX])),
            TreeAnswer::Data(PIECE_MAX as u64),
            TreeAnswer::Path(bytes(b"a/b"), true),
            TreeAnswer::Names(vec![bytes(b"user.a"), bytes(b"")]),
            TreeAnswer::FileId(FileId {
                fs: u128::MAX,
                inode: 1,
                generation: u64::MAX,
            }),
            TreeAnswer::Entries(vec![entry], true),
            TreeAnswer::Copied(1 << 40, 0),
            TreeAnswer::NotCopied(Reason::Other("é".into())),
        ];
        answers.into_iter().for_each(assert_survives);
    }

    #[test]
    fn bytes_take_no_more_than_their_length() {
        let bytes = TreeAnswer::Bytes(ByteBuf::from(vec![0xff; 65536]));
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
