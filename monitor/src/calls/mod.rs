//! The calls the monitor answers, one file per family; those on the content of files are in `content/`.

pub mod attr;
mod content;
pub mod dir;
pub mod inotify;
pub mod ioctl;
pub mod kill;
pub mod link;
pub mod mounting;
pub mod nested;
pub mod open;
pub mod process;
pub mod socket;
pub mod stat;
pub mod txn;

pub use content::{aio, copy, lease, map, outgrow, output, read, size, sync, write};
