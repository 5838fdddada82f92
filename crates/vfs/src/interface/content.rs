//! The interface of a back end whose open files are descriptors of cache objects ([`crate::Native::Reads`]).

use std::ops::Range;
use std::sync::Arc;

use goanna_sys::object_handle::ObjectHandle;
use goanna_sys::stub::map::{AttributeMap, Slot};
use goanna_sys::stub::writes::{Moment, WriteArea};

use crate::{Attr, Caller, Node, Opened, Result};

/// The content cache of a back end: cache objects that programs hold descriptors and mappings of.
///
/// The defaults are those of content that never changes. `goanna-cache` implements the trait for files of that kind.
#[allow(
    unused_variables,
    reason = "defaults answer without looking at their arguments"
)]
pub trait CachedContent: Send + Sync {
    /// Called when no program holds an open file description or a mapping of the file's cache object any more. The back end drops
    /// what it kept for them, and removes a file without names. An open may race with this call: the back end checks the
    /// object's handle again, under the lock under which it also reopens the object.
    fn released(&self, node: &Node);

    /// Called before a program maps the file shared, through a writable descriptor. From now on its content can change
    /// without a call, until [`CachedContent::released`]. ENODEV in a transaction that could not undo writes through
    /// the mapping.
    fn map_shared(&self, caller: &Caller, node: &Node) -> Result<()> {
        Ok(())
    }

    /// Stores what programs wrote through mappings into the bytes `range`, as msync(2) does, and makes it durable when
    /// `durable`.
    fn sync_mapped(&self, node: &Node, range: Range<u64>, durable: bool) -> Result<()> {
        Ok(())
    }

    /// Whether a program has the file, as the caller sees it, open for writing, so that it cannot be executed (ETXTBSY).
    fn open_for_writing(&self, caller: &Caller, node: &Node) -> bool {
        false
    }

    /// ftruncate(2) of a file that a program has open for writing: the descriptor allows it, whatever the file's permissions are now. `None`
    /// if [`crate::FileSystem::truncate`] can be called instead, because it does not check permissions.
    fn truncate_open(&self, caller: &Caller, node: &Node, size: u64) -> Option<Result<()>> {
        None
    }

    /// Whether the caller's transaction has given the file another content than its descriptors show. The caller then
    /// reads and maps what [`crate::FileSystem::read_at`] returns. The answer holds until other transactions change the
    /// file, which they cannot before the caller's ends.
    fn has_own_content(&self, caller: &Caller, node: &Node) -> Result<bool> {
        Ok(false)
    }

    /// Reads up to `len` bytes at `offset` of the content that the caller's transaction has given the file, and fewer only at its
    /// end; `None` where [`CachedContent::has_own_content`] is false. One operation, so both answers belong together.
    fn read_own(
        &self,
        caller: &Caller,
        node: &Node,
        offset: u64,
        len: usize,
    ) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Whether programs that find the file may open `object` for reading themselves while the object of the host behind the file has the attributes `on_host`
    /// ([`crate::FileSystem::on_host`]): it has the content of the file then, every user may read the file, and no program maps it to write.
    /// The caller has a claim to the object, and keeps it while programs may do so.
    fn may_be_opened(&self, node: &Node, object: &ObjectHandle, on_host: &Attr) -> bool {
        false
    }

    /// Whether the file's cache object is in memory and has grown too large for it.
    fn outgrown(&self, caller: &Caller, node: &Node) -> bool {
        false
    }

    /// Moves an outgrown cache object to a host file, and opens that one with `flags`, for the caller to exchange the descriptor through which
    /// the file is written: the description has a descriptor already. `None`: the object is not in memory, or not only that descriptor
    /// of it exists. Opens of the file wait until the object is moved. Writes through a descriptor of the old object fail with EIO from
    /// now on.
    fn relocate(&self, caller: &Caller, node: &Node, flags: i32) -> Result<Option<Opened>> {
        Ok(None)
    }

    /// As [`CachedContent::relocate`], if nobody has a descriptor of the old object: `None` otherwise. For a layer, which has closed its own.
    fn relocate_unused(&self, caller: &Caller, node: &Node, flags: i32) -> Result<Option<Opened>> {
        Ok(None)
    }
}

/// How much a file may grow by writes under one grant, bytes ([`SharedAttributes::grant_writes`]).
pub const GRANTED_GROWTH: u64 = 256 << 10;

/// A file that a program is likely to open soon.
#[derive(Debug)]
pub struct NextFile {
    /// The path by which it opens it.
    pub path: Vec<u8>,
    /// The file.
    pub node: Node,
}

/// A back end that keeps the attributes of files in a map, which programs read themselves (docs/decisions/0098).
///
/// The back end takes attributes out of the map before a read of the file system, or of a cache object, can see another state, and closes the map
/// while a transaction is open. The map has what the methods below put into it, and cache objects that were opened.
pub trait SharedAttributes: Send + Sync {
    /// The map; the first call makes it. `None` where there is none.
    fn map(&self) -> Option<Arc<AttributeMap>>;

    /// While something is mounted on the directory `node`, its attributes and paths through it are not in the map.
    fn set_covered(&self, node: &Node, is_covered: bool);

    /// Records in the map that the host object `ino` stands for `node`: a cache object in space 0, a backing directory in the space of its run.
    fn share_object(&self, node: &Node, space: u64, ino: u64);

    /// Records in the map that the directory `node` has this backing directory in `run`, with this inode number and path.
    fn share_directory(&self, node: &Node, run: u64, backing: (u64, &[u8]));

    /// The slot of the directory `node` in the map. As long as that has its id, the entries do not change. `None` for one that is not to be there.
    fn slot_of_directory(&self, node: &Node) -> Option<Slot>;

    /// Puts `path` into the map: what `rest` leads to from the directory `from`, if every user may go there, by no symbolic link and no `..`.
    /// It begins at the run `run`, or at `from` itself.
    fn share_path(&self, run: Option<u64>, path: &[u8], from: &Node, rest: &[u8]);

    /// A program asks for `path`, as in [`SharedAttributes::share_path`], for the first time. If it asks for the entries of a directory one after the other, the
    /// next ones are put into the map. Returns whether there were such.
    fn share_following(&self, run: Option<u64>, path: &[u8], from: &Node, rest: &[u8]) -> bool;

    /// A program opens `path`, as in [`SharedAttributes::share_path`]. If it opens the files of a directory one after the other, the paths of the next ones whose content is
    /// shared are put into the map, and those whose content can be shared are returned. `None` if there are no next ones.
    fn following_files(
        &self,
        run: Option<u64>,
        path: &[u8],
        from: &Node,
        rest: &[u8],
    ) -> Option<Vec<NextFile>>;

    /// Lets the processes of `run` open `node` for reading by the descriptor of `object`, its cache object, if every user may read the file. The caller has a claim
    /// to the object until it has withdrawn that. `None` if the file cannot be in the map.
    fn share_content(&self, node: &Node, run: u64, object: &ObjectHandle) -> Option<Slot>;

    /// Grants the process that has `area` further writes to `node` around `offset`, or around its end, until the next operation of the file system (docs/decisions/0121).
    /// `caller` has just written there, or opened the file, and waits in that call. Returns whether there is a grant now.
    fn grant_writes(
        &self,
        caller: &Caller,
        node: &Node,
        moment: Moment,
        offset: Option<u64>,
        area: &Arc<WriteArea>,
    ) -> bool;

    /// Ends all grants, as an operation does.
    fn end_writes(&self);
}
