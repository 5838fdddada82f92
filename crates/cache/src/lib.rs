//! The content cache: the objects that programs' descriptors of virtual files refer to.
//!
//! A back end that is not a directory of the host has no descriptor to give when a program opens a file. This crate makes
//! one: a *cache object*, which is a memfd, or a nameless host file for content that is too large for memory. The object
//! holds the file's whole content, so programs read, seek, lock and map it in the kernel, without the monitor.
//!
//! * [`FileCache`] serves files that do not change while they are mounted. The back end implements how a file is read ([`FileSource`]) and
//!   gets descriptors. Read `files.rs` next.
//! * [`Content`] is for files that change: an object, the pages in which it differs from the stored content, and whether programs have it
//!   open or mapped. The back end keeps it with the file's state. Read `content.rs` next.
//! * [`CacheObject`] is the object itself; [`Transfer`] copies content from one to another; [`SpareObjects`] are made ahead.
//! * [`RangeSet`] is a set of pages; [`IdleList`] orders files whose content may be dropped.
//!
//! An object always holds the whole content before a program gets a descriptor of it: programs read it without calling the monitor.
//!
//! # Example
//!
//! A back end with one file implements how it reads the file, and opens it:
//!
//! ```
//! use goanna_cache::{FileCache, FileSource, Result};
//! use goanna_vfs::{CachedContent, FileKind, Node};
//!
//! struct Greeting;
//!
//! impl FileSource for Greeting {
//!     type Key = u64;
//!
//!     fn key(&self, file: &Node) -> Result<u64> {
//!         Ok(file.ino())
//!     }
//!
//!     fn size(&self, _: &Node) -> Result<u64> {
//!         Ok(13)
//!     }
//!
//!     fn read_at(&self, _: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
//!         let rest = b"Hello, world\n".get(offset as usize..).unwrap_or_default();
//!         let len = rest.len().min(buf.len());
//!         buf[..len].copy_from_slice(&rest[..len]);
//!         Ok(len)
//!     }
//! }
//!
//! // `FileSystem::open` is a call of `FileCache::open`, and `FileSystem::content` returns the cache.
//! let cache = FileCache::new(Greeting);
//! let file = Node::bare(2, FileKind::Regular);
//! let opened = cache.open(&file, libc::O_RDONLY)?;
//! let content = std::io::read_to_string(std::fs::File::from(opened.into_fd()?)).unwrap();
//! assert_eq!(content, "Hello, world\n");
//! cache.released(&file);
//! # Ok::<(), goanna_vfs::Errno>(())
//! ```
//!
//! # Concurrency
//!
//! Every method may be called by several threads at the same time. Threads that open the same file at the same time get
//! descriptors of one object: the first fills it, and the others wait for that. Threads that open different files do not
//! wait for each other.
//!
//! An open races with the last close. The monitor determines by the object's handle that no program holds the object, and
//! calls [`goanna_vfs::CachedContent::released`]. A thread that drops an object checks the handle again, under the lock that opens take to
//! make their descriptions, so that no program gets a descriptor of an object that is being dropped.
//!
//! # Lock order
//!
//! 1. the slot of one file in a [`FileCache`], held while the object is filled: the source may be slow,
//! 2. the state of the [`FileCache`]; a thread that holds it only tries slots.
//!
//! The methods of a [`FileSource`] are called with a slot locked. They may take locks of the back end, but must not open
//! a file of the same cache.
//!
//! The lock of [`SpareObjects`] is a leaf; no object is made while it is held.
//!
//! A [`CacheObject`], a [`Content`] and an [`IdleList`] have no locks. The back end keeps a content under the lock of the
//! file's state, and holds that lock while it checks whether the object is unused and acts on the result. Copying
//! and comparing content may take long; methods call the back end only through the closures they were given.

mod content;
mod files;
mod handles;
mod idle;
mod object;
mod range_set;
mod spares;
mod transfer;

pub use content::{ChangedPages, Content};
pub use files::{FileCache, FileSource, Limits};
pub use handles::OpenHandles;
pub use idle::IdleList;
pub use object::{CacheObject, write_all_at};
pub use range_set::RangeSet;
pub use spares::SpareObjects;
pub use transfer::Transfer;

/// The result of the cache's functions, which never meet the lock of a transaction.
pub type Result<T> = std::result::Result<T, goanna_vfs::Errno>;
