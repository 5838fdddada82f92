//! ISO 9660 images: a reader, and the back end of the switch over it (Goanna paper, section 4.3).
//!
//! The reader works on any source that can be read at an offset ([`ReadAt`]), holds no lock while it reads, and starts
//! without a scan: [`Iso::open`] reads the descriptors and one directory record; directories are read on demand and kept
//! in a cache of bounded size.
//!
//! | module | what it reads |
//! |---|---|
//! | `volume`, `session`, `boot` | descriptors, sessions of a plain file, the boot catalogue |
//! | `record`, `reader` | directory records, made into names with attributes |
//! | `susp`, `rockridge` | System Use areas and their continuations, POSIX attributes |
//! | `attributes` | extended attribute records, where there is no Rock Ridge |
//! | `names` | a record's name as UTF-8, in each name space: Rock Ridge, Joliet, plain |
//! | `zisofs` | compressed files |
//! | `iso`, `entry`, `cache` | the tree: lookup, listing, walk, content |
//! | `backend`, `content` | the switch's operations; how the content cache (`goanna-cache`) reads files |
//!
//! ```no_run
//! use goanna_isofs::{Iso, Options};
//!
//! let iso = Iso::open_file("cd.iso".as_ref(), &Options::default())?;
//! println!("{}", iso.info().primary.volume_id);
//! if let Some(file) = iso.resolve(b"docs/readme.txt")? {
//!     let mut head = [0; 512];
//!     let len = iso.read_at(&file, 0, &mut head)?;
//!     println!("{}", String::from_utf8_lossy(&head[..len]));
//! }
//! # Ok::<(), goanna_isofs::Error>(())
//! ```
//!
//! # Damage
//!
//! An image is not trusted. Every length is checked against the image before anything is read or allocated, chains
//! (continuation areas, relocated directories, directories within themselves, sessions) are followed a bounded number of
//! times, and every error names the record and its place in bytes. Contradictions in an image that Linux and others
//! tolerate are tolerated here, too: numbers recorded in both byte orders are read from the little-endian half. A name
//! with damaged Rock Ridge fields is listed with the sound ones; using it is an error.
//!
//! Limits: 64 descriptors a session, 64 continuation areas a record, 128 MiB and 512 MiB of memory a directory, 16384
//! sections a file, 2048
//! directories above one another, targets of links below 4096 bytes.

mod backend;
mod cache;
mod content;
mod entry;
mod error;
mod format;
mod iso;
mod mount_type;
mod read_everything;
mod reader;
mod source;

pub use backend::IsoFs;
pub use entry::{Entry, Meta};
pub use error::{Error, Record, Result};
pub use format::boot::BootImage;
pub use format::namespace::Namespace;
pub use format::volume::Volume;
pub use iso::{Info, Iso, Namespaces, Options, SECTOR_BYTES, SessionInfo, Visit};
pub use mount_type::IsoBackend;
#[doc(hidden)]
pub use read_everything::read_everything;
pub use source::ReadAt;
