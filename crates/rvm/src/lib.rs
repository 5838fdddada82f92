//! Recoverable memory (Amino paper, section 2.4): regions whose writes, allocation and deallocation roll back when a transaction aborts, so
//! that a program's data structures stay consistent with its files. The program need not log or announce its writes: at the
//! first write to a page the kernel copies it, and this crate later finds, keeps or drops the copies.
//!
//! ```
//! use amino_rvm::{Error, NoFiles, Rvm};
//!
//! # fn main() -> Result<(), Error> {
//! let mut rvm = Rvm::new(NoFiles)?; // or AminoFiles::connect()?
//! let region = rvm.map(1 << 20)?;
//! rvm.bytes_mut(region)?[0] = 1;
//! rvm.begin()?;
//! rvm.bytes_mut(region)?[0] = 2;
//! rvm.abort()?;
//! assert_eq!(rvm.bytes(region)?[0], 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Memory and files
//!
//! [`Rvm`] takes a hook to file transactions. With [`AminoFiles`] each begin, commit and abort is one of the files below
//! `amino run`, too, and if the commit of the files fails, memory is aborted, too. [`NoFiles`] is memory alone.
//!
//! # Rules and limits
//!
//! - **Threads.** Any number may read and write the regions in the one transaction. During begin, commit, abort, map and unmap
//!   no thread may write, nor be in a system call that does (an `O_DIRECT` or io_uring read still in progress). Rust's borrows
//!   ensure that for slices; users of pointers must ensure it themselves. A file transaction belongs to a thread: with [`AminoFiles`] the
//!   same thread begins and ends, and the file operations of other threads are not part of it.
//! - **System calls** may write into regions, too: `read(2)`, a ptracer, a monitor.
//! - **Memory.** A page that is read takes 4 KiB, one that is written 8 KiB until it was left alone for a transaction, and 4 KiB
//!   more for each level around a nested transaction that changed it. Pages never touched take none. It is swappable.
//! - **Size.** A region takes twice its length of address space, and must not exceed `ulimit -f`, since a memfd is behind it.
//! - **Time.** Begin examines each recently used page of the regions, commit is free, abort drops all mapped pages.
//!   See docs/decisions/0012-recoverable-memory.md for figures.
//! - **Depth.** [`DEPTH_MAX`] transactions within each other.
//! - **fork.** A child has no recoverable memory: the mappings are not inherited, so that using them is a segmentation fault,
//!   and each method returns [`Error::Forked`]. Copy what a child needs before the fork. Programs that are executed, by
//!   [`std::process::Command`] or `posix_spawn`, are not affected.
//! - **Roll-back** covers memory in regions only: not pointers to it that are stored elsewhere.
//! - **Not durable.** The memory ends with the process. Linux 6.7 or newer, x86-64.

mod bins;
mod error;
mod files;
mod heap;
mod rvm;

pub use error::Error;
pub use files::{AminoFiles, Files, NoFiles};
pub use goanna_sys::Errno;
pub use heap::Heap;
pub use rvm::{DEPTH_MAX, RegionId, Rvm};
